//! A regular expression that was read, measured and found harmless.
//!
//! Every expression of every rule passes through [`Pattern::new`], so the limits hold for user rules and built-in
//! ones alike. Matching is by `regex-automata`, which is linear in the input for any expression; what a hostile
//! rule could still do is be huge, and that is refused here. Expressions are read byte-wise (`\w`, `\d`, `\b`
//! are ASCII): sources are not always UTF-8, and tokens are ASCII.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use regex_automata::meta;
use regex_automata::util::captures::Captures;
use regex_automata::util::syntax;
use regex_syntax::hir::{Class, Hir, HirKind};

use crate::error::RuleError;

/// Longest expression that is read.
pub const REGEX_BYTES_MAX: usize = 8_192;
/// Largest compiled expression. A bounded repetition of a class costs some tens of bytes a repeat.
pub const COMPILED_BYTES_MAX: usize = 4 << 20;
/// How deep groups may nest.
const NEST_MAX: u32 = 64;
/// Cap on one expression's transition cache; beyond it the matcher falls back to a slower, still linear engine.
const CACHE_BYTES_MAX: usize = 1 << 20;

/// Source text of an expression that is known to compile within the limits.
#[derive(Clone)]
pub struct Pattern {
    text: String,
    groups: usize,
}

impl Pattern {
    /// Reads and measures an expression.
    ///
    /// # Errors
    /// If it cannot be read, is too large, or matches the empty string.
    pub fn new(text: &str) -> Result<Self, RuleError> {
        let pattern = Self::searchable(text)?;
        if parse(text)?.properties().minimum_len() == Some(0) {
            return Err(RuleError::MatchesEmpty);
        }
        Ok(pattern)
    }

    /// Like [`Pattern::new`] for allowlists and paths, where matching everything is a legitimate wish.
    ///
    /// # Errors
    /// If it cannot be read or is too large.
    pub fn searchable(text: &str) -> Result<Self, RuleError> {
        if text.len() > REGEX_BYTES_MAX {
            return Err(RuleError::RegexTooLong { bytes: text.len(), bytes_max: REGEX_BYTES_MAX });
        }
        let groups = build(text)?.group_info().group_len(regex_automata::PatternID::ZERO) - 1;
        Ok(Self { text: text.into(), groups })
    }

    /// For built-in rules, which a test compiles one and all: skips the trial compilation, for a quick start.
    pub(crate) fn trusted(text: &str) -> Result<Self, RuleError> {
        Ok(Self { text: text.into(), groups: parse(text)?.properties().explicit_captures_len() })
    }

    /// The expression as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Number of capture groups, not counting the whole match.
    pub fn groups(&self) -> usize {
        self.groups
    }

    pub(crate) fn hir(&self) -> Result<Hir, RuleError> {
        parse(&self.text)
    }

    /// Compiles for matching, with the working memory one thread needs.
    pub(crate) fn compile(&self) -> Result<Matcher, RuleError> {
        let regex = build(&self.text)?;
        let cache = regex.create_cache();
        let captures = regex.create_captures();
        Ok(Matcher { regex, cache, captures })
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// A compiled expression with its own working memory: one thread's, never shared.
pub(crate) struct Matcher {
    pub(crate) regex: meta::Regex,
    pub(crate) cache: meta::Cache,
    pub(crate) captures: Captures,
}

impl Matcher {
    pub(crate) fn is_match(&mut self, bytes: &[u8]) -> bool {
        let input = regex_automata::Input::new(bytes).earliest(true);
        self.regex.search_half_with(&mut self.cache, &input).is_some()
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Matcher")
    }
}

fn syntax_config() -> syntax::Config {
    syntax::Config::new().unicode(false).utf8(false).nest_limit(NEST_MAX)
}

fn parse(text: &str) -> Result<Hir, RuleError> {
    syntax::parse_with(text, &syntax_config()).map_err(|error| RuleError::Syntax(first_line_of(&error.to_string())))
}

fn build(text: &str) -> Result<meta::Regex, RuleError> {
    let hir = parse(text)?;
    let config = meta::Config::new()
        .utf8_empty(false)
        .nfa_size_limit(Some(COMPILED_BYTES_MAX))
        .onepass_size_limit(Some(64 << 10))
        .hybrid_cache_capacity(CACHE_BYTES_MAX)
        .which_captures(regex_automata::nfa::thompson::WhichCaptures::All);
    meta::Builder::new().configure(config).build_from_hir(&hir).map_err(|error| match error.size_limit() {
        Some(_) => RuleError::RegexTooLarge { bytes_max: COMPILED_BYTES_MAX },
        None => RuleError::Syntax(error.to_string()),
    })
}

/// The parser's message draws a picture over several lines; its last line is the reason.
fn first_line_of(message: &str) -> String {
    message.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or(message).trim().into()
}

/// What the first bytes of every match are: a test that most places fail, before the expression itself is tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opening {
    /// How many bytes are tested.
    length: usize,
    /// Which bytes they may be, one bit for each.
    bytes: [u64; 4],
}

/// Longest beginning that is tested.
const OPENING_BYTES_MAX: usize = 24;

impl Opening {
    /// Derived from the expression's own structure, part by part as long as white space cannot occur.
    pub(crate) fn of(hir: &Hir) -> Self {
        let mut opening = Self::default();
        for part in flatten(hir) {
            let mut bytes = opening.bytes;
            if !add_bytes(part, &mut bytes) || bytes[0] >> b' ' & 1 != 0 || opening.length >= OPENING_BYTES_MAX {
                break;
            }
            opening.bytes = bytes;
            opening.length += part.properties().minimum_len().unwrap_or(0).min(OPENING_BYTES_MAX);
        }
        opening.length = opening.length.min(OPENING_BYTES_MAX);
        opening
    }

    /// Whether a match may begin at `at`.
    pub(crate) fn fits(&self, text: &[u8], at: usize) -> bool {
        let has = |byte: &u8| self.bytes[usize::from(byte >> 6)] >> (byte & 63) & 1 != 0;
        text.get(at..at + self.length).is_some_and(|part| part.iter().all(has))
    }
}

/// Adds the bytes that `hir` can match; false if they are not known.
fn add_bytes(hir: &Hir, bytes: &mut [u64; 4]) -> bool {
    let mut add = |byte: u8| bytes[usize::from(byte >> 6)] |= 1 << (byte & 63);
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => true,
        HirKind::Literal(literal) => {
            literal.0.iter().for_each(|&byte| add(byte));
            true
        }
        HirKind::Class(Class::Bytes(class)) => {
            class.iter().flat_map(|range| range.start()..=range.end()).for_each(add);
            true
        }
        HirKind::Class(Class::Unicode(_)) => false,
        HirKind::Capture(group) => add_bytes(&group.sub, bytes),
        HirKind::Repetition(repetition) => add_bytes(&repetition.sub, bytes),
        HirKind::Alternation(parts) | HirKind::Concat(parts) => parts.iter().all(|part| add_bytes(part, bytes)),
    }
}

/// Where a match can lie around a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Every match begins with a keyword: one anchored attempt at each place a keyword begins is a whole search.
    Anchored {
        /// Longest match.
        after: usize,
    },
    /// Every match contains a keyword: search this far on either side of it.
    Around {
        /// Bytes before the keyword's start.
        before: usize,
        /// Bytes after the keyword's start.
        after: usize,
    },
    /// The keyword need not be part of the match: search the whole block once a keyword was seen in it.
    Anywhere,
}

impl Reach {
    /// Derives the reach from the expression's own structure, so that a window cannot lose a match that a search
    /// of the whole text would find, up to `window_max` for expressions without a longest match.
    pub(crate) fn of(hir: &Hir, keywords: &[String], window_max: usize) -> Self {
        if keywords.is_empty() {
            return Self::Anywhere;
        }
        let bounded = |length: Option<usize>| length.unwrap_or(window_max).min(window_max);
        if let Some(heads) = heads_of(hir)
            && !heads.is_empty()
            && heads.iter().all(|head| keywords.iter().any(|word| head.starts_with(word.as_bytes())))
        {
            return Self::Anchored { after: bounded(hir.properties().maximum_len()) };
        }
        let parts: Vec<&Hir> = flatten(hir);
        let Some((first, last)) = keyword_among(&parts, keywords) else { return Self::Anywhere };
        let length_of = |parts: &[&Hir]| {
            parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.properties().maximum_len()?))
        };
        Self::Around { before: bounded(length_of(&parts[..=last])), after: bounded(length_of(&parts[first..])) }
    }
}

/// Top-level sequence of an expression, seen through groups.
fn flatten(hir: &Hir) -> Vec<&Hir> {
    match hir.kind() {
        HirKind::Concat(parts) => parts.iter().flat_map(flatten).collect(),
        HirKind::Capture(group) => flatten(&group.sub),
        _ => alloc::vec![hir],
    }
}

/// Byte that `hir` matches if letter case is ignored and it matches exactly one byte.
fn single_folded(hir: &Hir) -> Option<u8> {
    match hir.kind() {
        HirKind::Class(Class::Bytes(class)) => {
            let mut bytes = class.ranges().iter().flat_map(|range| range.start()..=range.end());
            let first = bytes.next()?.to_ascii_lowercase();
            bytes.all(|byte| byte.to_ascii_lowercase() == first).then_some(first)
        }
        HirKind::Class(Class::Unicode(class)) => {
            let mut chars = class.ranges().iter().flat_map(|range| range.start()..=range.end());
            let first = chars.next().filter(char::is_ascii)?.to_ascii_lowercase();
            chars.all(|char| char.to_ascii_lowercase() == first).then_some(first as u8)
        }
        _ => None,
    }
}

/// The bytes of a small class, letter case ignored: `[pb]` in `xox[pb]-` spells two beginnings.
fn few_folded(class: &Class) -> Option<Vec<u8>> {
    const FEW: usize = 16;
    let Class::Bytes(class) = class else { return None };
    let mut bytes = Vec::new();
    for byte in class.iter().flat_map(|range| range.start()..=range.end()) {
        let folded = byte.to_ascii_lowercase();
        if !bytes.contains(&folded) {
            bytes.push(folded);
        }
        if bytes.len() > FEW {
            return None;
        }
    }
    Some(bytes)
}

const HEADS_MAX: usize = 256;

/// What every match begins with, case folded: one entry a branch. `None` if that is not a short finite list.
fn heads_of(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    Some(walk_heads(hir)?.into_iter().map(|(head, _)| head).collect())
}

/// Heads with a flag: whether the expression's match is exactly that head, so that what follows continues it.
fn walk_heads(hir: &Hir) -> Option<Vec<(Vec<u8>, bool)>> {
    if let Some(byte) = single_folded(hir) {
        return Some(alloc::vec![(alloc::vec![byte], true)]);
    }
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Some(alloc::vec![(Vec::new(), true)]),
        HirKind::Literal(literal) => Some(alloc::vec![(literal.0.to_ascii_lowercase(), true)]),
        HirKind::Class(class) => Some(match few_folded(class) {
            Some(bytes) => bytes.into_iter().map(|byte| (alloc::vec![byte], true)).collect(),
            None => alloc::vec![(Vec::new(), false)],
        }),
        HirKind::Capture(group) => walk_heads(&group.sub),
        HirKind::Repetition(repetition) => {
            let once = repetition.max == Some(1);
            if repetition.min == 0 && !once {
                return Some(alloc::vec![(Vec::new(), false)]);
            }
            let with = walk_heads(&repetition.sub)?.into_iter().map(|(head, open)| (head, open && once));
            // What is optional begins with itself, or with what follows it.
            let without = (repetition.min == 0).then(|| (Vec::new(), true));
            Some(with.chain(without).collect())
        }
        HirKind::Alternation(branches) => {
            let mut all = Vec::new();
            for branch in branches {
                all.extend(walk_heads(branch)?);
                if all.len() > HEADS_MAX {
                    return None;
                }
            }
            Some(all)
        }
        HirKind::Concat(parts) => {
            let mut all = alloc::vec![(Vec::new(), true)];
            for part in parts {
                if all.iter().all(|(_, open)| !open) {
                    break;
                }
                let next = walk_heads(part)?;
                let mut grown = Vec::new();
                for (head, open) in &all {
                    if !open {
                        grown.push((head.clone(), false));
                        continue;
                    }
                    for (tail, tail_open) in &next {
                        let mut joined: Vec<u8> = head.clone();
                        joined.extend_from_slice(tail);
                        grown.push((joined, *tail_open));
                    }
                }
                // What is known so far is a beginning too, and nothing more is known of what follows it.
                if grown.len() > HEADS_MAX {
                    all.iter_mut().for_each(|(_, open)| *open = false);
                    break;
                }
                all = grown;
            }
            Some(all)
        }
    }
}

/// Whether every match of `hir` contains one of `keywords`, letter case ignored.
fn always_contains(hir: &Hir, keywords: &[String]) -> bool {
    match hir.kind() {
        HirKind::Literal(literal) => has_keyword(&literal.0.to_ascii_lowercase(), keywords),
        HirKind::Capture(group) => always_contains(&group.sub, keywords),
        HirKind::Repetition(repetition) => repetition.min > 0 && always_contains(&repetition.sub, keywords),
        HirKind::Alternation(branches) => branches.iter().all(|branch| always_contains(branch, keywords)),
        HirKind::Concat(_) => keyword_among(&flatten(hir), keywords).is_some(),
        _ => false,
    }
}

/// The first and last part of a sequence that between them always contain a keyword.
fn keyword_among(parts: &[&Hir], keywords: &[String]) -> Option<(usize, usize)> {
    keyword_behind(Vec::new(), parts, keywords)
}

/// The same, if `word` stands directly before the sequence.
fn keyword_behind(mut word: Vec<u8>, parts: &[&Hir], keywords: &[String]) -> Option<(usize, usize)> {
    // Neighbouring literals and one-letter classes spell words together: `(?i)aws` is three classes.
    let mut word_at = 0;
    for (i, part) in parts.iter().enumerate() {
        if matches!(part.kind(), HirKind::Look(_)) {
            continue;
        }
        if word.is_empty() {
            word_at = i;
        }
        // The parser takes what branches begin with alike out of them: `_auth=|_pass=` is `_`, and then `auth=|pass=`.
        let is_spelt_by_each = |branch: &Hir| keyword_behind(word.clone(), &flatten(branch), keywords).is_some();
        if !always_contains(part, keywords)
            && let HirKind::Alternation(branches) = part.kind()
            && branches.iter().all(is_spelt_by_each)
        {
            return Some((word_at, i));
        }
        if let Some(byte) = single_folded(part) {
            word.push(byte);
        } else if let HirKind::Literal(literal) = part.kind() {
            word.extend(literal.0.iter().map(u8::to_ascii_lowercase));
        } else if always_contains(part, keywords) {
            return Some((i, i));
        } else {
            word.clear();
        }
        if has_keyword(&word, keywords) {
            return Some((word_at, i));
        }
    }
    None
}

fn has_keyword(text: &[u8], keywords: &[String]) -> bool {
    keywords.iter().any(|word| memchr::memmem::find(text, word.as_bytes()).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(regex: &str, keywords: &[&str]) -> Reach {
        let keywords: Vec<String> = keywords.iter().map(|&word| word.into()).collect();
        Reach::of(&Pattern::new(regex).unwrap().hir().unwrap(), &keywords, 4_096)
    }

    #[test]
    fn a_literal_prefix_is_anchored_at_its_longest_match() {
        assert_eq!(reach(r"\b(ghp_[0-9A-Za-z]{36})\b", &["ghp_"]), Reach::Anchored { after: 40 });
        assert_eq!(reach(r"(?i)\bdatadog=[a-f0-9]{32}", &["datadog"]), Reach::Anchored { after: 40 });
        assert_eq!(reach(r"\b(?:sk|rk)_live_[a-z]{4}", &["sk_live_", "rk_live_"]), Reach::Anchored { after: 12 });
        assert_eq!(reach(r"AKIA[A-Z]+", &["akia"]), Reach::Anchored { after: 4_096 });
        assert_eq!(reach(r"nf[pc]_[a-z]{4}", &["nfp_", "nfc_"]), Reach::Anchored { after: 8 });
        assert_eq!(reach(r"nf[pc]_[a-z]{4}", &["nfp_"]), Reach::Anywhere, "one of two beginnings is no keyword");
        assert_eq!(reach(r"rediss?://[a-z]{4}", &["redis://", "rediss://"]), Reach::Anchored { after: 13 });
        assert_eq!(reach(r"x[ab][ab][ab][ab][ab][ab][ab][ab][ab][ab]", &["xa", "xb"]), Reach::Anchored { after: 11 });
    }

    #[test]
    fn what_every_match_begins_with_is_tested_before_the_expression() {
        let opening = |regex: &str| Opening::of(&Pattern::new(regex).unwrap().hir().unwrap());
        let pat = opening(r"(pat[0-9A-Za-z]{14}\.[0-9a-f]{64})(?:[^0-9a-f]|$)");
        assert_eq!(pat.length, OPENING_BYTES_MAX);
        assert!(pat.fits(b"x patAAAAAAAAAAAAAA.0123456789", 2) && !pat.fits(b"x path/to/a/file/that/is/long", 2));
        assert!(!pat.fits(b"patAAAAAAAAAAA", 0), "the text ends before a match can");
        assert_eq!(opening(r"(?i)key\s?=\s?[a-z]{40}").length, 3, "white space may follow");
        assert_eq!(opening(r"(?:0x)?[0-9a-f]{8}").length, 8);
        assert_eq!(opening(r"(?s).{20}").length, 0);
    }

    #[test]
    fn a_keyword_inside_gives_a_window_of_just_the_reach() {
        assert_eq!(
            reach(r"(?i)[\w.-]{0,50}(?:adafruit)[ =]{1,3}[a-z]{32}", &["adafruit"]),
            Reach::Around { before: 58, after: 43 }
        );
        assert_eq!(reach(r"[0-9]{4}xx(?:foo|bar)", &["foo", "bar"]), Reach::Around { before: 9, after: 3 });
        assert_eq!(
            reach(r"(?i)[0-9]{4}(?:password=|pwd=)[a-z]", &["password=", "pwd="]),
            Reach::Around { before: 13, after: 10 }
        );
    }

    #[test]
    fn a_keyword_outside_the_match_widens_to_the_block() {
        assert_eq!(reach(r"[a-f0-9]{32}", &["service"]), Reach::Anywhere);
        assert_eq!(reach(r"(?:foo|[a-z]{9})=[0-9]{4}", &["foo"]), Reach::Anywhere);
        assert_eq!(reach(r"(?:foo)?[0-9]{4}", &["foo"]), Reach::Anywhere);
    }

    #[test]
    fn hostile_expressions_are_refused_with_the_reason() {
        assert!(matches!(Pattern::new("a{1000}{1000}{100}"), Err(RuleError::RegexTooLarge { .. })));
        assert!(matches!(Pattern::new(&"a".repeat(REGEX_BYTES_MAX + 1)), Err(RuleError::RegexTooLong { .. })));
        assert!(Pattern::new(&"a".repeat(REGEX_BYTES_MAX)).is_ok());
        assert!(matches!(
            Pattern::new(&alloc::format!("{}a{}", "(".repeat(200), ")".repeat(200))),
            Err(RuleError::Syntax(_))
        ));
        assert!(matches!(Pattern::new("x*"), Err(RuleError::MatchesEmpty)));
        assert!(Pattern::searchable("x*").is_ok());
        let Err(RuleError::Syntax(reason)) = Pattern::new(r"(?<=a)b") else { panic!("look-behind was read") };
        assert!(reason.contains("look-around"), "{reason}");
    }
}
