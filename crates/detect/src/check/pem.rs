//! Private keys in PEM armour.
//!
//! The armour line says what is inside; the first decoded bytes must agree: a DER `SEQUENCE` for the PKCS and SEC1
//! kinds, the magic string for OpenSSH, an OpenPGP packet for PGP. Sources often hold the armour with its line
//! breaks escaped (`\n` in JSON), indented or quoted and joined; all of these are read.

use super::base64;

/// Whether `armour`, from `-----BEGIN` on, holds the beginning of a private key.
pub fn is_private_key(armour: &[u8]) -> bool {
    let Some(label_end) = memchr::memmem::find(armour, b"KEY") else { return false };
    let Some(frame) = memchr::memmem::find(&armour[label_end..], b"-----") else { return false };
    let label = &armour[..label_end + frame];
    let body = &armour[label_end + frame + 5..];
    let mut digits = [0u8; 64];
    let count = first_digits(body, &mut digits);
    let mut bytes = [0u8; 48];
    let written = base64::decode_into(&digits[..count], &mut bytes);
    let decoded = &bytes[..written];
    let has = |word: &[u8]| memchr::memmem::find(label, word).is_some();
    if has(b"OPENSSH") {
        decoded.starts_with(b"openssh-key-v1\0")
    } else if has(b"PGP") {
        // Old and new packet formats: tag 5 (secret key) or 7 (secret subkey).
        decoded.first().is_some_and(|&tag| matches!(tag & 0xfc, 0x94 | 0x9c) || matches!(tag, 0xc5 | 0xc7))
    } else {
        decoded.first() == Some(&0x30) && decoded.len() >= 16
    }
}

/// Whether the armour says that a passphrase guards the key: by its label, its headers, or OpenSSH's name of a cipher.
pub fn is_encrypted(armour: &[u8]) -> bool {
    let head = &armour[..armour.len().min(400)];
    let has = |word: &[u8]| memchr::memmem::find(head, word).is_some();
    if has(b"ENCRYPTED") {
        return true;
    }
    if !has(b"OPENSSH") {
        return false;
    }
    let Some(begin) = memchr::memmem::find(armour, b"KEY-----") else { return false };
    let mut digits = [0u8; 40];
    let count = first_digits(&armour[begin + 8..], &mut digits);
    let mut bytes = [0u8; 30];
    let written = base64::decode_into(&digits[..count], &mut bytes);
    // `openssh-key-v1`, NUL, and the cipher's name with its length before it.
    bytes[..written].get(15..23).is_some_and(|cipher| cipher != b"\0\0\0\x04none")
}

/// Whether base64 without armour holds a private key in DER: a sequence that opens with a version number.
pub fn is_der_key(text: &[u8]) -> bool {
    let mut bytes = [0u8; 48];
    let written = base64::decode_into(text, &mut bytes);
    let decoded = &bytes[..written];
    let (length_bytes, body) = match decoded {
        [0x30, 0x82, high, low, body @ ..] => (usize::from(*high) << 8 | usize::from(*low), body),
        [0x30, 0x81, length, body @ ..] | [0x30, length @ ..=0x7f, body @ ..] => (usize::from(*length), body),
        _ => return false,
    };
    // The text must be about as long as the sequence says that it is.
    let bytes_all = text.len() / 4 * 3;
    matches!(body, [0x02, 0x01, 0 | 1, ..]) && bytes_all + 8 >= length_bytes && length_bytes + 24 >= bytes_all
}

/// Collects the body's first base64 digits, stepping over line breaks, escapes, quotes and `Header: value` lines.
fn first_digits(body: &[u8], out: &mut [u8]) -> usize {
    let mut count = 0;
    for line in logical_lines(body) {
        if line.starts_with(b"-----") {
            break;
        }
        if memchr::memmem::find(line, b": ").is_some() {
            continue;
        }
        for (i, &byte) in line.iter().enumerate() {
            // `" +` joins strings; a plus sign of the key has digits beside it.
            let is_beside =
                |at: Option<usize>| at.and_then(|at| line.get(at)).is_some_and(|byte| b" \"'\t".contains(byte));
            if byte == b'+' && (is_beside(i.checked_sub(1)) || is_beside(Some(i + 1))) {
                continue;
            }
            if count == out.len() {
                return count;
            }
            if base64::VALUE[usize::from(byte)] != 255 {
                out[count] = byte;
                count += 1;
            }
        }
    }
    count
}

/// Length of the line break that `text` begins with: a real one, or one escaped for a string, a URL or XML.
fn break_at(text: &[u8]) -> Option<usize> {
    match text {
        [b'\n' | b'\r', ..] => Some(1),
        [b'\\', b'n' | b'r', ..] => Some(2),
        [b'%', b'0', b'A' | b'a' | b'D' | b'd', ..] => Some(3),
        [b'&', b'#', b'1', b'0' | b'3', b';', ..] | [b'&', b'#', b'x', b'A' | b'a' | b'D' | b'd', b';', ..] => Some(5),
        _ => None,
    }
}

/// Lines split at real or escaped breaks.
fn logical_lines(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(body);
    core::iter::from_fn(move || {
        let text = rest?;
        let at = (0..text.len()).find_map(|i| Some((i, break_at(&text[i..])?)));
        match at {
            Some((i, length)) => {
                rest = Some(&text[i + length..]);
                Some(&text[..i])
            }
            None => {
                rest = None;
                Some(text)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::base64;
    use alloc::format;

    fn der() -> alloc::string::String {
        let mut bytes = alloc::vec![0x30, 0x82, 0x04, 0xa4, 2, 1, 0];
        bytes.extend((0..100).map(|i| i as u8 ^ 0x5a));
        base64(&bytes)
    }

    #[test]
    fn the_body_must_be_what_the_armour_says() {
        let rsa = format!("-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----", der());
        assert!(is_private_key(rsa.as_bytes()));
        assert!(is_private_key(rsa.replace('\n', "\\n").as_bytes()));
        assert!(is_private_key(rsa.replace('\n', "\n    ").as_bytes()));
        let encrypted = rsa.replacen("-----\n", "-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n", 1);
        assert!(is_private_key(encrypted.as_bytes()));
        let openssh = format!("-----BEGIN OPENSSH PRIVATE KEY-----\n{}", base64(b"openssh-key-v1\0\0\0\0\x04none"));
        assert!(is_private_key(openssh.as_bytes()));
        assert!(!is_private_key(openssh.replace("OPENSSH", "RSA").as_bytes()));
        assert!(!is_private_key(b"-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----"));
        assert!(!is_private_key(b"-----BEGIN PRIVATE KEY-----\nYour key here please paste\n"));
        assert!(!is_private_key(b""));
    }
}
