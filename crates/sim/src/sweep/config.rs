//! The configuration of a world, drawn from its seed.

use std::fmt;
use std::str::FromStr;

use crate::coordination::dice::Dice;

use super::disk::DiskFaults;

/// The configuration of a world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Its seed.
    pub seed: u64,
    /// Actions before faults stop.
    pub steps: u64,
    /// Kinds of trouble that are switched off.
    pub without: Vec<String>,
    /// Whether it is a small world whose workers do little between two safe points.
    pub is_small: bool,
    /// A trouble that comes before this action, counted from 0.
    pub at: Option<At>,
}

/// Kinds of trouble.
pub const KINDS: [&str; 14] = [
    "crashes", "power", "pauses", "stops", "calls", "disk", "zeros", "stale", "skew", "splits", "yields", "mounts",
    "changes", "asks",
];

/// How often each kind of trouble happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Met([u64; KINDS.len()]);

impl Met {
    /// How often this kind happened.
    pub fn of(&self, kind: &str) -> u64 {
        KINDS.iter().zip(self.0).find(|(known, _)| **known == kind).map_or(0, |(_, times)| times)
    }

    /// Kinds that did not happen.
    pub fn never(&self) -> Vec<&'static str> {
        KINDS.iter().zip(self.0).filter(|(_, times)| *times == 0).map(|(kind, _)| *kind).collect()
    }

    pub(super) fn count(&mut self, kind: &str) {
        let at = KINDS.iter().position(|known| *known == kind).expect("a kind of trouble");
        self.0[at] += 1;
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] + other.0[at]))
    }
}

/// A trouble before one action of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// The number of the action.
    pub action: u64,
    /// What happens to the worker that is about to do it.
    pub trouble: Trouble,
}

/// What happens to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It dies, and its machine loses its power.
    PowerCut,
    /// It is asked to split what it holds.
    Split,
    /// It stops for longer than its lease lasts, and then goes on.
    Pause,
}

impl Trouble {
    /// All of them, and their names on the command line.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::PowerCut, "power-cut"), (Self::Split, "split"), (Self::Pause, "pause")];
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Trouble::ALL.iter().find(|(trouble, _)| *trouble == self.trouble).map_or("", |(_, name)| name);
        write!(f, "{}:{name}", self.action)
    }
}

impl FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (action, name) = text.split_once(':').ok_or("not ACTION:TROUBLE, as in 17:split")?;
        let action = action.parse().map_err(|_| format!("{action} is not the number of an action"))?;
        let trouble = Trouble::ALL.iter().find(|(_, known)| *known == name).map(|(trouble, _)| *trouble);
        let trouble = trouble.ok_or_else(|| format!("{name} is not power-cut, split or pause"))?;
        Ok(Self { action, trouble })
    }
}

/// The rates that follow from a configuration.
#[derive(Debug, Clone)]
pub(super) struct Weather {
    pub(super) machines: u64,
    pub(super) targets: u64,
    /// Items of each target, at most.
    pub(super) items_max: u64,
    pub(super) lease_duration: u64,
    /// In a million actions: a process dies.
    pub(super) crash: u32,
    /// In a million deaths: its machine loses its power too.
    pub(super) power: u32,
    /// In a million actions: a worker is not heard of for a while, longer than a lease at times.
    pub(super) pause: u32,
    /// In a million actions: a worker is told to stop.
    pub(super) stop: u32,
    /// In a million calls: it fails before or after it took effect.
    pub(super) call: u32,
    pub(super) disk: DiskFaults,
    pub(super) stale_for: u64,
    pub(super) skew: u64,
    /// In a million actions: an owner is asked to split.
    pub(super) split: u32,
    /// In a million actions: an owner is asked to yield.
    pub(super) yields: u32,
    /// In a million actions: a machine's view of a target changes.
    pub(super) mount: u32,
    /// Whether some machines see other files than were planned.
    pub(super) changes: bool,
    /// In a million actions: time passes.
    pub(super) time: u32,
    /// So many milliseconds, at most.
    pub(super) time_max: u64,
    /// Items of a page, at most.
    pub(super) page_max: u64,
    /// Milliseconds between safe points, at most.
    pub(super) safe_points_max: u64,
}

impl Config {
    /// A world of this seed.
    pub fn new(seed: u64, steps: u64) -> Self {
        Self { seed, steps, without: Vec::new(), is_small: false, at: None }
    }

    /// A small world of this seed in which nothing fails.
    pub fn calm(seed: u64) -> Self {
        let without = KINDS.iter().map(|kind| (*kind).to_owned()).collect();
        Self { without, is_small: true, ..Self::new(seed, 0) }
    }

    /// The same world without a kind of trouble.
    #[must_use]
    pub fn without(&self, kind: &str) -> Self {
        let mut config = self.clone();
        config.without.push(kind.to_owned());
        config
    }

    pub(super) fn has(&self, kind: &str) -> bool {
        !self.without.iter().any(|without| without == kind)
    }

    /// Draws the weather. Kinds switched off are drawn all the same, so that the rest stays as it is.
    pub(super) fn weather(&self) -> Weather {
        let mut dice = Dice::new(self.seed);
        let mut rate = |kind: &str, most: u32| {
            // A third of all worlds has none of a kind, so that each is also seen without the others.
            let drawn = if dice.happens(333_333) { 0 } else { dice.between(0, u64::from(most)) as u32 };
            if self.has(kind) { drawn } else { 0 }
        };
        let crash = rate("crashes", 20_000);
        let power = rate("power", 1_000_000);
        let (pause, stop) = (rate("pauses", 10_000), rate("stops", 5_000));
        let call = rate("calls", 200_000);
        let disk = DiskFaults {
            append: rate("disk", 20_000),
            sync: rate("disk", 50_000),
            name: rate("disk", 100_000),
            zeros: rate("zeros", 1_000_000),
        };
        let (split, yields) = (rate("splits", 50_000), rate("yields", 10_000));
        let mount = rate("mounts", 5_000);
        let changes = rate("changes", 3) == 1;
        let stale = rate("stale", 2_000);
        let skew = rate("skew", 400);
        let weather = Weather {
            machines: dice.between(2, 5),
            targets: dice.between(1, 4),
            items_max: [20, 100, 400, 1_000][dice.below(4) as usize],
            lease_duration: dice.between(200, 2_000),
            crash,
            power,
            pause,
            stop,
            call,
            disk,
            stale_for: u64::from(stale),
            skew: u64::from(skew),
            split,
            yields,
            mount,
            changes,
            time: 300_000,
            time_max: 3,
            page_max: 32,
            safe_points_max: 200,
        };
        if !self.is_small {
            return weather;
        }
        // Leases are renewed and safe points come every few items.
        Weather {
            machines: 2,
            targets: 2,
            items_max: 30,
            lease_duration: 300,
            time: 1_000_000,
            time_max: 10,
            page_max: 4,
            safe_points_max: 50,
            ..weather
        }
    }
}
