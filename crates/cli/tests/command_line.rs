//! The program as a user meets it: what it prints and how it exits.

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
    for verb in ["scan", "completions"] {
        let output = tessera(&[verb, "--help"]);
        assert!(stdout(&output).contains("EXAMPLES"), "{verb}");
    }
}

#[test]
fn version_is_that_of_the_package() {
    assert_eq!(stdout(&tessera(&["--version"])).trim(), concat!("tessera ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_name_the_program_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = tessera(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        assert!(stdout(&output).contains("tessera"), "{shell}");
    }
}

#[test]
fn scan_says_that_it_cannot_and_claims_nothing() {
    let output = tessera(&["scan", "."]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no scanner yet") && said.contains("Nothing was read"), "{said}");
}

#[test]
fn an_unknown_command_is_answered_with_the_nearest_one() {
    let output = tessera(&["scna", "."]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("scan"), "{said}");
}
