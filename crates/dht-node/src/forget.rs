//! Forgetting a value: its record, and of a large one all parts that no other value kept here has as well.
//!
//! Values that share pieces share records. So before a part goes, everything that is kept alive here and names it is looked for.
//! What is not looked for is a short value that somebody stored by itself and that equals a piece of a large one: it goes with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tessera_contracts::point::{ContentId, Point as _};
use tessera_dht::chunk::parts_of;
use tessera_dht::node::command::{Answer, Command};
use tessera_dht::record::RecordView;

use crate::error::NodeError;
use crate::handler::NodeCommand;
use crate::inner::Inner;
use crate::node::unexpected;
use crate::values::Parts;

/// Records forgotten at once: they share the log's syncs.
const AT_ONCE: usize = 64;

/// What each manifest names.
type Manifests = BTreeMap<ContentId, Vec<ContentId>>;

/// Forgets the value `id`.
pub(crate) async fn forget(inner: &Arc<Inner>, id: ContentId) -> Result<(), NodeError> {
    let manifests = kept_manifests(inner).await?;
    if let Some((of, _)) = manifests.iter().find(|(_, parts)| parts.contains(&id)) {
        return Err(NodeError::IsPart { id, of: *of });
    }
    let going = unshared(id, &manifests);
    forget_records(inner, going.into_iter().filter(|part| *part != id)).await?;
    // The value's own record goes last: if this ends before, it can be asked for again.
    if forget_record(inner.clone(), id).await? { Ok(()) } else { Err(NodeError::NotHere { id }) }
}

/// Forgets what was stored of a value before its storing failed, unless it had been stored before.
pub(crate) async fn undo(inner: &Arc<Inner>, root: ContentId, records: &[Vec<u8>]) -> Result<(), NodeError> {
    let mut manifests = kept_manifests(inner).await?;
    if manifests.contains_key(&root) || manifests.values().any(|parts| parts.contains(&root)) {
        return Ok(());
    }
    for view in records.iter().filter_map(|record| RecordView::read(record).ok()) {
        if let Some(parts) = parts_of(view.value) {
            manifests.insert(view.id(), parts);
        }
    }
    forget_records(inner, unshared(root, &manifests)).await
}

/// All manifests that this node keeps alive.
async fn kept_manifests(inner: &Inner) -> Result<Manifests, NodeError> {
    let lanes = inner.runtime()?.map().lanes();
    let kept = inner.ask_lanes(NodeCommand::Manifests).await?;
    // A lane that is down may keep something that names the same parts.
    if kept.len() < lanes { Err(NodeError::Busy) } else { Ok(kept.into_iter().flatten().collect()) }
}

/// The records of the value `root` that nothing else in `manifests` names, the root among them.
fn unshared(root: ContentId, manifests: &Manifests) -> Vec<ContentId> {
    let distinct = |parts: &[ContentId]| parts.iter().copied().collect::<BTreeSet<_>>();
    let mut named_by: BTreeMap<ContentId, usize> = BTreeMap::new();
    for part in manifests.values().flat_map(|parts| distinct(parts)) {
        *named_by.entry(part).or_default() += 1;
    }
    let (mut going, mut at) = (vec![root], 0);
    while let Some(id) = going.get(at) {
        for part in manifests.get(id).map(|parts| distinct(parts)).unwrap_or_default() {
            if let Some(count) = named_by.get_mut(&part) {
                *count -= 1;
                if *count == 0 {
                    going.push(part);
                }
            }
        }
        at += 1;
    }
    going
}

async fn forget_records(inner: &Arc<Inner>, ids: impl IntoIterator<Item = ContentId>) -> Result<(), NodeError> {
    let mut ids = ids.into_iter();
    let mut under_way: Parts<Result<bool, NodeError>> = Parts::default();
    loop {
        while under_way.len() < AT_ONCE
            && let Some(id) = ids.next()
        {
            under_way.push(forget_record(inner.clone(), id));
        }
        match under_way.next().await {
            Some(forgotten) => drop(forgotten?),
            None => return Ok(()),
        }
    }
}

/// Forgets one record. False if there was nothing of it.
async fn forget_record(inner: Arc<Inner>, id: ContentId) -> Result<bool, NodeError> {
    let outcome = inner.ask(id.as_bytes(), None, || Command::Forget { id }).await?;
    match outcome.answer {
        Answer::Noted => Ok(true),
        Answer::NotHere => Ok(false),
        _ => Err(unexpected(&outcome)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> ContentId {
        ContentId::from_bytes([n; 32])
    }

    #[test]
    fn what_another_value_names_too_stays_with_all_below_it() {
        // Two values share the manifest 5 with its pieces; the piece 9 is in both by other ways.
        let manifests: Manifests = [
            (id(1), vec![id(5), id(6), id(6)]),
            (id(2), vec![id(5), id(7)]),
            (id(5), vec![id(10), id(11)]),
            (id(6), vec![id(9), id(12), id(12)]),
            (id(7), vec![id(9)]),
        ]
        .into();
        assert_eq!(unshared(id(1), &manifests), [id(1), id(6), id(12)]);
        assert_eq!(unshared(id(2), &manifests), [id(2), id(7)]);
        assert_eq!(unshared(id(3), &manifests), [id(3)], "a value of one record");
        let alone: Manifests = manifests.into_iter().filter(|(of, _)| *of != id(2) && *of != id(7)).collect();
        assert_eq!(unshared(id(1), &alone).len(), 7, "all of it, each once");
    }
}
