//! How a blob came to a path: the first commit that has it there, its author, its date.
//!
//! The list of a history knows the commit of each place; its author is read for places of findings only. What is staged came with no
//! commit yet.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use super::list::{BlobPath, Introduced, ObjectList};
use super::{GitError, Running, hex_oid, parse_oid};
use crate::clock::calendar::iso_8601;
use crate::findings::occurrence::Occurrence;
use crate::plan::target::{Target, TargetKind};
use tessera_git_objects::Kind;
use tessera_git_objects::Store;
use tessera_git_objects::cache::ObjectCache;
use tessera_git_objects::commit::Said;
use tessera_git_objects::oid::Oid;

/// How a blob came to a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribution {
    /// The commit, in hex.
    pub commit: String,
    /// Its author's name.
    pub author: String,
    /// Its author's address.
    pub email: String,
    /// When it was written, in ISO 8601.
    pub date: String,
    /// The first line of its message.
    pub subject: String,
    /// Its place in the history: parents before children.
    pub order: u64,
}

/// How blobs came to paths, for each target.
#[derive(Debug, Default)]
pub struct Introductions(BTreeMap<u32, BTreeMap<BlobPath, Attribution>>);

impl Introductions {
    /// How the blobs of these occurrences came to their paths; lists of objects lie in `dir`.
    pub fn of_occurrences<'o>(
        targets: &[Target],
        dir: &Path,
        occurrences: impl Iterator<Item = &'o Occurrence>,
    ) -> Result<Self, GitError> {
        let mut wanted: BTreeMap<u32, BTreeSet<BlobPath>> = BTreeMap::new();
        for occurrence in occurrences {
            if let Some(blob) = &occurrence.blob {
                wanted.entry(occurrence.target).or_default().insert((blob.clone(), occurrence.item_path().into()));
            }
        }
        let mut introductions = BTreeMap::new();
        for target in targets {
            let (TargetKind::Objects { list }, Some(wanted)) = (&target.kind, wanted.remove(&target.number)) else {
                continue;
            };
            // Without the list it stays open who brought what in.
            let introduced = ObjectList::open(dir, list).and_then(|list| list.introduced(&wanted)).unwrap_or_default();
            introductions.insert(target.number, attributed(&target.path, introduced)?);
        }
        Ok(Self(introductions))
    }

    /// How the blob of this occurrence came to its path; `None` if no commit has it there, as when it is only staged.
    pub fn of(&self, occurrence: &Occurrence) -> Option<&Attribution> {
        let key = (occurrence.blob.clone()?, occurrence.item_path().into());
        self.0.get(&occurrence.target)?.get(&key)
    }
}

/// What a commit says of itself, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Authored {
    author: String,
    email: String,
    date: String,
    subject: String,
}

impl From<Said> for Authored {
    fn from(Said { author, email, when, subject }: Said) -> Self {
        let date = when.map(|(seconds, zone)| iso_8601(seconds, zone)).unwrap_or_default();
        Self { author, email, date, subject }
    }
}

/// Adds what commits say to what is known of places.
fn attributed(
    repository: &Path,
    introduced: BTreeMap<BlobPath, Introduced>,
) -> Result<BTreeMap<BlobPath, Attribution>, GitError> {
    let commits: BTreeSet<Box<[u8]>> = introduced.values().map(|introduced| introduced.commit.clone()).collect();
    let said = match Store::open(repository) {
        Ok(store) => said_by_commits(&store, &commits),
        Err(_) => said_by_git(repository, &commits)?,
    };
    let attribution = |Introduced { commit, order }: Introduced| {
        let Authored { author, email, date, subject } = said.get(&commit)?.clone();
        Some(Attribution { commit: hex_oid(&commit), author, email, date, subject, order })
    };
    Ok(introduced.into_iter().filter_map(|(place, introduced)| Some((place, attribution(introduced)?))).collect())
}

/// What commits say, as far as they can be read.
fn said_by_commits(store: &Store, commits: &BTreeSet<Box<[u8]>>) -> BTreeMap<Box<[u8]>, Authored> {
    let mut objects = ObjectCache::new(store);
    let mut said = BTreeMap::new();
    for commit in commits {
        if let Some(oid) = Oid::new(commit)
            && let Ok((Kind::Commit, content)) = objects.read(&oid)
        {
            said.insert(commit.clone(), Said::by(&content).into());
        }
    }
    said
}

const SEPARATOR: u8 = 0x1f;

/// What commits say, for repositories that only git can read.
fn said_by_git(repository: &Path, commits: &BTreeSet<Box<[u8]>>) -> Result<BTreeMap<Box<[u8]>, Authored>, GitError> {
    let mut said = BTreeMap::new();
    if commits.is_empty() {
        return Ok(said);
    }
    let args = [
        "--no-walk=unsorted",
        "--ignore-missing",
        "--stdin",
        "-z",
        "--encoding=UTF-8",
        "--format=%H%x1f%an%x1f%ae%x1f%aI%x1f%s",
    ];
    let mut running = Running::start(repository, "log", &args, true)?;
    let mut stdin = running.child.stdin.take().expect("it was piped");
    let lines: String = commits.iter().map(|commit| hex_oid(commit) + "\n").collect();
    // All of it is read before git answers. If git is gone, its end tells.
    let _ = stdin.write_all(lines.as_bytes());
    drop(stdin);
    let stdout = BufReader::new(running.child.stdout.take().expect("it was piped"));
    for entry in stdout.split(0) {
        let entry = entry.map_err(GitError::io("reading from git log"))?;
        let mut fields = entry.split(|&byte| byte == SEPARATOR);
        let Some(commit) = fields.next().and_then(parse_oid) else { continue };
        let mut text = || String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned();
        said.insert(commit, Authored { author: text(), email: text(), date: text(), subject: text() });
    }
    // A history that breaks leaves places without a commit; what is known is still worth showing.
    let _ = running.finish();
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::Repository;

    #[test]
    fn commits_say_the_same_whoever_reads_them() {
        let repository = Repository::new();
        let commits = [
            repository.commit("first \u{e4}", &[("a.txt", "plain\n")]),
            repository.commit("second\nline\n\nand more", &[("a.txt", "other\n")]),
        ];
        let oids: BTreeSet<Box<[u8]>> = commits.iter().map(|hex| parse_oid(hex.as_bytes()).unwrap()).collect();
        let absent: Box<[u8]> = vec![1; 20].into();
        let asked = oids.iter().cloned().chain([absent]).collect();
        let ours = said_by_commits(&Store::open(repository.path()).unwrap(), &asked);
        assert_eq!(ours.len(), 2);
        let gits = said_by_git(repository.path(), &asked).unwrap();
        assert_eq!(ours.keys().collect::<Vec<_>>(), gits.keys().collect::<Vec<_>>());
        for (commit, said) in ours {
            // Git writes the zone of universal time in another way.
            let date = gits[&commit].date.replace("+00:00", "Z");
            assert_eq!(said, Authored { date, ..gits[&commit].clone() });
        }
        let (second, subject) = (parse_oid(commits[1].as_bytes()).unwrap(), "second line");
        assert_eq!((&gits[&second].subject[..], &gits[&second].email[..]), (subject, "ada@example.org"));
    }
}
