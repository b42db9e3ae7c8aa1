//! The exact nearest peers of a point, and the size of the network estimated from them.
//!
//! No two buckets overlap in their distances to a point, so they are visited in the order of distance and only the peers of
//! one are sorted among each other.

use tessera_contracts::point::{Distance, Point};

use super::{BUCKETS, K_MAX, Peer, RoutingTable};

/// Indices of peers near a point, nearest first.
#[derive(Debug, Clone, Copy)]
pub struct Closest {
    found: [u16; K_MAX],
    len: usize,
}

impl RoutingTable {
    /// The up to `count` live peers nearest to `target` for which `admit` holds, nearest first. Exact: no live peer left
    /// out is nearer than one returned.
    pub fn closest(&self, target: &impl Point, count: usize, mut admit: impl FnMut(&Peer) -> bool) -> Closest {
        let count = count.min(K_MAX);
        let mut closest = Closest { found: [0; K_MAX], len: 0 };
        let mut distances = [Distance::MAX; K_MAX];
        for at in self.buckets_by_distance(self.own.distance_to(target)) {
            let start = closest.len;
            if start == count {
                break;
            }
            for &index in self.buckets[at].live() {
                let peer = &self.peers[usize::from(index)];
                let distance = peer.id.distance_to(target);
                if closest.len == count && distance >= distances[count - 1] || !admit(peer) {
                    continue;
                }
                // All of this bucket are farther than all before it: sort within its own stretch.
                let mut place = closest.len.min(count - 1);
                while place > start && distances[place - 1] > distance {
                    distances[place] = distances[place - 1];
                    closest.found[place] = closest.found[place - 1];
                    place -= 1;
                }
                distances[place] = distance;
                closest.found[place] = index;
                closest.len = (closest.len + 1).min(count);
            }
        }
        closest
    }

    /// The peers of a result of [`RoutingTable::closest`].
    pub fn peers_of<'a>(&'a self, closest: &'a Closest) -> impl ExactSizeIterator<Item = &'a Peer> + 'a {
        closest.found[..closest.len].iter().map(|index| &self.peers[usize::from(*index)])
    }

    /// About how many nodes the network has, from how near the nearest K are: K points within distance d of us mean a
    /// density of K/d. At least the number of peers known.
    #[must_use]
    pub fn network_size(&self) -> f64 {
        let closest = self.closest(&self.own, self.limits.k, |_| true);
        let known = (self.live + 1) as f64;
        match self.peers_of(&closest).last() {
            Some(farthest) if closest.len == self.limits.k => {
                size_of_density(closest.len, self.own.distance_to(&farthest.id)).max(known)
            }
            _ => known,
        }
    }

    /// Occupied buckets, those with nearer peers first. Bucket j holds the ids that agree with ours before bit j and
    /// differ at it, so the bits of `own ^ target` tell which bucket comes before which, and no two overlap.
    fn buckets_by_distance(&self, distance: Distance) -> impl Iterator<Item = usize> + use<> {
        let first = distance.leading_zeros() as usize;
        let bits = distance.to_bytes();
        let words: [u64; 4] =
            core::array::from_fn(|w| u64::from_be_bytes(core::array::from_fn(|byte| bits[w * 8 + byte])));
        let occupied = self.occupied;
        let after: [u64; 4] = core::array::from_fn(|w| mask_from(first + 1, w));
        let nearer: [u64; 4] = core::array::from_fn(|w| occupied[w] & words[w] & after[w]);
        let farther: [u64; 4] = core::array::from_fn(|w| occupied[w] & !words[w] & after[w]);
        let before: [u64; 4] = core::array::from_fn(|w| occupied[w] & !mask_from(first, w));
        let same = (first < BUCKETS && occupied[first / 64] >> (63 - first % 64) & 1 == 1).then_some(first);
        same.into_iter().chain(ascending(nearer)).chain(descending(farther)).chain(descending(before))
    }
}

/// The network size that `count` nodes within `farthest` of a point speak for.
#[must_use]
pub fn size_of_density(count: usize, farthest: Distance) -> f64 {
    const SPACE: f64 = 18_446_744_073_709_551_616.0; // 2^64, of which the first 64 bits of the distance are a share.
    count as f64 * SPACE / (farthest.prefix(64) as f64 + 1.0)
}

/// Bits of word `w` that belong to places `from` and later.
fn mask_from(from: usize, w: usize) -> u64 {
    match from.saturating_sub(w * 64) {
        0 => u64::MAX,
        skip @ 1..64 => u64::MAX >> skip,
        _ => 0,
    }
}

fn ascending(mut words: [u64; 4]) -> impl Iterator<Item = usize> {
    let mut w = 0;
    core::iter::from_fn(move || {
        while w < 4 && words[w] == 0 {
            w += 1;
        }
        let word = words.get_mut(w)?;
        let place = word.leading_zeros() as usize;
        *word &= !(1 << (63 - place));
        Some(w * 64 + place)
    })
}

fn descending(mut words: [u64; 4]) -> impl Iterator<Item = usize> {
    let mut w = 4;
    core::iter::from_fn(move || {
        while w > 0 && words[w - 1] == 0 {
            w -= 1;
        }
        let word = words.get_mut(w.checked_sub(1)?)?;
        let place = 63 - word.trailing_zeros() as usize;
        *word &= *word - 1;
        Some((w - 1) * 64 + place)
    })
}
