//! One at a time for each id: a call reads a version and writes the next one before another call does either, and the rest of a value
//! that was given up is gone before the same value is stored again.
//!
//! There are as many turns as calls under way: an id without a waiting call is not remembered.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use tessera_contracts::point::ContentId;

use crate::oneshot::{lock, wake};

/// The calls that wait, by id.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<Queues>);

#[derive(Debug, Default)]
struct Queues {
    tickets: u64,
    /// Calls that wait for an id, in order of arrival; the first one has its turn.
    waiting: HashMap<ContentId, VecDeque<(u64, Option<Waker>)>>,
}

/// A turn, or a place in the queue for it. Dropping it lets the next one have its turn.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    id: ContentId,
    ticket: u64,
}

impl Turns {
    /// Waits until all earlier calls at `id` are done.
    pub(crate) async fn take(self: &Arc<Self>, id: ContentId) -> Turn {
        let ticket = {
            let mut queues = lock(&self.0);
            queues.tickets += 1;
            let ticket = queues.tickets;
            queues.waiting.entry(id).or_default().push_back((ticket, None));
            ticket
        };
        // From here on a call that is dropped gives up its place.
        let turn = Turn { turns: self.clone(), id, ticket };
        poll_fn(|cx| {
            let mut queues = lock(&self.0);
            let Some(queue) = queues.waiting.get_mut(&id) else { return Poll::Ready(()) };
            match queue.iter_mut().position(|(waiting, _)| *waiting == ticket) {
                Some(at @ 1..) => {
                    // Dropping a waker runs the executor's code, which may come back here.
                    let before = queue[at].1.replace(cx.waker().clone());
                    drop(queues);
                    drop(before);
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queues = lock(&self.turns.0);
        let Some(queue) = queues.waiting.get_mut(&self.id) else { return };
        let at = queue.iter().position(|(ticket, _)| *ticket == self.ticket);
        let own = at.and_then(|at| queue.remove(at));
        let next = queue.front_mut().and_then(|(_, waker)| waker.take());
        if queue.is_empty() {
            queues.waiting.remove(&self.id);
        }
        drop(queues);
        drop(own);
        if let Some(waker) = next {
            wake(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    /// A waker whose drop, as an executor's may, ends another call, which gives up its place.
    struct EndsAnother(#[expect(dead_code, reason = "it is there to be dropped")] Turn);

    impl std::task::Wake for EndsAnother {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_waker_whose_drop_gives_up_another_turn_is_dropped_without_the_lock() {
        let turns = Arc::new(Turns::default());
        let id = ContentId::from_bytes([1; 32]);
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(_held) = pin!(turns.take(id)).poll(&mut cx) else { panic!("no call came before") };
        let ends_another = |other: u8| {
            let other = ContentId::from_bytes([other; 32]);
            let Poll::Ready(another) = pin!(turns.take(other)).poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("no call came before")
            };
            Waker::from(Arc::new(EndsAnother(another)))
        };
        let mut waiting = Box::pin(turns.take(id));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&ends_another(2))).is_pending());
        // Another waker takes the place of the first one, and goes with the call.
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&ends_another(3))).is_pending());
        drop(waiting);
        assert_eq!(lock(&turns.0).waiting.len(), 1, "only the first one is left");
    }

    #[test]
    fn turns_come_in_order_and_a_call_that_gives_up_is_passed_over() {
        let turns = Arc::new(Turns::default());
        let (id, other) = (ContentId::from_bytes([1; 32]), ContentId::from_bytes([2; 32]));
        let mut cx = Context::from_waker(Waker::noop());
        let mut first = pin!(turns.take(id));
        let Poll::Ready(held) = first.as_mut().poll(&mut cx) else { panic!("no call came before") };
        let mut second = Box::pin(turns.take(id));
        let mut third = pin!(turns.take(id));
        assert!(second.as_mut().poll(&mut cx).is_pending() && third.as_mut().poll(&mut cx).is_pending());
        assert!(pin!(turns.take(other)).poll(&mut cx).is_ready(), "another id is another queue");
        drop(second);
        assert!(third.as_mut().poll(&mut cx).is_pending(), "the first one is still at it");
        drop(held);
        assert!(third.as_mut().poll(&mut cx).is_ready());
        assert!(lock(&turns.0).waiting.is_empty(), "nothing is remembered of ended calls");
    }
}
