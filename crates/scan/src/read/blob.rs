//! Searches a blob once, for all paths that it stands at.
//!
//! Rules and allowlists may look at paths. So the paths are sorted into classes that are alike to the rules ([`PathClass`]); the
//! blob is searched once for each class, and what is found stands at every path of it. Where text was found clean or quiet
//! before, that counts for the class it was found so in.

use std::sync::Arc;

use tessera_detect::PathClass;

use super::{Outcome, Reader, not_text};
use crate::findings::occurrence::Place;
use crate::plan::target::ReadOptions;
use crate::read::archive;
use crate::read::detectors::{Known, Ready};
use crate::read::edited::Quiet;
use crate::source::git::reader::BlobReader;
use crate::source::item::SkipReason;

/// Where a blob stands.
#[derive(Debug, Clone, Copy)]
pub struct BlobPlaces<'a> {
    /// Number of the target.
    pub target: u32,
    /// The blob.
    pub oid: &'a [u8],
    /// The paths that are to be scanned.
    pub paths: &'a [Arc<[u8]>],
    /// Whether it stands at further paths, which nobody listed.
    pub has_more: bool,
}

impl<'a> BlobPlaces<'a> {
    pub(super) fn places(&self) -> impl Iterator<Item = Place<'a>> + use<'a> {
        let (target, oid) = (self.target, self.oid);
        self.paths.iter().map(move |path| Place::of_item(target, path, Some(oid)))
    }
}

/// Paths that are alike to the rules.
pub(super) type Alike<'a> = (PathClass, Vec<Place<'a>>);

impl Reader {
    /// Searches the blob that was read last, but not the text in it that is known to be clean.
    pub fn blob(&mut self, blob: &mut dyn BlobReader, at: &BlobPlaces<'_>, options: &ReadOptions) -> Outcome {
        self.clear();
        let bytes = blob.content();
        if let Some(kind) = archive::kind_of(bytes).filter(|_| options.archives) {
            let places: Vec<Place<'_>> = at.places().collect();
            self.cut += u64::from(at.has_more);
            return self.archive(&mut std::io::Cursor::new(bytes), kind, &places, options, &mut || true);
        }
        if let Some(reason) = not_text(bytes, options) {
            return Outcome::Skipped(reason);
        }
        let classes = self.classes(at.places());
        let is_allowed = classes.iter().all(|(class, _)| class.is_allowed()) && !at.has_more;
        let mut quiet = Vec::new();
        for alike in classes.iter().filter(|(class, _)| !class.is_allowed()) {
            quiet.extend(self.search_changed(blob, alike));
        }
        if at.has_more && self.detectors.current().detector.finds_at_some_path(blob.content()) {
            self.cut += 1;
        }
        let bytes = blob.content().len() as u64;
        blob.remember(quiet);
        if is_allowed { Outcome::Skipped(SkipReason::Allowlisted) } else { Outcome::Scanned { bytes } }
    }

    /// Sorts places by what the rules make of their paths.
    pub(super) fn classes<'a>(&mut self, places: impl Iterator<Item = Place<'a>>) -> Vec<Alike<'a>> {
        let mut classes: Vec<Alike<'a>> = Vec::new();
        for place in places {
            let class = self.detectors.current().detector.class_of(place.path);
            match classes.iter_mut().find(|(known, _)| *known == class) {
                Some((_, alike)) => alike.push(place),
                None => classes.push((class, vec![place])),
            }
        }
        classes
    }

    /// Searches what is new in a blob, at paths that are alike; returns what is known of it then, if it is quiet there.
    fn search_changed(&mut self, blob: &dyn BlobReader, (class, places): &Alike<'_>) -> Option<Quiet> {
        let (bytes, path) = (blob.content(), places[0].path);
        let Ready { detector, known, .. } = self.detectors.current();
        if let Some(Known { edited, chunks }) = known {
            match blob.kin() {
                // A version of a text that is not quiet is most often not quiet either: it is searched whole at once.
                Some(kin) => {
                    let base = kin.base.iter().find(|base| base.class() == class);
                    let quiet = base.and_then(|base| edited.search(detector, path, bytes, base, kin.copied));
                    if quiet.is_some() {
                        return quiet;
                    }
                }
                None if chunks.is_clean(detector, path, bytes) => return edited.clean(class, bytes),
                None => {}
            }
        }
        self.search(bytes, places);
        let Ready { detector, known, .. } = self.detectors.current();
        known.as_ref().and_then(|known| known.edited.searched(detector, class, bytes))
    }
}

#[cfg(test)]
mod tests {
    use tessera_detect::IdKey;

    use super::*;
    use crate::read::detectors::Detectors;
    use crate::read::rules::Rules;
    use crate::source::git::objects::reader_of;
    use test_support::Repository;

    const RULES: &str = r#"
        [[rules]]
        id = "anywhere"
        regex = 'any_[a-z]{8}'
        keywords = ["any_"]
        [[rules]]
        id = "in-env"
        regex = 'env_[a-z]{8}'
        keywords = ["env_"]
        path = '\.env$'
        [[rules.allowlists]]
        paths = ['^docs/']
        [[allowlists]]
        paths = ['^tests/']
    "#;

    fn reader(rules: &str) -> Reader {
        let rules = Rules::from_gitleaks(rules, &mut |_| Err("no".into())).unwrap();
        let detectors = Detectors::new(vec![rules], tessera_detect::Options::default()).unwrap();
        let mut reader = Reader::new(detectors, IdKey::new([0; 32]), false);
        reader.remember_clean_text(1);
        reader
    }

    /// A path and a rule.
    type Told = (String, String);

    /// What is found in the versions of a file, each at its own paths, in one life of a reader.
    fn found(rules: &str, versions: &[(String, &[&str])], has_more: bool) -> Vec<(Outcome, Vec<Told>, u64)> {
        let repository = Repository::new();
        let mut oids = Vec::new();
        for (text, _) in versions {
            repository.commit("version", &[("f", text)]);
            oids.push(repository.blob(text.as_bytes()));
        }
        repository.git(&["repack", "-adfq", "--depth=20"]);
        let (mut blobs, mut reader) = (reader_of(repository.path(), true), reader(rules));
        let mut told = Vec::new();
        for (oid, (_, paths)) in oids.iter().zip(versions) {
            let paths: Vec<Arc<[u8]>> = paths.iter().map(|path| path.as_bytes().into()).collect();
            blobs.request(&mut std::iter::once(&**oid)).unwrap();
            blobs.next(1 << 20).unwrap();
            let at = BlobPlaces { target: 0, oid, paths: &paths, has_more };
            let outcome = reader.blob(blobs.as_mut(), &at, &ReadOptions::default());
            let mut found: Vec<Told> = reader
                .found
                .iter()
                .map(|one| (String::from_utf8(one.path.clone()).unwrap(), one.rule.clone()))
                .collect();
            found.sort();
            told.push((outcome, found, reader.cut));
        }
        told
    }

    fn owned(found: &[(&str, &str)]) -> Vec<Told> {
        found.iter().map(|&(path, rule)| (path.to_owned(), rule.to_owned())).collect()
    }

    #[test]
    fn each_path_is_judged_by_itself() {
        let text = "any_abcdefgh\nenv_abcdefgh\n".to_owned();
        let bytes = text.len() as u64;
        let paths: &[&str] = &["a.env", "b.env", "docs/a.env", "src/x", "tests/a.env"];
        let told = found(RULES, &[(text.clone(), paths), (format!("{text}\n"), &["tests/x", "tests/y"])], false);
        let expected = owned(&[
            ("a.env", "anywhere"),
            ("a.env", "in-env"),
            ("b.env", "anywhere"),
            ("b.env", "in-env"),
            ("docs/a.env", "anywhere"),
            ("src/x", "anywhere"),
        ]);
        assert_eq!(told[0], (Outcome::Scanned { bytes }, expected, 0));
        assert_eq!(told[1], (Outcome::Skipped(SkipReason::Allowlisted), Vec::new(), 0), "allowed at all its paths");
    }

    #[test]
    fn text_that_was_quiet_at_one_path_is_searched_again_for_a_path_with_other_rules() {
        let padding: String = (0..400).map(|line| format!("a line of text, number {line}\n")).collect();
        let version = |number: usize| format!("{padding}env_abcdefgh\nversion {number}\n");
        let told = found(
            RULES,
            &[
                (version(1), &["src/a", "src/b"]),
                (version(2), &["src/a"]),
                (version(3), &["src/a", "late.env"]),
                (version(4), &["tests/x", "docs/y.env", "late.env"]),
            ],
            false,
        );
        let found: Vec<_> = told.into_iter().map(|(_, found, _)| found).collect();
        let late = owned(&[("late.env", "in-env")]);
        assert_eq!(found, [Vec::new(), Vec::new(), late.clone(), late]);
    }

    #[test]
    fn a_finding_that_could_stand_at_a_path_nobody_listed_is_counted() {
        let cut = |text: &str, paths: &[&str]| {
            let told = found(RULES, &[(text.to_owned(), paths)], true).remove(0);
            assert!(matches!(told.0, Outcome::Scanned { .. }));
            told.2
        };
        assert_eq!(cut("nothing\n", &["a"]), 0, "wherever it stands, there is nothing in it");
        assert_eq!(cut("any_abcdefgh\n", &["a"]), 1);
        assert_eq!(cut("env_abcdefgh\n", &["a"]), 1, "no rule looks at the path that is known");
        assert_eq!(cut("any_abcdefgh\n", &["tests/a"]), 1, "the path that is known is allowed");
        assert_eq!(cut("any_abcdefgh\n", &[]), 1, "no path that is known is to be scanned");
    }
}
