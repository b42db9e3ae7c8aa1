//! `tessera scan PATH…`: look for leaked secrets, and say what was and was not read.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tessera_detect::{Confidence, RuleSet, gitleaks};
use tessera_scan::report::{Format, Written};
use tessera_scan::run::{Control, ExitStatus, Keeping, ScanReport, ScanRequest, ScanScope, scan};
use tessera_scan::suppress::Suppressions;
use tessera_scan::target::ReadOptions;

use crate::progress::Bar;
use crate::state_dir;

/// Look for leaked secrets in directories, files and git histories
///
/// Ends with a receipt: items enumerated = scanned + skipped (why) + unreadable (why). An interrupted scan is
/// continued by the same command.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES
  tessera scan                              the directory you are in
  tessera scan --history .                  every version of every file that any branch or tag leads to
  tessera scan --staged                     what is staged, for a pre-commit hook
  tessera scan --format sarif -o out.sarif  for a code-scanning service
  tessera scan --format json > known.json; tessera scan --baseline known.json

EXIT CODES
  0  everything was read and no secret found
  1  secrets found
  2  the scan could not be done
  3  no secret found, but not everything was read")]
pub(crate) struct Args {
    /// What to scan; the current directory if nothing is given
    paths: Vec<PathBuf>,

    /// Scan every blob that any ref of the repository leads to, each once
    #[arg(long, conflicts_with = "staged")]
    history: bool,

    /// Scan what is staged for the next commit
    #[arg(long)]
    staged: bool,

    /// How to write the report
    #[arg(long, value_enum, default_value_t = FormatName::Human)]
    format: FormatName,

    /// Write the report to a file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Show secrets in full; without this they are not even stored
    #[arg(long)]
    show_secrets: bool,

    /// Rules to use instead of the built-in ones, in gitleaks' TOML
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,

    /// Report findings of at least this confidence: low, medium, high or confirmed
    #[arg(long, default_value = "medium", value_name = "LEVEL")]
    confidence: Confidence,

    /// Leave out what an earlier report (tessera's or gitleaks' JSON) names
    #[arg(long, value_name = "FILE")]
    baseline: Vec<PathBuf>,

    /// Read also what .gitignore files name
    #[arg(long)]
    no_ignore: bool,

    /// Read also binary files
    #[arg(long)]
    binary: bool,

    /// Only files that match (`*.env`, `src/**`); may be given more than once
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,

    /// No file or directory that matches; may be given more than once
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,

    /// Leave out larger files (such as 500k, 20M, 1G)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_file_size: Option<u64>,

    /// Worker threads; one a core by default
    #[arg(short, long, default_value_t = 0, hide_default_value = true, value_name = "N")]
    jobs: usize,

    /// Begin anew, even if an interrupted scan could be continued
    #[arg(long)]
    fresh: bool,

    /// Keep nothing on disk: the scan cannot be continued
    #[arg(long, conflicts_with = "fresh")]
    no_resume: bool,

    /// Where runs are kept
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// No progress bar
    #[arg(short, long)]
    quiet: bool,

    /// When to use colours
    #[arg(long, value_enum, default_value_t = Colour::Auto)]
    color: Colour,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum FormatName {
    Human,
    Json,
    Jsonl,
    Sarif,
    Csv,
    Gitleaks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Colour {
    Auto,
    Always,
    Never,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match scan_and_write(args) {
        Ok(status) => ExitCode::from(status as u8),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(ExitStatus::Error as u8)
        }
    }
}

fn scan_and_write(args: &Args) -> Result<ExitStatus, String> {
    let rules = rules_of(args.rules.as_deref())?;
    let suppressions = suppressions_of(args)?;
    let request = request_of(args, rules)?;
    let stop = stop_on_signals()?;
    let shows_bar = !args.quiet && io::stderr().is_terminal();
    let mut bar = Bar::new(shows_bar);
    let mut report = scan(&request, &mut Control { stop: &stop, progress: &mut |progress| bar.show(progress) })
        .map_err(|e| e.to_string())?;
    bar.clear();
    let suppressed = suppressions.apply(&mut report.findings);
    if report.is_resumed && !args.quiet {
        eprintln!("continued the interrupted scan {:016x}", report.run.get());
    }
    write_report(args, &request.rules, &report, suppressed)?;
    Ok(report.exit_status())
}

fn request_of(args: &Args, rules: RuleSet) -> Result<ScanRequest, String> {
    let scope = match (args.history, args.staged) {
        (true, _) => ScanScope::History,
        (_, true) => ScanScope::Staged,
        _ => ScanScope::Files,
    };
    // What is staged changes from one commit to the next: there is nothing to continue.
    let keeping = if args.no_resume || args.staged {
        Keeping::Nothing
    } else {
        Keeping::In { state_dir: state_dir::of(args.state_dir.as_deref())?, fresh: args.fresh }
    };
    Ok(ScanRequest {
        paths: args.paths.clone(),
        scope,
        options: ReadOptions {
            no_ignore: args.no_ignore,
            read_binary: args.binary,
            size_max: args.max_file_size,
            include: args.include.clone(),
            exclude: args.exclude.clone(),
        },
        rules,
        detect: tessera_detect::Options { confidence_min: args.confidence, ..tessera_detect::Options::default() },
        workers: args.jobs,
        keep_secrets: args.show_secrets,
        id_key: [0; 32],
        keeping,
    })
}

/// The built-in rules, or those of a gitleaks file.
pub(crate) fn rules_of(path: Option<&Path>) -> Result<RuleSet, String> {
    let Some(path) = path else { return Ok(RuleSet::builtin()) };
    let read =
        |path: &Path| std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()));
    let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
    let rules = gitleaks::read(&read(path)?, &mut |extended| read(&folder.join(extended)));
    let rules = rules.map_err(|error| format!("{}: {error}", path.display()))?;
    for warning in rules.warnings() {
        eprintln!("warning: {}: {warning}", path.display());
    }
    Ok(rules)
}

fn suppressions_of(args: &Args) -> Result<Suppressions, String> {
    let mut suppressions = Suppressions::default();
    let here = [PathBuf::from(".")];
    let paths = if args.paths.is_empty() { &here[..] } else { &args.paths };
    for path in paths {
        suppressions.add_ignore_file(&path.join(".gitleaksignore")).or_else(|error| {
            // A single file has no ignore file below it.
            if path.is_file() { Ok(()) } else { Err(error.to_string()) }
        })?;
    }
    for baseline in &args.baseline {
        suppressions.add_baseline(baseline).map_err(|error| error.to_string())?;
    }
    Ok(suppressions)
}

/// The first signal lets workers hand back what they hold; a second one ends the program as usual.
fn stop_on_signals() -> Result<Arc<AtomicBool>, String> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)));
        registered.map_err(|error| format!("cannot listen for signals: {error}"))?;
    }
    Ok(stop)
}

fn write_report(args: &Args, rules: &RuleSet, report: &ScanReport, suppressed: u64) -> Result<(), String> {
    let format = match args.format {
        FormatName::Human => Format::Human,
        FormatName::Json => Format::Json,
        FormatName::Jsonl => Format::Jsonl,
        FormatName::Sarif => Format::Sarif,
        FormatName::Csv => Format::Csv,
        FormatName::Gitleaks => Format::Gitleaks,
    };
    let colours = match args.color {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => {
            args.output.is_none()
                && io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        }
    };
    let written = Written { report, rules, suppressed, colours };
    let result = match &args.output {
        Some(path) => File::create(path).and_then(|file| {
            let mut out = BufWriter::new(file);
            written.write(format, &mut out)?;
            out.flush()
        }),
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            written.write(format, &mut out).and_then(|()| out.flush())
        }
    };
    match result {
        // A reader that closes early (`| head`) has seen what it wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => {
            let place = args.output.as_ref().map_or("standard output".into(), |path| path.display().to_string());
            Err(format!("cannot write the report to {place}: {error}"))
        }
        Ok(()) => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_unit() {
        assert_eq!((parse_size("12"), parse_size("500k"), parse_size("2GB")), (Ok(12), Ok(500_000), Ok(2_000_000_000)));
        for wrong in ["", "k", "1x", "-1", "99999999999G"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
