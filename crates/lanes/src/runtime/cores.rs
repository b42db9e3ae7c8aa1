//! Which cores lanes get: one thread of each physical core first, because two lanes on one core share its caches and units.

use std::collections::BTreeSet;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The cores this process may use, in the order lanes get them.
pub(super) fn allowed() -> Vec<usize> {
    let (first, second) = by_physical_core(&in_affinity(), siblings);
    [first, second].concat()
}

/// How many lanes have a physical core each: fewer than that if the process may not use so much time.
pub(super) fn lanes_by_default() -> usize {
    let parallelism = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let physical = by_physical_core(&in_affinity(), siblings).0.len();
    if physical == 0 { parallelism } else { physical.min(parallelism) }.min(256)
}

fn in_affinity() -> Vec<usize> {
    let set = sched_getaffinity(None);
    set.map(|set| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()).unwrap_or_default()
}

/// Splits `cores` into the first thread of each physical core and the others. `siblings` names all threads of a core's core.
fn by_physical_core(cores: &[usize], siblings: impl Fn(usize) -> Option<String>) -> (Vec<usize>, Vec<usize>) {
    let mut seen = BTreeSet::new();
    // A core about which nothing is known counts as one of its own.
    cores.iter().partition(|core| siblings(**core).is_none_or(|siblings| seen.insert(siblings)))
}

fn siblings(core: usize) -> Option<String> {
    std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_physical_core_gives_one_lane_before_any_gives_two() {
        // Four cores with two threads each, numbered as usual: n and n + 4.
        let siblings = |core: usize| Some(format!("{},{}", core % 4, core % 4 + 4));
        assert_eq!(by_physical_core(&[0, 1, 2, 3, 4, 5, 6, 7], siblings), (vec![0, 1, 2, 3], vec![4, 5, 6, 7]));
        assert_eq!(by_physical_core(&[1, 5, 6], siblings), (vec![1, 6], vec![5]), "of those that may be used");
        assert_eq!(by_physical_core(&[3, 9], |_| None), (vec![3, 9], vec![]), "where the system does not say");
    }

    #[test]
    fn every_allowed_core_is_there_once() {
        let mut cores = allowed();
        cores.sort_unstable();
        let set = sched_getaffinity(None).unwrap();
        assert!(cores.iter().copied().eq((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core))));
        assert!((1..=cores.len()).contains(&lanes_by_default()));
    }
}
