//! The configuration of a world, drawn from its seed.

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
}

/// Kinds of trouble.
pub const KINDS: [&str; 13] = [
    "crashes", "power", "pauses", "stops", "calls", "disk", "zeros", "stale", "skew", "splits", "yields", "mounts",
    "changes",
];

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
}

impl Config {
    /// A world of this seed.
    pub fn new(seed: u64, steps: u64) -> Self {
        Self { seed, steps, without: Vec::new() }
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
        Weather {
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
        }
    }
}
