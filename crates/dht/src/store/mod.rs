//! Records and providers that this lane keeps for others, by content id.
//!
//! Both stores are capped in bytes or entries, in all and per giver, and expire on a timing wheel. Both are asked only
//! after a record has been judged valid. When full, both follow one rule. Ids can be ground until they are as near to a node as
//! their maker likes, so distance alone must not decide; addresses are what an attacker has to pay for.
//!
//! 1. cached copies go first, the least recently used before others;
//! 2. then, of a few entries drawn at random, one of the [`Origin`] that has most in the store goes, if that has more than the newcomer's
//!    would have: the youngest of them;
//! 3. an origin that has most itself may only replace its own earlier records by records nearer to this node;
//! 4. otherwise the newcomer is refused.
//!
//! So an attacker that fills a store displaces its own records, and others always find room up to an equal share.
//! A random few instead of all, because work per request is bounded too.

pub mod providers;
pub mod records;

use tessera_contracts::point::Distance;

use crate::addr::Addr;
use crate::identity::PublicKey;
use crate::keyed_lru::KeyedLru;
use crate::rng::LaneRng;

/// How many entries are drawn when a full store looks for one to give up.
pub(crate) const EVICTION_SAMPLE: usize = 16;

/// The origin of a kept record: the address prefix of its giver, or in a private network, where a prefix says nothing, the giver's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(u64);

impl Origin {
    /// All givers as one.
    pub const ANY: Self = Self(0);

    /// The origin of what `key` gives from a proven address.
    #[must_use]
    pub fn of(key: &PublicKey, addr: &Addr) -> Self {
        let prefix = addr.prefix();
        if prefix.is_private() { Self::of_key(key) } else { Self(prefix.0) }
    }

    /// The origin of a giver whose address is not known any more.
    #[must_use]
    pub fn of_key(key: &PublicKey) -> Self {
        // No address prefix begins like this.
        let [a, b, c, d, e, f, ..] = key.0;
        Self(u64::from_be_bytes([1, 0, a, b, c, d, e, f]))
    }

    pub(crate) fn to_wire(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    pub(crate) fn from_wire(bytes: &[u8; 8]) -> Self {
        Self(u64::from_le_bytes(*bytes))
    }
}

/// The giver of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Giver {
    /// Its key.
    pub key: PublicKey,
    /// Under whose hand it counts.
    pub origin: Origin,
}

impl From<PublicKey> for Giver {
    fn from(key: PublicKey) -> Self {
        Self { key, origin: Origin::of_key(&key) }
    }
}

/// How much each origin has in a store; as many entries as the store has at most, so that none is forgotten.
#[derive(Debug)]
pub(crate) struct Shares(KeyedLru<u64, u32>);

impl Shares {
    pub(crate) fn new(entries_max: usize, rng: &mut LaneRng) -> Self {
        Self(KeyedLru::new(entries_max, rng.u64()))
    }

    pub(crate) fn reserve_all(&mut self) {
        self.0.reserve_all();
    }

    pub(crate) fn bytes(&self) -> (usize, usize) {
        self.0.bytes()
    }

    pub(crate) fn of(&self, origin: Origin) -> u32 {
        self.0.peek(&origin.0).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, origin: Origin, amount: u32) {
        *self.0.get_or_insert_with(origin.0, || 0) += amount;
    }

    pub(crate) fn take(&mut self, origin: Origin, amount: u32) {
        if let Some(held) = self.0.get(&origin.0) {
            *held = held.saturating_sub(amount);
            if *held == 0 {
                self.0.remove(&origin.0);
            }
        }
    }

    /// Which of a few entries makes way for `amount` of `origin` at `distance`: see the module.
    pub(crate) fn makes_way<T>(
        &self,
        (origin, amount, distance): (Origin, u32, Distance),
        sample: impl Iterator<Item = Candidate<T>>,
    ) -> Option<T> {
        let weight = |candidate: &Candidate<T>| self.of(candidate.origin);
        let heaviest = sample.max_by_key(|candidate| {
            // Of its own an origin replaces the farthest.
            let is_own = candidate.origin == origin;
            let farther = if is_own { Some(candidate.distance) } else { None };
            (weight(candidate), farther, candidate.since_ms)
        })?;
        let makes_way = if heaviest.origin == origin {
            distance < heaviest.distance
        } else {
            weight(&heaviest) > self.of(origin).saturating_add(amount)
        };
        makes_way.then_some(heaviest.entry)
    }
}

/// An entry that may make way.
pub(crate) struct Candidate<T> {
    pub(crate) entry: T,
    pub(crate) origin: Origin,
    pub(crate) since_ms: u64,
    pub(crate) distance: Distance,
}

/// Why something valid was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotKept {
    /// A higher sequence number is held.
    Stale {
        /// The one held.
        held: u64,
    },
    /// The same sequence number is held with another value: the owner signed two.
    Equivocation,
    /// The giver has had its share.
    GiverFull,
    /// The store is full, and no origin has more in it than the newcomer's would.
    Full,
    /// The log did not take it.
    NotLogged,
}
