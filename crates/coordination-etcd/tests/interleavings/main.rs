//! Two coordinators on one store, every pair of operations, every place where the second can come between the requests of
//! the first.
//!
//! A schedule names a start, two operations and a pause point: the first operation runs to the point, the second runs whole,
//! the first goes on (or its coordinator dies there). Afterwards the whole store is audited, and some order of the calls,
//! one at a time, must explain what was answered and what is left.
//!
//! ```console
//! $ cargo nextest run -p tessera-coordination-etcd --test slow_interleavings --success-output final
//! ```
//!
//! It prints how many schedules there were, in all and from each start. In the start `held`, every operation meets every other;
//! [`complete`] sees to it that they are all that the traits have.
//!
//! A failure prints its schedule, which `TESSERA_INTERLEAVING='created cold register-many@7 collect'` replays. Deeper, on
//! demand: `TESSERA_INTERLEAVINGS=two-switches` and `TESSERA_INTERLEAVINGS=three-operations`; `TESSERA_STARTS=created,held` limits
//! the starts.

// The binary's modules share what they need among themselves.
#![allow(unreachable_pub)]

mod audit;
mod calls;
mod complete;
mod contents;
mod explore;
mod judge;
mod keys;
mod player;
#[path = "../shared/roots.rs"]
mod roots;
mod starts;
mod store;

use std::collections::BTreeSet;

use explore::{Depth, Schedule, explore, replay};

/// Failures that are told in full.
const TOLD_MAX: usize = 12;

#[test]
fn every_pair_of_operations_is_explained_by_some_order_wherever_they_interleave() {
    if let Ok(schedule) = std::env::var("TESSERA_INTERLEAVING") {
        let parsed = Schedule::parse(&schedule).unwrap_or_else(|| panic!("no schedule: {schedule}"));
        replay(&parsed).unwrap_or_else(|problem| panic!("{parsed}\n{problem}"));
        return;
    }
    let depth = match std::env::var("TESSERA_INTERLEAVINGS").as_deref() {
        Err(_) => Depth::Pairs,
        Ok("every-point") => Depth::EveryPoint,
        Ok("two-switches") => Depth::TwoSwitches,
        Ok("three-operations") => Depth::ThreeOperations,
        Ok(other) => panic!("TESSERA_INTERLEAVINGS is every-point, two-switches or three-operations, not {other}"),
    };
    let starts = std::env::var("TESSERA_STARTS").ok();
    let report =
        explore(depth, |start| starts.as_ref().is_none_or(|names| names.split(',').any(|name| name == start.name)));
    println!("{} schedules: {:?}", report.schedules, report.by_start);
    if report.failures.is_empty() {
        return;
    }
    let mut pairs = BTreeSet::new();
    for (schedule, problem) in &report.failures {
        let names: Vec<&str> = schedule.operations.iter().map(|(name, _)| *name).collect();
        if pairs.insert((schedule.start.name, names)) && pairs.len() <= TOLD_MAX {
            println!("\nTESSERA_INTERLEAVING='{schedule}'\n{problem}");
        }
    }
    println!("\n{} operations interleave badly:", pairs.len());
    for (start, names) in &pairs {
        println!("  {start}: {}", names.join(" + "));
    }
    panic!("{} of {} schedules failed", report.failures.len(), report.schedules);
}
