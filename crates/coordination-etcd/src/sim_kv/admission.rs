//! The checks an etcd server makes on a request before it looks at its data.
//!
//! Their oddities are kept: the operation limit is on the longest list, not the sum; a key put by one nested transaction
//! may be deleted by a later sibling, but not put after an earlier sibling deleted it.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::store::Bounds;
use crate::kv::{Keys, KvError, KvErrorKind, Op, Txn};

/// The server's limits; the defaults are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `--max-txn-ops`.
    pub txn_ops_max: usize,
    /// `--max-request-bytes`.
    pub request_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { txn_ops_max: 128, request_bytes_max: 1_572_864 }
    }
}

/// Admits a transaction, or refuses it as the server would.
///
/// # Errors
/// [`KvErrorKind::TooManyOps`], [`KvErrorKind::DuplicateKey`], [`KvErrorKind::RequestTooLarge`] or
/// [`KvErrorKind::InvalidRequest`].
pub fn admit(txn: &Txn, limits: &Limits) -> Result<(), KvError> {
    check_lists(txn, limits.txn_ops_max)?;
    check_writes(&txn.success)?;
    check_writes(&txn.failure)?;
    if txn.bytes_estimated() > limits.request_bytes_max {
        return Err(refused(KvErrorKind::RequestTooLarge, "request is too large"));
    }
    Ok(())
}

fn check_lists(txn: &Txn, ops_max: usize) -> Result<(), KvError> {
    let counted = txn.compares.len().max(txn.success.len()).max(txn.failure.len());
    if counted > ops_max {
        return Err(refused(KvErrorKind::TooManyOps, "too many operations in txn request"));
    }
    for compare in &txn.compares {
        check_key(&compare.keys)?;
    }
    for op in txn.success.iter().chain(&txn.failure) {
        match op {
            Op::Range(range) => check_key(&range.keys)?,
            Op::Put { key, .. } => check_key(&Keys::One(key.clone()))?,
            Op::Delete(keys) => check_key(keys)?,
            Op::Txn(nested) => check_lists(nested, ops_max - counted)?,
        }
    }
    Ok(())
}

/// Refuses an empty key, the only malformed one.
pub(super) fn check_key(keys: &Keys) -> Result<(), KvError> {
    let (Keys::One(key) | Keys::Range { start: key, .. }) = keys;
    if key.is_empty() { Err(refused(KvErrorKind::InvalidRequest, "key is not provided")) } else { Ok(()) }
}

/// What a branch writes: every key it may put, every range it may delete.
type Writes = (BTreeSet<Bytes>, Vec<Bounds>);

/// Collects a branch's writes, refusing a key that could be written twice.
fn check_writes(ops: &[Op]) -> Result<Writes, KvError> {
    let duplicate = || refused(KvErrorKind::DuplicateKey, "duplicate key given in txn request");
    let mut puts: BTreeSet<Bytes> = BTreeSet::new();
    let mut deletes: Vec<Bounds> =
        ops.iter().filter_map(|op| if let Op::Delete(keys) = op { Some(Bounds::of(keys)) } else { None }).collect();
    let deleted = |deletes: &[Bounds], key: &Bytes| deletes.iter().any(|bounds| bounds.contains(key));
    for op in ops {
        let Op::Txn(nested) = op else { continue };
        let (puts_then, deletes_then) = check_writes(&nested.success)?;
        let (puts_else, deletes_else) = check_writes(&nested.failure)?;
        for key in &puts_then {
            if deleted(&deletes, key) || !puts.insert(key.clone()) {
                return Err(duplicate());
            }
        }
        for key in puts_else {
            // Only one of the two branches runs, so both may put the same key.
            if deleted(&deletes, &key) || (!puts_then.contains(&key) && puts.contains(&key)) {
                return Err(duplicate());
            }
            puts.insert(key);
        }
        deletes.extend(deletes_then);
        deletes.extend(deletes_else);
    }
    for op in ops {
        let Op::Put { key, .. } = op else { continue };
        if deleted(&deletes, key) || !puts.insert(key.clone()) {
            return Err(duplicate());
        }
    }
    Ok((puts, deletes))
}

fn refused(kind: KvErrorKind, words: &str) -> KvError {
    KvError::not_applied(kind, format!("sim: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::Compare;

    fn kind(txn: &Txn) -> Option<KvErrorKind> {
        admit(txn, &Limits::default()).err().map(|error| error.kind)
    }

    fn puts(count: usize) -> Vec<Op> {
        (0..count).map(|n| Op::put(format!("k{n}"), "v")).collect()
    }

    #[test]
    fn the_limit_is_on_the_longest_list_and_not_the_sum() {
        let compares = vec![Compare::exists("c"); 128];
        assert_eq!(kind(&Txn { compares: compares.clone(), success: puts(128), failure: puts(128) }), None);
        assert_eq!(kind(&Txn { compares, success: puts(129), failure: vec![] }), Some(KvErrorKind::TooManyOps));
        let compares = vec![Compare::exists("c"); 129];
        assert_eq!(kind(&Txn { compares, success: vec![], failure: vec![] }), Some(KvErrorKind::TooManyOps));
    }

    #[test]
    fn a_nested_transaction_has_what_its_parent_left_over() {
        let nested = |outer: usize, inner: usize| {
            let mut ops: Vec<Op> = (1..outer).map(|_| Op::get("r")).collect();
            ops.push(Op::Txn(Txn::of(puts(inner))));
            Txn::of(ops)
        };
        assert_eq!(kind(&nested(100, 28)), None);
        assert_eq!(kind(&nested(100, 29)), Some(KvErrorKind::TooManyOps));
        assert_eq!(kind(&nested(127, 1)), None);
    }

    #[test]
    fn one_key_is_put_once_unless_the_branches_exclude_each_other() {
        let either =
            Op::Txn(Txn { compares: vec![], success: vec![Op::put("k", "a")], failure: vec![Op::put("k", "b")] });
        assert_eq!(kind(&Txn::of(vec![either.clone()])), None);
        assert_eq!(kind(&Txn::of(vec![either.clone(), either.clone()])), Some(KvErrorKind::DuplicateKey));
        assert_eq!(kind(&Txn::of(vec![either, Op::put("k", "c")])), Some(KvErrorKind::DuplicateKey));
        assert_eq!(kind(&Txn::of(vec![Op::put("k", "a"), Op::delete("k")])), Some(KvErrorKind::DuplicateKey));
    }
}
