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
use crate::session::Session;

/// Standings remembered; forgetting one costs a compare.
const REMEMBERED_MAX: usize = 4_096;

type Name = (TenantId, Where, EtcdLeaseId);

/// Where a session is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Where {
    /// In a run: its standing.
    Run(RunId),
    /// Among all workers of the tenant: its presence, see [`super::present`].
    Tenant,
}

/// The standings and presences that this coordinator wrote: where they lie, or nothing while they are being written.
#[derive(Debug, Default)]
pub(super) struct Standings {
    known: HashMap<Name, Option<Bytes>>,
}

/// A standing or a presence that is written. Dropping it, unless it was stored, lets another write it.
pub(super) struct BeingWritten<'i, K: Kv> {
    inner: &'i Inner<K>,
    name: Name,
    path: Bytes,
}

impl<K: Kv> Inner<K> {
    /// Where the standing lies, if it was written.
    pub(super) fn standing(&self, tenant: TenantId, run: RunId, lease: EtcdLeaseId) -> Option<Bytes> {
        lock(&self.standings).known.get(&(tenant, Where::Run(run), lease))?.clone()
    }

    /// The standing to be written with an acquire; `None` if it was, or another acquire is about to: two of one batch may
    /// not write the same key.
    pub(super) fn take_standing(&self, tenant: TenantId, run: RunId, session: &Session) -> Option<BeingWritten<'_, K>> {
        let path = || self.space.standing(tenant, run, session.worker, session.lease).into();
        self.take(tenant, Where::Run(run), session.lease, path)
    }

    /// The presence to be written, likewise.
    pub(super) fn take_presence(&self, tenant: TenantId, session: &Session) -> Option<BeingWritten<'_, K>> {
        let path = || self.space.presence(tenant, session.worker, session.lease).into();
        self.take(tenant, Where::Tenant, session.lease, path)
    }

    fn take(
        &self,
        tenant: TenantId,
        place: Where,
        lease: EtcdLeaseId,
        path: impl FnOnce() -> Bytes,
    ) -> Option<BeingWritten<'_, K>> {
        let name = (tenant, place, lease);
        let mut standings = lock(&self.standings);
        if standings.known.contains_key(&name) {
            return None;
        }
        if standings.known.len() >= REMEMBERED_MAX {
            standings.known.retain(|_, path| path.is_none());
        }
        standings.known.insert(name, None);
        Some(BeingWritten { inner: self, name, path: path() })
    }

    /// It is not there any more: the next acquire writes it again.
    pub(super) fn forget_standing(&self, tenant: TenantId, run: RunId, lease: EtcdLeaseId) {
        let mut standings = lock(&self.standings);
        let name = (tenant, Where::Run(run), lease);
        if matches!(standings.known.get(&name), Some(Some(_))) {
            standings.known.remove(&name);
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
