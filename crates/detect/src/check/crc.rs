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

/// `glsa_` + secret + `_` + crc32 of all before it, its bytes in hexadecimal from the lowest up: Grafana's service account tokens.
pub fn grafana_holds(token: &[u8]) -> bool {
    let Some((head, sum)) = token.split_last_chunk::<9>() else { return false };
    sum[0] == b'_' && grafana_sum(head) == sum[1..]
}

/// The eight hexadecimal digits at the end of Grafana's tokens.
pub fn grafana_sum(head: &[u8]) -> [u8; 8] {
    let mut out = [0; 8];
    for (pair, byte) in out.chunks_exact_mut(2).zip(crc32(head).to_le_bytes()) {
        pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    out
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

/// A NATS seed: `S`, a kind, 32 bytes of key and their CRC-16, all in base32.
pub fn nkey_holds(seed: &[u8]) -> bool {
    let mut bytes = [0u8; 36];
    let (mut word, mut bits, mut count) = (0u32, 0, 0);
    for &byte in seed {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'2'..=b'7' => byte - b'2' + 26,
            _ => return false,
        };
        word = (word << 5 | u32::from(value)) & 0xfff;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            let Some(place) = bytes.get_mut(count) else { return false };
            *place = (word >> bits) as u8;
            count += 1;
        }
    }
    let Some((body, sum)) = bytes[..count].split_last_chunk::<2>() else { return false };
    count == bytes.len() && crc16(body) == u16::from_le_bytes(*sum)
}

/// CRC-16 (XMODEM).
pub fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0u16, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| (crc << 1) ^ (0x1021 & (crc >> 15).wrapping_neg()))
    })
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
    fn a_seed_with_its_checksum_holds_and_any_other_does_not() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        let seed = crate::template::expand("<<nkey U>>", &mut crate::template::Seed::new(1)).unwrap();
        assert!(seed.starts_with("SU") && nkey_holds(seed.as_bytes()), "{seed}");
        let mut broken = seed.into_bytes();
        broken[20] = if broken[20] == b'A' { b'B' } else { b'A' };
        assert!(!nkey_holds(&broken) && !nkey_holds(b"SUAAA") && !nkey_holds(b""));
    }

    #[test]
    fn a_grafana_token_ends_in_the_sum_of_what_stands_before() {
        let token = crate::template::expand("<<glsa 32>>", &mut crate::template::Seed::new(2)).unwrap();
        assert!(token.len() == 5 + 32 + 1 + 8 && grafana_holds(token.as_bytes()), "{token}");
        let mut broken = token.into_bytes();
        broken[10] = if broken[10] == b'a' { b'b' } else { b'a' };
        assert!(!grafana_holds(&broken) && !grafana_holds(b"glsa_") && !grafana_holds(b""));
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
