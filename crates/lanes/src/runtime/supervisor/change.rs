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
    H: Handler + 'static,
    H::Command: Send + 'static,
    F: Fn(LaneIndex) -> H + Send + Sync + 'static,
{
    pub(super) fn begin(&mut self, change: Change, reply: SyncSender<Result<(), ChangeRefused>>) {
        let adopting = self.lanes.values().any(|watched| !watched.orphans.is_empty());
        // A new lane may bear the number of one whose log is still being taken over, and would write to that log.
        let result = if self.change.is_some() || adopting { Err(ChangeRefused::InProgress) } else { self.plan(change) };
        match result {
            Err(refused) => drop(reply.send(Err(refused))),
            Ok(map) => {
                self.map = Arc::new(map);
                *self.shared.map.write().unwrap_or_else(PoisonError::into_inner) = self.map.clone();
                // Lanes first: a datagram steered by the new map must find a lane that knows it.
                for watched in self.lanes.values() {
                    watched.tell(Mail::Map(self.map.clone()));
                }
                self.steer();
                self.change = Some(ChangeInProgress { reply, retiring: false });
            }
        }
    }

    /// The map after a change, with the lanes it needs started.
    pub(super) fn plan(&mut self, change: Change) -> Result<PrefixMap, ChangeRefused> {
        match change {
            Change::Resize(lanes) => {
                let map = self.map.resized(lanes).map_err(ChangeRefused::Map)?;
                if let Some(sockets) = &mut self.sockets
                    && let Err(error) = sockets.grow_to(lanes)
                {
                    self.shared.event(None, format!("binding sockets for {lanes} lanes: {error}"));
                    return Err(ChangeRefused::Sockets);
                }
                self.config.lanes = lanes;
                for lane in (0..lanes).map(|lane| LaneIndex(lane as u8)) {
                    if !self.lanes.contains_key(&lane)
                        && let Err(error) = self.start_lane(lane, false, Vec::new())
                    {
                        self.down(lane, &format!("could not be started: {error}"));
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
            watched.is_up() && counters.map_version.get() == version && counters.handoffs_pending.get() == 0
        });
        if !settled {
            return;
        }
        let keep = self.map.lanes();
        let mut left = false;
        for (lane, watched) in self.lanes.iter_mut().filter(|(lane, _)| usize::from(lane.0) >= keep) {
            left = true;
            if !change.retiring {
                watched.state = State::Retiring;
                watched.tell(Mail::Retire);
                self.shared.event(Some(*lane), "retires: it owns nothing any more");
            }
        }
        change.retiring = true;
        if !left && let Some(change) = self.change.take() {
            let _ = change.reply.send(Ok(()));
        }
    }

    /// A lane has retired: it owns nothing and nobody sends to it any more.
    pub(super) fn remove(&mut self, lane: LaneIndex) {
        self.set_door(lane, None);
        self.tell_others(lane, |_| Mail::Unlink(lane));
        if let Some(mut watched) = self.lanes.remove(&lane)
            && let Some(log) = watched.log.take()
            && log.join().is_ok()
            && let Some((directory, ..)) = &self.log
            && let Err(error) = crate::wal::log::remove_lane(directory, lane)
        {
            self.shared.event(Some(lane), format!("its log could not be removed: {error}"));
        }
    }
}
