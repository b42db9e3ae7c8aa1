//! Baselines: findings that an earlier report names are left out, and a rotated secret is another secret.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::truth::cases::{self, Case, Outcome};
use super::truth::command::Tessera;
use super::truth::compare::{Truth, compare_findings};
use super::truth::git::{commit_all, init};
use super::truth::oracle;
use super::truth::token::token;

/// A repository with three secrets in two files.
fn repository(case: &mut Case) -> PathBuf {
    let dir = case.folder("repository");
    init(&dir, &[]);
    let random = &mut case.random;
    std::fs::write(dir.join("a.env"), format!("A={}\nB={}\n", token(random), token(random))).unwrap();
    std::fs::write(dir.join("b.env"), format!("C={}\n", token(random))).unwrap();
    commit_all(&dir, "base");
    dir
}

/// Puts another secret at the place of one in a file.
fn rotate(case: &mut Case, file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let (key, old) = text.lines().next().unwrap().split_once('=').unwrap();
    let new = format!("{key}={}", token(&mut case.random));
    std::fs::write(file, text.replacen(&format!("{key}={old}"), &new, 1)).unwrap();
    new
}

fn with_baseline(case: &Case, dir: &Path, baseline: &Path) -> Result<super::truth::report::Report, String> {
    Tessera::of(case).scan(&["--fresh".as_ref(), "--baseline".as_ref(), baseline.as_os_str(), dir.as_os_str()])
}

fn check(case: &mut Case, baseline: &dyn Fn(&Case, &Path, &Path)) -> Outcome {
    let dir = repository(case);
    let file = case.dir().join("baseline.json");
    baseline(case, &dir, &file);
    // Nothing new: nothing is reported.
    compare_findings(&with_baseline(case, &dir, &file)?, &Truth::default())?;
    let before = oracle::tree(&dir);
    rotate(case, &dir.join("a.env"));
    let mut truth = oracle::tree(&dir);
    truth.places.retain(|place, token| before.places.get(place) != Some(token));
    assert_eq!(truth.places.len(), 1);
    compare_findings(&with_baseline(case, &dir, &file)?, &truth)
}

#[test]
fn a_rotated_secret_is_reported_over_a_baseline_of_gitleaks() {
    cases::run(3, |case| {
        check(case, &|_, dir, file| {
            let entries: Vec<_> = oracle::tree(dir).places.iter().map(|(place, token)| {
                json!({
                    "RuleID": "github-pat", "Description": "", "StartLine": place.line, "EndLine": place.line,
                    "StartColumn": 3, "EndColumn": 42, "Match": token, "Secret": token, "File": place.path, "SymlinkFile": "",
                    "Commit": "", "Entropy": 4.5, "Author": "", "Email": "", "Date": "", "Message": "", "Tags": [],
                    "Fingerprint": format!("{}:github-pat:{}", place.path, place.line),
                })
            }).collect();
            std::fs::write(file, serde_json::to_vec(&entries).unwrap()).unwrap();
        })
    });
}

#[test]
fn a_rotated_secret_is_reported_over_a_baseline_of_our_own() {
    for format in ["json", "gitleaks"] {
        cases::run(3, |case| {
            check(case, &|case, dir, file| {
                let args = ["scan", "--fresh", "--format", format, "-o"].map(AsRef::as_ref);
                let ended = Tessera::of(case).run(&[&args[..], &[file.as_os_str(), dir.as_os_str()]].concat());
                assert_eq!(ended.code, Some(1), "{}", ended.stderr);
            })
            .map_err(|problem| format!("{format}: {problem}"))
        });
    }
}
