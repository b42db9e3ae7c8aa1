//! Who asks too much, and who misbehaves.
//!
//! Two limits meet each request: one for the peer's key, one for its address prefix, so that neither many keys on one
//! network nor one key on many addresses gets more than its share. Each lane holds its share of the node's limit. Replies
//! to our own questions never pass here: a flood of others' requests must not cut us off from our own answers.
//!
//! Misbehaviour is scored: every offence adds its weight, and the sum halves with time. Above a threshold the peer is in
//! quarantine: not served, not asked, not in the table; it leaves by itself as the sum decays. What other lanes say about
//! a peer counts, but at most half of what quarantine needs: hearsay alone bans nobody.

use core::num::{NonZeroU32, NonZeroU64};

use tessera_stdx::{Ewma, Rate, TakeRefused, TokenBucket, TokenLevel};

use crate::addr::AddrPrefix;
use crate::identity::PublicKey;
use crate::keyed_lru::{FIRST_ENTRIES, KeyedLru, Mark, sum};
use crate::rng::LaneRng;

/// Limits of a whole node, and bounds of one lane's memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AbuseLimits {
    /// Cost units a peer may spend per second; a read costs one, a write [`WRITE_COST`].
    pub per_peer_per_sec: u32,
    /// The same for all peers of an address prefix together.
    pub per_prefix_per_sec: u32,
    /// Seconds' worth of units that may be spent at once.
    pub burst_secs: u32,
    /// First contacts of unknown keys per second and prefix.
    pub strangers_per_prefix_per_sec: u32,
    /// Peers and prefixes remembered by one lane.
    pub remembered_max: usize,
    /// Half-life of scores.
    pub score_half_life_ms: u64,
}

impl Default for AbuseLimits {
    fn default() -> Self {
        Self {
            per_peer_per_sec: 400,
            per_prefix_per_sec: 2000,
            burst_secs: 2,
            strangers_per_prefix_per_sec: 100,
            remembered_max: 4096,
            score_half_life_ms: 10 * 60 * 1000,
        }
    }
}

/// Address prefixes for which room is reserved: nodes of a small network often share a few.
const FIRST_PREFIXES: usize = 16;

/// What a write costs, in reads.
pub const WRITE_COST: u32 = 4;

/// The score at which a peer is in quarantine.
pub const QUARANTINE_SCORE: f64 = 10.0;

/// How much of [`QUARANTINE_SCORE`] hearsay can make up.
pub const HEARSAY_SCORE_MAX: f64 = QUARANTINE_SCORE / 2.0;

/// What a peer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offence {
    /// Sealed well, shaped badly.
    Malformed,
    /// Returned or stored a record or provider that does not hold.
    InvalidRecord,
    /// Stored a second value under one sequence number.
    Equivocation,
    /// Went on asking well above its limit.
    Flood,
    /// Wrote with a token that was never issued.
    BadToken,
}

impl Offence {
    fn weight(self) -> f64 {
        match self {
            Self::Malformed => 2.0,
            Self::InvalidRecord => 5.0,
            Self::Equivocation => 3.0,
            Self::Flood => 0.05,
            Self::BadToken => 0.5,
        }
    }
}

/// Why a request does not pass now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limited {
    /// After how many milliseconds to ask again.
    pub retry_after_ms: u32,
    /// Whether the peer itself has asked too much. Else all of its address prefix together have, and anybody can seem to be one of them.
    pub by_peer: bool,
}

#[derive(Debug)]
struct Score {
    own: Ewma,
    hearsay: Ewma,
}

/// Limits and scores of one lane.
#[derive(Debug)]
pub struct Abuse {
    limits: AbuseLimits,
    lanes: u32,
    /// By mark: two that were mistaken for one would share a limit.
    peers: KeyedLru<Mark, TokenLevel>,
    peer_seeds: [u64; 2],
    prefixes: KeyedLru<u64, TokenBucket>,
    strangers: KeyedLru<u64, TokenBucket>,
    scores: KeyedLru<PublicKey, Score>,
}

impl Abuse {
    /// Limits for one of `lanes` lanes.
    #[must_use]
    pub fn new(limits: AbuseLimits, lanes: usize, rng: &mut LaneRng) -> Self {
        let remembered_max = limits.remembered_max;
        Self {
            limits,
            lanes: (lanes as u32).max(1),
            peers: KeyedLru::with_room(FIRST_ENTRIES, remembered_max, rng.u64()),
            peer_seeds: [rng.u64(), rng.u64()],
            prefixes: KeyedLru::with_room(FIRST_PREFIXES, remembered_max, rng.u64()),
            strangers: KeyedLru::with_room(FIRST_PREFIXES, remembered_max, rng.u64()),
            scores: KeyedLru::new(remembered_max, rng.u64()),
        }
    }

    /// Takes all memory that may ever be needed.
    pub(crate) fn reserve_all(&mut self) {
        self.peers.reserve_all();
        self.prefixes.reserve_all();
        self.strangers.reserve_all();
        self.scores.reserve_all();
    }

    /// Bytes in use and bytes reserved.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        sum([self.peers.bytes(), self.prefixes.bytes(), self.strangers.bytes(), self.scores.bytes()])
    }

    /// The number of lanes changed, and with it this lane's share: that of a peer now, others as buckets are made anew.
    pub fn set_lanes(&mut self, lanes: usize) {
        self.lanes = (lanes as u32).max(1);
    }

    /// Lets a request pass, or says when to ask again.
    pub fn admit(&mut self, now_ms: u64, peer: &PublicKey, prefix: AddrPrefix, cost: u32) -> Result<(), Limited> {
        let (per_peer, per_prefix) =
            (self.share(self.limits.per_peer_per_sec), self.share(self.limits.per_prefix_per_sec));
        let burst_of = |per_sec: u32| per_sec.saturating_mul(self.limits.burst_secs.max(1));
        let (rate, burst) = (per_second(per_peer), burst_of(per_peer).max(WRITE_COST));
        let peer = Mark::of(&self.peer_seeds, peer);
        let level = self.peers.get_or_insert_with(peer, || TokenLevel::full(rate, burst, now_ms));
        let limited = |by_peer| move |refused| Limited { retry_after_ms: retry_after(refused), by_peer };
        level.take(rate, burst, now_ms, cost).map_err(limited(true))?;
        let by_prefix = || bucket(per_prefix, burst_of(per_prefix), now_ms);
        self.prefixes.get_or_insert_with(prefix.0, by_prefix).take(now_ms, cost).map_err(limited(false))
    }

    /// Lets an unknown key of `prefix` cost us an agreement, or not.
    pub fn admit_stranger(&mut self, now_ms: u64, prefix: AddrPrefix) -> bool {
        let per_sec = self.share(self.limits.strangers_per_prefix_per_sec);
        self.strangers.get_or_insert_with(prefix.0, || bucket(per_sec, per_sec, now_ms)).take(now_ms, 1).is_ok()
    }

    /// Scores an offence. Returns the peer's own score if it has just come into quarantine: worth telling the other lanes.
    pub fn offence(&mut self, now_ms: u64, peer: &PublicKey, offence: Offence) -> Option<f64> {
        let before = self.is_quarantined(now_ms, peer);
        let score = self.score_of(peer);
        score.own.record(now_ms, offence.weight());
        let own = score.own.sum_at(now_ms);
        (!before && self.is_quarantined(now_ms, peer)).then_some(own)
    }

    /// Another lane has scored this peer.
    pub fn hearsay(&mut self, now_ms: u64, peer: &PublicKey, heard: f64) {
        if heard.is_finite() && heard > 0.0 {
            let score = self.score_of(peer);
            let room = (HEARSAY_SCORE_MAX - score.hearsay.sum_at(now_ms)).max(0.0);
            score.hearsay.record(now_ms, heard.min(room));
        }
    }

    /// Whether the peer is to be neither served nor asked.
    #[must_use]
    pub fn is_quarantined(&self, now_ms: u64, peer: &PublicKey) -> bool {
        self.scores.peek(peer).is_some_and(|score| {
            let hearsay = score.hearsay.sum_at(now_ms).min(HEARSAY_SCORE_MAX);
            score.own.sum_at(now_ms) + hearsay >= QUARANTINE_SCORE && score.own.sum_at(now_ms) > 0.0
        })
    }

    fn share(&self, of_node: u32) -> u32 {
        of_node.div_ceil(self.lanes).max(1)
    }

    fn score_of(&mut self, peer: &PublicKey) -> &mut Score {
        let half_life = NonZeroU64::new(self.limits.score_half_life_ms).unwrap_or(NonZeroU64::MIN);
        self.scores.get_or_insert_with(*peer, || Score { own: Ewma::new(half_life), hearsay: Ewma::new(half_life) })
    }
}

fn bucket(per_sec: u32, burst: u32, now_ms: u64) -> TokenBucket {
    TokenBucket::full(per_second(per_sec), burst.max(WRITE_COST), now_ms)
}

fn per_second(tokens: u32) -> Rate {
    Rate { tokens, ticks: const { NonZeroU32::new(1000).expect("a thousand is not zero") } }
}

fn retry_after(refused: TakeRefused) -> u32 {
    match refused {
        TakeRefused::RetryAfter { ticks } => u32::try_from(ticks).unwrap_or(u32::MAX),
        TakeRefused::Never { .. } => u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn abuse(lanes: usize) -> Abuse {
        let limits = AbuseLimits {
            per_peer_per_sec: 10,
            per_prefix_per_sec: 20,
            burst_secs: 1,
            strangers_per_prefix_per_sec: 3,
            ..AbuseLimits::default()
        };
        Abuse::new(limits, lanes, &mut LaneRng::new([1; 32]))
    }

    const NET: AddrPrefix = AddrPrefix(1);

    fn admitted(abuse: &mut Abuse, peer: u8, prefix: AddrPrefix) -> usize {
        (0..100).filter(|_| abuse.admit(0, &PublicKey([peer; 32]), prefix, 1).is_ok()).count()
    }

    #[test]
    fn a_peer_has_its_limit_and_a_prefix_has_one_for_all_its_peers() {
        let mut abuse = abuse(1);
        let by_peer: usize = admitted(&mut abuse, 1, NET);
        assert_eq!(by_peer, 10);
        assert_eq!(admitted(&mut abuse, 2, NET), 10);
        assert_eq!(admitted(&mut abuse, 3, NET), 0, "the prefix is spent");
        assert_eq!(admitted(&mut abuse, 4, AddrPrefix(2)), 10, "another prefix is not");
        let limited = |by_peer, retry_after_ms| Err(Limited { retry_after_ms, by_peer });
        assert_eq!(abuse.admit(0, &PublicKey([1; 32]), NET, 1), limited(true, 100));
        assert_eq!(abuse.admit(0, &PublicKey([5; 32]), NET, 1), limited(false, 50));
        assert_eq!(abuse.admit(100, &PublicKey([1; 32]), NET, 1), Ok(()));
    }

    #[test]
    fn lanes_share_the_nodes_limit_instead_of_multiplying_it() {
        let total: usize = (0..5).map(|_| admitted(&mut abuse(5), 1, NET)).sum();
        assert!((10..=20).contains(&total), "{total} for a limit of 10, writes of {WRITE_COST} must stay possible");
    }

    #[test]
    fn a_peers_share_follows_the_number_of_lanes() {
        let mut abuse = abuse(1);
        assert_eq!(abuse.admit(0, &PublicKey([1; 32]), NET, 1), Ok(()));
        abuse.set_lanes(2);
        assert_eq!(admitted(&mut abuse, 1, NET), 5, "of ten a second for all lanes");
    }

    #[test]
    fn strangers_of_one_prefix_are_limited_apart() {
        let mut abuse = abuse(1);
        assert_eq!((0..10).filter(|_| abuse.admit_stranger(0, NET)).count(), 4);
        assert!(abuse.admit_stranger(0, AddrPrefix(2)));
    }

    #[test]
    fn offences_add_up_to_quarantine_and_time_heals() {
        let mut abuse = abuse(1);
        let peer = PublicKey([1; 32]);
        assert_eq!(abuse.offence(0, &peer, Offence::InvalidRecord), None);
        assert!(!abuse.is_quarantined(0, &peer));
        assert!(abuse.offence(0, &peer, Offence::InvalidRecord).is_some());
        assert_eq!(abuse.offence(0, &peer, Offence::InvalidRecord), None, "told once");
        assert!(abuse.is_quarantined(0, &peer));
        assert!(!abuse.is_quarantined(10 * 60 * 1000, &peer));
    }

    #[test]
    fn hearsay_alone_bans_nobody_and_tips_the_scale_for_offenders() {
        let mut abuse = abuse(1);
        let peer = PublicKey([1; 32]);
        for _ in 0..100 {
            abuse.hearsay(0, &peer, 1e9);
        }
        assert!(!abuse.is_quarantined(0, &peer));
        abuse.offence(0, &peer, Offence::Malformed);
        assert!(!abuse.is_quarantined(0, &peer), "2 of its own and 5 of hearsay");
        abuse.offence(0, &peer, Offence::Malformed);
        abuse.offence(0, &peer, Offence::Malformed);
        assert!(abuse.is_quarantined(0, &peer), "6 and 5");
    }
}
