//! Shards that were born together, until each of them has been held.

use tessera_contracts::ShardId;
use tessera_contracts::limits::MAX_SPLIT_CHILDREN;

use tessera_coordination::stored::{Reader, Writer};

use super::{CodecError, FAMILY};

/// The children of one split. It stands for an entry of each in the index of free shards, so that a split writes one key
/// less for every child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyPart {
    /// The children.
    pub children: Vec<ShardId>,
}

impl FamilyPart {
    /// The stored bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(FAMILY, self.children.len() * 8 + 8);
        writer.length(self.children.len());
        self.children.iter().for_each(|child| writer.u64(child.get()));
        writer.finish()
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// If they are not a family of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(FAMILY, bytes)?;
        let count = reader.length(MAX_SPLIT_CHILDREN, "children")?;
        let children = (0..count).map(|_| reader.u64("children").map(ShardId::new)).collect::<Result<_, _>>()?;
        reader.finish()?;
        Ok(Self { children })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::testing::{assert_golden, assert_robust};

    #[test]
    fn a_family_keeps_its_bytes() {
        let part = FamilyPart { children: vec![ShardId::new(1 << 63), ShardId::new(5)] };
        assert_golden("family", &part.encode());
        assert_robust(&part.encode(), FamilyPart::decode);
        assert_eq!(FamilyPart::decode(&part.encode()), Ok(part));
    }
}
