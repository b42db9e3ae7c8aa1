//! The keys that a batch touches, so that no two of its operations meet on one.
//!
//! etcd refuses a transaction that writes a key twice, and evaluates all compares on the state before it: an operation whose
//! compare a sibling's write would have failed goes through beside it. So what one writes, no other of the batch may
//! write or compare; what several only compare, they may. Then a batch does what its operations would do one after another,
//! in any order.

use std::collections::HashSet;

use bytes::Bytes;

use crate::kv::{Compare, Keys, Op, Txn};

/// What the operations of a batch write and compare.
#[derive(Debug, Default)]
pub(super) struct Touched {
    written: HashSet<Bytes>,
    compared: HashSet<Bytes>,
    /// One of them touches a range, which none of the others is held against.
    closed: bool,
}

impl Touched {
    /// Takes an operation in, unless it meets one that was taken in before.
    pub(super) fn take_in(&mut self, txn: &Txn) -> bool {
        let (mut written, mut compared) = (Vec::new(), Vec::new());
        let single = collect(txn, &mut written, &mut compared);
        let meets = self.closed
            || (!single && !self.is_empty())
            || written.iter().any(|key| self.written.contains(*key) || self.compared.contains(*key))
            || compared.iter().any(|key| self.written.contains(*key));
        if meets {
            return false;
        }
        self.closed = !single;
        self.written.extend(written.into_iter().cloned());
        self.compared.extend(compared.into_iter().cloned());
        true
    }

    fn is_empty(&self) -> bool {
        self.written.is_empty() && self.compared.is_empty()
    }
}

/// Collects the keys of all that a transaction may write or compare, at any depth; answers whether each is a single key.
fn collect<'t>(txn: &'t Txn, written: &mut Vec<&'t Bytes>, compared: &mut Vec<&'t Bytes>) -> bool {
    let mut single = true;
    for Compare { keys, .. } in &txn.compares {
        match keys {
            Keys::One(key) => compared.push(key),
            Keys::Range { .. } => single = false,
        }
    }
    for op in txn.success.iter().chain(&txn.failure) {
        match op {
            Op::Put { key, .. } | Op::Delete(Keys::One(key)) => written.push(key),
            Op::Delete(Keys::Range { .. }) => single = false,
            Op::Txn(nested) => single &= collect(nested, written, compared),
            // What others write beside it is seen or not: as before them, or as behind.
            Op::Range(_) => {}
        }
    }
    single
}

#[cfg(test)]
mod tests {
    use super::*;

    fn txn(compares: &[&'static str], puts: &[&'static str]) -> Txn {
        Txn {
            compares: compares.iter().map(|key| Compare::exists(*key)).collect(),
            success: puts.iter().map(|key| Op::put(*key, "v")).collect(),
            failure: vec![],
        }
    }

    fn may_share(one: &Txn, other: &Txn) -> bool {
        let mut touched = Touched::default();
        assert!(touched.take_in(one), "the first meets nobody");
        touched.take_in(other)
    }

    #[test]
    fn what_one_writes_no_other_writes_or_compares() {
        assert!(may_share(&txn(&["a", "same"], &["a"]), &txn(&["b", "same"], &["b"])));
        assert!(!may_share(&txn(&[], &["same"]), &txn(&[], &["same"])));
        assert!(!may_share(&txn(&[], &["same"]), &txn(&["same"], &["b"])));
        assert!(!may_share(&txn(&["same"], &["a"]), &txn(&[], &["same"])));
        assert!(may_share(&txn(&["own"], &["own"]), &txn(&["b"], &["b"])));
    }

    #[test]
    fn one_that_was_not_taken_in_keeps_nobody_out() {
        let mut touched = Touched::default();
        assert!(touched.take_in(&txn(&[], &["a"])));
        assert!(!touched.take_in(&txn(&[], &["a", "b"])));
        assert!(touched.take_in(&txn(&[], &["b"])));
    }

    #[test]
    fn deletes_and_what_is_nested_count_as_well() {
        let delete = Txn::of(vec![Op::delete("same")]);
        let nested = Txn::of(vec![Op::Txn(txn(&["same"], &["c"]))]);
        let hidden = Txn { failure: vec![Op::put("same", "v")], ..Txn::default() };
        for other in [&delete, &nested, &hidden] {
            assert!(!may_share(&txn(&[], &["same"]), other), "{other:?}");
            assert!(!may_share(other, &txn(&[], &["same"])), "{other:?}");
        }
    }

    #[test]
    fn whoever_touches_a_range_is_alone() {
        let range = || Keys::with_prefix("elsewhere");
        let deletes = Txn::of(vec![Op::Delete(range())]);
        let compares = Txn { compares: vec![Compare::none_in(range())], ..Txn::default() };
        for ranged in [&deletes, &compares] {
            assert!(!may_share(ranged, &txn(&[], &["b"])));
            assert!(!may_share(&txn(&[], &["b"]), ranged));
        }
    }
}
