//! The real `tessera` program, in an environment that the user's settings do not reach.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::cases::Case;
use super::git::forget_git;
use super::report::Report;

/// How long a command may take before it counts as hanging. Far more than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(600);

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    /// The command line, for messages.
    pub(crate) line: String,
    /// Whether it did not end by itself within a generous time.
    pub(crate) hung: bool,
}

impl Ended {
    pub(crate) fn printed(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Everything that a user sees.
    pub(crate) fn shown(&self) -> String {
        self.printed() + &self.stderr
    }

    pub(crate) fn report(&self) -> Result<Report, String> {
        Report::of(self)
    }
}

/// The program under test: that of this build, or the one that `TESSERA_PROGRAM` names, such as an optimized one.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("TESSERA_PROGRAM").map_or_else(|| env!("CARGO_BIN_EXE_tessera").into(), PathBuf::from)
}

/// Where commands of one case run.
#[derive(Debug, Clone)]
pub(crate) struct Tessera {
    /// The folder of kept runs.
    pub(crate) state: PathBuf,
    /// The working directory.
    pub(crate) cwd: PathBuf,
    /// Commands are noted here, so that a kept folder tells its history.
    log: PathBuf,
    /// Further variables.
    pub(crate) variables: Vec<(OsString, OsString)>,
}

impl Tessera {
    pub(crate) fn of(case: &Case) -> Self {
        Self::in_folder(case.dir())
    }

    pub(crate) fn in_folder(dir: &Path) -> Self {
        let (state, cwd) = (dir.join("state"), dir.join("cwd"));
        for folder in [&state, &cwd] {
            std::fs::create_dir_all(folder).unwrap();
        }
        Self { state, cwd, log: dir.join("commands.log"), variables: Vec::new() }
    }

    /// The same place with another environment variable.
    pub(crate) fn with(&self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        let mut other = self.clone();
        other.variables.push((name.into(), value.into()));
        other
    }

    /// The same place with another working directory.
    pub(crate) fn at(&self, cwd: &Path) -> Self {
        Self { cwd: cwd.to_path_buf(), ..self.clone() }
    }

    pub(crate) fn command(&self, args: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(program());
        forget_git(&mut command);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TESSERA_") {
                command.env_remove(name);
            }
        }
        command.args(args).current_dir(&self.cwd).env("TESSERA_STATE_DIR", &self.state).env("HOME", &self.cwd);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn start(&self, args: &[impl AsRef<OsStr>]) -> Running {
        let mut command = self.command(args);
        let line = format!("{:?}", args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect::<Vec<_>>());
        let mut log = std::fs::File::options().append(true).create(true).open(&self.log).unwrap();
        writeln!(log, "cd {}; {:?} tessera {line}", self.cwd.display(), self.variables).unwrap();
        Running { child: command.spawn().unwrap(), line }
    }

    pub(crate) fn run(&self, args: &[impl AsRef<OsStr>]) -> Ended {
        self.start(args).end()
    }

    /// The report of `tessera scan` with these arguments, in JSON.
    pub(crate) fn scan(&self, args: &[impl AsRef<OsStr>]) -> Result<Report, String> {
        self.run(&scan_args(args)).report()
    }
}

/// The arguments of `tessera scan` that reports in JSON.
pub(crate) fn scan_args(args: &[impl AsRef<OsStr>]) -> Vec<OsString> {
    let begin = ["scan", "--format", "json"].map(OsString::from);
    begin.into_iter().chain(args.iter().map(|arg| arg.as_ref().to_owned())).collect()
}

/// A command that runs.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    line: String,
}

impl Running {
    pub(crate) fn of(child: Child, line: String) -> Self {
        Self { child, line }
    }

    /// What it says until a line has these words. It may say more, which is read and not told.
    pub(crate) fn says(&mut self, words: &str) -> String {
        let (mut stderr, mut said) = (BufReader::new(self.child.stderr.take().unwrap()), String::new());
        while !said.contains(words) {
            assert!(stderr.read_line(&mut said).unwrap() > 0, "it ended and had not said {words:?}: {said}");
        }
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        said
    }

    pub(crate) fn signal(&self, name: &str) {
        // It may have ended by itself, which the caller sees from its exit code.
        let _ = Command::new("kill").args([name, &self.child.id().to_string()]).stderr(Stdio::null()).status();
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end, but not for ever.
    pub(crate) fn end(self) -> Ended {
        let (id, (ended, watched)) = (self.child.id().to_string(), channel::<()>());
        let watch = std::thread::spawn(move || {
            let hung = watched.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
            if hung {
                Command::new("kill").args(["-KILL", &id]).status().unwrap();
            }
            hung
        });
        let output = self.child.wait_with_output().unwrap();
        drop(ended);
        Ended {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            line: self.line,
            hung: watch.join().unwrap(),
        }
    }
}
