//! How hostile a world is, and how large.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::dice::Dice;

/// How hostile a world is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Level {
    /// Nothing fails.
    Sunny,
    /// Now and then something does.
    Breezy,
    /// Much does.
    #[default]
    Stormy,
    /// Nearly everything does.
    Radioactive,
}

impl Level {
    /// All of them, calm first.
    pub const ALL: [Self; 4] = [Self::Sunny, Self::Breezy, Self::Stormy, Self::Radioactive];

    const fn name(self) -> &'static str {
        match self {
            Self::Sunny => "sunny",
            Self::Breezy => "breezy",
            Self::Stormy => "stormy",
            Self::Radioactive => "radioactive",
        }
    }

    const fn percent(self) -> u32 {
        match self {
            Self::Sunny => 0,
            Self::Breezy => 15,
            Self::Stormy => 100,
            Self::Radioactive => 400,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| format!("{text}: not a level; there are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Rates of faults, and of deeds that workers and operators do of their own accord: cases in a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// A request never arrives.
    pub lose_request: u32,
    /// A reply never arrives.
    pub lose_reply: u32,
    /// A request arrives again, later.
    pub duplicate: u32,
    /// A message takes far longer than usual.
    pub delay: u32,
    /// The store fails before the effect.
    pub fail_before: u32,
    /// The store fails after the effect: it happened, and no caller was told.
    pub fail_after: u32,
    /// A worker stops for longer than a lease and goes on as if nothing had happened.
    pub pause: u32,
    /// A worker forgets everything.
    pub crash: u32,
    /// A worker is restarted as planned: it gives back its shards.
    pub restart: u32,
    /// A worker parks its shard.
    pub park: u32,
    /// A worker gives its shard back.
    pub release: u32,
    /// A worker replaces its shard by children.
    pub split_replace: u32,
    /// A worker splits off the rest.
    pub split_residual: u32,
    /// A worker claims although it holds a shard elsewhere in its past life; see [`super::worker`].
    pub claim_burst: u32,
    /// The operator asks a holder to yield.
    pub order_yield: u32,
    /// The operator asks a holder to split.
    pub order_split: u32,
    /// The operator revives a parked shard.
    pub unpark: u32,
    /// The operator cancels the run.
    pub cancel: u32,
    /// The operator retires the settled run and creates another with the same id.
    pub recreate: u32,
    /// A worker cannot reach the range of one of the first shards. This does not end when the faults stop.
    pub unreachable: u32,
    /// Every holder is asked to split at the same moment.
    pub split_storm: u32,
    /// Nothing gets through for a while, and then everything at once.
    pub overload: u32,
    /// A vandal sends wrong requests on purpose; see [`super::vandal`]. This goes on when the faults have stopped: it must
    /// hinder no worker.
    pub vandal: u32,
}

impl Rates {
    pub(super) const NONE: Self = Self {
        lose_request: 0,
        lose_reply: 0,
        duplicate: 0,
        delay: 0,
        fail_before: 0,
        fail_after: 0,
        pause: 0,
        crash: 0,
        restart: 0,
        park: 0,
        release: 0,
        split_replace: 0,
        split_residual: 0,
        claim_burst: 0,
        order_yield: 0,
        order_split: 0,
        unpark: 0,
        cancel: 0,
        recreate: 0,
        unreachable: 0,
        split_storm: 0,
        overload: 0,
        vandal: 0,
    };

    const STORM: Self = Self {
        lose_request: 30_000,
        lose_reply: 30_000,
        duplicate: 30_000,
        delay: 30_000,
        fail_before: 15_000,
        fail_after: 15_000,
        pause: 8_000,
        crash: 6_000,
        restart: 4_000,
        park: 8_000,
        release: 8_000,
        split_replace: 6_000,
        split_residual: 12_000,
        claim_burst: 4_000,
        order_yield: 60_000,
        order_split: 60_000,
        unpark: 300_000,
        cancel: 3_000,
        recreate: 200_000,
        unreachable: 150_000,
        split_storm: 20_000,
        overload: 20_000,
        vandal: 60_000,
    };

    fn each(&mut self) -> [(&'static str, &mut u32); 23] {
        [
            ("lose_request", &mut self.lose_request),
            ("lose_reply", &mut self.lose_reply),
            ("duplicate", &mut self.duplicate),
            ("delay", &mut self.delay),
            ("fail_before", &mut self.fail_before),
            ("fail_after", &mut self.fail_after),
            ("pause", &mut self.pause),
            ("crash", &mut self.crash),
            ("restart", &mut self.restart),
            ("park", &mut self.park),
            ("release", &mut self.release),
            ("split_replace", &mut self.split_replace),
            ("split_residual", &mut self.split_residual),
            ("claim_burst", &mut self.claim_burst),
            ("order_yield", &mut self.order_yield),
            ("order_split", &mut self.order_split),
            ("unpark", &mut self.unpark),
            ("cancel", &mut self.cancel),
            ("recreate", &mut self.recreate),
            ("unreachable", &mut self.unreachable),
            ("split_storm", &mut self.split_storm),
            ("overload", &mut self.overload),
            ("vandal", &mut self.vandal),
        ]
    }

    fn at(level: Level) -> Self {
        let mut rates = Self::STORM;
        for (name, rate) in rates.each() {
            let deed =
                matches!(name, "unpark" | "release" | "split_replace" | "split_residual" | "recreate" | "unreachable");
            // Deeds that workers do of their own accord they also do on a sunny day.
            let percent = if deed { level.percent().max(50) } else { level.percent() };
            *rate = (u64::from(*rate) * u64::from(percent) / 100).min(500_000) as u32;
        }
        rates
    }
}

/// One world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Decides everything that happens.
    pub seed: u64,
    /// Steps before the faults stop.
    pub steps: u64,
    /// How many workers there are.
    pub workers: u64,
    /// How many of them hold their shards through a session, the code that ships; the others take their own view.
    pub sessions: u64,
    /// How many shards the run begins with.
    pub roots: u64,
    /// How many keys it sweeps.
    pub keys: u16,
    /// How long a lease lasts, in ticks.
    pub lease: u64,
    /// A worker's clock is up to this far off, either way.
    pub skew: u64,
    /// The allowance of a claimant for a foreign deadline.
    pub skew_allowance: u64,
    /// How long a worker waits between successful claims.
    pub cooldown: u64,
    /// Acquisitions without progress after which a shard is parked; 0 for never.
    pub retries: u32,
    /// Most shards there may be.
    pub shards_max: usize,
    /// Shaped like the model's world: claims and renewals are one step, answers are heard at once or never, and a request
    /// is judged by its sender's clock when it arrives.
    pub as_modelled: bool,
    /// The result store lets zombies write: a rule broken on purpose, to see a violation found and told.
    pub rehearsal: bool,
    /// Steps after the run has settled, so that requests still under way meet a settled run.
    pub afterwards: u64,
    /// Rates of faults.
    pub rates: Rates,
    /// Kinds of fault and deed that were switched off, for the replay command.
    pub without: Vec<&'static str>,
}

impl Config {
    /// The world of a seed: its size is drawn, its hostility given.
    pub fn draw(seed: u64, steps: u64, level: Level, swarm: bool) -> Self {
        let mut dice = Dice::new(seed ^ 0x5eed_0f0d_0ddb_a11d);
        let skew = [0, 3, 20][dice.below(3) as usize];
        let mut config = Self {
            seed,
            steps,
            workers: dice.between(2, 6),
            sessions: 0,
            roots: dice.between(1, 5),
            keys: if dice.below(4) == 0 { dice.between(200, 400) } else { dice.between(8, 120) } as u16,
            lease: dice.between(60, 400),
            skew,
            skew_allowance: 2 * skew,
            cooldown: if dice.below(3) == 0 { dice.between(1, 15) } else { 0 },
            retries: if dice.below(2) == 0 { dice.between(2, 6) as u32 } else { 0 },
            shards_max: dice.between(6, 40) as usize,
            as_modelled: false,
            rehearsal: false,
            afterwards: 800,
            rates: Rates::at(level),
            without: Vec::new(),
        };
        config.roots = config.roots.min(u64::from(config.keys));
        config.sessions = if dice.below(2) == 0 { dice.below(config.workers + 1) } else { 0 };
        if swarm {
            for (name, rate) in config.rates.each() {
                // Half of all kinds are off in a swarm world; those that are on are on with a vengeance.
                if dice.below(2) == 0 {
                    *rate = 0;
                    config.without.push(name);
                } else {
                    *rate = (*rate * 2).min(500_000);
                }
            }
        }
        config
    }

    /// A small world in the model's shape, hostile enough that little goes well.
    pub fn modelled(seed: u64) -> Self {
        let mut config = Self::draw(seed, 700, Level::Stormy, false);
        let mut dice = Dice::new(seed ^ 0x7a1e_5eed_0f0d_0001);
        config.as_modelled = true;
        config.afterwards = 40;
        (config.workers, config.sessions) = (dice.between(2, 3), 0);
        config.roots = 1;
        config.keys = dice.between(6, 16) as u16;
        config.lease = dice.between(12, 40);
        config.skew = dice.between(0, 3);
        config.skew_allowance = 2 * config.skew;
        (config.cooldown, config.retries, config.shards_max) = (0, 0, 64);
        for (name, rate) in config.rates.each() {
            *rate = match name {
                // A traced world has one run and no orders; its workers reach everything and ask for nothing wrong.
                "order_yield" | "order_split" | "split_storm" | "vandal" | "recreate" | "unreachable" => 0,
                "lose_request" | "lose_reply" | "duplicate" | "delay" => 150_000,
                "park" | "release" | "split_replace" | "split_residual" => 60_000,
                "fail_before" | "fail_after" => 40_000,
                "pause" | "crash" | "restart" => 20_000,
                "cancel" => 2_000,
                _ => *rate,
            };
        }
        config
    }

    /// The same world without one kind of fault or deed.
    #[must_use]
    pub fn without(&self, kind: &str) -> Self {
        let mut config = self.clone();
        for (name, rate) in config.rates.each() {
            if name == kind {
                *rate = 0;
                config.without.push(name);
            }
        }
        config
    }

    /// Where the shards the run begins with meet.
    pub(super) fn edges(&self) -> impl Iterator<Item = u16> + '_ {
        (0..=self.roots).map(|at| (u64::from(self.keys) * at / self.roots) as u16)
    }

    /// The keys that a worker cannot reach: those of some shards that the run begins with. Some worker reaches each of them.
    pub(super) fn out_of_reach(&self, worker: usize) -> Vec<Range<u16>> {
        let edges: Vec<u16> = self.edges().collect();
        let mut cut_off = Vec::new();
        for (root, pair) in (0_u64..).zip(edges.windows(2)) {
            let mut of_root = Dice::new(self.seed ^ 0x0fa7_4a11_0000_0001 ^ (root << 16));
            let healthy = of_root.below(self.workers) as usize;
            let mut of_worker = Dice::new(of_root.roll() ^ (worker as u64 + 1));
            if worker != healthy && of_worker.happens(self.rates.unreachable) {
                cut_off.push(pair[0]..pair[1]);
            }
        }
        cut_off
    }

    /// A worker that reaches this key.
    pub(super) fn reaches(&self, key: u16) -> Option<usize> {
        (0..self.workers as usize).find(|worker| !self.out_of_reach(*worker).iter().any(|range| range.contains(&key)))
    }

    /// How far each worker's clock is off.
    pub(super) fn clock_offsets(&self) -> Vec<i64> {
        let mut dice = Dice::new(self.seed ^ 0xc10c_0ff5_e750_0001);
        (0..self.workers).map(|_| dice.below(2 * self.skew + 1) as i64 - self.skew as i64).collect()
    }

    /// Every kind of fault and deed there is.
    pub fn all_kinds() -> Vec<&'static str> {
        let mut rates = Rates::NONE;
        rates.each().into_iter().map(|(name, _)| name).collect()
    }

    /// The kinds of fault and deed that are on.
    pub fn kinds(&self) -> Vec<&'static str> {
        let mut rates = self.rates;
        rates.each().into_iter().filter(|(_, rate)| **rate > 0).map(|(name, _)| name).collect()
    }

    /// The same world with nothing going wrong any more.
    pub(super) fn calmed(&self) -> Rates {
        Rates::NONE
    }
}
