//! Every built-in rule is held to its own examples, and the set to what a set must be.

use std::collections::BTreeSet;

use tessera_detect::rule::Matching;
use tessera_detect::template::{Seed, expand};
use tessera_detect::{Confidence, Detector, Options, RuleSet, Source};

const SEEDS: u64 = 12;

fn detector(rules: &RuleSet) -> Detector {
    let options = Options { confidence_min: Confidence::Low, ..Options::default() };
    Detector::with_options(rules, options).expect("built-in rules are consistent")
}

fn ids_in(detector: &mut Detector, text: &str) -> Vec<String> {
    let mut ids = Vec::new();
    detector.scan_bytes(Source::path("sample.txt"), text.as_bytes(), |finding| ids.push(finding.rule.id.clone()));
    ids
}

fn alone(all: &RuleSet, id: &str) -> Detector {
    let mut rules = all.clone();
    rules.keep_only(&[id]).expect("the rule is built in");
    detector(&rules)
}

#[test]
fn there_are_at_least_150_rules_with_distinct_readable_ids() {
    let rules = RuleSet::builtin();
    let ids: BTreeSet<&str> = rules.rules().iter().map(|rule| rule.id.as_str()).collect();
    assert_eq!(ids.len(), rules.rules().len(), "an id occurs twice");
    assert!(ids.len() >= 150, "{}", ids.len());
    for id in ids {
        assert!(id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'), "{id}");
    }
}

#[test]
fn every_expression_passes_the_limits_that_user_rules_must_pass() {
    for rule in RuleSet::builtin().rules() {
        let (Matching::Text(pattern) | Matching::Assigned { value: pattern, .. }) = &rule.matching else { continue };
        for pattern in [Some(pattern), rule.then.as_ref()].into_iter().flatten() {
            tessera_detect::pattern::Pattern::new(pattern.as_str())
                .unwrap_or_else(|error| panic!("{}: {error}", rule.id));
        }
    }
}

#[test]
fn every_rule_has_examples_of_both_kinds_a_source_and_a_keyword() {
    for rule in RuleSet::builtin().rules() {
        assert!(!rule.positive.is_empty() && !rule.negative.is_empty(), "{}", rule.id);
        assert!(rule.source.starts_with("https://"), "{} names no source of its format", rule.id);
        assert!(!rule.keywords.is_empty(), "{}", rule.id);
        assert!(rule.keywords.iter().all(|word| word.len() >= 2), "{}: {:?}", rule.id, rule.keywords);
    }
}

#[test]
fn every_positive_example_is_found_and_every_negative_is_not() {
    let mut wrong = Vec::new();
    let all = RuleSet::builtin();
    for rule in all.rules() {
        let mut detector = alone(&all, &rule.id);
        for seed in 0..SEEDS {
            for example in &rule.positive {
                let text = expand(example, &mut Seed::new(seed)).unwrap_or_else(|error| panic!("{}: {error}", rule.id));
                if !ids_in(&mut detector, &text).contains(&rule.id) {
                    wrong.push(format!("{} misses {example} (seed {seed}): {text}", rule.id));
                    break;
                }
            }
            for example in &rule.negative {
                let text = expand(example, &mut Seed::new(seed)).unwrap_or_else(|error| panic!("{}: {error}", rule.id));
                if !ids_in(&mut detector, &text).is_empty() {
                    wrong.push(format!("{} reports {example} (seed {seed}): {text}", rule.id));
                    break;
                }
            }
        }
    }
    wrong.dedup_by_key(|line| line.split(' ').take(4).collect::<String>());
    assert!(wrong.is_empty(), "{} examples fail:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_whole_set_reports_each_positive_example_exactly_once() {
    let mut detector = detector(&RuleSet::builtin());
    let mut wrong = Vec::new();
    for rule in RuleSet::builtin().rules() {
        for (i, example) in rule.positive.iter().enumerate() {
            let text = expand(example, &mut Seed::new(40 + i as u64)).expect("recipes were tried above");
            let ids = ids_in(&mut detector, &text);
            if ids.len() != 1 {
                wrong.push(format!("{}: {example} gives {ids:?}", rule.id));
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn rule_files_contain_no_token_themselves() {
    let mut detector = Detector::new(&RuleSet::builtin()).expect("built-in rules are consistent");
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/rules")).expect("the rules are there") {
        let path = entry.expect("a readable entry").path();
        let text = std::fs::read_to_string(&path).expect("rule files are UTF-8");
        assert_eq!(ids_in(&mut detector, &text), Vec::<String>::new(), "{}", path.display());
    }
}

#[test]
fn every_rule_looks_only_near_its_keywords() {
    let detector = detector(&RuleSet::builtin());
    let wide: Vec<&str> = detector.reaches().filter(|(_, reach)| reach.is_none()).map(|(rule, _)| &*rule.id).collect();
    assert_eq!(wide, Vec::<&str>::new(), "a keyword that these rules do not contain makes them search whole blocks");
}

/// What stands directly before a token in escaped strings, logs, URLs and names.
const LEFT_OF_A_TOKEN: [&str; 8] = ["\\n", "\\t", "\\u0022", "\u{1b}[31m", "_", "token_", "%3D", "\u{1b}[0;1;32m"];

#[test]
fn a_token_is_found_behind_escapes_underscores_and_terminal_colours() {
    let mut wrong = Vec::new();
    let all = RuleSet::builtin();
    for rule in all.rules().iter().filter(|rule| matches!(&rule.matching, Matching::Text(text) if is_bare(text))) {
        let mut detector = alone(&all, &rule.id);
        let token = rule.positive.iter().find_map(|example| {
            let text = expand(example, &mut Seed::new(3)).expect("recipes were tried above");
            let mut secret = None;
            detector.scan_bytes(Source::path("sample.txt"), text.as_bytes(), |finding| {
                secret = Some(String::from_utf8_lossy(finding.secret.expose()).into_owned());
            });
            secret
        });
        let token = token.unwrap_or_else(|| panic!("{}: its own example is found", rule.id));
        // A rule without an edge has a prefix that no other text has, so that even a letter may stand before it.
        let anywhere = (!rule.at_edge && !rule.id.starts_with("telegram")).then_some("x");
        for left in LEFT_OF_A_TOKEN.into_iter().chain(anywhere) {
            if !ids_in(&mut detector, &format!("log: {left}{token} end\n")).contains(&rule.id) {
                wrong.push(format!("{} misses a token behind {left:?}", rule.id));
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Whether the expression is the token alone, without the name it is assigned to.
fn is_bare(pattern: &tessera_detect::pattern::Pattern) -> bool {
    let text = pattern.as_str();
    text.starts_with('(') && !text.starts_with("(?i)") && text.matches('(').count() > 0 && !text.contains("\\s")
}
