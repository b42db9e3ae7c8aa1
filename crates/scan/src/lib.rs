//! Sweeps directory trees and git histories for secrets, resumably, and accounts for everything it met.
//!
//! A target becomes shards of an ordered keyspace ([`plan`]). Workers ([`sweep::worker`]) claim them from any coordinator, read items
//! from a source family ([`source`]), search them ([`read`]), make what they found durable ([`findings`]) and only then move the
//! cursor. At the end the findings are merged, each secret is one finding with all its places ([`report::finding`]), and a
//! receipt ([`report::receipt`]) says what was scanned, skipped and unreadable. [`run`] ties it together; [`report`] writes it down.
//!
//! [`Scan`] is the entry point for a program that embeds a scan.
//!
//! | module | what |
//! | --- | --- |
//! | [`run`] | a request, the run's folder, label and job, the steps from request to report, and a scan on one machine |
//! | [`fleet`] | the same on many: submit and follow, workers that serve, and the end of runs |
//! | [`plan`] | what is scanned, cut into shards in the order of keys, and what the receipt is held against |
//! | [`source`] | directories and repositories as ordered pages of items |
//! | [`read`] | rules, and one item searched with them; archives in it; text that need not be searched again |
//! | [`sweep`] | what a worker does, without I/O; the thread that does it; what is read again after an interruption |
//! | [`findings`] | durable findings and counts, fenced, merged when read |
//! | [`report`] | findings and receipt as people and machines get to see them |
//! | [`files`] | the few calls on files that durability depends on |
//! | [`clock`], `backoff`, [`op_ids`], [`error`], `wire` | times and dates, pauses that double, random numbers, why a scan fails, bytes of stored formats |
//!
//! Left out on purpose: asking a service whether a secret is live, and following symbolic links.

#![forbid(unsafe_code)]

mod backoff;
pub mod clock;
pub mod error;
pub mod files;
pub mod findings;
pub mod fleet;
pub mod op_ids;
pub mod plan;
pub mod read;
pub mod report;
pub mod run;
pub mod source;
pub mod sweep;
mod wire;

pub use run::Scan;
