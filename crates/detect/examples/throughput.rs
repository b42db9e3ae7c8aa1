//! How fast the detector reads: `cargo run --release -p tessera-detect --example throughput -- DIR…`
//!
//! `GITLEAKS_RULES=FILE` takes the rules of a gitleaks configuration instead of the built-in ones; `SHOW=1` lists the findings, redacted.
//!
//! Files are read into memory first. Beside the detector runs a bare Aho-Corasick search for the same keywords over the
//! same bytes: the least that any scanner of this kind pays. Figures are the best of several passes, in CPU time of the one thread
//! (from `/proc/thread-self/schedstat`; by the wall clock where there is none).

use std::path::{Path, PathBuf};
use std::time::Instant;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use tessera_detect::{Detector, Options, RuleSet, Source, gitleaks};

const PASSES: usize = 5;

fn main() {
    let roots: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let mut files = Vec::new();
    for root in if roots.is_empty() { vec![PathBuf::from(".")] } else { roots } {
        collect(&root, &mut files);
    }
    let bytes: usize = files.iter().map(|(_, text)| text.len()).sum();
    println!("{} files, {:.1} MB", files.len(), bytes as f64 / 1e6);

    let started = Instant::now();
    let rules = match std::env::var_os("GITLEAKS_RULES") {
        None => RuleSet::builtin(),
        Some(path) => {
            let text = std::fs::read_to_string(path).expect("the rule file can be read");
            let rules =
                gitleaks::read(&text, &mut |path| std::fs::read_to_string(path).map_err(|error| error.to_string()));
            rules.unwrap_or_else(|error| panic!("{error}"))
        }
    };
    let parsed = started.elapsed();
    let mut detector = Detector::new(&rules).expect("built-in rules are consistent");
    println!(
        "{} rules read in {:.1} ms, made ready in {:.1} ms, automaton {:.1} MB",
        detector.rules_len(),
        parsed.as_secs_f64() * 1e3,
        (started.elapsed() - parsed).as_secs_f64() * 1e3,
        detector.automaton_bytes() as f64 / 1e6
    );

    let keywords: std::collections::BTreeSet<&str> =
        rules.rules().iter().flat_map(|rule| rule.keywords.iter().map(String::as_str)).collect();
    let bare = AhoCorasick::builder()
        .kind(Some(AhoCorasickKind::DFA))
        .ascii_case_insensitive(true)
        .build(&keywords)
        .expect("keywords are few and short");
    let mut hits = 0;
    report("bare aho-corasick", bytes, || hits = files.iter().map(|(_, text)| bare.find_iter(text).count()).sum());
    println!("  {hits} keyword hits");

    let mut findings = 0;
    report("detector", bytes, || findings = scan(&mut detector, &files));
    println!("  {findings} findings");
    let mut plain =
        Detector::with_options(&rules, Options { decode_depth: 0, ..Options::default() }).expect("as above");
    report("detector, no decoding", bytes, || findings = scan(&mut plain, &files));
    if std::env::var_os("SHOW").is_some() {
        for (path, text) in &files {
            detector.scan_bytes(Source::path(path.as_os_str().as_encoded_bytes()), text, |f| {
                println!(
                    "{}:{} {} {} {:?}",
                    path.display(),
                    f.start.line,
                    f.rule.id,
                    f.secret.redacted(),
                    f.decoded_from
                );
            });
        }
    }
}

fn scan(detector: &mut Detector, files: &[(PathBuf, Vec<u8>)]) -> u64 {
    files
        .iter()
        .map(|(path, text)| {
            detector.scan_bytes(Source::path(path.as_os_str().as_encoded_bytes()), text, |_| {}).findings
        })
        .sum()
}

fn report(what: &str, bytes: usize, mut pass: impl FnMut()) {
    let best = (0..PASSES)
        .map(|_| {
            let started = (Instant::now(), cpu_seconds());
            pass();
            match started.1.zip(cpu_seconds()) {
                Some((before, after)) => after - before,
                None => started.0.elapsed().as_secs_f64(),
            }
        })
        .fold(f64::INFINITY, f64::min);
    println!("{what}: {:.0} MB per CPU second", bytes as f64 / 1e6 / best);
}

fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse::<f64>().ok().map(|nanoseconds| nanoseconds / 1e9)
}

fn collect(path: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    let Ok(kind) = path.symlink_metadata() else { return };
    if kind.is_dir() {
        let mut entries: Vec<_> =
            std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        entries.sort();
        entries
            .iter()
            .filter(|entry| entry.file_name().is_none_or(|name| name != ".git"))
            .for_each(|entry| collect(entry, files));
    } else if kind.is_file()
        && let Ok(text) = std::fs::read(path)
    {
        files.push((path.to_owned(), text));
    }
}
