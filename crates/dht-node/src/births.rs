//! Replaced lanes: a lane that died, or that hangs and was given up, gets a successor that knows nothing.
//!
//! The runtime reports each lane it makes. By then the predecessor is out of use, whether or not it has ended. One thread for the
//! whole node gives each successor what the node published; it runs only while successors wait.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tessera_contracts::prefix_map::LaneIndex;

use crate::call::block_on;
use crate::inner::Inner;
use crate::oneshot::lock;
use crate::published::give_again;

/// The lanes that started, and the successors that still lack what the node published.
#[derive(Debug, Default)]
pub(crate) struct Births {
    /// Set only for a node without logs: with one, a lane recovers by itself.
    node: OnceLock<Weak<Inner>>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    born: BTreeSet<u8>,
    /// Successors that still lack what their predecessors had.
    again: BTreeSet<u8>,
    /// Whether the thread runs.
    are_seen_to: bool,
}

impl Births {
    /// From now on successors of lanes are given what this node published.
    pub(crate) fn see_to(&self, node: Weak<Inner>) {
        // Called once: the lanes of one node have one `Births`.
        let _ = self.node.set(node);
    }

    /// Notes a new lane. Does not block: the caller may be a lane's thread.
    pub(crate) fn born(self: &Arc<Self>, lane: LaneIndex) {
        let mut seen = lock(&self.seen);
        if seen.born.insert(lane.0) {
            return;
        }
        let Some(node) = self.node.get().cloned() else { return };
        seen.again.insert(lane.0);
        if !seen.are_seen_to {
            let births = self.clone();
            let thread = std::thread::Builder::new().name("node-again".to_owned());
            // If the system has no thread to spare, the next replaced lane starts it.
            seen.are_seen_to = thread.spawn(move || births.give_all(&node)).is_ok();
        }
    }

    /// Forgets lanes above `lanes`: they handed over what they had, and come back only by a change of the lane count.
    pub(crate) fn retire_from(&self, lanes: usize) {
        lock(&self.seen).born.retain(|lane| usize::from(*lane) < lanes);
    }

    fn give_all(&self, node: &Weak<Inner>) {
        while let Some(lane) = self.next() {
            // It fails if the node stops, and then there is nothing to give.
            let _ = block_on(give_again(node, lane));
        }
    }

    fn next(&self) -> Option<LaneIndex> {
        let mut seen = lock(&self.seen);
        let next = seen.again.pop_first();
        seen.are_seen_to = next.is_some();
        next.map(LaneIndex)
    }
}
