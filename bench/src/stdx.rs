//! The structures of fixed capacity beside the usual alternatives.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::hint::black_box;
use std::num::{NonZeroU32, NonZeroU64};

use tessera_stdx::{ByteSlab, Ewma, Rate, RingBuffer, TimingWheel, TokenBucket};

use crate::harness::{Figure, Pair};

pub(crate) fn figures() -> Vec<Figure> {
    vec![
        Figure::cost("stdx/ring-overwrite", "push into a full ring of 16, beside VecDeque pop+push", ring_overwrite)
            .gated(0.7),
        Figure::cost("stdx/ring-scan", "find a key in a full ring of 16, beside VecDeque", ring_scan).gated(1.5),
        Figure::cost("stdx/slab-replace", "replace 64 bytes in a slab, beside a new Box<[u8]>", slab_replace)
            .gated(1.25),
        Figure::cost("stdx/slab-churn", "insert+remove 1-200 bytes, 1,000 alive, beside Box<[u8]>", slab_churn)
            .gated(1.75),
        Figure::rate("stdx/slab-copy", "insert+remove 4,096 bytes, beside Box<[u8]>", 4_096, slab_copy),
        Figure::cost("stdx/wheel-start-cancel", "start+cancel beside 100,000 timers, against BTreeMap", wheel_cancel)
            .gated(0.25),
        Figure::cost("stdx/wheel-expire", "expire+restart, 100,000 timers, against BinaryHeap", wheel_expire),
        Figure::cost("stdx/bucket-take", "take a token, exact, beside a bucket in f64 that rounds", bucket_take),
        Figure::cost("stdx/ewma-record", "record at uneven times, beside exp2 from the library", ewma_record),
    ]
}

fn ring_overwrite() -> Pair {
    let mut ours: RingBuffer<u64, 16> = RingBuffer::new();
    let mut reference: VecDeque<u64> = VecDeque::with_capacity(16);
    Pair::new(
        move |times| {
            for item in 0..times {
                black_box(ours.push_back_overwrite(black_box(item)));
            }
        },
        move |times| {
            for item in 0..times {
                if reference.len() == 16 {
                    black_box(reference.pop_front());
                }
                reference.push_back(black_box(item));
            }
        },
    )
}

fn ring_scan() -> Pair {
    let mut ours: RingBuffer<u64, 16> = RingBuffer::new();
    let mut reference: VecDeque<u64> = VecDeque::with_capacity(16);
    // Five beyond the capacity: the items wrap around the end of the storage.
    for item in 0..21 {
        ours.push_back_overwrite(item);
        if reference.len() == 16 {
            reference.pop_front();
        }
        reference.push_back(item);
    }
    Pair::new(
        move |times| {
            for _ in 0..times {
                let absent = black_box(99);
                black_box(ours.iter().any(|item| *item == absent));
            }
        },
        move |times| {
            for _ in 0..times {
                let absent = black_box(99);
                black_box(reference.iter().any(|item| *item == absent));
            }
        },
    )
}

fn slab_replace() -> Pair {
    let mut ours = ByteSlab::with_capacity(1 << 20);
    let value = [7_u8; 64];
    let mut slot = ours.insert(&value).expect("an empty slab has room for 64 bytes");
    let mut reference: Vec<Box<[u8]>> = vec![Box::from(value)];
    Pair::new(
        move |times| {
            for _ in 0..times {
                slot = ours.replace(slot, black_box(&value)).expect("the old value makes room for the new one");
            }
            black_box(ours.get(slot));
        },
        move |times| {
            for _ in 0..times {
                reference[0] = Box::from(black_box(value));
            }
        },
    )
}

fn slab_churn() -> Pair {
    const ALIVE: usize = 1_000;
    let bytes = [7_u8; 200];
    let mut ours = ByteSlab::with_capacity(1 << 20);
    let mut slots = Vec::new();
    let mut boxes: Vec<Box<[u8]>> = Vec::new();
    let (mut ours_random, mut reference_random) = (Random(1), Random(1));
    for index in 0..ALIVE {
        slots.push(ours.insert(&bytes[..index % 200 + 1]).expect("a thousand short values fit a megabyte"));
        boxes.push(Box::from(&bytes[..index % 200 + 1]));
    }
    Pair::new(
        move |times| {
            for _ in 0..times {
                let random = ours_random.next();
                let slot = &mut slots[random as usize % ALIVE];
                ours.remove(*slot);
                let length = (random >> 32) as usize % 200 + 1;
                *slot = ours.insert(&bytes[..length]).expect("a thousand short values fit a megabyte");
            }
        },
        move |times| {
            for _ in 0..times {
                let random = reference_random.next();
                let length = (random >> 32) as usize % 200 + 1;
                boxes[random as usize % ALIVE] = Box::from(&bytes[..length]);
            }
        },
    )
}

fn slab_copy() -> Pair {
    let value = [7_u8; 4_096];
    let mut ours = ByteSlab::with_capacity(1 << 20);
    Pair::new(
        move |times| {
            for _ in 0..times {
                let slot = ours.insert(black_box(&value)).expect("an empty slab has room for 4,096 bytes");
                ours.remove(black_box(slot));
            }
        },
        move |times| {
            for _ in 0..times {
                let boxed: Box<[u8]> = Box::from(black_box(&value).as_slice());
                drop(black_box(boxed));
            }
        },
    )
}

const TIMERS: u32 = 100_000;
/// Deadlines lie up to ten minutes of milliseconds ahead.
const AHEAD: u64 = 600_000;

fn wheel_cancel() -> Pair {
    let mut ours: TimingWheel<u32> = TimingWheel::with_capacity(TIMERS + 1, 0);
    let mut reference: BTreeMap<(u64, u32), u32> = BTreeMap::new();
    let mut random = Random(1);
    for timer in 0..TIMERS {
        let deadline = random.next() % AHEAD;
        ours.insert(deadline, timer).expect("the wheel was made for so many");
        reference.insert((deadline, timer), timer);
    }
    let (mut ours_random, mut reference_random) = (Random(2), Random(2));
    Pair::new(
        move |times| {
            for _ in 0..times {
                let handle = ours.insert(ours_random.next() % AHEAD, TIMERS).expect("one place is free");
                black_box(ours.cancel(black_box(handle)));
            }
        },
        move |times| {
            for _ in 0..times {
                let key = (reference_random.next() % AHEAD, TIMERS);
                reference.insert(key, TIMERS);
                black_box(reference.remove(&black_box(key)));
            }
        },
    )
}

fn wheel_expire() -> Pair {
    let mut ours: TimingWheel<u32> = TimingWheel::with_capacity(TIMERS, 0);
    let mut reference: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::with_capacity(TIMERS as usize);
    let mut random = Random(1);
    for timer in 0..TIMERS {
        let deadline = random.next() % AHEAD;
        ours.insert(deadline, timer).expect("the wheel was made for so many");
        reference.push(Reverse((deadline, timer)));
    }
    let (mut ours_random, mut reference_random) = (Random(2), Random(2));
    let (mut ours_now, mut reference_now) = (0, 0);
    Pair::new(
        move |times| {
            for _ in 0..times {
                let (deadline, timer) = loop {
                    match ours.pop_due(ours_now) {
                        Some(due) => break due,
                        None => ours_now += 1,
                    }
                };
                ours.insert(deadline + ours_random.next() % AHEAD, timer).expect("one has just gone");
            }
        },
        move |times| {
            for _ in 0..times {
                let (deadline, timer) = loop {
                    match reference.peek() {
                        Some(Reverse(due)) if due.0 <= reference_now => break *due,
                        _ => reference_now += 1,
                    }
                };
                reference.pop();
                reference.push(Reverse((deadline + reference_random.next() % AHEAD, timer)));
            }
        },
    )
}

fn bucket_take() -> Pair {
    const TICKS: u32 = 1_000;
    let rate = Rate { tokens: 300, ticks: NonZeroU32::new(TICKS).expect("a thousand is not zero") };
    let mut ours = TokenBucket::full(rate, 50, 0);
    let (mut tokens, mut refilled_at) = (50.0_f64, 0_u64);
    let (mut ours_now, mut reference_now) = (0_u64, 0_u64);
    Pair::new(
        move |times| {
            for _ in 0..times {
                ours_now += 3;
                black_box(ours.take(black_box(ours_now), 1).is_ok());
            }
        },
        move |times| {
            for _ in 0..times {
                reference_now += 3;
                let now = black_box(reference_now);
                tokens = (tokens + (now - refilled_at) as f64 * (300.0 / f64::from(TICKS))).min(50.0);
                refilled_at = now;
                let is_enough = tokens >= 1.0;
                if is_enough {
                    tokens -= 1.0;
                }
                black_box(is_enough);
            }
        },
    )
}

fn ewma_record() -> Pair {
    const HALF_LIFE: u64 = 1_000;
    let mut ours = Ewma::new(NonZeroU64::new(HALF_LIFE).expect("a thousand is not zero"));
    let (mut sum, mut weight, mut updated_at) = (0.0_f64, 0.0_f64, 0_u64);
    let (mut ours_now, mut reference_now) = (0_u64, 0_u64);
    let (mut ours_random, mut reference_random) = (Random(4), Random(4));
    Pair::new(
        move |times| {
            for _ in 0..times {
                ours_now += ours_random.next() % 100;
                ours.record(ours_now, 7.0);
                black_box(ours.average());
            }
        },
        move |times| {
            for _ in 0..times {
                reference_now += reference_random.next() % 100;
                let decay = f64::exp2(-((reference_now - updated_at) as f64) / HALF_LIFE as f64);
                (sum, weight, updated_at) = (sum * decay + 7.0, weight * decay + 1.0, reference_now);
                black_box(sum / weight);
            }
        },
    )
}

/// Splitmix64: the same numbers for both sides, at a cost that is the same for both.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
