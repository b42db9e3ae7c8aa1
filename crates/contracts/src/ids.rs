//! Identifiers: tenants, runs, shards, workers, operations; and the two counters that order them.
//!
//! All but the tenant are `u64` newtypes, so that one cannot be passed for another. Zero means *unassigned*
//! everywhere: a zeroed or forgotten field is then never a valid name. Ids an operator would type have a text form that
//! parses back; the ids read as hex, the counters as decimal numbers.

use core::fmt;
use core::str::FromStr;

use crate::canonical::{CanonicalBytes, CanonicalSink};
use crate::domain;
use crate::hex::{self, ParseHexError};
use crate::seen_text::SeenText;

/// The owner of runs and shards; nothing is ever read or written across tenants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId([u8; 32]);

impl TenantId {
    /// Names no tenant.
    pub const UNASSIGNED: Self = Self([0; 32]);

    /// The tenant with these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The tenant an operator calls `name`: the same name gives the same tenant on every machine.
    pub fn from_name(name: &str) -> Self {
        Self(domain::TENANT_NAME_V1.hash(name.as_bytes()))
    }

    /// The bytes of this id.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Whether this is [`TenantId::UNASSIGNED`].
    pub fn is_unassigned(&self) -> bool {
        *self == Self::UNASSIGNED
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::write(&self.0, f)
    }
}

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TenantId({self})")
    }
}

impl FromStr for TenantId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        hex::parse(text).map(Self).map_err(|source| ParseIdError::Hex {
            id: "tenant id",
            text: SeenText::of(text),
            source,
        })
    }
}

impl CanonicalBytes for TenantId {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.fixed(&self.0);
    }
}

/// Why a text is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseIdError {
    /// Not the right number of hex digits, or not hex.
    #[error("not a {id}: {text}: {source}")]
    Hex {
        /// What was being read.
        id: &'static str,
        /// What was seen.
        text: SeenText,
        /// What was wrong with the digits.
        source: ParseHexError,
    },
    /// Not a whole number below 2^64.
    #[error("not a {id}: {text}: expected a decimal number from 0 to 18446744073709551615")]
    Decimal {
        /// What was being read.
        id: &'static str,
        /// What was seen.
        text: SeenText,
    },
}

macro_rules! u64_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Zero: not assigned yet.
            pub const UNASSIGNED: Self = Self(0);

            /// Wraps `value`; zero is [`UNASSIGNED`](Self::UNASSIGNED).
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The number inside.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// Whether this is zero.
            pub const fn is_unassigned(self) -> bool {
                self.0 == 0
            }
        }

        impl From<u64> for $name {
            fn from(value: u64) -> Self {
                Self(value)
            }
        }

        impl From<$name> for u64 {
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl CanonicalBytes for $name {
            fn write_canonical(&self, sink: &mut impl CanonicalSink) {
                sink.u64(self.0);
            }
        }
    };
}

/// Fixed-width hex, so that text order is numeric order; any shorter hex number parses.
macro_rules! hex_text {
    ($name:ident, $word:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                hex::write(&self.0.to_be_bytes(), f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_hex_u64(text).map(Self).map_err(|source| ParseIdError::Hex {
                    id: $word,
                    text: SeenText::of(text),
                    source,
                })
            }
        }
    };
}

macro_rules! decimal_text {
    ($name:ident, $word:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                // `u64::from_str` would also take a leading plus sign.
                let digits_only = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                let number = digits_only.then(|| text.parse().ok()).flatten();
                number.map(Self).ok_or_else(|| ParseIdError::Decimal { id: $word, text: SeenText::of(text) })
            }
        }
    };
}

u64_newtype! {
    /// One sweep of one target.
    RunId
}
hex_text!(RunId, "run id");

u64_newtype! {
    /// Tells one creation of a run from an earlier or later run of the same id. Drawn at random by the creator.
    RunIncarnation
}
hex_text!(RunIncarnation, "run incarnation");

u64_newtype! {
    /// One key range of a run. Bit 63 tells those a split derived from those the caller named.
    ShardId
}
hex_text!(ShardId, "shard id");

u64_newtype! {
    /// A process, or part of one, that owns shards.
    WorkerId
}
hex_text!(WorkerId, "worker id");

u64_newtype! {
    /// The idempotency key of one operation, drawn at random by its caller.
    OpId
}
hex_text!(OpId, "operation id");

u64_newtype! {
    /// The fencing token of a shard: grows at every change of owner.
    FenceEpoch
}
decimal_text!(FenceEpoch, "fence epoch");

u64_newtype! {
    /// A point in time as the caller counts it; milliseconds since 1970 in production.
    LogicalTime
}
decimal_text!(LogicalTime, "logical time");

impl ShardId {
    /// Set in every id that a split derived, clear in every root.
    pub const DERIVED_BIT: u64 = 1 << 63;

    /// Whether a split made this shard.
    pub const fn is_derived(self) -> bool {
        self.0 & Self::DERIVED_BIT != 0
    }
}

impl FenceEpoch {
    /// The epoch of a shard before its first owner, which holds the next one.
    pub const INITIAL: Self = Self(1);

    /// The epoch of the next owner, or `None` after the last one.
    pub const fn next(self) -> Option<Self> {
        match self.0.checked_add(1) {
            Some(next) => Some(Self(next)),
            None => None,
        }
    }
}

impl LogicalTime {
    /// The end of time.
    pub const MAX: Self = Self(u64::MAX);

    /// `span` later, or the end of time.
    pub const fn saturating_add(self, span: u64) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// `span` later, or `None` past the end of time.
    pub const fn checked_add(self, span: u64) -> Option<Self> {
        match self.0.checked_add(span) {
            Some(later) => Some(Self(later)),
            None => None,
        }
    }

    /// How long from `earlier` to here; zero if it is not earlier.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Which shard of which run: unique within a tenant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardKey {
    /// The run.
    pub run: RunId,
    /// The shard within it.
    pub shard: ShardId,
}

impl ShardKey {
    /// Shard `shard` of run `run`.
    pub const fn new(run: RunId, shard: ShardId) -> Self {
        Self { run, shard }
    }
}

impl fmt::Display for ShardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.run, self.shard)
    }
}

impl fmt::Debug for ShardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardKey({self})")
    }
}

impl CanonicalBytes for ShardKey {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        self.run.write_canonical(sink);
        self.shard.write_canonical(sink);
    }
}

/// One ownership of a shard, over all runs that ever had the run's id. Fence epochs start anew in each incarnation, so a
/// fence epoch alone does not tell an ownership of today's run from one of a retired run.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShardEpoch {
    /// Which creation of the run.
    pub incarnation: RunIncarnation,
    /// Which ownership of the shard within it.
    pub fence: FenceEpoch,
}

impl ShardEpoch {
    /// Fence epoch `fence` of incarnation `incarnation`.
    pub const fn new(incarnation: RunIncarnation, fence: FenceEpoch) -> Self {
        Self { incarnation, fence }
    }
}

impl fmt::Display for ShardEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.incarnation, self.fence)
    }
}

impl fmt::Debug for ShardEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardEpoch({self})")
    }
}

impl CanonicalBytes for ShardEpoch {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        self.incarnation.write_canonical(sink);
        self.fence.write_canonical(sink);
    }
}

const _: () = assert!(size_of::<TenantId>() == 32);
const _: () = assert!(size_of::<ShardKey>() == 16);

/// Reads 1 to 16 hex digits.
fn parse_hex_u64(text: &str) -> Result<u64, ParseHexError> {
    if text.is_empty() || text.len() > 16 {
        return Err(ParseHexError::Digits { max: 16, seen: text.len() });
    }
    text.bytes().enumerate().try_fold(0, |value, (at, digit)| {
        hex::nibble(digit).map(|nibble| value << 4 | u64::from(nibble)).ok_or(ParseHexError::Digit { at })
    })
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::{String, ToString};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zero_is_unassigned_and_one_is_not() {
        assert!(RunId::new(0).is_unassigned());
        assert!(!RunId::new(1).is_unassigned());
        assert!(TenantId::from_bytes([0; 32]).is_unassigned());
        let mut bytes = [0; 32];
        bytes[31] = 1;
        assert!(!TenantId::from_bytes(bytes).is_unassigned());
    }

    #[test]
    fn only_bit_63_marks_a_derived_shard() {
        assert!(!ShardId::new((1 << 63) - 1).is_derived());
        assert!(ShardId::new(1 << 63).is_derived());
    }

    #[test]
    fn first_owner_holds_epoch_two_and_the_last_epoch_has_no_next() {
        assert_eq!(FenceEpoch::INITIAL.next(), Some(FenceEpoch::new(2)));
        assert_eq!(FenceEpoch::new(u64::MAX - 1).next(), Some(FenceEpoch::new(u64::MAX)));
        assert_eq!(FenceEpoch::new(u64::MAX).next(), None);
    }

    #[test]
    fn time_stops_at_its_end() {
        assert_eq!(LogicalTime::new(u64::MAX - 1).saturating_add(5), LogicalTime::MAX);
        assert_eq!(LogicalTime::new(u64::MAX - 1).checked_add(2), None);
        assert_eq!(LogicalTime::new(5).since(LogicalTime::new(9)), 0);
        assert_eq!(LogicalTime::new(9).since(LogicalTime::new(5)), 4);
    }

    #[test]
    fn ids_print_as_they_parse() {
        let shard = ShardId::new(0x8000_0000_0000_00ab);
        assert_eq!(shard.to_string(), "80000000000000ab");
        assert_eq!("80000000000000ab".parse(), Ok(shard));
        assert_eq!("AB".parse(), Ok(ShardId::new(0xab)));
        assert_eq!(FenceEpoch::new(17).to_string(), "17");
        assert_eq!("17".parse(), Ok(FenceEpoch::new(17)));
        let tenant = TenantId::from_name("acme");
        assert_eq!(tenant.to_string().parse(), Ok(tenant));
        assert_eq!(format!("{:?}", RunId::new(10)), "RunId(000000000000000a)");
        let incarnation = RunIncarnation::new(0xbeef);
        assert_eq!(incarnation.to_string().parse(), Ok(incarnation));
        assert_eq!(format!("{:?}", ShardEpoch::new(incarnation, FenceEpoch::new(2))), "ShardEpoch(000000000000beef/2)");
    }

    #[test]
    fn text_that_is_no_id_is_refused_with_its_reason() {
        assert!("".parse::<RunId>().is_err());
        assert!("00000000000000000".parse::<RunId>().is_err());
        assert!("0x1".parse::<RunId>().is_err());
        assert!("+1".parse::<FenceEpoch>().is_err());
        assert!("".parse::<FenceEpoch>().is_err());
        assert!("18446744073709551616".parse::<FenceEpoch>().is_err());
        assert_eq!(
            "12z4".parse::<RunId>().unwrap_err().to_string(),
            "not a run id: \"12z4\": character at byte 2 is not a hex digit"
        );
        assert_eq!(
            "00000000000000000".parse::<RunId>().unwrap_err().to_string(),
            "not a run id: \"00000000000000000\": expected 1 to 16 hex digits, got 17 characters"
        );
        assert_eq!(
            "ab".parse::<TenantId>().unwrap_err().to_string(),
            "not a tenant id: \"ab\": expected 64 hex digits, got 2 characters"
        );
        assert_eq!(
            "+1".parse::<FenceEpoch>().unwrap_err().to_string(),
            "not a fence epoch: \"+1\": expected a decimal number from 0 to 18446744073709551615"
        );
    }

    proptest! {
        #[test]
        fn every_id_survives_its_text(number: u64, bytes: [u8; 32]) {
            prop_assert_eq!(ShardId::new(number).to_string().parse(), Ok(ShardId::new(number)));
            prop_assert_eq!(LogicalTime::new(number).to_string().parse(), Ok(LogicalTime::new(number)));
            prop_assert_eq!(TenantId::from_bytes(bytes).to_string().parse(), Ok(TenantId::from_bytes(bytes)));
        }

        #[test]
        fn text_order_of_ids_is_their_order(a: u64, b: u64) {
            prop_assert_eq!(RunId::new(a).to_string().cmp(&RunId::new(b).to_string()), a.cmp(&b));
        }

        /// Against the standard library, which takes a sign where we do not.
        #[test]
        fn any_text_is_an_id_or_an_error(text in prop_oneof![any::<String>(), "[0-9a-fA-FxX+-]{0,20}", "[0-9a-f]{64}"]) {
            let is_signed = text.starts_with(['+', '-']);
            let hex = u64::from_str_radix(&text, 16).ok().filter(|_| !is_signed && text.len() <= 16);
            prop_assert_eq!(text.parse::<RunId>().ok().map(RunId::get), hex);
            let decimal = text.parse().ok().filter(|_| !is_signed);
            prop_assert_eq!(text.parse::<FenceEpoch>().ok().map(FenceEpoch::get), decimal);
            let is_tenant = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            prop_assert_eq!(text.parse::<TenantId>().is_ok(), is_tenant);
        }
    }
}
