//! Which lane of a node owns an id.
//!
//! The bits of `own id XOR id` pick one of 256 *slots*, and a table gives each slot a lane. The table makes any number of
//! lanes possible, and it is what changes when lanes come and go: only slots that must move do.
//!
//! Which bits are read is the [`Selector`]. Others ask a node about ids near its own, and there the leading bits of the
//! distance are all zero: with [`Selector::Leading`] every request would meet one lane. [`Selector::Striped`] therefore
//! reads eight bits that lie deeper; ids that share the whole prefix still stay together. A test shows both loads.
//!
//! Every change gives the map a new [`MapVersion`], so that a message routed by an old map can be told and sent on.

use core::fmt;

use crate::point::{Distance, Point};

/// Slots in a map, and so also the most lanes.
pub const SLOTS: usize = 256;

/// The prefix depth of [`Selector::Striped`] unless configured: deep enough for ten million nodes.
pub const STRIPED_BITS_DEFAULT: u8 = 24;

/// One of 256 groups of ids that move together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u8);

/// A lane of this node, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaneIndex(pub u8);

/// Grows with every change of a map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MapVersion(pub u16);

impl MapVersion {
    /// The version after this one; it wraps, as only neighbours are ever compared.
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether this version came after `other`: up to half the numbers ahead count as after.
    pub const fn is_after(self, other: Self) -> bool {
        self.0 != other.0 && self.0.wrapping_sub(other.0) < 1 << 15
    }
}

/// Which bits of the distance pick the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selector {
    /// The first eight. With a power of two of lanes, `2^k`, the owner is the first `k` bits of the distance.
    Leading,
    /// The last eight of the first `bits`; made by [`Selector::striped`].
    Striped(StripedBits),
}

/// A prefix depth from 8 to 64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StripedBits(u8);

impl Selector {
    /// Reads the last eight of the first `bits` bits, 8 to 64.
    pub const fn striped(bits: u8) -> Result<Self, MapError> {
        match bits {
            8..=64 => Ok(Self::Striped(StripedBits(bits))),
            _ => Err(MapError::StripedBits { bits }),
        }
    }

    /// The slot of something at this distance.
    pub fn slot(self, distance: Distance) -> Slot {
        let bits = match self {
            Self::Leading => 8,
            Self::Striped(StripedBits(bits)) => u32::from(bits),
        };
        Slot((distance.prefix(bits) % SLOTS as u64) as u8)
    }
}

impl Default for Selector {
    fn default() -> Self {
        Self::Striped(StripedBits(STRIPED_BITS_DEFAULT))
    }
}

/// Which lane owns which slot, at one version.
#[derive(Clone, PartialEq, Eq)]
pub struct PrefixMap {
    selector: Selector,
    version: MapVersion,
    lanes: u16,
    /// Whose each slot is when nothing is lent.
    home: [LaneIndex; SLOTS],
    /// The lane that serves each slot now.
    serving: [LaneIndex; SLOTS],
}

impl PrefixMap {
    /// A map over `lanes` lanes, 1 to 256, each with its fair share of neighbouring slots.
    pub fn new(selector: Selector, lanes: usize) -> Result<Self, MapError> {
        let lanes = lane_count(lanes)?;
        let home = core::array::from_fn(|slot| LaneIndex((slot * usize::from(lanes) / SLOTS) as u8));
        Ok(Self { selector, version: MapVersion(0), lanes, home, serving: home })
    }

    /// A map from its parts, as [`home`](Self::home) and [`table`](Self::table) give them.
    pub fn of_tables(
        selector: Selector,
        version: MapVersion,
        lanes: usize,
        home: [LaneIndex; SLOTS],
        serving: [LaneIndex; SLOTS],
    ) -> Result<Self, MapError> {
        let map = Self { selector, version, lanes: lane_count(lanes)?, home, serving };
        match home.iter().chain(&serving).find(|lane| usize::from(lane.0) >= lanes) {
            Some(lane) => Err(MapError::NoSuchLane { lane: *lane, lanes }),
            None => Ok(map),
        }
    }

    /// The slot of `id` as seen from `own`.
    pub fn slot(&self, own: &impl Point, id: &impl Point) -> Slot {
        self.selector.slot(own.distance_to(id))
    }

    /// The lane that serves `id` as seen from `own`.
    pub fn lane(&self, own: &impl Point, id: &impl Point) -> LaneIndex {
        self.lane_of_slot(self.slot(own, id))
    }

    /// The lane that serves `slot`.
    pub fn lane_of_slot(&self, slot: Slot) -> LaneIndex {
        self.serving[usize::from(slot.0)]
    }

    /// The whole table by slot, as a packet filter wants it.
    pub const fn table(&self) -> &[LaneIndex; SLOTS] {
        &self.serving
    }

    /// Whose each slot is when nothing is lent.
    pub const fn home(&self) -> &[LaneIndex; SLOTS] {
        &self.home
    }

    /// Which bits are read.
    pub const fn selector(&self) -> Selector {
        self.selector
    }

    /// The version of this table.
    pub const fn version(&self) -> MapVersion {
        self.version
    }

    /// How many lanes there are, helpers included.
    pub fn lanes(&self) -> usize {
        usize::from(self.lanes)
    }

    /// How many slots `lane` serves.
    pub fn load(&self, lane: LaneIndex) -> usize {
        self.serving.iter().filter(|serving| **serving == lane).count()
    }

    /// The map for another number of lanes: fair shares again, with as few slots moved as that takes.
    ///
    /// Lanes go from the top: those with an index of `lanes` or more lose all their slots. A lent slot counts as
    /// belonging to the lane that serves it, since that has the records.
    pub fn resized(&self, lanes: usize) -> Result<Self, MapError> {
        let lanes = lane_count(lanes)?;
        let mut table = self.serving;
        let mut loads = [0_usize; SLOTS];
        table.iter().for_each(|lane| loads[usize::from(lane.0)] += 1);

        // Everyone may keep a floor share; the slots that do not divide go, one each, to lanes that hold more already.
        let (floor, mut spare) = (SLOTS / usize::from(lanes), SLOTS % usize::from(lanes));
        let mut quota = [0; SLOTS];
        let staying = 0..usize::from(lanes);
        for lane in staying.clone() {
            quota[lane] = floor + usize::from(spare > 0 && loads[lane] > floor);
            spare -= quota[lane] - floor;
        }
        for lane in staying.clone().filter(|lane| loads[*lane] <= floor).take(spare) {
            quota[lane] += 1;
        }

        let mut receiver = 0;
        for owner in &mut table {
            let from = usize::from(owner.0);
            if loads[from] > quota[from] {
                while loads[receiver] >= quota[receiver] {
                    receiver += 1; // Quotas add up to all slots, so a slot too many here is one too few further on.
                }
                loads[from] -= 1;
                loads[receiver] += 1;
                *owner = LaneIndex(receiver as u8);
            }
        }
        Ok(Self { lanes, version: self.version.next(), home: table, serving: table, selector: self.selector })
    }

    /// The map with `slot` lent to `helper`, to relieve its lane.
    pub fn lent(&self, slot: Slot, helper: LaneIndex) -> Result<Self, MapError> {
        if u16::from(helper.0) >= self.lanes {
            return Err(MapError::NoSuchLane { lane: helper, lanes: self.lanes() });
        }
        let mut next = Self { version: self.version.next(), ..self.clone() };
        next.serving[usize::from(slot.0)] = helper;
        Ok(next)
    }

    /// The map with every lent slot back home.
    pub fn all_returned(&self) -> Self {
        Self { version: self.version.next(), serving: self.home, ..self.clone() }
    }

    /// The map with `slot` back home.
    pub fn returned(&self, slot: Slot) -> Self {
        let mut next = Self { version: self.version.next(), ..self.clone() };
        next.serving[usize::from(slot.0)] = self.home[usize::from(slot.0)];
        next
    }

    /// Slots that are lent now, with the lane they belong to and the lane that serves them.
    pub fn loans(&self) -> impl Iterator<Item = Move> + '_ {
        moves(&self.home, &self.serving)
    }

    /// Slots that change owner from this map to `next`: these must be handed over, and no others.
    pub fn moves_to<'a>(&'a self, next: &'a Self) -> impl Iterator<Item = Move> + 'a {
        moves(&self.serving, &next.serving)
    }
}

impl fmt::Debug for PrefixMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixMap")
            .field("selector", &self.selector)
            .field("version", &self.version)
            .field("lanes", &self.lanes)
            .finish_non_exhaustive()
    }
}

/// One slot that changes hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The slot.
    pub slot: Slot,
    /// The lane it leaves.
    pub from: LaneIndex,
    /// The lane it goes to.
    pub to: LaneIndex,
}

/// Why a map cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Not a number of lanes.
    #[error("{lanes} lanes asked for; a node has 1 to 256")]
    LaneCount {
        /// Lanes asked for.
        lanes: usize,
    },
    /// A helper that is not there.
    #[error("lane {} does not exist; this node has {lanes}, counted from 0", lane.0)]
    NoSuchLane {
        /// The lane named.
        lane: LaneIndex,
        /// How many there are.
        lanes: usize,
    },
    /// A prefix too short to pick a slot, or too long to read.
    #[error("a striped selector reads 8 to 64 bits, not {bits}")]
    StripedBits {
        /// Bits asked for.
        bits: u8,
    },
}

fn lane_count(lanes: usize) -> Result<u16, MapError> {
    match lanes {
        1..=SLOTS => Ok(lanes as u16),
        _ => Err(MapError::LaneCount { lanes }),
    }
}

fn moves<'a>(from: &'a [LaneIndex; SLOTS], to: &'a [LaneIndex; SLOTS]) -> impl Iterator<Item = Move> + 'a {
    (0..=u8::MAX).zip(from.iter().zip(to)).filter(|(_, (from, to))| from != to).map(|(slot, (&from, &to))| Move {
        slot: Slot(slot),
        from,
        to,
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::point::{ContentId, NodeId};

    fn map(selector: Selector, lanes: usize) -> PrefixMap {
        PrefixMap::new(selector, lanes).unwrap()
    }

    fn shares(map: &PrefixMap) -> Vec<usize> {
        (0..map.lanes()).map(|lane| map.load(LaneIndex(lane as u8))).collect()
    }

    /// The fewest slots that must change lane for fair shares: all but the most that can stay.
    fn moves_lower_bound(shares: &[usize], lanes: usize) -> usize {
        let (floor, spare) = (SLOTS / lanes, SLOTS % lanes);
        let staying = || shares.iter().take(lanes);
        let kept: usize = staying().map(|share| (*share).min(floor)).sum();
        SLOTS - kept - staying().filter(|share| **share > floor).count().min(spare)
    }

    fn is_fair(map: &PrefixMap) -> bool {
        let floor = SLOTS / map.lanes();
        let shares = shares(map);
        shares.iter().sum::<usize>() == SLOTS && shares.iter().all(|share| *share == floor || *share == floor + 1)
    }

    #[test]
    fn one_to_256_lanes_share_fairly_and_others_are_refused() {
        for lanes in 1..=256 {
            assert!(is_fair(&map(Selector::default(), lanes)), "{lanes} lanes");
        }
        assert_eq!(PrefixMap::new(Selector::default(), 0), Err(MapError::LaneCount { lanes: 0 }));
        assert_eq!(PrefixMap::new(Selector::default(), 257), Err(MapError::LaneCount { lanes: 257 }));
        assert_eq!(map(Selector::default(), 4).resized(257), Err(MapError::LaneCount { lanes: 257 }));
    }

    #[test]
    fn striped_depth_runs_from_8_to_64() {
        for bits in [8, 64] {
            assert!(Selector::striped(bits).is_ok());
        }
        for bits in [0, 7, 65] {
            assert_eq!(Selector::striped(bits), Err(MapError::StripedBits { bits }));
        }
        assert_eq!(Selector::striped(24), Ok(Selector::default()));
    }

    #[test]
    fn versions_are_ordered_across_the_wrap() {
        let (last, first) = (MapVersion(u16::MAX), MapVersion(u16::MAX).next());
        assert!(first.is_after(last) && !last.is_after(first) && !first.is_after(first));
    }

    #[test]
    fn a_slot_is_lent_to_a_helper_and_comes_back() {
        let before = map(Selector::default(), 4);
        let lent = before.lent(Slot(9), LaneIndex(3)).unwrap();
        let loan = Move { slot: Slot(9), from: LaneIndex(0), to: LaneIndex(3) };
        assert_eq!(lent.lane_of_slot(Slot(9)), LaneIndex(3));
        assert_eq!(lent.loans().collect::<Vec<_>>(), [loan]);
        assert_eq!(before.moves_to(&lent).collect::<Vec<_>>(), [loan]);
        assert!(lent.version().is_after(before.version()));

        let returned = lent.returned(Slot(9));
        assert_eq!(returned.table(), before.table());
        assert!(returned.version().is_after(lent.version()));
        assert_eq!(lent.all_returned().table(), before.table());
        let refused = before.lent(Slot(9), LaneIndex(4));
        assert_eq!(refused, Err(MapError::NoSuchLane { lane: LaneIndex(4), lanes: 4 }));
    }

    /// The load of each lane, in per cent, when ids are those this node is asked about in a network of `2^depth` nodes.
    fn load_near_own_id(selector: Selector, lanes: usize, depth: u32) -> Vec<f64> {
        let own = NodeId::of_public_key(&[9; 32]);
        let map = map(selector, lanes);
        let mut counts = vec![0_u32; lanes];
        let samples = 100_000_u32;
        for sample in 0..samples {
            let mut bytes = *ContentId::of_immutable(&sample.to_le_bytes()).as_bytes();
            for bit in 0..depth as usize {
                let mask = 0x80 >> (bit % 8);
                bytes[bit / 8] = bytes[bit / 8] & !mask | own.as_bytes()[bit / 8] & mask;
            }
            counts[usize::from(map.lane(&own, &ContentId::from_bytes(bytes)).0)] += 1;
        }
        counts.iter().map(|count| f64::from(*count) * 100.0 / f64::from(samples)).collect()
    }

    #[test]
    fn leading_bits_send_ids_near_our_own_to_one_lane_and_striped_bits_spread_them() {
        for depth in [8, 12] {
            assert_eq!(load_near_own_id(Selector::Leading, 4, depth), [100.0, 0.0, 0.0, 0.0]);
        }
        for (lanes, depth) in [(3, 8), (4, 12), (6, 16), (8, 16)] {
            let fair = 100.0 / lanes as f64;
            for load in load_near_own_id(Selector::default(), lanes, depth) {
                assert!((load - fair).abs() < 1.0, "{load} % on a lane of {lanes}, fair is {fair} %");
            }
        }
    }

    proptest! {
        #[test]
        fn leading_selector_with_a_power_of_two_of_lanes_is_the_first_bits_of_the_distance(
            own: [u8; 32], id: [u8; 32], k in 0_u32..=8,
        ) {
            let (own, id) = (NodeId::from_bytes(own), ContentId::from_bytes(id));
            let lane = map(Selector::Leading, 1 << k).lane(&own, &id);
            prop_assert_eq!(u64::from(lane.0), own.distance_to(&id).prefix(k));
        }

        #[test]
        fn ids_that_share_the_whole_prefix_share_a_lane(
            own: [u8; 32], id: [u8; 32], tail: [u8; 29], lanes in 1_usize..=256,
        ) {
            let own = NodeId::from_bytes(own);
            let mut neighbour = id;
            neighbour[3..].copy_from_slice(&tail);
            let map = map(Selector::default(), lanes);
            let (id, neighbour) = (ContentId::from_bytes(id), ContentId::from_bytes(neighbour));
            prop_assert_eq!(map.lane(&own, &id), map.lane(&own, &neighbour));
        }

        #[test]
        fn resizing_is_fair_and_moves_as_few_slots_as_can_be(
            first in 1_usize..=256,
            sizes in prop::collection::vec(1_usize..=256, 1..6),
            loans: Vec<(u8, u8)>,
        ) {
            let mut current = map(Selector::default(), first);
            for (slot, helper) in loans {
                let helper = LaneIndex((usize::from(helper) % first) as u8);
                current = current.lent(Slot(slot), helper).unwrap();
            }
            for lanes in sizes {
                let bound = moves_lower_bound(&shares(&current), lanes);
                let next = current.resized(lanes).unwrap();
                prop_assert!(is_fair(&next));
                prop_assert_eq!(current.moves_to(&next).count(), bound);
                prop_assert_eq!(next.loans().count(), 0);
                current = next;
            }
        }
    }
}
