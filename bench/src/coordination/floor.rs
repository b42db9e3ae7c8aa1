//! The floor: an operation with every rule left out.
//!
//! Find the shard through tenant and id, hash the payload, look through sixteen remembered operations, copy the cursor. It
//! stands on the same hash maps, hashes the same bytes with the same function, and its records are as large as ours and lie
//! as far apart. It too takes a random shard each time and reads its lease from an equal table.

use std::hint::black_box;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use tessera_contracts::{CursorUpdate, PayloadHash, RunId, ShardId, ShardKey, TenantId};

use super::{LONGEST, Random, place};

/// One remembered operation, of the size that ours have.
#[derive(Clone, Copy)]
struct Remembered {
    op_id: u64,
    _payload_hash: u64,
    _executed_at: u64,
    _kind_and_result: u64,
}

/// As large as one of ours: twenty-one cache lines.
struct Plain {
    cursor: [u8; LONGEST],
    cursor_len: usize,
    log: [Remembered; 16],
    _rest: [u8; 1344 - 8 - 512 - LONGEST],
}

/// Shards without a protocol.
pub(super) struct Floor {
    tenants: HashMap<TenantId, HashMap<ShardKey, u32, FixedState>, FixedState>,
    records: Vec<Plain>,
    tenant: TenantId,
    shards: Vec<ShardKey>,
    leases: Vec<[u64; 9]>,
    random: Random,
    key_len: usize,
    step: u64,
}

impl Floor {
    pub(super) fn new(shards: u64, key_len: usize) -> Self {
        let mut slots = HashMap::with_hasher(FixedState::default());
        let mut keys = Vec::new();
        let remembered = |op_id| Remembered { op_id, _payload_hash: 1, _executed_at: 1, _kind_and_result: 1 };
        let record = || Plain {
            cursor: [1; LONGEST],
            cursor_len: 0,
            log: std::array::from_fn(|op_id| remembered(op_id as u64)),
            _rest: [1; 1344 - 8 - 512 - LONGEST],
        };
        for index in 0..shards {
            let key = ShardKey::new(RunId::new(1), ShardId::new(1 + index));
            slots.insert(key, index as u32);
            keys.push(key);
        }
        let tenant = TenantId::from_name("bench");
        Self {
            tenants: [(tenant, slots)].into_iter().collect(),
            records: (0..shards).map(|_| record()).collect(),
            tenant,
            leases: keys.iter().map(|key| [key.shard.get(); 9]).collect(),
            shards: keys,
            random: Random(1),
            key_len,
            step: 100,
        }
    }

    pub(super) fn operation(&mut self, passes: u32) {
        let index = self.random.below(self.shards.len());
        for _ in 0..passes {
            self.step += 1;
            let key = place(index as u64, self.step);
            let key = &key[..self.key_len];
            let shard = ShardKey::new(RunId::new(1), ShardId::new(black_box(self.leases[index][0])));
            let slot =
                self.tenants.get(&self.tenant).and_then(|slots| slots.get(&shard)).expect("every shard is there");
            let record = &mut self.records[*slot as usize];
            let cursor = CursorUpdate::at_key(key).expect("the key is short");
            black_box(PayloadHash::of("checkpoint", &cursor));
            let op_id = black_box(self.step);
            black_box(record.log.iter().any(|remembered| remembered.op_id == op_id));
            record.cursor[..key.len()].copy_from_slice(key);
            record.cursor_len = black_box(key.len());
        }
    }
}
