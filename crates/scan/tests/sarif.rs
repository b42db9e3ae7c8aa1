//! SARIF as services read it: the rules of the 2.1.0 schema for every object we write.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::sync::atomic::AtomicBool;

use serde_json::Value;
use tessera_detect::template;
use tessera_scan::report::{Format, Written};
use tessera_scan::run::job::Job;
use tessera_scan::run::request::ScanRequest;
use tessera_scan::run::{Control, Keeping, scan};

/// Fields of an object: those it must have, then those it may have. The schema allows no others.
fn fields(value: &Value, at: &str, required: &[&str], optional: &[&str]) {
    let object = value.as_object().unwrap_or_else(|| panic!("{at} is no object"));
    for field in required {
        assert!(object.contains_key(*field), "{at} lacks {field}");
    }
    for field in object.keys() {
        assert!(
            required.contains(&&**field) || optional.contains(&&**field),
            "{at} has {field}, which SARIF does not know"
        );
    }
}

fn text(value: &Value, at: &str) -> String {
    let text = value.as_str().unwrap_or_else(|| panic!("{at} is no text"));
    assert!(!text.is_empty(), "{at} is empty");
    text.to_owned()
}

fn message(value: &Value, at: &str) {
    fields(value, at, &["text"], &[]);
    text(&value["text"], at);
}

fn level(value: &Value) {
    assert!(["none", "note", "warning", "error"].contains(&value.as_str().unwrap()), "{value}");
}

/// Holds a log to the schema, as far as our writer uses it.
fn check(log: &Value) {
    fields(log, "log", &["version", "runs"], &["$schema"]);
    assert_eq!(log["version"], "2.1.0");
    for run in log["runs"].as_array().unwrap() {
        fields(run, "run", &["tool"], &["columnKind", "originalUriBaseIds", "invocations", "results", "properties"]);
        assert!(["utf16CodeUnits", "unicodeCodePoints"].contains(&run["columnKind"].as_str().unwrap()));
        let driver = &run["tool"]["driver"];
        fields(&run["tool"], "tool", &["driver"], &[]);
        fields(driver, "driver", &["name"], &["version", "informationUri", "rules"]);
        let rules = driver["rules"].as_array().unwrap();
        let mut ids: Vec<String> = rules.iter().map(|rule| text(&rule["id"], "rule.id")).collect();
        for rule in rules {
            // No name: validators refuse one that only repeats the id.
            let optional = ["shortDescription", "fullDescription", "defaultConfiguration", "properties"];
            fields(rule, "rule", &["id"], &optional);
            message(&rule["shortDescription"], "rule.shortDescription");
            message(&rule["fullDescription"], "rule.fullDescription");
            level(&rule["defaultConfiguration"]["level"]);
            let score: f64 = rule["properties"]["security-severity"].as_str().unwrap().parse().unwrap();
            assert!((0.1..=10.0).contains(&score));
        }
        for invocation in run["invocations"].as_array().unwrap() {
            fields(invocation, "invocation", &["executionSuccessful"], &["toolExecutionNotifications"]);
            assert!(invocation["executionSuccessful"].is_boolean());
            for notification in invocation["toolExecutionNotifications"].as_array().unwrap() {
                fields(notification, "notification", &["message"], &["level"]);
                message(&notification["message"], "notification.message");
            }
        }
        for result in run["results"].as_array().unwrap() {
            let optional = ["ruleId", "ruleIndex", "level", "locations", "partialFingerprints", "properties"];
            fields(result, "result", &["message"], &optional);
            message(&result["message"], "result.message");
            level(&result["level"]);
            let index = result["ruleIndex"].as_u64().unwrap() as usize;
            assert_eq!(ids[index], text(&result["ruleId"], "result.ruleId"), "index and id name the same rule");
            for fingerprint in result["partialFingerprints"].as_object().unwrap().values() {
                text(fingerprint, "fingerprint");
            }
            for location in result["locations"].as_array().unwrap() {
                fields(location, "location", &["physicalLocation"], &[]);
                let place = &location["physicalLocation"];
                fields(place, "physicalLocation", &["artifactLocation", "region"], &[]);
                fields(&place["artifactLocation"], "artifactLocation", &["uri", "uriBaseId"], &[]);
                let base = &run["originalUriBaseIds"][text(&place["artifactLocation"]["uriBaseId"], "uriBaseId")];
                let base = text(&base["uri"], "the uri of a root");
                assert!(base.starts_with("file:///") && base.ends_with('/'), "{base}");
                let uri = text(&place["artifactLocation"]["uri"], "uri");
                let is_uri = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%".contains(&byte);
                assert!(uri.bytes().all(is_uri) && !uri.starts_with('/'), "{uri}");
                let region = &place["region"];
                fields(region, "region", &["startLine"], &["startColumn", "endLine", "endColumn"]);
                let [start_line, start, end_line, end] =
                    ["startLine", "startColumn", "endLine", "endColumn"].map(|field| region[field].as_u64().unwrap());
                assert!(start_line >= 1 && start >= 1 && end_line >= start_line && end >= 1, "{region}");
                assert!(end_line > start_line || end > start, "{region} is empty");
            }
        }
        ids.sort();
        let count = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), count, "rule ids are unique");
    }
}

#[test]
fn a_log_of_strange_names_long_lines_and_secrets_of_many_lines_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let token = |seed| template::expand("ghp_<<github 30>>", &mut template::Seed::new(seed)).unwrap();
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    write("pl ain#1.txt", format!("TOKEN={}\n", token(1)));
    write("\u{e4}%.txt", format!("\u{e4}\u{20ac}\u{1f600} TOKEN={}\r\n", token(2)));
    write("again", format!("{} {}\n", token(1), token(2)));
    let key = include_str!("../../../demo/deploy/id_demo");
    write("id", key.to_owned());
    let request = ScanRequest::of_paths(vec![dir.path().to_path_buf()]);
    let stop = AtomicBool::new(false);
    let report = scan(&request, &Keeping::Nothing, &mut Control { stop: &stop, progress: &mut |_| {} }).unwrap();
    let mut out = Vec::new();
    Written { report: &report, job: &Job::of(&request), suppressed: 0, colours: false, redacted_percent: 0 }
        .write(Format::Sarif, &mut out)
        .unwrap();
    let log: Value = serde_json::from_slice(&out).unwrap();
    check(&log);
    let results = log["runs"][0]["results"].as_array().unwrap();
    assert_eq!(results.len(), 5);
    let region_of = |uri: &str| {
        let place = |result: &Value| result["locations"][0]["physicalLocation"].clone();
        let found = results.iter().map(place).find(|place| place["artifactLocation"]["uri"] == uri);
        found.unwrap_or_else(|| panic!("{uri}"))["region"].clone()
    };
    // Columns count characters, as the log says they do: ten of them come before the token, in eighteen bytes.
    let region = region_of("%C3%A4%25.txt");
    assert_eq!((&region["startColumn"], &region["endColumn"]), (&11.into(), &51.into()), "{region}");
    let lines = key.lines().count();
    assert_eq!(region_of("id")["endLine"].as_u64(), Some(lines as u64));
}
