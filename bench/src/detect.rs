//! The detector over source code, beside the least that a scanner of its kind must do: one search for all keywords.

use std::hint::black_box;
use std::path::Path;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use tessera_detect::{Detector, Options, RuleSet, Source};

use crate::harness::{Figure, Pair};

/// Enough that no cache holds it.
const CORPUS_BYTES: usize = 16 << 20;

pub(crate) fn figures() -> Vec<Figure> {
    let bytes = CORPUS_BYTES as u64;
    vec![
        Figure::rate(
            "detect/source",
            "all built-in rules with decoding, over this repository's Rust code, beside a bare aho-corasick DFA for the same keywords",
            bytes,
            || beside_bare_search(Options::default()),
        ),
        Figure::rate("detect/source-plain", "the same without decoding", bytes, || {
            beside_bare_search(Options { decode_depth: 0, ..Options::default() })
        }),
        Figure::cost("detect/start", "read and make ready all built-in rules, beside building the bare DFA", start),
    ]
}

fn beside_bare_search(options: Options) -> Pair {
    let rules = RuleSet::builtin();
    let mut detector = Detector::with_options(&rules, options).expect("built-in rules are consistent");
    let bare = bare_search(&rules);
    let text = corpus();
    let same_text = text.clone();
    Pair::new(
        move |times| {
            for _ in 0..times {
                black_box(detector.scan_bytes(Source::default(), &text, |finding| {
                    black_box(finding.span.start);
                }));
            }
        },
        move |times| {
            for _ in 0..times {
                black_box(bare.find_iter(&same_text).count());
            }
        },
    )
}

fn start() -> Pair {
    let rules = RuleSet::builtin();
    Pair::new(
        |times| {
            for _ in 0..times {
                black_box(Detector::new(&RuleSet::builtin()).expect("built-in rules are consistent"));
            }
        },
        move |times| {
            for _ in 0..times {
                black_box(bare_search(&rules));
            }
        },
    )
}

fn bare_search(rules: &RuleSet) -> AhoCorasick {
    let mut keywords: Vec<&str> =
        rules.rules().iter().flat_map(|rule| rule.keywords.iter().map(String::as_str)).collect();
    keywords.sort_unstable();
    keywords.dedup();
    AhoCorasick::builder()
        .kind(Some(AhoCorasickKind::DFA))
        .ascii_case_insensitive(true)
        .build(keywords)
        .expect("keywords are few and short")
}

/// The repository's Rust files, over and over until there is enough.
fn corpus() -> Vec<u8> {
    let mut code = Vec::new();
    collect(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates")), &mut code);
    assert!(!code.is_empty(), "the repository's sources are where they were at build time");
    code.iter().copied().cycle().take(CORPUS_BYTES).collect()
}

fn collect(path: &Path, code: &mut Vec<u8>) {
    if path.is_dir() {
        let mut entries: Vec<_> =
            std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| collect(entry, code));
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        code.extend(std::fs::read(path).unwrap_or_default());
    }
}
