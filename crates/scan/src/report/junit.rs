//! JUnit's XML, for programs that show tests: each place is a test that failed.
//!
//! One more test says whether everything was read; so a clean scan has a test too, which passes, and an incomplete one has an error.

use std::io::{self, Write};

use super::view::{FindingView, PlaceView, View};
use super::xml::escaped;

pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let places: usize = view.findings().map(|finding| finding.places_len()).sum();
    let errors = u64::from(!view.is_complete());
    let counts = format!(
        "tests=\"{}\" failures=\"{places}\" errors=\"{errors}\" time=\"{:.3}\"",
        places + 1,
        view.elapsed().as_secs_f64()
    );
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(out, "<testsuites name=\"tessera\" {counts}>")?;
    writeln!(out, "  <testsuite name=\"secrets\" {counts}>")?;
    for finding in view.findings() {
        for place in finding.places() {
            write_place(&finding, &place, out)?;
        }
    }
    write_completeness(view, out)?;
    writeln!(out, "  </testsuite>\n</testsuites>")
}

fn write_place(finding: &FindingView<'_>, place: &PlaceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (path, line) = (place.plain_path(), place.start().line);
    let (rule, title) = (escaped(finding.rule().as_str()), escaped(finding.title().as_str()));
    let file = escaped(path.as_str());
    let name = format!("{title} at {file}:{line}:{}", place.start().column);
    writeln!(out, "    <testcase name=\"{name}\" classname=\"{rule}\" file=\"{file}\" time=\"0\">")?;
    let secret = escaped(finding.secret().as_str());
    let mut text = format!("{file}:{line}: {title}: {secret}");
    if let Some(commit) = place.commit() {
        text.push_str(&format!("\ncommit {} of {}", commit.id(), escaped(commit.author().as_str())));
    }
    text.push_str(&format!("\nsecret id {}, confidence {}", finding.secret_id(), finding.confidence()));
    writeln!(out, "      <failure message=\"{title}\" type=\"{}\">{text}</failure>", finding.severity())?;
    writeln!(out, "    </testcase>")
}

fn write_completeness(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "    <testcase name=\"everything was read\" classname=\"receipt\" time=\"0\"")?;
    if view.is_complete() {
        return writeln!(out, "/>");
    }
    let tally = view.tally();
    let unreadable = tally.unreadable_total();
    writeln!(out, ">\n      <error message=\"not everything was read\" type=\"incomplete\">{unreadable} unreadable")?;
    for note in view.notes(100) {
        writeln!(out, "{}: {}", escaped(note.path.as_str()), note.reason)?;
    }
    writeln!(out, "      </error>\n    </testcase>")
}

#[cfg(test)]
mod tests {
    use crate::report::Format;
    use crate::report::tests::written;

    #[test]
    fn each_place_fails_and_what_was_not_read_is_an_error() {
        let text = written(Format::Junit);
        assert_eq!(text.matches("<failure ").count(), 2);
        assert!(text.contains("tests=\"3\" failures=\"2\" errors=\"1\" time=\"1.500\""), "{text}");
        assert!(text.contains("classname=\"github-pat\" file=\"a.env\""), "{text}");
        assert!(text.contains("locked: permission denied"), "{text}");
        assert_eq!(text.matches("<testcase ").count(), text.matches("</testcase>").count());
    }
}
