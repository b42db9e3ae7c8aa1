//! Which blobs a repository holds, as git tells: for repositories that only git can read, and for what is staged.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::list::{Entry, Listed, Presence};
use super::store::layout::Layout;
use super::{GitError, Running, parse_oid};

/// Blobs the walk met, with a path each; and what it could not find.
#[derive(Debug, Default)]
struct Reachable {
    blobs: HashMap<Box<[u8]>, Box<[u8]>>,
    missing: Vec<Box<[u8]>>,
}

/// Blobs that refs lead to, in the order of the pack.
pub(super) fn history(repository: &Path) -> Result<Listed, GitError> {
    let walked = walk(repository);
    let (mut reachable, broken) = match walked {
        Ok(reachable) => (Some(reachable), false),
        // Without git nothing works; with git, a history that cannot be walked is still a heap of blobs.
        Err(error @ GitError::Missing(_)) => return Err(error),
        Err(_) => (None, true),
    };
    let mut entries = Vec::new();
    let args =
        ["--batch-all-objects", "--unordered", "--buffer", "--batch-check=%(objectname) %(objecttype) %(objectsize)"];
    let mut running = Running::start(repository, "cat-file", &args, false)?;
    let stdout = running.child.stdout.take().expect("it was piped");
    for_each_line(BufReader::with_capacity(1 << 16, stdout), |line| {
        let mut words = line.split(|&byte| byte == b' ');
        let (Some(oid), Some(b"blob"), Some(size)) = (words.next().and_then(parse_oid), words.next(), words.next())
        else {
            return;
        };
        let size = std::str::from_utf8(size).ok().and_then(|size| size.parse().ok()).unwrap_or(0);
        let path = match &mut reachable {
            Some(reachable) => match reachable.blobs.remove(&oid) {
                Some(path) => path,
                None => return,
            },
            None => Box::default(),
        };
        entries.push(Entry { oid, size, path, presence: Presence::Present, commit: None });
    })
    .map_err(GitError::io("reading from git cat-file"))?;
    let listed = running.finish();
    match reachable {
        // What the walk met and the listing did not, be it that the listing broke: reading will tell.
        Some(reachable) => {
            let mut rest: Vec<_> = reachable.blobs.into_iter().collect();
            rest.sort_unstable();
            let rest = rest.into_iter().map(|(oid, path)| Entry {
                oid,
                size: 0,
                path,
                presence: Presence::Present,
                commit: None,
            });
            entries.extend(rest);
            entries.extend(reachable.missing.into_iter().map(|oid| Entry {
                oid,
                size: 0,
                path: Box::default(),
                presence: Presence::Missing,
                commit: None,
            }));
        }
        // Neither walk nor listing: there is nothing to go by.
        None => listed?,
    }
    for oid in cut(repository) {
        entries.push(Entry { oid, size: 0, path: Box::default(), presence: Presence::Cut, commit: None });
    }
    // Git warns about refs that it cannot read, and goes on as if they were not there.
    if broken || Layout::discover(repository).is_ok_and(|layout| layout.tips().is_broken) {
        let path = Box::default();
        entries.push(Entry { oid: Box::default(), size: 0, path, presence: Presence::WalkBroken, commit: None });
    }
    Ok(Listed { entries, commits: Vec::new() })
}

/// Commits whose parents were left out when the repository was cloned.
fn cut(repository: &Path) -> Vec<Box<[u8]>> {
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

/// Blobs that are staged and differ from the last commit.
pub(super) fn staged(repository: &Path) -> Result<Vec<Entry>, GitError> {
    let args = ["--cached", "--raw", "-z", "--no-abbrev", "--no-renames", "--no-ext-diff", "--diff-filter=AMT"];
    let mut running = Running::start(repository, "diff", &args, false)?;
    let mut stdout = BufReader::new(running.child.stdout.take().expect("it was piped"));
    let unexpected = || GitError::Unexpected { command: "diff" };
    let mut field = || -> Result<Option<Vec<u8>>, GitError> {
        let mut field = Vec::new();
        stdout.read_until(0, &mut field).map_err(GitError::io("reading from git diff"))?;
        Ok((field.pop() == Some(0)).then_some(field))
    };
    let mut entries = Vec::new();
    while let Some(header) = field()? {
        let path = field()?.ok_or_else(unexpected)?;
        let words: Vec<&[u8]> = header.split(|&byte| byte == b' ').collect();
        let [_, mode, _, oid, _] = words[..] else { return Err(unexpected()) };
        // Links and submodules have no text of their own.
        if mode.starts_with(b"100") {
            let oid = parse_oid(oid).ok_or_else(unexpected)?;
            entries.push(Entry { oid, size: 0, path: path.into(), presence: Presence::Present, commit: None });
        }
    }
    running.finish()?;
    Ok(entries)
}

/// Lines of what a child writes, without their ends.
fn for_each_line(mut input: impl BufRead, mut visit: impl FnMut(&[u8])) -> std::io::Result<()> {
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        visit(line.strip_suffix(b"\n").unwrap_or(&line));
        line.clear();
    }
    Ok(())
}
