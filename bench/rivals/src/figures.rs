//! CPU and wall time of this process, and medians of rounds side by side.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A moment, by both clocks.
pub(crate) struct Moment {
    cpu: Duration,
    wall: Instant,
}

/// The cost of one operation, in microseconds.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) cpu: f64,
    pub(crate) wall: f64,
}

pub(crate) fn cpu_of_this_process() -> Duration {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32)
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self { cpu: cpu_of_this_process(), wall: Instant::now() }
    }

    /// How long it is ago.
    pub(crate) fn wall_time(&self) -> Duration {
        self.wall.elapsed()
    }

    /// The cost of each of `count` operations since.
    pub(crate) fn cost_of_each(&self, count: usize) -> Cost {
        let now = Self::now();
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / count.max(1) as f64;
        Cost { cpu: micros(now.cpu.saturating_sub(self.cpu)), wall: micros(now.wall.duration_since(self.wall)) }
    }
}

/// A comparison, its unit, and the aim for ours.
pub(crate) struct Question {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) aim: Aim,
}

#[derive(Clone, Copy)]
pub(crate) enum Aim {
    /// Ours is at most this.
    Ours(f64),
    /// Ours is at most this many times the named figure.
    Times(f64, &'static str),
}

/// An aim and its outcome.
struct Verdict {
    /// The number that was set, and its unit.
    set: f64,
    unit: &'static str,
    /// Our figure.
    is: f64,
}

impl Verdict {
    fn met(&self) -> bool {
        self.is <= self.set
    }
}

impl Question {
    /// The outcome of the aim if ours took `ours`, and others took `cost_of`.
    fn verdict(&self, ours: f64, cost_of: impl Fn(&str) -> f64) -> Verdict {
        match self.aim {
            Aim::Ours(set) => Verdict { set, unit: self.unit, is: ours },
            Aim::Times(set, whom) => Verdict { set, unit: "times", is: ours / cost_of(whom) },
        }
    }
}

/// One question's rounds, by implementation; ours is called `ours`.
#[derive(Default)]
pub(crate) struct Rounds(BTreeMap<String, Vec<Cost>>);

impl Rounds {
    pub(crate) fn add(&mut self, who: &str, cost: Cost) {
        self.0.entry(who.to_owned()).or_default().push(cost);
    }

    /// A line for ours alone, and one for ours beside each other.
    pub(crate) fn print(&self, question: &Question, json: bool) {
        let Question { name, unit, .. } = question;
        let Some(ours) = self.0.get("ours").map(|rounds| Side::of(rounds)) else { return };
        let verdict =
            question.verdict(ours.cpu, |whom| self.0.get(whom).map_or(f64::NAN, |rounds| Side::of(rounds).cpu));
        if !json {
            println!("{name}, {unit}: median of {} rounds (spread), wall time", ours.rounds);
            println!("  {:<10} {:>9.1} (±{:.1})  {:>10.1}", "ours", ours.cpu, ours.spread, ours.wall);
        }
        for (who, rounds) in self.0.iter().filter(|(who, _)| *who != "ours") {
            let other = Side::of(rounds);
            let ratio = ours.cpu / other.cpu;
            if json {
                println!(
                    "{{\"figure\":\"dht-node/{name}\",\"beside\":\"{who}\",\"ours\":{:.3},\"reference\":{:.3},\
                     \"ratio\":{ratio:.4},\"unit\":\"{unit}\",\"better\":\"less\",\"ours_spread\":{:.3},\
                     \"reference_spread\":{:.3},\"ours_wall\":{:.3},\"reference_wall\":{:.3},\"rounds\":{}}}",
                    ours.cpu, other.cpu, ours.spread, other.spread, ours.wall, other.wall, ours.rounds,
                );
            } else {
                let Side { cpu, spread, wall, .. } = other;
                println!("  {who:<10} {cpu:>9.1} (±{spread:.1})  {wall:>10.1}   ours is {ratio:.3} of it");
            }
        }
        let (Verdict { set, unit: aim_unit, is }, met) = (&verdict, verdict.met());
        if json {
            println!(
                "{{\"figure\":\"dht-node/{name}\",\"ours\":{:.3},\"unit\":\"{unit}\",\"aim\":{set},\
                 \"aim_unit\":\"{aim_unit}\",\"is\":{is:.3},\"met\":{met}}}",
                ours.cpu,
            );
        } else {
            println!("  aim: at most {set} {aim_unit}; it is {is:.2}: {}\n", if met { "met" } else { "NOT MET" });
        }
    }
}

/// The middle of the rounds by CPU time, and the median distance from it.
struct Side {
    cpu: f64,
    spread: f64,
    wall: f64,
    rounds: usize,
}

impl Side {
    fn of(rounds: &[Cost]) -> Self {
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let cpu = median(rounds.iter().map(|cost| cost.cpu).collect());
        let spread = median(rounds.iter().map(|cost| (cost.cpu - cpu).abs()).collect());
        Self { cpu, spread, wall: median(rounds.iter().map(|cost| cost.wall).collect()), rounds: rounds.len() }
    }
}
