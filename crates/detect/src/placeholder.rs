//! Values that stand where a secret will later be: `xxxxxxxx`, `your-key-here`, `${TOKEN}`, `1234567890`.
//!
//! Documentation and templates are full of them, and they are what makes people switch a scanner off. The test is
//! cheap and errs towards reporting: a random token of forty characters is called a placeholder less than once in
//! ten thousand (a test measures it).

/// Words that a random token does not contain by accident.
const WORDS: &[&[u8]] = &[
    b"example",
    b"sample",
    b"dummy",
    b"changeme",
    b"change_me",
    b"change-me",
    b"placeholder",
    b"redacted",
    b"insert",
    b"replace",
    b"yourtoken",
    b"your_",
    b"your-",
    b"yourkey",
    b"yoursecret",
    b"yourpass",
    b"youraccess",
    b"yourapi",
    b"my_secret",
    b"mysecret",
    b"my-secret",
    b"mytoken",
    b"notreal",
    b"not-real",
    b"not_real",
    b"removed",
    b"censored",
    b"masked",
    b"invalid",
    b"fake_",
    b"fake-",
    b"faketoken",
    b"fakekey",
    b"fakesecret",
    b"test_key",
    b"test-key",
    b"testtoken",
    b"test_token",
    b"test-token",
    b"testsecret",
    b"test_secret",
    b"testkey",
    b"foobar",
    b"deadbeef",
    b"abcdefgh",
    b"123456789",
    b"secret_here",
    b"token_here",
    b"key_here",
    b"goeshere",
    b"goes_here",
    b"goes-here",
    b"todo_",
    b"xxxx",
    b"....",
    b"****",
    b"----",
    b"____",
    b"abcd1234",
    b"lorem",
    b"undefined",
    b"localhost",
    b"password123",
];

/// Whether `value` is plainly a stand-in.
pub fn is_placeholder(value: &[u8]) -> bool {
    has_word(value) || has_long_run(value) || has_long_staircase(value) || is_template(value)
}

fn has_word(value: &[u8]) -> bool {
    WORDS.iter().any(|word| contains_folded(value, word))
}

/// Case-blind search; `word` is lower case. Values are a few dozen bytes, so the plain way is the quick one.
pub(crate) fn contains_folded(value: &[u8], word: &[u8]) -> bool {
    !word.is_empty() && value.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word))
}

/// Seven times the same character. (Six equal ones do occur in tokens that encode small numbers as `AAAAAA`.)
fn has_long_run(value: &[u8]) -> bool {
    let mut run = 1;
    value.windows(2).any(|pair| {
        run = if pair[0] == pair[1] { run + 1 } else { 1 };
        run >= 7
    })
}

/// Eight characters that count up or down by one.
fn has_long_staircase(value: &[u8]) -> bool {
    let (mut up, mut down) = (1, 1);
    value.windows(2).any(|pair| {
        up = if pair[1] == pair[0].wrapping_add(1) { up + 1 } else { 1 };
        down = if pair[0] == pair[1].wrapping_add(1) { down + 1 } else { 1 };
        up >= 8 || down >= 8
    })
}

/// A reference to a value rather than the value: shell, template engines, formats, function calls.
fn is_template(value: &[u8]) -> bool {
    let starts = |with: &[u8]| value.starts_with(with);
    starts(b"${")
        || starts(b"$(")
        || starts(b"{{")
        || starts(b"{%")
        || starts(b"%(")
        || starts(b"<")
        || starts(b"#{")
        || starts(b"[[")
        || starts(b"@@")
        || (starts(b"%") && value.ends_with(b"%"))
        || (starts(b"__") && value.ends_with(b"__"))
        || (starts(b"$") && value[1..].iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'_'))
        || memchr::memmem::find(value, b"${").is_some()
        || memchr::memmem::find(value, b"{{").is_some()
        || starts(b"process.env")
        || starts(b"os.environ")
        || starts(b"os.getenv")
        || starts(b"env.")
        || memchr::memmem::find(value, b"secrets.").is_some()
        || memchr::memmem::find(value, b"vault:").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{Seed, alnum};

    #[test]
    fn stand_ins_are_recognised() {
        for value in [
            "xxxxxxxxxxxxxxxx",
            "your-api-key-here",
            "<insert token>",
            "${GITHUB_TOKEN}",
            "{{ secrets.KEY }}",
            "12345678",
            "abcdefghijkl",
            "AKIAIOSFODNN7EXAMPLE",
            "0000000000000000",
            "$TOKEN",
            "%PASSWORD%",
            "__TOKEN__",
            "process.env.KEY",
        ] {
            assert!(is_placeholder(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn six_in_a_row_pass_and_seven_do_not() {
        assert!(!is_placeholder(b"qWAAAAAAz9"));
        assert!(is_placeholder(b"qWAAAAAAAz9"));
        assert!(!is_placeholder(b"qW1234567z"));
        assert!(is_placeholder(b"qW12345678z"));
    }

    #[test]
    fn random_tokens_are_not_taken_for_stand_ins() {
        let mut seed = Seed::new(7);
        let mistaken = (0..20_000).filter(|_| is_placeholder(alnum(&mut seed, 40).as_bytes())).count();
        assert!(mistaken <= 2, "{mistaken} of 20000");
    }
}
