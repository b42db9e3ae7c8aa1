//! A report of `tessera scan --format json`, in the terms of the oracle.

use std::collections::BTreeMap;

use serde_json::Value;

use super::command::Ended;

/// One place of a secret. Paths are as a report shows them: bytes that are not UTF-8 are replaced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) target: String,
    pub(crate) path: String,
    /// The blob, for places in a history or an index.
    pub(crate) blob: Option<String>,
    pub(crate) line: u64,
    pub(crate) offset: u64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let blob = self.blob.as_deref().map_or(String::new(), |blob| format!(" (blob {})", &blob[..12]));
        write!(f, "{} {:?} line {} offset {}{blob}", self.target, self.path, self.line, self.offset)
    }
}

/// What `tessera scan` reported.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) code: Option<i32>,
    pub(crate) run: String,
    pub(crate) status: String,
    pub(crate) is_resumed: bool,
    /// Places, with the name of the secret there.
    pub(crate) places: BTreeMap<Place, String>,
    pub(crate) receipt: Receipt,
    /// Places that are listed more than once, and other contradictions.
    pub(crate) contradictions: Vec<String>,
    /// All that a user saw, and the command line.
    pub(crate) shown: String,
    pub(crate) line: String,
    pub(crate) json: Value,
}

/// The account that a report gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) complete: bool,
    pub(crate) enumerated: u64,
    pub(crate) scanned: u64,
    pub(crate) skipped: BTreeMap<String, u64>,
    pub(crate) unreadable: BTreeMap<String, u64>,
}

impl Report {
    pub(crate) fn of(ended: &Ended) -> Result<Self, String> {
        if ended.hung {
            return Err(format!("{} hung\nstderr: {}", ended.line, ended.stderr));
        }
        let json: Value = serde_json::from_slice(&ended.stdout).map_err(|error| {
            format!(
                "{} ended with {:?} and without a report ({error})\nstderr: {}",
                ended.line, ended.code, ended.stderr
            )
        })?;
        let mut report = Self {
            code: ended.code,
            run: text(&json["run"]),
            status: text(&json["status"]),
            is_resumed: json["resumed"] == true,
            places: BTreeMap::new(),
            receipt: Receipt::of(&json["receipt"]),
            contradictions: Vec::new(),
            shown: ended.shown(),
            line: ended.line.clone(),
            json: Value::Null,
        };
        for finding in json["findings"].as_array().ok_or("the report has no list of findings")? {
            report.add(finding);
        }
        let receipt = &report.receipt;
        let sum = receipt.scanned + receipt.skipped.values().sum::<u64>() + receipt.unreadable.values().sum::<u64>();
        if sum != receipt.enumerated {
            report.contradictions.push(format!("the receipt does not add up: {receipt:?}"));
        }
        report.json = json;
        Ok(report)
    }

    fn add(&mut self, finding: &Value) {
        if finding["rule"] != "github-pat" {
            self.contradictions.push(format!("a finding of another rule: {}", finding["rule"]));
        }
        let secret = text(&finding["secret_id"]);
        for at in finding["locations"].as_array().into_iter().flatten() {
            let place = Place {
                target: text(&at["target"]),
                path: text(&at["path"]),
                blob: at["blob"].as_str().map(str::to_owned),
                line: at["start"]["line"].as_u64().unwrap_or(0),
                offset: at["offset"].as_u64().unwrap_or(u64::MAX),
            };
            if let Some(other) = self.places.insert(place.clone(), secret.clone()) {
                self.contradictions.push(format!("listed twice: {place} ({other} and {secret})"));
            }
        }
    }
}

impl Receipt {
    fn of(json: &Value) -> Self {
        let counts = |field: &str| {
            let object = json[field].as_object().cloned().unwrap_or_default();
            object.into_iter().map(|(reason, count)| (reason, count.as_u64().unwrap_or(0))).collect()
        };
        Self {
            complete: json["complete"] == true,
            enumerated: json["enumerated"].as_u64().unwrap_or(0),
            scanned: json["scanned"].as_u64().unwrap_or(0),
            skipped: counts("skipped"),
            unreadable: counts("unreadable"),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
