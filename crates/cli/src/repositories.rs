//! The flags that name many repositories, and what is said of those that cannot be scanned.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tessera_scan::run::left_out::LeftOut;
use tessera_scan::run::request::ScanScope;
use tessera_scan::source::repositories::{Gathering, Repositories, any_below};

use crate::hint;
use crate::tell::{count, shown};

/// Entries of a list that are told one by one; the rest is counted, and the report names all.
const TOLD_MAX: usize = 20;

/// Many repositories.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RepositoryArgs {
    /// Scan the repositories that FILE lists, one path on each line; `-` reads standard input, and lines that begin with # are remarks
    #[arg(long, value_name = "FILE", conflicts_with_all = ["paths", "staged"])]
    repos: Option<PathBuf>,

    /// Scan every repository at or below DIR, bare ones and linked worktrees too; may be given more than once
    #[arg(long, value_name = "DIR", conflicts_with_all = ["paths", "staged"])]
    repos_under: Vec<PathBuf>,

    /// Scan nothing if an entry of the list or a repository below the folder cannot be scanned
    #[arg(long)]
    strict: bool,
}

/// What is to be scanned.
#[derive(Debug, Clone, Default)]
pub(crate) struct Targets {
    pub(crate) paths: Vec<PathBuf>,
    /// Whether one that cannot be scanned is left out, instead of being the end of the scan.
    pub(crate) tolerant: bool,
    pub(crate) left_out: Vec<LeftOut>,
}

impl RepositoryArgs {
    /// The repositories that were named, if any way to name many was used; otherwise `paths`.
    pub(crate) fn targets(&self, paths: &[PathBuf], scope: ScanScope, quiet: bool) -> Result<Targets, String> {
        if self.repos.is_none() && self.repos_under.is_empty() {
            return match self.strict {
                true => Err("--strict is about lists: give --repos FILE or --repos-under DIR with it".into()),
                false => Ok(Targets { paths: paths.to_vec(), ..Targets::default() }),
            };
        }
        let found = self.gather(scope)?;
        if !found.left_out.is_empty() && (self.strict || !quiet || found.paths.is_empty()) {
            tell_left_out(&found.left_out, if self.strict { "error" } else { "warning" });
        }
        if !quiet {
            tell_repeated(&found);
        }
        let all = found.left_out.len() as u64;
        match (found.paths.is_empty(), self.strict && all > 0) {
            (true, _) if all == 0 => Err(self.nothing_found()),
            (true, _) => Err(format!("none of {} can be scanned", entries(all))),
            (_, true) => {
                Err(format!("{} cannot be scanned, and --strict was given; nothing was scanned", entries(all)))
            }
            _ => Ok(Targets { paths: found.paths, tolerant: !self.strict, left_out: found.left_out }),
        }
    }

    fn gather(&self, scope: ScanScope) -> Result<Repositories, String> {
        let mut gathering = Gathering::new(scope);
        match self.repos.as_deref() {
            Some(file) if file == Path::new("-") => {
                gathering.list("standard input", &mut io::stdin().lock()).map_err(|error| error.to_string())?;
            }
            Some(file) if file.is_dir() => {
                let dir = file.to_string_lossy();
                let command = hint::command(&["scan", "--repos-under", &dir], &[]);
                return Err(format!("{dir} is a directory and no list; {command} scans the repositories below it"));
            }
            Some(file) => {
                let name = file.display().to_string();
                let mut list = File::open(file).map_err(|error| format!("cannot read {name}: {error}"))?;
                gathering.list(&name, &mut list).map_err(|error| error.to_string())?;
            }
            None => {}
        }
        for dir in &self.repos_under {
            gathering.below(dir).map_err(|error| format!("cannot look below {}: {error}", dir.display()))?;
        }
        Ok(gathering.finish())
    }

    fn nothing_found(&self) -> String {
        let below: Vec<_> = self.repos_under.iter().map(|dir| dir.display().to_string()).collect();
        format!("no repository lies at or below {}", below.join(", "))
    }
}

fn entries(number: u64) -> String {
    if number == 1 { "1 entry".to_owned() } else { format!("{number} entries") }
}

fn tell_left_out(left_out: &[LeftOut], how: &str) {
    for one in left_out.iter().take(TOLD_MAX) {
        let place = if one.named_at.is_empty() { String::new() } else { format!("{}: ", one.named_at) };
        let text = format!("{place}cannot scan {}: {}", one.path.display(), one.why);
        tell!("{how}: {}", one_line(&text));
    }
    if let Some(more) = left_out.len().checked_sub(TOLD_MAX).filter(|&more| more > 0) {
        tell!("{how}: {more} more cannot be scanned; the report names all");
    }
}

fn tell_repeated(found: &Repositories) {
    let repeated = &found.repeated;
    let Some(first) = repeated.first() else { return };
    let place = if first.named_at.is_empty() { String::new() } else { format!(" ({})", first.named_at) };
    let which = format!("{}{place} is {}", first.path.display(), first.scanned_as.display());
    let which = one_line(&which);
    match repeated.len() as u64 - 1 {
        0 => tell!("scanned once: {which}"),
        more => tell!("scanned once: {which}; and {}", count(more, "more repetition")),
    }
}

/// Paths may be a stranger's.
fn one_line(text: &str) -> String {
    crate::tell::clean(shown(text).as_str())
}

/// What to do about a folder that is no repository and was to be scanned as one.
pub(crate) fn advice_for(path: &Path) -> Option<String> {
    any_below(path).then(|| {
        let path = path.to_string_lossy();
        let command = hint::command(&["scan", "--history", "--repos-under", &path], &[]);
        format!("{path} is not a git repository, but repositories lie below it; {command} scans their histories")
    })
}
