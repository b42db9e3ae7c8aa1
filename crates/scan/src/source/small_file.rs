//! Small files of text: settings, rules, and lists of what is known.
//!
//! They come with what is scanned, which may be a stranger's: a link to a device that never ends would otherwise be read until
//! memory is used up, and a pipe into which nobody writes would be waited for until the end of days.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The largest of them.
pub const BYTES_MAX: u64 = 16 << 20;

/// Reads a file that the user named: it may be a pipe, as shells make them of the output of a command.
pub fn read_named(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    // What a device has to say has no length that could be looked at before.
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(io::Error::other(format!(
            "it has more than {BYTES_MAX} bytes, which are too many for such a file"
        )));
    }
    String::from_utf8(text).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text in UTF-8"))
}

/// Reads a file that was found where it is looked for.
pub fn read_found(path: &Path) -> io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    read_named(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_the_largest_and_no_further() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for (bytes, is_read) in [(0, true), (BYTES_MAX, true), (BYTES_MAX + 1, false)] {
            File::create(&path).unwrap().set_len(bytes).unwrap();
            assert_eq!(read_named(&path).map(|text| text.len() as u64).ok(), is_read.then_some(bytes));
        }
    }

    #[test]
    fn what_never_ends_is_refused_and_found_it_is_not_even_opened() {
        let endless = Path::new("/dev/zero");
        assert!(read_named(endless).unwrap_err().to_string().contains("too many"));
        assert!(read_found(endless).unwrap_err().to_string().contains("no regular file"));
        assert_eq!(read_found(Path::new("/no such file")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
