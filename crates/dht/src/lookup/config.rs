//! How a lookup behaves, and what it is after.

/// How lookups behave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LookupConfig {
    /// How many of the nearest must have answered.
    pub k: usize,
    /// Requests in flight to begin with, and when all goes well.
    pub alpha_min: usize,
    /// Requests in flight when answers stay away.
    pub alpha_max: usize,
    /// When a lookup is stopped, whatever it has found.
    pub budget_ms: u64,
    /// Requests one lookup may send.
    pub requests_max: u16,
    /// Candidates of one address prefix in the frontier.
    pub per_prefix_max: usize,
    /// Candidates that come into view because one node named them.
    pub per_namer_max: usize,
    /// Of a full frontier, those that were silent make room first, and no hearsay displaces a holder that answered.
    pub evict_silent_first: bool,
    /// A node that named more silent contacts than live ones is not believed about the others.
    pub doubt_namers: bool,
    /// Paths that share no node; one is ordinary Kademlia.
    pub paths: usize,
    /// Widen the end of a lookup to the radius in which K nodes are expected.
    pub widen: bool,
    /// A lookup that ends inconclusively, and a write that meets a crowd, go on from a random point of the region.
    pub retry_by_region: bool,
    /// Pause before a silent peer is asked once more.
    pub retry_cooldown_ms: u64,
    /// Peers that must agree on the highest sequence before a mutable lookup may end early.
    pub sequence_quorum: usize,
}

impl Default for LookupConfig {
    fn default() -> Self {
        Self {
            k: 20,
            alpha_min: 3,
            alpha_max: 8,
            budget_ms: 2000,
            requests_max: 128,
            per_prefix_max: 2,
            per_namer_max: 8,
            evict_silent_first: true,
            doubt_namers: true,
            paths: 1,
            widen: true,
            retry_by_region: true,
            retry_cooldown_ms: 100,
            sequence_quorum: 7,
        }
    }
}

/// What a lookup is after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The nodes nearest to the target.
    Nodes,
    /// The immutable record: the first valid one ends the lookup.
    Immutable,
    /// The mutable record with the highest sequence number.
    Mutable {
        /// Sequence numbers below it are of no interest.
        sequence_min: u64,
    },
    /// Providers, up to a number.
    Providers {
        /// How many are enough.
        limit: usize,
    },
}
