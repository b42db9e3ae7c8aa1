//! Advice: how many shards of a run can be claimed, and when the next lease ends.
//!
//! A worker does not wait for it and nothing is decided on it, so it may be a little old (`hint_age_max`): one hint serves
//! all acquires and renewals of a run for that long, and most of them carry no read for it. With an age of zero each has
//! its own, read in the same transaction.

use std::borrow::Cow;
use std::collections::HashMap;

use tessera_contracts::{LogicalTime, RunId, ShardId, ShardKey, TenantId};
use tessera_coordination::record::snapshot::CapacityHint;

use super::stored::StoredRun;
use super::{Inner, is_past, lock};
use crate::codec::{FamilyPart, OwnerPart};
use crate::keyspace::{ShardIndex, Window};
use crate::kv::{Kv, Moment, Op, OpResponse, RangeRequest, RangeResponse, Revision, Txn};

/// About how many shards of a run a capacity hint looks at. Smaller runs are counted exactly, larger ones estimated: an
/// exact count would cost the server time with every shard there is, and counters of what is free would make every two
/// claims of a run collide.
const HINT_SHARDS: u32 = 32;
/// Answers to [`Inner::capacity_reads`].
const ANSWERS: usize = 5;
/// How often a hint is read before it is given up, because families come and go meanwhile.
const READS_MAX: usize = 3;
/// Runs of which a hint is kept.
const KEPT_MAX: usize = 4_096;

/// Hints by run, with when they were read.
#[derive(Debug, Default)]
pub(super) struct Hints {
    kept: HashMap<(TenantId, RunId), (CapacityHint, Moment)>,
}

impl<K: Kv> Inner<K> {
    /// The hint that is still good enough. Where it has grown old, one caller is told to read it anew and the others go on
    /// with the old one meanwhile.
    pub(super) fn kept_hint(&self, tenant: TenantId, run: RunId) -> Option<CapacityHint> {
        let age_max = self.config.hint_age_max;
        if age_max.is_zero() {
            return None;
        }
        let now = self.kv.now();
        let mut hints = lock(&self.hints);
        let (hint, read) = hints.kept.get_mut(&(tenant, run))?;
        if now >= read.after(age_max) {
            *read = now;
            return None;
        }
        Some(*hint)
    }

    pub(super) fn keep_hint(&self, tenant: TenantId, run: RunId, hint: CapacityHint) {
        if self.config.hint_age_max.is_zero() {
            return;
        }
        let now = self.kv.now();
        let mut hints = lock(&self.hints);
        if hints.kept.len() >= KEPT_MAX && !hints.kept.contains_key(&(tenant, run)) {
            hints.kept.clear();
        }
        hints.kept.insert((tenant, run), (hint, now));
    }

    /// One fewer to be had, now that this coordinator has taken it. Answers what is left.
    pub(super) fn taken_from_hint(&self, tenant: TenantId, run: RunId, hint: CapacityHint) -> CapacityHint {
        let fewer =
            |hint: CapacityHint| CapacityHint { available_count: hint.available_count.saturating_sub(1), ..hint };
        if let Some((kept, _)) = lock(&self.hints).kept.get_mut(&(tenant, run)) {
            *kept = fewer(*kept);
        }
        fewer(hint)
    }

    /// Which part of a run a hint looks at: all of a small one, a few dozen shards of a large one.
    pub(super) fn capacity_window(&self, run: &StoredRun, near: ShardId) -> Window {
        Window::holding(HINT_SHARDS, u64::from(run.part.root_count), crate::keyspace::point(near))
    }

    pub(super) fn capacity_reads(&self, tenant: TenantId, run: RunId, window: Window) -> Vec<Op> {
        let count = |index| Op::Range(RangeRequest::of(self.space.indexed(index, tenant, run, window)).count_only());
        let owners = Op::Range(RangeRequest::of(self.space.owners(tenant, run, window)));
        let families = Op::Range(self.families(tenant, run, window, HINT_SHARDS));
        vec![count(ShardIndex::Free), count(ShardIndex::Reported), count(ShardIndex::Held), owners, families]
    }

    fn hint(&self, free: i64, held: i64, owners: &RangeResponse, window: Window, now: LogicalTime) -> CapacityHint {
        let live = owners.kvs.iter().filter_map(|kv| OwnerPart::decode(&kv.value).ok());
        let live: Vec<LogicalTime> =
            live.map(|owner| owner.deadline).filter(|deadline| !is_past(*deadline, now, self.skew())).collect();
        let abandoned = u64::try_from(held).unwrap_or(0).saturating_sub(live.len() as u64);
        let available = window.scaled(u64::try_from(free).unwrap_or(0) + abandoned);
        CapacityHint {
            available_count: u32::try_from(available).unwrap_or(u32::MAX),
            earliest_deadline: live.into_iter().min(),
        }
    }

    /// A hint read by itself.
    pub(super) async fn capacity(
        &self,
        tenant: TenantId,
        run: RunId,
        window: Window,
        now: LogicalTime,
        deadline: Moment,
    ) -> CapacityHint {
        let read = Txn::of(self.capacity_reads(tenant, run, window));
        let answers = self.kv.txn(read, deadline).await.map(|answer| answer.responses).unwrap_or_default();
        self.capacity_from(&answers, tenant, run, window, now, deadline).await
    }

    /// The hint that the answers to [`Self::capacity_reads`] give. It is advice: where it cannot be had, none is given.
    pub(super) async fn capacity_from(
        &self,
        answers: &[OpResponse],
        tenant: TenantId,
        run: RunId,
        window: Window,
        now: LogicalTime,
        deadline: Moment,
    ) -> CapacityHint {
        let hint = self.hint_from(answers.into(), tenant, run, window, now, deadline).await.unwrap_or_default();
        self.keep_hint(tenant, run, hint);
        hint
    }

    /// Where there are families, everything is read once more, together with who of them is untouched: numbers of different
    /// moments would add up to what never was.
    async fn hint_from(
        &self,
        mut answers: Cow<'_, [OpResponse]>,
        tenant: TenantId,
        run: RunId,
        window: Window,
        now: LogicalTime,
        deadline: Moment,
    ) -> Option<CapacityHint> {
        use OpResponse::Range;
        let mut asked: Vec<ShardId> = Vec::new();
        for _ in 0..READS_MAX {
            let [Range(free), Range(reported), Range(held), Range(owners), Range(families), hot @ ..] = &answers[..]
            else {
                return None;
            };
            let members = families.kvs.iter().map(|kv| FamilyPart::decode(&kv.value).map(|part| part.children));
            let members = members.collect::<Result<Vec<_>, _>>().ok()?.concat();
            let some = &members[..members.len().min(self.config.txn_ops_max - ANSWERS)];
            if some == asked {
                let untouched = hot.iter().filter(|hot| matches!(hot, Range(hot) if hot.count == 0)).count();
                // Members and families that were not asked about are taken to be like those that were.
                let untouched = untouched * members.len() / asked.len().max(1);
                let untouched = i64::try_from(untouched).ok()? * families.count / (families.kvs.len().max(1) as i64);
                return Some(self.hint(free.count + reported.count + untouched, held.count, owners, window, now));
            }
            let mut reads = self.capacity_reads(tenant, run, window);
            reads.extend(some.iter().map(|child| self.is_touched(tenant, ShardKey::new(run, *child), Revision(0))));
            asked = some.to_vec();
            answers = self.kv.txn(Txn::of(reads), deadline).await.ok()?.responses.into();
        }
        None
    }
}
