//! Reads one item and searches it.
//!
//! A file is searched as it streams by, so memory does not grow with it. What was found counts only if the file was the
//! same at the end as at the start: one that changes while it is read is read again, and if it changes again it counts
//! as unreadable, although what was found in it is kept.
//!
//! A file with a zero byte near its start is binary and left out, unless it looks like UTF-16 or UTF-32 text or binaries are
//! asked for. Opening never follows a link and never waits for the other end of a pipe, whatever the name stood
//! for when it was listed.

pub mod archive;
mod blob;
pub mod detectors;
pub mod distinct;
pub mod edited;
mod large;
mod lfs;
mod members;
pub mod reach;
pub mod rules;
pub mod selection;

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use tessera_detect::{IdKey, Source, Summary};

pub use blob::BlobPlaces;
pub use members::MemberCounts;

use crate::findings::occurrence::{Occurrence, Place};
use crate::plan::target::ReadOptions;

use crate::read::detectors::{Detectors, DetectorsError};
use crate::report::redact::{Redactor, Shown};
use crate::source::directory::unreadable_reason;
use crate::source::item::{SkipReason, UnreadableReason};

/// Bytes read at a time; a file no longer than this is searched in one piece.
pub const BUFFER_BYTES: usize = 256 << 10;

/// How much of the start is looked at to tell text from binary.
const SNIFF_BYTES: usize = 8 << 10;

/// Most places kept of what one item holds. An item with more is a list of secrets or a mistake; how many were cut is counted.
pub const PLACES_PER_ITEM_MAX: usize = 100_000;

/// What became of an item.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Outcome {
    /// Read and searched to the end.
    Scanned {
        /// Its length.
        bytes: u64,
    },
    /// Left out on purpose.
    Skipped(SkipReason),
    /// Not readable.
    Unreadable(UnreadableReason),
    /// The worker has to stop: nothing was decided about the item.
    Interrupted,
}

/// Reads and searches items, with the memory of one worker.
#[derive(Debug)]
pub struct Reader {
    detectors: Detectors,
    buffer: Box<[u8]>,
    id_key: IdKey,
    keep_secrets: bool,
    /// What was found in the last item.
    pub found: Vec<Occurrence>,
    /// How many findings of the last item were not kept, or could stand at places that are not listed.
    pub cut: u64,
    /// What became of its members, if it was an archive.
    pub members: MemberCounts,
}

impl Reader {
    /// A reader that searches with `detectors`.
    pub fn new(detectors: impl Into<Detectors>, id_key: IdKey, keep_secrets: bool) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self {
            detectors: detectors.into(),
            buffer,
            id_key,
            keep_secrets,
            found: Vec::new(),
            cut: 0,
            members: MemberCounts::default(),
        }
    }

    /// Searches with the set of rules with this number from now on.
    pub fn choose_rules(&mut self, number: u16) -> Result<(), DetectorsError> {
        self.detectors.choose(number)
    }

    /// Remembers from now on which text in blobs is clean. For histories, which repeat themselves.
    pub fn remember_clean_text(&mut self, seed: u64) {
        self.detectors.current().remember_clean_text(seed);
    }

    /// Reads the file at `path`. `goes_on` is asked now and then; `false` interrupts.
    pub fn file(
        &mut self,
        path: &Path,
        place: &Place<'_>,
        options: &ReadOptions,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Outcome {
        let mut outcome = self.file_once(path, place, options, goes_on);
        if outcome == Outcome::Unreadable(UnreadableReason::Changed) {
            outcome = self.file_once(path, place, options, goes_on);
        }
        outcome
    }

    /// Searches bytes that are in memory.
    pub fn bytes(&mut self, bytes: &[u8], place: &Place<'_>, options: &ReadOptions) -> Outcome {
        self.clear();
        let places = std::slice::from_ref(place);
        if let Some(kind) = archive::kind_of(bytes).filter(|_| options.archives) {
            return self.archive(&mut io::Cursor::new(bytes), kind, places, options, &mut || true);
        }
        if let Some(reason) = not_text(bytes, options) {
            return Outcome::Skipped(reason);
        }
        if self.search(bytes, places).source_allowed {
            return Outcome::Skipped(SkipReason::Allowlisted);
        }
        Outcome::Scanned { bytes: bytes.len() as u64 }
    }

    /// Searches bytes that stand at these places, whose paths are alike to the rules.
    fn search(&mut self, bytes: &[u8], places: &[Place<'_>]) -> Summary {
        let mut keeper = Keeper {
            found: &mut self.found,
            cut: &mut self.cut,
            id_key: &self.id_key,
            places,
            keep_secrets: self.keep_secrets,
        };
        let source = Source { path: places.first().map(|place| place.path), commit: None };
        self.detectors.current().detector.scan_bytes(source, bytes, |finding| keeper.keep(finding))
    }

    /// Makes text from scanned content fit to be displayed.
    pub(crate) fn shown(&self, text: &str) -> Shown {
        Redactor::of_rules(self.detectors.sets()).show(text)
    }

    /// After a panic the detector may be in any state: takes a new one with the same rules.
    pub fn renew_detector(&mut self) {
        let ready = self.detectors.current();
        ready.detector = ready.detector.fork();
        self.clear();
    }

    fn clear(&mut self) {
        self.found.clear();
        self.cut = 0;
        self.members = MemberCounts::default();
    }

    fn file_once(
        &mut self,
        path: &Path,
        place: &Place<'_>,
        options: &ReadOptions,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Outcome {
        self.clear();
        let unreadable = |error: &io::Error| Outcome::Unreadable(unreadable_reason(error.kind()));
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
        let mut file = match opened {
            Ok(file) => file,
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                return Outcome::Skipped(SkipReason::Symlink);
            }
            Err(error) => return unreadable(&error),
        };
        let before = match file.metadata() {
            // It was a file when its directory was listed: nothing was listed of what is in it now.
            Ok(metadata) if metadata.is_dir() => return Outcome::Unreadable(UnreadableReason::Changed),
            Ok(metadata) if !metadata.is_file() => return Outcome::Skipped(SkipReason::Special),
            Ok(metadata) if options.size_max.is_some_and(|max| metadata.len() > max) => {
                return Outcome::Skipped(SkipReason::TooLarge);
            }
            Ok(metadata) => metadata,
            Err(error) => return unreadable(&error),
        };
        let (mut filled, mut at_end) = (0, false);
        while filled < self.buffer.len() && !at_end {
            match file.read(&mut self.buffer[filled..]) {
                Ok(0) => at_end = true,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return unreadable(&error),
            }
            // A file that fits is most often there at the first read; asking for its end would be one call more.
            at_end |= filled as u64 == before.len();
        }
        if let Some(kind) = archive::kind_of(&self.buffer[..filled]).filter(|_| options.archives) {
            let places = std::slice::from_ref(place);
            let outcome = self.archive(&mut file, kind, places, options, goes_on);
            return match outcome {
                Outcome::Scanned { .. } => changed_since(&file, &before, before.len()).unwrap_or(outcome),
                outcome => outcome,
            };
        }
        if at_end {
            let buffer = std::mem::take(&mut self.buffer);
            let outcome = self.bytes(&buffer[..filled], place, options);
            self.buffer = buffer;
            return match outcome {
                Outcome::Scanned { bytes } => changed_since(&file, &before, bytes).unwrap_or(outcome),
                outcome => outcome,
            };
        }
        if let Some(reason) = not_text(&self.buffer[..filled], options) {
            return Outcome::Skipped(reason);
        }
        let mut keeper = Keeper {
            found: &mut self.found,
            cut: &mut self.cut,
            id_key: &self.id_key,
            places: std::slice::from_ref(place),
            keep_secrets: self.keep_secrets,
        };
        let mut stream = self
            .detectors
            .current()
            .detector
            .stream(Source { path: Some(place.path), commit: None }, |finding| keeper.keep(finding));
        stream.push(&self.buffer[..filled]);
        loop {
            if !goes_on() {
                return Outcome::Interrupted;
            }
            match file.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(read) => stream.push(&self.buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return unreadable(&error),
            }
        }
        let summary = stream.finish();
        if summary.source_allowed {
            return Outcome::Skipped(SkipReason::Allowlisted);
        }
        changed_since(&file, &before, summary.bytes).unwrap_or(Outcome::Scanned { bytes: summary.bytes })
    }
}

/// Says so if the file is not what it was, or not as long as what was read of it.
fn changed_since(file: &File, before: &Metadata, read: u64) -> Option<Outcome> {
    // A program can set `mtime` back, and cannot set `ctime`.
    let times =
        |metadata: &Metadata| (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec());
    let stamp = |metadata: &Metadata| (metadata.len(), times(metadata));
    match file.metadata() {
        Ok(after) if stamp(&after) == stamp(before) && read == before.len() => None,
        // Some file systems give no length (`/proc`): what was read to the end was read.
        Ok(after) if before.len() == 0 && after.len() == 0 => None,
        Ok(_) => Some(Outcome::Unreadable(UnreadableReason::Changed)),
        Err(error) => Some(Outcome::Unreadable(unreadable_reason(error.kind()))),
    }
}

/// Why what begins like this is not searched as it is.
fn not_text(start: &[u8], options: &ReadOptions) -> Option<SkipReason> {
    if options.read_binary {
        None
    } else if archive::kind_of(start).is_some() {
        // Also one that has no zero in it: nothing in it is text.
        Some(SkipReason::Packed)
    } else if is_binary(start) {
        Some(SkipReason::Binary)
    } else {
        lfs::is_pointer(start).then_some(SkipReason::LfsPointer)
    }
}

/// Whether this is the start of something other than text.
pub fn is_binary(start: &[u8]) -> bool {
    let start = &start[..start.len().min(SNIFF_BYTES)];
    if memchr::memchr(0, start).is_none() {
        return false;
    }
    let marks: [&[u8]; 3] = [b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"];
    if marks.iter().any(|mark| start.starts_with(mark)) {
        return false;
    }
    // UTF-16 without a mark: nearly every other byte is zero, and the bytes between are not.
    let zeros = |offset: usize| start.iter().skip(offset).step_by(2).filter(|&&byte| byte == 0).count();
    let (even, odd, half) = (zeros(0), zeros(1), start.len() / 2);
    let is_wide = |many: usize, few: usize| many * 10 >= half * 8 && few * 10 <= half;
    !(start.len() >= 4 && (is_wide(even, odd) || is_wide(odd, even)))
}

/// Takes findings of one item down, at all places where it stands.
struct Keeper<'a> {
    found: &'a mut Vec<Occurrence>,
    cut: &'a mut u64,
    id_key: &'a IdKey,
    places: &'a [Place<'a>],
    keep_secrets: bool,
}

impl Keeper<'_> {
    fn keep(&mut self, finding: &tessera_detect::Finding<'_>) {
        for place in self.places {
            if self.found.len() < PLACES_PER_ITEM_MAX {
                self.found.push(Occurrence::new(finding, self.id_key, place, self.keep_secrets));
            } else {
                *self.cut += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tessera_detect::template;

    use super::*;
    use crate::read::rules::Rules;

    fn reader() -> Reader {
        let detectors = Detectors::new(vec![Rules::builtin()], tessera_detect::Options::default()).unwrap();
        Reader::new(detectors, IdKey::new([0; 32]), false)
    }

    fn token(seed: u64) -> String {
        template::expand("token = \"ghp_<<github 30>>\"\n", &mut template::Seed::new(seed)).unwrap()
    }

    fn read(reader: &mut Reader, path: &Path, options: &ReadOptions) -> Outcome {
        let place = Place::of_item(0, b"f", None);
        reader.file(path, &place, options, &mut || true)
    }

    #[test]
    fn small_and_large_files_are_searched_to_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let mut reader = reader();
        for padding in [0, BUFFER_BYTES - 60, BUFFER_BYTES - 10, 3 * BUFFER_BYTES + 17] {
            let text = format!("{}{}", "x\n".repeat(padding / 2), token(1));
            std::fs::write(&path, &text).unwrap();
            let outcome = read(&mut reader, &path, &ReadOptions::default());
            assert_eq!(outcome, Outcome::Scanned { bytes: text.len() as u64 }, "padding {padding}");
            assert_eq!(reader.found.len(), 1, "padding {padding}");
        }
    }

    #[test]
    fn what_is_no_text_file_is_left_out_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut reader = reader();
        let options = ReadOptions { size_max: Some(100), ..ReadOptions::default() };
        std::fs::write(path("binary"), b"\x7fELF\0\0\0\x01\0\x02\x03\0\0\0").unwrap();
        std::fs::write(path("large"), [b'x'; 101]).unwrap();
        std::fs::write(path("fits"), [b'x'; 100]).unwrap();
        std::os::unix::fs::symlink(path("fits"), path("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe"), rustix::fs::Mode::RWXU).unwrap();
        let mut outcome = |name: &str| read(&mut reader, &path(name), &options);
        assert_eq!(outcome("binary"), Outcome::Skipped(SkipReason::Binary));
        assert_eq!(outcome("large"), Outcome::Skipped(SkipReason::TooLarge));
        assert_eq!(outcome("fits"), Outcome::Scanned { bytes: 100 });
        assert_eq!(outcome("link"), Outcome::Skipped(SkipReason::Symlink));
        assert_eq!(outcome("pipe"), Outcome::Skipped(SkipReason::Special));
        assert_eq!(outcome("gone"), Outcome::Unreadable(UnreadableReason::Vanished));
        assert_eq!(outcome("."), Outcome::Unreadable(UnreadableReason::Changed));
        assert_eq!(outcome(&"n".repeat(300)), Outcome::Unreadable(UnreadableReason::PathTooLong));
    }

    #[test]
    fn utf16_is_text_and_its_secrets_are_found() {
        let wide = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        assert!(!is_binary(&wide("plain words")) && !is_binary(b"text") && !is_binary(b""));
        assert!(is_binary(b"a\0bcdefgh") && is_binary(&[0; 64]));
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), wide(&token(2))).unwrap();
        let mut reader = reader();
        assert!(matches!(read(&mut reader, &dir.path().join("f"), &ReadOptions::default()), Outcome::Scanned { .. }));
        assert_eq!(reader.found.len(), 1);
    }

    /// As `rsync --inplace --times` does it.
    #[test]
    fn a_file_that_is_written_over_while_it_is_read_and_keeps_its_time_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut text = "x\n".repeat(BUFFER_BYTES).into_bytes();
        std::fs::write(&path, &text).unwrap();
        let modified = path.metadata().unwrap().modified().unwrap();
        text[..42].copy_from_slice(format!("\n{}", &token(1)[9..50]).as_bytes());
        let (mut reader, mut is_written) = (reader(), false);
        let place = Place::of_item(0, b"log", None);
        let outcome = reader.file(&path, &place, &ReadOptions::default(), &mut || {
            if !std::mem::replace(&mut is_written, true) {
                let mut file = OpenOptions::new().write(true).open(&path).unwrap();
                file.write_all(&text).unwrap();
                file.set_modified(modified).unwrap();
            }
            true
        });
        assert_eq!((outcome, reader.found.len()), (Outcome::Scanned { bytes: text.len() as u64 }, 1));
    }

    #[test]
    fn a_file_that_changes_each_time_is_unreadable_and_one_that_settles_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "x\n".repeat(BUFFER_BYTES)).unwrap();
        let mut reader = reader();
        let place = Place::of_item(0, b"log", None);
        let (mut asked, mut changes) = (0, 1);
        let mut outcome_with = |changes_max: u32| {
            (asked, changes) = (0, 0);
            reader.file(&path, &place, &ReadOptions::default(), &mut || {
                asked += 1;
                if changes < changes_max && asked % 2 == 1 {
                    changes += 1;
                    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more\n").unwrap();
                }
                true
            })
        };
        assert_eq!(outcome_with(u32::MAX), Outcome::Unreadable(UnreadableReason::Changed));
        assert!(matches!(outcome_with(1), Outcome::Scanned { .. }));
        assert_eq!(reader.file(&path, &place, &ReadOptions::default(), &mut || false), Outcome::Interrupted);
    }
}
