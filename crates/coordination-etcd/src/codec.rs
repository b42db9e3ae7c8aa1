//! What is stored, byte by byte.
//!
//! Records are stored in the form that all durable backends share ([`tessera_coordination::stored`]): versioned, bounded,
//! a shard's often-written part apart from the seldom-written one, so that a checkpoint writes about a kilobyte, whatever
//! the metadata. A shard that no worker has held has no hot part at all. Here is what only a fleet's store holds: who owns
//! a shard, how many there are, which were born together, and which split is under way.

mod family;
mod hatching;
mod owner;
mod run;

use tessera_coordination::stored::{Kind, Reader, Writer};

pub use family::FamilyPart;
pub use hatching::HatchingPart;
pub use owner::OwnerPart;
pub use run::{Removal, RunPart};
pub use tessera_coordination::stored::{CodecError, ColdPart, HotPart, HotView, RootsPart, Staging};

const OWNER: Kind = Kind { number: 64, name: "owner record" };
const COUNT: Kind = Kind { number: 65, name: "count" };
const HATCHING: Kind = Kind { number: 66, name: "staged split" };
const FAMILY: Kind = Kind { number: 68, name: "family" };
const FLEET_RUN: Kind = Kind { number: 67, name: "fleet's run record" };

/// A shard counter's value. Big-endian, alone of all numbers: etcd compares values as bytes, and counts are compared.
#[must_use]
pub fn encode_count(count: u64) -> Vec<u8> {
    let mut writer = Writer::new(COUNT, 10);
    count.to_be_bytes().into_iter().for_each(|byte| writer.u8(byte));
    writer.finish()
}

/// Reads a shard counter's value.
///
/// # Errors
/// If the bytes are not one.
pub fn decode_count(bytes: &[u8]) -> Result<u64, CodecError> {
    let mut reader = Reader::new(COUNT, bytes)?;
    let count = reader.array("count").map(u64::from_be_bytes)?;
    reader.finish()?;
    Ok(count)
}

/// Shared by the tests of every part: what holds for all of them.
#[cfg(test)]
mod testing {
    use super::CodecError;

    /// Compares an encoding with the committed one, which must never change for a given version.
    pub(super) fn assert_golden(name: &str, encoded: &[u8]) {
        let path = format!("{}/tests/golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
        let text: String = encoded.iter().map(|byte| format!("{byte:02x}")).collect();
        if std::env::var_os("TESSERA_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, format!("{text}\n")).expect("the golden folder is writable");
        }
        let golden = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{path}: {error}; TESSERA_WRITE_GOLDEN=1 writes it"));
        assert_eq!(text, golden.trim(), "{name}: stored records of this version would no longer be readable");
    }

    /// No prefix, no extension and no single changed byte may panic, and neither of the first two may decode.
    pub(super) fn assert_robust<T>(encoded: &[u8], decode: impl Fn(&[u8]) -> Result<T, CodecError>) {
        for cut in 0..encoded.len() {
            assert!(decode(&encoded[..cut]).is_err(), "the first {cut} of {} bytes decode", encoded.len());
        }
        let longer = [encoded, &[0]].concat();
        assert!(decode(&longer).is_err_and(|error| error.field == "end"), "a trailing byte is accepted");
        for at in 0..encoded.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut changed = encoded.to_vec();
                changed[at] ^= flip;
                // It may be another valid record; it must not panic.
                let _ = decode(&changed);
            }
        }
        let mut newer = encoded.to_vec();
        newer[0] += 1;
        assert!(decode(&newer).is_err_and(|error| error.field == "version"));
        let mut other = encoded.to_vec();
        other[1] = 99;
        assert!(decode(&other).is_err_and(|error| error.field == "kind"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_keeps_its_bytes() {
        let encoded = encode_count(0x0102_0304);
        testing::assert_golden("count", &encoded);
        testing::assert_robust(&encoded, decode_count);
        assert_eq!(decode_count(&encoded), Ok(0x0102_0304));
    }
}
