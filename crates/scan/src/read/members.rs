//! Searches what is inside an archive.
//!
//! An archive that stands at several paths is unpacked once, and what is in a member stands below each of them. Only if the
//! rules tell a member's paths apart, it is unpacked again for those that differ.

use std::collections::HashSet;
use std::io::Read;

use tessera_detect::{Detector, IdKey, Source};

use super::{Keeper, Outcome, Reader, not_text};
use crate::findings::occurrence::{Occurrence, Place};
use crate::findings::tally::Tally;
use crate::plan::target::ReadOptions;
use crate::read::archive::{self, Kind, Limits, Members, ReadSeek, Stop};
use crate::source::item::{SkipReason, UnreadableReason};

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
        places: &[Place<'_>],
        options: &ReadOptions,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Outcome {
        let mut left = places.to_vec();
        let mut is_first = true;
        while let Some(first) = left.first().copied() {
            let mut search = Search {
                detector: &mut self.detectors.current().detector,
                buffer: &mut self.buffer,
                id_key: &self.id_key,
                keep_secrets: self.keep_secrets,
                found: &mut self.found,
                cut: &mut self.cut,
                // Members are counted when they are first unpacked.
                counts: is_first.then_some(&mut self.members),
                alike: left,
                others: Vec::new(),
                options,
                goes_on: &mut *goes_on,
            };
            // The file itself is named by the empty path if it is the target: then its members begin with `!`.
            if archive::walk(file, kind, first.path, &Limits::default(), &mut search).is_err() {
                return Outcome::Interrupted;
            }
            left = search.others;
            is_first = false;
        }
        // What was found before two paths turned out to differ was found again for the second.
        let mut known = HashSet::new();
        self.found.retain(|occurrence| known.insert(occurrence.id));
        Outcome::Scanned { bytes: 0 }
    }
}

struct Search<'s, 'p> {
    detector: &'s mut Detector,
    buffer: &'s mut [u8],
    id_key: &'s IdKey,
    keep_secrets: bool,
    found: &'s mut Vec<Occurrence>,
    cut: &'s mut u64,
    counts: Option<&'s mut MemberCounts>,
    /// Where the archive stands: the first place, and those whose members are alike to its members so far.
    alike: Vec<Place<'p>>,
    /// Places that are for another time.
    others: Vec<Place<'p>>,
    options: &'s ReadOptions,
    goes_on: &'s mut dyn FnMut() -> bool,
}

impl Search<'_, '_> {
    /// The paths of a member of the archive, one for each place that is alike.
    fn member_paths(&mut self, path: &[u8]) -> Vec<Vec<u8>> {
        let inside = &path[self.alike[0].path.len()..];
        let class = self.detector.class_of(path);
        let mut paths = Vec::with_capacity(self.alike.len());
        for place in std::mem::take(&mut self.alike) {
            let path = [place.path, inside].concat();
            if self.detector.class_of(&path) == class {
                paths.push(path);
                self.alike.push(place);
            } else {
                self.others.push(place);
            }
        }
        paths
    }

    fn count(&mut self, add: impl FnOnce(&mut Tally)) {
        if let Some(counts) = &mut self.counts {
            add(&mut counts.tally);
        }
    }
}

impl Members for Search<'_, '_> {
    fn member(&mut self, path: &[u8], content: &mut dyn Read) -> Result<(), Stop> {
        let mut filled = 0;
        while filled < self.buffer.len() {
            match content.read(&mut self.buffer[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        if let Some(reason) = not_text(&self.buffer[..filled], self.options) {
            self.count(|tally| tally.add_skipped(reason, 1));
            return Ok(());
        }
        let paths = self.member_paths(path);
        let places = self.alike.iter().zip(&paths).map(|(&place, path)| Place { path, ..place });
        let places: Vec<Place<'_>> = places.collect();
        let mut keeper = Keeper {
            found: self.found,
            cut: self.cut,
            id_key: self.id_key,
            places: &places,
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
        self.count(|tally| match summary.source_allowed {
            true => tally.add_skipped(SkipReason::Allowlisted, 1),
            false => tally.add_scanned(summary.bytes),
        });
        Ok(())
    }

    fn unreadable(&mut self, path: &[u8], reason: UnreadableReason) {
        self.count(|tally| tally.add_unreadable(reason, 1));
        if let Some(counts) = &mut self.counts
            && counts.notes.len() < NOTES_MAX
        {
            counts.notes.push((path.to_vec(), reason));
        }
    }
}
