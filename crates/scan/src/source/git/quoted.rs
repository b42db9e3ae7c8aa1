//! Paths as git prints them in lines.

/// A path without the quotes and escapes it has if it contains unusual bytes.
pub(super) fn plain(path: &[u8]) -> Vec<u8> {
    let Some(inner) = path.strip_prefix(b"\"").and_then(|path| path.strip_suffix(b"\"")) else { return path.to_vec() };
    let mut plain = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            plain.push(byte);
            continue;
        }
        match bytes.next() {
            Some(digit @ b'0'..=b'3') => {
                let mut octal = || bytes.next().map_or(0, |digit| digit.wrapping_sub(b'0') & 7);
                let (middle, low) = (octal(), octal());
                plain.push((digit - b'0') << 6 | middle << 3 | low);
            }
            Some(b'n') => plain.push(b'\n'),
            Some(b't') => plain.push(b'\t'),
            Some(b'r') => plain.push(b'\r'),
            Some(b'a') => plain.push(7),
            Some(b'b') => plain.push(8),
            Some(b'f') => plain.push(12),
            Some(b'v') => plain.push(11),
            Some(other) => plain.push(other),
            None => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_paths_are_read() {
        assert_eq!(plain(br#"plain"#), b"plain");
        assert_eq!(plain(br#""a\303\244\t\"\\""#), b"a\xc3\xa4\t\"\\");
        assert_eq!(plain(br#""\"#), b"\"\\");
    }
}
