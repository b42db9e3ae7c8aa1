//! `tessera scan PATH…`: looks for leaked secrets, and accounts for every item, read or not.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::builder::RangedU64ValueParser;
use tessera_detect::{Confidence, Severity};
use tessera_scan::clock::calendar::utc;
use tessera_scan::error::ScanError;
use tessera_scan::fleet::follow::READ_AGAIN_MAX;
use tessera_scan::fleet::{Following, follow};
use tessera_scan::plan::target::ReadOptions;
use tessera_scan::read::rules::{Rules, RunRules};
use tessera_scan::read::selection::RuleSelection;
use tessera_scan::report::human;
use tessera_scan::report::suppress::Suppressions;
use tessera_scan::run::job::Job;
use tessera_scan::run::left_out::LeftOut;
use tessera_scan::run::parts::scan_in_parts;
use tessera_scan::run::request::{ScanRequest, ScanScope};
use tessera_scan::run::{Control, ExitStatus, Keeping, Origin, Progress, ScanReport, scan};
use tessera_scan::source::git::range::CommitRange;
use tessera_scan::source::small_file;

use crate::piped::Piped;
use crate::progress::Bar;
use crate::repositories::{RepositoryArgs, Targets, advice_for};
use crate::tell::{count, shown};
use crate::{config, fleet, hint, report, signals, state_dir};

/// Look for leaked secrets in directories, files and git histories
///
/// Ends with a receipt: items enumerated = scanned + skipped (why) + unreadable (why). An interrupted scan is
/// continued by the same command.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES
  tessera scan                              the directory you are in
  tessera scan --history .                  every version of every file that any branch or tag leads to
  tessera scan --staged                     staged changes; `tessera hook install` makes it a pre-commit hook
  tessera scan origin/main..HEAD            what these commits add, for a pull request
  git diff | tessera scan -                 what another program writes
  tessera scan --history --repos repos.txt  the repositories that a file lists, one path on each line
  tessera scan --history --repos-under /srv/git
                                            every repository below a folder
  tessera scan --format sarif -o out.sarif  for a code-scanning service
  tessera scan --format json > known.json; tessera scan --baseline known.json
  tessera scan --coordinator etcd://10.0.0.5:2379/scans --findings /mnt/scans /mnt/code
                                            let a fleet of `tessera worker`s do it, and follow

EXIT CODES
  0  no secret found, and everything was read except files skipped on purpose
  1  secrets found
  2  the scan could not be done
  3  no secret found, but not everything was read")]
pub(crate) struct Args {
    /// What to scan; the current directory if nothing is given, `-` for standard input, `A..B` for commits of its repository
    paths: Vec<PathBuf>,

    /// Scan every blob that any ref of the repository leads to; each is read once and listed at all its paths
    #[arg(long, conflicts_with = "staged")]
    history: bool,

    /// Scan the changes staged for the next commit
    #[arg(long, conflicts_with = "coordinator")]
    staged: bool,

    /// Scan what commits put there that this one does not lead to, or that are not older (a commit, `2024-05-31`, `2 weeks ago`)
    #[arg(long, value_name = "COMMIT|DATE", conflicts_with_all = ["staged", "coordinator"])]
    since: Option<String>,

    /// Scan what the commits of this branch put there, instead of those of all refs
    #[arg(long, value_name = "NAME", conflicts_with_all = ["staged", "coordinator"])]
    branch: Option<String>,

    /// Show secrets in full; without this they are not even stored
    #[arg(long)]
    show_secrets: bool,

    /// Rules in gitleaks' TOML, or `builtin`; by default those of .gitleaks.toml in the target, or else the built-in ones
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,

    /// Use only this rule; may be given more than once (`tessera rules list` names all)
    #[arg(long, value_name = "ID")]
    rule: Vec<String>,

    /// Do not use this rule; may be given more than once
    #[arg(long, value_name = "ID")]
    no_rule: Vec<String>,

    /// Use rules of at least this severity: low, medium, high or critical
    #[arg(long, value_name = "LEVEL")]
    severity: Option<Severity>,

    /// Report findings of at least this confidence: low, medium, high or checksum-valid
    #[arg(long, default_value = "medium", value_name = "LEVEL")]
    confidence: Confidence,

    /// The exit code for secrets, instead of 1
    #[arg(long, value_name = "CODE")]
    exit_code: Option<u8>,

    /// Hide this much of each secret, in per cent; without a number, or without the flag, all but its kind
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "100", conflicts_with = "show_secrets", value_parser = clap::value_parser!(u8).range(0..=100))]
    redact: Option<u8>,

    /// Leave out findings that an earlier report (tessera's or gitleaks' JSON) names
    #[arg(long, value_name = "FILE")]
    baseline: Vec<PathBuf>,

    /// Read also what .gitignore files name
    #[arg(long)]
    no_ignore: bool,

    /// Read also binary files
    #[arg(long)]
    binary: bool,

    /// Read the content of archives (zip, jar, tar, 7z, gzip, bzip2, xz, zstd), of docx, xlsx and pptx documents and of sqlite databases,
    /// up to limits; content beyond them counts as unreadable
    #[arg(long)]
    archives: bool,

    /// Only files that match (`*.env`, `src/**`); may be given more than once
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,

    /// No file or directory that matches; may be given more than once
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,

    /// Leave out larger files (such as 500k, 20M, 1G)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_file_size: Option<u64>,

    /// Stop after this time (such as 90s, 10m, 2h); the same command goes on from there
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    max_time: Option<Duration>,

    /// Worker threads; one a core by default
    #[arg(short, long, default_value_t = 0, hide_default_value = true, value_name = "N", value_parser = jobs())]
    jobs: usize,

    /// Begin anew, even if an interrupted scan could be continued
    #[arg(long)]
    fresh: bool,

    /// Keep nothing on disk: the scan cannot be continued
    #[arg(long, conflicts_with_all = ["fresh", "coordinator"])]
    no_resume: bool,

    /// Where runs are kept
    #[arg(long, value_name = "DIR", conflicts_with = "coordinator")]
    state_dir: Option<PathBuf>,

    /// A file with 64 hex digits under which secrets are named, so that without it no secret can be guessed from its id
    #[arg(long, value_name = "FILE", env = "TESSERA_ID_KEY_FILE")]
    id_key: Option<PathBuf>,

    /// No progress bar
    #[arg(short, long)]
    quiet: bool,

    /// What the report calls the target.
    #[arg(skip)]
    pub(crate) shown_as: Option<PathBuf>,

    /// Commits that a hook was told of.
    #[arg(skip)]
    pub(crate) pushed: Option<Vec<String>>,

    #[command(flatten)]
    repositories: RepositoryArgs,

    #[command(flatten)]
    report: report::ReportArgs,

    #[command(flatten)]
    fleet: fleet::FleetArgs,

    /// How long a worker of a fleet may be silent before its work is given to another, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "coordinator", value_parser = clap::value_parser!(u64).range(2..=3600))]
    lease: u64,
}

impl Args {
    /// Makes this its target.
    pub(crate) fn scan_at(&mut self, path: &Path) {
        self.paths = vec![path.to_path_buf()];
    }

    /// How much of a secret is hidden, in per cent.
    fn redacted_percent(&self) -> u8 {
        if self.show_secrets { 0 } else { self.redact.unwrap_or(100) }
    }
}

/// Targets whose own rules are told one by one.
const RULES_TOLD_MAX: usize = 5;

pub(crate) fn run(args: &Args) -> ExitCode {
    let said = Words::of(args).and_then(|mut words| scan_and_write(args, &mut words));
    match said {
        Ok(ExitStatus::Findings) => ExitCode::from(args.exit_code.unwrap_or(ExitStatus::Findings as u8)),
        Ok(status) => ExitCode::from(status as u8),
        Err(error) => {
            tell!("error: {}", shown(&error));
            ExitCode::from(ExitStatus::Error as u8)
        }
    }
}

/// What the words that are no flags, and the flags beside them, name.
struct Words {
    /// What is scanned.
    targets: Targets,
    /// Which commits, if not all.
    range: Option<CommitRange>,
    /// What was read from standard input; it is gone when this is.
    piped: Option<Piped>,
}

impl Words {
    fn of(args: &Args) -> Result<Self, String> {
        let (ranges, mut paths): (Vec<_>, Vec<_>) = args.paths.iter().cloned().partition(|path| is_range(path));
        let mut revisions: Vec<String> = ranges.iter().map(|range| range.to_string_lossy().into_owned()).collect();
        revisions.extend(args.pushed.iter().flatten().cloned());
        let is_part = args.since.is_some() || args.branch.is_some() || !revisions.is_empty();
        if is_part && (args.staged || args.fleet.coordinator.is_some()) {
            return Err("a range of commits is scanned neither with --staged nor by a fleet".into());
        }
        let range = CommitRange { revisions, branch: args.branch.clone(), since: args.since.clone() };
        let piped = match paths.iter().position(|path| path.as_os_str() == "-") {
            Some(_)
                if paths.len() > 1 || args.history || args.staged || is_part || args.fleet.coordinator.is_some() =>
            {
                return Err("standard input (`-`) is scanned alone: leave out other targets, ranges, --history, --staged and fleets".into());
            }
            Some(at) => {
                let piped = Piped::read(&mut io::stdin().lock())?;
                paths[at] = piped.path().to_path_buf();
                Some(piped)
            }
            None => None,
        };
        if paths.is_empty() {
            paths.push(PathBuf::from("."));
        }
        let targets = args.repositories.targets(&paths, scope_of(args, is_part), args.quiet)?;
        Ok(Self { targets, range: is_part.then_some(range), piped })
    }

    /// What a report calls the target, if its path means nothing to the reader.
    fn shown_target(&self, args: &Args) -> Option<PathBuf> {
        self.piped.as_ref().map(|_| PathBuf::from("stdin")).or_else(|| args.shown_as.clone())
    }

    /// Whether there is nothing to go on with later: commits and staged changes differ from one time to the next.
    fn is_for_once(&self, args: &Args) -> bool {
        args.no_resume || args.staged || self.range.is_some() || self.piped.is_some()
    }
}

/// What of its targets is scanned; `is_part` if only some commits are.
fn scope_of(args: &Args, is_part: bool) -> ScanScope {
    match (args.history || is_part, args.staged) {
        (true, _) => ScanScope::History,
        (_, true) => ScanScope::Staged,
        _ => ScanScope::Files,
    }
}

/// Whether a word names commits and no file: `A..B`, `A...B` or `A..`.
fn is_range(word: &Path) -> bool {
    let Some(text) = word.to_str().filter(|_| word.symlink_metadata().is_err()) else { return false };
    let Some((from, to)) = text.split_once("..") else { return false };
    let to = to.strip_prefix('.').unwrap_or(to);
    let is_name = |name: &str| !name.starts_with(['/', '.', '-']) && !name.ends_with('/') && !name.contains("..");
    !from.is_empty() && is_name(from) && is_name(to)
}

/// Scans and reports; `words` were read from the flags.
fn scan_and_write(args: &Args, words: &mut Words) -> Result<ExitStatus, String> {
    if let Some(file) = config::found_beside().filter(|_| args.fleet.config.is_none() && !args.quiet) {
        tell!("settings of {} are used", file.display());
    }
    let rules = rules_for(args, &mut words.targets)?;
    let id_key = args.id_key.as_deref().map_or(Ok([0; 32]), read_id_key)?;
    let suppressions = suppressions(&words.targets.paths, &args.baseline, id_key, words.targets.tolerant)?;
    let request = request_of(args, words, rules, id_key);
    let started = Instant::now();
    let stop = signals::stop_flag()?;
    let mut bar = Bar::new(!args.quiet && io::stderr().is_terminal());
    let mut hint = Hint { place: args.fleet.flags(), is_given: args.quiet, is_attached: args.quiet };
    let is_time_up = |elapsed| args.max_time.is_some_and(|time| elapsed >= time);
    let mut show = |progress: &Progress| {
        if is_time_up(started.elapsed()) {
            stop.store(true, Ordering::Relaxed);
        }
        hint.give_if_due(progress);
        bar.show(progress);
    };
    let mut control = Control { stop: &stop, progress: &mut show };
    let fleet = args.fleet.fleet()?;
    let mut report = match &fleet {
        Some(fleet) => submit(args, &request, fleet, &mut control),
        None => {
            let keeping = keeping_of(args, words)?;
            scan_in_parts(&request, &mut control, |part, control| scan(part, &keeping, control)).map_err(advised)
        }
    }?;
    bar.clear();
    if let Some(said) = told_of(&report).filter(|_| !args.quiet) {
        tell!("{said}");
    }
    if fleet.is_none() && !report.receipt.is_complete() && is_time_up(started.elapsed()) && !args.quiet {
        tell!("stopped by --max-time; {}", after_the_time(words.is_for_once(args)));
    }
    if fleet.is_some() && stop.load(Ordering::Relaxed) && !args.quiet {
        tell!("{}", left_to_the_fleet(&report, &args.fleet.flags()));
    }
    let suppressed = suppressions.apply(&mut report);
    if let (Some(shown), [target]) = (words.shown_target(args), &mut report.targets[..]) {
        target.path = shown;
    }
    report::write(&args.report, &Job::of(&request), &report, suppressed, args.redacted_percent())?;
    Ok(report.exit_status())
}

/// Where a report comes from, if not from a scan by this command alone.
fn told_of(report: &ScanReport) -> Option<String> {
    let run = report.run;
    match &report.origin {
        Origin::Scanned => None,
        Origin::ScannedAnew { because } => {
            Some(format!("the interrupted scan {run} could not go on: {because}; scanned anew"))
        }
        Origin::Resumed(before) if before.same + before.read_again == 0 => {
            Some(format!("continued the interrupted scan {run}"))
        }
        Origin::Resumed(before) => {
            let same = human::count(before.same, "item");
            let again = human::count(before.read_again, "item");
            Some(format!(
                "continued the interrupted scan {run}: {same} read before had not changed, {again} read again"
            ))
        }
        Origin::Known => report.ended.map(|end| {
            format!("nothing has changed since the scan that ended at {}; --fresh scans again", utc(end.at))
        }),
    }
}

/// The note of a submitter that stops: the fleet goes on, and how to see, follow and end the run.
fn left_to_the_fleet(report: &ScanReport, place: &[String]) -> String {
    let run = report.run.to_string();
    let has_begun = report.receipt.tally.enumerated() > 0 || report.receipt.shards.done > 0;
    let state = match has_begun {
        true => format!("the fleet goes on with run {run}"),
        false => format!("run {run} was submitted, and no worker has finished a part of it yet"),
    };
    let (show, cancel) =
        (hint::command(&["runs", "show", &run], place), hint::command(&["runs", "cancel", &run], place));
    format!("{state}; the same command follows it again, {show} shows how far it is, {cancel} ends it")
}

/// The advice for a scan whose time was up.
fn after_the_time(is_for_once: bool) -> &'static str {
    if is_for_once {
        "nothing of it was kept, so it cannot be continued"
    } else {
        "the same command goes on from there"
    }
}

fn submit(
    args: &Args,
    request: &ScanRequest,
    fleet: &fleet::Fleet,
    control: &mut Control<'_>,
) -> Result<ScanReport, String> {
    let following = Following {
        coordinator: fleet.name(),
        findings: fleet.findings()?.to_path_buf(),
        fresh: args.fresh,
        lease_duration: args.lease * 1_000,
        read_again_max: READ_AGAIN_MAX,
    };
    let mut backend = fleet.patient(control.stop)?;
    let followed = scan_in_parts(request, control, |part, control| follow(part, &following, &mut backend, control));
    followed.map_err(|error| match error {
        ScanError::TooManyRuns(_) => {
            format!("{error}: {}", hint::command(&["runs", "retire", "--older-than", "30"], &fleet.flags))
        }
        error => advised(error),
    })
}

/// Why a scan could not be done, and what would do what was meant.
fn advised(error: ScanError) -> String {
    match &error {
        ScanError::NotARepository(path) => advice_for(path).unwrap_or_else(|| error.to_string()),
        _ => error.to_string(),
    }
}

/// Tells a user why nothing moves: there is no worker, or another process does the work.
struct Hint {
    /// The flags that name the fleet.
    place: Vec<String>,
    is_given: bool,
    is_attached: bool,
}

impl Hint {
    fn give_if_due(&mut self, progress: &Progress) {
        if progress.is_waiting && progress.elapsed > Duration::from_secs(3) && !self.is_given {
            self.is_given = true;
            tell!("waiting: no worker has anything in hand; {} starts one", hint::command(&["worker"], &self.place));
        }
        if let Some(other) = progress.attached.filter(|_| !self.is_attached) {
            self.is_attached = true;
            let process = other.pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
            tell!("{process} does this scan already: waiting for its report; if it ends early, this one goes on");
        }
    }
}

fn keeping_of(args: &Args, words: &Words) -> Result<Keeping, String> {
    if words.is_for_once(args) {
        return Ok(Keeping::Nothing);
    }
    Ok(Keeping::In { state_dir: state_dir::of(args.state_dir.as_deref())?, fresh: args.fresh })
}

fn request_of(args: &Args, words: &Words, rules: RunRules, id_key: [u8; 32]) -> ScanRequest {
    let targets = words.targets.clone();
    ScanRequest {
        tenant: args.fleet.tenant(),
        paths: targets.paths,
        scope: scope_of(args, words.range.is_some()),
        range: words.range.clone(),
        options: ReadOptions {
            no_ignore: args.no_ignore,
            read_binary: args.binary,
            archives: args.archives,
            size_max: args.max_file_size,
            include: args.include.clone(),
            exclude: args.exclude.clone(),
        },
        rules,
        detect: tessera_detect::Options { confidence_min: args.confidence, ..tessera_detect::Options::default() },
        workers: args.jobs,
        keep_secrets: args.redacted_percent() < 100,
        id_key,
        tolerant: targets.tolerant,
        left_out: targets.left_out,
    }
}

fn read_id_key(path: &Path) -> Result<[u8; 32], String> {
    let text = small_file::read_named(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    parse_id_key(text.trim())
        .ok_or_else(|| format!("{} must hold 64 hex digits, such as `openssl rand -hex 32` writes", path.display()))
}

fn parse_id_key(text: &str) -> Option<[u8; 32]> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks_exact(2);
    let bytes: Option<Vec<u8>> = pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect();
    (text.len() == 64).then_some(bytes?)?.try_into().ok()
}

/// The rules that were named, for all targets; else those that each target brings, as gitleaks has it, for that target alone.
fn rules_for(args: &Args, targets: &mut Targets) -> Result<RunRules, String> {
    let selection =
        RuleSelection { only: args.rule.clone(), without: args.no_rule.clone(), severity_min: args.severity };
    let selected = |rules: Rules| -> Result<Rules, String> {
        let rules = rules.selected(selection.clone()).map_err(|error| error.to_string())?;
        match rules.set().rules().is_empty() {
            true => Err("no rule is left by --rule, --no-rule and --severity, so that nothing can be found".into()),
            false => Ok(rules),
        }
    };
    if args.rules.is_some() {
        return selected(searching_rules_of(args.rules.as_deref())?).map(RunRules::for_all);
    }
    let mut rules = RunRules::for_all(selected(Rules::builtin())?);
    let mut brought = Vec::new();
    let mut refused = Vec::new();
    for path in &targets.paths {
        let file = path.join(".gitleaks.toml");
        // A path that is not there is told when it is scanned.
        let (true, Ok(target)) = (file.is_file(), path.canonicalize()) else { continue };
        let own = searching_rules_of(Some(&file)).and_then(&selected);
        match own.and_then(|own| rules.add_own(target.clone(), own)) {
            Ok(()) => brought.push((file, target)),
            // With other rules than its own it would be another scan than what was asked for.
            Err(why) if targets.tolerant => refused.push(LeftOut::found(path, why)),
            Err(why) => return Err(why),
        }
    }
    if !args.quiet {
        for (file, target) in brought.iter().take(RULES_TOLD_MAX) {
            // As it was named.
            let (target, file) = (shown(file.parent().unwrap_or(target).display()), shown(file.display()));
            tell!("rules of {file} are used for {target}; --rules builtin for the built-in ones");
        }
        if let Some(more) = brought.len().checked_sub(RULES_TOLD_MAX).filter(|&more| more > 0) {
            tell!("{} more use rules of their own", count(more as u64, "target"));
        }
        refused.iter().for_each(|one| tell!("warning: cannot scan {}: {}", shown(one.path.display()), shown(&one.why)));
    }
    targets.paths.retain(|path| !refused.iter().any(|one| one.path == *path));
    targets.left_out.append(&mut refused);
    if targets.paths.is_empty() {
        return Err("nothing is left to scan".into());
    }
    Ok(rules)
}

/// The rules of a file that can find something. One without a rule, such as an interrupted download leaves it, would make every target clean.
fn searching_rules_of(path: Option<&Path>) -> Result<Rules, String> {
    let rules = rules_of(path)?;
    match path {
        Some(path) if rules.set().rules().is_empty() => Err(format!(
            "{} has no rule, so that nothing can be found; add rules ([[rules]], or useDefault under [extend]), or use --rules builtin",
            path.display()
        )),
        _ => Ok(rules),
    }
}

/// The built-in rules, or those of a gitleaks file.
pub(crate) fn rules_of(path: Option<&Path>) -> Result<Rules, String> {
    let Some(path) = path.filter(|path| *path != Path::new("builtin")) else { return Ok(Rules::builtin()) };
    let rules = Rules::from_gitleaks_file(path)?;
    for warning in rules.set().warnings() {
        tell!("warning: {}: {}", shown(path.display()), shown(warning));
    }
    Ok(rules)
}

/// The suppressions in the ignore files of these paths, each for its own path, and in these baselines.
pub(crate) fn suppressions(
    paths: &[PathBuf],
    baselines: &[PathBuf],
    id_key: [u8; 32],
    tolerant: bool,
) -> Result<Suppressions, String> {
    let mut suppressions = Suppressions::new(id_key);
    for path in paths {
        // A path that is not there is told when it is scanned.
        let Ok(target) = path.canonicalize() else { continue };
        match suppressions.add_ignore_file_of(&target) {
            // Without it more is reported, not less.
            Err(error) if tolerant => tell!("warning: {}", shown(error)),
            added => added.map_err(|error| error.to_string())?,
        }
    }
    for baseline in baselines {
        suppressions.add_baseline(baseline).map_err(|error| error.to_string())?;
    }
    for note in suppressions.notes() {
        tell!("warning: {note}");
    }
    Ok(suppressions)
}

/// The accepted numbers of threads. A file beside the target may set it, and more than a machine can start would end the program.
pub(crate) fn jobs() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(0..=1024)
}

fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size; write a number with k, M or G after it, such as 500k");
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).ok_or_else(wrong)
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; write a number with ms, s, m or h after it, such as 10m");
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let millis = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    let time = number.checked_mul(millis).map(Duration::from_millis).ok_or_else(wrong)?;
    if time.is_zero() { Err("nothing can be done in no time".to_string()) } else { Ok(time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        let seconds = |text| parse_time(text).map(|time| time.as_secs());
        assert_eq!((seconds("90s"), seconds("10m"), seconds("2h")), (Ok(90), Ok(600), Ok(7_200)));
        assert_eq!(parse_time("5ms"), Ok(Duration::from_millis(5)));
        for wrong in ["", "10", "m", "0s", "1d", "-1s", "99999999999999999h"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_key_has_sixty_four_hex_digits() {
        let key = "0a".repeat(32);
        assert_eq!(parse_id_key(&key), Some([10; 32]));
        for wrong in ["", "0a", &key[..62], &format!("{key}00"), &"0g".repeat(32), &"ä".repeat(32)] {
            assert_eq!(parse_id_key(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes_are_read_with_their_unit() {
        assert_eq!((parse_size("12"), parse_size("500k"), parse_size("2GB")), (Ok(12), Ok(500_000), Ok(2_000_000_000)));
        for wrong in ["", "k", "1x", "-1", "99999999999G"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
