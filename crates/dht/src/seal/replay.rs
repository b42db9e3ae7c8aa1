//! The sliding replay window of one stream of datagrams (one peer, one incarnation of one of its lanes).
//!
//! A lane numbers all its datagrams from one counter, whoever they are for, because a nonce must never repeat under any
//! key. One receiver therefore sees a rising sequence with wide gaps, and a window over *numbers* would be too narrow for
//! ordinary reordering. This window is over *datagrams*: it remembers the last few numbers exactly, and everything at or
//! below the smallest forgotten one is refused.

/// How many datagrams of a stream may overtake another before it is taken for a replay.
pub const REPLAY_DEPTH: usize = 32;

/// Numbers seen on one stream.
#[derive(Debug, Clone)]
pub struct ReplayWindow {
    /// The `len` largest numbers seen, rising.
    seen: [u64; REPLAY_DEPTH],
    len: u8,
    /// Every number at or below it counts as seen; none when `None`.
    floor: Option<u64>,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { seen: [0; REPLAY_DEPTH], len: 0, floor: None }
    }
}

impl ReplayWindow {
    /// Whether `counter` is new. Asked before the datagram is opened, to spare the work.
    #[must_use]
    pub fn admits(&self, counter: u64) -> bool {
        let seen = &self.seen[..usize::from(self.len)];
        if seen.last().is_none_or(|newest| counter > *newest) {
            return self.floor.is_none_or(|floor| counter > floor);
        }
        self.floor.is_none_or(|floor| counter > floor) && !seen.contains(&counter)
    }

    /// Remembers `counter`. Called only once the datagram proved authentic: otherwise anybody could close the window.
    pub fn record(&mut self, counter: u64) {
        if !self.admits(counter) {
            return;
        }
        let len = usize::from(self.len);
        let at = self.seen[..len].partition_point(|seen| *seen < counter);
        if len < REPLAY_DEPTH {
            self.seen.copy_within(at..len, at + 1);
            self.seen[at] = counter;
            self.len += 1;
        } else if at == 0 {
            // Older than all remembered, yet above the floor: the floor rises to it instead of forgetting a newer one.
            self.floor = Some(counter);
        } else {
            self.floor = Some(self.seen[0]);
            self.seen.copy_within(1..at, 0);
            self.seen[at - 1] = counter;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    #[test]
    fn a_number_is_admitted_once() {
        let mut window = ReplayWindow::default();
        assert!(window.admits(0));
        window.record(0);
        assert!(!window.admits(0));
        window.record(500);
        assert!(window.admits(499), "reordering across a wide gap is no replay");
        window.record(499);
        assert!(!window.admits(499));
    }

    #[test]
    fn what_has_slid_out_is_refused() {
        let mut window = ReplayWindow::default();
        for counter in 1..=REPLAY_DEPTH as u64 {
            window.record(counter * 10);
        }
        assert!(window.admits(5), "nothing was forgotten yet");
        window.record(10_000);
        assert!(!window.admits(5));
        assert!(!window.admits(10));
        assert!(window.admits(11));
    }

    proptest! {
        #[test]
        fn never_admits_twice_and_always_admits_the_newest(counters in prop::collection::vec(0..300_u64, 0..400)) {
            let mut window = ReplayWindow::default();
            let mut accepted = BTreeSet::new();
            for counter in counters {
                let newest = accepted.last().is_none_or(|last| counter > *last);
                if window.admits(counter) {
                    prop_assert!(accepted.insert(counter), "{counter} admitted twice");
                    window.record(counter);
                    prop_assert!(!window.admits(counter));
                } else {
                    prop_assert!(!newest, "{counter} is new and was refused");
                    // A refusal of a number never seen is fair only behind a full window.
                    let above = accepted.range(counter..).count();
                    prop_assert!(accepted.contains(&counter) || above >= REPLAY_DEPTH);
                }
            }
        }
    }
}
