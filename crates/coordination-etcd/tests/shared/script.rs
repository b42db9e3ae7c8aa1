//! The same random operations on an etcd backend and on the in-memory coordinator, every answer compared, and every record
//! afterwards. `simulated/lockstep.rs` does it over the simulated store with many scripts, `real_servers/lockstep.rs` over a real server.

// Each test program uses its share of this.
#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use tessera_contracts::keyspace::Fraction;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{plan_split_replace_evenly, plan_split_residual_at_fraction};
use tessera_contracts::{
    CursorSemantics, CursorUpdate, FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey,
    TenantId, WorkerId,
};
use tessera_coordination::backend::CoordinationFacade;
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::events::{EventCollector, StateTransitionEvent};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::explain::ClaimExplanation;
use tessera_coordination::run::summary::{ShardFilter, ShardPage};
use tessera_coordination::{AcquireScratch, CoordinatorRuntimeConfig, InMemoryCoordinator, Lease};
use tessera_coordination_etcd::EtcdConfig;

const TENANT: TenantId = TenantId::from_bytes([7; 32]);
const STRANGER: TenantId = TenantId::from_bytes([8; 32]);
/// How long a lease lasts, in ticks of which a script counts up to sixty at a time.
const LEASE_TICKS: u64 = 100;

#[derive(Clone, Debug)]
pub enum Command {
    Create { run: u8 },
    Register { run: u8, shards: u8, op: u8 },
    Acquire { run: u8, shard: u8, worker: u8 },
    Renew { lease: u8 },
    RenewAll,
    Checkpoint { lease: u8, key: u8, op: u8 },
    Complete { lease: u8, key: Option<u8>, op: u8 },
    Park { lease: u8, op: u8 },
    Release { lease: u8, key: Option<u8>, op: u8 },
    SplitReplace { lease: u8, children: u8, op: u8 },
    SplitResidual { lease: u8, fraction: u8, op: u8 },
    Unpark { shard: u8, fence: u8, op: u8 },
    Order { shard: u8, fence: u8, split: bool },
    Settle { run: u8, how: u8, op: u8 },
    Retire,
    Advance { by: u8 },
    WrongTenant { lease: u8 },
}

pub fn command() -> impl Strategy<Value = Command> {
    use Command::*;
    let op = || 0..24u8;
    let lease = || 0..32u8;
    prop_oneof![
        2 => (0..2u8).prop_map(|run| Create { run }),
        3 => (0..2u8, 1..5u8, op()).prop_map(|(run, shards, op)| Register { run, shards, op }),
        16 => (0..2u8, 0..12u8, 0..3u8).prop_map(|(run, shard, worker)| Acquire { run, shard, worker }),
        4 => lease().prop_map(|lease| Renew { lease }),
        1 => Just(RenewAll),
        16 => (lease(), any::<u8>(), op()).prop_map(|(lease, key, op)| Checkpoint { lease, key, op }),
        4 => (lease(), prop::option::of(any::<u8>()), op()).prop_map(|(lease, key, op)| Complete { lease, key, op }),
        3 => (lease(), op()).prop_map(|(lease, op)| Park { lease, op }),
        4 => (lease(), prop::option::of(any::<u8>()), op()).prop_map(|(lease, key, op)| Release { lease, key, op }),
        4 => (lease(), 2..4u8, op()).prop_map(|(lease, children, op)| SplitReplace { lease, children, op }),
        4 => (lease(), 1..10u8, op()).prop_map(|(lease, fraction, op)| SplitResidual { lease, fraction, op }),
        4 => (0..12u8, 0..5u8, op()).prop_map(|(shard, fence, op)| Unpark { shard, fence, op }),
        3 => (0..12u8, 0..5u8, any::<bool>()).prop_map(|(shard, fence, split)| Order { shard, fence, split }),
        1 => (0..2u8, 0..3u8, op()).prop_map(|(run, how, op)| Settle { run, how, op }),
        1 => Just(Retire),
        6 => (1..60u8).prop_map(|by| Advance { by }),
        1 => lease().prop_map(|lease| WrongTenant { lease }),
    ]
}

/// One backend under test, with what its callers hold.
pub struct Side<B> {
    pub backend: B,
    now: LogicalTime,
    /// How many milliseconds a script's tick lasts.
    tick: u64,
    leases: Vec<Lease>,
    scratch: AcquireScratch,
    events: EventCollector,
    /// Shards by the order in which they came to be, so that both sides mean the same one.
    shards: Vec<ShardKey>,
    /// How many incarnations were drawn, and which of them each run has.
    drawn: u64,
    incarnations: BTreeMap<RunId, RunIncarnation>,
}

impl<B: CoordinationFacade> Side<B> {
    pub fn new(backend: B, tick: u64) -> Self {
        Self {
            backend,
            now: LogicalTime::new(1_000),
            tick,
            leases: Vec::new(),
            scratch: AcquireScratch::new(),
            events: EventCollector::new(),
            shards: Vec::new(),
            drawn: 0,
            incarnations: BTreeMap::new(),
        }
    }

    /// An ownership of the shard in the run that has the id now.
    fn epoch(&self, key: ShardKey, fence: u8) -> ShardEpoch {
        let incarnation = self.incarnations.get(&key.run).copied().unwrap_or(RunIncarnation::new(u64::MAX));
        ShardEpoch::new(incarnation, FenceEpoch::new(u64::from(fence)))
    }

    fn lease(&self, index: u8) -> Option<Lease> {
        // Older leases are often stale: both the newest and the stale ones are of interest.
        let count = self.leases.len();
        (count > 0).then(|| self.leases[count - 1 - usize::from(index) % count])
    }

    fn shard(&self, index: u8) -> ShardKey {
        let count = self.shards.len();
        if count == 0 { ShardKey::new(RunId::new(1), ShardId::new(1)) } else { self.shards[usize::from(index) % count] }
    }

    /// Runs a command and says all that there is to say about its answer.
    pub fn run(&mut self, command: &Command) -> String {
        let now = self.now;
        let told = |text: String, events: &mut EventCollector| {
            let events: Vec<StateTransitionEvent> = events.drain();
            format!("{text} {events:?}")
        };
        let run_id = |run: u8| RunId::new(u64::from(run) + 1);
        let op_id = |op: u8| OpId::new(u64::from(op) + 1);
        let text = match *command {
            Command::Create { run } => {
                let config = RunConfig {
                    cursor_semantics: CursorSemantics::Completed,
                    lease_duration: Some(LEASE_TICKS * self.tick),
                    max_shard_retries: 3,
                };
                self.drawn += 1;
                let (run, drawn, events) = (run_id(run), RunIncarnation::new(self.drawn), &mut self.events);
                let created = self.backend.create_run_with_events(now, TENANT, run, drawn, config, events);
                if created.is_ok() {
                    self.incarnations.insert(run, drawn);
                }
                format!("{created:?}")
            }
            Command::Register { run, shards, op } => {
                let keys: Vec<[u8; 2]> = (0..=shards).map(|n| [b'a' + n * 4, 0]).collect();
                let inputs: Vec<InitialShardInput<'_>> = (0..usize::from(shards))
                    .map(|n| InitialShardInput::new(ShardId::new(n as u64 + 1), &keys[n][..1], &keys[n + 1][..1]))
                    .collect();
                let answer = self.backend.register_shards_with_events(
                    now,
                    TENANT,
                    run_id(run),
                    &inputs,
                    op_id(op),
                    &mut self.events,
                );
                if answer.as_ref().is_ok_and(|outcome| outcome.is_executed()) {
                    self.shards.extend(inputs.iter().map(|input| ShardKey::new(run_id(run), input.shard)));
                }
                format!("{answer:?}")
            }
            Command::Acquire { run, shard, worker } => {
                let mut key = self.shard(shard);
                if shard == 11 {
                    key = ShardKey::new(run_id(run), ShardId::new(99));
                }
                let worker = WorkerId::new(u64::from(worker) + 1);
                let backend = &mut self.backend;
                match backend.acquire_and_restore_into_with_events(
                    now,
                    TENANT,
                    key,
                    worker,
                    &mut self.scratch,
                    &mut self.events,
                ) {
                    Ok(view) => {
                        let text = format!("{view:?}");
                        let lease = view.lease;
                        self.leases.push(lease);
                        text
                    }
                    Err(error) => format!("{error:?}"),
                }
            }
            Command::Renew { lease } => match self.lease(lease) {
                Some(lease) => format!("{:?}", self.backend.renew_with_events(now, TENANT, &lease, &mut self.events)),
                None => String::new(),
            },
            Command::RenewAll => {
                let mut answers = Vec::new();
                self.backend.renew_many_with_events(now, TENANT, &self.leases, &mut answers, &mut self.events);
                // Batches answer as of one moment each; the hints in them are of that moment.
                let answers: Vec<String> = answers
                    .iter()
                    .map(|answer| format!("{:?}", answer.as_ref().map(|answer| (answer.new_deadline, answer.orders))))
                    .collect();
                format!("{answers:?}")
            }
            Command::Checkpoint { lease, key, op } => match self.lease(lease) {
                Some(lease) => {
                    let key = [b'a' + key % 20, key];
                    let cursor = CursorUpdate::new(Some(&key), Some(b"token")).expect("a valid cursor");
                    format!(
                        "{:?}",
                        self.backend.checkpoint_with_events(now, TENANT, &lease, cursor, op_id(op), &mut self.events)
                    )
                }
                None => String::new(),
            },
            Command::Complete { lease, key, op } => match self.lease(lease) {
                Some(lease) => {
                    let key = key.map(|key| [b'a' + key % 20, key]);
                    let cursor = CursorUpdate::new(key.as_ref().map(|key| &key[..]), None).expect("a valid cursor");
                    format!(
                        "{:?}",
                        self.backend.complete_with_events(now, TENANT, &lease, cursor, op_id(op), &mut self.events)
                    )
                }
                None => String::new(),
            },
            Command::Park { lease, op } => match self.lease(lease) {
                Some(lease) => {
                    let park = Park::because(ParkReason::NotFound).with_detail("gone").with_retry_after(now);
                    format!(
                        "{:?}",
                        self.backend.park_shard_with_events(now, TENANT, &lease, park, op_id(op), &mut self.events)
                    )
                }
                None => String::new(),
            },
            Command::Release { lease, key, op } => match self.lease(lease) {
                Some(lease) => {
                    let key = key.map(|key| [b'a' + key % 20, key]);
                    let cursor = key.as_ref().map(|key| CursorUpdate::at_key(key).expect("a valid cursor"));
                    let (reason, op) = (ReleaseReason::Yielded, op_id(op));
                    format!(
                        "{:?}",
                        self.backend.release_with_events(now, TENANT, &lease, cursor, reason, op, &mut self.events)
                    )
                }
                None => String::new(),
            },
            Command::SplitReplace { lease, children, op } => match self.lease(lease) {
                Some(lease) => {
                    let Ok(record) = self.backend.get_shard(TENANT, lease.key()) else { return String::new() };
                    let Ok(plan) = plan_split_replace_evenly(record.spec.view(), usize::from(children)) else {
                        return String::new();
                    };
                    let answer =
                        self.backend.split_replace_with_events(now, TENANT, &lease, &plan, op_id(op), &mut self.events);
                    if let Ok(outcome) = &answer
                        && outcome.is_executed()
                    {
                        self.shards.extend(outcome.get().iter().map(|child| ShardKey::new(lease.run(), *child)));
                    }
                    format!("{answer:?}")
                }
                None => String::new(),
            },
            Command::SplitResidual { lease, fraction, op } => match self.lease(lease) {
                Some(lease) => {
                    let Ok(record) = self.backend.get_shard(TENANT, lease.key()) else { return String::new() };
                    let fraction = Fraction::from_millionths(u32::from(fraction) * 100_000).expect("within one");
                    let last_key = record.cursor.last_key();
                    let plan = plan_split_residual_at_fraction(record.spec.view(), last_key, fraction);
                    let Ok(plan) = plan else { return String::new() };
                    let answer = self.backend.split_residual_with_events(
                        now,
                        TENANT,
                        &lease,
                        &plan,
                        op_id(op),
                        &mut self.events,
                    );
                    if let Ok(outcome) = &answer
                        && outcome.is_executed()
                    {
                        self.shards.push(ShardKey::new(lease.run(), *outcome.get()));
                    }
                    format!("{answer:?}")
                }
                None => String::new(),
            },
            Command::Unpark { shard, fence, op } => {
                let key = self.shard(shard);
                let expected = self.epoch(key, fence);
                format!(
                    "{:?}",
                    self.backend.unpark_shard_with_events(now, TENANT, key, expected, op_id(op), &mut self.events)
                )
            }
            Command::Order { shard, fence, split } => {
                let key = self.shard(shard);
                let epoch = self.epoch(key, fence);
                let order = if split { OrderRequest::Split(Fraction::HALF) } else { OrderRequest::Yield };
                format!("{:?}", self.backend.order_with_events(now, TENANT, key, epoch, order, &mut self.events))
            }
            Command::Settle { run, how, op } => {
                let how = [Settlement::Complete, Settlement::Fail, Settlement::Cancel][usize::from(how)];
                format!(
                    "{:?}",
                    self.backend.settle_run_with_events(now, TENANT, run_id(run), how, op_id(op), &mut self.events)
                )
            }
            Command::Retire => {
                let until = LogicalTime::new(now.get().saturating_sub(20 * self.tick));
                format!("{:?}", self.backend.retire_runs_with_events(now, TENANT, until, 1, &mut self.events))
            }
            Command::Advance { by } => {
                self.now = self.now.saturating_add(u64::from(by) * self.tick);
                String::new()
            }
            Command::WrongTenant { lease } => match self.lease(lease) {
                Some(lease) => format!("{:?}", self.backend.renew_with_events(now, STRANGER, &lease, &mut self.events)),
                None => String::new(),
            },
        };
        told(text, &mut self.events)
    }

    /// All that can be read, tokens and metadata included.
    fn everything(&mut self) -> Vec<String> {
        let mut seen = Vec::new();
        let mut runs = Vec::new();
        let listed = self.backend.list_runs_into(TENANT, None, 100, &mut runs);
        seen.push(format!("{listed:?} {runs:?}"));
        for run in [RunId::new(1), RunId::new(2)] {
            seen.push(format!("{:?}", self.backend.get_run(TENANT, run)));
            seen.push(format!("{:?}", self.backend.get_run_progress(self.now, TENANT, run)));
            let explained = self.backend.explain_claim(self.now, TENANT, run, WorkerId::new(1));
            // Memory knows no sessions, so only etcd can tell a late holder that is still connected.
            seen.push(format!("{:?}", explained.map(|explained| ClaimExplanation { overdue: 0, ..explained })));
            let mut page = Some(ShardPage::first(3));
            while let Some(next) = page {
                let mut shards = Vec::new();
                let filter = ShardFilter::all();
                match self.backend.list_shards_into(self.now, TENANT, run, &filter, next, &mut shards) {
                    Ok(following) => page = following,
                    Err(error) => {
                        seen.push(format!("{error:?}"));
                        break;
                    }
                }
                seen.extend(shards.iter().map(|shard| format!("{shard:?}")));
            }
            let mut candidates = Vec::new();
            let collected = self.backend.collect_claim_candidates_into(
                self.now,
                TENANT,
                run,
                WorkerId::new(1),
                1_000,
                &mut candidates,
            );
            candidates.sort_unstable();
            seen.push(format!("{collected:?} {candidates:?}"));
        }
        for key in self.shards.clone() {
            if let Ok(record) = self.backend.get_shard(TENANT, key) {
                let bytes = |bytes: Option<&[u8]>| bytes.map(Bytes::copy_from_slice);
                seen.push(format!("{record:?}"));
                seen.push(format!("{:?} {:?}", bytes(record.cursor.last_key()), bytes(record.cursor.token())));
                seen.push(format!("{:?} {:?}", bytes(Some(record.spec.start())), bytes(Some(record.spec.end()))));
            }
        }
        seen
    }
}

pub fn memory() -> InMemoryCoordinator {
    let config = CoordinatorRuntimeConfig { max_shards_per_tenant: 24, max_total_shards: 24, ..Default::default() };
    InMemoryCoordinator::new(config).expect("valid")
}

/// Runs a script on both, then reads all records back, also through `reader`, which has seen nothing of it.
pub fn check(
    script: &[Command],
    etcd: impl CoordinationFacade,
    reader: impl CoordinationFacade,
) -> Result<(), TestCaseError> {
    let mut memory = Side::new(memory(), 1);
    let mut etcd = Side::new(etcd, 1);
    for (index, command) in script.iter().enumerate() {
        let (expected, answered) = (memory.run(command), etcd.run(command));
        prop_assert_eq!(answered, expected, "etcd (left) and memory (right) differ at step {}: {:?}", index, command);
    }
    same_records(&mut memory, &mut etcd)?;
    let mut reader = Side { now: etcd.now, shards: etcd.shards.clone(), ..Side::new(reader, 1) };
    same_records(&mut memory, &mut reader)
}

pub fn same_records(
    memory: &mut Side<impl CoordinationFacade>,
    etcd: &mut Side<impl CoordinationFacade>,
) -> Result<(), TestCaseError> {
    let (expected, stored) = (memory.everything(), etcd.everything());
    for (stored, expected) in stored.iter().zip(&expected) {
        prop_assert_eq!(stored, expected, "what etcd holds (left) is not what memory holds (right)");
    }
    prop_assert_eq!(stored.len(), expected.len());
    Ok(())
}

pub fn config() -> EtcdConfig {
    EtcdConfig {
        skew_tolerance: std::time::Duration::ZERO,
        // The in-memory coordinator's advice is never old.
        hint_age_max: std::time::Duration::ZERO,
        shards_per_tenant_max: 24,
        shards_total_max: 24,
        ..EtcdConfig::default()
    }
}

/// Scripts to run: `TESSERA_CASES` times as many on demand.
pub fn cases(count: u32) -> ProptestConfig {
    let times = std::env::var("TESSERA_CASES").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let cases = count.saturating_mul(times);
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 4_000, ..ProptestConfig::default() }
}
