//! Where a token may begin: the left edge of a word, or the end of an escape sequence.
//!
//! A word boundary alone misses tokens in escaped strings, in URLs and in logs with colours: there the character before the
//! token is the last one of `\\n`, `%3D` or `ESC[31m`, a letter or a digit.

/// Escapes of one letter, as programming languages and JSON write them.
const LETTERS: &[u8] = b"abefnrtv0";

/// Most parameter bytes of a terminal colour.
const COLOUR_BYTES_MAX: usize = 12;

/// Whether a token may begin at `at`.
pub(crate) fn is_left_edge(text: &[u8], at: usize) -> bool {
    let before = &text[..at];
    match before.last() {
        None | Some(b'_') => true,
        Some(last) if !last.is_ascii_alphanumeric() => true,
        Some(_) => ends_an_escape(before),
    }
}

fn ends_an_escape(before: &[u8]) -> bool {
    let hex = |prefix: &[u8], digits: usize| {
        let Some((head, tail)) = before.len().checked_sub(digits).map(|at| before.split_at(at)) else { return false };
        head.ends_with(prefix) && tail.iter().all(u8::is_ascii_hexdigit)
    };
    let letter = before.last_chunk::<2>().is_some_and(|[slash, last]| *slash == b'\\' && LETTERS.contains(last));
    letter || hex(b"\\u", 4) || hex(b"\\x", 2) || hex(b"%", 2) || ends_a_colour(before)
}

fn ends_a_colour(before: &[u8]) -> bool {
    let Some(head) = before.strip_suffix(b"m") else { return false };
    let parameters = head.iter().rev().take(COLOUR_BYTES_MAX).take_while(|b| b.is_ascii_digit() || **b == b';').count();
    head[..head.len() - parameters].ends_with(b"\x1b[")
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn words_escapes_and_colours_have_an_edge_and_the_inside_of_a_word_has_none() {
        let edges =
            ["", " ", "\"", "=", "_", "token_", "\\n", "x\\t", "\\u0022", "\\x3d", "%3D", "\x1b[m", "\x1b[0;1;32m"];
        for left in edges {
            assert!(is_left_edge(format!("{left}key").as_bytes(), left.len()), "{left:?}");
        }
        let inside = ["a", "9", "n", "\\q", "u0022", "\\u002", "\\xg1", "%g1", "31m", "[31m", "\x1b[1234567890123m"];
        for left in inside {
            assert!(!is_left_edge(format!("{left}key").as_bytes(), left.len()), "{left:?}");
        }
    }
}
