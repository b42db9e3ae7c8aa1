//! One line that tells how far a scan has come.

use std::time::Duration;

use tessera_scan::report::human::bytes;
use tessera_scan::run::Progress;

use crate::redrawn::{self, INTERVAL};
use crate::tell::count;

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
        let (bar, words) = line(progress);
        redrawn::draw(&bar, &words);
    }

    pub(crate) fn clear(&mut self) {
        if self.drawn_at.take().is_some() {
            redrawn::clear();
        }
    }
}

/// The picture and the words.
fn line(progress: &Progress) -> (String, String) {
    let seconds = progress.elapsed.as_secs_f64().max(0.001);
    let rate = (progress.bytes as f64 / seconds) as u64;
    let (mut bar, mut line) = (String::new(), String::new());
    if let Some(total) = progress.bytes_total.filter(|&total| total > 0) {
        let done = progress.bytes.min(total);
        bar = redrawn::bar(done, total);
        line.push_str(&format!("{:>3} %  ", u128::from(done) * 100 / u128::from(total)));
    } else if progress.is_resumed {
        line.push_str("continued  ");
    }
    line.push_str(&format!("{}  {}  {}/s", count(progress.items, "file"), bytes(progress.bytes), bytes(rate)));
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
    (bar, line)
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
        let drawn = |progress: &Progress| line(progress).0 + &line(progress).1;
        assert_eq!(drawn(&progress), "[######..................]  25 %  10 files  50.0 MB  25.0 MB/s  00:06 left");
        let one = Progress { items: 1, ..progress };
        assert!(drawn(&one).contains("  1 file  "), "one is not told as many");
        // Files that grew since they were counted do not overflow the bar.
        let grown = Progress { bytes: 300_000_000, ..progress };
        assert!(drawn(&grown).starts_with("[########################] 100 %"));
    }
}
