//! `tessera scan` beside another scanner, whole programs, in turns, in one run.
//!
//! Start-up is measured on an empty directory and taken off before bytes are divided by CPU time. CPU time is that of the
//! program and of all its children (git among them), as the kernel counts it when they are waited for; memory is the
//! largest of any of them. Only bytes that tessera searched count, for both: the other may read files that tessera leaves
//! out as binary, at its own cost.

use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Parser;

/// Runs tessera and a rival over the same things, in turns
#[derive(Debug, Parser)]
#[command(
    name = "scan_beside",
    after_help = "EXAMPLES
  cargo run --release -p tessera-bench --example scan_beside -- --tree /src --history /src \\
      --rival 'kingfisher scan -n --no-update-check --jobs 2'"
)]
struct Args {
    /// The program to measure
    #[arg(long, default_value = "target/release/tessera")]
    tessera: String,
    /// The command to measure it beside; the path is put after it
    #[arg(long)]
    rival: Option<String>,
    /// Directories to scan as they lie there
    #[arg(long)]
    tree: Vec<String>,
    /// Repositories to scan with their history
    #[arg(long)]
    history: Vec<String>,
    /// How often each is run; the run with the least CPU time counts, since load only adds
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Measures one command and prints its cost: how this program calls itself
    #[arg(long, hide = true, num_args = 1.., allow_hyphen_values = true)]
    measure: Vec<String>,
}

/// The cost of a program.
#[derive(Debug, Clone, Copy)]
struct Taken {
    cpu: f64,
    wall: f64,
    rss_mb: f64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = if args.measure.is_empty() { compare(&args) } else { measure_here(&args.measure) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::from(2)
        }
    }
}

fn compare(args: &Args) -> Result<(), String> {
    let empty = std::env::temp_dir().join(format!("scan-beside-{}", std::process::id()));
    std::fs::create_dir_all(&empty).map_err(|error| error.to_string())?;
    let empty_path = empty.display().to_string();
    let ours = |path: &str, history: bool| -> Vec<String> {
        let mut words = vec![args.tessera.clone(), "scan".into(), "--no-resume".into(), "--quiet".into()];
        words.extend(["--format", "json", "--rules", "builtin"].map(String::from));
        words.extend(history.then(|| "--history".into()));
        words.push(path.into());
        words
    };
    let rivals = |path: &str| -> Option<Vec<String>> {
        let words = args.rival.as_ref()?.split_whitespace().map(String::from);
        Some(words.chain([path.to_owned()]).collect())
    };
    println!("{:<28} {:>8} {:>8} {:>8} {:>10}", "", "CPU s", "wall s", "MB", "MB/CPU-s");
    let start = in_turns(args.rounds, &ours(&empty_path, false), rivals(&empty_path).as_deref())?;
    print("start-up", None, start);
    let targets = args.tree.iter().map(|path| (path, false)).chain(args.history.iter().map(|path| (path, true)));
    for (path, history) in targets {
        let bytes = bytes_searched(&ours(path, history))?;
        let taken = in_turns(args.rounds, &ours(path, history), rivals(path).as_deref())?;
        let name = format!("{} {path}", if history { "history" } else { "tree" });
        print(&name, Some((bytes, start)), taken);
    }
    std::fs::remove_dir(&empty).map_err(|error| error.to_string())
}

type Both = (Taken, Option<Taken>);

fn print(name: &str, searched: Option<(u64, Both)>, taken: Both) {
    println!("{name}");
    let line = |who: &str, taken: Taken, start: Option<Taken>| {
        let rate = searched.zip(start).map_or(String::new(), |((bytes, _), start)| {
            format!("{:10.1}", bytes as f64 / 1e6 / (taken.cpu - start.cpu).max(0.001))
        });
        println!("  {who:<26} {:8.2} {:8.2} {:8.0} {rate:>10}", taken.cpu, taken.wall, taken.rss_mb);
    };
    line("tessera", taken.0, searched.map(|(_, start)| start.0));
    if let Some(rival) = taken.1 {
        line("rival", rival, searched.and_then(|(_, start)| start.1));
        println!("  CPU of ours for each of its: {:.2}", taken.0.cpu / rival.cpu);
    }
}

fn in_turns(rounds: u32, ours: &[String], rival: Option<&[String]>) -> Result<Both, String> {
    let mut best: Option<Both> = None;
    let least = |a: Taken, b: Taken| if b.cpu < a.cpu { b } else { a };
    for _ in 0..rounds.max(1) {
        let taken = (measured(ours)?, rival.map(measured).transpose()?);
        best = Some(match best {
            None => taken,
            Some(best) => (least(best.0, taken.0), best.1.zip(taken.1).map(|(a, b)| least(a, b))),
        });
    }
    best.ok_or_else(|| "nothing was measured".into())
}

/// Runs the command below a program of its own, so that the cost of its children is not mixed with others'.
fn measured(command: &[String]) -> Result<Taken, String> {
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(me).arg("--measure").args(command).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [cpu, wall, rss_mb] => Ok(Taken { cpu, wall, rss_mb }),
        _ => Err(format!("{} could not be measured: {}", command.join(" "), String::from_utf8_lossy(&output.stderr))),
    }
}

fn measure_here(command: &[String]) -> Result<(), String> {
    let (program, args) = command.split_first().ok_or("there is nothing to run")?;
    let started = Instant::now();
    let status =
        Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let status = status.map_err(|error| format!("{program}: {error}"))?;
    let wall = started.elapsed().as_secs_f64();
    // Findings give codes of their own; a program that was killed or refused its arguments did no work.
    match status.code() {
        None => return Err(format!("{program} was killed")),
        Some(2) => return Err(format!("{program} failed")),
        Some(_) => {}
    }
    let usage = children();
    println!("{} {wall} {}", usage.0, usage.1);
    Ok(())
}

/// CPU seconds of all children that were waited for, and the largest memory of any of them in megabytes.
#[expect(unsafe_code, reason = "no safe interface offers the usage of children")]
fn children() -> (f64, f64) {
    // SAFETY: all zeros is a valid rusage, and getrusage writes to nothing but the place it is given.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime) + seconds(usage.ru_stime), usage.ru_maxrss as f64 / 1e3)
}

/// Bytes that tessera says it searched.
fn bytes_searched(command: &[String]) -> Result<u64, String> {
    let output = Command::new(&command[0]).args(&command[1..]).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let count = text.split("\"scanned_bytes\":").nth(1).map(|rest| rest.trim_start());
    let digits = count.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| format!("{} gave no receipt: {}", command.join(" "), String::from_utf8_lossy(&output.stderr)))
}
