//! The three classes of messages between lanes, and the fate of a message that finds no room.
//!
//! A class is a promise about loss, not about speed: Control is never lost while both lanes live, Coordination is lost only
//! when its ring is full, Hints are lossy by design and the freshest survive.

/// How a message is queued, drained and, if it must be, dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// Configuration, lifecycle, admission. Statements in which the newest of a kind replaces the older.
    Control = 0,
    /// Redirects, fan-out, requests between lanes. Dropped only as a duplicate or at capacity.
    Coordination = 1,
    /// Cache hints and gossip. The oldest give way.
    Hints = 2,
}

impl Class {
    /// All classes, most important first.
    pub const ALL: [Self; 3] = [Self::Control, Self::Coordination, Self::Hints];

    /// The class's place in a table of three.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The class's name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Coordination => "coordination",
            Self::Hints => "hints",
        }
    }
}

/// The fate of a message. Producers are told at once and never wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a dropped message is news to its sender"]
pub enum Enqueue {
    /// It will be handled, unless its lane dies first.
    Enqueued,
    /// A message already on its way says the same, or now says this.
    Coalesced,
    /// It will not be handled.
    Dropped(DropReason),
}

impl Enqueue {
    /// Whether the receiver will get the content of the message.
    #[must_use]
    pub const fn is_accepted(self) -> bool {
        matches!(self, Self::Enqueued | Self::Coalesced)
    }
}

/// Why a message was dropped, as its producer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// No room: the ring is full, the class is being shed, the producer is over its rate, or too many acknowledgements are
    /// waited for.
    Full,
    /// It has been forwarded or retried as often as it may be.
    TtlExpired,
    /// No receiver: no such lane, or the lane is down.
    NoRoute,
}

/// Why a message was dropped, as the operator sees it: the cause behind each [`DropReason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropCause {
    /// The ring had no free slot or no room for the payload.
    RingFull = 0,
    /// A lower class gave way because a control ring to the same lane is full.
    Shed = 1,
    /// The producer exceeded its rate for the class.
    RateCapped = 2,
    /// An older hint gave way to a newer one, or an older word of Control where no place was left for a newer.
    Superseded = 3,
    /// The time to live ran out.
    TtlExpired = 4,
    /// No lane of that number exists, or the payload can go nowhere.
    NoRoute = 5,
    /// The receiving lane died with the message in flight.
    LaneDown = 6,
    /// An acknowledgement was asked for, and as many are waited for as may be, or the lane has no timer left.
    AcksFull = 7,
}

impl DropCause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::RingFull,
        Self::Shed,
        Self::RateCapped,
        Self::Superseded,
        Self::TtlExpired,
        Self::NoRoute,
        Self::LaneDown,
        Self::AcksFull,
    ];

    /// The outcome for the producer.
    #[must_use]
    pub const fn reason(self) -> DropReason {
        match self {
            Self::RingFull | Self::Shed | Self::RateCapped | Self::Superseded | Self::AcksFull => DropReason::Full,
            Self::TtlExpired => DropReason::TtlExpired,
            Self::NoRoute | Self::LaneDown => DropReason::NoRoute,
        }
    }

    /// The cause's name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RingFull => "ring_full",
            Self::Shed => "shed",
            Self::RateCapped => "rate_capped",
            Self::Superseded => "superseded",
            Self::TtlExpired => "ttl_expired",
            Self::NoRoute => "no_route",
            Self::LaneDown => "lane_down",
            Self::AcksFull => "acks_full",
        }
    }
}

/// Sizes of one class's ring between an ordered pair of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize {
    /// Messages the ring holds.
    pub messages_max: usize,
    /// Bytes the ring holds of payloads longer than 32 bytes, over all its messages; shorter ones travel with their envelope.
    pub payload_bytes_max: usize,
}

/// Sizes of the rings of every ordered pair of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Per class, by [`Class::index`].
    pub classes: [RingSize; 3],
    /// Bytes of the bulk ring, which carries forwarded datagrams and the state of slots on the move.
    pub bulk_bytes_max: usize,
}

impl RingSizes {
    /// The ring size of `class`.
    #[must_use]
    pub const fn of(&self, class: Class) -> RingSize {
        self.classes[class.index()]
    }
}

impl Default for RingSizes {
    /// 64, 1,024 and 4,096 messages. Control can be full of full payloads; the others budget 64 bytes a message, because
    /// their usual payload is short and every byte here is paid S*(S-1) times.
    fn default() -> Self {
        Self {
            classes: [
                RingSize { messages_max: 64, payload_bytes_max: 64 * 512 },
                RingSize { messages_max: 1024, payload_bytes_max: 1024 * 64 },
                RingSize { messages_max: 4096, payload_bytes_max: 4096 * 64 },
            ],
            bulk_bytes_max: 256 * 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_causes_are_numbered_by_their_place() {
        for (place, cause) in DropCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, place);
        }
    }

    #[test]
    fn default_capacities_are_64_1024_4096() {
        let sizes = RingSizes::default();
        assert_eq!(Class::ALL.map(|class| sizes.of(class).messages_max), [64, 1024, 4096]);
    }
}
