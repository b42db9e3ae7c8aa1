//! Forgetting a value: its record, and of a large one all parts that no other value kept here has as well.
//!
//! Values that share pieces share records. So a part goes only if no manifest kept alive here names it. One case is not looked for: a
//! short value that was stored by itself and equals a piece of a large one goes with the large one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Instant;

use tessera_contracts::point::{ContentId, Point as _};
use tessera_contracts::prefix_map::PrefixMap;
use tessera_dht::node::command::{Answer, Command};
use tessera_dht::record::RecordView;

use crate::error::NodeError;
use crate::handler::NodeCommand;
use crate::inner::{Inner, PATIENCE, PAUSE_MAX, PAUSE_MIN, all_of, ask, running};
use crate::node::unexpected;
use crate::timer;
use crate::values::Parts;

/// Records forgotten at once: they share the log's syncs.
const AT_ONCE: usize = 64;

/// The ids that each manifest names.
type Manifests = BTreeMap<ContentId, Vec<ContentId>>;

/// Forgets the value `id`.
pub(crate) async fn forget(inner: &Arc<Inner>, id: ContentId) -> Result<(), NodeError> {
    let weak = &Arc::downgrade(inner);
    // A call that stores the same value finishes first: else its parts would stay and their manifest go.
    let _turn = inner.writers.take(id).await;
    let mut manifests = when_all_lanes_are_up(weak).await?;
    if let Some((of, _)) = manifests.iter().find(|(_, parts)| parts.contains(&id)) {
        return Err(NodeError::IsPart { id, of: *of });
    }
    let parts: BTreeSet<_> = unshared(id, &manifests).into_iter().filter(|part| *part != id).collect();
    if !parts.is_empty() {
        let (_in_use, mut going) = inner.parts_in_use.forget(parts);
        // From here on no call can begin to store the parts that go; calls that ended before have their manifests kept by now.
        manifests = when_all_lanes_are_up(weak).await?;
        let unshared: BTreeSet<_> = unshared(id, &manifests).into_iter().collect();
        going.retain(|part| unshared.contains(part));
        forget_records(weak, going).await?;
    }
    // The value's own record goes last: if this ends before, it can be asked for again.
    if forget_record(weak.clone(), id).await? { Ok(()) } else { Err(NodeError::NotHere { id }) }
}

/// The records that may be left of a value that was not stored to its end.
#[derive(Debug, Clone)]
pub(crate) struct Rest {
    /// Its root.
    pub(crate) root: ContentId,
    /// All its records.
    pub(crate) ids: BTreeSet<ContentId>,
    /// Its root may be kept since before: an earlier caller was told its id.
    pub(crate) stored_before: bool,
}

/// Forgets the records of a value whose storing failed, unless it had been stored before. Does not keep the node running.
pub(crate) async fn undo(inner: &Weak<Inner>, rest: &Rest) -> Result<(), NodeError> {
    let Rest { root, ids, stored_before } = rest;
    let (undoing, parts_in_use) = running(inner).map(|inner| (inner.undoing.clone(), inner.parts_in_use.clone()))?;
    // One after the other: of two that share parts, each would leave them to the other.
    let _turn = undoing.take(ContentId::from_bytes([0; 32])).await;
    let (_in_use, going) = parts_in_use.forget(ids.clone());
    let mut manifests = kept_manifests(inner).await?;
    if *stored_before && manifests.contains_key(root) || manifests.values().any(|parts| parts.contains(root)) {
        return Ok(());
    }
    // Before its parts: should this end in the middle, a root would be taken for a value that is whole.
    if going.contains(root) {
        forget_record(inner.clone(), *root).await?;
    }
    // As if the root named them all itself: it is not known which of them name others and were not stored.
    manifests.insert(*root, ids.iter().copied().filter(|id| id != root).collect());
    forget_records(inner, unshared(*root, &manifests).into_iter().filter(|part| going.contains(part))).await
}

/// Whether the value `root` may be kept here. It may where a lane does not say.
pub(crate) async fn may_be_kept(inner: &Inner, root: ContentId) -> bool {
    let Ok(map) = settled_map(inner) else { return true };
    let Ok(kept) = inner.ask_lanes(|reply| NodeCommand::Keeps(root, reply)).await else { return true };
    let all_say = kept.len() == map.lanes() && settled_map(inner).is_ok_and(|after| after.version() == map.version());
    !all_say || kept.contains(&true) || inner.noted_record(&root).is_some()
}

/// The ids under which these records are stored.
pub(crate) fn ids_of(records: &[Vec<u8>]) -> BTreeSet<ContentId> {
    records.iter().filter_map(|record| RecordView::read(record).ok()).map(|view| view.id()).collect()
}

/// As [`kept_manifests`], but waits while a lane is down or lanes change.
async fn when_all_lanes_are_up(inner: &Weak<Inner>) -> Result<Manifests, NodeError> {
    let (deadline, mut pause) = (Instant::now() + PATIENCE, PAUSE_MIN);
    loop {
        match kept_manifests(inner).await {
            Err(NodeError::Busy) if Instant::now() + pause < deadline => timer::after(pause).await,
            kept => return kept,
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// All manifests that this node keeps alive.
async fn kept_manifests(inner: &Weak<Inner>) -> Result<Manifests, NodeError> {
    let map = settled_map(&*running(inner)?)?;
    let answers = running(inner)?.put_to_lanes(NodeCommand::Manifests)?;
    let kept = all_of(answers).await;
    // A lane that is down may keep a manifest that names the same parts, and so may a successor that was not given it again yet.
    if kept.len() < map.lanes() || settled_map(&*running(inner)?)?.version() != map.version() {
        return Err(NodeError::Busy);
    }
    Ok(kept.into_iter().flatten().chain(running(inner)?.noted_manifests()).collect())
}

/// The map, if every lane has all slots it owns. A slot under way may be with a lane that is about to leave and is not asked any
/// more, or with a lane that answers after it has let the slot go.
fn settled_map(inner: &Inner) -> Result<Arc<PrefixMap>, NodeError> {
    let runtime = inner.runtime()?;
    let map = runtime.map();
    if runtime.is_settled() { Ok(map) } else { Err(NodeError::Busy) }
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

async fn forget_records(inner: &Weak<Inner>, ids: impl IntoIterator<Item = ContentId>) -> Result<(), NodeError> {
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
pub(crate) async fn forget_record(inner: Weak<Inner>, id: ContentId) -> Result<bool, NodeError> {
    let outcome = ask(&inner, id.as_bytes(), None, || Command::Forget { id }).await?;
    match outcome.answer {
        Answer::Noted | Answer::NotHere => {
            // A lane that is back may not have been given it again yet.
            let was_noted = running(&inner)?.note_forgotten(&id);
            if was_noted && outcome.answer == Answer::NotHere {
                // The giver may have handed the record to the lane before the note went. A giver that comes later finds no note, and undoes it.
                ask(&inner, id.as_bytes(), None, || Command::Forget { id }).await?;
            }
            Ok(was_noted || outcome.answer == Answer::Noted)
        }
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
    fn a_part_that_another_value_names_stays_with_all_below_it() {
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

    #[test]
    fn parts_stay_that_are_named_by_what_a_lane_was_not_given_again_yet() {
        use crate::call::block_on;
        let node = crate::Node::builder().lanes(1).start().unwrap();
        let inner = &Arc::downgrade(&node.0);
        let value =
            |last: u8| (0..9_000_u32).map(|n| if n < 8_000 { (n ^ n >> 7) as u8 } else { last }).collect::<Vec<u8>>();
        let [first, second] = [1, 2].map(|last| node.put(value(last)).wait().unwrap().id);
        // As in a lane's successor: the published record is neither there nor known to be missing.
        let lane = |command: Command| block_on(ask(inner, second.as_bytes(), None, || command.clone())).unwrap().answer;
        assert_eq!(lane(Command::Forget { id: second }), Answer::Noted);
        node.forget(first).wait().unwrap();
        let record = node.0.noted_record(&second).unwrap();
        lane(Command::Put { record, keep_alive: true });
        assert!(node.get(second).wait().unwrap().bytes == value(2));
    }
}
