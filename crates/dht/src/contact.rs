//! A contact: a public key and the address it was last seen at.

use tessera_contracts::point::NodeId;

use crate::addr::Addr;
use crate::identity::PublicKey;

/// How to reach a node. Its id follows from the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contact {
    /// The node's public key.
    pub key: PublicKey,
    /// Where it listens.
    pub addr: Addr,
}

impl Contact {
    /// The node's id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.key.node_id()
    }
}
