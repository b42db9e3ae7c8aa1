//! Answers of a node for people: words, and a bar while a large value travels.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::redrawn::{self, INTERVAL};
use crate::tell::count;

/// A line on standard error that is drawn again and again.
#[derive(Debug, Clone)]
pub(crate) struct Bar {
    is_shown: bool,
    begun: Instant,
    drawn: Arc<Mutex<Option<Instant>>>,
}

impl Bar {
    pub(crate) fn new(is_shown: bool) -> Self {
        Self { is_shown, begun: Instant::now(), drawn: Arc::default() }
    }

    pub(crate) fn show(&self, done: usize, total: usize) {
        let Ok(mut drawn) = self.drawn.lock() else { return };
        if !self.is_shown || total < 2 || drawn.is_some_and(|drawn| drawn.elapsed() < INTERVAL) {
            return;
        }
        *drawn = Some(Instant::now());
        redrawn::draw(&redrawn::bar(done as u64, total as u64), &words(done, total, self.begun.elapsed()));
    }

    pub(crate) fn clear(&self) {
        if let Ok(mut drawn) = self.drawn.lock()
            && drawn.take().is_some()
        {
            redrawn::clear();
        }
    }
}

fn words(done: usize, total: usize, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(0.001);
    let share = (done * 100).checked_div(total).unwrap_or(0);
    let mut line = format!("{share:>3} %  {done} of {total} parts  {rate:.0}/s");
    if rate > 0.0 && elapsed > Duration::from_secs(1) {
        let left = ((total - done.min(total)) as f64 / rate) as u64;
        let _ = write!(line, "  {:02}:{:02} left", left / 60, left % 60);
    }
    line
}

/// What `op` answered.
pub(crate) fn human(op: &str, answer: &Value) -> String {
    let text = |name: &str| answer[name].as_str().unwrap_or("?");
    let counted = |name: &str, thing: &str| count(answer[name].as_u64().unwrap_or(0), thing);
    match op {
        "put" => {
            tell_replicas(answer);
            format!("{}\n", text("id"))
        }
        "put-mutable" => {
            tell_replicas(answer);
            format!("owner    {}\nversion  {}\n", text("owner"), answer["sequence"])
        }
        "delete" if answer["sequence"].is_u64() => format!("deleted (version {})\n", answer["sequence"]),
        "delete" => "not stored again from now on; copies at other nodes run out by themselves\n".to_owned(),
        "get" | "get-mutable" => format!("{}\n", counted("bytes", "byte")),
        "announce" => format!("announcing {} while the node runs\n", counted("announced", "id")),
        "unannounce" => "no longer announced; what was announced runs out by itself\n".to_owned(),
        "providers" => list(&answer["providers"], "no providers were found", |provider| {
            format!("{}  for {} s", provider["peer"].as_str().unwrap_or("?"), provider["seconds_left"])
        }),
        "find-node" => list(&answer["nodes"], "no nodes were found", |node| {
            format!("{}  {}", node["id"].as_str().unwrap_or("?"), address(node))
        }),
        "ping" if answer["self"] == true => "that is this node itself: it runs\n".to_owned(),
        "ping" => match answer["rtt_ms"].as_u64() {
            Some(ms) => format!("it is there: {ms} ms\n"),
            None => "no answer\n".to_owned(),
        },
        "peers" => list(&answer["peers"], "no contacts", |peer| {
            let rtt = peer["rtt_ms"].as_u64().map_or_else(|| "?".to_owned(), |ms| ms.to_string());
            format!("{}  {}  {rtt} ms", peer["id"].as_str().unwrap_or("?"), address(peer))
        }),
        "status" => status(answer),
        _ => format!("{answer:#}\n"),
    }
}

/// The number of replicas, for people: beside the output for programs.
fn tell_replicas(answer: &Value) {
    let number = |name: &str, unsaid: u64| answer[name].as_u64().unwrap_or(unsaid);
    tell!("{}", replicas(number("records", 1), number("replicas", 0), number("holders", 0)));
}

fn replicas(records: u64, replicas: u64, holders: u64) -> String {
    let what = if records > 1 { format!("each of its {records} parts is ") } else { String::new() };
    match (replicas, holders) {
        // Of nodes that are gone and of nodes that never came, it knows equally little.
        (_, 0) => {
            "kept by this node alone: no other node answers it now; it is stored with others when they come".into()
        }
        (1, 1) => format!("{what}stored with the 1 node nearest to it"),
        _ => format!("{what}stored with {replicas} of the {} nearest to it", count(holders, "node")),
    }
}

fn address(node: &Value) -> &str {
    node["peer"].as_str().and_then(|peer| peer.split_once('@')).map_or("?", |(_, address)| address)
}

fn list(items: &Value, none: &str, line: impl Fn(&Value) -> String) -> String {
    match items.as_array() {
        Some(items) if !items.is_empty() => items.iter().map(|item| line(item) + "\n").collect(),
        _ => format!("{none}\n"),
    }
}

fn status(answer: &Value) -> String {
    let text = |name: &str| answer[name].as_str().unwrap_or("?");
    let state = match answer["trouble"].as_str() {
        _ if answer["client"] == true => "a short-lived client: it has joined, and is gone in a moment".to_owned(),
        None => "up".to_owned(),
        Some(trouble) => format!("not up: {trouble}"),
    };
    let held = |name: &str| -> u64 {
        let lanes = answer["lanes"].as_array().into_iter().flatten();
        lanes.map(|lane| lane["held"][name]["now"].as_u64().unwrap_or(0)).sum()
    };
    let mut out = format!("node       {}\nstate      {state}\n", text("id"));
    let _ = writeln!(
        out,
        "listen     {}",
        answer["listen"].as_str().and_then(|at| at.split_once('@')).map_or("?", |at| at.1)
    );
    let _ = writeln!(out, "network    {}", text("network"));
    let _ = writeln!(out, "contacts   {}", answer["contacts"]);
    let size = answer["lanes"][0]["network_size"].as_f64().unwrap_or(0.0);
    let _ = writeln!(out, "nodes      about {size}");
    let _ = writeln!(out, "lanes      {}", answer["lanes_wanted"]);
    let _ = writeln!(out, "records    {}", held("records"));
    let _ = writeln!(out, "providers  {}", held("providers"));
    let _ = writeln!(out, "announced  {}", held("published"));
    if answer["log_failed"] == true {
        out.push_str("WARNING    the log cannot be written: values stored now may be gone after a restart\n");
    }
    for alarm in answer["alarms"].as_array().into_iter().flatten() {
        let _ = writeln!(out, "ALARM      {}", alarm.as_str().unwrap_or("?"));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_beside_the_bar_are_share_rate_and_time_left() {
        assert_eq!(words(30, 120, Duration::from_secs(3)), " 25 %  30 of 120 parts  10/s  00:09 left");
        assert!(words(9, 3, Duration::ZERO).starts_with("300 %  9 of 3 parts"), "it does not overflow");
    }

    #[test]
    fn one_is_not_told_as_many() {
        assert_eq!(human("announce", &json!({ "announced": 1 })), "announcing 1 id while the node runs\n");
        assert_eq!(human("announce", &json!({ "announced": 2 })), "announcing 2 ids while the node runs\n");
        let bytes = [0, 1, 2].map(|bytes| human("get", &json!({ "bytes": bytes })));
        assert_eq!(bytes, ["0 bytes\n", "1 byte\n", "2 bytes\n"]);
        assert_eq!(replicas(1, 1, 1), "stored with the 1 node nearest to it");
        assert_eq!(replicas(3, 1, 2), "each of its 3 parts is stored with 1 of the 2 nodes nearest to it");
        assert!(replicas(3, 0, 0).starts_with("kept by this node alone"));
    }

    #[test]
    fn answers_read_as_sentences() {
        assert_eq!(human("ping", &json!({ "rtt_ms": 3 })), "it is there: 3 ms\n");
        assert_eq!(human("ping", &json!({ "rtt_ms": null })), "no answer\n");
        assert!(human("ping", &json!({ "rtt_ms": 0, "self": true })).contains("this node itself"));
        assert_eq!(human("peers", &json!({ "peers": [] })), "no contacts\n");
        let peer = json!({ "id": "ab", "peer": "cd@127.0.0.1:7", "rtt_ms": 4 });
        assert_eq!(human("peers", &json!({ "peers": [peer] })), "ab  127.0.0.1:7  4 ms\n");
        assert!(human("status", &json!({ "trouble": "no live contacts" })).contains("not up: no live contacts"));
        let client = human("status", &json!({ "trouble": "joining", "client": true }));
        assert!(client.contains("a short-lived client") && !client.contains("not up"), "{client}");
    }
}
