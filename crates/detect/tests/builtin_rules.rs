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
        if let Matching::Text(pattern) | Matching::Assigned { value: pattern, .. } = &rule.matching {
            tessera_detect::pattern::Pattern::new(pattern.as_str())
                .unwrap_or_else(|error| panic!("{}: {error}", rule.id));
        }
    }
}

#[test]
fn every_rule_has_examples_of_both_kinds_and_a_keyword() {
    for rule in RuleSet::builtin().rules() {
        assert!(!rule.positive.is_empty() && !rule.negative.is_empty(), "{}", rule.id);
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
