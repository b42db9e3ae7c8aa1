//! Standing: one key that says, for all shards that a session holds of a run, that the run is open and the session lives.
//!
//! An operation of a holder has to prove three things: that the record is what it was decided on, that the run has not been
//! settled, and that the session stands. The run's record and the shard's own owner key prove the last two. A *standing*
//! proves both at once, for one compare less on the way of every checkpoint: it is attached to the session's etcd lease and
//! goes with it, it is written by an acquire, which proves that the run is open, and settling the run removes it. And while
//! the record has not been written, the owner key of its holder can go only with the etcd lease.
//!
//! It is a shortcut for who knows that it is there, which is who wrote it. What was decided on a fresh read of all of a
//! shard, also after a race that was lost to no other writer, compares the run and the owner key themselves.

use std::collections::HashMap;

use bytes::Bytes;
use tessera_contracts::{RunId, TenantId};

use super::{Inner, lock};
use crate::kv::{EtcdLeaseId, Kv, Op};

/// Standings remembered; forgetting one costs a compare.
const REMEMBERED_MAX: usize = 4_096;

type Name = (TenantId, RunId, EtcdLeaseId);

/// The standings that this coordinator wrote: where they lie, or nothing while they are being written.
#[derive(Debug, Default)]
pub(super) struct Standings {
    known: HashMap<Name, Option<Bytes>>,
}

/// A standing that an acquire writes. Dropping it, unless it was stored, lets another write it.
pub(super) struct BeingWritten<'i, K: Kv> {
    inner: &'i Inner<K>,
    name: Name,
    path: Bytes,
}

impl<K: Kv> Inner<K> {
    /// Where the standing lies, if it was written.
    pub(super) fn standing(&self, tenant: TenantId, run: RunId, lease: EtcdLeaseId) -> Option<Bytes> {
        lock(&self.standings).known.get(&(tenant, run, lease))?.clone()
    }

    /// The standing to be written with an acquire; `None` if it was, or another acquire is about to: two of one batch may
    /// not write the same key.
    pub(super) fn take_standing(
        &self,
        tenant: TenantId,
        run: RunId,
        lease: EtcdLeaseId,
    ) -> Option<BeingWritten<'_, K>> {
        let name = (tenant, run, lease);
        let mut standings = lock(&self.standings);
        if standings.known.contains_key(&name) {
            return None;
        }
        if standings.known.len() >= REMEMBERED_MAX {
            standings.known.retain(|_, path| path.is_none());
        }
        standings.known.insert(name, None);
        Some(BeingWritten { inner: self, name, path: self.space.standing(tenant, run, lease).into() })
    }

    /// It is not there any more: the next acquire writes it again.
    pub(super) fn forget_standing(&self, tenant: TenantId, run: RunId, lease: EtcdLeaseId) {
        let mut standings = lock(&self.standings);
        if matches!(standings.known.get(&(tenant, run, lease)), Some(Some(_))) {
            standings.known.remove(&(tenant, run, lease));
        }
    }
}

impl<K: Kv> BeingWritten<'_, K> {
    pub(super) fn write(&self) -> Op {
        let (_, _, lease) = self.name;
        Op::put_attached(self.path.clone(), "", lease)
    }

    /// It is there now.
    pub(super) fn stored(self) {
        lock(&self.inner.standings).known.insert(self.name, Some(self.path.clone()));
    }
}

impl<K: Kv> Drop for BeingWritten<'_, K> {
    fn drop(&mut self) {
        let mut standings = lock(&self.inner.standings);
        if standings.known.get(&self.name) == Some(&None) {
            standings.known.remove(&self.name);
        }
    }
}
