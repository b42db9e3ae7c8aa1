//! JSON web tokens: `base64url(header) . base64url(payload) . signature`.

use super::base64;

const LOOK_AT_BYTES: usize = 384;

/// Whether header and payload decode to JSON objects and the header names an algorithm.
pub fn is_token(token: &[u8]) -> bool {
    let mut parts = token.split(|&byte| byte == b'.');
    let (Some(header), Some(payload)) = (parts.next(), parts.next()) else { return false };
    let mut text = [0u8; LOOK_AT_BYTES];
    let header_len = base64::decode_into(header, &mut text);
    let header_ok =
        looks_like_object(&text[..header_len]) && memchr::memmem::find(&text[..header_len], b"\"alg\"").is_some();
    if !header_ok {
        return false;
    }
    // An encrypted token (`"enc"` in the header) has a key here instead of claims.
    if memchr::memmem::find(&text[..header_len], b"\"enc\"").is_some() {
        return true;
    }
    let payload_len = base64::decode_into(payload, &mut text);
    looks_like_object(&text[..payload_len])
}

/// An opening brace, then a quoted name or the closing brace; only the beginning was decoded.
pub(crate) fn looks_like_object(text: &[u8]) -> bool {
    let mut rest = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace());
    rest.next() == Some(b'{') && matches!(rest.next(), Some(b'"' | b'}'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::base64;
    use alloc::format;

    #[test]
    fn two_objects_and_an_algorithm_are_a_token() {
        let header = base64(br#"{"alg":"HS256","typ":"JWT"}"#);
        let payload = base64(br#"{"sub":"42"}"#);
        assert!(is_token(format!("{header}.{payload}.c2ln").as_bytes()));
        assert!(!is_token(format!("{header}.{}.c2ln", base64(b"hello world")).as_bytes()));
        assert!(!is_token(format!("{}.{payload}.c2ln", base64(br#"{"typ":"JWT"}"#)).as_bytes()));
        assert!(!is_token(b"a.b.c"));
        assert!(!is_token(b""));
    }
}
