//! The thread that writes one lane's log, so that the lane never waits for the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::time::{LaneTime, micros};
use crate::wal::queue::WriterParkers;
use crate::wal::storage::Directory;
use crate::wal::writer::Writer;

/// The longest sleep of a writer: so late it sees that its lane is gone without a word.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A running writer.
#[derive(Debug)]
pub(super) struct LogThread {
    thread: JoinHandle<Result<(), String>>,
    stop: Arc<AtomicBool>,
    parkers: WriterParkers,
}

impl LogThread {
    pub(super) fn start(
        mut writer: Writer<Directory>,
        parkers: WriterParkers,
        origin: Instant,
        name: String,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, sleeping) = (stop.clone(), parkers.clone());
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            loop {
                let now = LaneTime(micros(origin.elapsed()));
                let next = writer.turn(now).map_err(|error| error.to_string())?;
                // The sender of this has seen the lane end, so everything the lane queued is here.
                if stopping.load(Ordering::Acquire) || writer.is_finished() {
                    return writer.finish(now).map_err(|error| error.to_string());
                }
                if next.is_some_and(|next| next <= now) {
                    continue;
                }
                let gathers = writer.gathers();
                let parker = if gathers { &sleeping.gathering } else { &sleeping.idle };
                parker.announce_sleep();
                // The second look, now that the lane knows.
                let may_sleep = if gathers { writer.gathers() } else { writer.is_empty() };
                if may_sleep && !stopping.load(Ordering::Relaxed) {
                    let wait = next.map_or(SLEEP_MAX, |next| next.since(now)).min(SLEEP_MAX);
                    // A sleep that fails is a short one: the loop looks again.
                    let _ = parker.sleep(wait, None);
                } else {
                    parker.unpark();
                }
            }
        })?;
        Ok(Self { thread, stop, parkers })
    }

    /// Whether the writer has ended, which it does by itself only when its lane is gone or its disk fails.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Tells the writer to end once it has written its queue, and says whether it has.
    pub(super) fn has_stopped(&self) -> bool {
        self.stop.store(true, Ordering::Release);
        self.parkers.idle.wake();
        self.parkers.gathering.wake();
        self.is_finished()
    }

    /// Writes the queue, ends the writer and waits for it. Records that a given-up lane queues later are not written.
    pub(super) fn join(self) -> Result<(), String> {
        self.has_stopped();
        self.thread.join().unwrap_or_else(|_| Err("the log's writer panicked".to_owned()))
    }
}
