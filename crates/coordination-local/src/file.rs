//! A store in a file: claimed for one process, and made under another name.

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

/// Opens the file, or makes it.
pub(crate) fn open(path: &Path) -> Result<Store, OpenError> {
    let io = |source| OpenError::Io { path: path.to_path_buf(), source };
    // An empty file is what `touch` and other tools leave behind: as good as none.
    if !fs::metadata(path).is_ok_and(|found| found.len() > 0) {
        create(path)?;
    }
    let storage = claim(path)?;
    if Header::find(&storage).map_err(io)? == Found::None {
        return Err(refused(path, storage));
    }
    let store = Store::open(path, Arc::new(storage), LOG_BYTES)?;
    // This process holds the file's lock, so leftovers of a crashed creator belong to no process.
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

/// Makes the file under another name and links it into place when it is whole: a crash in the middle must not leave a
/// file that the next start refuses. If another process was faster, its file stands.
fn create(path: &Path) -> Result<(), OpenError> {
    let io = |source| OpenError::Io { path: path.to_path_buf(), source };
    let draft = draft(path)?;
    if fs::metadata(path).is_ok_and(|found| found.len() == 0) {
        fs::remove_file(path).map_err(io)?;
    }
    match fs::hard_link(&draft, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(io(error)),
        _ => fs::remove_file(&draft).map_err(io)?,
    }
    sync_folder(path).map_err(io)
}

/// Why a file without our header is refused: it may be a database from its first byte on, as the first format was.
fn refused(path: &Path, storage: FileBackend) -> OpenError {
    let damaged = |problem: String| OpenError::Damaged { path: path.to_path_buf(), problem };
    let database = match Database::builder().create_with_backend(storage) {
        Ok(database) => database,
        Err(error) => return OpenError::of_database(path, error),
    };
    match tables::format(&database) {
        Ok(found) => OpenError::Format { path: path.to_path_buf(), found, known: FORMAT },
        Err(error) => damaged(error.to_string()),
    }
}

/// Makes a new store under a name of this process, and closes it; where it is.
fn draft(path: &Path) -> Result<PathBuf, OpenError> {
    let io = |source| OpenError::Io { path: path.to_path_buf(), source };
    let mut name = path.as_os_str().to_owned();
    name.push(format!("{LEFTOVER}{}", std::process::id()));
    let draft = PathBuf::from(name);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&draft).map_err(io)?;
    let storage = FileBackend::new(file).map_err(|error| OpenError::of_database(path, error))?;
    drop(Store::open(path, Arc::new(storage), LOG_BYTES)?);
    Ok(draft)
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
