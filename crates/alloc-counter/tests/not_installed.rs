//! Without the allocator installed every count would be zero, so counting refuses.

#[test]
#[should_panic(expected = "does not count allocations")]
fn counting_without_the_allocator_is_refused() {
    alloc_counter::count(|| ());
}
