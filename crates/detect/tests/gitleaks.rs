//! The gitleaks format: what is read, what is refused, and that it means what it means there.

use proptest::prelude::*;
use tessera_detect::{Detector, RuleSet, Source, gitleaks};

fn read(text: &str) -> Result<RuleSet, String> {
    gitleaks::read(text, &mut |path| match path {
        "base.toml" => Ok(BASE.into()),
        "loop.toml" => Ok("[extend]\npath = 'loop.toml'\n".into()),
        _ => Err("no such file".into()),
    })
    .map_err(|error| error.to_string())
}

const BASE: &str = r#"
title = "base"
[[rules]]
id = "acme"
description = "Acme token"
regex = '''(?i)acme[_-]?key\s*=\s*["']?([a-z0-9]{16})'''
keywords = ["acme"]
entropy = 2.5
secretGroup = 1

[[rules]]
id = "other"
description = "Other token"
regex = 'other_[0-9]{8}'
keywords = ["other_"]
"#;

fn found(rules: &RuleSet, path: &str, commit: Option<&str>, text: &str) -> Vec<(String, String)> {
    let mut detector = Detector::new(rules).expect("consistent");
    let mut found = Vec::new();
    let source = Source { path: Some(path.as_bytes()), commit };
    detector.scan_bytes(source, text.as_bytes(), |finding| {
        found.push((finding.rule.id.clone(), String::from_utf8_lossy(finding.secret.expose()).into_owned()));
    });
    found
}

fn ids(rules: &RuleSet, path: &str, text: &str) -> Vec<String> {
    found(rules, path, None, text).into_iter().map(|(id, _)| id).collect()
}

const ACME: &str = "acme_key = 'q7w3e9r1t5y2u8i4'\n"; // tessera:allow

#[test]
fn regex_group_keywords_and_entropy_are_honoured() {
    let rules = read(BASE).unwrap();
    assert_eq!(found(&rules, "a.py", None, ACME), [("acme".to_string(), "q7w3e9r1t5y2u8i4".to_string())]);
    assert!(ids(&rules, "a.py", "acme_key = 'aaaaaaaaaaaaaaaa'").is_empty(), "too little entropy");
    assert!(rules.warnings().is_empty(), "{:?}", rules.warnings());
}

#[test]
fn a_keyword_may_stand_elsewhere_in_the_file() {
    let text = "[[rules]]\nid='k'\nregex='[0-9]{6}-[0-9]{6}'\nkeywords=['acme']\n";
    let rules = read(text).unwrap();
    assert_eq!(ids(&rules, "a", "# acme settings\n\n\n123456-123456"), ["k"]);
    assert!(ids(&rules, "a", "# other settings\n123456-123456").is_empty());
}

#[test]
fn a_rule_without_keywords_looks_everywhere() {
    let rules = read("[[rules]]\nid='k'\nregex='[0-9]{6}-[0-9]{6}'\n").unwrap();
    assert_eq!(ids(&rules, "a", &format!("{}123456-123456", "x\n".repeat(200_000))), ["k"]);
}

#[test]
fn paths_restrict_rules_and_alone_are_findings() {
    let rules =
        read("[[rules]]\nid='k'\nregex='key[0-9]{4}'\npath='\\.env$'\n[[rules]]\nid='p'\npath='\\.p12$'\n").unwrap();
    assert_eq!(ids(&rules, "x/.env", "key1234"), ["k"]);
    assert!(ids(&rules, "x/main.c", "key1234").is_empty());
    assert_eq!(ids(&rules, "certs/a.p12", ""), ["p"]);
}

#[test]
fn both_forms_of_allowlist_work_on_every_target() {
    for list in [
        "[rules.allowlist]\nregexes = ['q7w3']\n",
        "[[rules.allowlists]]\nregexes = ['q7w3']\n",
        "[[rules.allowlists]]\nstopwords = ['W3E9']\n",
        "[[rules.allowlists]]\npaths = ['^tests/']\n",
        "[[rules.allowlists]]\ncommits = ['ABC123']\n",
        "[[rules.allowlists]]\nregexTarget = 'match'\nregexes = ['^acme_key = .q7']\n",
        "[[rules.allowlists]]\nregexTarget = 'line'\nregexes = ['harmless']\n",
        "[[rules.allowlists]]\ncondition = 'AND'\npaths = ['^tests/']\nstopwords = ['w3e9']\n",
    ] {
        let (first, second) = BASE.split_at(BASE.rfind("[[rules]]").unwrap());
        let rules = read(&format!("{first}{list}{second}")).unwrap_or_else(|error| panic!("{list}: {error}"));
        let text = "acme_key = 'q7w3e9r1t5y2u8i4' # harmless\n"; // tessera:allow
        assert!(found(&rules, "tests/a.py", Some("abc123"), text).is_empty(), "{list}");
        assert_eq!(ids(&rules, "src/a.py", "acme_key = 'z7x3c9v1b5n2m8k4'"), ["acme"], "{list}"); // tessera:allow
    }
    let both_parts = "[[allowlists]]\ncondition = 'AND'\npaths = ['^tests/']\nstopwords = ['nothing-like-it']\n";
    assert_eq!(ids(&read(&format!("{BASE}{both_parts}")).unwrap(), "tests/a.py", ACME), ["acme"]);
}

#[test]
fn global_allowlists_speak_for_all_rules_or_for_those_they_name() {
    let text = format!("{ACME}other_12345678\n");
    let all = read(&format!("{BASE}[allowlist]\npaths = ['vendor/']\n")).unwrap();
    assert!(ids(&all, "vendor/x", &text).is_empty());
    assert_eq!(ids(&all, "src/x", &text).len(), 2);
    let some = read(&format!("{BASE}[[allowlists]]\ntargetRules = ['acme']\npaths = ['vendor/']\n")).unwrap();
    assert_eq!(ids(&some, "vendor/x", &text), ["other"]);
    assert!(
        read(&format!("{BASE}[[allowlists]]\ntargetRules = ['acne']\npaths = ['x']\n")).unwrap_err().contains("acne")
    );
}

#[test]
fn extend_merges_completes_and_disables() {
    let rules = read("[extend]\npath = 'base.toml'\ndisabledRules = ['other', 'nope']\n[[rules]]\nid = 'acme'\n[[rules.allowlists]]\nstopwords = ['q7w3']\n").unwrap();
    assert_eq!(rules.rules().len(), 1);
    assert!(ids(&rules, "a", ACME).is_empty(), "the extended rule carries the new allowlist");
    assert_eq!(ids(&rules, "a", "acme_key = 'z7x3c9v1b5n2m8k4'"), ["acme"], "and the old expression"); // tessera:allow
    assert!(rules.warnings().iter().any(|warning| warning.contains("nope")));
    let rules = read(
        "[extend]\nuseDefault = true\ndisabledRules = ['github-pat']\n[[rules]]\nid='mine'\nregex='mine[0-9]{5}'\n",
    )
    .unwrap();
    assert_eq!(rules.rules().len(), RuleSet::builtin().rules().len());
    assert!(rules.get("github-pat").is_none() && rules.get("mine").is_some() && rules.get("npm-token").is_some());
}

#[test]
fn composite_rules_wait_for_their_parts() {
    let text = "[[rules]]\nid='pair'\nregex='user=[a-z]{4}'\n[[rules.required]]\nid='part'\nwithinLines=2\n\
                [[rules]]\nid='part'\nregex='pass=[a-z]{4}'\nskipReport=true\n";
    let rules = read(text).unwrap();
    assert_eq!(ids(&rules, "a", "user=abcd\npass=efgh\n"), ["pair"]);
    assert_eq!(ids(&rules, "a", "pass=efgh\n\nuser=abcd\n"), ["pair"]);
    assert!(ids(&rules, "a", "user=abcd\n\n\n\npass=efgh\n").is_empty());
    assert!(ids(&rules, "a", "user=abcd\n").is_empty());
    assert!(read(&text.replace("id='part'\nwithin", "id='gone'\nwithin")).unwrap_err().contains("gone"));
}

#[test]
fn errors_say_what_where_and_why() {
    for (text, message) in [
        ("[[rules]]\nid='k'\nregex='(a{1000}){1000}x'\nkeywords=['a']", "compiles to more than"),
        ("[[rules]]\nid='k'\nregex='a(?=b)'", "look-around"),
        ("[[rules]]\nid='k'\nregex='a*'", "matches the empty string"),
        ("[[rules]]\nid='k'\nregex='a'\nsecretGroup=2", "secretGroup is 2 but the regular expression has 0 groups"),
        ("[[rules]]\nid='k'", "field `regex` is missing"),
        ("[[rules]]\nregex='a'", "line 1: field `id` is missing"),
        ("\n\n[[rules]]\nid='k'\nregex=7", "line 5: rule \"k\": field `regex` must be a string, not integer"),
        ("[extend]\npath='nowhere.toml'", "no such file"),
        ("[extend]\npath='loop.toml'", "files extend one another"),
        ("[[rules]]\nid='k'\nregex='a'\n[rules.allowlist]\ndescription='x'", "needs at least one of"),
        ("not toml at all", "line 1"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(message), "{text}\n{error}");
    }
}

#[test]
fn unknown_fields_are_warned_about_not_refused() {
    let rules = read("colour = 'red'\n[[rules]]\nid='k'\nregex='abc[0-9]'\nflavour='sweet'\n").unwrap();
    assert_eq!(rules.warnings().len(), 2, "{:?}", rules.warnings());
}

/// Expressions that the keyword anchors, that contain it, and that have it in one of several places.
const KEYED: [(&str, &str); 5] = [
    (r"foo_[a-c]{4,9}", "foo_"),
    (r"(?i)[a-c]{0,6}foo[a-c_]{0,4}=[a-c]{3}", "foo"),
    (r"[a-c]{2}=(?:foo|bar)_[a-c]{2}", "foo', 'bar"),
    (r"\b[a-c]+foo\b", "foo"),
    (r"(?:foo|bar)+=[a-c]{2,3}(?:[^a-c]|$)", "foo', 'bar"),
];

proptest! {
    #[test]
    fn windows_around_keywords_lose_nothing_that_a_search_of_everything_finds(
        parts in prop::collection::vec(prop::sample::select(vec!["foo", "FOO_", "bar", "_", "=", "a", "bc", "abcabc", " ", "\n", "foo_ab"]), 0..120),
    ) {
        let text = parts.concat();
        for (regex, keywords) in KEYED {
            let unkeyed = format!("[[rules]]\nid='k'\nregex='{regex}'\n");
            let keyed = format!("{unkeyed}keywords=['{keywords}']\n");
            let [with, without] = [&keyed, &unkeyed].map(|rules| found(&read(rules).unwrap(), "a", None, &text));
            prop_assert_eq!(with, without, "{} on {:?}", regex, text);
        }
    }
}

/// The most common configuration there is: gitleaks' own rules, and a rule of theirs that is told what is harmless.
#[test]
fn an_allowlist_for_a_default_rule_is_applied_to_the_built_in_rules_for_the_same_secrets() {
    let text = "[extend]\nuseDefault = true\n[[rules]]\nid = 'generic-api-key'\n[[rules.allowlists]]\npaths = ['^fixtures/']\n\
        [[rules]]\nid = 'okta-access-token'\n[rules.allowlist]\nregexes = ['x']\n\
        [[rules]]\nid = 'no-such-service'\n[rules.allowlist]\nregexes = ['x']\n\
        [[allowlists]]\ntargetRules = ['no-such-service']\nregexes = ['.']\n";
    let rules = read(text).unwrap();
    let secret = "api_key = \"f3a91c7e5b2d48609ce17f35a8b4d602\"\n"; // tessera:allow
    assert_eq!(ids(&rules, "src/a.py", secret), ["generic-hex-secret"]);
    assert!(ids(&rules, "fixtures/a.py", secret).is_empty());
    let warnings = rules.warnings().join("\n");
    assert!(
        warnings.contains("okta-token") && warnings.contains("\"no-such-service\": no built-in rule"),
        "{warnings}"
    );
    assert!(rules.allowlists().iter().all(|list| !list.regexes.iter().any(|regex| regex.as_str() == ".")));
}

#[test]
fn a_default_rule_is_disabled_by_the_name_that_gitleaks_gives_it() {
    let rules = read("[extend]\nuseDefault = true\ndisabledRules = ['generic-api-key', 'aws-access-token']\n").unwrap();
    assert!(rules.get("generic-secret").is_none() && rules.get("aws-access-key-id").is_none());
    assert!(rules.get("github-pat").is_some());
}

#[test]
fn warnings_about_many_rules_are_one_line_for_each_kind() {
    let rule =
        |i: usize| format!("[[rules]]\nid = 'r{i}'\nregex = 'r{i}_[a-z]{{8}}'\nvalidate = 'x'\nspecificity = 1\n");
    let rules = read(&(0..40).map(rule).collect::<String>()).unwrap();
    assert_eq!(rules.warnings().len(), 2, "{:?}", rules.warnings());
    assert!(rules.warnings()[0].starts_with("40 rules, from \"r0\" to \"r39\": "), "{:?}", rules.warnings());
}

#[test]
fn filters_of_betterleaks_are_honoured_and_those_that_cannot_be_are_named() {
    let text = r#"
        prefilter = '''matchesAny(get(attributes, "path", ""), [`^vendor/`])'''
        filter = '''containsAny(finding["secret"], ["mock"])'''
        [[rules]]
        id = "acme"
        regex = 'acme_[a-z0-9]{8}'
        keywords = ["acme_"]
        filter = '''entropy(finding["secret"]) <= 2.0 || matchesAny(finding["line"], [`^#`])'''
        [[rules]]
        id = "other"
        regex = 'other_[a-z0-9]{8}'
        filter = '''failsTokenEfficiency(finding["secret"])'''
    "#;
    let rules = read(text).unwrap();
    assert_eq!(ids(&rules, "a", "x acme_q7w3e9r1"), ["acme"]);
    for (path, text) in
        [("vendor/a", "x acme_q7w3e9r1"), ("a", "x acme_mock0001"), ("a", "# acme_q7w3e9r1"), ("a", "acme_aaaaaaaa")]
    {
        assert!(ids(&rules, path, text).is_empty(), "{path} {text}");
    }
    assert_eq!(ids(&rules, "a", "other_q7w3e9r1"), ["other"]);
    assert_eq!(rules.warnings().len(), 1, "{:?}", rules.warnings());
    assert!(rules.warnings()[0].contains("failsTokenEfficiency"), "{:?}", rules.warnings());
}
