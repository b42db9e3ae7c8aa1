//! Why is nothing claimable? One answer for operators, in numbers and in words.

use core::fmt;

use tessera_contracts::ids::{LogicalTime, WorkerId};

use super::status::RunStatus;
use crate::decide::acquire::{is_claimable_by, is_open};
use crate::decide::unreachable::{held_back_until, is_reported_by};
use crate::record::status::{ParkReason, ShardStatus};
use crate::record::view::ShardView;

/// What stands between a worker and a shard of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClaimExplanation {
    /// Where the run stands; nothing is claimable unless it is active.
    pub run: RunStatus,
    /// Who asks.
    pub worker: WorkerId,
    /// Shards that this worker could claim now.
    pub available: u32,
    /// Those of them whose holder still has its session with the store: their leases have ended by the asker's clock alone. Either
    /// the holder is stuck, or the asker's clock is ahead. Zero where the store knows no sessions.
    pub overdue: u32,
    /// Shards held by someone.
    pub leased: u32,
    /// When the soonest of their leases ends.
    pub earliest_deadline: Option<LogicalTime>,
    /// Open shards that this worker reported unreachable; they are left to others.
    pub unreachable: u32,
    /// Open shards that are held back from everybody, because a worker that could not reach them said that waiting may help.
    pub held_back: u32,
    /// When the first of these is given out again.
    pub soonest_given_out: Option<LogicalTime>,
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
    pub const fn new(run: RunStatus, worker: WorkerId) -> Self {
        Self {
            run,
            worker,
            unreachable: 0,
            held_back: 0,
            soonest_given_out: None,
            available: 0,
            overdue: 0,
            leased: 0,
            earliest_deadline: None,
            parked: [0; ParkReason::ALL.len()],
            soonest_retry_after: None,
            settled: 0,
            cooldown_until: None,
        }
    }

    /// Takes one more shard into account, as of `now` and with this allowance for clock skew.
    pub fn add<const LOG: usize>(&mut self, view: &ShardView<'_, LOG>, now: LogicalTime, skew: u64) {
        let head = &view.state.head;
        match (head.status, head.lease, head.park) {
            (ShardStatus::Active, ..) if is_claimable_by(view, self.worker, now, skew) => self.available += 1,
            (ShardStatus::Active, ..) if is_open(view, now, skew) => self.add_reported(view),
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

    /// Nobody holds it, and yet the worker cannot have it: that is because of reports.
    fn add_reported<const LOG: usize>(&mut self, view: &ShardView<'_, LOG>) {
        if is_reported_by(view.unreachable, self.worker) {
            self.unreachable += 1;
        } else {
            self.held_back += 1;
            self.soonest_given_out = sooner(self.soonest_given_out, held_back_until(view.unreachable));
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
        } else if let Some(until) = self.soonest_given_out {
            ClaimVerdict::HeldBack { until }
        } else if self.unreachable > 0 {
            ClaimVerdict::OnlyUnreachableLeft
        } else if self.parked_total() > 0 {
            ClaimVerdict::OnlyParkedLeft
        } else {
            ClaimVerdict::AllSettled
        }
    }
}

/// The sooner of two times, where there are any.
pub(crate) fn sooner(a: Option<LogicalTime>, b: Option<LogicalTime>) -> Option<LogicalTime> {
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
    /// What is open was reported unreachable, and is held back for a while.
    HeldBack {
        /// When the first is given out again.
        until: LogicalTime,
    },
    /// What is open was reported unreachable by this very worker, and is left to others.
    OnlyUnreachableLeft,
    /// What is left is parked.
    OnlyParkedLeft,
    /// Everything is done; the run can be completed.
    AllSettled,
}

impl ClaimExplanation {
    /// The explanation in words, with times as `time` writes them.
    pub fn words<T: fmt::Display>(&self, time: impl Fn(LogicalTime) -> T) -> impl fmt::Display {
        fmt::from_fn(move |f| self.write(f, &time))
    }

    fn write<T: fmt::Display>(&self, f: &mut fmt::Formatter<'_>, time: &impl Fn(LogicalTime) -> T) -> fmt::Result {
        match self.verdict() {
            ClaimVerdict::Claimable if self.available > self.overdue => {
                write!(f, "{} can be claimed now", Shards(self.available - self.overdue))?;
            }
            ClaimVerdict::Claimable => write!(f, "all {} are held", OpenShards(self.leased + self.overdue))?,
            ClaimVerdict::RunNotActive(status) => write!(f, "the run is {status}")?,
            ClaimVerdict::CoolingDown { until } => write!(f, "this worker may claim again at {}", time(until))?,
            ClaimVerdict::AllLeased { until } => {
                write!(f, "all {} are leased, the soonest until {}", OpenShards(self.leased), time(until))?;
            }
            ClaimVerdict::HeldBack { until } => {
                let what = if self.held_back == 1 { "shard was" } else { "shards were" };
                write!(
                    f,
                    "{} {what} reported unreachable and held back, the soonest until {}",
                    self.held_back,
                    time(until)
                )?;
            }
            ClaimVerdict::OnlyUnreachableLeft => {
                f.write_str("this worker cannot reach what is left; other workers may")?;
            }
            ClaimVerdict::OnlyParkedLeft => f.write_str("every shard that is not finished is parked")?,
            ClaimVerdict::AllSettled => f.write_str("every shard is finished; the run can be completed")?,
        }
        if self.overdue > 0 {
            write!(
                f,
                "; the leases of {} have ended by this clock, but their holders are connected: compare the clocks, and if \
                 they agree, the holders are stuck and others take over",
                Shards(self.overdue)
            )?;
        }
        if self.unreachable > 0 {
            let what = if self.unreachable == 1 { "shard" } else { "shards" };
            write!(f, "; {} open {what} reported unreachable by this worker", self.unreachable)?;
        }
        if self.parked_total() > 0 {
            f.write_str("; parked:")?;
            let counted = ParkReason::ALL.into_iter().zip(self.parked).filter(|(_, count)| *count > 0);
            for (index, (reason, count)) in counted.enumerate() {
                write!(f, "{} {count} {reason}", if index == 0 { "" } else { "," })?;
            }
        }
        match self.soonest_retry_after {
            Some(retry_after) => write!(f, "; a retry was advised from {} on", time(retry_after)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ClaimExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &|time| time)
    }
}

struct Shards(u32);

impl fmt::Display for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { "shard" } else { "shards" })
    }
}

struct OpenShards(u32);

impl fmt::Display for OpenShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} open {}", self.0, if self.0 == 1 { "shard" } else { "shards" })
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn the_first_thing_in_the_way_is_named_and_what_is_parked_is_counted_beside_it() {
        let at = LogicalTime::new;
        let all_settled = ClaimExplanation { settled: 3, ..ClaimExplanation::new(RunStatus::Active, WorkerId::new(1)) };
        let parked = ClaimExplanation { parked: [1, 0, 0, 2, 0, 0], soonest_retry_after: Some(at(7)), ..all_settled };
        let unreachable = ClaimExplanation { unreachable: 1, ..all_settled };
        let held_back = ClaimExplanation { held_back: 2, soonest_given_out: Some(at(40)), ..unreachable };
        let leased = ClaimExplanation { leased: 2, earliest_deadline: Some(at(50)), ..parked };
        let available = ClaimExplanation { available: 4, parked: [0; 6], soonest_retry_after: None, ..leased };
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
            (
                unreachable,
                ClaimVerdict::OnlyUnreachableLeft,
                "this worker cannot reach what is left; other workers may; 1 open shard reported unreachable by this worker",
            ),
            (
                held_back,
                ClaimVerdict::HeldBack { until: at(40) },
                "2 shards were reported unreachable and held back, the soonest until 40; 1 open shard reported unreachable \
                 by this worker",
            ),
            (available, ClaimVerdict::Claimable, "4 shards can be claimed now"),
            (
                ClaimExplanation { overdue: 3, ..available },
                ClaimVerdict::Claimable,
                "1 shard can be claimed now; the leases of 3 shards have ended by this clock, but their holders are connected: \
                 compare the clocks, and if they agree, the holders are stuck and others take over",
            ),
            (
                ClaimExplanation { overdue: 4, ..available },
                ClaimVerdict::Claimable,
                "all 6 open shards are held; the leases of 4 shards have ended by this clock, but their holders are \
                 connected: compare the clocks, and if they agree, the holders are stuck and others take over",
            ),
            (cooling, ClaimVerdict::CoolingDown { until: at(9) }, "this worker may claim again at 9"),
            (over, ClaimVerdict::RunNotActive(RunStatus::Failed), "the run is failed"),
        ] {
            assert_eq!((explanation.verdict(), explanation.to_string().as_str()), (verdict, words));
        }
        let told = leased.words(|time| alloc::format!("<{time}>")).to_string();
        assert!(told.contains("until <50>") && told.contains("from <7> on"), "{told}");
    }
}
