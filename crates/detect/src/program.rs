//! Rules made ready to run: one automaton over all keywords, and for each rule a plan how to look.
//!
//! A program is immutable and shared by all workers of a machine; what changes while matching belongs to each
//! [`crate::Detector`]. Expressions are compiled when a keyword first asks for them: most never do, and a
//! command that looks at three staged files should not wait for two hundred compilations.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use crate::allow::{Allowlist, Condition, Target};
use crate::detector::{OVERLAP_BYTES, Options};
use crate::error::RuleError;
use crate::pattern::{Matcher, Opening, Pattern, Reach};
use crate::prefilter::Prefilter;
use crate::rule::{Confidence, Matching, Rule};
use crate::ruleset::RuleSet;

/// Longest match of an expression without a longest match of its own, and of any other.
pub(crate) const WINDOW_BYTES_MAX: usize = OVERLAP_BYTES - 512;
/// Most rules in a program.
pub(crate) const RULES_MAX: usize = 16_384;

#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) rules: Vec<Rule>,
    pub(crate) plans: Vec<Plan>,
    pub(crate) prefilter: Prefilter,
    /// For each keyword, the rules it wakes.
    pub(crate) woken: Vec<Box<[u16]>>,
    /// Rules that look at every byte.
    pub(crate) unkeyed: Vec<u16>,
    /// Rules that look only at some paths.
    pub(crate) with_path: Vec<u16>,
    pub(crate) allowlists: Vec<AllowPlan>,
    pub(crate) patterns: Vec<Pattern>,
    pub(crate) options: Options,
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) look: Look,
    pub(crate) pattern: u32,
    /// What every match of an anchored expression or a value begins with.
    pub(crate) opening: Opening,
    pub(crate) path: Option<u32>,
    /// The expression of `Rule::then`.
    pub(crate) then: Option<u32>,
    pub(crate) allow: Vec<AllowPlan>,
    /// Indices of the rules of `Rule::required`, in order.
    pub(crate) required: Vec<u16>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Look {
    Text(Reach),
    Assigned {
        qualified: bool,
        quoted: bool,
        spaced: bool,
        secretive: bool,
        /// Longest value.
        after: usize,
    },
    Path,
}

#[derive(Debug)]
pub(crate) struct AllowPlan {
    pub(crate) list: Allowlist,
    pub(crate) paths: Vec<u32>,
    pub(crate) regexes: Vec<u32>,
    /// Indices of the rules it speaks about; empty means all.
    pub(crate) rules: Vec<u16>,
}

impl Program {
    pub(crate) fn new(set: &RuleSet, options: Options) -> Result<Self, RuleError> {
        let required_by_others = |id: &str| set.rules().iter().any(|rule| rule.required.iter().any(|r| r.id == id));
        let rules: Vec<Rule> = set
            .rules()
            .iter()
            .filter(|rule| best_confidence(rule) >= options.confidence_min || required_by_others(&rule.id))
            .cloned()
            .collect();
        if rules.len() > RULES_MAX {
            return Err(RuleError::TooMany { what: "rules", count: rules.len(), count_max: RULES_MAX });
        }
        let index_of: BTreeMap<&str, u16> =
            rules.iter().enumerate().map(|(i, rule)| (rule.id.as_str(), i as u16)).collect();
        let mut patterns = Vec::new();
        let mut keep = |pattern: &Pattern| {
            patterns.push(pattern.clone());
            (patterns.len() - 1) as u32
        };
        let mut plan_allow = |list: &Allowlist| AllowPlan {
            paths: list.paths.iter().map(&mut keep).collect(),
            regexes: list.regexes.iter().map(&mut keep).collect(),
            rules: list.rules.iter().filter_map(|id| index_of.get(id.as_str()).copied()).collect(),
            list: list.clone(),
        };
        let allowlists = set.allowlists().iter().map(&mut plan_allow).collect();
        let allow_by_rule: Vec<Vec<AllowPlan>> =
            rules.iter().map(|rule| rule.allowlists.iter().map(&mut plan_allow).collect()).collect();

        let mut by_keyword: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
        let (mut unkeyed, mut with_path, mut plans) = (Vec::new(), Vec::new(), Vec::new());
        for ((i, rule), allow) in rules.iter().enumerate().zip(allow_by_rule) {
            let i = i as u16;
            let mut opening = Opening::default();
            let (look, pattern) = match &rule.matching {
                Matching::Text(pattern) => {
                    let hir = pattern.hir()?;
                    opening = Opening::of(&hir);
                    (Look::Text(Reach::of(&hir, &rule.keywords, WINDOW_BYTES_MAX)), keep(pattern))
                }
                Matching::Assigned { value, qualified, quoted, spaced, secretive } => {
                    let hir = value.hir()?;
                    opening = Opening::of(&hir);
                    let after = hir.properties().maximum_len().unwrap_or(WINDOW_BYTES_MAX).min(WINDOW_BYTES_MAX / 2);
                    let (qualified, quoted, spaced, secretive) = (*qualified, *quoted, *spaced, *secretive);
                    (Look::Assigned { qualified, quoted, spaced, secretive, after }, keep(value))
                }
                Matching::Path => (Look::Path, u32::MAX),
            };
            let path = rule.path.as_ref().map(&mut keep);
            let then = rule.then.as_ref().map(&mut keep);
            if path.is_some() {
                with_path.push(i);
            }
            if !matches!(look, Look::Path) {
                if rule.keywords.is_empty() {
                    unkeyed.push(i);
                }
                for word in &rule.keywords {
                    by_keyword.entry(word).or_default().push(i);
                }
            }
            let required = rule
                .required
                .iter()
                .map(|required| {
                    index_of
                        .get(required.id.as_str())
                        .copied()
                        .ok_or_else(|| RuleError::NoSuchRule(required.id.clone()))
                })
                .collect::<Result<_, _>>()?;
            plans.push(Plan { look, pattern, opening, path, then, allow, required });
        }
        let words: Vec<&[u8]> = by_keyword.keys().map(|word| word.as_bytes()).collect();
        let prefilter = Prefilter::new(&words)?;
        let woken = by_keyword.into_values().map(Vec::into_boxed_slice).collect();
        Ok(Self { plans, prefilter, woken, unkeyed, with_path, allowlists, patterns, options, rules })
    }
}

/// The most that a match of this rule can become.
fn best_confidence(rule: &Rule) -> Confidence {
    use crate::check::Check;
    match rule.check {
        Some(Check::Crc62 | Check::GitlabRoutable | Check::Nkey) => Confidence::ChecksumValid,
        _ => rule.confidence,
    }
}

/// One thread's compiled expressions, made on demand.
#[derive(Debug)]
pub(crate) struct Bank(Vec<Option<Box<Matcher>>>);

impl Bank {
    pub(crate) fn new(program: &Program) -> Self {
        Self(program.patterns.iter().map(|_| None).collect())
    }

    pub(crate) fn matcher<'b>(&'b mut self, program: &Program, id: u32) -> &'b mut Matcher {
        let source = &program.patterns[id as usize];
        self.0[id as usize].get_or_insert_with(|| {
            Box::new(source.compile().expect("user expressions were compiled when read, built-in ones by a test"))
        })
    }

    pub(crate) fn any(&mut self, program: &Program, ids: &[u32], text: &[u8]) -> bool {
        ids.iter().any(|&id| self.matcher(program, id).is_match(text))
    }

    /// Whether `list` calls a whole source harmless, by its path or commit alone.
    pub(crate) fn allows_source(
        &mut self,
        program: &Program,
        plan: &AllowPlan,
        path: Option<&[u8]>,
        commit: Option<&str>,
    ) -> bool {
        let list = &plan.list;
        let asks_for_more = !list.regexes.is_empty() || !list.stopwords.is_empty();
        if asks_for_more && list.condition == Condition::All {
            return false;
        }
        let by_commit = (!list.commits.is_empty())
            .then(|| commit.is_some_and(|commit| list.commits.iter().any(|known| known == commit)));
        let by_path = (!list.paths.is_empty()).then(|| path.is_some_and(|path| self.any(program, &plan.paths, path)));
        (by_commit.is_some() || by_path.is_some()) && list.combine([by_commit, by_path, None, None])
    }

    /// Whether `list` calls this match harmless.
    pub(crate) fn allows(&mut self, program: &Program, plan: &AllowPlan, subject: &Subject<'_>) -> bool {
        let list = &plan.list;
        let given = |empty: bool, holds: &mut dyn FnMut() -> bool| (!empty).then(holds);
        let commit = given(list.commits.is_empty(), &mut || {
            subject.commit.is_some_and(|commit| list.commits.iter().any(|known| known == commit))
        });
        let path =
            given(list.paths.is_empty(), &mut || subject.path.is_some_and(|path| self.any(program, &plan.paths, path)));
        let target = match list.target {
            Target::Secret => subject.secret,
            Target::Match => subject.matched,
            Target::Line => subject.line,
        };
        let regex = given(list.regexes.is_empty(), &mut || self.any(program, &plan.regexes, target));
        let word = given(list.stopwords.is_empty(), &mut || {
            list.stopwords
                .iter()
                .any(|word: &String| crate::placeholder::contains_folded(subject.secret, word.as_bytes()))
        });
        list.combine([commit, path, regex, word])
    }
}

/// What an allowlist looks at.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) path: Option<&'a [u8]>,
    pub(crate) commit: Option<&'a str>,
    pub(crate) secret: &'a [u8],
    pub(crate) matched: &'a [u8],
    pub(crate) line: &'a [u8],
}
