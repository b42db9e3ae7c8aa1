//! What a person reads on a terminal.

use std::io::{self, Write};

use tessera_detect::Severity;

use super::by_target::Outcome;
use super::view::{FindingView, NoteView, PlaceView, TargetRow, View};
use crate::clock::calendar::utc;
use crate::report::redact::Shown;
use crate::run::ExitStatus;

/// Places shown of one finding; the rest is counted.
const PLACES_SHOWN: usize = 10;
/// Unreadable things shown by name; the rest is counted.
const NOTES_SHOWN: usize = 10;
/// Targets shown with their numbers; the rest is counted.
const TARGETS_SHOWN: usize = 50;
/// Targets shown by name that were not scanned at all; the rest is counted.
const LEFT_OUT_SHOWN: usize = 100;

pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let paint = Paint(view.colours());
    for finding in view.findings() {
        write_finding(view, &finding, &paint, out)?;
    }
    if view.has_many_targets() {
        write_notable_targets(view, &paint, out)?;
    }
    write_receipt(view, &paint, out)
}

/// All targets with their numbers, and those that were left out.
pub(super) fn write_by_target(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let paint = Paint(view.colours());
    write_rows(&view.target_rows().iter().collect::<Vec<_>>(), &paint, out)?;
    write_left_out(view, &paint, usize::MAX, out)
}

/// Of many targets, those with secrets or with something unread.
fn write_notable_targets(view: &View<'_>, paint: &Paint, out: &mut dyn Write) -> io::Result<()> {
    let rows = view.target_rows();
    let mut notable: Vec<_> = rows.iter().filter(|row| row.is_notable()).collect();
    let clean = rows.len() - notable.len();
    let hidden = notable.len().saturating_sub(TARGETS_SHOWN);
    notable.truncate(TARGETS_SHOWN);
    if !notable.is_empty() {
        write_rows(&notable, paint, out)?;
        if hidden > 0 {
            writeln!(out, "  ... and {hidden} more (all in --format json)")?;
        }
        if clean > 0 {
            writeln!(out, "  and {} without a secret, read completely", count(clean as u64, "target"))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_rows(rows: &[&TargetRow], paint: &Paint, out: &mut dyn Write) -> io::Result<()> {
    let header = format!(
        "{:<10}  {:>5}  {:>8}  {:>9}  {:>7}  {:>6}  target",
        "outcome", "refs", "items", "bytes", "secrets", "places"
    );
    writeln!(out, "{}", paint.bold(&header))?;
    for row in rows {
        let account = &row.account;
        let outcome = format!("{:<10}", account.outcome().as_str());
        let outcome = if account.outcome() == Outcome::Complete { outcome } else { paint.yellow(&outcome) };
        let refs = account.heads.map_or_else(|| "-".to_owned(), |heads| heads.refs.to_string());
        let (items, read) = (account.tally.enumerated(), bytes(account.tally.scanned_bytes));
        let reason = match row.reason() {
            reason if reason.is_empty() => reason,
            reason => format!("  ({reason})"),
        };
        let path = line(&row.path);
        writeln!(
            out,
            "{outcome}  {refs:>5}  {items:>8}  {read:>9}  {:>7}  {:>6}  {path}{reason}",
            row.secrets, row.places
        )?;
    }
    Ok(())
}

/// Text for a terminal.
fn line(shown: &Shown) -> String {
    clean(shown.as_str())
}

fn write_finding(view: &View<'_>, finding: &FindingView<'_>, paint: &Paint, out: &mut dyn Write) -> io::Result<()> {
    let word = finding.severity().as_str();
    let severity = match finding.severity() {
        Severity::Critical | Severity::High => paint.red(word),
        Severity::Medium => paint.yellow(word),
        Severity::Low => word.to_owned(),
    };
    writeln!(out, "{}", paint.bold(&line(&finding.title())))?;
    writeln!(out, "  rule    {}  severity {severity}  confidence {}", line(&finding.rule()), finding.confidence())?;
    let id = finding.secret_id().to_string();
    writeln!(out, "  secret  {}  id {}", line(&finding.secret()), paint.dim(&id[..16]))?;
    for place in finding.places().take(PLACES_SHOWN) {
        writeln!(out, "  place   {}", place_line(view, &place, paint))?;
    }
    if finding.places_len() > PLACES_SHOWN {
        let more = (finding.places_len() - PLACES_SHOWN) as u64;
        writeln!(out, "          ... and {}", count(more, "more place"))?;
    }
    writeln!(out)
}

/// Where something lies that was not read: below its target if there are several, and the target if it is a file.
fn note_path(view: &View<'_>, note: &NoteView) -> String {
    let path = line(&note.path);
    match &note.target {
        Some(target) if path.is_empty() => line(target),
        Some(target) if view.has_many_targets() => format!("{}/{path}", line(target)),
        _ => path,
    }
}

fn place_line(view: &View<'_>, place: &PlaceView<'_>, paint: &Paint) -> String {
    let mut path = line(&place.path());
    if let Some(target) = place.target().filter(|_| view.has_many_targets()) {
        path = if place.is_target() { line(&target) } else { format!("{}/{path}", line(&target)) };
    }
    let mut text = paint.cyan(&format!("{path}:{}:{}", place.start().line, place.start().column));
    if let Some(commit) = place.commit() {
        let (author, date) = (line(&commit.author()), line(&commit.date()));
        let (id, date) = (commit.id().get(..12).unwrap_or_default(), date.get(..10).unwrap_or_default());
        text.push_str(&format!("  {} {author} {date}  {}", paint.yellow(id), line(&commit.subject())));
    }
    if !place.decoded_from().is_empty() {
        text.push_str(&format!("  (inside {})", place.decoded_from().join(", ")));
    }
    text
}

fn write_receipt(view: &View<'_>, paint: &Paint, out: &mut dyn Write) -> io::Result<()> {
    let (tally, elapsed) = (view.tally(), view.elapsed());
    // Nobody noted how long a run took that is looked at later.
    let time = if elapsed.is_zero() { String::new() } else { format!(", in {:.1} s", elapsed.as_secs_f64()) };
    if let Some(ended) = view.ended() {
        writeln!(out, "{}      {} ended at {} ({})", paint.bold("run"), view.run(), utc(ended.at), ended.status)?;
    }
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
    write_plan(view, paint, out)?;
    for (reason, items) in &tally.skipped {
        let flag = reason.included_by().map(|how| format!(" ({how})")).unwrap_or_default();
        writeln!(out, "  skipped     {items:>8}  {reason}{flag}")?;
    }
    writeln!(out, "  {}", paint.dim(&format!("not searched: {}", view.not_searched().join(", "))))?;
    for (reason, items) in &tally.unreadable {
        writeln!(out, "  {}  {items:>8}  {reason}", paint.yellow("unreadable"))?;
    }
    for note in view.notes(NOTES_SHOWN) {
        writeln!(out, "    {}: {}", note_path(view, &note), note.reason)?;
    }
    if view.notes_len() > NOTES_SHOWN {
        writeln!(out, "    ... (all in --format json)")?;
    }
    if view.suppressed() > 0 {
        let places = plural(view.suppressed(), "place");
        writeln!(out, "  known       {:>8}  {places} named by a baseline or ignore file", view.suppressed())?;
    }
    if tally.findings_cut > 0 {
        let findings = plural(tally.findings_cut, "finding");
        let why = "of items with too many, or at places that are not listed";
        writeln!(out, "  cut         {:>8}  {findings} {why}", tally.findings_cut)?;
    }
    write_left_out(view, paint, LEFT_OUT_SHOWN, out)?;
    for parked in view.parked() {
        writeln!(out, "  {}      {}", paint.yellow("parked"), line(&parked))?;
    }
    if view.shards_short() > 0 {
        let shards = count(view.shards_short(), "shard");
        writeln!(out, "  {}        findings of {shards} are missing", paint.red("lost"))?;
    }
    for damage in view.damage().filter(|damage| damage.loses_findings) {
        writeln!(out, "  {}     {}", paint.red("damaged"), line(&damage.text))?;
    }
    let places: usize = view.findings().map(|finding| finding.places_len()).sum();
    let open = if view.is_complete() { "" } else { "; not everything was read" };
    match view.exit_status() {
        ExitStatus::CleanComplete if tally.enumerated() == 0 => {
            writeln!(out, "{}", paint.green("clean: there was nothing to read"))
        }
        ExitStatus::CleanComplete => writeln!(out, "{}", paint.green(&clean_verdict(tally.skipped_total()))),
        ExitStatus::Incomplete if view.shards().active > 0 && view.ended().is_none() => {
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
            let (secrets, places) = (count(view.findings_len() as u64, "secret"), count(places as u64, "place"));
            writeln!(out, "{}", paint.red(&format!("{secrets} in {places}{open}")))
        }
    }
}

/// Targets that were not scanned at all.
fn write_left_out(view: &View<'_>, paint: &Paint, max: usize, out: &mut dyn Write) -> io::Result<()> {
    let left_out = view.left_out();
    let unnamed = left_out.len().saturating_sub(max);
    for left_out in left_out.take(max) {
        let place = match line(&left_out.named_at) {
            place if place.is_empty() => place,
            place => format!(" ({place})"),
        };
        writeln!(out, "  {}    {}{place}: {}", paint.yellow("left out"), line(&left_out.path), line(&left_out.why))?;
    }
    if unnamed > 0 {
        writeln!(out, "    ... and {unnamed} more (all in --format json)")?;
    }
    Ok(())
}

/// What was planned, and what became of it.
fn write_plan(view: &View<'_>, paint: &Paint, out: &mut dyn Write) -> io::Result<()> {
    let plan = view.plan();
    if plan.planned > 0 || plan.added > 0 {
        let not_read = view.planned_not_read();
        let met = plan.met.saturating_sub(not_read);
        let missing = if not_read > 0 { format!(", {not_read} not there any more") } else { String::new() };
        let added = if plan.added > 0 { format!("; {} new", plan.added) } else { String::new() };
        writeln!(out, "  planned     {:>8}  to be read: {met} met{missing}{added}", plan.planned)?;
    }
    if !plan.short_targets.is_empty() {
        let left = plan.planned.saturating_sub(plan.met);
        writeln!(out, "  {}   {left:>8}  planned and not accounted for", paint.yellow("uncovered"))?;
    }
    if plan.uncompared > 0 {
        let what = "read by an interrupted scan and not compared since";
        writeln!(out, "  {}  {:>8}  {what}", paint.yellow("uncompared"), plan.uncompared)?;
    }
    match view.plan_problem() {
        Some(problem) => writeln!(out, "  {}        {}", paint.red("plan"), line(&problem)),
        None => Ok(()),
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
    text.chars().map(|char| if steers(char) { '\u{fffd}' } else { char }).collect()
}

/// Whether a terminal or an editor acts on the character instead of showing it: escapes, line separators, and marks that turn the
/// direction of the text around them, so that a name reads as another one.
pub fn steers(char: char) -> bool {
    let turns = matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || turns || matches!(char, '\u{2028}' | '\u{2029}')
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

    use super::*;
    use crate::findings::Merged;
    use crate::report::receipt::Receipt;
    use crate::report::tests::{job, report, written};
    use crate::report::{Format, Written};

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
            let written =
                Written { report: &report, job: &job(false), suppressed, colours: false, redacted_percent: 0 };
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
        assert_eq!(clean("exe.\u{202e}gnp\u{2066}\u{2028}"), "exe.\u{fffd}gnp\u{fffd}\u{fffd}");
        assert_eq!(clean("שלום 😀 e\u{301}"), "שלום 😀 e\u{301}", "letters of every script are shown");
        assert_eq!((bytes(999), bytes(1_500_000)), ("999 B".into(), "1.5 MB".into()));
    }
}
