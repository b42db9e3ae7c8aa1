//! Answers on standard output, and words beside them on standard error.
//!
//! An answer that cannot be written is a failure of the command. Words beside it that cannot be written, to a full disk or to a
//! reader that went away, are left out: they are no reason to stop the command. The macros of the standard library would
//! end the program in both cases, so `main.rs` has them refused by the lints.

use std::fmt;
use std::io::{self, Write as _};

use tessera_scan::report::human::steers;
pub(crate) use tessera_scan::report::human::{clean, count};
use tessera_scan::report::redact::{Redactor, Shown};

/// Writes a line to standard error, as `eprintln!` does, and goes on if that fails.
macro_rules! tell {
    ($($arg:tt)*) => { $crate::tell::line(format_args!($($arg)*)) };
}

pub(crate) fn line(text: fmt::Arguments<'_>) {
    // In one piece, since others may write to the same place.
    let _ = io::stderr().write_all(format!("{}\n", harmless(&text.to_string())).as_bytes());
}

/// Words that may quote a scanned item, made fit to be displayed: secrets in them are shortened.
pub(crate) fn shown(text: impl fmt::Display) -> Shown {
    thread_local! {
        static REDACTOR: Redactor = Redactor::builtin();
    }
    REDACTOR.with(|redactor| redactor.show(text.to_string()))
}

/// Names in an error may be a stranger's: none of them is to steer the terminal. Words may have several lines.
fn harmless(text: &str) -> String {
    let is_harmful = |char: char| steers(char) && char != '\n' && char != '\t';
    text.chars().map(|char| if is_harmful(char) { '\u{fffd}' } else { char }).collect()
}

/// Writes to standard output; a reader that closes early is no error.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<(), String> {
    print_to_reader(text).map(drop)
}

/// The same, for output that is printed again and again: false as soon as its reader is gone.
pub(crate) fn print_to_reader(text: impl AsRef<[u8]>) -> Result<bool, String> {
    let mut out = io::stdout();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("cannot write to standard output: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_lines_and_columns_but_do_not_steer_the_terminal() {
        assert_eq!(harmless("a\tb\nc"), "a\tb\nc");
        assert_eq!(harmless("txt.\u{202e}exe"), "txt.\u{fffd}exe");
        assert_eq!(harmless("\x1b[2Jx\r\u{9b}"), "\u{fffd}[2Jx\u{fffd}\u{fffd}");
    }
}
