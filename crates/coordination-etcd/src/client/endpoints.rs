//! Which member to ask: the one that works, and not one that just failed.
//!
//! One connection carries everything a coordinator sends (more do not help a single etcd), so the client stays with one
//! member until it fails, then moves on. A failed member is left alone for a while that doubles with each failure in a
//! row; when all are resting, the one that rests least is asked, since refusing to try would not help.

use core::time::Duration;

use crate::kv::Moment;

/// Health of the configured endpoints.
#[derive(Debug)]
pub(super) struct Endpoints {
    rest_min: Duration,
    rest_max: Duration,
    current: usize,
    states: Vec<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    failures_in_a_row: u32,
    resting_until: Moment,
}

impl Endpoints {
    /// All healthy, beginning with the `first`, which callers choose at random to spread a fleet over the members.
    pub(super) fn new(count: usize, first: usize, rest_min: Duration, rest_max: Duration) -> Self {
        assert!(count > 0, "a validated configuration names at least one endpoint");
        Self { rest_min, rest_max, current: first % count, states: vec![State::default(); count] }
    }

    /// The endpoint to ask now.
    pub(super) fn pick(&mut self, now: Moment) -> usize {
        let count = self.states.len();
        let in_order = (0..count).map(|step| (self.current + step) % count);
        let rested = in_order.clone().find(|&index| self.states[index].resting_until <= now);
        let chosen = rested.or_else(|| in_order.min_by_key(|&index| self.states[index].resting_until));
        self.current = chosen.unwrap_or(0);
        self.current
    }

    /// A call to it was answered, were it with a refusal.
    pub(super) fn answered(&mut self, index: usize) {
        self.states[index] = State::default();
    }

    /// A call to it failed in a way that another member may not.
    pub(super) fn failed(&mut self, index: usize, now: Moment) {
        let state = &mut self.states[index];
        // A burst of calls in flight fails together: only the first of them makes the rest longer.
        if state.resting_until > now {
            return;
        }
        let rest = self.rest_min.saturating_mul(1 << state.failures_in_a_row.min(16)).min(self.rest_max);
        state.failures_in_a_row = state.failures_in_a_row.saturating_add(1);
        state.resting_until = now.after(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_millis(350);

    fn at(ms: u64) -> Moment {
        Moment(Duration::from_millis(ms))
    }

    #[test]
    fn a_working_endpoint_is_kept() {
        let mut endpoints = Endpoints::new(3, 1, MIN, MAX);
        assert_eq!(endpoints.pick(at(0)), 1);
        endpoints.answered(1);
        assert_eq!(endpoints.pick(at(1)), 1);
    }

    #[test]
    fn a_dead_endpoint_is_avoided_for_twice_as_long_each_time() {
        let mut endpoints = Endpoints::new(1, 0, MIN, MAX);
        let mut now = at(0);
        let mut rests = Vec::new();
        for _ in 0..4 {
            endpoints.failed(0, now);
            let until = endpoints.states[0].resting_until;
            rests.push(now.until(until).as_millis());
            now = until;
        }
        assert_eq!(rests, [100, 200, 350, 350]);
    }

    #[test]
    fn failover_goes_to_a_rested_endpoint_and_stays_there() {
        let mut endpoints = Endpoints::new(3, 0, MIN, MAX);
        endpoints.failed(0, at(0));
        assert_eq!(endpoints.pick(at(0)), 1);
        assert_eq!(endpoints.pick(at(1_000)), 1, "no hurry back to the one that failed");
    }

    #[test]
    fn when_all_rest_the_first_to_wake_is_asked() {
        let mut endpoints = Endpoints::new(2, 0, MIN, MAX);
        endpoints.failed(1, at(0));
        endpoints.failed(0, at(50));
        assert_eq!(endpoints.pick(at(60)), 1);
    }

    #[test]
    fn a_burst_of_failures_counts_once() {
        let mut endpoints = Endpoints::new(1, 0, MIN, MAX);
        for _ in 0..50 {
            endpoints.failed(0, at(0));
        }
        assert_eq!(endpoints.states[0].resting_until, at(100));
    }
}
