//! Any bytes are a stored record or an error that names the field; a record is stored as it was read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tessera_coordination::stored::{CodecError, ColdPart, HotPart, RootsPart, RunPart};

fuzz_target!(|bytes: &[u8]| {
    stored_as_read(bytes, ColdPart::decode, ColdPart::encode);
    stored_as_read(bytes, HotPart::decode, HotPart::encode);
    stored_as_read(bytes, RunPart::decode, RunPart::encode);
    stored_as_read(bytes, RootsPart::decode, RootsPart::encode);
});

fn stored_as_read<T>(bytes: &[u8], decode: fn(&[u8]) -> Result<T, CodecError>, encode: fn(&T) -> Vec<u8>) {
    match decode(bytes) {
        Ok(part) => assert_eq!(encode(&part), bytes),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
