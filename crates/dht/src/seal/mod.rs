//! Sealed datagrams without a handshake: any lane opens a peer's first datagram alone.
//!
//! Two static keys agree once (tens of microseconds) and the result is kept in a bounded LRU; each stream of datagrams
//! then has its own key ([`keys`]) and its own replay window ([`replay`]). An expanded key is half a kilobyte and is had
//! again in a third of a microsecond, so only those of the busiest streams are kept: of those that are met again among the
//! next few. A datagram changes nothing here before it has proved authentic, except that opening a stranger's may spend one
//! of the agreements the lane grants per second.
//!
//! What static keys cost: no forward secrecy, and who records traffic and later steals a key can read it. What the
//! bounded memory costs: when a stream is evicted or the node restarts its window is forgotten, and its datagrams of the
//! last two periods could be played again. Every request is therefore idempotent, writes need a token, and a replay from
//! another address lacks that address's cookie, so it draws no more bytes than it brings.

pub mod cookie;
pub mod keys;
pub mod replay;

use core::fmt;
use core::num::NonZeroU32;

use tessera_contracts::point::NodeId;
use tessera_stdx::{Rate, TokenBucket};

use crate::identity::{Crypto, PublicKey};
use crate::keyed_lru::{FIRST_ENTRIES, KeyedLru, LruKey, Mark, sum};
use crate::rng::LaneRng;
use crate::time::Now;
use crate::wire::codec::Malformed;
use crate::wire::header::{HEADER_BYTES, Header, Suite};
use crate::wire::message::Cookie;
use crate::wire::{BODY_BYTES_MAX, TAG_BYTES};
use cookie::NO_COOKIE;
use keys::{NetworkKey, PairRoot, StreamKey, period_accepted, period_at};
use replay::ReplayWindow;

/// Bounds of the sealing state of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealLimits {
    /// Peers whose agreement is remembered.
    pub agreements_max: usize,
    /// Streams whose replay window is remembered; a peer has one per lane it runs.
    pub streams_max: usize,
    /// Expanded keys kept, of both directions.
    pub keys_max: usize,
    /// Agreements with strangers per second: what a flood of new keys may cost this lane.
    pub stranger_agreements_per_sec: u32,
    /// How many of them at once.
    pub stranger_agreements_burst: u32,
}

impl Default for SealLimits {
    fn default() -> Self {
        // 1000 agreements of 65 us are 6.5 % of a core.
        Self {
            agreements_max: 4096,
            streams_max: 8192,
            keys_max: 16,
            stranger_agreements_per_sec: 1000,
            stranger_agreements_burst: 250,
        }
    }
}

/// Why a datagram was not opened. Nothing is ever answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenRefused {
    /// The header is none of ours.
    Header(Malformed),
    /// The key period is neither the current one nor its nearer neighbour.
    Period(u32),
    /// Our own datagram came back.
    Echo,
    /// The number was seen, or is too old to tell.
    Replayed,
    /// A stranger, and no agreement is granted right now.
    StrangerLimit,
    /// The sender's key agrees with nobody.
    UnusableKey,
    /// The tag does not fit: changed on the way, another network, or never authentic.
    Forged,
}

/// The body would not fit, or the receiver's key is unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealRefused {
    /// No room for header, body and tag.
    TooLong,
    /// The receiver's key agrees with nobody.
    UnusableKey,
}

impl fmt::Display for OpenRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(malformed) => write!(f, "header: {malformed}"),
            Self::Period(period) => write!(f, "key period {period} is not accepted now: compare the clocks"),
            Self::Echo => f.write_str("our own datagram came back"),
            Self::Replayed => f.write_str("replayed, or too far out of order"),
            Self::StrangerLimit => f.write_str("too many strangers at once"),
            Self::UnusableKey => f.write_str("the sender's key is unusable"),
            Self::Forged => f.write_str("not authentic in this network"),
        }
    }
}

impl core::error::Error for OpenRefused {}

/// What is remembered of a peer.
#[derive(Debug)]
struct Agreement {
    root: PairRoot,
    id: NodeId,
    /// Their cookie for our address, and the period in which it came.
    cookie: Cookie,
    cookie_period: u32,
}

/// The key of one stream in one period.
#[derive(Debug)]
struct PeriodKey {
    period: u32,
    suite: Suite,
    key: StreamKey,
}

/// A peer, and the incarnation of the lane of it that sends.
///
/// Streams are kept by their [`Mark`]: there are many, and this would be a third of what is kept of each. Two that were mistaken for
/// one would share a window, which refuses all that either has seen, and a key, with which nothing of the other opens: some
/// datagrams would be lost, and still none would pass twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StreamId(PublicKey, [u8; 16]);

impl LruKey for StreamId {
    fn mix(&self, seed: u64) -> u64 {
        let halves = self.1.as_chunks::<8>().0.iter();
        self.0.mix(halves.fold(seed, |seed, half| u64::from_le_bytes(*half).mix(seed)))
    }
}

/// Whose key: what a peer sends, or what is sent to it. A peer chooses its incarnation, and could choose ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyOf {
    From(Mark),
    To(PublicKey),
}

impl LruKey for KeyOf {
    fn mix(&self, seed: u64) -> u64 {
        match self {
            Self::From(stream) => stream.mix(seed),
            Self::To(peer) => peer.mix(!seed),
        }
    }
}

/// Seals and opens the datagrams of one lane.
#[derive(Debug)]
pub struct Sealer<C> {
    crypto: C,
    own: PublicKey,
    network: NetworkKey,
    suite: Suite,
    incarnation: [u8; 16],
    counter: u64,
    agreements: KeyedLru<PublicKey, Agreement>,
    streams: KeyedLru<Mark, ReplayWindow>,
    stream_seeds: [u64; 2],
    keys: KeyedLru<KeyOf, PeriodKey>,
    /// Hashes of the last few that were derived, to tell busy streams from those of one datagram.
    derived: [u64; DERIVED_REMEMBERED],
    derived_seed: u64,
    strangers: TokenBucket,
}

/// A stream whose key is derived twice among so many is worth a place for it.
const DERIVED_REMEMBERED: usize = 8;

impl<C: Crypto> Sealer<C> {
    /// A sealer for one start of one lane; `rng` gives it an incarnation of its own.
    pub fn new(crypto: C, network: NetworkKey, suite: Suite, limits: &SealLimits, rng: &mut LaneRng, now: Now) -> Self {
        let per_second = Rate {
            tokens: limits.stranger_agreements_per_sec,
            ticks: const { NonZeroU32::new(1000).expect("a thousand is not zero") },
        };
        Self {
            own: crypto.public_key(),
            crypto,
            network,
            suite,
            incarnation: rng.bytes(),
            counter: 0,
            agreements: KeyedLru::with_room(FIRST_ENTRIES, limits.agreements_max, rng.u64()),
            streams: KeyedLru::with_room(FIRST_ENTRIES, limits.streams_max, rng.u64()),
            stream_seeds: [rng.u64(), rng.u64()],
            keys: KeyedLru::with_room(FIRST_ENTRIES, limits.keys_max, rng.u64()),
            derived: [0; DERIVED_REMEMBERED],
            derived_seed: rng.u64(),
            strangers: TokenBucket::full(per_second, limits.stranger_agreements_burst, now.mono_ms),
        }
    }

    /// Takes all memory that may ever be needed.
    pub(crate) fn reserve_all(&mut self) {
        self.agreements.reserve_all();
        self.streams.reserve_all();
        self.keys.reserve_all();
    }

    /// The public-key operations of this node.
    pub fn crypto(&self) -> &C {
        &self.crypto
    }

    /// The network's key.
    pub fn network(&self) -> &NetworkKey {
        &self.network
    }

    /// Bytes of agreements, streams and keys, in use and reserved.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        sum([self.agreements.bytes(), self.streams.bytes(), self.keys.bytes()])
    }

    /// Peers and streams remembered: a bound to check.
    pub fn remembered(&self) -> (usize, usize) {
        (self.agreements.len(), self.streams.len())
    }

    /// Opens a datagram in place and returns its header and body.
    ///
    /// `admit_stranger` is asked before an agreement is computed for an unknown sender, in addition to this lane's limit.
    pub fn open<'a>(
        &mut self,
        now: Now,
        datagram: &'a mut [u8],
        admit_stranger: impl FnOnce() -> bool,
    ) -> Result<(Header, &'a mut [u8]), OpenRefused> {
        let header = Header::read(datagram).map_err(OpenRefused::Header)?;
        if header.sender == self.own {
            return Err(OpenRefused::Echo);
        }
        if !period_accepted(header.period, now.unix_secs()) {
            return Err(OpenRefused::Period(header.period));
        }
        let (clear, sealed) = datagram.split_at_mut(HEADER_BYTES);
        let stream = Mark::of(&self.stream_seeds, &StreamId(header.sender, header.incarnation));
        let Self { crypto, own, network, streams, keys, agreements, strangers, .. } = self;
        let window = streams.get_lazily(&stream);
        if window.as_ref().is_some_and(|window| !window.admits(header.counter)) {
            return Err(OpenRefused::Replayed);
        }
        let key_id = KeyOf::From(stream);
        let known = keys.get(&key_id);
        let known_period = known.as_ref().map(|known| known.period);
        let mut derived = None;
        let body = match known.filter(|known| (known.period, known.suite) == (header.period, header.suite)) {
            Some(known) => known.key.open(header.counter, clear, sealed).ok_or(OpenRefused::Forged)?,
            // A new stream, one long unheard of, or its next period: its key has to be derived from what the pair agreed.
            None => {
                let (key, agreed) = match agreements.get_lazily(&header.sender) {
                    Some(agreement) => (agreement.root.stream_key(&header), None),
                    None => {
                        if !admit_stranger() || strangers.take(now.mono_ms, 1).is_err() {
                            return Err(OpenRefused::StrangerLimit);
                        }
                        let agreed = agree(crypto, network, own, &header.sender).ok_or(OpenRefused::UnusableKey)?;
                        (agreed.root.stream_key(&header), Some(agreed))
                    }
                };
                let body = derived.insert(key).open(header.counter, clear, sealed).ok_or(OpenRefused::Forged)?;
                // Authentic. Only now may it displace what is remembered of others.
                if let Some(agreement) = agreed {
                    agreements.insert(header.sender, agreement);
                }
                body
            }
        };
        match window {
            Some(window) => window.record(header.counter),
            None => streams.get_or_insert_with(stream, ReplayWindow::default).record(header.counter),
        }
        // A straggler of the period before must not bring the old key back.
        if let Some(key) = derived
            && known_period.map_or_else(|| self.is_busy(&key_id), |period| header.period >= period)
        {
            self.keys.insert(key_id, PeriodKey { period: header.period, suite: header.suite, key });
        }
        Ok((header, body))
    }

    /// Seals the `body_len` bytes that the caller wrote at [`HEADER_BYTES`] of `datagram`, and returns the whole length.
    pub fn seal(
        &mut self,
        now: Now,
        to: &PublicKey,
        slot: u8,
        datagram: &mut [u8],
        body_len: usize,
    ) -> Result<usize, SealRefused> {
        let len = HEADER_BYTES + body_len + TAG_BYTES;
        if body_len > BODY_BYTES_MAX || datagram.len() < len {
            return Err(SealRefused::TooLong);
        }
        let header = Header {
            slot,
            suite: self.suite,
            period: period_at(now.unix_secs()),
            counter: self.counter,
            incarnation: self.incarnation,
            sender: self.own,
        };
        // Spent even if nothing were sent: numbers are plenty, repeats are fatal.
        self.counter += 1;
        let (clear, rest) = datagram.split_first_chunk_mut::<HEADER_BYTES>().expect("length checked above");
        header.write(clear);
        let (body, rest) = rest.split_at_mut(body_len);
        let Self { crypto, own, network, keys, agreements, .. } = self;
        let key_id = KeyOf::To(*to);
        let known = keys.get(&key_id);
        let is_kept = known.is_some();
        rest[..TAG_BYTES].copy_from_slice(&match known.filter(|known| known.period == header.period) {
            Some(known) => known.key.seal(header.counter, clear, body),
            None => {
                let key = match agreements.get_lazily(to) {
                    Some(agreement) => agreement.root.stream_key(&header),
                    None => {
                        let agreement = agree(crypto, network, own, to).ok_or(SealRefused::UnusableKey)?;
                        let key = agreement.root.stream_key(&header);
                        agreements.insert(*to, agreement);
                        key
                    }
                };
                let tag = key.seal(header.counter, clear, body);
                if is_kept || self.is_busy(&key_id) {
                    self.keys.insert(key_id, PeriodKey { period: header.period, suite: header.suite, key });
                }
                tag
            }
        });
        Ok(len)
    }

    /// Whether a stream had its key derived a moment ago too. Notes that it has.
    fn is_busy(&mut self, key: &KeyOf) -> bool {
        let mark = key.mix(self.derived_seed);
        let busy = self.derived.contains(&mark);
        if !busy {
            self.derived.rotate_right(1);
            self.derived[0] = mark;
        }
        busy
    }

    /// Whether anything can be sealed to this key at all: not all 32 bytes are a key.
    pub fn agrees_with(&self, key: &PublicKey) -> bool {
        self.agreements.peek(key).is_some() || self.crypto.agree(key).is_some()
    }

    /// The peer's node id, from memory if it is remembered.
    pub fn node_id(&self, key: &PublicKey) -> NodeId {
        self.agreements.peek(key).map_or_else(|| key.node_id(), |agreement| agreement.id)
    }

    /// Remembers the cookie a peer gave us.
    ///
    /// Says whether another one should have been good still: then the peer sees us at another address than before, and nothing is
    /// proven that we have shown it.
    pub fn keep_cookie(&mut self, now: Now, peer: &PublicKey, cookie: Cookie) -> bool {
        let Some(agreement) = self.agreements.get_lazily(peer) else { return false };
        let period = period_at(now.unix_secs());
        let before = core::mem::replace(&mut agreement.cookie, cookie);
        let was_good = core::mem::replace(&mut agreement.cookie_period, period) == period && before != NO_COOKIE;
        was_good && before != cookie
    }

    /// The peer's cookie for us if it is surely still good, else [`NO_COOKIE`]: then the request is to be padded.
    pub fn cookie_of(&self, now: Now, peer: &PublicKey) -> Cookie {
        let period = period_at(now.unix_secs());
        match self.agreements.peek(peer) {
            Some(agreement) if agreement.cookie_period == period => agreement.cookie,
            _ => NO_COOKIE,
        }
    }
}

fn agree(crypto: &impl Crypto, network: &NetworkKey, own: &PublicKey, peer: &PublicKey) -> Option<Agreement> {
    let secret = crypto.agree(peer)?;
    let root = PairRoot::derive(&secret, network, own, peer);
    Some(Agreement { root, id: peer.node_id(), cookie: NO_COOKIE, cookie_period: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use crate::wire::DATAGRAM_BYTES_MAX;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use keys::PERIOD_SECS;

    const T: Now = Now { mono_ms: 5_000, unix_ms: 1_700_000_100_000 };

    fn sealer_of(seed: u8, start: u8, network: &str, suite: Suite) -> Sealer<Identity> {
        sealer_with(seed, start, network, suite, SealLimits::default())
    }

    fn sealer_with(seed: u8, start: u8, network: &str, suite: Suite, limits: SealLimits) -> Sealer<Identity> {
        let identity = Identity::from_seed(&[seed; 32]);
        Sealer::new(identity, NetworkKey::of_name(network), suite, &limits, &mut LaneRng::new([start; 32]), T)
    }

    fn sealer(seed: u8) -> Sealer<Identity> {
        sealer_of(seed, seed, "net", Suite::Aes256Gcm)
    }

    fn sealed(from: &mut Sealer<Identity>, to: &Sealer<Identity>, now: Now, body: &[u8]) -> Vec<u8> {
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        datagram[HEADER_BYTES..][..body.len()].copy_from_slice(body);
        let len = from.seal(now, &to.own, 9, &mut datagram, body.len()).unwrap();
        datagram[..len].to_vec()
    }

    const BODY: [u8; 40] = [0x5a; 40];

    fn after(ms: u64) -> Now {
        Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms }
    }

    #[test]
    fn a_strangers_first_datagram_opens_in_either_suite() {
        for suite in [Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
            let (mut a, mut b) = (sealer_of(1, 1, "net", suite), sealer(2));
            let mut datagram = sealed(&mut a, &b, T, &BODY);
            let (header, body) = b.open(T, &mut datagram, || true).unwrap();
            assert_eq!((header.sender, header.slot, &*body), (a.own, 9, &BODY[..]));
        }
    }

    #[test]
    fn no_bit_can_be_changed() {
        let all_strangers = SealLimits { stranger_agreements_burst: 10_000, ..SealLimits::default() };
        let (mut a, mut b) = (sealer(1), sealer_with(2, 2, "net", Suite::Aes256Gcm, all_strangers));
        let original = sealed(&mut a, &b, T, &BODY);
        for bit in 0..original.len() * 8 {
            let mut datagram = original.clone();
            datagram[bit / 8] ^= 1 << (bit % 8);
            assert!(b.open(T, &mut datagram, || true).is_err(), "bit {bit}");
        }
        assert_eq!(b.remembered(), (0, 0), "nothing unauthentic is remembered");
        assert!(b.open(T, &mut original.clone(), || true).is_ok());
    }

    #[test]
    fn a_replay_is_refused_within_and_across_a_period() {
        let (mut a, mut b) = (sealer(1), sealer(2));
        let first = sealed(&mut a, &b, T, &BODY);
        assert!(b.open(T, &mut first.clone(), || true).is_ok());
        assert_eq!(b.open(T, &mut first.clone(), || true).unwrap_err(), OpenRefused::Replayed);
        let next_period = after(PERIOD_SECS * 1000);
        let second = sealed(&mut a, &b, next_period, &BODY);
        assert!(b.open(next_period, &mut second.clone(), || true).is_ok());
        assert!(b.open(next_period, &mut second.clone(), || true).is_err());
        assert!(b.open(T, &mut first.clone(), || true).is_err(), "the window survives the change of period");
    }

    #[test]
    fn a_straggler_of_the_last_period_opens_and_an_older_one_does_not() {
        let (mut a, mut b) = (sealer(1), sealer(2));
        let start = Now { mono_ms: 0, unix_ms: 1000 * PERIOD_SECS * 1000 };
        let old = sealed(&mut a, &b, start, &BODY);
        let late = sealed(&mut a, &b, start, &BODY);
        let next = Now { mono_ms: 0, unix_ms: 1001 * PERIOD_SECS * 1000 + 1 };
        let new = sealed(&mut a, &b, next, &BODY);
        assert!(b.open(next, &mut new.clone(), || true).is_ok());
        assert!(b.open(next, &mut old.clone(), || true).is_ok());
        let half_over = Now { mono_ms: 0, unix_ms: (1001 * PERIOD_SECS + PERIOD_SECS / 2) * 1000 };
        assert_eq!(b.open(half_over, &mut late.clone(), || true).unwrap_err(), OpenRefused::Period(1000));
    }

    #[test]
    fn a_straggler_does_not_bring_the_old_key_back() {
        let limits = SealLimits { agreements_max: 1, stranger_agreements_burst: 2, ..SealLimits::default() };
        let (mut a, mut b) = (sealer(1), sealer_with(2, 2, "net", Suite::Aes256Gcm, limits));
        let before = Now { mono_ms: T.mono_ms, unix_ms: 1000 * PERIOD_SECS * 1000 };
        let now = Now { unix_ms: 1001 * PERIOD_SECS * 1000 + 1, ..before };
        let straggler = sealed(&mut a, &b_key(), before, &BODY);
        // Two in a row: a busy stream, whose key is kept.
        let [first, second] = [(); 2].map(|()| sealed(&mut a, &b_key(), now, &BODY));
        for datagram in [first, second, straggler] {
            assert!(b.open(now, &mut datagram.clone(), || true).is_ok());
        }
        // Somebody else takes the only agreement remembered, and the last that is granted now: the stream's key is all
        // there is left to open the next datagram with.
        assert!(b.open(now, &mut sealed(&mut sealer(3), &b_key(), now, &BODY), || true).is_ok());
        assert!(b.open(now, &mut sealed(&mut a, &b_key(), now, &BODY), || true).is_ok());
    }

    #[test]
    fn networks_of_different_names_do_not_understand_each_other() {
        let (mut a, mut b) = (sealer(1), sealer_of(2, 2, "other", Suite::Aes256Gcm));
        let mut datagram = sealed(&mut a, &b, T, &BODY);
        assert_eq!(b.open(T, &mut datagram, || true).unwrap_err(), OpenRefused::Forged);
    }

    #[test]
    fn a_datagram_for_another_node_or_from_ourselves_is_refused() {
        let (mut a, b, mut c) = (sealer(1), sealer(2), sealer(3));
        let datagram = sealed(&mut a, &b, T, &BODY);
        assert_eq!(c.open(T, &mut datagram.clone(), || true).unwrap_err(), OpenRefused::Forged);
        assert_eq!(a.open(T, &mut datagram.clone(), || true).unwrap_err(), OpenRefused::Echo);
    }

    /// The pair (key, nonce) is fixed by (sender, receiver, period, incarnation, suite) and counter. Two lanes of one
    /// node, a restart, a clock that steps back over a period, and a peer forgotten and met again: all send to one peer.
    #[test]
    fn no_key_and_nonce_pair_repeats_across_lanes_restarts_clock_steps_and_evictions() {
        let tiny = SealLimits { agreements_max: 1, ..SealLimits::default() };
        let (b, c) = (sealer(2), sealer(3));
        let mut pairs = BTreeSet::new();
        let mut sent = 0;
        for start in [10, 11, 12] {
            let mut lane = sealer_with(1, start, "net", Suite::Aes256Gcm, tiny);
            for ms in [0, PERIOD_SECS * 1000, 0, 5, PERIOD_SECS * 1000] {
                for to in [&b, &c, &b] {
                    let header = Header::read(&sealed(&mut lane, to, after(ms), &BODY)).unwrap();
                    pairs.insert((to.own, header.period, header.incarnation, header.counter));
                    sent += 1;
                }
            }
        }
        assert_eq!(pairs.len(), sent);
    }

    #[test]
    fn strangers_spend_a_budget_and_known_peers_do_not() {
        let limits =
            SealLimits { stranger_agreements_per_sec: 1, stranger_agreements_burst: 2, ..SealLimits::default() };
        let mut b = sealer_with(2, 2, "net", Suite::Aes256Gcm, limits);
        let mut peers: Vec<_> = (10..13).map(sealer).collect();
        let results: Vec<_> = peers
            .iter_mut()
            .map(|peer| b.open(T, &mut sealed(peer, &b_key(), T, &BODY), || true).map(|_| ()))
            .collect();
        assert_eq!(results, [Ok(()), Ok(()), Err(OpenRefused::StrangerLimit)]);
        assert!(b.open(T, &mut sealed(&mut peers[0], &b_key(), T, &BODY), || true).is_ok(), "known");
        assert!(b.open(after(1000), &mut sealed(&mut peers[2], &b_key(), T, &BODY), || true).is_ok(), "refilled");
        let mut other = sealer(20);
        assert!(b.open(after(9000), &mut sealed(&mut other, &b_key(), T, &BODY), || false).is_err(), "not admitted");
    }

    fn b_key() -> Sealer<Identity> {
        sealer(2)
    }

    #[test]
    fn memory_stays_within_its_bounds() {
        let limits = SealLimits { agreements_max: 4, streams_max: 3, ..SealLimits::default() };
        let mut b = sealer_with(2, 2, "net", Suite::Aes256Gcm, limits);
        for seed in 10..30 {
            assert!(b.open(T, &mut sealed(&mut sealer(seed), &b_key(), T, &BODY), || true).is_ok());
            assert!(b.remembered().0 <= 4 && b.remembered().1 <= 3);
        }
    }

    #[test]
    fn more_streams_than_keys_are_kept_open_all_the_same_and_no_replay_passes() {
        let limits = SealLimits { keys_max: 1, ..SealLimits::default() };
        let mut b = sealer_with(2, 2, "net", Suite::Aes256Gcm, limits);
        let mut peers: Vec<_> = (10..14).map(sealer).collect();
        let mut seen = Vec::new();
        for _ in 0..3 {
            for peer in &mut peers {
                let datagram = sealed(peer, &b_key(), T, &BODY);
                assert_eq!(&*b.open(T, &mut datagram.clone(), || seen.len() < 4).unwrap().1, BODY);
                let answer = sealed(&mut b, peer, T, &BODY);
                assert_eq!(&*peer.open(T, &mut answer.clone(), || true).unwrap().1, BODY);
                seen.push(datagram);
                assert!(b.keys.len() <= 1);
            }
        }
        for datagram in &mut seen {
            assert_eq!(b.open(T, datagram, || true).unwrap_err(), OpenRefused::Replayed);
        }
    }

    #[test]
    fn a_peer_that_takes_our_incarnation_for_its_own_is_still_understood() {
        let [mut a, mut b] = [1, 2].map(|seed| sealer_of(seed, 5, "net", Suite::Aes256Gcm));
        assert_eq!(a.incarnation, b.incarnation);
        for _ in 0..4 {
            // One that starts anew knows no key yet: what comes must be sealed with that of its direction.
            let datagram = sealed(&mut a, &b_key(), T, &BODY);
            assert!(b_key().open(T, &mut datagram.clone(), || true).is_ok());
            assert!(b.open(T, &mut datagram.clone(), || true).is_ok());
            let answer = sealed(&mut b, &a, T, &BODY);
            assert!(a.open(T, &mut answer.clone(), || true).is_ok());
        }
    }

    #[test]
    fn the_key_of_a_stream_is_kept_once_it_is_met_again_among_few_others() {
        let mut b = sealer(2);
        let mut peers: Vec<_> = (10..10 + DERIVED_REMEMBERED as u8 + 1).map(sealer).collect();
        for _ in 0..3 {
            for peer in &mut peers {
                assert!(b.open(T, &mut sealed(peer, &b_key(), T, &BODY), || true).is_ok());
            }
        }
        assert_eq!(b.keys.len(), 0, "one more of them than are remembered, in turn");
        peers.pop();
        for peer in &mut peers {
            assert!(b.open(T, &mut sealed(peer, &b_key(), T, &BODY), || true).is_ok());
        }
        for peer in &mut peers {
            assert!(b.open(T, &mut sealed(peer, &b_key(), T, &BODY), || true).is_ok());
        }
        assert_eq!(b.keys.len(), DERIVED_REMEMBERED, "as many as are remembered, each met again");
        let answer = sealed(&mut b, &peers[0], T, &BODY);
        assert!(peers[0].open(T, &mut answer.clone(), || true).is_ok());
        sealed(&mut b, &peers[0], T, &BODY);
        assert_eq!(b.keys.len(), DERIVED_REMEMBERED + 1, "and that of what is sent");
    }

    #[test]
    fn a_cookie_is_used_in_the_period_it_came_in() {
        let (mut a, b) = (sealer(1), sealer(2));
        a.keep_cookie(T, &b.own, [7; 8]);
        assert_eq!(a.cookie_of(T, &b.own), NO_COOKIE, "nothing is remembered of a node never talked to");
        sealed(&mut a, &b, T, &BODY);
        a.keep_cookie(T, &b.own, [7; 8]);
        assert_eq!(a.cookie_of(T, &b.own), [7; 8]);
        assert_eq!(a.cookie_of(after(PERIOD_SECS * 1000), &b.own), NO_COOKIE);
    }
}
