//! Go's regular expressions in this crate's syntax.
//!
//! The two agree but for what is left unescaped: Go reads `{{` as two braces, and `[` or `&&` inside a class as
//! themselves. Rules written for Go rely on it, so these are escaped before the expression is read.

use alloc::string::String;

/// Escapes what Go would take literally and we would not.
pub(crate) fn translated(regex: &str) -> String {
    let mut out = String::with_capacity(regex.len() + 8);
    let mut chars = regex.char_indices().peekable();
    // Whether we are inside `[…]`, and how many characters of it were read.
    let mut in_class: Option<usize> = None;
    while let Some((at, char)) = chars.next() {
        let rest = &regex[at..];
        if char == '\\' {
            out.push(char);
            if let Some((_, escaped)) = chars.next() {
                out.push(escaped);
            }
            in_class = in_class.map(|read| read + 1);
            continue;
        }
        match in_class {
            None => match char {
                '[' => {
                    out.push('[');
                    if let Some((_, '^')) = chars.peek() {
                        out.push('^');
                        chars.next();
                    }
                    in_class = Some(0);
                }
                '{' if !is_repetition(rest) => out.push_str("\\{"),
                _ => out.push(char),
            },
            Some(read) => {
                in_class = Some(read + 1);
                match char {
                    // The first one in a class is a member, in both dialects.
                    ']' if read > 0 => {
                        out.push(']');
                        in_class = None;
                    }
                    '[' if rest.starts_with("[:") => {
                        let end = rest.find(":]").map_or(1, |end| end + 2);
                        out.push_str(&rest[..end]);
                        while chars.peek().is_some_and(|&(next, _)| next < at + end) {
                            chars.next();
                        }
                    }
                    '[' | '&' | '~' => {
                        out.push('\\');
                        out.push(char);
                    }
                    _ => out.push(char),
                }
            }
        }
    }
    out
}

/// Whether `text` begins with `{n}`, `{n,}` or `{n,m}`.
fn is_repetition(text: &str) -> bool {
    let Some(end) = text.find('}') else { return false };
    let (least, most) = text[1..end].split_once(',').unwrap_or((&text[1..end], ""));
    !least.is_empty() && least.bytes().all(|b| b.is_ascii_digit()) && most.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_go_takes_literally_is_escaped() {
        for (go, ours) in [
            (r"a{2,3}b{4}c{5,}", r"a{2,3}b{4}c{5,}"),
            (r"\$\{\{x}}", r"\$\{\{x}}"),
            (r"{{[^}]+}}", r"\{\{[^}]+}}"),
            (r"[\w[.]x", r"[\w\[.]x"),
            (r"[a&&b]{3}", r"[a\&\&b]{3}"),
            (r"[[:alpha:]_]+", r"[[:alpha:]_]+"),
            (r"[]a]", r"[]a]"),
            (r"[^]a]", r"[^]a]"),
            (r"[^{}]{1,2}", r"[^{}]{1,2}"),
            (r"\[{x", r"\[\{x"),
            ("é{é", "é\\{é"),
        ] {
            assert_eq!(translated(go), ours);
            assert!(crate::pattern::Pattern::searchable(&translated(go)).is_ok(), "{go}");
        }
    }
}
