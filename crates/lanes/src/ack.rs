//! Messages that are sent again until they are acknowledged, at most as often as their time to live allows.
//!
//! For rare control operations; the table is small and bounded, and the lane's loop never waits.

use tessera_stdx::TimerHandle;

use crate::envelope::{Envelope, PAYLOAD_BYTES_MAX};

/// Messages that may wait for an acknowledgement at once.
pub(crate) const ACKS_PENDING_MAX: usize = 64;

#[derive(Debug)]
struct Pending {
    envelope: Envelope,
    payload: [u8; PAYLOAD_BYTES_MAX],
    timer: Option<TimerHandle>,
}

/// What waits for an acknowledgement.
#[derive(Debug)]
pub(crate) struct AckTable {
    pending: Box<[Option<Box<Pending>>]>,
}

/// What to do about an acknowledgement that did not come in time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// Send it again, with one hop less to live.
    Retry(Envelope),
    /// Tell the handler.
    GiveUp(Envelope),
}

impl Default for AckTable {
    fn default() -> Self {
        Self { pending: (0..ACKS_PENDING_MAX).map(|_| None).collect() }
    }
}

impl AckTable {
    /// Remembers a message just sent; its place, or `None` if the table is full.
    pub(crate) fn insert(&mut self, envelope: Envelope, payload: &[u8]) -> Option<u8> {
        let place = self.pending.iter().position(Option::is_none)?;
        let mut copy = [0; PAYLOAD_BYTES_MAX];
        copy[..payload.len()].copy_from_slice(payload);
        self.pending[place] = Some(Box::new(Pending { envelope, payload: copy, timer: None }));
        Some(place as u8)
    }

    pub(crate) fn set_timer(&mut self, place: u8, timer: Option<TimerHandle>) {
        if let Some(pending) = &mut self.pending[usize::from(place)] {
            pending.timer = timer;
        }
    }

    /// The message at `place` is acknowledged, never was there, or is given up.
    pub(crate) fn forget(&mut self, place: u8) {
        self.pending[usize::from(place)] = None;
    }

    /// The acknowledgement of `correlation_id` came: its timer, to cancel it. `None` if nobody waits (any more).
    pub(crate) fn acked(&mut self, correlation_id: u64) -> Option<Option<TimerHandle>> {
        let place = self
            .pending
            .iter()
            .position(|pending| pending.as_ref().is_some_and(|p| p.envelope.correlation_id == correlation_id))?;
        self.pending[place].take().map(|pending| pending.timer)
    }

    /// The timer of `place` fired.
    pub(crate) fn overdue(&mut self, place: u8) -> Option<Overdue> {
        let pending = self.pending[usize::from(place)].as_mut()?;
        pending.envelope.ttl -= 1;
        if pending.envelope.ttl > 0 {
            return Some(Overdue::Retry(pending.envelope));
        }
        let envelope = pending.envelope;
        self.forget(place);
        Some(Overdue::GiveUp(envelope))
    }

    pub(crate) fn payload(&self, place: u8) -> &[u8] {
        self.pending[usize::from(place)]
            .as_ref()
            .map_or(&[], |pending| &pending.payload[..usize::from(pending.envelope.payload_len)])
    }
}
