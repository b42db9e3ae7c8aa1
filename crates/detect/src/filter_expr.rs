//! The `filter` and `prefilter` expressions of betterleaks, as allowlists.
//!
//! betterleaks, the successor of gitleaks, writes allowlists as expressions in the language Expr; a finding is discarded, or a
//! source skipped, if its expression is true. Nearly all that are written are disjunctions of conjunctions of four tests:
//!
//! ```text
//! entropy(finding["secret"]) <= 3.5 || matchesAny(get(attributes, "path", ""), [`_test[.]go$`])
//! ```
//!
//! Each conjunction is an allowlist of ours, and an entropy that stands alone is a rule's least entropy. Expressions with
//! anything else (bindings, negations, other functions) are refused whole; the caller warns of them and reports more, never less.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::allow::{Allowlist, Condition, Target};
use crate::error::RuleError;
use crate::pattern::Pattern;

/// What an expression asks for.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Filter {
    /// Secrets with less entropy are discarded.
    pub(crate) entropy_min: Option<f32>,
    pub(crate) allowlists: Vec<Allowlist>,
}

/// Reads an expression; `admit` compiles its regular expressions.
///
/// # Errors
/// If it has a part that no allowlist can say.
pub(crate) fn read(text: &str, admit: fn(&str) -> Result<Pattern, RuleError>) -> Result<Filter, String> {
    let tokens = tokens_of(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0 };
    let alternatives = parser.or()?;
    if parser.at < tokens.len() {
        return Err(alloc::format!("unexpected {}", parser.seen()));
    }
    let mut filter = Filter::default();
    for tests in alternatives {
        if let [Test::Entropy(least)] = tests.as_slice() {
            filter.entropy_min = Some(filter.entropy_min.map_or(*least, |known: f32| known.max(*least)));
            continue;
        }
        filter.allowlists.push(allowlist_of(tests, admit)?);
    }
    Ok(filter)
}

fn allowlist_of(tests: Vec<Test>, admit: fn(&str) -> Result<Pattern, RuleError>) -> Result<Allowlist, String> {
    let admitted = |texts: Vec<String>| -> Result<Vec<Pattern>, String> {
        texts.iter().map(|text| admit(text).map_err(|error| error.to_string())).collect()
    };
    let mut list = Allowlist { condition: Condition::All, ..Allowlist::default() };
    for test in tests {
        let twice = || "two tests of one kind are joined by &&".to_string();
        match test {
            Test::Path(texts) if list.paths.is_empty() => list.paths = admitted(texts)?,
            Test::Matches(target, texts) if list.regexes.is_empty() => {
                (list.target, list.regexes) = (target, admitted(texts)?);
            }
            Test::Contains(words) if list.stopwords.is_empty() => {
                list.stopwords = words.iter().map(|word| word.to_ascii_lowercase()).collect();
            }
            Test::Entropy(_) => return Err("an entropy is joined to other tests by &&".into()),
            _ => return Err(twice()),
        }
    }
    list.validate().map_err(|error| error.to_string())?;
    Ok(list)
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    Entropy(f32),
    Path(Vec<String>),
    Matches(Target, Vec<String>),
    Contains(Vec<String>),
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Number(f32),
    Sign(&'static str),
}

const SIGNS: &[&str] = &["||", "&&", "??", "<=", "<", "(", ")", "[", "]", ","];

fn tokens_of(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let used = if let Some(comment) = rest.strip_prefix("//") {
            2 + comment.find('\n').unwrap_or(comment.len())
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            tokens.push(Token::Sign(sign));
            sign.len()
        } else if matches!(first, '`' | '"' | '\'') {
            let (literal, used) = literal(rest, first)?;
            tokens.push(Token::Text(literal));
            used
        } else if first.is_ascii_digit() {
            let used = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            tokens.push(Token::Number(
                rest[..used].parse().map_err(|_| alloc::format!("{:?} is no number", &rest[..used]))?,
            ));
            used
        } else if first.is_ascii_alphabetic() {
            let used = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '_').unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..used].into()));
            used
        } else {
            return Err(alloc::format!("{first:?} is not understood"));
        };
        rest = rest[used..].trim_start();
    }
    Ok(tokens)
}

/// A text in quotes, and how many bytes it takes; a raw one stands in back quotes.
fn literal(text: &str, quote: char) -> Result<(String, usize), String> {
    let mut out = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            _ if c == quote => return Ok((out, at + 1)),
            '\\' if quote != '`' => match chars.next() {
                Some((_, 'n')) => out.push('\n'),
                Some((_, 't')) => out.push('\t'),
                Some((_, other)) => out.push(other),
                None => break,
            },
            _ => out.push(c),
        }
    }
    Err("a text is not closed".into())
}

struct Parser<'t> {
    tokens: &'t [Token],
    at: usize,
}

impl Parser<'_> {
    /// Alternatives, each a list of tests that must all hold.
    fn or(&mut self) -> Result<Vec<Vec<Test>>, String> {
        let mut all = self.and()?;
        while self.take(&Token::Sign("||")) {
            all.extend(self.and()?);
        }
        Ok(all)
    }

    fn and(&mut self) -> Result<Vec<Vec<Test>>, String> {
        let mut all = self.one()?;
        while self.take(&Token::Sign("&&")) {
            let right = self.one()?;
            all = all.iter().flat_map(|left| right.iter().map(|right| [left.as_slice(), right].concat())).collect();
        }
        Ok(all)
    }

    fn one(&mut self) -> Result<Vec<Vec<Test>>, String> {
        if self.take(&Token::Sign("(")) {
            let inner = self.or()?;
            self.expect(")")?;
            return Ok(inner);
        }
        let name = self.word()?;
        let name = name.strip_prefix("filter.").unwrap_or(&name).to_string();
        self.expect("(")?;
        let subject = self.subject()?;
        let test = match (name.as_str(), subject.as_str()) {
            ("entropy", "secret") => {
                self.expect(")")?;
                let inclusive = self.take(&Token::Sign("<="));
                if !inclusive {
                    self.expect("<")?;
                }
                let Some(Token::Number(bits)) = self.tokens.get(self.at) else {
                    return Err("an entropy has no bound".into());
                };
                self.at += 1;
                return Ok(alloc::vec![alloc::vec![Test::Entropy(if inclusive { bits.next_up() } else { *bits })]]);
            }
            ("matchesAny", "path") => Test::Path(self.list()?),
            ("matchesAny", "secret") => Test::Matches(Target::Secret, self.list()?),
            ("matchesAny", "match") => Test::Matches(Target::Match, self.list()?),
            ("matchesAny", "line") => Test::Matches(Target::Line, self.list()?),
            ("containsAny", "secret") => Test::Contains(self.list()?),
            _ => return Err(alloc::format!("{name} of {subject:?} is not understood")),
        };
        self.expect(")")?;
        Ok(alloc::vec![alloc::vec![test]])
    }

    /// `finding["secret"]`, `get(attributes, "path", "")`, `(attributes["path"] ?? "")`.
    fn subject(&mut self) -> Result<String, String> {
        if self.take(&Token::Sign("(")) {
            let subject = self.subject()?;
            self.expect(")")?;
            return Ok(subject);
        }
        let map = self.word()?;
        let name = match map.as_str() {
            "get" => {
                self.expect("(")?;
                let _map = self.word()?;
                self.expect(",")?;
                let name = self.text()?;
                if self.take(&Token::Sign(",")) {
                    self.text()?;
                }
                self.expect(")")?;
                name
            }
            "finding" | "attributes" => {
                self.expect("[")?;
                let name = self.text()?;
                self.expect("]")?;
                if self.take(&Token::Sign("??")) {
                    self.text()?;
                }
                name
            }
            _ => return Err(alloc::format!("{map} is not understood")),
        };
        Ok(name)
    }

    fn list(&mut self) -> Result<Vec<String>, String> {
        self.expect(",")?;
        self.expect("[")?;
        let mut texts = Vec::new();
        while !self.take(&Token::Sign("]")) {
            texts.push(self.text()?);
            if !self.take(&Token::Sign(",")) {
                self.expect("]")?;
                break;
            }
        }
        Ok(texts)
    }

    fn take(&mut self, token: &Token) -> bool {
        let is_next = self.tokens.get(self.at) == Some(token);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, sign: &'static str) -> Result<(), String> {
        if self.take(&Token::Sign(sign)) {
            Ok(())
        } else {
            Err(alloc::format!("{sign:?} is missing before {}", self.seen()))
        }
    }

    fn word(&mut self) -> Result<String, String> {
        let Some(Token::Word(word)) = self.tokens.get(self.at) else {
            return Err(alloc::format!("a name is missing before {}", self.seen()));
        };
        self.at += 1;
        Ok(word.clone())
    }

    fn text(&mut self) -> Result<String, String> {
        let Some(Token::Text(text)) = self.tokens.get(self.at) else {
            return Err(alloc::format!("a text is missing before {}", self.seen()));
        };
        self.at += 1;
        Ok(text.clone())
    }

    fn seen(&self) -> String {
        self.tokens.get(self.at).map_or_else(|| "the end".into(), |token| alloc::format!("{token:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> Result<Filter, String> {
        read(text, Pattern::searchable)
    }

    #[test]
    fn entropies_become_bounds() {
        assert_eq!(filter("entropy(finding[\"secret\"]) < 3.5").unwrap().entropy_min, Some(3.5));
        assert!(filter("filter.entropy(finding[\"secret\"]) <= 3.0").unwrap().entropy_min.unwrap() > 3.0);
    }

    #[test]
    fn alternatives_become_allowlists_and_conjunctions_one_that_asks_for_all() {
        let text = r#"
            // generated
            matchesAny(finding["line"], [`a+`, "b"]) ||
            (containsAny(finding["secret"], ["MOCK"]) && filter.matchesAny(get(attributes, "path", ""), [`^t/`]))
            || matchesAny((attributes["path"] ?? ""), [`x$`,])"#;
        let lists = filter(text).unwrap().allowlists;
        assert_eq!(lists.len(), 3);
        assert_eq!((lists[0].target, lists[0].regexes.len()), (Target::Line, 2));
        assert_eq!((lists[1].stopwords.as_slice(), lists[1].paths.len()), (["mock".to_string()].as_slice(), 1));
        assert_eq!(lists[2].paths[0].as_str(), "x$");
        let spread = filter(
            r#"containsAny(finding["secret"], ["a"]) && (matchesAny(finding["match"], ["b"]) || matchesAny(finding["line"], ["c"]))"#,
        );
        assert_eq!(spread.unwrap().allowlists.len(), 2);
    }

    #[test]
    fn what_no_allowlist_can_say_is_refused_with_the_reason() {
        for (text, reason) in [
            ("let x = 1; true", "not understood"),
            ("!matchesAny(finding[\"secret\"], [`a`])", "not understood"),
            ("failsTokenEfficiency(finding[\"secret\"])", "failsTokenEfficiency"),
            ("entropy(finding[\"secret\"]) < 3 && containsAny(finding[\"secret\"], [\"a\"])", "&&"),
            ("matchesAny(finding[\"secret\"], [`(`])", "unclosed"),
            ("entropy(finding[\"secret\"])", "missing"),
        ] {
            let error = filter(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
