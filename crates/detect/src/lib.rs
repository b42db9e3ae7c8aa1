//! Secret detection: bytes in, findings out.
//!
//! One pass over the bytes finds the keywords of all rules, each hit looks at a small window with
//! a linear-time expression, and what matches must still have the entropy, the characters and, where its format has
//! one, the checksum of a real secret. Text in base64, hexadecimal, escapes, UTF-16 and UTF-32 is decoded and
//! searched too.
//!
//! | module | what |
//! | --- | --- |
//! | [`detector`], [`stream`] | run rules over a slice or over chunks, in constant memory |
//! | [`probe`], [`path_class`] | what need not be searched again: parts of a text, the same text at other paths |
//! | [`finding`], [`lines`] | what was found, and where; ids and redaction |
//! | [`rule`], [`ruleset`], [`gitleaks`], [`error`] | what a rule is, the two formats it is read from, why one is refused |
//! | `toml_table`, `go_syntax`, `filter_expr` | how the formats are read |
//! | [`pattern`] | expressions, their limits, and how far around a keyword they can match |
//! | `assign` | names, and the values assigned to them |
//! | `program`, `prefilter` | rules made ready to run, and the one pass that finds all keywords |
//! | [`check`] | offline proof: checksums and structure |
//! | [`allow`], [`placeholder`], [`entropy`], [`random`] | what is harmless |
//! | [`decode`] | text inside text |
//! | [`template`] | the syntax of examples, so that no rule file contains a token |
//!
//! The crate knows no clock, file or thread. Time is linear in the input for any rules and any input: each byte
//! passes the keyword automaton once, and expressions see at most the union of their windows, with an engine that never
//! backtracks. Memory is a block of [`detector::BLOCK_BYTES`] with two overlaps, plus what compiled rules need.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod allow;
mod assign;
pub mod check;
pub mod decode;
pub mod detector;
mod edge;
pub mod entropy;
pub mod error;
mod filter_expr;
pub mod finding;
pub mod gitleaks;
mod go_syntax;
pub mod lines;
pub mod path_class;
pub mod pattern;
pub mod placeholder;
mod prefilter;
pub mod probe;
mod program;
pub mod random;
pub mod rule;
pub mod ruleset;
pub mod stream;
pub mod template;
mod toml_table;

pub use detector::{Detector, Options, Source, Summary};
pub use error::{RuleError, RuleFileError};
pub use finding::{Finding, FindingId, IdKey, Secret, SecretId};
pub use lines::Position;
pub use path_class::PathClass;
pub use rule::{Confidence, Rule, Severity};
pub use ruleset::RuleSet;
