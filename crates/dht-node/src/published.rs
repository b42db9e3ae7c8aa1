//! Values and ids that this node's own program published, kept outside the lanes for the successor of a lane that dies.
//!
//! A node with a data folder has all of it in its logs. Without one, they would be gone with the lane, though the program was promised
//! that its ids are announced and its values stored again for as long as the node runs. So they are noted here once a lane has
//! taken them, which bounds them. `births.rs` notices that a lane was replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, Weak};
use std::time::{Duration, Instant};

use tessera_contracts::point::{ContentId, Point as _};
use tessera_contracts::prefix_map::LaneIndex;
use tessera_dht::chunk::parts_of;
use tessera_dht::node::command::{Answer, Command};
use tessera_dht::record::RecordView;
use tessera_lanes::runtime::Event;

use crate::clock::unix_ms;
use crate::error::{NodeError, count};
use crate::handler::NodeCommand;
use crate::inner::{Inner, ask, running};
use crate::oneshot::{self, lock};
use crate::timer;
use crate::values::Parts;

/// How long a lane's successor has to answer.
const BACK_WITHIN: Duration = Duration::from_secs(120);
/// Between two looks whether it does, and how long each takes at most.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// Things given again at once.
const AT_ONCE: usize = 32;

/// Published values and ids, for a node without logs.
#[derive(Debug, Default)]
pub(crate) struct Published(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    announced: BTreeSet<ContentId>,
    records: BTreeMap<ContentId, Vec<u8>>,
    /// How many mutable records there may be before those that ran out are looked for.
    sweep_at: usize,
}

impl Noted {
    /// Drops versions that ran out, as a lane does when they are due: only their owner can sign them anew. Looked for each time there
    /// are twice as many records as were left the last time.
    fn sweep(&mut self) {
        if self.records.len() <= self.sweep_at {
            return;
        }
        let now_secs = unix_ms() / 1000;
        self.records.retain(|_, record| RecordView::read(record).is_ok_and(|view| view.check_times(now_secs).is_ok()));
        self.sweep_at = (self.records.len() * 2).max(64);
    }
}

impl Inner {
    /// These ids are announced from now on, or no more.
    pub(crate) fn note_announced(&self, id: ContentId, announced: bool) {
        let Some(published) = &self.published else { return };
        if announced {
            lock(&published.0).announced.insert(id);
        } else {
            lock(&published.0).announced.remove(&id);
        }
    }

    /// This record is kept alive from now on.
    pub(crate) fn note_kept_alive(&self, id: ContentId, record: &[u8]) {
        let Some(published) = &self.published else { return };
        let mut kept = lock(&published.0);
        kept.records.insert(id, record.to_vec());
        kept.sweep();
    }

    /// Nothing of this id is kept any more. True if something was.
    pub(crate) fn note_forgotten(&self, id: &ContentId) -> bool {
        self.published.as_ref().is_some_and(|published| lock(&published.0).records.remove(id).is_some())
    }

    /// Records noted here that are manifests, with the parts they name.
    pub(crate) fn noted_manifests(&self) -> Vec<(ContentId, Vec<ContentId>)> {
        let Some(published) = &self.published else { return Vec::new() };
        let kept = lock(&published.0);
        let manifest = |(id, record): (&ContentId, &Vec<u8>)| {
            let view = RecordView::read(record).ok().filter(|view| view.mutable.is_none())?;
            Some((*id, parts_of(view.value)?))
        };
        kept.records.iter().filter_map(manifest).collect()
    }

    pub(crate) fn noted_record(&self, id: &ContentId) -> Option<Vec<u8>> {
        lock(&self.published.as_ref()?.0).records.get(id).cloned()
    }

    fn is_noted(&self, thing: Thing) -> bool {
        let Some(published) = &self.published else { return false };
        let kept = lock(&published.0);
        match thing {
            Thing::Announced(id) => kept.announced.contains(&id),
            Thing::Record(id) => kept.records.contains_key(&id),
        }
    }

    fn note_gone(&self, thing: Thing) {
        match thing {
            Thing::Announced(id) => self.note_announced(id, false),
            Thing::Record(id) => drop(self.note_forgotten(&id)),
        }
    }

    fn tell(&self, lane: LaneIndex, what: &str) {
        let mut events = lock(&self.events_waiting);
        if events.len() < EVENTS_MAX {
            events.push(Event { lane: Some(lane), what: what.to_owned() });
        }
    }
}

/// Events of ours that wait to be taken.
const EVENTS_MAX: usize = 256;

#[derive(Debug, Clone, Copy)]
enum Thing {
    Announced(ContentId),
    Record(ContentId),
}

/// Gives a lane's successor the values and ids it owns. Does not keep the node running.
pub(crate) async fn give_again(inner: &Weak<Inner>, lane: LaneIndex) -> Result<(), NodeError> {
    if !is_back(inner, lane).await? {
        return Ok(());
    }
    let (announced, records) = {
        let inner = running(inner)?;
        let (map, own) = (inner.runtime()?.map(), inner.id);
        let of_lane = |id: &&ContentId| map.lane(&own, *id) == lane;
        let Some(published) = &inner.published else { return Ok(()) };
        let kept = lock(&published.0);
        let announced: Vec<_> = kept.announced.iter().filter(of_lane).copied().collect();
        (announced, kept.records.keys().filter(of_lane).copied().collect::<Vec<_>>())
    };
    if announced.is_empty() && records.is_empty() {
        return Ok(());
    }
    let mut things = announced.into_iter().map(Thing::Announced).chain(records.into_iter().map(Thing::Record));
    let (mut under_way, mut counts) = (Parts::default(), [0_u64; 2]);
    loop {
        while under_way.len() < AT_ONCE
            && let Some(thing) = things.next()
        {
            let inner = inner.clone();
            under_way.push(async move { (thing, give_one(&inner, thing).await) });
        }
        match under_way.next().await {
            Some((thing, Ok(true))) => counts[usize::from(matches!(thing, Thing::Record(_)))] += 1,
            Some((_, Err(NodeError::Stopped))) => return Err(NodeError::Stopped),
            Some(_) => {}
            None => break,
        }
    }
    let [announced, records] = counts;
    running(inner)?.tell(
        lane,
        &format!(
            "it came back without what it knew: it was given again {} and {} of this node's own",
            count(announced, "announced id"),
            count(records, "record")
        ),
    );
    Ok(())
}

/// Waits until the lane answers. False if it is not wanted any more, or not back in time.
async fn is_back(inner: &Weak<Inner>, lane: LaneIndex) -> Result<bool, NodeError> {
    let deadline = Instant::now() + BACK_WITHIN;
    loop {
        let (sender, answer) = oneshot::channel();
        {
            let inner = running(inner)?;
            if inner.flags.stopping.load(Ordering::Relaxed) {
                return Err(NodeError::Stopped);
            }
            let runtime = inner.runtime()?;
            if runtime.map().lanes() <= usize::from(lane.0) {
                return Ok(false); // It handed over its records before it went.
            }
            // A lane that does not take the question drops it, which is an answer too.
            let _ = runtime.command(lane, NodeCommand::Status(sender));
        }
        if let Some(Ok(_)) = timer::unless(timer::after(LOOK_PATIENCE), answer).await {
            return Ok(true);
        }
        if Instant::now() > deadline {
            let late = "it did not come back in time: what this node published by way of it is not given again";
            running(inner)?.tell(lane, late);
            return Ok(false);
        }
        timer::after(LOOK_EVERY).await;
    }
}

/// Gives one thing again, unless it is not wanted any more. False if it is not there now.
async fn give_one(inner: &Weak<Inner>, thing: Thing) -> Result<bool, NodeError> {
    let (id, record) = match thing {
        Thing::Announced(id) if running(inner)?.is_noted(thing) => (id, None),
        Thing::Record(id) if let Some(record) = running(inner)?.noted_record(&id) => (id, Some(record)),
        _ => return Ok(false),
    };
    let given = ask(inner, id.as_bytes(), None, || match &record {
        Some(record) => Command::Put { record: record.clone(), keep_alive: true },
        None => Command::Provide { ids: vec![id] },
    });
    let given = given.await;
    // A caller may have withdrawn it meanwhile, at a lane that did not have it yet.
    if !running(inner)?.is_noted(thing) {
        let undo = || match thing {
            Thing::Announced(id) => Command::Unprovide { ids: vec![id] },
            Thing::Record(id) => Command::Forget { id },
        };
        let _ = ask(inner, id.as_bytes(), None, undo).await;
        return Ok(false);
    }
    match given {
        // The lane has no room for it, so no lane keeps it any more.
        Err(NodeError::NoRoom) => {
            running(inner)?.note_gone(thing);
            Ok(false)
        }
        given => Ok(match given?.answer {
            Answer::Providing(_) => true,
            Answer::Written(written) => written.acknowledged > 0 || written.refused.is_empty(),
            _ => false,
        }),
    }
}

#[cfg(test)]
mod tests {
    use crate::Node;
    use crate::oneshot::lock;

    #[test]
    fn a_record_that_a_lanes_successor_has_no_room_for_is_not_noted_any_more() {
        let bounded = Node::builder().lanes(2).configure(|config| config.kept_alive_bytes_max = 3_000);
        let node = bounded.test_hooks(true).start().unwrap();
        let stored = (0..20_u8).filter(|n| node.put(vec![*n; 800]).wait().is_ok()).count();
        let noted = || lock(&node.0.published.as_ref().unwrap().0).records.len();
        assert_eq!(noted(), stored);
        // One lane has the records of two, until it is replaced.
        node.set_lanes(1).unwrap();
        assert!(node.inject_panic(0));
        let told = || node.take_events().iter().any(|event| event.what.contains("given again"));
        let begun = std::time::Instant::now();
        while !told() {
            assert!(begun.elapsed().as_secs() < 600, "it is told");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(noted() < stored && noted() > 0, "{} of {stored}", noted());
    }
}
