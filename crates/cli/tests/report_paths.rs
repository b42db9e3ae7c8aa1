//! Paths in reports that other programs read: below the root of the repository, whichever folder was scanned; and reports that are whole.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod scan_support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use scan_support::{commit_all, repository, tessera, token, write};
use serde_json::{Value, json};

fn report(dir: &Path, format: &str, args: &[&str]) -> Value {
    let mut command = tessera();
    command.current_dir(dir).args(["scan", "--quiet", "--no-resume", "--format", format]).args(args);
    serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
}

/// Where each result stands: the uri, and the uri of its root.
fn places(sarif: &Value) -> Vec<(String, String)> {
    let run = &sarif["runs"][0];
    let mut places: Vec<_> = run["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| {
            let artifact = &result["locations"][0]["physicalLocation"]["artifactLocation"];
            let base = artifact["uriBaseId"].as_str().unwrap();
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            (text(&artifact["uri"]), text(&run["originalUriBaseIds"][base]["uri"]))
        })
        .collect();
    places.sort();
    places
}

#[test]
fn a_folder_of_a_repository_is_reported_with_paths_that_its_code_host_knows() {
    let repository = repository();
    let root = repository.path().canonicalize().unwrap();
    for folder in ["src", "lib"] {
        write(&root, &format!("{folder}/x.py"), format!("key = '{}'\n", token(1)));
    }
    commit_all(&root, "both");
    let base = format!("file://{}/", root.display());
    let place = |path: &str| (path.to_owned(), base.clone());
    for args in [&["src", "lib"][..], &["."], &["--history", "src"]] {
        assert_eq!(places(&report(&root, "sarif", args)), [place("lib/x.py"), place("src/x.py")], "{args:?}");
    }
    assert_eq!(places(&report(&root, "sarif", &["src"])), [place("src/x.py")]);
    assert_eq!(places(&report(&root, "sarif", &["src/x.py"])), [place("src/x.py")]);
    let entries = report(&root, "gitleaks", &["src"]);
    assert_eq!(
        (&entries[0]["File"], &entries[0]["Fingerprint"]),
        (&json!("src/x.py"), &json!("src/x.py:github-pat:1"))
    );
    // What such a report calls a place silences it, in the folder and in the whole.
    write(&root, ".gitleaksignore", "src/x.py:github-pat:1\n");
    assert_eq!(report(&root, "gitleaks", &["src"]), json!([]));
    assert_eq!(report(&root, "gitleaks", &["."])[0]["File"], "lib/x.py");
}

#[test]
fn files_of_the_same_name_in_two_targets_outside_of_repositories_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    for folder in ["one", "two"] {
        write(&root, &format!("{folder}/x.py"), format!("key = '{}'\n", token(1)));
    }
    let place = |folder: &str| ("x.py".to_owned(), format!("file://{}/{folder}/", root.display()));
    assert_eq!(places(&report(&root, "sarif", &["one", "two"])), [place("one"), place("two")]);
    let entries = report(&root, "gitleaks", &["one", "two"]);
    let files: Vec<_> = entries.as_array().unwrap().iter().map(|entry| entry["File"].clone()).collect();
    assert_eq!(files, ["one", "two"].map(|folder| json!(root.join(folder).join("x.py").to_str().unwrap())));
}

#[test]
fn names_that_are_no_text_stay_apart_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    for name in [b"a\xfe", b"a\xff"] {
        std::fs::write(dir.path().join(OsStr::from_bytes(name)), format!("key = '{}'\n", token(1))).unwrap();
    }
    let sarif = places(&report(dir.path(), "sarif", &[])).into_iter().map(|(uri, _)| uri);
    assert_eq!(sarif.collect::<Vec<_>>(), ["a%FE", "a%FF"]);
    let ours = report(dir.path(), "json", &[]);
    let field = |name: &str| -> Vec<Value> {
        ours["findings"][0]["locations"].as_array().unwrap().iter().map(|place| place[name].clone()).collect()
    };
    assert_eq!(field("path"), [r"a\xfe", r"a\xff"]);
    assert_eq!(field("path_uri"), ["a%FE", "a%FF"]);
}

#[test]
fn a_report_for_which_there_is_no_room_leaves_the_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tree/x.py", format!("key = '{}'\n", token(1)));
    // A report of two megabytes, though the run itself needs little room.
    let template = dir.path().join("template");
    std::fs::write(&template, "{% for i in range(50000) %}a line of the report, as long as this\n{% endfor %}")
        .unwrap();
    let output = dir.path().join("report");
    std::fs::write(&output, "the earlier one").unwrap();
    // No file may grow beyond 1,000 blocks, which is what a full disk does to one.
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 1000; exec \"$@\"", "-"]).arg(tessera().get_program());
    shell.arg("scan").arg(dir.path().join("tree")).args(["--quiet", "--no-resume", "--template"]).arg(&template);
    shell.arg("--output").arg(&output);
    let done = shell.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot write the report to"), "{said}");
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "the earlier one");
    let names = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 3, "nothing is left beside it");
}
