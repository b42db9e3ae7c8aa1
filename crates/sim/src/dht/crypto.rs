//! Public-key operations of simulated nodes.
//!
//! `Fast` answers agreements and signatures from a secret that the simulation holds and no simulated attacker can ask: an
//! agreement is a keyed hash of both keys, a signature a keyed hash of key and message. What a node could not compute
//! without a private key it cannot compute here. Everything symmetric is the real code. `Real` is the real thing
//! throughout, some hundred times slower to meet strangers.

use tessera_contracts::domain::Domain;
use tessera_dht::identity::{Crypto, Identity, PublicKey, SharedSecret, Signature};

/// One node's keys.
#[derive(Debug)]
pub(crate) enum SimCrypto {
    Fast { public: PublicKey, secret: [u8; 32] },
    Real(Box<Identity>),
}

impl SimCrypto {
    /// The keys of `seed` in the simulation of `secret`.
    pub(crate) fn new(seed: [u8; 32], secret: [u8; 32], real: bool) -> Self {
        if real {
            Self::Real(Box::new(Identity::from_seed(&seed)))
        } else {
            Self::Fast { public: PublicKey(seed), secret }
        }
    }
}

fn keyed(secret: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

impl Crypto for SimCrypto {
    fn public_key(&self) -> PublicKey {
        match self {
            Self::Fast { public, .. } => *public,
            Self::Real(identity) => identity.public_key(),
        }
    }

    fn agree(&self, peer: &PublicKey) -> Option<SharedSecret> {
        match self {
            Self::Fast { public, secret } => {
                let (low, high) = if public <= peer { (public, peer) } else { (peer, public) };
                Some(SharedSecret::new(keyed(secret, &[b"agree", &low.0, &high.0])))
            }
            Self::Real(identity) => identity.agree(peer),
        }
    }

    fn sign(&self, message: &[u8]) -> Signature {
        match self {
            Self::Fast { public, secret } => fast_signature(secret, public, message),
            Self::Real(identity) => identity.sign(message),
        }
    }

    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        match self {
            Self::Fast { secret, .. } => fast_signature(secret, key, message) == *signature,
            Self::Real(identity) => identity.verify(key, message, signature),
        }
    }

    fn local_secret(&self, purpose: &Domain) -> [u8; 32] {
        match self {
            Self::Fast { public, secret } => keyed(secret, &[b"local", purpose.context().as_bytes(), &public.0]),
            Self::Real(identity) => identity.local_secret(purpose),
        }
    }
}

fn fast_signature(secret: &[u8; 32], key: &PublicKey, message: &[u8]) -> Signature {
    let half = keyed(secret, &[b"sign", &key.0, message]);
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(&half);
    signature[32..].copy_from_slice(&keyed(secret, &[b"sign again", &half]));
    signature
}
