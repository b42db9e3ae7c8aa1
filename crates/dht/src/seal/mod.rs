//! Sealed datagrams without a handshake: any lane opens a peer's first datagram alone.
//!
//! Two static keys agree once (tens of microseconds) and the result is kept in a bounded LRU; each stream of datagrams
//! then has its own key ([`keys`]) and its own replay window ([`replay`]). An expanded key is half a kilobyte and is had
//! again in a third of a microsecond, so only those of the busiest streams are kept: of those that are met again among the
//! next few. A datagram changes nothing here before it has proved authentic, except that opening a stranger's may spend one
//! of the agreements the lane grants per second. Even then a new stream is remembered only when the caller says so
//! ([`Sealer::remember`]), which is after quarantine and rate limits have had their say.
//!
//! The memory is bounded in three ways. A peer has at most [`SealLimits::streams_per_peer_max`] windows, and an incarnation more displaces
//! one of its own. An address prefix has a share of what proven peers may occupy. A peer whose address is not proven displaces only others
//! like it ([`tiers`]).
//!
//! The price of static keys: no forward secrecy, so an attacker that records traffic and later steals a key can read it. The
//! price of the bounded memory: after a restart, or when more proven peers come than there is room for, the datagrams of a forgotten window could be
//! played again for two periods. Every request is therefore idempotent, writes need a token, and a replay from
//! another address lacks that address's cookie, so it draws no more bytes than it brings.

pub mod cookie;
pub mod keys;
pub mod replay;
pub mod tiers;

use core::fmt;
use core::num::NonZeroU32;

use tessera_contracts::point::NodeId;
use tessera_stdx::{Rate, TokenBucket};

use crate::identity::{Crypto, PublicKey};
use crate::keyed_lru::{FIRST_ENTRIES, KeyedLru, LruKey, Mark, sum};
use crate::rng::LaneRng;
use crate::time::Now;
use crate::wire::codec::Malformed;
use crate::wire::header::{CLEAR_BYTES, HEADER_BYTES, Header, Suite};
use crate::wire::message::{COOKIE_BYTES, Cookie};
use crate::wire::{BODY_BYTES_MAX, TAG_BYTES};
use cookie::NO_COOKIE;
use keys::{NetworkKey, PairRoot, StreamKey, period_accepted, period_at};
use replay::ReplayWindow;
pub use tiers::Standing;
use tiers::{TierLimits, Tiers};

/// Bounds of the sealing state of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealLimits {
    /// Peers whose agreement is remembered.
    pub agreements_max: usize,
    /// Streams whose replay window is remembered; a peer has one per lane it runs.
    pub streams_max: usize,
    /// Streams of one peer. A peer that runs more lanes than that has its own windows displaced.
    pub streams_per_peer_max: u32,
    /// One in so many of all agreements, and of all streams, may be of proven peers of one public address prefix.
    pub prefix_share: usize,
    /// Expanded keys kept, of both directions.
    pub keys_max: usize,
    /// Agreements with strangers per second: the most that a flood of new keys may cost this lane.
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
            streams_per_peer_max: 64,
            prefix_share: 16,
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
    /// The sender's key allows no agreement.
    UnusableKey,
    /// The tag does not fit: changed on the way, another network, or never authentic.
    Forged,
}

/// The body would not fit, or the receiver's key is unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealRefused {
    /// No room for header, body and tag.
    TooLong,
    /// The receiver's key allows no agreement.
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

/// The memory of a peer.
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

/// The replay window of one stream.
#[derive(Debug, Clone)]
struct Stream {
    /// Which incarnation of the peer's lanes it is of.
    incarnation: u64,
    /// The newest period that was seen: datagrams older than all accepted periods cannot be replayed.
    period: u32,
    window: ReplayWindow,
}

/// A peer, and the incarnation of the lane of it that sends, as hashes under secret seeds.
///
/// Streams are kept by marks: there are many, and keys would be a third of each entry. Two that were mistaken for
/// one would share a window, which refuses all that either has seen, and a key, with which nothing of the other opens: some
/// datagrams would be lost, and still none would pass twice.
#[derive(Debug, Clone, Copy)]
struct StreamId {
    peer: [u64; 2],
    incarnation: [u64; 2],
}

impl StreamId {
    fn of(seeds: &[u64; 2], sender: &PublicKey, incarnation: &[u8; 16]) -> Self {
        let peer = seeds.map(|seed| sender.mix(seed));
        let halves = incarnation.as_chunks::<8>().0;
        let of_lane = peer.map(|peer| halves.iter().fold(peer, |seed, half| u64::from_le_bytes(*half).mix(seed)));
        Self { peer, incarnation: of_lane }
    }

    /// Names the stream itself.
    fn mark(&self) -> Mark {
        Mark::from_words(self.incarnation)
    }

    /// The few places, of the many that a peer has, at which this stream may stand.
    fn places(self, per_peer_max: u32) -> impl Iterator<Item = Mark> + Clone {
        let first = self.incarnation[1] as u32;
        (0..STREAM_PLACES as u32).map(move |n| {
            let place = first.wrapping_add(n) % per_peer_max.max(1);
            Mark::from_words([u64::from(place).mix(self.peer[0]), self.peer[1]])
        })
    }
}

/// Places of a peer's streams that are looked at for one of them.
const STREAM_PLACES: usize = 4;

/// An opened datagram.
#[derive(Debug)]
pub struct Opened<'a> {
    /// Its header.
    pub header: Header,
    /// Its body.
    pub body: &'a mut [u8],
    /// Whether the stream, and the agreement if it was needed, are remembered as a proven peer's: [`Sealer::remember`] has nothing to do.
    pub is_settled: bool,
}

/// The direction of a key: from a peer or to it. A peer chooses its incarnation, and could choose ours.
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
    /// The slot at which this lane is told to show a cookie: see [`Sealer::set_reply_slot`].
    reply_slot: u8,
    agreements: Tiers<PublicKey, Agreement>,
    streams: Tiers<Mark, Stream>,
    streams_per_peer_max: u32,
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
            reply_slot: 0,
            agreements: Tiers::new(tier_limits(limits, limits.agreements_max), rng),
            streams: Tiers::new(tier_limits(limits, limits.streams_max), rng),
            streams_per_peer_max: limits.streams_per_peer_max,
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

    /// Opens a datagram in place.
    ///
    /// `admit_stranger` is asked before an agreement is computed for an unknown sender that shows this cookie, in addition to this lane's limit.
    /// A stream that is remembered notes the datagram; a new one is not remembered until [`Sealer::remember`] is told to.
    pub fn open<'a>(
        &mut self,
        now: Now,
        datagram: &'a mut [u8],
        admit_stranger: impl FnOnce(&PublicKey, &Cookie) -> bool,
    ) -> Result<Opened<'a>, OpenRefused> {
        let header = Header::read(datagram).map_err(OpenRefused::Header)?;
        if header.sender == self.own {
            return Err(OpenRefused::Echo);
        }
        if !period_accepted(header.period, now.unix_secs()) {
            return Err(OpenRefused::Period(header.period));
        }
        let stream = StreamId::of(&self.stream_seeds, &header.sender, &header.incarnation);
        let Self { crypto, own, network, streams, keys, agreements, strangers, .. } = self;
        let is_it = |found: &Stream| found.incarnation == stream.incarnation[0];
        let window = streams.find(stream.places(self.streams_per_peer_max), is_it);
        if window.as_ref().is_some_and(|(stream, _)| !stream.window.admits(header.counter)) {
            return Err(OpenRefused::Replayed);
        }
        let (clear, sealed) = datagram.split_at_mut(CLEAR_BYTES);
        let key_id = KeyOf::From(stream.mark());
        let known = keys.get(&key_id);
        let known_period = known.as_ref().map(|known| known.period);
        let (mut derived, mut agreement_is_proven) = (None, true);
        match known.filter(|known| (known.period, known.suite) == (header.period, header.suite)) {
            Some(known) => {
                known.key.open(header.counter, clear, sealed).ok_or(OpenRefused::Forged)?;
            }
            // A new stream, one long unheard of, or its next period: its key has to be derived from the pair's agreement.
            None => {
                let (key, agreed) = match agreements.get(&header.sender) {
                    Some((agreement, is_proven)) => {
                        agreement_is_proven = is_proven;
                        (agreement.root.stream_key(&header), None)
                    }
                    None => {
                        let cookie = clear.last_chunk().expect("a cookie ends the clear part");
                        if !admit_stranger(&header.sender, cookie) || strangers.take(now.mono_ms, 1).is_err() {
                            return Err(OpenRefused::StrangerLimit);
                        }
                        let agreed = agree(crypto, network, own, &header.sender).ok_or(OpenRefused::UnusableKey)?;
                        agreement_is_proven = false;
                        (agreed.root.stream_key(&header), Some(agreed))
                    }
                };
                derived.insert(key).open(header.counter, clear, sealed).ok_or(OpenRefused::Forged)?;
                // Authentic. Only now may it displace entries of other peers, and only of those that have proved no more.
                if let Some(agreement) = agreed {
                    agreements.insert(header.sender, agreement, Standing::Unproven);
                }
            }
        }
        let mut is_settled = false;
        if let Some((stream, is_proven)) = window {
            stream.window.record(header.counter);
            stream.period = stream.period.max(header.period);
            is_settled = is_proven && agreement_is_proven;
        }
        // A straggler of the period before must not bring the old key back.
        if let Some(key) = derived
            && known_period.map_or_else(|| self.is_busy(&key_id), |period| header.period >= period)
        {
            self.keys.insert(key_id, PeriodKey { period: header.period, suite: header.suite, key });
        }
        let body_end = datagram.len() - TAG_BYTES;
        Ok(Opened { header, body: &mut datagram[HEADER_BYTES..body_end], is_settled })
    }

    /// Remembers the stream of a datagram that was opened, so that it does not pass again, and the standing of its sender.
    pub fn remember(&mut self, header: &Header, standing: Standing) {
        self.agreements.raise(&header.sender, standing);
        let stream = StreamId::of(&self.stream_seeds, &header.sender, &header.incarnation);
        let places = stream.places(self.streams_per_peer_max);
        let is_it = |place: &Mark| self.streams.peek(place).is_some_and(|at| at.incarnation == stream.incarnation[0]);
        if let Some(place) = places.clone().find(is_it) {
            self.streams.raise(&place, standing);
            return;
        }
        // A free place; else that of the stream that has been quiet for longest, which is one of the same peer.
        let quiet_since = |place: &Mark| self.streams.peek(place).map(|stream| stream.period);
        let Some(place) = places.min_by_key(quiet_since) else { return };
        self.streams.remove(&place);
        let mut window = ReplayWindow::default();
        window.record(header.counter);
        let new = Stream { incarnation: stream.incarnation[0], period: header.period, window };
        self.streams.insert(place, new, standing);
    }

    /// Says at which slot of this node the lane is told to show a cookie. It goes with every datagram, in clear.
    pub fn set_reply_slot(&mut self, slot: u8) {
        self.reply_slot = slot;
    }

    /// Which lane of this node this is, to others.
    pub fn incarnation(&self) -> &[u8; 16] {
        &self.incarnation
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
        if !(COOKIE_BYTES..=BODY_BYTES_MAX).contains(&body_len) || datagram.len() < len {
            return Err(SealRefused::TooLong);
        }
        let header = Header {
            slot,
            reply_slot: self.reply_slot,
            suite: self.suite,
            period: period_at(now.unix_secs()),
            counter: self.counter,
            incarnation: self.incarnation,
            sender: self.own,
        };
        // Spent even if nothing were sent: numbers are plenty, repeats are fatal.
        self.counter += 1;
        header.write(datagram.first_chunk_mut().expect("length checked above"));
        let (clear, rest) = datagram.split_at_mut(CLEAR_BYTES);
        let (body, rest) = rest.split_at_mut(body_len - COOKIE_BYTES);
        let Self { crypto, own, network, keys, agreements, .. } = self;
        let key_id = KeyOf::To(*to);
        let known = keys.get(&key_id);
        let is_kept = known.is_some();
        rest[..TAG_BYTES].copy_from_slice(&match known.filter(|known| known.period == header.period) {
            Some(known) => known.key.seal(header.counter, clear, body),
            None => {
                let key = match agreements.get(to) {
                    Some((agreement, _)) => agreement.root.stream_key(&header),
                    None => {
                        let agreement = agree(crypto, network, own, to).ok_or(SealRefused::UnusableKey)?;
                        let key = agreement.root.stream_key(&header);
                        agreements.insert(*to, agreement, Standing::Unproven);
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

    /// This node has asked `peer` something: the answer must not find the agreement displaced by strangers.
    pub fn expect_answer(&mut self, peer: &PublicKey) {
        self.agreements.raise(peer, Standing::Asked);
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
        let Some((agreement, _)) = self.agreements.get(peer) else { return false };
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

fn tier_limits(limits: &SealLimits, entries_max: usize) -> TierLimits {
    TierLimits { entries_max, per_prefix_max: entries_max / limits.prefix_share.max(1), first: FIRST_ENTRIES }
}

fn agree(crypto: &impl Crypto, network: &NetworkKey, own: &PublicKey, peer: &PublicKey) -> Option<Agreement> {
    let secret = crypto.agree(peer)?;
    let root = PairRoot::derive(&secret, network, own, peer);
    Some(Agreement { root, id: peer.node_id(), cookie: NO_COOKIE, cookie_period: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
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

    impl Sealer<Identity> {
        /// Opens a datagram and remembers its stream, as a lane does that has nothing against its sender.
        fn take<'d>(&mut self, now: Now, datagram: &'d mut [u8]) -> Result<Opened<'d>, OpenRefused> {
            self.take_if(now, datagram, || true)
        }

        fn take_if<'d>(
            &mut self,
            now: Now,
            datagram: &'d mut [u8],
            admit: impl FnOnce() -> bool,
        ) -> Result<Opened<'d>, OpenRefused> {
            let opened = self.open(now, datagram, |_, _| admit())?;
            self.remember(&opened.header, Standing::Proven(Addr::v4([10, 0, 0, 1], 1).prefix()));
            Ok(opened)
        }
    }

    #[test]
    fn a_new_stream_is_remembered_when_the_caller_says_so_and_not_before() {
        let (mut a, mut b) = (sealer(1), sealer(2));
        let datagram = sealed(&mut a, &b, T, &BODY);
        for _ in 0..2 {
            assert!(!b.open(T, &mut datagram.clone(), |_, _| true).unwrap().is_settled);
        }
        let header = Header::read(&datagram).unwrap();
        for (standing, is_settled) in [(Standing::Unproven, false), (Standing::Proven(OUTSIDE.prefix()), true)] {
            b.remember(&header, standing);
            assert_eq!(b.open(T, &mut datagram.clone(), |_, _| true).unwrap_err(), OpenRefused::Replayed);
            let next = sealed(&mut a, &b, T, &BODY);
            assert_eq!(b.open(T, &mut next.clone(), |_, _| true).unwrap().is_settled, is_settled);
        }
    }

    const OUTSIDE: Addr = Addr::v4([198, 51, 100, 1], 1);

    #[test]
    fn a_peer_has_so_many_windows_and_displaces_its_own() {
        let limits = SealLimits { streams_max: 1000, streams_per_peer_max: 8, ..SealLimits::default() };
        let mut b = sealer_with(2, 2, "net", Suite::Aes256Gcm, limits);
        let mut honest = sealer(3);
        let kept = sealed(&mut honest, &b_key(), T, &BODY);
        assert!(b.take(T, &mut kept.clone()).is_ok());
        for start in 0..100 {
            let mut lane = sealer_of(1, start, "net", Suite::Aes256Gcm);
            let [first, second] = [(); 2].map(|()| sealed(&mut lane, &b_key(), T, &BODY));
            assert!(b.take(T, &mut first.clone()).is_ok());
            assert_eq!(b.take(T, &mut first.clone()).unwrap_err(), OpenRefused::Replayed, "while it is the newest");
            assert!(b.take(T, &mut second.clone()).is_ok());
        }
        assert!(b.remembered().1 <= 8 + 1, "{}", b.remembered().1);
        assert_eq!(b.take(T, &mut kept.clone()).unwrap_err(), OpenRefused::Replayed);
    }

    #[test]
    fn as_many_lanes_as_a_machine_has_keep_their_windows() {
        let mut b = sealer(2);
        let datagrams: Vec<_> = (0..16)
            .map(|start| sealed(&mut sealer_of(1, start, "net", Suite::Aes256Gcm), &b_key(), T, &BODY))
            .collect();
        for datagram in &datagrams {
            assert!(b.take(T, &mut datagram.clone()).is_ok());
        }
        for datagram in &datagrams {
            assert_eq!(b.take(T, &mut datagram.clone()).unwrap_err(), OpenRefused::Replayed);
        }
    }

    #[test]
    fn a_cookie_is_clear_and_authentic_and_shown_before_an_agreement() {
        let (mut a, mut b) = (sealer(1), sealer(2));
        let original = sealed(&mut a, &b, T, &BODY);
        assert_eq!(original[HEADER_BYTES..CLEAR_BYTES], BODY[..COOKIE_BYTES]);
        assert_ne!(original[CLEAR_BYTES..CLEAR_BYTES + 8], BODY[..8], "and nothing else is");
        let mut changed = original.clone();
        changed[HEADER_BYTES] ^= 1;
        assert_eq!(b.take(T, &mut changed).unwrap_err(), OpenRefused::Forged);
        let (mut shown, mut c) = (None, sealer(2));
        let _ = c.open(T, &mut original.clone(), |sender, cookie| {
            shown = Some((*sender, *cookie));
            false
        });
        assert_eq!(shown, Some((a.own, [0x5a; 8])));
        assert_eq!(c.remembered(), (0, 0));
    }

    fn after(ms: u64) -> Now {
        Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms }
    }

    #[test]
    fn a_strangers_first_datagram_opens_in_either_suite() {
        for suite in [Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
            let (mut a, mut b) = (sealer_of(1, 1, "net", suite), sealer(2));
            let mut datagram = sealed(&mut a, &b, T, &BODY);
            let Opened { header, body, .. } = b.take(T, &mut datagram).unwrap();
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
            assert!(b.take(T, &mut datagram).is_err(), "bit {bit}");
        }
        assert_eq!(b.remembered(), (0, 0), "nothing unauthentic is remembered");
        assert!(b.take(T, &mut original.clone()).is_ok());
    }

    #[test]
    fn a_replay_is_refused_within_and_across_a_period() {
        let (mut a, mut b) = (sealer(1), sealer(2));
        let first = sealed(&mut a, &b, T, &BODY);
        assert!(b.take(T, &mut first.clone()).is_ok());
        assert_eq!(b.take(T, &mut first.clone()).unwrap_err(), OpenRefused::Replayed);
        let next_period = after(PERIOD_SECS * 1000);
        let second = sealed(&mut a, &b, next_period, &BODY);
        assert!(b.take(next_period, &mut second.clone()).is_ok());
        assert!(b.take(next_period, &mut second.clone()).is_err());
        assert!(b.take(T, &mut first.clone()).is_err(), "the window survives the change of period");
    }

    #[test]
    fn a_straggler_of_the_last_period_opens_and_an_older_one_does_not() {
        let (mut a, mut b) = (sealer(1), sealer(2));
        let start = Now { mono_ms: 0, unix_ms: 1000 * PERIOD_SECS * 1000 };
        let old = sealed(&mut a, &b, start, &BODY);
        let late = sealed(&mut a, &b, start, &BODY);
        let next = Now { mono_ms: 0, unix_ms: 1001 * PERIOD_SECS * 1000 + 1 };
        let new = sealed(&mut a, &b, next, &BODY);
        assert!(b.take(next, &mut new.clone()).is_ok());
        assert!(b.take(next, &mut old.clone()).is_ok());
        let half_over = Now { mono_ms: 0, unix_ms: (1001 * PERIOD_SECS + PERIOD_SECS / 2) * 1000 };
        assert_eq!(b.take(half_over, &mut late.clone()).unwrap_err(), OpenRefused::Period(1000));
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
            assert!(b.take(now, &mut datagram.clone()).is_ok());
        }
        // Another peer takes the only agreement remembered, and the last that is granted now: the stream's key is all
        // there is left to open the next datagram with.
        assert!(b.take(now, &mut sealed(&mut sealer(3), &b_key(), now, &BODY)).is_ok());
        assert!(b.take(now, &mut sealed(&mut a, &b_key(), now, &BODY)).is_ok());
    }

    #[test]
    fn networks_of_different_names_do_not_understand_each_other() {
        let (mut a, mut b) = (sealer(1), sealer_of(2, 2, "other", Suite::Aes256Gcm));
        let mut datagram = sealed(&mut a, &b, T, &BODY);
        assert_eq!(b.take(T, &mut datagram).unwrap_err(), OpenRefused::Forged);
    }

    #[test]
    fn a_datagram_for_another_node_or_from_ourselves_is_refused() {
        let (mut a, b, mut c) = (sealer(1), sealer(2), sealer(3));
        let datagram = sealed(&mut a, &b, T, &BODY);
        assert_eq!(c.take(T, &mut datagram.clone()).unwrap_err(), OpenRefused::Forged);
        assert_eq!(a.take(T, &mut datagram.clone()).unwrap_err(), OpenRefused::Echo);
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
        let results: Vec<_> =
            peers.iter_mut().map(|peer| b.take(T, &mut sealed(peer, &b_key(), T, &BODY)).map(|_| ())).collect();
        assert_eq!(results, [Ok(()), Ok(()), Err(OpenRefused::StrangerLimit)]);
        assert!(b.take(T, &mut sealed(&mut peers[0], &b_key(), T, &BODY)).is_ok(), "known");
        assert!(b.take(after(1000), &mut sealed(&mut peers[2], &b_key(), T, &BODY)).is_ok(), "refilled");
        let mut other = sealer(20);
        assert!(
            b.open(after(9000), &mut sealed(&mut other, &b_key(), T, &BODY), |_, _| false).is_err(),
            "not admitted"
        );
    }

    fn b_key() -> Sealer<Identity> {
        sealer(2)
    }

    #[test]
    fn memory_stays_within_its_bounds() {
        let limits = SealLimits { agreements_max: 4, streams_max: 3, ..SealLimits::default() };
        let mut b = sealer_with(2, 2, "net", Suite::Aes256Gcm, limits);
        for seed in 10..30 {
            assert!(b.take(T, &mut sealed(&mut sealer(seed), &b_key(), T, &BODY)).is_ok());
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
                assert_eq!(&*b.take_if(T, &mut datagram.clone(), || seen.len() < 4).unwrap().body, BODY);
                let answer = sealed(&mut b, peer, T, &BODY);
                assert_eq!(&*peer.take(T, &mut answer.clone()).unwrap().body, BODY);
                seen.push(datagram);
                assert!(b.keys.len() <= 1);
            }
        }
        for datagram in &mut seen {
            assert_eq!(b.take(T, datagram).unwrap_err(), OpenRefused::Replayed);
        }
    }

    #[test]
    fn a_peer_that_takes_our_incarnation_for_its_own_is_still_understood() {
        let [mut a, mut b] = [1, 2].map(|seed| sealer_of(seed, 5, "net", Suite::Aes256Gcm));
        assert_eq!(a.incarnation, b.incarnation);
        for _ in 0..4 {
            // A lane that starts anew knows no key yet: a datagram must be sealed with the key of its direction.
            let datagram = sealed(&mut a, &b_key(), T, &BODY);
            assert!(b_key().take(T, &mut datagram.clone()).is_ok());
            assert!(b.take(T, &mut datagram.clone()).is_ok());
            let answer = sealed(&mut b, &a, T, &BODY);
            assert!(a.take(T, &mut answer.clone()).is_ok());
        }
    }

    #[test]
    fn the_key_of_a_stream_is_kept_once_it_is_met_again_among_few_others() {
        let mut b = sealer(2);
        let mut peers: Vec<_> = (10..10 + DERIVED_REMEMBERED as u8 + 1).map(sealer).collect();
        for _ in 0..3 {
            for peer in &mut peers {
                assert!(b.take(T, &mut sealed(peer, &b_key(), T, &BODY)).is_ok());
            }
        }
        assert_eq!(b.keys.len(), 0, "one more of them than are remembered, in turn");
        peers.pop();
        for peer in &mut peers {
            assert!(b.take(T, &mut sealed(peer, &b_key(), T, &BODY)).is_ok());
        }
        for peer in &mut peers {
            assert!(b.take(T, &mut sealed(peer, &b_key(), T, &BODY)).is_ok());
        }
        assert_eq!(b.keys.len(), DERIVED_REMEMBERED, "as many as are remembered, each met again");
        let answer = sealed(&mut b, &peers[0], T, &BODY);
        assert!(peers[0].take(T, &mut answer.clone()).is_ok());
        sealed(&mut b, &peers[0], T, &BODY);
        assert_eq!(b.keys.len(), DERIVED_REMEMBERED + 1, "and the key of the other direction");
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
