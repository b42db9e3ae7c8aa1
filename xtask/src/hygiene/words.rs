//! Words that hide who acts, and names that a term of the field has replaced.
//!
//! The words looked for are written in two halves here, so that this file does not find itself.

/// Words that stay out, and what to write instead.
const WORDS: &[(&str, &str)] = &[
    (concat!("who", "ever"), "name the subject: the caller, a worker, the user"),
    (concat!("whom", "ever"), "name the subject: the caller, a worker, the user"),
    (concat!("some", "body"), "name the subject: another worker, a node, a process"),
    (concat!("lie_", "down"), "say what happens: stop, pause"),
];

pub(super) fn problems(name: &str, text: &str) -> Vec<String> {
    if ![".rs", ".md", ".tla", ".toml"].iter().any(|end| name.ends_with(end)) {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.to_ascii_lowercase();
        let words = || line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        for (word, instead) in WORDS.iter().filter(|(word, _)| words().any(|found| found == *word)) {
            problems.push(format!("{name}:{}: `{word}` ({instead})", index + 1));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_found_whole_in_code_and_documents_and_named_by_line() {
        for (word, _) in WORDS {
            let text = format!("fn f() {{}}\n// {}, it waits", word.to_uppercase());
            for name in ["a.rs", "a.md"] {
                let found = problems(name, &text);
                assert!(found.len() == 1 && found[0].starts_with(&format!("{name}:2:")), "{found:?}");
            }
            assert!(problems("a.rs", &format!("un{word}s")).is_empty());
            assert!(problems("a.png", &text).is_empty());
        }
    }
}
