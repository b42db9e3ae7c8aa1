//! JSON that can be looked at: marks on which a terminal or an editor acts are written as escapes, which programs read as the same text.

use std::io::{self, Write};

use serde_json::Value;

use super::human::steers;

/// Writes a value over several lines.
pub(super) fn write_pretty(value: &Value, out: &mut dyn Write) -> io::Result<()> {
    Ok(serde_json::to_writer_pretty(Escaping(out), value)?)
}

/// Writes a value on one line, without its end.
pub(super) fn write_line(value: &Value, out: &mut dyn Write) -> io::Result<()> {
    Ok(serde_json::to_writer(Escaping(out), value)?)
}

/// Escapes such marks in what passes. Only strings of JSON have any: what stands between them is ASCII that can be seen.
struct Escaping<'w>(&'w mut dyn Write);

impl Write for Escaping<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The serializer hands over whole characters.
        let text = std::str::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let mut plain_from = 0;
        for (at, char) in text.char_indices().filter(|(_, char)| *char >= '\x7f' && steers(*char)) {
            self.0.write_all(&bytes[plain_from..at])?;
            write!(self.0, "\\u{:04x}", u32::from(char))?;
            plain_from = at + char.len_utf8();
        }
        self.0.write_all(&bytes[plain_from..])?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn marks_are_escaped_and_read_back_as_they_were() {
        let value = json!({"a\u{202e}": ["\u{e4}\u{2066}b", "\n\u{1b}\u{7f}\u{9b}\u{2028}\u{1f600}"], "plain": 1});
        let (mut line, mut pretty) = (Vec::new(), Vec::new());
        write_line(&value, &mut line).unwrap();
        write_pretty(&value, &mut pretty).unwrap();
        for text in [line, pretty].map(|bytes| String::from_utf8(bytes).unwrap()) {
            assert!(text.chars().all(|char| char == '\n' || !steers(char)), "{text:?}");
            assert!(text.contains(r"\u202e") && text.contains(r"\u007f") && text.contains("\u{e4}\\u2066b"), "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}
