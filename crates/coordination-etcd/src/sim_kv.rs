//! A deterministic etcd: the same trait, the same answers, virtual time, and faults on demand.
//!
//! [`store`] holds etcd's semantics as a plain state machine, [`admission`] the checks a server makes before it looks at
//! its data, [`faults`] the plan of what goes wrong. `tests/real_servers/differential.rs` runs random scripts on this model and on a
//! real server and demands equal answers, so that what is learnt in simulation holds on etcd.
//!
//! Nothing here waits on a real clock. A pause moves virtual time on (or, with [`SimKv::drive_time`], lasts until the one who
//! drives the simulation has moved it). Each call yields once before it acts, so a seeded executor can interleave tasks
//! at every point where a real fleet would.

pub mod admission;
mod executor;
pub mod faults;
pub mod store;

use core::fmt;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::admission::Limits;
pub use self::executor::block_on;
use self::faults::{CallKind, Fault, FaultPlan, FaultRates};
use self::store::Store;
use crate::kv::{
    EtcdLeaseId, Fate, GrantedLease, Kv, KvError, KvErrorKind, LeaseTimeToLive, Moment, RangeRequest, RangeResponse,
    Txn, TxnResponse,
};
use crate::random::SplitMix64;

/// A simulated etcd cluster. Clones are clients of the same one.
#[derive(Clone)]
pub struct SimKv {
    sim: Arc<Mutex<Sim>>,
}

/// A simulated cluster at one point of its time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    store: Store,
    now: Moment,
}

struct Sim {
    store: Store,
    now: Moment,
    random: SplitMix64,
    plan: FaultPlan,
    driven: bool,
    sleepers: Vec<(Moment, Waker)>,
    /// Requests whose caller has given up and which the store will still see.
    late: Vec<(Moment, Txn)>,
    calls: u64,
    compare_misses: u64,
}

impl SimKv {
    /// An empty store without faults. The seed drives jitter, names and faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::from_snapshot(&Snapshot { store: Store::default(), now: Moment::default() }, seed)
    }

    /// A store that goes on from a snapshot, without faults; the seed as in [`SimKv::new`].
    #[must_use]
    pub fn from_snapshot(snapshot: &Snapshot, seed: u64) -> Self {
        let Snapshot { store, now } = snapshot.clone();
        let sim = Sim {
            store,
            now,
            random: SplitMix64::new(seed),
            plan: FaultPlan::new(seed),
            driven: false,
            sleepers: Vec::new(),
            late: Vec::new(),
            calls: 0,
            compare_misses: 0,
        };
        Self { sim: Arc::new(Mutex::new(sim)) }
    }

    /// From now on the server admits requests up to these limits; snapshots keep them.
    pub fn set_limits(&self, limits: Limits) {
        self.lock().store.set_limits(limits);
    }

    /// From now on faults happen at these rates.
    pub fn set_fault_rates(&self, rates: FaultRates) {
        self.lock().plan.set_rates(rates);
    }

    /// The call of this kind that comes after `skip` others of it meets this fault.
    pub fn inject(&self, kind: CallKind, skip: u64, fault: Fault) {
        self.lock().plan.inject(kind, skip, fault);
    }

    /// From now on pauses last until [`SimKv::advance`] has passed them, instead of moving time on themselves.
    pub fn drive_time(&self) {
        self.lock().driven = true;
    }

    /// Moves virtual time on: leases expire, late requests arrive, sleepers wake.
    pub fn advance(&self, by: Duration) {
        let mut sim = self.lock();
        let target = sim.now.after(by);
        sim.advance_to(target);
    }

    /// When the next sleeper wants to wake, for a driver that has nothing else to run.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        self.lock().sleepers.iter().map(|(at, _)| *at).min()
    }

    /// Ends an etcd lease as if it had run out just now.
    pub fn expire_lease(&self, id: EtcdLeaseId) {
        // A lease that is already gone needs no ending.
        let _ = self.lock().store.lease_revoke(id);
    }

    /// Forgets every revision but the latest, as a server does that an operator or its own schedule compacts.
    pub fn compact(&self) {
        let store = &mut self.lock().store;
        let latest = store.revision();
        store.compact(latest);
    }

    /// How many calls were made, of any kind: what a test of round trips counts.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// How many transactions a fault made to miss their compares.
    #[must_use]
    pub fn compare_misses(&self) -> u64 {
        self.lock().compare_misses
    }

    /// All that the store holds and what time it is there, so that a test can try many endings of one beginning.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let sim = self.lock();
        Snapshot { store: sim.store.clone(), now: sim.now }
    }

    /// Looks at the store itself, past clients, faults and time.
    pub fn inspect<T>(&self, look: impl FnOnce(&Store) -> T) -> T {
        look(&self.lock().store)
    }

    fn lock(&self) -> MutexGuard<'_, Sim> {
        self.sim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that happens to a call besides the call: its turn, its deadline, its fault.
    async fn call<T>(
        &self,
        kind: CallKind,
        deadline: Moment,
        late: Option<&Txn>,
        act: impl FnOnce(&mut Sim, Option<Fault>) -> Result<T, KvError>,
    ) -> Result<T, KvError> {
        yield_once().await;
        let fault = {
            let mut sim = self.lock();
            sim.calls += 1;
            let left = sim.now.until(deadline);
            match sim.plan.next(kind) {
                // A request that is on its way for longer than its caller waits is late.
                Some(Fault::Delay(delay)) if delay >= left => Some(Fault::Late(delay - left)),
                fault => fault,
            }
        };
        if let Some(Fault::Delay(delay)) = fault {
            self.pause(delay).await;
        }
        let mut sim = self.lock();
        if sim.now >= deadline {
            return Err(KvError::new(Fate::Unsent, KvErrorKind::Deadline, "sim: no time left"));
        }
        match fault {
            Some(Fault::Refuse) => Err(KvError::not_applied(KvErrorKind::Overloaded, "sim: refused")),
            Some(Fault::Unreachable) => Err(KvError::new(Fate::Unsent, KvErrorKind::Connect, "sim: unreachable")),
            Some(Fault::LoseRequest) => Err(KvError::ambiguous(KvErrorKind::Transport, "sim: request lost")),
            Some(Fault::Late(delay)) => {
                if let Some(txn) = late {
                    let at = deadline.after(delay);
                    sim.late.push((at, txn.clone()));
                }
                sim.advance_to(deadline);
                Err(KvError::ambiguous(KvErrorKind::Deadline, "sim: request late"))
            }
            Some(Fault::LoseAnswer) => {
                // The caller must not learn even of a refusal.
                let _ = act(&mut sim, fault);
                Err(KvError::ambiguous(KvErrorKind::Transport, "sim: answer lost"))
            }
            None | Some(Fault::CompareMiss | Fault::LeaseLost | Fault::Delay(_)) => act(&mut sim, fault),
        }
    }
}

impl Sim {
    /// Lets everything due until `target` happen, in order of its time.
    fn advance_to(&mut self, target: Moment) {
        loop {
            let lease = self.store.next_expiry();
            let late = self.late.iter().map(|(at, _)| *at).min();
            let next = match (lease, late) {
                (Some(lease), Some(late)) => lease.min(late),
                (Some(one), None) | (None, Some(one)) => one,
                (None, None) => break,
            };
            if next > target {
                break;
            }
            self.now = self.now.max(next);
            if let Some(index) = self.late.iter().position(|(at, _)| *at <= next) {
                let (_, txn) = self.late.remove(index);
                // Nobody waits for this answer any more.
                let _ = self.store.txn(&txn);
            }
            self.store.expire(self.now);
        }
        self.now = self.now.max(target);
        let now = self.now;
        let (due, waiting) = core::mem::take(&mut self.sleepers).into_iter().partition(|(at, _)| *at <= now);
        self.sleepers = waiting;
        let due: Vec<(Moment, Waker)> = due;
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

impl Kv for SimKv {
    async fn range(&self, request: RangeRequest, deadline: Moment) -> Result<RangeResponse, KvError> {
        self.call(CallKind::Read, deadline, None, |sim, _| sim.store.range(&request)).await
    }

    async fn txn(&self, request: Txn, deadline: Moment) -> Result<TxnResponse, KvError> {
        let kind = if request.is_read_only() { CallKind::Read } else { CallKind::Write };
        self.call(kind, deadline, Some(&request), |sim, fault| match fault {
            Some(Fault::CompareMiss) => {
                sim.compare_misses += 1;
                sim.store.txn(&faults::missing_every_compare(request.clone()))
            }
            Some(Fault::LeaseLost) => {
                for lease in faults::leases_named(&request) {
                    // Losing a lease twice changes nothing.
                    let _ = sim.store.lease_revoke(lease);
                }
                sim.store.txn(&request)
            }
            _ => sim.store.txn(&request),
        })
        .await
    }

    async fn lease_grant(&self, id: EtcdLeaseId, ttl: Duration, deadline: Moment) -> Result<GrantedLease, KvError> {
        self.call(CallKind::Lease, deadline, None, |sim, _| sim.store.lease_grant(id, ttl, sim.now)).await
    }

    async fn lease_revoke(&self, id: EtcdLeaseId, deadline: Moment) -> Result<(), KvError> {
        self.call(CallKind::Lease, deadline, None, |sim, _| sim.store.lease_revoke(id)).await
    }

    async fn lease_keep_alive(&self, id: EtcdLeaseId, deadline: Moment) -> Result<Option<Duration>, KvError> {
        self.call(CallKind::KeepAlive, deadline, None, |sim, _| Ok(sim.store.lease_keep_alive(id, sim.now))).await
    }

    async fn lease_time_to_live(&self, id: EtcdLeaseId, deadline: Moment) -> Result<Option<LeaseTimeToLive>, KvError> {
        self.call(CallKind::Read, deadline, None, |sim, _| Ok(sim.store.lease_time_to_live(id, sim.now))).await
    }

    fn now(&self) -> Moment {
        self.lock().now
    }

    async fn pause(&self, delay: Duration) {
        let target = {
            let mut sim = self.lock();
            let target = sim.now.after(delay);
            if !sim.driven {
                sim.advance_to(target);
            }
            target
        };
        yield_once().await;
        poll_fn(|context| {
            let mut sim = self.lock();
            if sim.now >= target {
                return Poll::Ready(());
            }
            sim.sleepers.push((target, context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Does not move time: a task that waits for something else waits for that.
    async fn until(&self, moment: Moment) {
        poll_fn(|context| {
            let mut sim = self.lock();
            if sim.now >= moment {
                return Poll::Ready(());
            }
            // Who drives time wakes those whose moment has come. Elsewhere it moves only when another of the same future sleeps,
            // or by hand, and both poll again; a task that registered would stay on the list for as long as time stands still.
            let waker = context.waker();
            if sim.driven && !sim.sleepers.iter().any(|(at, known)| *at == moment && known.will_wake(waker)) {
                sim.sleepers.push((moment, waker.clone()));
            }
            Poll::Pending
        })
        .await;
    }

    fn random(&self) -> u64 {
        self.lock().random.next()
    }
}

impl fmt::Debug for SimKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sim = self.lock();
        f.debug_struct("SimKv").field("now", &sim.now).field("revision", &sim.store.revision()).finish_non_exhaustive()
    }
}

/// Gives other tasks a turn.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Compare, Op, OpResponse};

    const FAR: Moment = Moment(Duration::from_secs(1_000_000));

    fn put_if_absent(key: &'static str) -> Txn {
        Txn { compares: vec![Compare::absent(key)], success: vec![Op::put(key, "v")], failure: vec![Op::get(key)] }
    }

    fn exists(kv: &SimKv, key: &'static str) -> bool {
        kv.inspect(|store| store.range(&RangeRequest::one(key)).expect("well formed").count == 1)
    }

    #[test]
    fn a_lost_answer_hides_a_write_that_happened() {
        let kv = SimKv::new(1);
        kv.inject(CallKind::Write, 0, Fault::LoseAnswer);
        let error = block_on(kv.txn(put_if_absent("k"), FAR)).expect_err("the answer is lost");
        assert_eq!(error.fate, Fate::Ambiguous);
        assert!(exists(&kv, "k"));
    }

    #[test]
    fn a_lost_request_looks_the_same_and_did_nothing() {
        let kv = SimKv::new(1);
        kv.inject(CallKind::Write, 0, Fault::LoseRequest);
        let error = block_on(kv.txn(put_if_absent("k"), FAR)).expect_err("the request is lost");
        assert_eq!(error.fate, Fate::Ambiguous);
        assert!(!exists(&kv, "k"));
    }

    #[test]
    fn a_late_request_arrives_after_its_caller_gave_up() {
        let kv = SimKv::new(1);
        kv.inject(CallKind::Write, 0, Fault::Late(Duration::from_secs(2)));
        let deadline = Moment(Duration::from_secs(1));
        assert_eq!(block_on(kv.txn(put_if_absent("k"), deadline)).expect_err("late").fate, Fate::Ambiguous);
        assert_eq!(kv.now(), deadline, "the caller waited until its deadline");
        kv.advance(Duration::from_millis(1_999));
        assert!(!exists(&kv, "k"));
        kv.advance(Duration::from_millis(1));
        assert!(exists(&kv, "k"));
    }

    #[test]
    fn a_compare_miss_runs_the_failure_branch_and_its_reads() {
        let kv = SimKv::new(1);
        kv.inject(CallKind::Write, 0, Fault::CompareMiss);
        let answer = block_on(kv.txn(put_if_absent("k"), FAR)).expect("answered");
        assert!(!answer.succeeded);
        assert!(matches!(&answer.responses[..], [OpResponse::Range(range)] if range.count == 0));
    }

    #[test]
    fn a_lease_lost_in_between_fails_the_transaction_that_names_it() {
        let kv = SimKv::new(1);
        let lease = EtcdLeaseId(7);
        block_on(kv.lease_grant(lease, Duration::from_secs(10), FAR)).expect("granted");
        block_on(kv.txn(Txn::of(vec![Op::put_attached("own", "w", lease)]), FAR)).expect("written");
        kv.inject(CallKind::Write, 0, Fault::LeaseLost);
        let guarded = Txn {
            compares: vec![Compare::attached_to("own", lease)],
            success: vec![Op::put("record", "x")],
            failure: vec![Op::get("own")],
        };
        let answer = block_on(kv.txn(guarded, FAR)).expect("answered");
        assert!(!answer.succeeded);
        assert!(!exists(&kv, "own") && !exists(&kv, "record"));
    }

    #[test]
    fn a_snapshot_keeps_data_leases_and_time_and_what_happens_later_is_not_in_it() {
        let kv = SimKv::new(1);
        let lease = EtcdLeaseId(7);
        block_on(kv.lease_grant(lease, Duration::from_secs(10), FAR)).expect("granted");
        block_on(kv.txn(Txn::of(vec![Op::put_attached("own", "w", lease)]), FAR)).expect("written");
        kv.advance(Duration::from_secs(4));
        let snapshot = kv.snapshot();
        block_on(kv.txn(put_if_absent("later"), FAR)).expect("written");
        let again = SimKv::from_snapshot(&snapshot, 2);
        assert!(exists(&again, "own") && !exists(&again, "later"));
        again.advance(Duration::from_secs(6));
        assert!(!exists(&again, "own"), "its lease had six seconds left");
        assert!(exists(&kv, "own") && exists(&kv, "later"), "and here it still has");
    }

    #[test]
    fn a_driven_pause_lasts_until_time_was_moved_past_it() {
        let kv = SimKv::new(1);
        kv.drive_time();
        let mut pause = Box::pin(kv.pause(Duration::from_secs(5)));
        let mut context = core::task::Context::from_waker(Waker::noop());
        for _ in 0..3 {
            assert!(pause.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(kv.next_wake(), Some(Moment(Duration::from_secs(5))));
        kv.advance(Duration::from_secs(5));
        assert!(pause.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn the_same_seed_meets_the_same_faults() {
        let outcome = |seed| {
            let kv = SimKv::new(seed);
            kv.set_fault_rates(FaultRates { lose_answer_ppm: 300_000, refuse_ppm: 200_000, ..FaultRates::NONE });
            let outcomes: Vec<bool> =
                (0..64).map(|_| block_on(kv.txn(Txn::of(vec![Op::put("k", "v")]), FAR)).is_ok()).collect();
            outcomes
        };
        assert_eq!(outcome(3), outcome(3));
        assert_ne!(outcome(3), outcome(4));
    }
}
