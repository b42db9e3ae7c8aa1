//! The text form of ids: lowercase hex, written and read without allocation.

use core::fmt;

/// Writes `bytes` as lowercase hex.
///
/// An id at a time goes to the formatter, not a byte: a store's paths are made of ids, and the formatter's own work was most of
/// a path's cost.
pub(crate) fn write(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.chunks(32).try_for_each(|chunk| {
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(chunk) {
            pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        f.write_str(core::str::from_utf8(&digits[..2 * chunk.len()]).map_err(|_| fmt::Error)?)
    })
}

/// Why a text is not hex, or not as much of it as was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseHexError {
    /// The text has the wrong number of characters.
    #[error("expected {expected} hex digits, got {seen} characters")]
    Length {
        /// Digits wanted.
        expected: usize,
        /// Bytes of text seen.
        seen: usize,
    },
    /// A number without digits, or with more than fit.
    #[error("expected 1 to {max} hex digits, got {seen} characters")]
    Digits {
        /// Most digits.
        max: usize,
        /// Bytes of text seen.
        seen: usize,
    },
    /// A character is not a hex digit.
    #[error("character at byte {at} is not a hex digit")]
    Digit {
        /// Byte offset of the first bad character.
        at: usize,
    },
}

/// Reads exactly `N` bytes of hex, of either case.
pub(crate) fn parse<const N: usize>(text: &str) -> Result<[u8; N], ParseHexError> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return Err(ParseHexError::Length { expected: 2 * N, seen: digits.len() });
    }
    let mut bytes = [0; N];
    for (i, (byte, pair)) in bytes.iter_mut().zip(digits.chunks_exact(2)).enumerate() {
        let high = nibble(pair[0]).ok_or(ParseHexError::Digit { at: 2 * i })?;
        let low = nibble(pair[1]).ok_or(ParseHexError::Digit { at: 2 * i + 1 })?;
        *byte = high << 4 | low;
    }
    Ok(bytes)
}

/// The value of one hex digit.
pub(crate) const fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_of_either_case_is_read() {
        assert_eq!(parse::<3>("00fFa1"), Ok([0x00, 0xff, 0xa1]));
    }

    #[test]
    fn wrong_length_and_wrong_digit_say_where() {
        assert_eq!(parse::<2>("00f"), Err(ParseHexError::Length { expected: 4, seen: 3 }));
        assert_eq!(parse::<2>("00fff"), Err(ParseHexError::Length { expected: 4, seen: 5 }));
        assert_eq!(parse::<2>("0g00"), Err(ParseHexError::Digit { at: 1 }));
        assert_eq!(parse::<2>("00 0"), Err(ParseHexError::Digit { at: 2 }));
        // Multi-byte characters are counted in bytes and never split.
        assert_eq!(parse::<1>("é"), Err(ParseHexError::Digit { at: 0 }));
    }
}
