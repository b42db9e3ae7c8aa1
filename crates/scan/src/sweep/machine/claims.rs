//! Finding work: claiming, waiting, asking others to share.

use std::collections::HashMap;
use std::time::Duration;

use tessera_contracts::{LogicalTime, ShardEpoch, ShardId};

use super::action::{Action, Answer, Call, CallFailure, Event, Granted, Held, ShardEnd, SweepEnd};
use super::retry::{ATTEMPTS_MAX, Retry};
use super::{Env, WorkerConfig};
use crate::backoff::Backoff;

const IDLE_WAIT_MIN: Duration = Duration::from_millis(5);

/// A worker between two shards.
#[derive(Debug)]
pub(super) struct Claims {
    doing: Doing,
    retry: Retry,
    /// How long to wait between two looks.
    rests: Backoff,
    idle_since: Option<LogicalTime>,
    /// Owners that were asked to share, and when.
    asked: HashMap<(ShardId, ShardEpoch), LogicalTime>,
}

#[derive(Debug)]
enum Doing {
    Nothing,
    Claiming,
    Counting,
    Listing,
    Asking,
    Waiting,
    Ending(ShardEnd),
}

/// What comes next.
pub(super) enum Found {
    Do(Action),
    Granted(Box<Granted>),
}

impl Default for Claims {
    fn default() -> Self {
        Self {
            doing: Doing::Nothing,
            retry: Retry::new(ATTEMPTS_MAX),
            rests: Backoff::new(IDLE_WAIT_MIN),
            idle_since: None,
            asked: HashMap::new(),
        }
    }
}

impl Claims {
    /// The shard that was held is over.
    pub(super) fn shard_over(&mut self, end: ShardEnd) {
        self.doing = Doing::Ending(end);
    }

    pub(super) fn step(&mut self, event: Event, env: &Env<'_>) -> Found {
        let doing = std::mem::replace(&mut self.doing, Doing::Nothing);
        let action = match (doing, event) {
            (Doing::Ending(ShardEnd::RunSettled), Event::Done) => self.end(SweepEnd::RunSettled),
            (Doing::Ending(_) | Doing::Nothing, Event::Done) => {
                self.idle_since = Some(env.at.now);
                self.claim(env)
            }
            (Doing::Waiting, Event::Woken) => self.claim(env),
            // A wish, which its owner may not be able to fulfil, and which is not worth an end.
            (Doing::Asking, Event::Answered(_)) | (Doing::Listing, Event::Answered(Answer::Failed(_))) => {
                self.rest(env.config)
            }
            (_, Event::Answered(Answer::Failed(failure))) => self.failed(failure),
            (_, Event::Answered(Answer::RunSettled | Answer::Lost)) => self.end(SweepEnd::RunSettled),
            (Doing::Claiming, Event::Answered(Answer::Granted(granted))) => {
                self.idle_since = None;
                self.rests.reset();
                self.retry.succeeded();
                return Found::Granted(granted);
            }
            // Without patience there is one look, and the caller says when the next one is.
            (Doing::Claiming, Event::Answered(Answer::NothingToClaim))
                if env.config.patience == Some(Duration::ZERO) =>
            {
                self.end(SweepEnd::Idle)
            }
            (Doing::Claiming, Event::Answered(Answer::NothingToClaim)) => self.call(Doing::Counting, Call::CountOpen),
            (Doing::Counting, Event::Answered(Answer::Open(open))) => self.counted(open, env),
            (Doing::Listing, Event::Answered(Answer::Held(held))) => self.ask(&held, env),
            (doing, event) => unreachable!("a worker without a shard, {doing:?}, is told of {event:?}"),
        };
        Found::Do(action)
    }

    fn claim(&mut self, env: &Env<'_>) -> Action {
        if env.at.stops {
            self.end(SweepEnd::Stopped)
        } else if env.at.gives_way {
            self.end(SweepEnd::GaveWay)
        } else {
            self.call(Doing::Claiming, Call::Claim)
        }
    }

    fn call(&mut self, doing: Doing, call: Call) -> Action {
        self.doing = doing;
        Action::Call(call)
    }

    fn end(&mut self, end: SweepEnd) -> Action {
        *self = Self::default();
        Action::End(end)
    }

    fn failed(&mut self, failure: CallFailure) -> Action {
        let pause = if failure.is_transient { self.retry.failed() } else { None };
        match pause {
            Some(pause) => self.sleep(pause),
            None => self.end(SweepEnd::CoordinatorFailed(failure)),
        }
    }

    fn counted(&mut self, open: u64, env: &Env<'_>) -> Action {
        self.retry.succeeded();
        if open == 0 {
            return self.end(SweepEnd::Finished);
        }
        let idle_since = *self.idle_since.get_or_insert(env.at.now);
        let idle_for = Duration::from_millis(env.at.now.get().saturating_sub(idle_since.get()));
        if env.config.patience.is_some_and(|patience| idle_for >= patience) {
            return self.end(SweepEnd::Idle);
        }
        if env.config.sharing.asks { self.call(Doing::Listing, Call::ListHeld) } else { self.rest(env.config) }
    }

    /// Asks one owner to share.
    fn ask(&mut self, held: &[Held], env: &Env<'_>) -> Action {
        let WorkerConfig { place, sharing, .. } = *env.config;
        let now = env.at.now.get();
        self.asked.retain(|_, asked_at| now.saturating_sub(asked_at.get()) < sharing.ask_interval);
        // Those that wait begin at different owners.
        let first = if held.is_empty() { 0 } else { place as usize % held.len() };
        let mut owners = held[first..].iter().chain(&held[..first]);
        match owners.find(|held| !self.asked.contains_key(&(held.shard, held.epoch))) {
            Some(&Held { shard, epoch }) => {
                self.asked.insert((shard, epoch), env.at.now);
                self.call(Doing::Asking, Call::RequestSplit { shard, epoch })
            }
            None => self.rest(env.config),
        }
    }

    /// Waits a while, each time longer.
    fn rest(&mut self, config: &WorkerConfig) -> Action {
        let pause = self.rests.next(config.idle_wait_max);
        self.sleep(pause)
    }

    fn sleep(&mut self, pause: Duration) -> Action {
        self.doing = Doing::Waiting;
        Action::Wait(pause)
    }
}
