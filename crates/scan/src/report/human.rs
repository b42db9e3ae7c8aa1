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
        let more = (finding.locations.len() - PLACES_SHOWN) as u64;
        writeln!(out, "  ... and {}", count(more, "more place"))?;
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
    // Nobody noted how long a run took that is looked at later.
    let time =
        if report.elapsed.is_zero() { String::new() } else { format!(", in {:.1} s", report.elapsed.as_secs_f64()) };
    writeln!(
        out,
        "{}  {} = {} scanned ({}) + {} skipped + {} unreadable{time}",
        paint.bold("receipt"),
        count(tally.enumerated(), "item"),
        tally.scanned,
        bytes(tally.scanned_bytes),
        tally.skipped_total(),
        tally.unreadable_total(),
    )?;
    for (reason, items) in &tally.skipped {
        writeln!(out, "  skipped     {items:>8}  {reason}")?;
    }
    for (reason, items) in &tally.unreadable {
        writeln!(out, "  {}  {items:>8}  {reason}", paint.yellow("unreadable"))?;
    }
    for note in receipt.notes.iter().take(NOTES_SHOWN) {
        writeln!(out, "    {}: {}", clean(&String::from_utf8_lossy(&note.path)), note.reason)?;
    }
    if receipt.notes.len() > NOTES_SHOWN {
        writeln!(out, "    ... (all in --format json)")?;
    }
    if written.suppressed > 0 {
        let places = plural(written.suppressed, "place");
        writeln!(out, "  known       {:>8}  {places} named by a baseline or ignore file", written.suppressed)?;
    }
    if tally.findings_cut > 0 {
        let findings = plural(tally.findings_cut, "finding");
        writeln!(out, "  cut         {:>8}  {findings} of items with too many", tally.findings_cut)?;
    }
    for line in &receipt.parked {
        writeln!(out, "  {}      {line}", paint.yellow("parked"))?;
    }
    if receipt.shards_short > 0 {
        let shards = count(receipt.shards_short, "shard");
        writeln!(out, "  {}        findings of {shards} are missing", paint.red("lost"))?;
    }
    for damage in receipt.damage.iter().filter(|damage| Damage::loses_findings(damage)) {
        writeln!(out, "  {}     {damage}", paint.red("damaged"))?;
    }
    let secrets = report.findings.len();
    let places: usize = report.findings.iter().map(|finding| finding.locations.len()).sum();
    let open = if receipt.is_complete() { "" } else { "; not everything was read" };
    match report.exit_status() {
        ExitStatus::CleanComplete => writeln!(out, "{}", paint.green(&clean_verdict(tally.skipped_total()))),
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
            let (secrets, places) = (count(secrets as u64, "secret"), count(places as u64, "place"));
            writeln!(out, "{}", paint.red(&format!("{secrets} in {places}{open}")))
        }
    }
}

/// What was skipped on purpose does not make a scan incomplete, but it was not read, and is not called clean.
fn clean_verdict(skipped: u64) -> String {
    match skipped {
        0 => "clean: everything was read, no secrets found".to_owned(),
        1 => "clean: no secrets found in what was read; 1 item was skipped".to_owned(),
        many => format!("clean: no secrets found in what was read; {many} items were skipped"),
    }
}

/// What comes from outside must not reach a terminal as anything but text, and not as more than one line of it.
pub fn clean(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

/// So many of a thing, in words: one has no `s`.
pub fn count(number: u64, thing: &str) -> String {
    format!("{number} {}", plural(number, thing))
}

fn plural(number: u64, thing: &str) -> String {
    format!("{thing}{}", if number == 1 { "" } else { "s" })
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
    use tessera_coordination::run::progress::ShardCounts;
    use tessera_detect::RuleSet;

    use super::*;
    use crate::receipt::Receipt;
    use crate::report::Format;
    use crate::report::tests::{report, written};
    use crate::sink::Merged;

    #[test]
    fn what_was_skipped_is_not_called_read() {
        let ends = [0, 1, 2].map(clean_verdict);
        assert!(ends.iter().all(|end| end.starts_with("clean: ")), "{ends:?}");
        assert_eq!(ends.map(|end| end.contains("everything was read")), [true, false, false]);
    }

    #[test]
    fn a_person_sees_places_receipt_and_what_was_not_read() {
        let text = written(Format::Human);
        assert!(text.contains("a.env:2:7") && text.contains("4 items = 1 scanned (1.2 MB) + 2 skipped + 1 unreadable"));
        assert!(text.contains("locked: permission denied") && text.contains("not everything was read"), "{text}");
        assert!(!text.contains('\x1b'), "plain when colours are off");
    }

    #[test]
    fn one_is_not_told_as_many() {
        let told = |places: usize, items: u64, suppressed: u64, cut: u64| {
            let mut report = report();
            report.findings[0].locations.truncate(places);
            let mut merged = Merged::default();
            (0..items).for_each(|_| merged.tally.add_scanned(1));
            merged.tally.findings_cut = cut;
            report.receipt = Receipt::new(&merged, ShardCounts::default(), Vec::new(), cut);
            let written = Written { report: &report, rules: &RuleSet::builtin(), suppressed, colours: false };
            let mut out = Vec::new();
            written.write(Format::Human, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let (one, two) = (told(1, 1, 1, 1), told(2, 2, 2, 2));
        for (of_one, of_two) in [
            ("receipt  1 item = 1 scanned", "receipt  2 items = 2 scanned"),
            ("1  place named by a baseline", "2  places named by a baseline"),
            ("1  finding of items with too many", "2  findings of items with too many"),
            ("findings of 1 shard are missing", "findings of 2 shards are missing"),
            ("\n1 secret in 1 place;", "\n1 secret in 2 places;"),
        ] {
            assert!(one.contains(of_one), "{of_one}: {one}");
            assert!(two.contains(of_two), "{of_two}: {two}");
        }
        assert_eq!(count(0, "place"), "0 places");
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(clean("a\x1b[31m\nb"), "a\u{fffd}[31m\u{fffd}b");
        assert_eq!((bytes(999), bytes(1_500_000)), ("999 B".into(), "1.5 MB".into()));
    }
}
