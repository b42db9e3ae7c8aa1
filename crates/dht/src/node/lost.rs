//! Contacts that fell silent. The silence may have been the network's: a partition must be able to heal, and who forgets everybody on
//! the other side never hears of them again.

use tessera_contracts::point::{NodeId, Point as _};

use super::LaneNode;
use super::outbox::Outbox;
use crate::contact::Contact;
use crate::identity::Crypto;
use crate::time::Now;

/// Contacts that fell silent and are tried again.
pub(super) const LOST_MAX: usize = 256;

/// Pause before a lost contact is tried: doubled after each try, up to the most; given up after so many tries.
const LOST_PAUSE_MS_MIN: u64 = 15_000;
const LOST_PAUSE_MS_MAX: u64 = 10 * 60 * 1000;
const LOST_TRIES_MAX: u8 = 12;

/// If a quarter of the table comes back within this time, a split has healed.
const HEALING_MS: u64 = 60_000;

/// Then the newest records, which were stored on one side of it, are given to those who should hold them now: so many, within this time, and
/// not twice within the last.
const REGIVEN_MAX: usize = 256;
const REGIVEN_MS: u64 = 5000;
const REGIVEN_AGAIN_MS: u64 = 10 * 60 * 1000;

/// Lost contacts tried in one tick.
const LOST_PER_TICK: usize = 8;

/// After so many tries a contact has been lost for about ten minutes.
const LOST_LATELY_TRIES: u8 = 5;

/// So many lost contacts that come back mean that it was the network that was silent: look around again.
const REGAINED_TO_REJOIN: usize = 3;

/// A contact that lost its place by silence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost {
    pub(super) contact: Contact,
    pub(super) id: NodeId,
    next_ms: u64,
    tries: u8,
}

impl Lost {
    /// Whether it fell silent in the last minutes.
    pub(super) fn is_fresh(&self) -> bool {
        self.tries <= LOST_LATELY_TRIES
    }
}

/// Who came back, of those who were lost.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Healing {
    /// So many since the last look around.
    regained: usize,
    /// So many since then.
    came_back: usize,
    since_ms: u64,
    /// When records were last given on because of it.
    regiven_ms: Option<u64>,
}

impl Healing {
    /// Takes those who came back, and says whether that is so much of the table that a split must have healed. Once for a split.
    fn is_done(&mut self, now: Now, came_back: usize, live: usize) -> bool {
        if now.mono_ms.saturating_sub(self.since_ms) >= HEALING_MS {
            (self.came_back, self.since_ms) = (0, now.mono_ms);
        }
        self.came_back += came_back;
        let is_much = self.came_back >= REGAINED_TO_REJOIN && self.came_back * 4 >= live;
        let is_first = self.regiven_ms.is_none_or(|at_ms| now.mono_ms.saturating_sub(at_ms) >= REGIVEN_AGAIN_MS);
        if is_much && is_first {
            self.regiven_ms = Some(now.mono_ms);
        }
        is_much && is_first
    }
}

impl<C: Crypto> LaneNode<C> {
    /// Remembers a contact that lost its place.
    pub(super) fn remember_lost(&mut self, now: Now, contact: Contact, id: NodeId) {
        if self.lost.iter().any(|lost| lost.id == id) {
            return;
        }
        if self.lost.len() == LOST_MAX {
            self.lost.pop_front();
        }
        self.lost.push_back(Lost { contact, id, next_ms: now.mono_ms + LOST_PAUSE_MS_MIN, tries: 0 });
    }

    /// Tries lost contacts that are due, a few a tick.
    pub(super) fn try_lost(&mut self, now: Now, out: &mut impl Outbox) {
        let Self { lost, table, join, healing, own, .. } = self;
        let before = lost.len();
        lost.retain(|lost| table.get(&lost.id).is_none());
        let came_back = before - lost.len();
        healing.regained += came_back;
        if healing.is_done(now, came_back, table.live_len()) {
            self.records.hurry(now, REGIVEN_MAX, REGIVEN_MS, &mut self.rng);
        }
        if healing.regained >= REGAINED_TO_REJOIN && !join.is_busy() {
            healing.regained = 0;
            // It was the network that was silent: the others will be back as well. Our neighbours first, whom others will ask us for.
            lost.make_contiguous().sort_unstable_by_key(|lost| own.distance_to(&lost.id));
            for lost in lost.iter_mut() {
                lost.next_ms = lost.next_ms.min(now.mono_ms);
                lost.tries = lost.tries.saturating_sub(1);
            }
            self.look_around(now, out);
        }
        let mut tried = 0;
        for _ in 0..self.lost.len() {
            let Some(mut lost) = self.lost.pop_front() else { return };
            if lost.next_ms > now.mono_ms || tried == LOST_PER_TICK {
                self.lost.push_back(lost);
                continue;
            }
            tried += 1;
            lost.tries += 1;
            if lost.tries < LOST_TRIES_MAX {
                let pause_ms = (LOST_PAUSE_MS_MIN << lost.tries).min(LOST_PAUSE_MS_MAX);
                lost.next_ms = now.mono_ms + self.rng.jittered_ms(pause_ms);
                self.lost.push_back(lost);
            }
            self.verify(now, lost.contact, lost.id, out);
        }
    }
}
