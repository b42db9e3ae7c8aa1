//! Exact instruction counts, for gates: callgrind sees the same number on a loaded machine as on an idle one.
//!
//! The program runs itself under valgrind with one side of one figure and counts only what happens inside
//! [`measured_body`]. Two runs of different length are subtracted, so that what a body does once (growing to its
//! working size) does not count as an operation.

use std::process::{Command, Stdio};

use crate::harness::{Body, Figure};

/// Operations of the shorter and the longer run; fewer where they use something up.
const TIMES: [u64; 2] = [2_000, 12_000];

/// Counts both sides of every figure; returns whether all gates hold.
pub(crate) fn count(figures: &[&Figure], json: bool) -> Result<bool, String> {
    let mut held = true;
    if !json {
        println!("{:<34} {:>12} {:>12} {:>7} {:>7}  unit", "figure (callgrind)", "ours", "reference", "ratio", "gate");
    }
    for figure in figures {
        let ours = per_operation(figure.name, "ours")?;
        let reference = per_operation(figure.name, "reference")?;
        let ratio = ours / reference;
        let broken = figure.gate.is_some_and(|gate| ratio > gate);
        held &= !broken;
        let gate = figure.gate.map_or("null".to_string(), |gate| format!("{gate:.3}"));
        if json {
            println!(
                "{{\"figure\":\"{}\",\"ours\":{ours:.2},\"reference\":{reference:.2},\"ratio\":{ratio:.4},\
                 \"unit\":\"instructions/op\",\"gate\":{gate},\"held\":{}}}",
                figure.name, !broken
            );
        } else {
            let gate = if figure.gate.is_none() { "-" } else { gate.as_str() };
            let mark = if broken { "  ABOVE ITS GATE" } else { "" };
            println!(
                "{:<34} {ours:>12.2} {reference:>12.2} {ratio:>7.3} {gate:>7}  instructions/op{mark}",
                figure.name
            );
        }
    }
    Ok(held)
}

/// The other half: runs one side under the name that callgrind looks for.
pub(crate) fn run_body(figures: &[Figure], args: &[String]) -> Result<(), String> {
    let [name, side, times] = args else { return Err("--body takes FIGURE SIDE TIMES".to_string()) };
    let figure = figures.iter().find(|figure| figure.name == name).ok_or_else(|| format!("no figure {name}"))?;
    let times = times.parse().map_err(|_| format!("{times} is not a number of times"))?;
    let mut pair = (figure.setup)();
    let body = match side.as_str() {
        "ours" => {
            (pair.refill)(times);
            &mut pair.ours
        }
        "reference" => &mut pair.reference,
        other => return Err(format!("a side is ours or reference, not {other}")),
    };
    measured_body(body, times);
    Ok(())
}

/// Only the instructions of this function are counted; it must stay a function of its own.
#[inline(never)]
fn measured_body(body: &mut Body, times: u64) {
    body(times);
    std::hint::black_box(body);
}

fn per_operation(figure: &str, side: &str) -> Result<f64, String> {
    let [few, many] = TIMES.map(|times| instructions(figure, side, times));
    Ok((many?.saturating_sub(few?)) as f64 / (TIMES[1] - TIMES[0]) as f64)
}

fn instructions(figure: &str, side: &str, times: u64) -> Result<u64, String> {
    let exe = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*measured_body*"])
        .arg(exe)
        .args(["--body", figure, side, &times.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start valgrind ({error}); install it: sudo apt-get install -y valgrind"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("valgrind failed on {figure}:\n{said}"));
    }
    collected(&said).ok_or_else(|| format!("valgrind counted nothing for {figure}:\n{said}"))
}

/// From callgrind's `==123== Collected : 4567`.
fn collected(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(' ').next()?.parse().ok().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_what_callgrind_says() {
        assert_eq!(collected("==1== Events    : Ir\n==1== Collected : 4567\n==1==\n"), Some(4567));
        assert_eq!(collected("==1== Collected : 0\n"), None, "nothing collected means that the body was not found");
    }
}
