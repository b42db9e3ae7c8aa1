//! A shard as the store has it: its record put together from its parts, and the revisions it was read at.

use std::sync::Arc;

use bytes::Bytes;
use tessera_contracts::{RunId, ShardId, ShardKey, TenantId};
use tessera_coordination::error::InfraError;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::state::{Head, ShardState};
use tessera_coordination::record::view::{OwnerSignal, ShardView};
use tessera_coordination::run::status::{RunGate, RunStatus};
use tessera_coordination::stored::{IncarnationMismatch, check_same_incarnation};

use super::{Inner, failed, unreadable};
use crate::codec::{ColdPart, HotPart, OwnerPart, RunPart};
use crate::keyspace::Keyspace;
use crate::kv::{EtcdLeaseId, KeyValue, Kv, Moment, Op, OpResponse, RangeRequest, Revision, Txn};
use tessera_coordination::operation::Guard;

/// Where the parts of a shard lie. Made once per shard, shared by its views.
#[derive(Debug)]
pub(super) struct ShardPaths {
    pub(super) run: Bytes,
    pub(super) cold: Bytes,
    pub(super) hot: Bytes,
    pub(super) owner: Bytes,
}

impl ShardPaths {
    pub(super) fn new(space: &Keyspace, tenant: TenantId, key: ShardKey) -> Self {
        Self {
            run: space.run(tenant, key.run).into(),
            cold: space.cold(tenant, key).into(),
            hot: space.hot(tenant, key).into(),
            owner: space.owner(tenant, key).into(),
        }
    }

    /// Reads all of them: what every load asks for.
    pub(super) fn reads(&self) -> Vec<Op> {
        [&self.run, &self.cold, &self.hot, &self.owner].map(|path| Op::get(path.clone())).into()
    }
}

/// A run's record and when it was last written.
#[derive(Clone, Debug)]
pub(super) struct StoredRun {
    pub(super) part: Arc<RunPart>,
    pub(super) revision: Revision,
}

impl StoredRun {
    /// The run as readers see it: one that is being removed is gone.
    pub(super) fn visible(self) -> Option<Self> {
        self.part.removal.is_none().then_some(self)
    }

    pub(super) fn gate(&self, lease_duration_default: u64) -> RunGate {
        self.part.config.gate(self.part.status, lease_duration_default)
    }
}

/// An owner key and the etcd lease it is attached to.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredOwner {
    pub(super) part: OwnerPart,
    pub(super) lease: EtcdLeaseId,
    pub(super) revision: Revision,
}

/// A shard as the store has it.
#[derive(Clone, Debug)]
pub(super) struct StoredShard {
    pub(super) paths: Arc<ShardPaths>,
    /// Shared with the view that is kept: a record is large, and most operations read it only.
    pub(super) record: Arc<ShardRecord>,
    /// Zero until a worker first holds the shard.
    pub(super) hot_revision: Revision,
    pub(super) owner: Option<StoredOwner>,
    pub(super) run: StoredRun,
    /// Where it began, for as long as it has no hot part; kept because the cold part is rewritten whole.
    pub(super) cold: Arc<ColdPart>,
    pub(super) cold_revision: Revision,
    /// Whether it was read for this operation, rather than remembered from an earlier one.
    pub(super) fresh: bool,
    /// Whether the hot part alone was read for this operation, so that nothing but a transaction that also compares the
    /// cold part proves that they belong together.
    pub(super) pieced: bool,
}

impl StoredShard {
    /// What a decision sees.
    pub(super) fn view<K: Kv>(&self, inner: &Inner<K>) -> ShardView<'_> {
        self.record.view(self.run.gate(inner.lease_duration_default()), self.owner_signal(inner))
    }

    /// Whether a write that was sent when the record had the revision `unanswered`, and was not heard of since, may still
    /// come to pass: the record is unchanged, and what it asks of the owner key still holds.
    pub(super) fn may_yet_become(&self, unanswered: Option<Revision>, guard: Guard) -> bool {
        unanswered == Some(self.hot_revision) && (guard != Guard::SessionStands || self.owner.is_some())
    }

    /// Its cold part: the range and the children of the record, and all else as it began.
    fn cold_now(&self) -> ColdPart {
        self.cold_with(&self.record)
    }

    /// The cold part of what the shard is to become.
    pub(super) fn cold_with(&self, next: &ShardRecord) -> ColdPart {
        ColdPart { spec: next.spec.clone(), spawned: next.spawned.clone(), ..(*self.cold).clone() }
    }

    /// A holder is alive while its owner key is there and, if the key is of one of our own sessions, while that session is
    /// one to believe in.
    fn owner_signal<K: Kv>(&self, inner: &Inner<K>) -> OwnerSignal {
        match &self.owner {
            Some(owner)
                if owner.part.fence == self.record.state.head.fence
                    && inner.sessions.believes_in(owner.lease) != Some(false) =>
            {
                OwnerSignal::Alive
            }
            Some(_) | None => OwnerSignal::Gone,
        }
    }
}

/// Puts a shard together from the answers to [`ShardPaths::reads`]. `None`: there is no such shard for anyone to see.
pub(super) fn assemble(
    operation: &'static str,
    tenant: TenantId,
    key: ShardKey,
    paths: &Arc<ShardPaths>,
    answers: &[OpResponse],
) -> Result<Option<StoredShard>, InfraError> {
    let [run, cold, hot, owner] = answers else {
        return Err(InfraError::corruption(operation, "a read of a shard's parts was not answered part by part"));
    };
    let (Some(run), Some(cold)) = (found(run), found(cold)) else { return Ok(None) };
    // Shards are written before their run becomes active, and deleted once it is being removed: only in between they are seen.
    let run = decode_run(operation, run)?.visible().filter(|run| run.part.status != RunStatus::Initializing);
    let Some(run) = run else { return Ok(None) };
    let cold_revision = cold.mod_revision;
    let cold = ColdPart::decode(&cold.value).map_err(|error| unreadable(operation, &error))?;
    let hot_revision = found(hot).map_or(Revision(0), |kv| kv.mod_revision);
    let hot = found(hot).map(|kv| HotPart::decode(&kv.value)).transpose().map_err(|e| unreadable(operation, &e))?;
    let owner = found(owner).map(decode_owner).transpose().map_err(|error| unreadable(operation, &error))?;
    let mixed = |mismatch: IncarnationMismatch| InfraError::corruption(operation, format!("shard {key}: {mismatch}"));
    check_same_incarnation(run.part.incarnation, cold.incarnation).map_err(mixed)?;
    let record = compose(tenant, key, &cold, hot, owner.as_ref()).map_err(mixed)?;
    record.check_invariants().map_err(|violation| InfraError::corruption(operation, violation.to_string()))?;
    let paths = Arc::clone(paths);
    let (record, cold) = (Arc::new(record), Arc::new(cold));
    let (fresh, pieced) = (true, false);
    Ok(Some(StoredShard { paths, record, hot_revision, owner, run, cold, cold_revision, fresh, pieced }))
}

/// The shard with the hot part that was written since; `None` if none was, or if it does not go with the rest.
fn piece(operation: &'static str, before: &StoredShard, hot: &KeyValue) -> Result<Option<StoredShard>, InfraError> {
    let hot_revision = hot.mod_revision;
    if hot_revision == before.hot_revision {
        return Ok(None);
    }
    let hot = HotPart::decode(&hot.value).map_err(|error| unreadable(operation, &error))?;
    let record = &before.record;
    let composed = compose(record.tenant, record.key, &before.cold_now(), Some(hot), before.owner.as_ref());
    // A hot part of another incarnation was written in another run; what is remembered of this one is of no use then.
    let Some(record) = composed.ok().filter(|record| record.check_invariants().is_ok()) else { return Ok(None) };
    Ok(Some(StoredShard { record: Arc::new(record), hot_revision, fresh: false, pieced: true, ..before.clone() }))
}

/// The whole record. A renewal writes only the owner key, so a matching one has the deadline that counts. Refuses parts of
/// different incarnations of the run.
pub(super) fn compose(
    tenant: TenantId,
    key: ShardKey,
    cold: &ColdPart,
    hot: Option<HotPart>,
    owner: Option<&StoredOwner>,
) -> Result<ShardRecord, IncarnationMismatch> {
    let mut state = ShardState::newborn(cold.cursor_semantics, cold.parent);
    let (mut cursor, mut park_detail, mut unreachable) = (cold.born_at.clone(), None, Vec::new());
    if let Some(hot) = hot {
        check_same_incarnation(cold.incarnation, hot.incarnation)?;
        state.head = with_deadline(hot.head, owner);
        state.op_log = hot.op_log;
        state.history = hot.history;
        cursor = hot.cursor;
        park_detail = hot.park_detail;
        unreachable = hot.unreachable;
    }
    let (incarnation, spec, spawned) = (cold.incarnation, cold.spec.clone(), cold.spawned.clone());
    Ok(ShardRecord { tenant, key, incarnation, state, spec, cursor, spawned, park_detail, unreachable })
}

fn with_deadline(mut head: Head, owner: Option<&StoredOwner>) -> Head {
    if let (Some(holder), Some(owner)) = (&mut head.lease, owner)
        && owner.part.fence == head.fence
    {
        holder.deadline = holder.deadline.max(owner.part.deadline);
    }
    head
}

/// Whether the cold part of a parent lists this child.
pub(super) fn lists(operation: &'static str, parent: &KeyValue, child: ShardId) -> Result<bool, InfraError> {
    let parent = ColdPart::decode(&parent.value).map_err(|error| unreadable(operation, &error))?;
    Ok(parent.spawned.iter().any(|spawned| spawned.id == child))
}

pub(super) fn decode_run(operation: &'static str, kv: &KeyValue) -> Result<StoredRun, InfraError> {
    let part = RunPart::decode(&kv.value).map_err(|error| unreadable(operation, &error))?;
    Ok(StoredRun { part: Arc::new(part), revision: kv.mod_revision })
}

pub(super) fn decode_owner(kv: &KeyValue) -> Result<StoredOwner, crate::codec::CodecError> {
    Ok(StoredOwner { part: OwnerPart::decode(&kv.value)?, lease: kv.lease, revision: kv.mod_revision })
}

/// The key that a point read found.
pub(super) fn found(answer: &OpResponse) -> Option<&KeyValue> {
    match answer {
        OpResponse::Range(range) => range.kvs.first(),
        OpResponse::Put | OpResponse::Delete { .. } | OpResponse::Txn(_) => None,
    }
}

impl<K: Kv> Inner<K> {
    /// The shard as it is now, for who decided on `before` and lost: from what the failure branch brought, and read anew if
    /// that does not tell.
    pub(super) async fn reread(
        &self,
        operation: &'static str,
        before: &StoredShard,
        brought: &[OpResponse],
        deadline: Moment,
    ) -> Result<Option<StoredShard>, InfraError> {
        let (tenant, key) = (before.record.tenant, before.record.key);
        if let [hot] = brought
            && let Some(hot) = found(hot)
            && let Some(pieced) = piece(operation, before, hot)?
        {
            return Ok(Some(pieced));
        }
        if brought.len() > 1 {
            return assemble(operation, tenant, key, &before.paths, brought);
        }
        self.load(operation, tenant, key, deadline).await
    }

    /// Reads a shard as it is now.
    pub(super) async fn load(
        &self,
        operation: &'static str,
        tenant: TenantId,
        key: ShardKey,
        deadline: Moment,
    ) -> Result<Option<StoredShard>, InfraError> {
        let paths = Arc::new(ShardPaths::new(&self.space, tenant, key));
        let read = self.kv.txn(Txn::of(paths.reads()), deadline).await.map_err(|error| failed(operation, &error))?;
        let stored = assemble(operation, tenant, key, &paths, &read.responses)?;
        match stored {
            Some(stored) if !self.is_published(operation, &stored, deadline).await? => Ok(None),
            stored => Ok(stored),
        }
    }

    /// Whether a shard exists for readers: one of a split that was staged does only if its parent lists it.
    pub(super) async fn is_published(
        &self,
        operation: &'static str,
        stored: &StoredShard,
        deadline: Moment,
    ) -> Result<bool, InfraError> {
        let key = stored.record.key;
        let (true, Some(parent)) = (stored.cold.staged, stored.cold.parent) else { return Ok(true) };
        let parent = self.space.cold(stored.record.tenant, ShardKey::new(key.run, parent));
        let read = self.kv.range(RangeRequest::one(parent), deadline).await;
        let parent = read.map_err(|error| failed(operation, &error))?.into_one();
        parent.map_or(Ok(false), |parent| lists(operation, &parent, key.shard))
    }

    /// Reads a run's record, if there is a run for readers to see.
    pub(super) async fn load_run(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        deadline: Moment,
    ) -> Result<Option<StoredRun>, InfraError> {
        Ok(self.load_run_at(operation, tenant, run, deadline).await?.0)
    }

    /// The same, and the revision at which it was read.
    pub(super) async fn load_run_at(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        deadline: Moment,
    ) -> Result<(Option<StoredRun>, Revision), InfraError> {
        let (stored, revision) = self.find_run(operation, tenant, run, deadline).await?;
        let visible = stored.and_then(StoredRun::visible);
        if visible.is_none() {
            self.refuse_other_layouts(operation, deadline).await?;
        }
        Ok((visible, revision))
    }

    /// Reads a run's record, also if it is being removed.
    pub(super) async fn find_run(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        deadline: Moment,
    ) -> Result<(Option<StoredRun>, Revision), InfraError> {
        let read = RangeRequest::one(self.space.run(tenant, run));
        let answer = self.kv.range(read, deadline).await.map_err(|error| failed(operation, &error))?;
        let revision = answer.revision;
        let stored = answer.into_one().map(|kv| decode_run(operation, &kv)).transpose()?;
        Ok((stored, revision))
    }
}
