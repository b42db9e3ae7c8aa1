//! Plays calls on a coordinator and says all that there is to say about their answers.
//!
//! Advice is left out of the answers: how many shards can be claimed is read beside an acquire or a renewal and may be of
//! another moment.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};

use tessera_contracts::keyspace::Fraction;
use tessera_contracts::{CursorUpdate, FenceEpoch, LogicalTime, OpId, RunId, ShardEpoch, ShardId, ShardKey, WorkerId};
use tessera_coordination::backend::{AsyncCoordinationFacade, HeldShard};
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::error::CreateRunError;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::snapshot::AcquireResultView;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::record::unreachable::Unreachable;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::{RunSummary, ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::AsyncEtcdCoordinator;
use tessera_coordination_etcd::codec::OwnerPart;
use tessera_coordination_etcd::keyspace::session_of;
use tessera_coordination_etcd::sim_kv::SimKv;

use crate::calls::{
    Call, FIRST_CALLER, LATE, NEIGHBOUR, NOW, RUN, SOON, TENANT, child, incarnation, key, key_within, replace_plan,
    residual_plan,
};
use crate::keys::{Heading, heading_of, scan};
use crate::roots::{bounds, inputs};
use crate::store::Scheduled;

/// The leases that workers hold, by worker and shard.
pub type Leases = BTreeMap<(u64, u64), Lease>;

/// What a call answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub text: String,
    /// What a claim was granted: which shard that is, a coordinator may choose.
    pub claimed: Option<ShardId>,
}

/// What the steps of a call have told so far.
#[derive(Clone, Debug, Default)]
pub struct StepsTold {
    texts: BTreeMap<usize, String>,
    claimed: Option<ShardId>,
}

impl StepsTold {
    /// That it is done, and nothing else.
    pub fn nothing() -> Self {
        Self { texts: BTreeMap::from([(0, "()".to_owned())]), claimed: None }
    }

    /// Whether it was a claim, and a shard was granted.
    pub fn is_grant(&self) -> bool {
        self.claimed.is_some()
    }

    /// The answer that the whole call would have given.
    pub fn answer(self) -> Answer {
        let texts = self.texts.into_values().filter(|text| !text.is_empty());
        Answer { text: joined(texts), claimed: self.claimed }
    }
}

/// What came of one step of a call.
enum Step {
    /// Nothing to tell, or not all of it yet.
    Then(String),
    /// The call has ended.
    Ended(String),
}

/// One coordinator with the leases that its callers hold.
pub struct Side<B> {
    pub backend: B,
    beyond: Beyond,
    pub leases: Leases,
    /// Who calls: see [`incarnation`].
    pub caller: usize,
    scratch: AcquireScratch,
}

/// What is beyond the traits that all coordinators have.
enum Beyond {
    Memory,
    Etcd { coordinator: AsyncEtcdCoordinator<Scheduled>, kv: SimKv },
}

impl Beyond {
    /// The coordinator whose sessions a call is about.
    fn etcd(&self) -> &AsyncEtcdCoordinator<Scheduled> {
        match self {
            Self::Etcd { coordinator, .. } => coordinator,
            Self::Memory => panic!("memory has no sessions"),
        }
    }
}

impl<M: AsyncCoordinationFacade> Side<M> {
    /// Over the in-memory coordinator, or a wrapper of it.
    pub fn memory(memory: M) -> Self {
        Self {
            backend: memory,
            beyond: Beyond::Memory,
            leases: Leases::new(),
            caller: FIRST_CALLER,
            scratch: AcquireScratch::new(),
        }
    }
}

impl Side<AsyncEtcdCoordinator<Scheduled>> {
    pub fn etcd(coordinator: AsyncEtcdCoordinator<Scheduled>, kv: &SimKv, leases: Leases) -> Self {
        let beyond = Beyond::Etcd { coordinator: coordinator.clone(), kv: kv.clone() };
        Self { backend: coordinator, beyond, leases, caller: FIRST_CALLER, scratch: AcquireScratch::new() }
    }
}

impl<B: AsyncCoordinationFacade> Side<B> {
    /// Plays a call whole.
    pub async fn play(&mut self, call: Call) -> Answer {
        let whole = match call {
            Call::CreateWithShards { roots, op } => {
                let bounds = bounds(roots);
                let inputs = inputs(&bounds);
                let (config, incarnation) = (RunConfig::default(), incarnation(self.caller));
                let op = OpId::new(op);
                let created = self.backend.create_run_with_shards(SOON, TENANT, RUN, incarnation, config, &inputs, op);
                Some(told(&created.await))
            }
            Call::Renew { shards, at } if shards.len() > 1 => {
                let leases: Vec<Lease> = shards.iter().map(|shard| self.lease(*shard)).collect();
                let mut answers = Vec::new();
                self.backend.renew_many(at, TENANT, &leases, &mut answers).await;
                Some(joined(
                    answers
                        .iter()
                        .map(|answer| told(&answer.as_ref().map(|renewed| (renewed.new_deadline, renewed.orders)))),
                ))
            }
            Call::Drain { shards, op } => {
                let leases: Vec<Lease> = shards.iter().map(|shard| self.lease(*shard)).collect();
                let held = leases.iter().zip(op..);
                let held: Vec<HeldShard<'_>> =
                    held.map(|(lease, op)| HeldShard { lease, cursor: None, op_id: OpId::new(op) }).collect();
                let mut answers = Vec::new();
                self.backend.drain(SOON, TENANT, &held, &mut answers).await;
                Some(joined(answers.iter().map(told)))
            }
            _ => None,
        };
        if let Some(text) = whole {
            return Answer { text, claimed: None };
        }
        let (Step::Ended(text) | Step::Then(text), claimed) = self.step(call, 0, None).await;
        Answer { text, claimed }
    }

    /// Plays one step of a call and keeps what it tells in its place; whether the call has ended by it. `claimed` is the shard
    /// that a claim is to be granted, where that was decided elsewhere.
    pub async fn play_step(&mut self, call: Call, step: usize, told: &mut StepsTold, claimed: Option<ShardId>) -> bool {
        let (text, ended) = match self.step(call, step, claimed).await {
            (Step::Ended(text), granted) => {
                told.claimed = granted;
                (text, true)
            }
            (Step::Then(text), _) => (text, false),
        };
        told.texts.insert(step, text);
        ended
    }

    async fn step(&mut self, call: Call, step: usize, claimed: Option<ShardId>) -> (Step, Option<ShardId>) {
        let text = match call {
            Call::Create => told(&self.create().await),
            Call::CreateWithShards { roots, op } => {
                let call = match step {
                    0 => match self.create().await {
                        Ok(()) | Err(CreateRunError::AlreadyExists { .. }) => Step::Then(String::new()),
                        Err(error) => Step::Ended(told(&Err::<(), _>(error))),
                    },
                    1 => match self.backend.get_run(TENANT, RUN).await {
                        Ok(_) => Step::Then(String::new()),
                        Err(error) => Step::Ended(format!("{error}")),
                    },
                    _ => Step::Ended(self.register(roots, op).await),
                };
                return (call, None);
            }
            Call::Register { roots, op } => self.register(roots, op).await,
            Call::Acquire { worker, shard, at } => {
                let granted = self.backend.acquire_and_restore_into(
                    at,
                    TENANT,
                    key(shard),
                    WorkerId::new(worker),
                    &mut self.scratch,
                );
                let granted = granted.await;
                let lease = granted.as_ref().ok().map(|granted| granted.lease);
                let text = told(&granted.as_ref().map(grant));
                self.leases.extend(lease.map(|lease| ((worker, shard), lease)));
                text
            }
            Call::AcquireChild { worker, parent, split, index } => {
                let (child, worker) = (child(parent, split, index), WorkerId::new(worker));
                let granted =
                    self.backend.acquire_and_restore_into(SOON, TENANT, child, worker, &mut self.scratch).await;
                told(&granted.as_ref().map(grant))
            }
            Call::Claim { worker, at } => {
                let worker = WorkerId::new(worker);
                let Some(shard) = claimed else {
                    let claim = self.backend.claim_next_available(at, TENANT, RUN, worker, &mut self.scratch).await;
                    let granted = claim.as_ref().ok().map(|view| view.lease.shard());
                    return (Step::Ended(told(&claim.as_ref().map(grant))), granted);
                };
                // It was decided elsewhere which one: it must be there to be had.
                let key = ShardKey::new(RUN, shard);
                let acquired = self.backend.acquire_and_restore_into(at, TENANT, key, worker, &mut self.scratch).await;
                return (Step::Ended(told(&acquired.as_ref().map(grant))), Some(shard));
            }
            Call::Renew { shards, at } => {
                let lease = self.lease(shards[step]);
                let renewed = self.backend.renew(at, TENANT, &lease).await;
                told(&renewed.as_ref().map(|renewed| (renewed.new_deadline, renewed.orders)))
            }
            Call::Drain { shards, op } => {
                let (lease, op) = (self.lease(shards[step]), OpId::new(op + step as u64));
                told(&self.backend.release(SOON, TENANT, &lease, None, ReleaseReason::Drained, op).await)
            }
            Call::Checkpoint { shard, key, op } => {
                let (lease, key) = (self.lease(shard), key_within(shard, key));
                let cursor = CursorUpdate::at_key(&key).expect("a valid cursor");
                told(&self.backend.checkpoint(SOON, TENANT, &lease, cursor, OpId::new(op)).await)
            }
            Call::Complete { shard, op } => {
                let (lease, key) = (self.lease(shard), key_within(shard, 200));
                let cursor = CursorUpdate::at_key(&key).expect("a valid cursor");
                told(&self.backend.complete(SOON, TENANT, &lease, cursor, OpId::new(op)).await)
            }
            Call::Park { shard, op } => {
                let park = Park::because(ParkReason::NotFound).with_detail("gone");
                let lease = self.lease(shard);
                told(&self.backend.park_shard(SOON, TENANT, &lease, park, OpId::new(op)).await)
            }
            Call::Release { shard, op } => {
                let lease = self.lease(shard);
                let reason = ReleaseReason::Released;
                told(&self.backend.release(SOON, TENANT, &lease, None, reason, OpId::new(op)).await)
            }
            Call::Report { shard, op } => {
                let lease = self.lease(shard);
                let reason = ReleaseReason::Unreachable(Unreachable::because("no such mount"));
                told(&self.backend.release(SOON, TENANT, &lease, None, reason, OpId::new(op)).await)
            }
            Call::SplitReplace { shard, children, op } => {
                let (lease, plan) = (self.lease(shard), replace_plan(shard, children));
                told(&self.backend.split_replace(SOON, TENANT, &lease, &plan, OpId::new(op)).await)
            }
            Call::SplitResidual { shard, op } => {
                let (lease, plan) = (self.lease(shard), residual_plan(shard));
                told(&self.backend.split_residual(SOON, TENANT, &lease, &plan, OpId::new(op)).await)
            }
            Call::Unpark { shard, fence, op } => {
                let epoch = first_epoch(fence);
                told(&self.backend.unpark_shard(SOON, TENANT, key(shard), epoch, OpId::new(op)).await)
            }
            Call::OrderYield { shard, fence } => {
                let order = OrderRequest::Yield;
                told(&self.backend.order(SOON, TENANT, key(shard), first_epoch(fence), order).await)
            }
            Call::OrderSplit { shard, fence } => {
                let order = OrderRequest::Split(Fraction::HALF);
                told(&self.backend.order(SOON, TENANT, key(shard), first_epoch(fence), order).await)
            }
            Call::Settle { settlement, op } => {
                told(&self.backend.settle_run(SOON, TENANT, RUN, settlement, OpId::new(op)).await)
            }
            Call::Retire => told(&self.backend.retire_runs(LATE, TENANT, LATE, 10).await),
            Call::RetireNamed => told(&self.backend.retire_run(LATE, TENANT, RUN, incarnation(FIRST_CALLER)).await),
            Call::Collect { created_before } => self.collect(created_before).await,
            Call::ListStale => self.list_stale().await,
            Call::Heartbeat => {
                if let Beyond::Etcd { coordinator, .. } = &self.beyond {
                    coordinator.heartbeat().await;
                }
                String::new()
            }
            Call::Join { worker } => told(&self.beyond.etcd().join(TENANT, WorkerId::new(worker)).await),
            Call::Abstain { worker } => {
                let (etcd, worker) = (self.beyond.etcd(), WorkerId::new(worker));
                told(&etcd.abstain(TENANT, RUN, incarnation(FIRST_CALLER), worker).await)
            }
            Call::TakePart { worker } => {
                let (etcd, worker) = (self.beyond.etcd(), WorkerId::new(worker));
                told(&etcd.take_part(TENANT, RUN, incarnation(FIRST_CALLER), worker).await)
            }
            Call::EndSession { worker } => told(&self.beyond.etcd().end_session(WorkerId::new(worker)).await),
            Call::ExpireSession { worker } => match &self.beyond {
                Beyond::Etcd { kv, .. } => expire_sessions(kv, WorkerId::new(worker)),
                Beyond::Memory => panic!("memory has no sessions"),
            },
            Call::GetRun => {
                self.backend.get_run(TENANT, RUN).await.map_or_else(|e| e.to_string(), |run| run_text(&run))
            }
            Call::GetShard { shard } => {
                let found = self.backend.get_shard(TENANT, key(shard)).await;
                found.map_or_else(|error| error.to_string(), |record| shard_text(&record))
            }
            Call::ListRuns => {
                let mut runs: Vec<RunSummary> = Vec::new();
                let listed = self.backend.list_runs_into(TENANT, None, 100, &mut runs).await;
                format!("{} {runs:?}", told(&listed))
            }
            Call::ListActiveRuns => self.list_active_runs().await,
            Call::ListShards => self.list_shards().await,
            Call::Progress => told(&self.backend.get_run_progress(SOON, TENANT, RUN).await),
            Call::Candidates => {
                let mut candidates = Vec::new();
                let found = self
                    .backend
                    .collect_claim_candidates_into(SOON, TENANT, RUN, WorkerId::new(9), 100, &mut candidates)
                    .await;
                candidates.sort_unstable();
                format!("{} {candidates:?}", told(&found))
            }
            Call::Explain { worker } => {
                told(&self.backend.explain_claim(SOON, TENANT, RUN, WorkerId::new(worker)).await)
            }
        };
        (Step::Then(text), None)
    }

    async fn create(&mut self) -> Result<(), CreateRunError> {
        // The run of a start is older than those that are made later.
        let at = if self.caller == FIRST_CALLER { NOW } else { SOON };
        self.backend.create_run(at, TENANT, RUN, incarnation(self.caller), RunConfig::default()).await
    }

    async fn register(&mut self, roots: usize, op: u64) -> String {
        let bounds = bounds(roots);
        told(&self.backend.register_shards(SOON, TENANT, RUN, &inputs(&bounds), OpId::new(op)).await)
    }

    /// Collects runs that never got their shards. In memory that is: cancels and retires them.
    async fn collect(&mut self, created_before: LogicalTime) -> String {
        let mut removed = Vec::new();
        match &self.beyond {
            Beyond::Etcd { coordinator, .. } => {
                if let Err(error) = coordinator.gc_stale_initializing_runs_into(created_before, 10, &mut removed).await
                {
                    return error.to_string();
                }
            }
            Beyond::Memory => {
                if let Ok(RunRecord { status: RunStatus::Initializing, created_at, .. }) =
                    self.backend.get_run(TENANT, RUN).await
                    && created_at < created_before
                {
                    let (cancel, op) = (Settlement::Cancel, OpId::new(1 << 40));
                    self.backend.settle_run(SOON, TENANT, RUN, cancel, op).await.expect("it was initializing");
                    assert_eq!(self.backend.retire_runs(SOON, TENANT, SOON, 10).await, Ok(1));
                    removed.push((TENANT, RUN));
                }
            }
        }
        format!("removed {removed:?}")
    }

    /// Runs that a collection would remove.
    async fn list_stale(&mut self) -> String {
        let mut stale = Vec::new();
        match &self.beyond {
            Beyond::Etcd { coordinator, .. } => {
                if let Err(error) = coordinator.stale_initializing_runs_into(LATE, 10, &mut stale).await {
                    return error.to_string();
                }
            }
            Beyond::Memory => {
                if let Ok(RunRecord { status: RunStatus::Initializing, .. }) = self.backend.get_run(TENANT, RUN).await {
                    stale.push((TENANT, RUN));
                }
            }
        }
        format!("stale {stale:?}")
    }

    async fn list_active_runs(&mut self) -> String {
        let mut active = Vec::new();
        match &self.beyond {
            Beyond::Etcd { coordinator, .. } => {
                if let Err(error) = coordinator.list_active_runs_into(TENANT, None, 10, &mut active).await {
                    return error.to_string();
                }
            }
            Beyond::Memory => {
                let mut runs: Vec<RunSummary> = Vec::new();
                self.backend.list_runs_into(TENANT, None, 10, &mut runs).await.expect("memory lists its runs");
                active.extend(runs.iter().filter(|run| run.status == RunStatus::Active).map(|run| run.run));
            }
        }
        format!("active {active:?}")
    }

    async fn list_shards(&mut self) -> String {
        let mut shards: Vec<ShardSummary> = Vec::new();
        let (all, page) = (ShardFilter::all(), ShardPage::first(1_000));
        let listed = self.backend.list_shards_into(SOON, TENANT, RUN, &all, page, &mut shards).await;
        format!("{} {shards:?}", told(&listed))
    }

    fn lease(&self, shard: u64) -> Lease {
        *self.leases.get(&(1, shard)).unwrap_or_else(|| panic!("worker 1 got no lease of shard {shard} at the start"))
    }

    /// All that can be read: both runs and every shard of them that is among `shards`.
    pub async fn state(&mut self, shards: &[(RunId, ShardId)]) -> Vec<String> {
        let mut seen = Vec::new();
        for run in [RUN, NEIGHBOUR] {
            let found = self.backend.get_run(TENANT, run).await;
            seen.push(format!("{run}: {}", found.map_or_else(|error| error.to_string(), |run| run_text(&run))));
        }
        for (run, shard) in shards {
            if let Ok(record) = self.backend.get_shard(TENANT, ShardKey::new(*run, *shard)).await {
                seen.push(shard_text(&record));
            }
        }
        seen
    }

    /// The ids of all shards, as listings tell them.
    pub async fn shards(&mut self) -> Vec<(RunId, ShardId)> {
        let mut all = Vec::new();
        for run in [RUN, NEIGHBOUR] {
            let mut shards: Vec<ShardSummary> = Vec::new();
            let (filter, page) = (ShardFilter::all(), ShardPage::first(1_000));
            if self.backend.list_shards_into(NOW, TENANT, run, &filter, page, &mut shards).await.is_ok() {
                all.extend(shards.iter().map(|summary| (run, summary.shard)));
            }
        }
        all
    }
}

/// The store ends the etcd leases that a worker's owner keys and presences are attached to.
fn expire_sessions(kv: &SimKv, worker: WorkerId) -> String {
    for stored in scan(kv) {
        let is_the_workers = match heading_of(&stored.key) {
            Some(Heading::Owner) => OwnerPart::decode(&stored.value).is_ok_and(|part| part.worker == worker),
            Some(Heading::Present) => session_of(&stored.key).is_some_and(|(of, _)| of == worker),
            _ => false,
        };
        if is_the_workers {
            kv.expire_lease(stored.lease);
        }
    }
    String::new()
}

/// An epoch of the run that the start made.
const fn first_epoch(fence: u64) -> ShardEpoch {
    ShardEpoch { incarnation: incarnation(FIRST_CALLER), fence: FenceEpoch::new(fence) }
}

fn told<T: Debug, E: std::fmt::Display>(answer: &Result<T, E>) -> String {
    match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => error.to_string(),
    }
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join("; ")
}

fn grant(granted: &AcquireResultView<'_>) -> String {
    let (lease, snapshot) = (&granted.lease, &granted.snapshot);
    let mut text = format!(
        "{} to {} with epoch {:?} until {}: {:?} {:?} parent {:?}, {} spawned",
        lease.shard(),
        lease.owner(),
        lease.epoch(),
        lease.deadline(),
        snapshot.status,
        snapshot.cursor_semantics,
        snapshot.parent,
        snapshot.spawned.len()
    );
    let (start, end) = (snapshot.spec.start(), snapshot.spec.end());
    let _ = write!(text, ", {start:02x?} to {end:02x?} at {:02x?}", snapshot.cursor.last_key());
    text
}

pub fn run_text(run: &RunRecord) -> String {
    let RunRecord { incarnation, config, status, created_at, completed_at, root_shards, op_log, .. } = run;
    format!(
        "{incarnation} {config:?} {status} created {created_at} settled {completed_at:?} roots {root_shards:?} ops {op_log:?}"
    )
}

pub fn shard_text(record: &ShardRecord) -> String {
    let ShardRecord { key, incarnation, state, spec, cursor, spawned, park_detail, unreachable, .. } = record;
    let (start, end, at) = (spec.start(), spec.end(), cursor.last_key());
    format!(
        "{key} of {incarnation}: {start:02x?} to {end:02x?} at {at:02x?} {state:?} spawned {spawned:?} {park_detail:?} reports {unreachable:?}"
    )
}
