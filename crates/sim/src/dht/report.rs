//! All scenarios at their usual sizes, as one document.

use std::path::Path;
use std::process::ExitCode;

use super::Scenario;
use super::scenario::{self, HOSTILE, Setup};

/// How public-key operations are answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    Table,
    Real,
}

/// What every report runs: the long ones last, so that a run that is stopped has said most. A quarter of an hour of
/// processor time.
const RUNS: [(Scenario, usize, Keys); 14] = [
    (Scenario::Steady, 1000, Keys::Table),
    (Scenario::Steady, 100, Keys::Real),
    (Scenario::Partition, 500, Keys::Table),
    (Scenario::Restart, 500, Keys::Table),
    (Scenario::Flood, 300, Keys::Table),
    (Scenario::Lanes, 300, Keys::Table),
    (Scenario::Odd, 300, Keys::Table),
    (Scenario::Sybil, 1000, Keys::Table),
    (Scenario::Sybils, 400, Keys::Table),
    (Scenario::Minority, 1000, Keys::Table),
    (Scenario::Matrix, 300, Keys::Table),
    (Scenario::Admission, 100, Keys::Table),
    (Scenario::Sweep, 1000, Keys::Table),
    (Scenario::Churn, 1000, Keys::Table),
];

/// What a full report runs besides: as long again, and ten gigabytes of memory.
const RUNS_FULL: [(Scenario, usize, Keys); 1] = [(Scenario::Steady, 10_000, Keys::Table)];

const PREFACE: &str = "# The DHT under simulation

The lane state machine that ships, in a virtual network: round trips of 10 to 460 ms (about 175 in the mean), 1 % loss, 0.5 %
duplicates, reordering by jitter, one node in ten behind a NAT and half of those unaware of it. Agreements and signatures
are answered from a table unless `--real-crypto` is given, as in the second table; everything symmetric is real. A node that keeps a
log acknowledges writes when its disk has them, four milliseconds later, and loses the rest when it dies. Each table is printed
by the command below it; `cargo run --release -p tessera-sim -- dht --report FILE --seed SEED` runs them all, and with `--full`
ten thousand nodes besides.

The last column has what others have published of theirs. Those figures are of real networks, and these of a virtual one: they
say what to expect of a good DHT, not who is faster.

";

pub(crate) fn write(path: &Path, seed: u64, quiet: bool, full: bool) -> ExitCode {
    let mut text = String::from(PREFACE);
    let mut passed = true;
    let mut missed = Vec::new();
    let besides = if full { &RUNS_FULL[..] } else { &[] };
    for (done, (scenario, nodes, keys)) in RUNS.iter().chain(besides).copied().enumerate() {
        eprintln!("{} of {}: {scenario:?}, {nodes} nodes", done + 1, RUNS.len() + besides.len());
        let findings = scenario::run(
            scenario,
            &Setup { nodes, seed, real_crypto: keys == Keys::Real, loss: None, hostile: HOSTILE, quiet },
        );
        if !findings.passed() {
            passed = false;
            missed.push(findings.title.clone());
        }
        text += &findings.table();
        text += &format!("\nReplay: `{}`\n\n", findings.replay);
        // Written after every scenario: a long run that is stopped has still said something.
        if let Err(error) = std::fs::write(path, &text) {
            eprintln!("cannot write {}: {error}", path.display());
            return ExitCode::from(2);
        }
    }
    for title in missed {
        eprintln!("an aim or a checker failed: {title}");
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
