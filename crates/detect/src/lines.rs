//! Byte offsets to line and column, for a text that passes by once.

/// A place in a source, as editors count: both from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Line, from 1. Lines end at `\n`.
    pub line: u64,
    /// Character in the line, from 1: Unicode code points, where the text is UTF-8.
    pub column: u64,
}

/// How a source spells characters, as its byte order mark says; without a mark it is taken for UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spelling {
    /// Bytes of the mark, which is no character of the text.
    mark: usize,
    /// Bytes of a unit: 1, 2 or 4.
    unit: usize,
    is_big_endian: bool,
}

impl Spelling {
    const PLAIN: Self = Self { mark: 0, unit: 1, is_big_endian: false };

    fn of(start: &[u8]) -> Self {
        let (mark, unit, is_big_endian) = match start {
            [0xef, 0xbb, 0xbf, ..] => (3, 1, false),
            [0xff, 0xfe, 0, 0, ..] => (4, 4, false),
            [0, 0, 0xfe, 0xff, ..] => (4, 4, true),
            [0xff, 0xfe, ..] => (2, 2, false),
            [0xfe, 0xff, ..] => (2, 2, true),
            _ => return Self::PLAIN,
        };
        Self { mark, unit, is_big_endian }
    }

    /// The units of `bytes`, which begin at `offset` of the source; each as the place behind it and its value.
    fn units<'b>(&self, bytes: &'b [u8], offset: u64) -> impl DoubleEndedIterator<Item = (usize, u32)> + 'b {
        let Self { unit, is_big_endian, .. } = *self;
        // Units stand at multiples of their size, also where a view cuts through one.
        let skip = (unit - (offset % unit as u64) as usize) % unit;
        bytes.get(skip..).unwrap_or_default().chunks_exact(unit).enumerate().map(move |(i, bytes)| {
            let join = |value: u32, byte: &u8| value << 8 | u32::from(*byte);
            let value = if is_big_endian { bytes.iter().fold(0, join) } else { bytes.iter().rev().fold(0, join) };
            (skip + (i + 1) * unit, value)
        })
    }

    fn count_breaks(&self, bytes: &[u8], offset: u64) -> u64 {
        if self.unit == 1 {
            return memchr::memchr_iter(b'\n', bytes).count() as u64;
        }
        self.units(bytes, offset).filter(|&(_, value)| value == u32::from(b'\n')).count() as u64
    }

    /// Where the last line of `bytes` begins, if it begins in them.
    fn last_line(&self, bytes: &[u8], offset: u64) -> Option<usize> {
        if self.unit == 1 {
            return memchr::memrchr(b'\n', bytes).map(|at| at + 1);
        }
        self.units(bytes, offset).rfind(|&(_, value)| value == u32::from(b'\n')).map(|(end, _)| end)
    }

    /// Characters of `bytes`, without a mark. Text that is not well formed counts somehow, and always the same.
    fn count_characters(&self, bytes: &[u8], offset: u64) -> u64 {
        let mark = self.mark.saturating_sub(offset as usize).min(bytes.len());
        let (bytes, offset) = (&bytes[mark..], offset + mark as u64);
        if self.unit == 1 {
            return bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count() as u64;
        }
        // The second half of a pair of surrogates is no character of its own.
        self.units(bytes, offset).filter(|(_, value)| !(0xdc00..0xe000).contains(value)).count() as u64
    }
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
    spelling: Spelling,
}

impl LineCursor {
    pub(crate) fn new() -> Self {
        Self { offset: 0, line: 1, before_view: 0, spelling: Spelling::PLAIN }
    }

    /// Learns from a source's first bytes how it spells characters.
    pub(crate) fn begin(&mut self, start: &[u8]) {
        self.spelling = Spelling::of(start);
    }

    /// The position of `offset`, which lies in `view` (or at its end); `base` is the offset of the view's first byte.
    pub(crate) fn position(&mut self, view: &[u8], base: u64, offset: u64) -> Position {
        self.move_to(view, base, offset);
        Position { line: self.line, column: self.characters_before(&view[..(offset - base) as usize], base) + 1 }
    }

    /// Moves on so that a view that begins at `offset` can be asked next.
    pub(crate) fn advance_view(&mut self, view: &[u8], base: u64, offset: u64) {
        self.move_to(view, base, offset);
        self.before_view = self.characters_before(&view[..(offset - base) as usize], base);
    }

    /// Characters of its line before the end of `passed`, the beginning of the view.
    fn characters_before(&self, passed: &[u8], base: u64) -> u64 {
        match self.spelling.last_line(passed, base) {
            Some(at) => self.spelling.count_characters(&passed[at..], base + at as u64),
            None => self.before_view + self.spelling.count_characters(passed, base),
        }
    }

    fn move_to(&mut self, view: &[u8], base: u64, offset: u64) {
        let (from, to) = ((self.offset - base) as usize, (offset - base) as usize);
        if to >= from {
            self.line += self.spelling.count_breaks(&view[from..to], self.offset);
        } else {
            self.line -= self.spelling.count_breaks(&view[to..from], offset);
        }
        self.offset = offset;
    }
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

    #[test]
    fn a_mark_is_no_column_and_wide_characters_are_one_each() {
        let text = "\u{e4}\u{1f600}\u{a0a}\nx key";
        let utf16 = |to: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(to).collect::<alloc::vec::Vec<u8>>();
        let utf32 = |to: fn(u32) -> [u8; 4]| text.chars().flat_map(|c| to(c.into())).collect::<alloc::vec::Vec<u8>>();
        let cases: [(&[u8], alloc::vec::Vec<u8>, usize); 5] = [
            (b"\xef\xbb\xbf", text.into(), 1),
            (b"\xff\xfe", utf16(u16::to_le_bytes), 2),
            (b"\xfe\xff", utf16(u16::to_be_bytes), 2),
            (b"\xff\xfe\0\0", utf32(u32::to_le_bytes), 4),
            (b"\0\0\xfe\xff", utf32(u32::to_be_bytes), 4),
        ];
        for (mark, body, unit) in cases {
            let bytes = [mark, &body].concat();
            let mut cursor = LineCursor::new();
            cursor.begin(&bytes);
            let key = (bytes.len() - 3 * unit) as u64;
            let first = mark.len() as u64;
            assert_eq!(cursor.position(&bytes, 0, first), Position { line: 1, column: 1 }, "{mark:?}");
            assert_eq!(cursor.position(&bytes, 0, key), Position { line: 2, column: 3 }, "{mark:?}");
            cursor.advance_view(&bytes, 0, key - unit as u64);
            let view = &bytes[key as usize - unit..];
            assert_eq!(cursor.position(view, key - unit as u64, key), Position { line: 2, column: 3 }, "{mark:?}");
        }
    }
}
