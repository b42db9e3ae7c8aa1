//! Running another program: output to a log file, silence on the screen, an end if it hangs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::repo::Repo;
use crate::report::{Failure, Progress};

/// A program that neither says nor computes anything for this long is taken for hung and ended. However long it takes on a slow or
/// busy machine, it may go on while it does something.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// How often a silent program is asked for its processor time.
const LOOK_EVERY: Duration = Duration::from_secs(20);

/// Does `work` for each of them, for as many at once as there are processors, and gives the results in their order. Once one failed no
/// other is begun, and of failures the first in order counts.
pub(crate) fn each_of<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, Failure> + Sync,
) -> Result<Vec<R>, Failure> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from).min(items.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Relaxed);
                    let Some(item) = items.get(at) else { return };
                    let result = work(item);
                    if result.is_err() {
                        next.store(items.len(), Relaxed);
                    }
                    done.lock().expect("no work panics with it").push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no work panics with it");
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A program with its arguments, to be run in the root of the tree.
#[derive(Debug)]
pub(crate) struct Run {
    command: Command,
    program: String,
    log: String,
    doing: Option<String>,
}

/// Its output and its end.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) success: bool,
    pub(crate) output: String,
    pub(crate) log: PathBuf,
}

impl Run {
    /// `log` names the file below `target/xtask/logs` that keeps the output.
    pub(crate) fn new(program: impl AsRef<OsStr>, log: impl Into<String>) -> Self {
        let program = program.as_ref();
        let name = program.to_string_lossy().into_owned();
        Self { command: Command::new(program), program: name, log: log.into(), doing: None }
    }

    /// Cargo, never touching the lock file, never colouring logs.
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

    /// The text of the progress line instead of the command.
    pub(crate) fn doing(mut self, what: impl Into<String>) -> Self {
        self.doing = Some(what.into());
        self
    }

    pub(crate) fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.command.current_dir(folder.into());
        self
    }

    /// Runs to any end. An error means that it could not be started or watched.
    pub(crate) fn end(mut self, repo: &Repo, progress: &Progress) -> Result<Ended, Failure> {
        let log = repo.scratch("logs")?.join(format!("{}.log", self.log));
        let file = File::create(&log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        let twin = file.try_clone().map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        if self.command.get_current_dir().is_none() {
            self.command.current_dir(&repo.root);
        }
        // Cargo set these variables for xtask; they would make the inner build differ from a plain one.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_")) {
            self.command.env_remove(name);
        }
        self.command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH");
        let line = self.line();
        let doing = self.doing.take().unwrap_or_else(|| line.clone());
        let mut child = self.command.stdin(Stdio::null()).stdout(file).stderr(twin).spawn().map_err(|error| {
            Failure::of(format!("cannot start {}: {error}", self.program), format!("the command was: {line}"))
        })?;
        let mut signs = Signs::at(Instant::now());
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if signs.are_gone(Instant::now(), length(&log), || processor_ticks(child.id())) => {
                    end_with_descendants(child.id());
                    let _ = child.wait();
                    let minutes = IDLE_MAX.as_secs() / 60;
                    let said = format!("{} did nothing for {minutes} minutes and was ended", self.program);
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
        // An error of a compiler or linker on a full disk looks like an error in the code.
        let said = match self.output.contains("No space left on device") {
            true => format!("the disk is full; make room and run again: {line}"),
            false => format!("failed: {line}"),
        };
        Failure::of(said, format!("{}\nlog: {}\nagain: {line}", self.output, self.log.display()))
    }
}

/// Signs of life of a program: its output, and the processor time that it and all it started have used.
#[derive(Debug)]
struct Signs {
    said: u64,
    ticks: u64,
    /// When there was a sign.
    last: Instant,
    looked: Instant,
}

impl Signs {
    fn at(now: Instant) -> Self {
        Self { said: 0, ticks: 0, last: now, looked: now }
    }

    /// Whether there was none for too long. `ticks` is asked now and then, since it takes a while.
    fn are_gone(&mut self, now: Instant, said: u64, ticks: impl FnOnce() -> u64) -> bool {
        let mut is_alive = said != self.said;
        self.said = said;
        if !is_alive && now.duration_since(self.looked) >= LOOK_EVERY {
            let before = std::mem::replace(&mut self.ticks, ticks());
            (self.looked, is_alive) = (now, before != self.ticks);
        }
        if is_alive {
            self.last = now;
        }
        now.duration_since(self.last) > IDLE_MAX
    }
}

fn length(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |metadata| metadata.len())
}

/// Processor time of a process and everything it started, in ticks.
fn processor_ticks(root: u32) -> u64 {
    let stats = descendants(root, &parents()).into_iter().map(|pid| fs::read_to_string(format!("/proc/{pid}/stat")));
    stats.flatten().map(|stat| ticks_in(&stat)).sum()
}

/// Ticks in a line of `/proc/PID/stat`, with those of children that have ended.
fn ticks_in(stat: &str) -> u64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Ends a process and everything it started. Ending cargo alone would leave its compilers and tests running, and the build
/// folder locked for the next step. (A process group of its own would do this too, but then Ctrl-C would not reach it.)
fn end_with_descendants(root: u32) {
    let doomed = descendants(root, &parents()).iter().map(u32::to_string).collect::<Vec<_>>();
    // The shell's own `kill`: a minimal system has no program of that name.
    let _ = Command::new("sh").args(["-c", r#"kill -KILL "$@""#, "kill"]).args(doomed).stderr(Stdio::null()).status();
}

/// Every process with its parent.
fn parents() -> Vec<(u32, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let parent = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, parent_in(&fs::read_to_string(entry.path().join("stat")).ok()?)?))
    };
    entries.filter_map(parent).collect()
}

/// The parent's id in a line of `/proc/PID/stat`: the second field after the name, which may itself hold blanks and brackets.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// `root` and all below it, given every process with its parent.
fn descendants(root: u32, parents: &[(u32, u32)]) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(
            parents
                .iter()
                .filter(|(pid, of)| *of == parent && !found.contains(pid))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        next += 1;
    }
    found
}

fn read_log(log: &PathBuf) -> String {
    fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Whether a program of this name can be found.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_of_failures_the_first_counts() {
        let items: Vec<u32> = (0..1000).collect();
        assert_eq!(each_of(&items, |item| Ok(item * 2)).unwrap(), (0..1000).map(|n| n * 2).collect::<Vec<_>>());
        let begun = AtomicUsize::new(0);
        let failed = each_of(&items, |item| {
            begun.fetch_add(1, Relaxed);
            if *item < 3 { Ok(()) } else { Err(Failure::from(item.to_string())) }
        });
        assert_eq!(failed.unwrap_err().said, "3");
        assert!(begun.into_inner() < items.len(), "no more are begun then");
    }

    #[test]
    fn a_program_that_says_or_computes_something_goes_on_however_long_it_takes() {
        let begun = Instant::now();
        let after = |minutes: u64| begun + Duration::from_secs(60 * minutes);
        let mut signs = Signs::at(begun);
        for minutes in (0..600).step_by(29) {
            assert!(!signs.are_gone(after(minutes), minutes, || 0), "it says something after {minutes} minutes");
        }
        for minutes in (600..1200).step_by(29) {
            assert!(!signs.are_gone(after(minutes), 600, || minutes), "it computes after {minutes} minutes");
        }
        assert!(!signs.are_gone(after(1209), 600, || 1180));
        assert!(signs.are_gone(after(1211), 600, || 1180), "it did nothing for half an hour");
    }

    #[test]
    fn processor_time_is_that_of_all_descendants_and_of_those_that_ended() {
        assert_eq!(ticks_in("42 (a) b (c) S 7 1 1 0 -1 0 0 0 0 0 5 6 700 8000 20 0"), 8_711);
        assert_eq!(ticks_in("nonsense"), 0);
        let mut child = Command::new("sh").args(["-c", "(while :; do :; done) & wait"]).spawn().unwrap();
        while processor_ticks(child.id()) < 3 {
            thread::sleep(Duration::from_millis(5));
        }
        end_with_descendants(child.id());
        child.wait().unwrap();
    }

    #[test]
    fn descendants_are_found_at_every_depth_and_strangers_are_not() {
        let parents = [(1, 0), (10, 1), (11, 10), (12, 11), (13, 10), (20, 1), (21, 20)];
        assert_eq!(descendants(10, &parents), [10, 11, 13, 12]);
    }

    #[test]
    fn a_parent_is_read_past_a_name_with_blanks_and_brackets() {
        assert_eq!(parent_in("42 (a) b (c) S 7 42 42 0"), Some(7));
        assert_eq!(parent_in("nonsense"), None);
    }

    #[test]
    fn a_full_disk_is_called_by_its_name() {
        let ended = |output: &str| Ended { success: false, output: output.to_string(), log: PathBuf::from("a.log") };
        let full = ended("/usr/bin/ld: final link failed: No space left on device").failure("cargo test");
        assert_eq!(full.said, "the disk is full; make room and run again: cargo test");
        assert_eq!(ended("error[E0308]").failure("cargo test").said, "failed: cargo test");
    }

    #[test]
    fn ending_a_process_ends_what_it_started() {
        let mut child =
            Command::new("sh").args(["-c", "sleep 600 & echo $!; wait"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let said = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line).unwrap();
        let grandchild: u32 = line.trim().parse().unwrap();
        end_with_descendants(child.id());
        child.wait().unwrap();
        // Its adoptive parent may take a moment to bury it; a zombie has ended.
        let alive = || {
            let stat = fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
        };
        while alive() {
            thread::sleep(Duration::from_millis(5));
        }
    }
}
