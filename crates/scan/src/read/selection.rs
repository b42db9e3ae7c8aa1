//! Which rules of a set are used, as a command names them.

use tessera_detect::{RuleError, RuleSet, Severity};

use crate::wire::{Malformed, Reader, Writer};

/// Rules that are used; by default all are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleSelection {
    /// Only the rules with these ids; all if there is none.
    pub only: Vec<String>,
    /// None of the rules with these ids.
    pub without: Vec<String>,
    /// Only rules at least that severe.
    pub severity_min: Option<Severity>,
}

impl RuleSelection {
    /// Takes out of a set what is not used.
    ///
    /// # Errors
    /// If the set has no rule of one of the ids.
    pub(super) fn apply(&self, set: &mut RuleSet) -> Result<(), RuleError> {
        let ids = |ids: &[String]| -> Vec<String> { ids.to_vec() };
        let (only, without) = (ids(&self.only), ids(&self.without));
        if !only.is_empty() {
            set.keep_only(&only.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        set.disable(&without.iter().map(String::as_str).collect::<Vec<_>>())?;
        if let Some(severity) = self.severity_min {
            set.keep_severe(severity);
        }
        Ok(())
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        for ids in [&self.only, &self.without] {
            writer.u32(ids.len() as u32);
            for id in ids {
                writer.bytes(id.as_bytes());
            }
        }
        writer.bytes(self.severity_min.map_or("", Severity::as_str).as_bytes());
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut ids = || -> Result<Vec<String>, Malformed> {
            let mut ids = Vec::new();
            for _ in 0..reader.u32()? {
                ids.push(reader.text()?.to_owned());
            }
            Ok(ids)
        };
        let (only, without) = (ids()?, ids()?);
        let severity_min = match reader.text()? {
            "" => None,
            word => Some(word.parse().map_err(|_| Malformed("it names an unknown severity"))?),
        };
        Ok(Self { only, without, severity_min })
    }
}
