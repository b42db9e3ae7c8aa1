//! Pauses and time limits of callers: one thread for the whole process, while a caller waits.
//!
//! Lanes have timers of their own, and a caller must not depend on them: a lane that hangs would hold up a caller that
//! gives up on it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::oneshot::{self, lock};

/// The thread ends after this long without a waiting caller.
const IDLE: Duration = Duration::from_secs(1);

/// A waiting caller: its time, its place in the order of arrival, and its waker.
struct Wait {
    due: Instant,
    done: oneshot::Sender<()>,
}

static THREAD: Mutex<Option<Sender<Wait>>> = Mutex::new(None);

/// Comes to its end after `time`; at once if the system has no thread to spare.
pub(crate) fn after(time: Duration) -> impl Future<Output = ()> + Send + use<> {
    let (done, woken) = oneshot::channel();
    hand_over(Wait { due: Instant::now() + time, done });
    async move {
        let _ = woken.await;
    }
}

/// What `future` gives, unless `limit` comes to its end before.
pub(crate) async fn unless<T>(limit: impl Future<Output = ()>, future: impl Future<Output = T>) -> Option<T> {
    let (mut limit, mut future) = (pin!(limit), pin!(future));
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => limit.as_mut().poll(cx).map(|()| None),
    })
    .await
}

fn hand_over(wait: Wait) {
    let mut thread = lock(&THREAD);
    let unsent = match thread.as_ref() {
        Some(sender) => sender.send(wait).err().map(|refused| refused.0),
        None => Some(wait),
    };
    let Some(wait) = unsent else { return };
    let (sender, waits) = channel();
    if std::thread::Builder::new().name("node-timer".to_owned()).spawn(move || keep_time(&waits)).is_ok() {
        let _ = sender.send(wait);
        *thread = Some(sender);
    }
}

fn keep_time(waits: &Receiver<Wait>) {
    let (mut waiting, mut count) = (BTreeMap::new(), 0_u64);
    loop {
        let next = waiting.first_key_value().map(|((due, _), _): (&(Instant, Reverse<u64>), _)| *due);
        let pause = next.map_or(IDLE, |due| due.saturating_duration_since(Instant::now()));
        match waits.recv_timeout(pause) {
            Ok(Wait { due, done }) => {
                count += 1;
                waiting.insert((due, Reverse(count)), done);
            }
            Err(RecvTimeoutError::Timeout) if next.is_none() => {
                // A caller that comes now waits for the lock, and then finds no thread.
                let mut thread = lock(&THREAD);
                match waits.try_recv() {
                    Ok(Wait { due, done }) => {
                        waiting.insert((due, Reverse(count)), done);
                    }
                    Err(_) => {
                        *thread = None;
                        return;
                    }
                }
            }
            Err(_) => {}
        }
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= Instant::now()) {
            first.remove().send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::block_on;

    #[test]
    fn shorter_waits_end_first_and_a_limit_ends_a_wait() {
        let begun = Instant::now();
        let (long, short) = (after(Duration::from_secs(3600)), after(Duration::from_millis(5)));
        assert_eq!(block_on(unless(short, long)), None);
        assert!(begun.elapsed() >= Duration::from_millis(5));
        assert_eq!(block_on(unless(after(Duration::from_secs(3600)), async { 7 })), Some(7));
    }
}
