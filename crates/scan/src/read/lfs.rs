//! Texts that stand for content which Git LFS keeps outside of the repository's objects.

/// How each begins.
const FIRST_LINE: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";
/// The format allows no longer ones.
const BYTES_MAX: usize = 1_024;

/// Whether this is a pointer and nothing else: whatever else stood in it would not be searched.
pub(super) fn is_pointer(bytes: &[u8]) -> bool {
    let Some(rest) = bytes.strip_prefix(FIRST_LINE).filter(|_| bytes.len() < BYTES_MAX) else { return false };
    let Some(rest) = rest.strip_suffix(b"\n") else { return false };
    let mut has_oid = false;
    rest.split(|&byte| byte == b'\n').all(|line| {
        let space = memchr::memchr(b' ', line).unwrap_or(line.len());
        let (key, value) = (&line[..space], line.get(space + 1..).unwrap_or_default());
        match key {
            b"oid" => {
                has_oid = true;
                is_oid(value)
            }
            b"size" => value.len() <= 20 && value.iter().all(u8::is_ascii_digit),
            key if key.starts_with(b"ext-") => key.len() < 40 && is_oid(value),
            _ => false,
        }
    }) && has_oid
}

fn is_oid(value: &[u8]) -> bool {
    value.strip_prefix(b"sha256:").is_some_and(|hex| hex.len() == 64 && hex.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_known_and_a_text_that_says_more_is_none() {
        let pointer =
            format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 12345\n", "a1".repeat(32));
        assert!(is_pointer(pointer.as_bytes()));
        let with_extension = pointer.replace("oid", &format!("ext-0-foo sha256:{}\noid", "0f".repeat(32)));
        assert!(is_pointer(with_extension.as_bytes()));
        for other in [
            String::new(),
            pointer.replace("\nsize", "\npassword hunter2\nsize"),
            pointer.replace("size 12345", "size ghp_abc"),
            pointer.replace("sha256:", "sha256:x"),
            pointer.trim_end().to_owned(),
            format!("{pointer}more\n"),
            "version https://git-lfs.github.com/spec/v1\n".to_owned(),
        ] {
            assert!(!is_pointer(other.as_bytes()), "{other}");
        }
    }
}
