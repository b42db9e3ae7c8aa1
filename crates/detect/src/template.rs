//! The example syntax of rule files: texts that are tokens only after they are expanded.
//!
//! A repository full of well-formed tokens would set off every scanner that looks at it, ours first. So examples
//! are written as recipes, `token = ghp_<<github 30>>`, and expanded in memory by the tests, by `rules test` and by the
//! labelled set. Expansion is deterministic in a seed.
//!
//! | recipe | makes |
//! | --- | --- |
//! | `<<digit 12>>` | decimal digits |
//! | `<<hex 32>>`, `<<HEX 32>>` | hexadecimal, lower or upper case |
//! | `<<lower 8>>`, `<<upper 8>>`, `<<alpha 8>>` | letters of one case, or both |
//! | `<<lownum 8>>`, `<<upnum 8>>` | letters of one case and digits |
//! | `<<alnum 36>>` | letters and digits |
//! | `<<url64 40>>`, `<<b64 40>>` | the two base64 alphabets |
//! | `<<base32 16>>`, `<<base58 50>>`, `<<bech32 58>>` | `A-Z2-7`; the alphabets of Bitcoin and of age keys |
//! | `<<uuid>>` | a random UUID |
//! | `<<github 30>>` | that many random characters and their CRC-32 in base 62 (GitHub, npm) |
//! | `<<nkey U>>` | a NATS seed of that kind with its CRC-16 |
//! | `<<glsa 32>>` | a Grafana token with its CRC-32 |
//! | `<<age>>` | a secret key of age with its checksum |
//! | `<<wireguard>>` | a private key of WireGuard |
//! | `<<aws 16>>` | base32 that spells a possible account number |
//! | `<<base64 TEXT>>`, `<<tohex TEXT>>`, `<<percent TEXT>>` | TEXT, encoded; TEXT may hold recipes in `[[ ]]` |
//! | `<<nl>>` | a line break |

use alloc::string::String;
use alloc::vec::Vec;

use crate::check::{bech32, crc};

/// A small deterministic generator (SplitMix64): for examples, never for keys.
#[derive(Clone, Debug)]
pub struct Seed(u64);

impl Seed {
    /// Starts from a number.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % bound as u64) as usize
    }

    /// One of `items`, which is not empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Why a recipe cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecipe(pub String);

impl core::fmt::Display for BadRecipe {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "unknown or unfinished recipe <<{}>>", self.0)
    }
}

impl core::error::Error for BadRecipe {}

/// Expands every recipe in `text`.
///
/// ```
/// use tessera_detect::template::{Seed, expand};
///
/// let text = expand("id <<digit 4>>", &mut Seed::new(1))?;
/// assert_eq!(text.len(), "id 0000".len());
/// assert_eq!(text, expand("id <<digit 4>>", &mut Seed::new(1))?);
/// # Ok::<(), tessera_detect::template::BadRecipe>(())
/// ```
///
/// # Errors
/// If a recipe is unknown or not closed.
pub fn expand(text: &str, seed: &mut Seed) -> Result<String, BadRecipe> {
    let mut out = String::with_capacity(text.len() * 2);
    let mut rest = text;
    while let Some(open) = rest.find("<<") {
        out.push_str(&rest[..open]);
        let inner = &rest[open + 2..];
        let close = inner.find(">>").ok_or_else(|| BadRecipe(inner.into()))?;
        recipe(&inner[..close], seed, &mut out)?;
        rest = &inner[close + 2..];
    }
    out.push_str(rest);
    Ok(out)
}

const DIGIT: &[u8] = b"0123456789";
const LOWER: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
const UPPER: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const LOWNUM: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const UPNUM: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const ALNUM: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const URL64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const B64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const BASE32: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

fn recipe(body: &str, seed: &mut Seed, out: &mut String) -> Result<(), BadRecipe> {
    let (kind, argument) = body.split_once(' ').unwrap_or((body, ""));
    let count = || argument.parse::<usize>().ok().filter(|&n| n <= 4_096).ok_or_else(|| BadRecipe(body.into()));
    match kind {
        "digit" => draw(out, DIGIT, count()?, seed),
        "hex" => draw(out, b"0123456789abcdef", count()?, seed),
        "HEX" => draw(out, b"0123456789ABCDEF", count()?, seed),
        "lower" => draw(out, LOWER, count()?, seed),
        "upper" => draw(out, UPPER, count()?, seed),
        "alpha" => draw(out, &ALNUM[10..], count()?, seed),
        "lownum" => draw(out, LOWNUM, count()?, seed),
        "upnum" => draw(out, UPNUM, count()?, seed),
        "alnum" => draw(out, ALNUM, count()?, seed),
        "url64" => draw(out, URL64, count()?, seed),
        "b64" => draw(out, B64, count()?, seed),
        "base32" => draw(out, BASE32, count()?, seed),
        "base58" => draw(out, b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", count()?, seed),
        "bech32" => draw(out, b"QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", count()?, seed),
        "nl" => out.push('\n'),
        "uuid" => {
            for (i, width) in [8, 4, 4, 4, 12].into_iter().enumerate() {
                if i > 0 {
                    out.push('-');
                }
                draw(out, b"0123456789abcdef", width, seed);
            }
        }
        "github" => {
            let body = alnum(seed, count()?);
            out.push_str(&body);
            out.push_str(core::str::from_utf8(&crc::base62(crc::crc32(body.as_bytes()))).unwrap_or_default());
        }
        "nkey" => {
            let kind = argument.bytes().next().filter(u8::is_ascii_uppercase).ok_or_else(|| BadRecipe(body.into()))?;
            // Two bytes of prefix spell `S` and the kind, each five bits, and leave six bits of zero.
            let prefix = (u16::from(b'S' - b'A') << 11) | (u16::from(kind - b'A') << 6);
            let mut bytes = prefix.to_be_bytes().to_vec();
            bytes.extend((0..32).map(|_| seed.next_u64() as u8));
            bytes.extend(crc::crc16(&bytes).to_le_bytes());
            let (mut word, mut bits) = (0u32, 0);
            for byte in bytes {
                word = word << 8 | u32::from(byte);
                bits += 8;
                while bits >= 5 {
                    bits -= 5;
                    out.push(char::from(BASE32[(word >> bits & 31) as usize]));
                }
                word &= 0xff;
            }
            if bits > 0 {
                out.push(char::from(BASE32[(word << (5 - bits) & 31) as usize]));
            }
        }
        "glsa" => {
            let head = alloc::format!("glsa_{}", alnum(seed, count()?));
            let sum = crc::grafana_sum(head.as_bytes());
            out.extend([&head, "_", core::str::from_utf8(&sum).unwrap_or_default()]);
        }
        "age" => {
            const NAME: &str = "AGE-SECRET-KEY-";
            let mut data: Vec<u8> = (0..52).map(|_| seed.below(32) as u8).collect();
            // Fifty-two times five bits are 256 and four of nothing.
            data[51] &= 16;
            let sum = bech32::checksum(NAME.as_bytes(), &data);
            out.push_str(NAME);
            out.push('1');
            let digits = data.into_iter().map(bech32::digit).chain(sum);
            out.extend(digits.map(|digit| char::from(digit.to_ascii_uppercase())));
        }
        "wireguard" => {
            let mut key: [u8; 32] = core::array::from_fn(|_| seed.next_u64() as u8);
            key[0] &= 0xf8;
            key[31] = key[31] & 0x3f | 0x40;
            out.push_str(&base64(&key));
        }
        "aws" => {
            // The first base32 digit holds the account number's top bits; keeping it low keeps the number possible.
            draw(out, b"ABCDEFGHIJKLM", 1, seed);
            draw(out, BASE32, count()?.saturating_sub(1), seed);
        }
        "base64" => out.push_str(&base64(inner(argument, seed)?.as_bytes())),
        "tohex" => {
            for byte in inner(argument, seed)?.bytes() {
                out.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
                out.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
            }
        }
        "percent" => {
            for byte in inner(argument, seed)?.bytes() {
                if byte.is_ascii_alphanumeric() {
                    out.push(char::from(byte));
                } else {
                    out.push('%');
                    out.push(char::from(b"0123456789ABCDEF"[usize::from(byte >> 4)]));
                    out.push(char::from(b"0123456789ABCDEF"[usize::from(byte & 15)]));
                }
            }
        }
        _ => return Err(BadRecipe(body.into())),
    }
    Ok(())
}

/// Expands the recipes in `[[ ]]` of an encoded text.
fn inner(text: &str, seed: &mut Seed) -> Result<String, BadRecipe> {
    expand(&text.replace("[[", "<<").replace("]]", ">>"), seed)
}

/// Letters and digits.
pub fn alnum(seed: &mut Seed, count: usize) -> String {
    let mut out = String::new();
    draw(&mut out, ALNUM, count, seed);
    out
}

fn draw(out: &mut String, alphabet: &[u8], count: usize, seed: &mut Seed) {
    out.extend((0..count).map(|_| char::from(*seed.pick(alphabet))));
}

/// Standard base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for i in 0..4 {
            let sextet = (word >> (18 - 6 * i)) & 63;
            out.push(if i <= group.len() { B64[sextet as usize] } else { b'=' });
        }
    }
    out.into_iter().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_have_the_length_they_say() {
        let text = expand("a<<hex 32>>b<<uuid>>c<<github 30>>", &mut Seed::new(3)).unwrap();
        assert_eq!(text.len(), 1 + 32 + 1 + 36 + 1 + 36);
    }

    #[test]
    fn encodings_nest() {
        assert_eq!(expand("<<base64 foobar>>", &mut Seed::new(0)).unwrap(), "Zm9vYmFy");
        assert_eq!(expand("<<base64 fooba>>", &mut Seed::new(0)).unwrap(), "Zm9vYmE=");
        assert_eq!(expand("<<tohex AZ>>", &mut Seed::new(0)).unwrap(), "415a");
        assert_eq!(expand("<<percent a=b>>", &mut Seed::new(0)).unwrap(), "a%3Db");
        assert!(!expand("<<base64 [[hex 8]]>>", &mut Seed::new(0)).unwrap().contains("hex"));
    }

    #[test]
    fn unknown_or_unclosed_recipes_are_errors() {
        assert!(expand("<<nope 3>>", &mut Seed::new(0)).is_err());
        assert!(expand("<<hex 3", &mut Seed::new(0)).is_err());
        assert!(expand("<<hex many>>", &mut Seed::new(0)).is_err());
    }
}
