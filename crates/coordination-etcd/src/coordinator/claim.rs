//! Claim: any shard of a run that can be had.
//!
//! Candidates come from the index of free shards and from families of newborn ones, a narrow window of both at a place of
//! the claimant's own, so that a herd of workers does not run at one shard and the server does not walk the whole index. Where nothing is free, windows of held
//! shards are compared with their owner keys: those whose owner key is gone, or whose deadline has passed, can be had
//! too. What a look found beyond the one that was needed serves the next claims, so a claim is usually one round trip.
//!
//! Claims of one coordinator do not race each other: one looks while the others wait for what it finds, and what one of them
//! is about to acquire is offered to no other.

use core::time::Duration;
use std::collections::{HashMap, HashSet, VecDeque};

use bytes::Bytes;
use tessera_contracts::{LogicalTime, RunId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::decide::claim::{
    CLAIM_ATTEMPTS_MAX, after_failed_acquire, check_cooldown, check_run, cooldown_until, start_position,
};
use tessera_coordination::decide::unreachable::is_reported_by;
use tessera_coordination::error::{AccessRefused, AcquireError, ClaimError, GetRunError, InfraError, RunNotFound};
use tessera_coordination::events::EventKind;
use tessera_coordination::run::status::RunStatus;

use super::acquire::{Acquired, Granted};
use super::families::{Wanted, behind, with_members};
use super::reported::{Claimant, Reported};
use super::stored::{ShardPaths, StoredRun, assemble};
use super::{Inner, failed, is_past, lock, millis, span};
use crate::codec::OwnerPart;
use crate::keyspace::{ShardIndex, Window, shard_of};
use crate::kv::{Kv, Moment, Op, OpResponse, RangeRequest, RangeResponse, Revision, Txn};

/// Candidates one look wants, at least and at most: twice as many as there are claims under way.
const WANTED: u32 = 16;
const WANTED_MAX: u32 = 64;
/// Members that families are expected to have, of which one request asks for as many as have these.
const MEMBERS_STEP_MAX: u32 = 1_024;
/// Windows of held shards one claim looks at before it gives up; the next claim goes on from there.
const WINDOWS_MAX: u32 = 8;
/// Runs and workers remembered; forgetting them costs a read, or a cooldown.
const REMEMBERED_MAX: usize = 65_536;

/// What claims remember of each other.
#[derive(Debug, Default)]
pub(super) struct Claims {
    last: HashMap<(TenantId, WorkerId), LogicalTime>,
    candidates: HashMap<(TenantId, RunId), VecDeque<ShardId>>,
    sweeps: HashMap<(TenantId, RunId), Window>,
    /// Where the next look at reported shards begins.
    reported: HashMap<(TenantId, RunId), Bytes>,
    /// What claims of this coordinator are about to acquire.
    taking: HashSet<(TenantId, ShardKey)>,
    under_way: u32,
}

/// A claim under way, and what it is about to acquire. Dropping it, for whatever reason, frees that for others.
struct UnderWay<'i, K: Kv> {
    inner: &'i Inner<K>,
    tenant: TenantId,
    taking: Option<ShardKey>,
}

impl<'i, K: Kv> UnderWay<'i, K> {
    fn new(inner: &'i Inner<K>, tenant: TenantId) -> Self {
        lock(&inner.claims).under_way += 1;
        Self { inner, tenant, taking: None }
    }

    /// Takes the next candidate that is known of and that the worker has not reported, in place of what it took before.
    fn take(&mut self, run: RunId, worker: WorkerId) -> Option<ShardKey> {
        let mut claims = lock(&self.inner.claims);
        claims.give_back(self.tenant, self.taking.take());
        let known = claims.candidates.get_mut(&(self.tenant, run))?;
        let fit = known.iter().position(|shard| !self.inner.is_known_to_avoid(self.tenant, run, *shard, worker))?;
        let shard = known.remove(fit)?;
        let key = ShardKey::new(run, shard);
        claims.taking.insert((self.tenant, key));
        self.taking = Some(key);
        Some(key)
    }
}

impl<K: Kv> Drop for UnderWay<'_, K> {
    fn drop(&mut self) {
        let mut claims = lock(&self.inner.claims);
        claims.under_way -= 1;
        claims.give_back(self.tenant, self.taking.take());
    }
}

impl Claims {
    fn give_back(&mut self, tenant: TenantId, taken: Option<ShardKey>) {
        if let Some(key) = taken {
            self.taking.remove(&(tenant, key));
        }
    }

    /// Where the next look at the run's reported shards begins, if not with the first of them.
    pub(super) fn reported_from(&self, tenant: TenantId, run: RunId) -> Option<Bytes> {
        self.reported.get(&(tenant, run)).cloned()
    }

    pub(super) fn set_reported_from(&mut self, tenant: TenantId, run: RunId, from: Option<Bytes>) {
        if self.reported.len() >= REMEMBERED_MAX {
            self.reported.clear();
        }
        match from {
            Some(from) => self.reported.insert((tenant, run), from),
            None => self.reported.remove(&(tenant, run)),
        };
    }

    fn wanted(&self) -> u32 {
        self.under_way.saturating_mul(2).clamp(WANTED, WANTED_MAX)
    }
}

/// What a claim goes on with.
enum Next {
    /// An acquire of this shard, which an earlier look found.
    Known(ShardKey),
    /// An acquire of this shard, and when the next lease ends as far as the look saw.
    Found { key: ShardKey, soonest: Option<LogicalTime> },
    /// There is none that the worker may have, at this state of the run.
    NothingElse { stored: StoredRun, found: Found },
}

/// What a look at a run found.
#[derive(Debug, Default)]
struct Found {
    candidates: Vec<ShardId>,
    earliest_deadline: Option<LogicalTime>,
    /// Splits were under way while nothing was free: their children may not have been entered anywhere yet.
    splits_under_way: bool,
    /// When the run's record was last written by then.
    run_revision: Revision,
    /// When this was.
    revision: Revision,
}

impl Found {
    /// Whether this was found in the run as it was read before. If not, the run may be settled or gone by now, and that
    /// nothing was found says nothing about the run that was read.
    fn is_of(&self, stored: &StoredRun) -> bool {
        self.run_revision == stored.revision
    }
}

impl<K: Kv> Inner<K> {
    /// Claims a shard; what to tell observers comes along, since an attempt may have parked a shard that was used up.
    pub(super) async fn claim(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
    ) -> (Result<Granted, ClaimError>, Vec<EventKind>) {
        let mut events = Vec::new();
        let claimed = self.try_claim(now, tenant, run, worker, &mut events).await;
        if claimed.is_ok() {
            self.remember_claim(now, tenant, worker);
        }
        (claimed, events)
    }

    async fn try_claim(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        events: &mut Vec<EventKind>,
    ) -> Result<Granted, ClaimError> {
        let operation = "claim_next_available";
        let deadline = self.deadline();
        let cooldown = millis(self.config.claim_cooldown);
        let last = lock(&self.claims).last.get(&(tenant, worker)).copied();
        if let Err(too_soon) = check_cooldown(last, cooldown, now) {
            // What is known of the run may be old, and a run that is over is the better reason.
            let stored = self.load_run(operation, tenant, run, deadline).await?.ok_or(RunNotFound { run })?;
            check_run(run, &stored.gate(self.lease_duration_default()))?;
            return Err(too_soon);
        }
        let mut earliest_deadline = None;
        let mut under_way = UnderWay::new(self, tenant);
        let claimant = Claimant { tenant, run, worker };
        for _ in 0..CLAIM_ATTEMPTS_MAX {
            let key = match self.next_candidate(now, claimant, &mut under_way, deadline).await? {
                Next::Known(key) => key,
                Next::Found { key, soonest } => {
                    earliest_deadline = soonest;
                    key
                }
                Next::NothingElse { stored, found } => {
                    match self.claim_what_is_left(now, claimant, &stored, found, events, deadline).await? {
                        Some(granted) => return Ok(granted),
                        None => continue,
                    }
                }
            };
            let Acquired { outcome, event } = self.acquire(now, tenant, key, worker).await;
            events.extend(event);
            match outcome {
                Ok(granted) => return Ok(granted),
                Err(error) => {
                    if matches!(error, AcquireError::Access(AccessRefused::ShardNotFound { .. })) {
                        // Shards go with their run alone: there is no other candidate of it either, and the run is looked at again.
                        lock(&self.claims).candidates.remove(&(tenant, run));
                    }
                    after_failed_acquire(run, error)?;
                }
            }
        }
        Err(ClaimError::NoneAvailable { earliest_deadline })
    }

    /// The next candidate for the worker, of those that are known or that a look finds.
    async fn next_candidate(
        &self,
        now: LogicalTime,
        claimant: Claimant,
        under_way: &mut UnderWay<'_, K>,
        deadline: Moment,
    ) -> Result<Next, ClaimError> {
        let operation = "claim_next_available";
        let Claimant { tenant, run, worker } = claimant;
        if let Some(key) = under_way.take(run, worker) {
            return Ok(Next::Known(key));
        }
        let _only_one = self.looking.lock().await;
        if let Some(key) = under_way.take(run, worker) {
            return Ok(Next::Known(key));
        }
        let (stored, found) = loop {
            let stored = self.load_run(operation, tenant, run, deadline).await?.ok_or(RunNotFound { run })?;
            check_run(run, &stored.gate(self.lease_duration_default()))?;
            let found = self.look(operation, now, tenant, run, worker, &stored, deadline).await?;
            if !found.candidates.is_empty() || found.is_of(&stored) {
                break (stored, found);
            }
        };
        self.remember_candidates(tenant, run, found.candidates.iter().copied().collect());
        Ok(match under_way.take(run, worker) {
            Some(key) => Next::Found { key, soonest: found.earliest_deadline },
            None => Next::NothingElse { stored, found },
        })
    }

    /// Nothing can be had but, perhaps, what some worker could not reach. `None`: the run's record was written since it was
    /// read, so the run may be settled, gone or another one.
    async fn claim_what_is_left(
        &self,
        now: LogicalTime,
        claimant: Claimant,
        stored: &StoredRun,
        found: Found,
        events: &mut Vec<EventKind>,
        deadline: Moment,
    ) -> Result<Option<Granted>, ClaimError> {
        let length = span(stored.gate(self.lease_duration_default()).lease_duration);
        // Where this fails, the next claim makes up for it.
        let _ = self.make_present("claim_next_available", claimant.tenant, claimant.worker, length, deadline).await;
        match self.claim_reported(now, claimant, found.candidates, events, deadline).await? {
            Reported::Granted(granted) => Ok(Some(*granted)),
            Reported::None { run_revision, .. } if run_revision != stored.revision => Ok(None),
            Reported::None { held_back_until, .. } => {
                let earliest_deadline = sooner(found.earliest_deadline, held_back_until);
                Err(ClaimError::NoneAvailable { earliest_deadline })
            }
        }
    }

    /// Finds candidates, those of the worker's own place first, and reads their records ahead.
    #[expect(clippy::too_many_arguments, reason = "who asks, for what, when, and by when")]
    async fn look(
        &self,
        operation: &'static str,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        stored: &StoredRun,
        deadline: Moment,
    ) -> Result<Found, InfraError> {
        let mut found = self.find(operation, now, tenant, run, stored, deadline).await?;
        if found.candidates.is_empty() && found.splits_under_way {
            self.finish_hatching(operation, tenant, run, deadline).await?;
            found = self.find(operation, now, tenant, run, stored, deadline).await?;
        }
        found.candidates = self.not_being_taken(tenant, run, found.candidates);
        let start = start_position(worker, found.candidates.len());
        found.candidates.rotate_left(start);
        self.read_ahead(operation, tenant, run, &found.candidates, deadline).await?;
        Ok(found)
    }

    async fn find(
        &self,
        operation: &'static str,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        stored: &StoredRun,
        deadline: Moment,
    ) -> Result<Found, InfraError> {
        let place = (self.kv.random() >> 48) as u16;
        let wanted = lock(&self.claims).wanted();
        let narrow = Window::holding(wanted, u64::from(stored.part.root_count), place);
        let windows = if narrow == Window::ALL { vec![narrow] } else { vec![narrow, Window::ALL] };
        let mut free = Found::default();
        for window in windows {
            free = self.free(operation, tenant, run, window, wanted, deadline).await?;
            if !free.candidates.is_empty() {
                return Ok(free);
            }
        }
        // Nothing was free then, so those that were held then tell when to ask again.
        self.sweep(operation, now, tenant, run, stored, free, deadline).await
    }

    /// Up to so many shards that are not held, and that no claim of this coordinator is about to acquire: those of the index,
    /// then those of families.
    async fn free(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        window: Window,
        wanted: u32,
        deadline: Moment,
    ) -> Result<Found, InfraError> {
        let record = RangeRequest::one(self.space.run(tenant, run)).keys_only();
        let splits = RangeRequest::of(self.space.all_hatching(tenant, run)).count_only();
        let free =
            RangeRequest::of(self.space.indexed(ShardIndex::Free, tenant, run, window)).keys_only().limit(wanted);
        let mut among = self.space.families(tenant, run, window);
        let mut members = wanted;
        loop {
            let reads = [record.clone(), free.clone(), with_members(among.clone(), members), splits.clone()];
            let read = Txn::of(reads.map(Op::Range).into());
            let read = self.kv.txn(read, deadline).await.map_err(|error| failed(operation, &error))?;
            let [
                OpResponse::Range(record),
                OpResponse::Range(free),
                OpResponse::Range(families),
                OpResponse::Range(splits),
            ] = &read.responses[..]
            else {
                return Err(InfraError::corruption(operation, "a window was not answered part by part"));
            };
            let run_revision = record.kvs.first().map_or(Revision(0), |kv| kv.mod_revision);
            let mut candidates = self.not_being_taken(tenant, run, shards(free));
            let more = (wanted as usize).saturating_sub(candidates.len());
            if more > 0 {
                let some = Wanted { members: more, revision: read.revision };
                let newborn = self.newborn(operation, tenant, run, &families.kvs, some, deadline).await?;
                candidates.extend(self.not_being_taken(tenant, run, newborn));
                candidates.truncate(wanted as usize);
            }
            let (Some(last), true, true) = (families.kvs.last(), families.more, candidates.is_empty()) else {
                let (splits_under_way, revision) = (splits.count > 0, read.revision);
                return Ok(Found { candidates, splits_under_way, run_revision, revision, earliest_deadline: None });
            };
            // No members are left in these families but those that are being taken. Where there are many of them, larger steps are
            // taken, so that a claim does not ask once for every few.
            among = behind(among, last);
            members = members.saturating_mul(2).min(MEMBERS_STEP_MAX.max(wanted));
        }
    }

    fn not_being_taken(&self, tenant: TenantId, run: RunId, mut shards: Vec<ShardId>) -> Vec<ShardId> {
        let claims = lock(&self.claims);
        shards.retain(|shard| !claims.taking.contains(&(tenant, ShardKey::new(run, *shard))));
        shards
    }

    /// Looks for held shards whose holder was gone or late at the revision of `found`, and adds them to it.
    #[expect(clippy::too_many_arguments, reason = "who asks, for what, when, and by when")]
    async fn sweep(
        &self,
        operation: &'static str,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        stored: &StoredRun,
        mut found: Found,
        deadline: Moment,
    ) -> Result<Found, InfraError> {
        let first = Window::holding(4 * WANTED, u64::from(stored.part.root_count), 0);
        let mut window = lock(&self.claims).sweeps.get(&(tenant, run)).copied().unwrap_or(first);
        let free = found.candidates.len();
        for _ in 0..window.count().min(WINDOWS_MAX) {
            let held = self.space.indexed(ShardIndex::Held, tenant, run, window);
            let held = RangeRequest::of(held).keys_only().at(found.revision);
            let owners = RangeRequest::of(self.space.owners(tenant, run, window)).at(found.revision);
            let read = Txn::of(vec![Op::Range(held), Op::Range(owners)]);
            let read = self.kv.txn(read, deadline).await.map_err(|error| failed(operation, &error))?;
            let [OpResponse::Range(held), OpResponse::Range(owners)] = &read.responses[..] else {
                return Err(InfraError::corruption(operation, "a window was not answered part by part"));
            };
            let mut deadlines: HashMap<ShardId, LogicalTime> = HashMap::new();
            for kv in &owners.kvs {
                if let (Some(shard), Ok(owner)) = (shard_of(&kv.key), OwnerPart::decode(&kv.value)) {
                    deadlines.insert(shard, owner.deadline);
                }
            }
            for shard in shards(held) {
                match deadlines.get(&shard) {
                    Some(until) if !is_past(*until, now, self.skew()) => {
                        found.earliest_deadline =
                            Some(found.earliest_deadline.map_or(*until, |soonest| soonest.min(*until)));
                    }
                    Some(_) | None => found.candidates.push(shard),
                }
            }
            window = window.next();
            if found.candidates.len() - free >= WANTED as usize {
                break;
            }
        }
        let mut claims = lock(&self.claims);
        if claims.sweeps.len() >= REMEMBERED_MAX {
            claims.sweeps.clear();
        }
        claims.sweeps.insert((tenant, run), window);
        Ok(found)
    }

    /// Reads the candidates' records, so that acquiring them needs no read.
    async fn read_ahead(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        candidates: &[ShardId],
        deadline: Moment,
    ) -> Result<(), InfraError> {
        let paths: Vec<(ShardKey, std::sync::Arc<ShardPaths>)> = candidates
            .iter()
            .map(|shard| ShardKey::new(run, *shard))
            .map(|key| (key, ShardPaths::new(&self.space, tenant, key).into()))
            .collect();
        for some in paths.chunks(self.config.txn_ops_max / 4) {
            let reads = some.iter().flat_map(|(_, paths)| paths.reads()).collect();
            let read = self.kv.txn(Txn::of(reads), deadline).await.map_err(|error| failed(operation, &error))?;
            for ((key, paths), parts) in some.iter().zip(read.responses.chunks(4)) {
                // A staged shard must first be looked up at its parent; acquire does that.
                let stored = assemble(operation, tenant, *key, paths, parts)?;
                if let Some(stored) = stored.filter(|stored| !stored.cold.staged) {
                    lock(&self.cache).put(stored);
                }
            }
        }
        Ok(())
    }

    /// Whether the worker is known to have reported the shard. What is not known is found out by the acquire.
    fn is_known_to_avoid(&self, tenant: TenantId, run: RunId, shard: ShardId, worker: WorkerId) -> bool {
        let known = lock(&self.cache).get(tenant, ShardKey::new(run, shard));
        known.is_some_and(|stored| is_reported_by(&stored.record.unreachable, worker))
    }

    pub(super) async fn candidates(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        limit: usize,
    ) -> Result<Vec<ShardId>, GetRunError> {
        let operation = "collect_claim_candidates_into";
        let deadline = self.deadline();
        let wanted = u32::try_from(limit).unwrap_or(u32::MAX).min(10_000);
        let (stored, mut found) = loop {
            let stored = self.visible_run(operation, tenant, run, deadline).await?;
            if stored.part.status != RunStatus::Active || limit == 0 {
                return Ok(Vec::new());
            }
            let found = self.free(operation, tenant, run, Window::ALL, wanted, deadline).await?;
            if found.is_of(&stored) {
                break (stored, found);
            }
        };
        if found.candidates.len() < limit && found.splits_under_way {
            let unindexed = self.unindexed_children(operation, tenant, run, found.revision, deadline).await?;
            found.candidates.extend(unindexed);
        }
        if found.candidates.len() < limit {
            let free = found.candidates.len();
            found = self.sweep(operation, now, tenant, run, &stored, found, deadline).await?;
            let mut doubtful = found.candidates.split_off(free);
            doubtful.extend(self.all_reported(operation, tenant, run, wanted, deadline).await?);
            let claimant = Claimant { tenant, run, worker };
            found.candidates.extend(self.claimable_by(now, claimant, &doubtful, deadline).await?);
        }
        found.candidates.truncate(limit);
        Ok(found.candidates)
    }

    async fn all_reported(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        limit: u32,
        deadline: Moment,
    ) -> Result<Vec<ShardId>, InfraError> {
        let all = self.space.indexed(ShardIndex::Reported, tenant, run, Window::ALL);
        let read = RangeRequest::of(all).keys_only().limit(limit);
        let found = self.kv.range(read, deadline).await.map_err(|error| failed(operation, &error))?;
        Ok(shards(&found))
    }

    pub(super) fn cooldown_until(&self, now: LogicalTime, tenant: TenantId, worker: WorkerId) -> Option<LogicalTime> {
        let last = lock(&self.claims).last.get(&(tenant, worker)).copied();
        cooldown_until(last, millis(self.config.claim_cooldown), now)
    }

    fn remember_claim(&self, now: LogicalTime, tenant: TenantId, worker: WorkerId) {
        if self.config.claim_cooldown == Duration::ZERO {
            return;
        }
        let mut claims = lock(&self.claims);
        if claims.last.len() >= REMEMBERED_MAX {
            let interval = millis(self.config.claim_cooldown);
            claims.last.retain(|_, last| now < last.saturating_add(interval));
        }
        if claims.last.len() < REMEMBERED_MAX {
            claims.last.insert((tenant, worker), now);
        }
    }

    fn remember_candidates(&self, tenant: TenantId, run: RunId, candidates: VecDeque<ShardId>) {
        let mut claims = lock(&self.claims);
        if claims.candidates.len() >= REMEMBERED_MAX {
            claims.candidates.clear();
        }
        claims.candidates.insert((tenant, run), candidates);
    }
}

fn sooner(a: Option<LogicalTime>, b: Option<LogicalTime>) -> Option<LogicalTime> {
    a.into_iter().chain(b).min()
}

fn shards(range: &RangeResponse) -> Vec<ShardId> {
    range.kvs.iter().filter_map(|kv| shard_of(&kv.key)).collect()
}
