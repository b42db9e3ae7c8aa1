//! Cutting any key range: keys that come out lie strictly inside, in order, and as many as were asked for.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tessera_contracts::KeyRange;
use tessera_contracts::keyspace::{Fraction, key_at_fraction, keys_evenly, shortest_key_between};

fuzz_target!(|input: (&[u8], &[u8], u32, u8)| {
    let (start, end, millionths, pieces) = input;
    let Ok(range) = KeyRange::new(start, end) else { return };
    let inside = |key: &[u8]| key > start && (end.is_empty() || key < end);
    if let Ok(fraction) = Fraction::from_millionths(millionths) {
        let key = key_at_fraction(range, fraction);
        assert_eq!(key.is_some(), shortest_key_between(start, end).is_some(), "a key was there to be found");
        assert!(key.is_none_or(|key| inside(&key)));
    }
    let pieces = usize::from(pieces);
    if let Some(keys) = keys_evenly(range, pieces) {
        assert_eq!(keys.len(), pieces.saturating_sub(1));
        assert!(keys.iter().all(|key| inside(key)));
        assert!(keys.is_sorted_by(|a, b| a < b), "cuts are distinct and in order");
    }
});
