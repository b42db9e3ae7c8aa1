//! The log for a node's operator: one line per event, as text or as JSON. No values, no keys and no addresses of others.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tessera_dht_node::Node;
use tessera_dht_node::status::Status;

/// How often the node's health is asked for.
const HEALTH_EVERY: Duration = Duration::from_secs(1);

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Format {
    /// Lines for people
    #[default]
    Text,
    /// A JSON object per line
    Json,
}

/// Reports new events.
#[derive(Debug)]
pub(crate) struct Log {
    format: Format,
    trouble: Option<String>,
    alarms: Vec<String>,
    health: Receiver<Status>,
}

impl Log {
    pub(crate) fn new(format: Format, node: &Node) -> std::io::Result<Self> {
        // At most one status waits to be looked at: an older one is no news.
        let (told, health) = sync_channel(1);
        let asked = node.clone();
        std::thread::Builder::new().name("health".to_owned()).spawn(move || ask_for_health(&asked, &told))?;
        let log = Self { format, trouble: None, alarms: Vec::new(), health };
        log.line("info", None, &format!("started on network {}", node.network()));
        Ok(log)
    }

    /// Writes the events since the last look. Waits for no lane: the caller also watches for signals.
    pub(crate) fn look(&mut self, node: &Node) {
        for event in node.take_events() {
            self.line("warn", event.lane.map(|lane| lane.0), &event.what);
        }
        for trace in node.take_traces() {
            self.line("trace", Some(trace.lane.0), &format!("{:?}", trace.what));
        }
        let Ok(status) = self.health.try_recv() else { return };
        let trouble = status.trouble().map(str::to_owned);
        if trouble != self.trouble {
            match &trouble {
                None => self.line("info", None, &format!("up, live contacts: {}", status.contacts())),
                Some(trouble) => self.line("warn", None, &format!("not up: {trouble}")),
            }
            self.trouble = trouble;
        }
        for alarm in status.alarms.iter().filter(|alarm| !self.alarms.contains(alarm)) {
            self.line("error", None, &format!("alarm: {alarm}"));
        }
        self.alarms = status.alarms;
    }

    pub(crate) fn line(&self, level: &str, lane: Option<u8>, what: &str) {
        write_line(self.format, level, lane, what);
    }
}

/// From now on a panic is one line of the log, instead of several that the standard library prints.
///
/// The line has the place and not the message, which may quote secrets.
pub(crate) fn log_panics(format: Format) {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("without a name");
        let place = panic.location().map_or_else(|| "?".to_owned(), |at| format!("{}:{}", at.file(), at.line()));
        write_line(format, "error", None, &format!("thread {thread} panicked at {place}"));
    }));
}

fn write_line(format: Format, level: &str, lane: Option<u8>, what: &str) {
    let time = utc(SystemTime::now());
    match format {
        Format::Json => tell!("{}", json!({ "time": time, "level": level, "lane": lane, "event": what })),
        Format::Text => {
            let lane = lane.map_or_else(String::new, |lane| format!("lane {lane}: "));
            tell!("{time} {level:5} {lane}{what}");
        }
    }
}

/// Asks for the node's status in a loop, until the node or the receiver is gone. A lane that hangs keeps this waiting.
fn ask_for_health(node: &Node, told: &SyncSender<Status>) {
    while let Ok(status) = node.status().wait()
        && told.send(status).is_ok()
    {
        std::thread::sleep(HEALTH_EVERY);
    }
}

/// A time as `2026-11-16T03:05:10Z`.
fn utc(time: SystemTime) -> String {
    let secs = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (secs / 86_400, secs % 86_400);
    // Days since 0000-03-01, in eras of 400 years: the leap day is then the last day of a year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc_over_leap_days_and_centuries() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_794_798_310, "2026-11-16T03:05:10Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(secs)), text);
        }
    }
}
