//! The fixed header of every message between lanes: 32 bytes, 8-byte aligned, plain data.
//!
//! The header carries all that routing, coalescing, telemetry and acknowledgement need, so that none of them looks into a
//! payload. It never leaves the process, so it has no byte order and no version; a fault in it is our own bug.

use tessera_contracts::prefix_map::{LaneIndex, Slot};

use crate::class::Class;

/// The longest payload of one message. Larger data goes through the network, the bulk ring, or is reduced to ids.
pub const PAYLOAD_BYTES_MAX: usize = 512;

/// Hops a message may take before it is dropped, unless its sender asks for fewer: the first enqueue is free, each forward
/// and each retry costs one. Two map changes in flight at once are the worst we plan for.
pub const TTL_DEFAULT: u8 = 3;

/// The meaning of a message to the handler. The top sixteen kinds belong to the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Kind(u8);

impl Kind {
    /// Kinds from here up are the runtime's own.
    pub const RESERVED_MIN: u8 = 0xf0;
    /// "I have handled the message with your correlation id."
    pub(crate) const ACK: Self = Self(0xf0);
    /// "Slots are owned like this from now on."
    pub(crate) const MAP: Self = Self(0xf1);
    /// "Empty your rings and stop."
    pub(crate) const RETIRE: Self = Self(0xf2);

    /// A handler's message kind.
    ///
    /// # Panics
    /// If `kind` is reserved for the runtime; in a `const` this is a compile error.
    #[must_use]
    pub const fn new(kind: u8) -> Self {
        assert!(kind < Self::RESERVED_MIN, "message kinds from 0xf0 up are reserved for the runtime");
        Self(kind)
    }

    /// The kind's number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Properties of a message that the runtime acts on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Flags(u8);

impl Flags {
    /// Nothing special.
    pub const NONE: Self = Self(0);
    /// Addressed to the owner of `slot`, so it is forwarded when that lane has changed.
    pub const KEYED: Self = Self(1);
    /// The sender waits for an acknowledgement and retries without one.
    pub const ACK_WANTED: Self = Self(2);

    /// Whether every flag of `other` is set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets of flags.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The header of a message. Field order is by size, so that there is no padding to leak or to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Envelope {
    /// Ties an answer to its question and a repeat to its first sending; zero means "has no identity, is never a duplicate".
    pub correlation_id: u64,
    /// The first 64 bits of the (XOR-)position the message is about: routes and coalesces without the full id.
    pub key_prefix: u64,
    /// Low 32 bits of the sender's clock in microseconds, for the latency of the queue. Wraps after 71 minutes.
    pub queued_at: u32,
    /// The sender's view of which lane owns what.
    pub map_version: u16,
    /// Bytes of payload behind this header.
    pub payload_len: u16,
    /// The meaning of the message.
    pub kind: Kind,
    /// Its first sender; forwarding keeps it.
    pub src: LaneIndex,
    /// Whom it is for.
    pub dst: LaneIndex,
    /// How it is queued, drained and dropped.
    pub class: Class,
    /// Hops left; a message that would need one more than it has is dropped, which is why nothing can circle.
    pub ttl: u8,
    /// Instructions to the runtime.
    pub flags: Flags,
    /// The group of ids the message is about, if [`Flags::KEYED`].
    pub slot: Slot,
    /// Zero; keeps the size at 32 without hidden padding.
    pub reserved: u8,
}

const _: () = assert!(size_of::<Envelope>() == 32, "the envelope is half a cache line");
const _: () = assert!(align_of::<Envelope>() == 8, "the envelope is 8-byte aligned");
const _: () = assert!(PAYLOAD_BYTES_MAX <= u16::MAX as usize);

impl Envelope {
    /// A header for a message to whichever lane owns `slot` when it arrives.
    #[must_use]
    pub const fn to_slot(slot: Slot, class: Class, kind: Kind) -> Self {
        Self { slot, flags: Flags::KEYED, ..Self::to_lane(LaneIndex(0), class, kind) }
    }

    /// A header for a message to lane `dst`, with the default time to live and no flags.
    #[must_use]
    pub const fn to_lane(dst: LaneIndex, class: Class, kind: Kind) -> Self {
        Self {
            correlation_id: 0,
            key_prefix: 0,
            queued_at: 0,
            map_version: 0,
            payload_len: 0,
            kind,
            src: LaneIndex(0),
            dst,
            class,
            ttl: TTL_DEFAULT,
            flags: Flags::NONE,
            slot: Slot(0),
            reserved: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_the_envelope_is_a_named_field() {
        let named = 8 + 8 + 4 + 2 + 2 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1;
        assert_eq!(named, size_of::<Envelope>());
    }

    #[test]
    #[should_panic(expected = "reserved")]
    fn handlers_cannot_speak_with_the_runtimes_kinds() {
        let _ = Kind::new(Kind::RESERVED_MIN);
    }
}
