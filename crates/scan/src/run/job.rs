//! What workers on other machines must know to search as the submitter would.
//!
//! What is scanned travels with every shard; what is looked for is the same for all of them and lies once in the run's
//! folder, in the file `job`. It is written before the run exists, so a worker that sees the run finds it.

use std::io;
use std::path::{Path, PathBuf};

use tessera_detect::{IdKey, RuleError};

use crate::files;
use crate::read::Reader as ItemReader;
use crate::read::detectors::Detectors;
use crate::read::rules::{RULE_SETS_MAX, Rules};
use crate::run::request::ScanRequest;
use crate::wire::{Malformed, Reader, Writer};

const MAGIC: &[u8; 8] = b"TSRJOB03";
const FILE: &str = "job";

/// What to look for, and how findings are named.
#[derive(Debug, Clone)]
pub struct Job {
    /// What to look for: sets of rules, which targets name by number.
    pub rules: Vec<Rules>,
    /// How hard to look.
    pub detect: tessera_detect::Options,
    /// Keep secrets, so that reports can show them.
    pub keep_secrets: bool,
    /// The key under which secrets and findings are named.
    pub id_key: [u8; 32],
}

/// Why a run cannot be worked on from here.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The file is not there or cannot be read or written.
    #[error("cannot use {}: {source}; --findings must name the folder that the submitter named", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("{} is damaged or of another version: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Malformed,
    },
    /// The submitter's rules are others than this program's.
    #[error(
        "the run was submitted by another version of tessera, with other rules; use the same version on all machines"
    )]
    OtherRules,
}

impl Job {
    /// What `request` asks to look for.
    pub fn of(request: &ScanRequest) -> Self {
        Self {
            rules: request.rules.sets().to_vec(),
            detect: request.detect.clone(),
            keep_secrets: request.keep_secrets,
            id_key: request.id_key,
        }
    }

    /// Detectors for it.
    pub(crate) fn detectors(&self) -> Result<Detectors, RuleError> {
        Detectors::new(self.rules.clone(), self.detect.clone())
    }

    /// A reader that searches with these detectors of this job.
    pub(crate) fn reader(&self, detectors: Detectors) -> ItemReader {
        ItemReader::new(detectors, IdKey::new(self.id_key), self.keep_secrets)
    }

    /// Writes it into a run's folder, all or nothing.
    pub(crate) fn store(&self, folder: &Path) -> Result<(), JobError> {
        let stored = files::replace(folder, FILE, &self.encode());
        stored.map_err(|source| JobError::Io { path: folder.join(FILE), source })
    }

    /// Reads it from a run's folder.
    pub fn load(folder: &Path) -> Result<Self, JobError> {
        let path = folder.join(FILE);
        let bytes = std::fs::read(&path).map_err(|source| JobError::Io { path: path.clone(), source })?;
        let job = Self::decode(&bytes).map_err(|source| JobError::Malformed { path, source })?;
        job.ok_or(JobError::OtherRules)
    }

    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(self.rules.len() as u32);
        for rules in &self.rules {
            rules.write(&mut writer);
        }
        writer.bytes(self.detect.confidence_min.as_str().as_bytes());
        writer.u32(self.detect.decode_depth as u32);
        writer.u8(u8::from(self.detect.honour_remarks) | u8::from(self.keep_secrets) << 1);
        writer.fixed(&self.id_key);
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(&crc32c::crc32c(&writer.0).to_le_bytes());
        file.extend_from_slice(&writer.0);
        file
    }

    fn decode(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        let mut reader = Reader(bytes.strip_prefix(MAGIC).ok_or(Malformed("it does not begin as it should"))?);
        if reader.u32()? != crc32c::crc32c(reader.0) {
            return Err(Malformed("its checksum is wrong"));
        }
        let count = reader.u32()? as usize;
        if !(1..=RULE_SETS_MAX).contains(&count) {
            return Err(Malformed("it has no rules, or too many sets of them"));
        }
        let mut rules = Vec::with_capacity(count);
        for _ in 0..count {
            let Some(set) = Rules::read(&mut reader)? else { return Ok(None) };
            rules.push(set);
        }
        let confidence_min = reader.text()?.parse().map_err(|_| Malformed("it names an unknown confidence"))?;
        let decode_depth = reader.u32()? as usize;
        let flags = reader.u8()?;
        let id_key = reader.array()?;
        reader.end()?;
        let detect = tessera_detect::Options { confidence_min, decode_depth, honour_remarks: flags & 1 != 0 };
        Ok(Some(Self { rules, detect, keep_secrets: flags & 2 != 0, id_key }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_comes_back_from_its_folder_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let detect = tessera_detect::Options { decode_depth: 1, honour_remarks: false, ..Default::default() };
        let job = Job { rules: vec![Rules::builtin(); 2], detect: detect.clone(), keep_secrets: true, id_key: [7; 32] };
        job.store(dir.path()).unwrap();
        let read = Job::load(dir.path()).unwrap();
        assert_eq!((read.detect, read.keep_secrets, read.id_key, read.rules.len()), (detect, true, [7; 32], 2));
        let bytes = job.encode();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            assert!(Job::decode(&damaged).is_err(), "byte {at}");
            assert!(Job::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        let elsewhere = Job::load(Path::new("/no/such/run")).unwrap_err().to_string();
        assert!(elsewhere.contains("--findings"), "{elsewhere}");
    }
}
