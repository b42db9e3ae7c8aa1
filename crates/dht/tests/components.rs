//! The shape of a lane's components: few fields each, so that one that grows into another's work is noticed.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

use std::fs;
use std::path::{Path, PathBuf};

const FIELDS_MAX: usize = 12;

/// What is no component: settings and counters.
const LISTS: [&str; 2] = ["NodeConfig", "Counters"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// The structs of a source formatted by rustfmt, with the number of their fields.
fn structs(source: &str) -> Vec<(String, usize)> {
    let product = source.split("#[cfg(test)]\nmod tests").next().unwrap();
    let mut found = Vec::new();
    let mut open: Option<(String, usize)> = None;
    for line in product.lines() {
        let inner = line.trim_start();
        let is_field = line.len() == inner.len() + 4 && !inner.starts_with(['/', '#', '}', ')']);
        match &mut open {
            Some(_) if line == "}" => found.extend(open.take()),
            Some((_, fields)) => *fields += usize::from(is_field && line.contains(": ")),
            None => {
                let name = line.split("struct ").nth(1).filter(|rest| !line.starts_with("//") && rest.ends_with('{'));
                open = name.map(|rest| (rest.split(['<', ' ']).next().unwrap().to_owned(), 0));
            }
        }
    }
    found
}

#[test]
fn no_component_of_a_lane_has_more_than_twelve_fields() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/node"), &mut files);
    let found: Vec<_> = files.iter().flat_map(|file| structs(&fs::read_to_string(file).unwrap())).collect();
    for known in ["LaneNode", "Router", "Peers", "Operations", "Server", "Republishing", "Membership", "Operation"] {
        assert!(found.iter().any(|(name, fields)| name == known && *fields > 0), "{known} is not seen: {found:?}");
    }
    let large: Vec<_> =
        found.iter().filter(|(name, fields)| *fields > FIELDS_MAX && !LISTS.contains(&name.as_str())).collect();
    assert!(large.is_empty(), "{large:?}");
}
