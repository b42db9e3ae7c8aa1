//! SARIF 2.1.0, for code-scanning services.
//!
//! Paths are relative to the root of the repository, whichever folder of it was scanned, with the root as `uriBaseId`; so a code host finds
//! the file. `primaryLocationLineHash` is what GitHub compares to tell an alert that it knows from a new one: it is made of the secret
//! and its number in the file, and so it stays when lines move.
//!
//! Rule ids are unique and results refer to them by index, since services refuse a file where they do not fit. Each
//! place is a result of its own; those of one secret share a fingerprint.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Map, Value, json};
use tessera_detect::Severity;

use super::fingerprint::Fingerprints;
use super::plain_json;
use super::view::{FindingView, PlaceView, View};
use crate::clock::calendar::utc;

pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut index_of: BTreeMap<String, usize> = BTreeMap::new();
    let mut prints = Fingerprints::default();
    let mut rules: Vec<Value> = Vec::new();
    let mut results: Vec<Value> = Vec::new();
    for finding in view.findings() {
        let index = *index_of.entry(finding.rule().to_string()).or_insert_with(|| {
            rules.push(rule_value(&finding));
            rules.len() - 1
        });
        for place in finding.places() {
            let number = prints.of(&finding, &place).number;
            results.push(result_value(&finding, &place, index, number));
        }
    }
    let bases: Map<String, Value> = (0..)
        .zip(view.roots())
        .map(|(number, path)| {
            let slash = if path.ends_with(b"/") { "" } else { "/" };
            let base = match path.starts_with(b"/") {
                true => json!({"uri": format!("file://{}{slash}", uri(&path))}),
                false => json!({"description": {"text": "standard input"}}),
            };
            (base_id(number), base)
        })
        .collect();
    let notifications: Vec<Value> = view
        .notes(100)
        .map(|note| {
            let path = match &note.target {
                Some(target) if note.path.as_str().is_empty() => target.to_string(),
                Some(target) => format!("{} in {target}", note.path),
                None => note.path.to_string(),
            };
            let text = format!("{path} was not read: {}", note.reason);
            json!({"level": "warning", "message": {"text": text}})
        })
        .collect();
    let mut value = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "tessera",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "columnKind": "unicodeCodePoints",
            "originalUriBaseIds": bases,
            "invocations": [{
                "executionSuccessful": view.is_complete(),
                "toolExecutionNotifications": notifications,
            }],
            "results": results,
            "properties": {
                "planned": view.plan().planned,
                "planned_not_read": view.planned_not_read(),
                "enumerated": view.tally().enumerated(),
                "scanned": view.tally().scanned,
                "skipped": view.tally().skipped_total(),
                "unreadable": view.tally().unreadable_total(),
            },
        }],
    });
    if let Some(ended) = view.ended() {
        value["runs"][0]["invocations"][0]["endTimeUtc"] = utc(ended.at).into();
    }
    plain_json::write_pretty(&value, out)?;
    writeln!(out)
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical | Severity::High => "error",
        Severity::Medium => "warning",
        Severity::Low => "note",
    }
}

fn rule_value(finding: &FindingView<'_>) -> Value {
    let score = match finding.severity() {
        Severity::Critical => "9.5",
        Severity::High => "8.0",
        Severity::Medium => "5.5",
        Severity::Low => "2.0",
    };
    let title = finding.title();
    json!({
        "id": finding.rule().as_str(),
        "shortDescription": {"text": title.as_str()},
        "fullDescription": {"text": format!("A secret was committed or stored in plain text: {title}")},
        "defaultConfiguration": {"level": level(finding.severity())},
        "properties": {"security-severity": score, "tags": ["security", "secret"]},
    })
}

/// The name of a root. The first one is what code hosts take for the root of the repository.
fn base_id(number: usize) -> String {
    if number == 0 { "%SRCROOT%".into() } else { format!("%SRCROOT{}%", number + 1) }
}

fn result_value(finding: &FindingView<'_>, place: &PlaceView<'_>, index: usize, number: u64) -> Value {
    let (start, end) = (place.start(), place.end());
    let mut text = format!("{}: {}", finding.title(), finding.secret());
    if let Some(commit) = place.commit() {
        text.push_str(&format!(" (commit {}, {}, {})", commit.id(), commit.author(), commit.date()));
    }
    // A region ends after its last character, and one that begins and ends at the same place is empty.
    let end_column = if end.line == start.line { end.column.max(start.column) } else { end.column };
    json!({
        "ruleId": finding.rule().as_str(),
        "ruleIndex": index,
        "level": level(finding.severity()),
        "message": {"text": text},
        "locations": [{"physicalLocation": {
            "artifactLocation": {"uri": uri(&place.path_in_root()), "uriBaseId": base_id(place.root())},
            "region": {
                "startLine": start.line.max(1),
                "startColumn": start.column.max(1),
                "endLine": end.line.max(start.line).max(1),
                "endColumn": end_column.max(1),
            },
        }}],
        "partialFingerprints": {
            "primaryLocationLineHash": format!("{}:{number}", &finding.secret_id().to_string()[..16]),
            "secretId/v1": finding.secret_id().to_string(),
            "findingId/v1": place.id().to_string(),
        },
        "properties": {"confidence": finding.confidence().as_str(), "check": finding.check()},
    })
}

/// A relative reference: what is no plain path character is percent-encoded.
pub(super) fn uri(path: &[u8]) -> String {
    path.iter().fold(String::with_capacity(path.len()), |mut uri, &byte| {
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
    use crate::report::tests::{report, written, written_of};

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
    fn fingerprints_of_one_secret_are_numbered_in_each_file() {
        let mut report = report();
        let mut again = report.findings[0].locations[0].clone();
        again.occurrence.start.line += 10;
        report.findings[0].locations.push(again);
        let value: Value = serde_json::from_str(&written_of(&report, Format::Sarif)).unwrap();
        let results = value["runs"][0]["results"].as_array().unwrap();
        let print = |at: usize| results[at]["partialFingerprints"]["primaryLocationLineHash"].as_str().unwrap();
        assert_eq!([print(0), print(1), print(2)], ["abababababababab:1", "abababababababab:1", "abababababababab:2"]);
        let location = &results[0]["locations"][0]["physicalLocation"]["artifactLocation"];
        assert_eq!(*location, json!({"uri": "a.env", "uriBaseId": "%SRCROOT%"}));
        assert_eq!(value["runs"][0]["originalUriBaseIds"], json!({"%SRCROOT%": {"uri": "file:///srv/app/"}}));
    }

    #[test]
    fn paths_become_references() {
        assert_eq!(uri(b"a b/c#1.txt"), "a%20b/c%231.txt");
        assert_eq!(uri("ä".as_bytes()), "%C3%A4");
        assert_eq!(uri(b"\xff"), "%FF");
    }
}
