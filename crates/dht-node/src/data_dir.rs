//! The data folder of a node: its key, its logs, and a lock so that two nodes never share it.
//!
//! ```text
//! key       the node's secret, 64 hex digits, readable by its owner only
//! network   the name of the network this folder belongs to
//! lock      held while the node runs
//! control   the socket that `tessera dht` talks to
//! log/      one write-ahead log per lane
//! ```

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::rand::{GetRandomFlags, getrandom};
use tessera_contracts::point::{ContentId, Point as _};
use zeroize::Zeroizing;

/// Why a data folder cannot be used.
#[derive(Debug)]
pub enum DataDirError {
    /// The system said no.
    Io {
        /// What was being done.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What it said.
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
            Self::Io { doing, path, error } => write!(
                f,
                "{doing} {} failed: {error}; the data folder must be a folder that this user may write",
                path.display()
            ),
            Self::InUse(path) => write!(
                f,
                "another node runs on the data folder {}: stop it, or give this one a folder of its own with --data",
                path.display()
            ),
            Self::KeyExposed { path, mode } => write!(
                f,
                "the key file {} can be read by others (mode {mode:o}): run `chmod 600` on it, or remove it if somebody may \
                 have read it, and the node gets a new identity",
                path.display()
            ),
            Self::KeyDamaged(path) => write!(
                f,
                "the key file {} is not 64 hex digits: restore it from a copy, or remove it and the node gets a new identity",
                path.display()
            ),
            Self::OtherNetwork { path, theirs, asked } => write!(
                f,
                "the data folder {} belongs to the network `{theirs}`, not to `{asked}`: use another folder, or --network {theirs}",
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
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(DataDirError::InUse(path.to_owned())),
            Err(error) => return Err(io("locking", &lock_path)(error.into())),
        }
        let network_path = path.join("network");
        match fs::read_to_string(&network_path) {
            Ok(theirs) if theirs.trim_end() == network => {}
            Ok(theirs) => {
                let theirs = theirs.trim_end().to_owned();
                return Err(DataDirError::OtherNetwork { path: path.to_owned(), theirs, asked: network.to_owned() });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write_whole(&network_path, format!("{network}\n").as_bytes())
                    .map_err(io("writing the network's name", &network_path))?;
            }
            Err(error) => return Err(io("reading the network's name", &network_path)(error)),
        }
        let log = path.join("log");
        DirBuilder::new().recursive(true).mode(0o700).create(&log).map_err(io("making the folder of logs", &log))?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Where the logs are.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("log")
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
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let seed = fresh_seed().map_err(io("drawing a key for"))?;
            let text = Zeroizing::new(format!("{}\n", ContentId::from_bytes(*seed)));
            write_whole(path, text.as_bytes()).map_err(io("writing the key file"))?;
            return Ok(seed);
        }
        Err(error) => return Err(io("opening the key file")(error)),
    };
    let mode = file.metadata().map_err(io("looking at the key file"))?.permissions().mode() & 0o777;
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

/// A secret from the system's randomness.
pub(crate) fn fresh_seed() -> io::Result<Zeroizing<[u8; 32]>> {
    let mut seed = Zeroizing::new([0; 32]);
    getrandom(&mut seed[..], GetRandomFlags::empty())?;
    Ok(seed)
}

/// Writes a small file so that a crash leaves it whole or absent, readable by its owner only.
fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
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
            assert_eq!(fs::read(&path).unwrap(), damaged, "what may be a damaged key is nobody's to overwrite");
        }
    }

    #[test]
    fn a_folder_is_for_one_node_and_one_network() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let open = DataDir::open(&path, "one").unwrap();
        assert!(matches!(DataDir::open(&path, "one"), Err(DataDirError::InUse(_))));
        drop(open);
        let error = DataDir::open(&path, "two").unwrap_err();
        assert!(matches!(error, DataDirError::OtherNetwork { .. }) && error.to_string().contains("--network one"));
        DataDir::open(&path, "one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
