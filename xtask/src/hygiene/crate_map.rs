//! A newcomer sees the system in the crate map, so the map has every crate.

use crate::repo::Repo;

const MAP: &str = "ARCHITECTURE.md";

/// Tells whether the map leaves `krate` out. (A map that names a crate too many is caught as a dead path.)
pub(super) fn problem(repo: &Repo, krate: &str) -> Option<String> {
    let is_named = repo.read(MAP).is_ok_and(|text| names(&text, krate));
    (!is_named).then(|| format!("{MAP}: the crate map has no row for `crates/{krate}`"))
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
