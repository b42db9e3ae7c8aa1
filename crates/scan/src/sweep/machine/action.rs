//! What the sweep asks for, and what it is told in return.
//!
//! One action at a time, and one event in return: a worker is sequential, so there is never a question which action an event
//! belongs to. Each action names its answers. Anything but an answer it names is a bug of the driver.

use std::time::Duration;

use tessera_contracts::source_family::{Page, SourceError};
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_contracts::{FenceEpoch, LogicalTime, OpId, RestoredShardState, ShardEpoch, ShardId};
use tessera_coordination::decide::renew::RenewResult;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::session::SessionState;

use crate::findings::SinkError;
use crate::findings::record::Span;
use crate::source::ahead::Ahead;
use crate::source::item::Item;

/// When something happens, and whether the worker is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Now.
    pub now: LogicalTime,
    /// Whether the worker is to hand back what it holds and end.
    pub stops: bool,
    /// Whether another run waits for the worker: it hands back what it holds at the next safe point, and begins nothing.
    pub gives_way: bool,
}

/// What a sweep asks its driver to do.
#[derive(Debug)]
pub enum Action {
    /// Call the coordinator: [`Event::Answered`].
    Call(Call),
    /// Let time pass: [`Event::Woken`].
    Wait(Duration),
    /// Write down which shard is held from where: [`Event::Done`] or [`Event::StoreFailed`].
    Begin {
        /// The shard.
        shard: ShardId,
        /// The epoch it is held under.
        fence: FenceEpoch,
        /// Where it goes on.
        cursor: Option<Vec<u8>>,
    },
    /// Find the target of the shard: [`Event::Done`] or [`Event::SourceFailed`].
    Locate {
        /// The shard, with the description of its target.
        state: RestoredShardState,
        /// Whether earlier owners came and went without progress.
        has_stalled: bool,
    },
    /// See what lies ahead: [`Event::Ahead`].
    LookAhead(RestoredShardState),
    /// Read from this state on, and begin a segment there: [`Event::Done`] or [`Event::SourceFailed`].
    Open(RestoredShardState),
    /// Read names and sizes: [`Event::Paged`], [`Event::SourceFailed`] or [`Event::Interrupted`].
    NextPage,
    /// Read an item: [`Event::Read`], [`Event::SourceFailed`], [`Event::StoreFailed`] or [`Event::Interrupted`].
    Read(Item),
    /// There are no more items below this key; what was planned there and not met is missing: [`Event::Passed`] or
    /// [`Event::SourceFailed`].
    Pass {
        /// The end of the shard.
        end: Vec<u8>,
    },
    /// Look whether the target can still be read: [`Event::Done`] or [`Event::SourceFailed`].
    Look,
    /// Make the segment durable with all its findings: [`Event::Done`] or [`Event::StoreFailed`].
    MakeDurable(Span),
    /// Forget what was found since the last segment: [`Event::Done`].
    Abandon {
        /// Whether the source failed for good, so that it is opened anew when it is met again.
        forget_source: bool,
    },
    /// The shard is over for this worker: [`Event::Done`].
    ShardOver(ShardEnd),
    /// The worker is done. No event follows, or [`Event::Done`] to begin anew.
    End(SweepEnd),
}

/// A call to the coordinator. Those with an op id are repeated with the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// A shard of the run: [`Answer::Granted`] or [`Answer::NothingToClaim`].
    Claim,
    /// How many shards are open: [`Answer::Open`].
    CountOpen,
    /// Which shards others hold: [`Answer::Held`].
    ListHeld,
    /// Ask the owner of a shard to give half of it away: [`Answer::Done`].
    RequestSplit {
        /// The shard.
        shard: ShardId,
        /// Its owner's epoch.
        epoch: ShardEpoch,
    },
    /// Keep the lease: [`Answer::Renewed`].
    Renew,
    /// Move the cursor: [`Answer::Done`].
    Checkpoint {
        /// The last key done.
        cursor: Option<Vec<u8>>,
        /// Its idempotency key.
        op_id: OpId,
    },
    /// The shard is done: [`Answer::Done`].
    Complete {
        /// The last key done, if there was one.
        cursor: Option<Vec<u8>>,
        /// Its idempotency key.
        op_id: OpId,
    },
    /// Give the shard back: [`Answer::Done`].
    Release {
        /// Why.
        reason: HandBack,
        /// Its idempotency key.
        op_id: OpId,
    },
    /// Put the shard aside: [`Answer::Done`].
    Park {
        /// Why.
        reason: ParkReason,
        /// The same in words, ready to be displayed.
        detail: String,
        /// Its idempotency key.
        op_id: OpId,
    },
    /// Give the upper part away: [`Answer::Split`].
    SplitResidual {
        /// Where to cut.
        plan: SplitResidualPlan,
        /// Its idempotency key.
        op_id: OpId,
    },
    /// Cut the shard into several: [`Answer::Done`].
    SplitReplace {
        /// Where to cut.
        plan: SplitReplacePlan,
        /// Its idempotency key.
        op_id: OpId,
    },
}

/// Why a shard is given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandBack {
    /// It is of another creation of the run.
    Foreign,
    /// The worker stops.
    Stopping,
    /// The coordinator asked for it.
    Asked,
    /// Another run waits for the worker.
    GivingWay,
    /// The target cannot be read from here; why, ready to be displayed.
    Unreachable(String),
}

/// What the coordinator answers. Any call may also be [`Answer::Lost`], [`Answer::Failed`] or [`Answer::RunSettled`].
#[derive(Debug)]
pub enum Answer {
    /// The shard that was granted.
    Granted(Box<Granted>),
    /// No shard can be claimed now.
    NothingToClaim,
    /// So many shards are open.
    Open(u64),
    /// Shards that others hold.
    Held(Vec<Held>),
    /// The lease was extended; perhaps something is asked.
    Renewed(RenewResult),
    /// The rest was split off as this shard.
    Split(ShardId),
    /// It took effect, now or before.
    Done,
    /// The shard is not held any more.
    Lost,
    /// The run is over, or there is none.
    RunSettled,
    /// It is not known whether it took effect, if the failure is transient.
    Failed(CallFailure),
}

/// Why a call failed although the shard is still held, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFailure {
    /// What the coordinator says.
    pub message: String,
    /// Whether the same call may succeed later.
    pub is_transient: bool,
}

/// A shard that was granted.
#[derive(Debug)]
pub struct Granted {
    /// The lease and the shard as it is.
    pub session: SessionState,
    /// Whether earlier owners came and went without progress.
    pub has_stalled: bool,
}

/// A shard that another worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The shard.
    pub shard: ShardId,
    /// Its owner's epoch.
    pub epoch: ShardEpoch,
}

/// What a driver tells a sweep.
#[derive(Debug)]
pub enum Event {
    /// It is done.
    Done,
    /// What the coordinator answers.
    Answered(Answer),
    /// The wait is over.
    Woken,
    /// What lies ahead, if that can be told.
    Ahead(Option<Ahead>),
    /// Items that follow.
    Paged(Page<Item>),
    /// An item was read.
    Read {
        /// The item.
        item: Item,
        /// Planned items of the segment that were not met so far.
        missing: u64,
        /// Whether it is to be made durable at once.
        wants_safe_point: bool,
    },
    /// Planned items of the segment that were not met.
    Passed {
        /// How many.
        missing: u64,
    },
    /// It was not read to its end: the lease is gone, or the worker is to stop.
    Interrupted,
    /// The source cannot be read; its words are ready to be displayed.
    SourceFailed(SourceError),
    /// Findings cannot be made durable.
    StoreFailed(SinkError),
}

/// How a shard ended for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardEnd {
    /// Swept to its end.
    Done,
    /// Given back.
    HandedBack,
    /// Put aside.
    Parked,
    /// Cut into several, for any worker to claim.
    Replaced,
    /// Taken over by another owner, or not known to be held.
    Lost,
    /// The run is over.
    RunSettled,
}

/// How a sweep ended.
#[derive(Debug)]
pub enum SweepEnd {
    /// Nothing is left to do.
    Finished,
    /// There was nothing to do for longer than the worker has patience.
    Idle,
    /// The worker was told to stop, and handed back what it held.
    Stopped,
    /// Another run waits for the worker, which handed back what it held.
    GaveWay,
    /// The run is over.
    RunSettled,
    /// Findings cannot be made durable.
    StoreFailed(SinkError),
    /// The coordinator fails.
    CoordinatorFailed(CallFailure),
}
