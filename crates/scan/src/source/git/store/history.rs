//! Which blobs a history holds, in the order in which they are cheap to read.

use super::kinds::Kinds;
use super::layout::LayoutError;
use super::oid::Oid;
use super::order::by_delta;
use super::pack::PackReader;
use super::walk::{Walked, walk};
use super::{Kind, Store};
use crate::source::git::list::{Entry, Listed, Presence};

/// Every blob that refs lead to. If the walk breaks, every blob there is, and an entry for the broken walk.
pub(in crate::source::git) fn listed(store: &Store) -> Result<Listed, LayoutError> {
    let mut walked = walk(store)?;
    let mut blobs: Vec<Oid> = walked.blobs.keys().copied().collect();
    if walked.is_broken {
        blobs.extend(unmet(store, &walked)?);
    }
    let entry = |oid: &Oid, size, presence| {
        let came = walked.blobs.get(oid);
        let path = came.map(|came| (&*walked.paths[came.path as usize]).into()).unwrap_or_default();
        Entry { oid: oid.as_bytes().into(), size, path, presence, commit: came.and_then(|came| came.commit) }
    };
    let mut entries = Vec::with_capacity(blobs.len());
    for one in by_delta(store, &blobs) {
        let presence = if one.is_present { Presence::Present } else { Presence::Missing };
        entries.push(entry(&blobs[one.blob], one.size, presence));
    }
    entries.extend(walked.missing.iter().map(|oid| entry(oid, 0, Presence::Missing)));
    entries.extend(walked.cut.iter().map(|oid| entry(oid, 0, Presence::Cut)));
    if walked.is_broken {
        let (oid, path) = Default::default();
        entries.push(Entry { oid, size: 0, path, presence: Presence::WalkBroken, commit: None });
    }
    Ok(Listed { entries, commits: std::mem::take(&mut walked.commits) })
}

/// Blobs of the repository that the walk did not meet.
fn unmet(store: &Store, walked: &Walked) -> Result<Vec<Oid>, LayoutError> {
    let all = store.all().map_err(|source| LayoutError::Io { path: "objects".into(), source })?;
    let mut reader = PackReader::new();
    let mut kinds = Kinds::default();
    let mut is_blob = |oid: &Oid| {
        let kind = store.find(oid).and_then(|at| kinds.of(store, &mut reader, oid, at));
        // What cannot even be told is listed, so that it is counted.
        !matches!(kind, Some(Kind::Commit | Kind::Tree | Kind::Tag))
    };
    Ok(all.into_iter().filter(|oid| !walked.blobs.contains_key(oid) && is_blob(oid)).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use super::*;
    use crate::source::git::by_git;
    use crate::source::git::cat_file::CatFile;
    use crate::source::git::reader::{BlobRead, BlobReader};
    use crate::source::git::store::blobs::StoreReader;
    use crate::testing::Repository;

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

    fn read_all(reader: &mut dyn BlobReader, entries: &[Entry]) -> Vec<(BlobRead, Vec<u8>)> {
        reader.request(&mut entries.iter().map(|entry| &*entry.oid)).unwrap();
        entries.iter().map(|_| (reader.next(1 << 20).unwrap(), reader.content().to_vec())).collect()
    }

    /// Compares what is listed and read with what git lists and reads.
    fn same_as_git(repository: &Repository) -> Listed {
        let store = Store::open(repository.path()).unwrap();
        let ours = listed(&store).unwrap();
        let gits = by_git::history(repository.path()).unwrap();
        let names = |entries: &[Entry]| -> BTreeMap<Box<[u8]>, (u64, Presence)> {
            entries.iter().map(|entry| (entry.oid.clone(), (entry.size, entry.presence))).collect()
        };
        assert_eq!(names(&ours.entries), names(&gits.entries));
        assert_eq!(ours.entries.len(), gits.entries.len(), "each once");
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

    #[test]
    fn each_blob_is_told_with_the_commit_that_brought_it_in() {
        let repository = repository();
        repository.git(&["repack", "-adq"]);
        let listed = same_as_git(&repository);
        let blobs: BTreeSet<Box<[u8]>> = listed.entries.iter().map(|entry| entry.oid.clone()).collect();
        let expected = crate::source::git::attribution::introduced(repository.path(), blobs).unwrap();
        for entry in listed.entries {
            let told =
                entry.commit.map(|number| crate::source::git::hex_oid(listed.commits[number as usize].as_bytes()));
            let by_git = expected.get(&entry.oid);
            assert_eq!(told.as_ref(), by_git.map(|came| &came.commit), "{:?}", entry.path);
            if let Some(came) = by_git {
                assert_eq!(&*entry.path, &came.path[..]);
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
        let ours = cut(listed(&Store::open(&path).unwrap()).unwrap());
        assert!(!ours.is_empty());
        assert_eq!(ours, cut(by_git::history(&path).unwrap()));
    }

    #[test]
    fn a_ref_that_is_rubbish_breaks_the_walk_and_all_blobs_are_listed() {
        let repository = repository();
        let lost = repository.blob(b"in no commit");
        std::fs::write(repository.path().join(".git/refs/heads/lost"), "").unwrap();
        let store = Store::open(repository.path()).unwrap();
        for listed in [listed(&store).unwrap(), by_git::history(repository.path()).unwrap()] {
            assert!(listed.entries.iter().any(|entry| entry.presence == Presence::WalkBroken));
        }
        assert!(listed(&store).unwrap().entries.iter().any(|entry| entry.oid == lost));
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
        let entries = listed(&Store::open(repository.path()).unwrap()).unwrap().entries;
        assert_eq!((entries.len(), entries[0].path.len()), (1, 4_096));
        assert!(entries[0].path.starts_with(name.as_bytes()));
    }

    #[test]
    fn objects_borrowed_from_another_repository_are_read() {
        let lender = repository();
        let borrower = tempfile::tempdir().unwrap();
        let path = borrower.path().join("clone");
        lender.git(&["clone", "-q", "--shared", "--bare", ".", path.to_str().unwrap()]);
        let ours = listed(&Store::open(&path).unwrap()).unwrap();
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
        let entries = listed(&store).unwrap().entries;
        let mut reader = StoreReader::new(repository.path(), store);
        repository.git(&["repack", "-adq"]);
        repository.git(&["prune-packed"]);
        assert!(read_all(&mut reader, &entries).iter().all(|(read, _)| *read == BlobRead::Read));
    }
}
