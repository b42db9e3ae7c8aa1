//! Why a rule or a rule file was refused: what is wrong, where, and what would be right.

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;

/// What is wrong with one rule.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleError {
    /// A word from a fixed list was expected.
    UnknownWord {
        /// What the word names.
        what: &'static str,
        /// What was written.
        word: String,
        /// What may be written.
        known: &'static [&'static str],
    },
    /// The regular expression cannot be read.
    Syntax(String),
    /// The regular expression is longer than the limit.
    RegexTooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The regular expression compiles to more than the limit: counted repetitions nested in one another do that.
    RegexTooLarge {
        /// The limit on the compiled size in bytes.
        bytes_max: usize,
    },
    /// The regular expression matches the empty string, so it would match everywhere.
    MatchesEmpty,
    /// `secretGroup` names a group that the expression does not have.
    NoSuchGroup {
        /// The group asked for.
        group: usize,
        /// How many groups there are, not counting the whole match.
        groups: usize,
    },
    /// A field is absent.
    Missing(&'static str),
    /// A field has a value of the wrong type.
    WrongType {
        /// The field.
        field: String,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A field that this reader does not know: most likely a misspelling.
    UnknownField(String),
    /// Two rules have the same id.
    DuplicateId(String),
    /// A rule id has characters other than `a-z`, `0-9`, `-`, `_`, `.`, or is too long.
    BadId(String),
    /// A keyword is empty or too long.
    BadKeyword(String),
    /// Something names a rule that is not there.
    NoSuchRule(String),
    /// There is more of something than the limit allows.
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        count_max: usize,
    },
    /// An allowlist that allows nothing is most likely a mistake.
    EmptyAllowlist,
    /// `extend` leads too deep, or in a circle.
    ExtendTooDeep {
        /// How many files may extend one another.
        depth_max: usize,
    },
    /// A file named by `extend.path` could not be read.
    ExtendUnreadable {
        /// The path as written.
        path: String,
        /// What the caller's reader said.
        reason: String,
    },
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownWord { what, word, known } => {
                write!(f, "unknown {what} {word:?}: use one of ")?;
                for (i, word) in known.iter().enumerate() {
                    write!(f, "{}{word}", if i == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
            Self::Syntax(reason) => write!(f, "the regular expression cannot be read: {reason}"),
            Self::RegexTooLong { bytes, bytes_max } => {
                write!(f, "the regular expression is {bytes} bytes long; at most {bytes_max} are read")
            }
            Self::RegexTooLarge { bytes_max } => write!(
                f,
                "the regular expression compiles to more than {bytes_max} bytes; use smaller or fewer nested counted repetitions"
            ),
            Self::MatchesEmpty => {
                f.write_str("the regular expression matches the empty string and so everything; make a part mandatory")
            }
            Self::NoSuchGroup { group, groups } => {
                write!(f, "secretGroup is {group} but the regular expression has {groups} groups")
            }
            Self::Missing(field) => write!(f, "field `{field}` is missing"),
            Self::WrongType { field, expected, found } => {
                write!(f, "field `{field}` must be {expected}, not {found}")
            }
            Self::UnknownField(field) => write!(f, "unknown field `{field}`"),
            Self::DuplicateId(id) => write!(f, "a second rule is called {id:?}; rename or remove one"),
            Self::BadId(id) => {
                write!(f, "rule id {id:?} may have letters, digits, `-`, `_` and `.` only, and 1 to 80 of them")
            }
            Self::BadKeyword(word) => write!(f, "keyword {word:?} must have 1 to 64 bytes"),
            Self::NoSuchRule(id) => write!(f, "there is no rule called {id:?}"),
            Self::TooMany { what, count, count_max } => write!(f, "{count} {what} are too many; at most {count_max}"),
            Self::EmptyAllowlist => {
                f.write_str("an allowlist needs at least one of commits, paths, regexes or stopwords")
            }
            Self::ExtendTooDeep { depth_max } => write!(f, "more than {depth_max} files extend one another"),
            Self::ExtendUnreadable { path, reason } => write!(f, "extend.path {path:?} cannot be read: {reason}"),
        }
    }
}

impl core::error::Error for RuleError {}

/// Why a rule file was refused, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleFileError {
    /// 1-based line in the file, if one is to blame.
    pub line: Option<usize>,
    /// The rule concerned, if one is.
    pub rule: Option<String>,
    /// What is wrong.
    pub reason: Box<RuleError>,
}

impl fmt::Display for RuleFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if let Some(rule) = &self.rule {
            write!(f, "rule {rule:?}: ")?;
        }
        write!(f, "{}", self.reason)
    }
}

impl core::error::Error for RuleFileError {}
