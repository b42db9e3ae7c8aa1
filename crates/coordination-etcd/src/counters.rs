//! How many shards there are, kept in the transactions that make them.
//!
//! Counting keys costs the server time with every key there is, and a count that is read before the write is out of date
//! by the time of the write. So each scope (all tenants, one tenant) has a counter, and whoever adds shards adds to it in
//! the same transaction. One counter key would make every two splits of a fleet collide; so a counter is a few *stripes*,
//! its value their sum. A transaction writes one stripe of its choice and guards the others by an inequality: *not more
//! than what I saw plus a share of the room that was left*. So the limit is never passed, transactions on different
//! stripes never collide, and near the limit the shares shrink to nothing and the count becomes exact.

use bytes::Bytes;
use tessera_coordination::shard_limits::{LimitScope, ShardLimitViolation};

use crate::codec::{CodecError, decode_count, encode_count};
use crate::kv::{Compare, CompareOp, CompareTarget, KeyValue, Keys, Op, RangeResponse, Revision};

/// Stripes of one counter.
pub const STRIPES: usize = 8;

/// A counter as it was last seen.
#[derive(Clone, Debug)]
pub struct Counter {
    scope: LimitScope,
    limit: u64,
    paths: [Bytes; STRIPES],
    seen: [Stripe; STRIPES],
}

#[derive(Clone, Copy, Debug, Default)]
struct Stripe {
    count: u64,
    revision: Revision,
}

/// A transaction's part in a counter: what must hold and what is written.
#[derive(Clone, Debug, Default)]
pub struct CounterChange {
    /// What must hold.
    pub compares: Vec<Compare>,
    /// What is written.
    pub ops: Vec<Op>,
}

impl Counter {
    /// A counter of which nothing has been seen yet, and which therefore seems to be at zero.
    #[must_use]
    pub fn unseen(scope: LimitScope, limit: u64, paths: [Bytes; STRIPES]) -> Self {
        Self { scope, limit, paths, seen: [Stripe::default(); STRIPES] }
    }

    /// What to read to see it: every stripe.
    #[must_use]
    pub fn reads(&self) -> Vec<Op> {
        self.paths.iter().map(|path| Op::get(path.clone())).collect()
    }

    /// Takes in the answers to [`Self::reads`].
    ///
    /// # Errors
    /// If a stripe holds something else than a count.
    pub fn see<'a>(&mut self, answers: impl Iterator<Item = &'a RangeResponse>) -> Result<(), CodecError> {
        for (stripe, answer) in self.seen.iter_mut().zip(answers) {
            *stripe = match answer.kvs.first() {
                None => Stripe::default(),
                Some(KeyValue { value, mod_revision, .. }) => {
                    Stripe { count: decode_count(value)?, revision: *mod_revision }
                }
            };
        }
        Ok(())
    }

    /// The count as last seen.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.seen.iter().map(|stripe| stripe.count).sum()
    }

    /// A transaction's part in adding `added`, writing to `stripe`.
    ///
    /// # Errors
    /// If that would pass the limit, as far as was seen.
    pub fn add(&self, added: u64, stripe: usize) -> Result<CounterChange, ShardLimitViolation> {
        let held = self.count();
        let after = held.saturating_add(added);
        if after > self.limit {
            return Err(ShardLimitViolation { scope: self.scope, held, added, max: self.limit });
        }
        // Each other stripe may have grown by an equal share of half of the room that is left.
        let share = (self.limit - after) / (2 * (STRIPES as u64 - 1));
        let mut change = CounterChange::default();
        for (index, (path, seen)) in self.paths.iter().zip(&self.seen).enumerate() {
            if index == stripe {
                change.compares.push(Compare::unchanged_since(path.clone(), seen.revision));
                change.ops.push(Op::put(path.clone(), encode_count(seen.count + added)));
            } else if seen.revision == Revision(0) {
                // No compare of values holds for a missing key, so the first to add makes all stripes.
                change.compares.push(Compare::absent(path.clone()));
                change.ops.push(Op::put(path.clone(), encode_count(0)));
            } else {
                change.compares.push(at_most(path, seen, share));
            }
        }
        Ok(change)
    }

    /// A transaction's part in taking `removed` away, from as many stripes as it takes.
    #[must_use]
    pub fn subtract(&self, removed: u64) -> CounterChange {
        let mut change = CounterChange::default();
        let mut left = removed;
        for (path, seen) in self.paths.iter().zip(&self.seen) {
            let taken = left.min(seen.count);
            if taken == 0 {
                continue;
            }
            left -= taken;
            change.compares.push(Compare::unchanged_since(path.clone(), seen.revision));
            change.ops.push(Op::put(path.clone(), encode_count(seen.count - taken)));
        }
        change
    }

    /// Remembers that a change of this counter was stored at `revision`.
    pub fn changed(&mut self, change: &CounterChange, revision: Revision) {
        for op in &change.ops {
            let Op::Put { key, value, .. } = op else { continue };
            if let Some(index) = self.paths.iter().position(|path| path == key)
                && let Ok(count) = decode_count(value)
                && self.seen[index].revision < revision
            {
                self.seen[index] = Stripe { count, revision };
            }
        }
    }
}

/// The stripe holds at most what was seen plus `slack`.
fn at_most(path: &Bytes, seen: &Stripe, slack: u64) -> Compare {
    Compare {
        keys: Keys::One(path.clone()),
        op: CompareOp::Less,
        target: CompareTarget::Value(encode_count(seen.count.saturating_add(slack).saturating_add(1)).into()),
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::kv::{Kv, Moment, OpResponse, Txn};
    use crate::sim_kv::{SimKv, block_on};

    const FAR: Moment = Moment(Duration::from_secs(1_000));

    fn counter(limit: u64) -> Counter {
        let paths = core::array::from_fn(|stripe| Bytes::from(format!("count/{stripe}")));
        Counter::unseen(LimitScope::Tenant, limit, paths)
    }

    fn look(kv: &SimKv, counter: &mut Counter) {
        let answer = block_on(kv.txn(Txn::of(counter.reads()), FAR)).expect("read");
        let ranges = answer.responses.iter().filter_map(|response| match response {
            OpResponse::Range(range) => Some(range),
            _ => None,
        });
        counter.see(ranges).expect("counts");
    }

    /// Adds, whether or not what was seen is still true; answers whether the store took it.
    fn add(kv: &SimKv, counter: &mut Counter, added: u64, stripe: usize) -> Option<bool> {
        let change = counter.add(added, stripe).ok()?;
        let txn = Txn { compares: change.compares.clone(), success: change.ops.clone(), failure: vec![] };
        let answer = block_on(kv.txn(txn, FAR)).expect("answered");
        if answer.succeeded {
            counter.changed(&change, answer.revision);
        }
        Some(answer.succeeded)
    }

    #[test]
    fn stored_counts_sort_as_numbers_do() {
        let counts = [0, 1, 255, 256, 65_535, 65_536, 1 << 40, u64::MAX];
        assert!(counts.map(encode_count).is_sorted());
    }

    #[test]
    fn the_last_that_fits_is_taken_and_the_next_is_refused() {
        let kv = SimKv::new(0);
        let mut counter = counter(10);
        assert_eq!(add(&kv, &mut counter, 10, 0), Some(true));
        let refused = counter.add(1, 1).expect_err("full");
        assert_eq!((refused.held, refused.added, refused.max), (10, 1, 10));
    }

    #[test]
    fn two_that_write_different_stripes_do_not_collide_while_there_is_room() {
        let kv = SimKv::new(0);
        let (mut one, mut other) = (counter(100_000), counter(100_000));
        assert_eq!(add(&kv, &mut one, 8, 0), Some(true));
        look(&kv, &mut other);
        for _ in 0..20 {
            assert_eq!(add(&kv, &mut one, 8, 2), Some(true));
            assert_eq!(add(&kv, &mut other, 8, 5), Some(true));
        }
        look(&kv, &mut one);
        assert_eq!(one.count(), 8 + 40 * 8);
    }

    #[test]
    fn the_limit_is_never_passed_however_stale_the_counters() {
        for limit in [1, 7, 8, 50, 333] {
            let kv = SimKv::new(limit);
            let mut counters: Vec<Counter> = (0..6).map(|_| counter(limit)).collect();
            for step in 0..4_000u64 {
                let who = (kv.random() % 6) as usize;
                if step % 7 == 0 {
                    look(&kv, &mut counters[who]);
                }
                let (added, stripe) = (kv.random() % 5 + 1, (kv.random() % STRIPES as u64) as usize);
                add(&kv, &mut counters[who], added, stripe);
            }
            let mut judge = counter(limit);
            look(&kv, &mut judge);
            assert!(judge.count() <= limit, "{} of {limit}", judge.count());
            assert!(judge.count() + 5 > limit, "stuck at {} of {limit}", judge.count());
        }
    }

    #[test]
    fn what_is_taken_away_comes_from_all_stripes_that_it_takes() {
        let kv = SimKv::new(0);
        let mut counter = counter(1_000);
        (0..4).for_each(|stripe| assert_eq!(add(&kv, &mut counter, 10, stripe), Some(true)));
        let change = counter.subtract(25);
        let txn = Txn { compares: change.compares.clone(), success: change.ops.clone(), failure: vec![] };
        assert!(block_on(kv.txn(txn, FAR)).expect("answered").succeeded);
        look(&kv, &mut counter);
        assert_eq!(counter.count(), 15);
    }
}
