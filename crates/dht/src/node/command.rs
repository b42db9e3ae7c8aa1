//! Commands of a program to the DHT, and the explanation in every answer.

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, NodeId};

use crate::addr::Addr;
use crate::contact::Contact;
use crate::lookup::{Finish, LookupStats, Standing};
use crate::wire::message::{ErrorCode, SignedProvider};

/// Chosen by the caller, returned with the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// How much a lookup hides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Privacy {
    /// Ask directly: fastest.
    #[default]
    None,
    /// Walk towards a point that only shares the target's region, and ask for the target itself only at the end.
    Blind,
    /// Have the first requests asked by another node.
    Relay,
}

/// The limits of one command, where they differ from the lane's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    /// When its lookup is stopped, complete or not.
    pub time_ms: Option<u64>,
    /// Requests its lookup may send.
    pub requests_max: Option<u16>,
    /// Requests its lookup may have in flight when answers stay away.
    pub alpha_max: Option<usize>,
}

/// A request to the lane that owns its id. A command for an id of another lane is answered with [`Answer::WrongLane`].
#[derive(Debug, Clone)]
pub enum Command {
    /// The nodes nearest to a point.
    FindNode {
        /// The point.
        target: [u8; 32],
    },
    /// The record of an id. Immutable or mutable is the caller's knowledge: the two end differently.
    Get {
        /// The id.
        id: ContentId,
        /// Whether the highest sequence is wanted rather than the first valid record.
        mutable: bool,
        /// What to hide.
        privacy: Privacy,
    },
    /// Store a record (from `record::immutable_record` or `record::mutable_record`) with the nodes nearest to its id.
    Put {
        /// The record's bytes.
        record: Vec<u8>,
        /// Store it again at half its lifetime, until it expires or is forgotten. The command then also waits for this
        /// node's own log; else the holders' logs are all that counts.
        keep_alive: bool,
    },
    /// Announce that this node provides ids, now and again at half the lifetime. All ids must belong to this lane. Completes
    /// when the log knows of them, not when they are announced.
    Provide {
        /// The ids.
        ids: Vec<ContentId>,
    },
    /// Stop announcing.
    Unprovide {
        /// The ids.
        ids: Vec<ContentId>,
    },
    /// Find the providers of an id.
    FindProviders {
        /// The id.
        id: ContentId,
        /// How many are enough.
        limit: usize,
    },
    /// Is this node there?
    Ping {
        /// Which.
        contact: Contact,
    },
    /// Stop storing a record again and again, and drop the copy kept here. Copies of other nodes run out by themselves.
    Forget {
        /// Its id.
        id: ContentId,
    },
    /// Another command, within a budget of its own.
    Within {
        /// The budget; of several the innermost counts.
        budget: Budget,
        /// The command.
        command: alloc::boxed::Box<Command>,
    },
    /// Contacts to start from, besides those remembered.
    Bootstrap {
        /// The contacts.
        contacts: Vec<Contact>,
    },
    /// Give up a command that is under way. It completes as cancelled.
    Cancel {
        /// Which.
        command: CommandId,
    },
}

/// How one node took part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Its id.
    pub id: NodeId,
    /// Where it was asked.
    pub addr: Addr,
    /// Its final state.
    pub standing: Standing,
    /// How many answers led to it.
    pub hops: u8,
    /// Whether it returned the value, or acknowledged the write.
    pub useful: bool,
    /// The peer that named it; `None` for a peer of our own table.
    pub via: Option<NodeId>,
    /// Milliseconds from the start of the lookup until it was asked.
    pub asked_after_ms: u64,
    /// Milliseconds it took to answer; `None` if it did not.
    pub took_ms: Option<u64>,
}

/// How a write went.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Written {
    /// Nodes that should hold it: at least the K nearest, by the estimated size of the network.
    pub holders: u16,
    /// Nodes that said they do.
    pub acknowledged: u16,
    /// Nodes that refused, and why: each code at most once, with its number.
    pub refused: Vec<(ErrorCode, u16)>,
    /// Nodes that did not answer, or were not met.
    pub silent: u16,
    /// How many have to say that they hold it for the write to count. A writer that is a holder itself counts among those that should hold it, and
    /// not among those that have to say so.
    pub quorum: u16,
}

impl Written {
    /// Whether a quorum holds it.
    #[must_use]
    pub fn has_quorum(&self) -> bool {
        self.holders > 0 && self.acknowledged >= self.quorum.max(1)
    }

    /// The same, with its quorum: a share in per cent of those that should hold it. Where the writer is one of them and `is_held_here`, its own copy
    /// is a part of that share; the others have to make up the rest.
    pub(crate) fn with_quorum(self, percent: u8, is_held_here: bool) -> Self {
        let own = u32::from(is_held_here);
        let share = (u32::from(self.holders) + own) * u32::from(percent.clamp(1, 100));
        Self { quorum: (share.div_ceil(100) - own) as u16, ..self }
    }

    pub(crate) fn refuse(&mut self, code: ErrorCode) {
        match self.refused.iter_mut().find(|(held, _)| *held == code) {
            Some((_, count)) => *count += 1,
            None => self.refused.push((code, 1)),
        }
    }
}

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The nodes nearest to the point, nearest first.
    Nodes(Vec<Contact>),
    /// The record's bytes.
    Record(Vec<u8>),
    /// There is no such record, say the nodes that should hold it.
    NoRecord,
    /// Nothing was found, but too few of the nodes that should hold it answered, or a crowd stood in front of them: there may be such a record, or
    /// such providers.
    Inconclusive,
    /// A mutable record was found, but this node has seen a newer one that it no longer has, and does not go back.
    OnlyStale {
        /// The sequence seen before.
        seen: u64,
        /// The highest found now.
        found: u64,
    },
    /// Providers; none if there are none, say the nodes that should know of them.
    Providers(Vec<SignedProvider>),
    /// The write is over.
    Written(Written),
    /// So many ids are announced from now on.
    Providing(usize),
    /// The node is there.
    Pong {
        /// The round trip.
        rtt_ms: u64,
        /// Our address as it sees it, if it said.
        observed: Option<Addr>,
    },
    /// The node did not answer in time.
    Silence,
    /// Taken note of.
    Noted,
    /// The record cannot be stored: shape, times or signature.
    BadRecord,
    /// The id belongs to another lane.
    WrongLane,
    /// Too many commands are under way: ask again when one is done.
    TooBusy,
    /// As many ids or bytes as the configuration allows are provided or kept alive: nothing was changed.
    NoRoom,
    /// This node's own log did not take it, or did not make it safe in time: a restart may not know of it. Earlier
    /// acknowledgements of other nodes stand.
    NotLogged,
    /// The command to cancel is not under way.
    NotUnderWay,
    /// There is nothing of the record here to forget.
    NotHere,
    /// The contact's key allows no key agreement: it is no key, or mistyped.
    UnusableKey,
}

/// An answer, and how it came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The answer.
    pub answer: Answer,
    /// Why the lookup ended; `None` if none was needed.
    pub finish: Option<Finish>,
    /// The lookup's numbers.
    pub stats: LookupStats,
    /// All nodes in view, nearest first.
    pub asked: Vec<Asked>,
}

impl Outcome {
    /// An answer without asking a peer.
    #[must_use]
    pub fn local(answer: Answer) -> Self {
        Self { answer, finish: None, stats: LookupStats::default(), asked: Vec::new() }
    }
}
