//! The example does what it says.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[path = "../examples/echo_counter.rs"]
#[allow(dead_code, reason = "the test does not print")]
mod echo_counter;

#[test]
fn the_example_counts_words_each_on_its_own_lane_in_sixty_lines() {
    let said = echo_counter::run().unwrap();
    let counts: Vec<&str> = said.iter().map(|line| line.split(" (").next().unwrap()).collect();
    assert_eq!(counts[..5], ["lane 1", "ring 1", "lane 2", "zebra 1", "lane 3"]);
    let lane_of = |at: usize| said[at].split("lane ").last().unwrap();
    assert_eq!((lane_of(0), lane_of(0)), (lane_of(2), lane_of(4)), "a word has one owner: {said:?}");
    assert_eq!(said[5], "0 datagrams reached a lane that was not their owner");
    assert!(include_str!("../examples/echo_counter.rs").lines().count() <= 60);
}
