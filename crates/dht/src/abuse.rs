//! Rate limits on requests, and scores of misbehaviour.
//!
//! Two limits meet each request of a proven address: one for the peer's key, one for its address prefix, so that neither many keys on one
//! network nor one key on many addresses gets more than its share. Each lane holds its share of the node's limit. Replies
//! to our own questions never pass here: a flood of others' requests must not cut us off from our own answers.
//!
//! Addresses that are not proven share limits of their own, one for all of them: a source address can be made up, so a limit by prefix would be
//! spent by a spoofer for others, and a memory by key would be filled. Above that limit they are told to come with a cookie, which costs them a
//! round trip and this node no state.
//!
//! Misbehaviour is scored: every offence adds its weight, and the sum halves with time. Above a threshold the peer is in
//! quarantine: not served, not asked, not in the table; it leaves by itself as the sum decays. What other lanes say about
//! a peer counts, but at most half of the threshold: hearsay alone bans no peer.

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
    /// The same for all peers together whose address is not proven. Above it they are answered COOKIE_REQUIRED.
    pub unproven_per_sec: u32,
    /// Seconds' worth of units that may be spent at once.
    pub burst_secs: u32,
    /// First contacts of unknown keys at proven addresses, per second and prefix. Above it they are not answered.
    pub strangers_per_prefix_per_sec: u32,
    /// First contacts of unknown keys without a cookie, per second, all together. Above it strangers are sent a cookie in place of a key
    /// agreement.
    pub unproven_strangers_per_sec: u32,
    /// Cookies sent to strangers per second. Above it they are not answered.
    pub challenges_per_sec: u32,
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
            unproven_per_sec: 2000,
            burst_secs: 2,
            strangers_per_prefix_per_sec: 100,
            // 100 agreements of 65 us are 0.7 % of a core, and a newcomer then needs no second round trip.
            unproven_strangers_per_sec: 100,
            // A keyed hash and a datagram of 100 bytes each: about a fifth of a core, and 80 Mbit/s.
            challenges_per_sec: 100_000,
            remembered_max: 4096,
            score_half_life_ms: 10 * 60 * 1000,
        }
    }
}

/// Address prefixes for which room is reserved: nodes of a small network often share a few.
const FIRST_PREFIXES: usize = 16;

/// The cost of a write, in reads.
pub const WRITE_COST: u32 = 4;

/// The score at which a peer is in quarantine.
pub const QUARANTINE_SCORE: f64 = 10.0;

/// How much of [`QUARANTINE_SCORE`] hearsay can make up.
pub const HEARSAY_SCORE_MAX: f64 = QUARANTINE_SCORE / 2.0;

/// An offence of a peer.
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
    /// Whose limit it is.
    pub limit: LimitOf,
}

/// Whose limit a request is above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitOf {
    /// The peer's own: it is to blame.
    Peer,
    /// That of its address prefix: others may be to blame.
    Prefix,
    /// That of all addresses that are not proven: with a cookie it passes.
    Unproven,
}

/// The verdict on a stranger's first datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stranger {
    /// It may cost a key agreement.
    Admitted,
    /// It is sent a cookie to come again with.
    Challenged,
    /// It is not answered.
    Refused,
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
    unproven: TokenBucket,
    unproven_strangers: TokenBucket,
    challenges: TokenBucket,
    scores: KeyedLru<PublicKey, Score>,
}

impl Abuse {
    /// Limits for one of `lanes` lanes.
    #[must_use]
    pub fn new(limits: AbuseLimits, lanes: usize, rng: &mut LaneRng) -> Self {
        let remembered_max = limits.remembered_max;
        let lanes = (lanes as u32).max(1);
        let [unproven, unproven_strangers, challenges] = unproven_buckets(&limits, lanes);
        Self {
            limits,
            lanes,
            unproven,
            unproven_strangers,
            challenges,
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
        [self.unproven, self.unproven_strangers, self.challenges] = unproven_buckets(&self.limits, self.lanes);
    }

    /// Lets a request of an address that is not proven pass, or says that it needs a cookie.
    pub fn admit_unproven(&mut self, now_ms: u64, cost: u32) -> Result<(), Limited> {
        self.unproven.take(now_ms, cost).map_err(|_| Limited { retry_after_ms: 0, limit: LimitOf::Unproven })
    }

    /// Lets a request of a proven address pass, or says when to ask again.
    pub fn admit(&mut self, now_ms: u64, peer: &PublicKey, prefix: AddrPrefix, cost: u32) -> Result<(), Limited> {
        let (per_peer, per_prefix) =
            (self.share(self.limits.per_peer_per_sec), self.share(self.limits.per_prefix_per_sec));
        let burst_of = |per_sec: u32| per_sec.saturating_mul(self.limits.burst_secs.max(1));
        let (rate, burst) = (per_second(per_peer), burst_of(per_peer).max(WRITE_COST));
        let peer = Mark::of(&self.peer_seeds, peer);
        let level = self.peers.get_or_insert_with(peer, || TokenLevel::full(rate, burst, now_ms));
        let limited = |limit| move |refused| Limited { retry_after_ms: retry_after(refused), limit };
        level.take(rate, burst, now_ms, cost).map_err(limited(LimitOf::Peer))?;
        let by_prefix = || bucket(per_prefix, burst_of(per_prefix), now_ms);
        self.prefixes.get_or_insert_with(prefix.0, by_prefix).take(now_ms, cost).map_err(limited(LimitOf::Prefix))
    }

    /// Whether an unknown key without a cookie may cost an agreement, or is to be sent a cookie.
    pub fn admit_unproven_stranger(&mut self, now_ms: u64) -> Stranger {
        if self.unproven_strangers.take(now_ms, 1).is_ok() {
            Stranger::Admitted
        } else if self.challenges.take(now_ms, 1).is_ok() {
            Stranger::Challenged
        } else {
            Stranger::Refused
        }
    }

    /// Lets an unknown key at a proven address of `prefix` cost us an agreement, or not.
    pub fn admit_stranger(&mut self, now_ms: u64, prefix: AddrPrefix) -> bool {
        let per_sec = self.share(self.limits.strangers_per_prefix_per_sec);
        self.strangers.get_or_insert_with(prefix.0, || bucket(per_sec, per_sec, now_ms)).take(now_ms, 1).is_ok()
    }

    /// Scores an offence. Returns the peer's own score if it has just come into quarantine: worth telling the other lanes.
    pub fn offence(&mut self, now_ms: u64, peer: &PublicKey, offence: Offence) -> Option<f64> {
        let before = self.is_quarantined(now_ms, peer);
        if !self.may_score(now_ms, peer) {
            return None;
        }
        let score = self.score_of(peer);
        score.own.record(now_ms, offence.weight());
        let own = score.own.sum_at(now_ms);
        (!before && self.is_quarantined(now_ms, peer)).then_some(own)
    }

    /// Another lane has scored this peer.
    pub fn hearsay(&mut self, now_ms: u64, peer: &PublicKey, heard: f64) {
        if heard.is_finite() && heard > 0.0 && self.may_score(now_ms, peer) {
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

    /// Whether a score may be noted. Keys cost nothing: with many of them a peer could have its own score forgotten, so a peer in
    /// quarantine is not displaced.
    fn may_score(&self, now_ms: u64, peer: &PublicKey) -> bool {
        self.scores.len() < self.scores.capacity()
            || self.scores.peek(peer).is_some()
            || self.scores.iter_oldest().next().is_none_or(|(oldest, _)| !self.is_quarantined(now_ms, oldest))
    }

    fn share(&self, of_node: u32) -> u32 {
        share(of_node, self.lanes)
    }

    fn score_of(&mut self, peer: &PublicKey) -> &mut Score {
        let half_life = NonZeroU64::new(self.limits.score_half_life_ms).unwrap_or(NonZeroU64::MIN);
        self.scores.get_or_insert_with(*peer, || Score { own: Ewma::new(half_life), hearsay: Ewma::new(half_life) })
    }
}

fn share(of_node: u32, lanes: u32) -> u32 {
    of_node.div_ceil(lanes).max(1)
}

/// The limits of unproven addresses, of unproven strangers and of challenges.
fn unproven_buckets(limits: &AbuseLimits, lanes: u32) -> [TokenBucket; 3] {
    let burst_secs = limits.burst_secs.max(1);
    let of =
        |per_sec, burst_secs: u32| bucket(share(per_sec, lanes), share(per_sec, lanes).saturating_mul(burst_secs), 0);
    [
        of(limits.unproven_per_sec, burst_secs),
        of(limits.unproven_strangers_per_sec, 1),
        of(limits.challenges_per_sec, 1),
    ]
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
        let limited = |limit, retry_after_ms| Err(Limited { retry_after_ms, limit });
        assert_eq!(abuse.admit(0, &PublicKey([1; 32]), NET, 1), limited(LimitOf::Peer, 100));
        assert_eq!(abuse.admit(0, &PublicKey([5; 32]), NET, 1), limited(LimitOf::Prefix, 50));
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
    fn unproven_addresses_share_a_limit_of_their_own() {
        let mut abuse = abuse(1);
        abuse.limits.unproven_per_sec = 5;
        abuse.set_lanes(1);
        assert_eq!((0..100).filter(|_| abuse.admit_unproven(0, 1).is_ok()).count(), 5);
        assert_eq!(abuse.admit_unproven(0, 1), Err(Limited { retry_after_ms: 0, limit: LimitOf::Unproven }));
        assert_eq!(admitted(&mut abuse, 1, NET), 10, "proven ones have theirs");
        assert_eq!(abuse.peers.len(), 1, "and nothing is remembered of the others");
    }

    #[test]
    fn strangers_without_a_cookie_are_admitted_then_challenged_then_refused() {
        let mut abuse = abuse(1);
        (abuse.limits.unproven_strangers_per_sec, abuse.limits.challenges_per_sec) = (5, 6);
        abuse.set_lanes(1);
        let became: alloc::vec::Vec<_> = (0..20).map(|_| abuse.admit_unproven_stranger(0)).collect();
        let count = |what| became.iter().filter(|became| **became == what).count();
        assert_eq!([Stranger::Admitted, Stranger::Challenged, Stranger::Refused].map(count), [5, 6, 9]);
        assert_eq!(abuse.admit_unproven_stranger(1000), Stranger::Admitted, "a second later");
    }

    #[test]
    fn many_new_offenders_do_not_free_one_from_quarantine() {
        let limits = AbuseLimits { remembered_max: 8, ..AbuseLimits::default() };
        let mut abuse = Abuse::new(limits, 1, &mut LaneRng::new([1; 32]));
        let banned = PublicKey([1; 32]);
        for _ in 0..2 {
            abuse.offence(0, &banned, Offence::InvalidRecord);
        }
        for n in 2..200 {
            abuse.offence(0, &PublicKey([n; 32]), Offence::Malformed);
        }
        assert!(abuse.is_quarantined(0, &banned));
        assert!(!abuse.is_quarantined(10 * 60 * 1000, &banned), "time heals");
        abuse.offence(10 * 60 * 1000, &PublicKey([250; 32]), Offence::Malformed);
        assert!(abuse.scores.peek(&PublicKey([250; 32])).is_some(), "and makes room");
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
    fn hearsay_alone_bans_no_peer_and_tips_the_scale_for_offenders() {
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
