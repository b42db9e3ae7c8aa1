//! One row for each place, for spreadsheets.

use std::io::{self, Write};

use super::human::steers;
use super::view::{CommitView, View};
use crate::report::redact::Shown;

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

pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    row(out, &COLUMNS.map(str::to_owned))?;
    for finding in view.findings() {
        for place in finding.places() {
            let commit = place.commit();
            let by = |field: fn(&CommitView<'_>) -> Shown| commit.as_ref().map(field).unwrap_or_default().to_string();
            row(
                out,
                &[
                    finding.rule().to_string(),
                    finding.severity().to_string(),
                    finding.confidence().to_string(),
                    finding.secret().to_string(),
                    finding.secret_id().to_string(),
                    place.target().unwrap_or_default().to_string(),
                    place.path().to_string(),
                    place.start().line.to_string(),
                    place.start().column.to_string(),
                    commit.as_ref().map_or("", CommitView::id).to_owned(),
                    by(|commit| commit.author()),
                    by(|commit| commit.email()),
                    by(|commit| commit.date()),
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

/// As RFC 4180 has it. A field that a spreadsheet would run as a formula is made text by a quote mark before it; characters that steer a
/// terminal are replaced, because people look at such files there, too. Lines of a secret stay lines.
fn quoted(field: &str) -> String {
    let harmless = |char: char| if steers(char) && !matches!(char, '\n' | '\r' | '\t') { '\u{fffd}' } else { char };
    let field: String = field.chars().map(harmless).collect();
    let is_formula = field.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let field = if is_formula { format!("'{field}") } else { field };
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
        assert!(rows[1].starts_with("github-pat,critical,checksum-valid,ghp_****,abab"), "{}", rows[1]);
    }

    #[test]
    fn fields_that_would_break_out_are_quoted() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
        assert_eq!(quoted("=cmd()"), "\"'=cmd()\"");
        assert_eq!(quoted("a\x1b[2J\u{202e}b"), "a\u{fffd}[2J\u{fffd}b");
    }
}
