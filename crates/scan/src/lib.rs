//! Sweeps directory trees and git histories for secrets, resumably, and accounts for everything it met.
//!
//! A target becomes shards of an ordered keyspace ([`plan`]). Workers ([`worker`]) claim them from any coordinator, read items
//! from a source family ([`source`]), search them ([`read`]), make what they found durable ([`findings`]) and only then move the
//! cursor. At the end the findings are merged, each secret is one finding with all its places ([`finding`]), and a
//! receipt ([`receipt`]) says what was scanned, skipped and unreadable. [`run`] ties it together; [`report`] writes it down.
//!
//! [`Scan`] is the entry point for a program that embeds a scan.
//!
//! | module | what |
//! | --- | --- |
//! | [`request`], [`run`], [`local`], [`locked`] | from request to report on one machine; coordinators in a file and in memory |
//! | [`run_lock`], [`ended`] | one process at a time works on a kept run; the report of a run that has ended |
//! | [`fleet`], [`job`] | the same on many: submit and follow, workers that serve, and the end of runs |
//! | [`collect`] | folders that no run names |
//! | [`coordinator_name`], [`label`] | which coordinator knows a run; what a folder says about itself |
//! | [`prepare`], `register`, [`conclude`], [`folder`], `finished` | the steps both share |
//! | [`rules`], [`plan`], [`target`], [`key`] | what is looked for; what is scanned, cut into shards; the order of keys |
//! | [`source`], [`item`], [`filter`] | directories and repositories as ordered pages of items |
//! | [`sweep`], [`worker`] | what a worker does, without I/O; the thread that does it |
//! | [`read`], [`archive`] | one item; what is inside it |
//! | [`detectors`] | the rules of each target, ready to run |
//! | [`identity`], `recheck` | whether files are still what they were; reading again those that are not |
//! | [`edited`], [`distinct`], [`reach`] | text of a history that need not be searched again |
//! | [`findings`], [`occurrence`], [`tally`] | durable findings and counts, fenced, merged when read |
//! | [`finding`], [`receipt`], [`suppress`], [`redact`], [`report`] | what people and machines get to see |
//! | [`clock`], [`calendar`], [`op_ids`], [`error`], `wire` | times and dates, random numbers, why a scan fails, bytes of stored formats |
//! | [`files`], [`small_file`] | files of a run; files beside what is scanned, which may be a stranger's |
//!
//! Left out on purpose: asking a service whether a secret is live, and following symbolic links.

#![forbid(unsafe_code)]

pub mod archive;
pub mod calendar;
pub mod clock;
pub mod collect;
pub mod conclude;
pub mod coordinator_name;
pub mod detectors;
pub mod distinct;
pub mod edited;
pub mod ended;
pub mod error;
mod facade;
pub mod files;
pub mod filter;
pub mod finding;
pub mod findings;
mod finished;
pub mod fleet;
pub mod folder;
pub mod identity;
pub mod item;
pub mod job;
pub mod key;
pub mod label;
pub mod local;
pub mod locked;
pub mod occurrence;
pub mod op_ids;
pub mod plan;
pub mod prepare;
pub mod reach;
pub mod read;
pub mod receipt;
mod recheck;
pub mod redact;
mod register;
pub mod report;
pub mod request;
pub mod rules;
pub mod run;
pub mod run_lock;
pub mod small_file;
pub mod source;
pub mod suppress;
pub mod sweep;
pub mod tally;
pub mod target;
#[cfg(test)]
mod testing;
mod wire;
pub mod worker;

pub use facade::Scan;
