//! Any bytes in the store of a fleet are a value or an error that names the field; a value is stored as it was read.
//! The same for the ids at the end of a path.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tessera_coordination_etcd::codec::{
    CodecError, FamilyPart, HatchingPart, OwnerPart, RunPart, decode_count, encode_count,
};
use tessera_coordination_etcd::keyspace::{shard_of, tenant_and_run_of};

fuzz_target!(|bytes: &[u8]| {
    stored_as_read(bytes, OwnerPart::decode, OwnerPart::encode);
    stored_as_read(bytes, FamilyPart::decode, FamilyPart::encode);
    stored_as_read(bytes, HatchingPart::decode, HatchingPart::encode);
    stored_as_read(bytes, RunPart::decode, RunPart::encode);
    stored_as_read(bytes, decode_count, |count| encode_count(*count));
    if let Some(shard) = shard_of(bytes) {
        assert!(bytes.ends_with(shard.to_string().as_bytes()));
    }
    if let Some((tenant, run)) = tenant_and_run_of(bytes) {
        assert!(bytes.to_ascii_lowercase().ends_with(format!("/{tenant}/{run}").as_bytes()));
    }
});

fn stored_as_read<T>(bytes: &[u8], decode: fn(&[u8]) -> Result<T, CodecError>, encode: fn(&T) -> Vec<u8>) {
    match decode(bytes) {
        Ok(part) => assert_eq!(encode(&part), bytes),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
