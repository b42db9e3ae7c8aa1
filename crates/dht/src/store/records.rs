//! Records this lane holds: those given to it because it is near, and those it cached after a lookup.

use alloc::vec::Vec;
use core::fmt;

use tessera_contracts::point::{ContentId, Distance, NodeId, Point as _};
use tessera_stdx::{ByteSlab, ByteSlot, TimerHandle, TimingWheel};

use super::{Candidate, EVICTION_SAMPLE, Giver, NotKept, Origin, Shares};
use crate::identity::PublicKey;
use crate::keyed_lru::{KeyedLru, sum};
use crate::record::{RecordView, TTL_SECS_MAX};
use crate::rng::LaneRng;
use crate::time::Now;

/// Bounds of a record store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLimits {
    /// Records in all.
    pub records_max: usize,
    /// Bytes of records in all.
    pub bytes_max: u32,
    /// Bytes one giver may occupy.
    pub bytes_per_giver_max: u32,
    /// A record held for so long without being given again is due to be given to its current holders.
    pub republish_ms: u64,
}

impl Default for RecordLimits {
    fn default() -> Self {
        Self { records_max: 65_536, bytes_max: 32 << 20, bytes_per_giver_max: 4 << 20, republish_ms: 3600 * 1000 }
    }
}

/// In about how many intervals a holder gives a record on at least once, even if others give it all the time: K holders that take turns are
/// hardly disturbed.
const PUT_OFFS_MAX: u64 = 24;

/// How many of the least recently used records are searched for a copy to give up.
const CACHED_SEARCH: usize = 64;

/// Why a record is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It was given to us to hold.
    Held,
    /// It was found by a lookup or a hint and is kept for a while; the first to go.
    Cached,
}

/// A record that is kept.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Why it is here.
    pub class: Class,
    /// Seconds since 1970 when it goes.
    pub expires_secs: u64,
    /// Its giver.
    pub giver: PublicKey,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    slot: ByteSlot,
    len: u32,
    class: Class,
    expires_secs: u64,
    expires_ms: u64,
    /// When it is given to its holders again; never for a copy.
    again_ms: u64,
    /// However often others give it again, not later than this.
    again_latest_ms: u64,
    /// Set for the sooner of the two.
    timer: TimerHandle,
    giver: PublicKey,
    origin: Origin,
    /// When it came.
    since_ms: u64,
    sequence: u64,
    distance: Distance,
}

/// The record store of one lane.
pub struct RecordStore {
    own: NodeId,
    limits: RecordLimits,
    values: ByteSlab,
    entries: KeyedLru<[u8; 32], Entry>,
    /// Bytes by giver; as many entries as records at most, so it never forgets one.
    givers: KeyedLru<PublicKey, u32>,
    /// The same by origin.
    origins: Shares,
    expiries: TimingWheel<ContentId>,
    cached: usize,
}

/// The effect of keeping a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeping {
    /// Nothing: it was there already.
    AlreadyHeld,
    /// It is new, or replaced an older one, or lives longer now.
    Changed,
}

/// A record that is to be kept.
#[derive(Debug, Clone, Copy)]
struct Offer<'a> {
    now: Now,
    id: &'a ContentId,
    record: &'a RecordView<'a>,
    class: Class,
    ttl_secs_max: u32,
    giver: Giver,
}

impl Offer<'_> {
    /// Until when it is kept, on both clocks, if for so long at most.
    fn until(&self, ttl_secs_max: u32) -> (u64, u64) {
        let now_secs = self.now.unix_secs();
        let expires_secs = self.record.expires_secs(now_secs).min(now_secs + u64::from(ttl_secs_max));
        (expires_secs, self.now.mono_ms + expires_secs.saturating_sub(now_secs) * 1000)
    }
}

impl RecordStore {
    /// An empty store for the node `own`.
    #[must_use]
    pub fn new(own: NodeId, limits: RecordLimits, rng: &mut LaneRng, now: Now) -> Self {
        let records_max = limits.records_max.clamp(1, 1 << 24);
        Self {
            own,
            limits: RecordLimits { records_max, ..limits },
            values: ByteSlab::on_demand(limits.bytes_max),
            entries: KeyedLru::new(records_max, rng.u64()),
            givers: KeyedLru::new(records_max, rng.u64()),
            origins: Shares::new(records_max, rng),
            expiries: TimingWheel::growing(records_max as u32, now.mono_ms),
            cached: 0,
        }
    }

    /// Takes all memory that may ever be needed.
    pub(crate) fn reserve_all(&mut self) {
        self.values.reserve_all();
        self.entries.reserve_all();
        self.givers.reserve_all();
        self.origins.reserve_all();
        self.expiries.reserve_all();
    }

    /// How many records there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all records.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.values.used_bytes()
    }

    /// Bytes of the index of records, in use and reserved, timers left out.
    #[must_use]
    pub fn index_bytes(&self) -> (usize, usize) {
        sum([self.entries.bytes(), self.givers.bytes(), self.origins.bytes()])
    }

    /// The record of `id`; counts as a use.
    pub fn get(&mut self, id: &ContentId) -> Option<Kept<'_>> {
        let entry = self.entries.get(id.as_bytes())?;
        let bytes = self.values.get(entry.slot)?;
        Some(Kept { bytes, class: entry.class, expires_secs: entry.expires_secs, giver: entry.giver })
    }

    /// The record of `id`, without counting as a use.
    #[must_use]
    pub fn peek(&self, id: &ContentId) -> Option<Kept<'_>> {
        let entry = self.entries.peek(id.as_bytes())?;
        let bytes = self.values.get(entry.slot)?;
        Some(Kept { bytes, class: entry.class, expires_secs: entry.expires_secs, giver: entry.giver })
    }

    /// All records, the most recently used first.
    pub fn iter(&self) -> impl Iterator<Item = (ContentId, Kept<'_>)> {
        self.entries.iter().filter_map(|(id, entry)| {
            let bytes = self.values.get(entry.slot)?;
            let kept = Kept { bytes, class: entry.class, expires_secs: entry.expires_secs, giver: entry.giver };
            Some((ContentId::from_bytes(*id), kept))
        })
    }

    /// The verdict of [`RecordStore::keep`] on the sequence number, before a signature is verified.
    pub fn judge_sequence(&self, id: &ContentId, record: &RecordView<'_>, class: Class) -> Result<Keeping, NotKept> {
        self.entries.peek(id.as_bytes()).map_or(Ok(Keeping::Changed), |entry| self.judge(entry, record, class))
    }

    fn judge(&self, entry: &Entry, record: &RecordView<'_>, class: Class) -> Result<Keeping, NotKept> {
        let here = self.values.get(entry.slot).and_then(|bytes| RecordView::read(bytes).ok());
        match here.map_or(Ok(Keeping::Changed), |here| judge_versions(&here, record))? {
            // A copy goes soon, and no log has it: a peer that gives the same to be held is promised more than that.
            Keeping::AlreadyHeld if (entry.class, class) == (Class::Cached, Class::Held) => Ok(Keeping::Changed),
            judged => Ok(judged),
        }
    }

    /// Keeps a valid record under `id` until it expires, but not longer than `ttl_secs_max` from now. A newer version of what is held is
    /// held as well, even if it comes as a copy, and then for as long as it says.
    #[allow(clippy::too_many_arguments)] // Each is a different thing about the record, and none has a default.
    pub fn keep(
        &mut self,
        now: Now,
        id: &ContentId,
        record: &RecordView<'_>,
        class: Class,
        ttl_secs_max: u32,
        giver: impl Into<Giver>,
        rng: &mut LaneRng,
    ) -> Result<Keeping, NotKept> {
        self.keep_if_logged(now, id, record, class, ttl_secs_max, giver, rng, || true)
    }

    /// The same, but a record to be held is first given to `log`. Nothing is changed if that refuses: neither is an older version replaced,
    /// which the log has and a restart would find, nor does anything else make room.
    #[allow(clippy::too_many_arguments)] // As above.
    pub fn keep_if_logged(
        &mut self,
        now: Now,
        id: &ContentId,
        record: &RecordView<'_>,
        class: Class,
        ttl_secs_max: u32,
        giver: impl Into<Giver>,
        rng: &mut LaneRng,
        log: impl FnOnce() -> bool,
    ) -> Result<Keeping, NotKept> {
        let offer = Offer { now, id, record, class, ttl_secs_max, giver: giver.into() };
        match self.entries.peek(id.as_bytes()).copied() {
            Some(entry) => self.renew(&offer, &entry, rng, log),
            None => self.add(&offer, rng, log),
        }
    }

    /// Keeps another version of a record that is here, or the same for longer.
    fn renew(
        &mut self,
        offer: &Offer<'_>,
        entry: &Entry,
        rng: &mut LaneRng,
        log: impl FnOnce() -> bool,
    ) -> Result<Keeping, NotKept> {
        let Offer { now, id, record, class, ttl_secs_max, giver } = *offer;
        let known = self.judge(entry, record, class)? == Keeping::AlreadyHeld;
        let is_copy_of_held = (entry.class, class) == (Class::Held, Class::Cached);
        let (expires_secs, expires_ms) = offer.until(if is_copy_of_held { TTL_SECS_MAX } else { ttl_secs_max });
        // Only peers that give an immutable record to be held choose its lifetime.
        let improves = !(known || is_copy_of_held && record.mutable.is_none())
            && (entry.sequence < record.sequence()
                || entry.class == Class::Cached && class == Class::Held
                || entry.expires_secs < expires_secs);
        if !improves {
            self.put_off(now, id, record.bytes, class, rng);
            return Ok(Keeping::AlreadyHeld);
        }
        // A cached copy must not demote a held record.
        let class = if entry.class == Class::Held { Class::Held } else { class };
        let (old_len, len) = (entry.len, record.bytes.len() as u32);
        let old_giver = Giver { key: entry.giver, origin: entry.origin };
        let given_before = if old_giver.key == giver.key { old_len } else { 0 };
        if self.giver_bytes(&giver.key) + len - given_before > self.limits.bytes_per_giver_max {
            return Err(NotKept::GiverFull);
        }
        if class == Class::Held && !log() {
            return Err(NotKept::NotLogged);
        }
        let slot = self.values.replace(entry.slot, record.bytes).map_err(|_| NotKept::Full)?;
        self.uncount(&old_giver, old_len);
        self.count(&giver, len);
        let entry = self.entries.get(id.as_bytes()).expect("it was there when it was judged");
        self.cached -= usize::from(entry.class == Class::Cached);
        self.cached += usize::from(class == Class::Cached);
        (entry.expires_ms, entry.again_ms) = (expires_ms, again_ms(&self.limits, now, class, rng));
        // A longer life is no new record: giving it a second more each time would put it off for ever too.
        if entry.sequence < record.sequence() || entry.class == Class::Cached {
            entry.again_latest_ms = again_latest_ms(&self.limits, now, rng);
        }
        entry.again_ms = entry.again_ms.min(entry.again_latest_ms);
        rearm(&mut self.expiries, entry, id);
        (entry.slot, entry.len, entry.class) = (slot, len, class);
        (entry.expires_secs, entry.sequence) = (expires_secs, record.sequence());
        (entry.giver, entry.origin) = (giver.key, giver.origin);
        Ok(Keeping::Changed)
    }

    /// Keeps a record that is not here.
    fn add(&mut self, offer: &Offer<'_>, rng: &mut LaneRng, log: impl FnOnce() -> bool) -> Result<Keeping, NotKept> {
        let Offer { now, id, record, class, ttl_secs_max, giver } = *offer;
        let len = record.bytes.len() as u32;
        if self.giver_bytes(&giver.key) + len > self.limits.bytes_per_giver_max {
            return Err(NotKept::GiverFull);
        }
        let distance = self.own.distance_to(id);
        let (expires_secs, expires_ms) = offer.until(ttl_secs_max);
        let mut slot = self.insert_value(record.bytes);
        let newcomer = (giver.origin, len, distance);
        let mut makes_way = if slot.is_none() { Some(self.makes_way(newcomer, class, rng)?) } else { None };
        if class == Class::Held && !log() {
            slot.map(|slot| self.values.remove(slot));
            return Err(NotKept::NotLogged);
        }
        let slot = loop {
            if let Some(slot) = slot {
                break slot;
            }
            let gone = makes_way.take().map_or_else(|| self.makes_way(newcomer, class, rng), Ok)?;
            self.remove(&gone);
            slot = self.insert_value(record.bytes);
        };
        let again_ms = again_ms(&self.limits, now, class, rng);
        let again_latest_ms = again_latest_ms(&self.limits, now, rng);
        let timer = self.expiries.insert(expires_ms.min(again_ms), *id);
        let timer = timer.unwrap_or_else(|_| unreachable!("one timer per record, with room"));
        self.count(&giver, len);
        self.cached += usize::from(class == Class::Cached);
        let sequence = record.sequence();
        let entry = Entry {
            slot,
            len,
            class,
            expires_secs,
            expires_ms,
            again_ms,
            again_latest_ms,
            timer,
            giver: giver.key,
            origin: giver.origin,
            since_ms: now.mono_ms,
            sequence,
            distance,
        };
        self.entries.insert(*id.as_bytes(), entry);
        Ok(Keeping::Changed)
    }

    /// Takes a record out: it moved to another lane.
    pub fn remove(&mut self, id: &ContentId) -> bool {
        let Some(entry) = self.entries.remove(id.as_bytes()) else { return false };
        self.expiries.cancel(entry.timer);
        self.forget(&entry);
        true
    }

    /// A peer gave this very record again, and likely not to us alone: our own turn to do so is put off. But not for ever,
    /// since a peer that repeats it to us alone would else keep it from its current holders.
    pub fn put_off(&mut self, now: Now, id: &ContentId, bytes: &[u8], class: Class, rng: &mut LaneRng) {
        let Some(entry) = self.entries.peek_mut(id.as_bytes()) else { return };
        if class == Class::Held && entry.class == Class::Held && same_but_lifetime(self.values.get(entry.slot), bytes) {
            entry.again_ms = again_ms(&self.limits, now, class, rng).min(entry.again_latest_ms);
            rearm(&mut self.expiries, entry, id);
        }
    }

    /// Makes the `count` records that came or were asked for last due to be given to their holders within `within_ms`: others than before
    /// should hold them.
    pub fn hurry(&mut self, now: Now, count: usize, within_ms: u64, rng: &mut LaneRng) {
        let held = self.entries.iter().filter(|(_, entry)| entry.class == Class::Held).take(count);
        let ids: Vec<_> = held.map(|(id, _)| ContentId::from_bytes(*id)).collect();
        for id in &ids {
            let Some(entry) = self.entries.peek_mut(id.as_bytes()) else { continue };
            entry.again_ms = entry.again_ms.min(now.mono_ms + rng.below(within_ms));
            rearm(&mut self.expiries, entry, id);
        }
    }

    /// Drops records that have expired at `now` and tells `again` which are due to be given to their holders.
    pub fn expire(&mut self, now: Now, rng: &mut LaneRng, mut again: impl FnMut(&ContentId)) {
        while let Some((_, id)) = self.expiries.pop_due(now.mono_ms) {
            let Some(entry) = self.entries.peek_mut(id.as_bytes()) else { continue };
            if entry.expires_ms <= now.mono_ms {
                if let Some(entry) = self.entries.remove(id.as_bytes()) {
                    self.forget(&entry);
                }
                continue;
            }
            again(&id);
            entry.again_ms = again_ms(&self.limits, now, entry.class, rng);
            entry.again_latest_ms = again_latest_ms(&self.limits, now, rng);
            rearm(&mut self.expiries, entry, &id);
        }
    }

    /// When [`RecordStore::expire`] has something to do next.
    #[must_use]
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.expiries.next_wake()
    }

    /// Room for a value, if there is.
    fn insert_value(&mut self, bytes: &[u8]) -> Option<ByteSlot> {
        if self.entries.len() < self.limits.records_max { self.values.insert(bytes).ok() } else { None }
    }

    /// The record that goes next to make room for so many bytes of an origin, so far from us.
    fn makes_way(
        &self,
        newcomer: (Origin, u32, Distance),
        class: Class,
        rng: &mut LaneRng,
    ) -> Result<ContentId, NotKept> {
        if self.cached > 0 {
            // Copies are not touched by writes, so they sink: only the least recently used few are looked at.
            let mut oldest = self.entries.iter_oldest().take(CACHED_SEARCH);
            if let Some((id, _)) = oldest.find(|(_, entry)| entry.class == Class::Cached) {
                return Ok(ContentId::from_bytes(*id));
            }
        }
        if class == Class::Cached {
            return Err(NotKept::Full);
        }
        let sample = self.entries.sample(rng.u64(), EVICTION_SAMPLE).map(|(id, entry)| {
            let Entry { origin, since_ms, distance, .. } = *entry;
            Candidate { entry: ContentId::from_bytes(*id), origin, since_ms, distance }
        });
        self.origins.makes_way(newcomer, sample).ok_or(NotKept::Full)
    }

    fn forget(&mut self, entry: &Entry) {
        self.values.remove(entry.slot);
        self.cached -= usize::from(entry.class == Class::Cached);
        self.uncount(&Giver { key: entry.giver, origin: entry.origin }, entry.len);
    }

    fn giver_bytes(&self, giver: &PublicKey) -> u32 {
        self.givers.peek(giver).copied().unwrap_or(0)
    }

    fn count(&mut self, giver: &Giver, len: u32) {
        *self.givers.get_or_insert_with(giver.key, || 0) += len;
        self.origins.add(giver.origin, len);
    }

    fn uncount(&mut self, giver: &Giver, len: u32) {
        let bytes = self.givers.get_or_insert_with(giver.key, || 0);
        *bytes = bytes.checked_sub(len).expect("a giver gives back no more than it gave");
        if *bytes == 0 {
            self.givers.remove(&giver.key);
        }
        self.origins.take(giver.origin, len);
    }
}

/// The verdict on `new` where `held` is. Both are of one id.
pub(crate) fn judge_versions(held: &RecordView<'_>, new: &RecordView<'_>) -> Result<Keeping, NotKept> {
    let (Some(old), Some(version)) = (&held.mutable, &new.mutable) else { return Ok(Keeping::Changed) };
    if version.sequence < old.sequence {
        return Err(NotKept::Stale { held: old.sequence });
    }
    if version.sequence > old.sequence {
        return Ok(Keeping::Changed);
    }
    if held.value != new.value || old.tombstone != version.tombstone {
        return Err(NotKept::Equivocation);
    }
    // The owner signed the same again to make it last longer.
    if version.issued_secs > old.issued_secs { Ok(Keeping::Changed) } else { Ok(Keeping::AlreadyHeld) }
}

/// When a record that was given at `now` is to be given on: jittered, so that one holder comes first and the rest hear of it.
fn again_ms(limits: &RecordLimits, now: Now, class: Class, rng: &mut LaneRng) -> u64 {
    match class {
        Class::Held => now.mono_ms.saturating_add(rng.jittered_ms(limits.republish_ms.max(1000))),
        Class::Cached => u64::MAX,
    }
}

/// The latest that others can put this off to. Jittered too: all holders got it at the same time.
fn again_latest_ms(limits: &RecordLimits, now: Now, rng: &mut LaneRng) -> u64 {
    now.mono_ms.saturating_add(rng.jittered_ms(limits.republish_ms.max(1000).saturating_mul(PUT_OFFS_MAX)))
}

fn rearm(timers: &mut TimingWheel<ContentId>, entry: &mut Entry, id: &ContentId) {
    timers.cancel(entry.timer);
    let due_ms = entry.expires_ms.min(entry.again_ms);
    entry.timer = timers.insert(due_ms, *id).unwrap_or_else(|_| unreachable!("the record's own timer made room"));
}

/// Whether two records are the same but for how long they are to be kept, which is not a part of an immutable one.
fn same_but_lifetime(held: Option<&[u8]>, given: &[u8]) -> bool {
    held.is_some_and(|held| held.len() == given.len() && held[..4] == given[..4] && held[8..] == given[8..])
}

impl fmt::Debug for RecordStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordStore")
            .field("records", &self.len())
            .field("bytes", &self.bytes())
            .field("cached", &self.cached)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use crate::record::{MutableDraft, immutable_record, mutable_record};
    use crate::seal::keys::NetworkKey;
    use alloc::collections::BTreeSet;

    const T: Now = Now { mono_ms: 1000, unix_ms: 1_000_000_000 };

    struct Fixture {
        store: RecordStore,
        rng: LaneRng,
    }

    impl Fixture {
        fn new(limits: RecordLimits) -> Self {
            let mut rng = LaneRng::new([1; 32]);
            Self { store: RecordStore::new(NodeId::from_bytes([0; 32]), limits, &mut rng, T), rng }
        }

        fn keep(&mut self, now: Now, bytes: &[u8], class: Class, giver: u8) -> Result<Keeping, NotKept> {
            let record = RecordView::read(bytes).unwrap();
            self.store.keep(now, &record.id(), &record, class, u32::MAX, PublicKey([giver; 32]), &mut self.rng)
        }
    }

    fn mutable(sequence: u64, value: Option<&[u8]>, issued_secs: u64) -> Vec<u8> {
        let draft = MutableDraft { salt: [0; 32], sequence, issued_secs, ttl_secs: 100, value };
        mutable_record(&draft, &Identity::from_seed(&[1; 32]), &NetworkKey::of_name("net")).unwrap()
    }

    fn value(n: u16) -> Vec<u8> {
        immutable_record(&n.to_le_bytes(), 100).unwrap()
    }

    #[test]
    fn a_sequence_never_goes_back_and_a_second_value_for_one_is_equivocation() {
        let mut f = Fixture::new(RecordLimits::default());
        let secs = T.unix_secs();
        assert_eq!(f.keep(T, &mutable(5, Some(b"five"), secs), Class::Held, 1), Ok(Keeping::Changed));
        assert_eq!(f.keep(T, &mutable(5, Some(b"five"), secs), Class::Held, 1), Ok(Keeping::AlreadyHeld));
        assert_eq!(f.keep(T, &mutable(4, Some(b"four"), secs), Class::Held, 1), Err(NotKept::Stale { held: 5 }));
        assert_eq!(f.keep(T, &mutable(5, Some(b"FIVE"), secs), Class::Held, 1), Err(NotKept::Equivocation));
        assert_eq!(f.keep(T, &mutable(5, None, secs), Class::Held, 1), Err(NotKept::Equivocation));
        assert_eq!(f.keep(T, &mutable(6, None, secs), Class::Held, 1), Ok(Keeping::Changed));
        assert_eq!(f.keep(T, &mutable(5, Some(b"five"), secs), Class::Held, 1), Err(NotKept::Stale { held: 6 }));
    }

    #[test]
    fn a_record_signed_again_lives_longer() {
        let mut f = Fixture::new(RecordLimits::default());
        let secs = T.unix_secs();
        f.keep(T, &mutable(5, Some(b"v"), secs), Class::Held, 1).unwrap();
        assert_eq!(f.keep(T, &mutable(5, Some(b"v"), secs + 50), Class::Held, 1), Ok(Keeping::Changed));
        f.store.expire(Now { mono_ms: T.mono_ms + 149_999, ..T }, &mut f.rng, |_| {});
        assert_eq!(f.store.len(), 1);
        f.store.expire(Now { mono_ms: T.mono_ms + 150_000, ..T }, &mut f.rng, |_| {});
        assert_eq!((f.store.len(), f.store.bytes()), (0, 0));
    }

    #[test]
    fn in_a_hurry_the_newest_are_due_at_once_and_each_once() {
        let mut f = Fixture::new(RecordLimits { republish_ms: 3_600_000, ..RecordLimits::default() });
        let at = |ms: u64| Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms };
        for n in 0..10 {
            f.keep(T, &value(n), Class::Held, 1).unwrap();
        }
        f.keep(T, &value(10), Class::Cached, 1).unwrap();
        f.store.hurry(at(1000), 4, 5000, &mut f.rng);
        let mut due = Vec::new();
        for ms in (1000..60_000).step_by(500) {
            f.store.expire(at(ms), &mut f.rng, |id| due.push((*id, ms)));
        }
        assert!(due.iter().all(|(_, ms)| *ms <= 6000), "{due:?}");
        let ids: BTreeSet<_> = due.iter().map(|(id, _)| *id).collect();
        let newest: BTreeSet<_> = (6..10).map(|n| RecordView::read(&value(n)).unwrap().id()).collect();
        assert_eq!((due.len(), ids), (4, newest));
    }

    #[test]
    fn a_hurry_puts_nothing_off() {
        let mut f = Fixture::new(RecordLimits { republish_ms: 10_000, ..RecordLimits::default() });
        let at = |ms: u64| Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms };
        for n in 0..10 {
            f.keep(T, &value(n), Class::Held, 1).unwrap();
        }
        f.store.hurry(T, 10, 60_000, &mut f.rng);
        let mut due = BTreeSet::new();
        f.store.expire(at(12_500), &mut f.rng, |id| assert!(due.insert(*id)));
        assert_eq!(due.len(), 10, "a quarter late at most");
    }

    #[test]
    fn a_held_record_is_due_again_after_its_time_and_a_repeat_puts_that_off() {
        let mut f = Fixture::new(RecordLimits { republish_ms: 10_000, ..RecordLimits::default() });
        let at = |ms: u64| Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms };
        f.keep(T, &value(1), Class::Held, 1).unwrap();
        f.keep(T, &value(2), Class::Cached, 1).unwrap();
        let mut due = Vec::new();
        f.store.expire(at(7_000), &mut f.rng, |id| due.push(*id));
        assert_eq!(due, [], "a quarter early at most");
        let shorter = immutable_record(&1_u16.to_le_bytes(), 90).unwrap();
        assert_eq!(f.keep(at(7_000), &shorter, Class::Held, 9), Ok(Keeping::AlreadyHeld));
        f.store.expire(at(14_000), &mut f.rng, |id| due.push(*id));
        assert_eq!(due, [], "another holder did it");
        f.store.expire(at(20_000), &mut f.rng, |id| due.push(*id));
        assert_eq!(due, [RecordView::read(&value(1)).unwrap().id()], "and a copy is not given on");
        f.store.expire(at(40_000), &mut f.rng, |id| due.push(*id));
        assert!(due.len() >= 2, "and so on: {}", due.len());
        f.store.expire(at(100_000), &mut f.rng, |_| {});
        assert_eq!(f.store.len(), 0, "until it expires");
    }

    #[test]
    fn a_peer_that_repeats_a_record_for_ever_does_not_put_it_off_for_ever() {
        let at = |ms: u64| Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms };
        // As it is, and with a longer life each time.
        let again: [fn(u64) -> u32; 2] = [|ms| 90_000 - ms as u32 / 1000, |ms| 90_000 + ms as u32];
        for ttl_secs in again {
            let mut f = Fixture::new(RecordLimits { republish_ms: 10_000, ..RecordLimits::default() });
            let mut due_ms = Vec::new();
            for ms in (0..720_000).step_by(1_000) {
                f.store.expire(at(ms), &mut f.rng, |_| due_ms.push(ms));
                f.keep(at(ms), &immutable_record(b"held back", ttl_secs(ms)).unwrap(), Class::Held, 9).unwrap();
            }
            assert!((2..=4).contains(&due_ms.len()), "about once in 24 intervals: {due_ms:?}");
        }
    }

    #[test]
    fn a_full_store_gives_up_cached_then_far_records_and_else_refuses() {
        let mut f = Fixture::new(RecordLimits { records_max: 4, ..RecordLimits::default() });
        let distance = |bytes: &[u8]| NodeId::from_bytes([0; 32]).distance_to(&RecordView::read(bytes).unwrap().id());
        let mut all: Vec<_> = (0..6).map(value).collect();
        all.sort_by_key(|bytes| distance(bytes));
        let [nearest, second, third, fourth, fifth, farthest] = &all[..] else { unreachable!() };
        f.keep(T, nearest, Class::Cached, 1).unwrap();
        for bytes in [third, fourth, fifth] {
            f.keep(T, bytes, Class::Held, 1).unwrap();
        }
        assert_eq!(f.keep(T, second, Class::Held, 1), Ok(Keeping::Changed), "the cached one goes, near as it is");
        assert!(f.store.get(&RecordView::read(nearest).unwrap().id()).is_none());
        assert_eq!(f.keep(T, farthest, Class::Held, 1), Err(NotKept::Full));
        assert_eq!(f.keep(T, nearest, Class::Cached, 1), Err(NotKept::Full), "a copy displaces nothing held");
        assert_eq!(f.keep(T, nearest, Class::Held, 1), Ok(Keeping::Changed));
        assert!(f.store.get(&RecordView::read(fifth).unwrap().id()).is_none(), "the farthest went");
    }

    #[test]
    fn a_full_store_takes_from_the_origin_that_has_most_however_near_its_records_are() {
        let mut f = Fixture::new(RecordLimits { records_max: 16, ..RecordLimits::default() });
        let distance = |bytes: &[u8]| NodeId::from_bytes([0; 32]).distance_to(&RecordView::read(bytes).unwrap().id());
        let mut all: Vec<_> = (0..60).map(value).collect();
        all.sort_by_key(|bytes| distance(bytes));
        let (near, far) = all.split_at(30);
        let origin = |n: u8| Origin::of(&PublicKey([n; 32]), &crate::addr::Addr::v4([198, 51, n, 1], 1));
        let give = |f: &mut Fixture, bytes: &[u8], key: u8, origin: Origin| {
            let (view, giver) = (RecordView::read(bytes).unwrap(), Giver { key: PublicKey([key; 32]), origin });
            f.store.keep(T, &view.id(), &view, Class::Held, 100, giver, &mut f.rng)
        };
        // Four others give two each; one gives the nearest records from one network, under many keys.
        for (n, bytes) in (0..8).zip(far) {
            give(&mut f, bytes, n % 4, origin(n % 4)).unwrap();
        }
        for (n, bytes) in (0..30).zip(near) {
            let _ = give(&mut f, bytes, 100 + n, origin(9));
        }
        let held = |f: &Fixture, of: &[Vec<u8>]| {
            of.iter().filter(|bytes| f.store.peek(&RecordView::read(bytes).unwrap().id()).is_some()).count()
        };
        assert_eq!((held(&f, &far[..8]), held(&f, near)), (8, 8));
        // A giver with nothing there finds room, as long as another has more.
        for n in 0..4 {
            give(&mut f, &far[10 + n], 50 + n as u8, origin(50 + n as u8)).unwrap();
        }
        assert_eq!((held(&f, &far[..8]), held(&f, &far[10..14]), held(&f, near)), (8, 4, 4));
        let mut given = 0;
        for n in 0..10 {
            given += usize::from(give(&mut f, &far[14 + n], 60 + n as u8, origin(60 + n as u8)).is_ok());
        }
        assert!((3..=7).contains(&given), "until all have about as much: {given}");
    }

    #[test]
    fn one_giver_cannot_fill_the_store() {
        let one = value(0).len() as u32;
        let mut f = Fixture::new(RecordLimits { bytes_per_giver_max: 2 * one, ..RecordLimits::default() });
        let results: Vec<_> = (0..3).map(|n| f.keep(T, &value(n), Class::Held, 7).is_ok()).collect();
        assert_eq!(results, [true, true, false]);
        assert!(f.keep(T, &value(2), Class::Held, 8).is_ok());
        f.store.remove(&RecordView::read(&value(0)).unwrap().id());
        assert!(f.keep(T, &value(3), Class::Held, 7).is_ok(), "what goes is given back");
    }

    #[test]
    fn bytes_stay_within_their_cap() {
        let mut f = Fixture::new(RecordLimits { bytes_max: 8192, ..RecordLimits::default() });
        for n in 0..200_u16 {
            let bytes = immutable_record(&[n as u8; 300], 100).unwrap();
            let _ = f.keep(T, &bytes, Class::Held, n as u8);
            assert!(f.store.bytes() <= 8192);
        }
        assert!(f.store.len() >= 8);
    }

    #[test]
    fn a_copy_does_not_demote_what_is_held() {
        let mut f = Fixture::new(RecordLimits::default());
        f.keep(T, &value(1), Class::Held, 1).unwrap();
        let later = Now { mono_ms: T.mono_ms + 10_000, unix_ms: T.unix_ms + 10_000 };
        f.keep(later, &value(1), Class::Cached, 2).unwrap();
        assert_eq!(f.store.get(&RecordView::read(&value(1)).unwrap().id()).unwrap().class, Class::Held);
    }
}
