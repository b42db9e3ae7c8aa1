//! What names a place for a code host, so that it knows an alert again when lines above it come and go.
//!
//! It is made of the rule, the secret, the file, and how many places of the secret stand before it in the file; not of a line.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_128;

use super::view::{FindingView, PlaceView};

/// The places that were named so far.
#[derive(Debug, Default)]
pub(super) struct Fingerprints {
    times: BTreeMap<u128, u64>,
}

/// The name of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    file: u128,
    /// 1 for the first place of the secret in the file.
    pub(super) number: u64,
}

impl Fingerprints {
    /// The name of the next place.
    pub(super) fn of(&mut self, finding: &FindingView<'_>, place: &PlaceView<'_>) -> Fingerprint {
        let mut named = finding.secret_id().0.to_vec();
        named.extend_from_slice(&(place.root() as u64).to_le_bytes());
        for part in [finding.rule().as_str().as_bytes(), &place.path_in_root()] {
            named.extend_from_slice(part);
            named.push(0);
        }
        let file = xxh3_128(&named);
        let number = self.times.entry(file).or_insert(0);
        *number += 1;
        Fingerprint { file, number: *number }
    }
}

impl Fingerprint {
    /// 32 hex digits.
    pub(super) fn hex(self) -> String {
        format!("{:032x}", xxh3_128(&[self.file.to_le_bytes().as_slice(), &self.number.to_le_bytes()].concat()))
    }

    /// The same digits in the shape of a UUID, of the version for ids that are made in a way of their own.
    pub(super) fn uuid(self) -> String {
        let hex = self.hex();
        format!("{}-{}-8{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
    }
}
