//! One line that tells how far a scan has come.

use std::io::{self, Write};
use std::time::Duration;

use tessera_scan::report::human::bytes;
use tessera_scan::run::Progress;

/// Between two drawings.
const INTERVAL: Duration = Duration::from_millis(100);
const WIDTH: u64 = 24;

/// A line on standard error that is drawn again and again.
#[derive(Debug)]
pub(crate) struct Bar {
    is_shown: bool,
    drawn_at: Option<Duration>,
}

impl Bar {
    pub(crate) fn new(is_shown: bool) -> Self {
        Self { is_shown, drawn_at: None }
    }

    pub(crate) fn show(&mut self, progress: &Progress) {
        let is_soon = self.drawn_at.is_some_and(|drawn| progress.elapsed < drawn + INTERVAL);
        if !self.is_shown || is_soon {
            return;
        }
        self.drawn_at = Some(progress.elapsed);
        let _ = write!(io::stderr(), "\r\x1b[K{}", line(progress));
        let _ = io::stderr().flush();
    }

    pub(crate) fn clear(&mut self) {
        if self.drawn_at.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(progress: &Progress) -> String {
    let seconds = progress.elapsed.as_secs_f64().max(0.001);
    let rate = (progress.bytes as f64 / seconds) as u64;
    let mut line = String::new();
    if let Some(total) = progress.bytes_total.filter(|&total| total > 0) {
        let done = progress.bytes.min(total);
        let filled = (u128::from(done) * u128::from(WIDTH) / u128::from(total)) as usize;
        line.push_str(&format!(
            "[{}{}] {:>3} %  ",
            "#".repeat(filled),
            ".".repeat(WIDTH as usize - filled),
            u128::from(done) * 100 / u128::from(total)
        ));
    } else if progress.is_resumed {
        line.push_str("continued  ");
    }
    line.push_str(&format!("{} files  {}  {}/s", progress.items, bytes(progress.bytes), bytes(rate)));
    if progress.findings > 0 {
        line.push_str(&format!("  {} found", progress.findings));
    }
    if let Some(total) = progress.bytes_total
        && rate > 0
        && progress.elapsed > Duration::from_secs(1)
    {
        let left = total.saturating_sub(progress.bytes) / rate;
        line.push_str(&format!("  {:02}:{:02} left", left / 60, left % 60));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_share_rate_and_time_left() {
        let progress = Progress {
            items: 10,
            bytes: 50_000_000,
            bytes_total: Some(200_000_000),
            elapsed: Duration::from_secs(2),
            ..Progress::default()
        };
        assert_eq!(line(&progress), "[######..................]  25 %  10 files  50.0 MB  25.0 MB/s  00:06 left");
        // Files that grew since they were counted do not overflow the bar.
        let grown = Progress { bytes: 300_000_000, ..progress };
        assert!(line(&grown).starts_with("[########################] 100 %"));
    }
}
