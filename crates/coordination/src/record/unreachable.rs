//! Who could not reach what a shard covers.
//!
//! A worker that cannot reach a target (an empty mount point, a host that its network does not lead to) says so and gives the
//! shard back. That is a property of the worker and not of the shard: others may well reach it. So the shard stays open,
//! remembers who reported it, and is not given to them again. What follows from the reports is decided in
//! [`decide::unreachable`](crate::decide::unreachable).
//!
//! Reports stay for as long as the shard is open, whatever progress others make: a worker that forgot its report would claim
//! the shard at every idle moment, fail, and report it again. Unparking clears them, since the operator says that things have
//! changed. A shard made by a split starts without reports.

use alloc::vec::Vec;

use tessera_contracts::canonical::{CanonicalBytes, CanonicalSink};
use tessera_contracts::ids::{LogicalTime, WorkerId};

use super::park::ParkDetail;

/// How many workers a shard remembers as having reported it. The next one parks it.
pub const UNREACHABLE_REPORTS_MAX: usize = 16;

/// A shard is held back for at most so many lease durations after a report, whatever the worker asks for.
pub const HELD_BACK_LEASES_MAX: u64 = 64;

/// What a worker says when it gives back a shard whose target it cannot reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unreachable<'a> {
    /// What happened, in words.
    pub detail: Option<ParkDetail<'a>>,
    /// Before this time nobody is given the shard: waiting is likely to help. Without it, others may try at once.
    pub retry_after: Option<LogicalTime>,
}

impl<'a> Unreachable<'a> {
    /// With nothing further to say.
    pub const NONE: Self = Self { detail: None, retry_after: None };

    /// With these words, cut to the length of a park detail.
    pub fn because(detail: &'a str) -> Self {
        Self { detail: ParkDetail::new(detail), ..Self::NONE }
    }

    /// The same, holding the shard back until `retry_after`.
    #[must_use]
    pub const fn with_retry_after(self, retry_after: LogicalTime) -> Self {
        Self { retry_after: Some(retry_after), ..self }
    }
}

impl CanonicalBytes for Unreachable<'_> {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.optional_bytes(self.detail.map(|detail| detail.as_str().as_bytes()));
        self.retry_after.write_canonical(sink);
    }
}

/// One report, as the record keeps it. The words of the last one are kept beside the list, as the shard's detail text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnreachableReport {
    /// Who reported.
    pub worker: WorkerId,
    /// When.
    pub at: LogicalTime,
    /// Before this time nobody is given the shard.
    pub retry_after: Option<LogicalTime>,
}

/// What happens to the reports of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReportChange {
    /// They stay as they are.
    #[default]
    Keep,
    /// Those whose bit is set in `kept` stay, by their place in the list, and `added` comes behind them.
    Write {
        /// Which stay.
        kept: u16,
        /// The new one.
        added: Option<UnreachableReport>,
    },
}

const _: () = assert!(UNREACHABLE_REPORTS_MAX <= u16::BITS as usize, "every place has a bit");

impl ReportChange {
    /// None stays.
    pub const CLEAR: Self = Self::Write { kept: 0, added: None };

    /// Carries it out. The list stays bounded and names no worker twice, since the decision saw to that.
    pub fn apply(self, reports: &mut Vec<UnreachableReport>) {
        let Self::Write { kept, added } = self else { return };
        let mut place = 0;
        reports.retain(|_| {
            place += 1;
            kept & (1 << (place - 1)) != 0
        });
        reports.extend(added);
        debug_assert!(reports.len() <= UNREACHABLE_REPORTS_MAX, "the report after the last place parks the shard");
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn report(worker: u64) -> UnreachableReport {
        UnreachableReport { worker: WorkerId::new(worker), at: LogicalTime::new(1), retry_after: None }
    }

    #[test]
    fn a_change_keeps_the_places_it_names_and_adds_behind_them() {
        let mut reports = vec![report(1), report(2), report(3)];
        ReportChange::Keep.apply(&mut reports);
        assert_eq!(reports.len(), 3);
        ReportChange::Write { kept: 0b101, added: Some(report(4)) }.apply(&mut reports);
        assert_eq!(reports, [report(1), report(3), report(4)]);
        ReportChange::CLEAR.apply(&mut reports);
        assert_eq!(reports, []);
    }
}
