//! A shard's record with its bytes in a shared slab: the in-memory form of
//! [`ShardRecord`](crate::record::shard_record::ShardRecord).

use alloc::vec::Vec;

use tessera_contracts::ids::{RunIncarnation, ShardKey, TenantId};
use tessera_contracts::pooled::PooledShard;
use tessera_stdx::{ByteSlab, ByteSlot, SlabFull};

use crate::decide::Birth;
use crate::record::invariants;
use crate::record::op_log::OP_LOG_CAP;
use crate::record::shard_record::ShardRecord;
use crate::record::state::{Change, DetailChange, ShardState, Spawned, assert_transition_legal};
use crate::record::unreachable::UnreachableReport;
use crate::record::view::{HoldView, OwnerSignal, ShardView};
use crate::run::status::RunGate;
use crate::stored::HotView;

/// What a run tells its shards.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunSeen {
    pub(super) incarnation: RunIncarnation,
    pub(super) gate: RunGate,
}

/// The number of a run in the coordinator.
pub(super) type RunSlot = u32;

/// Which incarnation of its run it belongs to is not written down in each record: the run's slot tells, since a run that is
/// retired takes its shards along.
///
/// In this order, so that what a checkpoint reads lies in the first seven cache lines, ahead of op-log entries, history and
/// what only splits and operators read; and so that no entry lies across two lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct PooledRecord {
    pub(super) key: ShardKey,
    pub(super) run: RunSlot,
    /// Range, metadata and progress.
    shard: PooledShard,
    pub(super) state: ShardState,
    pub(super) tenant: TenantId,
    pub(super) spawned: Vec<Spawned>,
    park_detail: Option<ByteSlot>,
    /// Empty, and then without memory of its own, for nearly every shard.
    pub(super) unreachable: Vec<UnreachableReport>,
}

const _: () = {
    let entries = core::mem::offset_of!(PooledRecord, state) + ShardState::<OP_LOG_CAP>::OP_LOG_ENTRIES_AT;
    assert!(entries == 7 * 64, "what a checkpoint reads fills seven cache lines");
};

impl PooledRecord {
    pub(super) fn newborn(
        tenant: TenantId,
        run: RunSlot,
        birth: &Birth<'_>,
        slab: &mut ByteSlab,
    ) -> Result<Self, SlabFull> {
        Ok(Self {
            state: ShardState::newborn(birth.cursor_semantics, birth.parent),
            shard: PooledShard::new(birth.spec, birth.cursor, slab)?,
            run,
            key: birth.key,
            tenant,
            spawned: Vec::new(),
            park_detail: None,
            unreachable: Vec::new(),
        })
    }

    /// A record as it was stored elsewhere.
    pub(super) fn restored(record: &ShardRecord, run: RunSlot, slab: &mut ByteSlab) -> Result<Self, SlabFull> {
        let mut restored = Self {
            state: record.state.clone(),
            shard: PooledShard::new(record.spec.view(), record.cursor.as_update(), slab)?,
            run,
            key: record.key,
            tenant: record.tenant,
            spawned: record.spawned.clone(),
            park_detail: None,
            unreachable: record.unreachable.clone(),
        };
        if let Some(detail) = &record.park_detail {
            match slab.insert(detail.as_bytes()) {
                Ok(slot) => restored.park_detail = Some(slot),
                Err(full) => {
                    restored.release(slab);
                    return Err(full);
                }
            }
        }
        Ok(restored)
    }

    // Always inlined: a decision that reads only a part of a record then loads only that part of it.
    #[inline(always)]
    pub(super) fn view<'a>(&'a self, run: RunSeen, slab: &'a ByteSlab) -> ShardView<'a> {
        let (spec, cursor) = self.shard.view(slab);
        ShardView {
            tenant: self.tenant,
            key: self.key,
            incarnation: run.incarnation,
            state: &self.state,
            spec,
            cursor,
            spawned: &self.spawned,
            unreachable: &self.unreachable,
            run: run.gate,
            // There is no session to lose in one process: the deadline alone decides.
            owner: OwnerSignal::Alive,
        }
    }

    /// What a decision sees that reads neither range nor progress.
    #[inline(always)]
    pub(super) fn hold_view(&self, run: RunSeen) -> HoldView<'_> {
        let RunSeen { incarnation, gate } = run;
        let (tenant, key, state, owner) = (self.tenant, self.key, &self.state, OwnerSignal::Alive);
        HoldView { tenant, key, incarnation, state, run: gate, owner }
    }

    /// Carries out a decision. If the slab is full nothing has changed.
    ///
    /// # Panics
    ///
    /// Before anything has changed, if the decision would break an invariant.
    #[inline]
    pub(super) fn apply(
        &mut self,
        change: &Change<'_>,
        births: impl Iterator<Item = Spawned> + Clone,
        slab: &mut ByteSlab,
    ) -> Result<(), SlabFull> {
        assert_transition_legal(self.state.head.status, change);
        let spawned = self.spawned.len();
        if let Err(violation) = invariants::check_change(self.key, &self.state, spawned, change, births.clone()) {
            panic!("shard {}: {violation}", self.key);
        }
        // The words first: they can be taken back if there is no room for the rest. Cursor and spec never change together.
        let words = match change.park_detail {
            DetailChange::Set(detail) => Some(slab.insert(detail.as_str().as_bytes())?),
            DetailChange::Keep | DetailChange::Clear => None,
        };
        if let Err(full) = self.write_bytes(change, slab) {
            if let Some(slot) = words {
                slab.remove(slot);
            }
            return Err(full);
        }
        if change.park_detail != DetailChange::Keep {
            self.forget_detail(slab);
            self.park_detail = words;
        }
        change.unreachable.apply(&mut self.unreachable);
        self.spawned.extend(births);
        self.state.apply(change);
        if cfg!(debug_assertions) {
            invariants::assert(self.key, &self.state, &self.spawned);
        }
        Ok(())
    }

    #[inline]
    fn write_bytes(&mut self, change: &Change<'_>, slab: &mut ByteSlab) -> Result<(), SlabFull> {
        if let Some(cursor) = change.cursor {
            self.shard.replace_cursor(cursor, slab)?;
        }
        if let Some(spec) = change.spec {
            self.shard.replace_spec(spec, slab)?;
        }
        Ok(())
    }

    /// What every operation changes, to be stored elsewhere.
    pub(super) fn hot<'a>(&'a self, incarnation: RunIncarnation, slab: &'a ByteSlab) -> HotView<'a> {
        HotView {
            incarnation,
            head: &self.state.head,
            cursor: self.shard.view(slab).1,
            op_log: &self.state.op_log,
            history: &self.state.history,
            park_detail: self.detail(slab),
            unreachable: &self.unreachable,
        }
    }

    fn detail<'a>(&self, slab: &'a ByteSlab) -> Option<&'a str> {
        self.park_detail.and_then(|slot| slab.get(slot)).and_then(|text| core::str::from_utf8(text).ok())
    }

    pub(super) fn to_owned(&self, incarnation: RunIncarnation, slab: &ByteSlab) -> ShardRecord {
        let detail = self.detail(slab);
        let (spec, cursor) = self.shard.view(slab);
        ShardRecord {
            tenant: self.tenant,
            key: self.key,
            incarnation,
            state: self.state.clone(),
            spec: spec.to_owned(),
            cursor: cursor.to_owned(),
            spawned: self.spawned.clone(),
            park_detail: detail.map(Into::into),
            unreachable: self.unreachable.clone(),
        }
    }

    pub(super) fn release(mut self, slab: &mut ByteSlab) {
        self.forget_detail(slab);
        self.shard.release(slab);
    }

    fn forget_detail(&mut self, slab: &mut ByteSlab) {
        if let Some(slot) = self.park_detail.take() {
            slab.remove(slot);
        }
    }
}
