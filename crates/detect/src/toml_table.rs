//! Reading TOML tables with errors that name the line, the rule and the field.
//!
//! Both rule formats go through here. Unknown fields are refused: a misspelt `allowlist` would otherwise silently
//! allow nothing, and a misspelt `entropy` silently report everything.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::RefCell;
use core::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{RuleError, RuleFileError};

/// Largest rule file.
pub(crate) const FILE_BYTES_MAX: usize = 4 << 20;

/// A whole file.
pub(crate) struct Document<'t> {
    text: &'t str,
    table: Spanned<DeTable<'t>>,
}

impl<'t> Document<'t> {
    pub(crate) fn parse(text: &'t str) -> Result<Self, RuleFileError> {
        if text.len() > FILE_BYTES_MAX {
            let reason = RuleError::TooMany { what: "bytes of rules", count: text.len(), count_max: FILE_BYTES_MAX };
            return Err(RuleFileError { line: None, rule: None, reason: Box::new(reason) });
        }
        let table = DeTable::parse(text).map_err(|error| RuleFileError {
            line: error.span().map(|span| line_of(text, span.start)),
            rule: None,
            reason: Box::new(RuleError::Syntax(error.message().to_string())),
        })?;
        Ok(Self { text, table })
    }

    pub(crate) fn root(&self) -> Table<'_> {
        Table { text: self.text, line: 1, rule: None, table: self.table.get_ref(), read: RefCell::new(Vec::new()) }
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + memchr::memchr_iter(b'\n', &text.as_bytes()[..offset.min(text.len())]).count()
}

/// One table, remembering which of its fields were asked for.
pub(crate) struct Table<'a> {
    text: &'a str,
    line: usize,
    rule: Option<String>,
    table: &'a DeTable<'a>,
    read: RefCell<Vec<&'static str>>,
}

impl<'a> Table<'a> {
    /// An error about this table.
    pub(crate) fn error(&self, reason: RuleError) -> RuleFileError {
        RuleFileError { line: Some(self.line), rule: self.rule.clone(), reason: Box::new(reason) }
    }

    /// Names the rule that later errors are about.
    pub(crate) fn is_about(&mut self, rule: &str) {
        self.rule = Some(rule.into());
    }

    fn get(&self, field: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.read.borrow_mut().push(field);
        // gitleaks reads `secretgroup` and `stopWords` alike, and files in the wild rely on it.
        let same = |key: &str| key.eq_ignore_ascii_case(field);
        self.table.get(field).or_else(|| self.table.iter().find(|(key, _)| same(key.get_ref())).map(|(_, value)| value))
    }

    fn wrong(&self, field: &str, expected: &'static str, value: &Spanned<DeValue<'_>>) -> RuleFileError {
        let mut error =
            self.error(RuleError::WrongType { field: field.into(), expected, found: value.get_ref().type_str() });
        error.line = Some(line_of(self.text, value.span().start));
        error
    }

    pub(crate) fn string(&self, field: &'static str) -> Result<Option<&'a str>, RuleFileError> {
        self.get(field)
            .map(|value| value.get_ref().as_str().ok_or_else(|| self.wrong(field, "a string", value)))
            .transpose()
    }

    pub(crate) fn required_string(&self, field: &'static str) -> Result<&'a str, RuleFileError> {
        self.string(field)?.ok_or_else(|| self.error(RuleError::Missing(field)))
    }

    pub(crate) fn word<T: FromStr<Err = RuleError>>(&self, field: &'static str) -> Result<Option<T>, RuleFileError> {
        self.string(field)?.map(|text| text.parse().map_err(|reason| self.error(reason))).transpose()
    }

    pub(crate) fn boolean(&self, field: &'static str) -> Result<Option<bool>, RuleFileError> {
        self.get(field)
            .map(|value| value.get_ref().as_bool().ok_or_else(|| self.wrong(field, "true or false", value)))
            .transpose()
    }

    pub(crate) fn number(&self, field: &'static str) -> Result<Option<f64>, RuleFileError> {
        self.get(field)
            .map(|value| {
                let text = match value.get_ref() {
                    DeValue::Integer(integer) => integer.as_str(),
                    DeValue::Float(float) => float.as_str(),
                    _ => return Err(self.wrong(field, "a number", value)),
                };
                let number: Option<f64> = text.parse().ok();
                number
                    .filter(|number| number.is_finite())
                    .ok_or_else(|| self.wrong(field, "a finite decimal number", value))
            })
            .transpose()
    }

    pub(crate) fn count(&self, field: &'static str) -> Result<Option<u32>, RuleFileError> {
        let Some(number) = self.number(field)? else { return Ok(None) };
        if number >= 0.0 && number <= f64::from(u32::MAX) && number % 1.0 == 0.0 {
            Ok(Some(number as u32))
        } else {
            Err(self.error(RuleError::WrongType { field: field.into(), expected: "a count", found: "another number" }))
        }
    }

    /// An array of strings; absent is empty.
    pub(crate) fn strings(&self, field: &'static str) -> Result<Vec<&'a str>, RuleFileError> {
        let Some(value) = self.get(field) else { return Ok(Vec::new()) };
        let array = value.get_ref().as_array().ok_or_else(|| self.wrong(field, "an array of strings", value))?;
        array
            .iter()
            .map(|one| one.get_ref().as_str().ok_or_else(|| self.wrong(field, "an array of strings", one)))
            .collect()
    }

    pub(crate) fn table(&self, field: &'static str) -> Result<Option<Table<'a>>, RuleFileError> {
        self.get(field)
            .map(|value| {
                let table = value.get_ref().as_table().ok_or_else(|| self.wrong(field, "a table", value))?;
                Ok(self.child(table, value))
            })
            .transpose()
    }

    /// An array of tables; absent is empty.
    pub(crate) fn tables(&self, field: &'static str) -> Result<Vec<Table<'a>>, RuleFileError> {
        let Some(value) = self.get(field) else { return Ok(Vec::new()) };
        let array = value.get_ref().as_array().ok_or_else(|| self.wrong(field, "an array of tables", value))?;
        array
            .iter()
            .map(|one| {
                let table = one.get_ref().as_table().ok_or_else(|| self.wrong(field, "an array of tables", one))?;
                Ok(self.child(table, one))
            })
            .collect()
    }

    fn child(&self, table: &'a DeTable<'a>, value: &Spanned<DeValue<'_>>) -> Table<'a> {
        let line = line_of(self.text, value.span().start);
        Table { text: self.text, line, rule: self.rule.clone(), table, read: RefCell::new(Vec::new()) }
    }

    /// Fields that nobody asked for.
    pub(crate) fn unknown_fields(&self) -> Vec<&'a str> {
        let read = self.read.borrow();
        self.table
            .keys()
            .map(|key| key.get_ref().as_ref())
            .filter(|key| !read.iter().any(|known| known.eq_ignore_ascii_case(key)))
            .collect()
    }

    /// Refuses fields that nobody asked for.
    pub(crate) fn finish(&self) -> Result<(), RuleFileError> {
        match self.unknown_fields().first() {
            None => Ok(()),
            Some(field) => Err(self.error(RuleError::UnknownField((*field).into()))),
        }
    }
}
