//! Where a log's files live: a real directory, or one that can crash (`faulty`).

use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
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
    /// Gives a file another name, in place of a file that had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals so far survive a crash.
    fn sync_directory(&self) -> io::Result<()>;
}

/// A file that only grows.
pub trait StorageFile: std::fmt::Debug {
    /// Appends all of `bytes`, over the room there is.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Writes so many zeros after the appended bytes, for later bytes to be written over. A sync after an append that stays
    /// within room made and synced before has nothing to tell the file system but the bytes.
    fn make_room(&mut self, bytes: usize) -> io::Result<()>;
    /// Cuts off the room that is left.
    fn give_back_room(&mut self) -> io::Result<()>;
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
    type File = DirectoryFile;

    fn create(&self, name: &str) -> io::Result<DirectoryFile> {
        Ok(DirectoryFile { file: fs::File::create(self.path.join(name))?, end: 0 })
    }

    fn open(&self, name: &str, len: u64) -> io::Result<DirectoryFile> {
        let file = fs::OpenOptions::new().write(true).open(self.path.join(name))?;
        file.set_len(len)?;
        Ok(DirectoryFile { file, end: len })
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

/// A file of a [`Directory`].
#[derive(Debug)]
pub struct DirectoryFile {
    file: fs::File,
    /// Where the next bytes go. The file may be longer: there is room.
    end: u64,
}

impl StorageFile for DirectoryFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    fn make_room(&mut self, bytes: usize) -> io::Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let (mut at, end) = (self.end, self.end + bytes as u64);
        while at < end {
            let piece = &ZEROS[..ZEROS.len().min((end - at) as usize)];
            self.file.write_all_at(piece, at)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn give_back_room(&mut self) -> io::Result<()> {
        self.file.set_len(self.end)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}
