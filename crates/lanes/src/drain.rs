//! In which order a lane takes messages from its rings: classes by weight 8:4:1, producers in turn, in batches.
//!
//! A *turn* gives each class a quota: its weight times the batch size. Quotas are not transferable within a turn; the next
//! turn comes at once, so nothing is wasted by that, and a lower class always gets its share however full the higher are.
//! The batch grows from 16 to 64 with the backlog: small keeps timers and the socket close, large saves work per message.
//! Pure: it decides how many to take from each producer, and the caller takes them.

use crate::class::Class;

/// Shares of Control, Coordination and Hints in a turn.
pub const WEIGHTS: [usize; 3] = [8, 4, 1];
/// The smallest and the largest batch.
pub const BATCH_MIN: usize = 16;
/// The largest batch.
pub const BATCH_MAX: usize = 64;
/// Messages taken from one producer before the next has its turn.
const VISIT_MESSAGES_MAX: usize = 8;

/// The draining state of one lane.
#[derive(Clone, Debug)]
pub struct Drain {
    batch: usize,
    /// Per class: the producer whose turn is next.
    next: [usize; 3],
}

impl Default for Drain {
    fn default() -> Self {
        Self { batch: BATCH_MIN, next: [0; 3] }
    }
}

impl Drain {
    /// The batch size of the next turn.
    #[must_use]
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// Messages of `class` that the next turn may take.
    #[must_use]
    pub const fn quota(&self, class: Class) -> usize {
        WEIGHTS[class.index()] * self.batch
    }

    /// Takes up to the quota of `class`, the `producers` in turn, by calling `take(producer, at most)`, which says how many
    /// it took; fewer than asked means that producer is empty. Returns how many were taken in all.
    #[inline]
    pub fn drain_class(
        &mut self,
        class: Class,
        producers: usize,
        mut take: impl FnMut(usize, usize) -> usize,
    ) -> usize {
        let quota = self.quota(class);
        let next = &mut self.next[class.index()];
        let mut left = quota;
        let mut empty_in_a_row = 0;
        while left > 0 && empty_in_a_row < producers {
            *next = if *next >= producers { 0 } else { *next };
            let most = left.min(VISIT_MESSAGES_MAX);
            let taken = take(*next, most);
            debug_assert!(taken <= most);
            left -= taken;
            empty_in_a_row = if taken == 0 { empty_in_a_row + 1 } else { 0 };
            *next += 1;
        }
        quota - left
    }

    /// Adapts the batch after a turn: doubles it if any class spent its whole quota, halves it if none spent a quarter.
    pub fn adapt(&mut self, taken: [usize; 3]) {
        let spent =
            |share: usize| Class::ALL.into_iter().any(|class| taken[class.index()] * share >= self.quota(class));
        if spent(1) {
            self.batch = (self.batch * 2).min(BATCH_MAX);
        } else if !spent(4) {
            self.batch = (self.batch / 2).max(BATCH_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Queues of a lane by class and producer: only their lengths matter.
    struct Queues(Vec<[usize; 3]>);

    impl Queues {
        fn turn(&mut self, drain: &mut Drain) -> ([usize; 3], Vec<[usize; 3]>) {
            let mut by_producer = vec![[0; 3]; self.0.len()];
            let taken = Class::ALL.map(|class| {
                drain.drain_class(class, self.0.len(), |producer, most| {
                    let queue = &mut self.0[producer][class.index()];
                    let taken = most.min(*queue);
                    *queue -= taken;
                    by_producer[producer][class.index()] += taken;
                    taken
                })
            });
            drain.adapt(taken);
            (taken, by_producer)
        }
    }

    proptest! {
        #[test]
        fn saturated_classes_are_drained_8_to_4_to_1(producers in 1usize..20, turns in 1usize..30) {
            let mut queues = Queues(vec![[1_000_000; 3]; producers]);
            let mut drain = Drain::default();
            let mut total = [0; 3];
            for _ in 0..turns {
                let (taken, _) = queues.turn(&mut drain);
                for class in Class::ALL {
                    total[class.index()] += taken[class.index()];
                }
            }
            prop_assert_eq!(total[0], 8 * total[2]);
            prop_assert_eq!(total[1], 4 * total[2]);
        }

        #[test]
        fn no_class_is_starved_by_the_others(
            lengths in prop::collection::vec([0usize..5000, 0usize..5000, 0usize..5000], 1..10),
        ) {
            let waiting: usize = lengths.iter().flatten().sum();
            let mut queues = Queues(lengths);
            let mut drain = Drain::default();
            // The least a turn gives the lowest class is a batch of 16, so this many turns must be enough for every class.
            for _ in 0..waiting.div_ceil(BATCH_MIN) {
                let before = queues.0.iter().fold([0; 3], |sum, queue| [sum[0] + queue[0], sum[1] + queue[1], sum[2] + queue[2]]);
                let (taken, _) = queues.turn(&mut drain);
                for class in Class::ALL {
                    let least = before[class.index()].min(BATCH_MIN);
                    prop_assert!(taken[class.index()] >= least, "{} got {} of {}", class.name(), taken[class.index()], least);
                }
            }
            prop_assert!(queues.0.iter().flatten().all(|queue| *queue == 0));
        }

        #[test]
        fn saturated_producers_of_a_class_get_the_same(producers in 1usize..20, turns in 1usize..30) {
            let mut queues = Queues(vec![[1_000_000; 3]; producers]);
            let mut drain = Drain::default();
            let mut by_producer = vec![[0usize; 3]; producers];
            for _ in 0..turns {
                for (sum, taken) in by_producer.iter_mut().zip(queues.turn(&mut drain).1) {
                    for class in 0..3 {
                        sum[class] += taken[class];
                    }
                }
            }
            for class in 0..3 {
                let most = by_producer.iter().map(|taken| taken[class]).max().unwrap();
                let least = by_producer.iter().map(|taken| taken[class]).min().unwrap();
                prop_assert!(most - least <= VISIT_MESSAGES_MAX, "class {class}: {least} to {most}");
            }
        }
    }

    #[test]
    fn the_batch_grows_with_backlog_and_shrinks_when_idle() {
        let mut drain = Drain::default();
        let mut queues = Queues(vec![[100_000; 3]]);
        for _ in 0..3 {
            queues.turn(&mut drain);
        }
        assert_eq!(drain.batch(), BATCH_MAX);
        queues.0[0] = [0; 3];
        for _ in 0..3 {
            queues.turn(&mut drain);
        }
        assert_eq!(drain.batch(), BATCH_MIN);
    }
}
