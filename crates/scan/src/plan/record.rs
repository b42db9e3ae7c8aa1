//! The plan of a run, as it lies in the run's folder.
//!
//! The receipt is compared with it, and a command that is given again compares it with what is there now. A command that
//! goes on with an interrupted run plans anew and replaces it: each plan has a number of its own, and each segment names the
//! plan it was read under, so that segments of an earlier plan are known and compared.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::coverage::Coverage;
use super::heads::Heads;
use crate::files::{self, Folder};
use crate::plan::target::{ReadOptions, Target, TargetKind};
use crate::run::left_out::LeftOut;
use crate::wire::{Malformed, Reader, Writer};

const MAGIC: &[u8; 8] = b"TSRPLAN3";
const FILE: &str = "plan";

/// The number of a plan. No two plans have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PlanId(pub u64);

/// What a run was to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanRecord {
    /// Its number.
    pub id: PlanId,
    /// When it was made, in milliseconds since 1970.
    pub made_at: u64,
    /// The program that made it: another version may find other things.
    pub program: String,
    /// What was planned of each target, in the order of their numbers. There are gaps where a target is left out.
    pub targets: Vec<TargetPlan>,
    /// What was asked for and cannot be scanned.
    pub left_out: Vec<LeftOut>,
}

/// What was planned of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetPlan {
    /// The target's number.
    pub target: u32,
    /// Where it is.
    pub path: PathBuf,
    /// Which of the job's sets of rules holds for it.
    pub rules: u16,
    /// Items that a walk over it met, also those that are left out.
    pub items: u64,
    /// Bytes of those to be read.
    pub bytes: u64,
    /// The items to be read.
    pub planned: Coverage,
    /// Where the items are listed.
    pub listed: Listed,
}

/// Where planned items are listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listed {
    /// Files, in a list of keys.
    Paths {
        /// The hash of the list, and its name.
        name: [u8; 16],
    },
    /// Blobs, in the list that is also their source.
    Objects {
        /// The hash of the list, and its name.
        name: [u8; 16],
        /// What the refs led to; `None` for what is staged.
        heads: Option<Heads>,
    },
}

/// Why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file is not there or cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("{} is damaged or of another version: {source}; begin anew with --fresh", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Malformed,
    },
}

/// The program that plans, by name and version.
pub fn program() -> String {
    format!("tessera {}", env!("CARGO_PKG_VERSION"))
}

impl PlanRecord {
    /// What was planned of a target.
    pub fn target(&self, number: u32) -> Option<&TargetPlan> {
        let at = self.targets.binary_search_by_key(&number, |plan| plan.target).ok()?;
        self.targets.get(at)
    }

    /// Items to be read of all targets.
    pub fn planned(&self) -> u64 {
        self.targets.iter().fold(0, |sum, plan| sum.saturating_add(plan.planned.planned))
    }

    /// Writes it into a run's folder, all or nothing.
    pub fn store(&self, folder: &(impl Folder + ?Sized)) -> Result<(), PlanError> {
        let stored = files::replace(folder, FILE, &self.encode());
        stored.map_err(|source| PlanError::Io { path: folder.path_of(FILE), source })
    }

    /// Reads it from a run's folder.
    pub fn load(folder: &(impl Folder + ?Sized)) -> Result<Self, PlanError> {
        let path = folder.path_of(FILE);
        let bytes = files::read(folder, FILE).map_err(|source| PlanError::Io { path: path.clone(), source })?;
        Self::decode(&bytes).map_err(|source| PlanError::Malformed { path, source })
    }

    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u64(self.id.0);
        writer.u64(self.made_at);
        writer.bytes(self.program.as_bytes());
        writer.u32(u32::try_from(self.targets.len()).expect("a run has fewer than 2^32 targets"));
        for plan in &self.targets {
            plan.write(&mut writer);
        }
        writer.u32(u32::try_from(self.left_out.len()).expect("a list has fewer than 2^32 lines"));
        for left_out in &self.left_out {
            left_out.write(&mut writer);
        }
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
        let (id, made_at) = (PlanId(reader.u64()?), reader.u64()?);
        let program = reader.text()?.to_owned();
        let mut targets = Vec::new();
        for _ in 0..reader.u32()? {
            targets.push(TargetPlan::read(&mut reader)?);
        }
        let mut left_out = Vec::new();
        for _ in 0..reader.u32()? {
            left_out.push(LeftOut::read(&mut reader)?);
        }
        reader.end()?;
        Ok(Self { id, made_at, program, targets, left_out })
    }
}

impl TargetPlan {
    /// The target, as far as a plan describes it: how it is read, only the shards say.
    pub fn described(&self) -> Target {
        let kind = match &self.listed {
            Listed::Paths { .. } => TargetKind::Tree,
            Listed::Objects { name, .. } => TargetKind::Objects { list: *name },
        };
        let options = ReadOptions::default();
        Target { number: self.target, path: self.path.clone(), kind, rules: self.rules, options }
    }

    fn write(&self, writer: &mut Writer) {
        writer.u32(self.target);
        writer.bytes(self.path.as_os_str().as_bytes());
        writer.fixed(&self.rules.to_le_bytes());
        writer.u64(self.items);
        writer.u64(self.bytes);
        self.planned.write(writer);
        match &self.listed {
            Listed::Paths { name } => {
                writer.u8(0);
                writer.fixed(name);
            }
            Listed::Objects { name, heads } => {
                writer.u8(if heads.is_some() { 1 } else { 2 });
                writer.fixed(name);
                if let Some(heads) = heads {
                    heads.write(writer);
                }
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let target = reader.u32()?;
        let path = Path::new(OsStr::from_bytes(reader.bytes()?)).to_path_buf();
        let rules = u16::from_le_bytes(reader.array()?);
        let (items, bytes) = (reader.u64()?, reader.u64()?);
        let planned = Coverage::read(reader)?;
        let listed = match reader.u8()? {
            0 => Listed::Paths { name: reader.array()? },
            1 => Listed::Objects { name: reader.array()?, heads: Some(Heads::read(reader)?) },
            2 => Listed::Objects { name: reader.array()?, heads: None },
            _ => return Err(Malformed("it names an unknown kind of list")),
        };
        Ok(Self { target, path, rules, items, bytes, planned, listed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> PlanRecord {
        let planned = Coverage { planned: 3, digest: 1 << 100, added: 0 };
        let listed = Listed::Paths { name: [4; 16] };
        let tree = TargetPlan { target: 0, path: "/srv".into(), rules: 3, items: 5, bytes: 9, planned, listed };
        let history = TargetPlan {
            target: 1,
            listed: Listed::Objects { name: [5; 16], heads: Some(Heads::default()) },
            ..tree.clone()
        };
        let staged =
            TargetPlan { target: 2, listed: Listed::Objects { name: [6; 16], heads: None }, ..history.clone() };
        let named_at = "list, line 3".to_owned();
        let left_out = vec![LeftOut { path: "/srv/gone".into(), named_at, why: "it is not there".into() }];
        PlanRecord { id: PlanId(7), made_at: 8, program: program(), targets: vec![tree, history, staged], left_out }
    }

    #[test]
    fn a_plan_comes_back_from_its_folder_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        record().store(dir.path()).unwrap();
        assert_eq!(PlanRecord::load(dir.path()).unwrap(), record());
        assert_eq!(record().planned(), 9);
        let bytes = record().encode();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            assert!(PlanRecord::decode(&damaged).is_err(), "byte {at}");
            assert!(PlanRecord::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        assert!(matches!(PlanRecord::load(Path::new("/no/such/run")), Err(PlanError::Io { .. })));
    }

    #[test]
    fn the_bytes_of_a_plan_are_those_of_this_version() {
        let digest = xxhash_rust::xxh3::xxh3_64(&PlanRecord { program: "x".into(), ..record() }.encode());
        assert_eq!(digest, 11_946_585_625_449_479_862, "a changed format needs a new name");
    }
}
