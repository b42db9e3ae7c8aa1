//! Claims of shards that some worker could not reach.
//!
//! They lie in an index of their own, so that a claim meets them only when nothing else is left. It then goes through a page of
//! them, from where the last such claim ended: one that the claimant has not reported may be granted to it; one that it has
//! reported is parked if no other worker is left that might reach it.

use std::sync::Arc;

use bytes::Bytes;
use tessera_contracts::{LogicalTime, RunId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::decide::acquire::{is_claimable_by, is_open};
use tessera_coordination::decide::claim::{CLAIM_ATTEMPTS_MAX, after_failed_acquire};
use tessera_coordination::decide::unreachable::{self, held_back_until, is_reported_by};
use tessera_coordination::error::{ClaimError, InfraError};
use tessera_coordination::events::EventKind;

use super::acquire::{Acquired, Granted};
use super::commit::{Commit, Transition};
use super::families::behind;
use super::present::{Asked, Creation, Present};
use super::stored::{ShardPaths, StoredShard, assemble};
use super::{Inner, failed, lock};
use crate::keyspace::{ShardIndex, Window, shard_of};
use crate::kv::{Keys, Kv, Moment, Op, OpResponse, RangeRequest, Revision, Txn};
use tessera_coordination::operation::Guard;

const CLAIM: &str = "claim_next_available";

/// Reported shards of one page, and pages that one claim looks at. What lies behind them is for the next claim.
const PAGE: u32 = 64;
const PAGES_MAX: usize = 4;

/// Who claims, and in which run.
#[derive(Clone, Copy)]
pub(super) struct Claimant {
    pub(super) tenant: TenantId,
    pub(super) run: RunId,
    pub(super) worker: WorkerId,
}

/// Some of a run's reported shards.
struct Page {
    shards: Vec<ShardId>,
    /// Where the next one begins, if this is not the last.
    next: Option<Bytes>,
    from_the_start: bool,
    /// When the run's record was last written by then.
    run_revision: Revision,
}

/// What a look at the reported shards came to.
pub(super) enum Reported {
    /// One of them could be had.
    Granted(Box<Granted>),
    /// None, before this time at least.
    None {
        held_back_until: Option<LogicalTime>,
        /// When the run's record was last written by then. If that is not when it was read before, the run may be settled or
        /// gone, and that nothing could be had says nothing about it.
        run_revision: Revision,
    },
}

/// What a look at some of them came to.
enum OneOf {
    Granted(Box<Granted>),
    None { held_back_until: Option<LogicalTime> },
}

impl<K: Kv> Inner<K> {
    /// Looks for a reported shard that the claimant may have, and parks those that no worker is left for. `passed_over` are
    /// shards that are no longer held and that the claimant has reported.
    pub(super) async fn claim_reported(
        &self,
        now: LogicalTime,
        claimant: Claimant,
        passed_over: Vec<ShardId>,
        events: &mut Vec<EventKind>,
        deadline: Moment,
    ) -> Result<Reported, ClaimError> {
        let Claimant { tenant, run, .. } = claimant;
        let first = lock(&self.claims).reported_from(tenant, run);
        let (mut from, mut shards, mut soonest) = (first.clone(), passed_over, None);
        let mut run_revision = Revision(0);
        for _ in 0..PAGES_MAX {
            let page = self.reported_page(tenant, run, from.take(), deadline).await?;
            shards.extend(page.shards);
            run_revision = page.run_revision;
            if !shards.is_empty() {
                match self.claim_one_of(now, claimant, &shards, events, deadline).await? {
                    OneOf::Granted(granted) => return Ok(Reported::Granted(granted)),
                    OneOf::None { held_back_until } => soonest = soonest.into_iter().chain(held_back_until).min(),
                }
                let (stored, _) = self.find_run(CLAIM, tenant, run, deadline).await?;
                run_revision = stored.map_or(Revision(0), |stored| stored.revision);
            }
            shards.clear();
            let all_seen = match (&first, &page.next) {
                (None, next) => next.is_none(),
                (Some(first), Some(next)) => page.from_the_start && next >= first,
                (Some(_), None) => page.from_the_start,
            };
            lock(&self.claims).set_reported_from(tenant, run, page.next.clone());
            if all_seen {
                return Ok(Reported::None { held_back_until: soonest, run_revision });
            }
            from = page.next;
        }
        // There is more to look at, at once.
        Ok(Reported::None { held_back_until: Some(now), run_revision })
    }

    /// The same for these shards.
    async fn claim_one_of(
        &self,
        now: LogicalTime,
        claimant: Claimant,
        shards: &[ShardId],
        events: &mut Vec<EventKind>,
        deadline: Moment,
    ) -> Result<OneOf, ClaimError> {
        let Claimant { tenant, run, worker } = claimant;
        let (mut soonest, mut left_to_others) = (None, Vec::new());
        for stored in self.read_shards(tenant, run, shards, deadline).await? {
            let view = stored.view(self);
            if is_claimable_by(&view, worker, now, self.skew()) {
                let Acquired { outcome, event } = self.acquire(now, tenant, view.key, worker).await;
                events.extend(event);
                match outcome {
                    Ok(granted) => return Ok(OneOf::Granted(Box::new(granted))),
                    Err(error) => after_failed_acquire(run, error)?,
                }
            } else if is_reported_by(view.unreachable, worker) {
                left_to_others.push(stored);
            } else if is_open(&view, now, self.skew()) {
                soonest = soonest.into_iter().chain(held_back_until(view.unreachable)).min();
            }
        }
        if let Some(first) = left_to_others.first() {
            let of = Creation { tenant, run, incarnation: first.record.incarnation };
            let present = self.present(CLAIM, of, Asked::All, deadline).await?;
            for stored in left_to_others.iter().take(CLAIM_ATTEMPTS_MAX) {
                events.extend(self.park_if_nobody_is_left(now, stored, &present, deadline).await?);
            }
        }
        Ok(OneOf::None { held_back_until: soonest })
    }

    /// Those of these shards that the worker could claim.
    pub(super) async fn claimable_by(
        &self,
        now: LogicalTime,
        claimant: Claimant,
        shards: &[ShardId],
        deadline: Moment,
    ) -> Result<Vec<ShardId>, InfraError> {
        let Claimant { tenant, run, worker } = claimant;
        let read = self.read_shards(tenant, run, shards, deadline).await?;
        let claimable = read.iter().filter(|stored| is_claimable_by(&stored.view(self), worker, now, self.skew()));
        Ok(claimable.map(|stored| stored.record.key.shard).collect())
    }

    /// A page of the index, from this key on; from its beginning, if there is none.
    async fn reported_page(
        &self,
        tenant: TenantId,
        run: RunId,
        from: Option<Bytes>,
        deadline: Moment,
    ) -> Result<Page, InfraError> {
        let all = self.space.indexed(ShardIndex::Reported, tenant, run, Window::ALL);
        let from_the_start = from.is_none();
        let keys = match (from, &all) {
            (Some(start), Keys::Range { end, .. }) => Keys::Range { start, end: end.clone() },
            _ => all.clone(),
        };
        let record = RangeRequest::one(self.space.run(tenant, run)).keys_only();
        let reads = [record, RangeRequest::of(keys).keys_only().limit(PAGE)];
        let read = Txn::of(reads.map(Op::Range).into());
        let read = self.kv.txn(read, deadline).await.map_err(|error| failed(CLAIM, &error))?;
        let [OpResponse::Range(record), OpResponse::Range(page)] = &read.responses[..] else {
            return Err(InfraError::corruption(CLAIM, "reported shards were not answered part by part"));
        };
        let run_revision = record.kvs.first().map_or(Revision(0), |kv| kv.mod_revision);
        let next = match page.kvs.last().filter(|_| page.more).map(|last| behind(all, last)) {
            Some(Keys::Range { start, .. }) => Some(start),
            Some(Keys::One(_)) | None => None,
        };
        Ok(Page {
            shards: page.kvs.iter().filter_map(|kv| shard_of(&kv.key)).collect(),
            next,
            from_the_start,
            run_revision,
        })
    }

    async fn read_shards(
        &self,
        tenant: TenantId,
        run: RunId,
        shards: &[ShardId],
        deadline: Moment,
    ) -> Result<Vec<StoredShard>, InfraError> {
        let paths: Vec<(ShardKey, Arc<ShardPaths>)> = shards
            .iter()
            .map(|shard| ShardKey::new(run, *shard))
            .map(|key| (key, ShardPaths::new(&self.space, tenant, key).into()))
            .collect();
        let mut found = Vec::new();
        for some in paths.chunks(self.config.txn_ops_max / 4) {
            let reads = some.iter().flat_map(|(_, paths)| paths.reads()).collect();
            let read = self.kv.txn(Txn::of(reads), deadline).await.map_err(|error| failed(CLAIM, &error))?;
            for ((key, paths), parts) in some.iter().zip(read.responses.chunks(4)) {
                if let Some(stored) = assemble(CLAIM, tenant, *key, paths, parts)?
                    && self.is_published(CLAIM, &stored, deadline).await?
                {
                    found.push(stored);
                }
            }
        }
        Ok(found)
    }

    /// Parks the shard if every worker that is there has reported it. Answers what to tell observers.
    async fn park_if_nobody_is_left(
        &self,
        now: LogicalTime,
        stored: &StoredShard,
        present: &Present,
        deadline: Moment,
    ) -> Result<Option<EventKind>, InfraError> {
        if !present.is_complete {
            // More than have ever reported one shard.
            return Ok(None);
        }
        let decided = unreachable::decide(&stored.view(self), present.peers(), now, self.skew());
        let Some((change, event)) = decided else { return Ok(None) };
        let mut next = (*stored.record).clone();
        next.apply(&change, &[]);
        let next = Arc::new(next);
        let mut transition = Transition::new(stored, &next, Guard::Untouched);
        transition.compares.push(present.none_came(&self.space, stored.record.tenant));
        match self.commit(CLAIM, transition, deadline).await? {
            Commit::Won { .. } => Ok(Some(event)),
            // Another claim looks again.
            Commit::Lost(_) | Commit::Doubtful(_) => Ok(None),
        }
    }
}
