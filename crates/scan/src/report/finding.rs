//! One secret and all the places it was found in.
//!
//! Scanners that report each occurrence bury their reader: the same token in forty commits is one secret to revoke. So
//! occurrences are grouped by rule and secret. Nothing is hidden by that; each place is listed.

use std::collections::BTreeMap;

use tessera_detect::{Confidence, SecretId, Severity};

use crate::findings::occurrence::{Exposed, Occurrence};
use crate::source::git::attribution::{Attribution, Introductions};

/// One secret, found by one rule.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The rule.
    pub rule: String,
    /// Names the secret.
    pub secret_id: SecretId,
    /// How bad a leak is.
    pub severity: Severity,
    /// The surest of its occurrences.
    pub confidence: Confidence,
    /// What the offline check said.
    pub check: String,
    /// Shannon entropy of the secret.
    pub entropy: f32,
    /// The secret as reports show it.
    pub redacted: String,
    /// The secret, if the run keeps secrets.
    pub exposed: Option<Exposed>,
    /// Where it is: at least one place.
    pub locations: Vec<Location>,
}

/// One place of a secret.
#[derive(Debug, Clone)]
pub struct Location {
    /// The occurrence there.
    pub occurrence: Occurrence,
    /// Who brought it in, for places in a history.
    pub introduced: Option<Attribution>,
}

impl Finding {
    /// The place to name first: the earliest commit, or the first path.
    pub fn first(&self) -> &Location {
        &self.locations[0]
    }
}

/// Groups occurrences into findings, in an order that depends on nothing but them.
pub fn group(occurrences: impl IntoIterator<Item = Occurrence>, introductions: &Introductions) -> Vec<Finding> {
    let mut by_secret: BTreeMap<(String, [u8; 32]), Vec<Location>> = BTreeMap::new();
    for occurrence in occurrences {
        let introduced = introductions.of(&occurrence).cloned();
        let key = (occurrence.rule.clone(), occurrence.secret_id.0);
        by_secret.entry(key).or_default().push(Location { occurrence, introduced });
    }
    of_secrets(by_secret)
}

/// Groups the findings of two reports as if they were one.
pub fn group_again(findings: impl IntoIterator<Item = Finding>) -> Vec<Finding> {
    let mut by_secret: BTreeMap<(String, [u8; 32]), Vec<Location>> = BTreeMap::new();
    for mut finding in findings {
        by_secret.entry((finding.rule, finding.secret_id.0)).or_default().append(&mut finding.locations);
    }
    of_secrets(by_secret)
}

fn of_secrets(by_secret: BTreeMap<(String, [u8; 32]), Vec<Location>>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = by_secret
        .into_values()
        .map(|mut locations| {
            locations.sort_by(|a, b| place_of(a).cmp(&place_of(b)));
            let surest = locations.iter().map(|location| location.occurrence.confidence).max();
            let first = &locations[0].occurrence;
            Finding {
                rule: first.rule.clone(),
                secret_id: first.secret_id,
                severity: first.severity,
                confidence: surest.unwrap_or(first.confidence),
                check: first.check.clone(),
                entropy: first.entropy,
                redacted: first.redacted.clone(),
                exposed: first.exposed.clone(),
                locations,
            }
        })
        .collect();
    findings
        .sort_by(|a, b| (place_of(a.first()), &a.rule, a.secret_id).cmp(&(place_of(b.first()), &b.rule, b.secret_id)));
    findings
}

/// Where a location sorts: places in files first, by path; then places in a history, by age.
fn place_of(location: &Location) -> impl Ord + '_ {
    let occurrence = &location.occurrence;
    let age = location.introduced.as_ref().map(|introduced| introduced.order);
    (
        occurrence.target,
        occurrence.blob.is_some(),
        age.unwrap_or(u64::MAX),
        &occurrence.path,
        &occurrence.blob,
        occurrence.start,
        occurrence.offset,
        occurrence.id,
    )
}
