//! A set of rules: the built-in ones, or read from a file, joined, trimmed, and named by a fingerprint.
//!
//! The built-in rules are `rules/*.toml`, in the format that [`RuleSet::from_toml`] reads:
//!
//! ```toml
//! [[rules]]
//! id = "acme-token"
//! title = "Acme API token"
//! severity = "high"                       # low, medium, high or critical
//! confidence = "high"                     # low, medium or high; default high
//! keywords = ["acme_"]                    # lower case; one must be near
//! regex = '(?&edge)(acme_[0-9a-z]{32})\b' # the first group is the secret; (?&edge): see below
//! then = ',([0-9a-z]{32})'                # right behind a secret: a further one; the first group again
//! path = '\.acme$'                        # only files with such a path
//! entropy = 3.0                           # bits a byte, at least
//! needs = ["digit", "letter"]             # character classes that must occur
//! check = "crc62"                         # offline proof
//! source = "https://docs.acme.dev/tokens" # where the format is documented
//! positive = ["token: acme_<<lownum 32>>"]
//! negative = ["acme_client"]
//!
//! [[rules]]
//! id = "acme-legacy-key"
//! title = "Acme API key (before 2020)"
//! severity = "high"
//! confidence = "medium"
//! names = ["acme"]                        # the value assigned to a name with this in it …
//! value = '[0-9a-f]{32}'                  # … if it looks like this
//! qualified = true                        # the name must also say key, token, secret or the like; default true
//! quoted = false                          # the value must stand in quotes or right after =; default false
//! spaced = false                          # only white space stands between name and value; default false
//! secretive = false                       # no value of a name such as acme_key_id or acme_token_hash; default false
//! positive = ["ACME_KEY=<<hex 32>>"]
//! ```
//!
//! An expression may open with `(?&edge)`: then its matches begin at the left edge of a word, at an underscore, or behind an
//! escape that ends in a letter or digit (`\n`, `\u0022`, `%3D`, a terminal colour). A token whose prefix is found nowhere
//! else needs no edge at all.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use tessera_contracts::canonical::CanonicalSink;
use tessera_contracts::domain;

use crate::allow::{Allowlist, Condition, Target};
use crate::error::{RuleError, RuleFileError};
use crate::pattern::Pattern;
use crate::program::RULES_MAX;
use crate::rule::{Confidence, Matching, OnFailedCheck, Rule, Severity};
use crate::toml_table::{Document, Table};

const BUILTIN: &[&str] = &[
    include_str!("../rules/ai.toml"),
    include_str!("../rules/chat.toml"),
    include_str!("../rules/cloud.toml"),
    include_str!("../rules/code.toml"),
    include_str!("../rules/data.toml"),
    include_str!("../rules/generic.toml"),
    include_str!("../rules/keys.toml"),
    include_str!("../rules/mail.toml"),
    include_str!("../rules/observe.toml"),
    include_str!("../rules/pay.toml"),
    include_str!("../rules/saas.toml"),
];

/// Rules and the allowlists that hold for all of them.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: Vec<Rule>,
    allowlists: Vec<Allowlist>,
    warnings: Vec<String>,
}

impl RuleSet {
    /// No rules.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The rules that come with this crate.
    pub fn builtin() -> Self {
        let mut set = Self::empty();
        for text in BUILTIN {
            let file = read(text, Pattern::trusted).expect("a test reads every built-in rule file");
            set.rules.extend(file.rules);
            set.allowlists.extend(file.allowlists);
        }
        set
    }

    /// Rules for texts that stand at no path, such as a file's name or what a commit says: the built-in ones, and those of `sets` that
    /// do not ask for a path. Allowlists that name paths or commits are left out, and the same rule is in it once.
    pub fn for_texts<'s>(sets: impl IntoIterator<Item = &'s RuleSet>) -> Self {
        let mut merged = Self::builtin();
        let mut known: BTreeSet<[u8; 32]> = merged.rules.iter().map(fingerprint_of).collect();
        for rule in sets.into_iter().flat_map(|set| &set.rules) {
            let asks_for_more = rule.path.is_some() || !rule.required.is_empty() || rule.silent;
            if asks_for_more || merged.rules.len() == RULES_MAX || !known.insert(fingerprint_of(rule)) {
                continue;
            }
            let mut rule = rule.clone();
            rule.allowlists.retain(|list| list.paths.is_empty() && list.commits.is_empty());
            // Two sets may have different rules of one name.
            rule.id = alloc::format!("{}.{}", merged.rules.len(), rule.id);
            merged.rules.push(rule);
        }
        merged
    }

    /// Reads rules in this crate's own format (see the [module](self)).
    ///
    /// ```
    /// use tessera_detect::RuleSet;
    ///
    /// let error = RuleSet::from_toml("[[rules]]\nid = 'x'\ntitle = 'X'\nseverity = 'high'\nregex = '(('").unwrap_err();
    /// assert_eq!(error.line, Some(1));
    /// assert!(error.to_string().contains("unclosed group"), "{error}");
    /// ```
    ///
    /// # Errors
    /// If the text is no TOML, a field is unknown, missing or of the wrong type, or an expression is refused.
    pub fn from_toml(text: &str) -> Result<Self, RuleFileError> {
        read(text, Pattern::new)
    }

    pub(crate) fn from_parts(rules: Vec<Rule>, allowlists: Vec<Allowlist>, warnings: Vec<String>) -> Self {
        Self { rules, allowlists, warnings }
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule of that id.
    pub fn get(&self, id: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.id == id)
    }

    /// Allowlists that are not a rule's own.
    pub fn allowlists(&self) -> &[Allowlist] {
        &self.allowlists
    }

    /// What was read but does nothing here, for the user to know.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Adds `other`; a rule with an id that is already there takes the old one's place.
    pub fn extend(&mut self, other: RuleSet) {
        for rule in other.rules {
            match self.rules.iter_mut().find(|known| known.id == rule.id) {
                Some(known) => *known = rule,
                None => self.rules.push(rule),
            }
        }
        self.allowlists.extend(other.allowlists);
        self.warnings.extend(other.warnings);
    }

    /// Adds an allowlist for all rules, or for those it names.
    ///
    /// # Errors
    /// If it allows nothing.
    pub fn allow(&mut self, list: Allowlist) -> Result<(), RuleError> {
        list.validate()?;
        self.allowlists.push(list);
        Ok(())
    }

    /// Removes rules.
    ///
    /// # Errors
    /// If there is no rule of one of these ids: a rule that was to be off must not stay on for a misspelling.
    pub fn disable(&mut self, ids: &[&str]) -> Result<(), RuleError> {
        for id in ids {
            let at =
                self.rules.iter().position(|rule| rule.id == *id).ok_or_else(|| RuleError::NoSuchRule((*id).into()))?;
            self.rules.remove(at);
        }
        Ok(())
    }

    /// Keeps only rules at least that severe, and those they require.
    pub fn keep_severe(&mut self, severity_min: Severity) {
        let severe = self.rules.iter().filter(|rule| rule.severity >= severity_min);
        let required: BTreeSet<String> = severe.flat_map(|rule| rule.required.iter().map(|r| r.id.clone())).collect();
        self.rules.retain(|rule| rule.severity >= severity_min || required.contains(&rule.id));
    }

    /// Keeps only these rules, and those they require.
    ///
    /// # Errors
    /// If there is no rule of one of these ids.
    pub fn keep_only(&mut self, ids: &[&str]) -> Result<(), RuleError> {
        if let Some(id) = ids.iter().find(|id| self.get(id).is_none()) {
            return Err(RuleError::NoSuchRule((*id).into()));
        }
        let wanted: BTreeSet<String> = self
            .rules
            .iter()
            .filter(|rule| ids.contains(&rule.id.as_str()))
            .flat_map(|rule| core::iter::once(rule.id.clone()).chain(rule.required.iter().map(|r| r.id.clone())))
            .collect();
        self.rules.retain(|rule| wanted.contains(&rule.id));
        Ok(())
    }

    /// Names everything that changes what is found: two sets with the same fingerprint find the same.
    ///
    /// Titles and examples are left out. The form hashed is that of this version of the crate: another version may
    /// find differently, so its fingerprints differ.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = domain::RULE_SET_V1.hasher();
        hasher.bytes(env!("CARGO_PKG_VERSION").as_bytes());
        for rule in &self.rules {
            hasher.bytes(bare(rule).as_bytes());
        }
        for list in &self.allowlists {
            hasher.bytes(alloc::format!("{list:?}").as_bytes());
        }
        hasher.finish()
    }
}

/// Everything of a rule that changes what it finds, and its name.
fn bare(rule: &Rule) -> String {
    let mut bare = rule.clone();
    bare.title.clear();
    bare.source.clear();
    bare.positive.clear();
    bare.negative.clear();
    alloc::format!("{bare:?}")
}

fn fingerprint_of(rule: &Rule) -> [u8; 32] {
    domain::RULE_SET_V1.hash(bare(rule).as_bytes())
}

/// How an expression is admitted: compiled once for a trial, or trusted because a test did that.
pub(crate) type Admit = fn(&str) -> Result<Pattern, RuleError>;

/// Opens an expression whose matches begin at an edge (see `edge.rs`).
const EDGE: &str = "(?&edge)";

fn read(text: &str, admit: Admit) -> Result<RuleSet, RuleFileError> {
    let document = Document::parse(text)?;
    let root = document.root();
    let mut set = RuleSet::empty();
    let mut ids = BTreeSet::new();
    for mut table in root.tables("rules")? {
        let id = table.required_string("id")?;
        table.is_about(id);
        let rule = read_rule(&table, id, admit)?;
        if !ids.insert(id.to_owned()) {
            return Err(table.error(RuleError::DuplicateId(id.into())));
        }
        set.rules.push(rule);
    }
    for table in root.tables("allowlists")? {
        set.allowlists.push(read_allowlist(&table, Pattern::searchable)?);
    }
    root.finish()?;
    Ok(set)
}

fn read_rule(table: &Table<'_>, id: &str, admit: Admit) -> Result<Rule, RuleFileError> {
    let fail = |reason| table.error(reason);
    check_id(id).map_err(fail)?;
    let severity: Severity = table.word("severity")?.ok_or_else(|| fail(RuleError::Missing("severity")))?;
    let (regex, value, names) = (table.string("regex")?, table.string("value")?, table.strings("names")?);
    let mut keywords = lowered(&table.strings("keywords")?).map_err(fail)?;
    let (qualified, quoted) = (table.boolean("qualified")?.unwrap_or(true), table.boolean("quoted")?.unwrap_or(false));
    let (secretive, spaced) = (table.boolean("secretive")?.unwrap_or(false), table.boolean("spaced")?.unwrap_or(false));
    let path = table.string("path")?.map(Pattern::searchable).transpose().map_err(fail)?;
    let matching = match (regex, value) {
        (Some(regex), None) => Matching::Text(admit(regex.trim_start_matches(EDGE)).map_err(fail)?),
        (None, Some(value)) => {
            if names.is_empty() {
                return Err(fail(RuleError::Missing("names")));
            }
            keywords = lowered(&names).map_err(fail)?;
            Matching::Assigned { value: admit(value).map_err(fail)?, qualified, quoted, spaced, secretive }
        }
        (None, None) if path.is_some() => Matching::Path,
        (None, None) => return Err(fail(RuleError::Missing("regex"))),
        (Some(_), Some(_)) => return Err(fail(RuleError::UnknownField("value (beside regex)".into()))),
    };
    let owned = |texts: Vec<&str>| texts.into_iter().map(String::from).collect::<Vec<_>>();
    let rule = Rule {
        id: id.into(),
        title: table.required_string("title")?.into(),
        severity,
        confidence: table.word("confidence")?.unwrap_or(Confidence::High),
        keywords,
        matching,
        secret_group: table.count("secret_group")?.map(|group| group as usize),
        then: table.string("then")?.map(admit).transpose().map_err(fail)?,
        path,
        entropy_min: table.number("entropy")?.unwrap_or(0.0) as f32,
        needs: table.strings("needs")?.iter().map(|word| word.parse()).collect::<Result<_, _>>().map_err(fail)?,
        at_edge: regex.is_some_and(|regex| regex.starts_with(EDGE)),
        skip_placeholders: table.boolean("skip_placeholders")?.unwrap_or(true),
        check: table.word("check")?,
        on_failed_check: table.word("on_failed_check")?.unwrap_or(OnFailedCheck::Drop),
        allowlists: table
            .tables("allowlists")?
            .iter()
            .map(|list| read_allowlist(list, Pattern::searchable))
            .collect::<Result<_, _>>()?,
        source: table.string("source")?.unwrap_or_default().into(),
        tags: owned(table.strings("tags")?),
        required: Vec::new(),
        silent: false,
        positive: owned(table.strings("positive")?),
        negative: owned(table.strings("negative")?),
    };
    table.finish()?;
    Ok(rule)
}

/// Reads an allowlist; the two formats share its form.
pub(crate) fn read_allowlist(table: &Table<'_>, admit: Admit) -> Result<Allowlist, RuleFileError> {
    let fail = |reason| table.error(reason);
    let patterns = |field| -> Result<Vec<Pattern>, RuleFileError> {
        table.strings(field)?.into_iter().map(|text| admit(text).map_err(fail)).collect()
    };
    let list = Allowlist {
        description: table.string("description")?.unwrap_or_default().into(),
        condition: match table.string("condition")?.map(str::to_ascii_lowercase).as_deref() {
            None | Some("" | "or" | "||") => Condition::Any,
            Some("and" | "&&") => Condition::All,
            Some(other) => {
                return Err(fail(RuleError::UnknownWord {
                    what: "condition",
                    word: other.into(),
                    known: &["OR", "AND"],
                }));
            }
        },
        commits: table.strings("commits")?.iter().map(|commit| commit.to_ascii_lowercase()).collect(),
        paths: patterns("paths")?,
        regexes: patterns("regexes")?,
        target: match table.string("regexTarget")? {
            None | Some("" | "secret") => Target::Secret,
            Some("match") => Target::Match,
            Some("line") => Target::Line,
            Some(other) => {
                let known = &["secret", "match", "line"];
                return Err(fail(RuleError::UnknownWord { what: "regexTarget", word: other.into(), known }));
            }
        },
        stopwords: table.strings("stopwords")?.iter().map(|word| word.to_ascii_lowercase()).collect(),
        rules: table.strings("targetRules")?.iter().map(ToString::to_string).collect(),
    };
    list.validate().map_err(fail)?;
    table.finish()?;
    Ok(list)
}

pub(crate) fn check_id(id: &str) -> Result<(), RuleError> {
    let good = (1..=80).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if good { Ok(()) } else { Err(RuleError::BadId(id.into())) }
}

/// Keywords in lower case, each within bounds, none twice.
pub(crate) fn lowered(words: &[&str]) -> Result<Vec<String>, RuleError> {
    let mut out: Vec<String> = Vec::new();
    for word in words {
        let word = word.to_ascii_lowercase();
        if word.is_empty() || word.len() > 64 {
            return Err(RuleError::BadKeyword(word));
        }
        if !out.contains(&word) {
            out.push(word);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str =
        "[[rules]]\nid = 'one'\ntitle = 'One'\nseverity = 'low'\nregex = 'one[0-9]{4}'\nkeywords = ['one']\n";

    #[test]
    fn mistakes_are_named_with_line_rule_and_field() {
        for (text, line, message) in [
            (ONE.replace("severity", "severty"), 1, "field `severity` is missing"),
            (ONE.replace("'low'", "'lowish'"), 1, "unknown severity"),
            (alloc::format!("{ONE}entropi = 3.0\n"), 1, "unknown field `entropi`"),
            (alloc::format!("{ONE}entropy = 'much'\n"), 7, "must be a number"),
            (alloc::format!("{ONE}{ONE}"), 7, "a second rule is called \"one\""),
            (ONE.replace("'one'\nt", "'o n e'\nt"), 1, "may have letters"),
            (ONE.replace("'one[0-9]{4}'", "'(one[0-9]{4}'"), 1, "unclosed group"),
            (alloc::format!("{ONE}[[rules.allowlists]]\n"), 7, "needs at least one of"),
        ] {
            let error = RuleSet::from_toml(&text).unwrap_err();
            assert_eq!(error.line, Some(line), "{error}");
            assert!(error.to_string().contains(message), "{error}");
        }
        assert!(RuleSet::from_toml("rules = [[").is_err());
    }

    #[test]
    fn a_rule_takes_the_place_of_its_namesake() {
        let mut set = RuleSet::from_toml(ONE).unwrap();
        let before = set.fingerprint();
        set.extend(RuleSet::from_toml(&ONE.replace("{4}", "{5}")).unwrap());
        assert_eq!(set.rules().len(), 1);
        assert_ne!(set.fingerprint(), before);
    }

    #[test]
    fn the_fingerprint_ignores_titles_and_examples() {
        let set = RuleSet::from_toml(ONE).unwrap();
        let other =
            RuleSet::from_toml(&alloc::format!("{ONE}positive = ['one1234']\n").replace("'One'", "'Uno'")).unwrap();
        assert_eq!(set.fingerprint(), other.fingerprint());
    }

    #[test]
    fn rules_for_texts_are_the_built_in_ones_and_those_that_ask_for_no_path() {
        let with_path = RuleSet::from_toml(&alloc::format!("{ONE}path = '[.]env$'\n")).unwrap();
        let other = RuleSet::from_toml(&ONE.replace("{4}", "{5}")).unwrap();
        let allowed = RuleSet::from_toml(&alloc::format!("{ONE}[[rules.allowlists]]\npaths = ['x']\n")).unwrap();
        let builtin = RuleSet::builtin();
        let len = |sets: &[&RuleSet]| RuleSet::for_texts(sets.iter().copied()).rules().len() - builtin.rules().len();
        let one = RuleSet::from_toml(ONE).unwrap();
        assert_eq!((len(&[]), len(&[&builtin, &with_path]), len(&[&one, &one]), len(&[&one, &other])), (0, 0, 1, 2));
        let merged = RuleSet::for_texts([&allowed, &other]);
        assert!(merged.rules().iter().all(|rule| rule.allowlists.iter().all(|list| list.paths.is_empty())));
        assert!(crate::Detector::new(&merged).is_ok());
    }

    #[test]
    fn disabling_a_rule_that_is_not_there_is_an_error() {
        let mut set = RuleSet::from_toml(ONE).unwrap();
        assert_eq!(set.disable(&["two"]), Err(RuleError::NoSuchRule("two".into())));
        set.disable(&["one"]).unwrap();
        assert!(set.rules().is_empty());
    }
}
