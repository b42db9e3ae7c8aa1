//! Findings and receipt for people and for machines.
//!
//! The secret is shown only if the run kept it, which only `--show-secrets` makes it do; otherwise every format shows the
//! redacted form. The same holds for secrets in all other text that comes from scanned content: formats are written from a view that
//! has passed it through the [redactor](crate::report::redact).

pub mod by_target;
pub mod csv;
pub mod finding;
mod fingerprint;
mod github;
mod gitlab;
pub mod gitleaks;
mod html;
pub mod human;
pub mod json;
mod junit;
mod markdown;
mod plain_json;
pub mod receipt;
pub mod redact;
mod root;
pub mod sarif;
pub mod suppress;
mod template;
mod view;
mod xml;

use std::io::{self, Write};

use crate::run::ScanReport;
use crate::run::job::Job;
use view::View;

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
    /// JUnit's XML.
    Junit,
    /// GitLab's report of a secret-detection job.
    GitlabSecretDetection,
    /// GitLab's report of a code-quality job.
    GitlabCodeQuality,
    /// Commands of a GitHub workflow, which annotate lines.
    Github,
    /// A page for a browser.
    Html,
    /// A comment on a pull request.
    Markdown,
}

/// A report and what is needed to write it.
#[derive(Debug)]
pub struct Written<'r> {
    /// What was found.
    pub report: &'r ScanReport,
    /// What was looked for, and whether secrets may be shown.
    pub job: &'r Job,
    /// Places left out because they are known.
    pub suppressed: u64,
    /// Whether a person sees colours.
    pub colours: bool,
    /// How much of each secret is hidden, in per cent, if the run kept secrets; 0 shows them in full.
    pub redacted_percent: u8,
}

impl Written<'_> {
    /// Writes it as `format`.
    pub fn write(&self, format: Format, out: &mut dyn Write) -> io::Result<()> {
        let view = View::of(self);
        match format {
            Format::Human => human::write(&view, out),
            Format::Json => json::write(&view, out),
            Format::Jsonl => json::write_lines(&view, out),
            Format::Sarif => sarif::write(&view, out),
            Format::Csv => csv::write(&view, out),
            Format::Gitleaks => gitleaks::write(&view, out),
            Format::Junit => junit::write(&view, out),
            Format::GitlabSecretDetection => gitlab::write_secrets(&view, out),
            Format::GitlabCodeQuality => gitlab::write_quality(&view, out),
            Format::Github => github::write(&view, out),
            Format::Html => html::write(&view, out),
            Format::Markdown => markdown::write(&view, out),
        }
    }

    /// Writes it as a template says, which is known as `name`.
    pub fn write_template(&self, name: &str, template: &str, out: &mut dyn Write) -> io::Result<()> {
        template::write(&View::of(self), name, template, out)
    }

    /// Writes the accounts of its targets instead, for people or as JSON.
    pub fn write_by_target(&self, as_json: bool, out: &mut dyn Write) -> io::Result<()> {
        let view = View::of(self);
        if as_json { json::write_by_target(&view, out) } else { human::write_by_target(&view, out) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;
    use std::time::Duration;

    use tessera_contracts::RunId;
    use tessera_coordination::run::progress::ShardCounts;
    use tessera_detect::{Confidence, FindingId, Position, SecretId, Severity, template};

    use super::*;
    use crate::findings::occurrence::Occurrence;
    use crate::findings::record::{FileDamage, Note};
    use crate::findings::{Damage, Merged};
    use crate::plan::target::{ReadOptions, Target, TargetKind};
    use crate::read::rules::Rules;
    use crate::report::finding::{Finding, group};
    use crate::report::receipt::Receipt;
    use crate::run::Origin;
    use crate::source::git::attribution::{Attribution, Introductions};
    use crate::source::item::{SkipReason, UnreadableReason};

    pub(crate) fn job(keep_secrets: bool) -> Job {
        Job { rules: vec![Rules::builtin()], detect: tessera_detect::Options::default(), keep_secrets, id_key: [0; 32] }
    }

    /// One secret in two files.
    pub(crate) fn findings() -> Vec<Finding> {
        let occurrence = |path: &str, line: u64| Occurrence {
            id: FindingId([line as u8; 32]),
            secret_id: SecretId([0xab; 32]),
            rule: "github-pat".into(),
            severity: Severity::Critical,
            confidence: Confidence::ChecksumValid,
            check: "checksum".into(),
            entropy: 4.5,
            target: 0,
            path: path.into(),
            item_path_len: path.len() as u32,
            blob: None,
            start: Position { line, column: 7 },
            end: Position { line, column: 47 },
            offset: 8,
            secret_len: 40,
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
            rules: 0,
            options: ReadOptions::default(),
        };
        ScanReport {
            run: RunId::new(0xbeef),
            further_runs: Vec::new(),
            origin: Origin::Scanned,
            ended: None,
            targets: vec![target],
            findings: findings(),
            receipt: Receipt::new(&merged, shards, Vec::new(), 0),
            elapsed: Duration::from_millis(1_500),
        }
    }

    pub(crate) fn written(format: Format) -> String {
        written_of(&report(), format)
    }

    pub(crate) fn written_of(report: &ScanReport, format: Format) -> String {
        let written = Written { report, job: &job(false), suppressed: 3, colours: false, redacted_percent: 0 };
        let mut out = Vec::new();
        written.write(format, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// What a reader sees of Markdown, in which marks are references.
    fn read(text: &str) -> String {
        text.replace("&#95;", "_").replace("&#42;", "*").replace("&#64;", "@")
    }

    #[test]
    fn every_format_names_every_place_and_shows_no_secret() {
        for format in FORMATS {
            let text = read(&written(format));
            for part in ["a.env", "b/b.env", "github-pat", "ghp_****"] {
                assert!(text.contains(part), "{format:?} lacks {part}: {text}");
            }
        }
    }

    const FORMATS: [Format; 12] = [
        Format::Human,
        Format::Json,
        Format::Jsonl,
        Format::Sarif,
        Format::Csv,
        Format::Gitleaks,
        Format::Junit,
        Format::GitlabSecretDetection,
        Format::GitlabCodeQuality,
        Format::Github,
        Format::Html,
        Format::Markdown,
    ];

    /// A report in which all text that can come from scanned content holds a secret, another one for each kind of text.
    fn full_of_secrets() -> (ScanReport, Job, Vec<(&'static str, String)>) {
        let kinds = [
            "path", "target", "author", "email", "date", "subject", "note", "parked", "damage", "plan", "rule",
            "title", "tag",
        ];
        let token = |seed: usize| {
            let token = template::expand("ghp_<<github 30>>", &mut template::Seed::new(seed as u64 + 1));
            token.unwrap()
        };
        let tokens: Vec<(&str, String)> = kinds.iter().enumerate().map(|(i, kind)| (*kind, token(i))).collect();
        let of = |kind: &str| tokens.iter().find(|(known, _)| *known == kind).unwrap().1.clone();
        let mut report = report();
        let rule = format!("x-{}", of("rule"));
        report.targets[0].path = PathBuf::from(format!("/srv/{}", of("target")));
        // A second one, so that people see the target of a place.
        report.targets.push(Target { number: 1, ..report.targets[0].clone() });
        for finding in &mut report.findings {
            finding.rule = rule.clone();
            for location in &mut finding.locations {
                location.occurrence.path = format!("keys/{}.env", of("path")).into_bytes();
                location.introduced = Some(Attribution {
                    commit: "c0ffee".repeat(7),
                    author: format!("Ada {}", of("author")),
                    email: format!("{}@example.org", of("email")),
                    date: format!("2024-01-01T00:00:00Z {}", of("date")),
                    subject: format!("use {} now", of("subject")),
                    order: 1,
                });
            }
        }
        report.receipt.notes[0].path = format!("lost/{}", of("note")).into_bytes();
        report.receipt.parked.push(format!("shard 1: poisoned (cannot read {})", of("parked")));
        let path = PathBuf::from(format!("/findings/{}", of("damage")));
        report.receipt.damage.push(Damage::File { path, damage: FileDamage::NotOurs });
        report.receipt.plan.problem = Some(format!("cannot read {}", of("plan")));
        let text = format!(
            "[[rules]]\nid = '{rule}'\ndescription = 'like {}'\nregex = 'nothing_like_it'\ntags = ['{}']\n",
            of("title"),
            of("tag")
        );
        let own = Rules::from_gitleaks(&text, &mut |_| Err("no".into())).unwrap();
        (report, Job { rules: vec![own], ..job(false) }, tokens)
    }

    /// Marks that turn the direction of text, and ones on which a terminal acts.
    const STEERING: [char; 8] =
        ['\u{202e}', '\u{2066}', '\u{200f}', '\u{61c}', '\u{2028}', '\u{9b}', '\u{7f}', '\u{1b}'];

    /// A report in which all text that can come from scanned content has such marks.
    fn full_of_marks() -> ScanReport {
        let marks: String = STEERING.iter().collect();
        let mut report = report();
        report.targets[0].path = PathBuf::from(format!("/srv/{marks}target"));
        report.targets.push(Target { number: 1, ..report.targets[0].clone() });
        for location in report.findings.iter_mut().flat_map(|finding| &mut finding.locations) {
            location.occurrence.path = format!("\u{e4}{marks}fdp.exe").into_bytes();
            location.introduced = Some(Attribution {
                commit: "c0ffee".repeat(7),
                author: format!("Ada {marks}"),
                email: format!("{marks}@example.org"),
                date: "2024-01-01T00:00:00Z".into(),
                subject: format!("use {marks} now"),
                order: 1,
            });
        }
        report.receipt.notes[0].path = format!("lost/{marks}").into_bytes();
        report.receipt.parked.push(format!("shard 1: poisoned (cannot read {marks})"));
        report.receipt.plan.problem = Some(format!("cannot read {marks}"));
        report
    }

    #[test]
    fn no_format_has_a_mark_that_steers_its_reader() {
        let report = full_of_marks();
        let mut texts: Vec<(String, String)> =
            FORMATS.iter().map(|&format| (format!("{format:?}"), written_of(&report, format))).collect();
        let written = Written { report: &report, job: &job(false), suppressed: 0, colours: false, redacted_percent: 0 };
        let template = "{% for f in findings %}{{ f.locations }}{% for l in f.locations %}{{ l.path }}{% endfor %}{% endfor %}{{ receipt }}";
        let mut rendered = Vec::new();
        written.write_template("t.txt", template, &mut rendered).unwrap();
        texts.push(("template".into(), String::from_utf8(rendered).unwrap()));
        for as_json in [true, false] {
            let mut by_target = Vec::new();
            written.write_by_target(as_json, &mut by_target).unwrap();
            texts.push((format!("by target, as JSON: {as_json}"), String::from_utf8(by_target).unwrap()));
        }
        let steering: Vec<&str> =
            texts.iter().filter(|(_, text)| text.contains(STEERING)).map(|(name, _)| &**name).collect();
        assert_eq!(steering, [""; 0]);
        // A program that reads JSON has the names as they are.
        for format in [Format::Json, Format::Gitleaks, Format::GitlabCodeQuality] {
            let text = written_of(&report, format);
            assert!(text.contains("\\u202e") && text.contains("\\u009b") && text.contains('\u{e4}'), "{text}");
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let path =
                [&value["findings"][0]["locations"][0]["path"], &value[0]["File"], &value[0]["location"]["path"]];
            let path = path.into_iter().find_map(|path| path.as_str()).unwrap();
            assert_eq!(path.as_bytes(), report.findings[0].locations[0].occurrence.path, "{format:?}");
        }
    }

    /// The kinds of text whose secret is in what a format shows.
    fn shown(report: &ScanReport, job: &Job, format: Format, tokens: &[(&'static str, String)]) -> Vec<&'static str> {
        let mut out = Vec::new();
        Written { report, job, suppressed: 0, colours: false, redacted_percent: 0 }.write(format, &mut out).unwrap();
        let text = read(&String::from_utf8(out).unwrap());
        tokens.iter().filter(|(_, token)| text.contains(token)).map(|(kind, _)| *kind).collect()
    }

    #[test]
    fn no_format_shows_a_secret_in_any_text_that_comes_from_scanned_content() {
        let (report, job, tokens) = full_of_secrets();
        let mut all: BTreeSet<&str> = BTreeSet::new();
        for format in FORMATS {
            assert_eq!(shown(&report, &job, format, &tokens), [""; 0], "{format:?}");
            // The same report with secrets that are to be shown: so each of these texts is displayed somewhere.
            all.extend(shown(&report, &Job { keep_secrets: true, ..job.clone() }, format, &tokens));
        }
        assert_eq!(all, tokens.iter().map(|(kind, _)| *kind).collect());
    }
}
