//! Decides whether an idle lane polls a little longer before it sleeps.
//!
//! A wake-up costs more than a short look, so a lane that is called again at once had better look on. A lane that is not has
//! looked in vain, and took a core from a thread that had work. The last sleep tells which it is: looking would have spared a sleep that ended within the
//! time of a look.

use std::time::Duration;

/// How long to look for work before sleeping.
#[derive(Debug)]
pub(super) struct SpinPolicy {
    look_max: Duration,
    pays: bool,
}

impl SpinPolicy {
    pub(super) fn new(look_max: Duration) -> Self {
        Self { look_max, pays: false }
    }

    /// How long to look, from the last work on.
    pub(super) fn look(&self) -> Duration {
        if self.pays { self.look_max } else { Duration::ZERO }
    }

    /// Whether the lane is called again sooner than a wake-up takes, as far as the last sleep tells.
    pub(super) fn pays(&self) -> bool {
        self.pays && !self.look_max.is_zero()
    }

    /// The lane has slept.
    pub(super) fn slept(&mut self, time: Duration) {
        self.pays = time <= self.look_max;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_looks_for_work_only_while_work_comes_within_that_time() {
        let most = Duration::from_micros(50);
        let mut spin_policy = SpinPolicy::new(most);
        assert_eq!(spin_policy.look(), Duration::ZERO, "nothing is known yet");
        spin_policy.slept(most);
        assert_eq!((spin_policy.look(), spin_policy.pays()), (most, true));
        spin_policy.slept(most + Duration::from_micros(1));
        assert_eq!((spin_policy.look(), spin_policy.pays()), (Duration::ZERO, false), "it looked in vain");
        let mut never = SpinPolicy::new(Duration::ZERO);
        never.slept(Duration::ZERO);
        assert!(!never.pays());
    }
}
