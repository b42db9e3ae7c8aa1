//! The way of commands into a lane: a queue with a bound that takes memory as commands come.
//!
//! A channel that reserves its bound would take more memory for commands nobody gives than an idle lane has for all else. And as
//! channels have room for thirty from the first on, commands go in boxes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, TrySendError, channel};

/// A queue of at most `commands_max` commands.
pub(super) fn command_queue<C>(commands_max: usize) -> (CommandSender<C>, CommandInbox<C>) {
    let (sender, receiver) = channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    (CommandSender { sender, waiting: waiting.clone(), commands_max }, CommandInbox { receiver, waiting })
}

#[derive(Debug)]
pub(super) struct CommandSender<C> {
    sender: Sender<Box<C>>,
    waiting: Arc<AtomicUsize>,
    commands_max: usize,
}

impl<C> CommandSender<C> {
    /// Gives a command, or gives it back. Never waits.
    pub(super) fn try_send(&self, command: C) -> Result<(), TrySendError<C>> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.commands_max {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(TrySendError::Full(command));
        }
        self.sender.send(Box::new(command)).map_err(|lost| TrySendError::Disconnected(*lost.0))
    }
}

#[derive(Debug)]
pub(super) struct CommandInbox<C> {
    receiver: Receiver<Box<C>>,
    waiting: Arc<AtomicUsize>,
}

impl<C> CommandInbox<C> {
    /// The next command, if one waits.
    pub(super) fn try_recv(&self) -> Result<C, TryRecvError> {
        let command = self.receiver.try_recv()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Ok(*command)
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
            assert_eq!((inbox.try_recv(), inbox.try_recv()), (Ok(1), Ok(2)));
            assert_eq!(inbox.try_recv(), Err(TryRecvError::Empty));
        }
        drop(inbox);
        assert_eq!(sender.try_send(4), Err(TrySendError::Disconnected(4)));
    }
}
