//! A worker that hands work on: under `Dispatched` its cursor says what lies durably in the queue, not what is done.
//!
//! The worker puts an item into a queue, then checkpoints past it. Whatever call it dies at, its heir goes on behind the
//! cursor, so nothing is left out, and at most the one item whose checkpoint never arrived is in the queue twice. What is
//! done is the queue's to say: a shard may be complete while nothing has been.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::BTreeSet;

use tessera_contracts::ids::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId};
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{CursorSemantics, CursorUpdate};
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::{AcquireScratch, CoordinationBackend, InMemoryCoordinator, RunManagement, WorkerSession};

const TENANT: TenantId = TenantId::from_bytes([3; 32]);
const SHARD: ShardKey = ShardKey::new(RunId::new(1), ShardId::new(1));
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const ITEMS: &[u8] = b"bcdefghijkl";
const LEASE: u64 = 100;

fn at(time: u64) -> LogicalTime {
    LogicalTime::new(time)
}

fn store(cursor_semantics: CursorSemantics) -> InMemoryCoordinator {
    let mut store = InMemoryCoordinator::default();
    let shards = [InitialShardInput::new(SHARD.shard, b"b", b"m")];
    let config = RunConfig { cursor_semantics, lease_duration: Some(LEASE), ..RunConfig::default() };
    store.create_run_with_shards(at(1), TENANT, SHARD.run, INCARNATION, config, &shards, OpId::new(1)).unwrap();
    store
}

/// Where work is handed to, durably: it outlives every worker. Someone else takes from it, some day.
type Queue = Vec<u8>;

/// The worker's calls that can be its last. It dies before the one at which `left` has run out.
struct Life {
    left: usize,
}

impl Life {
    fn goes_on(&mut self) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        Some(())
    }
}

/// Hands on what is behind the cursor, and tells the coordinator after each item. `None` if it died on the way.
fn dispatch(store: &mut InMemoryCoordinator, queue: &mut Queue, now: u64, worker: u64, mut life: Life) -> Option<()> {
    let mut session = WorkerSession::new(store, at(now), TENANT, SHARD, WorkerId::new(worker)).unwrap();
    let behind = session.cursor().last_key().map(<[u8]>::to_vec);
    for (n, item) in
        ITEMS.iter().filter(|item| behind.as_deref().is_none_or(|last| [**item].as_slice() > last)).enumerate()
    {
        life.goes_on()?;
        queue.push(*item);
        life.goes_on()?;
        let cursor = [*item];
        let op = OpId::new(worker * 1_000 + n as u64);
        session.checkpoint(at(now + 1), CursorUpdate::at_key(&cursor).unwrap(), op).unwrap();
    }
    life.goes_on()?;
    session.complete(at(now + 2), CursorUpdate::at_key(b"l").unwrap(), OpId::new(worker * 1_000 + 999)).unwrap();
    Some(())
}

#[test]
fn a_dispatcher_that_dies_at_any_call_leaves_nothing_out_and_repeats_at_most_one_item() {
    let calls = 2 * ITEMS.len() + 1;
    for dies_at in 0..=calls {
        let (mut store, mut queue) = (store(CursorSemantics::Dispatched), Queue::new());
        let lived = dispatch(&mut store, &mut queue, 2, 1, Life { left: dies_at }).is_some();
        assert_eq!(lived, dies_at == calls);
        let record = store.get_shard(TENANT, SHARD).unwrap();
        assert_eq!(record.state.cursor_semantics, CursorSemantics::Dispatched);
        // The promise of the semantics, after every death: all up to the cursor is in the queue.
        let promised =
            record.cursor.last_key().map_or(0, |last| ITEMS.iter().filter(|item| [**item].as_slice() <= last).count());
        assert_eq!(queue.get(..promised), Some(&ITEMS[..promised]), "died at {dies_at}");
        if !lived {
            // The heir comes when the lease has ended.
            dispatch(&mut store, &mut queue, 2 + LEASE, 2, Life { left: usize::MAX }).unwrap();
        }
        let once: BTreeSet<u8> = queue.iter().copied().collect();
        assert_eq!(once, ITEMS.iter().copied().collect(), "died at {dies_at}: something was left out");
        let twice = queue.len() - once.len();
        let between = !lived && dies_at < calls - 1 && dies_at % 2 == 1;
        assert_eq!(twice, usize::from(between), "died at {dies_at}: only what no checkpoint told of comes again");
    }
}

#[test]
fn a_shard_whose_work_is_handed_on_is_complete_though_nothing_has_been_done() {
    let (mut store, mut queue) = (store(CursorSemantics::Dispatched), Queue::new());
    dispatch(&mut store, &mut queue, 2, 1, Life { left: usize::MAX }).unwrap();
    assert_eq!(queue, ITEMS, "handed on, each once, and not one taken out");
    let record = store.get_shard(TENANT, SHARD).unwrap();
    assert_eq!((record.state.head.status, record.cursor.last_key()), (ShardStatus::Done, Some(&b"l"[..])));
    store.complete_run(at(5), TENANT, SHARD.run, OpId::new(9)).unwrap();
    assert_eq!(store.get_run(TENANT, SHARD.run).unwrap().status, RunStatus::Done);
    // So a reader of the run asks the run what its cursors mean, before it calls the work done.
    let config = store.get_run(TENANT, SHARD.run).unwrap().config;
    assert_eq!(config.cursor_semantics, CursorSemantics::Dispatched);
}

#[test]
fn every_holder_is_told_what_the_cursor_it_goes_on_from_means() {
    for semantics in [CursorSemantics::Completed, CursorSemantics::Dispatched] {
        let mut store = store(semantics);
        let mut scratch = AcquireScratch::new();
        for (time, worker) in [(2, 1), (2 + LEASE, 2)] {
            let granted =
                store.acquire_and_restore_into(at(time), TENANT, SHARD, WorkerId::new(worker), &mut scratch).unwrap();
            assert_eq!(granted.snapshot.cursor_semantics, semantics);
            let lease = granted.lease;
            let cursor = CursorUpdate::at_key(b"c").unwrap();
            store.checkpoint(at(time), TENANT, &lease, cursor, OpId::new(10 + worker)).unwrap();
        }
    }
}
