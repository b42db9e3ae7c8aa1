//! Of which type objects are, told without putting them together.
//!
//! A delta has the type of what it is a change to. Bases by name could form a ring, which a pack made to harm has: every object
//! on the way is remembered, so that thousands of deltas on one ring, or on one long chain, cost one walk.

use std::collections::HashMap;

use crate::oid::Oid;
use crate::pack::{Held, PackReader};
use crate::{At, Kind, Store};

/// Types of packed objects that were met; `None` if there is no end to the deltas, or it cannot be read.
#[derive(Debug, Default)]
pub(crate) struct Kinds(HashMap<(usize, u64), Option<Kind>>);

impl Kinds {
    /// The type of an object; `None` if it cannot be told.
    pub(crate) fn of(&mut self, store: &Store, reader: &mut PackReader, oid: &Oid, at: At) -> Option<Kind> {
        match at {
            At::Loose(dir) => store.loose(dir, oid).ok().map(|loose| loose.kind),
            At::Pack(pack, offset) => self.packed(store, reader, pack, offset),
        }
    }

    /// The type of the object at this place of a pack; `None` if it cannot be told.
    pub(crate) fn packed(&mut self, store: &Store, reader: &mut PackReader, pack: usize, offset: u64) -> Option<Kind> {
        let (mut at, mut met) = (offset, Vec::new());
        let kind = loop {
            if let Some(&known) = self.0.get(&(pack, at)) {
                break known;
            }
            // Until the end is known, there is none: a chain that comes by again is a ring.
            self.0.insert((pack, at), None);
            met.push(at);
            let Ok(entry) = store.entry(reader, pack, at) else { break None };
            match (entry.held, store.base_of(pack, &entry)) {
                (Held::Whole(kind), _) => break Some(kind),
                (_, Ok(Some(base))) => at = base,
                _ => break None,
            }
        };
        self.0.extend(met.into_iter().map(|at| ((pack, at), kind)));
        kind
    }

    /// Whether it was found that the deltas from here on lead nowhere.
    pub(crate) fn leads_nowhere(&self, pack: usize, offset: u64) -> bool {
        self.0.get(&(pack, offset)) == Some(&None)
    }
}
