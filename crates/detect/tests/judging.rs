//! What makes a match a finding, what makes it harmless, and which of several findings is told.

use tessera_detect::check::Outcome;
use tessera_detect::template::{Seed, expand};
use tessera_detect::{Confidence, Detector, IdKey, Options, RuleSet, Source, Summary};

fn made(recipe: &str) -> String {
    expand(recipe, &mut Seed::new(11)).expect("a known recipe")
}

fn scan(rules: &RuleSet, options: Options, text: &str) -> (Vec<(String, Confidence, Outcome)>, Summary) {
    let mut found = Vec::new();
    let mut detector = Detector::with_options(rules, options).expect("consistent");
    let summary = detector.scan_bytes(Source::path("a.txt"), text.as_bytes(), |f| {
        found.push((f.rule.id.clone(), f.confidence, f.outcome))
    });
    (found, summary)
}

fn builtin(text: &str) -> (Vec<(String, Confidence, Outcome)>, Summary) {
    scan(&RuleSet::builtin(), Options::default(), text)
}

#[test]
fn a_right_checksum_confirms_and_a_wrong_one_is_counted_not_reported() {
    let (found, _) = builtin(&made("x ghp_<<github 30>>"));
    assert_eq!(found, [("github-pat".into(), Confidence::ChecksumValid, Outcome::Checksum)]);
    let (found, summary) = builtin(&made("x ghp_<<alnum 36>>"));
    assert_eq!((found.len(), summary.failed_checks), (0, 1));
}

#[test]
fn a_wrong_checksum_lowers_confidence_where_the_format_is_in_flux() {
    let (found, _) = builtin(&made("x ghs_<<alnum 36>>"));
    assert_eq!(found, [("github-app-server".into(), Confidence::Medium, Outcome::Failed)]);
}

#[test]
fn of_several_rules_about_the_same_bytes_the_surest_speaks() {
    let (found, _) = builtin(&made("client_secret = \"ghp_<<github 30>>\""));
    assert_eq!(found.iter().map(|f| f.0.as_str()).collect::<Vec<_>>(), ["github-pat"]);
}

#[test]
fn remarks_in_the_line_are_honoured_unless_told_not_to() {
    for remark in ["tessera:allow", "gitleaks:allow"] {
        let text = format!("{} # {remark}\n", made("x ghp_<<github 30>>"));
        let (found, summary) = builtin(&text);
        assert_eq!((found.len(), summary.allowed), (0, 1), "{remark}");
        assert_eq!(
            scan(&RuleSet::builtin(), Options { honour_remarks: false, ..Options::default() }, &text).0.len(),
            1
        );
    }
    assert_eq!(builtin(&format!("# tessera:allow\n{}\n", made("x ghp_<<github 30>>"))).0.len(), 1, "only its own line");
}

#[test]
fn guesses_are_made_only_when_asked_for() {
    let text = "card_number = \"4242424242424242\"".to_string();
    assert!(builtin(&text).0.is_empty());
    let all = Options { confidence_min: Confidence::Low, ..Options::default() };
    assert_eq!(scan(&RuleSet::builtin(), all, &text).0[0].0, "payment-card");
}

#[test]
fn ids_are_the_same_for_the_same_and_differ_for_the_different() {
    let mut detector = Detector::new(&RuleSet::builtin()).expect("consistent");
    let token = made("ghp_<<github 30>>");
    let text = format!("a {token}\nb {token}\n");
    let mut ids = Vec::new();
    let (key, other) = (IdKey::new([1; 32]), IdKey::new([2; 32]));
    detector.scan_bytes(Source::default(), text.as_bytes(), |f| {
        ids.push((f.secret_id(&key), f.id(&key, b"one"), f.id(&key, b"two"), f.secret_id(&other)));
    });
    let [first, second] = ids[..] else { panic!("{} findings", ids.len()) };
    assert_eq!(first.0, second.0, "one secret in two places");
    assert_ne!(first.1, second.1, "two places");
    assert_ne!(first.1, first.2, "two sources");
    assert_ne!(first.0, first.3, "two keys");
    let mut again = Vec::new();
    detector.scan_bytes(Source::default(), text.as_bytes(), |f| again.push(f.id(&key, b"one")));
    assert_eq!(again, [first.1, second.1], "and the same a second time");
}

#[test]
fn a_report_never_shows_the_secret_by_accident() {
    let token = made("ghp_<<github 30>>");
    let mut detector = Detector::new(&RuleSet::builtin()).expect("consistent");
    detector.scan_bytes(Source::default(), token.as_bytes(), |finding| {
        let printed = format!("{finding:?} {}", finding.secret.redacted());
        assert!(!printed.contains(&token[4..12]), "{printed}");
    });
}

#[test]
fn a_fork_finds_the_same() {
    let text = made("x ghp_<<github 30>> y");
    let mut first = Detector::new(&RuleSet::builtin()).expect("consistent");
    let mut second = first.fork();
    let work = move || second.scan_bytes(Source::default(), text.as_bytes(), |_| {}).findings;
    assert_eq!(std::thread::spawn(work).join().expect("no panic"), 1);
    assert_eq!(first.scan_bytes(Source::default(), b"nothing", |_| {}).findings, 0);
}

#[test]
fn nothing_is_carried_from_one_source_to_the_next() {
    let mut detector = Detector::new(&RuleSet::builtin()).expect("consistent");
    let text = made("x ghp_<<github 30>> y");
    for _ in 0..3 {
        assert_eq!(
            detector.scan_bytes(Source::default(), text.as_bytes(), |f| assert_eq!(f.start.line, 1)).findings,
            1
        );
    }
}

#[test]
fn a_path_allowlist_skips_the_whole_source_and_says_so() {
    let mut rules = RuleSet::builtin();
    rules.extend(RuleSet::from_toml("[[allowlists]]\npaths = ['^vendor/']\n").expect("a good file"));
    let mut detector = Detector::new(&rules).expect("consistent");
    let text = made("x ghp_<<github 30>> y");
    let summary = detector.scan_bytes(Source::path("vendor/a"), text.as_bytes(), |_| panic!("allowed"));
    assert!(summary.source_allowed && summary.findings == 0);
    assert_eq!(detector.scan_bytes(Source::path("src/a"), text.as_bytes(), |_| {}).findings, 1);
}

#[test]
fn an_allowlist_about_secrets_never_skips_a_source() {
    let mut rules = RuleSet::builtin();
    rules.extend(RuleSet::from_toml("[[allowlists]]\nregexes = ['^[a-z]*$']\n").expect("a good file"));
    let (found, summary) = scan(&rules, Options::default(), &made("x ghp_<<github 30>> y"));
    assert_eq!(
        (found.len(), summary.source_allowed),
        (1, false),
        "the expression matches the empty secret, but no secret is empty"
    );
}

#[test]
fn each_encoding_is_searched_and_its_place_reported_in_the_source() {
    use tessera_detect::decode::Encoding;
    let plain = made("the key is ghp_<<github 30>> today, see the notes");
    let token_at = plain.find("ghp_").expect("it is there");
    let hex: String = plain.bytes().map(|byte| format!("{byte:02x}")).collect();
    let wide: Vec<u8> = plain.bytes().flat_map(|byte| [byte, 0]).collect();
    let percent = plain.replace('_', "%5F").replace(' ', "%20");
    let utf32: Vec<u8> = plain.bytes().flat_map(|byte| [byte, 0, 0, 0]).collect();
    let escaped = plain.replace('_', "\\u005f").replace(' ', "\\u0020");
    let cases: [(Encoding, Vec<u8>, usize, usize); 6] = [
        (Encoding::Base64, tessera_detect::template::base64(plain.as_bytes()).into_bytes(), token_at * 4 / 3, 54),
        (Encoding::Hex, hex.into_bytes(), token_at * 2, 80),
        (Encoding::Utf16, wide, token_at * 2, 79),
        (Encoding::Percent, percent.clone().into_bytes(), percent.find("ghp").expect("it is there"), 42),
        (Encoding::Backslash, escaped.clone().into_bytes(), escaped.find("ghp").expect("it is there"), 45),
        (Encoding::Utf32, utf32, token_at * 4, 157),
    ];
    let mut detector = Detector::new(&RuleSet::builtin()).expect("consistent");
    for (encoding, body, at, len) in cases {
        let text = [b"line one\nx: ".as_slice(), &body, b"\n"].concat();
        let mut found = Vec::new();
        detector.scan_bytes(Source::default(), &text, |f| {
            found.push((f.decoded_from.iter().collect::<Vec<_>>(), f.secret_span.clone(), f.start.line));
            assert_eq!(f.secret.expose(), &plain.as_bytes()[token_at..token_at + 40]);
        });
        let [(chain, span, line)] = &found[..] else { panic!("{encoding}: {} findings", found.len()) };
        assert_eq!((chain.as_slice(), *line), ([encoding].as_slice(), 2));
        assert_eq!(span.start, 12 + at as u64, "{encoding}");
        assert!((span.end - span.start).abs_diff(len as u64) <= 1, "{encoding}: {span:?}");
    }
}

/// Inputs that make a scanner crawl that backtracks, or that looks at a window anew for every hit in it: twice the
/// input must cost twice the work, whatever it is made of.
#[test]
fn work_grows_linearly_on_hostile_inputs() {
    let options = Options { confidence_min: Confidence::Low, ..Options::default() };
    let mut detector = Detector::with_options(&RuleSet::builtin(), options).expect("consistent");
    let mut work = |unit: &str, bytes: usize| {
        let text: Vec<u8> = unit.bytes().cycle().take(bytes).collect();
        let summary = detector.scan_bytes(Source::default(), &text, |_| {});
        assert_eq!(summary.bytes, bytes as u64);
        summary.expression_bytes
    };
    for unit in [
        "eyJ",
        "-----BEGIN RSA PRIVATE KEY-----\n",
        "password=",
        "api_key: api_key: ",
        "http://a:",
        "AAAA",
        "%41%41",
        "a\0",
        "ghp_",
        "curl -u ",
        "sk-",
        "xoxb-1",
        "Server=a;",
        "Authorization: Bearer ",
        "k00",
        ":aa",
        "1//0",
    ] {
        let (once, twice) = (work(unit, 300_000), work(unit, 600_000));
        assert!(once <= 2_000 * 300_000, "{unit:?}: {once}");
        // Windows are cut short at the end of the text, so the shorter one does a little less than half.
        assert!(twice <= 2 * once + once / 20 + 600_000, "{unit:?}: {once} and {twice}");
    }
}
