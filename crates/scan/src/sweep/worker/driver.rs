//! Carries out what a sweep asks for, one action at a time.
//!
//! Everything that touches the world comes in from outside: a [`Site`] reads, a [`Calls`] asks the coordinator, the draft's
//! sink writes, the clock tells the time. The product and the simulator differ in these and in nothing else.

use std::ops::Bound;
use std::time::Duration;

use tessera_contracts::source_family::{Page, PageLimits, SourceError};
use tessera_contracts::{LogicalTime, RestoredShardState};
use tessera_coordination::session::SessionState;

use crate::clock::Clock;
use crate::findings::{Draft, SinkError};
use crate::op_ids::OpIds;
use crate::source::ahead::Ahead;
use crate::source::item::Item;
use crate::sweep::{Action, Answer, Call, Event, Moment, ShardEnd, Sweep, SweepEnd, WorkerConfig};

/// What a worker can read from where it is. It deals with one shard at a time, from [`Site::locate`] to [`Site::leave`].
pub trait Site {
    /// Finds the target of a shard, and whether it can be read from here.
    fn locate(&mut self, state: &RestoredShardState, has_stalled: bool) -> Result<(), SourceError>;

    /// Weighs what lies ahead of a cursor.
    fn look_ahead(&mut self, state: &RestoredShardState) -> Result<Ahead, SourceError>;

    /// Begins to read at a cursor, and opens `draft` for it.
    fn open(&mut self, state: &RestoredShardState, draft: &mut Draft) -> Result<(), SourceError>;

    /// The next items; `None` as soon as `goes_on` is false.
    fn next_page(
        &mut self,
        limits: PageLimits,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Page<Item>>, SourceError>;

    /// Reads an item of the last page, the next one each time. What is found goes to `draft`, which also counts the item.
    fn read(&mut self, item: &Item, draft: &mut Draft, goes_on: &mut dyn FnMut() -> bool)
    -> Result<ItemEnd, SinkError>;

    /// Whether what was read last is to be made durable at once. Asked once for each item.
    fn wants_safe_point(&mut self) -> bool;

    /// Makes everything durable that reading items did outside of the draft. The segment follows, and then the cursor.
    fn make_durable(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// What was read since everything was durable last does not count.
    fn abandon(&mut self) {}

    /// Looks whether the target can still be read.
    fn look(&mut self) -> Result<(), SourceError>;

    /// The shard is over. A source that failed for good is opened anew when it is met again.
    fn leave(&mut self, forget_source: bool);

    /// A text as it may be displayed and stored.
    fn shown(&mut self, text: &str) -> String;
}

/// What became of an item.
#[derive(Debug, PartialEq, Eq)]
pub enum ItemEnd {
    /// It is done, one way or another, and counted.
    Done,
    /// It was not read to its end, and does not count.
    Interrupted,
    /// The source cannot be read.
    SourceFailed(SourceError),
}

/// Who calls the coordinator.
pub trait Calls {
    /// Makes a call. `held` is the shard it is about, if it is about one.
    fn call(&mut self, now: LogicalTime, call: &Call, held: Option<&SessionState>) -> Answer;
}

/// A worker that takes one step at a time.
#[derive(Debug)]
pub struct Driver<S, C> {
    sweep: Sweep,
    draft: Draft,
    site: S,
    clock: C,
    /// What came of the last action.
    event: Event,
    gives_way: bool,
}

/// What a step came to.
#[derive(Debug)]
pub enum Stepped {
    /// An action is done.
    Did,
    /// So much time has to pass before the next step.
    Wait(Duration),
    /// A shard is over.
    ShardOver(ShardEnd),
    /// The worker is done. A further step begins anew.
    End(SweepEnd),
}

impl<S: Site, C: Clock> Driver<S, C> {
    /// A worker that has not begun; its findings go to `draft`.
    pub fn new(config: WorkerConfig, draft: Draft, site: S, clock: C) -> Self {
        let sweep = Sweep::new(config, draft.key(), OpIds::random());
        Self { sweep, draft, site, clock, event: Event::Done, gives_way: false }
    }

    /// The same worker, with op ids from this sequence.
    #[must_use]
    pub fn with_op_ids(mut self, op_ids: OpIds) -> Self {
        self.sweep = Sweep::new(self.sweep.config().clone(), self.draft.key(), op_ids);
        self
    }

    /// What it was told.
    pub fn config(&self) -> &WorkerConfig {
        self.sweep.config()
    }

    /// Whether another run waits for the worker: from the next step on it hands back what it holds as soon as it can.
    pub fn give_way(&mut self, gives_way: bool) {
        self.gives_way = gives_way;
    }

    /// Whether it holds a shard.
    pub fn is_holding(&self) -> bool {
        self.sweep.session().is_some()
    }

    /// Does the next action. `stops` tells it to hand back what it holds and end.
    pub fn step(&mut self, calls: &mut impl Calls, stops: bool) -> Stepped {
        let at = Moment { now: self.clock.now(), stops, gives_way: self.gives_way };
        let event = std::mem::replace(&mut self.event, Event::Done);
        let action = self.sweep.step(event, at);
        let (event, stepped) = match action {
            Action::Wait(pause) => (Event::Woken, Stepped::Wait(pause)),
            Action::End(end) => (Event::Done, Stepped::End(end)),
            Action::ShardOver(end) => {
                self.site.leave(false);
                (Event::Done, Stepped::ShardOver(end))
            }
            action => (self.perform(action, calls, at.now), Stepped::Did),
        };
        self.event = event;
        stepped
    }

    fn perform(&mut self, action: Action, calls: &mut impl Calls, now: LogicalTime) -> Event {
        let Self { sweep, draft, site, clock, .. } = self;
        let performed = match action {
            Action::Read(item) => {
                let end = site.read(&item, draft, &mut || keep_alive(sweep, calls, clock));
                match end {
                    Ok(ItemEnd::Done) => {
                        let (missing, wants_safe_point) = (draft.missing(), site.wants_safe_point());
                        return Event::Read { item, missing, wants_safe_point };
                    }
                    Ok(ItemEnd::Interrupted) => return Event::Interrupted,
                    Ok(ItemEnd::SourceFailed(error)) => Err(error),
                    Err(error) => return Event::StoreFailed(error),
                }
            }
            Action::NextPage => {
                let limits = sweep.config().page;
                let page = site.next_page(limits, &mut || keep_alive(sweep, calls, clock));
                page.map(|page| page.map_or(Event::Interrupted, Event::Paged))
            }
            Action::Call(call) => Ok(Event::Answered(calls.call(now, &call, sweep.session()))),
            Action::MakeDurable(span) => Ok(written(site.make_durable().and_then(|()| draft.commit(span, 0)))),
            Action::Begin { shard, fence, cursor } => Ok(written(draft.begin(shard, fence, cursor.as_deref()))),
            Action::Locate { state, has_stalled } => site.locate(&state, has_stalled).map(|()| Event::Done),
            Action::LookAhead(state) => Ok(Event::Ahead(site.look_ahead(&state).ok())),
            Action::Open(state) => site.open(&state, draft).map(|()| Event::Done),
            Action::Pass { end } => {
                draft.pass(Bound::Excluded(&end)).map(|()| Event::Passed { missing: draft.missing() })
            }
            Action::Look => site.look().map(|()| Event::Done),
            Action::Abandon { forget_source } => {
                draft.abandon();
                site.abandon();
                if forget_source {
                    site.leave(true);
                }
                Ok(Event::Done)
            }
            Action::Wait(_) | Action::ShardOver(_) | Action::End(_) => unreachable!("the caller does these"),
        };
        performed.unwrap_or_else(|error| {
            let detail = site.shown(&error.detail);
            Event::SourceFailed(SourceError::new(error.class, detail))
        })
    }
}

fn written(done: Result<(), SinkError>) -> Event {
    done.map_or_else(Event::StoreFailed, |()| Event::Done)
}

/// Renews the lease in the middle of an action when it is time; `false` if it is gone.
fn keep_alive(sweep: &mut Sweep, calls: &mut impl Calls, clock: &impl Clock) -> bool {
    let now = clock.now();
    if !sweep.is_renewal_due(now) {
        return true;
    }
    let answer = calls.call(now, &Call::Renew, sweep.session());
    sweep.renewed(&answer)
}
