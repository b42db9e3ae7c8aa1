//! Our own JSON: one finding for each secret, with all its places, and the receipt.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::{Written, shown_secret};
use crate::finding::{Finding, Location};
use crate::run::ExitStatus;
use crate::source::git::hex_oid;

pub(super) fn write(written: &Written<'_>, out: &mut dyn Write) -> io::Result<()> {
    let findings: Vec<Value> = written.report.findings.iter().map(|finding| finding_value(written, finding)).collect();
    let value = json!({
        "format": "tessera-scan-1",
        "run": format!("{:016x}", written.report.run.get()),
        "resumed": written.report.is_resumed,
        "status": status(written),
        "targets": written.report.targets.iter().map(|target| target.path.to_string_lossy()).collect::<Vec<_>>(),
        "findings": findings,
        "receipt": receipt_value(written),
    });
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)
}

pub(super) fn write_lines(written: &Written<'_>, out: &mut dyn Write) -> io::Result<()> {
    for finding in &written.report.findings {
        let mut value = finding_value(written, finding);
        value["kind"] = "finding".into();
        serde_json::to_writer(&mut *out, &value)?;
        writeln!(out)?;
    }
    let mut value = receipt_value(written);
    value["kind"] = "receipt".into();
    value["status"] = status(written).into();
    serde_json::to_writer(&mut *out, &value)?;
    writeln!(out)
}

fn status(written: &Written<'_>) -> &'static str {
    match written.report.exit_status() {
        ExitStatus::CleanComplete => "clean",
        ExitStatus::Findings => "findings",
        ExitStatus::Error => "error",
        ExitStatus::Incomplete => "incomplete",
    }
}

fn finding_value(written: &Written<'_>, finding: &Finding) -> Value {
    json!({
        "rule": finding.rule,
        "title": written.title_of(finding),
        "severity": finding.severity.as_str(),
        "confidence": finding.confidence.as_str(),
        "check": finding.check,
        "entropy": (f64::from(finding.entropy) * 100.0).round() / 100.0,
        "secret": shown_secret(finding),
        "secret_id": finding.secret_id.to_string(),
        "locations": finding.locations.iter().map(|location| location_value(written, location)).collect::<Vec<_>>(),
    })
}

fn location_value(written: &Written<'_>, location: &Location) -> Value {
    let occurrence = &location.occurrence;
    let mut value = json!({
        "id": occurrence.id.to_string(),
        "target": written.target_of(location).map(|target| target.path.to_string_lossy()),
        "path": written.path_of(location),
        "start": {"line": occurrence.start.line, "column": occurrence.start.column},
        "end": {"line": occurrence.end.line, "column": occurrence.end.column},
        "offset": occurrence.offset,
    });
    if !occurrence.decoded_from.is_empty() {
        value["decoded_from"] = occurrence.decoded_from.clone().into();
    }
    if let Some(blob) = &occurrence.blob {
        value["blob"] = hex_oid(blob).into();
    }
    if let Some(introduced) = &location.introduced {
        value["commit"] = json!({
            "id": introduced.commit,
            "author": introduced.author,
            "email": introduced.email,
            "date": introduced.date,
            "subject": introduced.subject,
        });
    }
    value
}

fn receipt_value(written: &Written<'_>) -> Value {
    let receipt = &written.report.receipt;
    let tally = &receipt.tally;
    let skipped: Map<_, _> = tally.skipped.iter().map(|(why, &count)| (why.to_string(), count.into())).collect();
    let unreadable: Map<_, _> = tally.unreadable.iter().map(|(why, &count)| (why.to_string(), count.into())).collect();
    json!({
        "complete": receipt.is_complete(),
        "enumerated": tally.enumerated(),
        "scanned": tally.scanned,
        "scanned_bytes": tally.scanned_bytes,
        "skipped": skipped,
        "unreadable": unreadable,
        "unreadable_examples": receipt.notes.iter().take(100).map(|note| json!({
            "path": String::from_utf8_lossy(&note.path), "reason": note.reason.as_str(),
        })).collect::<Vec<_>>(),
        "suppressed": written.suppressed,
        "findings_cut": tally.findings_cut,
        "shards": {
            "open": receipt.shards.active, "done": receipt.shards.done,
            "split": receipt.shards.split, "parked": receipt.shards.parked,
        },
        "parked": receipt.parked,
        "damage": receipt.damage.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "elapsed_ms": written.report.elapsed.as_millis() as u64,
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
    fn lines_are_findings_and_then_the_receipt() {
        let text = written(Format::Jsonl);
        let kinds: Vec<Value> =
            text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].clone()).collect();
        assert_eq!(kinds, ["finding", "receipt"]);
    }
}
