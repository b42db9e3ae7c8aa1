//! The JSON that gitleaks writes: an entry for each place, with its field names.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::plain_json;
use super::view::{CommitView, View};
use crate::report::redact::Shown;

pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut entries: Vec<Value> = Vec::new();
    for finding in view.findings() {
        for place in finding.places() {
            let (start, end, commit) = (place.start(), place.end(), place.commit());
            let by = |field: fn(&CommitView<'_>) -> Shown| commit.as_ref().map(field).unwrap_or_default().to_string();
            entries.push(json!({
                "RuleID": finding.rule().as_str(),
                "Description": finding.title().as_str(),
                "StartLine": start.line,
                "EndLine": end.line,
                "StartColumn": start.column,
                "EndColumn": end.column.saturating_sub(1).max(1),
                "Match": finding.matched().as_str(),
                "Secret": finding.secret().as_str(),
                // Not gitleaks' own: by it a later scan compares a secret that is not shown.
                "SecretID": finding.secret_id().to_string(),
                "File": place.plain_path().as_str(),
                "SymlinkFile": "",
                "Commit": commit.as_ref().map_or("", CommitView::id),
                "Entropy": finding.entropy(),
                "Author": by(|commit| commit.author()),
                "Email": by(|commit| commit.email()),
                "Date": by(|commit| commit.date()),
                "Message": by(|commit| commit.subject()),
                "Tags": finding.tags().iter().map(Shown::as_str).collect::<Vec<_>>(),
                "Fingerprint": place.fingerprint().as_str(),
            }));
        }
    }
    plain_json::write_pretty(&entries.into(), out)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Format;
    use crate::report::tests::written;

    #[test]
    fn each_place_is_an_entry_with_the_fingerprint_gitleaks_would_give() {
        let entries: Vec<Value> = serde_json::from_str(&written(Format::Gitleaks)).unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0]["Fingerprint"], "a.env:github-pat:2");
        assert_eq!((&entries[0]["Secret"], &entries[0]["StartColumn"]), (&json!("ghp_****"), &json!(7)));
    }
}
