//! Byte offsets to line and column, for a text that passes by once.

/// A place in a source, as editors count: both from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Line, from 1. Lines end at `\n`.
    pub line: u64,
    /// Character in the line, from 1: Unicode code points, where the text is UTF-8.
    pub column: u64,
}

/// Knows the line at one offset and counts from there, forwards or backwards, to where it is asked.
///
/// Findings of a block come nearly in order, so counting from the last one makes the whole block cost one pass.
#[derive(Clone, Debug)]
pub(crate) struct LineCursor {
    offset: u64,
    line: u64,
    /// Characters of the line at the *view's* start that lie before the view.
    before_view: u64,
}

impl LineCursor {
    pub(crate) fn new() -> Self {
        Self { offset: 0, line: 1, before_view: 0 }
    }

    /// The position of `offset`, which lies in `view` (or at its end); `base` is the offset of the view's first byte.
    pub(crate) fn position(&mut self, view: &[u8], base: u64, offset: u64) -> Position {
        self.move_to(view, base, offset);
        Position { line: self.line, column: self.characters_before(&view[..(offset - base) as usize]) + 1 }
    }

    /// Moves on so that a view that begins at `offset` can be asked next.
    pub(crate) fn advance_view(&mut self, view: &[u8], base: u64, offset: u64) {
        self.move_to(view, base, offset);
        self.before_view = self.characters_before(&view[..(offset - base) as usize]);
    }

    /// Characters of its line before the end of `passed`, the beginning of the view.
    fn characters_before(&self, passed: &[u8]) -> u64 {
        match memchr::memrchr(b'\n', passed) {
            Some(at) => count_characters(&passed[at + 1..]),
            None => self.before_view + count_characters(passed),
        }
    }

    fn move_to(&mut self, view: &[u8], base: u64, offset: u64) {
        let (from, to) = ((self.offset - base) as usize, (offset - base) as usize);
        if to >= from {
            self.line += count_breaks(&view[from..to]);
        } else {
            self.line -= count_breaks(&view[to..from]);
        }
        self.offset = offset;
    }
}

fn count_breaks(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

/// Bytes that begin a character. Text that is not UTF-8 counts somehow, and always the same.
fn count_characters(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_forwards_and_backwards() {
        let text = b"one\ntwo\n\nfour";
        let mut cursor = LineCursor::new();
        let at = |cursor: &mut LineCursor, offset| {
            let position = cursor.position(text, 0, offset);
            (position.line, position.column)
        };
        assert_eq!(at(&mut cursor, 0), (1, 1));
        assert_eq!(at(&mut cursor, 9), (4, 1));
        assert_eq!(at(&mut cursor, 5), (2, 2));
        assert_eq!(at(&mut cursor, 3), (1, 4));
        assert_eq!(at(&mut cursor, 13), (4, 5));
    }

    #[test]
    fn a_line_that_began_before_the_view_keeps_its_columns() {
        let text = b"first\nsecond line\nthird";
        let mut cursor = LineCursor::new();
        cursor.advance_view(text, 0, 10);
        let view = &text[10..];
        assert_eq!(cursor.position(view, 10, 12), Position { line: 2, column: 7 });
        assert_eq!(cursor.position(view, 10, 20), Position { line: 3, column: 3 });
    }
    #[test]
    fn columns_count_characters_also_across_views() {
        let text = "x\n\u{e4}\u{20ac}\u{1f600} key".as_bytes();
        let mut cursor = LineCursor::new();
        let key = text.len() - 3;
        assert_eq!(cursor.position(text, 0, key as u64), Position { line: 2, column: 5 });
        // A view may begin anywhere, also within a character.
        for start in 2..key {
            let mut cursor = LineCursor::new();
            cursor.advance_view(text, 0, start as u64);
            let position = cursor.position(&text[start..], start as u64, key as u64);
            assert_eq!(position, Position { line: 2, column: 5 }, "view from {start}");
        }
    }
}
