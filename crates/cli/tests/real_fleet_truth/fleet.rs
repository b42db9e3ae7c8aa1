//! An etcd, a folder for findings, submitters and workers as processes.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tessera_coordination_etcd::test_support::EtcdCluster;

use super::truth::cases::Case;
use super::truth::command::{Ended, Running, Tessera, program};
use super::truth::report::Report;

/// How long a condition may take to come true. Far more than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(600);

/// Where a fleet meets.
#[derive(Debug, Clone)]
pub(crate) struct Fleet {
    pub(crate) tessera: Tessera,
    pub(crate) url: String,
    pub(crate) findings: PathBuf,
    pub(crate) give_up_after: &'static str,
}

impl Fleet {
    /// A fleet with a namespace and a findings folder of its own.
    pub(crate) fn new(case: &Case, etcd: &EtcdCluster) -> Self {
        Self {
            tessera: Tessera::of(case),
            url: url_of(etcd, &format!("case-{}-{:x}", case.number, case.random.clone().next())),
            findings: case.folder("findings"),
            give_up_after: "60",
        }
    }

    /// The same fleet in another namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Self {
        let (server, _) = self.url.rsplit_once('/').unwrap();
        Self { url: format!("{server}/{namespace}"), ..self.clone() }
    }

    pub(crate) fn with_findings(&self, findings: PathBuf) -> Self {
        Self { findings, ..self.clone() }
    }

    /// A command with the flags that lead to this fleet.
    pub(crate) fn args(&self, verb: &[impl AsRef<OsStr>]) -> Vec<OsString> {
        let mut args: Vec<OsString> = verb.iter().map(|word| word.as_ref().to_owned()).collect();
        args.extend([
            "--coordinator".into(),
            self.url.clone().into(),
            "--findings".into(),
            self.findings.clone().into(),
        ]);
        args.extend(["--give-up-after".into(), self.give_up_after.into()]);
        args
    }

    /// Submits a scan of these targets, and follows it.
    pub(crate) fn submit(&self, scope: &[&str], targets: &[impl AsRef<Path>]) -> Running {
        self.tessera.start(&self.submit_args(scope, targets))
    }

    /// The arguments of a command that does so.
    pub(crate) fn submit_args(&self, scope: &[&str], targets: &[impl AsRef<Path>]) -> Vec<OsString> {
        let mut words: Vec<&OsStr> = ["scan", "--format", "json", "--lease", "2", "-j", "8"].map(AsRef::as_ref).into();
        words.extend(scope.iter().map(OsStr::new));
        words.extend(targets.iter().map(|target| target.as_ref().as_os_str()));
        self.args(&words)
    }

    pub(crate) fn worker(&self) -> Running {
        self.tessera.start(&self.args(&["worker", "-j", "1"]))
    }

    /// Submits a scan and lets one worker do it.
    pub(crate) fn scan(&self, scope: &[&str], targets: &[impl AsRef<Path>]) -> Result<Report, String> {
        let (follower, worker) = (self.submit(scope, targets), self.worker());
        let ended = follower.end();
        drain(worker);
        ended.report()
    }

    pub(crate) fn run(&self, verb: &[impl AsRef<OsStr>]) -> Ended {
        self.tessera.run(&self.args(verb))
    }

    /// The ids of the runs that the coordinator knows.
    pub(crate) fn runs(&self) -> Vec<String> {
        let printed = self.run(&["runs"]).printed();
        let is_id = |word: &&str| word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        printed.lines().filter_map(|line| line.split_whitespace().find(is_id).map(str::to_owned)).collect()
    }

    /// Waits until a worker has made something durable in any folder of findings, or `follower` is over.
    pub(crate) fn wait_for_progress(&self, follower: &mut Running) {
        until("a worker makes progress", || {
            let done = bytes_below(&self.findings.clone(), "findings") > 400;
            (done || !follower.is_running()).then_some(())
        });
    }
}

/// The bytes of the files in folders of this name.
fn bytes_below(dir: &Path, name: &str) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes_below(&entry.path(), name),
        Ok(_) if dir.components().any(|part| part.as_os_str() == name) => entry.metadata().map_or(0, |data| data.len()),
        _ => 0,
    });
    sizes.sum()
}

pub(crate) fn url_of(etcd: &EtcdCluster, namespace: &str) -> String {
    format!("{}/{namespace}", etcd.endpoints()[0].replace("http://", "etcd://"))
}

/// Takes everything that an etcd knows from it.
pub(crate) fn wipe(etcd: &mut EtcdCluster) {
    etcd.kill(0);
    std::fs::remove_dir_all(etcd.directory().join("member0")).unwrap();
    etcd.restart(0);
}

/// Tells a worker to stop, and waits until it has.
pub(crate) fn drain(worker: Running) -> Ended {
    worker.signal("-CONT");
    worker.signal("-TERM");
    worker.end()
}

/// Asks again until there is an answer.
pub(crate) fn until<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Gives a command line as a user would paste it, with `tessera` on the path.
pub(crate) fn paste(fleet: &Fleet, line: &str) -> Ended {
    let program = program();
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.arg("-c").arg(line).env("PATH", path).env("TESSERA_STATE_DIR", &fleet.tessera.state);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TESSERA_") && name != "TESSERA_STATE_DIR" {
            command.env_remove(name);
        }
    }
    let output = command.current_dir(&fleet.tessera.cwd).stdin(Stdio::null()).output().unwrap();
    Ended {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        line: line.to_owned(),
        hung: false,
    }
}

/// The commands that a message quotes.
pub(crate) fn quoted_commands(message: &str) -> Vec<String> {
    let pieces = message.split('`').skip(1).step_by(2);
    pieces.filter(|piece| piece.starts_with("tessera ")).map(str::to_owned).collect()
}
