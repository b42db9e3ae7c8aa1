//! Acknowledgements and commands that wait for the log.
//!
//! A write is acknowledged when the log says that it is safe, not before: an acknowledgement is a promise that outlives a
//! crash. Until then the answer waits in a bounded queue; an answer that has waited longer than any peer does is dropped
//! from it, and when the queue is full writes are refused as busy. Of an announcement only the part that this lane keeps
//! is waited for: the parts it hands to other lanes are announced again at half their lifetime anyway.
//!
//! Our own commands that change the durable state wait in the same way.

use alloc::collections::VecDeque;

use tessera_contracts::point::ContentId;
use tessera_contracts::prefix_map::Slot;

use crate::node::admission::ReplyTo;
use crate::node::command::{Answer, CommandId, Outcome};
use crate::node::config::NodeConfig;
use crate::node::context::Context;
use crate::node::outbox::{Importance, Logged, Outbox};
use crate::node::reserve_queue;
use crate::time::Now;

/// No peer waits longer for an answer: the longest timeout and its jitter, doubled.
const PROMISE_MS_MAX: u64 = 1500;

/// A command waits no longer than this for the log. Then it says so.
const UNLOGGED_MS_MAX: u64 = 10_000;

/// Acknowledgements for which room is reserved at the start; a larger queue grows when it is needed.
const PROMISES_RESERVED_MAX: usize = 64;

/// The answer to a write.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Promised {
    Stored { id: ContentId, closer_max: u8 },
    Announced { kept: u16 },
}

/// An acknowledgement that waits for the log.
#[derive(Debug, Clone, Copy)]
struct Promise {
    at: u64,
    made_ms: u64,
    to: ReplyTo,
    reply: Promised,
}

/// A command of our own that is done but for the log.
#[derive(Debug)]
struct Unlogged {
    at: u64,
    made_ms: u64,
    command: CommandId,
    outcome: Outcome,
}

/// Answers that wait for the log, in the log's order.
#[derive(Debug)]
pub(crate) struct Ledger {
    promises: VecDeque<Promise>,
    unlogged: VecDeque<Unlogged>,
    last_logged: Logged,
    durable: u64,
}

impl Ledger {
    pub(super) fn new(config: &NodeConfig) -> Self {
        Self {
            promises: VecDeque::with_capacity(config.promises_max.min(PROMISES_RESERVED_MAX)),
            unlogged: VecDeque::new(),
            last_logged: Logged::Safe,
            durable: 0,
        }
    }

    pub(super) fn reserve_all(&mut self, config: &NodeConfig) {
        reserve_queue(&mut self.promises, config.promises_max);
        reserve_queue(&mut self.unlogged, config.promises_max);
    }

    /// Acknowledgements and commands that wait.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.promises.len(), self.unlogged.len())
    }

    /// Whether as many acknowledgements wait as may.
    pub(super) fn is_full(&self, config: &NodeConfig) -> bool {
        self.promises.len() >= config.promises_max
    }

    /// Logs a piece that a restart must find. False if the log does not take it.
    pub(crate) fn log(&mut self, cx: &mut Context<'_>, kind: u8, id: &ContentId, payload: &[u8]) -> bool {
        self.log_to(cx.out, kind, cx.place.slot_of(id), payload)
    }

    pub(super) fn log_to(&mut self, out: &mut dyn Outbox, kind: u8, slot: Slot, payload: &[u8]) -> bool {
        let logged = out.log(kind, slot, payload, Importance::Hard);
        if logged != Logged::Refused {
            self.last_logged = logged;
        }
        logged != Logged::Refused
    }

    /// The last piece logged, if it is not safe yet.
    pub(super) fn last_logged(&self) -> Logged {
        match self.last_logged {
            Logged::At(number) if number <= self.durable => Logged::Safe,
            last => last,
        }
    }

    /// Has an acknowledgement wait for the log. Numbers grow, so the queue is sorted and never longer than was checked before the write.
    pub(super) fn promise(&mut self, now: Now, at: u64, to: ReplyTo, reply: Promised) {
        self.promises.push_back(Promise { at, made_ms: now.mono_ms, to, reply });
    }

    /// The log has made everything up to `number` safe: commands that waited for it are complete.
    pub(super) fn on_durable(&mut self, cx: &mut Context<'_>, number: u64) {
        self.durable = self.durable.max(number);
        while let Some(unlogged) = self.unlogged.pop_front_if(|unlogged| unlogged.at <= number) {
            cx.out.complete(unlogged.command, unlogged.outcome);
        }
    }

    /// The next acknowledgement that may be given now that everything up to `number` is safe.
    pub(super) fn next_kept(&mut self, number: u64) -> Option<(ReplyTo, Promised)> {
        let promise = self.promises.pop_front_if(|promise| promise.at <= number)?;
        Some((promise.to, promise.reply))
    }

    /// Completes a command of our own: at once if everything logged is safe or nothing was, else when it is.
    pub(crate) fn complete(&mut self, cx: &mut Context<'_>, command: CommandId, outcome: Outcome) {
        let changed = matches!(outcome.answer, Answer::Providing(_) | Answer::Noted | Answer::Written(_));
        match self.last_logged() {
            Logged::At(at) if changed && self.unlogged.len() < cx.place.config.promises_max => {
                self.unlogged.push_back(Unlogged { at, made_ms: cx.now.mono_ms, command, outcome });
            }
            Logged::At(_) if changed => cx.out.complete(command, Outcome { answer: Answer::NotLogged, ..outcome }),
            _ => cx.out.complete(command, outcome),
        }
    }

    /// Gives up acknowledgements that came too late to be of use, and tells our own commands that the log is late.
    pub(crate) fn drop_old(&mut self, cx: &mut Context<'_>) {
        let is_older = |made_ms: u64, most_ms: u64| cx.now.mono_ms.saturating_sub(made_ms) > most_ms;
        while let Some(late) = self.unlogged.pop_front_if(|unlogged| is_older(unlogged.made_ms, UNLOGGED_MS_MAX)) {
            cx.out.complete(late.command, Outcome { answer: Answer::NotLogged, ..late.outcome });
        }
        while self.promises.pop_front_if(|promise| is_older(promise.made_ms, PROMISE_MS_MAX)).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::node::lone_lane::{T, lane, lane_with};
    use crate::node::outbox::MessageClass;
    use alloc::vec::Vec;
    use core::time::Duration;
    use tessera_contracts::prefix_map::LaneIndex;

    /// A log that has yet to make anything safe, and the answers that commands got.
    #[derive(Default)]
    struct SlowLog(u64, Vec<Answer>);

    impl Outbox for SlowLog {
        fn send(&mut self, _: Addr, _: &[u8]) {}
        fn forward(&mut self, _: Slot, _: Addr, _: &[u8], _: u8) {}
        fn message(&mut self, _: LaneIndex, _: MessageClass, _: u8, _: u64, _: &[u8]) {}
        fn log(&mut self, _: u8, _: Slot, _: &[u8], _: Importance) -> Logged {
            self.0 += 1;
            Logged::At(self.0)
        }
        fn complete(&mut self, _: CommandId, outcome: Outcome) {
            self.1.push(outcome.answer);
        }
    }

    fn log_and_complete(ledger: &mut Ledger, cx: &mut Context<'_>) {
        ledger.log(cx, 1, &ContentId::from_bytes([7; 32]), &[]);
        ledger.complete(cx, CommandId(1), Outcome::local(Answer::Noted));
    }

    #[test]
    fn a_command_completes_when_the_log_has_what_it_changed_and_not_before() {
        let (mut lane, mut out, mut ledger) = (lane(), SlowLog::default(), Ledger::new(&NodeConfig::default()));
        lane.with(T, &mut out, |_, cx| log_and_complete(&mut ledger, cx));
        lane.with(T, &mut out, |_, cx| ledger.on_durable(cx, 0));
        assert_eq!((ledger.waiting(), out.1.len()), ((0, 1), 0));
        lane.with(T, &mut out, |_, cx| ledger.on_durable(cx, 1));
        assert_eq!((ledger.waiting(), &out.1[..]), ((0, 0), &[Answer::Noted][..]));
        lane.with(T, &mut out, |_, cx| ledger.complete(cx, CommandId(2), Outcome::local(Answer::Noted)));
        assert_eq!(out.1.len(), 2, "nothing was logged since");
    }

    #[test]
    fn a_command_that_finds_no_room_to_wait_or_waits_for_too_long_says_that_it_is_not_logged() {
        let config = NodeConfig { promises_max: 1, ..NodeConfig::default() };
        let (mut lane, mut out, mut ledger) = (lane_with(config.clone()), SlowLog::default(), Ledger::new(&config));
        for _ in 0..2 {
            lane.with(T, &mut out, |_, cx| log_and_complete(&mut ledger, cx));
        }
        assert_eq!((ledger.waiting(), &out.1[..]), ((0, 1), &[Answer::NotLogged][..]));
        for (ms, answers) in [(UNLOGGED_MS_MAX, 1), (UNLOGGED_MS_MAX + 1, 2)] {
            lane.with(T.later(Duration::from_millis(ms)), &mut out, |_, cx| ledger.drop_old(cx));
            assert_eq!(out.1, alloc::vec![Answer::NotLogged; answers]);
        }
    }
}
