//! Which blobs a history holds and where they stand, as git tells: for repositories that only git can read.
//!
//! `rev-list` tells all that refs lead to, each blob once. `log` tells for each commit which blob it put at which path; a blob
//! that a commit has at a path, and each of its parents too, came there with an ancestor. So these changes, against every parent and
//! from the roots on, are all paths of all commits. Trees that a tag points to are listed by themselves.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::list::{Entry, Listed, Presence, Scope};
use super::{GitError, Running, parse_oid, quoted};
use crate::op_ids::random_u64;
use tessera_git_objects::layout::Layout;
use tessera_git_objects::oid::Oid;
use tessera_git_objects::places::{Bounds, Placed, Places, Stands};

/// Blobs the walk met, with a path each; and what it could not find.
#[derive(Debug, Default)]
struct Reachable {
    blobs: HashMap<Box<[u8]>, Box<[u8]>>,
    missing: Vec<Box<[u8]>>,
}

/// Blobs that refs lead to, in the order of the pack.
pub(super) fn history(repository: &Path, bounds: Bounds) -> Result<Listed, GitError> {
    let (mut reachable, mut is_broken) = match walk(repository) {
        Ok(reachable) => (Some(reachable), false),
        // Without git nothing works; with git, a history that cannot be walked is still a heap of blobs.
        Err(error @ GitError::Missing(_)) => return Err(error),
        Err(_) => (None, true),
    };
    let mut stands = Standing::new(bounds);
    // What was told before it broke still holds.
    is_broken |= stands.of_commits(repository).is_err();
    is_broken |= stands.of_tagged_trees(repository).is_err();
    // Git warns about refs that it cannot read, and goes on as if they were not there.
    is_broken |= Layout::discover(repository).is_ok_and(|layout| layout.tips().is_broken);

    let entry = |oid: Box<[u8]>, size, path: &[u8]| {
        let Stands { places, has_more } = stands.of(&oid, path, is_broken);
        Entry { oid, size, presence: Presence::Present, places, has_more }
    };
    let mut entries = Vec::new();
    let listed = all_blobs(repository, |oid, size| match &mut reachable {
        Some(reachable) => entries.extend(reachable.blobs.remove(&oid).map(|path| entry(oid, size, &path))),
        None => entries.push(entry(oid, size, b"")),
    });
    match reachable {
        // What the walk met and the listing did not, be it that the listing broke: reading will tell.
        Some(reachable) => {
            let mut rest: Vec<_> = reachable.blobs.into_iter().collect();
            rest.sort_unstable();
            entries.extend(rest.into_iter().map(|(oid, path)| entry(oid, 0, &path)));
            entries.extend(reachable.missing.into_iter().map(|oid| Entry::new(oid, Presence::Missing)));
        }
        // Neither walk nor listing: there is nothing to go by.
        None => listed?,
    }
    entries.extend(cut(repository).into_iter().map(|oid| Entry::new(oid, Presence::Cut)));
    entries.extend(stands.submodules.iter().map(|path| Entry::submodule(path)));
    if is_broken {
        entries.push(Entry::new(Box::default(), Presence::WalkBroken));
    }
    Ok(Listed { scope: Scope::History, entries, commits: stands.commits })
}

/// Calls `visit` with every blob of the repository and its size.
fn all_blobs(repository: &Path, mut visit: impl FnMut(Box<[u8]>, u64)) -> Result<(), GitError> {
    let args =
        ["--batch-all-objects", "--unordered", "--buffer", "--batch-check=%(objectname) %(objecttype) %(objectsize)"];
    let mut running = Running::start(repository, "cat-file", &args, false)?;
    let stdout = running.child.stdout.take().expect("it was piped");
    for_each_line(BufReader::with_capacity(1 << 16, stdout), |line| {
        let mut words = line.split(|&byte| byte == b' ');
        if let (Some(oid), Some(b"blob"), Some(size)) = (words.next().and_then(parse_oid), words.next(), words.next()) {
            let size = std::str::from_utf8(size).ok().and_then(|size| size.parse().ok()).unwrap_or(0);
            visit(oid, size);
        }
    })
    .map_err(GitError::io("reading from git cat-file"))?;
    running.finish()
}

/// Commits whose parents were left out when the repository was cloned.
pub(super) fn cut(repository: &Path) -> Vec<Box<[u8]>> {
    let answer = super::git(repository, &["rev-parse", "--git-path", "shallow"]).output();
    let path = answer.map(|answer| answer.stdout).unwrap_or_default();
    let text = std::fs::read(repository.join(OsStr::from_bytes(path.trim_ascii_end()))).unwrap_or_default();
    text.split(|&byte| byte == b'\n').filter_map(parse_oid).collect()
}

fn walk(repository: &Path) -> Result<Reachable, GitError> {
    let args = ["--objects", "--all", "--missing=print", "--filter=object:type=blob", "--filter-provided-objects"];
    let mut running = Running::start(repository, "rev-list", &args, false)?;
    let stdout = running.child.stdout.take().expect("it was piped");
    let mut reachable = Reachable::default();
    for_each_line(BufReader::with_capacity(1 << 16, stdout), |line| {
        if let Some(missing) = line.strip_prefix(b"?") {
            reachable.missing.extend(parse_oid(missing));
            return;
        }
        let (oid, path) = match memchr::memchr(b' ', line) {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &[][..]),
        };
        if let Some(oid) = parse_oid(oid) {
            reachable.blobs.insert(oid, path.into());
        }
    })
    .map_err(GitError::io("reading from git rev-list"))?;
    running.finish()?;
    for oid in &reachable.missing {
        reachable.blobs.remove(oid);
    }
    Ok(reachable)
}

/// Where blobs stand, as it is being told.
struct Standing {
    places: Places,
    commits: Vec<Oid>,
    submodules: BTreeSet<Box<[u8]>>,
    /// Blobs and paths that were told, hashed under a seed that nobody knows.
    met: HashSet<u128, foldhash::fast::RandomState>,
    seed: u64,
}

impl Standing {
    fn new(bounds: Bounds) -> Self {
        let (commits, submodules, met) = Default::default();
        Self { places: Places::new(bounds), commits, submodules, met, seed: random_u64() }
    }

    /// What each commit put where, parents first.
    fn of_commits(&mut self, repository: &Path) -> Result<(), GitError> {
        let args = [
            "--all",
            "--reverse",
            "--date-order",
            "--raw",
            "--diff-merges=separate",
            "--root",
            "--no-renames",
            "--no-relative",
            "--ignore-submodules=none",
            "--no-abbrev",
            "--no-color",
            "--no-ext-diff",
            "--format=%x1f%H",
        ];
        let mut running = Running::start(repository, "log", &args, false)?;
        let stdout = running.child.stdout.take().expect("it was piped");
        let read = for_each_line(BufReader::with_capacity(1 << 16, stdout), |line| match line.split_first() {
            // A merge is told once for each of its parents.
            Some((0x1f, hex)) => {
                let commit = Oid::from_hex(hex).filter(|commit| self.commits.last() != Some(commit));
                self.commits.extend(commit);
            }
            // `:100644 100644 <old> <new> M<TAB>path`
            Some((b':', change)) => {
                let tab = memchr::memchr(b'\t', change).unwrap_or(change.len());
                let mut words = change[..tab].split(|&byte| byte == b' ');
                let mode = words.nth(1).unwrap_or_default();
                let is_file = mode.starts_with(b"10") || mode.starts_with(b"12");
                if mode == b"160000" {
                    self.submodules.insert(quoted::plain(change.get(tab + 1..).unwrap_or_default()).into());
                }
                if let Some(oid) = words.nth(1).and_then(Oid::from_hex).filter(|_| is_file) {
                    let path = quoted::plain(change.get(tab + 1..).unwrap_or_default());
                    self.add(oid, &path, self.commits.len().checked_sub(1).map(|number| number as u32));
                }
            }
            _ => {}
        });
        read.map_err(GitError::io("reading from git log"))?;
        running.finish()
    }

    /// What stands in trees that refs point to.
    fn of_tagged_trees(&mut self, repository: &Path) -> Result<(), GitError> {
        for tree in tagged_trees(repository)? {
            let mut running = Running::start(repository, "ls-tree", &["-r", "-z", "--full-tree", &tree], false)?;
            let mut stdout = BufReader::new(running.child.stdout.take().expect("it was piped"));
            let mut line = Vec::new();
            while stdout.read_until(0, &mut line).map_err(GitError::io("reading from git ls-tree"))? > 0 {
                // `100644 blob <oid><TAB>path`
                let entry = line.strip_suffix(b"\0").unwrap_or(&line);
                let tab = memchr::memchr(b'\t', entry).unwrap_or(entry.len());
                let mut words = entry[..tab].split(|&byte| byte == b' ').skip(1);
                if words.next() == Some(b"blob")
                    && let Some(oid) = words.next().and_then(Oid::from_hex)
                {
                    self.add(oid, entry.get(tab + 1..).unwrap_or_default(), None);
                }
                line.clear();
            }
            running.finish()?;
        }
        Ok(())
    }

    fn add(&mut self, oid: Oid, path: &[u8], commit: Option<u32>) {
        let named = [oid.as_bytes(), path].concat();
        if self.met.insert(xxh3_128_with_seed(&named, self.seed)) {
            self.places.add(oid, path, commit);
        }
    }

    /// Where a blob stands. If not all paths could be told, the one that the walk names may be a further one.
    fn of(&self, oid: &[u8], walked: &[u8], is_broken: bool) -> Stands {
        let mut stands = Oid::new(oid).map(|oid| self.places.of(&oid)).unwrap_or_default();
        if stands.places.is_empty() {
            // What is named by refs alone has no path: the walk names it by its ref.
            let path = if is_broken { walked } else { &[] };
            stands.places.push(Placed { path: path.into(), commit: None });
        }
        Stands { has_more: stands.has_more || is_broken, ..stands }
    }
}

/// Trees that refs point to, be it through tags.
fn tagged_trees(repository: &Path) -> Result<Vec<String>, GitError> {
    let mut running = Running::start(repository, "for-each-ref", &["--format=%(objecttype) %(objectname)"], false)?;
    let stdout = running.child.stdout.take().expect("it was piped");
    let mut wanted = Vec::new();
    for_each_line(BufReader::new(stdout), |line| {
        let is_candidate = line.starts_with(b"tag ") || line.starts_with(b"tree ");
        wanted.extend(line.split(|&byte| byte == b' ').nth(1).filter(|_| is_candidate).map(<[u8]>::to_vec));
    })
    .map_err(GitError::io("reading from git for-each-ref"))?;
    running.finish()?;
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let mut running = Running::start(repository, "cat-file", &["--batch-check=%(objecttype) %(objectname)"], true)?;
    let mut stdin = running.child.stdin.take().expect("it was piped");
    let feeder = std::thread::spawn(move || {
        // If git is gone, its end tells.
        let _ = wanted.iter().try_for_each(|oid| stdin.write_all(&[oid, &b"^{}\n"[..]].concat()));
    });
    let stdout = running.child.stdout.take().expect("it was piped");
    let mut trees = Vec::new();
    for_each_line(BufReader::new(stdout), |line| {
        if let Some(oid) = line.strip_prefix(b"tree ") {
            trees.push(String::from_utf8_lossy(oid).into_owned());
        }
    })
    .map_err(GitError::io("reading from git cat-file"))?;
    let _ = feeder.join();
    running.finish()?;
    Ok(trees)
}

/// Lines of what a child writes, without their ends.
pub(super) fn for_each_line(mut input: impl BufRead, mut visit: impl FnMut(&[u8])) -> std::io::Result<()> {
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        visit(line.strip_suffix(b"\n").unwrap_or(&line));
        line.clear();
    }
    Ok(())
}
