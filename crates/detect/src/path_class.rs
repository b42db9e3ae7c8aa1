//! What the rules make of a path, apart from the bytes that stand there.
//!
//! Some rules look only at some paths, and some allowlists name paths. Everything else is the same for the same bytes wherever they
//! stand. So a path is reduced to its answers to these questions: paths with the same answers form a class, and the same bytes
//! give the same findings at all of them. A blob at a thousand paths is searched once for each class and not for each path.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::detector::{BLOCK_BYTES, Detector, Source, block_at};
use crate::program::{Bank, Look, Program};

/// Paths at which the same bytes give the same findings, for one set of rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathClass {
    /// One answer for each rule with a path, then one for each allowlist with paths.
    answers: Arc<[bool]>,
    is_allowed: bool,
}

impl PathClass {
    /// Whether an allowlist for all rules names these paths: nothing that stands there is searched.
    pub fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// Whether the rule that is `index`-th among those with a path looks at these paths.
    pub(crate) fn wakes(&self, index: usize) -> bool {
        self.answers[index]
    }
}

/// The class of the path that was asked for last: the versions of a file follow one another.
#[derive(Debug, Default)]
pub(crate) struct LastClass {
    path: Option<Vec<u8>>,
    class: Option<PathClass>,
}

impl LastClass {
    pub(crate) fn of(&mut self, program: &Program, bank: &mut Bank, path: Option<&[u8]>) -> PathClass {
        match &self.class {
            // Without questions all paths are alike.
            Some(class) if self.path.as_deref() == path || class.answers.is_empty() => class.clone(),
            _ => {
                let class = class_of(program, bank, path);
                (self.path, self.class) = (path.map(<[u8]>::to_vec), Some(class.clone()));
                class
            }
        }
    }
}

fn class_of(program: &Program, bank: &mut Bank, path: Option<&[u8]>) -> PathClass {
    let mut answers = Vec::new();
    for &rule in &program.with_path {
        let pattern = program.plans[usize::from(rule)].path;
        answers.push(pattern.zip(path).is_some_and(|(id, path)| bank.matcher(program, id).is_match(path)));
    }
    let mut is_allowed = false;
    for plan in &program.allowlists {
        if !plan.paths.is_empty() {
            answers.push(path.is_some_and(|path| bank.any(program, &plan.paths, path)));
        }
        is_allowed |= plan.list.rules.is_empty() && bank.allows_source(program, plan, path, None);
    }
    let of_rules = program.plans.iter().flat_map(|plan| &plan.allow).filter(|plan| !plan.paths.is_empty());
    for plan in of_rules {
        answers.push(path.is_some_and(|path| bank.any(program, &plan.paths, path)));
    }
    PathClass { answers: answers.into(), is_allowed }
}

impl Detector {
    /// The class of a path. Only classes of detectors with the same rules can be compared.
    pub fn class_of(&mut self, path: &[u8]) -> PathClass {
        self.last_class.of(&self.program, &mut self.bank, Some(path))
    }

    /// Whether these bytes could give a finding at a path that is not known: some rule reports paths as such, or matches here
    /// with nothing but paths and remarks to speak against it.
    pub fn finds_at_some_path(&mut self, bytes: &[u8]) -> bool {
        if self.program.plans.iter().any(|plan| matches!(plan.look, Look::Path)) {
            return true;
        }
        // Without a path no rule that asks for one looks and no allowlist of paths speaks; the former are woken.
        if !self.begin(Source::default(), &mut |_| {}) {
            return true;
        }
        self.state.asleep.fill(false);
        self.state.is_probing = true;
        let mut at = 0;
        while at < bytes.len() {
            self.run(&block_at(Source::default(), bytes, 0, at), &mut |_| {});
            at += BLOCK_BYTES;
        }
        self.state.summary.matches > self.state.summary.harmless
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};

    use super::*;
    use crate::{RuleSet, gitleaks};

    const RULES: &str = r#"
        [[rules]]
        id = "anywhere"
        regex = 'any_[a-z]{8}'
        keywords = ["any_"]
        [[rules.allowlists]]
        paths = ['^docs/']
        [[rules]]
        id = "in-env"
        regex = 'env_[a-z]{8}'
        keywords = ["env_"]
        path = '\.env$'
        [[rules]]
        id = "key-file"
        path = '\.p12$'
        [[allowlists]]
        paths = ['^tests/']
        [[allowlists]]
        targetRules = ["in-env"]
        paths = ['^samples/']
    "#;

    fn detector() -> Detector {
        Detector::new(&gitleaks::read(RULES, &mut |_| Err("no".into())).unwrap()).unwrap()
    }

    const PATHS: &[&str] = &[
        "a.env",
        "b.env",
        "src/a.rs",
        "src/b.rs",
        "docs/a.env",
        "docs/a",
        "tests/a.env",
        "tests/b",
        "samples/a.env",
        "k.p12",
        "docs/k.p12",
        "",
    ];

    #[test]
    fn paths_of_one_class_give_the_same_findings() {
        let mut detector = detector();
        let text = b"any_abcdefgh env_abcdefgh";
        let mut found = |path: &str| -> (alloc::vec::Vec<String>, PathClass) {
            let mut found = alloc::vec::Vec::new();
            detector.scan_bytes(Source::path(path), text, |finding| found.push(finding.rule.id.to_string()));
            (found, detector.class_of(path.as_bytes()))
        };
        for a in PATHS {
            for b in PATHS {
                let ((in_a, class_a), (in_b, class_b)) = (found(a), found(b));
                if class_a == class_b {
                    assert_eq!(in_a, in_b, "{a} and {b}");
                }
            }
        }
        let of = |path: &str, found: &mut dyn FnMut(&str) -> (alloc::vec::Vec<String>, PathClass)| found(path).0;
        assert_eq!(of("a.env", &mut found), ["anywhere", "in-env"]);
        assert_eq!(of("docs/a.env", &mut found), ["in-env"]);
        assert_eq!(of("samples/a.env", &mut found), ["anywhere"]);
        assert_eq!(of("k.p12", &mut found), ["key-file", "anywhere"]);
        assert!(of("tests/a.env", &mut found).is_empty());
    }

    #[test]
    fn classes_are_as_few_as_the_answers_differ() {
        let mut detector = detector();
        let classes: alloc::vec::Vec<PathClass> = PATHS.iter().map(|path| detector.class_of(path.as_bytes())).collect();
        assert_eq!((&classes[0], &classes[2]), (&classes[1], &classes[3]));
        assert!(classes[6].is_allowed() && classes[7].is_allowed() && !classes[0].is_allowed());
        let mut builtin = Detector::new(&RuleSet::builtin()).unwrap();
        assert_eq!(builtin.class_of(b"a"), builtin.class_of(b"tests/b.env"), "built-in rules ask for no path");
    }

    #[test]
    fn bytes_at_an_unknown_path_are_called_harmless_only_if_no_path_makes_a_finding_of_them() {
        let paths_only_by_name =
            RULES.replace("id = \"key-file\"\n        path = '\\.p12$'", "id = \"x\"\n        regex = 'xx_[a-z]{8}'");
        assert!(!paths_only_by_name.contains("p12"));
        let rules = gitleaks::read(&paths_only_by_name, &mut |_| Err("no".into())).unwrap();
        let mut detector_without = Detector::new(&rules).unwrap();
        assert!(detector_without.finds_at_some_path(b"env_abcdefgh"), "a rule for some paths");
        assert!(detector_without.finds_at_some_path(b"any_abcdefgh"), "allowed at some paths only");
        assert!(!detector_without.finds_at_some_path(b"nothing at all"));
        assert!(detector().finds_at_some_path(b"nothing at all"), "a name can be a finding");
        // What was woken for it sleeps again afterwards.
        assert_eq!(detector_without.scan_bytes(Source::path("a.rs"), b"env_abcdefgh", |_| {}).findings, 0);
    }
}
