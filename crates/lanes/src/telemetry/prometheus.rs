//! A snapshot as Prometheus text.

use std::fmt::Write;

use crate::class::{Class, DropCause};
use crate::telemetry::alarms::Alarm;
use crate::telemetry::snapshot::Snapshot;

/// The snapshot and the standing alarms in the text format that Prometheus scrapes.
#[must_use]
pub fn render(snapshot: &Snapshot, alarms: &[Alarm]) -> String {
    let mut text = String::with_capacity(16 << 10);
    by_class(&mut text, snapshot, "enqueued_total", "counter", "Messages accepted as they are.", |class| {
        class.enqueued
    });
    by_class(&mut text, snapshot, "coalesced_total", "counter", "Messages another already said.", |class| {
        class.coalesced
    });
    by_class(&mut text, snapshot, "drained_total", "counter", "Messages handled.", |class| class.drained);
    by_class(&mut text, snapshot, "queue_depth", "gauge", "Messages waiting.", |class| class.depth);
    by_class(&mut text, snapshot, "queue_depth_high_water", "gauge", "The most that ever waited.", |class| {
        class.depth_high_water
    });
    head(&mut text, "dropped_total", "counter", "Messages dropped, by cause.");
    for (lane, counters) in snapshot.lanes.iter().enumerate() {
        for class in Class::ALL {
            for cause in DropCause::ALL {
                let value = counters.classes[class.index()].dropped[cause as usize];
                let (class, cause) = (class.name(), cause.name());
                line(
                    &mut text,
                    format_args!("dropped_total{{lane=\"{lane}\",class=\"{class}\",cause=\"{cause}\"}} {value}"),
                );
            }
        }
    }
    head(
        &mut text,
        "message_latency_microseconds",
        "gauge",
        "Time from send to handling, by quantile, since the start.",
    );
    for (lane, counters) in snapshot.lanes.iter().enumerate() {
        for class in Class::ALL {
            for (quantile, permille) in [("0.5", 500), ("0.95", 950)] {
                let value = counters.classes[class.index()].latency_percentile(permille);
                let class = class.name();
                line(
                    &mut text,
                    format_args!(
                        "message_latency_microseconds{{lane=\"{lane}\",class=\"{class}\",quantile=\"{quantile}\"}} {value}"
                    ),
                );
            }
        }
    }
    head(&mut text, "kind_sent_total", "counter", "Messages sent, by kind.");
    for (lane, counters) in snapshot.lanes.iter().enumerate() {
        for (kind, (sent, _)) in counters.kinds.iter().enumerate().filter(|(_, (sent, _))| *sent > 0) {
            line(&mut text, format_args!("kind_sent_total{{lane=\"{lane}\",kind=\"{kind}\"}} {sent}"));
        }
    }
    head(&mut text, "kind_dropped_total", "counter", "Messages dropped, by kind.");
    for (lane, counters) in snapshot.lanes.iter().enumerate() {
        for (kind, (_, dropped)) in counters.kinds.iter().enumerate().filter(|(_, (_, dropped))| *dropped > 0) {
            line(&mut text, format_args!("kind_dropped_total{{lane=\"{lane}\",kind=\"{kind}\"}} {dropped}"));
        }
    }
    if let Some(first) = snapshot.lanes.first() {
        for (name, _) in &first.totals {
            head(&mut text, name, "untyped", "See the documentation of the lane counter of this name.");
            for (lane, counters) in snapshot.lanes.iter().enumerate() {
                let value = counters.total(name);
                line(&mut text, format_args!("{name}{{lane=\"{lane}\"}} {value}"));
            }
        }
    }
    head(&mut text, "alarms", "gauge", "Alarms that stand.");
    line(&mut text, format_args!("alarms {}", alarms.len()));
    text
}

fn by_class(
    text: &mut String,
    snapshot: &Snapshot,
    name: &str,
    kind: &str,
    help: &str,
    value: impl Fn(&crate::telemetry::snapshot::ClassSnapshot) -> u64,
) {
    head(text, name, kind, help);
    for (lane, counters) in snapshot.lanes.iter().enumerate() {
        for class in Class::ALL {
            let value = value(&counters.classes[class.index()]);
            let class = class.name();
            line(text, format_args!("{name}{{lane=\"{lane}\",class=\"{class}\"}} {value}"));
        }
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP tessera_lane_{name} {help}\n# TYPE tessera_lane_{name} {kind}");
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "tessera_lane_{line}");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::envelope::Kind;
    use crate::telemetry::counters::LaneCounters;

    #[test]
    fn every_line_is_a_comment_or_a_sample_and_no_series_appears_twice() {
        let lanes: Vec<Arc<LaneCounters>> = (0..2).map(|_| Arc::default()).collect();
        lanes[1].class(Class::Hints).dropped[DropCause::Shed as usize].add(7);
        lanes[1].kind_sent.add(Kind::new(3), 1);
        let text = render(&Snapshot::of(&lanes), &[Alarm::ControlDropped { messages: 1 }]);
        let mut series = BTreeSet::new();
        for line in text.lines() {
            if line.starts_with('#') {
                continue;
            }
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<u64>().is_ok(), "{line}");
            assert!(name.starts_with("tessera_lane_"), "{line}");
            assert!(series.insert(name.to_owned()), "twice: {name}");
        }
        assert!(text.contains("tessera_lane_dropped_total{lane=\"1\",class=\"hints\",cause=\"shed\"} 7\n"));
        assert!(text.contains("tessera_lane_kind_sent_total{lane=\"1\",kind=\"3\"} 1\n"));
        assert!(text.ends_with("tessera_lane_alarms 1\n"));
    }
}
