//! Bounded idempotency: the last operations on a shard and what they answered.
//!
//! Small and inline, so that a record is stored whole and a retry costs no allocation. A retry the log has forgotten is
//! caught by status, cursor or fence; a residual split also looks for the child it made. Not here: what a replay means
//! for each operation, which is in [`validation`](crate::validation).

use core::hash::{Hash, Hasher};

use tessera_contracts::PayloadHash;
use tessera_contracts::ids::{LogicalTime, OpId};
use tessera_stdx::RingBuffer;

/// How many operations a shard remembers.
pub const OP_LOG_CAP: usize = 16;

/// Which operation an entry stands for. Stored by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum OpKind {
    /// `checkpoint`
    Checkpoint = 0,
    /// `complete`
    Complete = 1,
    /// `park_shard`
    Park = 2,
    /// `split_replace`
    SplitReplace = 3,
    /// `split_residual`
    SplitResidual = 4,
    /// `unpark_shard`
    Unpark = 5,
    /// `release`
    Release = 6,
}

/// What became of a remembered operation. Stored by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum OpResult {
    /// It took effect, and the effect stands as far as this operation is concerned.
    Completed = 0,
    /// Reserved: a refused operation changes nothing and so is not remembered. The number is kept free for a backend
    /// that must remember a failure; nothing writes it today, and a decoder accepts it.
    Error = 1,
    /// It took effect and was undone since: a park, after the shard was unparked. A replay says so.
    Superseded = 2,
}

const _: () = {
    assert!(OpKind::Checkpoint as u8 == 0);
    assert!(OpKind::Complete as u8 == 1);
    assert!(OpKind::Park as u8 == 2);
    assert!(OpKind::SplitReplace as u8 == 3);
    assert!(OpKind::SplitResidual as u8 == 4);
    assert!(OpKind::Unpark as u8 == 5);
    assert!(OpKind::Release as u8 == 6);
    assert!(OpResult::Completed as u8 == 0);
    assert!(OpResult::Error as u8 == 1);
    assert!(OpResult::Superseded as u8 == 2);
};

impl OpKind {
    /// All kinds, by number.
    pub const ALL: [Self; 7] = [
        Self::Checkpoint,
        Self::Complete,
        Self::Park,
        Self::SplitReplace,
        Self::SplitResidual,
        Self::Unpark,
        Self::Release,
    ];

    /// The stored number.
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// The kind with this stored number, if there is one.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl OpResult {
    /// All results, by number.
    pub const ALL: [Self; 3] = [Self::Completed, Self::Error, Self::Superseded];

    /// The stored number.
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// The result with this stored number, if there is one.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// One remembered operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OpLogEntry {
    /// The caller's idempotency key.
    pub op_id: OpId,
    /// Fingerprint of the parameters.
    pub payload_hash: PayloadHash,
    /// When it first took effect.
    pub executed_at: LogicalTime,
    /// Which operation it was.
    pub kind: OpKind,
    /// What became of it.
    pub result: OpResult,
}

/// The last `N` operations, oldest first.
///
/// Beside the entries lies one byte of each op id. Nearly every operation is new, and that shows in one cache line instead
/// of the eight that sixteen entries fill.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct OpLog<const N: usize = OP_LOG_CAP> {
    /// The tag of the entry written `n`-th is at `n % N`.
    tags: [u8; N],
    /// How many were ever written, modulo 2^32, a multiple of `N`.
    written: u32,
    entries: RingBuffer<OpLogEntry, N>,
}

impl<const N: usize> OpLog<N> {
    /// An empty log.
    pub const fn new() -> Self {
        Self { tags: [0; N], written: 0, entries: RingBuffer::new() }
    }

    /// Where the entries begin; the ring's own counts lie in front of them.
    pub(crate) const ENTRIES_AT: usize = core::mem::offset_of!(Self, entries) + 8;

    /// What is remembered of `op_id`.
    #[inline]
    pub fn find(&self, op_id: OpId) -> Option<&OpLogEntry> {
        let tag = tag(op_id);
        if !self.has_tag(tag) {
            return None;
        }
        self.with_tag(tag).find(|entry| entry.op_id == op_id)
    }

    /// Whether a place has this tag. Without a branch, so that sixteen tags are compared at once.
    #[inline]
    fn has_tag(&self, tag: u8) -> bool {
        self.tags.iter().fold(false, |found, seen| found | (*seen == tag))
    }

    /// Entries whose op id has this tag: all that could be of one id, and few others.
    fn with_tag(&self, tag: u8) -> impl Iterator<Item = &OpLogEntry> {
        let oldest = (self.written as usize).wrapping_sub(self.entries.len());
        let tagged = self.tags.iter().enumerate().filter(move |(_, seen)| **seen == tag);
        tagged.filter_map(move |(place, _)| self.entries.get(place.wrapping_sub(oldest) % N))
    }

    fn push(&mut self, entry: OpLogEntry) {
        self.tags[self.written as usize % N] = tag(entry.op_id);
        self.written = self.written.wrapping_add(1);
        self.entries.push_back_overwrite(entry);
    }

    /// Remembers an operation and forgets the oldest if the log is full.
    pub fn record(&mut self, entry: OpLogEntry) {
        debug_assert!(self.find(entry.op_id).is_none(), "a remembered operation is replayed, not recorded again");
        self.push(entry);
    }

    /// Marks the park that stands as undone, if it is still remembered.
    pub fn supersede_park(&mut self) {
        for index in 0..self.entries.len() {
            if let Some(entry) = self.entries.get_mut(index)
                && entry.kind == OpKind::Park
                && entry.result == OpResult::Completed
            {
                entry.result = OpResult::Superseded;
            }
        }
    }

    /// Remembered operations, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &OpLogEntry> + ExactSizeIterator {
        self.entries.iter()
    }

    /// How many are remembered.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is remembered.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The first op id that is remembered twice, which none ever should be.
    pub(crate) fn duplicate(&self) -> Option<OpId> {
        self.entries
            .iter()
            .enumerate()
            .find(|(index, entry)| self.entries.iter().take(*index).any(|earlier| earlier.op_id == entry.op_id))
            .map(|(_, entry)| entry.op_id)
    }
}

/// One byte of an op id. Ids are random, but need not be: the multiplication spreads those that count up.
const fn tag(op_id: OpId) -> u8 {
    (op_id.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl<const N: usize> Default for OpLog<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// Logs that remember the same are equal, however often they were written.
impl<const N: usize> PartialEq for OpLog<N> {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl<const N: usize> Eq for OpLog<N> {}

impl<const N: usize> Hash for OpLog<N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.len());
        for entry in self.iter() {
            entry.hash(state);
        }
    }
}

impl<const N: usize> FromIterator<OpLogEntry> for OpLog<N> {
    /// Rebuilds a log from stored entries, oldest first; of more than `N` the last `N` stay.
    fn from_iter<I: IntoIterator<Item = OpLogEntry>>(entries: I) -> Self {
        let mut log = Self::new();
        for entry in entries {
            log.push(entry);
        }
        log
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(op_id: u64, kind: OpKind) -> OpLogEntry {
        OpLogEntry {
            op_id: OpId::new(op_id),
            payload_hash: PayloadHash::from_stored(op_id + 1).unwrap(),
            executed_at: LogicalTime::new(op_id),
            kind,
            result: OpResult::Completed,
        }
    }

    #[test]
    fn the_seventeenth_operation_pushes_out_the_first_and_no_other() {
        let mut log = OpLog::<OP_LOG_CAP>::new();
        for id in 1..=16 {
            log.record(entry(id, OpKind::Checkpoint));
        }
        assert!(log.find(OpId::new(1)).is_some());
        log.record(entry(17, OpKind::Checkpoint));
        assert!(log.find(OpId::new(1)).is_none());
        assert!(log.find(OpId::new(2)).is_some());
        assert_eq!(log.len(), 16);
    }

    #[test]
    fn every_remembered_operation_is_found_at_every_length_and_turn() {
        fn check<const N: usize>() {
            let mut log = OpLog::<N>::new();
            for newest in 1..=4 * N as u64 + 3 {
                log.record(entry(newest * 31, OpKind::Checkpoint));
                for id in 1..=newest + 1 {
                    let remembered = id <= newest && id + N as u64 > newest;
                    assert_eq!(log.find(OpId::new(id * 31)).is_some(), remembered, "{id} of {newest} in {N}");
                }
                let rebuilt: OpLog<N> = log.iter().copied().collect();
                assert_eq!(rebuilt, log);
            }
        }
        check::<1>();
        check::<2>();
        check::<16>();
    }

    #[test]
    fn superseding_touches_parks_only() {
        let mut log: OpLog<4> = [entry(1, OpKind::Checkpoint), entry(2, OpKind::Park)].into_iter().collect();
        log.supersede_park();
        assert_eq!(log.find(OpId::new(1)).unwrap().result, OpResult::Completed);
        assert_eq!(log.find(OpId::new(2)).unwrap().result, OpResult::Superseded);
    }

    #[test]
    fn a_duplicate_id_is_found_wherever_it_stands() {
        let log: OpLog<4> = [1, 2, 3].map(|id| entry(id, OpKind::Checkpoint)).into_iter().collect();
        assert_eq!(log.duplicate(), None);
        let log: OpLog<4> = [1, 2, 1].map(|id| entry(id, OpKind::Checkpoint)).into_iter().collect();
        assert_eq!(log.duplicate(), Some(OpId::new(1)));
    }

    #[test]
    fn stored_numbers_round_trip_and_others_are_refused() {
        for kind in OpKind::ALL {
            assert_eq!(OpKind::from_u8(kind.as_u8()), Some(kind));
        }
        for result in OpResult::ALL {
            assert_eq!(OpResult::from_u8(result.as_u8()), Some(result));
        }
        assert_eq!(OpKind::from_u8(7), None);
        assert_eq!(OpResult::from_u8(3), None);
    }

    /// The promise that makes an operation cheap: it is looked up in the tags, and the entries stay untouched.
    #[test]
    fn nearly_every_new_operation_shows_in_the_tags_alone_whether_ids_count_up_or_are_random() {
        let counting = |n: u64| n;
        let random = |n: u64| n.wrapping_add(1).wrapping_mul(0xd129_0d7e_f4a9_2f4d).rotate_left(29);
        for id in [counting, random] {
            let mut log = OpLog::<OP_LOG_CAP>::new();
            let mut looked_further = 0;
            for n in 1..=1_600 {
                let op = entry(id(n), OpKind::Checkpoint);
                looked_further += u32::from(log.has_tag(tag(op.op_id)));
                log.record(op);
            }
            // Sixteen of 256 tags are taken: one in sixteen by chance.
            assert!(looked_further < 1_600 / 8, "{looked_further} of 1600");
        }
    }

    #[test]
    fn a_log_says_how_much_it_remembers() {
        let mut log = OpLog::<2>::new();
        let mut seen = std::vec::Vec::new();
        for id in 1..=3 {
            seen.push((log.len(), log.is_empty()));
            log.record(entry(id, OpKind::Checkpoint));
        }
        assert_eq!(seen, [(0, true), (1, false), (2, false)]);
        assert_eq!((log.len(), log.is_empty()), (2, false));
    }

    #[test]
    fn logs_that_remember_the_same_are_equal_and_hash_alike_and_others_are_and_do_not() {
        let hash = |log: &OpLog<2>| {
            let mut hasher = std::hash::DefaultHasher::new();
            log.hash(&mut hasher);
            hasher.finish()
        };
        let log = |ids: &[u64]| ids.iter().map(|id| entry(*id, OpKind::Checkpoint)).collect::<OpLog<2>>();
        let (same, worn) = (log(&[1, 2]), log(&[9, 1, 2]));
        assert_eq!((&same, hash(&same)), (&worn, hash(&worn)), "what was forgotten makes no difference");
        for other in [&[][..], &[1], &[2, 1], &[1, 3]] {
            assert_ne!(same, log(other), "{other:?}");
            assert_ne!(hash(&same), hash(&log(other)), "{other:?}");
        }
    }
}
