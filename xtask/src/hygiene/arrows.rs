//! The workspace is the diagram: arrows between crates go one way, values <- pure <- shell <- cli.
//!
//! Test crates see everything and nothing ships with them: only `[dev-dependencies]` may name one. A pure crate is
//! `no_std`, so that a clock, a socket or a thread cannot even be named in it.

use crate::repo::Repo;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Layer {
    Values,
    Pure,
    Shell,
    Cli,
    Tests,
}

/// Every crate and its layer. A new crate starts by saying what it is.
const LAYERS: &[(&str, Layer)] = &[
    ("stdx", Layer::Values),
    ("contracts", Layer::Values),
    ("coordination", Layer::Pure),
    ("dht", Layer::Pure),
    ("detect", Layer::Pure),
    ("coordination-etcd", Layer::Shell),
    ("coordination-local", Layer::Shell),
    ("git-objects", Layer::Shell),
    ("lanes", Layer::Shell),
    ("dht-node", Layer::Shell),
    ("scan", Layer::Shell),
    ("cli", Layer::Cli),
    ("alloc-counter", Layer::Tests),
    ("conformance", Layer::Tests),
    ("sim", Layer::Tests),
    ("test-support", Layer::Tests),
];

pub(super) fn problems(repo: &Repo, krate: &str, manifest: &str) -> Vec<String> {
    let Some(layer) = layer_of(krate) else {
        return vec![format!(
            "crates/{krate}: say its layer in xtask/src/hygiene/arrows.rs (values, pure, shell or tests)"
        )];
    };
    let mut problems = wrong_arrows(krate, layer, manifest);
    if layer <= Layer::Pure {
        let lib = repo.read(&format!("crates/{krate}/src/lib.rs")).unwrap_or_default();
        if !lib.lines().any(|line| line.trim_start().starts_with("#![") && line.contains("no_std")) {
            problems.push(format!("crates/{krate}/src/lib.rs: a pure crate is #![no_std]"));
        }
    }
    problems
}

fn wrong_arrows(krate: &str, layer: Layer, manifest: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for other in dependencies(manifest) {
        match layer_of(&other) {
            None => problems.push(format!("crates/{krate}/Cargo.toml: tessera-{other} is no crate of this workspace")),
            Some(seen) if seen > layer || seen == Layer::Tests && layer != Layer::Tests => problems
                .push(format!("crates/{krate}/Cargo.toml: {krate} ({layer:?}) must not depend on {other} ({seen:?})")),
            Some(_) => {}
        }
    }
    problems
}

fn layer_of(krate: &str) -> Option<Layer> {
    LAYERS.iter().find(|(name, _)| *name == krate).map(|(_, layer)| *layer)
}

/// The `tessera-*` crates below `[dependencies]`, also those of one target only.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            let section = line.trim_matches(['[', ']']);
            inside = section == "dependencies" || section.starts_with("target.") && section.ends_with(".dependencies");
        } else if inside && let Some(rest) = line.strip_prefix("tessera-") {
            found.push(rest.split(|c: char| !c.is_alphanumeric() && c != '-').next().unwrap_or_default().to_string());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_point_to_lower_or_equal_layers_only() {
        let down = "[dependencies]\ntessera-contracts.workspace = true\n";
        let up = "[dependencies]\ntessera-scan = { workspace = true }\n";
        assert!(wrong_arrows("coordination", Layer::Pure, down).is_empty());
        assert_eq!(wrong_arrows("coordination", Layer::Pure, up).len(), 1);
    }

    #[test]
    fn a_test_crate_may_be_seen_by_tests_alone() {
        let ships = "[dependencies]\ntessera-conformance.workspace = true\n";
        let tests = "[dev-dependencies]\ntessera-conformance.workspace = true\n";
        assert_eq!(wrong_arrows("coordination", Layer::Pure, ships).len(), 1);
        assert!(wrong_arrows("coordination", Layer::Pure, tests).is_empty());
    }

    #[test]
    fn a_dependency_of_one_target_counts() {
        let manifest = "[target.'cfg(unix)'.dependencies]\ntessera-lanes.workspace = true\n";
        assert_eq!(dependencies(manifest), ["lanes"]);
    }
}
