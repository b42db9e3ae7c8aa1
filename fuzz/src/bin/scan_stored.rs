//! Any bytes are a findings file, a shard's target or an ignore file, or are refused with a reason; a file that is read
//! is written as it was.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tessera_scan::findings::record::{Record, Records};
use tessera_scan::plan::target::Target;
use tessera_scan::report::suppress::Suppressions;

fuzz_target!(|bytes: &[u8]| {
    match Records::new(bytes) {
        Err(damage) => assert!(!damage.to_string().is_empty()),
        Ok(records) => {
            // Every record takes a byte at least, so a file has an end.
            let records: Vec<_> = records.collect();
            assert!(records.len() <= bytes.len());
        }
    }
    if let Err(malformed) = Record::read(bytes) {
        assert!(!malformed.to_string().is_empty());
    }
    match Target::decode(bytes) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(target) => {
            if let Ok(again) = target.encode() {
                assert_eq!(again, bytes);
            }
        }
    }
    if let Ok(text) = core::str::from_utf8(bytes) {
        Suppressions::default().add_lines(text);
    }
});
