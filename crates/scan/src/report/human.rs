//! What a person reads on a terminal.

use std::io::{self, Write};

use tessera_detect::Severity;

use super::{Written, shown_secret};
use crate::finding::{Finding, Location};
use crate::run::ExitStatus;
use crate::sink::Damage;

/// Places shown of one finding; the rest is counted.
const PLACES_SHOWN: usize = 10;
/// Unreadable things shown by name; the rest is counted.
const NOTES_SHOWN: usize = 10;

pub(super) fn write(written: &Written<'_>, out: &mut dyn Write) -> io::Result<()> {
    let paint = Paint(written.colours);
    for finding in &written.report.findings {
        write_finding(written, finding, &paint, out)?;
    }
    write_receipt(written, &paint, out)
}

fn write_finding(written: &Written<'_>, finding: &Finding, paint: &Paint, out: &mut dyn Write) -> io::Result<()> {
    let severity = match finding.severity {
        Severity::Critical | Severity::High => paint.red(finding.severity.as_str()),
        Severity::Medium => paint.yellow(finding.severity.as_str()),
        Severity::Low => finding.severity.as_str().to_owned(),
    };
    let title = clean(&written.title_of(finding));
    writeln!(out, "{} {}  {severity}, {}", paint.bold(&title), paint.dim(&finding.rule), finding.confidence)?;
    writeln!(out, "  secret  {}  {}", clean(&shown_secret(finding)), paint.dim(&finding.secret_id.to_string()[..16]))?;
    for location in finding.locations.iter().take(PLACES_SHOWN) {
        writeln!(out, "  {}", place(written, location, paint))?;
    }
    if finding.locations.len() > PLACES_SHOWN {
        writeln!(out, "  ... and {} more places", finding.locations.len() - PLACES_SHOWN)?;
    }
    writeln!(out)
}

fn place(written: &Written<'_>, location: &Location, paint: &Paint) -> String {
    let at = &location.occurrence;
    let mut path = written.path_of(location);
    if written.report.targets.len() > 1
        && !at.path.is_empty()
        && let Some(target) = written.target_of(location)
    {
        path = format!("{}/{path}", target.path.display());
    }
    let mut text = paint.cyan(&format!("{}:{}:{}", clean(&path), at.start.line, at.start.column));
    if let Some(introduced) = &location.introduced {
        let (author, date) = (clean(&introduced.author), introduced.date.get(..10).unwrap_or_default());
        text.push_str(&format!("  {} {author} {date}", paint.yellow(introduced.commit.get(..12).unwrap_or_default())));
        text.push_str(&format!("  {}", clean(&introduced.subject)));
    }
    if !at.decoded_from.is_empty() {
        text.push_str(&format!("  (inside {})", at.decoded_from.join(", ")));
    }
    text
}

fn write_receipt(written: &Written<'_>, paint: &Paint, out: &mut dyn Write) -> io::Result<()> {
    let report = written.report;
    let (receipt, tally) = (&report.receipt, &report.receipt.tally);
    let seconds = report.elapsed.as_secs_f64();
    writeln!(
        out,
        "{}  {} items = {} scanned ({}) + {} skipped + {} unreadable, in {seconds:.1} s",
        paint.bold("receipt"),
        tally.enumerated(),
        tally.scanned,
        bytes(tally.scanned_bytes),
        tally.skipped_total(),
        tally.unreadable_total(),
    )?;
    for (reason, count) in &tally.skipped {
        writeln!(out, "  skipped     {count:>8}  {reason}")?;
    }
    for (reason, count) in &tally.unreadable {
        writeln!(out, "  {}  {count:>8}  {reason}", paint.yellow("unreadable"))?;
    }
    for note in receipt.notes.iter().take(NOTES_SHOWN) {
        writeln!(out, "    {}: {}", clean(&String::from_utf8_lossy(&note.path)), note.reason)?;
    }
    if receipt.notes.len() > NOTES_SHOWN {
        writeln!(out, "    ... (all in --format json)")?;
    }
    if written.suppressed > 0 {
        writeln!(out, "  known       {:>8}  places named by a baseline or ignore file", written.suppressed)?;
    }
    if tally.findings_cut > 0 {
        writeln!(out, "  cut         {:>8}  findings of items with too many", tally.findings_cut)?;
    }
    for line in &receipt.parked {
        writeln!(out, "  {}      {line}", paint.yellow("parked"))?;
    }
    if receipt.shards_short > 0 {
        writeln!(out, "  {}        findings of {} shards are missing", paint.red("lost"), receipt.shards_short)?;
    }
    for damage in receipt.damage.iter().filter(|damage| Damage::loses_findings(damage)) {
        writeln!(out, "  {}     {damage}", paint.red("damaged"))?;
    }
    let secrets = report.findings.len();
    let places: usize = report.findings.iter().map(|finding| finding.locations.len()).sum();
    let open = if receipt.is_complete() { "" } else { "; not everything was read" };
    match report.exit_status() {
        ExitStatus::CleanComplete => writeln!(out, "{}", paint.green("clean: everything was read, no secrets found")),
        ExitStatus::Incomplete if receipt.shards.active > 0 => {
            writeln!(
                out,
                "{}",
                paint.yellow("interrupted: no secrets found so far; run the same command again to go on")
            )
        }
        ExitStatus::Incomplete => {
            writeln!(out, "{}", paint.yellow("incomplete: no secrets found, but not everything was read"))
        }
        ExitStatus::Findings | ExitStatus::Error => {
            writeln!(out, "{}", paint.red(&format!("{secrets} secrets in {places} places{open}")))
        }
    }
}

/// What comes from outside must not reach a terminal as anything but text.
fn clean(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

/// A count of bytes for people.
pub fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}

struct Paint(bool);

impl Paint {
    fn with(&self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn bold(&self, text: &str) -> String {
        self.with("1", text)
    }

    fn dim(&self, text: &str) -> String {
        self.with("2", text)
    }

    fn red(&self, text: &str) -> String {
        self.with("31;1", text)
    }

    fn yellow(&self, text: &str) -> String {
        self.with("33", text)
    }

    fn green(&self, text: &str) -> String {
        self.with("32;1", text)
    }

    fn cyan(&self, text: &str) -> String {
        self.with("36", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Format;
    use crate::report::tests::written;

    #[test]
    fn a_person_sees_places_receipt_and_what_was_not_read() {
        let text = written(Format::Human);
        assert!(text.contains("a.env:2:7") && text.contains("4 items = 1 scanned (1.2 MB) + 2 skipped + 1 unreadable"));
        assert!(text.contains("locked: permission denied") && text.contains("not everything was read"), "{text}");
        assert!(!text.contains('\x1b'), "plain when colours are off");
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(clean("a\x1b[31m\nb"), "a\u{fffd}[31m\u{fffd}b");
        assert_eq!((bytes(999), bytes(1_500_000)), ("999 B".into(), "1.5 MB".into()));
    }
}
