//! A version of a text is searched only where it differs from the one it was made from.
//!
//! A pack tells a blob as changes to another one, its base. If the base was searched and is *quiet* (no match but such as
//! their own bytes speak against), what the blob has from it is quiet too, as far as no change is near.
//!
//! **Nothing is lost by it.** Whether and where a rule matches depends on the text around its keyword: on its line and the
//! byte on either side, or on [`Reaches::across`] bytes; and on the match of the same rule before it, if the two overlap.
//! So what is searched is: each change, and each harmless match of the base (they alone can overlap others), with so much
//! text around it that two matches that touch fit in, and a line more. Such parts that touch are one. Then no match of a search of the
//! whole lies across the edge of a part: far from changes it is one that the base had, which has a part of its own,
//! or overlaps one. Rules that reach farther are *wide*: text with a keyword of theirs is never called quiet.
//!
//! When anything else than harmless matches shows, the whole blob is searched as any other: what is reported never comes from
//! here.

use std::ops::Range;

use aho_corasick::AhoCorasick;
use tessera_detect::probe::Probed;
use tessera_detect::{Detector, PathClass, Source};

use crate::read::reach::Reaches;
use tessera_git_objects::delta::Copied;

/// Rules that match farther than this over line breaks are wide.
const REACH_MAX: usize = 256;

/// What is known of a text that was searched and is quiet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quiet {
    /// The paths it is quiet at: some rules look at them.
    class: PathClass,
    len: usize,
    /// Where its harmless matches are, in order; those that touch are one.
    harmless: Vec<Range<u64>>,
}

/// Searches changes instead of texts.
#[derive(Debug)]
pub struct Edited {
    wide: Option<AhoCorasick>,
    /// What is looked at before and behind each change, at least.
    margin: usize,
    parts: Vec<Range<usize>>,
    breaks: Breaks,
    /// Bytes of texts that were found quiet by their changes.
    pub bytes_spared: u64,
}

impl Quiet {
    /// The paths it is quiet at.
    pub fn class(&self) -> &PathClass {
        &self.class
    }
}

impl Edited {
    /// For this detector's rules; `None` if one of them cannot be served.
    pub fn new(detector: &Detector) -> Option<Self> {
        let Reaches { wide, across } = Reaches::of(detector, REACH_MAX)?;
        // Two matches that touch, and a byte on either side of each.
        Some(Self { wide, margin: 2 * across + 4, parts: Vec::new(), breaks: Breaks::default(), bytes_spared: 0 })
    }

    /// Searches what `text` does not have from a quiet one. `None` says nothing: search all of it.
    pub fn search(
        &mut self,
        detector: &mut Detector,
        path: &[u8],
        text: &[u8],
        base: &Quiet,
        copied: &[Copied],
    ) -> Option<Quiet> {
        if base.class != detector.class_of(path) {
            return None;
        }
        self.cut(text, base, copied);
        for part in &self.parts {
            if self.is_unfit(&text[part.clone()]) {
                return None;
            }
        }
        let source = Source { path: Some(path), commit: None };
        match detector.probe(source, text, &self.parts) {
            Probed::Quiet(harmless) => {
                let searched: usize = self.parts.iter().map(ExactSizeIterator::len).sum();
                self.bytes_spared += (text.len() - searched) as u64;
                Some(Quiet { class: base.class.clone(), len: text.len(), harmless: merged(harmless) })
            }
            Probed::Open => None,
        }
    }

    /// What is known of a text that `detector` has just searched whole, as one at a path of this class.
    pub fn searched(&self, detector: &Detector, class: &PathClass, text: &[u8]) -> Option<Quiet> {
        let harmless = detector.quiet()?;
        (!self.is_unfit(text)).then(|| Quiet { class: class.clone(), len: text.len(), harmless: merged(harmless) })
    }

    /// What is known of a text in which no expression matches at paths of this class.
    pub fn clean(&self, class: &PathClass, text: &[u8]) -> Option<Quiet> {
        (!self.is_unfit(text)).then(|| Quiet { class: class.clone(), len: text.len(), harmless: Vec::new() })
    }

    /// Zero bytes may be wide characters, which are decoded over line breaks.
    fn is_unfit(&self, text: &[u8]) -> bool {
        memchr::memchr(0, text).is_some() || self.wide.as_ref().is_some_and(|wide| wide.is_match(text))
    }

    /// Fills in the parts that are to be searched.
    fn cut(&mut self, text: &[u8], base: &Quiet, copied: &[Copied]) {
        self.parts.clear();
        self.breaks = Breaks::default();
        // Where the stretch before ends, here and in the base.
        let (mut end, mut end_in_base) = (0, 0);
        for one in copied {
            // Also where two stretches meet that did not meet in the base: nothing is new there but the meeting.
            if (end, end_in_base) != (one.at, one.from) {
                self.add(text, end..one.at);
            }
            (end, end_in_base) = (one.at + one.len, one.from + one.len);
            let in_base = one.from as u64..end_in_base as u64;
            let first = base.harmless.partition_point(|span| span.end <= in_base.start);
            for span in base.harmless[first..].iter().take_while(|span| span.start < in_base.end) {
                // What is cut off of it lies in a change, or beside one.
                let start = one.at + (span.start.max(in_base.start) - in_base.start) as usize;
                self.add(text, start..one.at + (span.end.min(in_base.end) - in_base.start) as usize);
            }
        }
        if (end, end_in_base) != (text.len(), base.len) {
            self.add(text, end..text.len());
        }
    }

    /// Adds what is around `range`; ranges come in the order of their starts. Each line is walked a few times at most, however
    /// many changes it has.
    fn add(&mut self, text: &[u8], range: Range<usize>) {
        let floor = self.parts.last().map_or(0, |last| last.end);
        let mut start = range.start.saturating_sub(self.margin);
        let end = self.breaks.second_after(text, text.len().min(range.end + self.margin));
        // To the start of the line, and a line more, but not into the part before.
        for _ in 0..2 {
            let before = start.saturating_sub(1);
            start = match text.get(floor..before).and_then(|gap| memchr::memrchr(b'\n', gap)) {
                Some(at) => floor + at + 1,
                None => floor.min(start),
            };
        }
        match self.parts.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => self.parts.push(start..end),
        }
    }
}

/// The next two line breaks behind a place that moves forwards.
#[derive(Debug, Default)]
struct Breaks {
    /// Places from here on, up to the first break.
    from: usize,
    first: usize,
    /// Behind the second break.
    second: usize,
}

impl Breaks {
    /// Behind the second line break at or behind `at`.
    fn second_after(&mut self, text: &[u8], at: usize) -> usize {
        if !(self.from..=self.first).contains(&at) || self.second == 0 {
            let behind = |at: usize| memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |found| at + found + 1);
            let line_end = behind(at);
            *self = Self { from: at, first: line_end.saturating_sub(1).max(at), second: behind(line_end) };
        }
        self.second
    }
}

/// Spans in order, those that touch put together.
fn merged(spans: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(spans.len());
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => merged.push(span),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tessera_detect::{RuleSet, gitleaks, template};

    use super::*;

    fn found(detector: &mut Detector, text: &[u8]) -> (u64, Option<Vec<Range<u64>>>) {
        let summary = detector.scan_bytes(Source { path: Some(b"f"), commit: None }, text, |_| {});
        (summary.findings, detector.quiet())
    }

    fn class(detector: &mut Detector) -> PathClass {
        detector.class_of(b"f")
    }

    #[test]
    fn text_that_is_quiet_at_some_paths_is_searched_at_others() {
        let rules = "[[rules]]\nid = 'x'\nregex = 'x_[a-z]{8}'\nkeywords = ['x_']\npath = '[.]env$'\n";
        let mut detector = Detector::new(&gitleaks::read(rules, &mut |_| Err("no".into())).unwrap()).unwrap();
        let mut edited = Edited::new(&detector).unwrap();
        let class = class(&mut detector);
        let old = "x_abcdefgh\n".repeat(100);
        assert_eq!(found(&mut detector, old.as_bytes()).0, 0, "no rule looks at this path");
        let base = edited.searched(&detector, &class, old.as_bytes()).unwrap();
        let copied = [Copied { at: 0, from: 0, len: old.len() }];
        let mut search = |path: &[u8]| edited.search(&mut detector, path, old.as_bytes(), &base, &copied).is_some();
        assert!(search(b"f") && search(b"another/path") && !search(b"a.env"));
    }

    #[test]
    fn unchanged_text_is_not_searched_and_changes_are() {
        let mut detector = Detector::new(&RuleSet::builtin()).unwrap();
        let mut edited = Edited::new(&detector).unwrap();
        let class = class(&mut detector);
        let old = "int main(void) { return 0; }\n".repeat(1_000);
        let base = {
            found(&mut detector, old.as_bytes());
            edited.searched(&detector, &class, old.as_bytes()).unwrap()
        };
        let at = 29 * 500;
        let new = format!("{}one more line\n{}", &old[..at], &old[at..]);
        let copied = [Copied { at: 0, from: 0, len: at }, Copied { at: at + 14, from: at, len: old.len() - at }];
        let quiet = edited.search(&mut detector, b"f", new.as_bytes(), &base, &copied).unwrap();
        assert_eq!((quiet.len, quiet.harmless.len()), (new.len(), 0));
        assert!(edited.bytes_spared > 24_000, "{}", edited.bytes_spared);
        let token = template::expand("ghp_<<github 30>>", &mut template::Seed::new(1)).unwrap();
        let new = format!("{}{token:<13}\n{}", &old[..at], &old[at..]);
        let copied = [copied[0], Copied { at: at + token.len() + 1, ..copied[1] }];
        assert_eq!(edited.search(&mut detector, b"f", new.as_bytes(), &base, &copied), None);
    }

    #[test]
    fn a_text_with_a_private_key_or_wide_characters_is_never_quiet() {
        let mut detector = Detector::new(&RuleSet::builtin()).unwrap();
        let edited = Edited::new(&detector).unwrap();
        let class = class(&mut detector);
        for text in ["-----BEGIN RSA PRIVATE KEY-----\n", "a\0b\n"] {
            assert_eq!(found(&mut detector, text.as_bytes()).0, 0);
            assert_eq!(edited.searched(&detector, &class, text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn a_secret_completed_by_a_removal_is_seen() {
        let mut detector = Detector::new(&RuleSet::builtin()).unwrap();
        let mut edited = Edited::new(&detector).unwrap();
        let class = class(&mut detector);
        let token = template::expand("ghp_<<github 30>>", &mut template::Seed::new(1)).unwrap();
        let padding = "some text\n".repeat(400);
        let old = format!("{padding}{}XX\n{}\n{padding}", &token[..20], &token[20..]);
        assert_eq!(found(&mut detector, old.as_bytes()).0, 0);
        let base = edited.searched(&detector, &class, old.as_bytes()).unwrap();
        let (from, to) = (padding.len() + 20, padding.len() + 23);
        let new = [&old.as_bytes()[..from], &old.as_bytes()[to..]].concat();
        let copied = [Copied { at: 0, from: 0, len: from }, Copied { at: from, from: to, len: old.len() - to }];
        assert_eq!(found(&mut detector, &new).0, 1);
        assert_eq!(edited.search(&mut detector, b"f", &new, &base, &copied), None);
    }

    #[test]
    fn a_secret_completed_by_the_end_of_the_text_is_seen() {
        let mut detector = Detector::new(&RuleSet::builtin()).unwrap();
        let mut edited = Edited::new(&detector).unwrap();
        let class = class(&mut detector);
        let token = template::expand("ghp_<<github 30>>", &mut template::Seed::new(1)).unwrap();
        let old = format!("{}{token}ABC\n", "some text\n".repeat(400));
        assert_eq!(found(&mut detector, old.as_bytes()).0, 0);
        let base = edited.searched(&detector, &class, old.as_bytes()).unwrap();
        let new = &old.as_bytes()[..old.len() - 4];
        assert_eq!(found(&mut detector, new).0, 1);
        assert_eq!(edited.search(&mut detector, b"f", new, &base, &[Copied { at: 0, from: 0, len: new.len() }]), None);
    }

    /// Rules whose matches overlap, reach over many lines or far within one, or end where the text does, and are mostly harmless.
    const RULES: &str = r#"
        [[rules]]
        id = "chain"
        regex = 'k[a-d]{2}k'
        keywords = ["k"]
        entropy = 1.6
        [[rules]]
        id = "lines"
        regex = 'q\s{0,3}(b[a-d]{3})'
        keywords = ["q"]
        secretGroup = 1
        entropy = 1.9
        [[rules]]
        id = "many-lines"
        regex = 'm\s{0,12}(e[a-d]{2})'
        keywords = ["m"]
        secretGroup = 1
        entropy = 1.5
        [[rules]]
        id = "long-line"
        regex = '\sn[z ]{0,200}(f[a-d]{2})'
        keywords = ["n"]
        secretGroup = 1
        entropy = 1.5
        [[rules]]
        id = "at-the-end"
        regex = 'p([a-d]{3})(?:\s|$)'
        keywords = ["p"]
        secretGroup = 1
        entropy = 1.5
    "#;

    thread_local! {
        static DETECTOR: Detector = Detector::new(&gitleaks::read(RULES, &mut |_| Err("no".into())).unwrap()).unwrap();
    }

    fn words() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            4 => "[abcdkq]{1,5}",
            2 => "\n",
            1 => "z{1,40}\n",
            1 => "m\n{0,11}",
            1 => "\nn[z ]{0,190}",
            1 => "[ef][a-d]{2}",
            1 => "p[a-d]{3}",
        ];
        prop::collection::vec(word, 0..60).prop_map(|words| words.concat())
    }

    /// What is removed at a place: a little, or all that follows.
    fn removed() -> impl Strategy<Value = usize> {
        prop_oneof![4 => 0..30_usize, 1 => Just(usize::MAX / 2)]
    }

    /// What is put in its place.
    fn inserted() -> impl Strategy<Value = String> {
        prop_oneof![2 => words(), 2 => "[ef][a-d]{2}", 1 => Just(String::new())]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        #[test]
        fn what_is_called_quiet_is_quiet_with_the_same_harmless_matches(
            old in words(),
            edits in prop::collection::vec((0.0..1.0_f64, removed(), inserted()), 1..4),
        ) {
            let mut detector = DETECTOR.with(Detector::fork);
            let mut edited = Edited::new(&detector).unwrap();
            let class = class(&mut detector);
            found(&mut detector, old.as_bytes());
            let Some(base) = edited.searched(&detector, &class, old.as_bytes()) else { return Ok(()) };
            let (mut new, mut copied, mut from) = (Vec::new(), Vec::new(), 0);
            let mut cuts: Vec<(usize, usize, String)> =
                edits.into_iter().map(|(at, len, text)| ((at * old.len() as f64) as usize, len, text)).collect();
            cuts.sort();
            for (at, removed, text) in cuts {
                if at > from {
                    copied.push(Copied { at: new.len(), from, len: at - from });
                    new.extend_from_slice(&old.as_bytes()[from..at]);
                    from = (at + removed).min(old.len());
                }
                new.extend_from_slice(text.as_bytes());
            }
            if from < old.len() {
                copied.push(Copied { at: new.len(), from, len: old.len() - from });
                new.extend_from_slice(&old.as_bytes()[from..]);
            }
            if let Some(quiet) = edited.search(&mut detector, b"f", &new, &base, &copied) {
                let (findings, harmless) = found(&mut detector, &new);
                prop_assert_eq!((findings, harmless.map(merged)), (0, Some(quiet.harmless)));
            }
        }
    }
}
