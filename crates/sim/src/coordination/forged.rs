//! Forgeries of a vandal: leases that look as if they had been granted, ranges that look as if they had been planned.

use tessera_contracts::ShardSpec;
use tessera_contracts::ids::{FenceEpoch, LogicalTime, OpId, RunIncarnation, ShardKey, TenantId, WorkerId};
use tessera_contracts::split::SplitReplacePlan;
use tessera_coordination::Lease;
use tessera_coordination::record::lease::LeaseHolder;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::view::OwnerSignal;
use tessera_coordination::run::status::{RunGate, RunStatus};

use super::call::Request;

/// A lease as it might have been granted.
#[derive(Clone, Copy)]
pub(super) struct Forged<'r> {
    pub(super) record: &'r ShardRecord,
    pub(super) tenant: TenantId,
    pub(super) key: ShardKey,
    pub(super) owner: WorkerId,
    pub(super) fence: FenceEpoch,
    pub(super) incarnation: RunIncarnation,
}

impl<'r> Forged<'r> {
    /// The holder's true lease; for a shard without a holder, one that the next owner might think to have.
    pub(super) fn of(record: &'r ShardRecord) -> Self {
        let head = &record.state.head;
        let owner = head.lease.map_or(WorkerId::new(1), |holder| holder.owner);
        let ShardRecord { tenant, key, incarnation, .. } = *record;
        Self { record, tenant, key, owner, fence: head.fence, incarnation }
    }

    /// The lease itself.
    pub(super) fn granted(self) -> Lease {
        let Self { record, tenant, key, owner, fence, incarnation } = self;
        let mut state = record.state.clone();
        let deadline = state.head.lease.map_or(LogicalTime::new(u64::MAX >> 1), |holder| holder.deadline);
        state.head.lease = Some(LeaseHolder { owner, deadline });
        state.head.fence = fence;
        let gate = RunGate { status: RunStatus::Active, lease_duration: 1, max_shard_retries: 0 };
        let mut view = record.view(gate, OwnerSignal::Alive);
        (view.tenant, view.key, view.incarnation, view.state) = (tenant, key, incarnation, &state);
        Lease::of_holder(&view).expect("a holder was written in")
    }
}

/// The last moment at which the holder's lease opens the shard.
pub(super) const fn before(holder: LeaseHolder) -> LogicalTime {
    LogicalTime::new(holder.deadline.get() - 1)
}

/// The range from `start` up to `end`, if that is one.
pub(super) fn part(start: &[u8], end: &[u8]) -> Option<ShardSpec> {
    ShardSpec::new(start, end, b"simulated").ok()
}

/// A key just behind `key`.
pub(super) fn longer(key: &[u8], by: u8) -> Vec<u8> {
    [key, &[by]].concat()
}

/// The lowest key, which is below `key` or there is none.
pub(super) fn lower(key: &[u8]) -> Option<[u8; 2]> {
    Some([0, 0]).filter(|lowest| lowest.as_slice() < key)
}

/// Two parts that are the whole; none if the shard has no room for a cut.
pub(super) fn halves(record: &ShardRecord) -> Option<(ShardSpec, ShardSpec)> {
    let cut = longer(record.cursor.last_key().unwrap_or(record.spec.start()), 1);
    Some((part(record.spec.start(), &cut)?, part(&cut, record.spec.end())?))
}

/// So many children that are the whole.
pub(super) fn many_children(record: &ShardRecord, count: u64) -> Option<SplitReplacePlan> {
    let mut edges: Vec<Vec<u8>> = (1..count).map(|at| longer(record.spec.start(), at as u8)).collect();
    edges.insert(0, record.spec.start().to_vec());
    edges.push(record.spec.end().to_vec());
    let children: Option<Vec<ShardSpec>> = edges.windows(2).map(|pair| part(&pair[0], &pair[1])).collect();
    SplitReplacePlan::new(children?).ok()
}

/// The same request with another id.
pub(super) fn with_op(mut request: Request, id: OpId) -> Request {
    match &mut request {
        Request::Checkpoint { op, .. }
        | Request::Complete { op, .. }
        | Request::Park { op, .. }
        | Request::Release { op, .. }
        | Request::SplitReplace { op, .. }
        | Request::SplitResidual { op, .. } => *op = id,
        _ => {}
    }
    request
}
