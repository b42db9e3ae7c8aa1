//! Why a call to a node failed.

use std::fmt;

use tessera_contracts::point::ContentId;
use tessera_dht::node::command::Written;
use tessera_dht::record::{TTL_SECS_MAX, ValueTooLong};
use tessera_dht::wire::message::ErrorCode;

use crate::explain::Explain;

/// Why a call failed. Each variant says who should act.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeError {
    /// No holder that answered has the record. Ask again later, or check the id.
    NotFound {
        /// What was looked for.
        id: ContentId,
        /// The nodes asked.
        explain: Box<Explain>,
    },
    /// Nothing was found, but that does not mean that there is nothing: too few of the nodes that should know answered, or a crowd stood in
    /// front of them. Ask again later, or by way of another node.
    Inconclusive {
        /// What was looked for.
        id: ContentId,
        /// Who was asked.
        explain: Box<Explain>,
    },
    /// The record was deleted by its owner.
    Deleted {
        /// What was looked for.
        id: ContentId,
        /// The number of the deletion.
        sequence: u64,
    },
    /// Only versions older than one this node has seen before were found.
    OnlyStale {
        /// The version seen before.
        seen: u64,
        /// The newest found now.
        found: u64,
    },
    /// A part of a large value is missing or wrong.
    Incomplete {
        /// The value.
        id: ContentId,
        /// The part.
        part: ContentId,
        /// The defect.
        why: String,
    },
    /// Fewer nodes than the quorum took the record. Those that did keep it until it expires; writing it again does no harm.
    NotStored {
        /// How it went.
        written: Written,
        /// The nodes asked.
        explain: Box<Explain>,
    },
    /// No other node took the record. This node keeps it and goes on offering it until one does: forget it to end that.
    KeptHere {
        /// The record.
        id: ContentId,
        /// Why no node took it.
        why: Box<NodeError>,
    },
    /// A large value was not stored, and some of it, or all, may be kept here still: forget it by its id, or store it again.
    Remains {
        /// The value.
        id: ContentId,
        /// Why it was not stored.
        why: Box<NodeError>,
    },
    /// The value is too long.
    TooLong(ValueTooLong),
    /// The record's lifetime or signature is not acceptable.
    BadRecord,
    /// A newer version, or another value of the same number, is out already: read it, and write with a higher number.
    Outdated {
        /// The version that is out.
        current: u64,
        /// The version that was to be written.
        asked: u64,
    },
    /// The node has not found its place in the network in time: check the bootstrap addresses.
    NotJoined,
    /// This node keeps as much for its own user as it may: delete something, or use another node.
    NoRoom,
    /// This node's own log failed: a restart would not know of the record. Acknowledgements of other nodes stand.
    NotLogged,
    /// Nothing of it is kept by this node.
    NotHere {
        /// What was to be forgotten.
        id: ContentId,
    },
    /// It is a part of a larger value that this node keeps: forget that.
    IsPart {
        /// What was to be forgotten.
        id: ContentId,
        /// The value that names it.
        of: ContentId,
    },
    /// The lifetime is below one second or above the longest that nodes accept.
    Lifetime {
        /// The lifetime asked for, in seconds.
        secs: u64,
    },
    /// The newest version has the highest number there is: nothing can come after it.
    LastVersion,
    /// The key of the node to be pinged is none.
    UnusableKey,
    /// Too much is under way: try again when some of it is done.
    Busy,
    /// The node has stopped.
    Stopped,
}

impl NodeError {
    /// Adds that this node keeps the record, if it does.
    pub(crate) fn of_record(self, id: ContentId, is_kept: bool) -> Self {
        match self {
            Self::NotStored { .. } if is_kept => Self::KeptHere { id, why: Box::new(self) },
            other => other,
        }
    }

    /// Why it came to this, where something is left.
    pub(crate) fn cause(&self) -> &Self {
        if let Self::KeptHere { why, .. } | Self::Remains { why, .. } = self { why } else { self }
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { id, explain } if explain.asked.is_empty() => {
                write!(f, "{id} was not found: this node knows no peer to ask. Is it joined to a network?")
            }
            Self::NotFound { id, explain } => {
                let answered = count(u64::from(explain.stats.answers), "node");
                write!(f, "{id} was not found: {answered} answered, and none has it")
            }
            Self::Inconclusive { id, explain } => {
                let answered = count(u64::from(explain.stats.answers), "node");
                write!(
                    f,
                    "nothing of {id} was found, which does not mean that there is nothing: {answered} answered, but too few of those that should \
                     know. Try again later, or by way of another node"
                )
            }
            Self::Deleted { id, sequence } => write!(f, "{id} was deleted by its owner (version {sequence})"),
            Self::OnlyStale { seen, found } => write!(
                f,
                "only version {found} was found, but version {seen} has been seen here: nodes that have it are out of reach"
            ),
            Self::Incomplete { id, part, why } => write!(f, "the value {id} is not whole: part {part}: {why}"),
            Self::NotStored { written, .. } if written.holders == 0 => {
                f.write_str("no node took the record: no other node answered. Is this node joined to a network?")
            }
            Self::NotStored { written, .. } => {
                let (holders, were) = (u64::from(written.holders), if written.silent == 1 { "was" } else { "were" });
                match written.acknowledged {
                    0 => f.write_str("no node took the record")?,
                    1 => write!(f, "1 node took the record, fewer than the quorum of {}", written.quorum)?,
                    some => write!(f, "{some} nodes took the record, fewer than the quorum of {}", written.quorum)?,
                }
                write!(f, ": of {} {} {were} silent", count(holders, "node"), written.silent)?;
                for (code, count) in &written.refused {
                    write!(f, ", {count} refused ({code:?})")?;
                }
                if written.refused.iter().any(|(code, _)| *code == ErrorCode::Full) {
                    // How much that is they do not say, and each is set by itself.
                    f.write_str(
                        ". They are full, or have as much of this giver as each of them is set to keep (`record-bytes-max`, \
                         `record-bytes-per-giver-max`): store it by way of several nodes, among more of them, or among nodes of one's own \
                         (`address-diversity = false`)",
                    )?;
                }
                Ok(())
            }
            Self::KeptHere { id, why } => write!(
                f,
                "{why}. This node keeps it as {id} and goes on offering it, until another node takes it or it is deleted"
            ),
            Self::Remains { id, why } => {
                write!(f, "{why}. Some of it may be kept here still: store it again, or delete {id}")
            }
            Self::TooLong(error) => error.fmt(f),
            Self::BadRecord => f.write_str("the record's lifetime or signature is not acceptable to this network"),
            Self::Outdated { current, asked } if current == asked => {
                write!(f, "version {asked} cannot be written: it is out already, with another value")
            }
            Self::Outdated { current, asked } => {
                write!(f, "version {asked} cannot be written: version {current} is out already")
            }
            Self::NotJoined => f.write_str(
                "no bootstrap node answered: check their addresses, and that the network's name is the same",
            ),
            Self::NoRoom => f.write_str(
                "this node keeps as much for its user as it may: delete values that are no longer needed, or store it by another node",
            ),
            Self::NotLogged => f.write_str(
                "this node's log does not take it (is the disk of its data folder full or read-only?): it would not survive a restart",
            ),
            Self::NotHere { id } => write!(f, "this node keeps nothing of {id}"),
            Self::IsPart { id, of } => write!(f, "{id} is a part of {of}, which is kept here: delete that instead"),
            Self::Lifetime { secs } => write!(f, "a lifetime of {secs} s is not within 1 s and {TTL_SECS_MAX} s"),
            Self::LastVersion => {
                write!(f, "the newest version has the highest number there is, {}: nothing can come after it", u64::MAX)
            }
            Self::UnusableKey => f.write_str("the key in the address is none: check the address"),
            Self::Busy => f.write_str("too much is under way: try again when some of it is done"),
            Self::Stopped => f.write_str("the node has stopped"),
        }
    }
}

impl std::error::Error for NodeError {}

/// So many of a thing, in words: one has no `s`.
pub(crate) fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_kept_here_though_no_node_took_it_is_named_with_the_reason() {
        let id = ContentId::from_bytes([7; 32]);
        let why = NodeError::NotStored { written: Written::default(), explain: Box::default() };
        let kept = why.clone().of_record(id, true);
        let said = kept.to_string();
        assert!(said.starts_with(&why.to_string()) && said.contains(&id.to_string()), "{said}");
        assert_eq!((kept.cause(), why.cause()), (&why, &why));
        assert_eq!(why.clone().of_record(id, false), why);
        assert_eq!(NodeError::NoRoom.of_record(id, true), NodeError::NoRoom, "what was refused here is not kept");
    }

    #[test]
    fn the_error_for_a_full_holder_names_no_limit_that_this_node_does_not_know() {
        let written = Written { holders: 2, refused: vec![(ErrorCode::Full, 2)], ..Written::default() };
        let said = NodeError::NotStored { written, explain: Box::default() }.to_string();
        let (_, why) = said.split_once("2 refused (Full). ").unwrap();
        assert!(why.contains("as much of this giver as each of them is set to keep"), "{said}");
        assert!(!why.contains(|c: char| c.is_ascii_digit()), "{said}");
    }

    #[test]
    fn one_node_is_not_told_as_many() {
        let refused = |holders, silent| {
            let written = Written { holders, silent, ..Written::default() };
            NodeError::NotStored { written, explain: Box::default() }.to_string()
        };
        assert_eq!(refused(1, 1), "no node took the record: of 1 node 1 was silent");
        assert_eq!(refused(3, 2), "no node took the record: of 3 nodes 2 were silent");
        assert_eq!([count(0, "node"), count(1, "node"), count(2, "node")], ["0 nodes", "1 node", "2 nodes"]);
    }

    #[test]
    fn the_rest_of_a_value_is_named_with_the_reason_why_it_was_not_stored() {
        let id = ContentId::from_bytes([7; 32]);
        let said = NodeError::Remains { id, why: Box::new(NodeError::Busy) }.to_string();
        assert!(said.starts_with(&NodeError::Busy.to_string()) && said.contains(&id.to_string()), "{said}");
    }
}
