//! Safe points: where work becomes durable and shards change hands.
//!
//! Findings first, then the cursor. Whoever comes next begins at the cursor, and what lies beyond it is done again.

use std::sync::atomic::Ordering;

use tessera_contracts::keyspace::Fraction;
use tessera_contracts::source_family::CheckedPages;
use tessera_contracts::source_family::ItemPages;
use tessera_contracts::split::{plan_split_replace, plan_split_residual};
use tessera_contracts::{CursorUpdate, RestoredShardState};
use tessera_coordination::error::OperationError;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::orders::Order;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::session::SessionFailure;
use tessera_coordination::{CoordinationFacade, WorkerSession};

use super::sweep::{Held, Position, ShardEnd, Sweep};
use super::{ATTEMPTS_MAX, WorkerError, backoff};
use crate::clock::Clock;
use crate::item::Item;
use crate::sink::record::Segment;
use crate::source::Source;
use crate::source::ahead::Ahead;
use crate::tally::Tally;

impl<C: Clock> Sweep<'_, C> {
    /// Makes durable what was found, moves the cursor, and answers what is asked.
    pub(super) fn safe_point<'b, B: CoordinationFacade, P: ItemPages<Item = Item>>(
        &mut self,
        session: WorkerSession<'b, B>,
        source: &Source,
        pages: &mut CheckedPages<P>,
        at: &mut Position,
        state: &mut RestoredShardState,
    ) -> Result<Held<'b, B>, WorkerError> {
        let session = match self.checkpoint(session, at)? {
            Ok(session) => session,
            Err(end) => return Ok(Err(end)),
        };
        if self.stop.load(Ordering::Relaxed) {
            return self.hand_back(session, ReleaseReason::Drained).map(Err);
        }
        match session.orders().most_urgent() {
            None => Ok(Ok(session)),
            Some(Order::Cancelled(_)) => Ok(Err(ShardEnd::RunSettled)),
            Some(Order::PleaseYield) => self.hand_back(session, ReleaseReason::Yielded).map(Err),
            Some(Order::PleaseSplit { .. }) if at.cannot_split => Ok(Ok(session)),
            Some(Order::PleaseSplit { fraction }) => Ok(self.share(session, source, pages, at, state, fraction)),
        }
    }

    /// Gives away what lies ahead, all but the `kept` share of it.
    fn share<'b, B: CoordinationFacade, P: ItemPages<Item = Item>>(
        &mut self,
        mut session: WorkerSession<'b, B>,
        source: &Source,
        pages: &mut CheckedPages<P>,
        at: &mut Position,
        state: &mut RestoredShardState,
        kept: Fraction,
    ) -> Held<'b, B> {
        let spec = session.spec().to_owned();
        let cursor = CursorUpdate::new(at.committed.as_deref(), None).expect("it was a cursor before");
        let Ok(here) = RestoredShardState::new(spec.view(), cursor, state.semantics()) else {
            unreachable!("a checkpoint at this cursor was accepted for this shard")
        };
        let ahead = Ahead::of(source, &here).ok();
        let ahead = ahead.filter(|ahead| !ahead.is_whole || ahead.cost() >= self.config.sharing.split_cost_min);
        let plan =
            ahead.and_then(|ahead| plan_split_residual(spec.view(), at.committed.as_deref(), ahead.cut(kept)?).ok());
        let split = plan.map(|plan| session.split_residual(self.clock.now(), &plan, self.op_ids.next_id()));
        match split {
            Some(Ok(_)) => {
                let mut narrowed = here;
                if narrowed.narrow(session.spec()).is_ok() {
                    *state = narrowed.clone();
                    pages.narrow(narrowed);
                }
            }
            Some(Err(error)) if error.ends_session() => return Err(ShardEnd::Lost),
            // Nothing to share, or not now: go on, and do not look ahead again for this one.
            Some(Err(_)) | None => at.cannot_split = true,
        }
        Ok(session)
    }

    /// A share that nobody has begun and that is still large is cut into several: where one worker had to ask, more are
    /// likely to wait, and asking one by one would halve it again and again.
    pub(super) fn replace_if_large<'b, B: CoordinationFacade>(
        &mut self,
        session: WorkerSession<'b, B>,
        source: &Source,
        state: &RestoredShardState,
    ) -> Result<Held<'b, B>, WorkerError> {
        let sharing = self.config.sharing;
        let is_share = session.lease().shard().is_derived();
        if !is_share || state.cursor().last_key().is_some() || sharing.replace_children < 2 {
            return Ok(Ok(session));
        }
        // An error of the source shows again, and is dealt with, when its pages are read.
        let Ok(ahead) = Ahead::of(source, state) else { return Ok(Ok(session)) };
        if ahead.is_whole && ahead.cost() < sharing.replace_cost_min {
            return Ok(Ok(session));
        }
        let Ok(plan) = plan_split_replace(session.spec(), &ahead.cuts(sharing.replace_children)) else {
            return Ok(Ok(session));
        };
        let op_id = self.op_ids.next_id();
        let mut session = session;
        for attempt in 1.. {
            match session.split_replace(self.clock.now(), &plan, op_id) {
                Ok(_) => break,
                Err(SessionFailure::Lost { .. }) => return Ok(Err(ShardEnd::Lost)),
                Err(SessionFailure::Kept { session: kept, error }) => {
                    session = *kept;
                    if !error.is_transient() || attempt >= ATTEMPTS_MAX {
                        // Refused (a limit on shards, say): then it is swept as it is.
                        return Ok(Ok(session));
                    }
                    std::thread::sleep(backoff(attempt));
                }
            }
        }
        Ok(Err(ShardEnd::Replaced))
    }

    fn checkpoint<'b, B: CoordinationFacade>(
        &mut self,
        mut session: WorkerSession<'b, B>,
        at: &mut Position,
    ) -> Result<Held<'b, B>, WorkerError> {
        at.safe_point_at = self.clock.now().get();
        if at.reached == at.committed {
            return Ok(Ok(session));
        }
        self.commit_segment(at)?;
        let cursor = CursorUpdate::new(at.reached.as_deref(), None).expect("a checked item's key is a cursor");
        let op_id = self.op_ids.next_id();
        for attempt in 1.. {
            match session.checkpoint(self.clock.now(), cursor, op_id) {
                Ok(_) => break,
                Err(error) if error.ends_session() => return Ok(Err(ShardEnd::Lost)),
                Err(error) if error.is_transient() && attempt < ATTEMPTS_MAX => std::thread::sleep(backoff(attempt)),
                Err(error) => return Err(WorkerError::coordinator(&error, error.is_transient())),
            }
        }
        at.committed.clone_from(&at.reached);
        Ok(Ok(session))
    }

    pub(super) fn complete<B: CoordinationFacade>(
        &mut self,
        mut session: WorkerSession<'_, B>,
        at: &mut Position,
    ) -> Result<ShardEnd, WorkerError> {
        self.commit_segment(at)?;
        let cursor = CursorUpdate::new(at.reached.as_deref(), None).expect("a checked item's key is a cursor");
        let op_id = self.op_ids.next_id();
        for attempt in 1.. {
            match session.complete(self.clock.now(), cursor, op_id) {
                Ok(_) => break,
                Err(SessionFailure::Kept { session: kept, error })
                    if error.is_transient() && attempt < ATTEMPTS_MAX =>
                {
                    session = *kept;
                    std::thread::sleep(backoff(attempt));
                }
                Err(SessionFailure::Lost { .. }) => return Ok(ShardEnd::Lost),
                Err(SessionFailure::Kept { error, .. }) => {
                    return Err(WorkerError::coordinator(&error, error.is_transient()));
                }
            }
        }
        Ok(ShardEnd::Done)
    }

    fn hand_back<B: CoordinationFacade>(
        &mut self,
        mut session: WorkerSession<'_, B>,
        reason: ReleaseReason,
    ) -> Result<ShardEnd, WorkerError> {
        let op_id = self.op_ids.next_id();
        for attempt in 1.. {
            match session.release(self.clock.now(), None, reason, op_id) {
                Ok(_) => break,
                Err(SessionFailure::Kept { session: kept, error })
                    if error.is_transient() && attempt < ATTEMPTS_MAX =>
                {
                    session = *kept;
                    std::thread::sleep(backoff(attempt));
                }
                // Not given back in time: the lease ends by itself.
                Err(_) => return Ok(ShardEnd::Lost),
            }
        }
        Ok(ShardEnd::HandedBack)
    }

    pub(super) fn park<B: CoordinationFacade>(
        &mut self,
        mut session: WorkerSession<'_, B>,
        reason: ParkReason,
        detail: &str,
    ) -> Result<ShardEnd, WorkerError> {
        let op_id = self.op_ids.next_id();
        for attempt in 1.. {
            match session.park(self.clock.now(), Park::because(reason).with_detail(detail), op_id) {
                Ok(_) => break,
                Err(SessionFailure::Kept { session: kept, error })
                    if error.is_transient() && attempt < ATTEMPTS_MAX =>
                {
                    session = *kept;
                    std::thread::sleep(backoff(attempt));
                }
                Err(SessionFailure::Lost { .. }) => return Ok(ShardEnd::Lost),
                Err(SessionFailure::Kept { error, .. }) => {
                    return Err(WorkerError::coordinator(&error, error.is_transient()));
                }
            }
        }
        Ok(ShardEnd::Parked)
    }

    /// Findings and counts since the last safe point become durable.
    fn commit_segment(&mut self, at: &mut Position) -> Result<(), WorkerError> {
        let segment = Segment {
            shard: at.shard,
            fence: at.fence,
            from: at.committed.clone(),
            to: at.reached.clone(),
            tally: std::mem::take(&mut at.tally),
            notes: std::mem::take(&mut at.notes),
        };
        Ok(self.sink.commit(&segment)?)
    }

    /// Nothing since the last safe point counts.
    pub(super) fn drop_segment(&mut self, at: &mut Position) {
        self.sink.abandon();
        at.reached.clone_from(&at.committed);
        at.tally = Tally::default();
        at.notes.clear();
    }
}
