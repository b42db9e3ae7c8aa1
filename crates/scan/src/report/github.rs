//! Commands that a step of a GitHub workflow prints, so that findings stand beside the lines of a pull request.

use std::io::{self, Write};

use tessera_detect::Severity;

use super::human::clean;
use super::view::View;

pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    for finding in view.findings() {
        let level = match finding.severity() {
            Severity::Critical | Severity::High => "error",
            Severity::Medium => "warning",
            Severity::Low => "notice",
        };
        for place in finding.places() {
            let (start, end) = (place.start(), place.end());
            let mut message = format!("{} ({})", finding.secret(), finding.rule());
            if let Some(commit) = place.commit() {
                message.push_str(&format!(", in commit {}", commit.id()));
            }
            let columns = match end.line == start.line {
                // GitHub takes columns for places on one line alone.
                true => format!(",col={},endColumn={}", start.column.max(1), end.column.max(1)),
                false => String::new(),
            };
            let (file, title) = (property(place.plain_path().as_str()), property(finding.title().as_str()));
            let (first, last) = (start.line.max(1), end.line.max(start.line).max(1));
            let place = format!("file={file},line={first},endLine={last}{columns},title={title}");
            writeln!(out, "::{level} {place}::{}", data(&message))?;
        }
    }
    if !view.is_complete() {
        let unreadable = view.tally().unreadable_total();
        writeln!(out, "::warning title=tessera::not everything was read: {unreadable} unreadable")?;
    }
    Ok(())
}

/// The message of a command: it ends with the line.
fn data(text: &str) -> String {
    clean(&text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A"))
}

/// A property of a command: it also ends with a comma or colon.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Format;
    use crate::report::tests::written;

    #[test]
    fn each_place_is_a_command_on_one_line() {
        let text = written(Format::Github);
        let lines: Vec<&str> = text.lines().collect();
        let expected = "::error file=a.env,line=2,endLine=2,col=7,endColumn=47,title=";
        assert!(lines[0].starts_with(expected) && lines[0].contains("::ghp_**** (github-pat)"), "{text}");
        assert_eq!(lines.len(), 3);
        assert!(lines[2].starts_with("::warning title=tessera::"), "{text}");
    }

    #[test]
    fn no_name_is_a_command_of_its_own() {
        assert_eq!(property("a,b:c\n::error::x%"), "a%2Cb%3Ac%0A%3A%3Aerror%3A%3Ax%25");
        assert_eq!(data("a\n::stop\x1b[2J"), "a%0A::stop\u{fffd}[2J");
    }
}
