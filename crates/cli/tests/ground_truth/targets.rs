//! Several targets in one command: suppressions, rules and allowlists apply to the target they lie in.

use std::path::{Path, PathBuf};

use super::truth::cases::{self, Case};
use super::truth::command::Tessera;
use super::truth::compare::{Truth, compare, compare_findings};
use super::truth::git::{commit_all, git_line, init};
use super::truth::report::Place;
use super::truth::token::{text_with, token};
use super::truth::{history, oracle};

/// A rule that finds the same tokens as the built-in one.
const RULE: &str = "[[rules]]\nid = 'github-pat'\nregex = '''\\b(ghp_[0-9A-Za-z]{36})\\b'''\nkeywords = ['ghp_']\n";

/// A repository with a few files, and a copy of it.
fn twins(case: &mut Case) -> (PathBuf, PathBuf) {
    let (one, two) = (case.folder("one"), case.dir().join("two"));
    init(&one, &[]);
    for path in ["a.env", "src/main.rs", "tests/key.env", "tests/deep/key.env", "doc/a"] {
        let tokens: Vec<String> = (0..case.random.below(3)).map(|_| token(&mut case.random)).collect();
        let text = text_with(&mut case.random, &tokens.iter().map(String::as_str).collect::<Vec<_>>());
        std::fs::create_dir_all(one.join(path).parent().unwrap()).unwrap();
        std::fs::write(one.join(path), text).unwrap();
    }
    std::fs::write(one.join("sure.env"), format!("TOKEN={}\n", token(&mut case.random))).unwrap();
    commit_all(&one, "base");
    history::clone_plainly(&one, &two);
    (one, two)
}

/// Both targets, in any order.
fn in_any_order(case: &mut Case, one: &Path, two: &Path) -> [PathBuf; 2] {
    let mut targets = [one.to_path_buf(), two.to_path_buf()];
    case.random.shuffle(&mut targets);
    targets
}

fn scan(case: &Case, scope: &[&str], targets: &[PathBuf]) -> Result<super::truth::report::Report, String> {
    let words = ["--no-resume"].iter().chain(scope).map(AsRef::as_ref);
    Tessera::of(case).scan(&words.chain(targets.iter().map(|target| target.as_os_str())).collect::<Vec<_>>())
}

#[test]
fn an_ignore_file_silences_its_own_target_alone() {
    cases::run(12, |case| {
        let (one, two) = twins(case);
        let in_history = case.random.percent(50);
        let commit = git_line(&one, &["rev-parse", "HEAD"]);
        let read = |target: &Path| if in_history { oracle::history(target, oracle::ALL) } else { oracle::tree(target) };
        let places: Vec<Place> = read(&one).places.into_keys().collect();
        let silenced = case.random.some_of(&places, 50);
        let fingerprint = |place: &Place| {
            let place_in_file = format!("{}:github-pat:{}", place.path, place.line);
            if in_history { format!("{commit}:{place_in_file}\n") } else { place_in_file + "\n" }
        };
        std::fs::write(one.join(".gitleaksignore"), silenced.iter().map(fingerprint).collect::<String>()).unwrap();
        let mut truth = read(&one);
        truth.places.retain(|place, _| !silenced.contains(place));
        truth.join(read(&two));
        let targets = in_any_order(case, &one, &two);
        let report = scan(case, if in_history { &["--history"] } else { &[] }, &targets)?;
        if report.json["receipt"]["suppressed"] != silenced.len() {
            return Err(format!(
                "{} places are suppressed, and {silenced:?} should be",
                report.json["receipt"]["suppressed"]
            ));
        }
        compare(&report, &truth)
    });
}

#[test]
fn a_secret_id_in_an_ignore_file_silences_its_own_target_alone() {
    cases::run(8, |case| {
        let (one, two) = twins(case);
        let before = scan(case, &[], &[one.clone(), two.clone()])?;
        let (place, id) = before.places.iter().next().ok_or("there is a secret")?;
        std::fs::write(one.join(".gitleaksignore"), format!("{id}\n")).unwrap();
        let silenced = oracle::tree(&one)
            .places
            .into_iter()
            .find(|(known, _)| known.path == place.path && known.line == place.line);
        let silenced = silenced.ok_or("it is in the first target")?.1;
        let mut truth = oracle::tree(&one);
        truth.places.retain(|_, token| *token != silenced);
        truth.join(oracle::tree(&two));
        let targets = in_any_order(case, &one, &two);
        compare(&scan(case, &[], &targets)?, &truth)
    });
}

#[test]
fn an_allowlist_applies_to_its_own_target_alone() {
    cases::run(12, |case| {
        let (one, two) = twins(case);
        let in_history = case.random.percent(50);
        let text = format!("{RULE}[allowlist]\npaths = ['''^tests/''']\n");
        std::fs::write(one.join(".gitleaks.toml"), text).unwrap();
        let read = |target: &Path| if in_history { oracle::history(target, oracle::ALL) } else { oracle::tree(target) };
        let mut truth = Truth::default();
        truth.join(read(&one));
        truth.places.retain(|place, _| !place.path.starts_with("tests/"));
        truth.join(read(&two));
        let targets = in_any_order(case, &one, &two);
        compare_findings(&scan(case, if in_history { &["--history"] } else { &[] }, &targets)?, &truth)
    });
}

#[test]
fn rules_apply_to_their_own_target_alone() {
    cases::run(8, |case| {
        let (one, two) = twins(case);
        // Rules that find nothing in one target leave the secrets of the other.
        std::fs::write(one.join(".gitleaks.toml"), "[[rules]]\nid = 'none'\nregex = '''never-there-[0-9]{9}'''\n")
            .unwrap();
        let targets = in_any_order(case, &one, &two);
        compare_findings(&scan(case, &[], &targets)?, &oracle::tree(&two))
    });
}

#[test]
fn targets_with_rules_of_their_own_are_scanned_together() {
    cases::run(8, |case| {
        let (one, two) = twins(case);
        std::fs::write(one.join(".gitleaks.toml"), format!("{RULE}[allowlist]\npaths = ['''^tests/''']\n")).unwrap();
        std::fs::write(two.join(".gitleaks.toml"), format!("{RULE}[allowlist]\npaths = ['''^src/''']\n")).unwrap();
        let mut truth = Truth::default();
        truth.join(oracle::tree(&one));
        truth.join(oracle::tree(&two));
        let (one_name, two_name) = (one.to_string_lossy(), two.to_string_lossy());
        truth.places.retain(|place, _| !(place.target == one_name && place.path.starts_with("tests/")));
        truth.places.retain(|place, _| !(place.target == two_name && place.path.starts_with("src/")));
        let targets = in_any_order(case, &one, &two);
        compare_findings(&scan(case, &[], &targets)?, &truth)
    });
}

/// A folder beside its own subfolder and a file in it: each target lists its own places.
#[test]
fn overlapping_targets_list_their_places_each() {
    cases::run(10, |case| {
        let (one, _) = twins(case);
        let mut targets = vec![one.clone(), one.join("tests"), one.join("tests/deep/key.env"), one.join("doc")];
        case.random.shuffle(&mut targets);
        targets.truncate(case.random.within(1..5));
        let mut truth = Truth::counted();
        for target in &targets {
            truth.join(oracle::tree(target));
        }
        compare(&scan(case, &[], &targets)?, &truth)
    });
}
