//! Why is nothing claimable? One answer for operators, in numbers and in words.

use core::fmt;

use tessera_contracts::ids::LogicalTime;

use super::status::RunStatus;
use crate::record::status::{ParkReason, ShardStatus};
use crate::record::view::ShardView;

/// What stands between a worker and a shard of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClaimExplanation {
    /// Where the run stands; nothing is claimable unless it is active.
    pub run: RunStatus,
    /// Shards that could be claimed now.
    pub available: u32,
    /// Shards held by someone.
    pub leased: u32,
    /// When the soonest of their leases ends.
    pub earliest_deadline: Option<LogicalTime>,
    /// Parked shards, by the number of their [`ParkReason`].
    pub parked: [u32; ParkReason::ALL.len()],
    /// The soonest time at which someone thought a parked shard worth another try.
    pub soonest_retry_after: Option<LogicalTime>,
    /// Shards done or split.
    pub settled: u32,
    /// Until when the asking worker's own cooldown lasts, if it does.
    pub cooldown_until: Option<LogicalTime>,
}

impl ClaimExplanation {
    /// An explanation to which shards are added one by one.
    pub const fn new(run: RunStatus) -> Self {
        Self {
            run,
            available: 0,
            leased: 0,
            earliest_deadline: None,
            parked: [0; ParkReason::ALL.len()],
            soonest_retry_after: None,
            settled: 0,
            cooldown_until: None,
        }
    }

    /// Takes one more shard into account; `claimable` is whether it could be claimed now.
    pub fn add<const LOG: usize>(&mut self, view: &ShardView<'_, LOG>, claimable: bool) {
        let head = &view.state.head;
        match (head.status, head.lease, head.park) {
            (ShardStatus::Active, ..) if claimable => self.available += 1,
            (ShardStatus::Active, Some(holder), _) => {
                self.leased += 1;
                self.earliest_deadline = sooner(self.earliest_deadline, Some(holder.deadline));
            }
            // Free, but in a run that gives out no work; the run's status says that.
            (ShardStatus::Active, None, _) => {}
            (ShardStatus::Parked, _, Some(park)) => {
                self.parked[usize::from(park.reason.as_u8())] += 1;
                self.soonest_retry_after = sooner(self.soonest_retry_after, park.retry_after);
            }
            (ShardStatus::Parked | ShardStatus::Done | ShardStatus::Split, ..) => self.settled += 1,
        }
    }

    /// Parked shards in all.
    pub fn parked_total(&self) -> u32 {
        self.parked.iter().sum()
    }

    /// The first thing in the way of a claim.
    pub fn verdict(&self) -> ClaimVerdict {
        if self.run != RunStatus::Active {
            ClaimVerdict::RunNotActive(self.run)
        } else if let Some(until) = self.cooldown_until {
            ClaimVerdict::CoolingDown { until }
        } else if self.available > 0 {
            ClaimVerdict::Claimable
        } else if let Some(until) = self.earliest_deadline {
            ClaimVerdict::AllLeased { until }
        } else if self.parked_total() > 0 {
            ClaimVerdict::OnlyParkedLeft
        } else {
            ClaimVerdict::AllSettled
        }
    }
}

fn sooner(a: Option<LogicalTime>, b: Option<LogicalTime>) -> Option<LogicalTime> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The first thing in the way of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClaimVerdict {
    /// Nothing: a claim would succeed.
    Claimable,
    /// The run does not accept work.
    RunNotActive(RunStatus),
    /// The worker claimed a moment ago.
    CoolingDown {
        /// When it may claim again.
        until: LogicalTime,
    },
    /// Every open shard is held.
    AllLeased {
        /// When the soonest lease ends, if it is not renewed.
        until: LogicalTime,
    },
    /// What is left is parked.
    OnlyParkedLeft,
    /// Everything is done; the run can be completed.
    AllSettled,
}

impl fmt::Display for ClaimExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.verdict() {
            ClaimVerdict::Claimable => write!(f, "{} shards can be claimed now", self.available)?,
            ClaimVerdict::RunNotActive(status) => write!(f, "the run is {status}")?,
            ClaimVerdict::CoolingDown { until } => write!(f, "this worker may claim again at {until}")?,
            ClaimVerdict::AllLeased { until } => {
                write!(f, "all {} open shards are leased, the soonest until {until}", self.leased)?;
            }
            ClaimVerdict::OnlyParkedLeft => f.write_str("every shard that is not finished is parked")?,
            ClaimVerdict::AllSettled => f.write_str("every shard is finished; the run can be completed")?,
        }
        if self.parked_total() > 0 {
            f.write_str("; parked:")?;
            let counted = ParkReason::ALL.into_iter().zip(self.parked).filter(|(_, count)| *count > 0);
            for (index, (reason, count)) in counted.enumerate() {
                write!(f, "{} {count} {reason}", if index == 0 { "" } else { "," })?;
            }
        }
        match self.soonest_retry_after {
            Some(retry_after) => write!(f, "; a retry was advised from {retry_after} on"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn the_first_thing_in_the_way_is_named_and_what_is_parked_is_counted_beside_it() {
        let at = LogicalTime::new;
        let all_settled = ClaimExplanation { settled: 3, ..ClaimExplanation::new(RunStatus::Active) };
        let parked = ClaimExplanation { parked: [1, 0, 0, 2, 0], soonest_retry_after: Some(at(7)), ..all_settled };
        let leased = ClaimExplanation { leased: 2, earliest_deadline: Some(at(50)), ..parked };
        let available = ClaimExplanation { available: 4, parked: [0; 5], soonest_retry_after: None, ..leased };
        let cooling = ClaimExplanation { cooldown_until: Some(at(9)), ..available };
        let over = ClaimExplanation { run: RunStatus::Failed, ..cooling };
        for (explanation, verdict, words) in [
            (all_settled, ClaimVerdict::AllSettled, "every shard is finished; the run can be completed"),
            (
                parked,
                ClaimVerdict::OnlyParkedLeft,
                "every shard that is not finished is parked; parked: 1 permission denied, 2 too many errors; a retry was \
                 advised from 7 on",
            ),
            (
                leased,
                ClaimVerdict::AllLeased { until: at(50) },
                "all 2 open shards are leased, the soonest until 50; parked: 1 permission denied, 2 too many errors; a \
                 retry was advised from 7 on",
            ),
            (available, ClaimVerdict::Claimable, "4 shards can be claimed now"),
            (cooling, ClaimVerdict::CoolingDown { until: at(9) }, "this worker may claim again at 9"),
            (over, ClaimVerdict::RunNotActive(RunStatus::Failed), "the run is failed"),
        ] {
            assert_eq!((explanation.verdict(), explanation.to_string().as_str()), (verdict, words));
        }
    }
}
