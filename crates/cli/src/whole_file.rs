//! A report in a file: all of it, or what was there before.
//!
//! Half a report looks like a whole one of a repository with fewer secrets. So a report is written beside its place and moved there when
//! it is whole; a disk that is full leaves the earlier report alone.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Lets `write` write the file at `path`. If it fails, the file is what it was before.
pub(crate) fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    // A link stays, and leads to the new report.
    let place = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let before = fs::metadata(&place).ok();
    // A device or pipe takes what comes; nothing can be moved there.
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        return write_through(File::create(&place)?, write);
    }
    let Some((staging, file)) = staging_file_beside(&place)? else {
        // The file may be written and its folder may not: there is no room beside it.
        return write_through(File::create(&place)?, write);
    };
    let permissions = before.map_or(Ok(()), |before| fs::set_permissions(&staging, before.permissions()));
    let written = permissions.and_then(|()| write_through(file, write)).and_then(|()| fs::rename(&staging, &place));
    if written.is_err() {
        let _ = fs::remove_file(&staging);
    }
    written
}

fn write_through(file: File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    out.flush()
}

/// A new file in the folder of `place`; none if that folder takes no new file, but has this one.
fn staging_file_beside(place: &Path) -> io::Result<Option<(PathBuf, File)>> {
    let name = place.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?;
    let mut number = std::process::id();
    loop {
        let mut staging = OsString::from(".");
        staging.push(name);
        staging.push(format!(".{number}"));
        let staging = place.with_file_name(staging);
        match OpenOptions::new().write(true).create_new(true).open(&staging) {
            Ok(file) => return Ok(Some((staging, file))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number = number.wrapping_add(1),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && place.exists() => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(dir: &Path) -> Vec<OsString> {
        let mut names: Vec<OsString> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_report_that_fails_halfway_leaves_the_earlier_one_and_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        fs::write(&path, "the earlier one").unwrap();
        let failed = write_whole(&path, |out| {
            out.write_all(&[b'x'; 100_000])?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string(&path).unwrap(), "the earlier one");
        write_whole(&path, |out| out.write_all(b"the new one")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "the new one");
        assert_eq!(names_in(dir.path()), ["report.json"]);
    }

    #[test]
    fn links_and_devices_stay_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("report"), dir.path().join("link"));
        fs::write(&path, "").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write_whole(&link, |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        let full = write_whole(Path::new("/dev/full"), |out| out.write_all(b"new"));
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(write_whole(&dir.path().join("no/such/folder"), |_| Ok(())).is_err());
    }
}
