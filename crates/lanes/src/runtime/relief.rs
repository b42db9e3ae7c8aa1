//! Which lane is relieved without being asked for, and when it takes its slots back.
//!
//! A lane is hot when it has been busy for most of a while, and not for a moment. Half of its slots are then lent to the lane that has most time to
//! spare. They return when the two together have been busy for so little that one lane could do the work of both. What relieves nothing, like one
//! slot that is hot alone, is tried ever more seldom.
//!
//! Pure: the supervisor says how busy each lane was since it asked before, and carries the advice out.

use std::time::Duration;

use tessera_contracts::prefix_map::{LaneIndex, PrefixMap};

/// When lanes are relieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReliefPolicy {
    /// A lane is hot that is busy for at least so much of the time.
    pub hot_percent: u32,
    /// A lane may help that is busy for at most so much of it; and slots return when lender and helpers together are.
    pub cool_percent: u32,
    /// For how long either has to last.
    pub sustained: Duration,
}

impl Default for ReliefPolicy {
    fn default() -> Self {
        Self { hot_percent: 85, cool_percent: 50, sustained: Duration::from_secs(30) }
    }
}

/// What to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    Relieve { lane: LaneIndex, helper: LaneIndex, busy_percent: u32 },
    Reclaim,
}

/// Advice is given so many times less often at the most.
const PATIENCE_MAX: u32 = 64;

/// The lanes' load so far.
#[derive(Debug)]
pub(super) struct Relief {
    policy: ReliefPolicy,
    /// For how long each lane has been hot.
    hot_for: Vec<Duration>,
    cool_for: Duration,
    /// Slots were lent by this advice. What an operator lends is the operator's to take back.
    has_lent: bool,
    /// How many times longer than at first a lane has to be hot.
    patience: u32,
}

impl Relief {
    pub(super) fn new(policy: ReliefPolicy) -> Self {
        Self { policy, hot_for: Vec::new(), cool_for: Duration::ZERO, has_lent: false, patience: 1 }
    }

    /// Each lane of `map` was busy for so much of the time since the last call, `passed` ago.
    pub(super) fn observe(&mut self, passed: Duration, busy_percent: &[u32], map: &PrefixMap) -> Option<Advice> {
        let lanes = map.lanes().min(busy_percent.len());
        self.hot_for.resize(lanes, Duration::ZERO);
        for (hot_for, busy) in self.hot_for.iter_mut().zip(busy_percent) {
            *hot_for = if *busy >= self.policy.hot_percent { *hot_for + passed } else { Duration::ZERO };
        }
        if let Some(advice) = self.relieve(&busy_percent[..lanes], map) {
            return Some(advice);
        }
        let is_cool = self.has_lent
            && map.loans().next().is_some()
            && could_take_back(busy_percent, map, self.policy.cool_percent);
        self.cool_for = if is_cool { self.cool_for + passed } else { Duration::ZERO };
        if self.cool_for < self.policy.sustained {
            return None;
        }
        *self = Self::new(self.policy);
        Some(Advice::Reclaim)
    }

    fn relieve(&mut self, busy_percent: &[u32], map: &PrefixMap) -> Option<Advice> {
        let needed = self.policy.sustained * self.patience;
        let slots_of = |lane: usize| map.table().iter().filter(|of| usize::from(of.0) == lane).count();
        let is_hot = |lane: &usize| self.hot_for[*lane] >= needed && slots_of(*lane) > 1;
        let hot = (0..busy_percent.len()).filter(is_hot).max_by_key(|lane| busy_percent[*lane])?;
        let helper = (0..busy_percent.len()).min_by_key(|lane| busy_percent[*lane])?;
        if busy_percent[helper] > self.policy.cool_percent {
            return None;
        }
        self.hot_for.fill(Duration::ZERO);
        (self.has_lent, self.patience) = (true, (self.patience * 2).min(PATIENCE_MAX));
        let [lane, helper] = [hot, helper].map(|lane| LaneIndex(lane as u8));
        Some(Advice::Relieve { lane, helper, busy_percent: busy_percent[hot] })
    }
}

/// Whether every lane that has lent slots could do its helpers' work besides its own.
fn could_take_back(busy_percent: &[u32], map: &PrefixMap, cool_percent: u32) -> bool {
    let busy = |lane: LaneIndex| busy_percent.get(usize::from(lane.0)).copied().unwrap_or(0);
    (0..map.lanes()).map(|lane| LaneIndex(lane as u8)).all(|lender| {
        let mut helpers: Vec<LaneIndex> = map.loans().filter(|loan| loan.from == lender).map(|loan| loan.to).collect();
        helpers.sort_unstable();
        helpers.dedup();
        helpers.is_empty() || busy(lender) + helpers.into_iter().map(busy).sum::<u32>() <= cool_percent
    })
}

#[cfg(test)]
mod tests {
    use tessera_contracts::prefix_map::{Selector, Slot};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const POLICY: ReliefPolicy = ReliefPolicy { hot_percent: 80, cool_percent: 50, sustained: Duration::from_secs(3) };

    fn map() -> PrefixMap {
        PrefixMap::new(Selector::default(), 3).unwrap()
    }

    /// Half of lane 0's slots are with lane 2.
    fn lent() -> PrefixMap {
        let slots = (0..=u8::MAX).map(Slot).filter(|slot| map().lane_of_slot(*slot) == LaneIndex(0)).step_by(2);
        slots.fold(map(), |map, slot| map.lent(slot, LaneIndex(2)).unwrap())
    }

    /// The seconds until there is advice, and the advice.
    fn after(relief: &mut Relief, busy: [u32; 3], map: &PrefixMap) -> Option<(u32, Advice)> {
        (1..1000).find_map(|second| relief.observe(SECOND, &busy, map).map(|advice| (second, advice)))
    }

    fn relieve(busy_percent: u32) -> Advice {
        Advice::Relieve { lane: LaneIndex(0), helper: LaneIndex(2), busy_percent }
    }

    #[test]
    fn a_lane_that_stays_hot_is_relieved_by_the_coolest_and_takes_its_slots_back_when_both_have_cooled() {
        let mut relief = Relief::new(POLICY);
        assert_eq!(after(&mut relief, [80, 40, 20], &map()), Some((3, relieve(80))));
        assert_eq!(after(&mut relief, [40, 40, 40], &lent()), None, "one lane could not do the work of both");
        let mut relief = Relief { has_lent: true, ..Relief::new(POLICY) };
        assert_eq!(after(&mut relief, [30, 40, 20], &lent()), Some((3, Advice::Reclaim)));
        assert_eq!(after(&mut relief, [0, 0, 0], &map()), None);
    }

    #[test]
    fn a_lane_that_is_hot_now_and_then_is_left_alone() {
        let mut relief = Relief::new(POLICY);
        for second in 0..100 {
            let busy = if second % 3 == 2 { 79 } else { 100 };
            assert_eq!(relief.observe(SECOND, &[busy, 0, 0], &map()), None);
        }
    }

    #[test]
    fn relief_that_changes_nothing_is_tried_ever_more_seldom() {
        let mut relief = Relief::new(POLICY);
        let tries: Vec<_> = (0..3).map(|_| after(&mut relief, [99, 40, 0], &lent()).unwrap().0).collect();
        assert_eq!(tries, [3, 6, 12]);
    }

    #[test]
    fn neither_a_lane_of_one_slot_nor_one_among_busy_lanes_is_relieved_and_an_operators_loan_is_not_taken_back() {
        let mut relief = Relief::new(POLICY);
        assert_eq!(after(&mut relief, [100, 60, 51], &map()), None);
        let of_one_slot = (1..=u8::MAX).map(Slot).fold(map(), |map, slot| map.lent(slot, LaneIndex(1)).unwrap());
        assert_eq!(of_one_slot.table().iter().filter(|lane| lane.0 == 0).count(), 1);
        assert_eq!(after(&mut relief, [100, 60, 0], &of_one_slot), None);
        assert_eq!(after(&mut relief, [0, 0, 0], &lent()), None);
    }
}
