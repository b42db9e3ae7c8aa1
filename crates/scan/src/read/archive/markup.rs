//! The text of office documents, whose parts are XML: a word may be cut into runs, each in tags of its own.
//!
//! Tags are left out, and with a paragraph, a row or a cell ends a line. Entities are read. Nothing is lost but the tags: what stands in
//! their attributes (targets of links) is in other parts, which are searched as they are.

use std::io::{self, Read};

/// Whether a member is a part of a document that holds text.
pub(super) fn is_of_document(path: &[u8]) -> bool {
    let inner = path.rsplit(|&byte| byte == b'!').next().unwrap_or_default();
    let is_part = [&b"word/"[..], b"xl/", b"ppt/"].iter().any(|folder| inner.starts_with(folder));
    is_part && inner.ends_with(b".xml") && inner.len() < path.len()
}

/// Text without its tags.
pub(super) struct Text<R> {
    inner: R,
    buffer: Vec<u8>,
    /// What was read and is not handed out.
    ready: Vec<u8>,
    given: usize,
    state: State,
}

enum State {
    Text,
    /// In a tag: the beginning of its name.
    Tag(Vec<u8>),
    /// In an entity.
    Entity(Vec<u8>),
}

/// Names of elements are shorter, and so are entities.
const NAME_MAX: usize = 32;

impl<R: Read> Text<R> {
    pub(super) fn of(inner: R) -> Self {
        Self { inner, buffer: vec![0; 1 << 14], ready: Vec::new(), given: 0, state: State::Text }
    }

    fn take(&mut self, byte: u8) {
        match &mut self.state {
            State::Text => match byte {
                b'<' => self.state = State::Tag(Vec::new()),
                b'&' => self.state = State::Entity(Vec::new()),
                byte => self.ready.push(byte),
            },
            State::Tag(name) => {
                if byte == b'>' {
                    self.ready.extend(ends_line(name).then_some(b'\n'));
                    self.state = State::Text;
                } else if name.len() < NAME_MAX {
                    name.push(byte);
                }
            }
            State::Entity(name) => match byte {
                b';' => {
                    let name = std::mem::take(name);
                    push_entity(&name, &mut self.ready);
                    self.state = State::Text;
                }
                byte if name.len() < NAME_MAX && (byte.is_ascii_alphanumeric() || byte == b'#') => name.push(byte),
                // No entity after all.
                byte => {
                    let name = std::mem::take(name);
                    self.ready.push(b'&');
                    self.ready.extend_from_slice(&name);
                    self.state = State::Text;
                    self.take(byte);
                }
            },
        }
    }
}

/// Whether something else begins behind this tag.
fn ends_line(tag: &[u8]) -> bool {
    let name = tag.split(|byte| b" \t\r\n".contains(byte)).next().unwrap_or_default();
    matches!(name, b"/w:p" | b"/a:p" | b"/si" | b"/c" | b"/row" | b"w:br/" | b"w:cr/" | b"w:tab/" | b"a:br/" | b"/w:tc")
}

fn push_entity(name: &[u8], out: &mut Vec<u8>) {
    let known = match name {
        b"amp" => Some('&'),
        b"lt" => Some('<'),
        b"gt" => Some('>'),
        b"quot" => Some('"'),
        b"apos" => Some('\''),
        _ => std::str::from_utf8(name).ok().and_then(|name| {
            let number = name.strip_prefix('#')?;
            let number = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => number.parse(),
            };
            char::from_u32(number.ok()?)
        }),
    };
    match known {
        Some(char) => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        None => out.extend_from_slice(&[b"&", name, b";"].concat()),
    }
}

impl<R: Read> Read for Text<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.ready.len() {
            self.ready.clear();
            self.given = 0;
            let mut packed = std::mem::take(&mut self.buffer);
            let read = self.inner.read(&mut packed);
            if let Ok(read) = read {
                packed[..read].iter().for_each(|&byte| self.take(byte));
            }
            self.buffer = packed;
            if read? == 0 {
                break;
            }
        }
        let len = buffer.len().min(self.ready.len() - self.given);
        buffer[..len].copy_from_slice(&self.ready[self.given..self.given + len]);
        self.given += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_and_paragraphs_are_lines() {
        let xml = "<w:p><w:r><w:t>pass</w:t></w:r><w:r><w:t xml:space=\"preserve\">word=a&amp;b</w:t></w:r></w:p><w:p><w:t>&#65;&x; & c</w:t></w:p>";
        for piece in [1, 2, 1_000] {
            let mut text = Text::of(xml.as_bytes());
            let (mut out, mut buffer) = (Vec::new(), vec![0; piece]);
            loop {
                match text.read(&mut buffer).unwrap() {
                    0 => break,
                    read => out.extend_from_slice(&buffer[..read]),
                }
            }
            assert_eq!(String::from_utf8(out).unwrap(), "password=a&b\nA&x; & c\n");
        }
        assert!(is_of_document(b"a.docx!word/document.xml") && is_of_document(b"x!a.xlsx!xl/sharedStrings.xml"));
        assert!(!is_of_document(b"word/document.xml") && !is_of_document(b"a.zip!src/word/x.xml"));
    }
}
