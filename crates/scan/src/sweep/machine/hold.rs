//! One shard, from its cursor to its end.

use std::time::Duration;

use tessera_contracts::keyspace::Fraction;
use tessera_contracts::source_family::{Page, SourceError, SourceErrorClass};
use tessera_contracts::split::{SplitReplacePlan, plan_split_replace, plan_split_residual};
use tessera_contracts::{CursorUpdate, LogicalTime, RestoredShardState};
use tessera_coordination::record::orders::Order;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::session::SessionState;

use super::action::{Action, Answer, Call, CallFailure, Event, Granted, HandBack, ShardEnd, SweepEnd};
use super::retry::{ATTEMPTS_MAX, Retry};
use super::{Env, WorkerConfig};
use crate::findings::record::Span;
use crate::run::label::RunKey;
use crate::source::ahead::Ahead;
use crate::source::item::Item;

/// A worker that holds a shard.
#[derive(Debug)]
pub(super) struct Hold {
    session: SessionState,
    renewed_at: LogicalTime,
    doing: Doing,
    /// Failures of the call under way.
    call_retry: Retry,
    /// Failures of the source since the last progress.
    source_retry: Retry,
    /// The cursor at the last safe point.
    committed: Option<Vec<u8>>,
    /// The last item done.
    reached: Option<Vec<u8>>,
    /// Planned items since the last safe point that were not met.
    missing: u64,
    safe_point_at: LogicalTime,
    /// What is left of the page.
    page: Remainder,
    /// A split was asked for and cannot be made.
    cannot_split: bool,
}

/// What is left of a page.
#[derive(Debug, Default)]
struct Remainder {
    items: std::vec::IntoIter<Item>,
    is_last: bool,
}

/// The action under way.
#[derive(Debug)]
enum Doing {
    Nothing,
    Beginning {
        has_stalled: bool,
    },
    Locating,
    /// Weighs a shard that nobody has begun.
    Weighing,
    /// Opens the shard to read it, or to replace it by several.
    Opening {
        replacement: Option<SplitReplacePlan>,
    },
    Paging,
    Reading,
    Passing,
    Looking(Saving),
    Saving(Saving),
    /// Weighs what lies ahead, to keep this share of it.
    Sharing {
        kept: Fraction,
    },
    Calling(Call),
    /// Waits to call again.
    WaitingToCall(Call),
    WaitingToOpen,
    Abandoning(Abandoned),
}

/// Why a segment is made durable.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Saving {
    SafePoint,
    Completion,
    Replacement(SplitReplacePlan),
}

/// What follows when a segment was abandoned.
#[derive(Debug)]
enum Abandoned {
    Lost,
    OpenAfter(Duration),
    SetAside(SourceError),
}

/// What comes next.
pub(super) enum Next {
    Do(Action),
    /// The shard is over.
    Over(ShardEnd),
    /// The worker cannot go on.
    Fail(SweepEnd),
}

impl Hold {
    /// Begins with a shard that was granted.
    pub(super) fn begin(granted: Granted, env: &mut Env<'_>) -> (Self, Next) {
        let Granted { session, has_stalled } = granted;
        let cursor = session.cursor().last_key().map(<[u8]>::to_vec);
        let mut hold = Self {
            session,
            renewed_at: env.at.now,
            doing: Doing::Beginning { has_stalled },
            call_retry: Retry::new(ATTEMPTS_MAX),
            source_retry: Retry::new(env.config.source_errors_max),
            committed: cursor.clone(),
            reached: cursor.clone(),
            missing: 0,
            safe_point_at: env.at.now,
            page: Remainder::default(),
            cannot_split: false,
        };
        let lease = *hold.session.lease();
        // The run was retired, and another has its id. This worker's findings and job are of the one before.
        let next = if RunKey::new(lease.run(), lease.incarnation()) != env.key {
            hold.release(HandBack::Foreign, env)
        } else if hold.session.restored().is_err() {
            hold.park(ParkReason::Poisoned, "the stored cursor lies outside of the shard".to_owned(), env)
        } else {
            Next::Do(Action::Begin { shard: lease.shard(), fence: lease.fence(), cursor })
        };
        (hold, next)
    }

    pub(super) fn session(&self) -> &SessionState {
        &self.session
    }

    pub(super) fn is_renewal_due(&mut self, now: LogicalTime, config: &WorkerConfig) -> bool {
        let is_due = now.get().saturating_sub(self.renewed_at.get()) >= config.renew_interval;
        if is_due {
            self.renewed_at = now;
        }
        is_due
    }

    pub(super) fn renewed(&mut self, answer: &Answer) -> bool {
        match answer {
            Answer::Renewed(renewal) => {
                self.session.renewed(renewal);
                true
            }
            // The lease lasts for several renewals.
            Answer::Failed(failure) => failure.is_transient,
            _ => false,
        }
    }

    pub(super) fn step(&mut self, event: Event, env: &mut Env<'_>) -> Next {
        let doing = std::mem::replace(&mut self.doing, Doing::Nothing);
        match (doing, event) {
            (Doing::Reading, Event::Read { item, missing, wants_safe_point }) => {
                self.reached = Some(item.key);
                self.missing = missing;
                self.after_item(wants_safe_point, env)
            }
            // What came before it is done; the item itself is not.
            (Doing::Reading, Event::Interrupted) if env.at.stops => self.safe_point(env),
            (Doing::Reading | Doing::Paging, Event::Interrupted) => self.lost(),
            (Doing::Paging, Event::Paged(Page { items, is_last, .. })) => {
                self.page = Remainder { items: items.into_iter(), is_last };
                self.next_item(env)
            }
            (Doing::Beginning { has_stalled }, Event::Done) => {
                let state = self.state();
                self.then(Doing::Locating, Action::Locate { state, has_stalled })
            }
            (Doing::Locating, Event::Done) => self.weigh_or_open(env),
            (Doing::Weighing, Event::Ahead(ahead)) => self.replace_if_large(ahead, env),
            (Doing::Opening { replacement: None }, Event::Done) => self.next_page(),
            (Doing::Opening { replacement: Some(plan) }, Event::Done) => self.save(Saving::Replacement(plan), env),
            (Doing::Passing, Event::Passed { missing }) => {
                self.missing = missing;
                self.look_or_save(Saving::Completion, env)
            }
            (Doing::Looking(saving), Event::Done) => self.save(saving, env),
            (Doing::Saving(saving), Event::Done) => self.saved(saving, env),
            (Doing::Sharing { kept }, Event::Ahead(ahead)) => self.share(ahead, kept, env),
            (Doing::Calling(call), Event::Answered(answer)) => self.answered(call, answer, env),
            (Doing::WaitingToCall(call), Event::Woken) => self.call_again(call),
            (Doing::WaitingToOpen, Event::Woken) => self.open(),
            (Doing::Abandoning(abandoned), Event::Done) => self.abandoned(abandoned, env),
            (Doing::Locating, Event::SourceFailed(error)) => self.set_aside(error, env),
            (
                Doing::Opening { .. } | Doing::Paging | Doing::Reading | Doing::Passing | Doing::Looking(_),
                Event::SourceFailed(error),
            ) => self.source_failed(error),
            (_, Event::StoreFailed(error)) => Next::Fail(SweepEnd::StoreFailed(error)),
            (doing, event) => unreachable!("a worker with a shard, {doing:?}, is told of {event:?}"),
        }
    }

    fn then(&mut self, doing: Doing, action: Action) -> Next {
        self.doing = doing;
        Next::Do(action)
    }

    /// The shard, at the last safe point.
    fn state(&self) -> RestoredShardState {
        let cursor = cursor_at(self.committed.as_deref());
        let semantics = self.session.snapshot().cursor_semantics;
        RestoredShardState::new(self.session.spec(), cursor, semantics)
            .expect("the cursor was in range when the shard was granted, and each checkpoint was accepted")
    }

    // --- reading

    /// A share that no worker has begun and that is still large is cut into several: where one worker had to ask, more are
    /// likely to wait, and asking one by one would halve it again and again.
    fn weigh_or_open(&mut self, env: &Env<'_>) -> Next {
        let is_share = self.session.lease().shard().is_derived();
        if is_share && self.committed.is_none() && env.config.sharing.replace_children >= 2 {
            let state = self.state();
            self.then(Doing::Weighing, Action::LookAhead(state))
        } else {
            self.open()
        }
    }

    fn replace_if_large(&mut self, ahead: Option<Ahead>, env: &mut Env<'_>) -> Next {
        let sharing = env.config.sharing;
        // An error of the source shows again, and is dealt with, when its pages are read.
        let ahead = ahead.filter(|ahead| !ahead.is_whole || ahead.cost() >= sharing.replace_cost_min);
        let plan =
            ahead.and_then(|ahead| plan_split_replace(self.session.spec(), &ahead.cuts(sharing.replace_children)).ok());
        match plan {
            // An earlier owner may have left a segment that was not checkpointed. What it covers is swept again by the parts:
            // so it is made durable first that a later owner began before it.
            replacement @ Some(_) => {
                let state = self.state();
                self.then(Doing::Opening { replacement }, Action::Open(state))
            }
            None => self.open(),
        }
    }

    fn open(&mut self) -> Next {
        let state = self.state();
        self.then(Doing::Opening { replacement: None }, Action::Open(state))
    }

    fn next_page(&mut self) -> Next {
        self.then(Doing::Paging, Action::NextPage)
    }

    fn next_item(&mut self, env: &mut Env<'_>) -> Next {
        match self.page.items.next() {
            Some(item) if self.session.spec().range().reaches_up_to(&item.key) => {
                self.then(Doing::Reading, Action::Read(item))
            }
            None if !self.page.is_last => {
                if self.is_renewal_due(env.at.now, env.config) {
                    self.call(Call::Renew)
                } else {
                    self.next_page()
                }
            }
            // A split gave the rest of the page away, or there is no more.
            _ => {
                self.page = Remainder::default();
                let end = self.session.spec().end().to_vec();
                self.then(Doing::Passing, Action::Pass { end })
            }
        }
    }

    fn after_item(&mut self, wants_safe_point: bool, env: &mut Env<'_>) -> Next {
        let since = env.at.now.get().saturating_sub(self.safe_point_at.get());
        let is_due = wants_safe_point || since >= env.config.safe_point_interval;
        let is_asked = match self.session.orders().most_urgent() {
            None => false,
            Some(Order::PleaseSplit { .. }) => !self.cannot_split,
            Some(Order::Cancelled(_) | Order::PleaseYield) => true,
        };
        if env.at.stops || env.at.gives_way || is_due || is_asked { self.safe_point(env) } else { self.next_item(env) }
    }

    // --- safe points

    fn safe_point(&mut self, env: &mut Env<'_>) -> Next {
        self.look_or_save(Saving::SafePoint, env)
    }

    /// Planned paths are missing only if the target itself is not: a file system that went away takes all of them along.
    fn look_or_save(&mut self, saving: Saving, env: &mut Env<'_>) -> Next {
        if self.missing > 0 { self.then(Doing::Looking(saving), Action::Look) } else { self.save(saving, env) }
    }

    fn save(&mut self, saving: Saving, env: &mut Env<'_>) -> Next {
        if saving == Saving::SafePoint {
            self.safe_point_at = env.at.now;
            if self.reached == self.committed {
                return self.answer_orders(env);
            }
        }
        let (shard, fence) = (self.session.lease().shard(), self.session.lease().fence());
        let span = Span { shard, fence, from: self.committed.clone(), to: self.reached.clone() };
        self.then(Doing::Saving(saving), Action::MakeDurable(span))
    }

    fn saved(&mut self, saving: Saving, env: &mut Env<'_>) -> Next {
        self.missing = 0;
        let (cursor, op_id) = (self.reached.clone(), env.op_ids.next_id());
        self.call(match saving {
            Saving::SafePoint => Call::Checkpoint { cursor, op_id },
            Saving::Completion => Call::Complete { cursor, op_id },
            Saving::Replacement(plan) => Call::SplitReplace { plan, op_id },
        })
    }

    /// Everything up to the cursor is done: does what is asked.
    fn answer_orders(&mut self, env: &mut Env<'_>) -> Next {
        if env.at.stops {
            return self.release(HandBack::Stopping, env);
        }
        match self.session.orders().most_urgent() {
            Some(Order::Cancelled(_)) => Next::Over(ShardEnd::RunSettled),
            Some(Order::PleaseYield) => self.release(HandBack::Asked, env),
            _ if env.at.gives_way => self.release(HandBack::GivingWay, env),
            Some(Order::PleaseSplit { fraction }) if !self.cannot_split => {
                let state = self.state();
                self.then(Doing::Sharing { kept: fraction }, Action::LookAhead(state))
            }
            Some(Order::PleaseSplit { .. }) | None => self.next_item(env),
        }
    }

    /// Gives away what lies ahead, all but the `kept` share of it.
    fn share(&mut self, ahead: Option<Ahead>, kept: Fraction, env: &mut Env<'_>) -> Next {
        let cost_min = env.config.sharing.split_cost_min;
        let ahead = ahead.filter(|ahead| !ahead.is_whole || ahead.cost() >= cost_min);
        let committed = self.committed.as_deref();
        let plan = ahead.and_then(|ahead| plan_split_residual(self.session.spec(), committed, ahead.cut(kept)?).ok());
        match plan {
            Some(plan) => self.call(Call::SplitResidual { plan, op_id: env.op_ids.next_id() }),
            None => self.go_on_unsplit(env),
        }
    }

    /// Nothing to share, or not allowed to: goes on, and does not look ahead again for this order.
    fn go_on_unsplit(&mut self, env: &mut Env<'_>) -> Next {
        self.cannot_split = true;
        self.next_item(env)
    }

    // --- calls

    fn call(&mut self, call: Call) -> Next {
        self.call_retry.succeeded();
        self.call_again(call)
    }

    fn call_again(&mut self, call: Call) -> Next {
        self.then(Doing::Calling(call.clone()), Action::Call(call))
    }

    fn release(&mut self, reason: HandBack, env: &mut Env<'_>) -> Next {
        self.call(Call::Release { reason, op_id: env.op_ids.next_id() })
    }

    fn park(&mut self, reason: ParkReason, detail: String, env: &mut Env<'_>) -> Next {
        self.call(Call::Park { reason, detail, op_id: env.op_ids.next_id() })
    }

    fn answered(&mut self, call: Call, answer: Answer, env: &mut Env<'_>) -> Next {
        match (call, answer) {
            (Call::Renew, answer) => {
                if self.renewed(&answer) {
                    self.next_page()
                } else {
                    self.lost()
                }
            }
            (Call::Release { reason: HandBack::Foreign, .. }, Answer::Done | Answer::Lost) => {
                Next::Over(ShardEnd::RunSettled)
            }
            (_, Answer::Lost | Answer::RunSettled) => self.lost(),
            (call, Answer::Failed(failure)) => self.call_failed(call, failure, env),
            (Call::Checkpoint { cursor, .. }, Answer::Done) => {
                self.source_retry.succeeded();
                self.committed = cursor;
                self.answer_orders(env)
            }
            (Call::Complete { .. }, Answer::Done) => Next::Over(ShardEnd::Done),
            (Call::Release { .. }, Answer::Done) => Next::Over(ShardEnd::HandedBack),
            (Call::Park { .. }, Answer::Done) => Next::Over(ShardEnd::Parked),
            (Call::SplitReplace { .. }, Answer::Done) => Next::Over(ShardEnd::Replaced),
            (Call::SplitResidual { plan, .. }, Answer::Split(residual)) => {
                self.session.narrowed(&plan, residual);
                self.next_item(env)
            }
            (call, answer) => unreachable!("{call:?} is answered by {answer:?}"),
        }
    }

    fn call_failed(&mut self, call: Call, failure: CallFailure, env: &mut Env<'_>) -> Next {
        let pause = if failure.is_transient { self.call_retry.failed() } else { None };
        if let Some(pause) = pause {
            return self.then(Doing::WaitingToCall(call), Action::Wait(pause));
        }
        match call {
            Call::Release { reason: HandBack::Foreign, .. } => Next::Over(ShardEnd::RunSettled),
            // Not given back in time: the lease ends by itself.
            Call::Release { .. } => Next::Over(ShardEnd::Lost),
            // It may have taken effect: then the rest, or all, is another worker's. What is read on would count twice.
            Call::SplitReplace { .. } | Call::SplitResidual { .. } if failure.is_transient => self.lost(),
            // Refused (a limit on shards, say): then it is swept as it is.
            Call::SplitReplace { .. } => self.next_page(),
            Call::SplitResidual { .. } => self.go_on_unsplit(env),
            _ => Next::Fail(SweepEnd::CoordinatorFailed(failure)),
        }
    }

    // --- what ends a shard early

    fn lost(&mut self) -> Next {
        self.abandon(Abandoned::Lost)
    }

    fn source_failed(&mut self, error: SourceError) -> Next {
        let pause = if error.class.is_retryable() { self.source_retry.failed() } else { None };
        self.abandon(match pause {
            Some(pause) => Abandoned::OpenAfter(pause),
            None => Abandoned::SetAside(error),
        })
    }

    /// Nothing since the last safe point counts.
    fn abandon(&mut self, then: Abandoned) -> Next {
        self.reached.clone_from(&self.committed);
        self.missing = 0;
        self.page = Remainder::default();
        let forget_source = matches!(then, Abandoned::SetAside(_));
        self.then(Doing::Abandoning(then), Action::Abandon { forget_source })
    }

    fn abandoned(&mut self, then: Abandoned, env: &mut Env<'_>) -> Next {
        match then {
            Abandoned::Lost => Next::Over(ShardEnd::Lost),
            Abandoned::OpenAfter(pause) => self.then(Doing::WaitingToOpen, Action::Wait(pause)),
            Abandoned::SetAside(error) => self.set_aside(error, env),
        }
    }

    /// Puts a shard aside that cannot be read. What others may be able to read is handed back to them.
    fn set_aside(&mut self, error: SourceError, env: &mut Env<'_>) -> Next {
        let is_elsewhere = matches!(error.class, SourceErrorClass::NotFound | SourceErrorClass::PermissionDenied);
        if is_elsewhere && env.config.is_one_of_many {
            return self.release(HandBack::Unreachable(error.detail), env);
        }
        let reason = match error.class {
            SourceErrorClass::PermissionDenied => ParkReason::PermissionDenied,
            SourceErrorClass::NotFound => ParkReason::NotFound,
            SourceErrorClass::Transient => ParkReason::TooManyErrors,
            SourceErrorClass::Poisoned => ParkReason::Poisoned,
        };
        self.park(reason, error.detail, env)
    }
}

/// The cursor that says everything up to `key` is done.
pub(super) fn cursor_at(key: Option<&[u8]>) -> CursorUpdate<'_> {
    CursorUpdate::new(key, None).expect("it was a cursor before, or the key of a checked item")
}
