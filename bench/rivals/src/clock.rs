//! CPU and wall time of this process, and medians of rounds side by side.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

pub(crate) struct Moment {
    cpu: Duration,
    wall: Instant,
}

impl Moment {
    pub(crate) fn now() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Self { cpu: Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32), wall: Instant::now() }
    }

    /// CPU and wall time since.
    pub(crate) fn passed(&self) -> (Duration, Duration) {
        let now = Self::now();
        (now.cpu.saturating_sub(self.cpu), now.wall.duration_since(self.wall))
    }
}

/// Rounds by question and by who answered.
#[derive(Default)]
pub(crate) struct Table(BTreeMap<(&'static str, &'static str), Vec<(f64, f64)>>);

impl Table {
    /// A round of `count` operations.
    pub(crate) fn add(&mut self, question: &'static str, who: &'static str, since: &Moment, count: usize) {
        let (cpu, wall) = since.passed();
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
        self.0.entry((question, who)).or_default().push((micros(cpu), micros(wall)));
    }

    /// Medians, and how many times as much CPU as `reference` each took.
    pub(crate) fn print(&mut self, reference: &'static str) {
        let mut medians = BTreeMap::new();
        for (key, rounds) in &mut self.0 {
            rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
            medians.insert(*key, rounds[rounds.len() / 2]);
        }
        for ((question, who), (cpu, wall)) in &medians {
            let times = medians.get(&(*question, reference)).map_or(1.0, |(base, _)| cpu / base);
            println!("  {question:<10} {who:<10} {cpu:>9.1} µs CPU  ({wall:>9.1} µs wall)  {times:>6.2} x {reference}");
        }
    }
}
