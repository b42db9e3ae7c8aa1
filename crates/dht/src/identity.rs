//! A node's identity: one Ed25519 key. Its id, its X25519 key and its local secrets all follow from it.
//!
//! A contact on the wire is a public key and an address; the id is the hash of the key, so a node can claim only the
//! id of its own key. [`Crypto`] is the seam behind which the slow public-key operations stand: production has
//! [`Identity`], a simulation of ten thousand nodes may answer agreements and signatures from a table. Everything
//! symmetric (key schedule, AEAD, replay window, cookies, tokens) is on this side of the seam and always the real thing.

use alloc::boxed::Box;
use core::fmt;

use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use tessera_contracts::domain::Domain;
use tessera_contracts::point::NodeId;
use zeroize::Zeroizing;

use crate::keyed_lru::LruKey;

/// Bytes of an Ed25519 signature.
pub const SIGNATURE_BYTES: usize = 64;

/// An Ed25519 signature, as bytes.
pub type Signature = [u8; SIGNATURE_BYTES];

/// An Ed25519 public key, as bytes that need not be a point: that is found out when it is used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// The id of the node that holds this key.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        NodeId::of_public_key(&self.0)
    }
}

impl LruKey for PublicKey {
    fn mix(&self, seed: u64) -> u64 {
        self.0.mix(seed)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "key:{a:02x}{b:02x}{c:02x}{d:02x}…")
    }
}

/// A secret shared by two nodes: 32 bytes, wiped when dropped, never printed.
#[derive(Clone)]
pub struct SharedSecret(Zeroizing<[u8; 32]>);

impl SharedSecret {
    /// Wraps agreed bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The agreed bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret(32 bytes)")
    }
}

/// The public-key operations of one node.
pub trait Crypto: fmt::Debug + Send {
    /// The node's public key.
    fn public_key(&self) -> PublicKey;

    /// Agrees with the holder of `peer`; `None` if `peer` is no usable key. Symmetric: both sides get the same secret.
    fn agree(&self, peer: &PublicKey) -> Option<SharedSecret>;

    /// Signs `message`.
    fn sign(&self, message: &[u8]) -> Signature;

    /// Whether the holder of `key` signed `message`.
    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool;

    /// A secret that only this node can derive, the same at every start and in every lane: cookies and tokens are
    /// keyed by one each, so that any lane can check another lane's cookies and tokens, without sharing memory.
    fn local_secret(&self, purpose: &Domain) -> [u8; 32];
}

/// The operations of a node, whichever way they are computed.
pub type AnyCrypto = Box<dyn Crypto>;

impl Crypto for AnyCrypto {
    fn public_key(&self) -> PublicKey {
        (**self).public_key()
    }

    fn agree(&self, peer: &PublicKey) -> Option<SharedSecret> {
        (**self).agree(peer)
    }

    fn sign(&self, message: &[u8]) -> Signature {
        (**self).sign(message)
    }

    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        (**self).verify(key, message, signature)
    }

    fn local_secret(&self, purpose: &Domain) -> [u8; 32] {
        (**self).local_secret(purpose)
    }
}

/// A node's own key pair.
pub struct Identity {
    signing: SigningKey,
    /// The same scalar that signs, used for X25519; clamped by the multiplication.
    agreement_scalar: Zeroizing<[u8; 32]>,
    public: PublicKey,
}

impl Identity {
    /// The identity of a 32-byte secret seed, the form in which it is kept in a file.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let signing = SigningKey::from_bytes(seed);
        let public = PublicKey(signing.verifying_key().to_bytes());
        let agreement_scalar = Zeroizing::new(signing.to_scalar_bytes());
        Self { signing, agreement_scalar, public }
    }

    /// The node's id.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.public.node_id()
    }
}

impl Crypto for Identity {
    fn public_key(&self) -> PublicKey {
        self.public
    }

    fn agree(&self, peer: &PublicKey) -> Option<SharedSecret> {
        let point = VerifyingKey::from_bytes(&peer.0).ok()?;
        // A point of small order would make the agreed secret a publicly known constant.
        if point.is_weak() {
            return None;
        }
        let shared = point.to_montgomery().mul_clamped(*self.agreement_scalar).to_bytes();
        (shared != [0; 32]).then(|| SharedSecret::new(shared))
    }

    fn sign(&self, message: &[u8]) -> Signature {
        self.signing.sign(message).to_bytes()
    }

    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        let Ok(key) = VerifyingKey::from_bytes(&key.0) else { return false };
        // Strict: one signature has one encoding, so that no node can make a second "different" record of a signed one.
        key.verify_strict(message, &ed25519_dalek::Signature::from_bytes(signature)).is_ok()
    }

    fn local_secret(&self, purpose: &Domain) -> [u8; 32] {
        purpose.hash(self.signing.as_bytes())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("public", &self.public).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_agree_and_a_third_does_not() {
        let [a, b, c] = [1, 2, 3].map(|n| Identity::from_seed(&[n; 32]));
        let ab = a.agree(&b.public_key()).unwrap();
        assert_eq!(ab.as_bytes(), b.agree(&a.public_key()).unwrap().as_bytes());
        assert_ne!(ab.as_bytes(), c.agree(&b.public_key()).unwrap().as_bytes());
    }

    #[test]
    fn unusable_keys_allow_no_agreement() {
        let a = Identity::from_seed(&[1; 32]);
        let mut identity_point = [0; 32];
        identity_point[0] = 1;
        assert!(a.agree(&PublicKey(identity_point)).is_none(), "the neutral point");
        assert!(a.agree(&PublicKey([0; 32])).is_none(), "a point of order four");
        let no_point = (2..=255).map(|y| [y; 32]).find(|bytes| VerifyingKey::from_bytes(bytes).is_err()).unwrap();
        assert!(a.agree(&PublicKey(no_point)).is_none(), "no point at all");
    }

    #[test]
    fn a_signature_holds_for_its_message_and_key_only() {
        let (a, b) = (Identity::from_seed(&[1; 32]), Identity::from_seed(&[2; 32]));
        let mut signature = a.sign(b"message");
        assert!(b.verify(&a.public_key(), b"message", &signature));
        assert!(!b.verify(&a.public_key(), b"massage", &signature));
        assert!(!b.verify(&b.public_key(), b"message", &signature));
        signature[40] ^= 1;
        assert!(!b.verify(&a.public_key(), b"message", &signature));
    }

    #[test]
    fn no_signature_is_valid_for_a_key_of_small_order() {
        // With the neutral point as key and as commitment, and zero as response, the equation holds for every message.
        let (mut key, mut signature) = ([0; 32], [0; 64]);
        (key[0], signature[0]) = (1, 1);
        assert!(!Identity::from_seed(&[1; 32]).verify(&PublicKey(key), b"anything", &signature));
    }

    #[test]
    fn debug_shows_no_secret() {
        let identity = Identity::from_seed(&[0xab; 32]);
        let shown = alloc::format!("{identity:?} {:?}", identity.agree(&Identity::from_seed(&[1; 32]).public_key()));
        assert!(!shown.to_lowercase().contains("abab"), "{shown}");
    }
}
