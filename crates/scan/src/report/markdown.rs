//! Markdown, for a comment on a pull request.

use std::io::{self, Write};

use super::human::{clean, count};
use super::view::{FindingView, PlaceView, View};
use crate::run::ExitStatus;

/// Places that are listed; the rest is counted. A comment of GitHub or GitLab holds no more than some hundred rows.
const ROWS_MAX: usize = 200;

pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let places: usize = view.findings().map(|finding| finding.places_len()).sum();
    let found = || {
        let (secrets, places) = (count(view.findings_len() as u64, "secret"), count(places as u64, "place"));
        format!("{secrets} at {places}")
    };
    let verdict = match view.exit_status() {
        ExitStatus::CleanComplete => "no secrets found".to_owned(),
        ExitStatus::Findings => found(),
        ExitStatus::Error | ExitStatus::Incomplete => "no secrets found, but not everything was read".to_owned(),
    };
    writeln!(out, "### Tessera: {verdict}\n")?;
    if places > 0 {
        writeln!(out, "| severity | secret | rule | place |\n| --- | --- | --- | --- |")?;
        let findings: Vec<FindingView<'_>> = view.findings().collect();
        let rows = findings.iter().flat_map(|finding| finding.places().map(move |place| (finding, place)));
        for (finding, place) in rows.take(ROWS_MAX) {
            write_row(finding, &place, out)?;
        }
        if places > ROWS_MAX {
            writeln!(out, "\n... and {}.", count((places - ROWS_MAX) as u64, "more place"))?;
        }
        writeln!(
            out,
            "\nRevoke each secret where it was issued; removing the line does not take it out of the history.\n"
        )?;
    }
    let tally = view.tally();
    writeln!(
        out,
        "{} = {} scanned + {} skipped + {} unreadable.",
        count(tally.enumerated(), "item"),
        tally.scanned,
        tally.skipped_total(),
        tally.unreadable_total()
    )?;
    if !view.is_complete() && places > 0 {
        writeln!(out, "Not everything was read.")?;
    }
    Ok(())
}

fn write_row(finding: &FindingView<'_>, place: &PlaceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    let at = format!("{}:{}", place.plain_path(), place.start().line);
    let mut at = code(&at);
    if let Some(commit) = place.commit() {
        at.push_str(&format!(" in {}", commit.id().get(..12).unwrap_or_default()));
    }
    let (title, secret) = (text(finding.title().as_str()), code(finding.secret().as_str()));
    writeln!(out, "| {} | {title} {secret} | {} | {at} |", finding.severity(), code(finding.rule().as_str()))
}

/// Text in a cell, in which nothing is markup.
fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in clean(text).chars() {
        if char.is_ascii_punctuation() && !matches!(char, '.' | ',' | '/' | '-' | ':') {
            // As a reference: a backslash would not keep a name from being a mention or a link.
            out.push_str(&format!("&#{};", u32::from(char)));
        } else {
            out.push(char);
        }
    }
    out
}

/// Text in a cell as it is: HTML, since a bar ends a cell even in code.
fn code(plain: &str) -> String {
    format!("<code>{}</code>", text(plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Format;
    use crate::report::tests::written;

    #[test]
    fn each_place_is_a_row_and_nothing_in_it_is_markup() {
        let told = written(Format::Markdown);
        assert!(told.starts_with("### Tessera: 1 secret at 2 places\n"), "{told}");
        assert!(told.contains("<code>a.env:2</code> |\n"), "{told}");
        assert_eq!(code("a|b`c\n@you"), "<code>a&#124;b&#96;c\u{fffd}&#64;you</code>");
    }
}
