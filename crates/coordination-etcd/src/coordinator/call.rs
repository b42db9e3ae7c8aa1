//! One operation on one shard, as the protocol's loop asks for it: what a store is, on etcd.

use std::sync::Arc;

use tessera_contracts::{LogicalTime, ShardKey, TenantId, WorkerId};
use tessera_coordination::error::{AccessRefused, InfraError};
use tessera_coordination::operation::{Address, Guard};
use tessera_coordination::record::state::Change;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::record::view::ShardView;
use tessera_coordination::store::{Commit, Confirmed, Store};

use super::commit::{self, Transition};
use super::present::{Asked, Creation, Present};
use super::stored::StoredShard;
use super::{Inner, lock};
use crate::kv::{Kv, Moment, Revision};

/// The store during one call.
pub(super) struct Call<'c, K> {
    inner: &'c Inner<K>,
    operation: &'static str,
    deadline: Moment,
    attempts: u32,
    /// Who takes part in the run, if the operation asked; a commit that parks proves that no worker came since.
    present: Option<Present>,
    /// The revision of the shard that a commit without an answer was conditional on.
    unanswered: Option<Revision>,
}

impl<'c, K: Kv> Call<'c, K> {
    pub(super) fn new(inner: &'c Inner<K>, operation: &'static str) -> Self {
        Self { inner, operation, deadline: inner.deadline(), attempts: 0, present: None, unanswered: None }
    }
}

impl<K: Kv> Store for Call<'_, K> {
    type Loaded = StoredShard;

    const KNOWS_SESSIONS: bool = true;

    async fn load(&mut self, at: Address) -> Result<Option<StoredShard>, InfraError> {
        self.inner.remembered_or_read(self.operation, at.tenant, at.key, self.deadline).await
    }

    async fn confirm(&mut self, at: Address, loaded: &StoredShard) -> Result<Confirmed<StoredShard>, InfraError> {
        if loaded.fresh {
            return Ok(Confirmed::AsLoaded);
        }
        let read = self.inner.load_or_forget(self.operation, at.tenant, at.key, self.deadline).await?;
        Ok(Confirmed::Anew(read))
    }

    fn view<'v>(&'v self, loaded: &'v StoredShard) -> ShardView<'v> {
        loaded.view(self.inner)
    }

    async fn peers(&mut self, loaded: &StoredShard, _: LogicalTime) -> Result<Vec<WorkerId>, InfraError> {
        let StoredShard { record, .. } = loaded;
        let of = Creation { tenant: record.tenant, run: record.key.run, incarnation: record.incarnation };
        let asked = Asked::About(&record.unreachable);
        let present = self.inner.present(self.operation, of, asked, self.deadline).await?;
        Ok(self.present.insert(present).workers().to_vec())
    }

    async fn commit(
        &mut self,
        loaded: StoredShard,
        change: &Change<'_>,
        guard: Guard,
    ) -> Result<Commit<StoredShard>, InfraError> {
        let mut next = (*loaded.record).clone();
        next.apply(change, &[]);
        let next = Arc::new(next);
        let mut transition = Transition::new(&loaded, &next, guard);
        if let Some(present) = self.present.as_ref().filter(|_| next.state.head.status == ShardStatus::Parked) {
            transition.compares.push(present.none_came(&self.inner.space, next.tenant));
        }
        Ok(match self.inner.commit(self.operation, transition, self.deadline).await? {
            commit::Commit::Won { .. } => Commit::Stored,
            commit::Commit::Lost(fresh) => Commit::Lost(fresh.map(|fresh| *fresh)),
            commit::Commit::Doubtful(fresh) => {
                self.unanswered = Some(loaded.hot_revision);
                Commit::InDoubt(fresh.map(|fresh| *fresh))
            }
        })
    }

    fn may_yet_commit(&self, loaded: &StoredShard, guard: Guard) -> bool {
        loaded.may_yet_become(self.unanswered, guard)
    }

    async fn may_try_again(&mut self) -> bool {
        self.attempts += 1;
        if self.attempts >= self.inner.config.attempts_max {
            return false;
        }
        self.inner.breathe(self.attempts).await;
        true
    }
}

impl<K: Kv> Inner<K> {
    /// The shard as remembered, or else as read.
    pub(super) async fn known<E>(
        &self,
        operation: &'static str,
        tenant: TenantId,
        key: ShardKey,
        deadline: Moment,
    ) -> Result<StoredShard, E>
    where
        E: From<AccessRefused> + From<InfraError>,
    {
        let found = self.remembered_or_read(operation, tenant, key, deadline).await?;
        Ok(found.ok_or(AccessRefused::ShardNotFound { key })?)
    }

    /// The shard as the store has it now.
    pub(super) async fn reload<E>(
        &self,
        operation: &'static str,
        tenant: TenantId,
        key: ShardKey,
        deadline: Moment,
    ) -> Result<StoredShard, E>
    where
        E: From<AccessRefused> + From<InfraError>,
    {
        let stored = self.load_or_forget(operation, tenant, key, deadline).await?;
        Ok(stored.ok_or(AccessRefused::ShardNotFound { key })?)
    }

    async fn remembered_or_read(
        &self,
        operation: &'static str,
        tenant: TenantId,
        key: ShardKey,
        deadline: Moment,
    ) -> Result<Option<StoredShard>, InfraError> {
        let remembered = lock(&self.cache).get(tenant, key);
        match remembered {
            Some(remembered) => Ok(Some(remembered)),
            None => self.load_or_forget(operation, tenant, key, deadline).await,
        }
    }

    /// The shard as the store has it now, if it has it.
    async fn load_or_forget(
        &self,
        operation: &'static str,
        tenant: TenantId,
        key: ShardKey,
        deadline: Moment,
    ) -> Result<Option<StoredShard>, InfraError> {
        let stored = self.load(operation, tenant, key, deadline).await?;
        if stored.is_none() {
            lock(&self.cache).forget(tenant, key);
        }
        Ok(stored)
    }
}
