//! Searches what is inside an archive.

use std::io::Read;

use tessera_detect::{Detector, IdKey, Source};

use super::{Keeper, Outcome, Reader, is_binary};
use crate::archive::{self, Kind, Limits, Members, ReadSeek, Stop};
use crate::item::{SkipReason, UnreadableReason};
use crate::occurrence::{Occurrence, Place};
use crate::tally::Tally;
use crate::target::ReadOptions;

/// What became of the members of an archive.
#[derive(Debug, Default)]
pub struct MemberCounts {
    /// Counts of members, which are not items of their own.
    pub tally: Tally,
    /// Members that could not be read, by the way to them.
    pub notes: Vec<(Vec<u8>, UnreadableReason)>,
}

/// Most members that are told by name; counts go on.
const NOTES_MAX: usize = 32;

impl Reader {
    /// Searches an archive as far as the limits allow. Says that nothing of its own bytes was searched: its members count.
    pub(super) fn archive(
        &mut self,
        file: &mut dyn ReadSeek,
        kind: Kind,
        key: &[u8],
        place: &Place<'_>,
        options: &ReadOptions,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Outcome {
        self.clear();
        let mut search = Search {
            detector: &mut self.detector,
            buffer: &mut self.buffer,
            id_key: &self.id_key,
            keep_secrets: self.keep_secrets,
            found: &mut self.found,
            cut: &mut self.cut,
            counts: &mut self.members,
            key,
            place,
            options,
            goes_on,
        };
        // The file itself is named by the empty path if it is the target: then its members begin with `!`.
        match archive::walk(file, kind, place.path, &Limits::default(), &mut search) {
            Err(_) => Outcome::Interrupted,
            Ok(()) => Outcome::Scanned { bytes: 0 },
        }
    }
}

struct Search<'s> {
    detector: &'s mut Detector,
    buffer: &'s mut [u8],
    id_key: &'s IdKey,
    keep_secrets: bool,
    found: &'s mut Vec<Occurrence>,
    cut: &'s mut u64,
    counts: &'s mut MemberCounts,
    key: &'s [u8],
    place: &'s Place<'s>,
    options: &'s ReadOptions,
    goes_on: &'s mut dyn FnMut() -> bool,
}

impl Members for Search<'_> {
    fn member(&mut self, path: &[u8], content: &mut dyn Read) -> Result<(), Stop> {
        let mut filled = 0;
        while filled < self.buffer.len() {
            match content.read(&mut self.buffer[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        if !self.options.read_binary && is_binary(&self.buffer[..filled]) {
            self.counts.tally.add_skipped(SkipReason::Binary, 1);
            return Ok(());
        }
        // Members of one item differ by their path, and so do the ids of what is found in them.
        let key = [self.key, b"\0", path].concat();
        let place = Place { path, ..*self.place };
        let mut keeper = Keeper {
            found: self.found,
            cut: self.cut,
            id_key: self.id_key,
            key: &key,
            place: &place,
            keep_secrets: self.keep_secrets,
        };
        let source = Source { path: Some(path), commit: None };
        let mut stream = self.detector.stream(source, |finding| keeper.keep(finding));
        while filled > 0 {
            stream.push(&self.buffer[..filled]);
            if !(self.goes_on)() {
                return Err(Stop::Interrupted);
            }
            filled = content.read(self.buffer)?;
        }
        let summary = stream.finish();
        if summary.source_allowed {
            self.counts.tally.add_skipped(SkipReason::Allowlisted, 1);
        } else {
            self.counts.tally.add_scanned(summary.bytes);
        }
        Ok(())
    }

    fn unreadable(&mut self, path: &[u8], reason: UnreadableReason) {
        self.counts.tally.add_unreadable(reason, 1);
        if self.counts.notes.len() < NOTES_MAX {
            self.counts.notes.push((path.to_vec(), reason));
        }
    }
}
