//! Changing which lane owns what while lanes run: new lanes start, all learn the map, slots move, lanes without slots retire.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, PoisonError};

use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, Slot};

use crate::handler::Handler;
use crate::lane::Mail;
use crate::runtime::ChangeRefused;
use crate::runtime::supervisor::{Change, ChangeInProgress, State, Supervisor};

impl<H, F> Supervisor<H, F>
where
    H: Handler + Send + 'static,
    H::Command: Send + 'static,
    F: Fn(LaneIndex) -> H + Send + Sync + 'static,
{
    pub(super) fn begin(&mut self, change: Change, reply: SyncSender<Result<(), ChangeRefused>>) {
        if self.stopping {
            let _ = reply.send(Err(ChangeRefused::Stopped));
            return;
        }
        let adopting = self.lanes.values().any(|watched| !watched.orphans.is_empty());
        // A new lane may bear the number of one whose log is still being taken over, and would write to that log.
        let result = if self.change.is_some() || adopting { Err(ChangeRefused::InProgress) } else { self.plan(change) };
        let outcome = match result {
            Ok(map) => {
                self.map = Arc::new(map);
                *self.shared.map.write().unwrap_or_else(PoisonError::into_inner) = self.map.clone();
                // Lanes first: a datagram steered by the new map must find a lane that knows it.
                for watched in self.lanes.values() {
                    watched.tell(Mail::Map(self.map.clone()));
                }
                self.steer();
                Ok(())
            }
            // By the old map the lanes that had started own nothing: they retire, and then the caller is told.
            Err(ChangeRefused::NoLane) => Err(ChangeRefused::NoLane),
            Err(refused) => {
                let _ = reply.send(Err(refused));
                return;
            }
        };
        self.change = Some(ChangeInProgress { reply, outcome, retiring: false });
    }

    /// The map after a change, with the lanes it needs started.
    pub(super) fn plan(&mut self, change: Change) -> Result<PrefixMap, ChangeRefused> {
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
                let before = std::mem::replace(&mut self.config.lanes, lanes);
                for lane in (0..lanes).map(|lane| LaneIndex(lane as u8)) {
                    if !self.lanes.contains_key(&lane)
                        && let Err(error) = self.start_lane(lane, false, Vec::new())
                    {
                        self.shared.event(Some(lane), format!("could not be started, so no slot moves: {error}"));
                        self.config.lanes = before;
                        return Err(ChangeRefused::NoLane);
                    }
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

    /// Moves a running change on: every lane knows the map and has handed over, then lanes without slots retire.
    pub(super) fn move_on(&mut self) {
        let Some(change) = &mut self.change else { return };
        let version = u64::from(self.map.version().0);
        let counters = self.shared.counters.read().unwrap_or_else(PoisonError::into_inner).clone();
        let settled = self.lanes.iter().all(|(lane, watched)| {
            let counters = &counters[usize::from(lane.0)];
            let retired = matches!(watched.state, State::Retired { .. } | State::Removing { .. });
            retired || watched.is_up() && counters.map_version.get() == version && counters.handoffs_pending.get() == 0
        });
        if !settled {
            return;
        }
        let keep = self.map.lanes();
        let mut left = false;
        for (lane, watched) in self.lanes.iter_mut().filter(|(lane, _)| usize::from(lane.0) >= keep) {
            left = true;
            if !change.retiring && watched.is_up() {
                watched.state = State::Retiring;
                watched.tell(Mail::Retire);
                self.shared.event(Some(*lane), "retires: it owns nothing any more");
            }
        }
        change.retiring = true;
        if !left && let Some(change) = self.change.take() {
            if let Some(sockets) = &mut self.sockets {
                sockets.shrink_to(keep);
            }
            let _ = change.reply.send(change.outcome);
        }
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
    use crate::ring::park::Bed;
    use crate::runtime::means::{Means, System};
    use crate::runtime::{Runtime, RuntimeConfig};
    use crate::wal::{Importance, LogConfig};

    /// A system that has only so much left of what it is asked for.
    struct Scarce {
        beds: AtomicU32,
        threads: AtomicU32,
    }

    fn take(left: &AtomicU32) -> io::Result<()> {
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        taken.map(drop).map_err(|_| io::ErrorKind::WouldBlock.into())
    }

    impl Means for Scarce {
        fn bed(&self, has_socket: bool) -> io::Result<Arc<Bed>> {
            take(&self.beds).and_then(|()| System.bed(has_socket))
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
            let owner = from.recv_timeout(Duration::from_secs(30)).unwrap();
            assert_eq!(owner, runtime.map().lane_of_slot(slot));
            *owners.entry(owner).or_default() += 1;
        }
        owners
    }

    #[test]
    fn a_lane_that_the_system_refuses_undoes_the_change_and_every_slot_keeps_its_owner() {
        let folder = std::env::temp_dir().join(format!("tessera-lanes-scarce-{}", std::process::id()));
        for (beds, threads) in [(4, 100), (100, 4), (2, 100), (100, 2)] {
            let _ = std::fs::remove_dir_all(&folder);
            let means = Arc::new(Scarce { beds: beds.into(), threads: threads.into() });
            let config = RuntimeConfig {
                lanes: 2,
                spin: Duration::ZERO,
                bind: Some("127.0.0.1:0".parse().unwrap()),
                log: Some((folder.clone(), LogConfig::default())),
                ..RuntimeConfig::default()
            };
            let runtime = Runtime::start_with(config, |_| Named, means.clone()).unwrap();
            let before = (runtime.map(), owners(&runtime));
            assert_eq!(runtime.resize(8), Err(ChangeRefused::NoLane), "{beds} beds, {threads} threads");
            assert_eq!((runtime.map(), owners(&runtime)), before, "nothing has moved");
            assert!(runtime.is_settled() && runtime.command(LaneIndex(2), channel().0).is_err());
            let events = runtime.take_events();
            assert!(events.iter().any(|event| event.what.contains("could not be started")), "{events:?}");
            means.beds.store(100, Ordering::Relaxed);
            means.threads.store(100, Ordering::Relaxed);
            assert_eq!(runtime.resize(5), Ok(()), "once it has more, so have we");
            assert_eq!(owners(&runtime).len(), 5);
            drop(runtime);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
