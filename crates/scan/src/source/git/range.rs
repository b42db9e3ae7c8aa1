//! A part of a history: what some commits put where, as `git log` chooses them.
//!
//! A blob is listed with the paths that commits of the part put it at, and with the first of these commits. What a merge has from one of
//! its parents is not listed for the merge; what it has from none of them is. So a pull request is searched for what it adds, and a push
//! for what is new to the server.

use std::collections::HashSet;
use std::io::{BufReader, Write};
use std::path::Path;

use super::list::{Entry, Listed, Presence, Scope};
use super::{GitError, Running, by_git, quoted};
use crate::wire::Writer;
use tessera_git_objects::oid::Oid;
use tessera_git_objects::places::{BOUNDS, Places};

/// Which commits of a history.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommitRange {
    /// As git has them: `A..B`, `B`, `^A`. What is checked out if there is none, and no branch.
    pub revisions: Vec<String>,
    /// Those of this branch, here or at a remote.
    pub branch: Option<String>,
    /// Those that this commit does not lead to, or that are not older than this date.
    pub since: Option<String>,
}

impl CommitRange {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.u32(self.revisions.len() as u32);
        for revision in &self.revisions {
            writer.bytes(revision.as_bytes());
        }
        for word in [&self.branch, &self.since] {
            writer.bytes(word.as_deref().unwrap_or_default().as_bytes());
        }
    }

    /// Arguments of `git log`, and what it reads: the names of commits, which may be many.
    fn arguments(&self, repository: &Path) -> Result<(Vec<String>, String), GitError> {
        let is_commit = |name: &str| {
            let name = format!("{name}^{{commit}}");
            super::output_of(repository, "rev-parse", &["--verify", "--quiet", "--end-of-options", &name]).is_ok()
        };
        let mut revisions = self.revisions.clone();
        if let Some(branch) = &self.branch {
            let names = [format!("refs/heads/{branch}"), format!("refs/remotes/origin/{branch}"), branch.clone()];
            let found = names.into_iter().find(|name| is_commit(name));
            revisions.push(found.ok_or_else(|| unknown(repository, branch, "no branch"))?);
        }
        if revisions.is_empty() {
            revisions.push("HEAD".into());
        }
        let mut args = Vec::new();
        match &self.since {
            Some(since) if is_commit(since) => revisions.push(format!("^{since}")),
            // Git takes any word for a date, and a misspelt one for today.
            Some(since) if is_day(since) => args.push(format!("--since-as-filter={since} 00:00")),
            Some(since) if is_date(since) => args.push(format!("--since-as-filter={since}")),
            Some(since) => return Err(unknown(repository, since, "neither a commit nor a date such as 2024-05-31")),
            None => {}
        }
        if let Some(odd) = revisions.iter().find(|name| name.starts_with('-') || name.contains('\n')) {
            return Err(unknown(repository, odd, "no commit"));
        }
        Ok((args, revisions.join("\n") + "\n"))
    }
}

fn unknown(repository: &Path, name: &str, what: &str) -> GitError {
    GitError::Damaged(format!("{name:?} is {what} in {}", repository.display()))
}

/// `2024-05-31`
fn is_day(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let is_number = |text: &str, len: usize| text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit());
    matches!(parts[..], [year, month, day] if is_number(year, 4) && is_number(month, 2) && is_number(day, 2))
}

/// `2024-05-31T10:00:00Z`, `2 weeks ago`, `yesterday`.
fn is_date(text: &str) -> bool {
    let words: Vec<&str> = text.split([' ', '.']).collect();
    match words[..] {
        ["yesterday"] => true,
        [number, unit, "ago"] => {
            let units = ["second", "minute", "hour", "day", "week", "month", "year"];
            let unit = unit.strip_suffix('s').unwrap_or(unit);
            number.parse::<u32>().is_ok() && units.contains(&unit)
        }
        _ => text.get(..10).is_some_and(is_day) && text[10..].starts_with(['T', ' ']) && text.len() > 13,
    }
}

/// What the commits of the range put where.
pub(super) fn listed(repository: &Path, range: &CommitRange) -> Result<Listed, GitError> {
    let (more, revisions) = range.arguments(repository)?;
    let mut args = vec![
        "--stdin",
        "--reverse",
        "--topo-order",
        "--raw",
        "-c",
        "--root",
        "--no-renames",
        "--no-relative",
        "--ignore-submodules=none",
        "--no-abbrev",
        "--no-color",
        "--no-ext-diff",
        "--format=%x1f%H",
    ];
    args.extend(more.iter().map(String::as_str));
    let mut running = Running::start(repository, "log", &args, true)?;
    let mut stdin = running.child.stdin.take().expect("it was piped");
    // If git is gone, its end tells.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(revisions.as_bytes())));
    let stdout = running.child.stdout.take().expect("it was piped");
    let (mut places, mut commits, mut order) = (Places::new(BOUNDS), Vec::new(), Vec::new());
    let mut met: HashSet<(Oid, Vec<u8>)> = HashSet::new();
    let mut entries = Vec::new();
    by_git::for_each_line(BufReader::with_capacity(1 << 16, stdout), |line| match line.split_first() {
        Some((0x1f, hex)) => commits.extend(Oid::from_hex(hex)),
        Some((b':', _)) => {
            let Some(change) = Change::of(line) else { return };
            match change.oid {
                _ if change.mode == b"160000" && met.insert((change.oid_or_zero(), change.path.clone())) => {
                    entries.push(Entry::submodule(&change.path));
                }
                Some(oid) if change.is_file() && met.insert((oid, change.path.clone())) => {
                    if !places.contains(&oid) {
                        order.push(oid);
                    }
                    places.add(oid, &change.path, commits.len().checked_sub(1).map(|number| number as u32));
                }
                _ => {}
            }
        }
        _ => {}
    })
    .map_err(GitError::io("reading from git log"))?;
    let _ = feeder.join();
    running.finish()?;
    entries.extend(order.iter().map(|oid| {
        let stands = places.of(oid);
        let entry = Entry::new(oid.as_bytes().into(), Presence::Present);
        Entry { places: stands.places, has_more: stands.has_more, ..entry }
    }));
    let walked: HashSet<&[u8]> = commits.iter().map(Oid::as_bytes).collect();
    let cut = super::cut_commits(repository).into_iter().filter(|oid| walked.contains(&**oid));
    entries.extend(cut.map(|oid| Entry::new(oid, Presence::Cut)));
    Ok(Listed { scope: Scope::History, entries, commits })
}

/// A line of `--raw`: `:<mode> <mode> <oid> <oid> M<TAB>path`, with a colon, a mode and an object more for each further parent of a merge.
struct Change<'l> {
    mode: &'l [u8],
    oid: Option<Oid>,
    path: Vec<u8>,
}

impl<'l> Change<'l> {
    fn of(line: &'l [u8]) -> Option<Self> {
        let parents = line.iter().take_while(|&&byte| byte == b':').count();
        let change = &line[parents..];
        let tab = memchr::memchr(b'\t', change)?;
        let words: Vec<&[u8]> = change[..tab].split(|&byte| byte == b' ').collect();
        let mode = *words.get(parents)?;
        let oid = words.get(2 * parents + 1).copied().and_then(Oid::from_hex);
        Some(Self { mode, oid, path: quoted::plain(&change[tab + 1..]) })
    }

    fn is_file(&self) -> bool {
        self.mode.starts_with(b"10") || self.mode.starts_with(b"12")
    }

    /// A submodule counts once for its path, whichever commit of it was put there.
    fn oid_or_zero(&self) -> Oid {
        let len = self.oid.map_or(20, |oid| oid.as_bytes().len());
        Oid::new(&vec![0; len]).expect("a length of objects")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::Repository;

    fn range(revisions: &[&str], branch: Option<&str>, since: Option<&str>) -> CommitRange {
        let own = |word: &str| word.to_owned();
        CommitRange {
            revisions: revisions.iter().map(|&word| own(word)).collect(),
            branch: branch.map(own),
            since: since.map(own),
        }
    }

    /// What is listed: path and content, with the first characters of the commit.
    fn told(repository: &Repository, range: &CommitRange) -> Vec<String> {
        let listed = listed(repository.path(), range).unwrap();
        let mut told = Vec::new();
        for entry in &listed.entries {
            for place in &entry.places {
                let commit =
                    place.commit.map(|number| super::super::hex_oid(listed.commits[number as usize].as_bytes()));
                told.push(format!("{} {}", String::from_utf8_lossy(&place.path), commit.unwrap_or_default()));
            }
        }
        told.sort();
        told
    }

    #[test]
    fn a_range_holds_what_its_commits_put_where() {
        let repository = Repository::new();
        let first = repository.commit("first", &[("a", "1\n"), ("kept", "k\n")]);
        repository.git(&["checkout", "-q", "-b", "side"]);
        let side = repository.commit("side", &[("b", "2\n")]);
        repository.git(&["checkout", "-q", "main"]);
        let second = repository.commit("second", &[("a", "3\n"), ("copy/\u{e4}\t", "1\n")]);
        repository.git(&["merge", "-q", "--no-ff", "-m", "merge", "side"]);
        let both = [format!("a {second}"), format!("b {side}"), format!("copy/\u{e4}\t {second}")];
        for same in [
            range(&[&format!("{first}..HEAD")], None, None),
            range(&[&format!("{first}..")], None, None),
            range(&[], None, Some(&first[..10])),
            range(&[], Some("main"), Some(&first)),
        ] {
            assert_eq!(told(&repository, &same), both, "{same:?}");
        }
        assert_eq!(told(&repository, &range(&[], Some("side"), Some(&first))), [format!("b {side}")]);
        // The merge brings nothing that none of its parents has.
        assert_eq!(told(&repository, &range(&["^side", &format!("^{second}"), "main"], None, None)), [""; 0]);
        assert_eq!(told(&repository, &range(&[], Some("side"), None)).len(), 3, "a branch from its beginning");
    }

    #[test]
    fn a_merge_that_changes_what_both_parents_have_is_listed_with_it() {
        let repository = Repository::new();
        repository.commit("base", &[("a", "1\n")]);
        repository.git(&["checkout", "-q", "-b", "side"]);
        repository.commit("side", &[("a", "2\n")]);
        repository.git(&["checkout", "-q", "main"]);
        let before = repository.commit("main", &[("a", "3\n")]);
        repository.try_git(&["merge", "-q", "side"]);
        let merge = repository.commit("merge", &[("a", "evil\n")]);
        let new = range(&["main", "^side", &format!("^{before}")], None, None);
        assert_eq!(told(&repository, &new), [format!("a {merge}")]);
    }

    #[test]
    fn dates_are_dates_and_nothing_else_is_taken_for_one() {
        let repository = Repository::new();
        repository.commit("first", &[("a", "1\n")]);
        assert_eq!(told(&repository, &range(&[], None, Some("2001-01-31"))).len(), 1);
        assert_eq!(told(&repository, &range(&[], None, Some("2099-01-31"))).len(), 0);
        for good in ["2024-05-31T10:00:00Z", "2 weeks ago", "1.day.ago", "yesterday"] {
            assert!(is_date(good), "{good}");
        }
        for bad in ["mian", "2024-5-31", "--all", "20 monkeys ago"] {
            let error = listed(repository.path(), &range(&[], None, Some(bad))).unwrap_err().to_string();
            assert!(error.contains("neither a commit nor a date"), "{error}");
        }
        let error = listed(repository.path(), &range(&["--output=x"], None, None)).unwrap_err().to_string();
        assert!(error.contains("no commit"), "{error}");
        assert!(listed(repository.path(), &range(&["nosuch..HEAD"], None, None)).is_err());
        assert!(listed(repository.path(), &range(&[], Some("nosuch"), None)).is_err());
    }

    #[test]
    fn a_submodule_counts_once_and_a_range_that_reaches_the_cut_of_a_clone_says_so() {
        let origin = Repository::new();
        origin.commit("first", &[("a", "1\n")]);
        for digit in ["1", "2"] {
            origin.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{},sub", digit.repeat(40))]);
            origin.git(&["commit", "-q", "-m", "a submodule"]);
        }
        let presences = |repository: &Path, range: &CommitRange| -> Vec<Presence> {
            listed(repository, range).unwrap().entries.iter().map(|entry| entry.presence).collect()
        };
        assert_eq!(presences(origin.path(), &range(&["HEAD~2..HEAD"], None, None)), [Presence::Submodule]);
        let outside = tempfile::tempdir().unwrap();
        let clone = outside.path().join("clone");
        let url = format!("file://{}", origin.path().display());
        origin.git(&["clone", "-q", "--bare", "--depth=2", &url, clone.to_str().unwrap()]);
        assert!(presences(&clone, &range(&["HEAD"], None, None)).contains(&Presence::Cut));
        assert!(!presences(&clone, &range(&["HEAD~1..HEAD"], None, None)).contains(&Presence::Cut));
    }
}
