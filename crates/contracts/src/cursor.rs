//! How far a shard was processed.
//!
//! A cursor has two layers. `last_key` is the last item fully processed: the coordinator compares it. `token` is the
//! connector's own resume state: opaque, and meaningless without the key it belongs to, so a cursor with a token and no
//! key cannot be built. Progress is monotone and stays inside the shard's range; [`check_advance`] and
//! [`check_in_range`] are those two rules, and every backend asks them.

use alloc::boxed::Box;
use core::fmt;

use crate::canonical::{CanonicalBytes, CanonicalSink};
use crate::limits::{MAX_KEY_SIZE, MAX_TOKEN_SIZE};
use crate::redact::Redacted;
use crate::shard_spec::KeyRange;

/// A borrowed cursor, which callers hand in and backends hand out.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct CursorUpdate<'a> {
    last_key: Option<&'a [u8]>,
    token: Option<&'a [u8]>,
}

impl<'a> CursorUpdate<'a> {
    /// No progress yet.
    pub const fn initial() -> Self {
        Self { last_key: None, token: None }
    }

    /// Progress up to and including `last_key`, without resume state.
    pub fn at_key(last_key: &'a [u8]) -> Result<Self, CursorError> {
        Self::new(Some(last_key), None)
    }

    /// Progress up to and including `last_key`, resumed with `token`. An empty token is no token.
    pub fn new(last_key: Option<&'a [u8]>, token: Option<&'a [u8]>) -> Result<Self, CursorError> {
        let token = token.filter(|token| !token.is_empty());
        match last_key {
            None if token.is_some() => Err(CursorError::TokenWithoutKey),
            Some([]) => Err(CursorError::EmptyKey),
            Some(key) if key.len() > MAX_KEY_SIZE => Err(CursorError::KeyTooLong { len: key.len(), max: MAX_KEY_SIZE }),
            _ => match token {
                Some(token) if token.len() > MAX_TOKEN_SIZE => {
                    Err(CursorError::TokenTooLong { len: token.len(), max: MAX_TOKEN_SIZE })
                }
                _ => Ok(Self { last_key, token }),
            },
        }
    }

    /// A cursor that was valid when it was stored.
    pub(crate) fn stored(last_key: Option<&'a [u8]>, token: Option<&'a [u8]>) -> Self {
        debug_assert!(Self::new(last_key, token).is_ok(), "only valid cursors are stored");
        Self { last_key, token }
    }

    /// The last key fully processed; never empty.
    pub const fn last_key(self) -> Option<&'a [u8]> {
        self.last_key
    }

    /// The connector's resume state; never empty, and only beside a key.
    pub const fn token(self) -> Option<&'a [u8]> {
        self.token
    }

    /// Whether no progress was recorded.
    pub const fn is_initial(self) -> bool {
        self.last_key.is_none()
    }

    /// A copy that owns its bytes.
    pub fn to_owned(self) -> Cursor {
        Cursor { last_key: self.last_key.map(Box::from), token: self.token.map(Box::from) }
    }
}

impl fmt::Debug for CursorUpdate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor")
            .field("last_key", &self.last_key.map(Redacted))
            .field("token", &self.token.map(Redacted))
            .finish()
    }
}

impl CanonicalBytes for CursorUpdate<'_> {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.optional_bytes(self.last_key);
        sink.optional_bytes(self.token);
    }
}

/// A cursor that owns its bytes.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Cursor {
    last_key: Option<Box<[u8]>>,
    token: Option<Box<[u8]>>,
}

impl Cursor {
    /// No progress yet.
    pub const fn initial() -> Self {
        Self { last_key: None, token: None }
    }

    /// Progress up to and including `last_key`, resumed with `token`. An empty token is no token.
    pub fn new(last_key: Option<&[u8]>, token: Option<&[u8]>) -> Result<Self, CursorError> {
        CursorUpdate::new(last_key, token).map(CursorUpdate::to_owned)
    }

    /// The borrowed form, which all rules work on.
    pub fn as_update(&self) -> CursorUpdate<'_> {
        CursorUpdate { last_key: self.last_key(), token: self.token() }
    }

    /// The last key fully processed; never empty.
    pub fn last_key(&self) -> Option<&[u8]> {
        self.last_key.as_deref()
    }

    /// The connector's resume state; never empty, and only beside a key.
    pub fn token(&self) -> Option<&[u8]> {
        self.token.as_deref()
    }

    /// Whether no progress was recorded.
    pub fn is_initial(&self) -> bool {
        self.last_key.is_none()
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_update().fmt(f)
    }
}

impl CanonicalBytes for Cursor {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        self.as_update().write_canonical(sink);
    }
}

impl<'a> From<&'a Cursor> for CursorUpdate<'a> {
    fn from(cursor: &'a Cursor) -> Self {
        cursor.as_update()
    }
}

impl From<CursorUpdate<'_>> for Cursor {
    fn from(update: CursorUpdate<'_>) -> Self {
        update.to_owned()
    }
}

/// Whether progress may go from `old` to `new`: it may start, stand still or go forward, and never back.
///
/// A key that stays the same with another token is allowed: a connector may refresh its token in place.
pub fn check_advance(old: Option<&[u8]>, new: Option<&[u8]>) -> Result<(), CursorViolation> {
    match (old, new) {
        (None, _) => Ok(()),
        (Some(old), Some(new)) if new >= old => Ok(()),
        (Some(old), Some(new)) => Err(CursorViolation::Regression { old_len: old.len(), new_len: new.len() }),
        (Some(old), None) => Err(CursorViolation::Reset { old_len: old.len() }),
    }
}

/// Whether `last_key`, if there is one, lies in `range`.
pub fn check_in_range(range: KeyRange<'_>, last_key: Option<&[u8]>) -> Result<(), CursorViolation> {
    match last_key {
        Some(key) if !range.reaches_down_to(key) => Err(CursorViolation::BelowRange { len: key.len() }),
        Some(key) if !range.reaches_up_to(key) => Err(CursorViolation::AboveRange { len: key.len() }),
        _ => Ok(()),
    }
}

/// Why bytes do not make a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// The key is there and empty.
    #[error("last_key is empty; leave it out to say that nothing was processed")]
    EmptyKey,
    /// The key is over its limit.
    #[error("last_key is {len} bytes, over the limit of {max}")]
    KeyTooLong {
        /// Bytes seen.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The token is over its limit.
    #[error("token is {len} bytes, over the limit of {max}")]
    TokenTooLong {
        /// Bytes seen.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// A token came without the key it belongs to.
    #[error("a token needs the last_key it belongs to")]
    TokenWithoutKey,
}

/// Why a valid cursor may not be recorded on this shard. Keys are shown by length: they belong to a customer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CursorViolation {
    /// Recorded progress would be forgotten.
    #[error("cursor would reset to none; recorded progress (a key of {old_len} bytes) is never forgotten")]
    Reset {
        /// Length of the recorded key.
        old_len: usize,
    },
    /// The key sorts before the recorded one.
    #[error("cursor would move back: the new key ({new_len} bytes) sorts before the recorded one ({old_len} bytes)")]
    Regression {
        /// Length of the recorded key.
        old_len: usize,
        /// Length of the refused key.
        new_len: usize,
    },
    /// The key sorts before the shard's first.
    #[error("cursor is out of bounds: its key ({len} bytes) sorts before the start of the shard")]
    BelowRange {
        /// Length of the refused key.
        len: usize,
    },
    /// The key is the shard's exclusive end or above.
    #[error("cursor is out of bounds: its key ({len} bytes) is at or after the end of the shard, which is exclusive")]
    AboveRange {
        /// Length of the refused key.
        len: usize,
    },
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec;

    use super::*;

    #[test]
    fn progress_may_start_stand_or_grow() {
        assert_eq!(check_advance(None, None), Ok(()));
        assert_eq!(check_advance(None, Some(b"k")), Ok(()));
        assert_eq!(check_advance(Some(b"k"), Some(b"k")), Ok(()));
        assert_eq!(check_advance(Some(b"k"), Some(b"k\0")), Ok(()));
        assert_eq!(check_advance(Some(b"k"), Some(b"l")), Ok(()));
    }

    #[test]
    fn progress_never_resets_or_shrinks() {
        assert_eq!(check_advance(Some(b"k"), None), Err(CursorViolation::Reset { old_len: 1 }));
        let shrunk = CursorViolation::Regression { old_len: 2, new_len: 1 };
        assert_eq!(check_advance(Some(b"k\0"), Some(b"k")), Err(shrunk));
        assert_eq!(check_advance(Some(b"ka"), Some(b"j")), Err(shrunk));
    }

    #[test]
    fn the_first_key_of_a_range_is_in_and_its_end_is_out() {
        let range = KeyRange::new(b"b", b"d").unwrap();
        assert_eq!(check_in_range(range, None), Ok(()));
        assert_eq!(check_in_range(range, Some(b"b")), Ok(()));
        assert_eq!(check_in_range(range, Some(b"c\xff")), Ok(()));
        assert_eq!(check_in_range(range, Some(b"a\xff")), Err(CursorViolation::BelowRange { len: 2 }));
        assert_eq!(check_in_range(range, Some(b"d")), Err(CursorViolation::AboveRange { len: 1 }));
        assert_eq!(check_in_range(KeyRange::ALL, Some(&[0xff; 9])), Ok(()));
    }

    #[test]
    fn an_empty_token_is_no_token_and_an_empty_key_is_refused() {
        assert_eq!(CursorUpdate::new(Some(b"k"), Some(b"")).unwrap().token(), None);
        assert_eq!(CursorUpdate::new(None, Some(b"")), Ok(CursorUpdate::initial()));
        assert_eq!(CursorUpdate::new(Some(b""), None), Err(CursorError::EmptyKey));
        assert_eq!(CursorUpdate::new(None, Some(b"t")), Err(CursorError::TokenWithoutKey));
    }

    #[test]
    fn the_longest_key_and_token_pass_and_one_more_byte_does_not() {
        let (key, token) = (vec![1; MAX_KEY_SIZE], vec![1; MAX_TOKEN_SIZE]);
        assert!(Cursor::new(Some(&key), Some(&token)).is_ok());
        let over = vec![1; MAX_KEY_SIZE + 1];
        assert_eq!(Cursor::new(Some(&over), None), Err(CursorError::KeyTooLong { len: 4097, max: 4096 }));
        let over = vec![1; MAX_TOKEN_SIZE + 1];
        assert_eq!(Cursor::new(Some(&key), Some(&over)), Err(CursorError::TokenTooLong { len: 16385, max: 16384 }));
    }

    #[test]
    fn owned_and_borrowed_are_the_same_value() {
        let cursor = Cursor::new(Some(b"k"), Some(b"t")).unwrap();
        assert_eq!(Cursor::from(CursorUpdate::from(&cursor)), cursor);
        assert!(Cursor::initial().is_initial() && !cursor.is_initial());
    }

    #[test]
    fn debug_shows_no_key_bytes() {
        let cursor = Cursor::new(Some(b"customer"), Some(b"tok")).unwrap();
        assert_eq!(format!("{cursor:?}"), "Cursor { last_key: Some(<8 bytes>), token: Some(<3 bytes>) }");
    }
}
