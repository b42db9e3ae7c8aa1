//! What a rule is: which bytes wake it, what it then looks for, and what a match must still prove.
//!
//! A rule is data. Reading it from text is [`crate::ruleset`] and [`crate::gitleaks`]; running it is
//! [`crate::Detector`].

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::allow::Allowlist;
use crate::check::Check;
use crate::error::RuleError;
use crate::pattern::Pattern;

/// How much harm the secret does in the wrong hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing: publishable keys, identifiers.
    Low,
    /// Access to one narrow service.
    Medium,
    /// Access to data or money of one service.
    High,
    /// Access to infrastructure, source code or a signing key.
    Critical,
}

/// How sure a finding is before anybody looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Confidence {
    /// A guess by name and entropy; off by default.
    Low,
    /// A telling name beside a value of the right shape.
    Medium,
    /// A format that belongs to one service.
    High,
    /// The token's own checksum is right.
    ChecksumValid,
}

macro_rules! named {
    ($type:ident, $what:literal, $($name:literal => $variant:ident),+) => {
        impl $type {
            /// The word used in rule files and reports.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl FromStr for $type {
            type Err = RuleError;
            fn from_str(text: &str) -> Result<Self, RuleError> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(RuleError::UnknownWord { what: $what, word: text.into(), known: &[$($name),+] }),
                }
            }
        }
    };
}
pub(crate) use named;

named!(Severity, "severity", "low" => Low, "medium" => Medium, "high" => High, "critical" => Critical);
named!(Confidence, "confidence", "low" => Low, "medium" => Medium, "high" => High, "checksum-valid" => ChecksumValid);

impl Confidence {
    /// The share of reports of this level that are right, on the test split of the labelled set (`labelled/test.toml`; a test holds
    /// it to this figure). `None` if nothing of the level is in the set.
    pub fn measured_precision(self) -> Option<f64> {
        match self {
            Self::Low => None,
            Self::Medium => Some(1.0),
            Self::High => Some(0.94),
            Self::ChecksumValid => Some(1.0),
        }
    }
}

/// A kind of character that a secret must contain at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CharClass {
    /// `0-9`
    Digit,
    /// `a-z`
    Lower,
    /// `A-Z`
    Upper,
    /// `A-Z` or `a-z`
    Letter,
    /// Printable and neither letter nor digit.
    Symbol,
}

named!(CharClass, "character class", "digit" => Digit, "lower" => Lower, "upper" => Upper, "letter" => Letter,
    "symbol" => Symbol);

impl CharClass {
    /// Whether `byte` is of this kind.
    pub fn contains(self, byte: u8) -> bool {
        match self {
            Self::Digit => byte.is_ascii_digit(),
            Self::Lower => byte.is_ascii_lowercase(),
            Self::Upper => byte.is_ascii_uppercase(),
            Self::Letter => byte.is_ascii_alphabetic(),
            Self::Symbol => byte.is_ascii_punctuation(),
        }
    }
}

/// What to do with a match whose checksum or structure is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailedCheck {
    /// It is no token: say nothing.
    Drop,
    /// Report it one confidence lower: the format may have changed since the rule was written.
    Demote,
}

named!(OnFailedCheck, "on_failed_check", "drop" => Drop, "demote" => Demote);

/// One kind of secret: how to notice it, how to match it, how to tell it from look-alikes.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Stable, readable name, such as `github-pat`.
    pub id: String,
    /// One line for people.
    pub title: String,
    /// How bad a leak is.
    pub severity: Severity,
    /// How sure a match is if it has no checksum of its own.
    pub confidence: Confidence,
    /// Lower-case words, one of which must be near; empty means the rule looks at every byte.
    pub keywords: Vec<String>,
    /// What to match once a keyword was seen.
    pub matching: Matching,
    /// Whether matches of an expression begin at an edge (see `edge.rs`), and not inside a longer word.
    pub at_edge: bool,
    /// Which capture group is the secret. `None`: the first group that took part, else the whole match.
    pub secret_group: Option<usize>,
    /// What further secrets of a match look like, each right behind the one before: the values of one document.
    pub then: Option<Pattern>,
    /// The rule looks only at paths that this matches.
    pub path: Option<Pattern>,
    /// Least Shannon entropy of the secret in bits a byte; 0 asks for nothing.
    pub entropy_min: f32,
    /// Each of these must occur in the secret.
    pub needs: Vec<CharClass>,
    /// Whether placeholders (`xxxxx`, `your-key-here`, `${VAR}`) are passed over.
    pub skip_placeholders: bool,
    /// Offline proof that the token is well formed.
    pub check: Option<Check>,
    /// What a failed proof means.
    pub on_failed_check: OnFailedCheck,
    /// What is known to be harmless.
    pub allowlists: Vec<Allowlist>,
    /// Where the format is documented; empty if nowhere.
    pub source: String,
    /// Free words for reports.
    pub tags: Vec<String>,
    /// Other rules that must match nearby before this one speaks.
    pub required: Vec<Required>,
    /// The rule only serves as another one's `required`; alone it reports nothing.
    pub silent: bool,
    /// Texts in the example syntax ([`crate::template`]) that must be found.
    pub positive: Vec<String>,
    /// Texts in the example syntax that must not be found.
    pub negative: Vec<String>,
}

/// What a rule looks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Matching {
    /// An expression over the text.
    Text(Pattern),
    /// An expression over the value that is assigned to a name with a keyword in it.
    Assigned {
        /// What the whole value must look like.
        value: Pattern,
        /// The name must also say that it is a key, token, secret or the like.
        qualified: bool,
        /// The value must stand in quotes, or after `=` in an environment file.
        quoted: bool,
        /// Only white space stands between the name and the value, as in a Dockerfile's `ENV TOKEN …`.
        spaced: bool,
        /// The name must not say that the value is only about a secret: its name, its hash, where it is kept.
        secretive: bool,
    },
    /// Nothing: a path that the rule's `path` matches is the finding.
    Path,
}

/// "Only if that rule matches nearby": one part of a composite rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Required {
    /// The other rule's id.
    pub id: String,
    /// At most this many lines away; `None` is anywhere within reach of the scanner's overlap.
    pub within_lines: Option<u32>,
    /// At most this many columns away, for matches on the same line.
    pub within_columns: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back_as_written() {
        for severity in [Severity::Low, Severity::Medium, Severity::High, Severity::Critical] {
            assert_eq!(severity.as_str().parse::<Severity>().unwrap(), severity);
        }
        let error = "hihg".parse::<Severity>().unwrap_err();
        assert!(alloc::format!("{error}").contains("low, medium, high, critical"), "{error}");
    }

    #[test]
    fn confidence_orders_from_guess_to_proof() {
        assert!(Confidence::Low < Confidence::Medium && Confidence::High < Confidence::ChecksumValid);
    }
}
