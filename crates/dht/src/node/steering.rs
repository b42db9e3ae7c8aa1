//! Which lane a datagram goes to: the one steering rule.
//!
//! Every datagram carries a slot in clear. In a request it is the slot of the id asked about, at the receiver; in a reply it is the last byte
//! of the request's correlation id, which names a slot of the lane that asked. The byte is a hint: it chooses which lane opens the datagram,
//! and the lane that opens it hands it on if the id inside belongs to another.

use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_contracts::prefix_map::{STRIPED_BITS_DEFAULT, Selector, Slot};

use super::context::{Context, Place};
use crate::record::RecordView;
use crate::wire::message::{Envelope, Message, flag};

/// The slot by which a request about `id` is steered at the node `to`. Part of the wire format: always 24 bits deep,
/// independent of the receiver's own map.
pub fn steering_slot(to: &NodeId, id: &[u8; 32]) -> u8 {
    let Ok(selector) = Selector::striped(STRIPED_BITS_DEFAULT) else { return 0 };
    selector.slot(to.distance_to(&ContentId::from_bytes(*id))).0
}

impl Context<'_> {
    /// A random correlation id whose reply comes back to this lane.
    pub(super) fn correlation(&mut self) -> u64 {
        self.rng.u64() & !0xff | u64::from(self.place.home_slot().0)
    }

    /// The slot of a request; a random one hides the id it asks about.
    pub(super) fn request_slot(&mut self, to: &NodeId, about: &[u8; 32]) -> u8 {
        if self.place.config.any_slot { self.rng.u64() as u8 } else { steering_slot(to, about) }
    }

    /// The slot at which this lane is told a cookie by a node that cannot open its request yet; a random one hides which lane it is.
    pub(super) fn own_slot(&mut self) -> u8 {
        if self.place.config.any_slot { self.rng.u64() as u8 } else { self.place.home_slot().0 }
    }

    /// The slot of a reply, as the request wishes.
    #[inline]
    pub(super) fn reply_slot(&mut self, request_flags: u8, correlation: u64) -> u8 {
        if request_flags & flag::ANY_SLOT != 0 { self.rng.u64() as u8 } else { correlation as u8 }
    }
}

impl Place {
    /// The slot whose owner an opened datagram belongs to; `None` if any lane can take it.
    pub(super) fn owner_slot(&self, envelope: &Envelope<'_>) -> Option<Slot> {
        if envelope.message.is_reply() {
            return Some(Slot(envelope.correlation as u8));
        }
        let id = match envelope.message {
            Message::FindValue { id, .. } | Message::GetProviders { id, .. } => id,
            Message::Store { record, .. } | Message::CacheHint { record, .. } => RecordView::read(record).ok()?.id(),
            _ => return None,
        };
        Some(self.slot_of(&id))
    }
}
