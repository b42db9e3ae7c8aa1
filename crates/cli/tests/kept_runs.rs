//! Runs that are kept on this machine, looked at and ended by command; rules by command; reports in every format.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// A command's standard output, standard error and exit code.
struct Ended {
    printed: String,
    said: String,
    code: i32,
}

fn tessera(state: &Path, args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
    let output = command.args(args).env("TESSERA_STATE_DIR", state).stdin(Stdio::null()).output().unwrap();
    Ended {
        printed: String::from_utf8(output.stdout).unwrap(),
        said: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code().unwrap(),
    }
}

fn token(number: u64) -> String {
    let mut seed = tessera_detect::template::Seed::new(number);
    tessera_detect::template::expand("ghp_<<github 30>>", &mut seed).unwrap()
}

/// A run that was stopped before its end.
fn stopped(tree: &Path, state: &Path) -> String {
    for file in 0..1_500 {
        let dir = tree.join(format!("d{:02}", file % 23));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(format!("f{file:04}")), "nothing to see in this line\n".repeat(600)).unwrap();
    }
    // On a slow machine nothing is read in a millisecond: then it is continued, for longer.
    for milliseconds in (0..18).map(|power| 1 << power) {
        let time = format!("{milliseconds}ms");
        let scan = tessera(state, &["scan", tree.to_str().unwrap(), "-j", "1", "--max-time", &time]);
        assert_eq!(scan.code, 3, "{}", scan.said);
        let runs = tessera(state, &["runs"]);
        assert!(
            runs.printed.contains("interrupted") && runs.printed.contains(tree.to_str().unwrap()),
            "{}",
            runs.printed
        );
        let run = runs.printed.split_whitespace().next().unwrap();
        if tessera(state, &["shards", run]).printed.starts_with("[>") {
            return run.to_owned();
        }
    }
    panic!("nothing was read in two minutes")
}

#[test]
fn a_run_and_its_shards_can_be_looked_at() {
    let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = stopped(tree.path(), state.path());
    let ask = |args: &[&str]| tessera(state.path(), args);
    let shown = ask(&["runs", "show", &run]);
    assert!(shown.printed.contains("interrupted"), "{}", shown.printed);
    assert!(shown.printed.contains(" unreadable\n"), "no time is told that was not noted: {}", shown.printed);
    let shards = ask(&["shards", &run]).printed;
    let first = "0000000000000001";
    assert!(shards.starts_with("[>") && shards.contains("progress") && shards.contains(first), "{shards}");
    assert!(ask(&["shards", "explain", &run]).printed.contains(" can be claimed now"));
    let history = ask(&["shards", "history", &run, first]).printed;
    assert!(history.contains("first acquire"), "{history}");
    // A date, and not milliseconds since 1970.
    let since = history.split_once("  from ").unwrap().1.split_whitespace().next().unwrap();
    assert!(since.starts_with("20") && since.contains('T') && since.ends_with('Z') && since.len() == 20, "{since}");
    let unparked = ask(&["shards", "unpark", &run, first]);
    assert_eq!(unparked.code, 2);
    assert!(unparked.said.contains("only a parked shard can be unparked"), "{}", unparked.said);
    let unknown = ask(&["runs", "show", "00c0ffee00c0ffee"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.said.contains("there is no run 00c0ffee00c0ffee"), "{}", unknown.said);
}

#[test]
fn the_report_of_a_run_that_has_ended_is_printed_again_in_every_format() {
    let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(tree.path().join("settings"), format!("token: {}\n", token(9))).unwrap();
    let scanned = tessera(state.path(), &["scan", tree.path().to_str().unwrap(), "--format", "json"]);
    assert_eq!(scanned.code, 1, "{}", scanned.said);
    let scanned: Value = serde_json::from_str(&scanned.printed).unwrap();
    let run = scanned["run"].as_str().unwrap();
    for format in ["human", "json", "jsonl", "sarif", "csv", "gitleaks"] {
        let report = tessera(state.path(), &["runs", "report", run, "--format", format]);
        assert_eq!(report.code, 1, "{format}: {}", report.said);
        assert!(report.printed.contains("github-pat"), "{format}: {}", report.printed);
        assert!(report.said.contains(&format!("run {run} ended at 20")), "{format}: {}", report.said);
        if format == "json" {
            let again: Value = serde_json::from_str(&report.printed).unwrap();
            for same in ["findings", "status", "targets", "run"] {
                assert_eq!(again[same], scanned[same], "{same}");
            }
            assert_eq!(again["run_status"], "done");
            assert!(again["ended_at"].as_str().unwrap().ends_with('Z'));
        }
    }
    // A baseline leaves out the findings it names, as for a scan.
    let known = tree.path().join("known.json");
    std::fs::write(&known, scanned.to_string()).unwrap();
    let rest = tessera(state.path(), &["runs", "report", run, "--baseline", known.to_str().unwrap()]);
    assert_eq!(rest.code, 0, "{}", rest.printed);
}

#[test]
fn a_run_that_goes_on_has_no_report_and_a_cancelled_one_says_so() {
    let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = stopped(tree.path(), state.path());
    let ask = |args: &[&str]| tessera(state.path(), args);
    let refused = ask(&["runs", "report", &run]);
    assert_eq!((refused.code, refused.printed.as_str()), (2, ""));
    let show = format!("run {run} is active and has no final report; `tessera runs show {run}`");
    assert!(refused.said.contains(&show), "{}", refused.said);
    assert_eq!(ask(&["runs", "cancel", &run]).code, 0);
    let report = ask(&["runs", "report", &run]);
    assert_eq!(report.code, 3, "{}", report.said);
    assert!(report.printed.contains("(cancelled)"), "{}", report.printed);
    assert!(!report.printed.contains("run the same command again"), "{}", report.printed);
}

#[test]
fn a_cancelled_run_is_not_continued_and_a_retired_one_is_forgotten() {
    let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = stopped(tree.path(), state.path());
    let cancelled = tessera(state.path(), &["runs", "cancel", &run]);
    assert_eq!(cancelled.code, 0, "{}", cancelled.said);
    assert!(tessera(state.path(), &["runs"]).printed.contains("cancelled"));
    let scan = tessera(state.path(), &["scan", tree.path().to_str().unwrap()]);
    assert_eq!(scan.code, 0, "{}", scan.said);
    assert!(!scan.said.contains("continued"), "{}", scan.said);
    for line in tessera(state.path(), &["runs"]).printed.lines() {
        let retired = tessera(state.path(), &["runs", "retire", line.split_whitespace().next().unwrap()]);
        assert_eq!(retired.code, 0, "{}", retired.said);
    }
    assert!(tessera(state.path(), &["runs"]).printed.contains("no runs are kept"));
}

#[test]
fn runs_that_never_began_are_collected_and_others_are_left_alone() {
    use tessera_scan::run::coordinator_name::CoordinatorName;
    use tessera_scan::run::folder::RunFolder;
    use tessera_scan::run::label::{RunKey, RunLabel};
    let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = stopped(tree.path(), state.path());
    // A scan that was killed before it had planned its run.
    let label = RunLabel {
        coordinator: CoordinatorName::Local,
        tenant: tessera_contracts::TenantId::from_name("local"),
        key: RunKey::new(tessera_contracts::RunId::new(7), tessera_contracts::RunIncarnation::new(7)),
        created_at: tessera_scan::clock::wall_clock(),
    };
    let folder = RunFolder::create(state.path(), label).unwrap();
    let collect = |more: &[&str]| {
        let ended = tessera(state.path(), &[&["runs", "collect", "--older-than"], more].concat());
        assert_eq!(ended.code, 0, "{}", ended.said);
        ended.printed
    };
    assert_eq!(collect(&["1d"]), "there is nothing to collect\n");
    assert!(collect(&["0s", "--dry-run"]).contains("would be removed") && folder.path().exists());
    let told = collect(&["0s"]);
    assert!(told.contains("0000000000000007") && told.lines().count() == 1, "{told}");
    assert!(!folder.path().exists() && tessera(state.path(), &["runs"]).printed.contains(&run));
    assert_eq!(collect(&["0s"]), "there is nothing to collect\n");
}

#[test]
fn a_run_is_one_line_of_the_list_whatever_the_folder_is_called() {
    let (place, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tree = place.path().join("a\x1b[2J\nb");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("x"), "nothing").unwrap();
    assert_eq!(tessera(state.path(), &["scan", tree.to_str().unwrap()]).code, 0);
    let list = tessera(state.path(), &["runs"]).printed;
    assert!(list.lines().count() == 1 && !list.contains('\x1b'), "{list:?}");
}

#[test]
fn rules_are_listed_explained_and_tried_on_a_file() {
    let place = tempfile::tempdir().unwrap();
    let ask = |args: &[&str]| tessera(place.path(), args);
    assert!(ask(&["rules", "list"]).printed.lines().count() >= 150);
    assert!(ask(&["rules", "explain", "github-pat"]).printed.contains("ghp_"));
    let unknown = ask(&["rules", "explain", "no-such-rule"]);
    assert!(unknown.code == 2 && unknown.said.contains("no-such-rule"), "{}", unknown.said);
    let file = place.path().join("tried");
    std::fs::write(&file, format!("token: {}\n", token(7))).unwrap();
    let tried = ask(&["rules", "test", file.to_str().unwrap()]).printed;
    assert!(tried.contains("github-pat") && tried.contains("\n1 finding; "), "{tried}");
}

#[test]
fn every_format_names_the_finding_and_none_shows_the_secret_unasked() {
    let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let secret = token(9);
    std::fs::write(tree.path().join("settings"), format!("token: {secret}\n")).unwrap();
    let path = tree.path().to_str().unwrap();
    for format in ["human", "json", "jsonl", "sarif", "csv", "gitleaks"] {
        let report = tessera(state.path(), &["scan", path, "--fresh", "--format", format]);
        assert_eq!(report.code, 1, "{format}: {}", report.said);
        assert!(report.printed.contains("github-pat"), "{format}: {}", report.printed);
        assert!(!report.printed.contains(&secret), "{format} shows the secret");
        match format {
            "json" | "sarif" | "gitleaks" => drop(serde_json::from_str::<Value>(&report.printed).unwrap()),
            "jsonl" => report.printed.lines().for_each(|line| drop(serde_json::from_str::<Value>(line).unwrap())),
            _ => {}
        }
        let shown = tessera(state.path(), &["scan", path, "--fresh", "--format", format, "--show-secrets"]);
        assert!(shown.printed.contains(&secret), "{format}: {}", shown.printed);
    }
    let out = tree.path().join("report");
    let written =
        tessera(state.path(), &["scan", path, "--fresh", "--format", "json", "--output", out.to_str().unwrap()]);
    assert_eq!((written.code, written.printed.as_str()), (1, ""));
    assert!(std::fs::read_to_string(out).unwrap().contains("github-pat"));
}
