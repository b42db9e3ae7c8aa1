//! What a shard covers and what it spawned: written by its birth and by splits.

use alloc::string::ToString;
use alloc::vec::Vec;

use crate::record::shard_record::ShardRecord;
use crate::record::state::Spawned;
use tessera_contracts::limits::{MAX_KEY_SIZE, MAX_METADATA_SIZE, MAX_SPAWNED_PER_SHARD};
use tessera_contracts::{Cursor, CursorSemantics, PayloadHash, RunIncarnation, ShardId, ShardSpec};

use super::{CodecError, Kind, Reader, Writer};

/// The seldom-written part of a shard's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColdPart {
    /// The creation of the run it belongs to.
    pub incarnation: RunIncarnation,
    /// Range and metadata.
    pub spec: ShardSpec,
    /// What the cursor's progress means.
    pub cursor_semantics: CursorSemantics,
    /// The shard it was split from.
    pub parent: Option<ShardId>,
    /// Where it starts if nobody has worked on it yet.
    pub born_at: Cursor,
    /// Children and residuals, oldest first.
    pub spawned: Vec<Spawned>,
    /// Whether it belongs to a split that may not have been published: then it exists only if its parent lists it.
    pub staged: bool,
}

impl ColdPart {
    /// The seldom-written part of a record that everybody sees.
    #[must_use]
    pub fn of(record: &ShardRecord) -> Self {
        Self {
            incarnation: record.incarnation,
            spec: record.spec.clone(),
            cursor_semantics: record.state.cursor_semantics,
            parent: record.state.parent,
            born_at: Cursor::initial(),
            spawned: record.spawned.clone(),
            staged: false,
        }
    }

    /// The stored bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let spec = &self.spec;
        let bytes = spec.start().len() + spec.end().len() + spec.metadata().len() + self.spawned.len() * 16;
        let mut writer = Writer::new(Kind::COLD, bytes + 64);
        writer.incarnation(self.incarnation);
        writer.bytes(spec.start());
        writer.bytes(spec.end());
        writer.bytes(spec.metadata());
        writer.u8(self.cursor_semantics as u8);
        writer.option(self.parent, |writer, parent| writer.u64(parent.get()));
        writer.cursor(self.born_at.as_update());
        writer.length(self.spawned.len());
        for child in &self.spawned {
            writer.u64(child.id.get());
            writer.u64(child.payload_hash.get());
        }
        writer.u8(u8::from(self.staged));
        writer.finish()
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// If they are not a cold shard record of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(Kind::COLD, bytes)?;
        let incarnation = reader.incarnation()?;
        let start = reader.bytes(MAX_KEY_SIZE, "start")?;
        let end = reader.bytes(MAX_KEY_SIZE, "end")?;
        let metadata = reader.bytes(MAX_METADATA_SIZE, "metadata")?;
        let spec = ShardSpec::new(start, end, metadata).map_err(|error| reader.wrong("spec", error.to_string()))?;
        let cursor_semantics = reader.numbered("cursor_semantics", CursorSemantics::from_stored)?;
        let parent = reader.option("parent", |reader| reader.u64("parent").map(ShardId::new))?;
        let born_at = reader.cursor("born_at")?;
        let count = reader.length(MAX_SPAWNED_PER_SHARD, "spawned")?;
        let mut spawned = Vec::with_capacity(count);
        for _ in 0..count {
            let id = ShardId::new(reader.u64("spawned")?);
            let hash = reader.u64("spawned")?;
            let payload_hash =
                PayloadHash::from_stored(hash).ok_or_else(|| reader.wrong("spawned", "a fingerprint is zero"))?;
            spawned.push(Spawned { id, payload_hash });
        }
        let staged = reader.numbered("staged", |number| [false, true].get(usize::from(number)).copied())?;
        reader.finish()?;
        Ok(Self { incarnation, spec, cursor_semantics, parent, born_at, spawned, staged })
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::stored::testing::{assert_golden, assert_robust};

    fn example() -> ColdPart {
        let child = |id: u64| Spawned {
            id: ShardId::new(1 << 63 | id),
            payload_hash: PayloadHash::from_stored(id + 100).expect("not zero"),
        };
        ColdPart {
            incarnation: RunIncarnation::new(0x1122_3344_5566_7788),
            spec: ShardSpec::new(b"apple", b"pear", b"{\"repo\":7}").expect("valid"),
            cursor_semantics: CursorSemantics::Dispatched,
            parent: Some(ShardId::new(3)),
            born_at: Cursor::new(Some(b"banana"), Some(b"token")).expect("valid"),
            spawned: vec![child(1), child(2)],
            staged: true,
        }
    }

    #[test]
    fn a_cold_record_keeps_its_bytes() {
        let encoded = example().encode();
        assert_golden("cold", &encoded);
        assert_robust(&encoded, ColdPart::decode);
        assert_eq!(ColdPart::decode(&encoded), Ok(example()));
    }

    #[test]
    fn a_shard_of_no_incarnation_is_refused() {
        let nameless = ColdPart { incarnation: RunIncarnation::UNASSIGNED, ..example() };
        assert_eq!(ColdPart::decode(&nameless.encode()).unwrap_err().field, "incarnation");
    }

    #[test]
    fn a_length_beyond_its_bound_is_refused_before_it_is_believed() {
        let mut encoded = example().encode();
        encoded[10..14].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = ColdPart::decode(&encoded).expect_err("four gigabytes of key");
        assert_eq!(error.field, "start");
    }

    #[test]
    fn the_largest_record_round_trips() {
        let child = Spawned { id: ShardId::new(1 << 63), payload_hash: PayloadHash::from_stored(1).expect("not zero") };
        let largest = ColdPart {
            spec: ShardSpec::new(&[1; MAX_KEY_SIZE], &[2; MAX_KEY_SIZE], &[3; MAX_METADATA_SIZE]).expect("valid"),
            spawned: vec![child; MAX_SPAWNED_PER_SHARD],
            ..example()
        };
        assert_eq!(ColdPart::decode(&largest.encode()), Ok(largest));
    }

    /// A registration writes ten thousand of these.
    #[test]
    fn a_record_is_written_into_memory_of_its_own_size_and_never_moves_while_it_grows() {
        let child = Spawned { id: ShardId::new(1 << 63), payload_hash: PayloadHash::from_stored(1).expect("not zero") };
        let part = |start: &[u8], end: &[u8], metadata: &[u8], children: usize| ColdPart {
            spec: ShardSpec::new(start, end, metadata).expect("valid"),
            born_at: Cursor::initial(),
            spawned: vec![child; children],
            ..example()
        };
        for part in [
            part(b"a", b"b", b"", 0),
            part(&[b'a'; 100], b"b", b"", 0),
            part(b"a", &[b'b'; 100], b"", 0),
            part(b"a", b"b", &[3; 300], 0),
            part(b"a", b"b", b"", 300),
            part(&[1; 100], &[2; 100], &[3; 300], 300),
        ] {
            let encoded = part.encode();
            assert!(encoded.capacity() <= encoded.len() + 64, "{} for {}", encoded.capacity(), encoded.len());
        }
    }
}
