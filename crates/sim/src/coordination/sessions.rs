//! Workers whose hold on a shard is a [`WorkerSession`]: the session code that ships, with its own judgement of answers,
//! lost holds and orders.
//!
//! Such a worker is a coroutine that the world lets go on by one turn at a time. Its session talks to a [`Link`]: the backend,
//! as one sees it over a network that loses requests and replies and repeats them later. A call is answered within its turn,
//! or not at all.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tessera_contracts::Cursor;
use tessera_contracts::ids::{LogicalTime, OpId};
use tessera_contracts::split::{
    SplitResidualPlan, plan_split_replace, plan_split_residual, plan_split_residual_at_fraction,
};
use tessera_coordination::error::OperationError;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::orders::Order;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::session::{SessionFailure, WorkerSession};

use super::call::{Backend, Call, RUN, TENANT, Why, cursor, edge_number, key_bytes, key_number, worker_id};
use super::config::Rates;
use super::dice::Dice;
use super::link::Link;
use super::sink::ResultWrite;
use super::stage::{Stage, Violation};

/// How often a call is repeated before the worker gives its shard up for lost.
const ATTEMPTS_MAX: u32 = 6;
/// How many turns pass between two attempts.
const TURNS_BETWEEN: u32 = 8;

/// State shared by the world and one of its session workers.
#[derive(Debug)]
pub(super) struct Air {
    /// Time on the worker's clock.
    pub(super) now: LogicalTime,
    /// Rates of faults.
    pub(super) rates: Rates,
    /// The worker's own chances.
    pub(super) dice: Dice,
    /// The store does not fail any more.
    pub(super) is_calm: bool,
    /// The worker is to stop for a planned restart.
    pub(super) draining: bool,
    /// The worker does not look at its clock before it has asked for something.
    pub(super) oblivious: bool,
    /// Requests that arrive once more, later.
    pub(super) late: Vec<Call>,
    /// A property that one of its calls broke.
    pub(super) broken: Option<Violation>,
    /// Keys that the worker cannot reach.
    out_of_reach: Vec<Range<u16>>,
    ops: u64,
}

impl Air {
    pub(super) fn happens(&mut self, rate: impl Fn(&Rates) -> u32) -> bool {
        let rate = rate(&self.rates);
        self.dice.happens(rate)
    }

    fn next_op(&mut self) -> OpId {
        self.ops += 1;
        OpId::new(self.ops)
    }
}

/// A worker as a coroutine.
pub(super) struct SessionWorker {
    pub(super) air: Rc<RefCell<Air>>,
    task: Pin<Box<dyn Future<Output = ()>>>,
}

impl fmt::Debug for SessionWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionWorker").field("air", &self.air).finish_non_exhaustive()
    }
}

impl SessionWorker {
    /// A worker that holds nothing yet. `life` tells apart the lives of a worker that crashes: op ids are never used again.
    pub(super) fn new<B: Backend + 'static>(
        stage: &Rc<RefCell<Stage<B>>>,
        number: usize,
        life: u64,
        lease_length: u64,
        out_of_reach: Vec<Range<u16>>,
        dice: Dice,
    ) -> Self {
        let ops = ((number as u64 + 1) << 48) | (life << 24);
        let air = Rc::new(RefCell::new(Air {
            now: LogicalTime::new(1),
            rates: Rates::NONE,
            dice,
            is_calm: true,
            draining: false,
            oblivious: false,
            late: Vec::new(),
            broken: None,
            out_of_reach,
            ops,
        }));
        let link = Link { stage: Rc::clone(stage), air: Rc::clone(&air), worker: number };
        Self { air, task: Box::pin(work(link, lease_length)) }
    }

    /// Lets it go on until it has done one thing.
    pub(super) fn take_a_turn(&mut self) {
        let ended = self.task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        debug_assert!(ended.is_pending(), "a worker goes on for ever");
    }
}

/// The rest of the turn belongs to others.
async fn turn() {
    let mut had_it = false;
    poll_fn(|_| if std::mem::replace(&mut had_it, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

async fn work<B: Backend>(mut link: Link<B>, lease_length: u64) {
    let (stage, air, number) = (Rc::clone(&link.stage), Rc::clone(&link.air), link.worker);
    loop {
        turn().await;
        let now = air.borrow().now;
        let Ok(session) = WorkerSession::claim(&mut link, now, TENANT, RUN, worker_id(number)) else { continue };
        let mut shift =
            Shift { next: 0, told: 0, lease_length, stage: Rc::clone(&stage), air: Rc::clone(&air), number };
        shift.sweep(session).await;
        air.borrow_mut().draining = false;
    }
}

/// One hold on one shard.
struct Shift<B> {
    /// The next key to process.
    next: u16,
    /// Keys below this are checkpointed.
    told: u16,
    lease_length: u64,
    stage: Rc<RefCell<Stage<B>>>,
    air: Rc<RefCell<Air>>,
    number: usize,
}

type Session<'b, B> = WorkerSession<'b, Link<B>>;

impl<B: Backend> Shift<B> {
    fn note(&self, mark: &'static str) {
        self.stage.borrow_mut().marks().note(mark);
    }

    /// Everything below `next` is processed.
    fn progress(&self, lo: u16) -> Cursor {
        cursor((self.next > lo).then(|| self.next - 1))
    }

    async fn sweep(&mut self, mut session: Session<'_, B>) {
        let lo = edge_number(session.spec().start());
        self.next = session.cursor().last_key().map_or(lo, |key| key_number(key) + 1);
        self.told = self.next;
        loop {
            turn().await;
            let now = self.air.borrow().now;
            let hi = edge_number(session.spec().end());
            let progress = self.progress(lo);
            let is_due = session.lease().deadline().get() < now.get() + self.lease_length / 2;
            if is_due && !self.air.borrow().oblivious {
                match session.renew(now) {
                    Err(error) if error.ends_session() => return self.note("a session lost its hold"),
                    _ => continue,
                }
            }
            if *session.orders() != Default::default() {
                match self.answer_orders(session, &progress).await {
                    Some(kept) => session = kept,
                    None => return,
                }
                continue;
            }
            if self.air.borrow().draining {
                let given = (self.next > lo).then_some(&progress);
                let op = self.air.borrow_mut().next_op();
                return self.end(session, |session, now| session.drain(now, given.map(Cursor::as_update), op)).await;
            }
            if self.air.borrow().out_of_reach.iter().any(|range| range.contains(&lo)) {
                let why = Why::unreachable(now, self.lease_length, &mut self.air.borrow_mut().dice);
                let given = (self.next > lo).then_some(&progress);
                let op = self.air.borrow_mut().next_op();
                return self
                    .end(session, |session, now| session.release(now, given.map(Cursor::as_update), why.reason(), op))
                    .await;
            }
            match self.draw_deed(lo, hi) {
                Deed::Park => {
                    let op = self.air.borrow_mut().next_op();
                    let park = Park::because(ParkReason::Other).with_detail("simulated");
                    return self.end(session, |session, now| session.park(now, park, op)).await;
                }
                Deed::Release => {
                    let given = (self.next > lo).then_some(&progress);
                    let op = self.air.borrow_mut().next_op();
                    let reason = ReleaseReason::Released;
                    return self
                        .end(session, |session, now| session.release(now, given.map(Cursor::as_update), reason, op))
                        .await;
                }
                Deed::Replace(at) => {
                    let plan = plan_split_replace(session.spec(), &[&key_bytes(at)]).expect("the point lies inside");
                    let op = self.air.borrow_mut().next_op();
                    return self.end(session, |session, now| session.split_replace(now, &plan, op)).await;
                }
                Deed::Residual(at) => {
                    if !self.split(&mut session, &progress, at).await {
                        return;
                    }
                }
                Deed::Write => {
                    if !self.write(&session) {
                        return;
                    }
                }
                Deed::Checkpoint => {
                    if !self.checkpoint(&mut session, &progress).await {
                        return;
                    }
                }
                Deed::Complete => {
                    self.air.borrow_mut().oblivious = false;
                    let op = self.air.borrow_mut().next_op();
                    return self.end(session, |session, now| session.complete(now, progress.as_update(), op)).await;
                }
            }
        }
    }

    fn draw_deed(&self, lo: u16, hi: u16) -> Deed {
        let mut air = self.air.borrow_mut();
        let least = self.next.max(lo + 1);
        if air.happens(|rates| rates.park) {
            return Deed::Park;
        }
        if air.happens(|rates| rates.release) {
            return Deed::Release;
        }
        if least < hi && air.happens(|rates| rates.split_residual) {
            return Deed::Residual(air.dice.between(u64::from(least), u64::from(hi) - 1) as u16);
        }
        if hi - lo > 2 && air.happens(|rates| rates.split_replace) {
            return Deed::Replace(air.dice.between(u64::from(lo) + 1, u64::from(hi) - 1) as u16);
        }
        if self.next >= hi {
            return Deed::Complete;
        }
        if self.next > self.told && air.dice.below(3) == 0 { Deed::Checkpoint } else { Deed::Write }
    }

    /// Whether the work goes on.
    fn write(&mut self, session: &Session<'_, B>) -> bool {
        let result = ResultWrite::under(session.lease(), self.number, self.next);
        let written = self.stage.borrow_mut().write(&result);
        match written {
            Ok(true) => {
                self.next += 1;
                true
            }
            Ok(false) => {
                self.note("a zombie's result was refused");
                false
            }
            Err(violation) => {
                self.air.borrow_mut().broken = Some(violation);
                false
            }
        }
    }

    async fn checkpoint(&mut self, session: &mut Session<'_, B>, progress: &Cursor) -> bool {
        self.air.borrow_mut().oblivious = false;
        let op = self.air.borrow_mut().next_op();
        for _ in 0..ATTEMPTS_MAX {
            let now = self.air.borrow().now;
            match session.checkpoint(now, progress.as_update(), op) {
                Ok(_) => {
                    self.told = self.next;
                    return true;
                }
                Err(error) if error.is_transient() => self.wait().await,
                Err(_) => return false,
            }
        }
        false
    }

    async fn split(&mut self, session: &mut Session<'_, B>, progress: &Cursor, at: u16) -> bool {
        let plan = plan_split_residual(session.spec(), progress.last_key(), &key_bytes(at))
            .expect("the point is ahead and inside");
        self.split_off(session, &plan).await
    }

    /// A worker that never hears whether its shard shrank must not go on.
    async fn split_off(&mut self, session: &mut Session<'_, B>, plan: &SplitResidualPlan) -> bool {
        let op = self.air.borrow_mut().next_op();
        for _ in 0..ATTEMPTS_MAX {
            let now = self.air.borrow().now;
            match session.split_residual(now, plan, op) {
                Ok(_) => return true,
                Err(error) if error.is_transient() => self.wait().await,
                Err(error) => return !error.ends_session(),
            }
        }
        false
    }

    async fn answer_orders<'b>(&mut self, mut session: Session<'b, B>, progress: &Cursor) -> Option<Session<'b, B>> {
        match session.orders().most_urgent() {
            Some(Order::Cancelled(_)) => None,
            Some(Order::PleaseYield) => {
                let cursor = Some(progress.as_update()).filter(|cursor| !cursor.is_initial());
                let op = self.air.borrow_mut().next_op();
                self.end(session, |session, now| session.release(now, cursor, ReleaseReason::Yielded, op)).await;
                None
            }
            Some(Order::PleaseSplit { fraction }) => {
                match plan_split_residual_at_fraction(session.spec(), progress.last_key(), fraction) {
                    Ok(plan) => {
                        let goes_on = self.split_off(&mut session, &plan).await;
                        // Refused for good, the order would stand for ever.
                        let is_answered = goes_on && session.orders().most_urgent().is_none();
                        if is_answered {
                            self.note("a session split at a safe point");
                        }
                        is_answered.then_some(session)
                    }
                    // An order that cannot be followed stands until the next renewal; the work goes on below it.
                    Err(_) => self.after_unanswered(session).await,
                }
            }
            None => Some(session),
        }
    }

    /// Nothing is left to be cut: finish the shard.
    async fn after_unanswered<'b>(&mut self, session: Session<'b, B>) -> Option<Session<'b, B>> {
        let lo = edge_number(session.spec().start());
        while self.next < edge_number(session.spec().end()) {
            if !self.write(&session) {
                return None;
            }
            turn().await;
        }
        let progress = self.progress(lo);
        let op = self.air.borrow_mut().next_op();
        self.end(session, |session, now| session.complete(now, progress.as_update(), op)).await;
        None
    }

    /// Repeats the call that ends the session until it is heard, the hold is lost, or patience is.
    async fn end<'b, T, E>(
        &mut self,
        mut session: Session<'b, B>,
        mut call: impl FnMut(Session<'b, B>, LogicalTime) -> Result<T, SessionFailure<Session<'b, B>, E>>,
    ) {
        for _ in 0..ATTEMPTS_MAX {
            let now = self.air.borrow().now;
            match call(session, now) {
                Ok(_) => return self.note("a session ended as it wished"),
                Err(failure) => match failure.into_session() {
                    Some(kept) => session = kept,
                    None => return self.note("a session lost its hold"),
                },
            }
            self.note("a session stood through a failure");
            self.wait().await;
        }
    }

    async fn wait(&self) {
        for _ in 0..TURNS_BETWEEN {
            turn().await;
        }
    }
}

/// The next deed of a session worker.
enum Deed {
    Park,
    Release,
    Replace(u16),
    Residual(u16),
    Write,
    Checkpoint,
    Complete,
}
