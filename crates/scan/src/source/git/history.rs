//! Which blobs a history holds, as we read it ourselves.

use super::list::{Entry, Listed, Presence, Scope};
use crate::op_ids::random_u64;
use tessera_git_objects::Store;
use tessera_git_objects::history::History;
use tessera_git_objects::layout::LayoutError;
use tessera_git_objects::places::Bounds;

/// Every blob that refs lead to. If the walk breaks, every blob there is, and an entry for the broken walk.
pub(super) fn listed(store: &Store, bounds: Bounds) -> Result<Listed, LayoutError> {
    let history = History::of(store, bounds, random_u64())?;
    let blobs = history.blobs();
    let mut entries = Vec::with_capacity(blobs.len());
    for blob in blobs {
        let presence = if blob.is_present { Presence::Present } else { Presence::Missing };
        let (oid, size, stands) = (blob.oid.as_bytes().into(), blob.size, blob.stands);
        entries.push(Entry { oid, size, presence, places: stands.places, has_more: stands.has_more });
    }
    entries.extend(history.missing().iter().map(|oid| Entry::new(oid.as_bytes().into(), Presence::Missing)));
    entries.extend(history.cut().iter().map(|oid| Entry::new(oid.as_bytes().into(), Presence::Cut)));
    entries.extend(history.submodules().map(Entry::submodule));
    if history.is_broken() {
        entries.push(Entry::new(Box::default(), Presence::WalkBroken));
    }
    Ok(Listed { scope: Scope::History, entries, commits: history.into_commits() })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use super::*;
    use crate::source::git::by_git;
    use crate::source::git::cat_file::CatFile;
    use crate::source::git::reader::{BlobRead, BlobReader, StoreReader};
    use tessera_git_objects::oid::Oid;
    use tessera_git_objects::places::BOUNDS;
    use test_support::Repository;

    /// Versions of files, branches, a merge, tags of commits, trees and blobs, a link and a submodule.
    fn repository() -> Repository {
        let repository = Repository::new();
        let text = |version: usize| -> String {
            (0..200)
                .map(|line| format!("line {line} of {}\n", if line % 40 == version % 40 { version } else { 0 }))
                .collect()
        };
        for version in 0..12 {
            let (path, other) = (format!("dir/{}.txt", version % 3), format!("dir/deep/er/{version}"));
            repository.commit("step", &[(&path, &text(version)), (&other, &text(version + 7))]);
        }
        repository.git(&["checkout", "-q", "-b", "side", "HEAD~4"]);
        repository.commit("side", &[("dir/0.txt", &text(90)), ("only-here", "side\n")]);
        repository.git(&["checkout", "-q", "main"]);
        repository.try_git(&["merge", "-q", "side"]);
        std::os::unix::fs::symlink("dir", repository.path().join("link")).unwrap();
        repository.commit("merged", &[("dir/0.txt", &text(91))]);
        repository.git(&["tag", "-a", "-m", "a tag", "annotated", "HEAD~2"]);
        repository.git(&["tag", "tree", "HEAD~3^{tree}"]);
        let blob = crate::source::git::hex_oid(&repository.blob(b"only a tag has it"));
        repository.git(&["tag", "blob", &blob]);
        repository.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{},sub", "1".repeat(40))]);
        repository.git(&["commit", "-q", "-m", "a submodule"]);
        repository.blob(b"in no commit");
        repository
    }

    /// Without submodules, of which there is nothing to read.
    fn objects(listed: Listed) -> Listed {
        let is_object = |entry: &Entry| entry.presence != Presence::Submodule;
        Listed { entries: listed.entries.into_iter().filter(is_object).collect(), ..listed }
    }

    fn read_all(reader: &mut dyn BlobReader, entries: &[Entry]) -> Vec<(BlobRead, Vec<u8>)> {
        reader.request(&mut entries.iter().map(|entry| &*entry.oid)).unwrap();
        entries.iter().map(|_| (reader.next(1 << 20).unwrap(), reader.content().to_vec())).collect()
    }

    /// A blob and a path.
    type Place = (Box<[u8]>, Vec<u8>);

    /// Where each blob stands, with the commit that put it there.
    fn stands(listed: &Listed) -> BTreeMap<Place, Option<Oid>> {
        let mut stands = BTreeMap::new();
        for entry in &listed.entries {
            for place in &entry.places {
                let commit = place.commit.map(|number| listed.commits[number as usize]);
                let before = stands.insert((entry.oid.clone(), place.path.to_vec()), commit);
                assert!(before.is_none(), "each place once");
            }
        }
        stands
    }

    /// Compares what is listed and read with what git lists and reads.
    fn same_as_git(repository: &Repository) -> Listed {
        let store = Store::open(repository.path()).unwrap();
        let ours = listed(&store, BOUNDS).unwrap();
        let gits = by_git::history(repository.path(), BOUNDS).unwrap();
        let names = |entries: &[Entry]| -> BTreeMap<Box<[u8]>, (u64, Presence)> {
            entries.iter().map(|entry| (entry.oid.clone(), (entry.size, entry.presence))).collect()
        };
        assert_eq!(names(&ours.entries), names(&gits.entries));
        assert_eq!(ours.entries.len(), gits.entries.len(), "each once");
        assert_eq!(stands(&ours), stands(&gits));
        let (ours, gits) = (objects(ours), objects(gits));
        let mut own_reader = StoreReader::new(repository.path(), Arc::new(store));
        let mut git_reader = CatFile::new(repository.path());
        for entries in [&ours.entries, &gits.entries] {
            assert_eq!(read_all(&mut own_reader, entries), read_all(&mut git_reader, entries));
        }
        ours
    }

    #[test]
    fn a_history_is_read_as_git_reads_it_loose_and_packed() {
        let repository = repository();
        same_as_git(&repository);
        repository.git(&["repack", "-adfq", "--depth=20", "--window=20"]);
        repository.git(&["pack-refs", "--all"]);
        same_as_git(&repository);
        repository.commit("on top of the pack", &[("dir/1.txt", "new\n")]);
        same_as_git(&repository);
        // Bases by name instead of by offset.
        repository.git(&["-c", "repack.useDeltaBaseOffset=false", "repack", "-adfq"]);
        same_as_git(&repository);
    }

    fn oid(hex: &str) -> Oid {
        Oid::from_hex(hex.trim().as_bytes()).unwrap()
    }

    #[test]
    fn a_submodule_is_told_once_whichever_commits_of_it_were_there() {
        let repository = Repository::new();
        repository.commit("first", &[("a", "1")]);
        for (digit, path) in [("1", "deep/sub"), ("2", "deep/sub"), ("3", "other")] {
            repository.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{},{path}", digit.repeat(40))]);
            repository.git(&["commit", "-q", "-m", "a submodule"]);
        }
        let store = Store::open(repository.path()).unwrap();
        for listed in [listed(&store, BOUNDS).unwrap(), by_git::history(repository.path(), BOUNDS).unwrap()] {
            let is_submodule = |entry: &&Entry| entry.presence == Presence::Submodule;
            let paths = listed.entries.iter().filter(is_submodule).map(|entry| entry.places[0].path.to_vec());
            assert_eq!(paths.collect::<Vec<_>>(), [b"deep/sub".to_vec(), b"other".to_vec()]);
        }
    }

    #[test]
    fn each_path_of_a_blob_is_told_with_the_commit_that_put_it_there() {
        let repository = Repository::new();
        let first = repository.commit("first", &[("a.txt", "same\n"), ("d/x", "in a folder\n")]);
        let second = repository.commit("second", &[("b/\u{e4}\t.txt", "same\n")]);
        repository.git(&["mv", "d", "e"]);
        let third = repository.commit("third", &[("a.txt", "other\n")]);
        repository.commit("back again", &[("a.txt", "same\n")]);
        repository.git(&["update-index", "--chmod=+x", "a.txt"]);
        repository.git(&["commit", "-q", "-m", "another mode"]);
        let listed = same_as_git(&repository);
        let blob = repository.blob(b"same\n");
        let told: Vec<_> = stands(&listed).into_iter().filter(|((oid, _), _)| *oid == blob).collect();
        let expected = [(&b"a.txt"[..], &first), ("b/\u{e4}\t.txt".as_bytes(), &second)]
            .map(|(path, commit)| ((blob.clone(), path.to_vec()), Some(oid(commit))));
        assert_eq!(told, expected);
        let moved = stands(&listed)[&(repository.blob(b"in a folder\n"), b"e/x".to_vec())];
        assert_eq!(moved, Some(oid(&third)), "the folder is known, but not at this path");
    }

    #[test]
    fn a_blob_made_by_a_merge_is_told_with_the_merge() {
        let repository = Repository::new();
        repository.commit("base", &[("a", "1\n")]);
        repository.git(&["checkout", "-q", "-b", "side"]);
        repository.commit("side", &[("a", "2\n")]);
        repository.git(&["checkout", "-q", "main"]);
        repository.commit("main", &[("a", "3\n")]);
        repository.try_git(&["merge", "-q", "side"]);
        let merge = repository.commit("merge", &[("a", "evil\n")]);
        let listed = same_as_git(&repository);
        assert_eq!(stands(&listed)[&(repository.blob(b"evil\n"), b"a".to_vec())], Some(oid(&merge)));
    }

    /// Ten folders in each of ten in each of ten: a file stands at a thousand paths, and six more.
    fn nested() -> Repository {
        let repository = Repository::new();
        repository.commit("deep", &[("f", "deep\n"), ("sub/g", "deeper\n")]);
        let mut tree = repository.git(&["rev-parse", "HEAD^{tree}"]);
        for _ in 0..3 {
            let lines: String = (0..10).map(|i| format!("040000 tree {tree}\td{i}\n")).collect();
            tree = repository.made_tree(&lines);
        }
        repository.git(&["tag", "nested", &tree]);
        repository.commit("and alone", &[("alone", "alone\n")]);
        repository
    }

    #[test]
    fn a_few_trees_that_name_many_paths_are_listed_up_to_a_bound_and_that_is_told() {
        let repository = nested();
        let store = Store::open(repository.path()).unwrap();
        let [deep, deeper, alone] = [&b"deep\n"[..], b"deeper\n", b"alone\n"].map(|text| repository.blob(text));
        let all = same_as_git(&repository);
        let entry = |listed: &Listed, oid: &[u8]| -> (usize, bool) {
            let entry = listed.entries.iter().find(|entry| *entry.oid == *oid).unwrap();
            (entry.places.len(), entry.has_more)
        };
        assert_eq!((entry(&all, &deep), entry(&all, &deeper)), ((1_001, false), (1_001, false)));
        for (bounds, binds_git) in [
            (Bounds { paths_per_blob: 50, ..BOUNDS }, true),
            (Bounds { further_places: 50, ..BOUNDS }, true),
            // Git reads trees as often as it likes.
            (Bounds { further_tree_bytes: 500, ..BOUNDS }, false),
        ] {
            let ours = listed(&store, bounds).unwrap();
            let gits = binds_git.then(|| by_git::history(repository.path(), bounds).unwrap());
            for listed in std::iter::once(ours).chain(gits) {
                assert_eq!(listed.entries.len(), 3, "no blob is lost");
                let (found, expected) = (stands(&listed), stands(&all));
                assert!(found.iter().all(|(place, commit)| expected[place] == *commit), "what is listed is right");
                let is_cut = [&deep, &deeper].map(|oid| entry(&listed, oid));
                assert!(is_cut.iter().all(|&(places, has_more)| (1..=52).contains(&places) && has_more), "{is_cut:?}");
                assert_eq!(entry(&listed, &alone), (1, false), "{bounds:?}");
            }
        }
    }

    #[test]
    fn a_shallow_clone_is_told_where_it_is_cut_off() {
        let origin = repository();
        let outside = tempfile::tempdir().unwrap();
        let path = outside.path().join("clone");
        let url = format!("file://{}", origin.path().display());
        origin.git(&["clone", "-q", "--bare", "--depth=2", "--single-branch", &url, path.to_str().unwrap()]);
        let cut = |listed: Listed| -> BTreeSet<Box<[u8]>> {
            listed.entries.into_iter().filter(|entry| entry.presence == Presence::Cut).map(|entry| entry.oid).collect()
        };
        let ours = cut(listed(&Store::open(&path).unwrap(), BOUNDS).unwrap());
        assert!(!ours.is_empty());
        assert_eq!(ours, cut(by_git::history(&path, BOUNDS).unwrap()));
    }

    #[test]
    fn a_ref_that_is_rubbish_breaks_the_walk_and_all_blobs_are_listed() {
        let repository = repository();
        let lost = repository.blob(b"in no commit");
        std::fs::write(repository.path().join(".git/refs/heads/lost"), "").unwrap();
        let store = Store::open(repository.path()).unwrap();
        for listed in [listed(&store, BOUNDS).unwrap(), by_git::history(repository.path(), BOUNDS).unwrap()] {
            assert!(listed.entries.iter().any(|entry| entry.presence == Presence::WalkBroken));
        }
        assert!(listed(&store, BOUNDS).unwrap().entries.iter().any(|entry| entry.oid == lost));
    }

    #[test]
    fn long_names_in_deep_folders_are_not_kept_for_each_blob() {
        let repository = Repository::new();
        let name = "n".repeat(200);
        repository.commit("deep", &[("a", "1")]);
        let mut tree = repository.git(&["rev-parse", "HEAD^{tree}"]);
        for _ in 0..40 {
            tree = repository.made_tree(&format!("040000 tree {tree}\t{name}\n"));
        }
        repository.git(&["update-ref", "refs/tags/deep", &tree]);
        repository.git(&["update-ref", "-d", "refs/heads/main"]);
        let entries = listed(&Store::open(repository.path()).unwrap(), BOUNDS).unwrap().entries;
        let path = &entries[0].places[0].path;
        assert_eq!((entries.len(), path.len(), entries[0].has_more), (1, 4_096, true), "its whole path is not listed");
        assert!(path.starts_with(name.as_bytes()));
    }

    #[test]
    fn objects_borrowed_from_another_repository_are_read() {
        let lender = repository();
        let borrower = tempfile::tempdir().unwrap();
        let path = borrower.path().join("clone");
        lender.git(&["clone", "-q", "--shared", "--bare", ".", path.to_str().unwrap()]);
        let ours = objects(listed(&Store::open(&path).unwrap(), BOUNDS).unwrap());
        assert!(ours.entries.len() > 20 && ours.entries.iter().all(|entry| entry.presence == Presence::Present));
    }

    #[test]
    fn newer_names_of_objects_are_read() {
        let repository = Repository::with_args(&["--object-format=sha256"]);
        repository.commit("first", &[("a", "one\n")]);
        repository.commit("second", &[("a", "two\n"), ("b/c", "three\n")]);
        same_as_git(&repository);
        repository.git(&["repack", "-adq"]);
        assert_eq!(same_as_git(&repository).entries[0].oid.len(), 32);
    }

    #[test]
    fn a_damaged_pack_spoils_what_lies_there_and_nothing_is_called_read_that_is_not() {
        let repository = repository();
        repository.git(&["repack", "-adfq", "--depth=20"]);
        let whole = same_as_git(&repository);
        let pack = std::fs::read_dir(repository.path().join(".git/objects/pack")).unwrap();
        let pack =
            pack.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|is| is == "pack"));
        let pack = pack.unwrap();
        let bytes = std::fs::read(&pack).unwrap();
        let contents: BTreeMap<Box<[u8]>, Vec<u8>> = {
            let mut reader = CatFile::new(repository.path());
            let read = read_all(&mut reader, &whole.entries);
            whole.entries.iter().zip(read).map(|(entry, (_, content))| (entry.oid.clone(), content)).collect()
        };
        std::fs::remove_file(&pack).unwrap();
        let mut spoiled = 0;
        for at in (12..bytes.len() - 20).step_by(bytes.len() / 60) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            std::fs::write(&pack, damaged).unwrap();
            let mut reader = StoreReader::new(repository.path(), Arc::new(Store::open(repository.path()).unwrap()));
            for (entry, (read, content)) in whole.entries.iter().zip(read_all(&mut reader, &whole.entries)) {
                match read {
                    BlobRead::Read => assert_eq!(content, contents[&entry.oid], "byte {at}"),
                    _ => spoiled += 1,
                }
            }
        }
        assert!(spoiled > 60, "{spoiled}");
    }

    #[test]
    fn objects_that_were_packed_meanwhile_are_found() {
        let repository = repository();
        let store = Arc::new(Store::open(repository.path()).unwrap());
        let entries = objects(listed(&store, BOUNDS).unwrap()).entries;
        let mut reader = StoreReader::new(repository.path(), store);
        repository.git(&["repack", "-adq"]);
        repository.git(&["prune-packed"]);
        assert!(read_all(&mut reader, &entries).iter().all(|(read, _)| *read == BlobRead::Read));
    }
}
