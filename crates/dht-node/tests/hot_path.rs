//! Serving allocates nothing. Alone in its program, because it counts what all threads do: the lanes' are the ones of interest.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use support::builder;
use support::stranger::Stranger;
use tessera_dht::seal::cookie::Scope;
use tessera_dht::wire::message::Message;

#[global_allocator]
static ALLOCATOR: alloc_counter::CountingAllocator = alloc_counter::CountingAllocator;

/// Zero allocations on hot paths: serving FIND_NODE allocates nothing, in the whole process.
#[test]
fn serving_find_node_does_not_allocate() {
    let node = builder().lanes(1).configure(|config| config.tick_ms = 60_000).start().unwrap();
    let _friend =
        builder().lanes(1).bootstrap([node.address()]).configure(|config| config.tick_ms = 60_000).start().unwrap();
    let mut asker = Stranger::new([5; 32], "tessera");
    let flood: Vec<Vec<u8>> = (0..600_u32)
        .map(|n| asker.datagram(&node, Message::FindNode { target: [n as u8; 32], scope: Scope::EXACT }))
        .collect();
    let mut buffer = [0; 2048];
    let mut serve = |from: usize, to: usize| {
        for datagram in &flood[from..to] {
            asker.send(&node, datagram);
            asker.socket.recv_from(&mut buffer).unwrap();
        }
    };
    serve(0, 100);
    // The runtime's other threads allocate now and then; the quietest of several rounds counts.
    let rounds = (1..6).map(|round| {
        let before = alloc_counter::of_all_threads();
        serve(round * 100, round * 100 + 100);
        alloc_counter::of_all_threads() - before
    });
    let fewest = rounds.min().unwrap();
    assert_eq!(fewest, 0, "allocations for a hundred requests");
}
