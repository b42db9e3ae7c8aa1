//! One row for each place, for spreadsheets.

use std::io::{self, Write};

use super::{Written, shown_secret};

const COLUMNS: [&str; 13] = [
    "rule",
    "severity",
    "confidence",
    "secret",
    "secret_id",
    "target",
    "path",
    "line",
    "column",
    "commit",
    "author",
    "email",
    "date",
];

pub(super) fn write(written: &Written<'_>, out: &mut dyn Write) -> io::Result<()> {
    row(out, &COLUMNS.map(str::to_owned))?;
    for finding in &written.report.findings {
        for location in &finding.locations {
            let target = written.target_of(location).map(|target| target.path.to_string_lossy().into_owned());
            let by = |field: fn(&crate::source::git::attribution::Attribution) -> &String| {
                location.introduced.as_ref().map(field).cloned().unwrap_or_default()
            };
            row(
                out,
                &[
                    finding.rule.clone(),
                    finding.severity.to_string(),
                    finding.confidence.to_string(),
                    shown_secret(finding),
                    finding.secret_id.to_string(),
                    target.unwrap_or_default(),
                    written.path_of(location),
                    location.occurrence.start.line.to_string(),
                    location.occurrence.start.column.to_string(),
                    by(|introduced| &introduced.commit),
                    by(|introduced| &introduced.author),
                    by(|introduced| &introduced.email),
                    by(|introduced| &introduced.date),
                ],
            )?;
        }
    }
    Ok(())
}

fn row(out: &mut dyn Write, fields: &[String; COLUMNS.len()]) -> io::Result<()> {
    for (i, field) in fields.iter().enumerate() {
        if i > 0 {
            write!(out, ",")?;
        }
        write!(out, "{}", quoted(field))?;
    }
    write!(out, "\r\n")
}

/// As RFC 4180 has it. A field that a spreadsheet would run as a formula is made text by a quote mark before it.
fn quoted(field: &str) -> String {
    let is_formula = field.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let field = if is_formula { format!("'{field}") } else { field.to_owned() };
    if is_formula || field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Format;
    use crate::report::tests::written;

    #[test]
    fn each_place_is_a_row() {
        let text = written(Format::Csv);
        let rows: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(rows.len(), 4, "header, two places, and the end");
        assert!(rows[1].starts_with("github-pat,critical,confirmed,ghp_****,abab"), "{}", rows[1]);
    }

    #[test]
    fn fields_that_would_break_out_are_quoted() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
        assert_eq!(quoted("=cmd()"), "\"'=cmd()\"");
    }
}
