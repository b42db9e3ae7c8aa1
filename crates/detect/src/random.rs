//! Whether a value was drawn at random, judged by its alphabet and its length.
//!
//! One threshold for the entropy of every value is wrong for most: sixteen random hexadecimal digits reach 3.3 bits, forty
//! characters of base64 reach 4.9, and so does a long sentence. Here a value is compared with what random values of its own
//! alphabet and length reach, and what consists of words is told apart by its pairs of letters.

use crate::entropy::{log2, shannon};

/// Shortest value that is judged; shorter ones are random by accident.
const LENGTH_MIN: usize = 8;
/// Longest beginning that is judged.
const LENGTH_MAX: usize = 256;

/// What characters a value is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alphabet {
    Digits,
    Hex,
    /// Letters of one case, and digits.
    OneCase,
    /// Letters of both cases, digits and the signs of base64.
    Mixed,
}

impl Alphabet {
    fn of(value: &[u8]) -> Self {
        let any = |is: fn(&u8) -> bool| value.iter().any(is);
        let letters = value.iter().filter(|byte| byte.is_ascii_alphabetic());
        let is_hex = letters.clone().all(u8::is_ascii_hexdigit);
        match (any(u8::is_ascii_lowercase), any(u8::is_ascii_uppercase)) {
            (false, false) => Self::Digits,
            (true, true) => Self::Mixed,
            _ if is_hex => Self::Hex,
            _ => Self::OneCase,
        }
    }

    fn size(self) -> u32 {
        match self {
            Self::Digits => 10,
            Self::Hex => 16,
            Self::OneCase => 36,
            Self::Mixed => 62,
        }
    }
}

/// Whether `value` looks drawn at random from letters and digits, and not written by a person.
///
/// ```
/// use tessera_detect::random::looks_random;
///
/// assert!(looks_random(b"9f3ac81e77d04b62"));
/// assert!(looks_random(b"qT7vZk2LpX9w"));
/// assert!(!looks_random(b"applicationSettings2"));
/// assert!(!looks_random(b"aaaabbbbccccdddd"));
/// ```
pub fn looks_random(value: &[u8]) -> bool {
    let value = &value[..value.len().min(LENGTH_MAX)];
    let core = value.strip_suffix(b"==").or_else(|| value.strip_suffix(b"=")).unwrap_or(value);
    if core.len() < LENGTH_MIN {
        return false;
    }
    let alphabet = Alphabet::of(core);
    let digits = core.iter().filter(|byte| byte.is_ascii_digit()).count();
    // Long random values without a digit are rare, and long names without one are not.
    let length_without_digit = if alphabet == Alphabet::Mixed { 20 } else { 40 };
    let is_mixed = alphabet != Alphabet::Digits && (digits > 0 || core.len() >= length_without_digit);
    is_mixed && entropy_fits(core, alphabet) && (alphabet == Alphabet::Hex || !reads_like_words(core))
}

/// Whether the entropy is what random values of this alphabet and length have, give or take what chance explains.
fn entropy_fits(value: &[u8], alphabet: Alphabet) -> bool {
    let slack = 0.3 + 4.5 / value.len() as f64;
    f64::from(shannon(value)) >= expected(value.len() as u32, alphabet.size()) - slack
}

/// The entropy that `length` characters drawn from `size` have on average, in bits a character.
fn expected(length: u32, size: u32) -> f64 {
    // How often each character occurs is nearly Poisson distributed.
    let mean = f64::from(length) / f64::from(size);
    let (mut term, mut sum) = (1.0, 1.0);
    for i in 1..=4 * length.min(64) {
        term *= mean / f64::from(i);
        sum += term;
    }
    let mut probability = 1.0 / sum;
    let mut repeated = 0.0;
    for count in 1..=length {
        probability *= mean / f64::from(count);
        repeated += probability * f64::from(count) * log2(count);
    }
    log2(length) - repeated / mean
}

/// Whether neighbouring letters are mostly those that stand side by side in words.
///
/// The pairs below make up four fifths of English and of the names in source code, and a fifth of random letters.
pub fn reads_like_words(value: &[u8]) -> bool {
    let (mut pairs, mut usual) = (0u32, 0u32);
    for pair in value.windows(2) {
        let begins_a_word = pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase();
        if pair.iter().all(u8::is_ascii_alphabetic) && !begins_a_word {
            pairs += 1;
            usual += u32::from(is_usual(pair[0], pair[1]));
        }
    }
    pairs >= 4 && usual * 2 > pairs
}

fn is_usual(first: u8, second: u8) -> bool {
    let place = |byte: u8| usize::from(byte.to_ascii_lowercase().wrapping_sub(b'a'));
    USUAL_PAIRS[place(first)] >> place(second) & 1 != 0
}

const USUAL_PAIRS: [u32; 26] = pairs_of(
    b"th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de hi ri ro ic \
      ne ea ra ce li ch ll be ma si om ur ca el ta la ns di fo ho pe ec pr no ct us ac ot il tr ly nc et ut ss so rs un \
      lo wa ge ie ee wi em ad ol rt po we na ul ni ts mo ow pa im mi ai sh ir su id os iv ia am fi ci vi pl ig tu ev ld \
      ry mp fe bl ab gh ty op sa ay ex ke fr oo av ag if ap gr od bo sp rd do uc bu ov rm ep tt oc fa ef cu rn sc gi da \
      yo cr cl ga qu ue ff ok ey ",
);

/// `letters` are pairs with a space behind each.
const fn pairs_of(letters: &[u8]) -> [u32; 26] {
    let mut table = [0; 26];
    let mut i = 0;
    while i + 2 < letters.len() {
        assert!(letters[i + 2] == b' ', "pairs stand between single spaces");
        table[(letters[i] - b'a') as usize] |= 1 << (letters[i + 1] - b'a');
        i += 3;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{Seed, expand};
    use alloc::format;

    #[test]
    fn the_expected_entropy_is_what_random_values_have() {
        for (recipe, size) in [("hex", 16), ("lownum", 36), ("alnum", 62)] {
            for length in [12u32, 20, 32, 64, 200] {
                let mut seed = Seed::new(u64::from(length));
                let draws = 400;
                let mean: f64 = (0..draws)
                    .map(|_| {
                        let text = expand(&format!("<<{recipe} {length}>>"), &mut seed).unwrap();
                        f64::from(shannon(text.as_bytes()))
                    })
                    .sum::<f64>()
                    / f64::from(draws);
                assert!(
                    (mean - expected(length, size)).abs() < 0.06,
                    "{recipe} {length}: {mean} {}",
                    expected(length, size)
                );
            }
        }
    }

    #[test]
    fn nearly_all_random_values_are_told_so_at_every_length_and_in_every_alphabet() {
        for recipe in ["hex", "HEX", "lownum", "upnum", "alnum", "b64", "url64"] {
            for length in [16, 20, 24, 32, 40, 64] {
                let mut seed = Seed::new(length);
                let random = (0..500)
                    .filter(|_| {
                        let text = expand(&format!("<<{recipe} {length}>>"), &mut seed).unwrap();
                        looks_random(text.as_bytes())
                    })
                    .count();
                assert!(random >= 430, "{recipe} {length}: {random} of 500");
            }
        }
    }

    #[test]
    fn names_sentences_and_patterns_are_not_random() {
        for value in [
            "thisIsJustAVeryLongIdentifierName1",
            "my-application-tls-certificate-production-2024",
            "bert-base-multilingual-cased-finetuned-ner-v2",
            "X-Application-Api-Key-Header-Name-2",
            "com.example.application.key1",
            "0000000000000001",
            "abababababababab12",
            "1234512345123451234512345",
            "deadbeefdeadbeefdeadbeefdeadbeef",
            "20240131",
            "access_token_validity_seconds_3600",
            "MySuperSecretPassword2020",
            "user_authentication_token_1",
        ] {
            assert!(!looks_random(value.as_bytes()), "{value}");
        }
    }
}
