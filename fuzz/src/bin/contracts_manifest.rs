//! Any list of root shards is refused with words, or is in order, without overlap, and with every id once.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tessera_contracts::ShardId;
use tessera_contracts::manifest::{InitialShardInput, validate_manifest};

type Shard<'a> = (u64, &'a [u8], &'a [u8], Option<&'a [u8]>);

fuzz_target!(|shards: Vec<Shard<'_>>| {
    let inputs: Vec<InitialShardInput<'_>> = shards
        .iter()
        .map(|(id, start, end, last_key)| InitialShardInput {
            last_key: *last_key,
            ..InitialShardInput::new(ShardId::new(*id), start, end)
        })
        .collect();
    match validate_manifest(&inputs) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(manifest) => {
            assert_eq!(manifest.shards().len(), inputs.len());
            for pair in manifest.shards().windows(2) {
                assert!(pair[0].spec.end() <= pair[1].spec.start(), "ranges do not overlap");
                assert_ne!(pair[0].shard, pair[1].shard);
            }
            let inside = |key: &[u8], of: &tessera_contracts::ShardSpecRef<'_>| of.contains(key);
            assert!(manifest.shards().iter().all(|s| s.cursor.last_key().is_none_or(|key| inside(key, &s.spec))));
        }
    }
});
