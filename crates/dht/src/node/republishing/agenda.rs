//! Ids that are due at times of their own.

use alloc::collections::{BTreeMap, BTreeSet};

use tessera_contracts::point::ContentId;

/// Ids, when each is due, and an entry for each.
#[derive(Debug)]
pub(super) struct Agenda<T> {
    entries: BTreeMap<ContentId, (u64, T)>,
    due: BTreeSet<(u64, ContentId)>,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), due: BTreeSet::new() }
    }
}

impl<T> Agenda<T> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, id: &ContentId) -> Option<&T> {
        self.entries.get(id).map(|(_, entry)| entry)
    }

    /// All ids in their order, with the times at which they are due.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ContentId, u64, &T)> {
        self.entries.iter().map(|(id, (due_ms, entry))| (id, *due_ms, entry))
    }

    /// The ids from `low` to `high`.
    pub(super) fn range(&self, low: ContentId, high: ContentId) -> impl Iterator<Item = (&ContentId, u64, &T)> {
        self.entries.range(low..=high).map(|(id, (due_ms, entry))| (id, *due_ms, entry))
    }

    /// Sets the entry of `id` and its one time. Returns the entry before.
    pub(super) fn set(&mut self, id: &ContentId, due_ms: u64, entry: T) -> Option<T> {
        let before = self.entries.insert(*id, (due_ms, entry));
        if let Some((before_ms, _)) = &before {
            self.due.remove(&(*before_ms, *id));
        }
        self.due.insert((due_ms, *id));
        before.map(|(_, entry)| entry)
    }

    /// Changes the time of `id`, if it is here.
    pub(super) fn put_off(&mut self, id: &ContentId, due_ms: u64) {
        if let Some((at_ms, _)) = self.entries.get_mut(id) {
            self.due.remove(&(*at_ms, *id));
            *at_ms = due_ms;
            self.due.insert((due_ms, *id));
        }
    }

    pub(super) fn remove(&mut self, id: &ContentId) -> Option<T> {
        let (due_ms, entry) = self.entries.remove(id)?;
        self.due.remove(&(due_ms, *id));
        Some(entry)
    }

    /// The id that has been due for longest.
    pub(super) fn first_due(&self, now_ms: u64) -> Option<ContentId> {
        self.due.first().filter(|(due_ms, _)| *due_ms <= now_ms).map(|(_, id)| *id)
    }

    /// Removes all ids that `is_gone`.
    pub(super) fn retain(&mut self, is_gone: impl Fn(&ContentId) -> bool) {
        self.entries.retain(|id, _| !is_gone(id));
        self.due.retain(|(_, id)| !is_gone(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> ContentId {
        ContentId::from_bytes([n; 32])
    }

    #[test]
    fn an_id_has_one_time_however_often_it_is_set() {
        let mut agenda = Agenda::default();
        assert_eq!(agenda.set(&id(1), 10, 'a'), None);
        assert_eq!(agenda.set(&id(1), 30, 'b'), Some('a'));
        agenda.set(&id(2), 20, 'c');
        assert_eq!([9, 19, 20, 30].map(|ms| agenda.first_due(ms)), [None, None, Some(id(2)), Some(id(2))]);
        agenda.put_off(&id(2), 40);
        agenda.put_off(&id(3), 5);
        assert_eq!(agenda.first_due(35), Some(id(1)));
        assert_eq!((agenda.remove(&id(1)), agenda.remove(&id(1))), (Some('b'), None));
        assert_eq!((agenda.first_due(39), agenda.first_due(40), agenda.len()), (None, Some(id(2)), 1));
        agenda.retain(|gone| *gone == id(2));
        assert_eq!((agenda.first_due(u64::MAX), agenda.len()), (None, 0));
    }
}
