//! The thread that writes one lane's log, so that the lane never waits for the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ring::park::Bed;
use crate::time::{LaneTime, micros};
use crate::wal::storage::Directory;
use crate::wal::writer::Writer;

/// The longest sleep of a writer: so late it sees that its lane is gone without a word.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A running writer.
#[derive(Debug)]
pub(super) struct LogThread {
    thread: JoinHandle<Result<(), String>>,
    stop: Arc<AtomicBool>,
    bed: Arc<Bed>,
}

impl LogThread {
    pub(super) fn start(
        mut writer: Writer<Directory>,
        bed: Arc<Bed>,
        origin: Instant,
        name: String,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, sleeping) = (stop.clone(), bed.clone());
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            loop {
                let now = LaneTime(micros(origin.elapsed()));
                let next = writer.turn(now).map_err(|error| error.to_string())?;
                if stopping.load(Ordering::Relaxed) || writer.is_finished() {
                    return writer.sync().map_err(|error| error.to_string());
                }
                if next.is_some_and(|next| next <= now) {
                    continue;
                }
                sleeping.announce_sleep();
                if writer.is_empty() && !stopping.load(Ordering::Relaxed) {
                    let wait = next.map_or(SLEEP_MAX, |next| next.since(now)).min(SLEEP_MAX);
                    sleep(&sleeping, wait);
                }
                sleeping.rise();
            }
        })?;
        Ok(Self { thread, stop, bed })
    }

    /// Whether the writer has ended, which it does by itself only when its lane is gone or its disk fails.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Tells the writer to end once it has written what is queued, and says whether it has.
    pub(super) fn has_stopped(&self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        self.bed.wake();
        self.is_finished()
    }

    /// Writes what is queued, ends the writer and waits for it. What a lane that was given up queues later is not written.
    pub(super) fn join(self) -> Result<(), String> {
        self.has_stopped();
        self.thread.join().unwrap_or_else(|_| Err("the log's writer panicked".to_owned()))
    }
}

fn sleep(bed: &Bed, wait: Duration) {
    let Some(fd) = bed.fd() else { return };
    let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    // A failing poll is a short sleep: the loop looks again.
    let _ = poll(&mut fds, Some(&timeout));
    bed.drain_eventfd();
}
