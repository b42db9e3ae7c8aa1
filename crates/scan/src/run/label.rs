//! What a findings folder says about itself: whose run it holds, and which creation of it.
//!
//! Run ids are used again: by the next run of the same request after the last one was retired, or after the coordinator's store
//! was lost. So a folder belongs to one *incarnation* of a run at one coordinator. It lies under both numbers, and its label,
//! the file `run`, repeats them with the coordinator's name and the tenant. The label is written before anything else in the
//! folder and before the run is registered; a folder without a label, or with another run's, is nobody's to use.
//!
//! ```text
//! file = magic "TSRRUN01", crc32c u32 of the rest, coordinator kind, namespace, tenant [32], run u64, incarnation u64,
//!        created u64 (milliseconds since 1970)
//! ```

use std::io;
use std::path::Path;

use tessera_contracts::{LogicalTime, RunId, RunIncarnation, TenantId};

use crate::files;
use crate::run::coordinator_name::CoordinatorName;
use crate::wire::{Malformed, Reader, Writer};

const MAGIC: &[u8; 8] = b"TSRRUN01";
const FILE: &str = "run";

/// One creation of a run, told from all others of the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunKey {
    /// The run.
    pub run: RunId,
    /// Which creation of it.
    pub incarnation: RunIncarnation,
}

impl RunKey {
    /// Creation `incarnation` of `run`.
    pub const fn new(run: RunId, incarnation: RunIncarnation) -> Self {
        Self { run, incarnation }
    }
}

impl std::fmt::Display for RunKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.run, self.incarnation)
    }
}

/// Whose run a folder holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunLabel {
    /// The coordinator that knows it.
    pub coordinator: CoordinatorName,
    /// The tenant.
    pub tenant: TenantId,
    /// The run, and which creation of it.
    pub key: RunKey,
    /// When the folder was made.
    pub created_at: LogicalTime,
}

/// A label that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LabelError {
    /// It is not there or cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is damaged, or of another version.
    #[error("its label is damaged or of another version: {0}")]
    Malformed(#[from] Malformed),
}

impl LabelError {
    /// Whether there is no label at all.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl RunLabel {
    /// Whether this is the label of the same run: everything but the time.
    pub fn names_same_run(&self, other: &Self) -> bool {
        (&self.coordinator, self.tenant, self.key) == (&other.coordinator, other.tenant, other.key)
    }

    /// Writes it into a folder, all or nothing, durable when this returns.
    pub(crate) fn store(&self, folder: &Path) -> Result<(), LabelError> {
        self.store_as(folder, FILE)
    }

    pub(crate) fn store_as(&self, folder: &Path, name: &str) -> Result<(), LabelError> {
        Ok(files::replace(folder, name, &self.encode())?)
    }

    /// Reads the label of a folder.
    pub fn load(folder: &Path) -> Result<Self, LabelError> {
        Self::load_from(&folder.join(FILE))
    }

    pub(crate) fn load_from(file: &Path) -> Result<Self, LabelError> {
        Ok(Self::decode(&std::fs::read(file)?)?)
    }

    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        self.coordinator.write(&mut writer);
        writer.fixed(self.tenant.as_bytes());
        writer.u64(self.key.run.get());
        writer.u64(self.key.incarnation.get());
        writer.u64(self.created_at.get());
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(&crc32c::crc32c(&writer.0).to_le_bytes());
        file.extend_from_slice(&writer.0);
        file
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes.strip_prefix(MAGIC).ok_or(Malformed("it does not begin as it should"))?);
        if reader.u32()? != crc32c::crc32c(reader.0) {
            return Err(Malformed("its checksum is wrong"));
        }
        let coordinator = CoordinatorName::read(&mut reader)?;
        let tenant = TenantId::from_bytes(reader.array()?);
        let key = RunKey::new(RunId::new(reader.u64()?), RunIncarnation::new(reader.u64()?));
        let created_at = LogicalTime::new(reader.u64()?);
        reader.end()?;
        Ok(Self { coordinator, tenant, key, created_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> RunLabel {
        RunLabel {
            coordinator: CoordinatorName::Etcd { namespace: "fleet".into() },
            tenant: TenantId::from_bytes([7; 32]),
            key: RunKey::new(RunId::new(0xbeef), RunIncarnation::new(0xcafe)),
            created_at: LogicalTime::new(1_000),
        }
    }

    #[test]
    fn a_label_comes_back_and_damage_and_other_versions_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(RunLabel::load(dir.path()).unwrap_err().is_missing());
        label().store(dir.path()).unwrap();
        assert_eq!(RunLabel::load(dir.path()).unwrap(), label());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
        let bytes = label().encode();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            assert!(RunLabel::decode(&damaged).is_err(), "byte {at}");
            assert!(RunLabel::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn the_stored_form_does_not_change_unnoticed() {
        let bytes = label().encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = concat!(
            "54535252554e3031",
            "d114c653",
            "0400000065746364",
            "05000000666c656574",
            "0707070707070707070707070707070707070707070707070707070707070707",
            "efbe000000000000",
            "feca000000000000",
            "e803000000000000",
        );
        assert_eq!(hex, golden);
    }

    #[test]
    fn every_part_but_the_time_tells_runs_apart() {
        let label = label();
        assert!(label.names_same_run(&RunLabel { created_at: LogicalTime::new(2), ..label.clone() }));
        let changes: [fn(&mut RunLabel); 4] = [
            |label| label.coordinator = CoordinatorName::Local,
            |label| label.tenant = TenantId::from_bytes([8; 32]),
            |label| label.key.run = RunId::new(1),
            |label| label.key.incarnation = RunIncarnation::new(1),
        ];
        for change in changes {
            let mut other = label.clone();
            change(&mut other);
            assert!(!label.names_same_run(&other), "{other:?}");
        }
    }
}
