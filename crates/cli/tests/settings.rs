//! Configuration files, and files that permissions hide.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn token(seed: u64) -> String {
    let mut seed = tessera_detect::template::Seed::new(seed);
    tessera_detect::template::expand("ghp_<<github 30>>", &mut seed).unwrap()
}

fn scan(dir: &Path, args: &[&str]) -> Output {
    let mut tessera = Command::new(env!("CARGO_BIN_EXE_tessera"));
    tessera.arg("scan").arg("--no-resume").args(args).current_dir(dir).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn settings_are_read_flags_win_and_a_misspelt_key_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("vendor")).unwrap();
    std::fs::write(dir.path().join("vendor/x"), format!("TOKEN={}\n", token(1))).unwrap();
    assert_eq!(scan(dir.path(), &[]).status.code(), Some(1));
    let settings = dir.path().join("tessera.toml");
    std::fs::write(&settings, "[scan]\nexclude = [\"vendor\"]\n").unwrap();
    let output = scan(dir.path(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("settings of tessera.toml"), "{}", said(&output));
    assert_eq!(scan(dir.path(), &["--exclude", "nothing"]).status.code(), Some(1), "the command line wins");
    std::fs::write(&settings, "[scan]\nexlude = [\"vendor\"]\n").unwrap();
    let output = scan(dir.path(), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("tessera.toml:2: exlude"), "{}", said(&output));
    // A file that was not asked for does not choose where things are written.
    std::fs::write(&settings, "[scan]\noutput = \"elsewhere\"\n").unwrap();
    assert_eq!(scan(dir.path(), &[]).status.code(), Some(2));
    assert!(!dir.path().join("elsewhere").exists());
    assert_eq!(scan(dir.path(), &["--config", "tessera.toml"]).status.code(), Some(1));
    assert!(dir.path().join("elsewhere").exists());
}

/// An interrupted download leaves an empty file, and a misspelt table leaves none of its rules.
#[test]
fn rules_that_can_find_nothing_make_nothing_clean() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("target")).unwrap();
    std::fs::write(dir.path().join("target/x"), format!("TOKEN={}\n", token(1))).unwrap();
    for rules in ["", "# nothing\n", "[allowlist]\npaths = ['y']\n"] {
        for (place, args) in
            [("rules.toml", &["--rules", "rules.toml", "target"][..]), ("target/.gitleaks.toml", &["target"])]
        {
            std::fs::write(dir.path().join(place), rules).unwrap();
            let output = scan(dir.path(), args);
            assert_eq!(output.status.code(), Some(2), "{rules:?} in {place}: {}", said(&output));
            assert!(said(&output).contains("has no rule"), "{}", said(&output));
            std::fs::remove_file(dir.path().join(place)).unwrap();
        }
    }
    std::fs::write(dir.path().join("target/.gitleaks.toml"), "").unwrap();
    assert_eq!(scan(dir.path(), &["--rules", "builtin", "target"]).status.code(), Some(1));
}

#[test]
fn files_of_a_stranger_that_never_end_are_refused_and_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "title = 'x'\n[extend]\npath = '/dev/zero'\n";
    for (name, why) in [("tessera.toml", "no regular file"), (".gitleaksignore", "no regular file")] {
        std::os::unix::fs::symlink("/dev/zero", dir.path().join(name)).unwrap();
        let output = scan(dir.path(), &[]);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", said(&output));
        assert!(said(&output).contains(name) && said(&output).contains(why), "{}", said(&output));
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join(".gitleaks.toml"), rules).unwrap();
    let output = scan(dir.path(), &[]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("too many"), "{}", said(&output));
}

#[test]
fn a_pipe_or_device_that_is_named_is_refused_and_never_called_clean() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    for named in ["/dev/zero", "socket"] {
        let output = scan(dir.path(), &[named]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(&format!("cannot scan {named}: a device, pipe or socket")), "{}", said(&output));
    }
    let tree = scan(dir.path(), &["."]);
    assert!(tree.status.code() == Some(0) && said(&tree).contains("1 skipped"), "{}", said(&tree));
    let key = scan(dir.path(), &["--id-key", "/dev/zero"]);
    assert!(key.status.code() == Some(2) && said(&key).contains("too many"), "{}", said(&key));
}

#[test]
fn keys_of_a_stranger_do_not_steer_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tessera.toml"), "\"\\u001b[2J\\nclean\" = 1\n").unwrap();
    let output = scan(dir.path(), &[]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let said = said(&output);
    assert!(said.contains("is no subcommand") && !said.contains('\x1b') && said.lines().count() == 1, "{said:?}");
}

#[test]
fn more_threads_than_a_machine_can_start_are_refused_wherever_they_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(scan(dir.path(), &["--jobs", "1024"]).status.code(), Some(0));
    let typed = scan(dir.path(), &["--jobs", "1025"]);
    std::fs::write(dir.path().join("tessera.toml"), "[scan]\njobs = 4000000\n").unwrap();
    for refused in [typed, scan(dir.path(), &[])] {
        assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
        assert!(said(&refused).contains("1024"), "{}", said(&refused));
    }
}

#[test]
fn settings_are_no_paths_where_the_command_line_ends_with_paths() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x.env"), format!("TOKEN={}\n", token(1))).unwrap();
    std::fs::write(dir.path().join("tessera.toml"), "[scan]\nexclude = [\"*.env\"]\n").unwrap();
    let output = scan(dir.path(), &["--", "."]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

#[test]
fn rules_that_come_with_a_repository_are_used_and_said() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x"), "key = acme_abcdefghijklmnopqrst\n").unwrap();
    assert_eq!(scan(dir.path(), &[]).status.code(), Some(0));
    let rules =
        "[[rules]]\nid = \"acme\"\ndescription = \"Acme\"\nregex = '''acme_[a-z]{20}'''\nkeywords = [\"acme_\"]\n";
    std::fs::write(dir.path().join(".gitleaks.toml"), rules).unwrap();
    let output = scan(dir.path(), &[]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("acme") && said(&output).contains(".gitleaks.toml are used"), "{}", said(&output));
    assert_eq!(scan(dir.path(), &["--rules", "builtin"]).status.code(), Some(0));
}

/// Runs the scan as a user whom file permissions bind: root is above them.
fn scan_as_nobody(dir: &Path) -> Output {
    let program = env!("CARGO_BIN_EXE_tessera");
    let is_root = std::fs::metadata("/proc/self").map(|me| std::os::unix::fs::MetadataExt::uid(&me)).unwrap() == 0;
    if !is_root {
        return Command::new(program).args(["scan", "--no-resume"]).arg(dir).output().unwrap();
    }
    // The program itself may lie where another user cannot reach it.
    let copy = dir.parent().unwrap().join("tessera");
    std::fs::copy(program, &copy).unwrap();
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).args(["scan", "--no-resume"]).arg(dir);
    nobody
        .env("TMPDIR", "/tmp")
        .output()
        .expect("setpriv of util-linux runs, so that permissions can be tested as root")
}

#[test]
fn files_hidden_by_permissions_are_counted_and_never_called_clean() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    std::fs::create_dir_all(root.join("closed")).unwrap();
    std::fs::write(root.join("open"), "plain\n").unwrap();
    std::fs::write(root.join("hidden"), format!("TOKEN={}\n", token(1))).unwrap();
    std::fs::write(root.join("closed/x"), format!("TOKEN={}\n", token(2))).unwrap();
    let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(dir.path(), 0o755);
    mode(&root.join("hidden"), 0o000);
    mode(&root.join("closed"), 0o000);
    let output = scan_as_nobody(&root);
    mode(&root.join("closed"), 0o755);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let said = said(&output);
    assert!(said.contains("3 items = 1 scanned (6 B) + 0 skipped + 2 unreadable"), "{said}");
    assert!(said.contains("hidden: permission denied") && said.contains("closed: permission denied"), "{said}");
}
