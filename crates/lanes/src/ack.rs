//! Messages that are sent again until they are acknowledged, at most as often as their time to live allows.
//!
//! For rare control operations; the table is small and bounded, and the lane's loop never waits.

use tessera_stdx::TimerHandle;

use crate::envelope::{Envelope, PAYLOAD_BYTES_MAX};

/// Messages that may wait for an acknowledgement at once.
pub(crate) const ACKS_PENDING_MAX: usize = 64;

#[derive(Clone, Debug)]
struct Pending {
    envelope: Envelope,
    payload: [u8; PAYLOAD_BYTES_MAX],
    timer: Option<TimerHandle>,
    waits: bool,
}

/// Messages that wait for an acknowledgement.
#[derive(Debug, Default)]
pub(crate) struct AckTable {
    /// Grows up to its bound: most lanes need a place or two, and many none.
    pending: Vec<Pending>,
}

/// What to do about an acknowledgement that did not come in time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// Send it again, with one hop less to live.
    Retry(Envelope),
    /// Tell the handler.
    GiveUp(Envelope),
}

impl AckTable {
    /// Remembers a message just sent; its place, or `None` if the table is full.
    pub(crate) fn insert(&mut self, envelope: Envelope, payload: &[u8]) -> Option<u8> {
        let place = match self.pending.iter().position(|pending| !pending.waits) {
            Some(place) => place,
            None if self.pending.len() == ACKS_PENDING_MAX => return None,
            None => {
                self.pending.push(Pending { envelope, payload: [0; PAYLOAD_BYTES_MAX], timer: None, waits: true });
                self.pending.len() - 1
            }
        };
        let pending = &mut self.pending[place];
        pending.payload[..payload.len()].copy_from_slice(payload);
        pending.envelope = envelope;
        pending.timer = None;
        pending.waits = true;
        Some(place as u8)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.pending.len() < ACKS_PENDING_MAX || self.pending.iter().any(|pending| !pending.waits)
    }

    pub(crate) fn set_timer(&mut self, place: u8, timer: Option<TimerHandle>) {
        self.pending[usize::from(place)].timer = timer;
    }

    /// The message at `place` is acknowledged, never was there, or is given up.
    pub(crate) fn forget(&mut self, place: u8) {
        self.pending[usize::from(place)].waits = false;
    }

    /// The acknowledgement of `correlation_id` came: its timer, to cancel it. `None` if no sender waits for it (any more).
    pub(crate) fn acked(&mut self, correlation_id: u64) -> Option<Option<TimerHandle>> {
        let acked = |pending: &&mut Pending| pending.waits && pending.envelope.correlation_id == correlation_id;
        let pending = self.pending.iter_mut().find(acked)?;
        pending.waits = false;
        Some(pending.timer.take())
    }

    /// The timer of `place` fired.
    pub(crate) fn overdue(&mut self, place: u8) -> Option<Overdue> {
        let pending = &mut self.pending[usize::from(place)];
        if !pending.waits {
            return None;
        }
        pending.envelope.ttl -= 1;
        if pending.envelope.ttl > 0 {
            return Some(Overdue::Retry(pending.envelope));
        }
        pending.waits = false;
        Some(Overdue::GiveUp(pending.envelope))
    }

    pub(crate) fn payload(&self, place: u8) -> &[u8] {
        let pending = &self.pending[usize::from(place)];
        &pending.payload[..usize::from(pending.envelope.payload_len)]
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::prefix_map::LaneIndex;

    use super::*;
    use crate::class::Class;
    use crate::envelope::Kind;

    #[test]
    fn the_table_is_bounded_and_a_place_is_free_after_its_acknowledgement() {
        let mut table = AckTable::default();
        let message =
            |id| Envelope { correlation_id: id, ..Envelope::to_lane(LaneIndex(1), Class::Control, Kind::new(1)) };
        for id in 1..=ACKS_PENDING_MAX as u64 {
            assert!(table.insert(message(id), b"").is_some());
        }
        assert!(!table.has_room());
        assert_eq!(table.insert(message(99), b""), None);
        assert_eq!(table.acked(7), Some(None));
        assert!(table.has_room());
        assert_eq!(table.acked(7), None, "once");
        assert_eq!(table.insert(message(99), b"x"), Some(6));
        table.forget(6);
        assert_eq!(table.overdue(6), None);
    }
}
