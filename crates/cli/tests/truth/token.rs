//! Secrets that the built-in rules find for sure: classic GitHub tokens with a valid checksum.
//!
//! The checksum is computed here from its public description: `ghp_`, 30 characters, and their CRC-32 in six digits of base 62.

use std::io::BufRead as _;

use super::random::Random;

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const PREFIX: &[u8] = b"ghp_";
const BODY_BYTES: usize = 30;
const TOKEN_BYTES: usize = 40;

/// A token in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) token: String,
    /// Counted from 1.
    pub(crate) line: u64,
    /// In bytes from the beginning of the text.
    pub(crate) offset: u64,
}

/// A token that no earlier call returned.
pub(crate) fn token(random: &mut Random) -> String {
    let body: Vec<u8> = (0..BODY_BYTES).map(|_| *random.pick(DIGITS)).collect();
    let token = [PREFIX, &body, &checksum(&body)].concat();
    String::from_utf8(token).unwrap()
}

/// Every token in a text.
pub(crate) fn tokens_in(text: &[u8]) -> Vec<Found> {
    let (mut found, mut rest) = (Vec::new(), text);
    // The standard library looks for one byte much faster than this code, which is not optimized, looks at each.
    while rest.skip_until(b'_').is_ok_and(|skipped| skipped > 0) {
        let Some(offset) = (text.len() - rest.len()).checked_sub(PREFIX.len()) else { continue };
        let Some(window) = text.get(offset..offset + TOKEN_BYTES).filter(|window| is_token(window)) else { continue };
        found.push(Found {
            token: String::from_utf8(window.to_vec()).unwrap(),
            // As many pieces as line breaks, and one.
            line: text[..offset].split(|&byte| byte == b'\n').count() as u64,
            offset: offset as u64,
        });
    }
    found
}

fn is_token(window: &[u8]) -> bool {
    window.starts_with(PREFIX) && {
        let (body, sum) = window[PREFIX.len()..].split_at(BODY_BYTES);
        body.iter().all(u8::is_ascii_alphanumeric) && checksum(body) == *sum
    }
}

fn checksum(body: &[u8]) -> [u8; 6] {
    let mut crc = u32::MAX;
    for &byte in body {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    let mut number = !crc;
    let mut digits = [0; 6];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(number % 62) as usize];
        number /= 62;
    }
    digits
}

/// A text of a few lines with these tokens, each on a line of its own.
pub(crate) fn text_with(random: &mut Random, tokens: &[&str]) -> Vec<u8> {
    const LINES: [&str; 5] = ["fn main() {}", "", "hello, world", "# a remark", "\tlet x = 1;"];
    const KEYS: [&str; 4] = ["token: ", "TOKEN=", "let key = \"", "\t"];
    let mut text = String::new();
    let fill = |random: &mut Random, text: &mut String| {
        for _ in 0..random.below(4) {
            text.push_str(random.pick::<&str>(&LINES));
            text.push('\n');
        }
    };
    for token in tokens {
        fill(random, &mut text);
        let key = *random.pick(&KEYS);
        text.push_str(key);
        text.push_str(token);
        text.push_str(if key.ends_with('"') { "\";\n" } else { "\n" });
    }
    fill(random, &mut text);
    if random.percent(10) && text.ends_with('\n') {
        text.pop();
    }
    text.into_bytes()
}
