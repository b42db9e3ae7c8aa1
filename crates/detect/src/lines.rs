//! Byte offsets to line and column, for a text that passes by once.

/// A place in a source, as editors count: both from 1, columns in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Line, from 1. Lines end at `\n`.
    pub line: u64,
    /// Byte in the line, from 1.
    pub column: u64,
}

/// Knows the line at one offset and counts from there, forwards or backwards, to where it is asked.
///
/// Findings of a block come nearly in order, so counting from the last one makes the whole block cost one pass.
#[derive(Clone, Debug)]
pub(crate) struct LineCursor {
    offset: u64,
    line: u64,
    /// Where the line at the *view's* start begins, which may lie before the view.
    view_line_start: u64,
}

impl LineCursor {
    pub(crate) fn new() -> Self {
        Self { offset: 0, line: 1, view_line_start: 0 }
    }

    /// The position of `offset`, which lies in `view` (or at its end); `base` is the offset of the view's first byte.
    pub(crate) fn position(&mut self, view: &[u8], base: u64, offset: u64) -> Position {
        self.move_to(view, base, offset);
        let local = (offset - base) as usize;
        let line_start = memchr::memrchr(b'\n', &view[..local]).map_or(self.view_line_start, |i| base + i as u64 + 1);
        Position { line: self.line, column: offset - line_start + 1 }
    }

    /// Moves on so that a view that begins at `offset` can be asked next.
    pub(crate) fn advance_view(&mut self, view: &[u8], base: u64, offset: u64) {
        self.move_to(view, base, offset);
        if let Some(i) = memchr::memrchr(b'\n', &view[..(offset - base) as usize]) {
            self.view_line_start = base + i as u64 + 1;
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
}
