//! Serving writes, reads, announcements and relays allocates nothing, and neither does passing them from lane to lane. Alone in its program, because
//! it counts what all threads do.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::time::Duration;

use support::stranger::{Stranger, now};
use support::{builder, until};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, Identity, PublicKey};
use tessera_dht::node::outbox::message_kind;
use tessera_dht::record::{immutable_record, sign_provider};
use tessera_dht::seal::cookie::Scope;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::wire::message::{Announcement, Message, kind};
use tessera_dht_node::{ContentId, Node, Point as _};

#[global_allocator]
static ALLOCATOR: alloc_counter::CountingAllocator = alloc_counter::CountingAllocator;

const SEED: [u8; 32] = [5; 32];
const ROUNDS: usize = 6;
const PER_ROUND: usize = 50;

/// Has the node serve the datagrams, round by round, and returns the allocations of the quietest round but the first: the runtime's other threads
/// allocate now and then.
fn fewest_allocations(asker: &Stranger, node: &Node, datagrams: &[Vec<u8>]) -> usize {
    let mut buffer = [0; 2048];
    let mut serve = |round: usize| {
        let before = alloc_counter::of_all_threads();
        for datagram in &datagrams[round * PER_ROUND..][..PER_ROUND] {
            asker.send(node, datagram);
            asker.socket.recv_from(&mut buffer).unwrap();
        }
        alloc_counter::of_all_threads() - before
    };
    serve(0);
    (1..ROUNDS).map(serve).min().unwrap()
}

/// Two ids that differ in the first of the bits by which the lanes share them out, so that each lane has one of them.
fn ids(n: usize) -> [[u8; 32]; 2] {
    let mut id = [n as u8; 32];
    id[1] = (n >> 8) as u8;
    let mut other = id;
    other[2] ^= 0x80;
    [id, other]
}

#[test]
fn serving_writes_reads_announcements_and_relays_allocates_nothing_on_its_lane_or_by_way_of_another() {
    let quiet = || builder().configure(|config| config.tick_ms = 60_000);
    // The kernel does not steer: of two datagrams one is passed on over the bus.
    let node = quiet().lanes(2).kernel_steering(false).reserve_memory(true).start().unwrap();
    let friend = quiet().lanes(1).reserve_memory(true).bootstrap([node.address()]).start().unwrap();
    friend.joined(Duration::from_secs(600)).wait().unwrap();
    let mut asker = Stranger::new(SEED, "tessera");
    asker.socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (identity, network) = (Identity::from_seed(&SEED), NetworkKey::of_name("tessera"));
    let addr = Addr::from(asker.socket.local_addr().unwrap());
    let count = ROUNDS * PER_ROUND;

    // A token for all ids: the node is one of two, and holds everything.
    let token_for = |asker: &mut Stranger, id: &[u8; 32], scope: Scope| {
        let question = Message::FindNode { target: *id, scope };
        asker.ask(&node, id, &question, |reply| match reply {
            Message::Nodes { token, .. } => Some(*token),
            _ => None,
        })
    };
    // All tokens before the first datagram is made: they are numbered, and the node takes none that is much older than another.
    let values: Vec<String> = (0..count).map(|n| format!("value {n}")).collect();
    let of = |n: usize| ContentId::of_immutable(values[n].as_bytes());
    let tokens: Vec<_> = (0..count).map(|n| token_for(&mut asker, of(n).as_bytes(), Scope::EXACT)).collect();
    let mut puts = Vec::new();
    for (n, token) in tokens.into_iter().enumerate() {
        let record = immutable_record(values[n].as_bytes(), 3600).unwrap();
        let store = Message::Store { token, closer_max: 0, record: &record };
        puts.push(asker.datagram_about(&node, of(n).as_bytes(), store));
    }
    assert_eq!(fewest_allocations(&asker, &node, &puts), 0, "puts");

    let gets: Vec<_> = (0..count)
        .map(|n| asker.datagram_about(&node, of(n).as_bytes(), Message::FindValue { id: of(n), sequence_min: 0 }))
        .collect();
    assert_eq!(fewest_allocations(&asker, &node, &gets), 0, "gets");

    let issued_secs = now().unix_secs();
    let provider = Contact { key: identity.public_key(), addr };
    let tokens: Vec<_> = (0..count).map(|n| token_for(&mut asker, &ids(n)[0], Scope::WIDEST)).collect();
    let mut provides = Vec::new();
    for (n, token) in tokens.into_iter().enumerate() {
        let about = ids(n)[0];
        // The lane that has the first tells the other one of the second.
        let entries = ids(n).map(|id| {
            let id = ContentId::from_bytes(id);
            [&id.as_bytes()[..], &sign_provider(&identity, &network, &id, &addr, issued_secs, 3600)].concat()
        });
        let entries = entries.concat();
        let announcement = Announcement::over(provider, issued_secs, 3600, &entries);
        provides.push(asker.datagram_about(&node, &about, Message::Announce { token, announcement }));
    }
    assert_eq!(fewest_allocations(&asker, &node, &provides), 0, "announcements");

    let to = Contact { key: PublicKey(friend.address().key()), addr: Addr::from(friend.listen_addr()) };
    let relays: Vec<_> = (0..count)
        .map(|n| {
            let [about, _] = ids(n);
            let payload = [&about[..], &[255]].concat();
            asker.datagram_about(&node, &about, Message::Relay { to, kind: kind::FIND_NODE, payload: &payload })
        })
        .collect();
    assert_eq!(fewest_allocations(&asker, &node, &relays), 0, "relays");

    let held = |what: &str| node.status().wait().unwrap().held(what);
    until("all of it is held", || held("records") >= count && held("providers") >= 2 * count);
    let snapshot = node.runtime_snapshot();
    assert!(snapshot.total("misrouted") > count as u64, "half of all datagrams went over the bus");
    let told: u64 = snapshot.lanes.iter().map(|lane| lane.kinds[usize::from(message_kind::PROVIDERS)].0).sum();
    assert_eq!(told, count as u64, "and every second provider");
}
