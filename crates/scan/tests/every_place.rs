//! Every place of a secret is listed, per target and path, as git itself tells where blobs stand.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod git_oracle;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use git_oracle::{command, commit_all, git, lines_with, pairs, pairs_by_commit, write};
use tessera_detect::template;
use tessera_scan::read::rules::Rules;
use tessera_scan::run::request::{ScanRequest, ScanScope};
use tessera_scan::run::{Control, Keeping, ScanReport, scan};
use tessera_scan::source::item::SkipReason;

fn token(seed: u64) -> String {
    template::expand("ghp_<<github 30>>", &mut template::Seed::new(seed)).unwrap()
}

fn history(paths: &[&Path]) -> ScanRequest {
    let paths = paths.iter().map(|path| path.to_path_buf()).collect();
    ScanRequest { workers: 2, scope: ScanScope::History, ..ScanRequest::of_paths(paths) }
}

fn run(request: &ScanRequest) -> ScanReport {
    scan(request, &Keeping::Nothing, &mut Control { stop: &AtomicBool::new(false), progress: &mut |_| {} }).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A place: target, blob, path, line.
type Place = (PathBuf, String, String, u64);

fn listed(report: &ScanReport) -> Vec<Place> {
    let mut places = Vec::new();
    for location in report.findings.iter().flat_map(|finding| &finding.locations) {
        let at = &location.occurrence;
        let target = report.targets.iter().find(|target| target.number == at.target).unwrap().path.clone();
        let blob = at.blob.as_deref().map(hex).unwrap_or_default();
        places.push((target, blob, String::from_utf8(at.path.clone()).unwrap(), at.start.line));
    }
    places.sort();
    places
}

/// Where git says that lines with `needle` stand in these histories.
fn expected(targets: &[&Path], needle: &str) -> Vec<Place> {
    let mut places = Vec::new();
    for target in targets {
        let mut lines: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (blob, path) in pairs(target) {
            let lines = lines.entry(blob.clone()).or_insert_with(|| lines_with(target, &blob, needle));
            let path = |line: &u64| (target.canonicalize().unwrap(), blob.clone(), path.clone(), *line);
            places.extend(lines.iter().map(path));
        }
    }
    places.sort();
    places
}

/// Each place is told with a commit that has it and none of whose ancestors has it.
fn assert_attributed(report: &ScanReport, dir: &Path) {
    let by_commit = pairs_by_commit(dir);
    let mut ancestors: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for location in report.findings.iter().flat_map(|finding| &finding.locations) {
        let at = &location.occurrence;
        let pair = (hex(at.blob.as_deref().unwrap()), String::from_utf8(at.path.clone()).unwrap());
        let introduced = location.introduced.as_ref().unwrap_or_else(|| panic!("{pair:?} has no commit"));
        let commit = introduced.commit.clone();
        assert!(by_commit[&commit].contains(&pair), "{commit} does not have {pair:?}");
        let before = ancestors
            .entry(commit.clone())
            .or_insert_with(|| git(dir, &["rev-list", &format!("{commit}^@")]).lines().map(str::to_owned).collect());
        for ancestor in before.iter() {
            assert!(!by_commit[ancestor].contains(&pair), "{ancestor}, before {commit}, has {pair:?}");
        }
    }
}

fn repository(args: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &[&["init", "-q", "-b", "main"], args].concat());
    dir
}

/// Whether this git can make repositories that our own reader does not read.
fn has_reftable() -> bool {
    let dir = tempfile::tempdir().unwrap();
    command(dir.path(), &["init", "-q", "--ref-format=reftable"]).output().unwrap().status.success()
}

/// Repositories that we read ourselves, and ones that only git reads.
fn kinds() -> Vec<&'static [&'static str]> {
    assert!(has_reftable(), "git 2.45 or later is needed to test repositories that only git reads");
    vec![&[], &["--ref-format=reftable"]]
}

#[test]
fn a_clone_does_not_hide_the_places_of_its_origin() {
    let (first, outside) = (repository(&[]), tempfile::tempdir().unwrap());
    write(first.path(), "a.env", format!("TOKEN={}\n", token(1)));
    commit_all(first.path(), "a token");
    let clone = outside.path().join("clone");
    git(first.path(), &["clone", "-q", ".", clone.to_str().unwrap()]);
    for targets in [[first.path(), &clone], [&clone, first.path()]] {
        let report = run(&history(&targets));
        assert_eq!(listed(&report), expected(&targets, "ghp_"));
        assert_eq!((report.findings.len(), listed(&report).len()), (1, 2), "one secret in two places");
    }
}

#[test]
fn a_blob_at_two_paths_is_listed_at_both_with_the_commit_of_each() {
    for kind in kinds() {
        let dir = repository(kind);
        write(dir.path(), "src/a.env", format!("x\nTOKEN={}\n", token(1)));
        let first = commit_all(dir.path(), "at the first path");
        write(dir.path(), "docs/copy.env", format!("x\nTOKEN={}\n", token(1)));
        let second = commit_all(dir.path(), "a copy");
        git(dir.path(), &["mv", "src", "moved"]);
        let third = commit_all(dir.path(), "a folder is moved");
        let report = run(&history(&[dir.path()]));
        assert_eq!(listed(&report), expected(&[dir.path()], "ghp_"));
        let told: Vec<(String, String)> = report.findings[0]
            .locations
            .iter()
            .map(|location| {
                let introduced = location.introduced.as_ref().unwrap();
                (String::from_utf8(location.occurrence.path.clone()).unwrap(), introduced.commit.clone())
            })
            .collect();
        let expected = [("src/a.env", first), ("docs/copy.env", second), ("moved/a.env", third)];
        assert_eq!(told, expected.map(|(path, commit)| (path.to_owned(), commit)), "{kind:?}");
        assert_eq!(report.receipt.tally.scanned, 1, "one blob is searched once");
        assert!(report.receipt.is_complete());
    }
}

#[test]
fn a_tag_of_a_tree_and_one_of_a_blob_lead_to_places_too() {
    for kind in kinds() {
        let dir = repository(kind);
        write(dir.path(), "a/b.env", format!("TOKEN={}\n", token(1)));
        commit_all(dir.path(), "first");
        let tree = git(dir.path(), &["rev-parse", "HEAD:a"]);
        let blob = git(dir.path(), &["rev-parse", "HEAD:a/b.env"]);
        let outer = git_oracle::git_with_input(
            dir.path(),
            &["mktree"],
            format!("040000 tree {}\tonly-tagged\n", tree.trim()).as_bytes(),
        );
        git(dir.path(), &["tag", "tree", outer.trim()]);
        git(dir.path(), &["tag", "-a", "-m", "of a blob", "blob", blob.trim()]);
        let report = run(&history(&[dir.path()]));
        let paths: Vec<String> = listed(&report).into_iter().map(|place| place.2).collect();
        assert_eq!(paths, ["a/b.env", "only-tagged/b.env"], "{kind:?}");
    }
}

/// A way to leave paths out, and what it means, in terms of the path alone.
struct Judged {
    told: &'static str,
    change: fn(&mut ScanRequest),
    takes: fn(&str) -> bool,
}

fn exclude(request: &mut ScanRequest, glob: &str) {
    request.options.exclude.push(glob.to_owned());
}

/// The built-in rule for tokens of GitHub, with paths that it is to look at or to leave out.
fn rules(request: &mut ScanRequest, more: &str) {
    let text = format!("[[rules]]\nid = 'token'\nregex = 'ghp_[0-9A-Za-z]{{36}}'\nkeywords = ['ghp_']\n{more}");
    request.rules = Rules::from_gitleaks(&text, &mut |_| Err("no".into())).unwrap().into();
}

fn has_folder(path: &str, name: &str) -> bool {
    path.split('/').rev().skip(1).any(|folder| folder == name)
}

const JUDGED: &[Judged] = &[
    Judged { told: "exclude a/**", change: |r| exclude(r, "a/**"), takes: |path| !path.starts_with("a/") },
    Judged { told: "exclude the folder b", change: |r| exclude(r, "b"), takes: |path| !has_folder(path, "b") },
    Judged { told: "exclude the folder a1/", change: |r| exclude(r, "a1/"), takes: |path| !has_folder(path, "a1") },
    Judged { told: "exclude /a/b", change: |r| exclude(r, "/a/b"), takes: |path| !path.starts_with("a/b/") },
    Judged {
        told: "include *.env",
        change: |r| r.options.include.push("*.env".into()),
        takes: |path| path.ends_with(".env"),
    },
    Judged {
        told: "include *.env, exclude a",
        change: |r| {
            exclude(r, "a");
            r.options.include.push("*.env".into());
        },
        takes: |path| path.ends_with(".env") && !has_folder(path, "a"),
    },
    Judged {
        told: "a rule that looks at *.env",
        change: |r| rules(r, "path = '[.]env$'"),
        takes: |path| path.ends_with(".env"),
    },
    Judged {
        told: "an allowlist of the rule",
        change: |r| rules(r, "[[rules.allowlists]]\npaths = ['^a/', '[.]py$']"),
        takes: |path| !path.starts_with("a/") && !path.ends_with(".py"),
    },
    Judged {
        told: "an allowlist for all rules",
        change: |r| rules(r, "[[allowlists]]\npaths = ['^a1?/']"),
        takes: |path| !path.starts_with("a/") && !path.starts_with("a1/"),
    },
];

fn expected_at(target: &Path, judged: &Judged) -> Vec<Place> {
    expected(&[target], "ghp_").into_iter().filter(|place| (judged.takes)(&place.2)).collect()
}

#[test]
fn a_blob_is_scanned_if_any_of_its_paths_is_in_scope_and_listed_at_these_alone() {
    for kind in kinds() {
        let dir = repository(kind);
        // One blob that moves through all kinds of places, and one that stays in each.
        let paths = ["a/x.py", "a/b/x.env", "a1/b/y", "b/x.env", "z", "docs/deep/x.env", "a.env"];
        for (index, path) in paths.iter().enumerate() {
            write(dir.path(), path, format!("TOKEN={}\n", token(1)));
            write(dir.path(), &format!("{path}.{index}.env"), format!("TOKEN={}\n", token(index as u64 + 2)));
            commit_all(dir.path(), "there");
            std::fs::remove_file(dir.path().join(path)).unwrap();
        }
        for judged in JUDGED {
            let mut request = history(&[dir.path()]);
            (judged.change)(&mut request);
            let report = run(&request);
            assert_eq!(listed(&report), expected_at(dir.path(), judged), "{kind:?}, {}", judged.told);
            assert!(report.receipt.is_complete());
        }
    }
}

#[test]
fn a_blob_none_of_whose_paths_is_in_scope_is_counted_as_left_out() {
    let dir = repository(&[]);
    write(dir.path(), "vendor/a/x", "one\n");
    write(dir.path(), "vendor/b/x", "one\n");
    write(dir.path(), "src/x", "two\n");
    commit_all(dir.path(), "all");
    let mut request = history(&[dir.path()]);
    exclude(&mut request, "vendor");
    let tally = run(&request).receipt.tally;
    assert_eq!((tally.scanned, tally.skipped[&SkipReason::Excluded], tally.enumerated()), (1, 1, 2));
    rules(&mut request, "[[allowlists]]\npaths = ['^src/']");
    let tally = run(&request).receipt.tally;
    assert_eq!((tally.scanned, tally.skipped[&SkipReason::Allowlisted]), (0, 1));
}

#[test]
fn an_archive_at_two_paths_lists_what_is_in_it_below_both() {
    let dir = repository(&[]);
    write(dir.path(), "in/a.env", format!("TOKEN={}\n", token(1)));
    write(dir.path(), "in/b.txt", format!("TOKEN={}\n", token(2)));
    let tar = std::process::Command::new("tar").args(["-cf", "x.tar", "in"]).current_dir(dir.path()).status();
    assert!(tar.unwrap().success());
    std::fs::remove_dir_all(dir.path().join("in")).unwrap();
    std::fs::create_dir(dir.path().join("kept")).unwrap();
    std::fs::copy(dir.path().join("x.tar"), dir.path().join("kept/y.tar")).unwrap();
    let first = commit_all(dir.path(), "archives");
    let mut request = history(&[dir.path()]);
    request.options.archives = true;
    let paths = |request: &ScanRequest| -> Vec<String> {
        let report = run(request);
        for location in report.findings.iter().flat_map(|finding| &finding.locations) {
            assert_eq!(
                location.introduced.as_ref().map(|by| &by.commit),
                Some(&first),
                "members came with the archive"
            );
        }
        let mut paths: Vec<String> = listed(&report).into_iter().map(|place| place.2).collect();
        paths.sort();
        paths
    };
    let all = ["kept/y.tar!in/a.env", "kept/y.tar!in/b.txt", "x.tar!in/a.env", "x.tar!in/b.txt"];
    assert_eq!(paths(&request), all);
    // The rules tell the two apart, and each member by itself.
    rules(&mut request, "[[rules.allowlists]]\npaths = ['^kept/.*[.]env$', '^x.*[.]txt$']");
    assert_eq!(paths(&request), ["kept/y.tar!in/b.txt", "x.tar!in/a.env"]);
}

/// Numbers that look random and repeat with the seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

const FOLDERS: &[&str] = &["", "a/", "a/b/", "a b/", "a.b/", "\u{e4}/"];
const NAMES: &[&str] = &["x.env", "y.py", "z", "tab\there", "x.env.bak"];

/// A history of copies, moves, edits, mode changes, branches and merges.
fn random_history(dir: &Path, random: &mut Random) {
    let path = |random: &mut Random| format!("{}{}", random.pick(FOLDERS), random.pick(NAMES));
    for step in 0..10 + random.below(15) {
        match random.below(8) {
            0..3 => {
                let secret = if random.below(2) == 0 { token(random.below(4) as u64) } else { "nothing".into() };
                let text = format!("{}TOKEN={secret}\n", "line\n".repeat(random.below(3)));
                let at = dir.join(path(random));
                if !at.is_dir() {
                    let _ = std::fs::create_dir_all(at.parent().unwrap());
                    let _ = std::fs::write(at, text);
                }
            }
            3 => {
                let tracked = git(dir, &["ls-files", "-z"]);
                let tracked: Vec<&str> = tracked.split('\0').filter(|path| !path.is_empty()).collect();
                if !tracked.is_empty() {
                    let (from, to) = (dir.join(random.pick(&tracked)), dir.join(path(random)));
                    if from.is_file() && !to.is_dir() && to.parent().unwrap().is_dir() {
                        let _ = std::fs::copy(from, to);
                    }
                }
            }
            4 => {
                // A whole folder moves, or is copied to a second place.
                let (from, to) = (dir.join("a"), dir.join(format!("a{}", random.below(3))));
                if from.is_dir() && !to.exists() {
                    if random.below(2) == 0 {
                        std::fs::rename(from, to).unwrap();
                    } else {
                        let copied = std::process::Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap();
                        assert!(copied.success());
                    }
                }
            }
            5 => {
                let tracked = git(dir, &["ls-files", "-z"]);
                if let Some(path) = tracked.split('\0').find(|path| !path.is_empty()) {
                    command(dir, &["update-index", "--chmod=+x", path]).output().unwrap();
                    command(dir, &["commit", "-q", "-m", "mode"]).output().unwrap();
                }
            }
            6 => {
                let branch = format!("b{}", random.below(3));
                command(dir, &["checkout", "-q", "-f", "-B", &branch]).output().unwrap();
            }
            _ => {
                let branch = format!("b{}", random.below(3));
                command(dir, &["merge", "-q", "-X", "ours", "-m", "merge", &branch]).output().unwrap();
                command(dir, &["reset", "-q", "--hard"]).output().unwrap();
            }
        }
        git(dir, &["add", "-A"]);
        command(dir, &["commit", "-q", "-m", &format!("step {step}")]).output().unwrap();
        if random.below(4) == 0 {
            let heads = git(dir, &["rev-list", "--all"]);
            let heads: Vec<&str> = heads.lines().collect();
            if !heads.is_empty() {
                let head = *random.pick(&heads);
                command(dir, &["checkout", "-q", "-f", "-B", "main", head]).output().unwrap();
            }
        }
        if random.below(10) == 0 {
            git(dir, &["repack", "-adq"]);
        }
    }
}

#[test]
fn random_histories_are_listed_as_git_lists_them() {
    let seed = match std::env::var("TESSERA_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64,
    };
    let cases = std::env::var("TESSERA_CASES").map_or(4, |cases| cases.parse().unwrap());
    for case in 0..cases {
        let seed = seed.wrapping_add(case);
        println!("replay with TESSERA_SEED={seed}");
        let dirs = kinds().into_iter().map(|kind| {
            let dir = repository(kind);
            random_history(dir.path(), &mut Random(seed));
            dir
        });
        let dirs: Vec<tempfile::TempDir> = dirs.collect();
        let targets: Vec<&Path> = dirs.iter().map(|dir| dir.path()).collect();
        for target in &targets {
            let report = run(&history(&[target]));
            assert_eq!(listed(&report), expected(&[target], "ghp_"), "seed {seed}, {}", target.display());
            assert_attributed(&report, target);
            let judged = &JUDGED[seed as usize % JUDGED.len()];
            let mut request = history(&[target]);
            (judged.change)(&mut request);
            assert_eq!(listed(&run(&request)), expected_at(target, judged), "seed {seed}, {}", judged.told);
        }
        let report = run(&history(&targets));
        assert_eq!(listed(&report), expected(&targets, "ghp_"), "seed {seed}, both");
    }
}
