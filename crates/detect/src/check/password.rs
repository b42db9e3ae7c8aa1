//! Passwords that people chose, told from names of variables, from words and from stand-ins.

use super::base64;
use crate::entropy::shannon;
use crate::placeholder::{self, contains_folded};
use crate::random;

/// Shortest and longest password that is believed.
const LENGTH: core::ops::RangeInclusive<usize> = 6..=100;

/// Beginnings that make a password one of the documentation, whatever digits follow.
const WEAK: &[&[u8]] = &[
    b"pass",
    b"test",
    b"admin",
    b"user",
    b"root",
    b"secret",
    b"demo",
    b"foo",
    b"bar",
    b"guest",
    b"default",
    b"qwert",
    b"asdf",
    b"abc",
    b"letmein",
    b"welcome",
    b"change",
    b"mysql",
    b"postgres",
    b"hello",
    b"example",
    b"login",
    b"dummy",
    b"temp",
    b"sample",
    b"correct",
    b"wrong",
    b"bad",
    b"old",
    b"new",
    b"invalid",
    b"valid",
    b"mock",
    b"fake",
    b"some",
    b"any",
    b"s3c",
    b"s3k",
    b"supers",
    b"tops",
    b"p@ss",
    b"key",
    b"token",
    b"auth",
    b"string",
    b"value",
    b"your",
    b"my",
    b"monkey",
    b"dragon",
    b"hunter",
    b"iloveyou",
];

/// Whether `value` is a password, and neither a reference to one nor a word of the documentation.
pub fn is_password(value: &[u8]) -> bool {
    // Kubernetes and others write passwords in base64: then the text inside is what is judged.
    let mut bytes = [0u8; 96];
    match encoded_in(value, &mut bytes) {
        Some(text) => is_plain_password(text),
        None => is_plain_password(value),
    }
}

/// The printable text that padded base64 holds.
fn encoded_in<'b>(value: &[u8], bytes: &'b mut [u8; 96]) -> Option<&'b [u8]> {
    let is_whole = value.len().is_multiple_of(4) && (8..=128).contains(&value.len());
    if !is_whole || !super::structure::is_base64(value) {
        return None;
    }
    let count = base64::decode_into(value, bytes);
    let text = bytes[..count].trim_ascii();
    let is_text = text.len() >= 5 && text.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    is_text.then_some(text)
}

fn is_plain_password(value: &[u8]) -> bool {
    if !LENGTH.contains(&value.len()) || is_reference(value) || placeholder::is_placeholder(value) {
        return false;
    }
    let count = |is: fn(&u8) -> bool| value.iter().filter(|byte| is(byte)).count();
    let (lower, upper, digits) =
        (count(u8::is_ascii_lowercase), count(u8::is_ascii_uppercase), count(u8::is_ascii_digit));
    let symbols = value.iter().filter(|byte| is_symbol(**byte)).count();
    // Signs that people put into passwords, and that words, addresses and markup do not have inside them.
    let has_sign =
        value.len() >= 8 && value[1..].iter().any(|byte| matches!(byte, b'!' | b'#' | b'$' | b'^' | b'&' | b'*'));
    let kinds = [lower, upper, digits, symbols].iter().filter(|&&count| count > 0).count();
    let letters = value.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let is_weak = WEAK.iter().any(|word| value.len() >= word.len() && value[..word.len()].eq_ignore_ascii_case(word));
    // `Password1`, `user_name2`: a word with a number behind it.
    let is_word_and_number = symbols == 0 && value[letters..].iter().all(|byte| byte.is_ascii_digit() || *byte == b'_');
    !is_weak
        && kinds >= 2
        && digits + symbols > 0
        && lower + upper > 0
        && shannon(value) >= 2.4
        && (kinds >= 3 || !is_word_and_number)
        && !(digits == 0 && random::reads_like_words(value) && !has_sign)
}

/// Whether `value` is a password even without quotes around it, where code and prose stand too.
pub fn is_strong_password(value: &[u8]) -> bool {
    let has = |is: fn(&u8) -> bool| value.iter().any(is);
    let kinds = [
        has(u8::is_ascii_lowercase),
        has(u8::is_ascii_uppercase),
        has(u8::is_ascii_digit),
        value.iter().any(|byte| is_symbol(*byte)),
    ];
    let kinds = kinds.iter().filter(|&&has| has).count();
    value.len() >= 8 && has(u8::is_ascii_digit) && kinds >= 3 && is_password(value) && !is_name_with_number(value)
}

/// `Sha256`, `base64Encoded`, `utf8_general_ci`.
fn is_name_with_number(value: &[u8]) -> bool {
    value.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_') && random::reads_like_words(value)
}

/// Whether `text` is base64 of `user:password`.
pub fn is_basic_credentials(text: &[u8]) -> bool {
    let mut bytes = [0u8; 192];
    let count = base64::decode_into(text, &mut bytes);
    let decoded = &bytes[..count];
    let Some(colon) = memchr::memchr(b':', decoded) else { return false };
    let password = &decoded[colon + 1..];
    decoded.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ')
        && !password.is_empty()
        && !is_reference(password)
        && super::structure::is_url_password(password)
}

/// Whether `text` is base64 of a printable text that is no stand-in.
pub fn is_encoded_text(text: &[u8]) -> bool {
    let mut bytes = [0u8; 192];
    let count = base64::decode_into(text, &mut bytes);
    let decoded = bytes[..count].trim_ascii();
    decoded.len() >= 6
        && decoded.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ')
        && !is_reference(decoded)
        && (is_plain_password(decoded) || random::looks_random(decoded))
}

/// What stands for a value: a variable, a path, an address, a function call.
fn is_reference(value: &[u8]) -> bool {
    let has = |part: &[u8]| memchr::memmem::find(value, part).is_some();
    let starts = |with: &[u8]| value.starts_with(with);
    let is_path = value.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'/' | b'-'))
        && (starts(b"/") || starts(b"./") || starts(b"../") || value.iter().filter(|byte| **byte == b'/').count() > 1);
    // `settings.PASSWORD2`, `self.pw1`: a name, a dot, and no other sign.
    let is_access = memchr::memchr(b'.', value).is_some_and(|dot| {
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
        dot >= 2 && value[..dot].iter().all(u8::is_ascii_alphabetic) && value.iter().all(is_name)
    });
    // `CONSTANT_NAME2`, and `user@host/path` of an address.
    let is_constant =
        has(b"_") && value.iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_');
    let is_address = has(b"@") && has(b"/");
    is_constant
        || is_address
        || has(b"://")
        || has(b"->")
        || has(b"::")
        || has(b"()")
        || is_path
        || is_access
        || starts(b"--")
        || starts(b"$")
        || (starts(b"%") && value.len() < 8)
        || value.iter().any(|byte| matches!(byte, b'{' | b'}' | b'<' | b'>'))
        || contains_folded(value, b"password")
}

fn is_symbol(byte: u8) -> bool {
    byte.is_ascii_punctuation() && !matches!(byte, b'_' | b'-' | b'.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::base64;

    #[test]
    fn passwords_of_people_are_told_from_names_and_words() {
        for value in ["Tr0ub4dor&3", "k7!mWq2#", "Xy9-bt4-Qp", "4gh7dk2w9", "Zebra!2019x"] {
            assert!(is_password(value.as_bytes()), "{value}");
        }
        for value in [
            "password1",
            "hunter22",
            "user.password",
            "settings.DB_PASS2",
            "/run/secrets/db1",
            "admin123",
            "secret",
            "correct horse",
            "getPass()",
            "${PW}",
            "<password>",
            "test1234!",
            "changeme",
            "kwargs",
            "self.pw1",
            "string",
            "horsebattery",
            "FORBIDDEN_VALUE2",
            "type@host:42/x",
            "cGFzc3dvcmQ=",
            "s3cret",
        ] {
            assert!(!is_password(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn without_quotes_three_kinds_of_characters_are_asked_for() {
        assert!(is_strong_password(b"Tr0ub4dor&3") && is_strong_password(b"qT7vZk2L")); // tessera:allow
        for value in ["4gh7dk2w9", "base64Encoded", "Ab1!"] {
            assert!(!is_strong_password(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn basic_credentials_have_a_name_a_colon_and_a_password() {
        assert!(is_basic_credentials(base64(b"deploy:Tr0ub4dor-x").as_bytes()));
        for text in ["deploy:password", "no colon in this one", "user:${PASS}", "\x01\x02\x03:\x04\x05\x06\x07"] {
            assert!(!is_basic_credentials(base64(text.as_bytes()).as_bytes()), "{text}");
        }
    }

    #[test]
    fn encoded_text_is_read_before_it_is_believed() {
        assert!(is_encoded_text(base64(b"Tr0ub4dor&3").as_bytes()));
        assert!(!is_encoded_text(base64(b"changeme").as_bytes()) && !is_encoded_text(base64(b"postgres").as_bytes()));
    }
}
