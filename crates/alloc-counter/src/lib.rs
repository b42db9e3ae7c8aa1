//! Counts heap allocations, so that a test can hold code to a promise of none.
//!
//! A test binary installs the allocator once and wraps the path under test:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: alloc_counter::CountingAllocator = alloc_counter::CountingAllocator;
//!
//! let (allocations, boxed) = alloc_counter::count(|| Box::new(7_u64));
//! assert_eq!(allocations, 1);
//! # drop(boxed);
//! ```
//!
//! The count is per thread, so tests that run side by side do not see each other. `alloc`, `alloc_zeroed` and `realloc`
//! each count as one: a vector that grows in place has still gone to the allocator. Frees are not counted.
//!
//! The one unsafe thing is implementing [`GlobalAlloc`], which is an unsafe trait; every call goes to [`System`] unchanged.
//! It lives here so that no other crate has to write it.
#![deny(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system allocator with a counter per thread. Install it with `#[global_allocator]` in a test binary.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

/// Runs `work` and returns how many times it went to the allocator on this thread, beside its result.
///
/// # Panics
///
/// If [`CountingAllocator`] is not the global allocator of this binary: every count would then be zero, and a test that
/// relies on it could not fail.
pub fn count<R>(work: impl FnOnce() -> R) -> (usize, R) {
    assert_installed();
    let before = ALLOCATIONS.get();
    let result = work();
    (ALLOCATIONS.get() - before, result)
}

/// How many times all threads together have gone to the allocator, for paths that run on threads of their own.
///
/// # Panics
///
/// As [`count`].
#[must_use]
pub fn of_all_threads() -> usize {
    assert_installed();
    OF_ALL_THREADS.load(Ordering::Relaxed)
}

static OF_ALL_THREADS: AtomicUsize = AtomicUsize::new(0);

fn assert_installed() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new(0_u8)));
    OF_ALL_THREADS.fetch_sub(ALLOCATIONS.get() - before, Ordering::Relaxed); // That was ours.
    assert!(
        ALLOCATIONS.get() > before,
        "this binary does not count allocations: add `#[global_allocator] static ALLOCATOR: \
         alloc_counter::CountingAllocator = alloc_counter::CountingAllocator;`"
    );
}

thread_local! {
    // Const-initialised and without a destructor, so that touching it never allocates and it outlives every other local.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn counted() {
    OF_ALL_THREADS.fetch_add(1, Ordering::Relaxed);
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: every method passes its arguments to `System` unchanged and returns what `System` returned, so the contract of
// `GlobalAlloc` holds because it holds for `System`. The counter neither allocates nor unwinds.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted();
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        counted();
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size_new: usize) -> *mut u8 {
        counted();
        // SAFETY: `pointer` came from `System` with `layout`, as everything this allocator hands out does.
        unsafe { System.realloc(pointer, layout, size_new) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` with `layout`, as everything this allocator hands out does.
        unsafe { System.dealloc(pointer, layout) }
    }
}
