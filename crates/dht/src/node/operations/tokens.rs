//! Tokens of peers that are good for more than one id: with one in hand, a write need not ask before it writes.
//!
//! Every FIND_NODE asks for a token of as wide a region as the peer will give, and those of peers that lie in the region
//! themselves are kept for a while. A write there sends such a peer the record instead of a question; the answer names closer
//! contacts like any other answer, so the lookup learns as much and goes on as before. One exchange instead of two.

use tessera_contracts::point::{ContentId, NodeId, Point as _};

use crate::keyed_lru::{FIRST_ENTRIES, KeyedLru};
use crate::seal::cookie::Scope;
use crate::seal::keys::PERIOD_SECS;
use crate::wire::message::Token;

/// Peers whose tokens are kept.
pub(super) const TOKENS_MAX: usize = 1024;

/// A token holds in the period it was issued in and in the next, so for one period at least. A little less leaves time to use it.
const KEPT_MS: u64 = (PERIOD_SECS - 30) * 1000;

#[derive(Debug, Clone, Copy)]
struct Held {
    token: Token,
    until_secs: u32,
}

/// Tokens by the peers that gave them; the least recently used goes first. There is one for most peers, so it is kept small: ids
/// are told apart by their first bits, and who is mistaken for another refuses the token. The region is not kept: the peer lies in
/// it.
#[derive(Debug)]
pub(super) struct HeldTokens(KeyedLru<u64, Held>);

impl HeldTokens {
    pub(super) fn new(seed: u64) -> Self {
        Self(KeyedLru::with_room(FIRST_ENTRIES, TOKENS_MAX, seed))
    }

    /// Takes all memory that may ever be needed.
    pub(super) fn reserve_all(&mut self) {
        self.0.reserve_all();
    }

    /// Keeps what `peer` gave when it was asked about `about`, if it may serve another write.
    pub(super) fn keep(&mut self, now_ms: u64, peer: &NodeId, about: &ContentId, token: Token) {
        let (peer, about) = (peer.prefix_u64(), about.prefix_u64());
        if covers(&token, about, peer) {
            self.0.insert(peer, Held { token, until_secs: ((now_ms + KEPT_MS) / 1000) as u32 });
        }
    }

    /// A token with which `id` may be written at `peer`.
    pub(super) fn of(&mut self, now_ms: u64, peer: &NodeId, id: &ContentId) -> Option<Token> {
        let peer = peer.prefix_u64();
        let held = self.0.get_lazily(&peer)?;
        (covers(&held.token, peer, id.prefix_u64()) && now_ms / 1000 < u64::from(held.until_secs)).then_some(held.token)
    }

    /// The peer does not honour it, or will not keep what it allows.
    pub(super) fn forget(&mut self, peer: &NodeId) {
        self.0.remove(&peer.prefix_u64());
    }

    /// Bytes in use, and the most that ever will be.
    pub(super) fn bytes(&self) -> (usize, usize) {
        self.0.bytes()
    }
}

/// Whether a token that was given for `about` is good for the region in which `point` lies. A region of more bits than are
/// looked at would be that of a single node.
fn covers(token: &Token, about: u64, point: u64) -> bool {
    let scope = u32::from(Scope::of_token(token).to_wire());
    scope <= u64::BITS && (about ^ point).leading_zeros() >= scope
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(scope: Scope) -> Token {
        [scope.to_wire(); 16]
    }

    /// A point whose first byte is `first`.
    fn bytes(first: u8) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[0] = first;
        bytes
    }

    #[test]
    fn a_token_of_a_region_serves_its_ids_until_it_may_have_ended() {
        let (peer, about) = (NodeId::from_bytes(bytes(0b1011_0000)), ContentId::from_bytes(bytes(0b1010_0000)));
        let mut tokens = HeldTokens::new(1);
        tokens.keep(1000, &peer, &about, token(Scope::region(3)));
        let of =
            |tokens: &mut HeldTokens, now_ms, first| tokens.of(now_ms, &peer, &ContentId::from_bytes(bytes(first)));
        assert_eq!(of(&mut tokens, 1000, 0b1011_1111), Some(token(Scope::region(3))), "the last id of the region");
        assert_eq!(of(&mut tokens, 1000, 0b1100_0000), None, "the first beyond it");
        assert_eq!(of(&mut tokens, 999 + KEPT_MS, 0b1010_0001), Some(token(Scope::region(3))));
        assert_eq!(of(&mut tokens, 1000 + KEPT_MS, 0b1010_0001), None);
        tokens.forget(&peer);
        assert_eq!(of(&mut tokens, 1000, 0b1010_0001), None);
    }

    #[test]
    fn tokens_of_one_id_and_of_peers_outside_their_region_are_not_kept() {
        let about = ContentId::from_bytes(bytes(0b1010_0000));
        let (inside, outside) = (NodeId::from_bytes(bytes(0b1011_0000)), NodeId::from_bytes(bytes(0b1110_0000)));
        let mut tokens = HeldTokens::new(1);
        tokens.keep(0, &inside, &about, token(Scope::EXACT));
        assert_eq!(tokens.of(0, &inside, &about), None, "good for one id, which is being written");
        tokens.keep(0, &outside, &about, token(Scope::region(3)));
        assert_eq!(tokens.of(0, &outside, &about), None, "it would say that the id is too far");
        tokens.keep(0, &outside, &about, token(Scope::region(1)));
        assert_eq!(tokens.of(0, &outside, &about), Some(token(Scope::region(1))));
    }
}
