//! Storing what a decision says: one transaction that proves the view it was decided on.

use std::sync::Arc;

use bytes::Bytes;
use tessera_coordination::error::InfraError;
use tessera_coordination::operation::Guard;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::status::ShardStatus;

use super::stored::{StoredOwner, StoredShard};
use super::{Inner, failed, lock};
use crate::codec::{HotView, OwnerPart};
use crate::keyspace::{Keyspace, ShardIndex};
use crate::kv::{Compare, EtcdLeaseId, Fate, Kv, Moment, Op, OpResponse, Revision, Txn, TxnResponse};

/// Writes from which on a transaction shares requests with few others: what a request costs is then mostly its own work, and
/// many together only make all wait for all.
const LARGE_OPS: usize = 12;

/// What becomes of the owner key.
#[derive(Clone, Copy, Debug)]
pub(super) enum OwnerWrite {
    /// It stays, or goes if the record names no holder.
    AsRecorded,
    /// It is written anew, attached to this etcd lease.
    Put(OwnerPart, EtcdLeaseId),
}

/// What became of a transaction.
pub(super) enum Commit {
    /// Stored; this is the shard now. `extra` answers whatever reads were added.
    Won { shard: Box<StoredShard>, extra: Vec<OpResponse> },
    /// Another coordinator wrote first; this is the shard as it left it, if it still exists.
    Lost(Option<Box<StoredShard>>),
    /// The answer was lost, and the record is not what was to be written; it may yet become it.
    Doubtful(Option<Box<StoredShard>>),
}

/// A shard's next record, and all that has to be stored with it.
pub(super) struct Transition<'s> {
    pub(super) before: &'s StoredShard,
    pub(super) next: &'s Arc<ShardRecord>,
    pub(super) guard: Guard,
    pub(super) owner: OwnerWrite,
    /// Further conditions and writes of the same transaction.
    pub(super) compares: Vec<Compare>,
    pub(super) ops: Vec<Op>,
    /// Reads that see the state afterwards, answered as `extra`.
    pub(super) reads: Vec<Op>,
}

impl<'s> Transition<'s> {
    pub(super) fn new(before: &'s StoredShard, next: &'s Arc<ShardRecord>, guard: Guard) -> Self {
        let owner = OwnerWrite::AsRecorded;
        Self { before, next, guard, owner, compares: Vec::new(), ops: Vec::new(), reads: Vec::new() }
    }

    /// Which session's standing would prove what this has to prove about run and session.
    fn stands_by(&self) -> Option<EtcdLeaseId> {
        let by_session = self.guard == Guard::SessionStands && !self.before.fresh;
        self.before.owner.filter(|_| by_session).map(|owner| owner.lease)
    }

    fn into_txn(self, space: &Keyspace, standing: Option<Bytes>) -> (Txn, usize) {
        let (before, next) = (self.before, self.next);
        let paths = &before.paths;
        let mut compares = self.compares;
        compares.push(Compare::unchanged_since(paths.hot.clone(), before.hot_revision));
        match &standing {
            Some(standing) => compares.push(Compare::exists(standing.clone())),
            None => compares.push(Compare::unchanged_since(paths.run.clone(), before.run.revision)),
        }
        if before.pieced {
            compares.push(Compare::unchanged_since(paths.cold.clone(), before.cold_revision));
        }
        match (self.guard, &before.owner) {
            (Guard::SessionStands, Some(_)) if standing.is_some() => {}
            (Guard::SessionStands | Guard::HolderAsSeen, Some(owner)) => {
                compares.push(Compare::attached_to(paths.owner.clone(), owner.lease));
            }
            (Guard::SessionStands, None) => compares.push(Compare::exists(paths.owner.clone())),
            (Guard::Untouched, owner) => {
                let revision = owner.map_or(Revision(0), |owner| owner.revision);
                compares.push(Compare::unchanged_since(paths.owner.clone(), revision));
            }
            (Guard::HolderAsSeen, None) | (Guard::Nothing, _) => {}
        }
        let mut success = vec![Op::put(paths.hot.clone(), HotView::of(next).encode())];
        if changes_cold(before, next) {
            success.push(Op::put(paths.cold.clone(), before.cold_with(next).encode()));
        }
        match self.owner {
            OwnerWrite::Put(part, lease) => {
                success.push(Op::put_attached(paths.owner.clone(), part.encode(), lease));
            }
            OwnerWrite::AsRecorded if next.state.head.lease.is_none() && before.owner.is_some() => {
                success.push(Op::delete(paths.owner.clone()));
            }
            OwnerWrite::AsRecorded => {}
        }
        let (tenant, key) = (next.tenant, next.key);
        let (old, new) = (index_of(&before.record), index_of(next));
        if old != new {
            success.extend(old.map(|index| Op::delete(space.index(index, tenant, key))));
            success.extend(new.map(|index| Op::put(space.index(index, tenant, key), "")));
        }
        success.extend(self.ops);
        let reads_from = success.len();
        success.extend(self.reads);
        let failure = match self.guard {
            // A worker that meant to take the shard and lost has mostly lost it for good, and looks again if not.
            Guard::Untouched => Vec::new(),
            // All that is needed to decide again: the rest is remembered, and the next transaction proves it.
            Guard::SessionStands | Guard::HolderAsSeen | Guard::Nothing => vec![Op::get(paths.hot.clone())],
        };
        (Txn { compares, success, failure }, reads_from)
    }
}

impl<K: Kv> Inner<K> {
    /// Stores a transition, in whichever batch it fits, and says what became of it.
    pub(super) async fn commit(
        &self,
        operation: &'static str,
        transition: Transition<'_>,
        deadline: Moment,
    ) -> Result<Commit, InfraError> {
        let (before, next, owner) = (transition.before, transition.next, transition.owner);
        let session = transition.stands_by();
        let standing = session.and_then(|session| self.standing(next.tenant, next.key.run, session));
        let by_standing = session.filter(|_| standing.is_some());
        let (txn, reads_from) = transition.into_txn(&self.space, standing);
        let batcher = if txn.success.len() >= LARGE_OPS { &self.batcher_of_large } else { &self.batcher };
        match batcher.submit(before.paths.hot.clone(), txn, deadline).await {
            Ok(answer) if answer.succeeded => {
                let shard = Box::new(after(before, next, owner, answer.revision));
                lock(&self.cache).put((*shard).clone());
                Ok(Commit::Won { shard, extra: tail(answer, reads_from) })
            }
            Ok(answer) => {
                let fresh = self.reread(operation, before, &answer.responses, deadline).await?;
                if let Some(session) = by_standing
                    && fresh.as_ref().is_some_and(|fresh| fresh.hot_revision == before.hot_revision)
                {
                    // The record is unchanged, so it was the standing that was missed: another run may have had this one's name.
                    self.forget_standing(next.tenant, next.key.run, session);
                }
                self.remember(next, fresh.as_ref());
                Ok(Commit::Lost(fresh.map(Box::new)))
            }
            Err(error) if error.fate == Fate::Ambiguous => {
                lock(&self.cache).forget(next.tenant, next.key);
                let fresh = self.load(operation, next.tenant, next.key, deadline).await?;
                self.remember(next, fresh.as_ref());
                Ok(match fresh {
                    Some(fresh) if is_what_was_written(&fresh, next, owner) => {
                        Commit::Won { shard: Box::new(fresh), extra: Vec::new() }
                    }
                    fresh => Commit::Doubtful(fresh.map(Box::new)),
                })
            }
            Err(error) => Err(failed(operation, &error)),
        }
    }

    fn remember(&self, record: &ShardRecord, fresh: Option<&StoredShard>) {
        let mut cache = lock(&self.cache);
        match fresh {
            Some(fresh) => cache.put(fresh.clone()),
            None => cache.forget(record.tenant, record.key),
        }
    }
}

/// The shard once the transaction is stored.
fn after(before: &StoredShard, next: &Arc<ShardRecord>, owner: OwnerWrite, revision: Revision) -> StoredShard {
    let owner = match owner {
        OwnerWrite::Put(part, lease) => Some(StoredOwner { part, lease, revision }),
        OwnerWrite::AsRecorded => before.owner.filter(|_| next.state.head.lease.is_some()),
    };
    StoredShard {
        paths: Arc::clone(&before.paths),
        record: Arc::clone(next),
        hot_revision: revision,
        owner,
        run: before.run.clone(),
        cold: Arc::clone(&before.cold),
        cold_revision: if changes_cold(before, next) { revision } else { before.cold_revision },
        fresh: true,
        pieced: false,
    }
}

/// Whether a record that was read after a lost answer is the one that was to be written. Every write differs from all
/// others: by its op id, or, for an acquire, by its fence and the etcd lease of its owner.
fn is_what_was_written(fresh: &StoredShard, next: &ShardRecord, owner: OwnerWrite) -> bool {
    let same_record = fresh.record.incarnation == next.incarnation
        && fresh.record.state.op_log == next.state.op_log
        && fresh.record.state.history == next.state.history
        && fresh.record.state.head.status == next.state.head.status
        && fresh.record.state.head.fence == next.state.head.fence
        && fresh.record.state.head.orders == next.state.head.orders
        && fresh.record.cursor == next.cursor
        && fresh.record.unreachable == next.unreachable
        && fresh.record.spawned == next.spawned;
    same_record
        && match owner {
            OwnerWrite::AsRecorded => true,
            OwnerWrite::Put(part, lease) => {
                fresh.owner.is_some_and(|owner| owner.lease == lease && owner.part.fence == part.fence)
            }
        }
}

/// Which index a shard is in.
pub(super) fn index_of(record: &ShardRecord) -> Option<ShardIndex> {
    match record.state.head.status {
        ShardStatus::Active if record.state.head.lease.is_some() => Some(ShardIndex::Held),
        ShardStatus::Active if record.unreachable.is_empty() => Some(ShardIndex::Free),
        ShardStatus::Active => Some(ShardIndex::Reported),
        ShardStatus::Parked => Some(ShardIndex::Parked),
        ShardStatus::Done | ShardStatus::Split => None,
    }
}

fn changes_cold(before: &StoredShard, next: &ShardRecord) -> bool {
    next.spec != before.record.spec || next.spawned != before.record.spawned
}

fn tail(answer: TxnResponse, from: usize) -> Vec<OpResponse> {
    let mut responses = answer.responses;
    responses.split_off(from.min(responses.len()))
}
