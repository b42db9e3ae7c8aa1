//! The code that ships is the code that is simulated: the simulator names the code it must drive.

/// Code that must be simulated, and the name by which a file of the simulator uses it.
const NAMES: [(&str, &str); 5] = [
    ("the sweep machine", "tessera_scan::sweep::{WorkerConfig}"),
    ("the driver of the sweep", "tessera_scan::sweep::worker::driver::"),
    ("the findings merge", "tessera_scan::findings::{merge}"),
    ("the receipt", "tessera_scan::report::receipt::"),
    ("the lane of the DHT", "tessera_dht_node::simulated::{DhtLane}"),
];

const SIMULATOR: &str = "crates/sim/src/";

/// Names the code that no file of the simulator uses. `files` are all files with their texts.
pub(super) fn problems<'f>(files: impl Iterator<Item = (&'f str, &'f str)>) -> Vec<String> {
    let mut used = [false; NAMES.len()];
    for (_, text) in files.filter(|(name, _)| name.starts_with(SIMULATOR)) {
        for (used, (_, name)) in used.iter_mut().zip(NAMES) {
            *used |= text.lines().any(|line| uses(line, name));
        }
    }
    let unused = used.iter().zip(NAMES).filter(|(used, _)| !**used);
    unused
        .map(|(_, (what, name))| format!("{SIMULATOR}: no file uses {what} ({name}), so it is not simulated"))
        .collect()
}

/// Whether `line` imports `name`, which is a path or `path::{item}`.
fn uses(line: &str, name: &str) -> bool {
    let Some(imported) = line.trim_start().strip_prefix("use ") else { return false };
    match name.split_once('{') {
        None => imported.starts_with(name),
        Some((path, item)) => {
            let item = item.trim_end_matches('}');
            let words = |rest: &str| rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == item);
            imported.strip_prefix(path).is_some_and(words)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "use tessera_scan::findings::{Draft, FileSink, merge};\nuse tessera_scan::report::receipt::PlanAccount;\n\
        use tessera_scan::sweep::{Sharing, WorkerConfig};\nuse tessera_scan::sweep::worker::driver::Driver;\n\
        use tessera_dht_node::simulated::{Asked, DhtLane};\n";

    #[test]
    fn a_simulator_that_names_all_is_fine_and_each_name_is_needed() {
        assert_eq!(problems([("crates/sim/src/sweep/world.rs", GOOD)].into_iter()), Vec::<String>::new());
        for line in GOOD.lines() {
            let text = GOOD.replace(line, "");
            assert_eq!(problems([("crates/sim/src/a.rs", text.as_str())].into_iter()).len(), 1, "{line}");
        }
        assert_eq!(problems([("crates/scan/src/lib.rs", GOOD)].into_iter()).len(), NAMES.len());
    }

    #[test]
    fn a_comment_or_another_item_does_not_count() {
        assert!(!uses("// use tessera_scan::findings::merge;", "tessera_scan::findings::{merge}"));
        assert!(!uses("use tessera_scan::findings::merged;", "tessera_scan::findings::{merge}"));
        assert!(uses("    use tessera_scan::findings::merge;", "tessera_scan::findings::{merge}"));
    }
}
