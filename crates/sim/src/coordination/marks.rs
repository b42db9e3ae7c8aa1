//! Proof that the interesting paths were taken: a world that never meets a zombie proves nothing about zombies.

use std::collections::BTreeMap;

use tessera_coordination::error::LeaseRefused;
use tessera_coordination::record::history::MoveReason;
use tessera_coordination::record::status::{ParkReason, ShardStatus};

use super::call::{Answer, Caller, Outcome, Request, Why};
use super::refusal::Refusal;
use super::vandal;
use super::watch::Sight;

/// How often each path was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks(BTreeMap<&'static str, u64>);

/// Paths that only a backend with a store of its own can take: on a disk, and on etcd.
pub const OF_STORES: [&str; 3] = [
    "a store lost its power and came back",
    "a store lost sight of a live holder",
    "a call went through after a compare-and-set had missed",
];

/// Every path that has to be taken sometime.
pub const ALL: [&str; 44] = [
    "a shard was taken over from an expired lease",
    "a shard was taken up again after a release",
    "a shard was taken up again after an unpark",
    "a zombie's result was refused",
    "a zombie's write was refused by its fence",
    "an expired lease was refused",
    "an operation on a settled shard was refused",
    "an operation in a settled run was refused",
    "a retry was answered from the op-log",
    "a retry was told that its park was undone",
    "a forgotten residual split was recognised by its child",
    "a store failed after the effect",
    "a checkpoint was recorded",
    "a shard was completed",
    "a shard was parked by its worker",
    "a shard was parked for using up its retries",
    "a shard was replaced by children",
    "a shard split off the rest",
    "a split was refused",
    "a late unpark was refused",
    "a worker was throttled",
    "a worker drained before a restart",
    "a worker yielded when asked",
    "a worker heard that the run was cancelled",
    "a holder was asked to split",
    "a request came from a clock that was behind",
    "a request arrived once more",
    "a request arrived after a later one",
    "a split was refused for want of room",
    "every holder was asked to split at once",
    "an overloaded backend answered everything at once",
    "everybody claimed at once",
    "a session ended as it wished",
    "a session lost its hold",
    "a session stood through a failure",
    "a session split at a safe point",
    "a run was completed",
    "a run was cancelled while shards were leased",
    "a run was retired and created again",
    "an operation met no run",
    "an operation of a former incarnation was refused",
    "a worker could not reach its shard",
    "a shard was taken up by another worker than the one that could not reach it",
    "a shard was parked because no worker was left to reach it",
];

impl Marks {
    /// Notes that a path was taken.
    pub fn note(&mut self, mark: &'static str) {
        let is_listed = || ALL.iter().chain(&OF_STORES).chain(&vandal::WAYS).any(|listed| *listed == mark);
        debug_assert!(is_listed(), "{mark} is not on the list");
        *self.0.entry(mark).or_default() += 1;
    }

    /// How often it was.
    pub fn count(&self, mark: &str) -> u64 {
        self.0.get(mark).copied().unwrap_or_default()
    }

    /// Adds the marks of another world.
    pub fn add(&mut self, other: &Self) {
        for (mark, count) in &other.0 {
            *self.0.entry(mark).or_default() += count;
        }
    }

    /// The paths not taken.
    pub fn missing(&self) -> Vec<&'static str> {
        ALL.into_iter().chain(vandal::WAYS).filter(|mark| self.count(mark) == 0).collect()
    }

    /// Notes the paths of a call. The vandal's sender notes its calls in its own words.
    pub fn see(&mut self, sight: &Sight<'_>) {
        if matches!(sight.call.caller, Caller::Vandal | Caller::Stranger) {
            return;
        }
        if sight.worker().is_some_and(|worker| sight.clock_offsets[worker] < 0) {
            self.note("a request came from a clock that was behind");
        }
        if let (Some(before), Some(after)) = (sight.vouched_before, sight.vouched) {
            let held = |shard| sight.records.get(shard).is_some_and(|record| record.state.head.lease.is_some());
            if before.difference(after).any(held) {
                self.note("a store lost sight of a live holder");
            }
        }
        match (&sight.call.request, sight.answer) {
            (Request::Claim, Answer::Throttled) => self.note("a worker was throttled"),
            (Request::Claim | Request::Acquire { .. }, Answer::Granted { lease, .. }) => {
                let record = sight.records.get(&lease.shard());
                match record.and_then(|record| record.state.history.iter().last()).map(|ownership| ownership.reason) {
                    Some(MoveReason::Expired) => self.note("a shard was taken over from an expired lease"),
                    Some(MoveReason::Released) => self.note("a shard was taken up again after a release"),
                    Some(MoveReason::Unreachable) => {
                        self.note("a shard was taken up by another worker than the one that could not reach it");
                    }
                    Some(MoveReason::Unparked) => self.note("a shard was taken up again after an unpark"),
                    _ => {}
                }
            }
            (Request::Renew { .. }, Answer::Renewed(renewed)) if renewed.orders.cancelled.is_some() => {
                self.note("a worker heard that the run was cancelled");
            }
            (Request::Order { .. }, Answer::Accepted { .. }) => self.note("a holder was asked to split"),
            (_, Answer::Refused(Refusal::Lease(refused))) => match refused {
                LeaseRefused::StaleFence { .. } => self.note("a zombie's write was refused by its fence"),
                LeaseRefused::Expired { .. } => self.note("an expired lease was refused"),
                LeaseRefused::Terminal { .. } => self.note("an operation on a settled shard was refused"),
                LeaseRefused::OwnerDivergence { .. } => {}
            },
            (_, Answer::Refused(Refusal::OtherIncarnation)) => {
                self.note("an operation of a former incarnation was refused");
            }
            (_, Answer::Refused(Refusal::NoSuchShard)) if sight.run_before.is_none() => {
                self.note("an operation met no run");
            }
            (_, Answer::Refused(Refusal::RunSettled)) => self.note("an operation in a settled run was refused"),
            (Request::SplitReplace { .. } | Request::SplitResidual { .. }, Answer::Refused(Refusal::TooManyShards)) => {
                self.note("a split was refused for want of room");
            }
            (Request::SplitReplace { .. } | Request::SplitResidual { .. }, Answer::Refused(_)) => {
                self.note("a split was refused");
            }
            (Request::Unpark { .. }, Answer::Refused(_)) => self.note("a late unpark was refused"),
            (request, Answer::Accepted { outcome, .. }) => self.see_accepted(sight, request, *outcome),
            _ => {}
        }
        let exhausted = sight.changes.iter().any(|change| {
            let now = change.after.state.head;
            let was_open = change.before.as_ref().is_some_and(|before| before.state.head.status == ShardStatus::Active);
            let because = now.park.map(|park| park.reason) == Some(ParkReason::TooManyErrors);
            was_open && because && matches!(sight.call.request, Request::Claim)
        });
        let deserted = sight.changes.iter().any(|change| {
            let because = change.after.state.head.park.map(|park| park.reason) == Some(ParkReason::Unreachable);
            let was_open = change.before.as_ref().is_some_and(|before| before.state.head.status == ShardStatus::Active);
            was_open && because && !matches!(sight.call.request, Request::Park { .. })
        });
        if deserted {
            self.note("a shard was parked because no worker was left to reach it");
        }
        if exhausted {
            self.note("a shard was parked for using up its retries");
        }
    }

    fn see_accepted(&mut self, sight: &Sight<'_>, request: &Request, outcome: Outcome) {
        match (request, outcome) {
            (Request::Park { .. }, Outcome::Superseded) => self.note("a retry was told that its park was undone"),
            (Request::SplitResidual { op, .. }, Outcome::Replayed) => {
                let logged = sight.named_before().is_some_and(|before| before.state.op_log.find(*op).is_some());
                let how = if logged {
                    "a retry was answered from the op-log"
                } else {
                    "a forgotten residual split was recognised by its child"
                };
                self.note(how);
            }
            (_, Outcome::Replayed | Outcome::Superseded) => self.note("a retry was answered from the op-log"),
            (Request::Checkpoint { .. }, Outcome::Executed) => self.note("a checkpoint was recorded"),
            (Request::Complete { .. }, Outcome::Executed) => self.note("a shard was completed"),
            (Request::Park { .. }, Outcome::Executed) => self.note("a shard was parked by its worker"),
            (Request::SplitReplace { .. }, Outcome::Executed) => self.note("a shard was replaced by children"),
            (Request::SplitResidual { .. }, Outcome::Executed) => self.note("a shard split off the rest"),
            (Request::Release { why: Why::Drained, .. }, Outcome::Executed) => {
                self.note("a worker drained before a restart");
            }
            (Request::Release { why: Why::Yielded, .. }, Outcome::Executed) => {
                self.note("a worker yielded when asked");
            }
            (Request::Release { why: Why::Unreachable(_), .. }, Outcome::Executed) => {
                self.note("a worker could not reach its shard");
            }
            (Request::CompleteRun { .. }, Outcome::Executed) => self.note("a run was completed"),
            (Request::CancelRun { .. }, Outcome::Executed)
                if sight.records.values().any(|record| record.state.head.lease.is_some()) =>
            {
                self.note("a run was cancelled while shards were leased");
            }
            _ => {}
        }
    }
}
