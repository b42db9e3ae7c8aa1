//! Claiming in memory: the run's index names the next shard, and acquire decides.

use alloc::boxed::Box;
use alloc::vec::Vec;

use tessera_contracts::ids::{LogicalTime, RunId, TenantId, WorkerId};

use super::place::Slot;
use super::pooled_record::RunSlot;
use super::shards::no_room;
use super::{InMemoryCoordinator, Run};
use crate::backend::ShardClaiming;
use crate::decide::acquire::is_claimable_by;
use crate::decide::claim::{CLAIM_ATTEMPTS_MAX, after_failed_acquire, check_cooldown, check_run};
use crate::decide::unreachable::{self, GUESSED_REPORTS_MAX, Peers, held_back_until, is_reported_by};
use crate::error::ClaimError;
use crate::events::{EventKind, EventScope, EventSink};
use crate::record::snapshot::{AcquireResultView, AcquireScratch};
use crate::record::state::Change;
use crate::run::explain::sooner;

/// Most workers of one tenant whose last claim is remembered. A cooldown is courtesy, not safety: beyond this, workers
/// whose cooldown is over are forgotten, and if none is, the newcomer goes unthrottled.
const COOLDOWN_WORKERS_MAX: usize = 65_536;

impl ShardClaiming for InMemoryCoordinator {
    fn claim_next_available_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, ClaimError> {
        let run_slot = self.locate_run(tenant, run)?;
        check_run(run, &self.run(run_slot).record.gate(self.config.default_lease_duration))?;
        let last = self.tenants.get(tenant).and_then(|tenant| tenant.last_claims.get(&worker)).copied();
        check_cooldown(last, self.config.claim_cooldown_interval, now)?;
        self.run_mut(run_slot).askers.note(worker, now);
        for _ in 0..CLAIM_ATTEMPTS_MAX {
            // Sorts expired leases in before a candidate is taken.
            let before = self.capacity(run_slot, now);
            let slot = match self.candidate(run_slot, worker, now) {
                Candidate::Grant(slot) => slot,
                Candidate::Park(slot, decided) => {
                    let (change, event) = *decided;
                    self.commit(slot, &change, core::iter::empty()).map_err(|full| no_room("claim.park", full))?;
                    EventScope { tenant, run, at: now }.emit(events, || Some(event));
                    continue;
                }
                Candidate::None { held_back_until } => {
                    let earliest_deadline = sooner(before.earliest_deadline, held_back_until);
                    return Err(ClaimError::NoneAvailable { earliest_deadline });
                }
            };
            match self.acquire_slot(now, slot, worker, events) {
                Ok(lease) => {
                    self.remember_claim(now, tenant, worker);
                    scratch.fill(&self.view(slot));
                    let capacity = self.capacity(run_slot, now);
                    return Ok(scratch.granted(lease, capacity));
                }
                // Used up its retries and is parked now; the next one may be better.
                Err(error) => after_failed_acquire(run, error)?,
            }
        }
        let left = self.capacity(run_slot, now);
        let again = if left.available_count > 0 { Some(now) } else { left.earliest_deadline };
        Err(ClaimError::NoneAvailable { earliest_deadline: again })
    }
}

/// What a claim comes to next.
enum Candidate {
    /// This shard may be granted.
    Grant(Slot),
    /// This one was reported by the claimant, and nobody else is left: it is parked.
    Park(Slot, Box<(Change<'static>, EventKind)>),
    /// None, before this time at least.
    None { held_back_until: Option<LogicalTime> },
}

impl InMemoryCoordinator {
    /// The first open shard that nothing keeps from the worker. Shards that were reported unreachable are passed over one by
    /// one where they are in the way; that is the only case in which a claim looks at more than one.
    fn candidate(&self, run: RunSlot, worker: WorkerId, now: LogicalTime) -> Candidate {
        let index = &self.run(run).index;
        let Some(first) = index.candidate(&self.arena.places) else { return Candidate::None { held_back_until: None } };
        if self.arena.get(first).unreachable.is_empty() {
            return Candidate::Grant(first);
        }
        let (skew, mut soonest) = (self.config.clock_skew_allowance, None);
        for slot in index.candidates(&self.arena.places) {
            let view = self.view(slot);
            if is_claimable_by(&view, worker, now, skew) {
                return Candidate::Grant(slot);
            }
            if is_reported_by(view.unreachable, worker) {
                let takes_part = self.takes_part(run, now);
                let decided = unreachable::decide(&view, Peers::Guessed(&takes_part), now, skew);
                if let Some(decided) = decided {
                    return Candidate::Park(slot, Box::new(decided));
                }
            } else {
                soonest = sooner(soonest, held_back_until(view.unreachable));
            }
        }
        Candidate::None { held_back_until: soonest }
    }

    /// Workers that hold a shard of the run or asked for one of late: all of them, or as many as matter.
    pub(super) fn takes_part(&self, run: RunSlot, now: LogicalTime) -> Vec<WorkerId> {
        let Run { record, index, askers, .. } = self.run(run);
        let held = index.leased(&self.arena.places).filter_map(|slot| {
            let holder = self.arena.get(slot).state.head.lease_live_at(now)?;
            Some(holder.owner)
        });
        let span = record.gate(self.config.default_lease_duration).lease_duration;
        let mut workers = Vec::new();
        for worker in askers.since(now, span).chain(held) {
            if !workers.contains(&worker) {
                workers.push(worker);
            }
            if workers.len() == GUESSED_REPORTS_MAX {
                break;
            }
        }
        workers
    }

    fn remember_claim(&mut self, now: LogicalTime, tenant: TenantId, worker: WorkerId) {
        let interval = self.config.claim_cooldown_interval;
        if interval == 0 {
            return;
        }
        let Some(tenant) = self.tenants.get_mut(tenant) else { return };
        let claims = &mut tenant.last_claims;
        if claims.len() >= COOLDOWN_WORKERS_MAX && !claims.contains_key(&worker) {
            claims.retain(|_, last| now < last.saturating_add(interval));
            if claims.len() >= COOLDOWN_WORKERS_MAX {
                return;
            }
        }
        claims.insert(worker, now);
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::ids::RunIncarnation;

    use super::*;
    use crate::backend::RunManagement;
    use crate::memory::CoordinatorRuntimeConfig;
    use crate::run::config::RunConfig;

    #[test]
    fn of_more_workers_than_are_remembered_those_whose_cooldown_is_over_make_room() {
        let config = CoordinatorRuntimeConfig { claim_cooldown_interval: 10, ..CoordinatorRuntimeConfig::default() };
        let mut memory = InMemoryCoordinator::new(config).unwrap();
        let (tenant, at) = (TenantId::from_bytes([1; 32]), LogicalTime::new);
        memory.create_run(at(1), tenant, RunId::new(1), RunIncarnation::new(1), RunConfig::default()).unwrap();
        let remembered = |memory: &InMemoryCoordinator, worker| {
            let claims = &memory.tenants.get(tenant).unwrap().last_claims;
            (claims.len(), claims.contains_key(&WorkerId::new(worker)))
        };
        for (now, worker) in [(1, 1), (99, 2)] {
            memory.remember_claim(at(now), tenant, WorkerId::new(worker));
        }
        assert_eq!(remembered(&memory, 1), (2, true), "while there is room, no claim looks through the others");
        for worker in 1..=COOLDOWN_WORKERS_MAX as u64 {
            memory.remember_claim(at(1 + worker % 2), tenant, WorkerId::new(worker));
        }
        let newcomer = u64::MAX;
        memory.remember_claim(at(10), tenant, WorkerId::new(newcomer));
        assert_eq!(remembered(&memory, newcomer), (COOLDOWN_WORKERS_MAX, false), "all are still cooling down");
        memory.remember_claim(at(11), tenant, WorkerId::new(newcomer));
        assert_eq!(remembered(&memory, newcomer), (COOLDOWN_WORKERS_MAX / 2 + 1, true), "half of them are not");
    }
}
