//! Text in XML and HTML.

/// Text as it stands between tags or in quotation marks. What XML cannot hold is replaced.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(char),
            _ if super::human::steers(char) || matches!(char, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            _ => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_its_element_or_steers_its_reader() {
        assert_eq!(escaped("<a href=\"x\">'&\n"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;\n");
        assert_eq!(escaped("\u{202e}\x1b[2J\0\u{ffff}ä"), "\u{fffd}\u{fffd}[2J\u{fffd}\u{fffd}ä");
    }
}
