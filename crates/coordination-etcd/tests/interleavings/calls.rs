//! The calls that are interleaved, and the operations that are made of them.

use tessera_contracts::split::{
    DerivedShardKind, SplitReplacePlan, SplitResidualPlan, derive_split_shard_id, plan_split_residual,
};
use tessera_contracts::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, ShardSpec, TenantId};
use tessera_coordination::decide::settle_run::Settlement;

use crate::roots;

pub const TENANT: TenantId = TenantId::from_bytes([3; 32]);
/// The run that every call is about.
pub const RUN: RunId = RunId::new(1);
/// A run of the same tenant that no call is about: it must stay as it is.
pub const NEIGHBOUR: RunId = RunId::new(9);
/// When a start is made.
pub const NOW: LogicalTime = LogicalTime::new(1_000_000);
/// When calls are made.
pub const SOON: LogicalTime = LogicalTime::new(1_001_000);
/// When leases that were granted at [`NOW`] are about to run out. A lease that is renewed then lasts beyond [`LATE`].
pub const JUST_IN_TIME: LogicalTime = LogicalTime::new(1_029_000);
/// When leases that were granted at [`NOW`] have run out.
pub const LATE: LogicalTime = LogicalTime::new(1_040_000);

/// Roots of a registration that fits one transaction.
pub const FEW: usize = 3;
/// Roots of one that takes several.
pub const MANY: usize = 32;
/// Children of a split that fits one transaction.
pub const FEW_CHILDREN: u16 = 3;
/// Children of one that takes several.
pub const MANY_CHILDREN: u16 = 20;

/// One call to a coordinator. Workers and shards go by their numbers; a lease is the one that the worker got at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Create,
    Register {
        roots: usize,
        op: u64,
    },
    CreateWithShards {
        roots: usize,
        op: u64,
    },
    Acquire {
        worker: u64,
        shard: u64,
        at: LogicalTime,
    },
    /// Acquires a child of the split with this op id, as a worker does that found it among the candidates.
    AcquireChild {
        worker: u64,
        parent: u64,
        split: u64,
        index: u32,
    },
    Claim {
        worker: u64,
        at: LogicalTime,
    },
    Renew {
        shards: &'static [u64],
        at: LogicalTime,
    },
    Checkpoint {
        shard: u64,
        key: u8,
        op: u64,
    },
    Complete {
        shard: u64,
        op: u64,
    },
    Park {
        shard: u64,
        op: u64,
    },
    Release {
        shard: u64,
        op: u64,
    },
    /// Releases it because it cannot be reached. What comes of that depends on the sessions that there are.
    Report {
        shard: u64,
        op: u64,
    },
    /// Releases several, the first with this op id, the next with the next.
    Drain {
        shards: &'static [u64],
        op: u64,
    },
    SplitReplace {
        shard: u64,
        children: u16,
        op: u64,
    },
    SplitResidual {
        shard: u64,
        op: u64,
    },
    Unpark {
        shard: u64,
        fence: u64,
        op: u64,
    },
    OrderYield {
        shard: u64,
        fence: u64,
    },
    OrderSplit {
        shard: u64,
        fence: u64,
    },
    Settle {
        settlement: Settlement,
        op: u64,
    },
    Retire,
    /// Retires the run that the start made, and no other of that id.
    RetireNamed,
    /// Collects runs that never got their shards.
    Collect {
        created_before: LogicalTime,
    },
    /// Names the runs that a collection would remove.
    ListStale,
    Heartbeat,
    /// Makes the worker known to all workers of the tenant.
    Join {
        worker: u64,
    },
    /// The worker says that it cannot serve the run that the start made.
    Abstain {
        worker: u64,
    },
    /// It takes that back.
    TakePart {
        worker: u64,
    },
    /// The coordinator ends the worker's session.
    EndSession {
        worker: u64,
    },
    /// The store ends the worker's session. It is no request: it happens at once.
    ExpireSession {
        worker: u64,
    },
    GetRun,
    GetShard {
        shard: u64,
    },
    ListRuns,
    ListActiveRuns,
    ListShards,
    Progress,
    Candidates,
    Explain {
        worker: u64,
    },
}

impl Call {
    /// Whether the in-memory coordinator can play it and answers alike. It has no sessions.
    pub const fn has_memory_form(self) -> bool {
        !matches!(
            self,
            Self::EndSession { .. }
                | Self::ExpireSession { .. }
                | Self::Report { .. }
                | Self::Join { .. }
                | Self::Abstain { .. }
                | Self::TakePart { .. }
        )
    }

    /// Whether its steps may happen in any order.
    pub const fn steps_are_unordered(self) -> bool {
        matches!(self, Self::Renew { .. } | Self::Drain { .. })
    }

    /// How many atomic steps it promises to be made of. Others may come between these, by contract: `create_run_with_shards`
    /// creates, looks and registers; `renew_many` and `drain` answer for each shard by itself; a claim makes its worker known,
    /// parks what no live worker reaches, and grants or refuses, of which memory knows the last alone.
    pub const fn steps(self, in_memory: bool) -> usize {
        match self {
            Self::CreateWithShards { .. } => 3,
            Self::Claim { .. } if !in_memory => 3,
            Self::Renew { shards, .. } | Self::Drain { shards, .. } => shards.len(),
            _ => 1,
        }
    }
}

/// Some calls that one caller makes one after another.
pub type Operation = (&'static str, &'static [Call]);

macro_rules! operations {
    ($($constant:ident = $name:literal: $($call:expr),+;)*) => {
        $(pub const $constant: Operation = ($name, &[$($call),+]);)*

        /// All of them, but for those that would take too long everywhere.
        pub const OPERATIONS: &[Operation] = &[$($constant),*];
    };
}

operations! {
    CREATE = "create": Call::Create;
    REGISTER_FEW = "register-few": Call::Register { roots: FEW, op: 1 };
    REGISTER_MANY = "register-many": Call::Register { roots: MANY, op: 2 };
    CREATE_WITH_FEW = "create-with-few": Call::CreateWithShards { roots: FEW, op: 1 };
    CREATE_WITH_MANY = "create-with-many": Call::CreateWithShards { roots: MANY, op: 2 };
    ACQUIRE_FREE = "acquire-free": Call::Acquire { worker: 3, shard: 3, at: SOON };
    ACQUIRE_FIRST = "acquire-first": Call::Acquire { worker: 2, shard: 1, at: SOON };
    ACQUIRE_LATE = "acquire-late": Call::Acquire { worker: 2, shard: 1, at: LATE };
    ACQUIRE_CHILD = "acquire-child": Call::AcquireChild { worker: 2, parent: 1, split: 18, index: 0 };
    CLAIM = "claim": Call::Claim { worker: 2, at: SOON };
    CLAIM_LATE = "claim-late": Call::Claim { worker: 3, at: LATE };
    RENEW = "renew": Call::Renew { shards: &[1], at: SOON };
    RENEW_JUST_IN_TIME = "renew-just-in-time": Call::Renew { shards: &[1], at: JUST_IN_TIME };
    RENEW_MANY = "renew-many": Call::Renew { shards: &[1, 2], at: SOON };
    CHECKPOINT = "checkpoint": Call::Checkpoint { shard: 1, key: 5, op: 11 };
    COMPLETE = "complete": Call::Complete { shard: 1, op: 12 };
    PARK = "park": Call::Park { shard: 1, op: 13 };
    RELEASE = "release": Call::Release { shard: 1, op: 14 };
    REPORT = "report": Call::Report { shard: 1, op: 16 };
    REPORT_SECOND = "report-second": Call::Report { shard: 2, op: 21 };
    CLAIM_OF_REPORTER = "claim-of-reporter": Call::Claim { worker: 1, at: SOON };
    DRAIN = "drain": Call::Drain { shards: &[1, 2], op: 15 };
    SPLIT_FEW = "split-few": Call::SplitReplace { shard: 1, children: FEW_CHILDREN, op: 17 };
    SPLIT_MANY = "split-many": Call::SplitReplace { shard: 1, children: MANY_CHILDREN, op: 18 };
    SPLIT_MANY_AGAIN = "split-many-again": Call::SplitReplace { shard: 1, children: MANY_CHILDREN, op: 22 };
    SPLIT_SECOND = "split-second": Call::SplitReplace { shard: 2, children: MANY_CHILDREN, op: 18 };
    SPLIT_RESIDUAL = "split-residual": Call::SplitResidual { shard: 1, op: 19 };
    UNPARK = "unpark": Call::Unpark { shard: 1, fence: 2, op: 20 };
    ORDER_YIELD = "order-yield": Call::OrderYield { shard: 1, fence: 2 };
    ORDER_SPLIT = "order-split": Call::OrderSplit { shard: 1, fence: 2 };
    COMPLETE_RUN = "complete-run": Call::Settle { settlement: Settlement::Complete, op: 31 };
    FAIL_RUN = "fail-run": Call::Settle { settlement: Settlement::Fail, op: 32 };
    CANCEL_RUN = "cancel-run": Call::Settle { settlement: Settlement::Cancel, op: 33 };
    RETIRE = "retire": Call::Retire;
    RETIRE_NAMED = "retire-named": Call::RetireNamed;
    COLLECT = "collect": Call::Collect { created_before: LATE };
    COLLECT_OLD = "collect-old": Call::Collect { created_before: SOON };
    LIST_STALE = "list-stale": Call::ListStale;
    RETIRE_AND_RECREATE = "retire-and-recreate": Call::Retire, Call::Create, Call::Register { roots: FEW, op: 1 };
    COLLECT_AND_RECREATE = "collect-and-recreate": Call::Collect { created_before: LATE }, Call::Create, Call::Register { roots: FEW, op: 1 };
    COLLECT_AND_CREATE = "collect-and-create": Call::Collect { created_before: LATE }, Call::Create;
    HEARTBEAT = "heartbeat": Call::Heartbeat;
    JOIN = "join": Call::Join { worker: 4 };
    ABSTAIN = "abstain": Call::Join { worker: 4 }, Call::Abstain { worker: 4 };
    TAKE_PART = "take-part": Call::Join { worker: 4 }, Call::Abstain { worker: 4 }, Call::TakePart { worker: 4 };
    END_SESSION = "end-session": Call::EndSession { worker: 1 };
    EXPIRE_SESSION = "expire-session": Call::ExpireSession { worker: 1 };
    GET_RUN = "get-run": Call::GetRun;
    GET_SHARD = "get-shard": Call::GetShard { shard: 1 };
    LIST_RUNS = "list-runs": Call::ListRuns;
    LIST_ACTIVE_RUNS = "list-active-runs": Call::ListActiveRuns;
    LIST_SHARDS = "list-shards": Call::ListShards;
    PROGRESS = "progress": Call::Progress;
    CANDIDATES = "candidates": Call::Candidates;
    EXPLAIN = "explain": Call::Explain { worker: 2 };
}

/// The run is given up and comes again, and its first shard is split as it was before: names are the same, and nothing else.
pub const START_OVER_FEW: Operation = (
    "start-over-few",
    &[
        Call::Settle { settlement: Settlement::Cancel, op: 33 },
        Call::Retire,
        Call::Create,
        Call::Register { roots: FEW, op: 1 },
        Call::Acquire { worker: 1, shard: 1, at: SOON },
        Call::SplitReplace { shard: 1, children: FEW_CHILDREN, op: 17 },
    ],
);
pub const START_OVER_MANY: Operation = (
    "start-over-many",
    &[
        Call::Settle { settlement: Settlement::Cancel, op: 33 },
        Call::Retire,
        Call::Create,
        Call::Register { roots: FEW, op: 1 },
        Call::Acquire { worker: 1, shard: 1, at: SOON },
        Call::SplitReplace { shard: 1, children: MANY_CHILDREN, op: 18 },
    ],
);

/// The incarnation that a caller gives the run which it creates: another one for every caller.
pub const fn incarnation(caller: usize) -> RunIncarnation {
    RunIncarnation::new(100 + caller as u64)
}

/// The caller that makes a start.
pub const FIRST_CALLER: usize = 0;

/// The operation of that name.
pub fn operation(name: &str) -> Option<Operation> {
    OPERATIONS.iter().chain(&[START_OVER_FEW, START_OVER_MANY]).copied().find(|(known, _)| *known == name)
}

pub const fn key(shard: u64) -> ShardKey {
    ShardKey::new(RUN, ShardId::new(shard))
}

/// The child with that number of the split of a root with this op id.
pub fn child(parent: u64, split: u64, index: u32) -> ShardKey {
    let kind = DerivedShardKind::Child;
    ShardKey::new(RUN, derive_split_shard_id(RUN, ShardId::new(parent), OpId::new(split), kind, index))
}

/// A key of the root with that number.
pub fn key_within(shard: u64, at: u8) -> Vec<u8> {
    [&shard.to_be_bytes()[..], &[at]].concat()
}

pub fn replace_plan(shard: u64, children: u16) -> SplitReplacePlan {
    roots::plan(ShardId::new(shard), children)
}

/// Gives away the second half of a root.
pub fn residual_plan(shard: u64) -> SplitResidualPlan {
    let spec = ShardSpec::new(&shard.to_be_bytes(), &(shard + 1).to_be_bytes(), b"").expect("a valid range");
    plan_split_residual(spec.view(), None, &key_within(shard, 128)).expect("a valid plan")
}
