//! Findings and receipt for people and for machines.
//!
//! The secret is shown only if the run kept it, which only `--show-secrets` makes it do; otherwise every format shows the
//! redacted form.

pub mod csv;
pub mod gitleaks;
pub mod human;
pub mod json;
pub mod sarif;

use std::io::{self, Write};

use tessera_detect::RuleSet;

use crate::finding::{Finding, Location};
use crate::run::ScanReport;
use crate::target::Target;

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Human,
    /// One JSON object.
    Json,
    /// One JSON object a line: findings, then the receipt.
    Jsonl,
    /// SARIF 2.1.0.
    Sarif,
    /// One row for each place.
    Csv,
    /// The JSON that gitleaks writes.
    Gitleaks,
}

/// A report and what is needed to write it.
#[derive(Debug)]
pub struct Written<'r> {
    /// What was found.
    pub report: &'r ScanReport,
    /// What was looked for.
    pub rules: &'r RuleSet,
    /// Places left out because they are known.
    pub suppressed: u64,
    /// Whether a person sees colours.
    pub colours: bool,
}

impl Written<'_> {
    /// Writes it as `format`.
    pub fn write(&self, format: Format, out: &mut dyn Write) -> io::Result<()> {
        match format {
            Format::Human => human::write(self, out),
            Format::Json => json::write(self, out),
            Format::Jsonl => json::write_lines(self, out),
            Format::Sarif => sarif::write(self, out),
            Format::Csv => csv::write(self, out),
            Format::Gitleaks => gitleaks::write(self, out),
        }
    }

    fn target_of(&self, location: &Location) -> Option<&Target> {
        self.report.targets.iter().find(|target| target.number == location.occurrence.target)
    }

    /// The path below the target; the name of the file if the target is one.
    fn path_of(&self, location: &Location) -> String {
        let path = match &location.introduced {
            Some(introduced) => &introduced.path,
            None => &location.occurrence.path,
        };
        if path.is_empty() {
            let name = self.target_of(location).and_then(|target| target.path.file_name());
            return name.unwrap_or_default().to_string_lossy().into_owned();
        }
        String::from_utf8_lossy(path).into_owned()
    }

    fn title_of(&self, finding: &Finding) -> String {
        self.rules.get(&finding.rule).map_or_else(|| finding.rule.clone(), |rule| rule.title.clone())
    }
}

/// The secret, if it was kept, else its redacted form.
fn shown_secret(finding: &Finding) -> String {
    match &finding.exposed {
        Some(exposed) => String::from_utf8_lossy(exposed.secret.expose()).into_owned(),
        None => finding.redacted.clone(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use tessera_contracts::RunId;
    use tessera_coordination::run::progress::ShardCounts;
    use tessera_detect::{Confidence, FindingId, Position, SecretId, Severity};

    use super::*;
    use crate::finding::group;
    use crate::item::{SkipReason, UnreadableReason};
    use crate::occurrence::Occurrence;
    use crate::receipt::Receipt;
    use crate::sink::Merged;
    use crate::sink::record::Note;
    use crate::source::git::attribution::Introductions;
    use crate::target::{ReadOptions, TargetKind};

    /// One secret in two files.
    pub(crate) fn findings() -> Vec<Finding> {
        let occurrence = |path: &str, line: u64| Occurrence {
            id: FindingId([line as u8; 32]),
            secret_id: SecretId([0xab; 32]),
            rule: "github-pat".into(),
            severity: Severity::Critical,
            confidence: Confidence::Confirmed,
            check: "checksum".into(),
            entropy: 4.5,
            target: 0,
            path: path.into(),
            blob: None,
            start: Position { line, column: 7 },
            end: Position { line, column: 47 },
            offset: 8,
            decoded_from: Vec::new(),
            redacted: "ghp_****".into(),
            exposed: None,
        };
        group([occurrence("a.env", 2), occurrence("b/b.env", 1)], &Introductions::default())
    }

    pub(crate) fn report() -> ScanReport {
        let mut merged = Merged::default();
        merged.tally.add_scanned(1_234_567);
        merged.tally.add_skipped(SkipReason::Binary, 2);
        merged.tally.add_unreadable(UnreadableReason::PermissionDenied, 1);
        merged.notes.push(Note { target: 0, path: b"locked".to_vec(), reason: UnreadableReason::PermissionDenied });
        let shards = ShardCounts { done: 1, ..ShardCounts::default() };
        let target = Target {
            number: 0,
            path: PathBuf::from("/srv/app"),
            kind: TargetKind::Tree,
            options: ReadOptions::default(),
        };
        ScanReport {
            run: RunId::new(0xbeef),
            is_resumed: false,
            targets: vec![target],
            findings: findings(),
            receipt: Receipt::new(&merged, shards, Vec::new(), 0),
            elapsed: Duration::from_millis(1_500),
        }
    }

    pub(crate) fn written(format: Format) -> String {
        let report = report();
        let written = Written { report: &report, rules: &RuleSet::builtin(), suppressed: 3, colours: false };
        let mut out = Vec::new();
        written.write(format, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_format_names_every_place_and_shows_no_secret() {
        for format in [Format::Human, Format::Json, Format::Jsonl, Format::Sarif, Format::Csv, Format::Gitleaks] {
            let text = written(format);
            for part in ["a.env", "b/b.env", "github-pat", "ghp_****"] {
                assert!(text.contains(part), "{format:?} lacks {part}: {text}");
            }
        }
    }
}
