//! Scans of random trees, histories and staged changes against git and the file system.
//!
//! `TESSERA_SEED=N` replays a run, `TESSERA_CASES=N` sets the number of cases. The generators, the oracle and the comparison are in
//! `tests/truth`; here are the scenarios.
//!
//! - [`trees`]: files, with ignore rules and repositories in all positions
//! - [`around_git`]: repositories that git lists only with difficulty
//! - [`odd_repositories`]: repositories in unusual or damaged states
//! - [`histories`]: every blob at every path, in one or several repositories
//! - [`staged`]: the next commit
//! - [`filters`]: `--include` and `--exclude`
//! - [`targets`]: several targets with rules and suppressions of their own
//! - [`baselines`]: findings that an earlier report names
//! - [`interrupted`]: changes between an interruption and the same command
//! - [`at_once`]: the same command twice at the same time
//! - [`poisoned`]: a file on which the process dies
//! - [`displayed`]: no secret is shown in full
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

#[path = "../truth/mod.rs"]
mod truth;

mod around_git;
mod at_once;
mod baselines;
mod displayed;
mod filters;
mod histories;
mod interrupted;
mod odd_repositories;
mod poisoned;
mod staged;
mod targets;
mod trees;
