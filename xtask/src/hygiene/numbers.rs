//! A number has one home, in the code. A document that repeats it says where that is, and is held to it:
//!
//! ```text
//! keys have up to `4096` bytes <!-- = crates/contracts/src/limits.rs KEY_BYTES_MAX -->
//! ```
//!
//! The number is the last backquoted text before the mark; its home is `const NAME: … = …;` or `name = …` in the file.

use crate::repo::Repo;

const OPEN: &str = "<!-- = ";

pub(super) fn problems(repo: &Repo, name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (start, _) in line.match_indices(OPEN) {
            if line[..start].matches('`').count() % 2 == 1 {
                continue; // The mark itself is quoted: the document explains it.
            }
            let at = format!("{name}:{}", index + 1);
            let said = line[..start].rsplit('`').nth(1).unwrap_or_default();
            let mark = line[start + OPEN.len()..].split("-->").next().unwrap_or_default();
            let Some((file, constant)) = mark.trim().split_once(' ') else {
                problems.push(format!("{at}: a mark is `{OPEN}FILE NAME -->`"));
                continue;
            };
            match repo.read(file).ok().and_then(|source| value_of(&source, constant.trim())) {
                None => problems.push(format!("{at}: {file} defines no {constant}")),
                Some(value) if plain(&value) != plain(said) => {
                    problems.push(format!("{at}: the document says {said}, {file} says {constant} = {value}"));
                }
                Some(_) => {}
            }
        }
    }
    problems
}

fn value_of(source: &str, constant: &str) -> Option<String> {
    source.lines().find_map(|line| {
        let line = line.trim();
        let (left, right) = line.split_once('=')?;
        let named = left.split(':').next()?.split_whitespace().next_back()?;
        (named == constant)
            .then(|| right.split("//").next().unwrap_or_default().trim().trim_end_matches(';').to_string())
    })
}

fn plain(value: &str) -> String {
    value.chars().filter(|c| !matches!(c, '_' | ',' | '"' | ' ')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_and_keys_are_found_with_their_value() {
        assert_eq!(
            value_of("    pub const KEY_BYTES_MAX: usize = 4_096; // why\n", "KEY_BYTES_MAX").as_deref(),
            Some("4_096")
        );
        assert_eq!(value_of("rust-version = \"1.95\"\n", "rust-version").as_deref(), Some("\"1.95\""));
        assert_eq!(value_of("const OTHER: u8 = 1;\n", "KEY_BYTES_MAX"), None);
    }

    #[test]
    fn separators_do_not_make_numbers_differ() {
        assert_eq!(plain("4,096"), plain("4_096"));
        assert_ne!(plain("4,096"), plain("4095"));
    }
}
