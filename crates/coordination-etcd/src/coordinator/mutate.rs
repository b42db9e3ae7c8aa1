//! The loop around every operation on one shard: decide, store, and decide again on what others wrote.

use std::sync::Arc;

use tessera_contracts::{ShardKey, TenantId};
use tessera_coordination::decide::Verdict;
use tessera_coordination::error::{AccessRefused, IdempotentOutcome, InfraError};
use tessera_coordination::events::EventKind;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::state::Change;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::record::view::ShardView;

use super::commit::{Commit, Guard, Transition};
use super::present::{Asked, Creation, Present};
use super::stored::StoredShard;
use super::{Inner, contended, lock, undecided};
use crate::kv::{Kv, Moment};

/// What an operation answered, and what to tell observers.
pub(super) struct Done<T> {
    pub(super) answer: T,
    pub(super) event: Option<EventKind>,
}

/// An operation on one shard.
#[derive(Clone, Copy)]
pub(super) struct OnShard {
    pub(super) operation: &'static str,
    pub(super) tenant: TenantId,
    pub(super) key: ShardKey,
    pub(super) guard: Guard,
    pub(super) asks_who_is_there: bool,
}

/// What to do about an operation on a shard.
pub(super) enum Step<T> {
    /// Nothing; answer this.
    Answer(T),
    /// Store this record, then answer.
    Store { next: Arc<ShardRecord>, answer: T, event: Option<EventKind> },
}

impl<T> Step<IdempotentOutcome<T>> {
    /// The step for a verdict whose execution is only a change of the record.
    pub(super) fn of(view: &ShardView<'_>, record: &ShardRecord, verdict: Verdict<Change<'_>, T>, answer: T) -> Self {
        match verdict {
            Verdict::Replay(outcome) => Self::Answer(outcome),
            Verdict::Execute(change) => {
                let event = EventKind::of_change(view.key.shard, &change);
                let mut next = record.clone();
                next.apply(&change, &[]);
                Self::Store { next: Arc::new(next), answer: IdempotentOutcome::Executed(answer), event }
            }
        }
    }
}

impl<K: Kv> Inner<K> {
    /// Carries out an operation with an op id on one shard.
    pub(super) async fn mutate<T, E>(
        &self,
        operation: &'static str,
        tenant: TenantId,
        key: ShardKey,
        guard: Guard,
        decide: impl Fn(&ShardView<'_>, &ShardRecord) -> Result<Step<IdempotentOutcome<T>>, E> + Send,
    ) -> Result<Done<IdempotentOutcome<T>>, E>
    where
        E: From<AccessRefused> + From<InfraError>,
        T: Send,
    {
        let on_shard = OnShard { operation, tenant, key, guard, asks_who_is_there: false };
        self.mutate_among(on_shard, move |view, record, _| decide(view, record)).await
    }

    /// The same for a decision that also depends on who takes part in the run, if it asks for that.
    pub(super) async fn mutate_among<T, E>(
        &self,
        on_shard: OnShard,
        decide: impl Fn(&ShardView<'_>, &ShardRecord, &Present) -> Result<Step<IdempotentOutcome<T>>, E> + Send,
    ) -> Result<Done<IdempotentOutcome<T>>, E>
    where
        E: From<AccessRefused> + From<InfraError>,
        T: Send,
    {
        let OnShard { operation, tenant, key, guard, asks_who_is_there } = on_shard;
        let deadline = self.deadline();
        let mut stored = self.known::<E>(operation, tenant, key, deadline).await?;
        // Set once an answer was lost: a replay then means that it was this call that executed.
        let mut in_doubt: Option<Option<EventKind>> = None;
        let mut unanswered = None;
        for attempt in 1..=self.config.attempts_max {
            let mut present = Present::default();
            if asks_who_is_there {
                let of = Creation { tenant, run: key.run, incarnation: stored.record.incarnation };
                present = self.present(operation, of, Asked::About(&stored.record.unreachable), deadline).await?;
            }
            let step = decide(&stored.view(self), &stored.record, &present);
            let decided_on_memory = !stored.fresh;
            match step {
                Err(_) | Ok(Step::Answer(_)) if decided_on_memory => {
                    stored = self.reload::<E>(operation, tenant, key, deadline).await?;
                    continue;
                }
                Err(_) if stored.may_yet_become(unanswered, guard) => return Err(undecided(operation).into()),
                Err(refused) => return Err(refused),
                Ok(Step::Answer(answer)) => {
                    return Ok(match in_doubt {
                        Some(event) => Done { answer: IdempotentOutcome::Executed(answer.into_inner()), event },
                        None => Done { answer, event: None },
                    });
                }
                Ok(Step::Store { next, answer, event }) => {
                    let mut transition = Transition::new(&stored, &next, guard);
                    if asks_who_is_there && next.state.head.status == ShardStatus::Parked {
                        transition.compares.push(present.none_came(&self.space, tenant));
                    }
                    match self.commit(operation, transition, deadline).await? {
                        Commit::Won { .. } => return Ok(Done { answer, event }),
                        Commit::Lost(fresh) => stored = *fresh.ok_or(AccessRefused::ShardNotFound { key })?,
                        Commit::Doubtful(fresh) => {
                            in_doubt = Some(event);
                            unanswered = Some(stored.hot_revision);
                            stored = *fresh.ok_or(AccessRefused::ShardNotFound { key })?;
                        }
                    }
                }
            }
            self.breathe(attempt).await;
        }
        Err(contended(operation).into())
    }

    /// The shard as remembered, or else as read.
    pub(super) async fn known<E>(
        &self,
        operation: &'static str,
        tenant: TenantId,
        key: ShardKey,
        deadline: Moment,
    ) -> Result<StoredShard, E>
    where
        E: From<AccessRefused> + From<InfraError>,
    {
        let remembered = lock(&self.cache).get(tenant, key);
        match remembered {
            Some(remembered) => Ok(remembered),
            None => self.reload(operation, tenant, key, deadline).await,
        }
    }

    /// The shard as the store has it now.
    pub(super) async fn reload<E>(
        &self,
        operation: &'static str,
        tenant: TenantId,
        key: ShardKey,
        deadline: Moment,
    ) -> Result<StoredShard, E>
    where
        E: From<AccessRefused> + From<InfraError>,
    {
        match self.load(operation, tenant, key, deadline).await? {
            Some(stored) => Ok(stored),
            None => {
                lock(&self.cache).forget(tenant, key);
                Err(AccessRefused::ShardNotFound { key }.into())
            }
        }
    }
}
