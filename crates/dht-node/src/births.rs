//! Lanes that are born again: a lane that died, or that hangs and was given up, is replaced by one that knows nothing.
//!
//! Whoever makes a lane says so here, which is when its predecessor is out of use, whether or not that has come to its end. All but
//! the first birth of each have what the node published given to the new lane: by one thread for the whole node, however many lanes
//! die and however often, which is there for as long as there are lanes to see to.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tessera_contracts::prefix_map::LaneIndex;

use crate::call::block_on;
use crate::inner::Inner;
use crate::oneshot::lock;
use crate::published::give_again;

/// Which lanes were born, and which of them again.
#[derive(Debug, Default)]
pub(crate) struct Births {
    /// The node, if it has no log from which a lane learns what it knew.
    node: OnceLock<Weak<Inner>>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    born: BTreeSet<u8>,
    /// Those that have not been given yet what their predecessors had.
    again: BTreeSet<u8>,
    /// Whether there is the thread.
    are_seen_to: bool,
}

impl Births {
    /// From now on lanes that are born again are given what this node published.
    pub(crate) fn see_to(&self, node: Weak<Inner>) {
        // There is one node for the lanes of one.
        let _ = self.node.set(node);
    }

    /// A lane is made. Whoever calls this may be a lane's thread: it is not for waiting.
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
            // Without a thread to spare it is done at the next birth.
            seen.are_seen_to = thread.spawn(move || births.give_all(&node)).is_ok();
        }
    }

    /// There are so many lanes from now on: what the others had was handed over, and if they come back it is by order.
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
