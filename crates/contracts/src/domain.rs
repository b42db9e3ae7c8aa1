//! Every purpose we hash for, in one list.
//!
//! Each purpose has its own BLAKE3 `derive_key` context, so that bytes hashed for one can never be replayed as a hash
//! for another. The list is the only place a context string is written; a test holds the strings unique. A `_V1` means
//! that a changed form gets a new name and an old hash keeps its meaning.
//!
//! `derive_key` first hashes the context itself. That half is the same every time, so its result is stored here as a
//! constant and checked by test against the BLAKE3 library: a payload of up to 64 bytes then costs one block. Results
//! are exactly those of `BLAKE3-derive_key(context, material)` in any other implementation; `vectors/` has examples.

use core::fmt;

use blake3::hazmat::HasherExt;

use crate::canonical::{CanonicalBytes, CanonicalSink};
use crate::hex;

macro_rules! registry {
    ($($(#[$doc:meta])* $name:ident = $context:literal, $key:literal;)*) => {
        $($(#[$doc])* pub const $name: Domain = Domain { context: $context, key: key_from_hex($key) };)*

        /// All domains, in the order of this file.
        pub const ALL: &[Domain] = &[$($name),*];
    };
}

registry! {
    /// Fingerprints of operations in op-logs.
    OP_PAYLOAD_V1 = "tessera v1 coordination operation payload",
        "908582f1200b9e027dd881c6ee29df2134e3ad0e75503138ed0802958c7a4f64";
    /// Ids of shards made by splits.
    SPLIT_ID_V1 = "tessera v1 coordination split shard id",
        "26a063469bd208879c2fa5e3956cbf786a22c9a08a457ab9b37d2598fd6f7b3e";
    /// Tenant ids from the names operators type.
    TENANT_NAME_V1 = "tessera v1 coordination tenant name",
        "2ba71b7e030b1a576a60e9194329fff08c281c56049409bf981203b056b3d7d7";
    /// Run ids from targets and options, for runs that resume by themselves.
    RUN_NAME_V1 = "tessera v1 coordination run name",
        "518849f2252f41604b735bfdf78ef4ed6bc2e3ce0dd17f4aa6af59471a81f0ed";

    /// Node ids from Ed25519 public keys.
    NODE_ID_V1 = "tessera v1 dht node id",
        "3de396daf1cc07d808b6b51fa8091fdef4c74b321f8631acfafcd19158142ab7";
    /// Content ids of immutable values.
    IMMUTABLE_ID_V1 = "tessera v1 dht immutable record id",
        "d92ce5dd4a627096a6591ffe968c6c73c401c8a9f71ec34ad779738df584a901";
    /// Content ids of mutable records, from owner and salt.
    MUTABLE_ID_V1 = "tessera v1 dht mutable record id",
        "653883ecc78e2a50fc9e9f5abd3c7df7c285540eb2ebfc3942032ce94c7d2675";
    /// The bytes that the owner of a mutable record signs.
    MUTABLE_SIGNATURE_V1 = "tessera v1 dht mutable record signature",
        "f623b75fbf8f6743ed8045c13a58fa0621813edea50ea84cb4fe95002716b750";
    /// The bytes that a provider signs when it announces a content id.
    PROVIDER_SIGNATURE_V1 = "tessera v1 dht provider record signature",
        "fd4511f2e701846b4052b8bd86bc7a6e792c37ba08ed4d9fde45cb93d9ff6ea4";
    /// The key of a network, from its name; mixed into every key below.
    NETWORK_KEY_V1 = "tessera v1 dht network key",
        "1251308420ab5df146d4a44510a611ed68eb6cd81119715710f300130800282d";
    /// Keys that seal datagrams between two nodes.
    SEALING_KEY_V1 = "tessera v1 dht datagram sealing key",
        "f7fddf02e8e8abadc8abdc84662aa555088a608aa71ec43b792b940e1b375eeb";
    /// Cookies that prove a source address.
    COOKIE_V1 = "tessera v1 dht address cookie",
        "4d5a62cd4eb95c7152673228583f813dd9be26205492290e5df39f6f1aabb971";
    /// Tokens that allow a write.
    WRITE_TOKEN_V1 = "tessera v1 dht write token",
        "66d986c8c4ba1bde0f22a540c8e11316232b707b8ec1dd7407499e37639e6145";

    /// Ids of findings, so that an item scanned twice reports once.
    FINDING_ID_V1 = "tessera v1 scan finding id",
        "0ed74b18eb73768ed17e96c8acb9e025ab6577126e670cae00613d9b67ff64dc";
    /// Ids of secrets, so that one secret in many places is known as one without being stored.
    SECRET_ID_V1 = "tessera v1 scan secret id",
        "a1b7b245ae19b36c9b290ec5e34a918b3aad81cc00a68a0c360d12fe1962144b";
    /// The version of a rule set, from everything that changes its findings.
    RULE_SET_V1 = "tessera v1 scan rule set",
        "ea9c0358f671cab45242a76bbf8c1790523eda8c2f4343a245341c1aa45b8800";
}

/// One purpose of hashing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Domain {
    context: &'static str,
    key: [u8; 32],
}

impl Domain {
    /// The context string, as another implementation would pass it to `derive_key`.
    pub const fn context(&self) -> &'static str {
        self.context
    }

    /// Starts a hash in this domain.
    pub fn hasher(&self) -> DomainHasher {
        DomainHasher { hasher: blake3::Hasher::new_from_context_key(&self.key), pending: [0; 64], pending_len: 0 }
    }

    /// Hashes raw bytes. For more than one field use [`hasher`](Self::hasher) or [`hash_of`](Self::hash_of).
    pub fn hash(&self, bytes: &[u8]) -> [u8; 32] {
        let mut hasher = self.hasher();
        hasher.fixed(bytes);
        hasher.finish()
    }

    /// Hashes the canonical bytes of `value`.
    pub fn hash_of(&self, value: &impl CanonicalBytes) -> [u8; 32] {
        let mut hasher = self.hasher();
        value.write_canonical(&mut hasher);
        hasher.finish()
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({:?})", self.context)
    }
}

/// A hash under way in one domain.
///
/// Canonical forms come as many small fields. They are gathered into whole blocks first, because each call into the
/// hash function costs more than the bytes of a field do.
#[derive(Clone)]
pub struct DomainHasher {
    hasher: blake3::Hasher,
    pending: [u8; 64],
    pending_len: usize,
}

impl DomainHasher {
    /// The 32-byte result for all that was written.
    pub fn finish(&mut self) -> [u8; 32] {
        self.flush();
        *self.hasher.finalize().as_bytes()
    }

    /// The first eight bytes of the result as a little-endian number.
    pub fn finish_u64(&mut self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.finish();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    fn flush(&mut self) {
        self.hasher.update(&self.pending[..self.pending_len]);
        self.pending_len = 0;
    }
}

impl CanonicalSink for DomainHasher {
    fn fixed(&mut self, bytes: &[u8]) {
        if bytes.len() > self.pending.len() - self.pending_len {
            self.flush();
        }
        match self.pending.get_mut(self.pending_len..self.pending_len + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.pending_len += bytes.len();
            }
            // Longer than a block, and nothing is pending: straight on.
            None => {
                self.hasher.update(bytes);
            }
        }
    }
}

impl fmt::Debug for DomainHasher {
    // The hashed bytes may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DomainHasher(<redacted>)")
    }
}

/// Reads a constant of this file; anything but 64 hex digits does not compile.
const fn key_from_hex(text: &str) -> [u8; 32] {
    let digits = text.as_bytes();
    assert!(digits.len() == 64, "a context key is 64 hex digits");
    let mut key = [0; 32];
    let mut i = 0;
    while i < 32 {
        match (hex::nibble(digits[2 * i]), hex::nibble(digits[2 * i + 1])) {
            (Some(high), Some(low)) => key[i] = high << 4 | low,
            _ => panic!("a context key is hex"),
        }
        i += 1;
    }
    key
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stored_keys_are_those_of_the_context_strings() {
        for domain in ALL {
            let computed = blake3::hazmat::hash_derive_key_context(domain.context);
            assert_eq!(
                domain.key,
                computed,
                "{:?} needs the key {}",
                domain.context,
                blake3::Hash::from_bytes(computed).to_hex()
            );
        }
    }

    #[test]
    fn no_two_purposes_share_a_context() {
        let contexts: BTreeSet<_> = ALL.iter().map(|domain| domain.context).collect();
        assert_eq!(contexts.len(), ALL.len());
    }

    #[test]
    fn hashing_is_plain_derive_key_of_any_length() {
        let material = [0x5a; 3000];
        for len in [0, 1, 63, 64, 65, 1023, 1024, 1025, 3000] {
            let plain = blake3::derive_key(SPLIT_ID_V1.context(), &material[..len]);
            assert_eq!(SPLIT_ID_V1.hash(&material[..len]), plain, "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn the_cut_into_fields_does_not_change_the_hash(fields in prop::collection::vec(0_usize..150, 0..20)) {
            let whole: Vec<u8> = (0..fields.iter().sum()).map(|at| at as u8).collect();
            let mut hasher = SPLIT_ID_V1.hasher();
            let mut rest = whole.as_slice();
            for len in fields {
                let (field, after) = rest.split_at(len);
                hasher.fixed(field);
                rest = after;
            }
            prop_assert_eq!(hasher.finish(), blake3::derive_key(SPLIT_ID_V1.context(), &whole));
        }
    }

    #[test]
    fn the_same_bytes_hash_differently_in_every_domain() {
        let hashes: BTreeSet<_> = ALL.iter().map(|domain| domain.hash(b"same")).collect();
        assert_eq!(hashes.len(), ALL.len());
    }
}
