//! How far around a keyword the rules look, for a caller that searches less than everything.
//!
//! Most expressions stay within a line. A few reach over line breaks, but not far. What is left is *wide*: a private key has as
//! many lines as it has, and text with a keyword of a wide rule is always searched whole.

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use regex_syntax::hir::{Class, Hir, HirKind};
use tessera_detect::Detector;
use tessera_detect::rule::Matching;

/// What is known about all rules of a detector.
#[derive(Debug)]
pub struct Reaches {
    /// Keywords of rules that reach far.
    pub wide: Option<AhoCorasick>,
    /// How much text a match of any other rule can depend on, before and behind its keyword together, unless it stays within a line.
    pub across: usize,
}

impl Reaches {
    /// Looks at the rules of a detector; those that can match more than `reach_max` from their keyword and over line breaks are
    /// wide. `None` if there are rules for which nothing can be said.
    pub fn of(detector: &Detector, reach_max: usize) -> Option<Self> {
        let (mut wide, mut across) = (Vec::new(), 0);
        for (rule, reach) in detector.reaches() {
            let is_in_line = reach.is_some()
                && rule.then.is_none()
                && match &rule.matching {
                    Matching::Path => true,
                    Matching::Text(pattern) => stays_in_line(pattern.as_str()),
                    // Between a name and its value there is no line break.
                    Matching::Assigned { value, .. } => stays_in_line(value.as_str()),
                };
            match reach {
                _ if is_in_line => {}
                Some((before, after)) if before.max(after) <= reach_max => across = across.max(before + after),
                _ if rule.keywords.is_empty() => return None,
                _ => wide.extend(rule.keywords.iter().cloned()),
            }
        }
        // A keyword over a line's end could lie in two places that are looked at apart.
        if detector.reaches().any(|(rule, _)| rule.keywords.iter().any(|word| word.contains('\n'))) {
            return None;
        }
        let wide = if wide.is_empty() {
            None
        } else {
            // There are few such keywords, and every text is searched for them: a table with a step for each byte.
            let mut builder = AhoCorasick::builder();
            builder.kind(Some(AhoCorasickKind::DFA)).ascii_case_insensitive(true);
            Some(builder.build(wide).ok()?)
        };
        Some(Self { wide, across })
    }
}

/// Whether every match of this expression lies within one line, but for one byte on either side.
fn stays_in_line(expression: &str) -> bool {
    let parser = regex_syntax::ParserBuilder::new().unicode(false).utf8(false).build().parse(expression);
    parser.is_ok_and(|hir| core_stays_in_line(&hir))
}

fn core_stays_in_line(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Capture(group) => core_stays_in_line(&group.sub),
        HirKind::Concat(parts) => {
            let is_edge = |part: &Hir| part.properties().maximum_len().is_some_and(|len| len <= 1);
            let first = usize::from(parts.first().is_some_and(is_edge));
            let last = parts.len() - usize::from(parts.len() > first && parts.last().is_some_and(is_edge));
            parts[first..last].iter().all(has_no_newline)
        }
        _ => has_no_newline(hir),
    }
}

fn has_no_newline(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => true,
        HirKind::Literal(literal) => !literal.0.contains(&b'\n'),
        HirKind::Class(Class::Bytes(class)) => {
            class.ranges().iter().all(|range| !(range.start()..=range.end()).contains(&b'\n'))
        }
        HirKind::Class(Class::Unicode(class)) => {
            class.ranges().iter().all(|range| !(range.start()..=range.end()).contains(&'\n'))
        }
        HirKind::Repetition(repetition) => has_no_newline(&repetition.sub),
        HirKind::Capture(group) => has_no_newline(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().all(has_no_newline),
    }
}

#[cfg(test)]
mod tests {
    use tessera_detect::RuleSet;

    use super::*;

    #[test]
    fn expressions_are_told_apart_by_the_lines_they_can_cross() {
        for inside in [r"\b(ghp_[0-9A-Za-z]{36})\b", r"(?:^|[^a-z])(x[0-9]{9000})(?:[^0-9]|$)", r"a[^\s]*b"] {
            assert!(stays_in_line(inside), "{inside}");
        }
        for across in [r"a\s*b", r"BEGIN[^-]*END", "a\\nb", r"(?s)a.b", r"x(?:[^a]|$)y[0-9]"] {
            assert!(!stays_in_line(across), "{across}");
        }
    }

    #[test]
    fn built_in_rules_reach_little_over_line_breaks() {
        let reaches = Reaches::of(&Detector::new(&RuleSet::builtin()).unwrap(), 256).unwrap();
        assert!(reaches.across <= 450 && reaches.wide.unwrap().is_match("-----BEGIN RSA PRIVATE KEY-----"));
    }
}
