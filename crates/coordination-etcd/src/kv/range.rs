//! Reading: one key, or the keys between two.

use bytes::Bytes;

use super::{EtcdLeaseId, Revision};

/// Which keys a request touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Exactly this key.
    One(Bytes),
    /// Every key in `[start, end)`.
    Range {
        /// The first key.
        start: Bytes,
        /// The first key that is no longer meant.
        end: Bytes,
    },
}

impl Keys {
    /// Every key that begins with `prefix`, which must not be empty or all `0xff`: our key paths are ASCII.
    #[must_use]
    pub fn with_prefix(prefix: impl Into<Bytes>) -> Self {
        let start: Bytes = prefix.into();
        let end = prefix_end(&start).expect("a key prefix is ASCII, so some last byte can be raised");
        Self::Range { start, end }
    }

    /// Whether `key` is meant.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::One(one) => &one[..] == key,
            Self::Range { start, end } => &start[..] <= key && key < &end[..],
        }
    }
}

/// The first key after all those that begin with `prefix`; `None` if there is none.
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

/// How fresh an answer must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Sees every write that was acknowledged before the call: costs a round of the quorum.
    #[default]
    Linearizable,
    /// Whatever the asked member knows; may be old. Safe only where a later compare catches staleness.
    Serializable,
}

/// A read of some keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    /// Which keys.
    pub keys: Keys,
    /// At most this many, in key order; zero means all. The server still walks the whole range to count it, so a
    /// limit saves bytes, not work: keep ranges narrow.
    pub limit: u32,
    /// Leave the values out.
    pub keys_only: bool,
    /// Only count.
    pub count_only: bool,
    /// How fresh. Ignored inside a transaction that writes, which always sees the latest.
    pub consistency: Consistency,
    /// As of which revision; zero means the latest. An old one may be gone: [`super::KvErrorKind::Compacted`].
    pub revision: Revision,
}

impl RangeRequest {
    /// The freshest value of one key.
    pub fn one(key: impl Into<Bytes>) -> Self {
        Self::of(Keys::One(key.into()))
    }

    /// The freshest values of `keys`.
    #[must_use]
    pub const fn of(keys: Keys) -> Self {
        Self {
            keys,
            limit: 0,
            keys_only: false,
            count_only: false,
            consistency: Consistency::Linearizable,
            revision: Revision(0),
        }
    }

    /// As the store was at `revision`: reads that name the same one see one state, whatever is written between them.
    #[must_use]
    pub fn at(mut self, revision: Revision) -> Self {
        self.revision = revision;
        self
    }

    /// At most `limit` of them.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Keys without their values.
    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.keys_only = true;
        self
    }

    /// Only how many there are.
    #[must_use]
    pub fn count_only(mut self) -> Self {
        self.count_only = true;
        self
    }

    /// What the asked member knows, without asking the others.
    #[must_use]
    pub fn serializable(mut self) -> Self {
        self.consistency = Consistency::Serializable;
        self
    }
}

/// A stored key with its value and bookkeeping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty if only keys were asked for.
    pub value: Bytes,
    /// When the key was last created (a deleted key starts anew).
    pub create_revision: Revision,
    /// When it was last written.
    pub mod_revision: Revision,
    /// Writes since its creation, that one included.
    pub version: i64,
    /// The etcd lease it is attached to, or none.
    pub lease: EtcdLeaseId,
}

/// What a read found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeResponse {
    /// The store's revision at the read.
    pub revision: Revision,
    /// What was found, in key order.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit left some out.
    pub more: bool,
    /// How many keys the range holds, whatever the limit.
    pub count: i64,
}

impl RangeResponse {
    /// The only key of a point read, if it exists.
    #[must_use]
    pub fn into_one(self) -> Option<KeyValue> {
        self.kvs.into_iter().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_its_successor() {
        let keys = Keys::with_prefix(&b"a/b/"[..]);
        assert!(keys.contains(b"a/b/"));
        assert!(keys.contains(b"a/b/\xff\xff"));
        assert!(!keys.contains(b"a/b0"));
        assert!(!keys.contains(b"a/b"));
    }

    #[test]
    fn a_prefix_of_top_bytes_carries_or_has_no_end() {
        assert_eq!(prefix_end(b"a\xff"), Some(Bytes::from_static(b"b")));
        assert_eq!(prefix_end(b"\xff\xff"), None);
    }
}
