//! The paths that a checkpoint, a claim or a datagram takes through this crate do not allocate.

use alloc_counter::{CountingAllocator, count};
use tessera_contracts::cursor::{check_advance, check_in_range};
use tessera_contracts::domain;
use tessera_contracts::ids::{OpId, RunId, ShardId};
use tessera_contracts::point::{ContentId, NodeId, Point};
use tessera_contracts::prefix_map::{PrefixMap, Selector};
use tessera_contracts::split::{DerivedShardKind, derive_split_shard_id};
use tessera_contracts::{CursorUpdate, PayloadHash, PooledCursor, PooledShardSpec, ShardArena, ShardSpecRef};
use tessera_stdx::ByteSlab;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn recording_progress_in_a_slab_does_not_allocate() {
    let mut slab = ByteSlab::with_capacity(1 << 16);
    let spec = ShardSpecRef::new(b"a", b"z", b"metadata").expect("a valid spec");
    let keys: Vec<Vec<u8>> = (0..200_usize).map(|len| vec![b'k'; len + 1]).collect();
    let (allocations, ()) = count(|| {
        let mut pooled_spec = PooledShardSpec::from_spec(spec, &mut slab).expect("room");
        let mut pooled = PooledCursor::initial();
        for key in &keys {
            let update = CursorUpdate::new(Some(key), Some(key)).expect("a valid cursor");
            check_advance(pooled.last_key(&slab), update.last_key()).expect("rising keys");
            check_in_range(pooled_spec.view(&slab).range(), update.last_key()).expect("keys of the shard");
            pooled.replace(update, &mut slab).expect("room");
        }
        pooled_spec.replace(spec, &mut slab).expect("room");
        pooled_spec.release(&mut slab);
        pooled.release(&mut slab);
    });
    assert_eq!(allocations, 0);
    assert!(slab.is_empty());
}

#[test]
fn hashing_and_naming_do_not_allocate() {
    let cursor = CursorUpdate::new(Some(b"src/main.rs"), Some(b"page")).expect("a valid cursor");
    let long = vec![7; 16_384];
    let (allocations, _) = count(|| {
        let payload = PayloadHash::of("checkpoint", &cursor);
        let shard = derive_split_shard_id(RunId::new(1), ShardId::new(2), OpId::new(3), DerivedShardKind::Child, 4);
        (payload, shard, domain::FINDING_ID_V1.hash(&long))
    });
    assert_eq!(allocations, 0);
}

#[test]
fn finding_the_lane_of_an_id_does_not_allocate() {
    let map = PrefixMap::new(Selector::default(), 6).expect("six lanes");
    let (allocations, _) = count(|| {
        let (own, id) = (NodeId::of_public_key(&[1; 32]), ContentId::of_immutable(b"value"));
        (map.lane(&own, &id), own.distance_to(&id).leading_zeros(), map.resized(7))
    });
    assert_eq!(allocations, 0);
}

#[test]
fn an_arena_takes_its_memory_once() {
    let mut arena = ShardArena::with_capacity(1 << 16);
    let spec = ShardSpecRef::new(b"a", b"z", b"metadata").expect("a valid spec");
    let (allocations, ()) = count(|| {
        for _ in 0..1000 {
            let handle = arena.insert(spec).expect("room");
            assert_eq!(arena.get(handle), Some(spec));
            arena.remove(handle);
        }
    });
    assert_eq!(allocations, 0);
}
