//! A report against the truth: places, secrets, receipt and exit code.

use std::collections::{BTreeMap, BTreeSet};

use super::cases::Outcome;
use super::report::{Place, Report};

/// Differences that are written out; further ones are counted.
const SHOWN_MAX: usize = 6;

/// The findings and counts that a scan must report.
#[derive(Debug, Clone, Default)]
pub(crate) struct Truth {
    /// Places, with the token there.
    pub(crate) places: BTreeMap<Place, String>,
    /// Blobs that no path leads to: their places are listed under any path.
    pub(crate) pathless: BTreeSet<(String, String)>,
    /// Items that are read, where the oracle knows their number.
    pub(crate) scanned: Option<u64>,
    /// Items that are left out, for the reasons that the oracle counts.
    pub(crate) skipped: BTreeMap<&'static str, u64>,
    /// Items that cannot be read, by reason. A scan of these is incomplete.
    pub(crate) unreadable: BTreeMap<&'static str, u64>,
}

impl Truth {
    /// The truth about both.
    pub(crate) fn join(&mut self, other: Self) {
        self.places.extend(other.places);
        self.pathless.extend(other.pathless);
        self.scanned = self.scanned.zip(other.scanned).map(|(ours, theirs)| ours + theirs);
        for (reason, count) in other.skipped {
            *self.skipped.entry(reason).or_default() += count;
        }
        for (reason, count) in other.unreadable {
            *self.unreadable.entry(reason).or_default() += count;
        }
    }

    /// An oracle that counts what it joins.
    pub(crate) fn counted() -> Self {
        Self { scanned: Some(0), ..Self::default() }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.unreadable.is_empty()
    }
}

/// Whether `report` says the truth and nothing else.
pub(crate) fn compare(report: &Report, truth: &Truth) -> Outcome {
    let mut problems = report.contradictions.clone();
    compare_places(report, truth, &mut problems);
    compare_secrets(report, truth, &mut problems);
    compare_receipt(report, truth, &mut problems);
    ended(report, problems)
}

/// Whether `report` lists the true places; its receipt is not compared.
pub(crate) fn compare_findings(report: &Report, truth: &Truth) -> Outcome {
    let mut problems = report.contradictions.clone();
    compare_places(report, truth, &mut problems);
    compare_secrets(report, truth, &mut problems);
    ended(report, problems)
}

fn ended(report: &Report, problems: Vec<String>) -> Outcome {
    if problems.is_empty() {
        return Ok(());
    }
    let receipt = &report.receipt;
    Err(format!("{}\n  exit {:?}, {receipt:?}\n  {}", report.line, report.code, problems.join("\n  ")))
}

fn compare_places(report: &Report, truth: &Truth, problems: &mut Vec<String>) {
    let is_pathless = |place: &Place| {
        let blob = place.blob.clone().unwrap_or_default();
        truth.pathless.contains(&(place.target.clone(), blob))
    };
    let without_path = |place: &Place| Place { path: String::new(), ..place.clone() };
    let told = |places: &BTreeMap<Place, String>| -> BTreeSet<Place> {
        places.keys().map(|place| if is_pathless(place) { without_path(place) } else { place.clone() }).collect()
    };
    let (expected, listed) = (told(&truth.places), told(&report.places));
    differ("missing", expected.difference(&listed), problems);
    differ("listed but not true", listed.difference(&expected), problems);
}

fn differ<'p>(what: &str, places: impl Iterator<Item = &'p Place>, problems: &mut Vec<String>) {
    let places: Vec<String> = places.map(ToString::to_string).collect();
    if places.is_empty() {
        return;
    }
    let shown = places.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join("\n    ");
    problems.push(format!("{} places {what}:\n    {shown}", places.len()));
}

/// One name for each secret, and one secret for each name. No secret is shown.
fn compare_secrets(report: &Report, truth: &Truth, problems: &mut Vec<String>) {
    let (mut names, mut tokens) = (BTreeMap::new(), BTreeMap::new());
    for (place, token) in &truth.places {
        let Some(name) = report.places.get(place) else { continue };
        if *names.entry(token).or_insert(name) != name {
            problems.push(format!("one secret has two names; the second at {place}"));
        }
        if *tokens.entry(name).or_insert(token) != token {
            problems.push(format!("two secrets have one name; the second at {place}"));
        }
    }
    let all: BTreeSet<&String> = truth.places.values().collect();
    if all.into_iter().any(|token| report.shown.contains(token.as_str())) {
        problems.push("a secret is shown in full".into());
    }
}

fn compare_receipt(report: &Report, truth: &Truth, problems: &mut Vec<String>) {
    let receipt = &report.receipt;
    if let Some(scanned) = truth.scanned
        && receipt.scanned != scanned
    {
        problems.push(format!("{} items were scanned, and there are {scanned}", receipt.scanned));
    }
    for (reason, count) in &truth.skipped {
        let said = receipt.skipped.get(*reason).copied().unwrap_or(0);
        if said != *count {
            problems.push(format!("{said} items are skipped as {reason:?}, and there are {count}"));
        }
    }
    let unreadable: BTreeMap<&str, u64> =
        receipt.unreadable.iter().map(|(reason, &count)| (&reason[..], count)).collect();
    if unreadable != truth.unreadable {
        problems.push(format!("unreadable are {:?}, and the report says {unreadable:?}", truth.unreadable));
    }
    if receipt.complete != truth.is_complete() {
        problems.push(format!("complete is {}, and must be {}", receipt.complete, truth.is_complete()));
    }
    let code = match (truth.places.is_empty(), truth.is_complete()) {
        (false, _) => 1,
        (true, true) => 0,
        (true, false) => 3,
    };
    let status = ["clean", "findings", "error", "incomplete"][code as usize];
    if report.code != Some(code) || report.status != status {
        problems.push(format!("exit code {:?} ({}), and it must be {code} ({status})", report.code, report.status));
    }
}
