//! A process with lanes is killed without warning, again and again; acknowledged records are there when it starts again.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use support::{Ledger, Order};
use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::config::LaneConfig;
use tessera_lanes::runtime::{Runtime, RuntimeConfig};
use tessera_lanes::wal::{Durability, LogConfig};

const CHILD: &str = "TESSERA_LANES_KILLED_CHILD";
const LANES: usize = 2;

fn runtime(dir: &str) -> Runtime<Order> {
    let log = LogConfig { durability: Durability::Strict, compact_bytes_min: 16 << 10, ..LogConfig::default() };
    let config = RuntimeConfig {
        lanes: LANES,
        lane: LaneConfig::default(),
        log: Some((dir.into(), log)),
        spin: Duration::ZERO,
        ..RuntimeConfig::default()
    };
    Runtime::start(config, |_| Ledger::default()).unwrap()
}

fn list(runtime: &Runtime<Order>) -> BTreeMap<u64, u64> {
    let mut held = BTreeMap::new();
    for lane in 0..LANES {
        let (to, from) = channel();
        while runtime.command(LaneIndex(lane as u8), Order::List(to.clone())).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        held.extend(from.recv().unwrap().1);
    }
    held
}

/// The child: prints the records it found, then raises keys for ever and prints which are safe.
fn live_until_killed(dir: &str) -> ! {
    let runtime = runtime(dir);
    let mut versions = list(&runtime);
    let mut out = std::io::stdout().lock();
    writeln!(out).unwrap(); // Ends the line the test harness has begun.
    for (key, version) in &versions {
        writeln!(out, "found {key} {version}").unwrap();
    }
    writeln!(out, "ready 0 0").unwrap();
    out.flush().unwrap();
    let (done, answers) = channel();
    let mut key = 0;
    loop {
        for _ in 0..32 {
            key = (key * 5 + 1) % 512;
            let version = versions.entry(key).or_insert(0);
            *version += 1;
            let order = Order::Raise { key, version: *version, done: done.clone() };
            let _ = runtime.command(LaneIndex((key % 2) as u8), order);
        }
        while let Ok((key, version)) = answers.recv_timeout(Duration::from_millis(1)) {
            writeln!(out, "safe {key} {version}").unwrap();
        }
        out.flush().unwrap();
    }
}

#[test]
fn acknowledged_records_survive_kill_nine() {
    if let Ok(dir) = std::env::var(CHILD) {
        live_until_killed(&dir);
    }
    let dir = std::env::temp_dir().join(format!("tessera-lanes-kill-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let mut safe: BTreeMap<u64, u64> = BTreeMap::new();
    for life in 0..8u32 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "acknowledged_records_survive_kill_nine", "--nocapture"])
            .env(CHILD, &dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut found = BTreeMap::new();
        let mut heard = 0;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Kill it after so many answers, with orders in every stage of their life. Its output before it died counts too.
        let mut killed = false;
        while let Some(Ok(line)) = lines.next() {
            let mut words = line.split(' ');
            let word = words.next().unwrap_or("");
            let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            match word {
                "found" => drop(found.insert(number(), number())),
                "ready" => {
                    for (key, version) in &safe {
                        assert!(
                            found.get(key) >= Some(version),
                            "life {life}: key {key} was safe at {version}, found {:?}",
                            found.get(key)
                        );
                    }
                }
                "safe" => {
                    let (key, version) = (number(), number());
                    let held = safe.entry(key).or_insert(version);
                    *held = (*held).max(version);
                    heard += 1;
                }
                _ => {} // The test harness of the child.
            }
            if heard >= 200 + life * 77 && !killed {
                child.kill().unwrap();
                killed = true;
            }
        }
        child.wait().unwrap();
        assert!(killed, "life {life}: the child ended by itself after {heard} answers");
    }
    let _ = std::fs::remove_dir_all(&dir);
    assert!(safe.len() > 100);
}
