//! Changing which lane owns what while lanes run: new lanes start, all learn the map, slots move, lanes without slots retire.
//!
//! No lane receives the new map before every lane is open, the new ones with their logs. So a disk that is full, or a system that
//! refuses, costs nothing: new lanes are let go, and the old map was never replaced. Once slots move there is no way back, since
//! each is with its old owner or its new one; a lane that fails then is restarted like any other, and holds the change up but
//! not the caller that waits for it.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, Slot};

use crate::handler::Handler;
use crate::orders::{Order, Stepped};
use crate::runtime::ChangeRefused;
use crate::runtime::supervisor::{Change, ChangeInProgress, Stage, Start, State, Supervisor, Watched};
use crate::telemetry::counters::LaneCounters;

impl<H, F> Supervisor<H, F>
where
    H: Handler + Send + 'static,
    H::Command: Send + 'static,
    F: Fn(LaneIndex) -> H + Send + Sync + 'static,
{
    pub(super) fn begin(&mut self, change: Change, reply: SyncSender<Result<(), ChangeRefused>>) {
        if self.next_change.is_none() && self.change.as_ref().is_some_and(|change| change.is_unasked) {
            self.next_change = Some((change, reply));
        } else {
            self.begin_now(change, Some(reply));
        }
    }

    /// Begins a change; `reply` is `None` if it was not asked for.
    pub(super) fn begin_now(&mut self, change: Change, reply: Option<SyncSender<Result<(), ChangeRefused>>>) {
        let adopting = self.lanes.values().any(|watched| !watched.orphans.is_empty());
        let planned = match change {
            _ if self.stopping => Err(ChangeRefused::Stopped),
            // A new lane may bear the number of one whose log is still being taken over, and would write to that log.
            _ if self.change.is_some() || adopting => Err(ChangeRefused::InProgress),
            change => self.plan(change),
        };
        let map = match planned {
            Ok(map) => map,
            Err(refused) => {
                reply.map(|reply| reply.send(Err(refused)));
                return;
            }
        };
        let lanes = map.lanes();
        let stage = Stage::Opening(Arc::new(map));
        let is_unasked = reply.is_none();
        self.change = Some(ChangeInProgress { reply, is_unasked, begun: Instant::now(), stage, outcome: Ok(()) });
        self.config.lanes = self.config.lanes.max(lanes);
        for lane in (0..lanes).map(|lane| LaneIndex(lane as u8)) {
            if !self.lanes.contains_key(&lane)
                && let Err(error) = self.start_lane(lane, Start::OnTrial, Vec::new())
            {
                self.shared.event(Some(lane), format!("could not be started, so no slot moves: {error}"));
                self.undo(format!("lane {}: {error}", lane.0));
                return;
            }
        }
    }

    /// The map after a change, with the sockets it needs.
    fn plan(&mut self, change: Change) -> Result<PrefixMap, ChangeRefused> {
        match change {
            Change::Resize(lanes) => {
                let map = self.map.resized(lanes).map_err(ChangeRefused::Map)?;
                if let Some(sockets) = &mut self.sockets
                    && let Err(error) = sockets.grow_to(lanes)
                {
                    sockets.shrink_to(self.map.lanes());
                    self.shared.event(None, format!("binding sockets for {lanes} lanes: {error}"));
                    return Err(ChangeRefused::Sockets);
                }
                Ok(map)
            }
            Change::Relieve { lane, helper } => {
                let mut map = (*self.map).clone();
                let slots = (0..=u8::MAX).map(Slot).filter(|slot| self.map.lane_of_slot(*slot) == lane);
                for slot in slots.step_by(2) {
                    map = map.lent(slot, helper).map_err(ChangeRefused::Map)?;
                }
                Ok(map)
            }
            Change::MergeBack => Ok(self.map.all_returned()),
        }
    }

    /// A lane on trial is gone: it is let go, and the change it was for is undone.
    pub(super) fn let_go(&mut self, lane: LaneIndex, why: &str) {
        self.shared.event(Some(lane), format!("{why}; it was new and owns nothing, so it is let go and no slot moves"));
        self.retired(lane);
        self.undo(format!("lane {}: {why}", lane.0));
    }

    /// Leaves everything as it was: by the old map new lanes own nothing, so they retire.
    fn undo(&mut self, why: String) {
        let Some(change) = self.change.as_mut().filter(|change| matches!(change.stage, Stage::Opening(_))) else {
            return;
        };
        change.stage = Stage::Retiring;
        change.outcome = Err(ChangeRefused::NoLane(why));
        self.config.lanes = self.map.lanes();
        self.retire_lanes_without_slots();
    }

    /// Moves a running change on, and tells the waiting caller in time how it ended.
    pub(super) fn move_on(&mut self) {
        let is_settled = self.change.is_some() && self.is_settled();
        let Some(change) = &mut self.change else { return };
        let overdue = change.begun.elapsed() >= self.config.change_patience;
        match &change.stage {
            Stage::Opening(map) => {
                if self.lanes.values().all(|watched| watched.is_up() && watched.is_open) {
                    let map = map.clone();
                    change.stage = Stage::Moving;
                    self.publish(map);
                } else if overdue {
                    self.undo(self.what_holds_up());
                }
            }
            Stage::Moving => {
                if is_settled {
                    change.stage = Stage::Retiring;
                    self.retire_lanes_without_slots();
                }
            }
            Stage::Retiring => {}
        }
        if self.is_done(is_settled) {
            self.finish();
        } else if overdue {
            self.answer_in_time();
        }
    }

    /// Whether every lane that was to leave has left, and no slot is in transit. What is undone has moved nothing that could be.
    fn is_done(&self, is_settled: bool) -> bool {
        let gone = self.lanes.keys().all(|lane| usize::from(lane.0) < self.map.lanes());
        self.change.as_ref().is_some_and(|change| {
            matches!(change.stage, Stage::Retiring) && gone && (change.outcome.is_err() || is_settled)
        })
    }

    /// Tells all lanes, the outside and the kernel who owns what from now on.
    fn publish(&mut self, map: Arc<PrefixMap>) {
        self.config.lanes = map.lanes();
        self.former = std::mem::replace(&mut self.map, map);
        *self.shared.map.write().unwrap_or_else(PoisonError::into_inner) = self.map.clone();
        // Lanes first: a datagram steered by the new map must find a lane that knows it.
        for watched in self.lanes.values_mut() {
            watched.on_trial = false;
            watched.orders.give(Order::Map(self.map.clone()));
        }
        self.send_orders();
        self.steer();
    }

    /// Whether every lane knows the map and has handed over what is not its own.
    fn is_settled(&self) -> bool {
        self.lanes.iter().all(|(lane, watched)| {
            watched.is_gone() || watched.is_up() && slots_under_way(&self.counters_of(*lane), &self.map) == Some(0)
        })
    }

    fn retire_lanes_without_slots(&mut self) {
        let keep = self.map.lanes();
        for (lane, watched) in self.lanes.iter_mut().filter(|(lane, _)| usize::from(lane.0) >= keep) {
            if watched.is_up() {
                watched.state = State::Retiring;
                watched.orders.give(Order::Retire);
                self.shared.event(Some(*lane), "retires: it owns nothing any more");
            }
        }
        self.send_orders();
    }

    /// Sends orders that lanes have yet to be given, or have not acknowledged.
    pub(super) fn send_orders(&mut self) {
        let now = self.now();
        for (lane, watched) in self.lanes.iter_mut().filter(|(_, watched)| watched.is_up()) {
            let counters = &self.shared.counters.read().unwrap_or_else(PoisonError::into_inner)[usize::from(lane.0)];
            let stepped = watched.orders.step(*lane, now, counters.orders_done.get());
            if stepped == Stepped::NotAcknowledged {
                self.shared.event(Some(*lane), "does not acknowledge an order of the supervisor, which is sent again");
            }
            if stepped != Stepped::Nothing {
                watched.parker.wake();
            }
        }
    }

    fn finish(&mut self) {
        let Some(change) = self.change.take() else { return };
        if let Some(sockets) = &mut self.sockets {
            sockets.shrink_to(self.map.lanes());
        }
        if let Some((next, reply)) = self.next_change.take() {
            self.begin_now(next, Some(reply));
        }
        if let Some(reply) = change.reply {
            let _ = reply.send(change.outcome);
            return;
        }
        if change.is_unasked && change.outcome.is_ok() {
            return;
        }
        let what = if change.outcome.is_ok() { "has come to its end" } else { "is undone to the end" };
        let seconds = change.begun.elapsed().as_secs();
        self.shared.event(None, format!("the change of lanes that was held up {what} after {seconds} s"));
    }

    /// The waiting caller is told how it stands; the change itself goes on.
    fn answer_in_time(&mut self) {
        if let Some((_, reply)) = self.next_change.take() {
            let _ = reply.send(Err(ChangeRefused::InProgress));
        }
        let Some(change) = &mut self.change else { return };
        let Some(reply) = change.reply.take() else { return };
        let outcome = change.outcome.clone();
        let why = self.what_holds_up();
        let _ = reply.send(outcome.and(Err(ChangeRefused::Unfinished(why.clone()))));
        self.shared.event(None, format!("a change of lanes is held up: {why}"));
    }

    /// Which lanes a change waits for, and why it has to.
    fn what_holds_up(&self) -> String {
        let held_up = self.lanes.iter().filter_map(|(lane, watched)| {
            let trouble = self.trouble(*lane, watched)?;
            Some(format!("lane {}: {trouble}", lane.0))
        });
        held_up.collect::<Vec<_>>().join("; ")
    }

    fn trouble(&self, lane: LaneIndex, watched: &Watched) -> Option<String> {
        let has_no_log = self.log.is_some() && watched.log.is_none();
        let failed_lately = watched.started.elapsed() < self.config.restart.healthy_after;
        let failed = watched.last_failure.as_ref().filter(|_| !watched.is_up() || has_no_log || failed_lately);
        let waiting_for_disk = !watched.waiting_for_disk_for(self.now(), Instant::now()).is_zero();
        let waited_for = match slots_under_way(&self.counters_of(lane), &self.map) {
            _ if waiting_for_disk => "its disk has not answered yet".to_owned(),
            _ if watched.state == State::Retiring || watched.is_gone() => "it has yet to leave".to_owned(),
            _ if !watched.is_up() || !watched.is_open => "it has yet to start".to_owned(),
            Some(0) => return None,
            Some(slots) => format!("{slots} slots are on their way from it or to it"),
            None => "it has yet to learn who owns what".to_owned(),
        };
        Some(match failed {
            Some(failure) => format!("{failure} ({waited_for})"),
            None => waited_for,
        })
    }

    fn counters_of(&self, lane: LaneIndex) -> Arc<LaneCounters> {
        self.shared.counters.read().unwrap_or_else(PoisonError::into_inner)[usize::from(lane.0)].clone()
    }
}

/// How many slots a lane still hands over or waits for; none if it does not know the map yet.
fn slots_under_way(counters: &LaneCounters, map: &PrefixMap) -> Option<u64> {
    (counters.map_version.get() == u64::from(map.version().0)).then(|| counters.handoffs_pending.get())
}

impl Watched {
    /// Whether it has retired, and only its log is left.
    fn is_gone(&self) -> bool {
        matches!(self.state, State::Retired { .. } | State::Removing { .. })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;
    use crate::context::Context;
    use crate::ring::park::Parker;
    use crate::runtime::spawner::{Spawner, System};
    use crate::runtime::{Runtime, RuntimeConfig};
    use crate::wal::{Importance, LogConfig};

    /// A system that has only so much left of what it is asked for.
    struct Scarce {
        parkers: AtomicU32,
        threads: AtomicU32,
    }

    fn take(left: &AtomicU32) -> io::Result<()> {
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        taken.map(drop).map_err(|_| io::ErrorKind::WouldBlock.into())
    }

    impl Spawner for Scarce {
        fn parker(&self, has_socket: bool) -> io::Result<Arc<Parker>> {
            take(&self.parkers).and_then(|()| System.parker(has_socket))
        }

        fn thread(&self, name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
            take(&self.threads).and_then(|()| System.thread(name, body))
        }
    }

    /// Logs a word and says which lane it is.
    struct Named;

    impl Handler for Named {
        type Command = Sender<LaneIndex>;

        fn on_command(&mut self, cx: &mut Context, to: Sender<LaneIndex>) {
            cx.log(1, Slot(cx.lane().0), b"asked", Importance::Hard).unwrap();
            to.send(cx.lane()).unwrap();
        }
    }

    /// Which lane serves each slot; each must be the one that the map names.
    fn owners(runtime: &Runtime<Sender<LaneIndex>>) -> BTreeMap<LaneIndex, usize> {
        let mut owners = BTreeMap::new();
        for slot in (0..=u8::MAX).map(Slot) {
            let (to, from) = channel();
            runtime.command_owner(slot, to).unwrap();
            let owner = from.recv_timeout(Duration::from_secs(600)).unwrap();
            assert_eq!(owner, runtime.map().lane_of_slot(slot));
            *owners.entry(owner).or_default() += 1;
        }
        owners
    }

    #[test]
    fn a_lane_that_the_system_refuses_undoes_the_change_and_every_slot_keeps_its_owner() {
        let folder = std::env::temp_dir().join(format!("tessera-lanes-scarce-{}", std::process::id()));
        for (parkers, threads) in [(4, 100), (100, 4), (2, 100), (100, 2)] {
            let _ = std::fs::remove_dir_all(&folder);
            let spawner = Arc::new(Scarce { parkers: parkers.into(), threads: threads.into() });
            let config = RuntimeConfig {
                lanes: 2,
                spin: Duration::ZERO,
                bind: Some("127.0.0.1:0".parse().unwrap()),
                log: Some((folder.clone(), LogConfig::default())),
                ..RuntimeConfig::default()
            };
            let runtime = Runtime::start_with(config, |_| Named, spawner.clone()).unwrap();
            let before = (runtime.map(), owners(&runtime));
            let refused = runtime.resize(8);
            assert!(
                matches!(refused, Err(ChangeRefused::NoLane(_))),
                "{parkers} parkers, {threads} threads: {refused:?}"
            );
            assert_eq!((runtime.map(), owners(&runtime)), before, "nothing has moved");
            assert!(runtime.is_settled() && runtime.command(LaneIndex(2), channel().0).is_err());
            let events = runtime.take_events();
            assert!(events.iter().any(|event| event.what.contains("could not be started")), "{events:?}");
            spawner.parkers.store(100, Ordering::Relaxed);
            spawner.threads.store(100, Ordering::Relaxed);
            assert_eq!(runtime.resize(5), Ok(()), "once it has more, so have we");
            assert_eq!(owners(&runtime).len(), 5);
            drop(runtime);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
