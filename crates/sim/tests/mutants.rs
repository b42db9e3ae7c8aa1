//! Every checker catches the rule it is there for, when that rule is broken on purpose.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tessera_sim::coordination::broken::{Broken, Rule};
use tessera_sim::coordination::config::{Config, Level};
use tessera_sim::coordination::stage::Violation;
use tessera_sim::coordination::world::{Report, World};
use tessera_sim::coordination::{checkers, coordinator, shrink};
use tessera_sim::node::broken::Defect as NodeDefect;
use tessera_sim::sweep::broken::Defect;

/// A world in which one rule is broken.
fn simulate(rule: Rule, config: &Config) -> Result<Report, Violation> {
    let mut config = config.clone();
    let mut backend_config = config.clone();
    match rule {
        // The backend does not know the tolerance that the world relies on.
        Rule::NoSkewTolerance => {
            config.skew = 20;
            config.skew_allowance = 40;
            backend_config.skew_allowance = 0;
        }
        Rule::NoCooldown => {
            config.cooldown = 30;
            backend_config.cooldown = 0;
        }
        _ => {}
    }
    let mut checkers = checkers::all();
    if rule != Rule::None {
        // Only the checker that is there for the rule looks: it must not need another's help.
        checkers.retain(|checker| checker.name() == rule.caught_by());
    }
    World::watched_by(checkers, config, Broken::new(coordinator(&backend_config), rule), rule.sink()).run()
}

/// The first property that some world finds broken.
fn caught_by(rule: Rule) -> &'static str {
    for seed in 0..400 {
        let level = if seed % 2 == 0 { Level::Stormy } else { Level::Radioactive };
        let config = Config::draw(seed, 3_000, level, seed % 3 == 2);
        if let Err(violation) = simulate(rule, &config) {
            return violation.property;
        }
    }
    panic!("400 worlds lived with {rule:?}");
}

#[test]
fn every_broken_rule_is_caught_by_the_checker_that_is_there_for_it() {
    let mut caught: Vec<&str> = Rule::ALL
        .into_iter()
        .map(|rule| {
            let property = caught_by(rule);
            assert_eq!(property, rule.caught_by(), "{rule:?}");
            property
        })
        .collect();
    caught.sort_unstable();
    caught.dedup();
    let mut watched: Vec<&str> = checkers::all().iter().map(|checker| checker.name()).collect();
    watched.sort_unstable();
    assert_eq!(caught, watched, "every checker has a mutant");
}

#[test]
fn the_rules_as_they_are_break_nothing() {
    for seed in 0..40 {
        let config = Config::draw(seed, 3_000, Level::Stormy, seed % 2 == 0);
        simulate(Rule::None, &config).unwrap_or_else(|violation| panic!("seed {seed}: {violation:#?}"));
    }
}

#[test]
fn a_violation_shrinks_to_a_smaller_world_with_the_same_violation() {
    let (config, violation) = (0..400)
        .map(|seed| Config::draw(seed, 3_000, Level::Stormy, false))
        .find_map(|config| simulate(Rule::FenceUnchecked, &config).err().map(|violation| (config, violation)))
        .unwrap();
    let (least, again) = shrink(&config, &violation, |config| simulate(Rule::FenceUnchecked, config));
    assert_eq!(again.property, violation.property);
    assert!(least.kinds().len() < config.kinds().len(), "some kinds of trouble were not needed");
    assert_eq!(simulate(Rule::FenceUnchecked, &least), Err(again), "and it can be had again");
}

#[test]
fn the_document_lists_every_broken_rule_and_the_test_that_catches_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let document = read(&root.join("docs/MUTANTS.md"));
    let listed: BTreeSet<&str> = document.lines().filter(|line| line.starts_with("| `")).collect();
    let mut expected: BTreeSet<String> =
        Rule::ALL.into_iter().map(|rule| format!("| `{rule:?}` | `{}` |", rule.caught_by())).collect();
    expected.extend(Defect::ALL.into_iter().map(|defect| format!("| `{defect:?}` | `{}` |", defect.caught_by())));
    expected.extend(NodeDefect::ALL.into_iter().map(|defect| format!("| `{defect:?}` | `{}` |", defect.caught_by())));
    for entry in fs::read_dir(root.join("specs/coordination")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("MC_") && name.ends_with(".cfg") {
            let text = read(&path);
            let mutants = text.lines().filter_map(|line| line.strip_prefix("\\* mutant: ")?.split_once(" violates "));
            expected.extend(mutants.map(|(rules, property)| format!("| `{name}` | `{rules}` | `{property}` |")));
        }
    }
    assert!(expected.len() > 40, "the lists were found");
    assert_eq!(listed, expected.iter().map(String::as_str).collect());
}

/// Source files of the workspace.
fn sources() -> Vec<PathBuf> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() && !path.ends_with("target") => folders.push(path),
                Some(extension) if extension == "rs" => files.push(path),
                _ => {}
            }
        }
    }
    files
}

/// A file may be named by the end of its path, such as `refs.rs` of a crate that stands beside it.
#[test]
fn the_document_names_files_and_tests_that_there_are() {
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/MUTANTS.md")).unwrap();
    let sources = sources();
    let is_there = |name: &str| {
        let (file, test) = name.split_once("::").unwrap_or((name, ""));
        let function = format!("fn {test}(");
        let mut files = sources.iter().filter(|path| path.ends_with(file));
        files.any(|path| test.is_empty() || fs::read_to_string(path).unwrap().contains(&function))
    };
    let words: BTreeSet<&str> = document.split('`').skip(1).step_by(2).collect();
    let is_file = |word: &&str| word.ends_with(".rs") || word.contains(".rs::");
    let named: Vec<&str> = words.into_iter().filter(is_file).collect();
    assert!(named.len() > 100, "the names were found: {}", named.len());
    let missing: Vec<&str> = named.into_iter().filter(|name| !is_there(name)).collect();
    assert_eq!(missing, [""; 0]);
}
