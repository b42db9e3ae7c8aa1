//! Roots of a run, as many as a test wants, plans to split them, and a shard that has the name of a child.

// Each test program uses its share of this.
#![allow(dead_code, unreachable_pub)]

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{DerivedShardKind, SplitReplacePlan, derive_split_shard_id, plan_split_replace};
use tessera_contracts::{Cursor, CursorSemantics, OpId, RunIncarnation, ShardId, ShardKey, ShardSpec, TenantId};
use tessera_coordination_etcd::codec::ColdPart;
use tessera_coordination_etcd::keyspace::{Keyspace, ShardIndex};
use tessera_coordination_etcd::kv::Op;

/// Keys of roots: eight bytes, so that there are many.
pub fn bounds(count: usize) -> Vec<[u8; 8]> {
    (0..=count as u64).map(|n| (n + 1).to_be_bytes()).collect()
}

/// Roots between each two bounds, numbered from one.
pub fn inputs(bounds: &[[u8; 8]]) -> Vec<InitialShardInput<'_>> {
    let pairs = bounds.iter().zip(bounds.iter().skip(1)).enumerate();
    pairs.map(|(n, (start, end))| InitialShardInput::new(ShardId::new(n as u64 + 1), start, end)).collect()
}

/// The split of such a root into so many.
pub fn plan(root: ShardId, children: u16) -> SplitReplacePlan {
    let (start, end) = (root.get().to_be_bytes(), (root.get() + 1).to_be_bytes());
    let spec = ShardSpec::new(&start, &end, b"").expect("valid");
    let points: Vec<Vec<u8>> = (1..children).map(|point| [&start[..], &point.to_be_bytes()].concat()).collect();
    let points: Vec<&[u8]> = points.iter().map(Vec::as_slice).collect();
    plan_split_replace(spec.view(), &points).expect("valid")
}

/// A free shard of the same run, split from shard 2 as it were, under the name that a split of `parent` will derive; and what
/// puts it there, by hand: names are 63 bits of a hash and never collide in practice.
pub fn taken_name(
    namespace: &str,
    tenant: TenantId,
    parent: ShardKey,
    split: OpId,
    kind: DerivedShardKind,
    index: u32,
) -> (ShardKey, Vec<Op>) {
    let space = Keyspace::new(namespace);
    let taken = ShardKey::new(parent.run, derive_split_shard_id(parent.run, parent.shard, split, kind, index));
    let cold = ColdPart {
        incarnation: RunIncarnation::new(1),
        spec: ShardSpec::new(b"x", b"y", b"of another").expect("valid"),
        cursor_semantics: CursorSemantics::default(),
        parent: Some(ShardId::new(2)),
        born_at: Cursor::initial(),
        spawned: Vec::new(),
        staged: false,
    };
    let puts = vec![
        Op::put(space.cold(tenant, taken), cold.encode()),
        Op::put(space.index(ShardIndex::Free, tenant, taken), ""),
    ];
    (taken, puts)
}
