//! The sliding replay window of one stream of datagrams (one peer, one incarnation of one of its lanes).
//!
//! A lane numbers all its datagrams to all peers from one counter, because a nonce must never repeat under any
//! key. One receiver therefore sees a rising sequence with wide gaps, and a window over *numbers* would be too narrow for
//! ordinary reordering. This window is over *datagrams*: it remembers the last few numbers exactly, and everything at or
//! below the smallest forgotten one is refused.

/// How many datagrams of a stream may overtake another before it is taken for a replay.
pub const REPLAY_DEPTH: usize = 32;

/// Numbers seen on one stream. There is one for every peer, so it is kept small: numbers are kept as distances from a base.
#[derive(Debug, Clone)]
pub struct ReplayWindow {
    /// The `len` largest numbers seen, rising, less `base`.
    seen: [u16; REPLAY_DEPTH],
    len: u8,
    /// Every number below it counts as seen, less `base`: one more than a distance at most.
    floor: u32,
    base: u64,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { seen: [0; REPLAY_DEPTH], len: 0, floor: 0, base: 0 }
    }
}

impl ReplayWindow {
    /// Whether `counter` is new. Asked before the datagram is opened, to spare the work.
    #[must_use]
    pub fn admits(&self, counter: u64) -> bool {
        let seen = &self.seen[..usize::from(self.len)];
        let Some(distance) = counter.checked_sub(self.base) else { return false };
        // A number further from the base than any distance can be is newer than all of them.
        distance >= u64::from(self.floor)
            && !matches!(u16::try_from(distance), Ok(distance) if seen.contains(&distance))
    }

    /// Remembers `counter`. Called only once the datagram proved authentic: otherwise any sender could close the window.
    pub fn record(&mut self, counter: u64) {
        if !self.admits(counter) {
            return;
        }
        let Some(distance) = self.distance_of(counter) else { return };
        let len = usize::from(self.len);
        let at = self.seen[..len].partition_point(|seen| *seen < distance);
        if len < REPLAY_DEPTH {
            self.seen.copy_within(at..len, at + 1);
            self.seen[at] = distance;
            self.len += 1;
        } else if at == 0 {
            // Older than all remembered, yet above the floor: the floor rises to it instead of forgetting a newer one.
            self.floor = u32::from(distance) + 1;
        } else {
            self.floor = u32::from(self.seen[0]) + 1;
            self.seen.copy_within(1..at, 0);
            self.seen[at - 1] = distance;
        }
    }

    /// How far an admitted number is from the base. The base follows a stream that runs away from it, every thirty thousand
    /// numbers or so; numbers that far behind are forgotten and refused. A lane that sends a hundred thousand datagrams a
    /// second needs a third of a second for them, and a datagram that late is too late for any request.
    fn distance_of(&mut self, counter: u64) -> Option<u16> {
        if let Ok(distance) = u16::try_from(counter.checked_sub(self.base)?) {
            return Some(distance);
        }
        let base = counter - u64::from(u16::MAX / 2);
        let moved = base - self.base;
        let kept_from = self.seen[..usize::from(self.len)].partition_point(|seen| u64::from(*seen) < moved);
        self.seen.copy_within(kept_from.., 0);
        self.len -= kept_from as u8;
        for seen in &mut self.seen[..usize::from(self.len)] {
            *seen -= moved as u16;
        }
        (self.base, self.floor) = (base, u64::from(self.floor).saturating_sub(moved) as u32);
        Some(u16::MAX / 2)
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
    fn a_number_that_has_slid_out_is_refused() {
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

    #[test]
    fn the_base_follows_a_stream_that_runs_away() {
        let mut window = ReplayWindow::default();
        let far = u64::from(u16::MAX) * 3;
        for counter in [5, u64::from(u16::MAX), far - 1, far, far + u64::from(u16::MAX), u64::MAX] {
            assert!(window.admits(counter), "{counter}");
            window.record(counter);
            assert!(!window.admits(counter), "{counter}");
            assert!(!window.admits(5));
        }
        assert!(!window.admits(far), "long behind");
        assert!(window.admits(u64::MAX - 1), "reordering still is no replay");
        window.record(u64::MAX - 1);
        assert!(!window.admits(u64::MAX - 1) && !window.admits(u64::MAX));
    }

    #[test]
    fn reordering_by_thirty_thousand_numbers_is_no_replay() {
        let late = u64::from(u16::MAX / 2);
        for newest in [late, u64::from(u16::MAX), u64::from(u16::MAX) + 1, u64::from(u16::MAX) * 7] {
            let mut window = ReplayWindow::default();
            window.record(newest);
            assert!(window.admits(newest - late), "{newest}");
            window.record(newest - late);
            assert!(!window.admits(newest - late) && !window.admits(newest), "{newest}");
        }
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
