//! Structure that look-alikes lack: Slack's numbers, random UUIDs, encoded JSON.

use super::{base64, jwt};
use crate::placeholder;

/// `xox?-` and dash-separated parts of which all but the last are numbers (or a workspace id).
pub fn is_slack(token: &[u8]) -> bool {
    let mut parts = token.split(|&byte| byte == b'-');
    let Some(kind) = parts.next() else { return false };
    if !(kind.starts_with(b"xox") && kind.len() >= 4) {
        return false;
    }
    let mut count = 0;
    let mut last: &[u8] = &[];
    let mut numbers = 0;
    for part in parts {
        if !part.is_empty() && part.iter().all(u8::is_ascii_digit) {
            numbers += 1;
        }
        count += 1;
        last = part;
    }
    count >= 2 && numbers >= 1 && last.len() >= 20 && last.iter().all(u8::is_ascii_alphanumeric)
}

/// Hex digits with dashes that are neither nil nor mostly one digit.
pub fn is_random_uuid(uuid: &[u8]) -> bool {
    let dashes = [8, 13, 18, 23];
    uuid.len() == 36
        && uuid
            .iter()
            .enumerate()
            .all(|(i, byte)| if dashes.contains(&i) { *byte == b'-' } else { byte.is_ascii_hexdigit() })
        && crate::entropy::shannon(uuid) > 2.8
}

/// Base64 whose beginning decodes to a JSON object.
pub fn is_base64_json(text: &[u8]) -> bool {
    let mut bytes = [0u8; 48];
    let count = base64::decode_into(text, &mut bytes);
    jwt::looks_like_object(&bytes[..count])
}

/// Base64 of a key of Curve25519 as WireGuard makes it: three bits at one end and two at the other are always the same.
pub fn is_wireguard_key(text: &[u8]) -> bool {
    let mut bytes = [0u8; 33];
    let count = base64::decode_into(text, &mut bytes);
    count == 32 && bytes[0] & 7 == 0 && bytes[31] & 0xc0 == 0x40
}

/// Only base64 digits, a possible length, padding only at the end.
pub fn is_base64(text: &[u8]) -> bool {
    let unpadded = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    unpadded.len() % 4 != 1
        && (unpadded.len() == text.len() || text.len().is_multiple_of(4))
        && unpadded.iter().all(|&byte| base64::VALUE[usize::from(byte)] != 255)
}

/// The password of `scheme://user:password@host` is there, is no reference and not a word of the documentation.
pub fn is_url_password(password: &[u8]) -> bool {
    const WORDS: &[&[u8]] = &[
        b"password",
        b"passwd",
        b"pass",
        b"secret",
        b"pwd",
        b"pw",
        b"root",
        b"admin",
        b"user",
        b"postgres",
        b"guest",
        b"test",
        b"mysql",
        b"redis",
        b"mongo",
        b"rabbitmq",
        b"hunter2",
        b"foo",
        b"bar",
        b"baz",
        b"token",
        b"changeit",
        b"pass123",
        b"pass1234",
        b"mypassword",
        b"mypass",
        b"xxx",
        b"***",
        b"abc123",
    ];
    let is_reference = password.iter().any(|byte| matches!(byte, b'{' | b'}' | b'<' | b'>' | b'$' | b'*'))
        || (password.starts_with(b"%") && password.len() < 8);
    let is_word = WORDS.iter().any(|word| password.eq_ignore_ascii_case(word));
    let is_plain = password.iter().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'-' | b'%'));
    let is_spoken = is_plain && crate::random::reads_like_words(password);
    let says_so = [b"pass".as_slice(), b"secret", b"pwd", b"test", b"token"]
        .iter()
        .any(|word| placeholder::contains_folded(password, word));
    password.len() >= 6
        && !is_reference
        && !is_word
        && !is_spoken
        && !says_so
        && !placeholder::is_placeholder(password)
        && crate::entropy::shannon(password) >= 2.2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_wireguard_have_five_bits_that_never_change() {
        let key = crate::template::expand("<<wireguard>>", &mut crate::template::Seed::new(4)).unwrap();
        assert!(key.len() == 44 && is_wireguard_key(key.as_bytes()), "{key}");
        let other = crate::template::base64(&[7; 32]);
        assert!(
            !is_wireguard_key(other.as_bytes()) && !is_wireguard_key(b"") && !is_wireguard_key(&key.as_bytes()[4..])
        );
    }

    #[test]
    fn slack_tokens_have_numbers_before_the_secret() {
        assert!(is_slack(b"xoxb-1234567890-1234567890123-AbCdEfGhIjKlMnOpQrStUvWx"));
        assert!(!is_slack(b"xoxb-not-a-real-token-at-all"));
        assert!(!is_slack(b"xoxb"));
    }

    #[test]
    fn nil_uuids_are_not_random() {
        assert!(is_random_uuid(b"3f2a9c1e-7b4d-4e8f-a6c0-91d25be7f384"));
        assert!(!is_random_uuid(b"00000000-0000-0000-0000-000000000000"));
        assert!(!is_random_uuid(b"3f2a9c1e7b4d4e8fa6c091d25be7f384"));
    }

    #[test]
    fn base64_lengths() {
        assert!(is_base64(b"Zm9vYmFy") && is_base64(b"Zm9vYg==") && is_base64(b"Zm9vYg"));
        assert!(!is_base64(b"Zm9vY") && !is_base64(b"Zm9vYg=") && !is_base64(b"Zm9=vYg="));
    }

    #[test]
    fn documentation_passwords_are_no_secrets() {
        assert!(is_url_password(b"tr0ub4dor-and-3")); // tessera:allow
        for word in [
            "airflow",
            "my_password",
            "testpass123",
            "pass%2Fword",
            "password",
            "PASSWORD",
            "${PASS}",
            "secret",
            "<password>",
            "12345678",
        ] {
            assert!(!is_url_password(word.as_bytes()), "{word}");
        }
    }
}
