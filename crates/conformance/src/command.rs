//! The commands of a story, one per operation of the protocol.
//!
//! A command prints as it is written, so that a random sequence that found something can be pasted into a file as a story.

use std::fmt;

use tessera_contracts::{CursorSemantics, LogicalTime};
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::ParkDetail;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::record::unreachable::Unreachable;
use tessera_coordination::run::config::{DEFAULT_MAX_SHARD_RETRIES, RunConfig};
use tessera_coordination::run::summary::ShardFilter;

use crate::text::{CursorText, EpochText, RangeText, ShardName};

/// One operation id, or several for as many repetitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ops {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Ops {
    pub(crate) const fn one(op: u64) -> Self {
        Self { first: op, last: op }
    }
}

impl fmt::Display for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}..{}", self.first, self.last) }
    }
}

/// Whose lease is presented: the latest this worker got, or the one of that ownership, or one of another tenant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) tenant: Option<String>,
    pub(crate) worker: u64,
    pub(crate) epoch: Option<EpochText>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tenant) = &self.tenant {
            write!(f, "{tenant}:")?;
        }
        write!(f, "w{}", self.worker)?;
        match self.epoch {
            Some(epoch) => write!(f, "#{epoch}"),
            None => Ok(()),
        }
    }
}

/// A root shard as written: `1=[a,m)`, with `@c~token` behind it if it starts with progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RootText {
    pub(crate) shard: u64,
    pub(crate) range: RangeText,
    pub(crate) cursor: CursorText,
}

/// The root shards of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Roots {
    Listed(Vec<RootText>),
    /// Shards with these numbers, each over the keys that begin with its number.
    Numbered {
        first: u64,
        last: u64,
    },
}

impl fmt::Display for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbered { first, last } => write!(f, " {first}..{last}"),
            Self::Listed(roots) => roots.iter().try_for_each(|root| {
                write!(f, " {}={}", root.shard, root.range)?;
                if root.cursor == CursorText::default() { Ok(()) } else { write!(f, "@{}", root.cursor) }
            }),
        }
    }
}

/// How a shard is to be replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReplaceText {
    With(Vec<RangeText>),
    Evenly(usize),
}

/// How a shard is to be shrunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ResidualText {
    Parts { kept: RangeText, residual: RangeText },
    KeepPercent(u32),
}

/// An order to a holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OrderText {
    Yield,
    KeepPercent(u32),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    CreateRun {
        run: u64,
        /// What the creator drew; otherwise a number that none drew before.
        incarnation: Option<u64>,
        config: RunConfig,
    },
    Register {
        run: u64,
        roots: Roots,
        op: Ops,
    },
    Start {
        run: u64,
        /// What the creator drew; otherwise a number that none drew before.
        incarnation: Option<u64>,
        config: RunConfig,
        roots: Roots,
        op: Ops,
    },
    Settle {
        run: u64,
        settlement: Settlement,
        op: Ops,
    },
    Retire {
        settled_until: u64,
        limit: usize,
    },
    ShowRun {
        run: u64,
    },
    ShowShard {
        shard: ShardName,
    },
    ListRuns {
        after: Option<u64>,
        limit: usize,
    },
    ListShards {
        run: u64,
        filter: ShardFilter,
        limit: usize,
    },
    Progress {
        run: u64,
    },
    Candidates {
        run: u64,
        /// The worker; a stranger if none is named.
        worker: u64,
        limit: usize,
    },
    Explain {
        run: u64,
        worker: u64,
    },
    Unpark {
        shard: ShardName,
        epoch: EpochText,
        op: Ops,
    },
    Order {
        shard: ShardName,
        epoch: EpochText,
        order: OrderText,
    },
    Acquire {
        worker: u64,
        shard: ShardName,
    },
    Claim {
        worker: u64,
        run: u64,
    },
    Renew {
        holder: Holder,
        shards: Vec<ShardName>,
    },
    Checkpoint {
        holder: Holder,
        shard: ShardName,
        cursor: CursorText,
        op: Ops,
    },
    Complete {
        holder: Holder,
        shard: ShardName,
        cursor: CursorText,
        op: Ops,
    },
    Park {
        holder: Holder,
        shard: ShardName,
        reason: ParkReason,
        detail: Option<String>,
        retry_after: Option<u64>,
        op: Ops,
    },
    Replace {
        holder: Holder,
        shard: ShardName,
        plan: ReplaceText,
        op: Ops,
    },
    Split {
        holder: Holder,
        shard: ShardName,
        plan: ResidualText,
        op: Ops,
    },
    Release {
        holder: Holder,
        shard: ShardName,
        cursor: Option<CursorText>,
        reason: ReleaseText,
        op: Ops,
    },
    Drain {
        holder: Holder,
        held: Vec<(ShardName, Option<CursorText>)>,
        op: Ops,
    },
    LoseSession {
        worker: u64,
    },
}

/// Shows everything, unless a story says otherwise.
pub(crate) const LIMIT_DEFAULT: usize = 1_000;

impl Command {
    /// The operation of the protocol that it exercises.
    pub(crate) const fn operation(&self) -> &'static str {
        match self {
            Self::CreateRun { .. } => "create_run",
            Self::Register { .. } => "register_shards",
            Self::Start { .. } => "create_run_with_shards",
            Self::Settle { settlement: Settlement::Complete, .. } => "complete_run",
            Self::Settle { settlement: Settlement::Fail, .. } => "fail_run",
            Self::Settle { settlement: Settlement::Cancel, .. } => "cancel_run",
            Self::Retire { .. } => "retire_runs",
            Self::ShowRun { .. } => "get_run",
            Self::ShowShard { .. } => "get_shard",
            Self::ListRuns { .. } => "list_runs_into",
            Self::ListShards { .. } => "list_shards_into",
            Self::Progress { .. } => "get_run_progress",
            Self::Candidates { .. } => "collect_claim_candidates_into",
            Self::Explain { .. } => "explain_claim",
            Self::Unpark { .. } => "unpark_shard",
            Self::Order { order: OrderText::Yield, .. } => "request_yield",
            Self::Order { order: OrderText::KeepPercent(_), .. } => "request_split",
            Self::Acquire { .. } => "acquire_and_restore_into",
            Self::Claim { .. } => "claim_next_available",
            Self::Renew { shards, .. } => {
                if shards.len() == 1 {
                    "renew"
                } else {
                    "renew_many"
                }
            }
            Self::Checkpoint { .. } => "checkpoint",
            Self::Complete { .. } => "complete",
            Self::Park { .. } => "park_shard",
            Self::Replace { .. } => "split_replace",
            Self::Split { .. } => "split_residual",
            Self::Release { .. } => "release",
            Self::Drain { .. } => "drain",
            Self::LoseSession { .. } => "lose_session",
        }
    }

    /// The shards it names.
    pub(crate) fn shards(&self) -> Vec<&ShardName> {
        match self {
            Self::ShowShard { shard }
            | Self::Unpark { shard, .. }
            | Self::Order { shard, .. }
            | Self::Acquire { shard, .. }
            | Self::Checkpoint { shard, .. }
            | Self::Complete { shard, .. }
            | Self::Park { shard, .. }
            | Self::Replace { shard, .. }
            | Self::Split { shard, .. }
            | Self::Release { shard, .. } => vec![shard],
            Self::Renew { shards, .. } => shards.iter().collect(),
            Self::Drain { held, .. } => held.iter().map(|(shard, _)| shard).collect(),
            _ => Vec::new(),
        }
    }
}

/// A park reason in one word.
pub(crate) fn reason_text(reason: ParkReason) -> String {
    reason.as_str().replace(' ', "-")
}

/// Why a shard is given back, as written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReleaseText {
    Released,
    Yielded,
    Drained,
    Unreachable { detail: Option<String>, retry_after: Option<u64> },
}

impl ReleaseText {
    /// The reason itself.
    pub(crate) fn build(&self) -> ReleaseReason<'_> {
        match self {
            Self::Released => ReleaseReason::Released,
            Self::Yielded => ReleaseReason::Yielded,
            Self::Drained => ReleaseReason::Drained,
            Self::Unreachable { detail, retry_after } => ReleaseReason::Unreachable(Unreachable {
                detail: detail.as_deref().and_then(ParkDetail::new),
                retry_after: retry_after.map(LogicalTime::new),
            }),
        }
    }
}

impl fmt::Display for ReleaseText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("released"),
            Self::Yielded => f.write_str("yielded"),
            Self::Drained => f.write_str("drained"),
            Self::Unreachable { detail, retry_after } => {
                f.write_str("unreachable")?;
                if let Some(detail) = detail {
                    write!(f, " saying \"{detail}\"")?;
                }
                match retry_after {
                    Some(retry_after) => write!(f, " retry after {retry_after}"),
                    None => Ok(()),
                }
            }
        }
    }
}

struct DrawnText(Option<u64>);

impl fmt::Display for DrawnText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(incarnation) => write!(f, " incarnation {incarnation}"),
            None => Ok(()),
        }
    }
}

struct ConfigText(RunConfig);

impl fmt::Display for ConfigText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunConfig { cursor_semantics, lease_duration, max_shard_retries } = self.0;
        if let Some(duration) = lease_duration {
            write!(f, " lease {duration}")?;
        }
        if max_shard_retries != DEFAULT_MAX_SHARD_RETRIES {
            write!(f, " retries {max_shard_retries}")?;
        }
        if cursor_semantics == CursorSemantics::Dispatched { f.write_str(" dispatched") } else { Ok(()) }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateRun { run, incarnation, config } => {
                write!(f, "create run {run}{}{}", DrawnText(*incarnation), ConfigText(*config))
            }
            Self::Register { run, roots, op } => write!(f, "register run {run} shards{roots} op {op}"),
            Self::Start { run, incarnation, config, roots, op } => {
                let (drawn, config) = (DrawnText(*incarnation), ConfigText(*config));
                write!(f, "start run {run}{drawn}{config} shards{roots} op {op}")
            }
            Self::Settle { run, settlement, op } => {
                let verb = match settlement {
                    Settlement::Complete => "complete",
                    Settlement::Fail => "fail",
                    Settlement::Cancel => "cancel",
                };
                write!(f, "{verb} run {run} op {op}")
            }
            Self::Retire { settled_until, limit } => write!(f, "retire runs settled by {settled_until} limit {limit}"),
            Self::ShowRun { run } => write!(f, "show run {run}"),
            Self::ShowShard { shard } => write!(f, "show {shard}"),
            Self::ListRuns { after, limit } => {
                f.write_str("list runs")?;
                if let Some(after) = after {
                    write!(f, " after {after}")?;
                }
                write!(f, " limit {limit}")
            }
            Self::ListShards { run, filter, limit } => {
                write!(f, "list shards of run {run}")?;
                match filter {
                    ShardFilter { available_only: true, .. } => f.write_str(" available")?,
                    ShardFilter { status: Some(status), .. } => write!(f, " {status}")?,
                    ShardFilter { status: None, .. } => f.write_str(" all")?,
                }
                if filter.root_only {
                    f.write_str(" roots")?;
                }
                write!(f, " limit {limit}")
            }
            Self::Progress { run } => write!(f, "progress of run {run}"),
            Self::Candidates { run, worker, limit } => {
                write!(f, "candidates of run {run}")?;
                if *worker != 0 {
                    write!(f, " for w{worker}")?;
                }
                write!(f, " limit {limit}")
            }
            Self::Explain { run, worker } => write!(f, "explain run {run} for w{worker}"),
            Self::Unpark { shard, epoch, op } => write!(f, "unpark {shard} expecting fence {epoch} op {op}"),
            Self::Order { shard, epoch, order: OrderText::Yield } => write!(f, "ask {shard} at fence {epoch} to yield"),
            Self::Order { shard, epoch, order: OrderText::KeepPercent(kept) } => {
                write!(f, "ask {shard} at fence {epoch} to keep {kept}%")
            }
            Self::Acquire { worker, shard } => write!(f, "w{worker} acquires {shard}"),
            Self::Claim { worker, run } => write!(f, "w{worker} claims run {run}"),
            Self::Renew { holder, shards } => {
                write!(f, "{holder} renews")?;
                shards.iter().try_for_each(|shard| write!(f, " {shard}"))
            }
            Self::Checkpoint { holder, shard, cursor, op } => {
                write!(f, "{holder} checkpoints {shard} at {cursor} op {op}")
            }
            Self::Complete { holder, shard, cursor, op } => write!(f, "{holder} completes {shard} at {cursor} op {op}"),
            Self::Park { holder, shard, reason, detail, retry_after, op } => {
                write!(f, "{holder} parks {shard} for {}", reason_text(*reason))?;
                if let Some(detail) = detail {
                    write!(f, " saying \"{detail}\"")?;
                }
                if let Some(retry_after) = retry_after {
                    write!(f, " retry after {retry_after}")?;
                }
                write!(f, " op {op}")
            }
            Self::Replace { holder, shard, plan: ReplaceText::With(children), op } => {
                write!(f, "{holder} replaces {shard} with")?;
                children.iter().try_for_each(|child| write!(f, " {child}"))?;
                write!(f, " op {op}")
            }
            Self::Replace { holder, shard, plan: ReplaceText::Evenly(count), op } => {
                write!(f, "{holder} replaces {shard} evenly {count} op {op}")
            }
            Self::Split { holder, shard, plan: ResidualText::Parts { kept, residual }, op } => {
                write!(f, "{holder} splits {shard} keeping {kept} giving {residual} op {op}")
            }
            Self::Split { holder, shard, plan: ResidualText::KeepPercent(kept), op } => {
                write!(f, "{holder} splits {shard} keeping {kept}% op {op}")
            }
            Self::Release { holder, shard, cursor, reason, op } => {
                write!(f, "{holder} releases {shard}")?;
                if let Some(cursor) = cursor {
                    write!(f, " at {cursor}")?;
                }
                write!(f, " because {reason} op {op}")
            }
            Self::Drain { holder, held, op } => {
                write!(f, "{holder} drains")?;
                for (shard, cursor) in held {
                    write!(f, " {shard}")?;
                    if let Some(cursor) = cursor {
                        write!(f, "@{cursor}")?;
                    }
                }
                write!(f, " op {op}")
            }
            Self::LoseSession { worker } => write!(f, "w{worker} loses its session"),
        }
    }
}
