//! Fleets on a real etcd against git and the file system.
//!
//! The generators, the oracle and the comparison are in `tests/truth`; here are the scenarios.
//!
//! - [`fleet`]: an etcd, a folder for findings, submitters and workers
//! - [`faults`]: workers killed, put to sleep and drained, etcd restarted
//! - [`views`]: a worker that sees other files than the submitter
//! - [`folders`]: runs repeated over kept folders, wiped stores and new namespaces
//! - [`hints`]: commands that a message tells the user to give
//! - [`denied`]: coordinators that refuse, and ones that are away
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

#[path = "../truth/mod.rs"]
mod truth;

mod denied;
mod faults;
mod fleet;
mod folders;
mod hints;
mod views;
