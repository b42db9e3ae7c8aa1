//! SARIF 2.1.0, for code-scanning services.
//!
//! Rule ids are unique and results refer to them by index, since services refuse a file where they do not fit. Each
//! place is a result of its own; those of one secret share a fingerprint.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Value, json};
use tessera_detect::Severity;

use super::{Written, shown_secret};
use crate::finding::{Finding, Location};

pub(super) fn write(written: &Written<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut index_of: BTreeMap<&str, usize> = BTreeMap::new();
    let mut rules: Vec<Value> = Vec::new();
    let mut results: Vec<Value> = Vec::new();
    for finding in &written.report.findings {
        let index = *index_of.entry(&finding.rule).or_insert_with(|| {
            rules.push(rule_value(written, finding));
            rules.len() - 1
        });
        for location in &finding.locations {
            results.push(result_value(written, finding, location, index));
        }
    }
    let receipt = &written.report.receipt;
    let notifications: Vec<Value> = receipt
        .notes
        .iter()
        .take(100)
        .map(|note| {
            let text = format!("{} was not read: {}", String::from_utf8_lossy(&note.path), note.reason);
            json!({"level": "warning", "message": {"text": text}})
        })
        .collect();
    let value = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "tessera",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "columnKind": "unicodeCodePoints",
            "invocations": [{
                "executionSuccessful": receipt.is_complete(),
                "toolExecutionNotifications": notifications,
            }],
            "results": results,
            "properties": {
                "enumerated": receipt.tally.enumerated(),
                "scanned": receipt.tally.scanned,
                "skipped": receipt.tally.skipped_total(),
                "unreadable": receipt.tally.unreadable_total(),
            },
        }],
    });
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical | Severity::High => "error",
        Severity::Medium => "warning",
        Severity::Low => "note",
    }
}

fn rule_value(written: &Written<'_>, finding: &Finding) -> Value {
    let score = match finding.severity {
        Severity::Critical => "9.5",
        Severity::High => "8.0",
        Severity::Medium => "5.5",
        Severity::Low => "2.0",
    };
    let title = written.title_of(finding);
    json!({
        "id": finding.rule,
        "shortDescription": {"text": title},
        "fullDescription": {"text": format!("A secret was committed or stored in plain text: {title}")},
        "defaultConfiguration": {"level": level(finding.severity)},
        "properties": {"security-severity": score, "tags": ["security", "secret"]},
    })
}

fn result_value(written: &Written<'_>, finding: &Finding, location: &Location, index: usize) -> Value {
    let at = &location.occurrence;
    let mut text = format!("{}: {}", written.title_of(finding), shown_secret(finding));
    if let Some(introduced) = &location.introduced {
        text.push_str(&format!(" (commit {}, {}, {})", introduced.commit, introduced.author, introduced.date));
    }
    // A region ends after its last character, and one that begins and ends at the same place is empty.
    let end_column = if at.end.line == at.start.line { at.end.column.max(at.start.column) } else { at.end.column };
    json!({
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": level(finding.severity),
        "message": {"text": text},
        "locations": [{"physicalLocation": {
            "artifactLocation": {"uri": uri(&written.path_of(location))},
            "region": {
                "startLine": at.start.line.max(1),
                "startColumn": at.start.column.max(1),
                "endLine": at.end.line.max(at.start.line).max(1),
                "endColumn": end_column.max(1),
            },
        }}],
        "partialFingerprints": {
            "secretId/v1": finding.secret_id.to_string(),
            "findingId/v1": at.id.to_string(),
        },
        "properties": {"confidence": finding.confidence.as_str(), "check": finding.check},
    })
}

/// A relative reference: what is no plain path character is percent-encoded.
fn uri(path: &str) -> String {
    path.bytes().fold(String::with_capacity(path.len()), |mut uri, byte| {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
        uri
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Format;
    use crate::report::tests::written;

    #[test]
    fn results_refer_to_rules_that_are_there_once() {
        let value: Value = serde_json::from_str(&written(Format::Sarif)).unwrap();
        let run = &value["runs"][0];
        assert_eq!(value["version"], "2.1.0");
        assert_eq!(run["tool"]["driver"]["rules"].as_array().unwrap().len(), 1);
        let results = run["results"].as_array().unwrap();
        assert_eq!(results.len(), 2);
        for result in results {
            assert_eq!((&result["ruleIndex"], &result["level"]), (&json!(0), &json!("error")));
            let region = &result["locations"][0]["physicalLocation"]["region"];
            assert!(region["endColumn"].as_u64() > region["startColumn"].as_u64());
        }
        assert_eq!(run["invocations"][0]["executionSuccessful"], false);
    }

    #[test]
    fn paths_become_references() {
        assert_eq!(uri("a b/c#1.txt"), "a%20b/c%231.txt");
        assert_eq!(uri("ä"), "%C3%A4");
    }
}
