//! A source gives the same findings however it is cut, at every offset, with the right line and column.

use std::sync::{LazyLock, Mutex};

use proptest::prelude::*;
use tessera_detect::detector::{BLOCK_BYTES, OVERLAP_BYTES};
use tessera_detect::template::{Seed, expand};
use tessera_detect::{Detector, Finding, IdKey, Options, RuleSet, Source};

/// A detector of the built-in rules; the rules are made ready once for all cases.
fn builtin() -> Detector {
    static FIRST: LazyLock<Mutex<Detector>> =
        LazyLock::new(|| Mutex::new(Detector::new(&RuleSet::builtin()).expect("built-in rules are consistent")));
    FIRST.lock().expect("no test panics while it forks").fork()
}

/// Everything about a finding that must not depend on chunking.
fn facts(finding: &Finding<'_>) -> String {
    let id = finding.id(&IdKey::new([1; 32]), b"source");
    format!(
        "{} {:?} {:?} {:?} {:?} {id} {:?}",
        finding.rule.id, finding.span, finding.secret_span, finding.start, finding.end, finding.decoded_from
    )
}

fn whole(detector: &mut Detector, text: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    detector.scan_bytes(Source::default(), text, |finding| found.push(facts(finding)));
    found
}

fn chunked(detector: &mut Detector, text: &[u8], sizes: &[usize]) -> Vec<String> {
    let mut found = Vec::new();
    let mut stream = detector.stream(Source::default(), |finding: &Finding<'_>| found.push(facts(finding)));
    let mut rest = text;
    for &size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at(size.clamp(1, rest.len()));
        stream.push(now);
        rest = later;
    }
    assert_eq!(stream.finish().bytes, text.len() as u64);
    found
}

const FILLER: &str = "fn main() { let answer = compute(42, \"plain text\"); } // nothing to see here\n";

/// Filler with secrets at the given offsets.
fn text_with(offsets: &[usize], bytes: usize, seed: u64) -> Vec<u8> {
    let recipes = [
        "\ntoken: ghp_<<github 30>>\n",
        "\nAKIA<<aws 16>> \n",
        "\nDATADOG_API_KEY=<<hex 32>>\n",
        "\ndata: <<base64 the key is npm_[[github 30]] today>>\n",
        "\n-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA<<b64 800>>\n-----END RSA PRIVATE KEY-----\n",
    ];
    let mut seed = Seed::new(seed);
    let mut text: Vec<u8> = FILLER.bytes().cycle().take(bytes).collect();
    for &offset in offsets {
        let recipe = *seed.pick(&recipes);
        let secret = expand(recipe, &mut seed).expect("known recipes");
        let at = offset.min(text.len().saturating_sub(secret.len()));
        text[at..at + secret.len()].copy_from_slice(secret.as_bytes());
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn findings_do_not_depend_on_chunking(
        offsets in prop::collection::vec(0usize..400_000, 1..6),
        near_cut in 0usize..2_000,
        sizes in prop::collection::vec(1usize..90_000, 1..5),
        seed in any::<u64>(),
    ) {
        let mut offsets = offsets;
        offsets.push(BLOCK_BYTES - 1_000 + near_cut);
        let text = text_with(&offsets, 400_000, seed);
        let mut detector = builtin();
        let expected = whole(&mut detector, &text);
        prop_assert!(!expected.is_empty());
        prop_assert_eq!(chunked(&mut detector, &text, &sizes), expected);
    }
}

#[test]
fn a_secret_is_found_at_every_offset_around_a_cut() {
    let mut detector = builtin();
    let secret = expand("\ntoken: ghp_<<github 30>>\n", &mut Seed::new(5)).expect("a known recipe");
    for cut in [BLOCK_BYTES, BLOCK_BYTES + OVERLAP_BYTES, BLOCK_BYTES - OVERLAP_BYTES, 2 * BLOCK_BYTES] {
        for offset in (cut - 60..cut + 60).step_by(1) {
            let mut text: Vec<u8> = FILLER.bytes().cycle().take(2 * BLOCK_BYTES + 50_000).collect();
            text[offset..offset + secret.len()].copy_from_slice(secret.as_bytes());
            let mut found = Vec::new();
            detector.scan_bytes(Source::default(), &text, |finding| {
                found.push((finding.secret_span.clone(), finding.start, finding.secret.expose().to_vec()));
            });
            assert_eq!(found.len(), 1, "at {offset}");
            let (span, start, bytes) = &found[0];
            assert_eq!(&text[span.start as usize..span.end as usize], bytes);
            let before = &text[..span.start as usize];
            assert_eq!(start.line, 1 + before.iter().filter(|&&b| b == b'\n').count() as u64);
            let line_start = before.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
            assert_eq!(start.column, (span.start as usize - line_start + 1) as u64);
        }
    }
}

#[test]
fn a_base64_run_longer_than_several_blocks_is_decoded_throughout() {
    const PLACES: [u64; 5] = [1_000, 98_290, 120_000, 210_001, 299_000];
    let mut plain: Vec<u8> = FILLER.bytes().cycle().take(300_000).collect();
    let secret = expand(" ghp_<<github 30>> ", &mut Seed::new(6)).expect("a known recipe");
    for at in PLACES {
        plain[at as usize..at as usize + secret.len()].copy_from_slice(secret.as_bytes());
    }
    let mut detector = builtin();
    // Blocks begin at multiples of four: only a run that does not shows whether its phase is carried along.
    for before in ["", ":", "::", ":::"] {
        let text = format!("{before}{}", tessera_detect::template::base64(&plain));
        assert!(text.len() > 3 * BLOCK_BYTES);
        let mut starts = Vec::new();
        detector.scan_bytes(Source::default(), text.as_bytes(), |finding| {
            assert_eq!(finding.decoded_from.len(), 1);
            starts.push(finding.secret_span.start);
        });
        assert_eq!(starts, PLACES.map(|at| before.len() as u64 + (at + 1) * 4 / 3));
    }
}

#[test]
fn rules_on_both_sides_of_a_cut_still_settle_who_speaks() {
    let mut detector = builtin();
    let line = expand("\nclient_secret = \"ghp_<<github 30>>\"\n", &mut Seed::new(8)).expect("a known recipe");
    for offset in BLOCK_BYTES - line.len()..BLOCK_BYTES {
        let mut text: Vec<u8> = FILLER.bytes().cycle().take(2 * BLOCK_BYTES).collect();
        text[offset..offset + line.len()].copy_from_slice(line.as_bytes());
        let mut ids = Vec::new();
        detector.scan_bytes(Source::default(), &text, |finding| ids.push(finding.rule.id.clone()));
        assert_eq!(ids, ["github-pat"], "at {offset}");
    }
}

#[test]
fn nested_encodings_are_followed_to_the_depth_and_no_further() {
    let inner = expand("password is ghp_<<github 30>> ok", &mut Seed::new(7)).expect("a known recipe");
    let utf16: Vec<u8> = inner.bytes().flat_map(|byte| [byte, 0]).collect();
    let text = tessera_detect::template::base64(&utf16);
    let rules = RuleSet::builtin();
    let chains = |depth| {
        let mut detector =
            Detector::with_options(&rules, Options { decode_depth: depth, ..Options::default() }).expect("consistent");
        let mut chains = Vec::new();
        detector.scan_bytes(Source::default(), text.as_bytes(), |f| chains.push(format!("{:?}", f.decoded_from)));
        chains
    };
    assert_eq!(chains(2), ["[Base64, Utf16]"]);
    assert_eq!(chains(1), Vec::<String>::new());
    assert_eq!(chains(0), Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..4_096), sizes in prop::collection::vec(1usize..700, 1..4)) {
        let mut detector = builtin();
        let expected = whole(&mut detector, &bytes);
        prop_assert_eq!(chunked(&mut detector, &bytes, &sizes), expected);
    }

    #[test]
    fn text_made_of_rule_fragments_is_read_without_a_panic(parts in prop::collection::vec(
        prop::sample::select(vec!["ghp_", "eyJ", ".", "-----BEGIN ", "PRIVATE KEY-----", "password=", "\"", "%41", "AKIA", "AAAA", "://u:", "@h", "\0a\0b",
            "sk-", "T3BlbkFJ", "=", "==", "\n", "0123456789abcdef", "client_secret: '", "$", "ZZZZZZZZZZZZZZZZZZZZZZZZZZZZ"]), 0..400)) {
        let text = parts.concat();
        let mut detector = builtin();
        let expected = whole(&mut detector, text.as_bytes());
        prop_assert_eq!(chunked(&mut detector, text.as_bytes(), &[7, 1, 300]), expected);
    }
}
