//! The text that was refused, as an error message shows it: quoted, escaped, and cut where it grows long.

use core::fmt;

/// The most bytes of a refused text that its error keeps.
const KEPT_BYTES_MAX: usize = 32;

/// The start of a text from outside, kept without allocation. Only for text that may be shown: ids, never keys or secrets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SeenText {
    kept: [u8; KEPT_BYTES_MAX],
    kept_bytes: u8,
    is_cut: bool,
}

impl SeenText {
    /// Keeps whole characters only.
    pub fn of(text: &str) -> Self {
        let start = &text[..text.floor_char_boundary(KEPT_BYTES_MAX)];
        let mut kept = [0; KEPT_BYTES_MAX];
        kept[..start.len()].copy_from_slice(start.as_bytes());
        Self { kept, kept_bytes: start.len() as u8, is_cut: start.len() < text.len() }
    }

    fn start(&self) -> &str {
        // Copied from a `str` up to a character boundary.
        core::str::from_utf8(&self.kept[..usize::from(self.kept_bytes)]).unwrap_or_default()
    }
}

impl fmt::Display for SeenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Escaped, since a terminal obeys control characters.
        write!(f, "\"{}{}\"", self.start().escape_debug(), if self.is_cut { "…" } else { "" })
    }
}

impl fmt::Debug for SeenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_short_text_is_shown_whole_and_a_long_one_is_cut_between_characters() {
        assert_eq!(SeenText::of("").to_string(), "\"\"");
        assert_eq!(SeenText::of(&"a".repeat(32)).to_string(), ["\"", &"a".repeat(32), "\""].concat());
        assert_eq!(SeenText::of(&"a".repeat(33)).to_string(), ["\"", &"a".repeat(32), "…\""].concat());
        let straddling = ["a".repeat(31).as_str(), "é"].concat();
        assert_eq!(SeenText::of(&straddling).to_string(), ["\"", &"a".repeat(31), "…\""].concat());
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(SeenText::of("\u{1b}[31m\n").to_string(), "\"\\u{1b}[31m\\n\"");
    }
}
