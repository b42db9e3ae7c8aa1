//! Nothing that a user sees shows a secret in full, wherever in a repository it stands.

use std::path::Path;

use super::truth::cases::{self, Case};
use super::truth::command::Tessera;
use super::truth::git::{command, git, git_line, init};
use super::truth::token::token;

const FORMATS: [&str; 6] = ["human", "json", "jsonl", "sarif", "csv", "gitleaks"];

/// A repository with secrets in the name of its folder, in a file, its name, the name of the last file, the name of a folder, the subject and
/// body of a commit, its author, and a tag.
fn repository(case: &mut Case) -> (std::path::PathBuf, Vec<(&'static str, String)>) {
    let places =
        ["target", "text", "file name", "last name", "folder name", "subject", "body", "author", "email", "tag"];
    let tokens: Vec<(&str, String)> = places.map(|place| (place, token(&mut case.random))).into();
    let secret = |place: &str| &tokens.iter().find(|(known, _)| *known == place).unwrap().1;
    let dir = case.folder(&format!("repository-{}", secret("target")));
    init(&dir, &[]);
    let text = format!("token: {}\n", secret("text"));
    for path in [
        "plain".to_owned(),
        format!("key-{}.env", secret("file name")),
        format!("{}/a", secret("folder name")),
        // The progress of a shard names the last file that was read.
        format!("zz-{}", secret("last name")),
    ] {
        std::fs::create_dir_all(dir.join(&path).parent().unwrap()).unwrap();
        std::fs::write(dir.join(path), &text).unwrap();
    }
    git(&dir, &["add", "-A"]);
    let mut commit = command(&dir, &["commit", "-q", "-m"]);
    commit.arg(format!("use {} everywhere\n\nand {}", secret("subject"), secret("body")));
    commit.env("GIT_AUTHOR_NAME", format!("Ada {}", secret("author")));
    commit.env("GIT_AUTHOR_EMAIL", format!("{}@example.org", secret("email")));
    assert!(commit.status().unwrap().success());
    git(&dir, &["tag", &format!("v-{}", secret("tag"))]);
    (dir, tokens)
}

/// The places whose secrets a text shows in full.
fn shown(text: &str, tokens: &[(&'static str, String)]) -> Vec<&'static str> {
    tokens.iter().filter(|(_, token)| text.contains(token.as_str())).map(|(place, _)| *place).collect()
}

#[test]
fn no_format_shows_a_secret_of_content_paths_or_commits() {
    cases::run(3, |case| {
        let (dir, tokens) = repository(case);
        let tessera = Tessera::of(case);
        let mut problems = Vec::new();
        for scope in [&["--history"][..], &[]] {
            for format in FORMATS {
                let mut args = vec!["scan", "--fresh", "--format", format];
                args.extend(scope);
                let ended = tessera.run(&[&args[..], &[dir.to_str().unwrap()]].concat());
                if ended.code != Some(1) {
                    problems.push(format!("{scope:?} {format}: exit code {:?}: {}", ended.code, ended.stderr));
                }
                let seen = shown(&ended.shown(), &tokens);
                if !seen.is_empty() {
                    problems.push(format!("{scope:?} {format} shows the secrets of {seen:?}"));
                }
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
    });
}

/// An unreadable item is named by its path, one of a history by its object.
#[test]
fn no_format_shows_a_secret_in_the_path_of_what_cannot_be_read() {
    cases::run(3, |case| {
        let (dir, tokens) = repository(case);
        let name = &tokens.iter().find(|(place, _)| *place == "file name").unwrap().1;
        std::fs::write(dir.join(format!("key-{name}.env")), "other\n").unwrap();
        git(&dir, &["commit", "-q", "-a", "-m", "other"]);
        remove_object(&dir, "other\n");
        let damaged = b"\x1f\x8b\x08\0\0\0\0\0\0\xff damaged";
        std::fs::write(dir.join(format!("key-{name}.gz")), damaged).unwrap();
        let (tessera, dir) = (Tessera::of(case), dir.to_str().unwrap());
        let mut problems = Vec::new();
        for (format, scope) in FORMATS.iter().flat_map(|format| [(*format, "--history"), (*format, "--archives")]) {
            let text = tessera.run(&["scan", "--fresh", scope, "--format", format, dir]).shown();
            let seen = shown(&text, &tokens);
            if !seen.is_empty() {
                problems.push(format!("{format} {scope} shows the secrets of {seen:?}"));
            }
            let is_named = text.contains("key-ghp_****.gz") || text.contains("key-ghp_%2A%2A%2A%2A.gz");
            if ["human", "json", "sarif"].contains(&format) && scope == "--archives" && !is_named {
                problems.push(format!("{format} does not name what cannot be read:\n{text}"));
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
    });
}

fn remove_object(dir: &Path, text: &str) {
    let oid = String::from_utf8(super::truth::git::git_fed(dir, &["hash-object", "--stdin"], text.as_bytes())).unwrap();
    let object = dir.join(".git/objects").join(&oid[..2]).join(oid[2..].trim());
    std::fs::remove_file(object).unwrap();
}

/// Commands about a run which show more of a secret than they may.
fn problems_of_commands(tessera: &Tessera, run: &str, tokens: &[(&'static str, String)]) -> Vec<String> {
    let mut problems = Vec::new();
    for args in [
        &["runs"][..],
        &["runs", "--json"],
        &["runs", "show", run],
        &["runs", "show", run, "--by", "repository"],
        &["runs", "report", run],
        &["shards", run],
        &["shards", "explain", run],
        &["shards", "history", run, "0000000000000001"],
    ] {
        let seen = shown(&tessera.run(args).shown(), tokens);
        if !seen.is_empty() {
            problems.push(format!("{args:?} shows the secrets of {seen:?}"));
        }
    }
    problems
}

/// Commands that look at kept runs show no more than the report does.
#[test]
fn no_command_about_runs_shows_a_secret() {
    cases::run(2, |case| {
        let (dir, tokens) = repository(case);
        let tessera = Tessera::of(case);
        let report = tessera.scan(&[dir.as_os_str()])?;
        let problems = problems_of_commands(&tessera, &report.run, &tokens);
        let named = tessera.run(&["shards", &report.run]).printed();
        if !named.contains("up to zz-ghp_****") {
            return Err(format!("the last file is not named: {named}"));
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
    });
}

/// All of a run that was interrupted at some place among files with secrets in their names, in a target that brings rules.
#[test]
fn an_interrupted_scan_with_rules_of_its_target_shows_no_secret() {
    cases::run(2, |case| {
        let (dir, mut tokens) = repository(case);
        std::fs::write(dir.join(".gitleaks.toml"), "[extend]\nuseDefault = true\n").unwrap();
        for number in 0..300 {
            let name = token(&mut case.random);
            std::fs::write(dir.join(format!("{number:03}-{name}")), "nothing\n".repeat(2_000)).unwrap();
            tokens.push(("one of many names", name));
        }
        let (tessera, target) = (Tessera::of(case), dir.to_str().unwrap());
        let begun = tessera.run(&["scan", "--max-time", "1ms", "--jobs", "1", target]);
        let mut problems = Vec::new();
        if !begun.stderr.contains("/.gitleaks.toml are used for ") {
            problems.push(format!("the rules of the target are not named: {}", begun.stderr));
        }
        let seen = shown(&begun.shown(), &tokens);
        if !seen.is_empty() {
            problems.push(format!("the scan shows the secrets of {seen:?}"));
        }
        let runs = tessera.run(&["runs", "--json"]).printed();
        let Some(run) = runs.split('"').find(|word| word.len() == 16 && word.bytes().all(|b| b.is_ascii_hexdigit()))
        else {
            return Err(format!("no run is kept: {runs}"));
        };
        problems.extend(problems_of_commands(&tessera, run, &tokens));
        if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
    });
}

/// A name that steers a terminal, or turns the direction of text, is shown without its marks.
#[test]
fn no_command_about_runs_steers_the_terminal() {
    cases::run(1, |case| {
        let dir = case.folder("target");
        for name in ["zz-\u{202e}fdp.exe", "zz-\u{1b}[31mred"] {
            std::fs::write(dir.join(name), "nothing\n").unwrap();
            let tessera = Tessera::of(case);
            let report = tessera.scan(&[dir.as_os_str()])?;
            for args in [&["shards", &report.run][..], &["runs", "show", &report.run]] {
                let text = tessera.run(args).shown();
                if text.contains(['\u{202e}', '\u{1b}']) {
                    return Err(format!("{args:?} steers the terminal: {text:?}"));
                }
            }
            let named = tessera.run(&["shards", &report.run]).printed();
            if !named.contains("up to zz-\u{fffd}") {
                return Err(format!("the last file is not named: {named}"));
            }
            std::fs::remove_file(dir.join(name)).unwrap();
        }
        Ok(())
    });
}

#[test]
fn a_commit_is_still_named_by_its_id() {
    cases::run(1, |case| {
        let (dir, _) = repository(case);
        let report = Tessera::of(case).scan(&["--history".as_ref(), dir.as_os_str()])?;
        let commit = git_line(&dir, &["rev-parse", "HEAD"]);
        if report.shown.contains(&commit) { Ok(()) } else { Err(report.shown) }
    });
}
