//! TLC on the models below `specs/`.
//!
//! Every `specs/<name>/MC_*.cfg` is one run; `MC_large_*.cfg` only on demand. Comment lines of the configuration say what
//! must come out, so that a model which can no longer fail is noticed as surely as one that fails:
//!
//! ```text
//! \* module: Coordination.tla      which module to check; default: the same name as the cfg, else the only .tla here
//! \* expect: pass                  or: violates NameOfProperty
//! \* distinct: 2346                optional: the exact number of distinct states
//! \* mutant: RuleA RuleB violates NameOfProperty
//! ```
//!
//! Each `mutant` line is a run of its own: the same configuration with `Mutants = {"RuleA", "RuleB"}` and with that one
//! property, which must catch it. A property that no mutant can break proves nothing.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::each_of;
use crate::repo::Repo;
use crate::report::{Failure, Progress, Proof, StepResult};
use crate::tlc::{Length, tlc};
use crate::traces;

/// Configurations that are checked on demand only.
const LARGE: &str = "MC_large_";

/// One configuration to check.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Config {
    folder: String,
    file: String,
    module: String,
    expect: Expect,
    distinct: Option<u64>,
    /// The temporal properties the configuration lists.
    temporal: Vec<String>,
    /// For a mutant: the rules it breaks and the configuration to write for it.
    mutant: Option<(String, String)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Expect {
    Pass,
    Violates(String),
}

/// All configurations of the tree, in order.
pub(crate) fn configs(repo: &Repo) -> Result<Vec<Config>, String> {
    let files = repo.files()?;
    let mut configs = Vec::new();
    for path in files.iter().filter(|path| path.starts_with("specs/") && path.ends_with(".cfg")) {
        let Some((folder, file)) = path.rsplit_once('/') else { continue };
        if file.starts_with("MC_") {
            let modules: Vec<&str> = files
                .iter()
                .filter_map(|other| other.strip_prefix(folder)?.strip_prefix('/'))
                .filter(|name| name.ends_with(".tla") && !name.contains('/'))
                .collect();
            let text = repo.read(path)?;
            let config = Config::parse(folder, file, &text, &modules)?;
            let mutants = config.mutants(&text)?;
            configs.push(config);
            configs.extend(mutants);
        }
    }
    Ok(configs)
}

/// Checks the configurations whose path contains one of `names` (all when empty).
pub(crate) fn run(repo: &Repo, progress: &Progress, large: bool, names: &[&str]) -> StepResult {
    let all = configs(repo)?;
    let chosen: Vec<(usize, &Config)> = all
        .iter()
        .filter(|config| large || !config.is_large())
        .filter(|config| names.is_empty() || names.iter().any(|name| config.path().contains(name)))
        .enumerate()
        .collect();
    let with_traces = traces::exists(repo) && (names.is_empty() || names.iter().any(|name| "traces".contains(name)));
    if chosen.is_empty() && !with_traces {
        return Err("no model matches: models are specs/*/MC_*.cfg, MC_large_*.cfg with --large".to_string().into());
    }
    let check = |(n, config): &(usize, &Config)| {
        let scratch = repo.scratch(&format!("tlc/{n}"))?;
        let (length, workers) = if config.is_large() { (Length::Long, "2") } else { (Length::Short, "1") };
        let ended = tlc(repo, &format!("tlc-{n}"), length, &scratch, None)?
            .args(["-deadlock", "-workers", workers, "-config"])
            .args([config.written(&scratch)?, PathBuf::from(&config.module)])
            .doing(config.path())
            .folder(repo.root.join(&config.folder))
            .end(repo, progress)?;
        let _ = fs::remove_dir_all(&scratch);
        let found = config.judge(&ended.output).map_err(|said| {
            Failure::of(
                format!("{}: {said}", config.path()),
                format!("{}\nagain: cargo xtask models --large '{}'", ended.output, config.path()),
            )
        })?;
        // How far TLC gets before it meets a violation depends on its threads; only whole worlds are worth a number.
        Ok::<_, Failure>(if config.expect == Expect::Pass { found } else { 0 })
    };
    let (large, short): (Vec<_>, Vec<_>) = chosen.iter().copied().partition(|(_, config)| config.is_large());
    let mut states: u64 = each_of(&short, check)?.iter().sum();
    // Each of these takes all the memory that there is.
    for one in &large {
        states += check(one)?;
    }
    let (accepted, refused) = if with_traces { traces::run(repo, progress)? } else { (0, 0) };
    let violated = chosen.iter().filter(|(_, config)| config.expect != Expect::Pass).count();
    let said = format!(
        "{} models, {states} distinct states; {violated} of them broken on purpose and caught; \
         {accepted} traces of the code accepted, {refused} false ones refused",
        chosen.len()
    );
    Ok(Proof { said, tests: chosen.len() as u64 + accepted + refused, tests_skipped: 0 })
}

impl Config {
    fn is_large(&self) -> bool {
        self.file.starts_with(LARGE)
    }

    fn parse(folder: &str, file: &str, text: &str, modules: &[&str]) -> Result<Self, String> {
        let path = format!("{folder}/{file}");
        let said = |name: &str| {
            text.lines()
                .filter_map(|line| line.trim().strip_prefix("\\*")?.trim().strip_prefix(name)?.strip_prefix(':'))
                .map(|value| value.trim().to_string())
                .next()
        };
        let own = file.replace(".cfg", ".tla");
        let module = match said("module") {
            Some(module) => module,
            None if modules.contains(&own.as_str()) => own,
            None if modules.len() == 1 => modules[0].to_string(),
            None => {
                return Err(format!(
                    "{path}: add a line `\\* module: NAME.tla`; the folder has {}",
                    modules.join(", ")
                ));
            }
        };
        if !modules.contains(&module.as_str()) {
            return Err(format!("{path}: its module {module} is not in {folder}"));
        }
        let expect = match said("expect").as_deref().map(|value| value.split_once(' ').unwrap_or((value, ""))) {
            Some(("pass", "")) => Expect::Pass,
            Some(("violates", property)) if !property.is_empty() => Expect::Violates(property.trim().to_string()),
            _ => return Err(format!("{path}: add a line `\\* expect: pass` or `\\* expect: violates NAME`")),
        };
        let distinct = match said("distinct") {
            None => None,
            Some(number) => {
                Some(number.parse().map_err(|_| format!("{path}: `distinct: {number}` is not a whole number"))?)
            }
        };
        let temporal = temporal_properties(text);
        Ok(Self {
            folder: folder.to_string(),
            file: file.to_string(),
            module,
            expect,
            distinct,
            temporal,
            mutant: None,
        })
    }

    /// The deliberately broken variants that the configuration's `mutant` lines ask for.
    fn mutants(&self, text: &str) -> Result<Vec<Self>, String> {
        let lines = text.lines().filter_map(|line| line.trim().strip_prefix("\\*")?.trim().strip_prefix("mutant:"));
        lines.map(|line| self.mutant(text, line.trim())).collect()
    }

    fn mutant(&self, text: &str, line: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("{}/{}: mutant `{line}`: {why}", self.folder, self.file);
        let (rules, property) = line.split_once(" violates ").ok_or_else(|| refused("say `RULE violates PROPERTY`"))?;
        if !text.contains("Mutants = {}") {
            return Err(refused("the configuration has no line `Mutants = {}`"));
        }
        let section = text
            .lines()
            .filter(|line| line.starts_with("INVARIANT") || line.starts_with("PROPERT"))
            .find(|line| line.split_whitespace().skip(1).any(|word| word == property))
            .and_then(|line| line.split_whitespace().next())
            .ok_or_else(|| refused("the configuration does not check that property"))?;
        let quoted: Vec<String> = rules.split_whitespace().map(|rule| format!("\"{rule}\"")).collect();
        let kept: Vec<&str> =
            text.lines().filter(|line| !line.starts_with("INVARIANT") && !line.starts_with("PROPERT")).collect();
        let broken = kept.join("\n").replace("Mutants = {}", &format!("Mutants = {{{}}}", quoted.join(", ")));
        let temporal = if section.starts_with("PROPERT") { vec![property.to_string()] } else { Vec::new() };
        Ok(Self {
            folder: self.folder.clone(),
            file: self.file.clone(),
            module: self.module.clone(),
            expect: Expect::Violates(property.to_string()),
            distinct: None,
            temporal,
            mutant: Some((rules.to_string(), format!("{broken}\n{section} {property}\n"))),
        })
    }

    /// Where TLC finds the configuration: the committed file, or a mutant's written into `scratch`.
    fn written(&self, scratch: &Path) -> Result<PathBuf, String> {
        let Some((_, text)) = &self.mutant else { return Ok(PathBuf::from(&self.file)) };
        let path = scratch.join("mutant.cfg");
        fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(path)
    }

    fn path(&self) -> String {
        match &self.mutant {
            None => format!("{}/{}", self.folder, self.file),
            Some((rules, _)) => format!("{}/{} with {rules}", self.folder, self.file),
        }
    }

    /// TLC names violated invariants and action properties; of a temporal one it only says that there was one, which is
    /// enough when no other is listed.
    fn violates(&self, output: &str, property: &str) -> bool {
        let named = output.lines().any(|line| {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            line.contains("is violated") && words.any(|word| word == property)
        });
        named || self.temporal == [property] && output.contains("Temporal properties were violated")
    }

    /// The number of distinct states, or in what way the outcome is not the expected one.
    fn judge(&self, output: &str) -> Result<u64, String> {
        let distinct = distinct_states(output);
        match &self.expect {
            Expect::Pass if !output.contains("No error has been found") => Err("TLC found an error".to_string()),
            Expect::Violates(property) if !self.violates(output, property) => {
                Err(format!("expected a violation of {property} and saw none"))
            }
            _ => match (self.distinct, distinct) {
                (Some(expected), found) if found != Some(expected) => {
                    Err(format!("expected {expected} distinct states, found {}", found.unwrap_or_default()))
                }
                (_, found) => Ok(found.unwrap_or_default()),
            },
        }
    }
}

/// The names under `PROPERTY` or `PROPERTIES`, up to the next section.
fn temporal_properties(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut names = Vec::new();
    for line in text.lines() {
        for word in line.split("\\*").next().unwrap_or_default().split_whitespace() {
            if matches!(word, "PROPERTY" | "PROPERTIES") {
                inside = true;
            } else if word.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
                inside = false;
            } else if inside {
                names.push(word.to_string());
            }
        }
    }
    names
}

/// From TLC's `N states generated, M distinct states found, K states left on queue.`; the last such line counts.
fn distinct_states(output: &str) -> Option<u64> {
    let line = output.lines().rev().find(|line| line.contains(" distinct states found"))?;
    let before = line.split(" distinct states found").next()?;
    before.rsplit(' ').next()?.replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config, String> {
        Config::parse("specs/x", "MC_a.cfg", text, &["X.tla"])
    }

    #[test]
    fn a_config_says_what_must_come_out() {
        let parsed = config("\\* expect: violates AtMostOnce\n\\* distinct: 12\nSPECIFICATION Spec\n").unwrap();
        assert_eq!(parsed.expect, Expect::Violates("AtMostOnce".to_string()));
        assert_eq!((parsed.module.as_str(), parsed.distinct), ("X.tla", Some(12)));
    }

    #[test]
    fn a_config_without_expectation_or_with_a_missing_module_is_refused() {
        assert!(config("SPECIFICATION Spec\n").unwrap_err().contains("expect: pass"));
        assert!(config("\\* module: Y.tla\n\\* expect: pass\n").unwrap_err().contains("Y.tla is not in"));
    }

    #[test]
    fn a_pass_with_another_number_of_states_is_not_a_pass() {
        let output = "Model checking completed. No error has been found.\n\
                      6,376 states generated, 2,346 distinct states found, 0 states left on queue.\n";
        assert_eq!(config("\\* expect: pass\n\\* distinct: 2346\n").unwrap().judge(output), Ok(2346));
        assert!(config("\\* expect: pass\n\\* distinct: 2347\n").unwrap().judge(output).is_err());
        assert!(config("\\* expect: violates Safe\n").unwrap().judge(output).is_err());
    }

    #[test]
    fn an_unnamed_temporal_violation_counts_only_for_the_one_listed_property() {
        let output = "Error: Temporal properties were violated.\n";
        let one = "\\* expect: violates Ends\nINVARIANT Safe\nPROPERTY Ends\nCONSTANT N = 1\n";
        assert_eq!(config(one).unwrap().judge(output), Ok(0));
        let two = "\\* expect: violates Ends\nPROPERTIES Ends\n  Starts\n";
        assert!(config(two).unwrap().judge(output).is_err());
    }

    #[test]
    fn a_mutant_checks_the_one_property_that_must_catch_it() {
        let text =
            "\\* expect: pass\n\\* mutant: A B violates Safe\nMutants = {}\nINVARIANTS Typed Safe\nPROPERTIES Ends\n";
        let mutants = config(text).unwrap().mutants(text).unwrap();
        let (rules, written) = mutants[0].mutant.clone().unwrap();
        assert_eq!((rules.as_str(), &mutants[0].expect), ("A B", &Expect::Violates("Safe".to_string())));
        assert!(written.contains("Mutants = {\"A\", \"B\"}") && written.contains("INVARIANTS Safe"));
        assert!(!written.contains("Typed") && !written.contains("Ends"));
        let unchecked = text.replace("violates Safe", "violates Other");
        assert!(config(&unchecked).unwrap().mutants(&unchecked).unwrap_err().contains("does not check"));
    }

    #[test]
    fn the_violated_property_must_be_the_expected_one() {
        let output = "Error: Invariant AtMostOnce is violated.\n10 states generated, 9 distinct states found, 1 left\n";
        assert_eq!(config("\\* expect: violates AtMostOnce\n").unwrap().judge(output), Ok(9));
        assert!(config("\\* expect: violates Once\n").unwrap().judge(output).is_err());
        assert!(config("\\* expect: pass\n").unwrap().judge(output).is_err());
    }
}
