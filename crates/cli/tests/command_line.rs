//! The program as a user meets it: its output and its exit codes.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::process::{Command, Output};

fn tessera(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tessera")).args(args).output().expect("the program starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn help_shows_the_commands_and_examples() {
    let output = tessera(&["--help"]);
    assert!(output.status.success());
    for word in ["scan", "completions", "EXAMPLES"] {
        assert!(stdout(&output).contains(word), "{word} is missing in\n{}", stdout(&output));
    }
}

#[test]
fn every_subcommand_has_examples_in_its_help() {
    for verb in ["scan", "runs", "shards", "rules", "completions"] {
        let output = tessera(&[verb, "--help"]);
        assert!(stdout(&output).contains("EXAMPLES"), "{verb}");
    }
}

#[test]
fn version_is_that_of_the_package() {
    assert_eq!(stdout(&tessera(&["--version"])).trim(), concat!("tessera ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_name_the_program_for_every_shell_and_nothing_that_is_hidden() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = tessera(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        assert!(stdout(&output).contains("tessera"), "{shell}");
        assert!(stdout(&output).contains("merge-back") && stdout(&output).contains("metrics"), "{shell}");
        for hidden in ["inject-panic", "inject-stall", "test-hooks"] {
            assert!(!stdout(&output).contains(hidden), "{shell} offers {hidden}");
        }
    }
}

#[test]
fn scan_keeps_clean_found_failed_and_incomplete_apart() {
    let dir = tempfile::tempdir().unwrap();
    let scan = |path: &str| tessera(&["scan", "--no-resume", path]);
    let path = dir.path().to_str().unwrap();
    assert_eq!(scan(path).status.code(), Some(0));
    std::fs::write(dir.path().join("x"), "plain").unwrap();
    let clean = scan(path);
    assert_eq!(clean.status.code(), Some(0));
    assert!(stdout(&clean).contains("1 item = 1 scanned (5 B) + 0 skipped + 0 unreadable"), "{}", stdout(&clean));
    let recipe = "token = \"ghp_<<github 30>>\"\n";
    let token = tessera_detect::template::expand(recipe, &mut tessera_detect::template::Seed::new(3)).unwrap();
    std::fs::write(dir.path().join("secret"), &token).unwrap();
    let found = scan(path);
    assert_eq!(found.status.code(), Some(1));
    assert!(stdout(&found).contains("secret:1:") && !stdout(&found).contains(&token[13..]), "{}", stdout(&found));
    let failed = scan("/no/such/place");
    assert_eq!(failed.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("/no/such/place"));
}

#[test]
fn a_history_is_scanned_on_a_host_without_git() {
    let dir = tempfile::tempdir().unwrap();
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(dir.path()).args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]).args(args);
        assert!(command.status().unwrap().success(), "git {args:?}");
    };
    git(&["init", "-q"]);
    let recipe = "token = \"ghp_<<github 30>>\"\n";
    let token = tessera_detect::template::expand(recipe, &mut tessera_detect::template::Seed::new(3)).unwrap();
    for (version, text) in [&token[..], "token = \"\"\n", "token = None\n"].into_iter().enumerate() {
        std::fs::write(dir.path().join("settings.py"), format!("{}{text}", "# a line\n".repeat(200))).unwrap();
        git(&["add", "-A"]);
        git(&["commit", "-q", "-m", &format!("version {version}")]);
    }
    let scan = |hide_git: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(["scan", "--no-resume", "--history", "--format", "jsonl"]).arg(dir.path());
        if hide_git {
            command.env("PATH", "/nonexistent");
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
        stdout(&output)
    };
    for repack in [false, true] {
        if repack {
            git(&["repack", "-adq"]);
        }
        let without = scan(true);
        let finding = without.lines().next().unwrap();
        assert!(finding.contains("settings.py") && finding.contains("version 0"), "{finding}");
        assert_eq!(Some(finding), scan(false).lines().next());
    }
}

#[test]
fn an_unknown_command_is_answered_with_the_nearest_one() {
    let output = tessera(&["scna", "."]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("scan"), "{said}");
}

#[test]
fn a_flag_of_several_commands_of_the_dht_is_told_in_the_same_words() {
    for flag in ["--key <FILE>", "--sequence <N>", "--ttl <SECONDS>", "--name <NAME>"] {
        let told = ["put", "put-mutable", "get-mutable", "delete"].map(|command| {
            let help = stdout(&tessera(&["dht", command, "-h"]));
            let (_, after) = help.split_once("Options:")?.1.split_once(flag)?;
            // Up to the next flag; what goes on in the next line is of the same words.
            let words = after.split("\n  -").next()?.split("\n      --").next()?;
            let words: Vec<&str> = words.split_whitespace().collect();
            Some(words.join(" ").trim_end_matches(" [default: \"\"]").to_owned())
        });
        let told: Vec<String> = told.into_iter().flatten().collect();
        assert!(told.len() > 1 && told.iter().all(|words| *words == told[0]), "{flag}: {told:?}");
    }
}
