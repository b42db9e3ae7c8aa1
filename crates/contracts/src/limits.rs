//! Bounds that every backend and every caller shares.
//!
//! They are part of the contract: a value that passes here is accepted by every backend, and a backend that cannot do
//! it in one step stages it. Bounds on how many shards a tenant may hold are configuration and live with the
//! coordinator.

/// Longest key, in bytes: both ends of a range and the `last_key` of a cursor.
pub const MAX_KEY_SIZE: usize = 4_096;

/// Longest resume token of a connector, in bytes.
pub const MAX_TOKEN_SIZE: usize = 16_384;

/// Longest connector metadata of one shard, in bytes.
pub const MAX_METADATA_SIZE: usize = 16_384;

/// Most root shards in one registration.
pub const MAX_INITIAL_SHARDS: usize = 10_000;

/// Fewest children of a split that replaces its parent: one child would be a rename.
pub const MIN_SPLIT_CHILDREN: usize = 2;

/// Most children of a split that replaces its parent.
pub const MAX_SPLIT_CHILDREN: usize = 256;

/// Most children and residuals that one shard may spawn in its life.
pub const MAX_SPAWNED_PER_SHARD: usize = 1_024;

/// Most bytes one shard spec can hold: two keys and the metadata.
pub const MAX_SPEC_SIZE: usize = 2 * MAX_KEY_SIZE + MAX_METADATA_SIZE;

/// Most bytes one cursor can hold.
pub const MAX_CURSOR_SIZE: usize = MAX_KEY_SIZE + MAX_TOKEN_SIZE;

const _: () = assert!(MIN_SPLIT_CHILDREN >= 2, "a split makes at least two of one");
const _: () = assert!(MIN_SPLIT_CHILDREN <= MAX_SPLIT_CHILDREN);
const _: () = assert!(MAX_SPLIT_CHILDREN <= MAX_SPAWNED_PER_SHARD, "one split must fit the lifetime cap");
// Handles, codecs and indexes hold these lengths and counts in narrower integers.
const _: () = assert!(MAX_KEY_SIZE <= u16::MAX as usize);
const _: () = assert!(MAX_TOKEN_SIZE <= u16::MAX as usize);
const _: () = assert!(MAX_METADATA_SIZE <= u16::MAX as usize);
const _: () = assert!(MAX_INITIAL_SHARDS <= u16::MAX as usize);
const _: () = assert!(MAX_SPAWNED_PER_SHARD <= u16::MAX as usize);
