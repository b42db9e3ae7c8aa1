//! Rules together with the text they were read from.
//!
//! A worker on another machine must look for the same things. A set of rules cannot travel, but its text can: whoever reads the
//! same text gets a set with the same fingerprint, and that is checked.

use std::collections::BTreeMap;
use std::path::Path;

use tessera_detect::{RuleFileError, RuleSet, gitleaks};

use crate::small_file;
use crate::wire::{Malformed, Reader, Writer};

/// Rules, and where they come from.
#[derive(Debug, Clone)]
pub struct Rules {
    set: RuleSet,
    origin: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Builtin,
    Gitleaks {
        text: String,
        /// Files it extends, by the name it calls them.
        extended: BTreeMap<String, String>,
    },
}

impl Rules {
    /// The rules of this version.
    pub fn builtin() -> Self {
        Self { set: RuleSet::builtin(), origin: Origin::Builtin }
    }

    /// Rules in gitleaks' format; `load` is asked for the files they extend.
    pub fn from_gitleaks(text: &str, load: gitleaks::Loader<'_>) -> Result<Self, RuleFileError> {
        let mut extended = BTreeMap::new();
        let set = gitleaks::read(text, &mut |name| {
            let loaded = load(name)?;
            extended.insert(name.to_owned(), loaded.clone());
            Ok(loaded)
        })?;
        Ok(Self { set, origin: Origin::Gitleaks { text: text.to_owned(), extended } })
    }

    /// Rules of a file in gitleaks' format; what it extends is looked for beside it.
    pub fn from_gitleaks_file(path: &Path) -> Result<Self, String> {
        let read = |path: &Path| {
            small_file::read_named(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::from_gitleaks(&read(path)?, &mut |extended| read(&folder.join(extended)))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The rules.
    pub fn set(&self) -> &RuleSet {
        &self.set
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.fixed(&self.set.fingerprint());
        match &self.origin {
            Origin::Builtin => writer.u8(0),
            Origin::Gitleaks { text, extended } => {
                writer.u8(1);
                writer.bytes(text.as_bytes());
                writer.u32(extended.len() as u32);
                for (name, text) in extended {
                    writer.bytes(name.as_bytes());
                    writer.bytes(text.as_bytes());
                }
            }
        }
    }

    /// `Ok(None)` if this version of the program makes other rules of the same text.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, Malformed> {
        let fingerprint: [u8; 32] = reader.array()?;
        let rules = match reader.u8()? {
            0 => Self::builtin(),
            1 => {
                let text = reader.text()?;
                let mut extended = BTreeMap::new();
                for _ in 0..reader.u32()? {
                    extended.insert(reader.text()?.to_owned(), reader.text()?.to_owned());
                }
                let read = Self::from_gitleaks(text, &mut |name| {
                    extended.get(name).cloned().ok_or_else(|| format!("{name} did not travel with the rules"))
                });
                read.map_err(|_| Malformed("its rules cannot be read"))?
            }
            _ => return Err(Malformed("its rules are of an unknown kind")),
        };
        Ok((rules.set.fingerprint() == fingerprint).then_some(rules))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str =
        "[[rules]]\nid = \"base\"\ndescription = \"b\"\nregex = '''base_[a-z]{20}'''\nkeywords = [\"base_\"]\n";
    const TOP: &str =
        "[extend]\npath = \"base.toml\"\n[[rules]]\nid = \"top\"\ndescription = \"t\"\nregex = '''top_[a-z]{20}'''\n";

    #[test]
    fn rules_travel_with_the_files_they_extend() {
        let rules =
            Rules::from_gitleaks(TOP, &mut |name| if name == "base.toml" { Ok(BASE.into()) } else { Err(name.into()) });
        for rules in [rules.unwrap(), Rules::builtin()] {
            let mut writer = Writer::default();
            rules.write(&mut writer);
            let read = Rules::read(&mut Reader(&writer.0)).unwrap().unwrap();
            assert_eq!(read.set().fingerprint(), rules.set().fingerprint());
            assert_eq!(read.origin, rules.origin);
            // A version that reads the same text as other rules says so instead of searching for something else.
            writer.0[0] ^= 1;
            assert!(Rules::read(&mut Reader(&writer.0)).unwrap().is_none());
        }
    }
}
