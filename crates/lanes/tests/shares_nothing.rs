//! Lanes share no lock and no table: nothing that a lane runs can even name one.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::path::{Path, PathBuf};

/// Types that would let two threads meet. Rings are `rtrb`'s and the words between them are atomics, in `ring/` and `telemetry/`.
const SHARING: [&str; 9] =
    ["Mutex", "RwLock", "Condvar", "OnceLock", "LazyLock", "OnceCell", "static mut", "thread_local", "Rc<"];
/// Where the outside, the supervisors and the observer meet. Lanes do not see it.
const OUTSIDE: [&str; 3] = ["runtime/shared.rs", "runtime/supervisor_thread.rs", "runtime/thread_pool.rs"];
/// Counters that are made when a lane first counts. The lane alone writes and readers only look, so no thread ever waits for it.
const MADE_ONCE: ([&str; 2], &str) = (["telemetry/counters.rs", "telemetry/histogram.rs"], "OnceLock");
/// The disk of a simulation, shared by the lanes of one thread.
const SIMULATED: [&str; 2] = ["wal/faulty.rs", "simulated.rs"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn nothing_a_lane_runs_names_a_lock_or_a_global() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 35, "the sources are where they are looked for: {}", files.len());
    let mut outside_uses_one = false;
    for path in files {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        // Unit tests come last and may do as they like.
        let code = source.split("#[cfg(test)]").next().unwrap();
        let allowed = |word: &str| MADE_ONCE.0.contains(&name.as_str()) && word == MADE_ONCE.1;
        let used: Vec<&str> = SHARING.into_iter().filter(|word| code.contains(word) && !allowed(word)).collect();
        if OUTSIDE.contains(&name.as_str()) {
            outside_uses_one |= !used.is_empty();
        } else if !SIMULATED.contains(&name.as_str()) {
            assert!(used.is_empty(), "{name} names {used:?}: lanes talk by messages alone");
        }
    }
    assert!(outside_uses_one, "the search would find one");
}
