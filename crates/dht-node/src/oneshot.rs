//! One answer from a lane to its caller: a task of any executor, or a blocked thread.
//!
//! The lane's side never waits: it stores the answer and wakes. A sender that is dropped without an answer tells so, which
//! is how callers learn that a lane went down with their question.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
struct State<T> {
    answer: Option<T>,
    closed: bool,
    waker: Option<Waker>,
}

/// The side that answers.
#[derive(Debug)]
pub struct Sender<T>(Arc<Mutex<State<T>>>);

/// The side that waits.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Mutex<State<T>>>);

/// The other side went away without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost;

/// Both sides.
pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = Arc::new(Mutex::new(State { answer: None, closed: false, waker: None }));
    (Sender(state.clone()), Receiver(state))
}

impl<T> Sender<T> {
    /// Answers, and wakes at once.
    pub(crate) fn send(self, answer: T) {
        lock(&self.0).answer = Some(answer);
        // Dropping the sender wakes.
    }

    /// Answers. Returns the waker of a receiver that already waits; the caller wakes it.
    pub(crate) fn answer(self, answer: T) -> Option<Waker> {
        let mut state = lock(&self.0);
        state.answer = Some(answer);
        state.waker.take()
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.closed = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            wake(waker);
        }
    }
}

/// A waker runs the executor's code. Its panic must end neither the lane nor the process: senders are also dropped when a lane has
/// panicked already.
pub(crate) fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Lost>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.0);
        match (state.answer.take(), state.closed) {
            (Some(answer), _) => Poll::Ready(Ok(answer)),
            (None, true) => Poll::Ready(Err(Lost)),
            (None, false) => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::block_on;

    #[test]
    fn an_answer_reaches_a_thread_that_waits_already() {
        let (sender, receiver) = channel();
        let waiting = std::thread::spawn(move || block_on(receiver));
        sender.send(7);
        assert_eq!(waiting.join().unwrap(), Ok(7));
    }

    #[test]
    fn a_sender_that_goes_away_is_told() {
        let (sender, receiver) = channel::<u8>();
        let waiting = std::thread::spawn(move || block_on(receiver));
        drop(sender);
        assert_eq!(waiting.join().unwrap(), Err(Lost));
    }

    #[test]
    fn answering_returns_the_waker_of_a_receiver_that_waits_and_no_other() {
        let (sender, receiver) = channel();
        assert!(sender.answer(7).is_none());
        assert_eq!(block_on(receiver), Ok(7));
        let (sender, mut receiver) = channel();
        assert!(Pin::new(&mut receiver).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(sender.answer(8).is_some_and(|waker| waker.will_wake(Waker::noop())));
        assert_eq!(block_on(receiver), Ok(8));
    }
}
