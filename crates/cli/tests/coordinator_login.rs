//! Where the coordinator's password comes from, and who does not get to see it.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod scan_support;

use std::os::unix::fs::PermissionsExt as _;

use scan_support::{commit_all, git, tessera, token, write};

const VARIABLE: &str = "TESSERA_COORDINATOR_PASSWORD";

#[test]
fn a_password_in_the_url_beside_a_file_with_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "of the file\n").unwrap();
    let url = ["--coordinator", "etcd://ann:pw@127.0.0.1:1", "--give-up-after", "0"];
    let by_flag = tessera().arg("runs").args(url).arg("--coordinator-password-file").arg(&file).output().unwrap();
    let by_variable = tessera().arg("runs").args(url).env("TESSERA_COORDINATOR_PASSWORD_FILE", &file).output().unwrap();
    for output in [by_flag, by_variable] {
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains("given twice"), "{said}");
    }
}

#[test]
fn git_does_not_get_the_password() {
    let dir = tempfile::tempdir().unwrap();
    let (bin, repository, log) = (dir.path().join("bin"), dir.path().join("repository"), dir.path().join("log"));
    for folder in [&bin, &repository] {
        std::fs::create_dir(folder).unwrap();
    }
    git(&repository, &["init", "-q", "-b", "main"]);
    write(&repository, "key.env", format!("{}\n", token(1)));
    commit_all(&repository, "a key");
    write(&repository, "more.env", "x\n");
    git(&repository, &["add", "."]);
    let path = std::env::var("PATH").unwrap();
    let real = std::env::split_paths(&path).map(|dir| dir.join("git")).find(|git| git.is_file()).unwrap();
    let script =
        format!("#!/bin/sh\necho \"${{{VARIABLE}-none}}\" >> '{}'\nexec '{}' \"$@\"\n", log.display(), real.display());
    write(&bin, "git", script);
    std::fs::set_permissions(bin.join("git"), std::fs::Permissions::from_mode(0o755)).unwrap();
    for args in [&["scan", "--no-resume", "--history", "--branch", "main"][..], &["scan", "--no-resume", "--staged"]] {
        let output = tessera()
            .args(args)
            .arg(&repository)
            .env("PATH", format!("{}:{path}", bin.display()))
            .env(VARIABLE, "for the coordinator")
            .output()
            .unwrap();
        assert!(output.status.code().is_some_and(|code| code != 2), "{}", String::from_utf8_lossy(&output.stderr));
        let seen = std::fs::read_to_string(&log).unwrap();
        assert!(!seen.is_empty() && seen.lines().all(|line| line == "none"), "{args:?}: {seen}");
        std::fs::remove_file(&log).unwrap();
    }
}
