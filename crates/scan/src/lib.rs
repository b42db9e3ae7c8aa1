//! Sweeps directory trees and git histories for secrets, resumably, and accounts for everything it met.
//!
//! A target becomes shards of an ordered keyspace ([`plan`]). Workers ([`worker`]) claim them from any coordinator, read items
//! from a source family ([`source`]), search them ([`read`]), make what they found durable ([`sink`]) and only then move the
//! cursor. At the end the findings are merged, each secret is one finding with all its places ([`finding`]), and a
//! receipt ([`receipt`]) says what was scanned, skipped and unreadable. [`run`] ties it together; [`report`] writes it down.
//!
//! | module | what |
//! | --- | --- |
//! | [`request`], [`run`], [`local`], [`locked`] | from request to report on one machine; coordinators in a file and in memory |
//! | [`fleet`], [`job`] | the same on many: submit and follow, and workers that serve |
//! | [`prepare`], [`conclude`], [`folder`] | the steps both share |
//! | [`rules`], [`plan`], [`target`], [`key`] | what is looked for; what is scanned, cut into shards; the order of keys |
//! | [`source`], [`item`], [`filter`] | directories and repositories as ordered pages of items |
//! | [`worker`], [`read`], [`archive`] | the loop; one item; what is inside it |
//! | [`edited`], [`distinct`], [`reach`] | text of a history that need not be searched again |
//! | [`sink`], [`occurrence`], [`tally`] | durable findings and counts, fenced, merged when read |
//! | [`finding`], [`receipt`], [`suppress`], [`report`] | what people and machines get to see |
//! | [`clock`], [`op_ids`], [`error`], `wire` | times, numbers nobody else has, why a scan fails, bytes of stored formats |
//! | [`small_file`] | files beside what is scanned, which may be a stranger's |
//!
//! Left out on purpose: asking a service whether a secret is live, and following symbolic links.

#![forbid(unsafe_code)]

pub mod archive;
pub mod clock;
pub mod conclude;
pub mod distinct;
pub mod edited;
pub mod error;
pub mod filter;
pub mod finding;
pub mod fleet;
pub mod folder;
pub mod item;
pub mod job;
pub mod key;
pub mod local;
pub mod locked;
pub mod occurrence;
pub mod op_ids;
pub mod plan;
pub mod prepare;
pub mod reach;
pub mod read;
pub mod receipt;
pub mod report;
pub mod request;
pub mod rules;
pub mod run;
pub mod sink;
pub mod small_file;
pub mod source;
pub mod suppress;
pub mod tally;
pub mod target;
#[cfg(test)]
mod testing;
mod wire;
pub mod worker;
