//! Who holds a shard, as the owner key says it.

use tessera_contracts::{FenceEpoch, LogicalTime, WorkerId};

use tessera_coordination::stored::{Reader, Writer};

use super::{CodecError, OWNER};

/// The value of an owner key. The key is attached to the worker's etcd lease and goes with it.
///
/// A renewal rewrites this and nothing else, so the deadline here is fresher than the one in the hot record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerPart {
    /// Who holds the shard.
    pub worker: WorkerId,
    /// Under which fence epoch.
    pub fence: FenceEpoch,
    /// Until when.
    pub deadline: LogicalTime,
}

impl OwnerPart {
    /// The stored bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(OWNER, 26);
        writer.u64(self.worker.get());
        writer.u64(self.fence.get());
        writer.time(self.deadline);
        writer.finish()
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// If they are not an owner record of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(OWNER, bytes)?;
        let worker = WorkerId::new(reader.u64("worker")?);
        let fence = FenceEpoch::new(reader.u64("fence")?);
        let deadline = reader.time("deadline")?;
        reader.finish()?;
        Ok(Self { worker, fence, deadline })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::testing::{assert_golden, assert_robust};

    #[test]
    fn an_owner_record_keeps_its_bytes() {
        let owner = OwnerPart {
            worker: WorkerId::new(0x0102_0304_0506_0708),
            fence: FenceEpoch::new(9),
            deadline: LogicalTime::new(1_700_000_000_000),
        };
        let encoded = owner.encode();
        assert_golden("owner", &encoded);
        assert_robust(&encoded, OwnerPart::decode);
        assert_eq!(OwnerPart::decode(&encoded), Ok(owner));
    }
}
