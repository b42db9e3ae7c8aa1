//! What a worker learns when it acquires a shard: enough to work, and nothing of leases, fences, op-logs or other tenants.
//!
//! The view borrows from an [`AcquireScratch`] that the caller keeps and reuses, so an acquire allocates nothing.

use alloc::boxed::Box;
use alloc::vec::Vec;

use tessera_contracts::limits::{MAX_CURSOR_SIZE, MAX_SPAWNED_PER_SHARD, MAX_SPEC_SIZE};
use tessera_contracts::{Cursor, CursorSemantics, CursorUpdate, ShardId, ShardSpec, ShardSpecRef};

use super::lease::Lease;
use super::status::ShardStatus;
use super::view::ShardView;

/// A shard as its worker sees it, borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardSnapshotView<'s> {
    /// Where it stands.
    pub status: ShardStatus,
    /// What it covers.
    pub spec: ShardSpecRef<'s>,
    /// How far it was processed.
    pub cursor: CursorUpdate<'s>,
    /// What that progress means.
    pub cursor_semantics: CursorSemantics,
    /// The shard it was split from.
    pub parent: Option<ShardId>,
    /// The shards split from it.
    pub spawned: &'s [ShardId],
}

impl ShardSnapshotView<'_> {
    /// A copy that stands alone.
    pub fn to_owned(&self) -> ShardSnapshot {
        ShardSnapshot {
            status: self.status,
            spec: self.spec.to_owned(),
            cursor: self.cursor.to_owned(),
            cursor_semantics: self.cursor_semantics,
            parent: self.parent,
            spawned: self.spawned.into(),
        }
    }
}

/// A shard as its worker sees it, owned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardSnapshot {
    /// Where it stands.
    pub status: ShardStatus,
    /// What it covers.
    pub spec: ShardSpec,
    /// How far it was processed.
    pub cursor: Cursor,
    /// What that progress means.
    pub cursor_semantics: CursorSemantics,
    /// The shard it was split from.
    pub parent: Option<ShardId>,
    /// The shards split from it.
    pub spawned: Box<[ShardId]>,
}

impl ShardSnapshot {
    /// The borrowed form.
    pub fn view(&self) -> ShardSnapshotView<'_> {
        ShardSnapshotView {
            status: self.status,
            spec: self.spec.view(),
            cursor: self.cursor.as_update(),
            cursor_semantics: self.cursor_semantics,
            parent: self.parent,
            spawned: &self.spawned,
        }
    }
}

/// How much of a run is waiting, told with every acquire and renewal: a hint for how soon to ask again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CapacityHint {
    /// Shards of the run that could be claimed now.
    pub available_count: u32,
    /// The soonest deadline among the leases that are still live.
    pub earliest_deadline: Option<tessera_contracts::LogicalTime>,
}

/// The answer to an acquire: the lease, and the shard as of this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcquireResultView<'s> {
    /// The right to work on the shard.
    pub lease: Lease,
    /// What to work on, and from where.
    pub snapshot: ShardSnapshotView<'s>,
    /// How much else is waiting.
    pub capacity: CapacityHint,
}

/// Room for one acquired shard, made once and reused for every acquire.
#[derive(Clone)]
pub struct AcquireScratch {
    bytes: Vec<u8>,
    spawned: Vec<ShardId>,
    filled: Option<Filled>,
}

/// The fixed-size part of a snapshot, and where its byte fields end in the buffer.
#[derive(Clone, Copy)]
struct Filled {
    status: ShardStatus,
    cursor_semantics: CursorSemantics,
    parent: Option<ShardId>,
    spec_ends: [usize; 3],
    last_key_end: Option<usize>,
    token_end: Option<usize>,
}

impl AcquireScratch {
    /// Room for the largest shard there can be, about 53 KiB, taken at once so that no acquire allocates.
    pub fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(MAX_SPEC_SIZE + MAX_CURSOR_SIZE),
            spawned: Vec::with_capacity(MAX_SPAWNED_PER_SHARD),
            filled: None,
        }
    }

    /// Copies what a worker may see of a shard.
    pub fn fill<const LOG: usize>(&mut self, view: &ShardView<'_, LOG>) {
        self.bytes.clear();
        self.spawned.clear();
        self.spawned.extend(view.spawned.iter().map(|child| child.id));
        let mut append = |field: &[u8]| {
            self.bytes.extend_from_slice(field);
            self.bytes.len()
        };
        self.filled = Some(Filled {
            status: view.state.head.status,
            cursor_semantics: view.state.cursor_semantics,
            parent: view.state.parent,
            spec_ends: [view.spec.start(), view.spec.end(), view.spec.metadata()].map(&mut append),
            last_key_end: view.cursor.last_key().map(&mut append),
            token_end: view.cursor.token().map(&mut append),
        });
    }

    /// The shard that was copied last, if any was.
    pub fn snapshot(&self) -> Option<ShardSnapshotView<'_>> {
        let filled = self.filled?;
        let mut begin = 0;
        let mut field = |end: usize| {
            let field = &self.bytes[begin..end];
            begin = end;
            field
        };
        let [start, end, metadata] = filled.spec_ends.map(&mut field);
        let last_key = filled.last_key_end.map(&mut field);
        let token = filled.token_end.map(&mut field);
        Some(ShardSnapshotView {
            status: filled.status,
            spec: ShardSpecRef::new(start, end, metadata).expect("a copy of a valid spec is valid"),
            cursor: CursorUpdate::new(last_key, token).expect("a copy of a valid cursor is valid"),
            cursor_semantics: filled.cursor_semantics,
            parent: filled.parent,
            spawned: &self.spawned,
        })
    }

    /// The answer to an acquire whose shard was copied last.
    ///
    /// # Panics
    ///
    /// If nothing was copied, which is a bug of the backend.
    pub fn granted(&self, lease: Lease, capacity: CapacityHint) -> AcquireResultView<'_> {
        AcquireResultView { lease, snapshot: self.snapshot().expect("a granted shard was copied first"), capacity }
    }
}

impl Default for AcquireScratch {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for AcquireScratch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AcquireScratch").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}
