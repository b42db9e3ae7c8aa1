//! What GitLab reads: the report of a secret-detection job (version 15 of its schema), and the one of a code-quality job.

use std::io::{self, Write};

use serde_json::{Value, json};
use tessera_contracts::LogicalTime;
use tessera_detect::Severity;

use super::fingerprint::Fingerprints;
use super::plain_json;
use super::view::{FindingView, PlaceView, View};
use crate::clock::calendar::utc;
use crate::clock::wall_clock;

/// The version of the schema that is kept to.
const SCHEMA: &str = "15.0.1";
/// What GitLab's own scanner writes for a file that is in no commit.
const NO_COMMIT: &str = "0000000";
/// Characters of a name that the schema allows.
const NAME_MAX: usize = 255;

/// `gl-secret-detection-report.json`.
pub(super) fn write_secrets(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut prints = Fingerprints::default();
    let mut vulnerabilities: Vec<Value> = Vec::new();
    for finding in view.findings() {
        for place in finding.places() {
            let id = prints.of(&finding, &place).uuid();
            vulnerabilities.push(vulnerability(&finding, &place, &id));
        }
    }
    let end = view.ended().map_or_else(wall_clock, |ended| ended.at);
    let start = LogicalTime::new(end.get().saturating_sub(view.elapsed().as_millis() as u64));
    let messages: Vec<Value> = view
        .notes(100)
        .map(|note| json!({"level": "warn", "value": format!("{} was not read: {}", note.path, note.reason)}))
        .collect();
    let program = json!({
        "id": "tessera", "name": "Tessera", "version": env!("CARGO_PKG_VERSION"), "vendor": {"name": "Tessera"},
    });
    let value = json!({
        "version": SCHEMA,
        "scan": {
            "analyzer": program,
            "scanner": program,
            "type": "secret_detection",
            "start_time": time(start),
            "end_time": time(end),
            "status": if view.is_complete() { "success" } else { "failure" },
            "messages": messages,
        },
        "vulnerabilities": vulnerabilities,
    });
    plain_json::write_pretty(&value, out)?;
    writeln!(out)
}

/// The schema has no letter for the time zone.
fn time(at: LogicalTime) -> String {
    utc(at).trim_end_matches('Z').to_owned()
}

fn vulnerability(finding: &FindingView<'_>, place: &PlaceView<'_>, id: &str) -> Value {
    let (rule, title) = (finding.rule(), finding.title());
    let severity = match finding.severity() {
        Severity::Critical => "Critical",
        Severity::High => "High",
        Severity::Medium => "Medium",
        Severity::Low => "Low",
    };
    let commit = match place.commit() {
        Some(commit) => json!({
            "sha": commit.id(),
            "author": commit.author().as_str(),
            "date": commit.date().as_str(),
            "message": commit.subject().as_str(),
        }),
        None => json!({"sha": NO_COMMIT}),
    };
    let short: String = title.as_str().chars().take(NAME_MAX).collect();
    json!({
        "id": id,
        "category": "secret_detection",
        "name": short,
        "description": format!("{title}: {}. Remove it, and revoke it where it was issued.", finding.secret()),
        "severity": severity,
        "raw_source_code_extract": finding.secret().as_str(),
        "identifiers": [{"type": "tessera_rule_id", "name": format!("Tessera rule {rule}"), "value": rule.as_str()}],
        "location": {
            "file": place.plain_path().as_str(),
            "commit": commit,
            "start_line": place.start().line.max(1),
            "end_line": place.end().line.max(place.start().line).max(1),
        },
    })
}

/// `gl-code-quality-report.json`.
pub(super) fn write_quality(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut prints = Fingerprints::default();
    let mut issues: Vec<Value> = Vec::new();
    for finding in view.findings() {
        for place in finding.places() {
            let severity = match finding.severity() {
                Severity::Critical => "blocker",
                Severity::High => "critical",
                Severity::Medium => "major",
                Severity::Low => "minor",
            };
            issues.push(json!({
                "description": format!("{}: {}", finding.title(), finding.secret()),
                "check_name": finding.rule().as_str(),
                "fingerprint": prints.of(&finding, &place).hex(),
                "severity": severity,
                "location": {"path": place.plain_path().as_str(), "lines": {"begin": place.start().line.max(1)}},
            }));
        }
    }
    plain_json::write_pretty(&issues.into(), out)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Format;
    use crate::report::tests::{report, written, written_of};

    /// What version 15 of the schema requires, read from it by hand.
    #[test]
    fn a_report_of_secrets_has_what_the_schema_requires() {
        let value: Value = serde_json::from_str(&written(Format::GitlabSecretDetection)).unwrap();
        let required = |value: &Value, fields: &[&str]| {
            for field in fields {
                let text = value[field].as_str().unwrap_or_else(|| panic!("{field} of {value}"));
                assert!(!text.is_empty(), "{field}");
            }
        };
        required(&value, &["version"]);
        let scan = &value["scan"];
        required(scan, &["start_time", "end_time"]);
        for time in ["start_time", "end_time"] {
            let digits: String =
                scan[time].as_str().unwrap().chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
            assert_eq!(digits, "0000-00-00T00:00:00");
        }
        assert_eq!((&scan["type"], &scan["status"]), (&json!("secret_detection"), &json!("failure")));
        for program in [&scan["analyzer"], &scan["scanner"]] {
            required(program, &["id", "name", "version"]);
            required(&program["vendor"], &["name"]);
        }
        for message in scan["messages"].as_array().unwrap() {
            required(message, &["level", "value"]);
        }
        let found = value["vulnerabilities"].as_array().unwrap();
        assert_eq!(found.len(), 2);
        for one in found {
            required(one, &["id", "name", "severity"]);
            required(&one["identifiers"][0], &["type", "name", "value"]);
            required(&one["location"]["commit"], &["sha"]);
            assert!(one["location"]["start_line"].as_u64() <= one["location"]["end_line"].as_u64());
        }
    }

    #[test]
    fn issues_are_told_apart_and_known_again_when_lines_move() {
        let fingerprints = |text: &str| -> Vec<String> {
            let issues: Vec<Value> = serde_json::from_str(text).unwrap();
            issues.iter().map(|issue| issue["fingerprint"].as_str().unwrap().to_owned()).collect()
        };
        let before = fingerprints(&written(Format::GitlabCodeQuality));
        assert_eq!((before.len(), before[0] == before[1]), (2, false));
        let mut moved = report();
        for location in &mut moved.findings[0].locations {
            location.occurrence.start.line += 9;
        }
        assert_eq!(fingerprints(&written_of(&moved, Format::GitlabCodeQuality)), before);
        let ids = |format| {
            let value: Value = serde_json::from_str(&written(format)).unwrap();
            value["vulnerabilities"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect::<Vec<_>>()
        };
        let ids = ids(Format::GitlabSecretDetection);
        assert_ne!(ids[0], ids[1]);
    }
}
