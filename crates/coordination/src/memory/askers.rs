//! Who asked for shards of a run of late: how a coordinator without sessions tells who takes part in it.
//!
//! Only to answer whether a worker is left that has not reported a shard unreachable. Where sessions are not known,
//! [`GUESSED_REPORTS_MAX`] reports suffice in any case, so the last so many who asked are all there is to remember.

use tessera_contracts::ids::{LogicalTime, WorkerId};

use crate::decide::unreachable::GUESSED_REPORTS_MAX;

/// The workers that asked last, the latest first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Askers {
    latest: [Option<(WorkerId, LogicalTime)>; GUESSED_REPORTS_MAX],
}

impl Askers {
    /// A worker asks for a shard.
    pub(super) fn note(&mut self, worker: WorkerId, now: LogicalTime) {
        let is_this = |asked: &Option<(WorkerId, LogicalTime)>| asked.is_some_and(|(asker, _)| asker == worker);
        let place = self.latest.iter().position(is_this).unwrap_or(GUESSED_REPORTS_MAX - 1);
        let before = self.latest[place].filter(|(asker, _)| *asker == worker);
        // Clocks differ: the latest time that was seen counts.
        let at = before.map_or(now, |(_, at)| at.max(now));
        self.latest[..=place].rotate_right(1);
        self.latest[0] = Some((worker, at));
    }

    /// Those who asked less than `span` before `now`.
    pub(super) fn since(&self, now: LogicalTime, span: u64) -> impl Iterator<Item = WorkerId> {
        let of_late = move |at: LogicalTime| now < at.saturating_add(span);
        self.latest.into_iter().flatten().filter(move |(_, at)| of_late(*at)).map(|(worker, _)| worker)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn at(time: u64) -> LogicalTime {
        LogicalTime::new(time)
    }

    #[test]
    fn the_last_three_are_remembered_each_at_its_latest() {
        let mut askers = Askers::default();
        let since = |askers: &Askers, now| askers.since(at(now), 10).map(WorkerId::get).collect::<Vec<_>>();
        assert_eq!(since(&askers, 1), []);
        for (worker, now) in [(1, 1), (2, 2), (1, 3), (3, 4)] {
            askers.note(WorkerId::new(worker), at(now));
        }
        assert_eq!(since(&askers, 4), [3, 1, 2]);
        askers.note(WorkerId::new(4), at(5));
        assert_eq!(since(&askers, 5), [4, 3, 1], "worker 2 asked longest ago");
        assert_eq!(since(&askers, 13), [4, 3], "worker 1 asked at 3, which is ten ticks ago");
        askers.note(WorkerId::new(3), at(2));
        assert_eq!(since(&askers, 13), [3, 4], "a clock that is behind takes nothing back");
        assert_eq!(since(&askers, 15), []);
    }
}
