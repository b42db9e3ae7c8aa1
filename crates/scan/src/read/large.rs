//! Blobs that are too large to be held: searched as they are read.

use tessera_detect::Source;

use super::blob::{Alike, BlobPlaces};
use super::{Keeper, Outcome, Reader, not_text};
use crate::plan::target::ReadOptions;
use crate::read::archive;
use crate::source::git::GitError;
use crate::source::git::reader::{BlobRead, BlobReader};
use crate::source::item::{SkipReason, UnreadableReason};

impl Reader {
    /// Searches a blob that is too large to be held, as it is read: once, unless rules tell its paths apart.
    pub fn large_blob(
        &mut self,
        blob: &mut dyn BlobReader,
        at: &BlobPlaces<'_>,
        options: &ReadOptions,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome, GitError> {
        self.clear();
        // Nothing is known of it but what it says at the paths that are listed.
        self.cut += u64::from(at.has_more);
        let classes = self.classes(at.places());
        let mut outcome = Outcome::Skipped(SkipReason::Allowlisted);
        for alike in classes.iter().filter(|(class, _)| !class.is_allowed()) {
            outcome = self.large_blob_at(blob, at.oid, alike, options, goes_on)?;
            if !matches!(outcome, Outcome::Scanned { .. }) {
                break;
            }
        }
        Ok(outcome)
    }

    fn large_blob_at(
        &mut self,
        blob: &mut dyn BlobReader,
        oid: &[u8],
        (_, places): &Alike<'_>,
        options: &ReadOptions,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome, GitError> {
        let mut keeper = Keeper {
            found: &mut self.found,
            cut: &mut self.cut,
            id_key: &self.id_key,
            places,
            keep_secrets: self.keep_secrets,
        };
        let source = Source { path: places.first().map(|place| place.path), commit: None };
        let mut stream = self.detectors.current().detector.stream(source, |finding| keeper.keep(finding));
        let (mut is_first, mut broke_off) = (true, None);
        let read = blob.pieces(oid, &mut |piece| {
            if std::mem::take(&mut is_first) {
                // To look into an archive takes all of it, more than once.
                if options.archives && archive::kind_of(piece).is_some() {
                    broke_off = Some(Outcome::Unreadable(UnreadableReason::ArchiveLimit));
                } else {
                    broke_off = not_text(piece, options).map(Outcome::Skipped);
                }
            }
            if broke_off.is_none() && !goes_on() {
                broke_off = Some(Outcome::Interrupted);
            }
            if broke_off.is_none() {
                stream.push(piece);
            }
            broke_off.is_none()
        })?;
        if let Some(outcome) = broke_off {
            return Ok(outcome);
        }
        let summary = stream.finish();
        Ok(match read {
            BlobRead::Read => Outcome::Scanned { bytes: summary.bytes },
            BlobRead::TooLarge(_) => Outcome::Unreadable(UnreadableReason::ObjectTooLarge),
            BlobRead::Missing => Outcome::Unreadable(UnreadableReason::ObjectMissing),
            BlobRead::Corrupt => Outcome::Unreadable(UnreadableReason::ObjectCorrupt),
            BlobRead::Denied => Outcome::Unreadable(UnreadableReason::PermissionDenied),
        })
    }
}

#[cfg(test)]
mod tests {
    use tessera_detect::{IdKey, template};

    use super::*;
    use crate::read::detectors::Detectors;
    use crate::read::rules::Rules;
    use crate::source::git::objects::reader_of;
    use test_support::Repository;

    #[test]
    fn a_large_blob_is_searched_to_its_end_whoever_reads_it() {
        let repository = Repository::new();
        let token = template::expand("token = \"ghp_<<github 30>>\"\n", &mut template::Seed::new(3)).unwrap();
        // A secret over the edge of two pieces, and one at the end.
        let text = format!("{}{token}{}{token}", "x\n".repeat((128 << 10) - 10), "y\n".repeat(300_000));
        let blobs = [repository.blob(text.as_bytes()), repository.blob(&[0; 700_000]), repository.blob(b"PK\x03\x04")];
        let detectors = Detectors::new(vec![Rules::builtin()], tessera_detect::Options::default()).unwrap();
        let mut reader = Reader::new(detectors, IdKey::new([0; 32]), false);
        let mut packed = false;
        loop {
            for mut source in [reader_of(repository.path(), true), reader_of(repository.path(), false)] {
                let mut read = |oid: &[u8], archives, goes_on| {
                    let paths = [b"f"[..].into()];
                    let at = BlobPlaces { target: 0, oid, paths: &paths, has_more: false };
                    let options = ReadOptions { archives, ..ReadOptions::default() };
                    let outcome = reader.large_blob(source.as_mut(), &at, &options, &mut || goes_on).unwrap();
                    (outcome, reader.found.len())
                };
                let scanned = Outcome::Scanned { bytes: text.len() as u64 };
                assert_eq!(read(&blobs[0], false, true), (scanned, 2), "packed: {packed}");
                assert_eq!(read(&blobs[0], false, false), (Outcome::Interrupted, 0));
                assert_eq!(read(&blobs[1], false, true), (Outcome::Skipped(SkipReason::Binary), 0));
                let archive = Outcome::Unreadable(UnreadableReason::ArchiveLimit);
                assert_eq!(read(&blobs[2], true, true), (archive, 0));
            }
            if packed {
                return;
            }
            let names: Vec<String> = blobs.iter().map(|oid| crate::source::git::hex_oid(oid)).collect();
            repository.commit("first", &[("a", "1")]);
            for name in &names {
                repository.git(&["tag", &name[..8], name]);
            }
            repository.git(&["repack", "-adq"]);
            repository.git(&["prune-packed"]);
            packed = true;
        }
    }
}
