//! Providers by content id, each entry signed by its provider.

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, Distance, NodeId, Point as _};
use tessera_stdx::{TimerHandle, TimingWheel};

use super::{Candidate, EVICTION_SAMPLE, NotKept, Origin, Shares};
use crate::identity::PublicKey;
use crate::keyed_lru::{KeyedLru, sum};
use crate::record::TTL_SECS_MAX;
use crate::rng::LaneRng;
use crate::time::Now;
use crate::wire::message::SignedProvider;

/// Bounds of a provider store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProviderLimits {
    /// Entries in all.
    pub entries_max: usize,
    /// Providers of one id.
    pub per_id_max: usize,
    /// Ids of one provider.
    pub per_provider_max: usize,
}

impl Default for ProviderLimits {
    fn default() -> Self {
        Self { entries_max: 131_072, per_id_max: 64, per_provider_max: 65_536 }
    }
}

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Entry {
    id: ContentId,
    provider: SignedProvider,
    timer: TimerHandle,
    /// Whose announcement it was.
    origin: Origin,
    since_ms: u64,
    /// Next provider of the same id, or next free entry.
    next: u32,
    used: bool,
}

#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    len: u16,
    distance: Distance,
}

/// The provider store of one lane.
#[derive(Debug)]
pub struct ProviderStore {
    own: NodeId,
    limits: ProviderLimits,
    entries: Vec<Entry>,
    free: u32,
    len: usize,
    lists: KeyedLru<[u8; 32], List>,
    by_provider: KeyedLru<PublicKey, u32>,
    origins: Shares,
    expiries: TimingWheel<u32>,
}

impl ProviderStore {
    /// An empty store for the node `own`.
    #[must_use]
    pub fn new(own: NodeId, limits: ProviderLimits, rng: &mut LaneRng, now: Now) -> Self {
        let entries_max = limits.entries_max.clamp(1, 1 << 24);
        let per_id_max = limits.per_id_max.clamp(1, usize::from(u16::MAX));
        Self {
            own,
            limits: ProviderLimits { entries_max, per_id_max, ..limits },
            entries: Vec::new(),
            free: NONE,
            len: 0,
            lists: KeyedLru::new(entries_max, rng.u64()),
            by_provider: KeyedLru::new(entries_max, rng.u64()),
            origins: Shares::new(entries_max, rng),
            expiries: TimingWheel::growing(entries_max as u32, now.mono_ms),
        }
    }

    /// Takes all memory that may ever be needed.
    pub(crate) fn reserve_all(&mut self) {
        self.entries.reserve_exact(self.limits.entries_max - self.entries.len());
        self.lists.reserve_all();
        self.by_provider.reserve_all();
        self.origins.reserve_all();
        self.expiries.reserve_all();
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes in use and bytes reserved, timers left out.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        let entry = size_of::<Entry>();
        let entries = (self.len * entry, self.limits.entries_max * entry);
        sum([entries, self.lists.bytes(), self.by_provider.bytes(), self.origins.bytes()])
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many providers of `id` are held.
    #[must_use]
    pub fn count(&self, id: &ContentId) -> usize {
        self.lists.peek(id.as_bytes()).map_or(0, |list| usize::from(list.len))
    }

    /// The providers of `id`, in the order they came.
    pub fn of(&self, id: &ContentId) -> impl Iterator<Item = &SignedProvider> {
        let mut at = self.lists.peek(id.as_bytes()).map_or(NONE, |list| list.first);
        core::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.next;
            Some(&entry.provider)
        })
    }

    /// All entries, in no order worth naming, and whose announcements they were.
    pub fn iter(&self) -> impl Iterator<Item = (ContentId, &SignedProvider, Origin)> {
        self.entries.iter().filter(|entry| entry.used).map(|entry| (entry.id, &entry.provider, entry.origin))
    }

    /// Whether `provider` says nothing new about `id`: then its signature need not be verified.
    #[must_use]
    pub fn holds_newer(&self, id: &ContentId, provider: &SignedProvider) -> bool {
        self.of(id).any(|held| held.provider.key == provider.provider.key && held.issued_secs >= provider.issued_secs)
    }

    /// Keeps a valid provider of `id` that `origin` announced; a newer statement of the same provider replaces its older one.
    pub fn keep(
        &mut self,
        now: Now,
        id: &ContentId,
        (provider, origin): (&SignedProvider, Origin),
        rng: &mut LaneRng,
    ) -> Result<(), NotKept> {
        self.keep_if_logged(now, id, (provider, origin), rng, || true)
    }

    /// The same, but it is first given to `log`. Nothing is changed if that says no.
    pub fn keep_if_logged(
        &mut self,
        now: Now,
        id: &ContentId,
        (provider, origin): (&SignedProvider, Origin),
        rng: &mut LaneRng,
        log: impl FnOnce() -> bool,
    ) -> Result<(), NotKept> {
        let expires_secs = expires_secs_of(provider);
        // A log may hold any time; a checked entry ends within days.
        let left_secs = expires_secs.saturating_sub(now.unix_secs()).min(u64::from(TTL_SECS_MAX));
        let expires_ms = now.mono_ms + left_secs * 1000;
        let mut at = self.lists.peek(id.as_bytes()).map_or(NONE, |list| list.first);
        while let Some(entry) = self.entries.get_mut(at as usize) {
            if entry.provider.provider.key == provider.provider.key {
                if provider.issued_secs > entry.provider.issued_secs {
                    if !log() {
                        return Err(NotKept::NotLogged);
                    }
                    entry.provider = *provider;
                    self.expiries.cancel(entry.timer);
                    entry.timer =
                        self.expiries.insert(expires_ms, at).unwrap_or_else(|_| unreachable!("one was just cancelled"));
                }
                return Ok(());
            }
            at = entry.next;
        }
        if self.by_provider.peek(&provider.provider.key).is_some_and(|n| *n as usize >= self.limits.per_provider_max) {
            return Err(NotKept::GiverFull);
        }
        let makes_way = if self.count(id) == self.limits.per_id_max {
            Some(self.crowded_out(id, origin)?)
        } else if self.len == self.limits.entries_max {
            Some(self.makes_way((origin, 1, self.own.distance_to(id)), rng)?)
        } else {
            None
        };
        if !log() {
            return Err(NotKept::NotLogged);
        }
        if let Some(at) = makes_way {
            self.remove_entry(at);
        }
        self.insert(now, id, (provider, origin), expires_ms);
        Ok(())
    }

    /// Drops all providers of `id`: it moved to another lane.
    pub fn remove(&mut self, id: &ContentId) {
        while let Some(list) = self.lists.peek(id.as_bytes()) {
            self.remove_entry(list.first);
        }
    }

    /// Drops entries that have expired at `now`.
    pub fn expire(&mut self, now: Now) {
        while let Some((_, at)) = self.expiries.pop_due(now.mono_ms) {
            self.remove_entry(at);
        }
    }

    /// When [`ProviderStore::expire`] has something to do next.
    #[must_use]
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.expiries.next_wake()
    }

    fn insert(&mut self, now: Now, id: &ContentId, (provider, origin): (&SignedProvider, Origin), expires_ms: u64) {
        let at = if self.free == NONE { self.entries.len() as u32 } else { self.free };
        let timer =
            self.expiries.insert(expires_ms, at).unwrap_or_else(|_| unreachable!("one timer per entry, with room"));
        let since_ms = now.mono_ms;
        let entry = Entry { id: *id, provider: *provider, timer, origin, since_ms, next: NONE, used: true };
        self.origins.add(origin, 1);
        if at as usize == self.entries.len() {
            self.entries.push(entry);
        } else {
            self.free = self.entries[at as usize].next;
            self.entries[at as usize] = entry;
        }
        let distance = self.own.distance_to(id);
        let list = self.lists.get_or_insert_with(*id.as_bytes(), || List { first: NONE, len: 0, distance });
        list.len += 1;
        if list.first == NONE {
            list.first = at;
        } else {
            let mut last = list.first;
            while self.entries[last as usize].next != NONE {
                last = self.entries[last as usize].next;
            }
            self.entries[last as usize].next = at;
        }
        *self.by_provider.get_or_insert_with(provider.provider.key, || 0) += 1;
        self.len += 1;
    }

    /// Of an id that has as many providers as it may: the one that makes way for another of `origin`. It is the latest of the origin that
    /// announced most of them, if that has more than the newcomer's would have. Lifetimes are the provider's choice and say nothing.
    fn crowded_out(&self, id: &ContentId, origin: Origin) -> Result<u32, NotKept> {
        let of_list = || {
            let mut at = self.lists.peek(id.as_bytes()).map_or(NONE, |list| list.first);
            core::iter::from_fn(move || {
                let entry = self.entries.get(at as usize)?;
                let here = core::mem::replace(&mut at, entry.next);
                Some((here, entry.origin))
            })
        };
        let announced_by = |origin| of_list().filter(|(_, of)| *of == origin).count();
        // The last of equal ones: the latest goes first.
        let last = of_list().max_by_key(|(_, of)| announced_by(*of)).ok_or(NotKept::Full)?;
        let is_more = announced_by(last.1) > announced_by(origin) + 1;
        if is_more { Ok(last.0) } else { Err(NotKept::Full) }
    }

    /// The entry that makes way in a full store.
    fn makes_way(&self, newcomer: (Origin, u32, Distance), rng: &mut LaneRng) -> Result<u32, NotKept> {
        let sample = self.lists.sample(rng.u64(), EVICTION_SAMPLE).map(|(_, list)| {
            let Entry { origin, since_ms, .. } = self.entries[list.first as usize];
            Candidate { entry: list.first, origin, since_ms, distance: list.distance }
        });
        self.origins.makes_way(newcomer, sample).ok_or(NotKept::Full)
    }

    fn remove_entry(&mut self, at: u32) {
        let Entry { id, provider, timer, origin, next, .. } = &self.entries[at as usize];
        let (id, key, timer, origin, next) = (*id, provider.provider.key, *timer, *origin, *next);
        self.expiries.cancel(timer);
        self.origins.take(origin, 1);
        let list = self.lists.get(id.as_bytes()).expect("every entry is in its id's list");
        list.len -= 1;
        if list.first == at {
            list.first = next;
        } else {
            let mut before = list.first;
            while self.entries[before as usize].next != at {
                before = self.entries[before as usize].next;
            }
            self.entries[before as usize].next = next;
        }
        if list.len == 0 {
            self.lists.remove(id.as_bytes());
        }
        let count = self.by_provider.get(&key).expect("every entry is counted for its provider");
        *count -= 1;
        if *count == 0 {
            self.by_provider.remove(&key);
        }
        let entry = &mut self.entries[at as usize];
        (entry.next, entry.used) = (self.free, false);
        self.free = at;
        self.len -= 1;
    }
}

fn expires_secs_of(provider: &SignedProvider) -> u64 {
    provider.issued_secs.saturating_add(u64::from(provider.ttl_secs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::contact::Contact;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    const T: Now = Now { mono_ms: 1000, unix_ms: 1_000_000_000 };

    fn provider(key: u8, issued_after: u64, ttl_secs: u32) -> SignedProvider {
        SignedProvider {
            provider: Contact { key: PublicKey([key; 32]), addr: Addr::v4([10, 0, 0, key], 1) },
            issued_secs: T.unix_secs() + issued_after,
            ttl_secs,
            signature: [key; 64],
        }
    }

    fn id(n: u8) -> ContentId {
        ContentId::from_bytes([n; 32])
    }

    fn store(limits: ProviderLimits) -> (ProviderStore, LaneRng) {
        let mut rng = LaneRng::new([1; 32]);
        (ProviderStore::new(NodeId::from_bytes([0; 32]), limits, &mut rng, T), rng)
    }

    #[test]
    fn a_newer_statement_replaces_and_an_older_one_does_not() {
        let (mut store, mut rng) = store(ProviderLimits::default());
        store.keep(T, &id(1), (&provider(1, 10, 100), Origin::ANY), &mut rng).unwrap();
        assert!(store.holds_newer(&id(1), &provider(1, 10, 100)));
        store.keep(T, &id(1), (&provider(1, 5, 900), Origin::ANY), &mut rng).unwrap();
        assert_eq!(store.of(&id(1)).next().unwrap().ttl_secs, 100);
        store.keep(T, &id(1), (&provider(1, 20, 50), Origin::ANY), &mut rng).unwrap();
        assert_eq!((store.count(&id(1)), store.of(&id(1)).next().unwrap().ttl_secs), (1, 50));
    }

    #[test]
    fn entries_leave_when_their_time_is_over() {
        let (mut store, mut rng) = store(ProviderLimits::default());
        store.keep(T, &id(1), (&provider(1, 0, 100), Origin::ANY), &mut rng).unwrap();
        store.keep(T, &id(1), (&provider(2, 0, 200), Origin::ANY), &mut rng).unwrap();
        store.expire(Now { mono_ms: T.mono_ms + 100_000, ..T });
        assert_eq!(store.of(&id(1)).map(|p| p.provider.key.0[0]).collect::<Vec<_>>(), [2]);
        store.expire(Now { mono_ms: T.mono_ms + 200_000, ..T });
        assert!(store.is_empty());
    }

    #[test]
    fn caps_per_id_per_provider_and_in_all() {
        let limits = ProviderLimits { entries_max: 5, per_id_max: 2, per_provider_max: 3 };
        let (mut store, mut rng) = store(limits);
        store.keep(T, &id(1), (&provider(1, 0, 100), Origin::ANY), &mut rng).unwrap();
        store.keep(T, &id(1), (&provider(2, 0, 200), Origin::ANY), &mut rng).unwrap();
        assert_eq!(store.keep(T, &id(1), (&provider(3, 0, 100), Origin::ANY), &mut rng), Err(NotKept::Full));
        assert_eq!(store.keep(T, &id(1), (&provider(3, 0, 900), Origin::ANY), &mut rng), Err(NotKept::Full), "longer");
        assert_eq!(store.of(&id(1)).map(|p| p.provider.key.0[0]).collect::<Vec<_>>(), [1, 2]);
        store.keep(T, &id(5), (&provider(2, 0, 100), Origin::ANY), &mut rng).unwrap();
        store.keep(T, &id(6), (&provider(2, 0, 100), Origin::ANY), &mut rng).unwrap();
        assert_eq!(store.keep(T, &id(7), (&provider(2, 0, 100), Origin::ANY), &mut rng), Err(NotKept::GiverFull));
        store.keep(T, &id(7), (&provider(4, 0, 100), Origin::ANY), &mut rng).unwrap();
        assert_eq!(store.keep(T, &id(200), (&provider(5, 0, 100), Origin::ANY), &mut rng), Err(NotKept::Full), "far");
        store.keep(T, &id(0), (&provider(5, 0, 100), Origin::ANY), &mut rng).unwrap();
        assert_eq!((store.len(), store.count(&id(7))), (5, 0), "the farthest made way");
    }

    fn origin(n: u8) -> Origin {
        Origin::of(&PublicKey([n; 32]), &Addr::v4([198, 51, n, 1], 1))
    }

    #[test]
    fn an_id_that_has_enough_providers_takes_another_from_the_origin_that_announced_most() {
        let (mut store, mut rng) = store(ProviderLimits { per_id_max: 6, ..ProviderLimits::default() });
        // One network announces under many keys before all others.
        for n in 0..20 {
            let _ = store.keep(T, &id(1), (&provider(100 + n, 0, 900), origin(1)), &mut rng);
        }
        assert_eq!(store.count(&id(1)), 6);
        let mut held = |n: u8, origin_of: u8| {
            let kept = store.keep(T, &id(1), (&provider(n, 0, 100), origin(origin_of)), &mut rng).is_ok();
            (kept, store.of(&id(1)).map(|p| p.provider.key.0[0]).collect::<Vec<_>>())
        };
        assert_eq!(held(2, 2), (true, [100, 101, 102, 103, 104, 2].to_vec()), "what came last made way");
        assert_eq!(held(3, 3), (true, [100, 101, 102, 103, 2, 3].to_vec()));
        assert_eq!(held(4, 1), (false, [100, 101, 102, 103, 2, 3].to_vec()), "it has most itself");
        for n in 4..7 {
            assert!(held(n, n).0);
        }
        assert_eq!(held(9, 9), (false, [100, 2, 3, 4, 5, 6].to_vec()), "all have one");
    }

    #[test]
    fn a_full_store_of_providers_takes_from_the_origin_that_has_most_however_near_its_ids_are() {
        let (mut store, mut rng) = store(ProviderLimits { entries_max: 12, ..ProviderLimits::default() });
        for n in 0..6 {
            store.keep(T, &id(200 + n), (&provider(n, 0, 100), origin(n)), &mut rng).unwrap();
        }
        for n in 1..60 {
            let _ = store.keep(T, &id(n), (&provider(100, 0, 100), origin(9)), &mut rng);
        }
        assert_eq!((0..6).filter(|n| store.count(&id(200 + n)) == 1).count(), 6);
        store.keep(T, &id(220), (&provider(7, 0, 100), origin(7)), &mut rng).unwrap();
        assert_eq!((store.len(), store.count(&id(220))), (12, 1));
    }

    proptest! {
        #[test]
        fn behaves_like_a_map_of_maps(steps in prop::collection::vec((0..6_u8, 0..6_u8, 1..50_u32, any::<bool>()), 0..120)) {
            let (mut store, mut rng) = store(ProviderLimits::default());
            let mut model: BTreeMap<(u8, u8), u32> = BTreeMap::new();
            let mut clock = 0;
            for (i, k, ttl, advance) in steps {
                if advance { clock += 7; }
                let now = Now { mono_ms: T.mono_ms + clock * 1000, unix_ms: T.unix_ms + clock * 1000 };
                store.expire(now);
                model.retain(|_, until| u64::from(*until) > clock);
                let until = clock as u32 + ttl;
                let newer = !store.holds_newer(&id(i), &provider(k, clock, ttl));
                store.keep(now, &id(i), (&provider(k, clock, ttl), Origin::ANY), &mut rng).unwrap();
                if newer { model.insert((i, k), until); }
                prop_assert_eq!(store.len(), model.len());
                for i in 0..6 {
                    let mut held: Vec<_> = store.of(&id(i)).map(|p| p.provider.key.0[0]).collect();
                    held.sort();
                    let expected: Vec<_> = model.keys().filter(|key| key.0 == i).map(|key| key.1).collect();
                    prop_assert_eq!(held, expected);
                }
                prop_assert_eq!(store.iter().count(), model.len());
            }
        }
    }
}
