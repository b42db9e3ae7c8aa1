//! A map that forgets its least recently used entry when full: agreements, replay windows, rate limits and scores
//! all live in one, because strangers choose how many keys there are.
//!
//! Memory is taken as entries come, in doublings up to the bound, and is kept: a node that meets a hundred peers pays for
//! a hundred, not for its bounds, and a full map allocates nothing any more. Maps on the path of every
//! datagram reserve their first few hundred entries, and a caller that wants no growth reserves everything. The index is a linear hash for the same reason: with each
//! entry it grows by a bucket, and only one chain is sorted again.
//!
//! Entries are large, many and out of the cache, so only the entry asked for is read. A bucket knows the
//! hash of the first of its chain and whether that is the only one; the hash of every entry, its chain and its place in the order
//! of use stand in sixteen bytes apart. To find what is there touches its bucket and itself, mostly; to move it to the front, to
//! split a bucket or to pass by others of its chain touches a few such sixteen bytes, and no other entry.
//!
//! Keys come from strangers too, so the hash is seeded: without the seed a stranger cannot aim many keys at one chain.

use alloc::vec::Vec;

/// A key that can be hashed under a secret seed.
pub trait LruKey: Copy + Eq {
    /// Mixes the key with `seed`; equal keys give equal results under one seed.
    fn mix(&self, seed: u64) -> u64;
}

/// Folds one word into a running hash: a full 64 x 64 multiplication, halves joined.
fn fold(state: u64, word: u64) -> u64 {
    let wide = u128::from(state ^ word) * u128::from(0x9e37_79b9_7f4a_7c15_u64 ^ state.rotate_left(23) | 1);
    (wide as u64) ^ ((wide >> 64) as u64)
}

impl LruKey for u64 {
    fn mix(&self, seed: u64) -> u64 {
        fold(fold(seed, *self), seed.rotate_left(32))
    }
}

impl LruKey for [u8; 32] {
    fn mix(&self, seed: u64) -> u64 {
        self.as_chunks::<8>().0.iter().fold(seed, |state, word| fold(state, u64::from_le_bytes(*word)))
    }
}

/// Two words of hash under secret seeds in place of a long key, where there are many and to mistake two for one would do little
/// harm. Without the seeds a stranger cannot make it happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark([u64; 2]);

impl Mark {
    /// The mark of `key`.
    #[must_use]
    pub fn of(seeds: &[u64; 2], key: &impl LruKey) -> Self {
        Self(seeds.map(|seed| key.mix(seed)))
    }

    /// A mark of words that are hashes under secret seeds already.
    #[must_use]
    pub fn from_words(words: [u64; 2]) -> Self {
        Self(words)
    }
}

impl LruKey for Mark {
    fn mix(&self, seed: u64) -> u64 {
        self.0[0].mix(seed)
    }
}

const NONE: u32 = u32::MAX;

/// As many buckets as entries: a chain has two entries at most, mostly.
const BUCKETS_PER_ENTRY: usize = 1;

/// Entries for which room is reserved where every datagram may bring one.
pub const FIRST_ENTRIES: usize = 256;

/// The chain of entries whose hashes end alike.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    first: u32,
    /// The end of the first one's hash, and a bit that is set if it may not be the only one.
    tag: u32,
}

/// The bits of a hash that a bucket knows.
const TAG: u32 = u32::MAX >> 1;
const MORE: u32 = !TAG;

impl Bucket {
    const EMPTY: Self = Self { first: NONE, tag: 0 };

    /// The bucket with one more in front; and the entry behind that.
    fn with_first(self, first: u32, hash: u32) -> (Self, u32) {
        (Self { first, tag: if self.first == NONE { hash } else { hash | MORE } }, self.first)
    }
}

#[derive(Debug, Clone)]
struct Entry<K, V> {
    key: K,
    value: V,
}

/// Where an entry stands among the others.
#[derive(Debug, Clone, Copy)]
struct Node {
    hash: u32,
    /// Next entry with the same hash bucket.
    chain: u32,
    newer: u32,
    older: u32,
}

/// A fixed-capacity map in order of use.
#[derive(Debug, Clone)]
pub struct KeyedLru<K, V> {
    /// Without holes: the last one moves to where one is taken out.
    entries: Vec<Entry<K, V>>,
    /// One for each of them, at the same index.
    nodes: Vec<Node>,
    /// Buckets from `half` on took over part of the chain of the bucket `half` before them.
    buckets: Vec<Bucket>,
    /// The largest power of two that is at most the number of buckets.
    half: usize,
    capacity: usize,
    seed: u64,
    newest: u32,
    oldest: u32,
}

/// Bytes in use and reserved by several tables together.
pub(crate) fn sum<const N: usize>(tables: [(usize, usize); N]) -> (usize, usize) {
    tables.iter().fold((0, 0), |(used, most), table| (used + table.0, most + table.1))
}

impl<K: LruKey, V> KeyedLru<K, V> {
    /// A map of at most `capacity` entries (at least one), hashing under `seed`.
    #[must_use]
    pub fn new(capacity: usize, seed: u64) -> Self {
        Self::with_room(0, capacity, seed)
    }

    /// The same, that allocates nothing before it holds `first` entries.
    #[must_use]
    pub fn with_room(first: usize, capacity: usize, seed: u64) -> Self {
        let capacity = capacity.clamp(1, TAG as usize);
        let first = first.min(capacity);
        let mut buckets = Vec::with_capacity(first * BUCKETS_PER_ENTRY);
        buckets.push(Bucket::EMPTY);
        let (entries, nodes) = (Vec::with_capacity(first), Vec::with_capacity(first));
        Self { entries, nodes, buckets, half: 1, capacity, seed, newest: NONE, oldest: NONE }
    }

    /// Takes the memory of as many entries as there may be: from now on nothing is allocated.
    pub fn reserve_all(&mut self) {
        self.entries.reserve_exact(self.capacity - self.entries.len());
        self.nodes.reserve_exact(self.capacity - self.nodes.len());
        self.buckets.reserve_exact((self.capacity * BUCKETS_PER_ENTRY).saturating_sub(self.buckets.len()));
    }

    /// How many entries are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many entries fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes in use, and the most that ever will be, the index included.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        let (bucket, entry) = (size_of::<Bucket>(), size_of::<Entry<K, V>>() + size_of::<Node>());
        let used = self.buckets.len() * bucket + self.entries.len() * entry;
        (used, self.capacity * (BUCKETS_PER_ENTRY * bucket + entry))
    }

    /// The value under `key`, without counting as a use.
    #[must_use]
    pub fn peek(&self, key: &K) -> Option<&V> {
        self.find(key).map(|at| &self.entries[at as usize].value)
    }

    /// The same, to be changed.
    pub fn peek_mut(&mut self, key: &K) -> Option<&mut V> {
        self.find(key).map(|at| &mut self.entries[at as usize].value)
    }

    /// The value under `key`, which becomes the most recently used.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(key)?;
        self.make_newest(at);
        Some(&mut self.entries[at as usize].value)
    }

    /// The value under `key`, which becomes the most recently used once the map is more than half full.
    ///
    /// Until then nothing is forgotten for as many insertions again, and entries used meanwhile move in time. So the
    /// order of use comes out right where it is needed, and readers do not write to a map with room to spare:
    /// to move an entry touches three others, and on the way of a datagram all of them are out of the cache.
    pub fn get_lazily(&mut self, key: &K) -> Option<&mut V> {
        if self.len() * 2 > self.capacity { self.get(key) } else { self.peek_mut(key) }
    }

    /// The first value under one of `keys` that is the one looked for, used as by [`KeyedLru::get_lazily`].
    pub fn find_lazily(&mut self, keys: impl Iterator<Item = K>, is_it: impl Fn(&V) -> bool) -> Option<&mut V> {
        let mut found = keys.filter_map(|key| self.find(&key));
        let at = found.find(|at| is_it(&self.entries[*at as usize].value))?;
        if self.len() * 2 > self.capacity {
            self.make_newest(at);
        }
        Some(&mut self.entries[at as usize].value)
    }

    /// Puts `value` under `key` as the most recently used, and returns the displaced value: the old value of the same
    /// key, or the least recently used entry of a full map.
    pub fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        let hash = self.hash_of(&key);
        if let Some(at) = self.find_hashed(&key, hash) {
            self.make_newest(at);
            return Some((key, core::mem::replace(&mut self.entries[at as usize].value, value)));
        }
        self.insert_new(key, hash, value)
    }

    /// Puts `value` under `key`, which is not there, and returns the displaced entry.
    fn insert_new(&mut self, key: K, hash: u32, value: V) -> Option<(K, V)> {
        let evicted = if self.len() == self.capacity { self.pop_oldest() } else { None };
        reserve_within(&mut self.entries, self.capacity);
        reserve_within(&mut self.nodes, self.capacity);
        while self.buckets.len() < (self.len() + 1) * BUCKETS_PER_ENTRY {
            self.add_bucket();
        }
        let at = self.entries.len() as u32;
        let chain = self.put_first(at, hash);
        self.entries.push(Entry { key, value });
        self.nodes.push(Node { hash, chain, newer: NONE, older: NONE });
        self.link_newest(at);
        evicted
    }

    /// The value under `key`, made by `make` if it is not there yet; used as by [`KeyedLru::get_lazily`].
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let hash = self.hash_of(&key);
        let at = match self.find_hashed(&key, hash) {
            Some(at) => {
                if self.len() * 2 > self.capacity {
                    self.make_newest(at);
                }
                at
            }
            None => {
                self.insert_new(key, hash, make());
                self.newest
            }
        };
        &mut self.entries[at as usize].value
    }

    /// Takes `key` out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.find(key)?;
        Some(self.take(at).1)
    }

    /// Takes the least recently used entry out.
    pub fn pop_oldest(&mut self) -> Option<(K, V)> {
        if self.oldest == NONE { None } else { Some(self.take(self.oldest)) }
    }

    /// All entries, the most recently used first.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let mut at = self.newest;
        core::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = self.nodes[at as usize].older;
            Some((&entry.key, &entry.value))
        })
    }

    /// All entries, the least recently used first.
    pub fn iter_oldest(&self) -> impl Iterator<Item = (&K, &V)> {
        let mut at = self.oldest;
        core::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = self.nodes[at as usize].newer;
            Some((&entry.key, &entry.value))
        })
    }

    /// Up to `count` entries that lie side by side in memory from a place chosen by `random` on: a cheap draw.
    pub fn sample(&self, random: u64, count: usize) -> impl Iterator<Item = (&K, &V)> {
        let start = ((u128::from(random) * self.entries.len() as u128) >> 64) as usize;
        let around = self.entries[start..].iter().chain(&self.entries[..start]);
        around.map(|entry| (&entry.key, &entry.value)).take(count)
    }

    fn hash_of(&self, key: &K) -> u32 {
        key.mix(self.seed) as u32 & TAG
    }

    fn bucket_of(&self, hash: u32) -> usize {
        let wide = hash as usize & (self.half * 2 - 1);
        if wide < self.buckets.len() { wide } else { wide - self.half }
    }

    /// Makes the entry at `at` the first in the chain of its hash. Gives back the one behind it.
    fn put_first(&mut self, at: u32, hash: u32) -> u32 {
        let bucket = self.bucket_of(hash);
        let (with_it, behind) = self.buckets[bucket].with_first(at, hash);
        self.buckets[bucket] = with_it;
        behind
    }

    /// Adds a bucket, and moves its share of the chain of the bucket it is split from.
    fn add_bucket(&mut self) {
        let split = self.buckets.len() - self.half;
        let Bucket { first, tag } = core::mem::replace(&mut self.buckets[split], Bucket::EMPTY);
        reserve_within(&mut self.buckets, self.capacity * BUCKETS_PER_ENTRY);
        self.buckets.push(Bucket::EMPTY);
        let mut at = first;
        if first != NONE && tag & MORE == 0 {
            self.put_first(first, tag);
            at = NONE;
        }
        while let Some(Node { hash, chain, .. }) = self.nodes.get(at as usize).copied() {
            self.nodes[at as usize].chain = self.put_first(at, hash);
            at = chain;
        }
        if self.buckets.len() == self.half * 2 {
            self.half *= 2;
        }
    }

    fn find(&self, key: &K) -> Option<u32> {
        if self.is_empty() {
            return None; // Scores, above all, are asked about often and kept of few.
        }
        self.find_hashed(key, self.hash_of(key))
    }

    fn find_hashed(&self, key: &K, hash: u32) -> Option<u32> {
        let Bucket { first, tag } = self.buckets[self.bucket_of(hash)];
        let is_it = |at: u32| self.entries.get(at as usize).is_some_and(|entry| entry.key == *key);
        if tag & TAG == hash && is_it(first) {
            return Some(first);
        }
        let mut at = if tag & MORE != 0 { self.nodes[first as usize].chain } else { NONE };
        while let Some(node) = self.nodes.get(at as usize) {
            if node.hash == hash && is_it(at) {
                return Some(at);
            }
            at = node.chain;
        }
        None
    }

    fn take(&mut self, at: u32) -> (K, V) {
        let next = self.nodes[at as usize].chain;
        let second = self.nodes.get(next as usize).map_or(Bucket::EMPTY, |node| {
            let alone = if node.chain == NONE { 0 } else { MORE };
            Bucket { first: next, tag: node.hash | alone }
        });
        self.lead(at, next, |_| second);
        self.unlink(at);
        let last = (self.entries.len() - 1) as u32;
        if at != last {
            self.lead(last, at, |bucket| Bucket { first: at, ..bucket });
            let Node { newer, older, .. } = self.nodes[last as usize];
            *self.older_of(newer) = at;
            *self.newer_of(older) = at;
        }
        self.nodes.swap_remove(at as usize);
        let Entry { key, value } = self.entries.swap_remove(at as usize);
        (key, value)
    }

    /// Redirects the link to the entry at `from` in the chain of its bucket to `to`; a bucket becomes `first(bucket)`.
    fn lead(&mut self, from: u32, to: u32, first: impl FnOnce(Bucket) -> Bucket) {
        let bucket = self.bucket_of(self.nodes[from as usize].hash);
        let mut before = self.buckets[bucket].first;
        if before == from {
            self.buckets[bucket] = first(self.buckets[bucket]);
            return;
        }
        while self.nodes[before as usize].chain != from {
            before = self.nodes[before as usize].chain;
        }
        self.nodes[before as usize].chain = to;
    }

    fn make_newest(&mut self, at: u32) {
        if self.newest != at {
            self.unlink(at);
            self.link_newest(at);
        }
    }

    fn unlink(&mut self, at: u32) {
        let Node { newer, older, .. } = self.nodes[at as usize];
        *self.older_of(newer) = older;
        *self.newer_of(older) = newer;
    }

    fn link_newest(&mut self, at: u32) {
        let older = self.newest;
        let node = &mut self.nodes[at as usize];
        (node.newer, node.older) = (NONE, older);
        *self.newer_of(older) = at;
        self.newest = at;
    }

    /// Where it says which entry is the next older one: older than that at `at`; without one, the newest.
    fn older_of(&mut self, at: u32) -> &mut u32 {
        self.nodes.get_mut(at as usize).map_or(&mut self.newest, |node| &mut node.older)
    }

    fn newer_of(&mut self, at: u32) -> &mut u32 {
        self.nodes.get_mut(at as usize).map_or(&mut self.oldest, |node| &mut node.newer)
    }
}

/// Makes room for one more, in doublings and for `len_max` at most.
fn reserve_within<T>(items: &mut Vec<T>, len_max: usize) {
    if items.len() == items.capacity() {
        items.reserve_exact(items.len().max(4).min(len_max.saturating_sub(items.len())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use proptest::prelude::*;

    #[test]
    fn a_full_map_forgets_what_was_used_longest_ago() {
        let mut map = KeyedLru::new(2, 7);
        map.insert(1_u64, 'a');
        map.insert(2, 'b');
        assert_eq!(map.get(&1), Some(&mut 'a'));
        assert_eq!(map.insert(3, 'c'), Some((2, 'b')));
        assert_eq!(map.peek(&2), None);
        assert_eq!(map.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [3, 1]);
    }

    #[test]
    fn a_lazily_used_entry_is_not_forgotten_before_an_unused_one() {
        let mut map = KeyedLru::new(8, 7);
        for key in 0..8_u64 {
            map.insert(key, ());
            map.get_lazily(&1);
        }
        for key in 8..14 {
            map.insert(key, ());
            map.get_lazily(&1);
        }
        assert!(map.peek(&1).is_some() && map.peek(&0).is_none() && map.peek(&5).is_none());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Get(u64),
        GetLazily(u64),
        GetOrInsert(u64, u8),
        Peek(u64),
        Insert(u64, u8),
        Remove(u64),
        Pop,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let key = 0..24_u64;
        prop::collection::vec(
            prop_oneof![
                key.clone().prop_map(Step::Get),
                key.clone().prop_map(Step::GetLazily),
                (key.clone(), any::<u8>()).prop_map(|(k, v)| Step::GetOrInsert(k, v)),
                key.clone().prop_map(Step::Peek),
                (key.clone(), any::<u8>()).prop_map(|(k, v)| Step::Insert(k, v)),
                key.prop_map(Step::Remove),
                Just(Step::Pop),
            ],
            0..200,
        )
    }

    /// A key that shares its hash with every third other.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Alike(u64);

    impl LruKey for Alike {
        fn mix(&self, seed: u64) -> u64 {
            (self.0 % 3).mix(seed)
        }
    }

    /// The model is a deque, the most recently used in front. A lazily used entry moves in a map more than half full.
    fn check<K: LruKey + core::fmt::Debug>(
        key_of: fn(u64) -> K,
        capacity: usize,
        seed: u64,
        steps: Vec<Step>,
    ) -> Result<(), TestCaseError> {
        let mut map = KeyedLru::new(capacity, seed);
        let mut model: VecDeque<(K, u8)> = VecDeque::new();
        for step in steps {
            match step {
                Step::Get(k) => {
                    let k = key_of(k);
                    let found = model.iter().position(|e| e.0 == k).and_then(|i| model.remove(i));
                    if let Some(e) = found {
                        model.push_front(e);
                    }
                    prop_assert_eq!(map.get(&k).copied(), found.map(|e| e.1));
                }
                Step::GetLazily(k) => {
                    let k = key_of(k);
                    let found = model.iter().position(|e| e.0 == k);
                    let value = found.map(|i| model[i].1);
                    if let Some(e) = found.filter(|_| model.len() * 2 > capacity).and_then(|i| model.remove(i)) {
                        model.push_front(e);
                    }
                    prop_assert_eq!(map.get_lazily(&k).copied(), value);
                }
                Step::GetOrInsert(k, v) => {
                    let k = key_of(k);
                    let found = model.iter().position(|e| e.0 == k);
                    let value = found.map_or(v, |i| model[i].1);
                    if found.is_none() || model.len() * 2 > capacity {
                        match found {
                            Some(i) => drop(model.remove(i)),
                            None if model.len() == capacity => drop(model.pop_back()),
                            None => {}
                        }
                        model.push_front((k, value));
                    }
                    prop_assert_eq!(*map.get_or_insert_with(k, || v), value);
                }
                Step::Peek(k) => {
                    let k = key_of(k);
                    prop_assert_eq!(map.peek(&k).copied(), model.iter().find(|e| e.0 == k).map(|e| e.1));
                }
                Step::Insert(k, v) => {
                    let k = key_of(k);
                    let gone = match model.iter().position(|e| e.0 == k) {
                        Some(i) => model.remove(i),
                        None if model.len() == capacity => model.pop_back(),
                        None => None,
                    };
                    model.push_front((k, v));
                    prop_assert_eq!(map.insert(k, v), gone);
                }
                Step::Remove(k) => {
                    let k = key_of(k);
                    let gone = model.iter().position(|e| e.0 == k).and_then(|i| model.remove(i));
                    prop_assert_eq!(map.remove(&k), gone.map(|e| e.1));
                }
                Step::Pop => prop_assert_eq!(map.pop_oldest(), model.pop_back()),
            }
            prop_assert_eq!(map.len(), model.len());
            prop_assert!(map.iter().map(|(k, v)| (*k, *v)).eq(model.iter().copied()));
            prop_assert!(map.iter_oldest().map(|(k, v)| (*k, *v)).eq(model.iter().rev().copied()));
            prop_assert_eq!(map.sample(seed, 3).count(), model.len().min(3));
            prop_assert!(map.sample(seed, 3).all(|(k, v)| model.contains(&(*k, *v))));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn behaves_like_a_scanned_deque(capacity in 1..16_usize, seed: u64, steps in steps()) {
            check(|key| key, capacity, seed, steps)?;
        }

        #[test]
        fn behaves_like_a_scanned_deque_where_hashes_are_alike(capacity in 1..16_usize, seed: u64, steps in steps()) {
            check(Alike, capacity, seed, steps)?;
        }
    }

    /// A key that counts how often it is compared with another.
    #[derive(Clone, Copy)]
    struct Compared<'a>(u64, &'a core::cell::Cell<usize>);

    impl PartialEq for Compared<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.1.set(self.1.get() + 1);
            self.0 == other.0
        }
    }

    impl Eq for Compared<'_> {}

    impl LruKey for Compared<'_> {
        fn mix(&self, seed: u64) -> u64 {
            self.0.mix(seed)
        }
    }

    #[test]
    fn among_the_entries_only_what_is_asked_for_is_looked_at() {
        let compared = core::cell::Cell::new(0);
        let key = |n| Compared(n, &compared);
        let mut map = KeyedLru::new(5000, 3);
        for n in 0..10_000 {
            map.insert(key(n), ());
        }
        assert!(compared.take() < 10, "an absent key is told by its hash, and so is the entry that makes room");
        assert!((5000..10_000).all(|n| map.get(&key(n)).is_some()));
        assert!((5000..5010).contains(&compared.take()), "and a present key from the others of its chain");
        assert!((0..5000).all(|n| map.peek(&key(n)).is_none()));
        assert!(compared.take() < 10);
    }

    #[test]
    fn an_empty_map_takes_nothing_and_chains_stay_short_at_every_size() {
        let mut map = KeyedLru::<u64, ()>::new(5000, 3);
        assert!(map.bytes().0 < 64, "however much it may hold: {:?}", map.bytes());
        assert!(map.entries.capacity() < 1000);
        for n in 0..5000_u64 {
            map.insert(n * n, ());
            if n % 501 == 500 {
                assert!(map.entries.capacity() <= 2 * (n as usize + 1) && map.entries.capacity() <= 5000, "{n}");
                let steps = |bucket: &Bucket| {
                    let first = map.nodes.get(bucket.first as usize);
                    core::iter::successors(first, |node| map.nodes.get(node.chain as usize)).count()
                };
                let lengths = map.buckets.iter().map(steps);
                assert!(lengths.max() < Some(10), "{n}");
                assert!((0..=n).all(|n| map.peek(&(n * n)).is_some()), "{n}");
            }
        }
    }

    #[test]
    fn bytes_grow_to_their_bound_and_no_further() {
        let mut map = KeyedLru::<u64, [u8; 100]>::new(50, 1);
        let most = 50 * (size_of::<Entry<u64, [u8; 100]>>() + size_of::<Node>() + size_of::<Bucket>());
        assert_eq!(map.bytes().1, most);
        for n in 0..200 {
            map.insert(n, [0; 100]);
            assert!(map.bytes().0 <= most);
        }
        assert_eq!(map.bytes(), (most, most), "full, and no larger");
    }
}
