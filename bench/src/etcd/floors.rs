//! The requests of checkpoints and acquires, made by hand and sent by the bare client.
//!
//! A checkpoint is more than a compare-and-set: it also proves that its run is open and that its session stands, and says
//! what to read if not. That is the difference between the floor and the raw transaction; the difference between ours and
//! the floor is this backend's own code.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tessera_contracts::{RunId, ShardId, ShardKey, WorkerId};
use tessera_coordination_etcd::keyspace::Keyspace;
use tessera_coordination_etcd::kv::{Compare, EtcdLeaseId, Kv, Op, Revision, Txn};

use super::{Bench, TENANT, record, soon};

/// A run that was not registered: its keys are as long as those of any other, and no other task writes them.
const BY_HAND: RunId = RunId::new(0xffff);
/// About as much as the record of a run takes.
const RUN_BYTES: usize = 100;

/// Which operation is made by hand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Floor {
    Checkpoint,
    Acquire,
}

/// The keys of one shard, and when they were last written.
struct Shard {
    run: Bytes,
    hot: Bytes,
    owner: Bytes,
    standing: Bytes,
    hot_revision: Revision,
    owner_revision: Revision,
}

impl Shard {
    fn transaction(&self, floor: Floor, value: Vec<u8>, run_revision: Revision, lease: EtcdLeaseId) -> Txn {
        let mut compares = vec![Compare::unchanged_since(self.hot.clone(), self.hot_revision)];
        match floor {
            Floor::Checkpoint => compares.push(Compare::exists(self.standing.clone())),
            Floor::Acquire => {
                compares.push(Compare::unchanged_since(self.run.clone(), run_revision));
                compares.push(Compare::unchanged_since(self.owner.clone(), self.owner_revision));
            }
        }
        let mut txn = Txn { compares, success: vec![Op::put(self.hot.clone(), value)], failure: Vec::new() };
        match floor {
            Floor::Checkpoint => txn.failure.push(Op::get(self.hot.clone())),
            Floor::Acquire => txn.success.push(Op::put_attached(self.owner.clone(), vec![1; 26], lease)),
        }
        txn
    }
}

/// So many tasks, each with a shard of its own, whose hot parts have so many bytes.
pub(super) fn by_hand(bench: &Bench, floor: Floor, tasks: u64, bytes: usize) -> impl FnMut(u64) + use<> {
    let (runtime, raw) = (Arc::clone(&bench.runtime), bench.raw.clone());
    let space = Keyspace::new(&bench.config.namespace);
    let lease = EtcdLeaseId::from_random(raw.random());
    let granted = raw.lease_grant(lease, Duration::from_secs(3_600), soon(&raw));
    runtime.block_on(granted).expect("granted");
    let run: Bytes = space.run(TENANT, BY_HAND).into();
    let standing: Bytes = space.standing(TENANT, BY_HAND, WorkerId::new(1), lease).into();
    let puts = vec![Op::put(run.clone(), vec![1; RUN_BYTES]), Op::put_attached(standing.clone(), "", lease)];
    let written = raw.txn(Txn::of(puts), soon(&raw));
    let run_revision = runtime.block_on(written).expect("written").revision;
    let shards: Vec<Arc<tokio::sync::Mutex<Shard>>> = (1..=tasks)
        .map(|shard| {
            let key = ShardKey::new(BY_HAND, ShardId::new(shard));
            let mut shard = Shard {
                run: run.clone(),
                hot: space.hot(TENANT, key).into(),
                owner: space.owner(TENANT, key).into(),
                standing: standing.clone(),
                hot_revision: Revision(0),
                owner_revision: Revision(0),
            };
            let puts = vec![
                Op::put(shard.hot.clone(), vec![7; bytes]),
                Op::put_attached(shard.owner.clone(), vec![1; 26], lease),
            ];
            let written = raw.txn(Txn::of(puts), soon(&raw));
            shard.hot_revision = runtime.block_on(written).expect("written").revision;
            shard.owner_revision = shard.hot_revision;
            Arc::new(tokio::sync::Mutex::new(shard))
        })
        .collect();
    let serial = Arc::new(AtomicU64::new(1));
    let cluster = Arc::clone(&bench.cluster);
    move |times| {
        let _alive = &cluster;
        let round = shards.iter().map(|shard| {
            let (raw, shard, serial) = (raw.clone(), Arc::clone(shard), Arc::clone(&serial));
            async move {
                let mut shard = shard.lock().await;
                for _ in 0..times {
                    let value = record(bytes, serial.fetch_add(1, Ordering::Relaxed));
                    let txn = shard.transaction(floor, value, run_revision, lease);
                    let answer = raw.txn(txn, soon(&raw)).await.expect("answered");
                    assert!(answer.succeeded);
                    shard.hot_revision = answer.revision;
                    if floor == Floor::Acquire {
                        shard.owner_revision = answer.revision;
                    }
                }
            }
        });
        Bench::round(&runtime, round);
    }
}
