//! Proofs that cost nothing to keep: cookies for addresses, tokens for writes.
//!
//! A *cookie* proves that a peer can receive at an address; until then an address is sent no more bytes than came
//! from it, and when strangers are many none costs a key agreement without one. It travels in clear, so it names the peer's key as well: a
//! cookie that was overheard is of no use under another key. A *token* allows writes: it also names the asker, so that one node cannot spend another's, and the id, so that
//! one question does not open all ids; a node that announces a region asks for a token of that region. Both are keyed
//! hashes over a period, so any lane checks what any lane issued, and nothing is stored. A cookie forged by guessing
//! (2^64 datagrams) buys amplification or an agreement only, so eight bytes are enough; a token is a byte of scope and fifteen of hash.

use subtle::ConstantTimeEq;
use tessera_contracts::domain::{COOKIE_V1, WRITE_TOKEN_V1};
use tessera_contracts::point::{ContentId, NodeId, Point as _};
use zeroize::Zeroizing;

use super::keys::{NetworkKey, period_at};
use crate::addr::Addr;
use crate::identity::{Crypto, PublicKey};
use crate::wire::message::{Cookie, Token};

/// "I have no cookie of yours." Never issued.
pub const NO_COOKIE: Cookie = [0; 8];

/// The scope of a token: all ids that share so many leading bits with the one it was asked for, or that id alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope(u8);

impl Scope {
    /// The id alone.
    pub const EXACT: Self = Self(u8::MAX);

    /// All ids: the peer asked for it narrows it as it likes.
    pub const WIDEST: Self = Self(0);

    /// All ids that share `bits` leading bits.
    #[must_use]
    pub fn region(bits: u32) -> Self {
        Self(bits.min(u32::from(u8::MAX)) as u8)
    }

    /// Reads the wire form.
    #[must_use]
    pub fn from_wire(byte: u8) -> Self {
        Self(byte)
    }

    /// The wire form.
    #[must_use]
    pub fn to_wire(self) -> u8 {
        self.0
    }

    /// The scope a token claims: its first byte, which its hash covers.
    #[must_use]
    pub fn of_token(token: &Token) -> Self {
        Self(token[0])
    }

    /// The part of `id` that counts, the rest zero.
    fn region_of(self, id: &ContentId) -> [u8; 32] {
        let mut region = *id.as_bytes();
        if self != Self::EXACT {
            let (whole, bits) = (usize::from(self.0) / 8, self.0 % 8);
            region[whole] &= !(0xff >> bits);
            region[whole + 1..].fill(0);
        }
        region
    }
}

/// Issues and checks cookies and tokens.
#[derive(Clone)]
pub struct Proofs {
    cookie_key: Zeroizing<[u8; 32]>,
    token_key: Zeroizing<[u8; 32]>,
}

impl Proofs {
    /// The proofs of a node in a network.
    #[must_use]
    pub fn new(crypto: &impl Crypto, network: &NetworkKey) -> Self {
        let in_network = |secret: [u8; 32]| Zeroizing::new(*blake3::keyed_hash(&secret, network.as_bytes()).as_bytes());
        Self {
            cookie_key: in_network(crypto.local_secret(&COOKIE_V1)),
            token_key: in_network(crypto.local_secret(&WRITE_TOKEN_V1)),
        }
    }

    /// The cookie for `peer` at `addr` now.
    #[must_use]
    pub fn cookie(&self, peer: &PublicKey, addr: &Addr, unix_secs: u64) -> Cookie {
        self.cookie_of(peer, addr, period_at(unix_secs))
    }

    /// Whether `cookie` was issued to `peer` at `addr` in this period or the one before.
    #[must_use]
    pub fn cookie_holds(&self, cookie: &Cookie, peer: &PublicKey, addr: &Addr, unix_secs: u64) -> bool {
        *cookie != NO_COOKIE && self.judge_cookie(cookie, peer, addr, unix_secs).1
    }

    /// The cookie for `peer` at `addr` now, and whether `cookie` is that one or the one of the period before.
    #[must_use]
    pub fn judge_cookie(&self, cookie: &Cookie, peer: &PublicKey, addr: &Addr, unix_secs: u64) -> (Cookie, bool) {
        // The time of a comparison tells nothing. The second comparison, made only if the first fails, tells its bearer which of
        // the two it has, and an observer nothing: the answer's length already says whether either held.
        let now = period_at(unix_secs);
        let current = self.cookie_of(peer, addr, now);
        let older = || self.cookie_of(peer, addr, now.wrapping_sub(1)).ct_eq(cookie).into();
        (current, *cookie != NO_COOKIE && (current.ct_eq(cookie).into() || older()))
    }

    /// The token with which `asker` at `addr` may write ids that share the first `scope` bits of `id`.
    #[must_use]
    pub fn token(&self, addr: &Addr, asker: &NodeId, id: &ContentId, scope: Scope, unix_secs: u64) -> Token {
        self.token_of(addr, asker, id, scope, period_at(unix_secs))
    }

    /// Whether `token` was issued to `asker` at `addr` for `id`, or for its region, in this period or the one before.
    #[must_use]
    pub fn token_holds(&self, token: &Token, addr: &Addr, asker: &NodeId, id: &ContentId, unix_secs: u64) -> bool {
        let (now, scope) = (period_at(unix_secs), Scope::of_token(token));
        // As for cookies: which of the two holds is known to its bearer.
        let holds_of = |period| bool::from(self.token_of(addr, asker, id, scope, period).ct_eq(token));
        holds_of(now) || holds_of(now.wrapping_sub(1))
    }

    fn cookie_of(&self, peer: &PublicKey, addr: &Addr, period: u32) -> Cookie {
        // 54 bytes: one block.
        let mut material = [0; 32 + Addr::WIRE_BYTES + 4];
        material[..32].copy_from_slice(&peer.0);
        material[32..50].copy_from_slice(&addr.to_wire());
        material[50..].copy_from_slice(&period.to_le_bytes());
        let mut cookie = NO_COOKIE;
        cookie.copy_from_slice(&blake3::keyed_hash(&self.cookie_key, &material).as_bytes()[..8]);
        if cookie == NO_COOKIE {
            cookie[0] = 1;
        }
        cookie
    }

    fn token_of(&self, addr: &Addr, asker: &NodeId, id: &ContentId, scope: Scope, period: u32) -> Token {
        let mut material = [0; 32 + Addr::WIRE_BYTES + 4 + 1 + 32];
        material[..32].copy_from_slice(asker.as_bytes());
        material[32..50].copy_from_slice(&addr.to_wire());
        material[50..54].copy_from_slice(&period.to_le_bytes());
        material[54] = scope.0;
        material[55..].copy_from_slice(&scope.region_of(id));
        let mut token = [scope.0; 16];
        token[1..].copy_from_slice(&blake3::keyed_hash(&self.token_key, &material).as_bytes()[..15]);
        token
    }
}

impl core::fmt::Debug for Proofs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Proofs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use crate::seal::keys::PERIOD_SECS;

    fn proofs(seed: u8, network: &str) -> Proofs {
        Proofs::new(&Identity::from_seed(&[seed; 32]), &NetworkKey::of_name(network))
    }

    const ADDR: Addr = Addr::v4([192, 0, 2, 1], 7);
    const PEER: PublicKey = PublicKey([3; 32]);

    #[test]
    fn a_cookie_holds_for_its_peer_and_address_and_two_periods() {
        let proofs = proofs(1, "net");
        let at = 100 * PERIOD_SECS + 1;
        let cookie = proofs.cookie(&PEER, &ADDR, at);
        assert!(proofs.cookie_holds(&cookie, &PEER, &ADDR, at));
        assert!(proofs.cookie_holds(&cookie, &PEER, &ADDR, 102 * PERIOD_SECS - 1));
        assert!(!proofs.cookie_holds(&cookie, &PEER, &ADDR, 102 * PERIOD_SECS));
        assert!(!proofs.cookie_holds(&cookie, &PEER, &ADDR, 100 * PERIOD_SECS - 1));
        assert!(!proofs.cookie_holds(&cookie, &PEER, &Addr { port: 8, ..ADDR }, at));
        assert!(!proofs.cookie_holds(&cookie, &PublicKey([4; 32]), &ADDR, at), "overheard, and used under another key");
        assert!(!proofs.cookie_holds(&NO_COOKIE, &PEER, &ADDR, at));
    }

    #[test]
    fn a_token_holds_for_its_asker_address_and_two_periods() {
        let proofs = proofs(1, "net");
        let (asker, other) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
        let (at, id) = (100 * PERIOD_SECS, ContentId::from_bytes([7; 32]));
        let token = proofs.token(&ADDR, &asker, &id, Scope::EXACT, at);
        assert!(proofs.token_holds(&token, &ADDR, &asker, &id, at + 2 * PERIOD_SECS - 1));
        assert!(!proofs.token_holds(&token, &ADDR, &asker, &id, at + 2 * PERIOD_SECS));
        assert!(!proofs.token_holds(&token, &ADDR, &other, &id, at));
        assert!(!proofs.token_holds(&token, &Addr { port: 8, ..ADDR }, &asker, &id, at));
    }

    #[test]
    fn a_token_is_good_for_its_id_or_its_region_and_no_other() {
        let proofs = proofs(1, "net");
        let asker = NodeId::from_bytes([1; 32]);
        let id = ContentId::from_bytes([0b1010_1010; 32]);
        let flipped = |bit: usize| {
            let mut bytes = *id.as_bytes();
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
            ContentId::from_bytes(bytes)
        };
        let exact = proofs.token(&ADDR, &asker, &id, Scope::EXACT, 0);
        assert!(proofs.token_holds(&exact, &ADDR, &asker, &id, 0));
        assert!((0..256).all(|bit| !proofs.token_holds(&exact, &ADDR, &asker, &flipped(bit), 0)));
        for bits in [0, 1, 7, 8, 9, 100] {
            let token = proofs.token(&ADDR, &asker, &id, Scope::region(bits), 0);
            for bit in 0..256 {
                let holds = proofs.token_holds(&token, &ADDR, &asker, &flipped(bit), 0);
                assert_eq!(holds, bit >= bits as usize, "bit {bit} of a region of {bits}");
            }
            let mut widened = token;
            widened[0] = 0;
            assert_eq!(proofs.token_holds(&widened, &ADDR, &asker, &id, 0), bits == 0, "the scope is in the hash");
        }
    }

    #[test]
    fn a_restarted_node_honours_its_proofs_and_another_node_or_network_does_not() {
        let cookie = proofs(1, "net").cookie(&PEER, &ADDR, 0);
        assert!(proofs(1, "net").cookie_holds(&cookie, &PEER, &ADDR, 0));
        assert!(!proofs(2, "net").cookie_holds(&cookie, &PEER, &ADDR, 0));
        assert!(!proofs(1, "other").cookie_holds(&cookie, &PEER, &ADDR, 0));
    }
}
