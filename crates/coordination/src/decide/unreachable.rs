//! Unreachable: when a shard that workers could not reach is halted.
//!
//! A worker that cannot reach a shard's target releases it with that reason. As long as some other worker might reach it, the
//! shard stays open. It is parked, as [`ParkReason::Unreachable`], by the report or the claim that finds that nobody is left:
//!
//! - **A backend that knows sessions** parks it when every worker with a live session has reported it, or when one more worker
//!   than [`UNREACHABLE_REPORTS_MAX`] reports it. Live are all workers of the tenant, also those that have not met the run yet,
//!   but for those that said that they cannot serve it. Reports of workers whose session has ended do not count.
//! - **A backend that does not** (in memory, in one file) parks it at the third report from distinct workers, or when no other
//!   worker takes part. A worker *takes part* while it holds a live lease of the run, and for one lease duration after it last
//!   asked for a shard of it: the time after which a silent holder is taken for gone. So the first report parks the shard of
//!   a lone worker, and the second that of two.
//!
//! A claim looks too, not only a report: the last worker that could have reached the shard may simply have gone.

use tessera_contracts::ids::{LogicalTime, WorkerId};

use super::acquire::is_open;
use crate::events::EventKind;
use crate::record::park::ParkInfo;
use crate::record::state::{Change, Head};
use crate::record::status::{ParkReason, ShardStatus};
use crate::record::unreachable::{HELD_BACK_LEASES_MAX, ReportChange, UNREACHABLE_REPORTS_MAX, UnreachableReport};
use crate::record::view::ShardView;

/// Reports from distinct workers that suffice where sessions are not known.
pub const GUESSED_REPORTS_MAX: usize = 3;

/// The workers that take part in a run, as far as the backend can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peers<'a> {
    /// Workers with a live session that may serve the run: all of them that have reported the shard, and of the others at
    /// least one, if there is one.
    Sessions(&'a [WorkerId]),
    /// The backend knows no sessions. Workers that hold a lease or asked for one of late: all of them, or
    /// [`GUESSED_REPORTS_MAX`] different ones.
    Guessed(&'a [WorkerId]),
}

/// What the reports come to.
pub(super) struct Judgement {
    /// The reports that remain, and the new one if there is room.
    pub(super) reports: ReportChange,
    /// Whether nobody is left who might reach the shard.
    pub(super) parks: bool,
}

/// Judges the reports of a shard, with `added` among them if a worker has just reported it.
pub(super) fn judge(reports: &[UnreachableReport], added: Option<UnreachableReport>, peers: Peers<'_>) -> Judgement {
    let counts = |report: &UnreachableReport| match peers {
        Peers::Sessions(live) => live.contains(&report.worker),
        Peers::Guessed(_) => true,
    };
    let reporter = added.map(|report| report.worker);
    let mut kept = 0_u16;
    for (place, report) in reports.iter().enumerate() {
        if counts(report) && Some(report.worker) != reporter {
            kept |= 1 << place;
        }
    }
    let standing = |place: usize| kept & (1 << place) != 0;
    let has_reported = |worker: &WorkerId| {
        Some(*worker) == reporter || (0..reports.len()).any(|at| standing(at) && reports[at].worker == *worker)
    };
    let count = kept.count_ones() as usize + usize::from(added.is_some());
    let parks = match peers {
        Peers::Sessions(live) => count > UNREACHABLE_REPORTS_MAX || (!live.is_empty() && live.iter().all(has_reported)),
        Peers::Guessed(workers) => count >= GUESSED_REPORTS_MAX || workers.iter().all(has_reported),
    };
    let added = added.filter(|_| count <= UNREACHABLE_REPORTS_MAX);
    Judgement { reports: ReportChange::Write { kept, added }, parks }
}

/// The report of a worker at `now`. How long it may hold the shard back is bounded, so that no worker can withhold it.
pub(super) fn report(
    view_lease_duration: u64,
    worker: WorkerId,
    retry_after: Option<LogicalTime>,
    now: LogicalTime,
) -> UnreachableReport {
    let latest = now.saturating_add(view_lease_duration.saturating_mul(HELD_BACK_LEASES_MAX));
    UnreachableReport { worker, at: now, retry_after: retry_after.map(|until| until.min(latest)) }
}

/// The head of a shard that is parked because nobody reaches it.
pub(super) const fn parked(head: Head, retry_after: Option<LogicalTime>) -> Head {
    let info = ParkInfo { reason: ParkReason::Unreachable, retry_after };
    Head { park: Some(info), ..head.settled(ShardStatus::Parked) }
}

/// Decides whether a shard that a claim passed over, because its worker had reported it, is to be parked: nobody holds it at
/// `now`, and nobody else is left who might reach it. The words of the last report stay.
pub fn decide<const LOG: usize>(
    view: &ShardView<'_, LOG>,
    peers: Peers<'_>,
    now: LogicalTime,
    skew: u64,
) -> Option<(Change<'static>, EventKind)> {
    if view.unreachable.is_empty() || !is_open(view, now, skew) {
        return None;
    }
    let Judgement { parks: true, .. } = judge(view.unreachable, None, peers) else { return None };
    let retry_after = view.unreachable.last().and_then(|report| report.retry_after);
    let event = EventKind::ShardParked { shard: view.key.shard, reason: ParkReason::Unreachable };
    Some((Change::of_head(parked(view.state.head, retry_after)), event))
}

/// Whether `worker` has reported the shard.
pub fn is_reported_by(reports: &[UnreachableReport], worker: WorkerId) -> bool {
    reports.iter().any(|report| report.worker == worker)
}

/// Until when the shard is held back from everybody, if a report asked for that: the latest of them counts.
pub fn held_back_until(reports: &[UnreachableReport]) -> Option<LogicalTime> {
    reports.iter().filter_map(|report| report.retry_after).max()
}
