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
/// Longest gap between a name and the word `value`.
const GAP_BYTES_MAX: usize = 32;
/// Longest type annotation between name and value.
const TYPE_BYTES_MAX: usize = 32;

/// How far from the start of a keyword its value can begin: the keyword itself, what [`Assignment::read`] skips, and a type.
pub(crate) const REACH_MAX: usize = 64 + NAME_BYTES_MAX + GAP_BYTES_MAX + 2 * TYPE_BYTES_MAX + 6 * SPACES_MAX;

/// Where a value begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueAt {
    pub(crate) at: usize,
    /// It stands in quotes, or follows `=` without spaces as in an environment file.
    pub(crate) quoted: bool,
    /// Nothing but white space stands before it.
    pub(crate) spaced: bool,
}

/// A name and the places where the value assigned to it may begin: at most two, the second if there is a type between.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    name: core::ops::Range<usize>,
    pub(crate) values: [Option<ValueAt>; 2],
}

impl Assignment {
    /// Reads on from a keyword. Most keywords are assigned nothing: the beginning of the name is looked for last.
    pub(crate) fn read(text: &[u8], keyword: &core::ops::Range<usize>) -> Option<Self> {
        let name_end = skip_while(text, keyword.end, NAME_BYTES_MAX, is_name);
        let closed = skip_while(text, name_end, 3, |byte| matches!(byte, b'"' | b'\'' | b'`' | b')' | b']' | b'\\'));
        let was_quoted = closed > name_end;
        let (first, operator) = value_after(text, closed, was_quoted, || name_start(text, keyword.start))?;
        let second = (operator == b':').then(|| after_type(text, first.at)).flatten();
        Some(Self { name: name_start(text, keyword.start)..name_end, values: [Some(first), second] })
    }

    /// Whether the name says that its value is to be kept secret.
    pub(crate) fn is_qualified(&self, text: &[u8]) -> bool {
        is_qualified(&text[self.name.clone()])
    }

    /// Whether the name says that its value is not the secret itself: its name, its hash, where it is kept, a public half.
    pub(crate) fn is_about_a_secret(&self, text: &[u8]) -> bool {
        // `checksum/secret: …` of annotations: what stands before the slash belongs to the name.
        let before = &text[..self.name.start];
        let path = before
            .strip_suffix(b"/")
            .map_or(0, |head| 1 + head.iter().rev().take(NAME_BYTES_MAX).take_while(|byte| is_name(**byte)).count());
        is_about_a_secret(&text[self.name.start - path..self.name.end])
    }
}

fn name_start(text: &[u8], keyword_start: usize) -> usize {
    let floor = keyword_start.saturating_sub(NAME_BYTES_MAX);
    (floor..keyword_start).rev().take_while(|&i| is_name(text[i])).last().unwrap_or(keyword_start)
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

fn value_after(text: &[u8], from: usize, was_quoted: bool, name_start: impl Fn() -> usize) -> Option<(ValueAt, u8)> {
    let operator_at = skip_spaces(text, from);
    let operator_end = skip_while(text, operator_at, 3, |byte| {
        matches!(byte, b'=' | b':' | b'>' | b'|' | b'?' | b'(') || (was_quoted && byte == b',')
    });
    let operator = *text.get(operator_at)?;
    // `||` gives a default; one `|` stands between alternatives, and `?` asks.
    if matches!(text[operator_at..operator_end], [b'|' | b'?']) {
        return None;
    }
    let is_comma = operator == b',' && text[operator_at..operator_end].iter().all(|byte| *byte == b',');
    if (operator_end == operator_at || is_comma)
        && let Some(end) = named_value(text, from)
    {
        let at = skip_while(text, skip_spaces(text, end), 3, |byte| matches!(byte, b'"' | b'\'' | b'\\'));
        return Some((ValueAt { at, quoted: true, spaced: false }, b'='));
    }
    if is_comma && !is_first_argument(&text[..name_start()]) {
        return None;
    }
    if operator_end == operator_at {
        // `--api-key VALUE`, or `ENV API_KEY VALUE` for rules that ask for it.
        let is_flag = operator_at > from && text[name_start()..].starts_with(b"--");
        let at = skip_while(text, operator_at, 1, |byte| matches!(byte, b'"' | b'\''));
        let value = ValueAt { at, quoted: is_flag || at > operator_at, spaced: !is_flag };
        return (operator_at > from).then_some((value, b' '));
    }
    let spaced_end = skip_spaces(text, operator_end);
    let prefixed = match (text.get(spaced_end), text.get(spaced_end + 1)) {
        (Some(b'b' | b'r' | b'u' | b'f' | b'L' | b'@'), Some(b'"' | b'\'')) => spaced_end + 1,
        _ => spaced_end,
    };
    let at = skip_while(text, prefixed, 4, |byte| matches!(byte, b'"' | b'\'' | b'`' | b'\\'));
    // What is called or listed may be anything; only a text in quotes is a value.
    if (is_comma || operator == b'(') && at == prefixed {
        return None;
    }
    let tight = operator_at == from && spaced_end == operator_end && matches!(text[operator_end - 1], b'=' | b'>');
    Some((ValueAt { at, quoted: at > prefixed || tight, spaced: false }, operator))
}

/// `setenv("` and the like: a name behind it is followed by its value, and not by the next of a list.
fn is_first_argument(before: &[u8]) -> bool {
    let unquoted =
        before.strip_suffix(b"\"").or_else(|| before.strip_suffix(b"'")).or_else(|| before.strip_suffix(b"`"));
    unquoted.is_some_and(|before| before.trim_ascii_end().ends_with(b"("))
}

/// `: &str = "…"`, `: string = '…'`
fn after_type(text: &[u8], from: usize) -> Option<ValueAt> {
    let end = skip_while(text, from, TYPE_BYTES_MAX, |byte| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'&' | b'<' | b'>' | b'\'' | b' ' | b'?' | b'*' | b'[' | b']' | b'.' | b'_' | b'|')
    });
    (text.get(end) == Some(&b'=') && end > from)
        .then(|| value_after(text, end, false, || end).map(|(value, _)| value))
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

/// Words at the end of a name after which the value is something about a secret.
const ABOUT: &[&str] = &[
    "id",
    "ids",
    "name",
    "names",
    "path",
    "paths",
    "file",
    "filename",
    "url",
    "urls",
    "uri",
    "endpoint",
    "hash",
    "hashes",
    "sha",
    "digest",
    "checksum",
    "fingerprint",
    "type",
    "types",
    "kind",
    "length",
    "len",
    "size",
    "ref",
    "reference",
    "arn",
    "version",
    "field",
    "fields",
    "header",
    "headers",
    "label",
    "title",
    "prefix",
    "suffix",
    "pattern",
    "regex",
    "format",
    "count",
    "index",
    "policy",
    "expiry",
    "expires",
    "expiration",
    "ttl",
    "timeout",
    "age",
    "algorithm",
    "alg",
    "scheme",
    "description",
    "hint",
    "placeholder",
    "text",
    "message",
    "msg",
    "error",
    "errors",
    "dir",
    "directory",
    "location",
    "store",
    "provider",
    "class",
    "column",
    "env",
    "var",
    "variable",
    "param",
    "enabled",
    "required",
    "template",
    "help",
    "example",
    "usage",
    "status",
    "state",
    "mode",
    "strategy",
    "validator",
    "validators",
    "hasher",
    "hashers",
    "list",
    "group",
    "alias",
    "email",
    "user",
    "username",
    "host",
    "port",
    "region",
    "at",
    "on",
    "by",
    "for",
    "date",
    "time",
    "test",
    "tests",
    "spec",
    "fn",
    "func",
    "handler",
    "link",
    "page",
    "form",
    "input",
    "icon",
    "image",
    "css",
    "selector",
    "locator",
    "xpath",
    "attr",
    "attribute",
    "property",
    "parent",
];

/// Words anywhere in a name after which the value is public, or a key of a table and not of a lock.
const HARMLESS: &[&str] = &[
    "public",
    "pub",
    "publishable",
    "hash",
    "hashed",
    "sha1",
    "sha256",
    "sha512",
    "md5",
    "fingerprint",
    "checksum",
    "etag",
    "cache",
    "primary",
    "foreign",
    "partition",
    "sort",
    "i18n",
    "translation",
    "locale",
    "keyboard",
    "keyword",
    "site",
    "idempotency",
    "commit",
    "revision",
    "rev",
    "digest",
    "integrity",
    "csrf",
    "xsrf",
    "nonce",
    "thumbprint",
    "continuation",
    "pagination",
    "page",
    "next",
    "cursor",
    "enum",
    "column",
    "row",
    "sql",
    "css",
    "issue",
    "object",
    "s3",
    "blob",
    "bucket",
    "build",
    "asset",
];

fn is_about_a_secret(name: &[u8]) -> bool {
    let mut last: &[u8] = b"";
    let mut is_harmless = false;
    for word in words(name) {
        is_harmless |= HARMLESS.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()));
        let digits = word.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        if digits < word.len() {
            last = &word[..word.len() - digits];
        }
    }
    is_harmless || ABOUT.iter().any(|known| last.eq_ignore_ascii_case(known.as_bytes()))
}

/// The words of a name in any of the usual spellings: `API_KEY`, `api-key`, `apiKey`, `APIKey2`.
fn words(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = name;
    core::iter::from_fn(move || {
        let begin = rest.iter().position(u8::is_ascii_alphanumeric)?;
        let text = &rest[begin..];
        let ends = |i: usize| {
            let (before, at) = (text[i - 1], text[i]);
            let next_is_lower = text.get(i + 1).is_some_and(u8::is_ascii_lowercase);
            !at.is_ascii_alphanumeric()
                || (before.is_ascii_lowercase() && at.is_ascii_uppercase())
                || (before.is_ascii_uppercase() && at.is_ascii_uppercase() && next_is_lower)
        };
        let end = (1..text.len()).find(|&i| ends(i)).unwrap_or(text.len());
        rest = &text[end..];
        Some(&text[..end])
    })
}

/// `"DB_PASSWORD", "value": "…"`, `key="ApiKey" value="…"`: where the sign behind the word for the value ends. All on one line: who
/// searches only the lines that changed relies on it.
fn named_value(text: &[u8], from: usize) -> Option<usize> {
    let gap = skip_while(text, from, GAP_BYTES_MAX, |byte| matches!(byte, b' ' | b'\t' | b',' | b'\\'));
    let quoted = skip_while(text, gap, 1, |byte| matches!(byte, b'"' | b'\''));
    let word = text.get(quoted..quoted + 5)?;
    let end = quoted + 5;
    let is_value =
        gap > from && word.eq_ignore_ascii_case(b"value") && !text.get(end).is_some_and(|byte| is_name(*byte));
    let closed = skip_while(text, end, 2, |byte| matches!(byte, b'"' | b'\'' | b'\\'));
    let sign = skip_spaces(text, closed);
    (is_value && matches!(text.get(sign), Some(b'=' | b':'))).then_some(sign + 1)
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
        let read = Assignment::read(text.as_bytes(), &(at..at + 7)).filter(|one| one.is_qualified(text.as_bytes()));
        let plain = |value: &ValueAt| !value.spaced;
        read.into_iter().flat_map(|one| one.values).flatten().filter(plain).map(|value| &text[value.at..]).collect()
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
            "{\"name\": \"DATADOG_KEY\", \"value\": \"VALUE\"}",
            "<add key=\"DatadogApiKey\" value=\"VALUE\" />",
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
        for text in [
            "DATADOG_URL=VALUE",
            "the datadog agent is VALUE",
            "datadog",
            "datadog_key VALUE",
            "datadog_key",
            "datadog_key | VALUE",
        ] {
            assert_eq!(first_values(text), alloc::vec::Vec::<&str>::new(), "{text}");
        }
    }

    #[test]
    fn names_of_what_is_no_secret_are_told_from_names_of_secrets() {
        for name in ["API_KEY", "clientSecret", "auth-token", "SECRET_KEY_2", "db.password", "APIKey"] {
            assert!(!is_about_a_secret(name.as_bytes()), "{name}");
        }
        for name in [
            "secret_name",
            "tokenUrl",
            "PUBLIC_KEY",
            "accessKeyId",
            "key-file",
            "passwordHash",
            "primary_key",
            "tokenType2",
        ] {
            assert!(is_about_a_secret(name.as_bytes()), "{name}");
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
