//! Any bytes in the store of a fleet are a value or an error that names the field; a value is stored as it was read.
//! The same for the ids at the end of a path.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tessera_contracts::{RunId, ShardKey, TenantId};
use tessera_coordination_etcd::codec::{
    CodecError, FamilyPart, HatchingPart, OwnerPart, RunPart, decode_count, encode_count,
};
use tessera_coordination_etcd::keyspace::{Keyspace, shard_of, tenant_and_run_of};

fuzz_target!(|bytes: &[u8]| {
    stored_as_read(bytes, OwnerPart::decode, OwnerPart::encode);
    stored_as_read(bytes, FamilyPart::decode, FamilyPart::encode);
    stored_as_read(bytes, HatchingPart::decode, HatchingPart::encode);
    stored_as_read(bytes, RunPart::decode, RunPart::encode);
    stored_as_read(bytes, decode_count, |count| encode_count(*count));
    let space = Keyspace::new("");
    if let Some(shard) = shard_of(bytes) {
        let path = space.cold(TenantId::from_bytes([0; 32]), ShardKey::new(RunId::new(0), shard));
        assert!(bytes.ends_with(last_segments(path.as_bytes(), 1)));
    }
    if let Some((tenant, run)) = tenant_and_run_of(bytes) {
        assert!(bytes.ends_with(last_segments(space.run(tenant, run).as_bytes(), 2)));
    }
});

/// The last so many segments of a path.
fn last_segments(path: &[u8], count: usize) -> &[u8] {
    let before = path.rsplitn(count + 1, |byte| *byte == b'/').last().map_or(0, |before| before.len() + 1);
    &path[before..]
}

fn stored_as_read<T>(bytes: &[u8], decode: fn(&[u8]) -> Result<T, CodecError>, encode: fn(&T) -> Vec<u8>) {
    match decode(bytes) {
        Ok(part) => assert_eq!(encode(&part), bytes),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
