//! `tessera node top`: a live view of a running node, lane by lane.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::dht::Connection;
use super::node::At;
use super::node_screen::Screen;
use crate::tell::{count, print_to_reader};

/// How late a key or a signal is seen while there is something else to wait for.
const SEEN_EVERY: Duration = Duration::from_millis(20);

/// Seconds between two looks that make sense to a person.
const EVERY_MIN: f64 = 0.1;
const EVERY_MAX: f64 = 3600.0;

/// Narrow enough for a window of 80 columns.
const COLUMNS: &str = "lane  in/s out/s srv/s look/s put/s queue drop/s lim/s peers  recs provs starts\n";

/// Watch a running node: packets, queues, drops, lookups, stores, contacts, health. On a terminal `q` ends it
#[derive(Debug, clap::Args)]
#[command(after_help = "COLUMNS, for each lane
  in/s, out/s   datagrams received and sent a second
  srv/s         requests of others that were answered
  look/s        lookups begun
  put/s         records stored
  queue         messages that wait for the lane
  drop/s        messages and datagrams that were dropped
  lim/s         requests refused because their sender asks too often
  peers         live contacts
  recs, provs   records and providers that it holds
  starts        how often it was started: more than once, it has failed")]
pub(crate) struct Args {
    #[command(flatten)]
    at: At,

    /// Seconds between two looks
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = interval, allow_negative_numbers = true)]
    every: Duration,

    /// Print one view and end; the rates are those of one interval
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (EVERY_MIN..=EVERY_MAX).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("expected a number of seconds from {EVERY_MIN} to {EVERY_MAX}")),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), String> {
    let connection = Connection::local(args.at.socket.as_deref(), "")?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).map_err(|error| format!("cannot catch signals: {error}"))?;
    }
    let mut looks = Looks::new(connection)?;
    let mut viewer = Viewer { screen: None, stop };
    let Some(mut before) = looks.next(&viewer)? else { return Ok(()) };
    let mut at = Instant::now();
    if !args.once {
        viewer.screen = Screen::open();
    }
    if let Some(screen) = &viewer.screen {
        screen.draw(|rows, columns| view(&before, &before, args.every).fitted(rows, columns));
    }
    while viewer.waits(args.every) {
        let Some(now) = looks.next(&viewer)? else { return Ok(()) };
        let view = view(&before, &now, at.elapsed());
        at = Instant::now();
        let shown = match &viewer.screen {
            Some(screen) => screen.draw(|rows, columns| view.fitted(rows, columns)),
            None => print_to_reader(view.whole())?,
        };
        if !shown || args.once {
            return Ok(());
        }
        before = now;
    }
    Ok(())
}

/// The user at the terminal, who may quit at any time.
struct Viewer {
    screen: Option<Screen>,
    stop: Arc<AtomicBool>,
}

impl Viewer {
    /// Waits `time`; false as soon as the viewer has seen enough.
    fn waits(&self, time: Duration) -> bool {
        if let Some(screen) = &self.screen {
            return screen.wait(time, &self.stop);
        }
        let end = Instant::now() + time;
        while !self.stop.load(Ordering::Relaxed) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(SEEN_EVERY));
        }
        false
    }
}

/// Looks at the node, by a thread of its own: a node may hang, and the viewer can leave all the same.
struct Looks {
    ask: Sender<()>,
    answers: Receiver<Result<Value, String>>,
}

impl Looks {
    fn new(mut connection: Connection) -> Result<Self, String> {
        let (ask, asked) = channel();
        let (answer, answers) = channel();
        let look = move || {
            for () in asked {
                let seen = connection.call(&json!({ "op": "top" }), &[], None);
                if answer.send(seen.map(|(seen, _)| seen).map_err(|refused| refused.to_string())).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("look".to_owned()).spawn(look);
        thread.map(|_| Self { ask, answers }).map_err(|error| format!("cannot start a thread: {error}"))
    }

    /// The node as it is now; `None` if the viewer left before it answered.
    fn next(&mut self, viewer: &Viewer) -> Result<Option<Value>, String> {
        let ended = || "the thread that looks has ended".to_owned();
        self.ask.send(()).map_err(|_| ended())?;
        loop {
            match self.answers.recv_timeout(SEEN_EVERY) {
                Ok(seen) => return seen.map(Some),
                Err(RecvTimeoutError::Disconnected) => return Err(ended()),
                Err(RecvTimeoutError::Timeout) if !viewer.waits(Duration::from_millis(1)) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// The changes between two looks.
fn view(before: &Value, now: &Value, elapsed: Duration) -> View {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let counted = |value: &Value, thing: &str| count(value.as_f64().unwrap_or(0.0).round() as u64, thing);
    let state = match now["trouble"].as_str() {
        None => "up".to_owned(),
        Some(trouble) => format!("NOT UP: {trouble}"),
    };
    let head = format!(
        "node {}  {state}\nnetwork {}  {}  about {}  {}{}{}\n",
        text(&now["id"]).chars().take(16).collect::<String>(),
        text(&now["network"]),
        counted(&now["contacts"], "contact"),
        counted(&now["lanes"][0]["network_size"], "node"),
        counted(&now["lanes_wanted"], "lane"),
        if now["kernel_steering"] == true { "" } else { "  lanes pass datagrams on" },
        if now["log_failed"] == true { "  THE LOG CANNOT BE WRITTEN" } else { "" },
    );
    let lanes = now["lanes"].as_array().into_iter().flatten().map(|lane| row(lane, before, now, elapsed)).collect();
    View { head, alarms: now["alarms"].as_array().into_iter().flatten().map(text).collect(), lanes }
}

fn row(lane: &Value, before: &Value, now: &Value, elapsed: Duration) -> String {
    let at = lane["lane"].as_u64().unwrap_or(0) as usize;
    let old = before["lanes"].as_array().into_iter().flatten().find(|old| old["lane"] == lane["lane"]);
    let rate = |now: &Value, old: Option<&Value>| {
        let (now, old) = (now.as_u64().unwrap_or(0), old.and_then(Value::as_u64).unwrap_or(0));
        // A lane that restarted counts from zero.
        (now.saturating_sub(old) as f64 / elapsed.as_secs_f64().max(0.001)).round() as u64
    };
    let counted = |name: &str| short(rate(&lane["counters"][name], old.map(|old| &old["counters"][name])));
    let of_runtime = |name: &str| rate(&now["runtime"][at][name], Some(&before["runtime"][at][name]));
    let held = |name: &str| short(lane["held"][name]["now"].as_u64().unwrap_or(0));
    format!(
        "{at:>4} {:>5} {:>5} {:>5} {:>6} {:>5} {:>5} {:>6} {:>5} {:>5} {:>5} {:>5} {:>6}\n",
        short(of_runtime("datagrams_in")),
        short(of_runtime("datagrams_out")),
        counted("requests_served"),
        counted("lookups_started"),
        counted("records_stored"),
        short(now["runtime"][at]["depth"].as_u64().unwrap_or(0)),
        short(of_runtime("dropped") + of_runtime("datagrams_out_dropped")),
        counted("requests_limited"),
        short(lane["contacts"].as_u64().unwrap_or(0)),
        held("records"),
        held("providers"),
        short(now["runtime"][at]["incarnations"].as_u64().unwrap_or(0)),
    )
}

/// A count in five characters, so that the columns stay where they are.
fn short(count: u64) -> String {
    match count {
        0..100_000 => count.to_string(),
        100_000..10_000_000 => format!("{}k", count / 1_000),
        10_000_000..10_000_000_000 => format!("{}M", count / 1_000_000),
        _ => format!("{}G", (count / 1_000_000_000).min(9999)),
    }
}

/// The parts of a view.
struct View {
    head: String,
    alarms: Vec<String>,
    lanes: Vec<String>,
}

impl View {
    /// All of it, for a program that reads it.
    fn whole(&self) -> String {
        let alarms: String = self.alarms.iter().map(|alarm| format!("ALARM  {alarm}\n")).collect();
        format!("{}{alarms}\n{COLUMNS}{}", self.head, self.lanes.concat())
    }

    /// The part of it that fits a window. Alarms stand above the lanes: a node with many lanes must not push them out.
    fn fitted(&self, rows: usize, columns: usize) -> String {
        let alarms: Vec<String> =
            self.alarms.iter().flat_map(|alarm| wrapped(&format!("ALARM  {alarm}"), columns)).collect();
        // The head, a blank line, the names of the columns and the last line; alarms leave room for two lines of lanes.
        let room = rows.saturating_sub(5);
        let alarms = shortened(&alarms, room.saturating_sub(2).max(2), "more alarm line");
        let lanes = shortened(&self.lanes, room.saturating_sub(alarms.lines().count()), "more lane");
        format!("{}{alarms}\n{COLUMNS}{lanes}q ends this view\n", self.head)
    }
}

/// As many lines as there is room for, and how many there are besides.
fn shortened(lines: &[String], room: usize, what: &str) -> String {
    if lines.len() <= room {
        return lines.concat();
    }
    let shown = room.saturating_sub(1);
    format!("{}… and {}\n", lines[..shown].concat(), count((lines.len() - shown) as u64, what))
}

/// A text in lines that are no longer than `columns`, unless a word is.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > columns {
            lines.push(format!("       {word}"));
        } else if let Some(line) = lines.last_mut() {
            let space = if line.is_empty() { "" } else { " " };
            line.push_str(&format!("{space}{word}"));
        }
    }
    lines.iter_mut().for_each(|line| line.push('\n'));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_time_a_person_can_follow() {
        assert_eq!(interval("0.1"), Ok(Duration::from_millis(100)));
        assert_eq!(interval("3600"), Ok(Duration::from_secs(3600)));
        for refused in ["nan", "inf", "-inf", "-1", "0", "0.09", "3601", "1e300", "soon", ""] {
            assert!(interval(refused).unwrap_err().contains("from 0.1 to 3600"), "{refused}");
        }
    }

    #[test]
    fn the_view_shows_rates_between_two_looks_and_what_is_wrong() {
        let look = |served: u64, datagrams: u64| {
            json!({
                "id": "ab".repeat(32), "network": "mine", "contacts": 7, "lanes_wanted": 1, "kernel_steering": true,
                "trouble": "no live contacts", "log_failed": true, "alarms": ["control messages were dropped"],
                "lanes": [{"lane": 0, "contacts": 7, "network_size": 8.0, "counters": {"requests_served": served},
                           "held": {"records": {"now": 3, "most": 9}}}],
                "runtime": [{"datagrams_in": datagrams, "depth": 4, "incarnations": 2}],
            })
        };
        let view = view(&look(10, 100), &look(30, 300), Duration::from_secs(2)).whole();
        let row: Vec<&str> = view.lines().find(|line| line.starts_with("   0")).unwrap().split_whitespace().collect();
        assert_eq!(row[..6], ["0", "100", "0", "10", "0", "0"], "{view}");
        assert_eq!(row[6..], ["4", "0", "0", "7", "3", "0", "2"], "{view}");
        for wanted in [
            "NOT UP: no live contacts",
            "  7 contacts  about 8 nodes  1 lane  ",
            "THE LOG CANNOT BE WRITTEN",
            "ALARM  control messages",
        ] {
            assert!(view.contains(wanted), "{view}");
        }
    }

    #[test]
    fn counts_take_five_characters_at_most() {
        for (count, shown) in [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100k"),
            (9_999_999, "9999k"),
            (10_000_000, "10M"),
            (9_999_999_999, "9999M"),
            (10_000_000_000, "10G"),
            (u64::MAX, "9999G"),
        ] {
            assert_eq!(short(count), shown);
        }
    }

    #[test]
    fn a_view_fits_its_window_with_every_alarm_it_has_room_for() {
        let lane = |lane: u64| {
            let most = json!({ "now": u64::MAX });
            json!({ "lane": lane, "contacts": u64::MAX, "held": { "records": most, "providers": most } })
        };
        let alarm = "lane 3 was down for 10 s and its coordination messages are dropped, see the log for more of it";
        let now = json!({
            "id": "ab".repeat(32), "network": "mine", "contacts": 7, "lanes_wanted": 20, "alarms": [alarm, alarm],
            "lanes": (0..20).map(lane).collect::<Vec<_>>(),
        });
        let view = view(&now, &now, Duration::from_secs(1));
        for (rows, columns, more) in [(24, 80, 6), (15, 60, 15), (40, 100, 0)] {
            let fitted = view.fitted(rows, columns);
            let lines: Vec<&str> = fitted.lines().collect();
            assert!(lines.len() <= rows, "{fitted}");
            // In less than 80 columns, those of the table that do not fit are cut.
            assert!(lines.iter().all(|line| line.chars().count() <= columns.max(80)), "{fitted}");
            assert!(lines[2].starts_with("ALARM  lane 3") && lines[2].chars().count() <= columns, "{fitted}");
            assert_eq!(lines.iter().filter(|line| line.starts_with("ALARM")).count(), 2, "{fitted}");
            let says = format!("… and {more} more lanes");
            assert_eq!(lines.contains(&says.as_str()), more > 0, "{says}: {fitted}");
            let shown = lines.iter().filter(|line| line.starts_with("  ") && line.contains("9999G")).count();
            assert_eq!(shown + more, 20, "{fitted}");
            assert_eq!(lines.last(), Some(&"q ends this view"));
        }
        // A window in which next to nothing fits still says that something is wrong.
        assert!(view.fitted(7, 40).lines().nth(2).unwrap().starts_with("ALARM  lane 3"));
    }
}
