//! What this lane keeps for others: records by content id, and providers by content id.
//!
//! Both stores are capped in bytes or entries, in all and per giver, and expire on a timing wheel. Both are asked only
//! after a record has been judged valid. When full, both follow one rule, so that filling a store with far-away ids
//! cannot push out what this node is responsible for:
//!
//! 1. what only was cached goes first, the least recently used before others;
//! 2. then, of a few entries drawn at random, the one farthest from our own id goes, if the newcomer is nearer;
//! 3. otherwise the newcomer is refused.
//!
//! A random few instead of all, because work per request is bounded too.

pub mod providers;
pub mod records;

/// How many entries are drawn when a full store looks for one to give up.
pub(crate) const EVICTION_SAMPLE: usize = 16;

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
    /// The store is full of nearer things.
    Full,
    /// The log did not take it.
    NotLogged,
}
