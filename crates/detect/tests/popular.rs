//! Tokens that users expect a scanner to know, from `labelled/popular.toml`, each found where it stands and by itself.

use tessera_detect::template::{Seed, expand};
use tessera_detect::{Detector, RuleSet, Source};

const SEEDS: u64 = 10;
/// What a value drawn at random may look like: now and then it resembles a stand-in or words.
const MISSES_MAX: usize = 1;

fn tokens() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/labelled/popular.toml");
    let text = std::fs::read_to_string(path).expect("the list is there");
    let table = toml::de::DeTable::parse(&text).expect("the list is TOML");
    let list = table.get_ref().get("tokens").and_then(|list| list.get_ref().as_array()).expect("an array");
    list.iter().map(|token| token.get_ref().as_str().expect("a string").to_owned()).collect()
}

/// The text without its last mark, and where that stood.
fn unmarked(text: &str) -> (String, std::ops::Range<usize>) {
    let (before, rest) = text.rsplit_once("{+").expect("a secret is marked");
    let (secret, after) = rest.split_once("+}").expect("the mark is closed");
    let before = before.replace("{+", "").replace("+}", "");
    let span = before.len()..before.len() + secret.len();
    (before + secret + after, span)
}

#[test]
fn every_popular_token_is_found_at_default_confidence() {
    let mut detector = Detector::new(&RuleSet::builtin()).expect("built-in rules are consistent");
    let tokens = tokens();
    let mut missed = Vec::new();
    for token in &tokens {
        let misses = (0..SEEDS).filter(|seed| {
            let (text, secret) = unmarked(&expand(token, &mut Seed::new(*seed)).expect("recipes are known"));
            let mut is_found = false;
            detector.scan_bytes(Source::path("notes.txt"), format!("{text}\n").as_bytes(), |finding| {
                let span = finding.secret_span.start as usize..finding.secret_span.end as usize;
                is_found |= span.start < secret.end && secret.start < span.end;
            });
            !is_found
        });
        let misses = misses.count();
        if misses > MISSES_MAX {
            missed.push(format!("{misses} of {SEEDS} missed: {token}"));
        }
    }
    assert!(tokens.len() >= 190 && missed.is_empty(), "of {} tokens:\n{}", tokens.len(), missed.join("\n"));
}
