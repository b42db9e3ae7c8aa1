//! Transactions: compare, then run one of two branches, atomically.
//!
//! Traps of etcd worth knowing (each is held by a differential test against a real server): *all* compares, nested ones
//! too, are evaluated on the state before the transaction, yet a read inside sees the writes made before it; one key may
//! be put only once per transaction; the operation limit is on the longest of compares, success and failure, and a
//! nested transaction has what its parent left over.

use bytes::Bytes;

use super::{EtcdLeaseId, Keys, RangeRequest, RangeResponse, Revision};

/// How a compare relates the stored to the given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOp {
    /// Stored equals given.
    Equal,
    /// Stored differs from given.
    NotEqual,
    /// Stored is greater than given.
    Greater,
    /// Stored is less than given.
    Less,
}

/// What is compared. A key that does not exist counts as zero in every number, and fails every compare of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompareTarget {
    /// Writes since creation.
    Version(i64),
    /// When it was created.
    CreateRevision(Revision),
    /// When it was last written.
    ModRevision(Revision),
    /// Its value, as bytes in lexicographic order.
    Value(Bytes),
    /// The etcd lease it is attached to.
    Lease(EtcdLeaseId),
}

/// One condition. Over a range it must hold for every key there, and for "no key" if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// Which keys.
    pub keys: Keys,
    /// How.
    pub op: CompareOp,
    /// Against what.
    pub target: CompareTarget,
}

impl Compare {
    /// The key was last written at `revision`; with a zero revision: it does not exist.
    pub fn unchanged_since(key: impl Into<Bytes>, revision: Revision) -> Self {
        Self { keys: Keys::One(key.into()), op: CompareOp::Equal, target: CompareTarget::ModRevision(revision) }
    }

    /// The key does not exist.
    pub fn absent(key: impl Into<Bytes>) -> Self {
        Self::unchanged_since(key, Revision(0))
    }

    /// The key exists.
    pub fn exists(key: impl Into<Bytes>) -> Self {
        Self { keys: Keys::One(key.into()), op: CompareOp::Greater, target: CompareTarget::Version(0) }
    }

    /// No key lies in `keys`.
    #[must_use]
    pub const fn none_in(keys: Keys) -> Self {
        Self { keys, op: CompareOp::Equal, target: CompareTarget::Version(0) }
    }

    /// The key is attached to this etcd lease.
    pub fn attached_to(key: impl Into<Bytes>, lease: EtcdLeaseId) -> Self {
        Self { keys: Keys::One(key.into()), op: CompareOp::Equal, target: CompareTarget::Lease(lease) }
    }

    /// The key holds exactly this value.
    pub fn value_is(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { keys: Keys::One(key.into()), op: CompareOp::Equal, target: CompareTarget::Value(value.into()) }
    }
}

/// One operation of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads.
    Range(RangeRequest),
    /// Writes one key, attached to an etcd lease or to none.
    Put {
        /// Where.
        key: Bytes,
        /// What.
        value: Bytes,
        /// With which life.
        lease: EtcdLeaseId,
    },
    /// Deletes keys; those that do not exist do not matter.
    Delete(Keys),
    /// Runs a transaction of its own, with its own compares and its own answer.
    Txn(Txn),
}

impl Op {
    /// Writes a key that lives until it is deleted.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::Put { key: key.into(), value: value.into(), lease: EtcdLeaseId::NONE }
    }

    /// Writes a key that dies with an etcd lease.
    pub fn put_attached(key: impl Into<Bytes>, value: impl Into<Bytes>, lease: EtcdLeaseId) -> Self {
        Self::Put { key: key.into(), value: value.into(), lease }
    }

    /// Deletes one key.
    pub fn delete(key: impl Into<Bytes>) -> Self {
        Self::Delete(Keys::One(key.into()))
    }

    /// Reads one key.
    pub fn get(key: impl Into<Bytes>) -> Self {
        Self::Range(RangeRequest::one(key))
    }
}

/// A transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All must hold for the success branch to run.
    pub compares: Vec<Compare>,
    /// Runs if all compares hold.
    pub success: Vec<Op>,
    /// Runs if one does not.
    pub failure: Vec<Op>,
}

impl Txn {
    /// An unconditional transaction.
    #[must_use]
    pub const fn of(success: Vec<Op>) -> Self {
        Self { compares: Vec::new(), success, failure: Vec::new() }
    }

    /// Whether neither branch writes, at any depth: then it may be repeated at will.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.success.iter().chain(&self.failure).all(|op| match op {
            Op::Range(_) => true,
            Op::Put { .. } | Op::Delete(_) => false,
            Op::Txn(nested) => nested.is_read_only(),
        })
    }

    /// What the server counts against `--max-txn-ops`: the longest of the three lists, plus the most that any nested
    /// transaction counts.
    #[must_use]
    pub fn ops_counted(&self) -> usize {
        let own = self.compares.len().max(self.success.len()).max(self.failure.len());
        let nested = self.success.iter().chain(&self.failure).filter_map(|op| match op {
            Op::Txn(txn) => Some(txn.ops_counted()),
            Op::Range(_) | Op::Put { .. } | Op::Delete(_) => None,
        });
        own + nested.max().unwrap_or(0)
    }

    /// Roughly how many bytes the request takes: keys and values, and a generous allowance for the frame of each.
    #[must_use]
    pub fn bytes_estimated(&self) -> usize {
        const FRAME: usize = 48;
        let keys = |keys: &Keys| match keys {
            Keys::One(key) => key.len(),
            Keys::Range { start, end } => start.len() + end.len(),
        };
        let compares: usize = self
            .compares
            .iter()
            .map(|compare| {
                let given = if let CompareTarget::Value(value) = &compare.target { value.len() } else { 0 };
                FRAME + keys(&compare.keys) + given
            })
            .sum();
        let ops: usize = self
            .success
            .iter()
            .chain(&self.failure)
            .map(|op| {
                FRAME
                    + match op {
                        Op::Range(range) => keys(&range.keys),
                        Op::Put { key, value, .. } => key.len() + value.len(),
                        Op::Delete(deleted) => keys(deleted),
                        Op::Txn(nested) => nested.bytes_estimated(),
                    }
            })
            .sum();
        compares + ops
    }
}

/// The answer to one operation, in the order asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpResponse {
    /// What a read found. Its `revision` is the one it read at.
    Range(RangeResponse),
    /// The key was written.
    Put,
    /// How many keys were deleted.
    Delete {
        /// Zero if there was nothing to delete.
        deleted: i64,
    },
    /// The nested transaction's own answer; its `revision` is zero, the outer one tells.
    Txn(TxnResponse),
}

/// The answer to a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnResponse {
    /// The store's revision afterwards: what every key written here now carries as its mod revision.
    pub revision: Revision,
    /// Which branch ran.
    pub succeeded: bool,
    /// One answer per operation of that branch.
    pub responses: Vec<OpResponse>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_operations_are_the_longest_list_plus_the_largest_nested_one() {
        let nested = Txn { compares: vec![Compare::exists("k"); 3], success: vec![Op::get("k")], failure: vec![] };
        let outer = Txn::of(vec![Op::Txn(nested.clone()), Op::Txn(nested), Op::get("x")]);
        assert_eq!(outer.ops_counted(), 6);
    }

    #[test]
    fn a_write_hidden_in_a_nested_else_branch_makes_the_whole_a_write() {
        let hidden = Txn { compares: vec![], success: vec![], failure: vec![Op::put("k", "v")] };
        assert!(!Txn::of(vec![Op::Txn(hidden)]).is_read_only());
        assert!(Txn::of(vec![Op::Txn(Txn::of(vec![Op::get("k")]))]).is_read_only());
    }
}
