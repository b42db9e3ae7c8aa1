//! A newcomer sees the system in the crate map, so the map has every crate.

use crate::repo::Repo;

const MAPS: [&str; 2] = ["README.md", "ARCHITECTURE.md"];

/// Names the maps that leave `krate` out. (A map that names a crate too many is caught as a dead path.)
pub(super) fn problems(repo: &Repo, krate: &str) -> Vec<String> {
    let missing = MAPS.iter().filter(|map| !repo.read(map).is_ok_and(|text| names(&text, krate)));
    missing.map(|map| format!("{map}: the crate map has no row for `crates/{krate}`")).collect()
}

fn names(map: &str, krate: &str) -> bool {
    map.lines().any(|line| line.starts_with(&format!("| `crates/{krate}` |")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_another_crate_does_not_count() {
        let map = "| `crates/dht-node` | shell | speaks of `crates/dht` |\n";
        assert!(names(map, "dht-node"));
        assert!(!names(map, "dht"));
    }
}
