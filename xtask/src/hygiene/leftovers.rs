//! Marks of unfinished work, and paths that exist on one machine only.
//!
//! The words looked for are written in two halves here, so that this file does not find itself.

/// Leftovers that must not stay, and why.
const MARKS: &[(&str, &str)] = &[
    (concat!("todo", "!("), "unfinished"),
    (concat!("unimplemented", "!("), "unfinished"),
    (concat!("dbg", "!("), "left from debugging"),
    (concat!("FIX", "ME"), "mend it or describe the limit"),
    (concat!("XX", "X:"), "mend it or describe the limit"),
    (concat!("#[", "ignore"), "a test that never runs proves nothing"),
    (concat!("allow(dead", "_code)"), "code without a caller"),
];

/// First folders of absolute paths that belong to one person or one machine.
const MACHINE_FOLDERS: &[&str] = &["root", "home", "Users", "work", "farm", "builds", "runner"];

/// Placeholder names for examples and test data.
const EXAMPLE_USERS: &[&str] = &["alice", "bob", "user", "you", "me"];

pub(super) fn problems(name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let at = format!("{name}:{}", index + 1);
        if name.ends_with(".rs") {
            for (mark, why) in MARKS.iter().filter(|(mark, _)| line.contains(mark)) {
                problems.push(format!("{at}: `{mark}` ({why})"));
            }
        }
        if let Some(path) = machine_path(line) {
            problems.push(format!("{at}: `{path}` is a path of one machine"));
        }
    }
    problems
}

/// The first absolute path in the line that starts in a folder of one machine.
fn machine_path(line: &str) -> Option<String> {
    for (start, _) in line.match_indices('/') {
        let before = line[..start].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || "._-/}>*~$".contains(c)) {
            continue; // The middle of a relative path, a URL or a pattern.
        }
        let path: String = line[start..].chars().take_while(|c| c.is_alphanumeric() || "/._-".contains(*c)).collect();
        let mut parts = path.split('/').skip(1);
        let (Some(folder), Some(next)) = (parts.next(), parts.next()) else { continue };
        if MACHINE_FOLDERS.contains(&folder) && !next.is_empty() && !EXAMPLE_USERS.contains(&next) {
            return Some(path);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_found_in_code_and_named_by_line() {
        for (mark, _) in MARKS {
            let found = problems("a.rs", &format!("fn f() {{}}\n{mark}"));
            assert_eq!(found.len(), 1, "{mark}");
            assert!(found[0].starts_with("a.rs:2:"), "{found:?}");
            assert!(problems("a.md", mark).is_empty(), "a document may speak of {mark}");
        }
    }

    #[test]
    fn absolute_paths_of_one_machine_are_found() {
        for folder in MACHINE_FOLDERS {
            assert!(machine_path(&format!("see \"/{folder}/someone/x\" there")).is_some(), "{folder}");
        }
    }

    #[test]
    fn relative_paths_urls_and_example_homes_are_not() {
        for line in
            ["crates/work/src", "https://x.example/root/a", "/home/alice/src", "a / root / b", "/rootless/x", "/work/"]
        {
            assert_eq!(machine_path(line), None, "{line}");
        }
    }
}
