//! Scans compared with the truth, which git and the file system tell.
//!
//! - [`cases`]: seeded random cases, replayed by `TESSERA_SEED`
//! - [`token`]: secrets that the built-in rules find for sure, and where they stand in a text
//! - [`tree`], [`history`], [`changes`]: the generators
//! - [`large`]: inputs that take long enough to be interrupted, and changes to them
//! - [`globs`]: path filters and their meaning
//! - [`oracle`]: the places that git and the file system know of
//! - [`command`]: the real `tessera` program
//! - [`report`]: its report, read from JSON
//! - [`compare`]: report against oracle
//!
//! Nothing here calls the code under test: a defect that generator, oracle and product shared would stay unseen.

#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

pub(crate) mod cases;
pub(crate) mod changes;
pub(crate) mod command;
pub(crate) mod compare;
pub(crate) mod git;
pub(crate) mod globs;
pub(crate) mod history;
pub(crate) mod large;
pub(crate) mod names;
pub(crate) mod oracle;
pub(crate) mod random;
pub(crate) mod report;
pub(crate) mod token;
pub(crate) mod tree;
