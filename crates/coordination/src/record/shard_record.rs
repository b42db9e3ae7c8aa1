//! A shard's whole record, owned: what a durable backend decodes, an explorer clones and an operator inspects.
//!
//! The record stands alone: nothing in it refers to the run's configuration. The in-memory coordinator keeps the same
//! parts with their bytes pooled; both are changed by the same decisions and checked by the same invariants.

use alloc::string::String;
use alloc::vec::Vec;

use tessera_contracts::ids::{RunIncarnation, ShardEpoch, ShardKey, TenantId};
use tessera_contracts::{Cursor, ShardSpec};

use super::invariants::{self, InvariantViolation};
use super::op_log::OP_LOG_CAP;
use super::state::{Change, DetailChange, ShardState, Spawned, assert_transition_legal};
use super::unreachable::UnreachableReport;
use super::view::{OwnerSignal, ShardView};
use crate::decide::Birth;
use crate::run::status::RunGate;

/// One shard: identity, fixed-size state, bytes and children.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardRecord<const LOG: usize = OP_LOG_CAP> {
    /// Whose shard it is.
    pub tenant: TenantId,
    /// Which shard it is.
    pub key: ShardKey,
    /// Which creation of the run it belongs to.
    pub incarnation: RunIncarnation,
    /// Status, fence, lease, op-log and history.
    pub state: ShardState<LOG>,
    /// Range and metadata.
    pub spec: ShardSpec,
    /// Progress.
    pub cursor: Cursor,
    /// Children and residuals, oldest first.
    pub spawned: Vec<Spawned>,
    /// What the worker that parked it, or that last reported it unreachable, had to say.
    pub park_detail: Option<String>,
    /// Who reported that it cannot be reached, oldest first; see [`unreachable`](super::unreachable).
    pub unreachable: Vec<UnreachableReport>,
}

impl<const LOG: usize> ShardRecord<LOG> {
    /// The record of a shard that was just born.
    pub fn newborn(tenant: TenantId, birth: &Birth<'_>) -> Self {
        Self {
            tenant,
            key: birth.key,
            incarnation: birth.incarnation,
            state: ShardState::newborn(birth.cursor_semantics, birth.parent),
            spec: birth.spec.to_owned(),
            cursor: birth.cursor.to_owned(),
            spawned: Vec::new(),
            park_detail: None,
            unreachable: Vec::new(),
        }
    }

    /// What a decision sees of this record.
    pub fn view(&self, run: RunGate, owner: OwnerSignal) -> ShardView<'_, LOG> {
        ShardView {
            tenant: self.tenant,
            key: self.key,
            incarnation: self.incarnation,
            state: &self.state,
            spec: self.spec.view(),
            cursor: self.cursor.as_update(),
            spawned: &self.spawned,
            unreachable: &self.unreachable,
            run,
            owner,
        }
    }

    /// The ownership the shard is at: what a request about it names.
    pub const fn epoch(&self) -> ShardEpoch {
        ShardEpoch::new(self.incarnation, self.state.head.fence)
    }

    /// Carries out a decision, and the children it makes if it is a split.
    ///
    /// # Panics
    ///
    /// If the transition is illegal or the result violates an invariant. That is a bug in this crate, and nothing has been
    /// stored yet.
    pub fn apply(&mut self, change: &Change<'_>, births: &[Birth<'_>]) {
        assert_transition_legal(self.state.head.status, change);
        if let Some(cursor) = change.cursor {
            self.cursor = cursor.to_owned();
        }
        if let Some(spec) = change.spec {
            self.spec = spec.to_owned();
        }
        match change.park_detail {
            DetailChange::Keep => {}
            DetailChange::Clear => self.park_detail = None,
            DetailChange::Set(detail) => self.park_detail = Some(detail.as_str().into()),
        }
        change.unreachable.apply(&mut self.unreachable);
        self.spawned.extend(births.iter().map(Birth::as_spawned));
        self.state.apply(change);
        self.assert_invariants();
    }

    /// The first invariant this record violates.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        invariants::check(self.key, &self.state, &self.spawned)
    }

    /// Stops the process rather than let a broken record be stored.
    ///
    /// # Panics
    ///
    /// If an invariant is violated.
    pub fn assert_invariants(&self) {
        invariants::assert(self.key, &self.state, &self.spawned);
    }
}
