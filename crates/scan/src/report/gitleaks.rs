//! The JSON that gitleaks writes: an entry for each place, with its field names.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Written, shown_secret};
use crate::suppress::fingerprint;

pub(super) fn write(written: &Written<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut entries: Vec<Value> = Vec::new();
    for finding in &written.report.findings {
        let rule = written.rules.get(&finding.rule);
        for location in &finding.locations {
            let at = &location.occurrence;
            let introduced = location.introduced.as_ref();
            let matched = match &finding.exposed {
                Some(exposed) => String::from_utf8_lossy(exposed.matched.expose()).into_owned(),
                None => finding.redacted.clone(),
            };
            entries.push(json!({
                "RuleID": finding.rule,
                "Description": written.title_of(finding),
                "StartLine": at.start.line,
                "EndLine": at.end.line,
                "StartColumn": at.start.column,
                "EndColumn": at.end.column.saturating_sub(1).max(1),
                "Match": matched,
                "Secret": shown_secret(finding),
                "File": written.path_of(location),
                "SymlinkFile": "",
                "Commit": introduced.map_or("", |introduced| &introduced.commit),
                "Entropy": finding.entropy,
                "Author": introduced.map_or("", |introduced| &introduced.author),
                "Email": introduced.map_or("", |introduced| &introduced.email),
                "Date": introduced.map_or("", |introduced| &introduced.date),
                "Message": introduced.map_or("", |introduced| &introduced.subject),
                "Tags": rule.map_or(&[][..], |rule| &rule.tags),
                "Fingerprint": fingerprint(&finding.rule, location),
            }));
        }
    }
    serde_json::to_writer_pretty(&mut *out, &entries)?;
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
