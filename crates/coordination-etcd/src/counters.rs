//! How many shards there are, kept in the transactions that make them.
//!
//! Counting keys costs the server time with every key there is, and a count that is read before the write is out of date
//! by the time of the write. So each scope (all tenants, one tenant) has a counter, and an operation that adds shards adds to it in
//! the same transaction. One counter key would make every two splits of a fleet collide; so a counter is a few *stripes*,
//! its value their sum. A transaction writes one stripe of its choice; what it must prove is that the others have not grown
//! too far meanwhile.
//!
//! Far from the limit one compare proves it. A *guard* beside the stripes holds how many whole blocks of 1,024 all of them
//! have filled, so their sum is less than that and one block more each; the guard is written only by who fills a block, and
//! everyone else asks no more than that it be *less than what would be too many*. Stripes that grow in step would all fill
//! their blocks at once and collide there; so each begins its first block a part of it further on than the one before.
//! Close to the limit each other stripe is compared: *not more than what I saw plus a share of the room that was left*. So
//! the limit is never passed, transactions on different stripes hardly ever collide, and at the limit the shares shrink to
//! nothing and the count is exact.

use bytes::Bytes;
use tessera_coordination::shard_limits::{LimitScope, ShardLimitViolation};

use crate::codec::{CodecError, decode_count, encode_count};
use crate::kv::{Compare, CompareOp, CompareTarget, KeyValue, Keys, Op, RangeResponse, Revision};

/// Stripes of one counter.
pub const STRIPES: usize = 8;
/// Keys of one counter: its stripes and its guard.
pub const KEYS: usize = STRIPES + 1;
/// How much a stripe counts before the guard hears of it.
const BLOCK: u64 = 1_024;

/// A counter as it was last seen.
#[derive(Clone, Debug)]
pub struct Counter {
    scope: LimitScope,
    limit: u64,
    block: u64,
    /// The stripes, and behind them the guard.
    paths: [Bytes; KEYS],
    seen: [Seen; KEYS],
}

/// What a key of the counter held, and when it was written.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
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
    pub fn unseen(scope: LimitScope, limit: u64, paths: [Bytes; KEYS]) -> Self {
        Self { scope, limit, block: BLOCK, paths, seen: [Seen::default(); KEYS] }
    }

    /// What to read to see it: every key.
    #[must_use]
    pub fn reads(&self) -> Vec<Op> {
        self.paths.iter().map(|path| Op::get(path.clone())).collect()
    }

    /// Takes in the answers to [`Self::reads`].
    ///
    /// # Errors
    /// If a stripe holds something else than a count.
    pub fn see<'a>(&mut self, answers: impl Iterator<Item = &'a RangeResponse>) -> Result<(), CodecError> {
        for (seen, answer) in self.seen.iter_mut().zip(answers) {
            *seen = match answer.kvs.first() {
                None => Seen::default(),
                Some(KeyValue { value, mod_revision, .. }) => {
                    Seen { count: decode_count(value)?, revision: *mod_revision }
                }
            };
        }
        Ok(())
    }

    /// Takes over what `read` holds, which is how the store was at `revision`. What is known to have been written since
    /// stays: others of this process write while one reads, and a stripe that went back would make its next writer lose.
    pub fn learn(&mut self, read: &Self, revision: Revision) {
        for (seen, read) in self.seen.iter_mut().zip(&read.seen) {
            if seen.revision <= revision {
                *seen = *read;
            }
        }
    }

    /// The latest write that was seen.
    #[must_use]
    pub fn newest(&self) -> Revision {
        self.seen.iter().map(|seen| seen.revision).max().unwrap_or_default()
    }

    /// The count as last seen.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.stripes().map(|(_, seen)| seen.count).sum()
    }

    fn stripes(&self) -> impl Iterator<Item = (&Bytes, &Seen)> {
        self.paths.iter().zip(&self.seen).take(STRIPES)
    }

    /// How many blocks a stripe has filled when it counts so many: at least as many as whole ones go into the count.
    const fn blocks(&self, stripe: usize, count: u64) -> u64 {
        (count + self.block * stripe as u64 / STRIPES as u64) / self.block
    }

    fn guard(&self) -> (&Bytes, &Seen) {
        (&self.paths[STRIPES], &self.seen[STRIPES])
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
        let mut change = CounterChange::default();
        let (own_path, own) = (&self.paths[stripe], &self.seen[stripe]);
        change.replace(own_path, own, own.count + added);
        let (guard_path, guard) = self.guard();
        let filled = self.blocks(stripe, own.count + added) - self.blocks(stripe, own.count);
        if filled > 0 || guard.revision == Revision(0) {
            change.replace(guard_path, guard, guard.count + filled);
        }
        // With so many blocks filled, and each stripe less than one more, there is still room for this.
        let blocks_max = ((self.limit - added) / self.block).checked_sub(STRIPES as u64);
        match blocks_max {
            Some(blocks_max) if guard.revision != Revision(0) && guard.count <= blocks_max => {
                if filled == 0 {
                    change.compares.push(at_most(guard_path, blocks_max));
                }
            }
            _ => self.compare_others(stripe, after, &mut change),
        }
        Ok(change)
    }

    /// Each other stripe may have grown by an equal share of half of the room that is left.
    fn compare_others(&self, stripe: usize, after: u64, change: &mut CounterChange) {
        let share = (self.limit - after) / (2 * (STRIPES as u64 - 1));
        for (index, (path, seen)) in self.stripes().enumerate() {
            if index == stripe {
                continue;
            }
            if seen.revision == Revision(0) {
                // No compare of values holds for a missing key, so the first to add makes all stripes.
                change.replace(path, seen, 0);
            } else {
                change.compares.push(at_most(path, seen.count.saturating_add(share)));
            }
        }
    }

    /// A transaction's part in taking `removed` away, from as many stripes as it takes.
    #[must_use]
    pub fn subtract(&self, removed: u64) -> CounterChange {
        let mut change = CounterChange::default();
        let (mut left, mut emptied) = (removed, 0);
        for (stripe, (path, seen)) in self.stripes().enumerate() {
            let taken = left.min(seen.count);
            if taken == 0 {
                continue;
            }
            left -= taken;
            emptied += self.blocks(stripe, seen.count) - self.blocks(stripe, seen.count - taken);
            change.replace(path, seen, seen.count - taken);
        }
        if emptied > 0 {
            let (path, guard) = self.guard();
            change.replace(path, guard, guard.count.saturating_sub(emptied));
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
                self.seen[index] = Seen { count, revision };
            }
        }
    }
}

impl CounterChange {
    /// Writes a key that must be as it was seen.
    fn replace(&mut self, path: &Bytes, seen: &Seen, count: u64) {
        self.compares.push(Compare::unchanged_since(path.clone(), seen.revision));
        self.ops.push(Op::put(path.clone(), encode_count(count)));
    }
}

/// The key holds at most `count`.
fn at_most(path: &Bytes, count: u64) -> Compare {
    Compare {
        keys: Keys::One(path.clone()),
        op: CompareOp::Less,
        target: CompareTarget::Value(encode_count(count.saturating_add(1)).into()),
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
        with_blocks_of(BLOCK, limit)
    }

    fn with_blocks_of(block: u64, limit: u64) -> Counter {
        let paths = core::array::from_fn(|stripe| Bytes::from(format!("count/{stripe}")));
        Counter { block, ..Counter::unseen(LimitScope::Tenant, limit, paths) }
    }

    fn look(kv: &SimKv, counter: &mut Counter) -> Revision {
        let answer = block_on(kv.txn(Txn::of(counter.reads()), FAR)).expect("read");
        let ranges = answer.responses.iter().filter_map(|response| match response {
            OpResponse::Range(range) => Some(range),
            _ => None,
        });
        counter.see(ranges).expect("counts");
        answer.revision
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
    fn what_was_read_does_not_take_back_what_was_written_since() {
        let kv = SimKv::new(0);
        let mut ours = counter(100_000);
        assert_eq!(add(&kv, &mut ours, 8, 0), Some(true));
        let (mut read, mut others) = (counter(100_000), ours.clone());
        assert_eq!(add(&kv, &mut others, 8, 5), Some(true));
        let revision = look(&kv, &mut read);
        assert_eq!(add(&kv, &mut ours, 8, 3), Some(true));
        ours.learn(&read, revision);
        assert_eq!(ours.count(), 24, "what others wrote before the read, and what we wrote after it");
        assert_eq!(add(&kv, &mut ours, 8, 3), Some(true), "nobody else wrote it");
        assert_eq!(add(&kv, &mut ours, 8, 5), Some(true), "it was read");
        // A store that was emptied is believed as well.
        ours.learn(&counter(100_000), Revision(1_000));
        assert_eq!(ours.count(), 0);
    }

    #[test]
    fn far_from_the_limit_two_compares_do_and_nobody_waits_for_the_guard() {
        let kv = SimKv::new(0);
        let (mut one, mut other) = (counter(100_000), counter(100_000));
        assert_eq!(add(&kv, &mut one, 8, 0), Some(true));
        look(&kv, &mut other);
        // The other's view of the guard grows old, and still does.
        for _ in 0..(3 * BLOCK / 8) {
            assert_eq!(add(&kv, &mut one, 8, 2), Some(true));
        }
        let change = other.add(8, 5).expect("room");
        assert_eq!((change.compares.len(), change.ops.len()), (2, 1));
        assert_eq!(add(&kv, &mut other, 8, 5), Some(true));
        look(&kv, &mut other);
        assert_eq!((other.count(), other.guard().1.count), (16 + 3 * BLOCK, 3));
    }

    #[test]
    fn stripes_that_grow_in_step_fill_their_blocks_one_after_another() {
        let kv = SimKv::new(0);
        let mut counter = counter(10 * STRIPES as u64 * BLOCK);
        add(&kv, &mut counter, 8, 0);
        look(&kv, &mut counter);
        for _ in 0..(2 * BLOCK / 8) {
            let fills = |stripe: &usize| counter.add(8, *stripe).expect("room").ops.len() == 2;
            let filling = (0..STRIPES).filter(fills).count();
            assert!(filling <= 1, "{filling} at once");
            (0..STRIPES).for_each(|stripe| assert_eq!(add(&kv, &mut counter, 8, stripe), Some(true)));
        }
    }

    #[test]
    fn the_limit_is_never_passed_however_stale_the_counters() {
        for (block, limit) in [(BLOCK, 1), (BLOCK, 7), (BLOCK, 333), (1, 50), (2, 50), (3, 100), (4, 333), (7, 64)] {
            let kv = SimKv::new(limit);
            let mut counters: Vec<Counter> = (0..6).map(|_| with_blocks_of(block, limit)).collect();
            for step in 0..4_000u64 {
                let who = (kv.random() % 6) as usize;
                if step % 7 == 0 {
                    look(&kv, &mut counters[who]);
                }
                if step < 3_000 && kv.random().is_multiple_of(16) {
                    take(&kv, &mut counters[who]);
                    continue;
                }
                let (added, stripe) = (kv.random() % 5 + 1, (kv.random() % STRIPES as u64) as usize);
                add(&kv, &mut counters[who], added, stripe);
                let mut judge = with_blocks_of(block, limit);
                look(&kv, &mut judge);
                assert!(judge.count() <= limit, "{} of {limit}", judge.count());
                let filled: u64 = judge.stripes().enumerate().map(|(at, (_, seen))| judge.blocks(at, seen.count)).sum();
                assert_eq!(judge.guard().1.count, filled, "the guard tells what is filled");
            }
            let mut judge = with_blocks_of(block, limit);
            look(&kv, &mut judge);
            assert!(judge.count() + 5 > limit, "stuck at {} of {limit}", judge.count());
        }
    }

    /// Takes some away again, if what was seen is still true.
    fn take(kv: &SimKv, counter: &mut Counter) {
        let change = counter.subtract(kv.random() % 20);
        let txn = Txn { compares: change.compares.clone(), success: change.ops.clone(), failure: vec![] };
        let answer = block_on(kv.txn(txn, FAR)).expect("answered");
        if answer.succeeded {
            counter.changed(&change, answer.revision);
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
