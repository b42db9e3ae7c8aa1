//! Real `tessera node` processes, with a folder of sockets of their own.

#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

pub(crate) mod cable;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long to wait for what must come: only a broken program takes as long, however slow and busy the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// A folder in which nodes have their sockets and data.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
}

/// A node that runs as a process; killed when dropped.
pub(crate) struct Process {
    child: Child,
    /// Its greeting, line by line.
    pub(crate) greeting: Vec<String>,
    pub(crate) log: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `tessera` with these arguments.
    pub(crate) fn tessera(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(args).env("TESSERA_RUNTIME_DIR", self.path("run"));
        command
    }

    /// Starts a node and waits until it has said how to join it.
    pub(crate) fn node(&self, args: &[&str]) -> Process {
        let mut all = vec!["node"];
        all.extend(args);
        self.start(self.tessera(&all))
    }

    pub(crate) fn start(&self, command: Command) -> Process {
        let log = self.new_log();
        let stderr = std::fs::File::create(&log).unwrap();
        self.start_logging_to(command, stderr.into(), log)
    }

    /// A file for a node's log.
    pub(crate) fn new_log(&self) -> PathBuf {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let path = self.path(&format!("log-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        std::fs::write(&path, "").unwrap();
        path
    }

    /// As [`start`](Self::start), with a standard error of its own.
    pub(crate) fn start_logging_to(&self, mut command: Command, stderr: Stdio, log: PathBuf) -> Process {
        let mut child = command
            .env("TESSERA_RUNTIME_DIR", self.path("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        // The test that gave a pipe does not read it.
        drop(child.stderr.take());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut greeting = Vec::new();
        for line in &mut lines {
            let line = line.unwrap();
            let is_last = line.contains("tessera node --bootstrap");
            greeting.push(line);
            if is_last {
                break;
            }
        }
        let said = std::fs::read_to_string(&log).unwrap();
        assert!(
            greeting.last().is_some_and(|line| line.contains("--bootstrap")),
            "it did not start: {greeting:?} {said}"
        );
        std::thread::spawn(move || lines.for_each(drop));
        Process { child, greeting, log }
    }

    /// Runs `tessera dht …` against a node and returns its output, if it succeeded.
    pub(crate) fn dht(&self, node: &Process, args: &[&str], input: &[u8]) -> Result<Vec<u8>, String> {
        let socket = node.socket();
        let mut all = vec!["dht", "--socket", &socket];
        all.extend(args);
        succeeded(run(self.tessera(&all), input))
    }

    /// The same as text.
    pub(crate) fn ask(&self, node: &Process, args: &[&str], input: &[u8]) -> String {
        String::from_utf8(self.dht(node, args, input).unwrap()).unwrap().trim_end().to_owned()
    }

    /// The same as JSON.
    pub(crate) fn json(&self, node: &Process, args: &[&str]) -> serde_json::Value {
        self.json_of(node, args, &[])
    }

    /// The same, of something that is given to it.
    pub(crate) fn json_of(&self, node: &Process, args: &[&str], input: &[u8]) -> serde_json::Value {
        let mut all = vec!["--json"];
        all.extend(args);
        serde_json::from_str(&self.ask(node, &all, input)).unwrap()
    }

    /// Waits until the node knows `count` others.
    pub(crate) fn until_knows(&self, node: &Process, count: u64) {
        until("the node knows the others", || self.json(node, &["status"])["contacts"].as_u64().unwrap() >= count);
    }
}

pub(crate) fn run(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    // A program that failed early did not read all of it.
    let _ = feeder.join().unwrap();
    output
}

/// The code a program ends with, or `None` if it does not end in time; it is killed then.
pub(crate) fn ends_within(child: &mut Child, time: Duration) -> Option<i32> {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// Runs a program that might hang: its exit code and standard error.
pub(crate) fn run_within(mut command: Command, time: Duration) -> (Option<i32>, String) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let code = ends_within(&mut child, time);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (code, said)
}

pub(crate) fn succeeded(output: Output) -> Result<Vec<u8>, String> {
    if output.status.success() { Ok(output.stdout) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

impl Process {
    fn line(&self, name: &str) -> String {
        let line = self.greeting.iter().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name} in {:?}", self.greeting)).split_whitespace().nth(1).unwrap().to_owned()
    }

    pub(crate) fn id(&self) -> String {
        self.line("node ")
    }

    pub(crate) fn socket(&self) -> String {
        self.line("socket")
    }

    pub(crate) fn listen(&self) -> String {
        self.line("listen")
    }

    pub(crate) fn metrics(&self) -> String {
        self.line("metrics")
    }

    /// `KEY@HOST:PORT`, as others join by it.
    pub(crate) fn address(&self) -> String {
        let line = self.greeting.last().unwrap();
        line.split_whitespace().skip_while(|word| *word != "--bootstrap").nth(1).unwrap().to_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends a signal and waits for the end; returns how it ended and its log.
    pub(crate) fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        self.signal(signal);
        let status = self.child.wait().unwrap();
        (status.code(), std::fs::read_to_string(&self.log).unwrap())
    }

    /// Sends a signal; the code it ended with, or `None` if it did not end in time.
    pub(crate) fn ends_within(mut self, time: Duration, signal: Signal) -> Option<i32> {
        self.signal(signal);
        ends_within(&mut self.child, time)
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for something that must come, but not for ever.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "still not: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn exists(path: &str) -> bool {
    Path::new(path).exists()
}
