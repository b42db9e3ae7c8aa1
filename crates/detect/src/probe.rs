//! Looks at parts of a source, to learn whether all of it has to be searched.
//!
//! For a caller that has searched an earlier version of a text and knows which parts are new. Nothing is reported here: if a part
//! holds a match that might be a finding, the whole text is to be searched as any other.

use alloc::vec::Vec;
use core::ops::Range;

use crate::detector::{BLOCK_BYTES, Block, Detector, Source, block_at};

/// What parts of a source hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// Nothing but matches that their own bytes speak against, at these offsets of the source.
    Quiet(Vec<Range<u64>>),
    /// Something that the whole source has to be searched for.
    Open,
}

impl Detector {
    /// Looks at `parts` of `bytes`, which are in order and do not touch.
    ///
    /// The parts begin and end at line breaks, or at the edges of the source.
    pub fn probe(&mut self, source: Source<'_>, bytes: &[u8], parts: &[Range<usize>]) -> Probed {
        let mut is_path_harmless = true;
        let is_wanted = self.begin(source, &mut |_| is_path_harmless = false);
        if !is_wanted || !is_path_harmless {
            return Probed::Open;
        }
        self.state.is_probing = true;
        for part in parts {
            // What spans blocks is for the search of the whole.
            if part.len() > BLOCK_BYTES {
                return Probed::Open;
            }
            let block = block_at(source, &bytes[part.clone()], 0, 0);
            self.search_block(&Block { base: part.start as u64, ..block });
        }
        self.quiet().map_or(Probed::Open, Probed::Quiet)
    }

    /// Where the harmless matches of the source that was searched last are, if it holds no others, and few of them.
    pub fn quiet(&self) -> Option<Vec<Range<u64>>> {
        let state = &self.state;
        let is_quiet = state.summary.matches == state.summary.harmless
            && state.summary.findings == 0
            && !state.summary.source_allowed
            && state.harmless.len() as u64 == state.summary.harmless;
        is_quiet.then(|| {
            let mut spans = state.harmless.clone();
            spans.sort_unstable_by_key(|span| (span.start, span.end));
            spans
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;

    use super::*;
    use crate::{RuleSet, template};

    fn expand(text: &str) -> String {
        template::expand(text, &mut template::Seed::new(1)).unwrap()
    }

    #[test]
    fn a_part_with_a_secret_is_open_and_one_without_is_not() {
        let mut detector = Detector::new(&RuleSet::builtin()).unwrap();
        let clean = "plain\n".repeat(10);
        let text = format!("{clean}{}\n{clean}", expand("ghp_<<github 30>>"));
        let source = Source::path("f");
        let mut probe = |parts: &[Range<usize>]| detector.probe(source, text.as_bytes(), parts);
        assert_eq!(probe(&[0..60, 101..text.len()]), Probed::Quiet(Vec::new()));
        assert_eq!(probe(&[0..6, 54..text.len()]), Probed::Open);
    }

    #[test]
    fn harmless_matches_are_told_with_their_place() {
        let mut detector = Detector::new(&RuleSet::builtin()).unwrap();
        let text = "first\nghp_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nlast\n";
        let source = Source::path("f");
        assert_eq!(detector.scan_bytes(source, text.as_bytes(), |_| {}).findings, 0);
        let whole = detector.quiet().unwrap();
        assert_eq!((whole.len(), whole[0].clone()), (1, 6..46));
        assert_eq!(detector.probe(source, text.as_bytes(), core::slice::from_ref(&(6..47))), Probed::Quiet(whole));
    }
}
