//! What a backend that waits is: a store of shards. And the one loop that runs every operation over it.
//!
//! A store loads a shard, lends a view of it, and commits a change on the condition that nobody wrote in between. The loop
//! decides, commits, and decides again on what others wrote. It repeats nothing blindly: after a lost answer it decides on
//! what is stored, and the op-log tells whether the write took effect. The in-memory coordinator is no store of this kind:
//! nobody writes in between and nothing is lost, so it makes the one pass that is left by itself.
//!
//! A store may remember shards, so that an operation costs one round trip. Then a *grant* may be decided on memory, since its
//! commit proves the memory current. A *refusal* may not: before anything is refused, the shard is read.

use alloc::vec::Vec;
use core::future::Future;

use tessera_contracts::ids::{LogicalTime, WorkerId};
use tessera_stdx::SlabFull;

use crate::decide::Verdict;
use crate::decide::unreachable::Peers;
use crate::error::{AccessRefused, IdempotentOutcome, InfraError};
use crate::events::{EventKind, EventScope, EventSink};
use crate::operation::{Address, Guard, ShardOperation};
use crate::record::state::Change;
use crate::record::view::ShardView;

/// What became of a commit.
#[derive(Clone, Copy, Debug)]
pub enum Commit<L> {
    /// The change is stored.
    Stored,
    /// Another wrote first; this is the shard as that one left it, if it still exists.
    Lost(Option<L>),
    /// The store's answer was lost, and the change is not there; it may yet be carried out. This is the shard as it is now.
    InDoubt(Option<L>),
    /// The store has no room for it; nothing has changed.
    NoRoom(SlabFull),
}

/// A store of shards, as one call sees it: the call's deadline and its count of attempts are the store's.
pub trait Store: Send {
    /// A shard that was loaded: what the next commit is conditional on.
    type Loaded: Send + Sync;

    /// Whether the store knows which workers have a session; if not, it guesses who takes part in a run.
    const KNOWS_SESSIONS: bool;

    /// Loads a shard; `None` if there is none.
    fn load(&mut self, at: Address) -> impl Future<Output = Result<Option<Self::Loaded>, InfraError>> + Send;

    /// The shard as the store has it now, if `loaded` was only remembered; what was read for this call is confirmed as it is.
    fn confirm(
        &mut self,
        at: Address,
        loaded: &Self::Loaded,
    ) -> impl Future<Output = Result<Confirmed<Self::Loaded>, InfraError>> + Send;

    /// What a decision sees of the shard.
    fn view<'v>(&'v self, loaded: &'v Self::Loaded) -> ShardView<'v>;

    /// The workers that take part in the shard's run, as [`Peers`] wants them.
    fn peers(
        &mut self,
        loaded: &Self::Loaded,
        now: LogicalTime,
    ) -> impl Future<Output = Result<Vec<WorkerId>, InfraError>> + Send;

    /// Stores `change` if the shard is still as it was loaded and `guard` holds.
    fn commit(
        &mut self,
        loaded: Self::Loaded,
        change: &Change<'_>,
        guard: Guard,
    ) -> impl Future<Output = Result<Commit<Self::Loaded>, InfraError>> + Send;

    /// Whether an earlier commit of this call that was not answered may still be carried out on the shard as loaded.
    fn may_yet_commit(&self, loaded: &Self::Loaded, guard: Guard) -> bool;

    /// Waits before the next attempt; false if there is to be none.
    fn may_try_again(&mut self) -> impl Future<Output = bool> + Send;
}

/// A shard that a refusal was decided on.
#[derive(Clone, Copy, Debug)]
pub enum Confirmed<L> {
    /// It was read for this call: the refusal stands.
    AsLoaded,
    /// It was remembered; this is what is stored, if it still exists.
    Anew(Option<L>),
}

/// Runs an operation over a store: load, decide, commit, and decide again after a lost race.
pub async fn carry_out<S: Store, O: ShardOperation>(
    store: &mut S,
    now: LogicalTime,
    operation: &O,
    events: &mut dyn EventSink,
) -> Result<IdempotentOutcome<O::Answer>, O::Refused> {
    let at = operation.address();
    let not_found = AccessRefused::ShardNotFound { key: at.key };
    let scope = EventScope { tenant: at.tenant, run: at.key.run, at: now };
    let mut loaded = store.load(at).await?.ok_or(not_found)?;
    // Set once an answer was lost: a replay then means that this call executed.
    let mut in_doubt: Option<Option<EventKind>> = None;
    loop {
        let workers = if operation.asks_for_peers() { store.peers(&loaded, now).await? } else { Vec::new() };
        let peers = if S::KNOWS_SESSIONS { Peers::Sessions(&workers) } else { Peers::Guessed(&workers) };
        let settled = match operation.decide(&store.view(&loaded), peers, now) {
            Ok(Verdict::Execute(change)) => {
                match store.commit(loaded, &change, O::GUARD).await? {
                    Commit::Stored => {
                        scope.emit(events, || operation.event(&change));
                        return Ok(IdempotentOutcome::Executed(operation.answer(&change)));
                    }
                    Commit::Lost(fresh) => loaded = fresh.ok_or(not_found)?,
                    Commit::InDoubt(fresh) => {
                        in_doubt = Some(operation.event(&change));
                        loaded = fresh.ok_or(not_found)?;
                    }
                    Commit::NoRoom(full) => return Err(O::no_room(full)),
                }
                if !store.may_try_again().await {
                    return Err(InfraError::contended(O::NAME).into());
                }
                continue;
            }
            Ok(Verdict::Replay(outcome)) => Ok(outcome),
            Err(refused) => Err(refused),
        };
        if let Confirmed::Anew(read) = store.confirm(at, &loaded).await? {
            loaded = read.ok_or(not_found)?;
            continue;
        }
        return match (settled, in_doubt) {
            (Err(_), _) if store.may_yet_commit(&loaded, O::GUARD) => Err(InfraError::undecided(O::NAME).into()),
            (Ok(outcome), Some(event)) => {
                scope.emit(events, || event);
                Ok(IdempotentOutcome::Executed(outcome.into_inner()))
            }
            (settled, _) => settled,
        };
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use tessera_contracts::CursorUpdate;

    use super::*;
    use crate::backend::{BlockOn, NeverWaits};
    use crate::decide::checkpoint::Checkpoint;
    use crate::decide::testing::{KEY, OTHER, Shard, TENANT, at, key, op};
    use crate::error::{CheckpointError, LeaseRefused};
    use crate::events::EventCollector;
    use crate::record::lease::Lease;

    /// What the store does with a commit.
    enum Does {
        Stores,
        /// Another took the shard first.
        IsTaken,
        /// It stores the change, and its answer is lost.
        StoresSilently,
        /// The request is lost on the way, or late.
        MayStoreLater,
        /// The run was retired meanwhile.
        HasForgotten,
    }

    /// A store of one shard that does with each commit what was written down for it.
    struct Scripted {
        stored: Shard,
        /// What an earlier call of this process left in memory.
        remembered: Option<Shard>,
        script: VecDeque<Does>,
        attempts_left: u32,
        unanswered: bool,
    }

    impl Scripted {
        fn new(stored: &Shard, script: impl IntoIterator<Item = Does>) -> Self {
            let script = script.into_iter().collect();
            Self { stored: stored.clone(), remembered: None, script, attempts_left: 3, unanswered: false }
        }
    }

    impl Store for Scripted {
        /// The shard, and whether it was only remembered.
        type Loaded = (Shard, bool);

        const KNOWS_SESSIONS: bool = false;

        async fn load(&mut self, at: Address) -> Result<Option<(Shard, bool)>, InfraError> {
            assert_eq!(at, Address { tenant: TENANT, key: KEY });
            Ok(Some(self.remembered.take().map_or((self.stored.clone(), false), |remembered| (remembered, true))))
        }

        async fn confirm(
            &mut self,
            _: Address,
            (_, remembered): &(Shard, bool),
        ) -> Result<Confirmed<(Shard, bool)>, InfraError> {
            let anew = || Confirmed::Anew(Some((self.stored.clone(), false)));
            Ok(if *remembered { anew() } else { Confirmed::AsLoaded })
        }

        fn view<'v>(&'v self, (shard, _): &'v (Shard, bool)) -> ShardView<'v> {
            shard.view()
        }

        async fn peers(&mut self, _: &(Shard, bool), _: LogicalTime) -> Result<Vec<WorkerId>, InfraError> {
            panic!("a checkpoint does not ask who takes part")
        }

        async fn commit(
            &mut self,
            _: (Shard, bool),
            change: &Change<'_>,
            guard: Guard,
        ) -> Result<Commit<(Shard, bool)>, InfraError> {
            assert_eq!(guard, Guard::SessionStands);
            let does = self.script.pop_front().expect("a commit that the test foresees");
            match does {
                Does::Stores | Does::StoresSilently => self.stored.record.apply(change, &[]),
                Does::IsTaken => {
                    self.stored.acquire(OTHER, 5_000);
                }
                Does::MayStoreLater => self.unanswered = true,
                Does::HasForgotten => {}
            }
            let now = Some((self.stored.clone(), false));
            Ok(match does {
                Does::Stores => Commit::Stored,
                Does::IsTaken => Commit::Lost(now),
                Does::StoresSilently | Does::MayStoreLater => Commit::InDoubt(now),
                Does::HasForgotten => Commit::Lost(None),
            })
        }

        fn may_yet_commit(&self, _: &(Shard, bool), _: Guard) -> bool {
            self.unanswered
        }

        async fn may_try_again(&mut self) -> bool {
            self.attempts_left -= 1;
            self.attempts_left > 0
        }
    }

    type Answer = Result<IdempotentOutcome<()>, CheckpointError>;

    /// A checkpoint, and how many events it told.
    fn checkpoint(store: &mut Scripted, lease: &Lease, cursor: CursorUpdate<'_>, now: u64) -> (Answer, usize) {
        let mut told = EventCollector::new();
        let asked = Checkpoint { lease: lease.presented_by(TENANT).unwrap(), cursor, op_id: op(1) };
        let answer = NeverWaits.block_on(carry_out(store, at(now), &asked, &mut told));
        (answer, told.iter().count())
    }

    #[test]
    fn a_lost_race_is_decided_again_on_what_the_other_wrote() {
        let (shard, lease) = Shard::leased();
        let mut store = Scripted::new(&shard, [Does::IsTaken]);
        let (refused, told) = checkpoint(&mut store, &lease, key(b"c"), 1001);
        assert!(matches!(refused, Err(CheckpointError::Lease(LeaseRefused::StaleFence { .. }))), "{refused:?}");
        assert_eq!(told, 0);
    }

    #[test]
    fn a_lost_answer_is_looked_up_and_told_once() {
        let (shard, lease) = Shard::leased();
        for script in [[Does::StoresSilently, Does::Stores], [Does::MayStoreLater, Does::Stores]] {
            let mut store = Scripted::new(&shard, script);
            let executed = checkpoint(&mut store, &lease, key(b"c"), 1001);
            assert_eq!(executed, (Ok(IdempotentOutcome::Executed(())), 1));
            assert_eq!(store.stored.record.cursor.last_key(), Some(&b"c"[..]));
            assert_eq!(checkpoint(&mut store, &lease, key(b"c"), 1002), (Ok(IdempotentOutcome::Replayed(())), 0));
        }
    }

    #[test]
    fn nothing_is_refused_while_a_write_may_yet_come_to_pass() {
        let (shard, lease) = Shard::leased();
        let mut store = Scripted::new(&shard, [Does::MayStoreLater, Does::IsTaken]);
        let (undecided, _) = checkpoint(&mut store, &lease, key(b"c"), 1001);
        assert_eq!(undecided, Err(InfraError::undecided("checkpoint").into()));
    }

    #[test]
    fn nothing_is_refused_on_memory_and_what_is_granted_on_it_is_proved_by_the_commit() {
        let (shard, lease) = Shard::leased();
        let mut ahead = shard.clone();
        ahead.record.cursor = key(b"k").to_owned();
        let mut store = Scripted { remembered: Some(ahead.clone()), ..Scripted::new(&shard, [Does::Stores]) };
        let (stored, told) = checkpoint(&mut store, &lease, key(b"c"), 1001);
        assert_eq!((stored, told), (Ok(IdempotentOutcome::Executed(())), 1), "memory alone would have refused");
        let mut store = Scripted { remembered: Some(shard), ..Scripted::new(&ahead, [Does::Stores]) };
        assert!(checkpoint(&mut store, &lease, key(b"l"), 1001).0.is_ok(), "and needs no reading to grant");
    }

    #[test]
    fn a_shard_that_is_gone_is_not_found_and_one_that_others_keep_writing_is_contended() {
        let (shard, lease) = Shard::leased();
        let mut store = Scripted::new(&shard, [Does::HasForgotten]);
        let gone = checkpoint(&mut store, &lease, key(b"c"), 1001).0;
        assert_eq!(gone, Err(AccessRefused::ShardNotFound { key: KEY }.into()));
        let mut store = Scripted::new(&shard, [Does::MayStoreLater, Does::MayStoreLater, Does::MayStoreLater]);
        let tired = checkpoint(&mut store, &lease, key(b"c"), 1001).0;
        assert_eq!(tired, Err(InfraError::contended("checkpoint").into()));
    }
}
