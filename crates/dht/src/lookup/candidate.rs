//! One node in a lookup's view.

use tessera_contracts::point::{Distance, NodeId};

use crate::contact::Contact;
use crate::wire::message::{ErrorCode, Token};

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
    /// Asked before others, however far it is.
    pub(super) first: bool,
    /// It was last sent the record, not a question; if it is fresh again, it did not answer in time.
    pub(super) writes: bool,
    /// Its round trip as known before the lookup.
    pub(super) srtt_ms: u16,
    pub(super) page: u32,
    pub(super) pages: u8,
    pub(super) attempts: u8,
}

impl Candidate {
    /// Whether it answered, or still may: nothing speaks against it.
    pub(super) fn may_be_there(&self) -> bool {
        matches!(self.standing, Standing::Fresh | Standing::Asked | Standing::Answered)
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
}
