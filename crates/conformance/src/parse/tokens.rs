//! The words of a line, and the error when one is missing.

use std::str::FromStr;

use crate::command::{LIMIT_DEFAULT, Ops};

/// The words of a line, read one by one.
pub(super) struct Tokens<'t> {
    words: Vec<&'t str>,
    at: usize,
}

impl<'t> Tokens<'t> {
    pub(super) fn new(text: &'t str) -> Result<Self, String> {
        let (mut words, mut rest) = (Vec::new(), text.trim());
        while !rest.is_empty() {
            let (word, after) = match rest.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').ok_or("a quoted text has no closing quote")?,
                None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
            };
            words.push(word);
            rest = after.trim_start();
        }
        Ok(Self { words, at: 0 })
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.words.len()
    }

    pub(super) fn is_next(&self, word: &str) -> bool {
        self.words.get(self.at) == Some(&word)
    }

    /// The next word, if it is this one.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let found = self.is_next(word);
        self.at += usize::from(found);
        found
    }

    pub(super) fn next(&mut self, what: &str) -> Result<&'t str, String> {
        let word = self.words.get(self.at).ok_or_else(|| format!("the line ends where {what} was expected"))?;
        self.at += 1;
        Ok(word)
    }

    pub(super) fn rest(&mut self) -> Vec<&'t str> {
        self.words.split_off(self.at)
    }

    pub(super) fn expect(&mut self, word: &str) -> Result<(), String> {
        let found = self.next(&format!("`{word}`"))?;
        if found == word { Ok(()) } else { Err(format!("expected `{word}`, found `{found}`")) }
    }

    pub(super) fn expect_all(&mut self, words: &[&str]) -> Result<(), String> {
        words.iter().try_for_each(|word| self.expect(word))
    }

    pub(super) fn parsed<T: FromStr<Err = String>>(&mut self, what: &str) -> Result<T, String> {
        self.next(what)?.parse()
    }

    pub(super) fn number<N: FromStr>(&mut self, what: &str) -> Result<N, String> {
        let word = self.next(what)?;
        word.parse().map_err(|_| format!("`{word}` is not {what}"))
    }

    pub(super) fn run(&mut self) -> Result<u64, String> {
        self.expect("run")?;
        self.number("the number of a run")
    }

    pub(super) fn op(&mut self) -> Result<Ops, String> {
        self.expect("op")?;
        let text = self.next("an operation id")?;
        let wrong = |_| format!("`{text}` is not an operation id; write `7`, or `7..22` to repeat the command");
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        Ok(Ops { first: first.parse().map_err(wrong)?, last: last.parse().map_err(wrong)? })
    }

    pub(super) fn limit(&mut self) -> Result<usize, String> {
        if self.take("limit") { self.number("a limit") } else { Ok(LIMIT_DEFAULT) }
    }

    pub(super) fn end(&self) -> Result<(), String> {
        match self.words.get(self.at) {
            None => Ok(()),
            Some(word) => Err(format!("`{word}` was not expected here")),
        }
    }
}
