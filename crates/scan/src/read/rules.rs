//! Rules together with the text they were read from.
//!
//! A worker on another machine must look for the same things. A set of rules cannot travel, but its text can: a worker that reads the
//! same text gets a set with the same fingerprint, and that is checked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tessera_detect::{Detector, RuleError, RuleFileError, RuleSet, gitleaks};

use crate::read::selection::RuleSelection;
use crate::source::small_file;
use crate::wire::{Malformed, Reader, Writer};

/// Rules, and where they come from.
#[derive(Debug, Clone)]
pub struct Rules {
    set: RuleSet,
    origin: Origin,
    selection: RuleSelection,
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

/// Most different sets of rules in one run.
pub const RULE_SETS_MAX: usize = 256;

/// What a run looks for: one set of rules for all targets, but for those that bring their own.
///
/// Rules that were named by a flag hold for every target. Rules that were found in a target (`.gitleaks.toml`) hold for that target
/// alone: a repository may say what is harmless in it, and nothing about others. So a run has as many sets of rules as its
/// targets bring. They are in its job, each once, and the description of a target, which travels with every shard, names one by its
/// number; a worker uses the set that its shard's target names.
#[derive(Debug, Clone)]
pub struct RunRules {
    /// The first one is for targets that bring none.
    sets: Vec<Rules>,
    /// Numbers of sets, by the target that brought them.
    own: BTreeMap<PathBuf, u16>,
}

impl RunRules {
    /// One set for all targets.
    pub fn for_all(rules: Rules) -> Self {
        Self { sets: vec![rules], own: BTreeMap::new() }
    }

    /// Adds rules that hold for the target at `path`, which is absolute and without links, and for no other.
    pub fn add_own(&mut self, path: PathBuf, rules: Rules) -> Result<(), String> {
        let fingerprint = rules.set.fingerprint();
        let number = match self.sets.iter().position(|known| known.set.fingerprint() == fingerprint) {
            Some(number) => number,
            None if self.sets.len() == RULE_SETS_MAX => {
                return Err(format!(
                    "the targets bring more than {RULE_SETS_MAX} different sets of rules; name one with --rules, or scan fewer targets at a time"
                ));
            }
            None => {
                // A mistake in them shows now and not in the middle of the run.
                Detector::new(&rules.set)
                    .map_err(|error| format!("the rules of {} cannot be used: {error}", path.display()))?;
                self.sets.push(rules);
                self.sets.len() - 1
            }
        };
        self.own.insert(path, number as u16);
        Ok(())
    }

    /// The number of the set that holds for the target at `path`.
    pub fn number_for(&self, path: &Path) -> u16 {
        self.own.get(path).copied().unwrap_or(0)
    }

    /// The set that holds for the target at `path`.
    pub fn for_target(&self, path: &Path) -> &Rules {
        &self.sets[usize::from(self.number_for(path))]
    }

    /// All sets, by number.
    pub fn sets(&self) -> &[Rules] {
        &self.sets
    }
}

impl From<Rules> for RunRules {
    fn from(rules: Rules) -> Self {
        Self::for_all(rules)
    }
}

impl Rules {
    /// The rules of this version.
    pub fn builtin() -> Self {
        Self { set: RuleSet::builtin(), origin: Origin::Builtin, selection: RuleSelection::default() }
    }

    /// Rules in gitleaks' format; `load` is asked for the files they extend.
    pub fn from_gitleaks(text: &str, load: gitleaks::Loader<'_>) -> Result<Self, RuleFileError> {
        let mut extended = BTreeMap::new();
        let set = gitleaks::read(text, &mut |name| {
            let loaded = load(name)?;
            extended.insert(name.to_owned(), loaded.clone());
            Ok(loaded)
        })?;
        let origin = Origin::Gitleaks { text: text.to_owned(), extended };
        Ok(Self { set, origin, selection: RuleSelection::default() })
    }

    /// Those of all these rules that `selection` names.
    ///
    /// # Errors
    /// If there is no rule of one of its ids.
    pub fn selected(mut self, selection: RuleSelection) -> Result<Self, RuleError> {
        selection.apply(&mut self.set)?;
        self.selection = selection;
        Ok(self)
    }

    /// Rules of a file in gitleaks' format. What it extends is looked for in the working directory, as gitleaks does, and if it is
    /// not there beside the file.
    pub fn from_gitleaks_file(path: &Path) -> Result<Self, String> {
        let read = |path: &Path| {
            small_file::read_named(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        let beside =
            |extended: &str| if Path::new(extended).exists() { extended.into() } else { folder.join(extended) };
        Self::from_gitleaks(&read(path)?, &mut |extended| read(&beside(extended)))
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
        self.selection.write(writer);
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
        let rules = rules.selected(RuleSelection::read(reader)?);
        let rules = rules.map_err(|_| Malformed("it names rules that it does not have"))?;
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
    fn rules_that_a_target_brings_hold_for_it_alone_and_the_same_ones_are_kept_once() {
        let own = || Rules::from_gitleaks(BASE, &mut |name| Err(name.into())).unwrap();
        let mut rules = RunRules::for_all(Rules::builtin());
        rules.add_own("/a".into(), own()).unwrap();
        rules.add_own("/b".into(), own()).unwrap();
        rules.add_own("/c".into(), Rules::builtin()).unwrap();
        let numbers = ["/a", "/b", "/c", "/d"].map(|path| rules.number_for(Path::new(path)));
        assert_eq!((numbers, rules.sets().len()), ([1, 1, 0, 0], 2));
        assert!(rules.for_target(Path::new("/a")).set().get("base").is_some());
        assert!(rules.for_target(Path::new("/d")).set().get("base").is_none());
    }

    #[test]
    fn more_sets_of_rules_than_a_run_may_have_are_refused() {
        let mut rules = RunRules::for_all(Rules::builtin());
        let mut add = |number: usize| {
            let text = BASE.replace("{20}", &format!("{{{}}}", number + 1));
            rules
                .add_own(format!("/{number}").into(), Rules::from_gitleaks(&text, &mut |_| Err(String::new())).unwrap())
        };
        for number in 1..RULE_SETS_MAX {
            add(number).unwrap();
        }
        assert!(add(RULE_SETS_MAX).unwrap_err().contains("--rules"));
        add(1).unwrap();
    }

    #[test]
    fn a_selection_of_rules_travels_and_a_rule_that_is_not_there_is_refused() {
        let ids = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect::<Vec<_>>();
        let selections = [
            RuleSelection { only: ids(&["github-pat", "npm-token"]), ..RuleSelection::default() },
            RuleSelection { without: ids(&["github-pat"]), ..RuleSelection::default() },
            RuleSelection { severity_min: Some(tessera_detect::Severity::Critical), ..RuleSelection::default() },
        ];
        let all = Rules::builtin().set().rules().len();
        for selection in selections {
            let rules = Rules::builtin().selected(selection).unwrap();
            assert!((1..all).contains(&rules.set().rules().len()));
            let mut writer = Writer::default();
            rules.write(&mut writer);
            let read = Rules::read(&mut Reader(&writer.0)).unwrap().unwrap();
            assert_eq!(read.set().fingerprint(), rules.set().fingerprint());
            assert_eq!(read.selection, rules.selection);
        }
        let wrong = RuleSelection { only: ids(&["no-such-rule"]), ..RuleSelection::default() };
        assert!(Rules::builtin().selected(wrong).is_err());
    }

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
