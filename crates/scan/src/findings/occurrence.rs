//! One secret in one place, as it is stored and reported.
//!
//! The secret itself is stored only if the run was started to show secrets. Otherwise what remains of it is a keyed hash
//! and its redacted form, and no later command can get more out of a findings folder.

use std::fmt;

use tessera_contracts::redact::SecretBytes;
use tessera_detect::{Confidence, Finding, FindingId, IdKey, Position, SecretId, Severity};

use crate::wire::{Malformed, Reader, Writer};

/// One secret in one place.
#[derive(Clone)]
pub struct Occurrence {
    /// Names this occurrence; the same when the item is scanned again.
    pub id: FindingId,
    /// Names the secret; the same wherever it occurs.
    pub secret_id: SecretId,
    /// The rule that found it.
    pub rule: String,
    /// How bad a leak is.
    pub severity: Severity,
    /// How sure this is.
    pub confidence: Confidence,
    /// What the offline check said: `unchecked`, `structure`, `checksum` or `failed`.
    pub check: String,
    /// Shannon entropy of the secret, in bits a byte.
    pub entropy: f32,
    /// The target it is in, by its number in the run.
    pub target: u32,
    /// Path below the target with `/`; empty if the target is the file. That of a member of an archive begins with the archive's.
    pub path: Vec<u8>,
    /// How much of `path` is that of the file or blob itself.
    pub item_path_len: u32,
    /// The blob, if it was found in a history.
    pub blob: Option<Box<[u8]>>,
    /// Where the match begins.
    pub start: Position,
    /// Where it ends.
    pub end: Position,
    /// Offset of the secret in the item.
    pub offset: u64,
    /// Length of the secret, so that the same secret is recognised in other texts by its id.
    pub secret_len: u64,
    /// Encodings around the secret, outermost first.
    pub decoded_from: Vec<String>,
    /// The secret as reports show it.
    pub redacted: String,
    /// The secret and the whole match, if the run keeps them.
    pub exposed: Option<Exposed>,
}

/// What is kept only on request.
#[derive(Clone, Debug)]
pub struct Exposed {
    /// The secret.
    pub secret: SecretBytes,
    /// The whole match.
    pub matched: SecretBytes,
}

/// Longest secret or match that is kept; the rest of a longer one is cut off.
const EXPOSED_BYTES_MAX: usize = 16 << 10;

impl Occurrence {
    /// What `finding` says about this place.
    pub fn new(finding: &Finding<'_>, id_key: &IdKey, place: &Place<'_>, keep_secret: bool) -> Self {
        let cut = |bytes: &[u8]| SecretBytes::new(&bytes[..bytes.len().min(EXPOSED_BYTES_MAX)]);
        Self {
            id: finding.id(id_key, &place.name()),
            secret_id: finding.secret_id(id_key),
            rule: finding.rule.id.clone(),
            severity: finding.severity(),
            confidence: finding.confidence,
            check: finding.outcome.to_string(),
            entropy: finding.entropy,
            target: place.target,
            path: place.path.to_vec(),
            item_path_len: place.item_path_len as u32,
            blob: place.blob.map(Box::from),
            start: finding.start,
            end: finding.end,
            offset: finding.secret_span.start,
            secret_len: finding.secret.len() as u64,
            decoded_from: finding.decoded_from.iter().map(|encoding| encoding.to_string()).collect(),
            redacted: finding.secret.redacted(),
            exposed: keep_secret
                .then(|| Exposed { secret: cut(finding.secret.expose()), matched: cut(finding.matched.expose()) }),
        }
    }

    /// The path of the file or blob itself, also if this is a member of an archive.
    pub fn item_path(&self) -> &[u8] {
        &self.path[..self.item_path_len as usize]
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.fixed(&self.id.0);
        writer.fixed(&self.secret_id.0);
        for text in [&self.rule, self.severity.as_str(), self.confidence.as_str(), &self.check, &self.redacted] {
            writer.bytes(text.as_bytes());
        }
        writer.u32(self.entropy.to_bits());
        writer.u32(self.target);
        writer.bytes(&self.path);
        writer.u32(self.item_path_len);
        writer.optional(self.blob.as_deref());
        for number in [self.start.line, self.start.column, self.end.line, self.end.column, self.offset, self.secret_len]
        {
            writer.u64(number);
        }
        writer.u8(self.decoded_from.len() as u8);
        for encoding in &self.decoded_from {
            writer.bytes(encoding.as_bytes());
        }
        writer.optional(self.exposed.as_ref().map(|exposed| exposed.secret.expose()));
        writer.optional(self.exposed.as_ref().map(|exposed| exposed.matched.expose()));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (id, secret_id) = (FindingId(reader.array()?), SecretId(reader.array()?));
        let rule = reader.text()?.to_owned();
        let word = Malformed("it uses an unknown word for severity or confidence");
        let severity = reader.text()?.parse().map_err(|_| word)?;
        let confidence = reader.text()?.parse().map_err(|_| word)?;
        let (check, redacted) = (reader.text()?.to_owned(), reader.text()?.to_owned());
        let entropy = f32::from_bits(reader.u32()?);
        let target = reader.u32()?;
        let path = reader.bytes()?.to_vec();
        let item_path_len = reader.u32()?;
        if item_path_len as usize > path.len() {
            return Err(Malformed("a path is shorter than its beginning"));
        }
        let blob = reader.optional()?.map(Box::from);
        let start = Position { line: reader.u64()?, column: reader.u64()? };
        let end = Position { line: reader.u64()?, column: reader.u64()? };
        let (offset, secret_len) = (reader.u64()?, reader.u64()?);
        let mut decoded_from = Vec::new();
        for _ in 0..reader.u8()? {
            decoded_from.push(reader.text()?.to_owned());
        }
        let exposed = match (reader.optional()?, reader.optional()?) {
            (Some(secret), Some(matched)) => {
                Some(Exposed { secret: SecretBytes::new(secret), matched: SecretBytes::new(matched) })
            }
            _ => None,
        };
        Ok(Self {
            id,
            secret_id,
            rule,
            severity,
            confidence,
            check,
            entropy,
            target,
            path,
            item_path_len,
            blob,
            start,
            end,
            offset,
            secret_len,
            decoded_from,
            redacted,
            exposed,
        })
    }
}

impl fmt::Debug for Occurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = String::from_utf8_lossy(&self.path);
        write!(f, "Occurrence({} at {path}:{}, id {})", self.rule, self.start.line, self.id)
    }
}

/// Where an item lies, as reports name it.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Number of the target.
    pub target: u32,
    /// Path below it with `/`; that of a member of an archive begins with the archive's.
    pub path: &'a [u8],
    /// How much of `path` is that of the file or blob itself.
    pub item_path_len: usize,
    /// The blob, in a history.
    pub blob: Option<&'a [u8]>,
}

impl<'a> Place<'a> {
    /// The place of a file or blob itself.
    pub fn of_item(target: u32, path: &'a [u8], blob: Option<&'a [u8]>) -> Self {
        Self { target, path, item_path_len: path.len(), blob }
    }

    /// What tells this place from all others of a run. The number of the target and not its path: a scan of the same
    /// repository elsewhere names the same places.
    fn name(&self) -> Vec<u8> {
        let mut name = Writer::default();
        name.u32(self.target);
        name.optional(self.blob);
        name.u32(self.item_path_len as u32);
        name.bytes(self.path);
        name.0
    }
}

#[cfg(test)]
mod tests {
    use tessera_detect::{Detector, RuleSet, Source, template};

    use super::*;

    fn found(keep_secret: bool) -> (Occurrence, String) {
        let token = template::expand("ghp_<<github 30>>", &mut template::Seed::new(7)).unwrap();
        let mut detector = Detector::new(&RuleSet::builtin()).unwrap();
        let mut found = Vec::new();
        let place = Place { item_path_len: 1, ..Place::of_item(2, b"a/\xff", Some(&[7; 20])) };
        let text = format!("token = \"{token}\"\n");
        detector.scan_bytes(Source::path("x"), text.as_bytes(), |finding| {
            found.push(Occurrence::new(finding, &IdKey::new([0; 32]), &place, keep_secret));
        });
        assert_eq!(found.len(), 1);
        (found.remove(0), token)
    }

    #[test]
    fn a_place_has_another_name_than_every_other_and_a_secret_the_same_in_all() {
        let place = Place::of_item(1, b"a/b", Some(&[7; 20]));
        let others = [
            Place { target: 2, ..place },
            Place { path: b"a/c", ..place },
            Place { blob: Some(&[8; 20]), ..place },
            Place { blob: None, ..place },
            Place { item_path_len: 1, ..place },
        ];
        let token = template::expand("ghp_<<github 30>>", &mut template::Seed::new(7)).unwrap();
        let mut detector = Detector::new(&RuleSet::builtin()).unwrap();
        let mut found = |place: &Place<'_>| {
            let mut found = None;
            detector.scan_bytes(Source::path("x"), token.as_bytes(), |finding| {
                found = Some(Occurrence::new(finding, &IdKey::new([0; 32]), place, false));
            });
            found.unwrap()
        };
        let first = found(&place);
        assert_eq!(found(&place).id, first.id, "the same when it is scanned again");
        for (index, other) in others.iter().enumerate() {
            let other = found(other);
            assert_ne!(other.id, first.id, "case {index}");
            assert_eq!(other.secret_id, first.secret_id, "case {index}");
        }
    }

    #[test]
    fn an_occurrence_comes_back_from_bytes_which_hold_the_secret_only_on_request() {
        for keep_secret in [false, true] {
            let (occurrence, token) = found(keep_secret);
            let mut writer = Writer::default();
            occurrence.write(&mut writer);
            let mut reader = Reader(&writer.0);
            let back = Occurrence::read(&mut reader).unwrap();
            assert_eq!(reader.end(), Ok(()));
            let mut again = Writer::default();
            back.write(&mut again);
            assert_eq!(again.0, writer.0);
            assert_eq!(memchr::memmem::find(&writer.0, token.as_bytes()).is_some(), keep_secret);
            assert!(!format!("{occurrence:?}").contains(&token[4..]));
            for cut in 0..writer.0.len() {
                assert!(Occurrence::read(&mut Reader(&writer.0[..cut])).is_err(), "cut at {cut}");
            }
        }
    }
}
