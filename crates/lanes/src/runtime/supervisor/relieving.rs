//! Relieving lanes that stay busy: the supervisor measures, [`relief`](crate::runtime::relief) advises.

use std::time::{Duration, Instant};

use tessera_contracts::prefix_map::LaneIndex;

use crate::handler::Handler;
use crate::runtime::ReliefPolicy;
use crate::runtime::relief::{Advice, Relief};
use crate::runtime::supervisor::{Change, Supervisor};

/// The load is looked at this often, or eight times in the time that a load has to last.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);

/// How busy the lanes are.
#[derive(Debug)]
pub(super) struct ReliefWatch {
    relief: Relief,
    look_every: Duration,
    looked: Instant,
    /// What each lane had been busy for then.
    busy_micros: Vec<u64>,
}

impl ReliefWatch {
    pub(super) fn new(policy: ReliefPolicy) -> Self {
        let look_every = (policy.sustained / 8).min(LOOK_EVERY_MAX);
        Self { relief: Relief::new(policy), look_every, looked: Instant::now(), busy_micros: Vec::new() }
    }

    /// How long it was since the last look, and for how much of it each lane was busy, in per cent.
    fn look(&mut self, busy_micros: Vec<u64>) -> (Duration, Vec<u32>) {
        let passed = self.looked.elapsed();
        self.looked += passed;
        let before = std::mem::replace(&mut self.busy_micros, busy_micros);
        let micros = (passed.as_micros() as u64).max(1);
        let busy = self.busy_micros.iter().enumerate().map(|(lane, busy)| {
            // A lane that is new here has been busy for nothing yet.
            let before = before.get(lane).copied().unwrap_or(*busy);
            (busy.saturating_sub(before) * 100 / micros).min(100) as u32
        });
        (passed, busy.collect())
    }
}

impl<H, F> Supervisor<H, F>
where
    H: Handler + Send + 'static,
    H::Command: Send + 'static,
    F: Fn(LaneIndex) -> H + Send + Sync + 'static,
{
    pub(super) fn relieve_hot_lanes(&mut self) {
        if self.change.is_some() {
            return; // While slots move, all lanes are busy with that.
        }
        let Some(watch) = self.relief.as_mut().filter(|watch| watch.looked.elapsed() >= watch.look_every) else {
            return;
        };
        let counters = self.shared.counters.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let busy_micros = counters.iter().map(|lane| lane.busy_micros.get()).collect();
        drop(counters);
        let (passed, busy_percent) = watch.look(busy_micros);
        match watch.relief.observe(passed, &busy_percent, &self.map) {
            None => {}
            Some(Advice::Relieve { lane, helper, busy_percent }) => {
                let what = format!("is busy {busy_percent} % of the time: lane {} serves half of its slots", helper.0);
                self.shared.event(Some(lane), what);
                self.begin_now(Change::Relieve { lane, helper }, None);
            }
            Some(Advice::Reclaim) => {
                self.shared.event(None, "lanes that were relieved have time to spare, and take their slots back");
                self.begin_now(Change::MergeBack, None);
            }
        }
    }
}
