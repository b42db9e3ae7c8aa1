//! Which coordinator knows a run.
//!
//! The name is part of a run's id and of what a findings folder says about itself, so that a run of this machine and one of a
//! fleet are never taken for each other, nor are runs of two fleets that share a cluster or a folder. Endpoints are left out:
//! several name one cluster, and a cluster may move.

use std::fmt;

use tessera_contracts::canonical::CanonicalSink;

use crate::wire::{Malformed, Reader, Writer};

/// Which coordinator knows a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoordinatorName {
    /// One in memory, which ends with its process.
    Memory,
    /// A file in the run's own folder.
    Local,
    /// A namespace of an etcd cluster.
    Etcd {
        /// The namespace.
        namespace: String,
    },
}

impl CoordinatorName {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Local => "local",
            Self::Etcd { .. } => "etcd",
        }
    }

    fn namespace(&self) -> &str {
        match self {
            Self::Memory | Self::Local => "",
            Self::Etcd { namespace } => namespace,
        }
    }

    pub(crate) fn hash_into(&self, hasher: &mut impl CanonicalSink) {
        hasher.bytes(self.kind().as_bytes());
        hasher.bytes(self.namespace().as_bytes());
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.bytes(self.kind().as_bytes());
        writer.bytes(self.namespace().as_bytes());
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match (reader.text()?, reader.text()?) {
            ("memory", "") => Ok(Self::Memory),
            ("local", "") => Ok(Self::Local),
            ("etcd", namespace) => Ok(Self::Etcd { namespace: namespace.to_owned() }),
            _ => Err(Malformed("it names an unknown kind of coordinator")),
        }
    }
}

impl fmt::Display for CoordinatorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Local => f.write_str("this machine"),
            Self::Etcd { namespace } => write!(f, "etcd, namespace {namespace}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_back_and_an_unknown_kind_is_refused() {
        let etcd = CoordinatorName::Etcd { namespace: "fleet".into() };
        for name in [CoordinatorName::Memory, CoordinatorName::Local, etcd] {
            let mut writer = Writer::default();
            name.write(&mut writer);
            assert_eq!(CoordinatorName::read(&mut Reader(&writer.0)), Ok(name));
        }
        let mut writer = Writer::default();
        writer.bytes(b"zookeeper");
        writer.bytes(b"");
        assert!(CoordinatorName::read(&mut Reader(&writer.0)).is_err());
    }
}
