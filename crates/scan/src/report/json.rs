//! Our own JSON: one finding for each secret, with all its places, and the receipt.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::plain_json;
use super::sarif::uri;
use super::view::{FindingView, LeftOutView, PlaceView, TargetRow, View};
use crate::clock::calendar::utc;
use crate::report::redact::Shown;
use crate::run::ExitStatus;

pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    plain_json::write_pretty(&value_of(view), out)?;
    writeln!(out)
}

/// The whole report.
pub(super) fn value_of(view: &View<'_>) -> Value {
    let findings: Vec<Value> = view.findings().map(|finding| finding_value(&finding)).collect();
    let mut value = json!({
        "format": "tessera-scan-1",
        "run": format!("{:016x}", view.run().get()),
        "resumed": view.is_resumed(),
        "status": status(view),
        "targets": texts(view.targets()),
        "findings": findings,
        "by_target": view.target_rows().iter().map(row_value).collect::<Vec<_>>(),
        "receipt": receipt_value(view),
    });
    add_end(view, &mut value);
    value
}

pub(super) fn write_lines(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    for finding in view.findings() {
        let mut value = finding_value(&finding);
        value["kind"] = "finding".into();
        plain_json::write_line(&value, out)?;
        writeln!(out)?;
    }
    let mut value = receipt_value(view);
    value["kind"] = "receipt".into();
    value["status"] = status(view).into();
    add_end(view, &mut value);
    plain_json::write_line(&value, out)?;
    writeln!(out)
}

/// How and when the run ended, for a report that is written again.
fn add_end(view: &View<'_>, value: &mut Value) {
    if !view.further_runs().is_empty() {
        value["further_runs"] = view.further_runs().iter().map(|run| run.to_string()).collect::<Vec<_>>().into();
    }
    if let Some(ended) = view.ended() {
        value["run_status"] = ended.status.as_str().into();
        value["ended_at"] = utc(ended.at).into();
    }
}

fn status(view: &View<'_>) -> &'static str {
    match view.exit_status() {
        ExitStatus::CleanComplete => "clean",
        ExitStatus::Findings => "findings",
        ExitStatus::Error => "error",
        ExitStatus::Incomplete => "incomplete",
    }
}

fn texts(shown: impl IntoIterator<Item = Shown>) -> Vec<String> {
    shown.into_iter().map(|shown| shown.to_string()).collect()
}

fn finding_value(finding: &FindingView<'_>) -> Value {
    json!({
        "rule": finding.rule().as_str(),
        "title": finding.title().as_str(),
        "severity": finding.severity().as_str(),
        "confidence": finding.confidence().as_str(),
        "check": finding.check(),
        "entropy": (f64::from(finding.entropy()) * 100.0).round() / 100.0,
        "secret": finding.secret().as_str(),
        "secret_id": finding.secret_id().to_string(),
        "locations": finding.places().map(|place| place_value(&place)).collect::<Vec<_>>(),
    })
}

fn place_value(place: &PlaceView<'_>) -> Value {
    let (start, end) = (place.start(), place.end());
    let mut value = json!({
        "id": place.id().to_string(),
        "target": place.target().map(|target| target.to_string()),
        "path": place.path().as_str(),
        "start": {"line": start.line, "column": start.column},
        "end": {"line": end.line, "column": end.column},
        "offset": place.offset(),
    });
    if let Some(bytes) = place.path_bytes() {
        value["path_uri"] = uri(&bytes).into();
    }
    if !place.decoded_from().is_empty() {
        value["decoded_from"] = place.decoded_from().into();
    }
    if let Some(blob) = place.blob() {
        value["blob"] = blob.into();
    }
    if let Some(commit) = place.commit() {
        value["commit"] = json!({
            "id": commit.id(),
            "author": commit.author().as_str(),
            "email": commit.email().as_str(),
            "date": commit.date().as_str(),
            "subject": commit.subject().as_str(),
        });
    }
    value
}

/// The accounts of targets alone.
pub(super) fn write_by_target(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut value = json!({
        "run": view.run().to_string(),
        "by_target": view.target_rows().iter().map(row_value).collect::<Vec<_>>(),
        "left_out": view.left_out().map(|left_out| left_out_value(&left_out)).collect::<Vec<_>>(),
    });
    add_end(view, &mut value);
    plain_json::write_pretty(&value, out)?;
    writeln!(out)
}

fn row_value(row: &TargetRow) -> Value {
    let account = &row.account;
    let tally = &account.tally;
    let reason = Some(row.reason()).filter(|reason| !reason.is_empty());
    json!({
        "target": row.path.as_str(),
        "outcome": account.outcome().as_str(),
        "reason": reason,
        "refs": account.heads.map(|heads| heads.refs),
        "heads": account.heads.map(|heads| heads.heads),
        "items": tally.enumerated(),
        "scanned": tally.scanned,
        "scanned_bytes": tally.scanned_bytes,
        "skipped": tally.skipped_total(),
        "unreadable": tally.unreadable_total(),
        "secrets": row.secrets,
        "places": row.places,
    })
}

fn left_out_value(left_out: &LeftOutView) -> Value {
    let named_at = Some(left_out.named_at.as_str()).filter(|place| !place.is_empty());
    json!({"path": left_out.path.as_str(), "named_at": named_at, "reason": left_out.why.as_str()})
}

fn receipt_value(view: &View<'_>) -> Value {
    let (tally, shards, plan) = (view.tally(), view.shards(), view.plan());
    let skipped: Map<_, _> = tally.skipped.iter().map(|(why, &count)| (why.to_string(), count.into())).collect();
    let unreadable: Map<_, _> = tally.unreadable.iter().map(|(why, &count)| (why.to_string(), count.into())).collect();
    let not_read = view.notes(100).map(|note| {
        let target = note.target.map(|target| target.to_string());
        json!({"target": target, "path": note.path.as_str(), "reason": note.reason.as_str()})
    });
    json!({
        "complete": view.is_complete(),
        "enumerated": tally.enumerated(),
        "scanned": tally.scanned,
        "scanned_bytes": tally.scanned_bytes,
        "skipped": skipped,
        "unreadable": unreadable,
        "not_searched": view.not_searched(),
        "unreadable_examples": not_read.collect::<Vec<_>>(),
        "planned": {
            "items": plan.planned,
            "met": plan.met.saturating_sub(view.planned_not_read()),
            "not_read": view.planned_not_read(),
            "new": plan.added,
            "uncompared": plan.uncompared,
        },
        "suppressed": view.suppressed(),
        "findings_cut": tally.findings_cut,
        "shards": {
            "open": shards.active, "done": shards.done,
            "split": shards.split, "parked": shards.parked,
        },
        "parked": texts(view.parked()),
        "left_out": view.left_out().map(|left_out| left_out_value(&left_out)).collect::<Vec<_>>(),
        "damage": texts(view.damage().map(|damage| damage.text).chain(view.plan_problem())),
        "elapsed_ms": view.elapsed().as_millis() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Format;
    use crate::report::tests::written;

    #[test]
    fn the_receipt_adds_up_and_tells_what_was_not_read() {
        let value: Value = serde_json::from_str(&written(Format::Json)).unwrap();
        let receipt = &value["receipt"];
        assert_eq!((&receipt["enumerated"], &receipt["complete"]), (&json!(4), &json!(false)));
        assert_eq!(receipt["unreadable"]["permission denied"], 1);
        assert_eq!(receipt["unreadable_examples"][0]["path"], "locked");
        assert_eq!(value["findings"][0]["locations"].as_array().unwrap().len(), 2);
        assert_eq!(value["status"], "findings");
    }

    #[test]
    fn a_report_that_is_written_again_says_how_and_when_its_run_ended() {
        use tessera_contracts::LogicalTime;
        use tessera_coordination::run::status::RunStatus;
        let at = LogicalTime::new(1_794_798_310_000);
        let ended = Some(crate::run::ended::RunEnd { status: RunStatus::Cancelled, at });
        let report = crate::run::ScanReport { ended, ..crate::report::tests::report() };
        for format in [Format::Human, Format::Json, Format::Jsonl, Format::Sarif] {
            let text = crate::report::tests::written_of(&report, format);
            assert!(text.contains("2026-11-16T03:05:10Z"), "{format:?}: {text}");
            assert!(text.contains("cancelled") || format == Format::Sarif, "{format:?}: {text}");
            assert!(!written(format).contains("2026-"), "{format:?}");
        }
    }

    #[test]
    fn lines_are_findings_and_then_the_receipt() {
        let text = written(Format::Jsonl);
        let kinds: Vec<Value> =
            text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].clone()).collect();
        assert_eq!(kinds, ["finding", "receipt"]);
    }
}
