//! Text that was searched before and found clean is not searched again.
//!
//! A history holds the same lines some forty times, in version after version of a file. So a blob is cut into chunks of
//! whole lines at places its own content chooses, and chunks known to be clean are passed over.
//!
//! **Nothing is lost by it.** What a rule says about a keyword depends on the text around it. A chunk is remembered
//! under the hash of itself, its two neighbours and what the rules make of its path, and only if no expression matched at all when it was searched
//! with its neighbours. So if a chunk is known, the same text was searched in the same surroundings, and a match that has its
//! keyword in this chunk would have shown then. That holds for rules whose matches reach no further than a neighbour is long,
//! or stay within a line. The few others (a private key of many lines) are *wide*: a chunk with a keyword of theirs is
//! never remembered. And when anything at all matches in what is new, the whole blob is searched as if nothing were known:
//! what is reported never comes from here.
//!
//! Text that does not fit this picture (very long lines, zero bytes, little text) is searched whole.

use std::hash::Hash;

use aho_corasick::AhoCorasick;
use tessera_detect::{Detector, PathClass, Source};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed, xxh3_128_with_seed};

use crate::read::reach::Reaches;

/// Shortest chunk, except the last of a blob.
const CHUNK_BYTES_MIN: usize = 1 << 10;
/// Longest chunk: a line that makes it longer makes the blob unfit.
const CHUNK_BYTES_MAX: usize = 8 << 10;
/// Farthest that a match of a rule that is not wide can be from its keyword, unless it stays within a line.
const REACH_MAX: usize = CHUNK_BYTES_MIN - 2;
/// One line in so many ends a chunk that is long enough.
const LINES_PER_CUT: u64 = 16;
/// Blobs below this are searched whole.
const BLOB_BYTES_MIN: usize = 4 * CHUNK_BYTES_MIN;
/// Places of the memory: 16 MiB. A new chunk takes the place of an old one.
const PLACES: usize = 1 << 20;

/// What a worker remembers.
pub struct CleanChunks {
    places: Vec<u128>,
    wide: Option<AhoCorasick>,
    seed: u64,
    chunks: Vec<Chunk>,
    /// Bytes passed over.
    pub bytes_saved: u64,
}

#[derive(Debug, Clone, Copy)]
struct Chunk {
    end: usize,
    hash: u128,
    /// The hash of it with its surroundings.
    key: u128,
    is_new: bool,
}

impl std::fmt::Debug for CleanChunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CleanChunks").field("bytes_saved", &self.bytes_saved).finish_non_exhaustive()
    }
}

impl CleanChunks {
    /// A memory for this detector's rules; `None` if one of them cannot be served. `seed` is random, so that nobody can make
    /// two texts with the same hash.
    pub fn new(detector: &Detector, seed: u64) -> Option<Self> {
        let Reaches { wide, .. } = Reaches::of(detector, REACH_MAX)?;
        Some(Self { places: vec![0; PLACES], wide, seed, chunks: Vec::new(), bytes_saved: 0 })
    }

    /// Whether all of `blob` is known to be clean, or is found to be now. `false` says nothing: search the blob.
    pub fn is_clean(&mut self, detector: &mut Detector, path: &[u8], blob: &[u8]) -> bool {
        if !self.cut(&detector.class_of(path), blob) {
            return false;
        }
        let chunks = std::mem::take(&mut self.chunks);
        let is_clean = self.search_new(&chunks, detector, path, blob);
        self.chunks = chunks;
        is_clean
    }

    fn search_new(&mut self, chunks: &[Chunk], detector: &mut Detector, path: &[u8], blob: &[u8]) -> bool {
        let start_of = |i: usize| if i == 0 { 0 } else { chunks[i - 1].end };
        let mut searched = 0;
        let mut i = 0;
        while i < chunks.len() {
            if !chunks[i].is_new {
                i += 1;
                continue;
            }
            // New chunks that share a neighbour are searched in one piece, with a neighbour on either side.
            let first = i;
            let mut last = i;
            while let Some(next) = (last + 1..chunks.len().min(last + 3)).find(|&next| chunks[next].is_new) {
                last = next;
            }
            let region = &blob[start_of(first.saturating_sub(1))..chunks[(last + 1).min(chunks.len() - 1)].end];
            let own = &blob[start_of(first)..chunks[last].end];
            if self.wide.as_ref().is_some_and(|wide| wide.is_match(own)) {
                return false;
            }
            let mut is_quiet = true;
            let source = Source { path: Some(path), commit: None };
            let summary = detector.scan_bytes(source, region, |_| is_quiet = false);
            if !is_quiet || summary.matches > 0 || summary.source_allowed {
                return false;
            }
            searched += region.len();
            i = last + 1;
        }
        for chunk in chunks.iter().filter(|chunk| chunk.is_new) {
            let place = self.place_of(chunk.key);
            self.places[place] = chunk.key;
        }
        self.bytes_saved += blob.len().saturating_sub(searched) as u64;
        true
    }

    /// Cuts the blob and looks its chunks up; `false` if it is unfit.
    fn cut(&mut self, class: &PathClass, blob: &[u8]) -> bool {
        if blob.len() < BLOB_BYTES_MIN || memchr::memchr(0, blob).is_some() {
            return false;
        }
        self.chunks.clear();
        let mut start = 0;
        while start < blob.len() {
            let Some(end) = chunk_end(blob, start) else { return false };
            let hash = xxh3_128_with_seed(&blob[start..end], self.seed);
            self.chunks.push(Chunk { end, hash, key: 0, is_new: false });
            start = end;
        }
        let mut hasher = Xxh3::with_seed(self.seed);
        class.hash(&mut hasher);
        let class = hasher.digest();
        for i in 0..self.chunks.len() {
            // The edges of the blob are surroundings of their own.
            let before = if i == 0 { 1 } else { self.chunks[i - 1].hash };
            let after = self.chunks.get(i + 1).map_or(2, |chunk| chunk.hash);
            let mut text = [0; 56];
            for (at, hash) in [before, self.chunks[i].hash, after].into_iter().enumerate() {
                text[at * 16..][..16].copy_from_slice(&hash.to_le_bytes());
            }
            text[48..].copy_from_slice(&class.to_le_bytes());
            // Zero marks an empty place.
            let key = xxh3_128_with_seed(&text, self.seed).max(1);
            let is_new = self.places[self.place_of(key)] != key;
            self.chunks[i].key = key;
            self.chunks[i].is_new = is_new;
        }
        true
    }

    fn place_of(&self, key: u128) -> usize {
        key as usize & (PLACES - 1)
    }
}

/// Where the chunk that starts at `start` ends: after a line, chosen by that line's own content.
fn chunk_end(blob: &[u8], start: usize) -> Option<usize> {
    let rest = &blob[start..];
    if rest.len() <= CHUNK_BYTES_MIN {
        return Some(blob.len());
    }
    let mut line_start = match memchr::memchr(b'\n', &rest[CHUNK_BYTES_MIN - 1..]) {
        Some(at) => CHUNK_BYTES_MIN + at,
        None => rest.len(),
    };
    loop {
        if line_start > CHUNK_BYTES_MAX {
            return None;
        }
        if line_start == rest.len() || rest.len() - line_start < CHUNK_BYTES_MIN {
            // Too little is left for a chunk that could be a neighbour.
            return (rest.len() <= CHUNK_BYTES_MAX).then_some(blob.len());
        }
        let line_end = memchr::memchr(b'\n', &rest[line_start..]).map_or(rest.len(), |at| line_start + at + 1);
        // Decided by the line that would come next, so that the same text is cut at the same place.
        if is_cut_before(&rest[line_start..line_end]) || line_end > CHUNK_BYTES_MAX {
            return Some(start + line_start);
        }
        line_start = line_end;
    }
}

fn is_cut_before(line: &[u8]) -> bool {
    // Few bytes are enough to choose; which lines are chosen does not matter, only that the same ones are.
    let head = &line[..line.len().min(24)];
    xxh3_64_with_seed(head, 0).is_multiple_of(LINES_PER_CUT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tessera_detect::{RuleSet, gitleaks, template};

    use super::*;

    fn found(detector: &mut Detector, path: &[u8], blob: &[u8]) -> Vec<(String, std::ops::Range<u64>, Vec<u8>)> {
        let mut found = Vec::new();
        let source = Source { path: Some(path), commit: None };
        detector.scan_bytes(source, blob, |finding| {
            found.push((finding.rule.id.clone(), finding.secret_span.clone(), finding.secret.expose().to_vec()));
        });
        found
    }

    #[test]
    fn built_in_rules_can_be_served_and_long_keys_are_wide() {
        let detector = Detector::new(&RuleSet::builtin()).unwrap();
        let chunks = CleanChunks::new(&detector, 1).unwrap();
        let wide = chunks.wide.unwrap();
        assert!(wide.is_match("-----BEGIN RSA PRIVATE KEY-----"));
        for common in ["password = \"hunter2\"", "api_key: 0123", "token", "secret", "eyJhbGciOi"] {
            assert!(!wide.is_match(common), "{common} would be searched again and again");
        }
    }

    #[test]
    fn rules_that_look_at_every_byte_cannot_be_served() {
        let rules =
            gitleaks::read("[[rules]]\nid = 'x'\nregex = '[a-z\\n]{40,}'\n", &mut |_| Err("no".into())).unwrap();
        let options = tessera_detect::Options {
            confidence_min: tessera_detect::Confidence::Low,
            ..tessera_detect::Options::default()
        };
        assert!(CleanChunks::new(&Detector::with_options(&rules, options).unwrap(), 1).is_none());
    }

    #[test]
    fn a_second_version_costs_little() {
        let mut detector = Detector::new(&RuleSet::builtin()).unwrap();
        let mut chunks = CleanChunks::new(&detector, 1).unwrap();
        let mut lines: Vec<String> = (0..4_000).map(|i| format!("let value_{i} = compute({i});\n")).collect();
        assert!(chunks.is_clean(&mut detector, b"f", lines.concat().as_bytes()));
        lines[2_000].push_str("let added = 1;\n");
        let text = lines.concat();
        let before = chunks.bytes_saved;
        assert!(chunks.is_clean(&mut detector, b"f", text.as_bytes()));
        let searched = text.len() as u64 - (chunks.bytes_saved - before);
        assert!(searched < 40 << 10, "{searched} of {} bytes searched again", text.len());
        let before = chunks.bytes_saved;
        assert!(chunks.is_clean(&mut detector, b"other path", text.as_bytes()));
        assert_eq!(chunks.bytes_saved - before, text.len() as u64, "no rule looks at paths");
    }

    #[test]
    fn text_that_is_clean_at_some_paths_is_searched_at_others() {
        let rules = "[[rules]]\nid = 'x'\nregex = 'x_[a-z]{8}'\nkeywords = ['x_']\npath = '[.]env$'\n";
        let mut detector = Detector::new(&gitleaks::read(rules, &mut |_| Err("no".into())).unwrap()).unwrap();
        let mut chunks = CleanChunks::new(&detector, 1).unwrap();
        let text = "x_abcdefgh and more\n".repeat(1_000);
        let mut is_clean = |path: &[u8]| chunks.is_clean(&mut detector, path, text.as_bytes());
        assert!(is_clean(b"f") && is_clean(b"g") && !is_clean(b"a.env") && is_clean(b"f"));
    }

    /// What versions of a file are made of.
    fn piece() -> impl Strategy<Value = String> {
        let template = |text: &'static str| {
            (0_u64..50).prop_map(move |seed| template::expand(text, &mut template::Seed::new(seed)).unwrap())
        };
        prop_oneof![
            10 => (0_u32..200).prop_map(|i| format!("fn function_{i}() {{ call({i}) }}\n").repeat(1 + i as usize % 9)),
            4 => (0_u32..40).prop_map(|i| format!("{}\n", "w".repeat(i as usize * 40))),
            1 => template("token = \"ghp_<<github 30>>\"\n"),
            1 => template("ghp_<<github 30>>"),
            1 => Just("github_token =\n".to_owned()),
            1 => Just("password = \"changeme\"\n".to_owned()),
            1 => Just("-----BEGIN RSA PRIVATE KEY-----\n".to_owned()),
            1 => template("<<base64 token=ghp_[[github 30]] end of it>>\n"),
            1 => Just("-----END RSA PRIVATE KEY-----\n".to_owned()),
            2 => (0_u32..30).prop_map(|i| "MIIEpAIBAAKCAQEA7yn3bRHQ5FHMQd0Zg\n".repeat(i as usize)),
            1 => Just("\"private_key_id\" :\n".to_owned()),
            1 => Just("  \"0123456789abcdef0123456789abcdef01234567\"\n".to_owned()),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A file, and edits that put, replace and take away pieces: each version is searched with and without memory.
        #[test]
        fn a_blob_with_a_finding_is_never_called_clean(
            start in prop::collection::vec(piece(), 20..60),
            edits in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..3, piece()), 1..25),
        ) {
            let mut detector = Detector::new(&RuleSet::builtin()).unwrap();
            let mut chunks = CleanChunks::new(&detector, 7).unwrap();
            let mut pieces = start;
            for (at, kind, piece) in edits {
                let at = at.index(pieces.len());
                match kind {
                    0 => pieces.insert(at, piece),
                    1 => pieces[at] = piece,
                    _ if pieces.len() > 1 => { pieces.remove(at); }
                    _ => {}
                }
                let blob = pieces.concat();
                let expected = found(&mut detector, b"f", blob.as_bytes());
                if chunks.is_clean(&mut detector, b"f", blob.as_bytes()) {
                    prop_assert!(expected.is_empty(), "{:?}", expected.iter().map(|f| &f.0).collect::<Vec<_>>());
                }
            }
        }
    }
}
