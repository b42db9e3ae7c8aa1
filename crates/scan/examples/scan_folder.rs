//! Scans the folders it is given, and says where secrets are and whether everything was read.
//!
//! ```text
//! cargo run --release -p tessera-scan --example scan_folder -- PATH…
//! ```

use std::process::ExitCode;

use tessera_scan::Scan;

fn main() -> ExitCode {
    let report = match Scan::of(std::env::args_os().skip(1)).run() {
        Ok(report) => report,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    for finding in &report.findings {
        for location in &finding.locations {
            let place = &location.occurrence;
            let path = String::from_utf8_lossy(&place.path);
            println!("{}:{}: {} ({})", path, place.start.line, finding.rule, finding.redacted);
        }
    }
    let tally = &report.receipt.tally;
    println!("{} items met, {} read, complete: {}", tally.enumerated(), tally.scanned, report.receipt.is_complete());
    ExitCode::from(report.exit_status() as u8)
}
