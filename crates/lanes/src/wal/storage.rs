//! Where a log's files live: a real directory, or one that can crash (`faulty`).

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A directory of files that are appended to and replaced whole.
pub trait Storage: std::fmt::Debug {
    /// An open file.
    type File: StorageFile;

    /// Creates `name`, or empties it.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// Opens `name` to append to it, after cutting it to `len`.
    fn open(&self, name: &str, len: u64) -> io::Result<Self::File>;
    /// The whole content of `name`.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Gives a file another name, in place of whatever had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals so far survive a crash.
    fn sync_directory(&self) -> io::Result<()>;
}

/// A file that only grows.
pub trait StorageFile: std::fmt::Debug {
    /// Appends all of `bytes`.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes everything appended so far survive a crash.
    fn sync(&mut self) -> io::Result<()>;
}

/// A directory of the file system.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// The directory at `path`, created if it is not there.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref().to_owned();
        fs::create_dir_all(&path)?;
        Ok(Self { path })
    }
}

impl Storage for Directory {
    type File = fs::File;

    fn create(&self, name: &str) -> io::Result<fs::File> {
        fs::File::create(self.path.join(name))
    }

    fn open(&self, name: &str, len: u64) -> io::Result<fs::File> {
        let file = fs::OpenOptions::new().append(true).open(self.path.join(name))?;
        file.set_len(len)?;
        Ok(file)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path.join(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // A name that is not text is not ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }
}

impl StorageFile for fs::File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}
