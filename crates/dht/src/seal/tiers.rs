//! A bounded memory of peers in which an entry displaces only entries of no better standing.
//!
//! A key costs nothing and a source address can be made up, so a peer that has shown neither a cookie nor an answer of its own must not choose
//! which other entries are forgotten. Entries stand in one of three tiers, each a least-recently-used map of its own: *proven* peers, peers that this
//! node *asked*, and *unproven* ones. An address prefix has a bounded share of the proven tier; at its share it displaces its own oldest entry.
//! Prefixes of private networks have no share: they are one owner's, and behind a gateway all peers seem to be there.

use crate::addr::AddrPrefix;
use crate::keyed_lru::{KeyedLru, LruKey, sum};
use crate::rng::LaneRng;

/// Of a memory, this part is for peers that were asked and have not answered, and the same part for unproven ones.
const TIER_PART: usize = 8;

/// Proven entries that are searched for one of a prefix that is at its share.
const SHARE_SEARCH: usize = 64;

/// How well a peer is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Its datagrams are authentic; its address may be made up.
    Unproven,
    /// This node has asked it something.
    Asked,
    /// It has echoed a cookie for an address of this prefix, or answered from there.
    Proven(AddrPrefix),
}

/// Bounds of the proven tier.
#[derive(Debug, Clone, Copy)]
pub(super) struct TierLimits {
    /// Entries of all tiers.
    pub(super) entries_max: usize,
    /// Proven entries of one address prefix.
    pub(super) per_prefix_max: usize,
    /// Room for this many is reserved in each tier.
    pub(super) first: usize,
}

#[derive(Debug)]
struct Proven<V> {
    value: V,
    prefix: AddrPrefix,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Tiers<K, V> {
    proven: KeyedLru<K, Proven<V>>,
    asked: KeyedLru<K, V>,
    unproven: KeyedLru<K, V>,
    /// Proven entries by prefix; as many as entries at most, so that none is forgotten.
    shares: KeyedLru<u64, u32>,
    per_prefix_max: usize,
}

impl<K: LruKey, V> Tiers<K, V> {
    pub(super) fn new(limits: TierLimits, rng: &mut LaneRng) -> Self {
        let part = (limits.entries_max / TIER_PART).max(1);
        let proven = limits.entries_max.saturating_sub(2 * part).max(1);
        Self {
            proven: KeyedLru::with_room(limits.first, proven, rng.u64()),
            asked: KeyedLru::with_room(limits.first / TIER_PART, part, rng.u64()),
            unproven: KeyedLru::with_room(limits.first / TIER_PART, part, rng.u64()),
            shares: KeyedLru::with_room(limits.first / TIER_PART, proven, rng.u64()),
            per_prefix_max: limits.per_prefix_max.max(1),
        }
    }

    pub(super) fn reserve_all(&mut self) {
        self.proven.reserve_all();
        self.asked.reserve_all();
        self.unproven.reserve_all();
        self.shares.reserve_all();
    }

    pub(super) fn len(&self) -> usize {
        self.proven.len() + self.asked.len() + self.unproven.len()
    }

    pub(super) fn bytes(&self) -> (usize, usize) {
        sum([self.proven.bytes(), self.asked.bytes(), self.unproven.bytes(), self.shares.bytes()])
    }

    pub(super) fn peek(&self, key: &K) -> Option<&V> {
        let proven = self.proven.peek(key).map(|proven| &proven.value);
        proven.or_else(|| self.asked.peek(key)).or_else(|| self.unproven.peek(key))
    }

    /// The entry of `key`, and whether it is proven. Counts as a use.
    #[inline]
    pub(super) fn get(&mut self, key: &K) -> Option<(&mut V, bool)> {
        if let Some(proven) = self.proven.get_lazily(key) {
            return Some((&mut proven.value, true));
        }
        if let Some(asked) = self.asked.get_lazily(key) {
            return Some((asked, false));
        }
        self.unproven.get_lazily(key).map(|unproven| (unproven, false))
    }

    /// The first entry under one of `keys` that is the one looked for, and whether it is proven. Counts as a use.
    #[inline]
    pub(super) fn find(
        &mut self,
        keys: impl Iterator<Item = K> + Clone,
        is_it: impl Fn(&V) -> bool,
    ) -> Option<(&mut V, bool)> {
        if let Some(proven) = self.proven.find_lazily(keys.clone(), |proven| is_it(&proven.value)) {
            return Some((&mut proven.value, true));
        }
        self.unproven.find_lazily(keys, is_it).map(|unproven| (unproven, false))
    }

    /// Adds an entry that is not there. The displaced entry has no better standing.
    pub(super) fn insert(&mut self, key: K, value: V, standing: Standing) {
        match standing {
            Standing::Unproven => drop(self.unproven.insert(key, value)),
            Standing::Asked => drop(self.asked.insert(key, value)),
            Standing::Proven(prefix) if self.has_share(prefix) => {
                if !prefix.is_private() {
                    *self.shares.get_or_insert_with(prefix.0, || 0) += 1;
                }
                if let Some((_, gone)) = self.proven.insert(key, Proven { value, prefix }) {
                    self.give_back(gone.prefix);
                }
            }
            Standing::Proven(_) => drop(self.unproven.insert(key, value)),
        }
    }

    /// Takes an entry out, of any standing.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        if let Some(proven) = self.proven.remove(key) {
            self.give_back(proven.prefix);
            return Some(proven.value);
        }
        self.asked.remove(key).or_else(|| self.unproven.remove(key))
    }

    /// Raises an entry that is there to a better standing.
    pub(super) fn raise(&mut self, key: &K, standing: Standing) {
        let is_better = match standing {
            Standing::Unproven => false,
            Standing::Asked => self.unproven.peek(key).is_some(),
            Standing::Proven(_) => self.proven.peek(key).is_none(),
        };
        if is_better && let Some(value) = self.asked.remove(key).or_else(|| self.unproven.remove(key)) {
            self.insert(*key, value, standing);
        }
    }

    /// Whether a prefix may have one more proven entry; at its share its oldest goes, if that is among the oldest of all.
    fn has_share(&mut self, prefix: AddrPrefix) -> bool {
        let used = self.shares.peek(&prefix.0).map_or(0, |used| *used as usize);
        if prefix.is_private() || used < self.per_prefix_max {
            return true;
        }
        let is_its_own = |(_, proven): &(&K, &Proven<V>)| proven.prefix == prefix;
        let oldest = self.proven.iter_oldest().take(SHARE_SEARCH).find(is_its_own).map(|(key, _)| *key);
        let Some(oldest) = oldest else { return false };
        self.proven.remove(&oldest);
        self.give_back(prefix);
        true
    }

    fn give_back(&mut self, prefix: AddrPrefix) {
        if let Some(used) = self.shares.get(&prefix.0) {
            *used -= 1;
            if *used == 0 {
                self.shares.remove(&prefix.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;

    const A: AddrPrefix = AddrPrefix(0xffff_0000_00c6_3364);
    const B: AddrPrefix = AddrPrefix(0xffff_0000_00c6_3365);

    fn tiers(per_prefix_max: usize) -> Tiers<u64, ()> {
        let limits = TierLimits { entries_max: 32, per_prefix_max, first: 0 };
        Tiers::new(limits, &mut LaneRng::new([1; 32]))
    }

    #[test]
    fn an_entry_displaces_only_what_has_no_better_standing() {
        assert_eq!((A, B), (Addr::v4([198, 51, 100, 1], 1).prefix(), Addr::v4([198, 51, 101, 1], 1).prefix()));
        let mut tiers = tiers(100);
        tiers.insert(1, (), Standing::Proven(A));
        tiers.insert(2, (), Standing::Asked);
        (100..200).for_each(|key| tiers.insert(key, (), Standing::Unproven));
        assert!(tiers.peek(&1).is_some() && tiers.peek(&2).is_some() && tiers.peek(&100).is_none());
        (200..300).for_each(|key| tiers.insert(key, (), Standing::Asked));
        assert!(tiers.peek(&1).is_some() && tiers.peek(&2).is_none());
        assert!(tiers.len() <= 32);
    }

    #[test]
    fn a_prefix_at_its_share_displaces_its_own_oldest_entry() {
        let mut tiers = tiers(4);
        tiers.insert(1, (), Standing::Proven(B));
        for key in 10..30 {
            tiers.insert(key, (), Standing::Unproven);
            tiers.raise(&key, Standing::Proven(A));
        }
        assert_eq!(
            (10..30).filter(|key| tiers.proven.peek(key).is_some()).collect::<alloc::vec::Vec<_>>(),
            [26, 27, 28, 29]
        );
        assert!(tiers.proven.peek(&1).is_some());
        assert!(tiers.remove(&26).is_some());
        tiers.insert(40, (), Standing::Proven(A));
        assert!(tiers.proven.peek(&27).is_some(), "what goes is given back");
    }

    #[test]
    fn a_private_network_may_fill_the_memory() {
        let mut tiers = tiers(4);
        let private = Addr::v4([10, 0, 0, 1], 1).prefix();
        (0..20).for_each(|key| tiers.insert(key, (), Standing::Proven(private)));
        assert_eq!(tiers.proven.len(), 20);
    }

    #[test]
    fn raising_moves_an_entry_once_and_never_lowers_it() {
        let mut tiers = tiers(4);
        tiers.raise(&1, Standing::Proven(A));
        assert_eq!(tiers.len(), 0, "nothing is made of nothing");
        tiers.insert(1, (), Standing::Unproven);
        for standing in [Standing::Asked, Standing::Proven(A), Standing::Asked, Standing::Proven(B), Standing::Unproven]
        {
            tiers.raise(&1, standing);
            assert_eq!(tiers.len(), 1);
        }
        assert_eq!(tiers.get(&1).map(|(_, is_proven)| is_proven), Some(true));
    }
}
