//! A structure of fixed capacity does not go to the allocator again, on any path, the refused ones included.

use alloc_counter::{CountingAllocator, count};
use std::num::{NonZeroU32, NonZeroU64};
use tessera_stdx::{ByteSlab, ByteSlot, Ewma, Rate, RingBuffer, TimerHandle, TimingWheel, TokenBucket};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A fixed sequence of numbers that looks like none.
struct Scattered(u64);

impl Scattered {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn a_ring_lives_where_its_owner_lives() {
    let (allocations, sum) = count(|| {
        let mut ring: RingBuffer<u64, 16> = RingBuffer::new();
        for item in 0..1_000 {
            let _ = ring.push_back(item);
            ring.push_back_overwrite(item);
            if item % 7 == 0 {
                ring.pop_front();
            }
        }
        ring.clone().iter().sum::<u64>()
    });
    assert_eq!((allocations, sum > 0), (0, true));
}

#[test]
fn a_slab_takes_all_its_memory_when_it_is_made() {
    let (made, mut slab) = count(|| ByteSlab::with_capacity(64 << 10));
    assert!(made > 0);
    let bytes = [7; 5_000];
    let mut slots = [ByteSlot::EMPTY; 256];
    let mut numbers = Scattered(1);
    let (allocations, refused) = count(|| {
        let mut refused = 0;
        for _ in 0..20_000 {
            let which = numbers.below(256) as usize;
            let length_bound = 1 << numbers.below(13);
            let length = numbers.below(length_bound) as usize;
            if numbers.below(4) == 0 {
                assert!(slab.remove(slots[which]));
                slots[which] = ByteSlot::EMPTY;
            } else if let Ok(slot) = slab.replace(slots[which], &bytes[..length]) {
                slots[which] = slot;
            } else {
                refused += 1;
            }
        }
        refused
    });
    assert_eq!(allocations, 0);
    assert!(refused > 100, "the full slab was met: {refused}");
}

#[test]
fn a_wheel_takes_all_its_memory_when_it_is_made() {
    let mut wheel = TimingWheel::with_capacity(200, 0);
    let mut handles: [Option<TimerHandle>; 1_000] = [None; 1_000];
    let mut numbers = Scattered(2);
    let (allocations, (refused, fired)) = count(|| {
        let (mut refused, mut fired) = (0, 0);
        for now in 0..20_000_u64 {
            for _ in 0..2 {
                let which = numbers.below(1_000) as usize;
                let shift = numbers.below(20);
                if let Some(handle) = handles[which].take() {
                    wheel.cancel(handle);
                } else {
                    handles[which] = wheel.insert(now + numbers.below(1 << shift), which).ok();
                    refused += u32::from(handles[which].is_none());
                }
            }
            while let Some((_, which)) = wheel.pop_due(now) {
                handles[which] = None;
                fired += 1;
            }
        }
        (refused, fired)
    });
    assert_eq!(allocations, 0);
    assert!(refused > 0 && fired > 1_000, "the full wheel was met: {refused}, and timers fired: {fired}");
}

#[test]
fn a_bucket_and_an_average_are_plain_values() {
    let (allocations, _) = count(|| {
        let rate = Rate { tokens: 3, ticks: NonZeroU32::MIN };
        let mut bucket = TokenBucket::full(rate, 10, 0);
        let mut average = Ewma::new(NonZeroU64::MIN);
        for now in 0..1_000 {
            average.record(now, f64::from(u8::from(bucket.take(now, 4).is_ok())));
        }
        (bucket.available(1_000), average.average())
    });
    assert_eq!(allocations, 0);
}
