//! Reads the rule format of gitleaks, which is what most teams have.
//!
//! Read: `[[rules]]` with `id`, `description`, `regex`, `path`, `keywords`, `entropy`, `secretGroup`, `tags`, `allowlist` and `allowlists`,
//! `required`, `skipReport`; `[allowlist]` and `[[allowlists]]` with `targetRules`; `[extend]` with `path`, `useDefault` and
//! `disabledRules`; and of its successor betterleaks `filter` and `prefilter`, as far as allowlists can say the same
//! (`filter_expr`). Field names are matched without regard to case, as gitleaks does.
//!
//! Differences, all reported by [`RuleSet::warnings`] when a file meets them: `useDefault` extends this crate's rules, not those of
//! gitleaks; what a file says about a rule of gitleaks' own is applied to the built-in rules for the same secret
//! (`successors`); fields that neither knows are ignored. Two more that no file can ask for: a match is at most 15.5 KiB long,
//! and where several rules match the same bytes the surest is reported, not all.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::allow::Allowlist;
use crate::error::{RuleError, RuleFileError};
use crate::filter_expr;
use crate::go_syntax::translated;
use crate::pattern::Pattern;
use crate::rule::{CharClass, Confidence, Matching, OnFailedCheck, Required, Rule, Severity};
use crate::ruleset::{RuleSet, check_id, lowered, read_allowlist};
use crate::toml_table::{Document, Table};

/// How many files may extend one another; gitleaks itself stops at two.
pub const EXTEND_DEPTH_MAX: usize = 4;

/// Fetches the text of a file named by `extend.path`, or says why it cannot.
pub type Loader<'l> = &'l mut dyn FnMut(&str) -> Result<String, String>;

/// Reads a gitleaks configuration. `load` is asked for the files that it extends.
///
/// ```
/// use tessera_detect::gitleaks;
///
/// let text = r#"
///     [[rules]]
///     id = "acme"
///     description = "Acme token"
///     regex = '''acme_([a-z0-9]{20})'''
///     keywords = ["acme_"]
/// "#;
/// let rules = gitleaks::read(text, &mut |path| Err(format!("no file {path} here")))?;
/// assert_eq!(rules.rules()[0].id, "acme");
/// # Ok::<(), tessera_detect::RuleFileError>(())
/// ```
///
/// # Errors
/// If the text is no TOML, a rule lacks what it needs, an expression is refused, or an extended file cannot be read.
pub fn read(text: &str, load: Loader<'_>) -> Result<RuleSet, RuleFileError> {
    let draft = read_draft(text, load, 0)?;
    let mut rules = Vec::with_capacity(draft.rules.len());
    for rule in draft.rules {
        rules.push(rule.finished()?);
    }
    for rule in &rules {
        if let Some(missing) = rule.required.iter().find(|required| !rules.iter().any(|other| other.id == required.id))
        {
            return Err(about(&rule.id, RuleError::NoSuchRule(missing.id.clone())));
        }
    }
    for list in &draft.allowlists {
        if let Some(missing) = list.rules.iter().find(|id| !rules.iter().any(|rule| rule.id == **id)) {
            return Err(RuleFileError {
                line: None,
                rule: None,
                reason: Box::new(RuleError::NoSuchRule(missing.clone())),
            });
        }
    }
    Ok(RuleSet::from_parts(rules, draft.allowlists, grouped(draft.warnings)))
}

/// Something that a file says and that does nothing here. Those of many rules are told in one line.
enum Warning {
    Of(String),
    OfRule { rule: String, what: String },
}

/// One line for each kind of warning, in the order of the first of its kind.
fn grouped(warnings: Vec<Warning>) -> Vec<String> {
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    for warning in warnings {
        let (what, rule) = match warning {
            Warning::Of(what) => (what, None),
            Warning::OfRule { rule, what } => (what, Some(rule)),
        };
        match lines.iter_mut().find(|(known, rules)| *known == what && rules.is_empty() == rule.is_none()) {
            Some((_, rules)) => rules.extend(rule),
            None => lines.push((what, rule.into_iter().collect())),
        }
    }
    lines
        .into_iter()
        .map(|(what, rules)| match rules.as_slice() {
            [] => what,
            [rule] => format!("rule {rule:?}: {what}"),
            [first, second] => format!("rules {first:?} and {second:?}: {what}"),
            [first, .., last] => format!("{} rules, from {first:?} to {last:?}: {what}", rules.len()),
        })
        .collect()
}

/// The built-in rules that find what gitleaks' own rule `id` finds; empty if there are none.
fn successors(id: &str, rules: &[DraftRule]) -> Vec<String> {
    const KNOWN: &[(&str, &[&str])] = &[
        (
            "generic-api-key",
            &[
                "generic-secret",
                "generic-short-secret",
                "generic-hex-secret",
                "generic-uuid-secret",
                "generic-password",
                "generic-plain-password",
                "framework-secret",
            ],
        ),
        ("aws-access-token", &["aws-access-key-id", "aws-secret-access-key"]),
        ("private-key", &["private-key", "encrypted-private-key", "bare-private-key", "pgp-private-key"]),
        ("curl-auth-header", &["http-bearer-auth", "http-basic-auth"]),
        ("curl-auth-user", &["curl-user-password"]),
        ("jwt-base64", &["jwt"]),
        ("gcp-api-key", &["google-api-key"]),
        ("stripe-access-token", &["stripe-live-key", "stripe-test-key"]),
        ("kubernetes-secret-yaml", &["kubernetes-secret"]),
        ("hashicorp-tf-password", &["generic-password", "generic-plain-password"]),
        ("nuget-config-password", &["generic-password", "generic-plain-password"]),
        ("github-app-token", &["github-app-user", "github-app-server"]),
        ("pypi-upload-token", &["pypi-token", "testpypi-token"]),
    ];
    let is_built_in = |id: &str| rules.iter().any(|rule| rule.id == id && rule.base.is_some());
    if is_built_in(id) {
        return alloc::vec![id.into()];
    }
    if let Some((_, ids)) = KNOWN.iter().find(|(known, _)| *known == id) {
        return ids.iter().filter(|id| is_built_in(id)).map(ToString::to_string).collect();
    }
    // Both sets call a rule by its service first: `okta-access-token`, `okta-token`.
    let service = id.split('-').next().unwrap_or(id);
    let of_service = |rule: &&DraftRule| rule.base.is_some() && rule.id.split('-').next() == Some(service);
    if service == "generic" {
        Vec::new()
    } else {
        rules.iter().filter(of_service).map(|rule| rule.id.clone()).collect()
    }
}

/// A file, before what it extends is known to complete its rules.
#[derive(Default)]
struct Draft {
    rules: Vec<DraftRule>,
    allowlists: Vec<Allowlist>,
    warnings: Vec<Warning>,
}

/// A rule some of whose fields may come from the file it extends.
#[derive(Default)]
struct DraftRule {
    id: String,
    description: Option<String>,
    regex: Option<Pattern>,
    path: Option<Pattern>,
    entropy: Option<f32>,
    secret_group: Option<usize>,
    keywords: Vec<String>,
    tags: Vec<String>,
    allowlists: Vec<Allowlist>,
    required: Vec<Required>,
    silent: bool,
    /// The rule is one of this crate's and keeps what gitleaks has no field for.
    base: Option<Box<Rule>>,
}

fn read_draft(text: &str, load: Loader<'_>, depth: usize) -> Result<Draft, RuleFileError> {
    let document = Document::parse(text)?;
    let root = document.root();
    let mut draft = Draft::default();
    for mut table in root.tables("rules")? {
        let id = table.required_string("id")?;
        table.is_about(id);
        if draft.rules.iter().any(|rule| rule.id == id) {
            return Err(table.error(RuleError::DuplicateId(id.into())));
        }
        draft.rules.push(read_rule(&table, id, &mut draft.warnings)?);
    }
    draft.allowlists = allowlists_of(&root)?;
    for harmless in ["title", "description", "minVersion", "betterleaksMinVersion"] {
        root.string(harmless)?;
    }
    if let Some(extend) = root.table("extend")? {
        read_extend(&extend, &mut draft, load, depth)?;
    }
    for (field, what) in [("prefilter", "sources"), ("filter", "findings")] {
        if let Some(text) = root.string(field)? {
            match filter_expr::read(text, admit_go) {
                Ok(filter) if filter.entropy_min.is_none() => draft.allowlists.extend(filter.allowlists),
                Ok(_) => draft.warnings.push(Warning::Of(format!("`{field}` asks all {what} for an entropy: ignored"))),
                Err(reason) => draft.warnings.push(Warning::Of(format!("`{field}` was ignored: {reason}"))),
            }
        }
    }
    let unknown = |field: &&str| Warning::Of(format!("unknown field `{field}` was ignored"));
    draft.warnings.extend(root.unknown_fields().iter().map(unknown));
    Ok(draft)
}

fn read_rule(table: &Table<'_>, id: &str, warnings: &mut Vec<Warning>) -> Result<DraftRule, RuleFileError> {
    let fail = |reason| table.error(reason);
    check_id(id).map_err(fail)?;
    let filled = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(ToString::to_string);
    let regex =
        filled(table.string("regex")?).map(|text| Pattern::new(&translated(&text))).transpose().map_err(fail)?;
    let secret_group = table.count("secretGroup")?.map(|group| group as usize).filter(|&group| group > 0);
    if let (Some(group), Some(regex)) = (secret_group, &regex)
        && group > regex.groups()
    {
        return Err(fail(RuleError::NoSuchGroup { group, groups: regex.groups() }));
    }
    let mut required = Vec::new();
    for part in table.tables("required")? {
        required.push(Required {
            id: part.required_string("id")?.into(),
            within_lines: part.count("withinLines")?,
            within_columns: part.count("withinColumns")?,
        });
        part.finish()?;
    }
    let filter = table.string("filter")?.map(|text| filter_expr::read(text, admit_go)).transpose();
    let filter = filter.unwrap_or_else(|reason| {
        warnings.push(Warning::OfRule { rule: id.into(), what: format!("`filter` was ignored: {reason}") });
        None
    });
    let filter = filter.unwrap_or_default();
    let mut allowlists = allowlists_of(table)?;
    allowlists.extend(filter.allowlists);
    let rule = DraftRule {
        id: id.into(),
        description: filled(table.string("description")?),
        regex,
        path: filled(table.string("path")?)
            .map(|text| Pattern::searchable(&translated(&text)))
            .transpose()
            .map_err(fail)?,
        entropy: table.number("entropy")?.map(|number| number as f32).or(filter.entropy_min),
        secret_group,
        keywords: lowered(&table.strings("keywords")?).map_err(fail)?,
        tags: table.strings("tags")?.iter().map(ToString::to_string).collect(),
        allowlists,
        required,
        silent: table.boolean("skipReport")?.unwrap_or(false),
        base: None,
    };
    let unknown =
        |field: &&str| Warning::OfRule { rule: id.into(), what: format!("unknown field `{field}` was ignored") };
    warnings.extend(table.unknown_fields().iter().map(unknown));
    Ok(rule)
}

/// The old form, one `[allowlist]`, or the new, many `[[allowlists]]`.
fn allowlists_of(table: &Table<'_>) -> Result<Vec<Allowlist>, RuleFileError> {
    let mut lists =
        table.tables("allowlists")?.iter().map(|list| read_allowlist(list, admit_go)).collect::<Result<Vec<_>, _>>()?;
    if let Some(old) = table.table("allowlist")? {
        lists.push(read_allowlist(&old, admit_go)?);
    }
    Ok(lists)
}

fn read_extend(table: &Table<'_>, draft: &mut Draft, load: Loader<'_>, depth: usize) -> Result<(), RuleFileError> {
    let use_default = table.boolean("useDefault")?.unwrap_or(false);
    let path = table.string("path")?.filter(|path| !path.is_empty());
    let disabled = table.strings("disabledRules")?;
    let mut base = if use_default {
        let what = "extend.useDefault: extends the built-in rules of tessera, not those of gitleaks";
        draft.warnings.push(Warning::Of(what.into()));
        Draft {
            rules: RuleSet::builtin().rules().iter().map(DraftRule::from_builtin).collect(),
            allowlists: RuleSet::builtin().allowlists().to_vec(),
            warnings: Vec::new(),
        }
    } else if let Some(path) = path {
        if depth >= EXTEND_DEPTH_MAX {
            return Err(table.error(RuleError::ExtendTooDeep { depth_max: EXTEND_DEPTH_MAX }));
        }
        let text =
            load(path).map_err(|reason| table.error(RuleError::ExtendUnreadable { path: path.into(), reason }))?;
        read_draft(&text, load, depth + 1)?
    } else {
        Draft::default()
    };
    for id in disabled {
        let meant = if use_default { successors(id, &base.rules) } else { alloc::vec![id.into()] };
        let before = base.rules.len();
        base.rules.retain(|rule| !meant.contains(&rule.id));
        if base.rules.len() == before {
            let what = format!("extend.disabledRules: there is no rule {id:?} in what is extended");
            draft.warnings.push(Warning::Of(what));
        }
    }
    if use_default {
        apply_to_successors(draft, &mut base);
    }
    for rule in base.rules {
        match draft.rules.iter_mut().find(|own| own.id == rule.id) {
            Some(own) => own.complete_from(rule),
            None => draft.rules.push(rule),
        }
    }
    draft.allowlists.extend(base.allowlists);
    draft.warnings.extend(base.warnings);
    let unknown = |field: &&str| Warning::Of(format!("extend: unknown field `{field}` was ignored"));
    draft.warnings.extend(table.unknown_fields().iter().map(unknown));
    Ok(())
}

/// Gives what the file says about rules of gitleaks that are not built in here to the built-in rules for the same secrets.
fn apply_to_successors(draft: &mut Draft, base: &mut Draft) {
    let is_known = |id: &str| base.rules.iter().any(|rule| rule.id == id);
    let (own, about_others): (Vec<_>, Vec<_>) = core::mem::take(&mut draft.rules)
        .into_iter()
        .partition(|rule| rule.regex.is_some() || rule.path.is_some() || is_known(&rule.id));
    for rule in about_others {
        let meant = successors(&rule.id, &base.rules);
        let what = if meant.is_empty() {
            "no built-in rule finds this, what is said about it was ignored".into()
        } else {
            format!("its allowlists are applied to {}", meant.join(", "))
        };
        draft.warnings.push(Warning::OfRule { rule: rule.id, what });
        for built_in in base.rules.iter_mut().filter(|built_in| meant.contains(&built_in.id)) {
            built_in.allowlists.extend(rule.allowlists.iter().cloned());
        }
    }
    let is_own = |id: &String| own.iter().any(|rule| rule.id == *id);
    draft.allowlists.retain_mut(|list| {
        if list.rules.is_empty() {
            return true;
        }
        let meant = |id: String| if is_own(&id) { alloc::vec![id] } else { successors(&id, &base.rules) };
        list.rules = core::mem::take(&mut list.rules).into_iter().flat_map(meant).collect();
        if list.rules.is_empty() {
            let what = "an allowlist names only rules that are not built in here: ignored";
            draft.warnings.push(Warning::Of(what.into()));
        }
        // Without a rule it would hold for all.
        !list.rules.is_empty()
    });
    draft.rules = own;
}

impl DraftRule {
    fn from_builtin(rule: &Rule) -> Self {
        Self {
            id: rule.id.clone(),
            keywords: rule.keywords.clone(),
            allowlists: rule.allowlists.clone(),
            tags: rule.tags.clone(),
            base: Some(Box::new(rule.clone())),
            ..Self::default()
        }
    }

    /// Takes what this rule does not say itself from the rule it extends; lists are joined.
    fn complete_from(&mut self, base: DraftRule) {
        if self.regex.is_none() {
            self.regex = base.regex;
            self.secret_group = self.secret_group.or(base.secret_group);
            self.base = base.base;
        }
        self.description = self.description.take().or(base.description);
        self.path = self.path.take().or(base.path);
        self.entropy = self.entropy.or(base.entropy);
        for word in base.keywords {
            if !self.keywords.contains(&word) {
                self.keywords.push(word);
            }
        }
        self.tags.extend(base.tags);
        self.allowlists.extend(base.allowlists);
        self.required.extend(base.required);
        self.silent |= base.silent;
    }

    fn finished(self) -> Result<Rule, RuleFileError> {
        if let Some(base) = self.base {
            return Ok(Rule {
                title: self.description.unwrap_or(base.title),
                path: self.path.or(base.path),
                entropy_min: self.entropy.unwrap_or(base.entropy_min),
                keywords: self.keywords,
                allowlists: self.allowlists,
                tags: self.tags,
                required: self.required,
                silent: self.silent,
                ..*base
            });
        }
        let matching = match (self.regex, &self.path) {
            (Some(regex), _) => Matching::Text(regex),
            (None, Some(_)) => Matching::Path,
            (None, None) => return Err(about(&self.id, RuleError::Missing("regex"))),
        };
        Ok(Rule {
            title: self.description.unwrap_or_else(|| self.id.clone()),
            severity: Severity::High,
            confidence: Confidence::Medium,
            keywords: self.keywords,
            matching,
            secret_group: self.secret_group,
            then: None,
            path: self.path,
            entropy_min: self.entropy.unwrap_or(0.0),
            // gitleaks asks the rules whose name begins so for a digit.
            needs: if self.id.starts_with("generic") { alloc::vec![CharClass::Digit] } else { Vec::new() },
            at_edge: false,
            skip_placeholders: false,
            check: None,
            on_failed_check: OnFailedCheck::Drop,
            allowlists: self.allowlists,
            source: String::new(),
            tags: self.tags,
            required: self.required,
            silent: self.silent,
            positive: Vec::new(),
            negative: Vec::new(),
            id: self.id,
        })
    }
}

fn admit_go(text: &str) -> Result<Pattern, RuleError> {
    Pattern::searchable(&translated(text))
}

fn about(rule: &str, reason: RuleError) -> RuleFileError {
    RuleFileError { line: None, rule: Some(rule.into()), reason: Box::new(reason) }
}
