//! The bounds of a world, read from the model's own configuration file, so that they have one home.

use std::collections::BTreeSet;
use std::fmt;

/// Bounds of a small world; the constants of `ShardCoordination.tla`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// How many workers there are.
    pub workers: usize,
    /// The run sweeps this many keys.
    pub keys: u8,
    /// How many shards can ever exist.
    pub shards_max: usize,
    /// How many operations with an op id are ever sent.
    pub ops_max: usize,
    /// Entries in a shard's op-log.
    pub op_log_cap: usize,
    /// No acquisition beyond this fence epoch.
    pub fence_max: u64,
    /// Length of a lease.
    pub lease_ticks: u64,
    /// A worker's clock is up to this many ticks ahead.
    pub skew_max: u64,
    /// The allowance of a claimant for a foreign deadline.
    pub skew_tolerance: u64,
    /// Which operations are sent.
    pub kinds: BTreeSet<Kind>,
    /// Whether the run may be cancelled.
    pub cancelling: bool,
    /// How many runs have the same id, one after the other.
    pub incarnation_max: u64,
    /// Whether worlds that differ only in which worker is which count as one (`SYMMETRY WorkersAreAlike`).
    pub workers_alike: bool,
    /// How often all shards together are leased or unparked in a world that is explored further (`CONSTRAINT ThreeLeases`).
    pub leases_max: Option<u64>,
    /// How many distinct states the model has, if its configuration says so.
    pub distinct: Option<u64>,
}

/// The operations that carry an op id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Progress.
    Checkpoint,
    /// The shard is swept.
    Complete,
    /// The shard is given back.
    Release,
    /// The shard is given back, because its worker cannot reach it.
    Unreachable,
    /// The shard is halted.
    Park,
    /// The shard is revived, by an operator.
    Unpark,
    /// Two children take over.
    SplitReplace,
    /// A child takes the upper part.
    SplitResidual,
}

impl Kind {
    /// All of them that a worker sends.
    pub const OF_WORKERS: [Self; 7] = [
        Self::Checkpoint,
        Self::Complete,
        Self::Release,
        Self::Unreachable,
        Self::Park,
        Self::SplitReplace,
        Self::SplitResidual,
    ];

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "checkpoint" => Self::Checkpoint,
            "complete" => Self::Complete,
            "release" => Self::Release,
            "unreachable" => Self::Unreachable,
            "park" => Self::Park,
            "unpark" => Self::Unpark,
            "split_replace" => Self::SplitReplace,
            "split_residual" => Self::SplitResidual,
            _ => return None,
        })
    }
}

/// A configuration that is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundsError(String);

impl fmt::Display for BoundsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for BoundsError {}

impl Bounds {
    /// Reads a TLC configuration of `ShardCoordination.tla`.
    pub fn from_config(text: &str) -> Result<Self, BoundsError> {
        let constant = |name: &str| {
            text.lines()
                .find_map(|line| line.trim().strip_prefix(name)?.trim().strip_prefix('=').map(str::trim))
                .ok_or_else(|| BoundsError(format!("the configuration sets no constant {name}")))
        };
        let number = |name: &str| {
            let value = constant(name)?;
            value.parse::<u64>().map_err(|_| BoundsError(format!("{name} = {value} is not a whole number")))
        };
        let members = |name: &str| {
            let value = constant(name)?;
            let inner = value.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            let inner = inner.ok_or_else(|| BoundsError(format!("{name} = {value} is not a set on one line")))?;
            Ok(inner.split(',').map(|word| word.trim().trim_matches('"').to_string()).collect::<Vec<_>>())
        };
        let kinds = members("Kinds")?;
        let kinds = kinds
            .iter()
            .map(|name| Kind::named(name).ok_or_else(|| BoundsError(format!("Kinds has an unknown operation {name}"))))
            .collect::<Result<_, _>>()?;
        let distinct = text
            .lines()
            .find_map(|line| line.strip_prefix("\\* distinct:"))
            .map(|value| value.trim().parse().map_err(|_| BoundsError(format!("distinct:{value} is not a number"))))
            .transpose()?;
        Ok(Self {
            workers: members("Workers")?.len(),
            keys: u8::try_from(number("KeyCount")?).map_err(|_| BoundsError("KeyCount is over 255".to_string()))?,
            shards_max: number("ShardMax")? as usize,
            ops_max: number("OpMax")? as usize,
            op_log_cap: number("OpLogCap")? as usize,
            fence_max: number("FenceMax")?,
            lease_ticks: number("LeaseTicks")?,
            skew_max: number("SkewMax")?,
            skew_tolerance: number("SkewTolerance")?,
            kinds,
            cancelling: constant("Cancelling")? == "TRUE",
            incarnation_max: number("IncarnationMax")?,
            workers_alike: text.lines().any(|line| line.trim() == "SYMMETRY WorkersAreAlike"),
            leases_max: text.lines().any(|line| line.trim() == "CONSTRAINT ThreeLeases").then_some(3),
            distinct,
        })
    }

    /// Whether sessions matter: where shards are reported as unreachable.
    pub fn knows_sessions(&self) -> bool {
        self.kinds.contains(&Kind::Unreachable)
    }

    /// The orders in which the workers may be named: one, or all of them where they are alike.
    pub fn orders_of_workers(&self) -> Vec<Vec<usize>> {
        let mut orders = vec![Vec::new()];
        for worker in 0..self.workers {
            let places =
                |order: &Vec<usize>| if self.workers_alike { 0..=order.len() } else { order.len()..=order.len() };
            orders = orders
                .iter()
                .flat_map(|order| {
                    places(order).map(|place| {
                        let mut longer = order.clone();
                        longer.insert(place, worker);
                        longer
                    })
                })
                .collect();
        }
        orders
    }
}
