//! Trying again, as far as it is safe without knowing what the request means.
//!
//! A read may always be repeated. A write may be if it surely did not happen: it was never sent, or the store said that it
//! did not apply it. A write whose answer was lost is handed back as ambiguous, because only its author can tell, by
//! looking, whether it happened. Lease calls name the lease they are about, so repeating them is looking.

use core::future::Future;
use core::time::Duration;

use crate::config::EtcdConfig;
use crate::kv::{
    EtcdLeaseId, Fate, GrantedLease, Kv, KvError, KvErrorKind, LeaseTimeToLive, Moment, RangeRequest, RangeResponse,
    Txn, TxnResponse,
};

/// How hard to try.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Tries of one call, the first included.
    pub attempts_max: u32,
    /// How long one try may take.
    pub attempt_timeout: Duration,
    /// The first pause between tries.
    pub delay_min: Duration,
    /// The longest pause.
    pub delay_max: Duration,
}

impl RetryPolicy {
    /// The pause before try number `attempt` (the second is number 1): doubling, and jittered down by up to half, so that
    /// clients that failed together do not come back together.
    #[must_use]
    pub fn delay(&self, attempt: u32, random: u64) -> Duration {
        let doubled = self.delay_min.saturating_mul(1 << attempt.saturating_sub(1).min(20));
        let full = doubled.min(self.delay_max);
        let half = full / 2;
        let spread = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
        full.saturating_sub(Duration::from_nanos(random % spread))
    }
}

impl From<&EtcdConfig> for RetryPolicy {
    fn from(config: &EtcdConfig) -> Self {
        Self {
            attempts_max: config.attempts_max,
            attempt_timeout: config.attempt_timeout,
            delay_min: config.retry_delay_min,
            delay_max: config.retry_delay_max,
        }
    }
}

/// A store that tries again where that is safe.
#[derive(Clone, Debug)]
pub struct Retrying<K> {
    kv: K,
    policy: RetryPolicy,
}

/// What repeating a request that may have been applied would do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// Nothing new: it reads, or doing it twice is doing it once.
    Harmless,
    /// It might be done twice.
    Unsafe,
}

impl<K: Kv> Retrying<K> {
    /// Wraps a store.
    pub const fn new(kv: K, policy: RetryPolicy) -> Self {
        Self { kv, policy }
    }

    /// The store beneath.
    pub const fn inner(&self) -> &K {
        &self.kv
    }

    /// Tries until it succeeds, fails for good, or runs out of tries or time. Tells whether an earlier try was ambiguous.
    async fn attempt<T, Tried>(
        &self,
        deadline: Moment,
        repeat: Repeat,
        attempt: impl Fn(Moment) -> Tried,
    ) -> (bool, Result<T, KvError>)
    where
        Tried: Future<Output = Result<T, KvError>>,
    {
        let mut in_doubt = false;
        let mut tried = 0;
        loop {
            let attempt_deadline = self.kv.now().after(self.policy.attempt_timeout).min(deadline);
            let error = match attempt(attempt_deadline).await {
                Ok(answer) => return (in_doubt, Ok(answer)),
                Err(error) => error,
            };
            in_doubt |= error.fate == Fate::Ambiguous;
            tried += 1;
            let may_repeat = error.is_transient() && (error.fate != Fate::Ambiguous || repeat == Repeat::Harmless);
            let delay = self.policy.delay(tried, self.kv.random());
            let time_left = self.kv.now().until(deadline) > delay;
            if !may_repeat || !time_left || tried >= self.policy.attempts_max {
                return (in_doubt, Err(error));
            }
            self.kv.pause(delay).await;
        }
    }
}

impl<K: Kv> Kv for Retrying<K> {
    async fn range(&self, request: RangeRequest, deadline: Moment) -> Result<RangeResponse, KvError> {
        self.attempt(deadline, Repeat::Harmless, |by| self.kv.range(request.clone(), by)).await.1
    }

    async fn txn(&self, request: Txn, deadline: Moment) -> Result<TxnResponse, KvError> {
        let repeat = if request.is_read_only() { Repeat::Harmless } else { Repeat::Unsafe };
        self.attempt(deadline, repeat, |by| self.kv.txn(request.clone(), by)).await.1
    }

    async fn lease_grant(&self, id: EtcdLeaseId, ttl: Duration, deadline: Moment) -> Result<GrantedLease, KvError> {
        let (in_doubt, granted) = self.attempt(deadline, Repeat::Harmless, |by| self.kv.lease_grant(id, ttl, by)).await;
        match granted {
            // The name was drawn at random by the caller: if it exists after a lost answer, it is the caller's.
            Err(error) if in_doubt && error.kind == KvErrorKind::LeaseExists => {
                let ttl = self.lease_keep_alive(id, deadline).await?;
                ttl.map(|ttl| GrantedLease { id, ttl }).ok_or(error)
            }
            granted => granted,
        }
    }

    async fn lease_revoke(&self, id: EtcdLeaseId, deadline: Moment) -> Result<(), KvError> {
        match self.attempt(deadline, Repeat::Harmless, |by| self.kv.lease_revoke(id, by)).await {
            (true, Err(error)) if error.kind == KvErrorKind::LeaseNotFound => Ok(()),
            (_, revoked) => revoked,
        }
    }

    async fn lease_keep_alive(&self, id: EtcdLeaseId, deadline: Moment) -> Result<Option<Duration>, KvError> {
        self.attempt(deadline, Repeat::Harmless, |by| self.kv.lease_keep_alive(id, by)).await.1
    }

    async fn lease_time_to_live(&self, id: EtcdLeaseId, deadline: Moment) -> Result<Option<LeaseTimeToLive>, KvError> {
        self.attempt(deadline, Repeat::Harmless, |by| self.kv.lease_time_to_live(id, by)).await.1
    }

    fn now(&self) -> Moment {
        self.kv.now()
    }

    fn pause(&self, delay: Duration) -> impl Future<Output = ()> + Send {
        self.kv.pause(delay)
    }

    fn until(&self, moment: Moment) -> impl Future<Output = ()> + Send {
        self.kv.until(moment)
    }

    fn random(&self) -> u64 {
        self.kv.random()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Compare, Op};
    use crate::sim_kv::faults::{CallKind, Fault};
    use crate::sim_kv::{SimKv, block_on};

    const POLICY: RetryPolicy = RetryPolicy {
        attempts_max: 4,
        attempt_timeout: Duration::from_secs(1),
        delay_min: Duration::from_millis(10),
        delay_max: Duration::from_millis(40),
    };
    const SOON: Moment = Moment(Duration::from_secs(10));

    fn increment() -> Txn {
        Txn { compares: vec![Compare::absent("k")], success: vec![Op::put("k", "v")], failure: vec![] }
    }

    fn store_with(faults: &[(CallKind, Fault)]) -> (SimKv, Retrying<SimKv>) {
        let kv = SimKv::new(5);
        // Each is injected for the turn after the ones before it.
        faults.iter().enumerate().for_each(|(turn, (kind, fault))| kv.inject(*kind, turn as u64, *fault));
        (kv.clone(), Retrying::new(kv, POLICY))
    }

    #[test]
    fn a_write_that_surely_did_not_happen_is_repeated() {
        let (kv, store) = store_with(&[(CallKind::Write, Fault::Unreachable), (CallKind::Write, Fault::Refuse)]);
        assert!(block_on(store.txn(increment(), SOON)).expect("the third try succeeds").succeeded);
        assert_eq!(kv.calls(), 3);
    }

    #[test]
    fn a_write_whose_answer_was_lost_is_handed_back_and_not_repeated() {
        for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::Late(Duration::from_secs(1))] {
            let (kv, store) = store_with(&[(CallKind::Write, fault)]);
            let error = block_on(store.txn(increment(), SOON)).expect_err("nobody knows");
            assert_eq!((error.fate, kv.calls()), (Fate::Ambiguous, 1), "{fault:?}");
        }
    }

    #[test]
    fn a_read_is_repeated_whatever_happened_to_it() {
        let (kv, store) = store_with(&[(CallKind::Read, Fault::LoseAnswer), (CallKind::Read, Fault::LoseRequest)]);
        block_on(store.range(RangeRequest::one("k"), SOON)).expect("the third try succeeds");
        assert_eq!(kv.calls(), 3);
    }

    #[test]
    fn a_grant_whose_answer_was_lost_is_found_again() {
        let (kv, store) = store_with(&[(CallKind::Lease, Fault::LoseAnswer)]);
        let granted = block_on(store.lease_grant(EtcdLeaseId(9), Duration::from_secs(30), SOON)).expect("granted");
        assert_eq!(granted, GrantedLease { id: EtcdLeaseId(9), ttl: Duration::from_secs(30) });
        assert_eq!(kv.inspect(|store| store.lease_count()), 1);
    }

    #[test]
    fn somebody_elses_lease_of_that_name_is_not_taken_for_ours() {
        let (kv, store) = store_with(&[]);
        block_on(kv.lease_grant(EtcdLeaseId(9), Duration::from_secs(30), SOON)).expect("granted");
        let error = block_on(store.lease_grant(EtcdLeaseId(9), Duration::from_secs(30), SOON)).expect_err("taken");
        assert_eq!(error.kind, KvErrorKind::LeaseExists);
    }

    #[test]
    fn a_call_gives_up_by_its_deadline_and_by_its_budget() {
        let (kv, store) = store_with(&[(CallKind::Read, Fault::Refuse); 10]);
        assert!(block_on(store.range(RangeRequest::one("k"), SOON)).is_err());
        assert_eq!(kv.calls(), 4, "the budget of tries");
        let (kv, store) = store_with(&[(CallKind::Read, Fault::Delay(Duration::from_secs(1))); 10]);
        let deadline = Moment(Duration::from_millis(1_500));
        assert!(block_on(store.range(RangeRequest::one("k"), deadline)).is_err());
        assert!(kv.now() <= deadline, "ended at {}", kv.now());
    }

    #[test]
    fn pauses_double_up_to_their_bound_and_keep_at_least_half() {
        for (attempt, full) in [(1, 10), (2, 20), (3, 40), (9, 40)] {
            for random in [0, 1, u64::MAX, 12_345_678_901] {
                let delay = POLICY.delay(attempt, random);
                assert!(delay <= Duration::from_millis(full) && delay >= Duration::from_millis(full) / 2);
            }
        }
    }
}
