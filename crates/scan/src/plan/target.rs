//! What is scanned and how it is read, in a form that travels with every shard.
//!
//! The description is the metadata of a shard, so that the worker that claims the shard, here or on another machine, reads the
//! same things in the same order. It is versioned: a worker that meets a version it does not know says so instead of
//! guessing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tessera_contracts::limits::MAX_METADATA_SIZE;
use tessera_contracts::source_family::{SourceError, SourceErrorClass};

use crate::wire::{Malformed, Reader, Writer};

const VERSION: u8 = 2;

/// One thing to scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its number in the run, and so the beginning of its keys.
    pub number: u32,
    /// Absolute path of the directory, file or repository.
    pub path: PathBuf,
    /// What of it is scanned.
    pub kind: TargetKind,
    /// What is looked for in it: the number of a set of rules of the run's job.
    pub rules: u16,
    /// How it is read.
    pub options: ReadOptions,
}

/// What of a path is scanned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetKind {
    /// The files of a directory, or one file.
    Tree,
    /// Blobs of a repository, listed in a file beside the findings.
    Objects {
        /// The hash of that list; it is also its name.
        list: [u8; 16],
    },
    /// A source that this crate does not know, see [`crate::source::open`].
    Open {
        /// The name of its connector.
        family: Box<str>,
    },
}

/// What is left out, and why.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadOptions {
    /// Read also what `.gitignore` files name.
    pub no_ignore: bool,
    /// Read also what is not text.
    pub read_binary: bool,
    /// Read what is inside archives, office documents and databases.
    pub archives: bool,
    /// Leave out what is larger, in bytes.
    pub size_max: Option<u64>,
    /// Only files that match one of these globs; all if there is none.
    pub include: Vec<String>,
    /// No file and no directory that matches one of these globs.
    pub exclude: Vec<String>,
}

/// Why a target cannot be described, or a description cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Too much for the metadata of a shard.
    #[error("the target's path and filters take {len} bytes, over the limit of {max}; give fewer or shorter filters")]
    TooLong {
        /// Bytes needed.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// Made by another version.
    #[error("this shard was planned by a version of tessera with format {found}; this one reads format {VERSION}")]
    Version {
        /// The version seen.
        found: u8,
    },
    /// Not a description.
    #[error("the description of this shard's target is damaged: {0}")]
    Malformed(#[from] Malformed),
}

impl Target {
    /// The description as bytes.
    pub fn encode(&self) -> Result<Vec<u8>, TargetError> {
        let mut writer = Writer::default();
        writer.u8(VERSION);
        writer.u32(self.number);
        writer.bytes(self.path.as_os_str().as_bytes());
        match &self.kind {
            TargetKind::Tree => writer.u8(0),
            TargetKind::Objects { list } => {
                writer.u8(1);
                writer.fixed(list);
            }
            TargetKind::Open { family } => {
                writer.u8(2);
                writer.bytes(family.as_bytes());
            }
        }
        writer.fixed(&self.rules.to_le_bytes());
        self.options.write(&mut writer);
        match writer.0.len() {
            len if len > MAX_METADATA_SIZE => Err(TargetError::TooLong { len, max: MAX_METADATA_SIZE }),
            _ => Ok(writer.0),
        }
    }

    /// Why it cannot be read where nothing knows its kind of source. Other machines may.
    pub(crate) fn without_connector(&self) -> SourceError {
        let family: &str = match &self.kind {
            TargetKind::Tree => "files",
            TargetKind::Objects { .. } => "git objects",
            TargetKind::Open { family } => family,
        };
        let said = format!("{} holds {family}, which this program does not read", self.path.display());
        SourceError::new(SourceErrorClass::NotFound, said)
    }

    /// Reads a description.
    pub fn decode(bytes: &[u8]) -> Result<Self, TargetError> {
        let mut reader = Reader(bytes);
        match reader.u8()? {
            VERSION => {}
            found => return Err(TargetError::Version { found }),
        }
        let number = reader.u32()?;
        let path = Path::new(OsStr::from_bytes(reader.bytes()?)).to_path_buf();
        let kind = match reader.u8()? {
            0 => TargetKind::Tree,
            1 => TargetKind::Objects { list: reader.array()? },
            2 => TargetKind::Open { family: reader.text()?.into() },
            _ => return Err(Malformed("it names an unknown kind of target").into()),
        };
        let rules = u16::from_le_bytes(reader.array()?);
        let options = ReadOptions::read(&mut reader)?;
        reader.end()?;
        Ok(Self { number, path, kind, rules, options })
    }
}

impl ReadOptions {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.u8(u8::from(self.no_ignore) | u8::from(self.read_binary) << 1 | u8::from(self.archives) << 2);
        writer.u64(self.size_max.unwrap_or(u64::MAX));
        for globs in [&self.include, &self.exclude] {
            writer.u32(u32::try_from(globs.len()).expect("a command line has fewer than 2^32 globs"));
            for glob in globs {
                writer.bytes(glob.as_bytes());
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let flags = reader.u8()?;
        if flags > 7 {
            return Err(Malformed("it sets an unknown option"));
        }
        let size_max = Some(reader.u64()?).filter(|&max| max != u64::MAX);
        let mut globs = || -> Result<Vec<String>, Malformed> {
            let count = reader.u32()?;
            // No capacity from a count that was not checked: the loop ends with the bytes.
            let mut globs = Vec::new();
            for _ in 0..count {
                globs.push(reader.text()?.to_owned());
            }
            Ok(globs)
        };
        Ok(Self {
            no_ignore: flags & 1 != 0,
            read_binary: flags & 2 != 0,
            archives: flags & 4 != 0,
            size_max,
            include: globs()?,
            exclude: globs()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target() -> Target {
        Target {
            number: 3,
            path: PathBuf::from(OsStr::from_bytes(b"/srv/\xff")),
            kind: TargetKind::Objects { list: [9; 16] },
            rules: 300,
            options: ReadOptions {
                no_ignore: true,
                read_binary: false,
                archives: true,
                size_max: Some(5),
                include: vec!["*.rs".into()],
                exclude: vec!["target".into(), "x".into()],
            },
        }
    }

    #[test]
    fn a_description_comes_back_as_it_was() {
        assert_eq!(Target::decode(&target().encode().unwrap()), Ok(target()));
        for kind in [TargetKind::Tree, TargetKind::Open { family: "log lines".into() }] {
            let plain = Target { kind, options: ReadOptions::default(), ..target() };
            assert_eq!(Target::decode(&plain.encode().unwrap()), Ok(plain));
        }
    }

    #[test]
    fn other_versions_and_damage_are_named() {
        let mut bytes = target().encode().unwrap();
        bytes[0] = 1;
        assert_eq!(Target::decode(&bytes), Err(TargetError::Version { found: 1 }));
        bytes[0] = VERSION;
        for cut in 0..bytes.len() {
            assert!(Target::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn filters_that_do_not_fit_a_shard_are_refused() {
        let mut target = target();
        let around = target.encode().unwrap().len() - 4;
        target.options.include = vec!["x".repeat(MAX_METADATA_SIZE - around)];
        assert!(target.encode().is_ok());
        target.options.include[0].push('x');
        assert!(matches!(target.encode(), Err(TargetError::TooLong { len: 16_385, .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            if let Ok(target) = Target::decode(&bytes) {
                prop_assert_eq!(target.encode().unwrap(), bytes);
            }
        }
    }
}
