//! With the allocator installed, allocations are seen, and only those of the own thread.

use alloc_counter::{CountingAllocator, count};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn each_box_is_one_allocation() {
    let (allocations, boxes) = count(|| [Box::new(1), Box::new(2), Box::new(3)]);
    assert_eq!(allocations, 3, "{boxes:?}");
}

#[test]
fn arithmetic_on_the_stack_is_none() {
    let (allocations, sum) = count(|| std::hint::black_box([1_u64; 64]).iter().sum::<u64>());
    assert_eq!((allocations, sum), (0, 64));
}

#[test]
fn growing_a_vector_is_seen() {
    let mut bytes: Vec<u8> = Vec::with_capacity(4);
    let (allocations, ()) = count(|| bytes.extend_from_slice(std::hint::black_box(&[0; 5])));
    assert_eq!(allocations, 1);
}

#[test]
fn zeroed_memory_is_seen() {
    let (allocations, zeros) = count(|| vec![0_u8; std::hint::black_box(100)]);
    assert_eq!((allocations, zeros.len()), (1, 100));
}

#[test]
fn freeing_is_not_counted() {
    let boxed = Box::new(1);
    assert_eq!(count(|| drop(std::hint::black_box(boxed))).0, 0);
}

#[test]
fn another_threads_allocations_are_not_counted() {
    let turns = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            turns.wait();
            drop(std::hint::black_box(vec![1_u8; 1000]));
            turns.wait();
        });
        let (allocations, _) = count(|| {
            turns.wait();
            turns.wait()
        });
        assert_eq!(allocations, 0);
    });
}
