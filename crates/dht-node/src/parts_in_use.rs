//! Parts of large values that are being stored or forgotten: none is forgotten from under a value that is still being stored.
//!
//! A value's root is stored last. Until then no kept manifest names its parts, and a call that forgets another value with the same
//! parts would remove them. So each storing call registers its parts here, and each forgetting call asks which may go: parts being
//! stored stay, and a call that wants to store a part that is going waits until it is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tessera_contracts::point::ContentId;

use crate::oneshot::lock;
use crate::timer;

/// The pause between two checks whether parts are gone.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Parts being stored and forgotten. As large as the values under way.
#[derive(Debug, Default)]
pub(crate) struct PartsInUse(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    uses: u64,
    storing: BTreeMap<u64, BTreeSet<ContentId>>,
    going: BTreeMap<u64, BTreeSet<ContentId>>,
}

/// Parts in use, until this is dropped.
#[derive(Debug)]
pub(crate) struct InUse {
    table: Arc<PartsInUse>,
    number: u64,
}

impl PartsInUse {
    /// These parts are being stored. Waits while any of them is going.
    pub(crate) async fn store(self: &Arc<Self>, mut parts: BTreeSet<ContentId>) -> InUse {
        loop {
            match self.try_store(parts) {
                Ok(stored) => return stored,
                Err(not_yet) => parts = not_yet,
            }
            timer::after(LOOK_EVERY).await;
        }
    }

    fn try_store(self: &Arc<Self>, parts: BTreeSet<ContentId>) -> Result<InUse, BTreeSet<ContentId>> {
        let mut table = lock(&self.0);
        if table.going.values().any(|going| !going.is_disjoint(&parts)) {
            return Err(parts);
        }
        table.uses += 1;
        let number = table.uses;
        table.storing.insert(number, parts);
        Ok(InUse { table: self.clone(), number })
    }

    /// Returns the parts that may go: no call stores them, or will before the `InUse` is dropped.
    pub(crate) fn forget(self: &Arc<Self>, parts: BTreeSet<ContentId>) -> (InUse, BTreeSet<ContentId>) {
        let mut table = lock(&self.0);
        let is_stored = |part: &ContentId| table.storing.values().any(|stored| stored.contains(part));
        let going: BTreeSet<_> = parts.into_iter().filter(|part| !is_stored(part)).collect();
        table.uses += 1;
        let number = table.uses;
        table.going.insert(number, going.clone());
        (InUse { table: self.clone(), number }, going)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut table = lock(&self.table.0);
        table.storing.remove(&self.number);
        table.going.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::block_on;

    fn ids(of: impl IntoIterator<Item = u8>) -> BTreeSet<ContentId> {
        of.into_iter().map(|n| ContentId::from_bytes([n; 32])).collect()
    }

    #[test]
    fn parts_being_stored_stay_and_parts_going_are_not_stored_before_they_are_gone() {
        let table = Arc::new(PartsInUse::default());
        let stored = block_on(table.store(ids(1..5)));
        let also_stored = table.try_store(ids(4..6)).unwrap();
        let (forgotten, going) = table.forget(ids(3..9));
        assert_eq!(going, ids(6..9));
        assert!(table.try_store(ids(8..10)).is_err() && table.try_store(ids(9..10)).is_ok());
        drop((stored, also_stored));
        assert_eq!(table.forget(ids(3..9)).1, ids(3..9), "no call stores it any more");
        drop(forgotten);
        assert!(table.try_store(ids(8..10)).is_ok());
        let table = lock(&table.0);
        assert!(table.storing.is_empty() && table.going.is_empty(), "nothing is remembered of ended calls");
    }
}
