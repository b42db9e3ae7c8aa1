//! One node in a lookup's view.

use tessera_contracts::point::{Distance, NodeId};

use super::Lookup;
use super::namers::Named;
use crate::addr::Addr;
use crate::contact::Contact;
use crate::wire::message::{ErrorCode, Token};

/// How often a node that is silent is asked where another says that it is.
const MOVES_MAX: u8 = 2;

/// Where a candidate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Not asked yet.
    Fresh,
    /// Asked; no answer yet.
    Asked,
    /// Answered.
    Answered,
    /// Did not answer in time, and may be asked once more.
    Silent,
    /// Did not answer twice.
    Dead,
    /// Said no.
    Refused(ErrorCode),
    /// Answered something invalid; nothing it said was used.
    Lied,
}

/// One node in a lookup's view.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// Its id.
    pub id: NodeId,
    /// How far it is from the target.
    pub distance: Distance,
    /// How to reach it.
    pub contact: Contact,
    /// Where it stands.
    pub standing: Standing,
    /// How many answers led to it; a peer from our own table has 1.
    pub hops: u8,
    /// The disjoint path it belongs to.
    pub path: u8,
    /// Allows a write to it, once it has answered.
    pub token: Option<Token>,
    /// Whether it returned the record or providers, or took the record.
    pub had_result: bool,
    /// Who named it first; `None` for a peer of our own table.
    pub via: Option<NodeId>,
    /// When it was last asked, or fell silent; zero for never.
    pub asked_ms: u64,
    /// When it answered or refused; zero for not yet.
    pub answered_ms: u64,
    /// Another that named it; both answer for it.
    pub(super) also: Option<NodeId>,
    /// Its namers are not believed.
    pub(super) doubted: bool,
    /// What has become of those that it named.
    pub(super) named: Named,
    /// Asked before others, however far it is.
    pub(super) first: bool,
    /// It was last sent the record, not a question; if it is fresh again, it did not answer in time.
    pub(super) writes: bool,
    /// Its round trip as known before the lookup.
    pub(super) srtt_ms: u16,
    /// The relay that wanted to see us before it asks for us.
    pub(super) relay: Option<NodeId>,
    /// Where another says it is, and how often it was asked elsewhere because it was silent where it had been named.
    pub(super) elsewhere: Option<Addr>,
    pub(super) moves: u8,
    pub(super) page: u32,
    pub(super) pages: u8,
    pub(super) attempts: u8,
}

impl Candidate {
    /// Whether it answered, or still may: nothing speaks against it.
    pub(super) fn may_be_there(&self) -> bool {
        let is_doubted = self.doubted && self.standing == Standing::Fresh;
        !is_doubted && matches!(self.standing, Standing::Fresh | Standing::Asked | Standing::Answered)
    }
}

impl Lookup {
    /// A node that did not answer once is not asked again.
    pub(crate) fn give_up(&mut self, id: &NodeId) {
        if let Some(at) = self.position(id)
            && self.frontier[at].standing == Standing::Silent
        {
            self.frontier[at].standing = Standing::Dead;
            self.is_all_asked = false;
        }
    }

    /// An answer names a node that is in view already. Any node can name it at an address where it is not, to have it taken for gone: if it is
    /// silent where it was named first, it is asked where others say that it is.
    pub(super) fn named_again(&mut self, at: usize, addr: Addr, via: Option<NodeId>) {
        self.named_by(at, via);
        let candidate = &mut self.frontier[at];
        if candidate.contact.addr == addr {
            return;
        }
        match candidate.standing {
            Standing::Fresh | Standing::Asked => candidate.elsewhere = candidate.elsewhere.or(Some(addr)),
            Standing::Silent | Standing::Dead => {
                // A node that was silent once would be asked again: it is, after this.
                let before = Some(candidate.contact.addr).filter(|_| candidate.standing == Standing::Silent);
                candidate.elsewhere = Some(addr);
                if self.ask_elsewhere(at) {
                    self.frontier[at].elsewhere = before;
                }
            }
            _ => {}
        }
    }

    /// Has a node that was silent asked where others say that it is, as if for the first time. Says whether it will be.
    pub(super) fn ask_elsewhere(&mut self, at: usize) -> bool {
        let Some(addr) = self.frontier[at].elsewhere.take() else { return false };
        let Candidate { contact, moves, .. } = self.frontier[at];
        // Else many of one network could come into view from many.
        let has_room = contact.addr.prefix() == addr.prefix() || self.prefix_has_room(addr.prefix());
        if moves == MOVES_MAX || !has_room {
            return false;
        }
        let candidate = &mut self.frontier[at];
        candidate.contact.addr = addr;
        candidate.moves += 1;
        (candidate.standing, candidate.attempts, candidate.writes) = (Standing::Fresh, 0, false);
        self.is_all_asked = false;
        true
    }

    /// The relay through which `from` was asked wanted to see first that we are where we seem to be. Now that it has, it is asked again as if
    /// for the first time: else `from` would be asked directly, and see who asks. Once: a relay that never has enough is gone around.
    pub fn requeue_through(&mut self, from: &NodeId, relay: NodeId) {
        if let Some(at) = self.waiting(from)
            && self.frontier[at].relay.is_none()
        {
            self.frontier[at].relay = Some(relay);
            self.frontier[at].attempts -= 1;
        }
        self.requeue(from);
    }
}

/// Whom to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Its id.
    pub id: NodeId,
    /// How to reach it.
    pub contact: Contact,
    /// Which page of providers.
    pub page: u32,
    /// Whether it comes from our own table and is asked for the first time: a leg that a relay may take.
    pub first_leg: bool,
    /// The relay that should take that leg, if one has asked for it again.
    pub relay: Option<NodeId>,
}
