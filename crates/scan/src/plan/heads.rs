//! What the refs of a repository led to when its history was listed.
//!
//! The commits that refs point at, and where a shallow clone cuts them off, decide which blobs a history holds. Two looks at
//! the same heads therefore list the same blobs, however the repository was repacked in between. The digest tells whether
//! the heads moved; some of the heads themselves are kept, so that a worker can tell another clone from this one.

use std::collections::BTreeSet;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use crate::source::git::{self, GitError, parse_oid};
use crate::wire::{Malformed, Reader, Writer};
use tessera_git_objects::Store;
use tessera_git_objects::layout::Layout;
use tessera_git_objects::oid::Oid;

/// Most heads that are kept of a repository, evenly spaced; the digest is of all.
const KEPT_MAX: usize = 256;

/// The heads of a repository at one time.
#[derive(Debug, Clone, Default)]
pub struct Heads {
    digest: u128,
    /// Some of the objects that refs point at.
    kept: Vec<Box<[u8]>>,
    /// How many there are, for people.
    pub count: HeadCount,
}

/// How many refs a repository had, and to how many objects they led.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeadCount {
    /// Refs, as `git for-each-ref` lists them.
    pub refs: u64,
    /// Objects that refs and the heads of working trees point at, each once.
    pub heads: u64,
}

/// Another name for the same commit changes nothing that is scanned, so the count is left out.
impl PartialEq for Heads {
    fn eq(&self, other: &Self) -> bool {
        (self.digest, &self.kept) == (other.digest, &other.kept)
    }
}

impl Eq for Heads {}

impl Heads {
    /// The heads as they are now: read by ourselves if we can, else through git.
    pub fn of(repository: &Path) -> Result<Self, GitError> {
        let mut heads = Self::by_ourselves(repository).map_or_else(|| Self::by_git(repository), Ok)?;
        // A ref to an object that is not even here says nothing about another clone.
        let is_there = presence_in(repository);
        heads.kept.retain(|oid| is_there(oid));
        Ok(heads)
    }

    fn by_ourselves(repository: &Path) -> Option<Self> {
        let layout = Layout::discover(repository).ok()?;
        let (tips, cut) = (layout.tips(), layout.shallow().ok()?);
        let cut = cut.iter().map(|oid| oid.as_bytes().into()).collect();
        let oids = tips.oids.iter().map(|oid| oid.as_bytes().into()).collect();
        Some(Self::new(&oids, &cut, tips.is_broken).with_refs(tips.refs))
    }

    fn by_git(repository: &Path) -> Result<Self, GitError> {
        let refs = git::output_of(repository, "for-each-ref", &["--format=%(objectname)"])?;
        // A branch without commits has no head yet.
        let head = git::output_of(repository, "rev-parse", &["--quiet", "--verify", "HEAD"]).unwrap_or_default();
        let worktrees = git::output_of(repository, "worktree", &["list", "--porcelain"])?;
        let heads = worktrees.split(|&byte| byte == b'\n').filter_map(|line| line.strip_prefix(b"HEAD "));
        let lines = [&refs, &head].into_iter().flat_map(|text| text.split(|&byte| byte == b'\n'));
        let tips = lines.chain(heads).filter_map(parse_oid).filter(|oid| oid.iter().any(|&byte| byte != 0)).collect();
        let cut = git::cut_commits(repository).into_iter().collect();
        let refs_len = refs.iter().filter(|&&byte| byte == b'\n').count();
        Ok(Self::new(&tips, &cut, false).with_refs(refs_len))
    }

    fn new(tips: &BTreeSet<Box<[u8]>>, cut: &BTreeSet<Box<[u8]>>, is_broken: bool) -> Self {
        let mut hasher = Xxh3::new();
        for (set, mark) in [(tips, 1), (cut, 2)] {
            for oid in set {
                hasher.update(&[mark, oid.len() as u8]);
                hasher.update(oid);
            }
        }
        hasher.update(&[u8::from(is_broken)]);
        let step = tips.len().div_ceil(KEPT_MAX).max(1);
        let count = HeadCount { refs: 0, heads: tips.len() as u64 };
        Self { digest: hasher.digest128(), kept: tips.iter().step_by(step).cloned().collect(), count }
    }

    fn with_refs(self, refs: usize) -> Self {
        Self { count: HeadCount { refs: refs as u64, ..self.count }, ..self }
    }

    /// One of these that the repository at `path` does not have.
    pub fn missing_in(&self, path: &Path) -> Option<Box<[u8]>> {
        let is_there = presence_in(path);
        self.kept.iter().find(|oid| !is_there(oid)).cloned()
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.fixed(&self.digest.to_le_bytes());
        writer.u32(self.kept.len() as u32);
        for oid in &self.kept {
            writer.bytes(oid);
        }
        writer.u64(self.count.refs);
        writer.u64(self.count.heads);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let digest = u128::from_le_bytes(reader.array()?);
        let mut kept = Vec::new();
        for _ in 0..reader.u32()? {
            kept.push(reader.bytes()?.into());
        }
        Ok(Self { digest, kept, count: HeadCount { refs: reader.u64()?, heads: reader.u64()? } })
    }
}

/// Whether the repository at `path` has an object.
fn presence_in(path: &Path) -> impl Fn(&[u8]) -> bool {
    let store = Store::open(path).ok();
    move |oid| match &store {
        Some(store) => Oid::new(oid).is_some_and(|oid| store.has(&oid)),
        None => git::output_of(path, "cat-file", &["-e", &git::hex_oid(oid)]).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::Repository;

    #[test]
    fn heads_differ_when_refs_move_and_not_when_objects_do() {
        let repository = Repository::new();
        let heads = || Heads::of(repository.path()).unwrap();
        let unborn = heads();
        repository.commit("first", &[("a", "1")]);
        let first = heads();
        assert_ne!(first, unborn);
        repository.git(&["gc", "-q"]);
        repository.git(&["pack-refs", "--all"]);
        assert_eq!(heads(), first, "packed");
        repository.git(&["branch", "same-commit"]);
        assert_eq!(heads(), first, "another name for the same commit");
        repository.commit("second", &[("a", "2")]);
        let second = heads();
        assert_ne!(second, first);
        repository.git(&["reset", "-q", "--hard", "HEAD~1"]);
        assert_eq!(heads(), first, "moved back");
        std::fs::write(repository.path().join(".git/refs/heads/rubbish"), "").unwrap();
        assert_ne!(heads(), first, "a ref that cannot be read");
    }

    #[test]
    fn a_history_that_is_cut_elsewhere_has_other_heads() {
        let repository = Repository::new();
        let first = repository.commit("first", &[("a", "1")]);
        repository.commit("second", &[("a", "2")]);
        let whole = Heads::of(repository.path()).unwrap();
        std::fs::write(repository.path().join(".git/shallow"), format!("{first}\n")).unwrap();
        assert_ne!(Heads::of(repository.path()).unwrap(), whole);
    }

    #[test]
    fn git_and_we_see_the_same_heads() {
        let repository = Repository::new();
        repository.commit("first", &[("a", "1")]);
        repository.git(&["tag", "-a", "-m", "x", "annotated"]);
        repository.commit("second", &[("a", "2")]);
        repository.git(&["checkout", "-q", "--detach"]);
        repository.commit("third", &[("a", "3")]);
        let ours = Heads::by_ourselves(repository.path()).unwrap();
        let by_git = Heads::by_git(repository.path()).unwrap();
        assert_eq!((&by_git, by_git.count), (&ours, ours.count));
        assert_eq!(ours.count, HeadCount { refs: 2, heads: 3 }, "the tag and the branch, and the detached head");
        assert_eq!(ours.kept.len(), 3);
    }

    #[test]
    fn another_repository_lacks_a_head_and_a_clone_does_not() {
        let (repository, other) = (Repository::new(), Repository::new());
        let tip = repository.commit("first", &[("a", "1")]);
        other.commit("other", &[("b", "1")]);
        let heads = Heads::of(repository.path()).unwrap();
        assert_eq!(heads.missing_in(repository.path()), None);
        assert_eq!(heads.missing_in(other.path()), parse_oid(tip.as_bytes()));
        let place = tempfile::tempdir().unwrap();
        let clone = place.path().join("clone");
        repository.git(&["clone", "-q", repository.path().to_str().unwrap(), clone.to_str().unwrap()]);
        assert_eq!(heads.missing_in(&clone), None);
        std::fs::create_dir(place.path().join("empty")).unwrap();
        assert_eq!(heads.missing_in(&place.path().join("empty")), parse_oid(tip.as_bytes()));
    }

    #[test]
    fn a_ref_to_an_object_that_is_nowhere_speaks_against_no_clone() {
        let repository = Repository::new();
        repository.commit("first", &[("a", "1")]);
        let whole = Heads::of(repository.path()).unwrap();
        std::fs::write(repository.path().join(".git/refs/heads/lost"), "1".repeat(40)).unwrap();
        let heads = Heads::of(repository.path()).unwrap();
        assert_eq!((heads.missing_in(repository.path()), &heads.kept), (None, &whole.kept));
        assert_ne!(heads, whole, "it is a head all the same");
    }

    #[test]
    fn git_tells_the_heads_of_all_working_trees() {
        for args in [&["--ref-format=files"][..], &["--ref-format=reftable"]] {
            let repository = Repository::with_args(args);
            let first = repository.commit("first", &[("a", "1")]);
            let outside = tempfile::tempdir().unwrap();
            let linked = outside.path().join("linked");
            repository.git(&["worktree", "add", "-q", "--detach", linked.to_str().unwrap()]);
            let before = Heads::of(repository.path()).unwrap();
            repository.git(&["-C", linked.to_str().unwrap(), "commit", "-q", "--allow-empty", "-m", "detached"]);
            let after = Heads::of(repository.path()).unwrap();
            assert_eq!((before.kept.len(), after.kept.len()), (1, 2), "{args:?}");
            assert!(after.kept.contains(&parse_oid(first.as_bytes()).unwrap()));
        }
    }

    #[test]
    fn heads_come_back_from_bytes_and_many_are_thinned_out() {
        let tips: BTreeSet<Box<[u8]>> =
            (0..600_u16).map(|i| [&i.to_be_bytes()[..], &[0; 18]].concat().into()).collect();
        let heads = Heads::new(&tips, &BTreeSet::new(), false);
        assert_eq!(heads.kept.len(), 200);
        let mut writer = Writer::default();
        heads.write(&mut writer);
        let read = Heads::read(&mut Reader(&writer.0)).unwrap();
        assert_eq!((read.count, read), (heads.count, heads));
    }
}
