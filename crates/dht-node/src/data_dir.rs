//! The data folder of a node: its key, its logs, and a lock so that two nodes never share it.
//!
//! ```text
//! key       the node's secret, 64 hex digits, readable by its owner only
//! network   the name of the network this folder belongs to
//! lock      held while the node runs
//! log/      one write-ahead log per lane
//! unfinished/  a file for each large value that is being stored, so that nothing of it is left after a crash
//! ```

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use tessera_contracts::point::{ContentId, Point as _};
use zeroize::Zeroizing;

/// Why a data folder cannot be used.
#[derive(Debug)]
pub enum DataDirError {
    /// The system said no.
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Another process runs on it.
    InUse(PathBuf),
    /// The key file can be read by others, and so may be known to them.
    KeyExposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The key file is not 64 hex digits.
    KeyDamaged(PathBuf),
    /// The path of the key file is a folder, a pipe or a device.
    KeyNoFile(PathBuf),
    /// Other users can write into the folder, and so replace the key and the records.
    Exposed {
        /// The folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The folder was made for another network.
    OtherNetwork {
        /// The folder.
        path: PathBuf,
        /// Whose it is.
        theirs: String,
        /// Which was asked for.
        asked: String,
    },
}

impl fmt::Display for DataDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { doing, path, error } => {
                write!(f, "{doing} {} failed: {error}", path.display())?;
                f.write_str(match error.kind() {
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ": make room on its disk",
                    io::ErrorKind::AlreadyExists if path.exists() => {
                        ": something that is no folder has this name; give another one with --data"
                    }
                    io::ErrorKind::InvalidData => ": it is not ours, or damaged; restore it from a copy",
                    io::ErrorKind::PermissionDenied
                    | io::ErrorKind::ReadOnlyFilesystem
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::IsADirectory
                    | io::ErrorKind::NotFound => ": it must be in a folder that this user may write",
                    _ => "",
                })
            }
            Self::InUse(path) => write!(
                f,
                "another node runs on the data folder {}: stop it, or give this one a folder of its own with --data",
                path.display()
            ),
            Self::KeyExposed { path, mode } => write!(
                f,
                "the key file {} can be read by others (mode {mode:o}): run `chmod 600` on it; if another user may have read it, \
                 move it away, and a new key is made",
                path.display()
            ),
            Self::KeyDamaged(path) => write!(
                f,
                "the key file {} is not 64 hex digits: restore it from a copy, or move it away, and a new key is made",
                path.display()
            ),
            Self::KeyNoFile(path) => write!(
                f,
                "the key file {} is no file: move it away, and a new key is made, or name another one",
                path.display()
            ),
            Self::Exposed { path, mode } => write!(
                f,
                "the data folder {} can be written by all users (mode {mode:o}), and each could replace its key: run `chmod 700` on it, \
                 and look at what is in it, or give another folder with --data",
                path.display()
            ),
            Self::OtherNetwork { path, theirs, asked } => write!(
                f,
                "the data folder {} belongs to the network `{theirs}`, not to `{asked}`: use another folder, or --network '{theirs}'",
                path.display()
            ),
        }
    }
}

impl std::error::Error for DataDirError {}

/// An open data folder. The lock is let go when this is dropped, or when the process dies.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Opens or makes the folder for `network`.
    pub(crate) fn open(path: &Path, network: &str) -> Result<Self, DataDirError> {
        let io = |doing, at: &Path| {
            let path = at.to_owned();
            move |error| DataDirError::Io { doing, path, error }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io("making the data folder", path))?;
        let mode = fs::metadata(path).map_err(io("looking at the data folder", path))?.permissions().mode() & 0o7777;
        if mode & 0o002 != 0 {
            return Err(DataDirError::Exposed { path: path.to_owned(), mode });
        }
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(io("opening the lock file", &lock_path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(DataDirError::InUse(path.to_owned())),
            Err(error) => return Err(io("locking", &lock_path)(error.into())),
        }
        let network_path = path.join("network");
        match fs::read_to_string(&network_path) {
            Ok(theirs) if theirs.strip_suffix('\n') == Some(network) => {}
            Ok(theirs) => {
                let theirs = theirs.strip_suffix('\n').unwrap_or(&theirs).to_owned();
                return Err(DataDirError::OtherNetwork { path: path.to_owned(), theirs, asked: network.to_owned() });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write_new(&network_path, format!("{network}\n").as_bytes())
                    .map_err(io("writing the network's name", &network_path))?;
            }
            Err(error) => return Err(io("reading the network's name", &network_path)(error)),
        }
        let log = path.join("log");
        DirBuilder::new().recursive(true).mode(0o700).create(&log).map_err(io("making the folder of logs", &log))?;
        let unfinished = path.join("unfinished");
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&unfinished);
        made.map_err(io("making the folder of unfinished values", &unfinished))?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Where the logs are.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Where the values are named that are being stored.
    pub(crate) fn unfinished(&self) -> PathBuf {
        self.path.join("unfinished")
    }

    /// The node's secret: read, or made at the first start.
    pub(crate) fn key(&self) -> Result<Zeroizing<[u8; 32]>, DataDirError> {
        key_file(&self.path.join("key"))
    }
}

/// Reads a key file, or makes one with a fresh secret that only its owner can read.
pub fn key_file(path: &Path) -> Result<Zeroizing<[u8; 32]>, DataDirError> {
    let io = |doing| {
        let path = path.to_owned();
        move |error| DataDirError::Io { doing, path, error }
    };
    let mut file = match open_key(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let seed = fresh_seed().map_err(io("drawing a key for"))?;
            let text = Zeroizing::new(format!("{}\n", ContentId::from_bytes(*seed)));
            match write_new(path, text.as_bytes()) {
                Ok(()) => return Ok(seed),
                // Another process made the key meanwhile: use that one.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    open_key(path).map_err(io("opening the key file"))?
                }
                Err(error) => return Err(io("writing the key file")(error)),
            }
        }
        Err(error) => return Err(io("opening the key file")(error)),
    };
    let meta = file.metadata().map_err(io("looking at the key file"))?;
    if !meta.is_file() {
        return Err(DataDirError::KeyNoFile(path.to_owned()));
    }
    let mode = meta.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(DataDirError::KeyExposed { path: path.to_owned(), mode });
    }
    let mut text = Zeroizing::new(String::new());
    match (&mut file).take(1024).read_to_string(&mut text) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(DataDirError::KeyDamaged(path.to_owned()));
        }
        Err(error) => return Err(io("reading the key file")(error)),
    }
    let seed: ContentId = text.trim_end().parse().map_err(|_| DataDirError::KeyDamaged(path.to_owned()))?;
    Ok(Zeroizing::new(*seed.as_bytes()))
}

/// Opens the path without blocking: a pipe would block until a writer comes.
fn open_key(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

/// A secret from the system's randomness.
pub(crate) fn fresh_seed() -> io::Result<Zeroizing<[u8; 32]>> {
    let mut seed = Zeroizing::new([0; 32]);
    getrandom(&mut seed[..], GetRandomFlags::empty())?;
    Ok(seed)
}

/// Makes a small file, readable by its owner only. A crash leaves it whole or absent; of several callers at once one succeeds.
pub(crate) fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A unique name: a file that is there already must not be overwritten, and has permissions of its own.
    let name = format!(".tessera-{}-{}.new", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let temporary = folder.join(name);
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&temporary)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    let placed = written.and_then(|()| place(&temporary, path));
    // The error of the write is the one to report, not that of the removal.
    let _ = fs::remove_file(&temporary);
    placed?;
    File::open(folder)?.sync_all()
}

/// Gives a file its name unless the name is taken. Not every file system knows both ways.
fn place(temporary: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => fs::hard_link(temporary, path),
        renamed => Ok(renamed?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_with_safe_permissions_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let made = key_file(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(*key_file(&path).unwrap(), *made);
    }

    #[test]
    fn of_many_threads_that_make_a_key_at_once_one_does_and_all_have_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        for neighbour in ["key.new", "key.tmp"] {
            fs::write(dir.path().join(neighbour), "not ours").unwrap();
        }
        let keys: Vec<_> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..8).map(|_| scope.spawn(|| key_file(&path).map(|key| *key))).collect();
            makers.into_iter().map(|maker| maker.join().unwrap().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(dir.path().join("key.new")).unwrap(), "not ours");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "nothing is left behind");
    }

    #[test]
    fn a_key_file_may_be_named_without_a_folder() {
        // The tests of a package run in its own folder, which a name without one is in.
        let name = format!("key-of-test-{}", std::process::id());
        let made = key_file(Path::new(&name));
        let removed = fs::remove_file(&name);
        assert!(made.is_ok() && removed.is_ok(), "{made:?} {removed:?}");
    }

    #[test]
    fn a_name_of_a_network_is_taken_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        drop(DataDir::open(dir.path(), "a ").unwrap());
        drop(DataDir::open(dir.path(), "a ").unwrap());
        assert!(matches!(DataDir::open(dir.path(), "a"), Err(DataDirError::OtherNetwork { .. })));
    }

    #[test]
    fn an_exposed_or_damaged_key_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        key_file(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = key_file(&path).unwrap_err();
        assert!(matches!(error, DataDirError::KeyExposed { mode: 0o640, .. }), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for damaged in [&b"abc"[..], b"", b"\xff\xfe", &[b'z'; 64]] {
            fs::write(&path, damaged).unwrap();
            assert!(matches!(key_file(&path), Err(DataDirError::KeyDamaged(_))), "{damaged:?}");
            assert_eq!(fs::read(&path).unwrap(), damaged, "a file that may be a damaged key is not overwritten");
        }
    }

    #[test]
    fn a_key_that_is_no_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, pipe) = (dir.path().join("folder"), dir.path().join("pipe"));
        fs::create_dir(&folder).unwrap();
        rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
        for path in [folder, pipe, PathBuf::from("/dev/null")] {
            let (told, answer) = std::sync::mpsc::channel();
            let asked = path.clone();
            std::thread::spawn(move || told.send(key_file(&asked).unwrap_err()));
            let error =
                answer.recv_timeout(std::time::Duration::from_secs(600)).expect("it does not wait for a writer");
            assert!(matches!(&error, DataDirError::KeyNoFile(no_file) if *no_file == path), "{error}");
        }
    }

    #[test]
    fn a_folder_that_everybody_can_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (mode, usable) in [(0o755, true), (0o770, true), (0o777, false), (0o1777, false), (0o702, false)] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            let opened = DataDir::open(dir.path(), "one");
            assert_eq!(opened.is_ok(), usable, "{mode:o}");
            if let Err(error) = opened {
                assert!(matches!(error, DataDirError::Exposed { .. }) && error.to_string().contains("chmod 700"));
            }
        }
    }

    #[test]
    fn a_folder_that_is_a_file_is_said_to_be_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = DataDir::open(file.path(), "one").unwrap_err().to_string();
        assert!(error.contains("no folder has this name") && error.contains("--data"), "{error}");
    }

    #[test]
    fn a_folder_is_for_one_node_and_one_network() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let open = DataDir::open(&path, "one").unwrap();
        assert!(matches!(DataDir::open(&path, "one"), Err(DataDirError::InUse(_))));
        drop(open);
        let error = DataDir::open(&path, "two").unwrap_err();
        assert!(matches!(error, DataDirError::OtherNetwork { .. }) && error.to_string().contains("--network 'one'"));
        DataDir::open(&path, "one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
