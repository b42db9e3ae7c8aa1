//! This program in a process of its own, driven by lines: a question to its input, an answer from its output.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// The driving end. The process ends with it.
pub(crate) struct Process {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(args: &[&str]) -> Result<Self, Box<dyn Error>> {
        Self::start_build(&std::env::current_exe()?, args)
    }

    /// The same program as it was built before, or elsewhere.
    pub(crate) fn start_build(program: &Path, args: &[&str]) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|why| format!("{} cannot be run: {why}", program.display()))?;
        let (asks, answers) = (child.stdin.take().ok_or("no input")?, child.stdout.take().ok_or("no output")?);
        Ok(Self { child, asks, answers: BufReader::new(answers) })
    }

    pub(crate) fn ask(&mut self, question: &str) -> Result<String, Box<dyn Error>> {
        writeln!(self.asks, "{question}")?;
        self.line()
    }

    /// It does nothing any more until it is told to go on.
    pub(crate) fn stand_still(&self) -> Result<(), Box<dyn Error>> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::STOP)?)
    }

    pub(crate) fn go_on(&self) -> Result<(), Box<dyn Error>> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    /// The next line it says.
    pub(crate) fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.is_empty() {
            Err("the driven process ended: see its error above".into())
        } else {
            Ok(line.trim().to_owned())
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
