//! Any object by its name, for walks: commits, and trees that are deltas of one another.
//!
//! What is remembered is what others are made from: trees, and whatever was met as a base.

use std::collections::HashMap;
use std::rc::Rc;

use crate::delta::Copied;
use crate::kinds::Kinds;
use crate::oid::Oid;
use crate::pack::{Held, PackReader};
use crate::{At, CHAIN_MAX, Kind, NO_END, OBJECT_BYTES_MAX, ObjectError, Store, TOO_MUCH, WORK_BYTES_MAX, apply};

/// Bytes kept, at most twice: what was not used while so many came in is forgotten.
const GENERATION_BYTES: usize = 12 << 20;

type Objects = HashMap<(usize, u64), (Kind, Rc<Vec<u8>>), foldhash::fast::RandomState>;

/// Reads objects and remembers trees, since the next one is most often a delta to one of them.
#[derive(Debug)]
pub struct ObjectCache<'s> {
    store: &'s Store,
    reader: PackReader,
    young: Objects,
    old: Objects,
    young_bytes: usize,
    delta: Vec<u8>,
    copied: Vec<Copied>,
    kinds: Kinds,
}

impl<'s> ObjectCache<'s> {
    /// A reader of this store.
    pub fn new(store: &'s Store) -> Self {
        let (young, old, delta, copied, kinds) = Default::default();
        Self { store, reader: PackReader::new(), young, old, young_bytes: 0, delta, copied, kinds }
    }

    /// Reads an object.
    pub fn read(&mut self, oid: &Oid) -> Result<(Kind, Rc<Vec<u8>>), ObjectError> {
        match self.store.find(oid).ok_or(ObjectError::Missing)? {
            At::Pack(pack, offset) => self.packed(pack, offset),
            At::Loose(dir) => {
                let loose = self.store.loose(dir, oid)?;
                let (kind, mut content) = (loose.kind, Vec::new());
                loose.read(&mut content)?;
                Ok((kind, Rc::new(content)))
            }
        }
    }

    fn packed(&mut self, pack: usize, offset: u64) -> Result<(Kind, Rc<Vec<u8>>), ObjectError> {
        let mut chain = Vec::new();
        let mut at = offset;
        let (kind, mut content) = loop {
            if let Some(known) = self.known(pack, at) {
                break known;
            }
            let entry = self.store.entry(&mut self.reader, pack, at)?;
            match (entry.held, self.store.base_of(pack, &entry)?) {
                (Held::Whole(kind), _) => {
                    let mut content = Vec::new();
                    self.store.inflate(&mut self.reader, pack, &entry, &mut content)?;
                    let content = Rc::new(content);
                    self.remember(pack, at, kind, &content, !chain.is_empty());
                    break (kind, content);
                }
                (_, Some(base)) if chain.len() < CHAIN_MAX && !self.kinds.leads_nowhere(pack, base) => {
                    chain.push((at, entry));
                    at = base;
                }
                _ => {
                    // Looks whether it is a ring, so that the others on it are not tried.
                    self.kinds.packed(self.store, &mut self.reader, pack, offset);
                    return Err(NO_END);
                }
            }
        };
        let mut work = content.len() as u64;
        for (at, entry) in chain.into_iter().rev() {
            self.store.inflate(&mut self.reader, pack, &entry, &mut self.delta)?;
            let mut result = Vec::new();
            apply(&content, &self.delta, OBJECT_BYTES_MAX, &mut result, &mut self.copied)?;
            content = Rc::new(result);
            work += content.len() as u64;
            if work > WORK_BYTES_MAX {
                return Err(TOO_MUCH);
            }
            self.remember(pack, at, kind, &content, at != offset);
        }
        Ok((kind, content))
    }

    fn known(&mut self, pack: usize, at: u64) -> Option<(Kind, Rc<Vec<u8>>)> {
        if let Some(known) = self.young.get(&(pack, at)) {
            return Some(known.clone());
        }
        let (kind, content) = self.old.remove(&(pack, at))?;
        self.remember(pack, at, kind, &content, true);
        Some((kind, content))
    }

    fn remember(&mut self, pack: usize, at: u64, kind: Kind, content: &Rc<Vec<u8>>, is_base: bool) {
        // Commits and tags are seldom bases.
        if (kind != Kind::Tree && !is_base) || content.len() > GENERATION_BYTES / 4 {
            return;
        }
        if self.young_bytes + content.len() > GENERATION_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += content.len();
        self.young.insert((pack, at), (kind, Rc::clone(content)));
    }
    /// Whether what lies there is remembered.
    #[cfg(test)]
    pub(crate) fn knows(&self, at: (usize, u64)) -> bool {
        self.young.contains_key(&at) || self.old.contains_key(&at)
    }
}
