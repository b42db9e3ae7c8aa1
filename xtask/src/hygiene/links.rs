//! Links between documents, and repository paths that documents name in backquotes.

use std::path::{Component, Path, PathBuf};

use crate::repo::Repo;

/// Folders a backquoted path must start with to be taken for one of ours.
const OUR_FOLDERS: &[&str] =
    &["crates/", "docs/", "xtask/", "bench/", "fuzz/", "specs/", ".ci/", ".cargo/", ".config/"];

pub(super) fn problems(repo: &Repo, name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        let at = format!("{name}:{}", index + 1);
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for target in link_targets(line) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue; // The network may be absent; a check must not depend on it.
            }
            let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
            let file = if path.is_empty() { PathBuf::from(name) } else { beside(name, path) };
            if !repo.root.join(&file).exists() {
                problems.push(format!("{at}: the link to {target} leads nowhere"));
            } else if let Some(anchor) = anchor {
                let other = repo.read(&file.to_string_lossy()).unwrap_or_default();
                if !other.lines().filter_map(heading).any(|heading| slug(heading) == anchor) {
                    problems.push(format!("{at}: {} has no heading for #{anchor}", file.display()));
                }
            }
        }
        for path in line.split('`').skip(1).step_by(2).filter(|word| is_our_path(word)) {
            let file = path.split("::").next().unwrap_or(path);
            if !repo.root.join(file).exists() {
                problems.push(format!("{at}: `{path}` does not exist"));
            }
        }
    }
    problems
}

/// The targets of `[text](target)` in a line.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(|(start, _)| line[start + 2..].split_once(')').map(|(target, _)| target.trim()))
}

/// A whole path of ours: no pattern, no space, no part left open.
fn is_our_path(word: &str) -> bool {
    OUR_FOLDERS.iter().any(|folder| word.starts_with(folder)) && !word.contains(['*', ' ', '<', '{', '…'])
}

fn beside(name: &str, path: &str) -> PathBuf {
    let mut whole = Path::new(name).parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => {
                whole.pop();
            }
            Component::CurDir => {}
            other => whole.push(other),
        }
    }
    whole
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    (text.len() < line.len()).then(|| text.trim())
}

/// How GitHub turns a heading into an anchor.
fn slug(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_all_links_of_a_line_are_found() {
        assert_eq!(link_targets("see [a](x.md) and [b](y.md#z).").collect::<Vec<_>>(), ["x.md", "y.md#z"]);
    }

    #[test]
    fn a_link_is_read_from_the_folder_of_its_document() {
        assert_eq!(beside("docs/a.md", "../README.md"), Path::new("README.md"));
        assert_eq!(beside("docs/a.md", "b.md"), Path::new("docs/b.md"));
    }

    #[test]
    fn headings_become_anchors() {
        assert_eq!(heading("## Time, and randomness").map(slug).as_deref(), Some("time-and-randomness"));
        assert_eq!(heading("no heading"), None);
    }

    #[test]
    fn patterns_are_not_taken_for_paths() {
        assert!(is_our_path("crates/stdx/src/lib.rs"));
        assert!(!is_our_path("crates/*/Cargo.toml"));
        assert!(!is_our_path("cargo xtask check"));
    }
}
