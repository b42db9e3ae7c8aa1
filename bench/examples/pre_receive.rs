//! How long a server's hook takes to judge a push: `git push` with the hook beside `git push` without it, in turns, in one run.
//!
//! A push of new files goes to a bare repository with a history of its own. What the hook adds is what the sender waits for.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Parser;

/// Pushes to a server with and without the hook, in turns
#[derive(Debug, Parser)]
#[command(name = "pre_receive")]
struct Args {
    /// The program whose hook is installed
    #[arg(long, default_value = "target/release/tessera")]
    tessera: PathBuf,
    /// New files in one push
    #[arg(long, default_value_t = 1_000)]
    objects: usize,
    /// How often each is measured
    #[arg(long, default_value_t = 7)]
    rounds: u32,
}

fn main() -> ExitCode {
    match compare(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::from(2)
        }
    }
}

fn compare(args: &Args) -> Result<(), String> {
    let program = args.tessera.canonicalize().map_err(|error| format!("{}: {error}", args.tessera.display()))?;
    let dir = std::env::temp_dir().join(format!("pre-receive-{}", std::process::id()));
    let (server, clone) = (dir.join("server.git"), dir.join("clone"));
    std::fs::create_dir_all(&clone).map_err(|error| error.to_string())?;
    git(&dir, &["init", "-q", "--bare", "-b", "main", "server.git"])?;
    git(&clone, &["init", "-q", "-b", "main"])?;
    git(&clone, &["remote", "add", "origin", &server.display().to_string()])?;
    files(&clone, "old", args.objects * 10)?;
    commit(&clone)?;
    git(&clone, &["push", "-q", "origin", "main"])?;
    files(&clone, "new", args.objects)?;
    commit(&clone)?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        for (times, verb) in [(&mut without, "uninstall"), (&mut with, "install")] {
            // The first time there is nothing to remove.
            let _ = Command::new(&program).args(["hook", verb, "pre-receive", "--repository"]).arg(&server).output();
            let started = Instant::now();
            git(&clone, &["push", "-q", "origin", "main:refs/heads/pushed"])?;
            times.push(started.elapsed().as_secs_f64());
            git(&server, &["update-ref", "-d", "refs/heads/pushed"])?;
            git(&server, &["prune", "--expire=now"])?;
        }
    }
    for (name, times) in [("without the hook", &mut without), ("with the hook", &mut with)] {
        times.sort_by(f64::total_cmp);
        println!(
            "{name:<18} median {:.3} s  least {:.3} s  most {:.3} s",
            times[times.len() / 2],
            times[0],
            times[times.len() - 1]
        );
    }
    let added = with[with.len() / 2] - without[without.len() / 2];
    println!("the hook adds {added:.3} s for {} new files, of {} that the server has", args.objects, args.objects * 10);
    std::fs::remove_dir_all(&dir).map_err(|error| error.to_string())
}

/// Files of some kilobytes of text, each another.
fn files(root: &Path, folder: &str, count: usize) -> Result<(), String> {
    let folder = root.join(folder);
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    for file in 0..count {
        let line = |line: usize| format!("let value_{line} = compute({file}, {line}, \"{}\");\n", folder.display());
        let text: String = (0..60).map(line).collect();
        std::fs::write(folder.join(format!("{file}.rs")), text).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn commit(root: &Path) -> Result<(), String> {
    git(root, &["add", "-A"])?;
    git(root, &["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-q", "-m", "files"])
}

fn git(dir: &Path, args: &[&str]) -> Result<(), String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).args(args).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("cannot run git: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("git {args:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}
