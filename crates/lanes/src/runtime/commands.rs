//! The way of commands into a lane: a queue with a bound that takes memory as commands come.
//!
//! A lane takes its commands one at a time and owns no others. So those that wait when it is given up are dropped by the thread that
//! gives it up, however long its thread hangs, and their callers learn of it: a command goes with the way to answer it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::TrySendError;

use crate::ring::inbox::Inbox;

/// A queue of at most `commands_max` commands.
pub(super) fn command_queue<C: Send>(commands_max: usize) -> (CommandSender<C>, CommandInbox<C>) {
    let queue = Arc::new(Queue { commands: Inbox::new(), waiting: AtomicUsize::new(0) });
    (CommandSender { queue: queue.clone(), commands_max }, CommandInbox { queue })
}

#[derive(Debug)]
struct Queue<C> {
    commands: Inbox<C>,
    waiting: AtomicUsize,
}

#[derive(Debug)]
pub(super) struct CommandSender<C> {
    queue: Arc<Queue<C>>,
    commands_max: usize,
}

impl<C> CommandSender<C> {
    /// Gives a command, or gives it back. Never waits.
    pub(super) fn try_send(&self, command: C) -> Result<(), TrySendError<C>> {
        if self.queue.waiting.fetch_add(1, Ordering::Relaxed) >= self.commands_max {
            self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(TrySendError::Full(command));
        }
        self.queue.commands.give(command).map_err(|command| {
            self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
            TrySendError::Disconnected(command)
        })
    }

    /// Closes the queue and returns the commands that the lane has not taken, whether the lane still runs or not.
    pub(super) fn close(self) -> Vec<C> {
        self.queue.commands.close()
    }
}

/// The lane's end. When it is dropped, so are waiting commands, and nothing can be sent any more.
#[derive(Debug)]
pub(super) struct CommandInbox<C> {
    queue: Arc<Queue<C>>,
}

impl<C> CommandInbox<C> {
    /// The next command, if one waits.
    pub(super) fn take(&self) -> Option<C> {
        let command = self.queue.commands.take()?;
        self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(command)
    }
}

impl<C> Drop for CommandInbox<C> {
    fn drop(&mut self) {
        let dropped = self.queue.commands.close();
        // They wait no more: a sender is now told that the lane is gone, not that it is busy.
        self.queue.waiting.fetch_sub(dropped.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_wait_as_may_and_room_comes_back() {
        let (sender, inbox) = command_queue(2);
        for _ in 0..3 {
            assert_eq!((sender.try_send(1), sender.try_send(2)), (Ok(()), Ok(())));
            assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
            assert_eq!((inbox.take(), inbox.take()), (Some(1), Some(2)));
            assert_eq!(inbox.take(), None);
        }
        drop(inbox);
        assert_eq!(sender.try_send(4), Err(TrySendError::Disconnected(4)));
    }

    #[test]
    fn a_lane_that_is_gone_is_not_taken_for_a_busy_one_however_much_waited_for_it() {
        let (sender, inbox) = command_queue(2);
        assert!((0..2).all(|n| sender.try_send(n).is_ok()));
        drop(inbox);
        for n in 0..5 {
            assert_eq!(sender.try_send(n), Err(TrySendError::Disconnected(n)));
        }
    }

    #[test]
    fn commands_that_a_lane_has_not_taken_can_be_read_without_it() {
        let (sender, inbox) = command_queue(4);
        assert!((0..4).all(|n| sender.try_send(n).is_ok()));
        assert_eq!(inbox.take(), Some(0));
        assert_eq!(sender.close(), [1, 2, 3]);
        assert_eq!(inbox.take(), None);
    }
}
