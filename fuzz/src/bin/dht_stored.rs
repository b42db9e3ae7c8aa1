//! A lane takes any log record and any message of another lane: it never panics and keeps its bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, STRIPED_BITS_DEFAULT, Selector, Slot};
use tessera_dht::addr::Addr;
use tessera_dht::identity::Identity;
use tessera_dht::node::LaneNode;
use tessera_dht::node::command::{CommandId, Outcome};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::node::outbox::{Importance, Logged, MessageClass, Outbox};
use tessera_dht::store::providers::ProviderLimits;
use tessera_dht::store::records::RecordLimits;
use tessera_dht::time::Now;

const T: Now = Now { mono_ms: 1_000_000, unix_ms: 1_800_000_000_000 };

struct Nowhere;

impl Outbox for Nowhere {
    fn send(&mut self, _: Addr, _: &[u8]) {}
    fn forward(&mut self, _: Slot, _: Addr, _: &[u8], _: u8) {}
    fn message(&mut self, _: LaneIndex, _: MessageClass, _: u8, _: u64, _: &[u8]) {}
    fn log(&mut self, _: u8, _: Slot, _: &[u8], _: Importance) -> Logged {
        Logged::Safe
    }
    fn complete(&mut self, _: CommandId, _: Outcome) {}
}

// The input is a list of pieces: what it is, its length, its bytes.
fuzz_target!(|bytes: &[u8]| {
    let map = PrefixMap::new(Selector::striped(STRIPED_BITS_DEFAULT).unwrap(), 2).unwrap();
    let config = NodeConfig {
        records: RecordLimits { records_max: 4, bytes_max: 4096, ..RecordLimits::default() },
        providers: ProviderLimits { entries_max: 4, ..ProviderLimits::default() },
        operations_max: 4,
        requests_max: 16,
        ..NodeConfig::default()
    };
    let mut lane = LaneNode::new(config, Identity::from_seed(&[1; 32]), map, LaneIndex(0), [3; 32], T);
    let mut rest = bytes;
    while let Some((&[what, len], tail)) = rest.split_first_chunk() {
        let (piece, tail) = tail.split_at(usize::from(len).min(tail.len()));
        match what % 2 {
            0 => lane.on_record(T, what / 2, piece),
            _ => lane.on_message(T, what / 2, piece, &mut Nowhere),
        }
        rest = tail;
    }
    assert!(lane.bounds().iter().all(|(_, seen, max)| seen <= max));
    lane.export(None, T, |_, _, payload| !payload.is_empty());
});
