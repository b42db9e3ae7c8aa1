//! Tables for people, no wider than their window.

use std::io::{self, IsTerminal as _};

use rustix::termios::tcgetwinsize;

/// Of a window that does not say how wide it is.
const COLUMNS_DEFAULT: usize = 80;

/// Where a table is printed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// `None` if standard output is no terminal: then nothing is cut, and there is no header.
    pub(crate) columns: Option<usize>,
}

impl Window {
    /// That of standard output.
    pub(crate) fn of_stdout() -> Self {
        let out = io::stdout();
        if !out.is_terminal() {
            return Self { columns: None };
        }
        let columns = tcgetwinsize(out).map_or(0, |size| usize::from(size.ws_col));
        Self { columns: Some(if columns == 0 { COLUMNS_DEFAULT } else { columns }) }
    }

    /// A line, cut at its end if it is too long.
    pub(crate) fn line(self, text: &str) -> String {
        match self.columns {
            Some(columns) if text.chars().count() > columns => {
                let kept: String = text.chars().take(columns.saturating_sub(1)).collect();
                format!("{kept}\u{2026}\n")
            }
            _ => format!("{text}\n"),
        }
    }

    /// The end of `path`, which tells more than its beginning, if there is no room for all of it behind `used` columns and in front
    /// of `after`.
    pub(crate) fn path(self, path: &str, used: usize, after: usize) -> String {
        let len = path.chars().count();
        match self.columns.map(|columns| columns.saturating_sub(used + after)) {
            Some(room) if len > room => {
                let kept: String = path.chars().skip(len - room.saturating_sub(1).min(len)).collect();
                format!("\u{2026}{kept}")
            }
            _ => path.to_owned(),
        }
    }
}

/// A length of time in one unit.
pub(crate) fn age(milliseconds: u64) -> String {
    match milliseconds / 1_000 {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// A share of something in percent; less than all of it is never told as all.
pub(crate) fn percent(done: u64, total: u64) -> String {
    match (u128::from(done) * 100).checked_div(u128::from(total)) {
        Some(percent) => format!("{}%", percent.min(100)),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_paths_fit_their_window() {
        let window = Window { columns: Some(10) };
        assert_eq!(
            (window.line("0123456789"), window.line("0123456789a")),
            ("0123456789\n".into(), "012345678\u{2026}\n".into())
        );
        assert_eq!(window.path("/srv/git/one", 2, 0), "\u{2026}git/one");
        assert_eq!(window.path("/srv/git/one", 2, 3), "\u{2026}/one");
        assert_eq!(window.path("one", 2, 0), "one");
        assert_eq!(window.path("/srv", 20, 0), "\u{2026}");
        let pipe = Window { columns: None };
        assert_eq!(
            (pipe.line("0123456789a"), pipe.path("/srv/git/one", 100, 0)),
            ("0123456789a\n".into(), "/srv/git/one".into())
        );
    }

    #[test]
    fn ages_and_shares_are_short() {
        assert_eq!([0, 119_999, 120_000, 7_200_000, 172_800_000].map(age), ["0s", "119s", "2m", "2h", "2d"]);
        assert_eq!(
            [(0, 3), (2, 3), (3, 3), (4, 3), (999, 1_000), (0, 0)].map(|(done, total)| percent(done, total)),
            ["0%", "66%", "100%", "100%", "99%", "-"]
        );
    }
}
