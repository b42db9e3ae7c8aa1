//! Notes in a run's folder: what a reader is about to read.
//!
//! ```text
//! file    = magic "TSRNOTE1", then one slot
//! slot    = length u32, crc32c u32 of the payload, payload; or length 0: nothing is being read
//! payload = alone u8, key
//! ```
//!
//! One file for each reader, which writes its slot again and again and removes the file when it ends. It is not synced: what a dead
//! process wrote is there all the same.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tessera_contracts::limits::MAX_KEY_SIZE;

use crate::findings::record::frame;
use crate::op_ids::random_u64;
use crate::wire::{Malformed, Reader, Writer};
use tessera_git_objects::plain_file;

/// The first bytes of a note.
const MAGIC: &[u8; 8] = b"TSRNOTE1";
const SUFFIX: &str = ".note";
/// Longest note.
const NOTE_BYTES_MAX: u64 = MAX_KEY_SIZE as u64 + 64;
/// Most notes that are looked at. There is one for each death; more are left by something else.
const NOTES_MAX: usize = 10_000;

/// Where the notes of a run lie.
pub(super) fn dir_in(run_dir: &Path) -> PathBuf {
    run_dir.join("notes")
}

/// A reader's own note.
#[derive(Debug)]
pub(super) struct OwnNote {
    path: PathBuf,
    file: File,
}

impl OwnNote {
    pub(super) fn create(dir: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let path = dir.join(format!("{:016x}{SUFFIX}", random_u64()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(MAGIC)?;
        Ok(Self { path, file })
    }

    /// Notes that `key` is about to be read. Without a note the item is read all the same: it is of no use to stop here, and
    /// a full disk shows where findings are written.
    pub(super) fn write(&mut self, key: &[u8], is_alone: bool) {
        let mut payload = Writer::default();
        payload.u8(u8::from(is_alone));
        payload.bytes(key);
        let mut slot = Vec::new();
        frame(&payload.0, &mut slot);
        let _ = self.file.write_all_at(&slot, MAGIC.len() as u64);
    }

    /// Takes it back.
    pub(super) fn take_back(&mut self) {
        let _ = self.file.write_all_at(&[0; 4], MAGIC.len() as u64);
    }
}

impl Drop for OwnNote {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Keys that were noted and not taken back, each with the number of readers that read it alone.
pub(super) fn left_behind(dir: &Path) -> BTreeMap<Vec<u8>, u32> {
    let mut noted = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return noted };
    let paths = entries.flatten().map(|entry| entry.path());
    for path in paths.filter(|path| path.to_string_lossy().ends_with(SUFFIX)).take(NOTES_MAX) {
        let Ok(Some(bytes)) = plain_file::read_no_link(&path, NOTE_BYTES_MAX) else { continue };
        if let Ok((key, is_alone)) = parse(&bytes) {
            *noted.entry(key).or_default() += u32::from(is_alone);
        }
    }
    noted
}

/// The key in a note. One that was taken back, or torn, has none.
fn parse(bytes: &[u8]) -> Result<(Vec<u8>, bool), Malformed> {
    let none = Malformed("it notes nothing");
    let mut reader = Reader(bytes.strip_prefix(MAGIC).ok_or(none)?);
    let (len, crc) = (reader.u32()? as usize, reader.u32()?);
    let payload = reader.fixed(len)?;
    if len == 0 || crc32c::crc32c(payload) != crc {
        return Err(none);
    }
    let mut payload = Reader(payload);
    let is_alone = payload.u8()? == 1;
    Ok((payload.bytes()?.to_vec(), is_alone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_holds_the_last_key_and_is_gone_when_it_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut own = OwnNote::create(dir.path()).unwrap();
        assert!(left_behind(dir.path()).is_empty());
        own.write(b"a longer key", true);
        own.write(b"key", true);
        let mut other = OwnNote::create(dir.path()).unwrap();
        other.write(b"key", true);
        let mut third = OwnNote::create(dir.path()).unwrap();
        third.write(b"else", false);
        assert_eq!(left_behind(dir.path()), BTreeMap::from([(b"else".to_vec(), 0), (b"key".to_vec(), 2)]));
        own.take_back();
        drop(third);
        assert_eq!(left_behind(dir.path()), BTreeMap::from([(b"key".to_vec(), 1)]));
    }

    #[test]
    fn a_note_that_is_cut_or_damaged_or_of_another_kind_counts_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut own = OwnNote::create(dir.path()).unwrap();
        own.write(b"key", true);
        let whole = std::fs::read(&own.path).unwrap();
        for len in 0..whole.len() {
            assert!(parse(&whole[..len]).is_err(), "cut to {len} bytes");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            assert!(parse(&damaged).is_err(), "byte {at} damaged");
        }
        std::fs::write(dir.path().join("x.note"), [0; 100_000]).unwrap();
        std::fs::write(dir.path().join("other"), &whole).unwrap();
        assert_eq!(left_behind(dir.path()).len(), 1);
        assert!(left_behind(&dir.path().join("none")).is_empty());
    }

    #[test]
    fn the_longest_key_can_be_noted() {
        let dir = tempfile::tempdir().unwrap();
        let key = vec![b'k'; MAX_KEY_SIZE];
        OwnNote::create(dir.path())
            .map(|mut own| {
                own.write(&key, true);
                assert_eq!(left_behind(dir.path()).keys().next(), Some(&key));
            })
            .unwrap();
    }
}
