//! How keys, ranges, cursors and shards are written in a story.
//!
//! A key is written as it is, with `\xNN` for bytes that would be misread and `x*4096` for a long run of one byte. A range
//! is `[a,m)`, an empty edge is no bound, and metadata follows in braces: `[a,m){repo 7}` would need its blank escaped. A
//! cursor is a key, perhaps with a token behind a tilde (`c~page2`), or `none`. A shard is its number; what was split
//! from it counts on behind a dot, in the order it was made: `1.2` is the second shard that came out of shard 1, and `2/1`
//! is shard 1 of run 2 (run 1 goes without saying).

use std::fmt::{self, Write};
use std::str::FromStr;

use tessera_contracts::cursor::CursorError;
use tessera_contracts::{Cursor, ShardEpoch, ShardId, ShardSpecRef};

/// The same byte this often or more is written as a repetition.
const REPEAT_MIN: usize = 24;

/// Writes a key so that [`parse_key`] reads it back.
pub(crate) fn key_text(key: &[u8]) -> String {
    if let [first, ..] = key
        && key.len() >= REPEAT_MIN
        && key.iter().all(|byte| byte == first)
    {
        return format!("{}*{}", key_text(&[*first]), key.len());
    }
    let mut text = String::new();
    for &byte in key {
        if byte.is_ascii_alphanumeric() || b"._-/:%+".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Reads a key.
pub(crate) fn parse_key(text: &str) -> Result<Vec<u8>, String> {
    if let Some((one, count)) = text.split_once('*') {
        let count: usize =
            count.parse().map_err(|_| format!("`{count}` in `{text}` is not a number of repetitions"))?;
        return Ok(parse_key(one)?.repeat(count));
    }
    let mut key = Vec::new();
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        if let Some(hex) = rest.strip_prefix("\\x") {
            let byte = hex.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
            key.push(byte.ok_or_else(|| format!("`\\x` in `{text}` needs two hex digits, as in `\\x00`"))?);
            rest = &hex[2..];
        } else if "[](){},~\"\\".contains(next) {
            return Err(format!("`{next}` in key `{text}` must be written as `\\x{:02x}`", u32::from(next)));
        } else {
            key.extend_from_slice(next.to_string().as_bytes());
            rest = &rest[next.len_utf8()..];
        }
    }
    Ok(key)
}

/// A range with its metadata, as written: nothing in it is checked yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RangeText {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
    pub(crate) metadata: Vec<u8>,
}

impl RangeText {
    pub(crate) fn of(spec: ShardSpecRef<'_>) -> Self {
        Self { start: spec.start().into(), end: spec.end().into(), metadata: spec.metadata().into() }
    }
}

impl fmt::Display for RangeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{},{})", key_text(&self.start), key_text(&self.end))?;
        if self.metadata.is_empty() { Ok(()) } else { write!(f, "{{{}}}", key_text(&self.metadata)) }
    }
}

impl FromStr for RangeText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a range; write `[FROM,TO)`, then metadata if any: `[a,m){{meta}}`");
        let (range, metadata) = match text.strip_suffix('}') {
            Some(both) => both.split_once('{').ok_or_else(wrong)?,
            None => (text, ""),
        };
        let edges = range.strip_prefix('[').and_then(|range| range.strip_suffix(')')).ok_or_else(wrong)?;
        let (start, end) = edges.split_once(',').ok_or_else(wrong)?;
        Ok(Self { start: parse_key(start)?, end: parse_key(end)?, metadata: parse_key(metadata)? })
    }
}

/// A cursor as written: nothing in it is checked yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct CursorText {
    pub(crate) last_key: Option<Vec<u8>>,
    pub(crate) token: Option<Vec<u8>>,
}

impl CursorText {
    pub(crate) fn of(cursor: tessera_contracts::CursorUpdate<'_>) -> Self {
        Self { last_key: cursor.last_key().map(Into::into), token: cursor.token().map(Into::into) }
    }

    pub(crate) fn build(&self) -> Result<Cursor, CursorError> {
        Cursor::new(self.last_key.as_deref(), self.token.as_deref())
    }
}

impl fmt::Display for CursorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.last_key.as_deref().map_or_else(|| String::from("none"), key_text))?;
        match &self.token {
            Some(token) => write!(f, "~{}", key_text(token)),
            None => Ok(()),
        }
    }
}

impl FromStr for CursorText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, token) = match text.split_once('~') {
            Some((key, token)) => (key, Some(parse_key(token)?)),
            None => (text, None),
        };
        Ok(Self { last_key: if key == "none" { None } else { Some(parse_key(key)?) }, token })
    }
}

/// A shard by the name it has in a story.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ShardName {
    pub(crate) run: u64,
    pub(crate) root: u64,
    /// The way down from the root, counted from 1.
    pub(crate) below: Vec<u32>,
}

impl ShardName {
    pub(crate) fn root(run: u64, root: ShardId) -> Self {
        Self { run, root: root.get(), below: Vec::new() }
    }

    /// The shard that was split from this one after `before` others.
    pub(crate) fn spawned(&self, before: usize) -> Self {
        let mut child = self.clone();
        child.below.push(before as u32 + 1);
        child
    }
}

impl fmt::Display for ShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.run != 1 {
            write!(f, "{}/", self.run)?;
        }
        write!(f, "{}", self.root)?;
        self.below.iter().try_for_each(|step| write!(f, ".{step}"))
    }
}

impl FromStr for ShardName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |_| format!("`{text}` is not a shard; write `1`, `1.2` (split from 1) or `2/1` (shard 1 of run 2)");
        let (run, path) = text.split_once('/').unwrap_or(("1", text));
        let mut steps = path.split('.');
        let root = steps.next().unwrap_or_default().parse().map_err(wrong)?;
        let below = steps.map(str::parse).collect::<Result<_, _>>().map_err(wrong)?;
        Ok(Self { run: run.parse().map_err(wrong)?, root, below })
    }
}

/// An ownership of a shard: `2` for a fence epoch of the run that is there, `7/2` for one of the run's incarnation 7.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EpochText {
    pub(crate) incarnation: Option<u64>,
    pub(crate) fence: u64,
}

impl EpochText {
    /// Whether this ownership is meant. Without an incarnation, that of any will do.
    pub(crate) fn names(self, epoch: ShardEpoch) -> bool {
        epoch.fence.get() == self.fence && self.incarnation.is_none_or(|meant| epoch.incarnation.get() == meant)
    }
}

impl fmt::Display for EpochText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(incarnation) = self.incarnation {
            write!(f, "{incarnation}/")?;
        }
        write!(f, "{}", self.fence)
    }
}

impl FromStr for EpochText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            |_| format!("`{text}` is not a fence epoch; write `2`, or `7/2` for one of the run's incarnation 7");
        let (incarnation, fence) = match text.split_once('/') {
            Some((incarnation, fence)) => (Some(incarnation.parse().map_err(wrong)?), fence),
            None => (None, text),
        };
        Ok(Self { incarnation, fence: fence.parse().map_err(wrong)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_text_reads_back() {
        for key in [&b""[..], b"a", b"a b", b"\x00\xff", b"[x)", &[b'k'; 4096], "schlüssel".as_bytes()] {
            assert_eq!(parse_key(&key_text(key)).as_deref(), Ok(key));
        }
        for range in ["[a,m)", "[,)", "[a,b){repo\\x207}"] {
            assert_eq!(range.parse::<RangeText>().unwrap().to_string(), range);
        }
        for cursor in ["none", "c", "c~page2", "k*4096~t*30"] {
            assert_eq!(cursor.parse::<CursorText>().unwrap().to_string(), cursor);
        }
        for epoch in ["2", "7/2"] {
            assert_eq!(epoch.parse::<EpochText>().unwrap().to_string(), epoch);
        }
        for shard in ["1", "1.2", "2/1.1.3"] {
            assert_eq!(shard.parse::<ShardName>().unwrap().to_string(), shard);
        }
    }

    #[test]
    fn text_that_cannot_be_read_is_refused_with_the_form_to_write() {
        assert!(parse_key("a,b").unwrap_err().contains("\\x2c"));
        assert!(parse_key("\\xg").unwrap_err().contains("two hex digits"));
        assert!("a,m".parse::<RangeText>().unwrap_err().contains("[FROM,TO)"));
        assert!("7/x".parse::<EpochText>().unwrap_err().contains("`7/2`"));
        assert!("one".parse::<ShardName>().unwrap_err().contains("1.2"));
    }
}
