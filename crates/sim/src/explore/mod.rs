//! Every state of a small world, reached through the decision functions that ship.
//!
//! The worlds are those of `specs/coordination`: the same workers, requests, result store and clocks, with the same bounds
//! read from the same configuration files. Where the model says what a step *should* do, a step here asks the real code.
//! Both then count distinct states. Equal counts are strong evidence that model and code describe the same protocol: a rule
//! that differs anywhere opens or closes states.

mod bounds;
mod world;

use std::collections::{HashSet, VecDeque};

pub use bounds::{Bounds, BoundsError, Kind};
pub use world::World;

/// The result of an exploration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explored {
    /// States that differ in something the protocol can see.
    pub states: u64,
    /// Steps taken, those that led to known states included.
    pub steps: u64,
    /// The longest way that was needed to reach a state.
    pub depth: u64,
}

/// Visits every state within `bounds`; or the first broken property, with the steps that lead to it.
///
/// # Panics
/// If the bounds ask for an op-log of more than two entries, which would show nothing that two do not.
pub fn explore(bounds: &Bounds) -> Result<Explored, Violation> {
    match bounds.op_log_cap {
        1 => explore_with::<1>(bounds),
        2 => explore_with::<2>(bounds),
        other => panic!("worlds are explored with an op-log of one entry or two, not {other}"),
    }
}

fn explore_with<const LOG: usize>(bounds: &Bounds) -> Result<Explored, Violation> {
    let orders = bounds.orders_of_workers();
    let mut seen: HashSet<Vec<u8>> = HashSet::new();
    let mut queue: VecDeque<(World<LOG>, u64)> = VecDeque::new();
    for world in World::<LOG>::initial(bounds) {
        if seen.insert(world.visible_state(bounds, &orders)) {
            queue.push_back((world, 1));
        }
    }
    let mut explored = Explored { states: seen.len() as u64, steps: 0, depth: 1 };
    while let Some((world, depth)) = queue.pop_front() {
        explored.depth = explored.depth.max(depth);
        for next in world.successors(bounds) {
            explored.steps += 1;
            next.check(&world, bounds).map_err(|property| Violation { property, depth, steps: next.trail() })?;
            if next.is_explored(bounds) && seen.insert(next.visible_state(bounds, &orders)) {
                explored.states += 1;
                queue.push_back((next, depth + 1));
            }
        }
    }
    Ok(explored)
}

/// A property that a reachable step breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The property, named as in `specs/coordination`.
    pub property: &'static str,
    /// How many steps it took.
    pub depth: u64,
    /// The steps, oldest first.
    pub steps: Vec<String>,
}
