//! Specs and cursors whose bytes live in a shared [`ByteSlab`].
//!
//! A record that holds these has a fixed size and its bytes come from one block of memory, so that a checkpoint does not
//! allocate. The handles are not `Clone`: each value has one owner, who gives the bytes back with `release`.
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
    fn what_is_stored_is_what_is_seen() {
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
    #[should_panic(expected = "read through the slab that holds it")]
    fn another_slab_is_a_bug_that_is_caught() {
        let mut slab = ByteSlab::with_capacity(64);
        let pooled = PooledShardSpec::from_spec(spec(b"a", b"b", b""), &mut slab).unwrap();
        let _ = pooled.view(&ByteSlab::with_capacity(64));
    }

    proptest! {
        /// Many owners over one small slab, against plain owned copies: what is read is always what was last stored
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
    }
}
