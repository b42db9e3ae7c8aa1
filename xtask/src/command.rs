//! Running another program: output to a log file, silence on the screen, a bound on its time.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::repo::Repo;
use crate::report::{Failure, Progress};

/// A program that runs longer than this is taken for hung and ended.
const TIME_MAX: Duration = Duration::from_secs(30 * 60);

/// A program with its arguments, to be run in the root of the tree.
#[derive(Debug)]
pub(crate) struct Run {
    command: Command,
    program: String,
    log: &'static str,
    doing: Option<String>,
}

/// What it said and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) success: bool,
    pub(crate) output: String,
    pub(crate) log: PathBuf,
}

impl Run {
    /// `log` names the file below `target/xtask/logs` that keeps the output.
    pub(crate) fn new(program: impl AsRef<OsStr>, log: &'static str) -> Self {
        let program = program.as_ref();
        Self { command: Command::new(program), program: program.to_string_lossy().into_owned(), log, doing: None }
    }

    /// Cargo, never touching the lock file, never colouring what a log will keep.
    pub(crate) fn cargo(log: &'static str, args: &[&str]) -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut run = Self::new(cargo, log).args(args);
        run.program = "cargo".to_string();
        run.env("CARGO_TERM_COLOR", "never")
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// What the progress line says instead of the command.
    pub(crate) fn doing(mut self, what: impl Into<String>) -> Self {
        self.doing = Some(what.into());
        self
    }

    pub(crate) fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.command.current_dir(folder.into());
        self
    }

    /// Runs to the end, whatever the end is. An error means that it could not be started or watched.
    pub(crate) fn end(mut self, repo: &Repo, progress: &Progress) -> Result<Ended, Failure> {
        let log = repo.scratch("logs")?.join(format!("{}.log", self.log));
        let file = File::create(&log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        let twin = file.try_clone().map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        if self.command.get_current_dir().is_none() {
            self.command.current_dir(&repo.root);
        }
        // What cargo set for us is about xtask and would make the inner build differ from a plain one.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_")) {
            self.command.env_remove(name);
        }
        self.command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH");
        let line = self.line();
        let doing = self.doing.take().unwrap_or_else(|| line.clone());
        let mut child = self.command.stdin(Stdio::null()).stdout(file).stderr(twin).spawn().map_err(|error| {
            Failure::of(format!("cannot start {}: {error}", self.program), format!("the command was: {line}"))
        })?;
        let begun = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if begun.elapsed() > TIME_MAX => {
                    let _ = child.kill();
                    let _ = child.wait();
                    let said = format!("{} took over {} minutes and was ended", self.program, TIME_MAX.as_secs() / 60);
                    return Err(Failure::of(said, read_log(&log)));
                }
                Ok(None) => {
                    progress.tick(&doing);
                    thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(Failure::from(format!("lost sight of {}: {error}", self.program))),
            }
        };
        Ok(Ended { success: status.success(), output: read_log(&log), log })
    }

    /// Runs, and takes any exit code but 0 for a failure of the step.
    pub(crate) fn must(self, repo: &Repo, progress: &Progress) -> Result<Ended, Failure> {
        let line = self.line();
        let ended = self.end(repo, progress)?;
        if ended.success { Ok(ended) } else { Err(ended.failure(&line)) }
    }

    fn line(&self) -> String {
        let args = self.command.get_args().map(|arg| arg.to_string_lossy());
        std::iter::once(self.program.as_str().into()).chain(args).collect::<Vec<_>>().join(" ")
    }
}

impl Ended {
    /// The failure this end is, told so that it can be repeated by hand.
    pub(crate) fn failure(self, line: &str) -> Failure {
        Failure::of(format!("failed: {line}"), format!("{}\nlog: {}\nagain: {line}", self.output, self.log.display()))
    }
}

fn read_log(log: &PathBuf) -> String {
    fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Whether a program of this name can be found.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}
