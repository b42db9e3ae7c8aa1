//! The end: of lanes that have retired, whose logs go with them, and of all lanes. In steps, none of which waits.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tessera_contracts::prefix_map::LaneIndex;

use crate::handler::Handler;
use crate::lane::Mail;
use crate::runtime::ChangeRefused;
use crate::runtime::supervisor::{Request, State, Supervisor};
use crate::wal::log::remove_lane;

/// How often it is looked whether what has been told to stop has.
const LOOK_EVERY: Duration = Duration::from_millis(1);

impl<H, F> Supervisor<H, F>
where
    H: Handler + Send + 'static,
    H::Command: Send + 'static,
    F: Fn(LaneIndex) -> H + Send + Sync + 'static,
{
    /// A lane has retired: it owns nothing and receives nothing any more. It is gone once its log is.
    pub(super) fn retired(&mut self, lane: LaneIndex) {
        self.set_endpoint(lane, None);
        self.tell_others(lane, |_| Mail::Unlink(lane));
        if let Some(watched) = self.lanes.get_mut(&lane) {
            watched.state = State::Retired { at: Instant::now() };
        }
    }

    /// Removes the logs of lanes that have retired once their writers have ended, and with them the lanes.
    pub(super) fn see_off(&mut self) {
        let retired = |(lane, watched): (&LaneIndex, &super::Watched)| {
            matches!(watched.state, State::Retired { .. }).then_some(*lane)
        };
        let retired: Vec<LaneIndex> = self.lanes.iter().filter_map(retired).collect();
        for lane in retired {
            let Some(watched) = self.lanes.get_mut(&lane) else { continue };
            let written = match watched.log.take_if(|log| log.has_stopped()) {
                Some(log) => log.join().is_ok(),
                None if watched.log.is_some() => continue, // It has yet to write what is queued, and its disk may be slow.
                None => false,
            };
            match &self.log {
                Some((directory, ..)) if written => {
                    watched.state = State::Removing { at: Instant::now() };
                    let (directory, reports) = (directory.clone(), self.requests.clone());
                    // Removing files is for the disk, too: it has a thread of its own for as long as it takes.
                    let remove = {
                        let directory = directory.clone();
                        move || drop(reports.send(Request::Removed { lane, outcome: remove_lane(&directory, lane) }))
                    };
                    if std::thread::Builder::new().name(format!("log-{}", lane.0)).spawn(remove).is_err() {
                        self.removed(lane, remove_lane(&directory, lane));
                    }
                }
                _ => drop(self.lanes.remove(&lane)),
            }
        }
    }

    /// The files of a lane that had retired are gone, or not.
    pub(super) fn removed(&mut self, lane: LaneIndex, outcome: io::Result<()>) {
        self.lanes.remove(&lane);
        if let Err(error) = outcome {
            self.shared.event(Some(lane), format!("its log could not be removed: {error}"));
        }
    }

    /// Stops everything, a step at a time: lanes, then their writers. None once all of it is done.
    pub(super) fn stop(&mut self) -> Option<Duration> {
        self.next_change = None; // Its caller learns from that that the runtime stops.
        if let Some(reply) = self.change.take().and_then(|change| change.reply) {
            let _ = reply.send(Err(ChangeRefused::Stopped));
        }
        let stop_by = *self.stop_by.get_or_insert_with(|| {
            for watched in self.lanes.values() {
                watched.heartbeat.stop.store(true, Ordering::Relaxed);
                watched.parker.wake();
            }
            Instant::now() + self.config.stop_patience
        });
        let running = self.lanes.values().filter(|watched| watched.is_up()).count();
        if running > 0 && Instant::now() < stop_by {
            return Some(LOOK_EVERY);
        }
        if running > 0 {
            self.shared.event(None, format!("{running} lanes did not stop in time and were left behind"));
            for watched in self.lanes.values_mut().filter(|watched| watched.is_up()) {
                // A caller that waited for the end may rely on it: a lane that comes back owns nothing any more.
                watched.heartbeat.fenced.store(true, Ordering::Relaxed);
                watched.state = State::Stopped;
            }
        }
        self.close_endpoints();
        self.see_off();
        self.logs_left.retain(|log| !log.has_stopped());
        for (lane, watched) in &mut self.lanes {
            if let Some(log) = watched.log.take_if(|log| log.has_stopped())
                && let Err(error) = log.join()
            {
                self.shared.event(Some(*lane), format!("its log could not be written to the end: {error}"));
            }
        }
        let removing = |watched: &super::Watched| matches!(watched.state, State::Removing { .. });
        let waits = self.lanes.values().any(|watched| watched.log.is_some() || removing(watched));
        (waits || !self.logs_left.is_empty()).then_some(LOOK_EVERY)
    }
}
