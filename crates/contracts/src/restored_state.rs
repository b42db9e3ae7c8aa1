//! A worker's view of a shard that it takes over: all it needs to go on, and nothing it could break.

use crate::cursor::{self, Cursor, CursorUpdate, CursorViolation};
use crate::shard_spec::{CursorSemantics, KeyRange, ShardSpec, ShardSpecRef};

/// The work of one shard as its last owner left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoredShardState {
    spec: ShardSpec,
    cursor: Cursor,
    semantics: CursorSemantics,
}

impl RestoredShardState {
    /// Copies a store's view; refuses a cursor that does not lie in its shard.
    pub fn new(
        spec: ShardSpecRef<'_>,
        cursor: CursorUpdate<'_>,
        semantics: CursorSemantics,
    ) -> Result<Self, CursorViolation> {
        cursor::check_in_range(spec.range(), cursor.last_key())?;
        Ok(Self { spec: spec.to_owned(), cursor: cursor.to_owned(), semantics })
    }

    /// The shard's range and metadata.
    pub fn spec(&self) -> ShardSpecRef<'_> {
        self.spec.view()
    }

    /// Where to resume.
    pub fn cursor(&self) -> CursorUpdate<'_> {
        self.cursor.as_update()
    }

    /// The promise of an advanced cursor.
    pub const fn semantics(&self) -> CursorSemantics {
        self.semantics
    }

    /// Whether `key` is still to be processed: in the shard, and above the last one done.
    pub fn is_ahead(&self, key: &[u8]) -> bool {
        self.spec.range().contains(key) && self.cursor.last_key().is_none_or(|last_key| key > last_key)
    }

    /// Narrows the shard to `kept`, after a residual split gave the rest away.
    ///
    /// Refuses a range that would leave the cursor outside, or that is not a part of the shard.
    pub fn narrow(&mut self, kept: ShardSpecRef<'_>) -> Result<(), NarrowError> {
        if !self.spec.range().contains_range(kept.range()) {
            return Err(NarrowError::NotAPart);
        }
        cursor::check_in_range(kept.range(), self.cursor.last_key()).map_err(NarrowError::Cursor)?;
        self.spec = kept.to_owned();
        Ok(())
    }

    /// The rest to read: from the last key done (itself excluded) or the start, to the end.
    pub fn remaining(&self) -> KeyRange<'_> {
        KeyRange::stored(self.cursor.last_key().unwrap_or(self.spec.start()), self.spec.end())
    }
}

/// Why a shard cannot be narrowed to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NarrowError {
    /// The range has keys the shard does not have.
    #[error("the kept range is not a part of the shard")]
    NotAPart,
    /// The progress would lie outside.
    #[error("the progress would leave the shard: {0}")]
    Cursor(CursorViolation),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restored(last_key: Option<&[u8]>) -> RestoredShardState {
        let spec = ShardSpecRef::new(b"b", b"f", b"meta").unwrap();
        let cursor = CursorUpdate::new(last_key, None).unwrap();
        RestoredShardState::new(spec, cursor, CursorSemantics::Completed).unwrap()
    }

    #[test]
    fn a_cursor_outside_its_shard_is_refused() {
        let spec = ShardSpecRef::new(b"b", b"f", b"").unwrap();
        let outside = CursorUpdate::at_key(b"f").unwrap();
        let refused = RestoredShardState::new(spec, outside, CursorSemantics::Completed);
        assert_eq!(refused, Err(CursorViolation::AboveRange { len: 1 }));
    }

    #[test]
    fn the_last_key_done_is_behind_and_its_successor_is_ahead() {
        let fresh = restored(None);
        assert!(fresh.is_ahead(b"b") && !fresh.is_ahead(b"a") && !fresh.is_ahead(b"f"));
        let resumed = restored(Some(b"c"));
        assert!(!resumed.is_ahead(b"c") && resumed.is_ahead(b"c\0") && !resumed.is_ahead(b"f"));
        assert_eq!(resumed.remaining(), KeyRange::new(b"c", b"f").unwrap());
        assert_eq!(fresh.remaining(), KeyRange::new(b"b", b"f").unwrap());
    }

    #[test]
    fn narrowing_keeps_progress_inside() {
        let mut state = restored(Some(b"d"));
        let part = |start, end| ShardSpecRef::new(start, end, b"new").unwrap();
        assert_eq!(state.narrow(part(b"a", b"e")), Err(NarrowError::NotAPart));
        let behind = NarrowError::Cursor(CursorViolation::AboveRange { len: 1 });
        assert_eq!(state.narrow(part(b"b", b"d")), Err(behind));
        assert_eq!(state.spec().metadata(), b"meta", "a refused range changes nothing");
        assert_eq!(state.narrow(part(b"b", b"e")), Ok(()));
        assert_eq!(state.spec(), part(b"b", b"e"));
    }
}
