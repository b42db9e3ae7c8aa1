//! Files of a run, as far as anything durable depends on them: append, sync, rename, list.
//!
//! What is durable and when is decided by these few calls, so they are a trait: a real folder is a [`Path`]; the simulator has one
//! that tears, forgets and refuses as file systems do. The contract is what a file system keeps after a power cut:
//!
//! - what was appended is durable when [`AppendFile::sync`] returns, and before that some of it may be;
//! - a file's name, new or changed, is durable when [`Folder::sync`] returns, and before that it may be;
//! - a file under its new name is the whole file, whenever the machine stops;
//! - a list of names may leave out files that another machine has just made.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::op_ids::random_u64;

/// A folder of files. Names have no separators.
pub trait Folder: Debug + Send + Sync {
    /// Makes the folder, which is its owner's alone, if it is not there; but not the one it lies in.
    fn make(&self) -> io::Result<()>;

    /// Makes a file that is not there yet, which is its owner's alone.
    fn create(&self, name: &str) -> io::Result<Box<dyn AppendFile>>;

    /// Opens a file to read it.
    fn open(&self, name: &str) -> io::Result<Box<dyn ReadFile>>;

    /// The names of all files, in any order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Gives a file another name, and takes the place of the file that had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Takes a file away.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes names durable.
    fn sync(&self) -> io::Result<()>;

    /// Where a file lies, for people.
    fn path_of(&self, name: &str) -> PathBuf;
}

/// A file that grows at its end. One writer has it.
pub trait AppendFile: Debug + Send {
    /// Adds bytes.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was added durable. [`io::ErrorKind::NotFound`] if the file cannot be found under its name any more: what
    /// is written to a file that was taken away goes with it.
    fn sync(&mut self) -> io::Result<()>;

    /// Cuts it to its first `len` bytes.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
}

/// A file that is read anywhere.
pub trait ReadFile: Debug + Send + Sync {
    /// Its length in bytes.
    fn byte_len(&self) -> io::Result<u64>;

    /// Fills `buffer` from byte `at` on.
    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()>;
}

/// All of a file.
pub fn read(folder: &(impl Folder + ?Sized), name: &str) -> io::Result<Vec<u8>> {
    let file = folder.open(name)?;
    let len = usize::try_from(file.byte_len()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Writes a whole file, in the place of the one with its name: all or nothing, and durable when this returns.
pub fn replace(folder: &(impl Folder + ?Sized), name: &str, bytes: &[u8]) -> io::Result<()> {
    let staging = staging_name(name);
    let mut file = folder.create(&staging)?;
    let written = file.append(bytes).and_then(|()| file.sync()).and_then(|()| folder.rename(&staging, name));
    if let Err(error) = written {
        let _ = folder.remove(&staging);
        return Err(error);
    }
    folder.sync()
}

/// The name of a file until it is whole.
pub(crate) fn staging_name(name: &str) -> String {
    format!("{name}.{:016x}", random_u64())
}

impl Folder for Path {
    fn make(&self) -> io::Result<()> {
        match std::fs::DirBuilder::new().mode(0o700).create(self) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn AppendFile>> {
        let path = self.join(name);
        // What lies in a run's folder says where secrets are.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Box::new(NamedFile { path, file }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadFile>> {
        Ok(Box::new(File::open(self.join(name))?))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        std::fs::read_dir(self)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.join(from), self.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(self)?.sync_all()
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.join(name)
    }
}

impl Folder for PathBuf {
    fn make(&self) -> io::Result<()> {
        self.as_path().make()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn AppendFile>> {
        Folder::create(self.as_path(), name)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadFile>> {
        Folder::open(self.as_path(), name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.as_path().list()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.as_path().rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.as_path().remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.as_path().sync()
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.join(name)
    }
}

/// A file of this machine, and the name it was made under.
#[derive(Debug)]
struct NamedFile {
    path: PathBuf,
    file: File,
}

impl AppendFile for NamedFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        let (held, named) = (self.file.metadata()?, std::fs::metadata(&self.path)?);
        if (held.dev(), held.ino()) == (named.dev(), named.ino()) {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::NotFound, "another file has taken its name"))
        }
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.file.seek(io::SeekFrom::Start(len)).map(|_| ())
    }
}

impl ReadFile for File {
    fn byte_len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["first, and longer", "second"] {
            replace(dir.path(), "name", text.as_bytes()).unwrap();
            assert_eq!(read(dir.path(), "name").unwrap(), text.as_bytes());
        }
        assert_eq!(dir.path().list().unwrap(), ["name"]);
        assert_eq!(std::fs::metadata(dir.path().join("name")).unwrap().mode() & 0o777, 0o600);
        std::fs::create_dir(dir.path().join("taken")).unwrap();
        replace(dir.path(), "taken", b"x").unwrap_err();
        assert_eq!(dir.path().list().unwrap().len(), 2, "a write that failed leaves nothing behind");
    }

    #[test]
    fn a_folder_is_made_but_not_the_one_it_lies_in() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a/b");
        assert_eq!(below.make().unwrap_err().kind(), io::ErrorKind::NotFound);
        dir.path().join("a").make().unwrap();
        below.make().unwrap();
        below.make().unwrap();
        assert_eq!(std::fs::metadata(&below).unwrap().mode() & 0o777, 0o700);
    }
}
