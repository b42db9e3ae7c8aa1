//! Names and the values assigned to them, in whatever language the text is.
//!
//! Many services issue keys that look like any hash; only the name beside them tells. Written as one regular
//! expression, "a name with this word, something like an assignment, a value" is slow and unreadable. Here the
//! assignment is read by hand, in a few bounded steps from the keyword on, and only the value is left to the rule:
//!
//! ```text
//! export DATADOG_API_KEY=0123…          "datadogApiKey": "0123…"         datadog.api-key: 0123…
//! const DATADOG_KEY: &str = "0123…";    setenv("DATADOG_KEY", "0123…")   <datadogKey>0123…</datadogKey>
//! --datadog-api-key 0123…               datadog_key => '0123…'           -e DATADOG_KEY="0123…"
//! ```

/// Longest rest of a name after the keyword, and longest beginning before it.
pub(crate) const NAME_BYTES_MAX: usize = 48;
/// Spaces on either side of the operator: aligned tables have many.
const SPACES_MAX: usize = 24;
/// Longest type annotation between name and value.
const TYPE_BYTES_MAX: usize = 32;

/// How far from the start of a keyword its value can begin: the keyword itself, what [`values`] skips, and a type.
pub(crate) const REACH_MAX: usize = 64 + NAME_BYTES_MAX + 2 * TYPE_BYTES_MAX + 6 * SPACES_MAX;

/// Where a value begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueAt {
    pub(crate) at: usize,
    /// It stands in quotes, or follows `=` without spaces as in an environment file.
    pub(crate) quoted: bool,
}

/// Where the value assigned to the name around `keyword` may begin: at most two places, the second if there is a type between.
pub(crate) fn values(text: &[u8], keyword: core::ops::Range<usize>, qualified: bool) -> [Option<ValueAt>; 2] {
    let floor = keyword.start.saturating_sub(NAME_BYTES_MAX);
    let name_start = (floor..keyword.start).rev().take_while(|&i| is_name(text[i])).last().unwrap_or(keyword.start);
    let name_end = skip_while(text, keyword.end, NAME_BYTES_MAX, is_name);
    if qualified && !is_qualified(&text[name_start..name_end]) {
        return [None, None];
    }
    let closed = skip_while(text, name_end, 3, |byte| matches!(byte, b'"' | b'\'' | b'`' | b')' | b']' | b'\\'));
    let was_quoted = closed > name_end;
    let is_flag = text[name_start..].starts_with(b"--");
    let Some((first, operator)) = value_after(text, closed, was_quoted, is_flag) else { return [None, None] };
    let second = (operator == b':').then(|| after_type(text, first.at)).flatten();
    [Some(first), second]
}

/// Whether a value that ends before `end` really ends there.
pub(crate) fn ends_at(text: &[u8], end: usize) -> bool {
    match text.get(end) {
        None => true,
        Some(b'.') => !text.get(end + 1).is_some_and(|byte| byte.is_ascii_alphanumeric()),
        Some(byte) => {
            !(byte.is_ascii_alphanumeric()
                || matches!(byte, b'_' | b'-' | b'+' | b'/' | b'=' | b'(' | b'[' | b'$' | b'@'))
        }
    }
}

fn value_after(text: &[u8], from: usize, was_quoted: bool, is_flag: bool) -> Option<(ValueAt, u8)> {
    let operator_at = skip_spaces(text, from);
    let operator_end = skip_while(text, operator_at, 3, |byte| {
        matches!(byte, b'=' | b':' | b'>' | b'|' | b'?' | b'(') || (was_quoted && byte == b',')
    });
    let operator = *text.get(operator_at)?;
    if operator_end == operator_at {
        // `--api-key VALUE`
        let spaced = is_flag && operator_at > from;
        return spaced.then_some((ValueAt { at: operator_at, quoted: true }, b' '));
    }
    let spaced_end = skip_spaces(text, operator_end);
    let prefixed = match (text.get(spaced_end), text.get(spaced_end + 1)) {
        (Some(b'b' | b'r' | b'u' | b'f' | b'L' | b'@'), Some(b'"' | b'\'')) => spaced_end + 1,
        _ => spaced_end,
    };
    let at = skip_while(text, prefixed, 4, |byte| matches!(byte, b'"' | b'\'' | b'`' | b'\\'));
    let tight = operator_at == from && spaced_end == operator_end && matches!(text[operator_end - 1], b'=' | b'>');
    Some((ValueAt { at, quoted: at > prefixed || tight }, operator))
}

/// `: &str = "…"`, `: string = '…'`
fn after_type(text: &[u8], from: usize) -> Option<ValueAt> {
    let end = skip_while(text, from, TYPE_BYTES_MAX, |byte| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'&' | b'<' | b'>' | b'\'' | b' ' | b'?' | b'*' | b'[' | b']' | b'.' | b'_' | b'|')
    });
    (text.get(end) == Some(&b'=') && end > from)
        .then(|| value_after(text, end, false, false).map(|(value, _)| value))
        .flatten()
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

/// Whether a name says that its value is to be kept secret.
fn is_qualified(name: &[u8]) -> bool {
    const QUALIFIERS: &[&[u8]] = &[
        b"key", b"token", b"secret", b"pass", b"pwd", b"auth", b"cred", b"api", b"bearer", b"sid", b"dsn", b"webhook",
    ];
    QUALIFIERS.iter().any(|word| crate::placeholder::contains_folded(name, word))
}

fn skip_spaces(text: &[u8], from: usize) -> usize {
    skip_while(text, from, SPACES_MAX, |byte| matches!(byte, b' ' | b'\t'))
}

fn skip_while(text: &[u8], from: usize, count_max: usize, wanted: impl Fn(u8) -> bool) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    from + rest.iter().take(count_max).take_while(|&&byte| wanted(byte)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_values(text: &str) -> alloc::vec::Vec<&str> {
        let at = text.to_ascii_lowercase().find("datadog").unwrap();
        values(text.as_bytes(), at..at + 7, true).into_iter().flatten().map(|value| &text[value.at..]).collect()
    }

    #[test]
    fn assignments_of_many_languages_are_read() {
        for text in [
            "export DATADOG_API_KEY=VALUE",
            "\"datadogApiKey\": \"VALUE\"",
            "datadog.api-key: VALUE",
            "setenv(\"DATADOG_KEY\", \"VALUE\")",
            "<datadogKey>VALUE</datadogKey>",
            "--datadog-api-key VALUE",
            "datadog_key => 'VALUE'",
            "-e DATADOG_KEY=\"VALUE\"",
            "datadog_key := `VALUE`",
            "{\\\"datadog_key\\\": \\\"VALUE\\\"}",
            "datadog_key = b'VALUE'",
            "DATADOG_KEY ||= 'VALUE'",
            "datadogKey(\"VALUE\")",
            "?datadog_key=VALUE&x=1",
            "DATADOG_KEY ?= VALUE",
            "os.environ['DATADOG_KEY'] = 'VALUE'",
        ] {
            assert!(
                first_values(text).iter().any(|value| value.starts_with("VALUE")),
                "{text}: {:?}",
                first_values(text)
            );
        }
    }

    #[test]
    fn a_type_between_name_and_value_is_stepped_over() {
        for text in [
            "const DATADOG_KEY: &str = \"VALUE\";",
            "let datadogKey: string = 'VALUE'",
            "datadog_key: Option<&'static str> = VALUE",
        ] {
            assert!(
                first_values(text).iter().any(|value| value.starts_with("VALUE")),
                "{text}: {:?}",
                first_values(text)
            );
        }
    }

    #[test]
    fn names_that_promise_no_secret_and_prose_are_left_alone() {
        for text in ["DATADOG_URL=VALUE", "the datadog agent is VALUE", "datadog", "datadog_key VALUE", "datadog_key"] {
            assert_eq!(first_values(text), alloc::vec::Vec::<&str>::new(), "{text}");
        }
    }

    #[test]
    fn values_end_where_nothing_continues_them() {
        for (text, end, ends) in [
            ("abc", 3, true),
            ("abc\"", 3, true),
            ("abcd", 3, false),
            ("abc(", 3, false),
            ("abc.", 3, true),
            ("abc.d", 3, false),
        ] {
            assert_eq!(ends_at(text.as_bytes(), end), ends, "{text}");
        }
    }
}
