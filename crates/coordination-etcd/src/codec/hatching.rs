//! A split too large for one transaction, while it is under way.

use tessera_contracts::ShardId;
use tessera_contracts::limits::MAX_SPLIT_CHILDREN;

use tessera_coordination::stored::{Reader, Writer};

use super::{CodecError, HATCHING};
use crate::kv::Revision;

/// Which children are being written, and for which state of their parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HatchingPart {
    /// The revision of the parent's hot part that the split was decided on. Once the parent has another and is not split,
    /// this split can never be published. [`Self::NEVER`] in a split that is being undone.
    pub decided_on: Revision,
    /// The children.
    pub children: Vec<ShardId>,
}

impl HatchingPart {
    /// No split is decided on this: a parent that is split is held, and so it has a hot part.
    pub const NEVER: Revision = Revision(0);

    /// The stored bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(HATCHING, self.children.len() * 8 + 16);
        writer.u64(self.decided_on.0.unsigned_abs());
        writer.length(self.children.len());
        self.children.iter().for_each(|child| writer.u64(child.get()));
        writer.finish()
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// If they are not a staged split of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(HATCHING, bytes)?;
        let revision = reader.u64("decided_on")?;
        let decided_on = i64::try_from(revision)
            .map(Revision)
            .map_err(|_| reader.wrong("decided_on", format!("{revision} is no revision")))?;
        let count = reader.length(MAX_SPLIT_CHILDREN, "children")?;
        let children = (0..count).map(|_| reader.u64("children").map(ShardId::new)).collect::<Result<_, _>>()?;
        reader.finish()?;
        Ok(Self { decided_on, children })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::testing::{assert_golden, assert_robust};

    #[test]
    fn a_staged_split_keeps_its_bytes() {
        let part = HatchingPart { decided_on: Revision(77), children: vec![ShardId::new(1 << 63), ShardId::new(5)] };
        assert_golden("hatching", &part.encode());
        assert_robust(&part.encode(), HatchingPart::decode);
        assert_eq!(HatchingPart::decode(&part.encode()), Ok(part));
    }
}
