//! Text inside text: base64, hexadecimal, percent and backslash escapes, UTF-16 and UTF-32.
//!
//! Candidates are found by their alphabet, tried on their first bytes, and decoded only if those read like text, so
//! that hashes, images and identifiers cost next to nothing. What was decoded is searched like any text, down to a
//! depth. Sizes are bounded by the view they were found in: every encoding here makes text longer, never shorter.
//!
//! Deliberately absent: base64 that is wrapped over several lines, and compressed data.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use crate::check::base64;
use crate::error::RuleError;
use crate::rule::named;
use core::str::FromStr;

/// A way to write text as other text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Encoding {
    /// Either alphabet, padded or not.
    Base64,
    /// Hexadecimal digits.
    Hex,
    /// `%41` for `A`.
    Percent,
    /// `\u0041` or `\x41` for `A`.
    Backslash,
    /// Two bytes a character, either byte order.
    Utf16,
    /// Four bytes a character, either byte order.
    Utf32,
}

named!(Encoding, "encoding", "base64" => Base64, "hex" => Hex, "percent" => Percent,
    "backslash" => Backslash, "utf-16" => Utf16, "utf-32" => Utf32);

/// Deepest nesting of encodings that can be asked for.
pub const DECODE_DEPTH_MAX: usize = 4;

/// The encodings around a secret, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Chain {
    links: [Option<Encoding>; DECODE_DEPTH_MAX],
}

impl Chain {
    /// The encodings, outermost first.
    pub fn iter(&self) -> impl Iterator<Item = Encoding> + '_ {
        self.links.iter().flatten().copied()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether the secret stood there in plain text.
    pub fn is_empty(&self) -> bool {
        self.links[0].is_none()
    }

    pub(crate) fn with(mut self, encoding: Encoding) -> Self {
        if let Some(free) = self.links.iter_mut().find(|link| link.is_none()) {
            *free = Some(encoding);
        }
        self
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A piece of a text that decodes to text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) encoding: Encoding,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Shortest run of base64 or hex digits that is tried: 24 decoded bytes, fewer than any token.
const RUN_BYTES_MIN: usize = 32;
/// Longest stretch decoded on either side of an escape.
const ESCAPED_BYTES_MAX: usize = 4_096;
/// Fewest UTF-16 or UTF-32 characters in a row.
const WIDE_CHARS_MIN: usize = 12;

/// Finds the segments that touch `own`. `run_origin` says where a run that enters the text at its start really began, as
/// bytes before the text: digits count from there.
pub(crate) fn segments(text: &[u8], own: Range<usize>, run_origin: usize, found: &mut Vec<Segment>) {
    digit_runs(text, own.clone(), run_origin, found);
    escaped_runs(text, own.clone(), found);
    wide_runs(text, own, found);
}

/// How many bytes before the text's end the run of base64 digits begins that touches the end; 0 if none does.
pub(crate) fn run_at_end(text: &[u8]) -> usize {
    text.iter().rev().take_while(|&&byte| is_digit(byte)).count()
}

#[inline]
fn is_digit(byte: u8) -> bool {
    base64::VALUE[usize::from(byte)] != 255
}

/// Whether a group of 16 is base64 digits throughout: by arithmetic, without a branch, so that it becomes a few vector instructions.
#[inline]
fn all_digits(group: &[u8; 16]) -> bool {
    let mut all = true;
    for &byte in group {
        let letter = (byte | 0x20).wrapping_sub(b'a') < 26;
        // `-` to `9` holds one stranger, the full stop.
        let other = (byte.wrapping_sub(b'-') < 13) & (byte != b'.');
        all &= letter | other | (byte == b'+') | (byte == b'_');
    }
    all
}

fn digit_runs(text: &[u8], own: Range<usize>, run_origin: usize, found: &mut Vec<Segment>) {
    // A run of 32 covers a whole aligned group of 16, so looking for such groups misses none.
    const STEP: usize = RUN_BYTES_MIN / 2;
    let mut probe = own.start;
    while probe < own.end {
        let far = probe + STEP;
        if !text[probe..].first_chunk().is_some_and(all_digits) {
            probe = far;
            continue;
        }
        let end = probe + text[probe..].iter().take_while(|&&byte| is_digit(byte)).count();
        let start = probe - text[..probe].iter().rev().take_while(|&&byte| is_digit(byte)).count();
        if end - start >= RUN_BYTES_MIN {
            // A run that began before the text goes on in the phase it has there.
            let skipped = if start == 0 { run_origin } else { 0 };
            judge_run(text, start, end, skipped, found);
        }
        probe = own.start + (end.max(far) - own.start).next_multiple_of(STEP);
    }
}

fn judge_run(text: &[u8], start: usize, end: usize, skipped: usize, found: &mut Vec<Segment>) {
    let mut head = [0u8; 12];
    let is_prefixed = skipped == 0 && matches!(text[start..end], [b'0', b'x' | b'X', ..]);
    let hex_start = if is_prefixed { start + 2 } else { start + skipped % 2 };
    if text[hex_start..end].iter().take(64).all(u8::is_ascii_hexdigit) {
        let written = hex_into(&text[hex_start..end], &mut head);
        if written == head.len() && reads_like_text(&head) {
            found.push(Segment { encoding: Encoding::Hex, start: hex_start, end });
            return;
        }
    }
    let start = start + (4 - skipped % 4) % 4;
    if start < end {
        let written = base64::decode_into(&text[start..end], &mut head);
        if written == head.len() && reads_like_text(&head) {
            found.push(Segment { encoding: Encoding::Base64, start, end });
        }
    }
}

/// Printable ASCII with white space, or the same in UTF-16, or UTF-8 letters among ASCII.
fn reads_like_text(bytes: &[u8]) -> bool {
    let printable = |byte: &u8| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    bytes.iter().all(printable)
        || bytes.chunks_exact(2).all(|pair| printable(&pair[0]) && pair[1] == 0)
        || bytes.chunks_exact(2).all(|pair| pair[0] == 0 && printable(&pair[1]))
}

fn escaped_runs(text: &[u8], own: Range<usize>, found: &mut Vec<Segment>) {
    let mut from = own.start;
    while let Some(i) = memchr::memchr2(b'%', b'\\', &text[from..own.end]) {
        let at = from + i;
        from = at + 1;
        let encoding = if text[at] == b'%' { Encoding::Percent } else { Encoding::Backslash };
        if escape_at(encoding, text, at).is_none() {
            continue;
        }
        let inside = |byte: &&u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'<' | b'>' | b'`');
        let start = at - text[..at].iter().rev().take(ESCAPED_BYTES_MAX).take_while(inside).count();
        let end = at + text[at..].iter().take(ESCAPED_BYTES_MAX).take_while(inside).count();
        found.push(Segment { encoding, start, end });
        from = end.max(at + 1);
        if from >= own.end {
            break;
        }
    }
}

/// The byte that an escape at `at` stands for, and how many bytes spell it. Characters beyond ASCII belong to no token.
fn escape_at(encoding: Encoding, text: &[u8], at: usize) -> Option<(u8, usize)> {
    let rest = &text[at..];
    let digits = match (encoding, rest) {
        (Encoding::Percent, [b'%', a, b, ..]) | (Encoding::Backslash, [b'\\', b'x', a, b, ..]) => [*a, *b],
        (Encoding::Backslash, [b'\\', b'u', b'0', b'0', a, b, ..]) => [*a, *b],
        _ => return None,
    };
    let mut byte = [0];
    let width = match rest[1] {
        b'x' if encoding == Encoding::Backslash => 4,
        b'u' if encoding == Encoding::Backslash => 6,
        _ => 3,
    };
    (hex_into(&digits, &mut byte) == 1).then_some((byte[0], width))
}

fn wide_runs(text: &[u8], own: Range<usize>, found: &mut Vec<Segment>) {
    let is_char = |byte: u8| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let char_at = |i: usize| text.get(i).is_some_and(|&byte| is_char(byte));
    // Whether the `width - 1` bytes from `i` on are zero.
    let zeros_at =
        |i: usize, width: usize| text.get(i..i + width - 1).is_some_and(|part| part.iter().all(|byte| *byte == 0));
    let mut from = own.start;
    while let Some(i) = memchr::memchr(0, &text[from..own.end]) {
        let zero = from + i;
        from = zero + 1;
        let (first, width, encoding) = if char_at(zero + 1) && zeros_at(zero + 2, 2) && char_at(zero + 3) {
            (zero + 1, 2, Encoding::Utf16)
        } else if zeros_at(zero, 4) && char_at(zero + 3) && zeros_at(zero + 4, 4) && char_at(zero + 7) {
            (zero + 3, 4, Encoding::Utf32)
        } else {
            continue;
        };
        let mut start = first;
        while start >= width && zeros_at(start + 1 - width, width) && char_at(start - width) {
            start -= width;
        }
        let mut last = first;
        while zeros_at(last + 1, width) && char_at(last + width) {
            last += width;
        }
        if (last - start) / width + 1 >= WIDE_CHARS_MIN {
            found.push(Segment { encoding, start, end: last + 1 });
        }
        from = last + 1;
        if from >= own.end {
            break;
        }
    }
}

impl Segment {
    /// Decodes into `out`, which is cleared first.
    pub(crate) fn decode(&self, text: &[u8], out: &mut Vec<u8>) {
        out.clear();
        let body = &text[self.start..self.end];
        match self.encoding {
            Encoding::Base64 => {
                out.resize(body.len() / 4 * 3 + 3, 0);
                let written = base64::decode_into(body, out);
                out.truncate(written);
            }
            Encoding::Hex => {
                out.resize(body.len() / 2, 0);
                let written = hex_into(body, out);
                out.truncate(written);
            }
            Encoding::Utf16 => out.extend(body.iter().step_by(2)),
            Encoding::Utf32 => out.extend(body.iter().step_by(4)),
            Encoding::Percent | Encoding::Backslash => {
                let mut i = 0;
                while i < body.len() {
                    let (byte, width) = spelled_at(self.encoding, body, i);
                    out.push(byte);
                    i += width;
                }
            }
        }
    }

    /// Where the decoded bytes `decoded` stand in `text`.
    pub(crate) fn encoded_range(&self, text: &[u8], decoded: Range<usize>) -> Range<usize> {
        let (start, end) = match self.encoding {
            Encoding::Base64 => (decoded.start * 4 / 3, (decoded.end * 4).div_ceil(3)),
            Encoding::Hex => (decoded.start * 2, decoded.end * 2),
            Encoding::Utf16 => (decoded.start * 2, (decoded.end * 2).saturating_sub(1)),
            Encoding::Utf32 => (decoded.start * 4, (decoded.end * 4).saturating_sub(3)),
            Encoding::Percent | Encoding::Backslash => {
                let body = &text[self.start..self.end];
                let (mut i, mut count, mut start) = (0, 0, 0);
                while i < body.len() && count < decoded.end {
                    if count == decoded.start {
                        start = i;
                    }
                    i += spelled_at(self.encoding, body, i).1;
                    count += 1;
                }
                (start, i)
            }
        };
        self.start + start..(self.start + end).min(self.end)
    }
}

/// The byte at `i` and how many bytes spell it.
fn spelled_at(encoding: Encoding, body: &[u8], i: usize) -> (u8, usize) {
    escape_at(encoding, body, i).unwrap_or((body[i], 1))
}

/// Decodes pairs of hex digits until `out` is full, the input ends or a byte is no digit.
fn hex_into(text: &[u8], out: &mut [u8]) -> usize {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut written = 0;
    for (pair, place) in text.chunks_exact(2).zip(out) {
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else { break };
        *place = (high << 4 | low) as u8;
        written += 1;
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::base64 as encode;
    use alloc::string::String;

    fn decoded(text: &[u8]) -> Vec<(Encoding, String)> {
        let mut found = Vec::new();
        segments(text, 0..text.len(), 0, &mut found);
        let mut out = Vec::new();
        found
            .iter()
            .map(|segment| {
                segment.decode(text, &mut out);
                (segment.encoding, String::from_utf8_lossy(&out).into_owned())
            })
            .collect()
    }

    const PLAIN: &str = "password=correct-horse-battery-staple";

    #[test]
    fn each_encoding_is_seen_and_undone() {
        let utf16: Vec<u8> = PLAIN.bytes().flat_map(|byte| [byte, 0]).collect();
        let hex: String = PLAIN.bytes().map(|byte| alloc::format!("{byte:02x}")).collect();
        let percent = PLAIN.replace('=', "%3D");
        assert_eq!(
            decoded(alloc::format!("x: {}\n", encode(PLAIN.as_bytes())).as_bytes()),
            [(Encoding::Base64, PLAIN.into())]
        );
        assert_eq!(decoded(alloc::format!("x: {hex}\n").as_bytes()), [(Encoding::Hex, PLAIN.into())]);
        assert_eq!(decoded(alloc::format!("x {percent}\n").as_bytes()), [(Encoding::Percent, PLAIN.into())]);
        assert_eq!(decoded(&[b"\xff\xfe".as_slice(), &utf16].concat()), [(Encoding::Utf16, PLAIN.into())]);
        assert_eq!(decoded(alloc::format!("x = 0x{hex};").as_bytes()), [(Encoding::Hex, PLAIN.into())]);
        for escaped in
            [PLAIN.replace('=', "\\u003d"), PLAIN.bytes().map(|byte| alloc::format!("\\x{byte:02X}")).collect()]
        {
            assert_eq!(decoded(alloc::format!("x \"{escaped}\"").as_bytes()), [(Encoding::Backslash, PLAIN.into())]);
        }
        for utf32 in [[0, 1, 1, 1], [1, 1, 1, 0]] {
            let text: Vec<u8> =
                PLAIN.bytes().flat_map(|byte| utf32.map(|zero| if zero == 0 { byte } else { 0 })).collect();
            assert_eq!(decoded(&[b"\xff\xfe\0\0".as_slice(), &text].concat()), [(Encoding::Utf32, PLAIN.into())]);
        }
        let big_endian: Vec<u8> = PLAIN.bytes().flat_map(|byte| [0, byte]).collect();
        assert_eq!(decoded(&[b"\xfe\xff".as_slice(), &big_endian].concat()), [(Encoding::Utf16, PLAIN.into())]);
    }

    #[test]
    fn hashes_identifiers_and_images_are_not_decoded() {
        for text in [
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "some/long/path/to/a/file/in/the/source/tree/of/this/project",
            "AVeryLongCamelCaseIdentifierThatSomebodyThoughtWasAGoodIdea",
            "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
        ] {
            assert_eq!(decoded(text.as_bytes()), [], "{text}");
        }
    }

    #[test]
    fn digits_by_arithmetic_are_the_digits_of_the_table() {
        for byte in 0..=255 {
            let mut group = [b'A'; 16];
            group[5] = byte;
            assert_eq!(all_digits(&group), is_digit(byte), "{byte}");
        }
    }

    #[test]
    fn a_short_run_is_not_tried_and_the_shortest_is() {
        assert_eq!(decoded(encode(b"twenty-one characters").as_bytes()).len(), 0);
        assert_eq!(decoded(encode(b"twenty-four characters!!").as_bytes()).len(), 1);
    }

    #[test]
    fn a_run_that_began_before_the_text_keeps_its_phase() {
        let whole =
            encode("all of this is one long run of base64 without a break in it, longer than the view".as_bytes());
        let whole = whole.trim_end_matches('=').as_bytes();
        for cut in 0..8 {
            let mut found = Vec::new();
            segments(&whole[cut..], 0..whole.len() - cut, cut, &mut found);
            let mut out = Vec::new();
            found.iter().find(|s| s.encoding == Encoding::Base64).unwrap().decode(&whole[cut..], &mut out);
            assert!(out.windows(16).any(|part| part == b"one long run of "), "cut at {cut}");
        }
    }

    #[test]
    fn decoded_places_map_back_to_encoded_ones() {
        let text = alloc::format!("x: {}\n", encode(PLAIN.as_bytes()));
        let mut found = Vec::new();
        segments(text.as_bytes(), 0..text.len(), 0, &mut found);
        let range = found[0].encoded_range(text.as_bytes(), 9..16);
        let mut out = [0; 32];
        let written = base64::decode_into(&text.as_bytes()[range], &mut out);
        assert!(out[..written].windows(5).any(|part| part == b"corre"));
        let percent = b"a%3Db%20secret";
        let segment = Segment { encoding: Encoding::Percent, start: 0, end: percent.len() };
        assert_eq!(&percent[segment.encoded_range(percent, 4..10)], b"secret");
        assert_eq!(&percent[segment.encoded_range(percent, 1..2)], b"%3D");
    }
}
