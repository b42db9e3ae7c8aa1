//! Files of a repository that are files.
//!
//! A repository from elsewhere may hold anything under the names git uses. A pipe is waited for without end, a device has
//! none: neither is opened as if it were a file, and no more is read of a file than makes sense for what it should be.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file, at once.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    open_with(path, OFlags::empty())
}

fn open_with(path: &Path, more: OFlags) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | more;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file"))
    }
}

/// What lies in a file; `None` if there is none.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    read_opened(open(path), bytes_max)
}

/// What lies in a file; `None` if there is none. A symbolic link is an error, whatever it points to.
pub fn read_no_link(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    read_opened(open_with(path, OFlags::NOFOLLOW), bytes_max)
}

fn read_opened(opened: io::Result<File>, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match opened {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is absurdly long"));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_devices_and_endless_files_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        assert!(read(&path, 9).unwrap().is_none());
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(read(&path, 9).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read(Path::new("/dev/zero"), 9).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read(dir.path(), 9).unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "123456789").unwrap();
        assert_eq!(read(&path, 9).unwrap().unwrap(), b"123456789");
        assert_eq!(read(&path, 8).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read(&link, 9).unwrap().unwrap(), b"123456789");
        assert!(read_no_link(&link, 9).is_err());
        assert_eq!(read_no_link(&path, 9).unwrap().unwrap(), b"123456789");
    }
}
