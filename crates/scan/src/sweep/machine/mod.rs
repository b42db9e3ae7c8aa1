//! What a worker does, as a state machine without I/O.
//!
//! A driver asks [`Sweep::step`] what to do, does it, and says what came of it: one [`Action`], one [`Event`]. The machine
//! sees keys, sizes and outcomes, never content; it knows no clock, no file and no thread. In the product a thread drives it
//! ([`crate::sweep::worker`]); the simulator drives the same machine, and stops it between any two actions.
//!
//! For each shard: read a page, search its items, and at a *safe point* make findings durable and then move the cursor, in
//! this order and never the other. Only there are orders answered (yield, split, stop), because only there everything up to
//! the cursor is done. In between the lease is renewed, also in the middle of a large file ([`Sweep::is_renewal_due`]).
//! However a shard ends early, nothing of it counts beyond the last safe point: the next owner goes on from there.
//!
//! `claims` finds work, `hold` does a shard, `retry` says when anything is tried again.

mod action;
mod claims;
mod config;
mod hold;
mod retry;

pub use action::{Action, Answer, Call, CallFailure, Event, Granted, HandBack, Held, Moment, ShardEnd, SweepEnd};
pub use config::{Sharing, WorkerConfig};

use tessera_contracts::LogicalTime;
use tessera_coordination::session::SessionState;

use crate::op_ids::OpIds;
use crate::run::label::RunKey;
use claims::{Claims, Found};
use hold::{Hold, Next};

/// One worker's way through a run.
#[derive(Debug)]
pub struct Sweep {
    config: WorkerConfig,
    /// Which creation of the run its findings are of.
    key: RunKey,
    op_ids: OpIds,
    claims: Claims,
    hold: Option<Hold>,
}

/// What a component needs of its parent for one step.
struct Env<'e> {
    config: &'e WorkerConfig,
    key: RunKey,
    op_ids: &'e mut OpIds,
    at: Moment,
}

impl Sweep {
    /// A worker that has not begun. `key` is the creation of the run that its findings belong to.
    pub fn new(config: WorkerConfig, key: RunKey, op_ids: OpIds) -> Self {
        Self { config, key, op_ids, claims: Claims::default(), hold: None }
    }

    /// What to do next, after `event`. The first event, also after [`Action::End`], is [`Event::Done`].
    pub fn step(&mut self, event: Event, at: Moment) -> Action {
        let mut env = Env { config: &self.config, key: self.key, op_ids: &mut self.op_ids, at };
        let next = match &mut self.hold {
            Some(hold) => hold.step(event, &mut env),
            None => match self.claims.step(event, &env) {
                Found::Do(action) => Next::Do(action),
                Found::Granted(granted) => {
                    let (hold, next) = Hold::begin(*granted, &mut env);
                    self.hold = Some(hold);
                    next
                }
            },
        };
        match next {
            Next::Do(action) => action,
            Next::Over(end) => {
                self.hold = None;
                self.claims.shard_over(end);
                Action::ShardOver(end)
            }
            Next::Fail(end) => {
                self.hold = None;
                self.claims = Claims::default();
                Action::End(end)
            }
        }
    }

    /// What the worker was told.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// The shard that is held, as far as is known.
    pub fn session(&self) -> Option<&SessionState> {
        self.hold.as_ref().map(Hold::session)
    }

    /// Whether the lease is to be renewed now, in the middle of an action. Asked once: the next time is an interval later.
    pub fn is_renewal_due(&mut self, now: LogicalTime) -> bool {
        self.hold.as_mut().is_some_and(|hold| hold.is_renewal_due(now, &self.config))
    }

    /// The answer to a renewal in the middle of an action; whether the action goes on.
    pub fn renewed(&mut self, answer: &Answer) -> bool {
        self.hold.as_mut().is_some_and(|hold| hold.renewed(answer))
    }
}

#[cfg(test)]
mod tests;
