//! A line on standard error that is drawn again and again over itself.
//!
//! It is never longer than its window: a terminal wraps a longer line and leaves the rest behind at each drawing.

use std::io::{self, Write as _};
use std::time::Duration;

use rustix::termios::tcgetwinsize;

/// Between two drawings.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// Of a window that does not say how wide it is.
const COLUMNS_DEFAULT: usize = 80;

const BAR_WIDTH: u64 = 24;

/// Draws `words`, and `bar` in front of them if there is room for both.
pub(crate) fn draw(bar: &str, words: &str) {
    let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    let columns = if columns == 0 { COLUMNS_DEFAULT } else { columns };
    let mut out = io::stderr();
    let _ = out.write_all(format!("\r\x1b[K{}", fitted(bar, words, columns)).as_bytes());
}

/// Takes it away.
pub(crate) fn clear() {
    let _ = io::stderr().write_all(b"\r\x1b[K");
}

/// How much of `total` is done, as a picture; more than all of it is drawn as all of it.
pub(crate) fn bar(done: u64, total: u64) -> String {
    let filled = (u128::from(done) * u128::from(BAR_WIDTH)).checked_div(u128::from(total)).unwrap_or(0);
    let filled = (filled as u64).min(BAR_WIDTH) as usize;
    format!("[{}{}] ", "#".repeat(filled), ".".repeat(BAR_WIDTH as usize - filled))
}

/// The last column stays free: some terminals go to the next line as soon as it is written.
fn fitted(bar: &str, words: &str, columns: usize) -> String {
    let room = columns.saturating_sub(1);
    let needed = bar.chars().count() + words.chars().count();
    if needed <= room { format!("{bar}{words}") } else { words.chars().take(room).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_up_its_picture_and_then_its_last_words_to_fit() {
        assert_eq!(fitted("[##..] ", "50 %  10/s", 18), "[##..] 50 %  10/s");
        assert_eq!(fitted("[##..] ", "50 %  10/s", 17), "50 %  10/s");
        assert_eq!(fitted("[##..] ", "50 %  10/s", 11), "50 %  10/s");
        assert_eq!(fitted("[##..] ", "50 %  10/s", 10), "50 %  10/");
        assert_eq!(fitted("[##..] ", "50 %  10/s", 0), "");
    }

    #[test]
    fn a_bar_does_not_overflow() {
        assert_eq!(bar(1, 4), "[######..................] ");
        assert_eq!(bar(9, 3), "[########################] ");
        assert_eq!(bar(u64::MAX, u64::MAX), "[########################] ");
        assert_eq!(bar(0, 0), "[........................] ");
    }
}
