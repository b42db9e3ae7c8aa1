//! The output in the README is that of the program.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::path::Path;
use std::process::Command;

/// Counts change with every commit, and which folders are left out depends on where the tree came from.
fn normalised(output: &str) -> Vec<String> {
    let lines = output.trim().lines().filter(|line| !line.starts_with("  skipped "));
    lines
        .map(|line| {
            if line.starts_with("  planned ") {
                return "  planned".to_owned();
            }
            if !line.starts_with("receipt ") {
                return line.trim_end().to_owned();
            }
            let is_number = |char: char| char.is_ascii_digit() || char == '.';
            line.split(' ').map(|word| word.replace(is_number, "")).collect::<Vec<_>>().join(" ").replace("kB", "MB")
        })
        .collect()
}

#[test]
fn the_first_command_of_the_readme_prints_what_the_readme_shows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let block = readme.split("```console\n").nth(1).unwrap().split("```").next().unwrap();
    let (command, shown) = block.split_once('\n').unwrap();
    let args = command.strip_prefix("$ cargo run --release -- ").expect("the first command runs the program");
    let mut tessera = Command::new(env!("CARGO_BIN_EXE_tessera"));
    let output = tessera.args(args.split(' ')).arg("--no-resume").current_dir(&root).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(normalised(&printed), normalised(shown));
    // The scan finds all secrets that the demo's README names, and nothing else.
    assert!(shown.trim_end().ends_with("6 secrets in 7 places"), "{shown}");
    assert!(shown.matches("  demo/").count() == 7 && !shown.contains("demo/docs"), "{shown}");
}
