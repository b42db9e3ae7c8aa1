//! Specs and cursors whose bytes live in a shared [`ByteSlab`].
//!
//! A record that holds these has a fixed size and its bytes come from one block of memory, so that a checkpoint does not
//! allocate. The handles are not `Clone`: each value has one owner, which gives the bytes back with `release`.
//!
//! Changing a value is all or nothing. A change that finds the slab full leaves the old value readable and nothing
//! behind, whichever of its fields did not fit.

use tessera_stdx::{ByteSlab, ByteSlot, SlabFull};

use crate::cursor::CursorUpdate;
use crate::shard_spec::{KeyRange, ShardSpecRef};

/// A shard spec in a slab.
#[derive(Debug, PartialEq, Eq)]
pub struct PooledShardSpec {
    fields: PooledFields<3>,
}

impl PooledShardSpec {
    /// Stores a copy of `spec`.
    pub fn from_spec(spec: ShardSpecRef<'_>, slab: &mut ByteSlab) -> Result<Self, SlabFull> {
        PooledFields::insert(spec_fields(spec), slab).map(|fields| Self { fields })
    }

    /// The spec.
    ///
    /// # Panics
    ///
    /// If `slab` is not the one it was stored in: that is a bug of the owner.
    pub fn view<'s>(&self, slab: &'s ByteSlab) -> ShardSpecRef<'s> {
        let [start, end, metadata] = self.fields.get(slab);
        ShardSpecRef::stored(KeyRange::stored(start, end), metadata)
    }

    /// Puts `spec` in place of the one here; if it does not fit, nothing changes.
    pub fn replace(&mut self, spec: ShardSpecRef<'_>, slab: &mut ByteSlab) -> Result<(), SlabFull> {
        self.fields.replace(spec_fields(spec), slab)
    }

    /// Gives the bytes back.
    pub fn release(self, slab: &mut ByteSlab) {
        self.fields.release(slab);
    }
}

/// A cursor in a slab.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct PooledCursor {
    /// Key and token. Neither is ever empty when present, so the empty value stands for an absent one.
    fields: PooledFields<2>,
}

impl PooledCursor {
    /// No progress yet; takes no room.
    pub const fn initial() -> Self {
        Self { fields: PooledFields::EMPTY }
    }

    /// Stores a copy of `update`.
    pub fn from_update(update: CursorUpdate<'_>, slab: &mut ByteSlab) -> Result<Self, SlabFull> {
        PooledFields::insert(cursor_fields(update), slab).map(|fields| Self { fields })
    }

    /// The cursor.
    ///
    /// # Panics
    ///
    /// If `slab` is not the one it was stored in: that is a bug of the owner.
    pub fn view<'s>(&self, slab: &'s ByteSlab) -> CursorUpdate<'s> {
        let [last_key, token] = self.fields.get(slab).map(|field| (!field.is_empty()).then_some(field));
        CursorUpdate::stored(last_key, token)
    }

    /// The last key fully processed.
    ///
    /// # Panics
    ///
    /// If `slab` is not the one it was stored in: that is a bug of the owner.
    pub fn last_key<'s>(&self, slab: &'s ByteSlab) -> Option<&'s [u8]> {
        self.view(slab).last_key()
    }

    /// Puts `update` in place of the cursor here; if it does not fit, nothing changes.
    ///
    /// Only stores. Whether progress may go there is asked before, of [`check_advance`](crate::cursor::check_advance)
    /// and [`check_in_range`](crate::cursor::check_in_range).
    pub fn replace(&mut self, update: CursorUpdate<'_>, slab: &mut ByteSlab) -> Result<(), SlabFull> {
        self.fields.replace(cursor_fields(update), slab)
    }

    /// Gives the bytes back.
    pub fn release(self, slab: &mut ByteSlab) {
        self.fields.release(slab);
    }
}

/// Spec and cursor of one shard: in place while they are short, in a slab as one value when they are not.
///
/// Progress is checked against the range whenever it is recorded. Keys are short most of the time, and then both lie in
/// the record that is being read anyway, and take no room in the slab.
#[repr(C)]
pub struct PooledShard {
    /// Empty while the bytes are in place.
    slot: ByteSlot,
    /// Of metadata, start, end, key and token, in this order: range and key are neighbours, and the fields that a checkpoint
    /// changes come last.
    lens: [u16; 5],
    in_place: [u8; IN_PLACE_BYTES],
}

/// The longest spec and cursor, together, that need no slab.
pub const IN_PLACE_BYTES: usize = 274;

/// Where the cursor begins among the fields of a shard.
const CURSOR: usize = 3;

impl PooledShard {
    /// Stores a copy of both.
    pub fn new(spec: ShardSpecRef<'_>, cursor: CursorUpdate<'_>, slab: &mut ByteSlab) -> Result<Self, SlabFull> {
        let mut stored = Self { slot: ByteSlot::EMPTY, lens: [0; 5], in_place: [0; IN_PLACE_BYTES] };
        stored.replace_from(0, &shard_fields(spec, cursor), slab)?;
        Ok(stored)
    }

    /// Spec and cursor.
    ///
    /// # Panics
    ///
    /// If `slab` is not the one they were stored in: that is a bug of the owner.
    // Always inlined: a decision that reads only a part of a record then loads only that part of it.
    #[inline(always)]
    pub fn view<'s>(&'s self, slab: &'s ByteSlab) -> (ShardSpecRef<'s>, CursorUpdate<'s>) {
        let mut rest = self.bytes(slab);
        let mut next = |field: usize| {
            let (taken, after) = rest.split_at(usize::from(self.lens[field]));
            rest = after;
            taken
        };
        let (metadata, start, end) = (next(0), next(1), next(2));
        let [last_key, token] = [next(CURSOR), next(CURSOR + 1)].map(|field| (!field.is_empty()).then_some(field));
        (ShardSpecRef::stored(KeyRange::stored(start, end), metadata), CursorUpdate::stored(last_key, token))
    }

    /// Puts `update` in place of the cursor; if it does not fit, nothing changes.
    ///
    /// Only stores, as [`PooledCursor::replace`] does.
    #[inline]
    pub fn replace_cursor(&mut self, update: CursorUpdate<'_>, slab: &mut ByteSlab) -> Result<(), SlabFull> {
        self.replace_from(CURSOR, &cursor_fields(update), slab)
    }

    /// Puts `spec` in place of the one here; if it does not fit, nothing changes.
    ///
    /// Copies the cursor aside, which allocates. Ranges change when a shard is split, and that makes a shard anyway.
    pub fn replace_spec(&mut self, spec: ShardSpecRef<'_>, slab: &mut ByteSlab) -> Result<(), SlabFull> {
        let (_, cursor) = self.view(slab);
        let cursor = cursor.to_owned();
        self.replace_from(0, &shard_fields(spec, cursor.as_update()), slab)
    }

    /// Gives the bytes back.
    pub fn release(self, slab: &mut ByteSlab) {
        assert!(slab.remove(self.slot), "a pooled value is given back to the slab that holds it");
    }

    #[inline(always)]
    fn bytes<'s>(&'s self, slab: &'s ByteSlab) -> &'s [u8] {
        if self.slot.is_empty() {
            return &self.in_place;
        }
        slab.get(self.slot).expect("a pooled value is read through the slab that holds it")
    }

    /// Puts `values` in place of the fields from the one at `first` on, of which there are as many.
    #[inline]
    fn replace_from(&mut self, first: usize, values: &[&[u8]], slab: &mut ByteSlab) -> Result<(), SlabFull> {
        let kept = self.lens[..first].iter().map(|len| usize::from(*len)).sum();
        let length = values.iter().fold(kept, |length, value| length + value.len());
        if self.slot.is_empty() && length <= IN_PLACE_BYTES {
            write_after(kept, values, &mut self.in_place);
        } else {
            self.slot = self.moved(kept, values, length, slab)?;
        }
        for (len, value) in self.lens[first..].iter_mut().zip(values) {
            *len = u16::try_from(value.len()).expect("specs and cursors are bounded");
        }
        Ok(())
    }

    /// The same where the slab has a part in it: bytes go there, come back, or change there.
    fn moved(
        &mut self,
        kept: usize,
        values: &[&[u8]],
        length: usize,
        slab: &mut ByteSlab,
    ) -> Result<ByteSlot, SlabFull> {
        if length > IN_PLACE_BYTES && !self.slot.is_empty() {
            return slab.replace_tail(self.slot, kept, values);
        }
        if length > IN_PLACE_BYTES {
            let mut parts: [&[u8]; 6] = [&[]; 6];
            parts[0] = &self.in_place[..kept];
            parts[1..=values.len()].copy_from_slice(values);
            return slab.insert_parts(&parts);
        }
        let stored = slab.get(self.slot).expect("a pooled value is read through the slab that holds it");
        self.in_place[..kept].copy_from_slice(&stored[..kept]);
        write_after(kept, values, &mut self.in_place);
        slab.remove(self.slot);
        Ok(ByteSlot::EMPTY)
    }
}

/// Lengths only: the bytes may be customers' keys.
impl core::fmt::Debug for PooledShard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PooledShard").field("slot", &self.slot).field("lens", &self.lens).finish_non_exhaustive()
    }
}

/// Writes `values` end to end behind the first `kept` bytes.
#[inline]
fn write_after(kept: usize, values: &[&[u8]], bytes: &mut [u8; IN_PLACE_BYTES]) {
    let mut rest = &mut bytes[kept..];
    for value in values {
        let (place, after) = rest.split_at_mut(value.len());
        place.copy_from_slice(value);
        rest = after;
    }
}

fn shard_fields<'a>(spec: ShardSpecRef<'a>, cursor: CursorUpdate<'a>) -> [&'a [u8]; 5] {
    let [start, end, metadata] = spec_fields(spec);
    let [last_key, token] = cursor_fields(cursor);
    [metadata, start, end, last_key, token]
}

fn spec_fields(spec: ShardSpecRef<'_>) -> [&[u8]; 3] {
    [spec.start(), spec.end(), spec.metadata()]
}

fn cursor_fields(update: CursorUpdate<'_>) -> [&[u8]; 2] {
    [update.last_key().unwrap_or_default(), update.token().unwrap_or_default()]
}

/// Byte strings that are stored, changed and given back together: one value in the slab, cut where the fields end.
#[derive(Debug, PartialEq, Eq)]
struct PooledFields<const N: usize> {
    slot: ByteSlot,
    /// Every field is bounded by a limit that fits.
    lens: [u16; N],
}

impl<const N: usize> PooledFields<N> {
    const EMPTY: Self = Self { slot: ByteSlot::EMPTY, lens: [0; N] };

    fn insert(values: [&[u8]; N], slab: &mut ByteSlab) -> Result<Self, SlabFull> {
        let mut stored = Self::EMPTY;
        stored.replace(values, slab)?;
        Ok(stored)
    }

    fn get<'s>(&self, slab: &'s ByteSlab) -> [&'s [u8]; N] {
        let mut rest = slab.get(self.slot).expect("a pooled value is read through the slab that holds it");
        self.lens.map(|len| {
            let (field, after) = rest.split_at(usize::from(len));
            rest = after;
            field
        })
    }

    fn replace(&mut self, values: [&[u8]; N], slab: &mut ByteSlab) -> Result<(), SlabFull> {
        self.slot = slab.replace_parts(self.slot, &values)?;
        self.lens = values.map(|value| u16::try_from(value.len()).expect("specs and cursors are bounded"));
        Ok(())
    }

    fn release(self, slab: &mut ByteSlab) {
        assert!(slab.remove(self.slot), "a pooled value is given back to the slab that holds it");
    }
}

impl<const N: usize> Default for PooledFields<N> {
    fn default() -> Self {
        Self::EMPTY
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn spec<'a>(start: &'a [u8], end: &'a [u8], metadata: &'a [u8]) -> ShardSpecRef<'a> {
        ShardSpecRef::new(start, end, metadata).unwrap()
    }

    #[test]
    fn stored_values_read_back_unchanged() {
        let mut slab = ByteSlab::with_capacity(1024);
        let stored = spec(b"a", b"", b"meta");
        let mut pooled = PooledShardSpec::from_spec(stored, &mut slab).unwrap();
        assert_eq!(pooled.view(&slab), stored);
        pooled.replace(spec(b"a", b"m", b""), &mut slab).unwrap();
        assert_eq!(pooled.view(&slab), spec(b"a", b"m", b""));
        pooled.release(&mut slab);
        assert!(slab.is_empty());
    }

    #[test]
    fn a_cursor_without_progress_takes_no_room() {
        let mut slab = ByteSlab::with_capacity(0);
        assert_eq!(PooledCursor::initial().view(&slab), CursorUpdate::initial());
        let pooled = PooledCursor::from_update(CursorUpdate::initial(), &mut slab).unwrap();
        assert_eq!(pooled, PooledCursor::initial());
        assert_eq!(pooled.last_key(&slab), None);
    }

    #[test]
    fn a_key_that_stops_having_a_token_gives_the_room_of_the_token_back() {
        let mut slab = ByteSlab::with_capacity(64);
        let mut pooled =
            PooledCursor::from_update(CursorUpdate::new(Some(b"k"), Some(&[1; 16])).unwrap(), &mut slab).unwrap();
        assert_eq!((slab.len(), slab.occupied_bytes()), (1, 32));
        pooled.replace(CursorUpdate::at_key(b"l").unwrap(), &mut slab).unwrap();
        assert_eq!((slab.occupied_bytes(), pooled.last_key(&slab)), (16, Some(b"l".as_slice())));
    }

    #[test]
    fn a_full_slab_still_takes_values_that_fit_where_the_old_ones_are() {
        let mut slab = ByteSlab::with_capacity(32);
        let mut pooled =
            PooledCursor::from_update(CursorUpdate::new(Some(b"key"), Some(b"token of 14 by")).unwrap(), &mut slab)
                .unwrap();
        assert_eq!(slab.available_bytes(), 0);
        let longer = CursorUpdate::new(Some(b"key of 16 bytes."), Some(b"a longer token")).unwrap();
        pooled.replace(longer, &mut slab).unwrap();
        assert_eq!(pooled.view(&slab), longer);
    }

    #[test]
    fn whichever_field_does_not_fit_the_old_value_stays_and_nothing_leaks() {
        let old = CursorUpdate::new(Some(b"key"), Some(b"token of 14 by")).unwrap();
        let long = [b'x'; 32];
        for (key, token) in [(&long[..], &b"t"[..]), (b"k", &long), (&long, &long)] {
            let mut slab = ByteSlab::with_capacity(48); // 32 for the value, and one spare block of 16.
            let mut pooled = PooledCursor::from_update(old, &mut slab).unwrap();
            let before = (slab.len(), slab.occupied_bytes(), slab.available_bytes());
            assert!(pooled.replace(CursorUpdate::new(Some(key), Some(token)).unwrap(), &mut slab).is_err());
            assert_eq!(pooled.view(&slab), old);
            assert_eq!((slab.len(), slab.occupied_bytes(), slab.available_bytes()), before);
        }
    }

    #[test]
    fn the_last_byte_in_place_needs_no_slab_and_one_more_does() {
        let mut none = ByteSlab::with_capacity(0);
        let range = spec(b"a", b"z", b"");
        let key = [b'k'; IN_PLACE_BYTES - 2];
        let mut shard = PooledShard::new(range, CursorUpdate::at_key(&key).unwrap(), &mut none).unwrap();
        let longer = CursorUpdate::new(Some(&key), Some(b"t")).unwrap();
        assert!(shard.replace_cursor(longer, &mut none).is_err());
        assert_eq!(shard.view(&none), (range, CursorUpdate::at_key(&key).unwrap()));
        let mut slab = ByteSlab::with_capacity(512);
        shard.replace_cursor(longer, &mut slab).unwrap();
        assert_eq!((shard.view(&slab), slab.len()), ((range, longer), 1));
        shard.replace_cursor(CursorUpdate::initial(), &mut slab).unwrap();
        assert_eq!((shard.view(&slab), slab.len()), ((range, CursorUpdate::initial()), 0));
    }

    #[test]
    fn debug_shows_no_bytes() {
        let shard = PooledShard::new(spec(b"abc", b"b", b""), CursorUpdate::initial(), &mut ByteSlab::with_capacity(0));
        assert_eq!(
            alloc::format!("{:?}", shard.unwrap()),
            "PooledShard { slot: ByteSlot(0 bytes at 0:0.0), lens: [0, 3, 1, 0, 0], .. }"
        );
    }

    #[test]
    #[should_panic(expected = "read through the slab that holds it")]
    fn another_slab_is_a_bug_that_is_caught() {
        let mut slab = ByteSlab::with_capacity(64);
        let pooled = PooledShardSpec::from_spec(spec(b"a", b"b", b""), &mut slab).unwrap();
        let _ = pooled.view(&ByteSlab::with_capacity(64));
    }

    proptest! {
        /// Many owners over one small slab, against plain owned copies: a read always gives the value last stored
        /// with success, and in the end every byte is free again.
        #[test]
        fn pooled_values_equal_plain_ones_and_leak_nothing(
            steps in prop::collection::vec((0_usize..6, any::<bool>(), 0_usize..80, 0_usize..80, any::<u8>()), 0..200),
        ) {
            let mut slab = ByteSlab::with_capacity(1024);
            let mut cursors: Vec<_> = (0..6).map(|_| (PooledCursor::initial(), CursorUpdate::initial().to_owned())).collect();
            for (owner, initial, key_len, token_len, fill) in steps {
                let (key, token) = (vec![fill; key_len + 1], vec![fill; token_len]);
                let update = if initial { CursorUpdate::initial() } else { CursorUpdate::new(Some(&key), Some(&token)).unwrap() };
                let (pooled, plain) = &mut cursors[owner];
                if pooled.replace(update, &mut slab).is_ok() {
                    *plain = update.to_owned();
                }
                for (pooled, plain) in &cursors {
                    prop_assert_eq!(pooled.view(&slab), plain.as_update());
                }
                prop_assert_eq!(slab.len(), cursors.iter().filter(|(_, plain)| !plain.is_initial()).count());
            }
            cursors.into_iter().for_each(|(pooled, _)| pooled.release(&mut slab));
            prop_assert_eq!((slab.len(), slab.occupied_bytes()), (0, 0));
            prop_assert_eq!(slab.available_bytes(), 1024);
        }

        /// The same for spec and cursor as one value: each is changed without the other, or nothing is.
        #[test]
        fn spec_and_cursor_of_a_shard_change_apart(
            steps in prop::collection::vec((0_usize..4, any::<bool>(), 0_usize..150, 0_usize..150, any::<u8>()), 0..200),
        ) {
            let mut slab = ByteSlab::with_capacity(2048);
            let whole = spec(b"a", b"z", b"");
            let born = |slab: &mut ByteSlab| PooledShard::new(whole, CursorUpdate::initial(), slab).unwrap();
            let mut shards: Vec<_> =
                (0..4).map(|_| (born(&mut slab), whole.to_owned(), CursorUpdate::initial().to_owned())).collect();
            for (owner, of_spec, len, other_len, fill) in steps {
                let (some, others) = (vec![fill; len], vec![fill; other_len]);
                let (pooled, plain_spec, plain_cursor) = &mut shards[owner];
                if of_spec {
                    let next = spec(b"", &some, &others);
                    if pooled.replace_spec(next, &mut slab).is_ok() {
                        *plain_spec = next.to_owned();
                    }
                } else {
                    let key = [&[1], &some[..]].concat();
                    let next = CursorUpdate::new(Some(&key), Some(&others)).unwrap();
                    if pooled.replace_cursor(next, &mut slab).is_ok() {
                        *plain_cursor = next.to_owned();
                    }
                }
                for (pooled, plain_spec, plain_cursor) in &shards {
                    prop_assert_eq!(pooled.view(&slab), (plain_spec.view(), plain_cursor.as_update()));
                }
                let long = |len: usize| len > IN_PLACE_BYTES;
                let lens = shards.iter().map(|(_, spec, cursor)| {
                    shard_fields(spec.view(), cursor.as_update()).map(<[u8]>::len).iter().sum()
                });
                prop_assert_eq!(slab.len(), lens.filter(|len| long(*len)).count(), "only long ones take room");
            }
            shards.into_iter().for_each(|(pooled, ..)| pooled.release(&mut slab));
            prop_assert_eq!((slab.len(), slab.available_bytes()), (0, 2048));
        }
    }
}
