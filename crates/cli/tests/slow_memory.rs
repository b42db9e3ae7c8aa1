//! Memory does not grow with the input: one large file, many small ones, a long history.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

fn token(seed: u64) -> String {
    let mut seed = tessera_detect::template::Seed::new(seed);
    tessera_detect::template::expand("ghp_<<github 30>>", &mut seed).unwrap()
}

/// The most memory a process ever had, in kilobytes; 0 once it is gone.
fn peak(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

/// Its own and that of its children: git reads for us, so its memory counts as ours.
fn peak_with_children(process: u32) -> u64 {
    let mut sum = peak(process);
    for task in std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        sum += children.split_whitespace().filter_map(|child| child.parse().ok()).map(peak).sum::<u64>();
    }
    sum
}

/// Scans with two workers; returns the report and the most memory it took, in megabytes.
fn scan(path: &Path, args: &[&str]) -> (Value, u64) {
    let report = path.with_extension("report");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
    command.args(["scan", "--no-resume", "--format", "json", "-j", "2"]).args(args).arg("--output").arg(&report);
    let mut child = command.arg(path).stdout(Stdio::null()).spawn().unwrap();
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        most = most.max(peak_with_children(child.id()));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let megabytes = most / 1_000;
    println!("{args:?}: {megabytes} MB at most");
    assert!(megabytes > 1, "it was measured");
    (serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap(), megabytes)
}

#[test]
fn a_file_of_a_gigabyte_takes_no_more_memory_than_a_small_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large");
    let mut file = std::fs::File::create(&path).unwrap();
    // A hole on the disk, but a gigabyte for its reader.
    file.seek(SeekFrom::Start(1_000_000_000)).unwrap();
    file.write_all(format!("\nTOKEN={}\n", token(1)).as_bytes()).unwrap();
    let (report, megabytes) = scan(&path, &["--binary"]);
    assert_eq!(report["findings"].as_array().unwrap().len(), 1, "the secret at its end is found");
    assert!(report["receipt"]["scanned_bytes"].as_u64().unwrap() > 1_000_000_000);
    assert!(megabytes < 100, "{megabytes} MB");
}

#[test]
fn two_hundred_thousand_files_stay_within_a_hundred_megabytes() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    for i in 0..200_000_u32 {
        // Half of them in one directory.
        let folder = if i % 2 == 0 { root.join("all") } else { root.join(format!("{:03}", i % 200)) };
        if i < 400 {
            std::fs::create_dir_all(&folder).unwrap();
        }
        std::fs::write(folder.join(format!("file-{i:06}")), b"plain\n").unwrap();
    }
    std::fs::write(root.join("all/zzz"), format!("TOKEN={}\n", token(2))).unwrap();
    let (report, megabytes) = scan(&root, &[]);
    assert_eq!(report["receipt"]["scanned"], 200_001);
    assert!(megabytes < 100, "{megabytes} MB");
}

#[test]
fn a_history_of_a_hundred_thousand_objects_stays_within_two_hundred_and_fifty_megabytes() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("repository");
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        git.args(args).env("GIT_CONFIG_GLOBAL", "/dev/null");
        git
    };
    assert!(git(&["init", "-q", root.to_str().unwrap()]).status().unwrap().success());
    let import = ["-C", root.to_str().unwrap(), "fast-import", "--quiet"];
    let mut import = git(&import).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = BufWriter::new(import.stdin.take().unwrap());
    // A thousand versions of a hundred files.
    for commit in 0..1_000_u32 {
        writeln!(input, "commit refs/heads/main\ncommitter Ada <ada@example.org> {} +0000", 1_700_000_000 + commit)
            .unwrap();
        writeln!(input, "data 1\nx").unwrap();
        for file in 0..100 {
            let secret = if commit == 500 && file == 7 { format!("TOKEN={}\n", token(3)) } else { String::new() };
            let text = format!("version {commit} of {file}\n{secret}{}", "the same line in every version\n".repeat(40));
            write!(input, "M 100644 inline dir/{file:03}\ndata {}\n{text}\n", text.len()).unwrap();
        }
    }
    input.into_inner().unwrap();
    assert!(import.wait().unwrap().success());
    let (report, megabytes) = scan(&root, &["--history"]);
    assert_eq!(report["receipt"]["scanned"], 100_000, "each blob once");
    assert_eq!(report["findings"].as_array().unwrap().len(), 1);
    assert!(megabytes < 250, "{megabytes} MB");
}
