//! A lane takes any datagram, and any body that a peer seals well: it never panics, keeps its bounds, and answers an
//! unproven address with no more bytes than came.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, STRIPED_BITS_DEFAULT, Selector, Slot};
use tessera_dht::addr::Addr;
use tessera_dht::identity::{Crypto as _, Identity};
use tessera_dht::node::LaneNode;
use tessera_dht::node::command::{CommandId, Outcome};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::node::outbox::{Importance, Logged, MessageClass, Outbox};
use tessera_dht::rng::LaneRng;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::seal::{SealLimits, Sealer};
use tessera_dht::time::Now;
use tessera_dht::wire::header::{HEADER_BYTES, Suite};
use tessera_dht::wire::message::COOKIE_BYTES;
use tessera_dht::wire::{BODY_BYTES_MAX, DATAGRAM_BYTES_MAX};

const T: Now = Now { mono_ms: 1_000_000, unix_ms: 1_800_000_000_000 };

#[derive(Default)]
struct Sink(usize);

impl Outbox for Sink {
    fn send(&mut self, _: Addr, datagram: &[u8]) {
        self.0 += datagram.len();
    }
    fn forward(&mut self, _: Slot, _: Addr, _: &[u8], _: u8) {}
    fn message(&mut self, _: LaneIndex, _: MessageClass, _: u8, _: u64, _: &[u8]) {}
    fn log(&mut self, _: u8, _: Slot, _: &[u8], _: Importance) -> Logged {
        Logged::Safe
    }
    fn complete(&mut self, _: CommandId, _: Outcome) {}
}

struct World {
    lane: LaneNode,
    peer: Sealer<Identity>,
    time: u64,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new({
        let map = PrefixMap::new(Selector::striped(STRIPED_BITS_DEFAULT).unwrap(), 1).unwrap();
        let config = NodeConfig::default();
        let network = NetworkKey::of_name(&config.network);
        let lane = LaneNode::new(config, Identity::from_seed(&[1; 32]), map, LaneIndex(0), [3; 32], T);
        let mut rng = LaneRng::new([4; 32]);
        let identity = Identity::from_seed(&[2; 32]);
        let peer = Sealer::new(identity, network, Suite::Aes256Gcm, &SealLimits::default(), &mut rng, T);
        World { lane, peer, time: 0 }
    });
}

fuzz_target!(|bytes: &[u8]| {
    WORLD.with_borrow_mut(|world| {
        // Hours pass, or a peer with malformed datagrams would soon be in quarantine, and not be read any more.
        world.time += 24 * 3600 * 1000;
        let now = Now { mono_ms: T.mono_ms + world.time, ..T };
        let from = Addr::v4([192, 0, 2, 1], 5000);
        let mut raw = bytes.to_vec();
        world.lane.on_datagram(now, from, &mut raw, 0, &mut Sink::default());

        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        let given = &bytes[..bytes.len().min(BODY_BYTES_MAX)];
        datagram[HEADER_BYTES..][..given.len()].copy_from_slice(given);
        // Every body starts with a cookie; the sealer refuses a shorter one.
        let len = given.len().max(COOKIE_BYTES);
        let to = Identity::from_seed(&[1; 32]).public_key();
        let len = world.peer.seal(now, &to, 0, &mut datagram, len).unwrap();
        let mut sink = Sink::default();
        world.lane.on_datagram(now, from, &mut datagram[..len], 0, &mut sink);
        assert!(sink.0 <= len, "{} bytes for {len}", sink.0);
        assert_eq!(world.lane.counters().requests_quarantined, 0, "everything was read");
        assert_eq!(world.lane.counters().amplified_bytes, 0);
        assert!(world.lane.bounds().iter().all(|(_, seen, max)| seen <= max));
    });
});
