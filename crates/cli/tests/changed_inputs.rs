//! `tessera scan`, interrupted or killed; then files change, and the same command is given again.
//!
//! Trees and changes are random. The expected findings are computed by reading the files and looking for planted tokens, without
//! our code. `TESSERA_CASES=100` runs more cases, `TESSERA_SEED=…` the same ones again.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tessera_detect::template;

/// Numbers that look random and repeat for a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn token(&mut self) -> String {
        let seed = self.below(1 << 30);
        template::expand("ghp_<<github 30>>", &mut template::Seed::new(seed)).unwrap()
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// A tree that takes long enough to be interrupted: middle-sized files, so that some become durable early, and a large one at
/// the end.
struct Stage {
    tree: tempfile::TempDir,
    state: tempfile::TempDir,
    dice: Dice,
    planted: Vec<String>,
}

const FILES: u64 = 40;

impl Stage {
    fn new(seed: u64) -> Self {
        let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut stage = Self { tree, state, dice: Dice(seed), planted: Vec::new() };
        let filler = b"secret token password key = none\n".repeat(30_000);
        for i in 0..FILES {
            let secret = if stage.dice.below(3) == 0 { stage.secret() } else { String::new() };
            stage.write(&format!("d{}/f{i:02}.txt", i % 4), &[secret.as_bytes(), &filler].concat());
        }
        let large = filler.repeat(30);
        stage.write("zz-large.txt", &large);
        stage
    }

    fn secret(&mut self) -> String {
        self.planted.push(self.dice.token());
        format!("TOKEN={}\n", self.planted.last().unwrap())
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.tree.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn scan(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(["scan", "--format", "json", "--show-secrets", "-j", "1"]).args(args).arg(self.tree.path());
        command.env("TESSERA_STATE_DIR", self.state.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Begins a scan, and ends it when it has made something durable.
    fn interrupt(&mut self) -> &'static str {
        let mut child = self.scan(&[]).spawn().unwrap();
        let started = Instant::now();
        while self.durable_bytes() < 400 && child.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < Duration::from_secs(600), "nothing is durable after ten minutes");
            std::thread::sleep(Duration::from_millis(2));
        }
        let signal = ["-KILL", "-INT", "-TERM"][self.dice.below(3) as usize];
        // It may have ended by itself; then the next command finds a finished run.
        let _ = Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status().unwrap();
        wait(child);
        signal
    }

    /// How much findings files hold.
    fn durable_bytes(&self) -> u64 {
        let (mut open, mut bytes) = (vec![self.state.path().to_path_buf()], 0);
        while let Some(dir) = open.pop() {
            // Folders come and go while a scan begins.
            for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
                if path.is_dir() {
                    open.push(path);
                } else if path.extension().is_some_and(|is| is == "findings") {
                    bytes += path.metadata().map_or(0, |metadata| metadata.len());
                }
            }
        }
        bytes
    }

    fn files(&self) -> Vec<PathBuf> {
        let (mut open, mut files) = (vec![self.tree.path().to_path_buf()], Vec::new());
        while let Some(dir) = open.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { open.push(path) } else { files.push(path) }
            }
        }
        files.sort();
        files
    }

    /// Changes something, in words.
    fn change(&mut self) -> String {
        let files = self.files();
        let file = files[self.dice.below(files.len() as u64 - 1) as usize].clone();
        let secret = self.secret();
        let name = file.strip_prefix(self.tree.path()).unwrap().display().to_string();
        match self.dice.below(6) {
            0 => {
                let bytes = [&fs::read(&file).unwrap()[..], secret.as_bytes()].concat();
                fs::write(&file, bytes).unwrap();
                format!("append to {name}")
            }
            1 => {
                // The same length and the same time of modification.
                let before = fs::metadata(&file).unwrap();
                let mut bytes = fs::read(&file).unwrap();
                bytes[..secret.len()].copy_from_slice(secret.as_bytes());
                let kept = fs::File::options().write(true).open(&file).unwrap();
                std::io::Write::write_all(&mut &kept, &bytes).unwrap();
                kept.set_modified(before.modified().unwrap()).unwrap();
                format!("overwrite {name}")
            }
            2 => {
                fs::remove_file(&file).unwrap();
                format!("remove {name}")
            }
            3 => {
                let to = format!("d{}/new-{}", self.dice.below(5), self.dice.below(1_000));
                self.write(&to, secret.as_bytes());
                format!("add {to}")
            }
            4 => {
                let to = file.with_extension(format!("moved{}", self.dice.below(1_000)));
                fs::rename(&file, to).unwrap();
                format!("rename {name}")
            }
            _ => {
                // Another file of the same name.
                fs::remove_file(&file).unwrap();
                fs::write(&file, secret.as_bytes()).unwrap();
                format!("replace {name}")
            }
        }
    }

    /// Which planted tokens stand where, as the files say.
    fn truth(&self) -> BTreeSet<(String, String)> {
        let mut truth = BTreeSet::new();
        for file in self.files() {
            let bytes = fs::read(&file).unwrap();
            let path = file.strip_prefix(self.tree.path()).unwrap().display().to_string();
            for at in memmem(&bytes, b"ghp_") {
                let token = String::from_utf8_lossy(&bytes[at..at + 40]).into_owned();
                if self.planted.contains(&token) {
                    truth.insert((path.clone(), token));
                }
            }
        }
        truth
    }
}

fn memmem<'h>(haystack: &'h [u8], needle: &'h [u8]) -> impl Iterator<Item = usize> + 'h {
    let starts = haystack.iter().enumerate().filter(move |(_, byte)| **byte == needle[0]).map(|(at, _)| at);
    starts.filter(move |&at| haystack[at..].starts_with(needle) && at + 40 <= haystack.len())
}

fn wait(child: Child) -> Output {
    child.wait_with_output().unwrap()
}

fn report(output: &Output) -> Value {
    assert!(output.status.code().is_some_and(|code| code < 2), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn places(report: &Value) -> BTreeSet<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .flat_map(|finding| {
            let locations = finding["locations"].as_array().unwrap().iter();
            locations.map(|at| (text(&at["path"]), text(&finding["secret"]))).collect::<Vec<_>>()
        })
        .collect()
}

fn receipt(report: &Value) -> Vec<Value> {
    let receipt = &report["receipt"];
    let counts = ["complete", "enumerated", "scanned", "scanned_bytes", "skipped", "unreadable", "planned"];
    counts.iter().map(|name| receipt[name].clone()).collect()
}

fn case(seed: u64) {
    let mut stage = Stage::new(seed);
    // Some trees are older than the scan, so that unchanged files are not read again; others are too recent for that.
    if stage.dice.below(2) == 0 {
        let now = SystemTime::now();
        while SystemTime::now() <= now + tessera_scan::source::identity::SETTLED_AFTER {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let mut story = Vec::new();
    for _ in 0..=stage.dice.below(2) {
        story.push(stage.interrupt().to_owned());
        for _ in 0..stage.dice.below(5) {
            story.push(stage.change());
        }
    }
    let resumed = wait(stage.scan(&[]).spawn().unwrap());
    let fresh = wait(stage.scan(&["--no-resume"]).spawn().unwrap());
    let told = format!("seed {seed}: {story:?}\n{}", String::from_utf8_lossy(&resumed.stderr));
    assert_eq!(places(&report(&resumed)), stage.truth(), "{told}");
    assert_eq!(places(&report(&resumed)), places(&report(&fresh)), "{told}");
    assert_eq!(receipt(&report(&resumed)), receipt(&report(&fresh)), "{told}");
    assert_eq!(resumed.status.code(), fresh.status.code(), "{told}");
}

#[test]
fn whatever_changes_after_an_interruption_the_report_is_that_of_a_fresh_scan() {
    let fresh = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let (seed, cases) = (setting("TESSERA_SEED", fresh % 1_000_000), setting("TESSERA_CASES", 5));
    println!("TESSERA_SEED={seed} TESSERA_CASES={cases}");
    for number in 0..cases {
        case(seed + number);
    }
}

#[test]
fn a_finished_scan_is_told_again_with_its_end_and_fresh_scans() {
    let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(tree.path().join("a"), "text\n").unwrap();
    let made = SystemTime::now();
    while SystemTime::now() <= made + tessera_scan::source::identity::SETTLED_AFTER {
        std::thread::sleep(Duration::from_millis(20));
    }
    let scan = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.arg("scan").args(args).arg(tree.path()).env("TESSERA_STATE_DIR", state.path());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(scan(&[]), "");
    let said = scan(&[]);
    assert!(said.starts_with("nothing has changed since the scan that ended at 20"), "{said}");
    assert_eq!(scan(&["--fresh"]), "");
    fs::write(tree.path().join("b"), "text\n").unwrap();
    assert_eq!(scan(&[]), "");
}

/// Interrupted between listing and the end, a history that has new commits is scanned anew, in words.
#[test]
fn a_history_with_new_commits_is_scanned_anew_and_says_so() {
    let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let git = |args: &[&str]| git(tree.path(), args);
    git(&["init", "-q", "-b", "main"]);
    for i in 0..12 {
        fs::write(tree.path().join(format!("f{i}")), format!("file {i} secret token key\n").repeat(200_000)).unwrap();
    }
    git(&["add", "-A"]);
    git(&["commit", "-q", "-m", "all"]);
    let scan = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(["scan", "--history", "--format", "json", "-j", "1"]).args(args).arg(tree.path());
        command.env("TESSERA_STATE_DIR", state.path()).output().unwrap()
    };
    let stopped = scan(&["--max-time", "1ms"]);
    assert_eq!(stopped.status.code(), Some(3), "{}", String::from_utf8_lossy(&stopped.stderr));
    fs::write(tree.path().join("new.env"), format!("TOKEN={}\n", Dice(7).token())).unwrap();
    git(&["add", "-A"]);
    git(&["commit", "-q", "-m", "secret"]);
    let resumed = scan(&[]);
    let said = String::from_utf8_lossy(&resumed.stderr).into_owned();
    assert_eq!(resumed.status.code(), Some(1), "{said}");
    assert!(said.contains("could not go on: the history of /") && said.contains("scanned anew"), "{said}");
}

fn git(dir: &Path, args: &[&str]) {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).args(args).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Ada").env(format!("GIT_{who}_EMAIL"), "ada@example.org");
    }
    assert!(command.status().unwrap().success(), "git {args:?}");
}
