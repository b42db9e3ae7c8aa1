//! Answers as text: a verdict and the facts that go with it, separated by commas.
//!
//! An answer states everything it knows (`granted, shard 1, fence 2, until 11, cursor none, ...`). A story states what it
//! is about: its first clause is the verdict and must be the same; each further clause must be one of the answer's. The
//! differential test compares whole answers.

use std::fmt;

/// One line: the verdict, then facts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Line {
    clauses: Vec<String>,
}

impl Line {
    pub(crate) fn new(verdict: impl fmt::Display) -> Self {
        Self { clauses: vec![verdict.to_string()] }
    }

    pub(crate) fn refused(reason: impl fmt::Display) -> Self {
        Self::new(format_args!("refused: {reason}"))
    }

    pub(crate) fn fact(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.clauses.push(format!("{name} {value}"));
        self
    }

    pub(crate) fn optional(self, name: &str, value: Option<impl fmt::Display>) -> Self {
        match value {
            Some(value) => self.fact(name, value),
            None => self.fact(name, "none"),
        }
    }

    pub(crate) fn list(self, name: &str, values: impl IntoIterator<Item = impl fmt::Display>) -> Self {
        let values: Vec<_> = values.into_iter().map(|value| value.to_string()).collect();
        self.optional(name, (!values.is_empty()).then(|| values.join(" ")))
    }

    pub(crate) fn verdict(&self) -> &str {
        &self.clauses[0]
    }

    /// The fact with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.clauses[1..].iter().find_map(|clause| clause.strip_prefix(name)?.strip_prefix(' '))
    }

    pub(crate) fn is_refusal(&self) -> bool {
        self.verdict().starts_with("refused: ")
    }

    /// The first clause of `expected` that this line lacks.
    pub(crate) fn mismatch(&self, expected: &str) -> Option<String> {
        let mut clauses = split_clauses(expected).into_iter();
        let verdict = clauses.next().unwrap_or_default();
        if verdict != self.verdict() {
            return Some(format!("expected `{verdict}`"));
        }
        clauses
            .find(|clause| !self.clauses.iter().any(|known| known == clause))
            .map(|clause| format!("expected `{clause}`"))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.clauses.join(", "))
    }
}

/// Commas followed by a blank separate clauses, unless they are quoted; so a range needs no quoting.
fn split_clauses(text: &str) -> Vec<String> {
    let (mut clauses, mut clause, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(next) = chars.next() {
        quoted ^= next == '"';
        if next == ',' && !quoted && chars.peek().is_none_or(|after| after.is_whitespace()) {
            clauses.push(std::mem::take(&mut clause));
        } else {
            clause.push(next);
        }
    }
    clauses.push(clause);
    clauses.iter().map(|clause| clause.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The answer to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    /// The verdict and its facts.
    pub(crate) line: Line,
    /// The rows below it, if the command lists something.
    pub(crate) rows: Vec<Line>,
    /// The events it emitted.
    pub(crate) events: Vec<Line>,
}

impl From<Line> for Answer {
    fn from(line: Line) -> Self {
        Self { line, rows: Vec::new(), events: Vec::new() }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.line)?;
        self.rows.iter().try_for_each(|row| write!(f, "\n    | {row}"))?;
        self.events.iter().try_for_each(|event| write!(f, "\n    ! {event}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_must_be_the_same_and_each_fact_must_be_there() {
        let line = Line::new("granted").fact("fence", 2).fact("range", "[a,m)").fact("detail", "\"x, y\"");
        assert_eq!(line.mismatch("granted"), None);
        assert_eq!(line.mismatch("granted, range [a,m),   fence 2"), None);
        assert_eq!(line.mismatch("granted, detail \"x, y\""), None);
        assert_eq!(line.mismatch("granted, fence 3").as_deref(), Some("expected `fence 3`"));
        assert_eq!(line.mismatch("refused: expired").as_deref(), Some("expected `refused: expired`"));
        assert_eq!(line.mismatch("fence 2").as_deref(), Some("expected `fence 2`"));
    }
}
