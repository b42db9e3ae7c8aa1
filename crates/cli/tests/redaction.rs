//! Secrets in commits, names and paths are shortened in every format, unless they are asked for.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod scan_support;

use std::path::Path;

use scan_support::{git, git_command, repository, tessera, token, write};

const FORMATS: [&str; 6] = ["human", "json", "jsonl", "sarif", "csv", "gitleaks"];

/// A password that rules find beside its name, and in no other text.
const PASSWORD: &str = "Tr0ub4dor&3-xkcd-Qz"; // tessera:allow

/// A history with another secret in the text of a file, its name, and its commit message.
fn stage() -> (tempfile::TempDir, Vec<String>) {
    let dir = repository();
    let tokens: Vec<String> = (1..=5).map(token).collect();
    let path = format!("keys/{}.env", tokens[0]);
    write(dir.path(), &path, format!("TOKEN={}\ndb_password = \"{PASSWORD}\"\n", tokens[1]));
    git(dir.path(), &["add", "-A"]);
    let mut commit = git_command(dir.path(), &["commit", "-q", "-m"]);
    commit.arg(format!("use {} and {PASSWORD}", tokens[2]));
    commit.env("GIT_AUTHOR_NAME", format!("Ada {}", tokens[3]));
    commit.env("GIT_AUTHOR_EMAIL", format!("{}@example.org", tokens[4]));
    assert!(commit.status().unwrap().success());
    (dir, [tokens, vec![PASSWORD.to_owned()]].concat())
}

/// Everything that a scan prints and says.
fn output(dir: &Path, args: &[&str]) -> String {
    let mut command = tessera();
    let output = command.args(["scan", "--no-resume", "--confidence", "low"]).args(args).arg(dir).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn no_secret_is_printed_in_full_next_to_a_finding() {
    let (dir, secrets) = stage();
    for format in FORMATS {
        for scope in [&["--history"][..], &[]] {
            let text = output(dir.path(), &[&["--format", format], scope].concat());
            let shown: Vec<&String> = secrets.iter().filter(|secret| text.contains(*secret)).collect();
            assert!(shown.is_empty(), "{format} {scope:?} shows {shown:?}:\n{text}");
            // Percent signs are for references.
            assert!(text.contains("keys/ghp_****.env") || text.contains("keys/ghp_%2A%2A%2A%2A.env"), "{text}");
        }
    }
}

#[test]
fn all_of_them_are_printed_if_secrets_are_asked_for() {
    let (dir, secrets) = stage();
    let text = output(dir.path(), &["--history", "--show-secrets", "--format", "json"]);
    let hidden: Vec<&String> = secrets.iter().filter(|secret| !text.contains(*secret)).collect();
    assert!(hidden.is_empty(), "{hidden:?} are not in\n{text}");
}

#[test]
fn errors_quote_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("no-such-{}", token(1));
    let output = tessera().args(["scan", "--no-resume"]).arg(dir.path().join(&name)).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no-such-ghp_****") && !said.contains(&name), "{said}");
}
