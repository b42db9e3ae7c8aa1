//! A store in a file: claimed for one process, made under another name, and brought over from the former format.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::Database;
use redb::backends::FileBackend;

use crate::error::OpenError;
use crate::layout::{FORMAT, Found, Header};
use crate::store::{LOG_BYTES, Store};
use crate::tables;

/// The format before there was a log: a redb database from the first byte on.
const FORMER: u32 = 1;

/// Opens the file, or makes it.
pub(crate) fn open(path: &Path) -> Result<Store, OpenError> {
    let io = |source| OpenError::Io { path: path.to_path_buf(), source };
    // An empty file is what `touch` and other tools leave behind: as good as none.
    if !fs::metadata(path).is_ok_and(|found| found.len() > 0) {
        create(path)?;
    }
    let storage = loop {
        let storage = claim(path)?;
        if Header::find(&storage).map_err(io)? != Found::None {
            break storage;
        }
        // Another process may have replaced it before this one had it: then there is another file of that name now.
        if header_of(path).map_err(io)? == Found::None {
            replace_former(path, storage)?;
        }
    };
    let store = Store::open(path, Arc::new(storage), LOG_BYTES)?;
    // Whoever is here owns the file, so what a crashed creator left behind is nobody's.
    for leftover in leftovers(&fs::canonicalize(path).map_err(io)?).map_err(io)? {
        fs::remove_file(leftover).map_err(io)?;
    }
    Ok(store)
}

/// Opens the file for this process alone; it is free again when the storage is dropped, or the process ends.
fn claim(path: &Path) -> Result<FileBackend, OpenError> {
    let io = |source| OpenError::Io { path: path.to_path_buf(), source };
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => FileBackend::new(file).map_err(|error| OpenError::of_database(path, error)),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.to_path_buf() }),
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

fn header_of(path: &Path) -> io::Result<Found> {
    Header::find(&FileBackend::new(File::open(path)?).map_err(io::Error::other)?)
}

/// Makes the file under another name and links it into place when it is whole: a crash in the middle must not leave a
/// file that the next start refuses. If another process was faster, its file stands.
fn create(path: &Path) -> Result<(), OpenError> {
    let io = |source| OpenError::Io { path: path.to_path_buf(), source };
    let draft = Draft::begin(path)?.finish();
    if fs::metadata(path).is_ok_and(|found| found.len() == 0) {
        fs::remove_file(path).map_err(io)?;
    }
    match fs::hard_link(&draft, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(io(error)),
        _ => fs::remove_file(&draft).map_err(io)?,
    }
    sync_folder(path).map_err(io)
}

/// Puts a file with the same records in the place of one of the former format, at one stroke.
fn replace_former(path: &Path, former: FileBackend) -> Result<(), OpenError> {
    let io = |source| OpenError::Io { path: path.to_path_buf(), source };
    let unreadable = |error: redb::Error| OpenError::Damaged { path: path.to_path_buf(), problem: error.to_string() };
    let database = Database::builder().create_with_backend(former);
    let database = database.map_err(|error| OpenError::of_database(path, error))?;
    match tables::format(&database).map_err(unreadable)? {
        Some(FORMER) => {}
        found => return Err(OpenError::Format { path: path.to_path_buf(), found, known: FORMAT }),
    }
    let rows = tables::all_rows(&database).map_err(unreadable)?;
    // What a link leads to is replaced, not the link; and who may read it does not change.
    let real = fs::canonicalize(path).map_err(io)?;
    let draft = Draft::begin(&real)?;
    draft.store.write(rows.bytes()).map_err(|failed| OpenError::of_load(path, failed))?;
    let draft = draft.finish();
    fs::set_permissions(&draft, fs::metadata(&real).map_err(io)?.permissions()).map_err(io)?;
    fs::rename(draft, &real).and_then(|()| sync_folder(&real)).map_err(io)
}

/// A new store under a name of this process.
struct Draft {
    path: PathBuf,
    store: Store,
}

impl Draft {
    fn begin(path: &Path) -> Result<Self, OpenError> {
        let io = |source| OpenError::Io { path: path.to_path_buf(), source };
        let mut name = path.as_os_str().to_owned();
        name.push(format!("{LEFTOVER}{}", std::process::id()));
        let draft = PathBuf::from(name);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&draft).map_err(io)?;
        let storage = FileBackend::new(file).map_err(|error| OpenError::of_database(path, error))?;
        Ok(Self { store: Store::open(path, Arc::new(storage), LOG_BYTES)?, path: draft })
    }

    /// Closes the store; where it is.
    fn finish(self) -> PathBuf {
        drop(self.store);
        self.path
    }
}

/// Between a file's name and the process that was making it.
const LEFTOVER: &str = ".new-";

fn leftovers(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut prefix = path.file_name().unwrap_or_default().to_owned();
    prefix.push(LEFTOVER);
    let is_leftover = |name: &OsStr| name.as_encoded_bytes().starts_with(prefix.as_encoded_bytes());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder_of(path))? {
        let entry = entry?;
        if is_leftover(&entry.file_name()) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// A new name lives in the folder, which has to reach the disk as well.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
