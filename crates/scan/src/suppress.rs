//! What is known and not to be reported again.
//!
//! `.gitleaksignore` names places by fingerprint, one a line: `file:rule:line`, or `commit:file:rule:line` in a history.
//! A baseline is an earlier report, ours or gitleaks'. Ours names secrets by their id and not by line, so it stays
//! valid when code moves, and the same works in an ignore file: a line with a secret's id.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use crate::finding::{Finding, Location};
use crate::small_file;

/// Known places and secrets.
#[derive(Debug, Default, Clone)]
pub struct Suppressions {
    fingerprints: HashSet<String>,
    secrets: HashSet<String>,
}

/// Why a list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SuppressError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is no report.
    #[error("{path} is no report of tessera or gitleaks in JSON: {reason}")]
    Baseline {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
}

impl Suppressions {
    /// Adds the lines of an ignore file, if there is one.
    pub fn add_ignore_file(&mut self, path: &Path) -> Result<(), SuppressError> {
        match small_file::read_found(path) {
            Ok(text) => {
                self.add_lines(&text);
                Ok(())
            }
            // What is no folder has none in it.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
            Err(source) => Err(SuppressError::Io { path: path.display().to_string(), source }),
        }
    }

    /// Adds the lines of an ignore file.
    pub fn add_lines(&mut self, text: &str) {
        for line in text.lines() {
            let line = line.split(" #").next().unwrap_or_default().trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line.len() == 64 && line.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                self.secrets.insert(line.to_ascii_lowercase());
            } else {
                self.fingerprints.insert(line.to_owned());
            }
        }
    }

    /// Adds everything an earlier report names.
    pub fn add_baseline(&mut self, path: &Path) -> Result<(), SuppressError> {
        let name = path.display().to_string();
        let text = std::fs::read(path).map_err(|source| SuppressError::Io { path: name.clone(), source })?;
        self.add_report(&text).map_err(|reason| SuppressError::Baseline { path: name, reason })
    }

    fn add_report(&mut self, text: &[u8]) -> Result<(), String> {
        let report: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let text_of = |entry: &Value, field: &str| entry.get(field).and_then(Value::as_str).map(str::to_owned);
        if let Some(findings) = report.get("findings").and_then(Value::as_array) {
            for finding in findings {
                self.secrets.insert(text_of(finding, "secret_id").ok_or("a finding has no secret_id")?);
            }
            return Ok(());
        }
        for finding in report.as_array().ok_or("neither a list nor an object with findings")? {
            self.fingerprints.insert(text_of(finding, "Fingerprint").ok_or("a finding has no Fingerprint")?);
        }
        Ok(())
    }

    /// Leaves out what is known; returns how many places that were.
    pub fn apply(&self, findings: &mut Vec<Finding>) -> u64 {
        let mut known = 0;
        findings.retain_mut(|finding| {
            let is_known_secret = self.secrets.contains(&finding.secret_id.to_string());
            let rule = finding.rule.clone();
            finding.locations.retain(|location| {
                let keep = !is_known_secret && !self.fingerprints.contains(&fingerprint(&rule, location));
                known += u64::from(!keep);
                keep
            });
            !finding.locations.is_empty()
        });
        known
    }
}

/// A place as gitleaks names it.
pub fn fingerprint(rule: &str, location: &Location) -> String {
    let occurrence = &location.occurrence;
    match &location.introduced {
        Some(introduced) => {
            let file = String::from_utf8_lossy(&introduced.path);
            format!("{}:{file}:{rule}:{}", introduced.commit, occurrence.start.line)
        }
        None => format!("{}:{rule}:{}", String::from_utf8_lossy(&occurrence.path), occurrence.start.line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::findings;

    #[test]
    fn a_fingerprint_silences_one_place_and_a_secret_id_all_of_them() {
        let mut suppressions = Suppressions::default();
        suppressions.add_lines("# known\n\na.env:github-pat:2   # test key\n");
        let mut left = findings();
        assert_eq!((suppressions.apply(&mut left), left.len(), left[0].locations.len()), (1, 1, 1));
        let mut suppressions = Suppressions::default();
        suppressions.add_lines(&findings()[0].secret_id.to_string().to_uppercase());
        let mut left = findings();
        assert_eq!((suppressions.apply(&mut left), left.len()), (2, 0));
    }

    #[test]
    fn baselines_of_both_kinds_are_read_and_others_refused() {
        let mut ours = Suppressions::default();
        let id = findings()[0].secret_id;
        ours.add_report(format!(r#"{{"findings": [{{"secret_id": "{id}"}}]}}"#).as_bytes()).unwrap();
        assert_eq!(ours.apply(&mut findings()), 2);
        let mut theirs = Suppressions::default();
        theirs.add_report(br#"[{"Fingerprint": "b/b.env:github-pat:1"}]"#).unwrap();
        assert_eq!(theirs.apply(&mut findings()), 1);
        for bad in [&b"{}"[..], b"[{}]", b"nonsense", br#"{"findings": [{}]}"#] {
            assert!(Suppressions::default().add_report(bad).is_err());
        }
    }
}
