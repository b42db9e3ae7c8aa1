//! `tessera rules`: the rules, and why a text is or is not a finding.

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use tessera_detect::{Confidence, Detector, Options, RuleSet, Source};

use super::scan::rules_of;
use crate::tell::{count, print};

/// List, explain and try detection rules
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES
  tessera rules list
  tessera rules explain github-pat
  echo 'token = ...' | tessera rules test -")]
pub(crate) struct Args {
    /// Rules to use instead of the built-in ones, in gitleaks' TOML
    #[arg(long, value_name = "FILE", global = true)]
    rules: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Name every rule with its severity, confidence and title
    List,
    /// Explain a rule
    Explain {
        /// The rule's id
        id: String,
    },
    /// Search one file with all rules, also the unsure ones; the secret is shown redacted
    Test {
        /// The file, or - for standard input
        file: PathBuf,
    },
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = rules_of(args.rules.as_deref()).and_then(|rules| match &args.command {
        Command::List => list(rules.set()),
        Command::Explain { id } => explain(rules.set(), id),
        Command::Test { file } => test(rules.set(), file),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn list(rules: &RuleSet) -> Result<(), String> {
    let mut text = String::new();
    for rule in rules.rules() {
        text.push_str(&format!("{:<32} {:<9} {:<10} {}\n", rule.id, rule.severity, rule.confidence, rule.title));
    }
    print(&text)
}

fn explain(rules: &RuleSet, id: &str) -> Result<(), String> {
    let rule = rules.get(id).ok_or_else(|| format!("there is no rule {id:?}; `tessera rules list` names them all"))?;
    let mut text = format!("{}\n  {}\n", rule.id, rule.title);
    text.push_str(&format!("  severity    {}\n  confidence  {}", rule.severity, rule.confidence));
    if let Some(precision) = rule.confidence.measured_precision() {
        text.push_str(&format!("; {:.0} % of such reports are right on the labelled set", precision * 100.0));
    }
    text.push('\n');
    text.push_str(&format!("  keywords    {}\n  matches     {:?}\n", rule.keywords.join(", "), rule.matching));
    if let Some(path) = &rule.path {
        text.push_str(&format!("  in paths    {path:?}\n"));
    }
    if rule.entropy_min > 0.0 {
        text.push_str(&format!("  entropy     at least {} bits a byte\n", rule.entropy_min));
    }
    if let Some(check) = rule.check {
        text.push_str(&format!("  check       {check}; a failed one means: {}\n", rule.on_failed_check));
    }
    if !rule.source.is_empty() {
        text.push_str(&format!("  source      {}\n", rule.source));
    }
    for required in &rule.required {
        text.push_str(&format!("  needs       {} nearby\n", required.id));
    }
    print(&text)
}

fn test(rules: &RuleSet, file: &PathBuf) -> Result<(), String> {
    let mut content = Vec::new();
    let read = if file.as_os_str() == "-" {
        io::stdin().read_to_end(&mut content).map(drop)
    } else {
        std::fs::read(file).map(|bytes| content = bytes)
    };
    read.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let options = Options { confidence_min: Confidence::Low, ..Options::default() };
    let mut detector = Detector::with_options(rules, options).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let source = Source::path(file.as_os_str().as_encoded_bytes());
    let summary = detector.scan_bytes(source, &content, |finding| {
        text.push_str(&format!(
            "{}:{}  {}  {}, {}, check {}, entropy {:.1}  {}\n",
            finding.start.line,
            finding.start.column,
            finding.rule.id,
            finding.rule.severity,
            finding.confidence,
            finding.outcome,
            finding.entropy,
            finding.secret.redacted()
        ));
    });
    text.push_str(&format!(
        "{}; expressions that matched: {}, allowed: {}, failed their check: {}\n",
        count(summary.findings, "finding"),
        summary.matches,
        summary.allowed,
        summary.failed_checks
    ));
    print(&text)
}
