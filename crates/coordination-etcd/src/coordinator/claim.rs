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

use tessera_contracts::{LogicalTime, RunId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::decide::claim::{
    CLAIM_ATTEMPTS_MAX, after_failed_acquire, check_cooldown, check_run, cooldown_until, start_position,
};
use tessera_coordination::error::{ClaimError, GetRunError, InfraError, RunNotFound};
use tessera_coordination::events::EventKind;
use tessera_coordination::run::status::RunStatus;

use super::acquire::{Acquired, Granted};
use super::families::{behind, with_members};
use super::stored::{ShardPaths, StoredRun, assemble};
use super::{Inner, failed, is_past, lock, millis};
use crate::codec::OwnerPart;
use crate::keyspace::{ShardIndex, Window, shard_of};
use crate::kv::{Kv, Moment, Op, OpResponse, RangeRequest, RangeResponse, Txn};

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

    /// Takes the next candidate that is known of, in place of what it took before.
    fn take(&mut self, run: RunId) -> Option<ShardKey> {
        let mut claims = lock(&self.inner.claims);
        claims.give_back(self.tenant, self.taking.take());
        let shard = claims.candidates.get_mut(&(self.tenant, run)).and_then(VecDeque::pop_front)?;
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

    fn wanted(&self) -> u32 {
        self.under_way.saturating_mul(2).clamp(WANTED, WANTED_MAX)
    }
}

/// What a look at a run found.
#[derive(Debug, Default)]
struct Found {
    candidates: Vec<ShardId>,
    earliest_deadline: Option<LogicalTime>,
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
        for _ in 0..CLAIM_ATTEMPTS_MAX {
            let key = match under_way.take(run) {
                Some(key) => key,
                None => {
                    let _only_one = self.looking.lock().await;
                    match under_way.take(run) {
                        Some(key) => key,
                        None => {
                            let stored = self.load_run(operation, tenant, run, deadline).await?;
                            let stored = stored.ok_or(RunNotFound { run })?;
                            check_run(run, &stored.gate(self.lease_duration_default()))?;
                            let found = self.look(operation, now, tenant, run, worker, &stored, deadline).await?;
                            earliest_deadline = found.earliest_deadline;
                            self.remember_candidates(tenant, run, found.candidates.into());
                            let Some(key) = under_way.take(run) else { break };
                            key
                        }
                    }
                }
            };
            let Acquired { outcome, event } = self.acquire(now, tenant, key, worker).await;
            events.extend(event);
            match outcome {
                Ok(granted) => return Ok(granted),
                Err(error) => after_failed_acquire(run, error)?,
            }
        }
        Err(ClaimError::NoneAvailable { earliest_deadline })
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
        if found.candidates.is_empty() && self.finish_hatching(operation, tenant, run, deadline).await? {
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
        for window in windows {
            let candidates = self.free(operation, tenant, run, window, wanted, deadline).await?;
            if !candidates.is_empty() {
                return Ok(Found { candidates, earliest_deadline: None });
            }
        }
        self.sweep(operation, now, tenant, run, stored, deadline).await
    }

    /// Up to so many shards that nobody holds, and that no claim of this coordinator is about to acquire: those of the index,
    /// then those of families.
    async fn free(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        window: Window,
        wanted: u32,
        deadline: Moment,
    ) -> Result<Vec<ShardId>, InfraError> {
        let free =
            RangeRequest::of(self.space.indexed(ShardIndex::Free, tenant, run, window)).keys_only().limit(wanted);
        let mut among = self.space.families(tenant, run, window);
        let mut members = wanted;
        loop {
            let read = Txn::of(vec![Op::Range(free.clone()), Op::Range(with_members(among.clone(), members))]);
            let read = self.kv.txn(read, deadline).await.map_err(|error| failed(operation, &error))?;
            let [OpResponse::Range(free), OpResponse::Range(families)] = &read.responses[..] else {
                return Err(InfraError::corruption(operation, "a window was not answered part by part"));
            };
            let mut candidates = self.not_being_taken(tenant, run, shards(free));
            let more = (wanted as usize).saturating_sub(candidates.len());
            if more > 0 {
                let newborn = self.newborn(operation, tenant, run, &families.kvs, more, deadline).await?;
                candidates.extend(self.not_being_taken(tenant, run, newborn));
                candidates.truncate(wanted as usize);
            }
            let (Some(last), true, true) = (families.kvs.last(), families.more, candidates.is_empty()) else {
                return Ok(candidates);
            };
            // Nobody is left in these families but who is being taken. Where there are many of them, larger steps are
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

    /// Looks for held shards whose holder is gone or late.
    async fn sweep(
        &self,
        operation: &'static str,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        stored: &StoredRun,
        deadline: Moment,
    ) -> Result<Found, InfraError> {
        let first = Window::holding(4 * WANTED, u64::from(stored.part.root_count), 0);
        let mut window = lock(&self.claims).sweeps.get(&(tenant, run)).copied().unwrap_or(first);
        let mut found = Found::default();
        for _ in 0..window.count().min(WINDOWS_MAX) {
            let held = RangeRequest::of(self.space.indexed(ShardIndex::Held, tenant, run, window)).keys_only();
            let owners = RangeRequest::of(self.space.owners(tenant, run, window));
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
            if found.candidates.len() >= WANTED as usize {
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

    pub(super) async fn candidates(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        limit: usize,
    ) -> Result<Vec<ShardId>, GetRunError> {
        let operation = "collect_claim_candidates_into";
        let deadline = self.deadline();
        let stored = self.visible_run(operation, tenant, run, deadline).await?;
        if stored.part.status != RunStatus::Active || limit == 0 {
            return Ok(Vec::new());
        }
        let wanted = u32::try_from(limit).unwrap_or(u32::MAX).min(10_000);
        let mut candidates = self.free(operation, tenant, run, Window::ALL, wanted, deadline).await?;
        if candidates.len() < limit {
            candidates.extend(self.sweep(operation, now, tenant, run, &stored, deadline).await?.candidates);
        }
        candidates.truncate(limit);
        Ok(candidates)
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

fn shards(range: &RangeResponse) -> Vec<ShardId> {
    range.kvs.iter().filter_map(|kv| shard_of(&kv.key)).collect()
}
