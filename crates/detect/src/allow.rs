//! What is known to be harmless: allowlists of rules and files, and remarks in the source line itself.

use alloc::string::String;
use alloc::vec::Vec;

use crate::error::RuleError;
use crate::pattern::Pattern;

/// How the parts of an allowlist combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Condition {
    /// One of the parts is enough.
    #[default]
    Any,
    /// Every part that is given must hold.
    All,
}

/// What an allowlist's expressions are tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Target {
    /// The secret alone.
    #[default]
    Secret,
    /// The whole match.
    Match,
    /// The line, or lines, of the match.
    Line,
}

/// A description of harmless matches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allowlist {
    /// Why it is harmless, for readers.
    pub description: String,
    /// Whether one part suffices.
    pub condition: Condition,
    /// Commits in which everything is allowed.
    pub commits: Vec<String>,
    /// Paths in which everything is allowed.
    pub paths: Vec<Pattern>,
    /// Expressions that harmless matches satisfy.
    pub regexes: Vec<Pattern>,
    /// What `regexes` are tried on.
    pub target: Target,
    /// Lower-case words that a harmless secret contains.
    pub stopwords: Vec<String>,
    /// Ids of the rules concerned; empty means all. Only for allowlists outside a rule.
    pub rules: Vec<String>,
}

impl Allowlist {
    /// Whether there is anything in it.
    ///
    /// # Errors
    /// If there is nothing: such a list is most likely a mistake.
    pub fn validate(&self) -> Result<(), RuleError> {
        let empty =
            self.commits.is_empty() && self.paths.is_empty() && self.regexes.is_empty() && self.stopwords.is_empty();
        if empty { Err(RuleError::EmptyAllowlist) } else { Ok(()) }
    }

    /// Combines the answers of the parts; `None` is a part that the list does not have.
    pub(crate) fn combine(&self, parts: [Option<bool>; 4]) -> bool {
        let mut given = parts.into_iter().flatten();
        match self.condition {
            Condition::Any => given.any(|holds| holds),
            Condition::All => given.all(|holds| holds),
        }
    }
}

/// Remarks by which a line's author says that what stands there is meant to stand there.
/// The later ones are those of other scanners, so that a project that comes from one of them need not write them anew.
const REMARKS: [&[u8]; 5] =
    [b"tessera:allow", b"gitleaks:allow", b"pragma: allowlist secret", b"trufflehog:ignore", b"kingfisher:ignore"];

/// Whether one of the lines of `text` that `span` touches first or last carries a remark.
pub(crate) fn has_remark(text: &[u8], span: &core::ops::Range<usize>) -> bool {
    let first = line_around(text, span.start);
    let last = line_around(text, span.end.saturating_sub(1).max(span.start));
    REMARKS.iter().any(|remark| {
        memchr::memmem::find(&text[first.clone()], remark).is_some()
            || (last != first && memchr::memmem::find(&text[last.clone()], remark).is_some())
    })
}

/// The line that contains byte `at`, without its break. A line longer than the view is cut, not searched for.
pub(crate) fn line_around(text: &[u8], at: usize) -> core::ops::Range<usize> {
    const LINE_BYTES_MAX: usize = 4_096;
    let at = at.min(text.len());
    let floor = at.saturating_sub(LINE_BYTES_MAX);
    let ceiling = text.len().min(at + LINE_BYTES_MAX);
    let start = memchr::memrchr(b'\n', &text[floor..at]).map_or(floor, |i| floor + i + 1);
    let end = memchr::memchr(b'\n', &text[at..ceiling]).map_or(ceiling, |i| at + i);
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remark_covers_its_own_line_only() {
        let text = b"a = 1 # tessera:allow\nb = 2\nc = 3 // gitleaks:allow";
        assert!(has_remark(text, &(0..1)));
        assert!(!has_remark(text, &(22..23)));
        assert!(has_remark(text, &(28..29)));
        assert!(has_remark(text, &(22..29)), "the last line of a match that spans lines counts");
    }

    #[test]
    fn the_remarks_of_other_scanners_count() {
        for remark in ["pragma: allowlist secret", "trufflehog:ignore", "kingfisher:ignore"] {
            let text = alloc::format!("a = 1 # {remark}\nb = 2");
            assert!(has_remark(text.as_bytes(), &(0..1)), "{remark}");
            assert!(!has_remark(text.as_bytes(), &(text.len() - 1..text.len())), "{remark}");
        }
    }

    #[test]
    fn lines_are_found_at_the_edges_of_the_text() {
        assert_eq!(line_around(b"ab\ncd", 0), 0..2);
        assert_eq!(line_around(b"ab\ncd", 4), 3..5);
        assert_eq!(line_around(b"", 0), 0..0);
    }

    #[test]
    fn all_needs_every_part_that_is_given() {
        let mut list = Allowlist { condition: Condition::All, ..Allowlist::default() };
        assert!(list.combine([Some(true), None, Some(true), None]));
        assert!(!list.combine([Some(true), None, Some(false), None]));
        list.condition = Condition::Any;
        assert!(list.combine([Some(true), None, Some(false), None]));
        assert!(!list.combine([None, None, None, None]));
    }
}
