//! Tokens that end in their own CRC-32.

/// CRC-32 (IEEE), as zlib computes it. Tokens are short, so the table-free form is quick enough.
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

/// Six digits of base 62 (`0-9A-Za-z`), most significant first.
pub fn base62(mut number: u32) -> [u8; 6] {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut out = [b'0'; 6];
    for place in out.iter_mut().rev() {
        *place = DIGITS[(number % 62) as usize];
        number /= 62;
    }
    out
}

/// `prefix_` + body + base62(crc32(body)): GitHub's classic tokens, npm's tokens.
pub fn crc62_holds(token: &[u8]) -> bool {
    let body_at = token.iter().rposition(|&byte| byte == b'_').map_or(0, |at| at + 1);
    let Some((body, sum)) = token[body_at..].split_last_chunk::<6>() else { return false };
    !body.is_empty() && base62(crc32(body)) == *sum
}

/// `glpat-PAYLOAD.` + payload length (2 digits of base 36) + crc32 of all before it (7 digits of base 36).
pub fn gitlab_routable_holds(token: &[u8]) -> bool {
    let Some((head, sum)) = token.split_last_chunk::<7>() else { return false };
    base36(crc32(head)) == *sum
}

/// Seven digits of base 36 (`0-9a-z`), most significant first.
pub fn base36(mut number: u32) -> [u8; 7] {
    let mut out = [b'0'; 7];
    for place in out.iter_mut().rev() {
        *place = b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize];
        number /= 36;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_of_the_check_string() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn base_62_pads_to_six_and_holds_every_u32() {
        assert_eq!(&base62(0), b"000000");
        assert_eq!(&base62(61), b"00000z");
        assert_eq!(&base62(62), b"000010");
        assert_eq!(&base62(u32::MAX), b"4gfFC3");
        assert_eq!(&base36(u32::MAX), b"1z141z3");
    }

    #[test]
    fn one_wrong_character_fails() {
        let body = b"4fRkQmXbTz0pLwNcVhYs7uJgDe2aIo";
        let mut token = b"ghp_".to_vec();
        token.extend_from_slice(body);
        token.extend_from_slice(&base62(crc32(body)));
        assert!(crc62_holds(&token));
        for i in 4..token.len() {
            let mut broken = token.clone();
            broken[i] = if broken[i] == b'a' { b'b' } else { b'a' };
            assert!(!crc62_holds(&broken), "at {i}");
        }
        assert!(!crc62_holds(b"ghp_"));
        assert!(!crc62_holds(b""));
    }
}
