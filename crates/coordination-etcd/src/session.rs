//! Worker sessions: one etcd lease per worker, kept alive by one heartbeat, whatever the number of shards it holds.
//!
//! Every owner key of a worker is attached to its session's etcd lease, so that when the worker dies etcd frees all its
//! shards together. The other half of that bargain is here: a worker that cannot reach etcd must stop believing in its
//! leases *before* etcd does. So a session is good until the last confirmed heartbeat was **sent**, plus the TTL, less a
//! tenth for clocks that run at different speeds. etcd counts from when it received it, which is later.
//!
//! A lease length shorter than the configured TTL gets a session of its own length: a worker has one session per length
//! it serves, and usually that is one.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tessera_contracts::WorkerId;

use crate::config::SESSION_TTL_MIN;
use crate::kv::{EtcdLeaseId, Kv, KvError, Moment};

/// A worker's standing with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Whose it is.
    pub worker: WorkerId,
    /// The etcd lease its owner keys are attached to.
    pub lease: EtcdLeaseId,
    /// How long the store keeps it without a heartbeat.
    pub ttl: Duration,
    /// Until when the worker may believe in it.
    pub good_until: Moment,
}

impl Session {
    /// Whether the worker may still believe in it.
    #[must_use]
    pub fn is_good_at(&self, now: Moment) -> bool {
        now < self.good_until
    }
}

/// All sessions of a coordinator.
#[derive(Debug)]
pub struct Sessions<K> {
    kv: K,
    ttl_min: Duration,
    ttl_max: Duration,
    /// How long one heartbeat may take before the next is due.
    call_timeout: Duration,
    open: Mutex<BTreeMap<(WorkerId, Duration), Session>>,
    /// Sessions that were replaced because the store had forgotten them, and until when that is remembered. Views of shards that
    /// name them may be kept for a while, and must not be believed in.
    ended: Mutex<Vec<(EtcdLeaseId, Moment)>>,
    /// Held while a session is opened, so that a worker's first claims open one together.
    opening: tokio::sync::Mutex<()>,
}

impl<K: Kv> Sessions<K> {
    /// No session yet. `ttl_min` and `ttl_max` bound how long sessions last.
    pub fn new(kv: K, ttl_min: Duration, ttl_max: Duration, call_timeout: Duration) -> Self {
        Self {
            kv,
            ttl_min,
            ttl_max,
            call_timeout,
            open: Mutex::default(),
            ended: Mutex::default(),
            opening: tokio::sync::Mutex::new(()),
        }
    }

    /// The worker's session for leases of this length, opened if there is none. One whose heartbeats were not confirmed for too
    /// long may still be there, with all the worker's shards: then it goes on. It is replaced only if the store has
    /// forgotten it, since a session without heartbeats takes its shards along.
    ///
    /// # Errors
    /// If the store does not grant one by the deadline, or does not say whether it still keeps the last one.
    pub async fn open(&self, worker: WorkerId, lease_length: Duration, deadline: Moment) -> Result<Session, KvError> {
        let ttl = self.ttl_for(lease_length);
        if let Some(session) = self.good(worker, ttl) {
            return Ok(session);
        }
        let _only_one = self.opening.lock().await;
        if let Some(session) = self.good(worker, ttl) {
            return Ok(session);
        }
        let last = self.lock().get(&(worker, ttl)).copied();
        if let Some(last) = last.filter(|last| last.good_until != Moment::default()) {
            let sent = self.kv.now();
            if let Some(left) = self.kv.lease_keep_alive(last.lease, deadline).await? {
                let revived = Session { good_until: good_until(sent, left), ..last };
                self.update((worker, ttl), last.lease, revived.good_until);
                return Ok(revived);
            }
        }
        if let Some(last) = last {
            self.remember_ended(last);
        }
        let lease = EtcdLeaseId::from_random(self.kv.random());
        let sent = self.kv.now();
        let granted = self.kv.lease_grant(lease, ttl, deadline).await?;
        let session = Session { worker, lease, ttl: granted.ttl, good_until: good_until(sent, granted.ttl) };
        self.lock().insert((worker, ttl), session);
        Ok(session)
    }

    /// Whether this etcd lease belongs to one of our sessions that is no longer good: then its keys may still be there,
    /// but the worker must not act on them. `None`: not one of ours, so the store alone knows.
    #[must_use]
    pub fn believes_in(&self, lease: EtcdLeaseId) -> Option<bool> {
        let now = self.kv.now();
        let open = self.lock().values().find(|session| session.lease == lease).map(|session| session.is_good_at(now));
        open.or_else(|| self.lock_ended().iter().any(|(ended, _)| *ended == lease).then_some(false))
    }

    /// Until when the worker may work: the soonest end of its sessions. `None` if it has none.
    #[must_use]
    pub fn good_until(&self, worker: WorkerId) -> Option<Moment> {
        self.lock().values().filter(|session| session.worker == worker).map(|session| session.good_until).min()
    }

    /// The worker's sessions that are still good.
    #[must_use]
    pub fn of(&self, worker: WorkerId) -> Vec<Session> {
        let now = self.kv.now();
        self.lock().values().filter(|session| session.worker == worker && session.is_good_at(now)).copied().collect()
    }

    /// Sends one heartbeat for every session. One that the store has forgotten is ended here at once.
    pub async fn beat(&self) {
        let sessions: Vec<((WorkerId, Duration), Session)> =
            self.lock().iter().map(|(key, session)| (*key, *session)).collect();
        for (key, session) in sessions {
            let sent = self.kv.now();
            let deadline = sent.after(self.call_timeout).min(session.good_until.max(sent.after(session.ttl / 3)));
            match self.kv.lease_keep_alive(session.lease, deadline).await {
                Ok(Some(ttl)) => self.update(key, session.lease, good_until(sent, ttl)),
                Ok(None) => self.update(key, session.lease, Moment::default()),
                // Not confirmed: the session runs on towards its end, and the next beat may still save it.
                Err(_unconfirmed) => {}
            }
        }
    }

    /// How long to wait before looking whether a heartbeat is due: often enough that a session opened meanwhile gets its
    /// first beat in time.
    #[must_use]
    pub fn look_again_in(&self) -> Duration {
        let shortest = self.lock().values().map(|session| session.ttl).min().unwrap_or(SESSION_TTL_MIN);
        (shortest / 6).min(SESSION_TTL_MIN / 3)
    }

    /// Beats if some session has used up a third of its time.
    pub async fn beat_if_due(&self) {
        let now = self.kv.now();
        let due = self.lock().values().any(|session| now.until(session.good_until) < session.ttl * 2 / 3);
        if due {
            self.beat().await;
        }
    }

    /// Asks the store about a session that it seems to have forgotten, and ends it here if it has. Answers whether it is
    /// still there, as far as can be told.
    pub async fn check(&self, lease: EtcdLeaseId, deadline: Moment) -> bool {
        let sent = self.kv.now();
        let Ok(left) = self.kv.lease_keep_alive(lease, deadline).await else { return true };
        let found = self.lock().iter().find(|(_, session)| session.lease == lease).map(|(key, _)| *key);
        if let Some(key) = found {
            self.update(key, lease, left.map_or(Moment::default(), |ttl| good_until(sent, ttl)));
        }
        left.is_some()
    }

    /// Ends all sessions of a worker: its owner keys go at once, so that its shards are free without waiting for a TTL.
    ///
    /// # Errors
    /// If the store could not be told; the sessions have ended on this side all the same.
    pub async fn close(&self, worker: WorkerId, deadline: Moment) -> Result<(), KvError> {
        let ended: Vec<Session> = {
            let mut open = self.lock();
            let keys: Vec<_> = open.keys().filter(|(owner, _)| *owner == worker).copied().collect();
            keys.iter().filter_map(|key| open.remove(key)).collect()
        };
        for session in ended {
            match self.kv.lease_revoke(session.lease, deadline).await {
                Ok(()) => {}
                Err(error) if error.kind == crate::kv::KvErrorKind::LeaseNotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Which TTL serves leases of this length: as short as they are, within what etcd and the configuration allow.
    fn ttl_for(&self, lease_length: Duration) -> Duration {
        let whole_seconds = Duration::from_secs(lease_length.as_secs().saturating_add(1));
        let rounded = if lease_length.subsec_nanos() == 0 { lease_length } else { whole_seconds };
        rounded.clamp(self.ttl_min, self.ttl_max)
    }

    fn good(&self, worker: WorkerId, ttl: Duration) -> Option<Session> {
        let now = self.kv.now();
        self.lock().get(&(worker, ttl)).copied().filter(|session| session.is_good_at(now))
    }

    fn update(&self, key: (WorkerId, Duration), lease: EtcdLeaseId, good_until: Moment) {
        if let Some(session) = self.lock().get_mut(&key)
            && session.lease == lease
        {
            session.good_until = good_until;
        }
    }

    /// Remembers for the length of a session that this one has ended.
    fn remember_ended(&self, session: Session) {
        let now = self.kv.now();
        let mut ended = self.lock_ended();
        ended.retain(|(lease, until)| now < *until && *lease != session.lease);
        ended.push((session.lease, now.after(session.ttl)));
    }

    fn lock_ended(&self) -> MutexGuard<'_, Vec<(EtcdLeaseId, Moment)>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(WorkerId, Duration), Session>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn good_until(sent: Moment, ttl: Duration) -> Moment {
    sent.after(ttl - ttl / 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Op, Txn};
    use crate::sim_kv::faults::{CallKind, Fault};
    use crate::sim_kv::{SimKv, block_on};

    const WORKER: WorkerId = WorkerId::new(7);
    const TTL: Duration = Duration::from_secs(15);
    const FAR: Moment = Moment(Duration::from_secs(1_000_000));

    fn sessions() -> (SimKv, Sessions<SimKv>) {
        let kv = SimKv::new(2);
        (kv.clone(), Sessions::new(kv, SESSION_TTL_MIN, TTL, Duration::from_secs(2)))
    }

    #[test]
    fn a_worker_has_one_session_however_often_it_asks() {
        let (kv, sessions) = sessions();
        let first = block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        let again = block_on(sessions.open(WORKER, Duration::from_secs(60), FAR)).expect("opened");
        assert_eq!(first, again);
        let short = block_on(sessions.open(WORKER, Duration::from_millis(4_200), FAR)).expect("opened");
        assert_eq!(short.ttl, Duration::from_secs(5));
        assert_eq!(kv.inspect(|store| store.lease_count()), 2);
    }

    #[test]
    fn the_worker_stops_believing_before_the_store_does() {
        let (kv, sessions) = sessions();
        let session = block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        block_on(kv.txn(Txn::of(vec![Op::put_attached("owner", "w", session.lease)]), FAR)).expect("written");
        let has_key = || kv.inspect(|store| store.keys().count() == 1);
        for _ in 0..200 {
            let believes = sessions.believes_in(session.lease) == Some(true);
            assert!(!believes || has_key(), "believed at {} in a key that was gone", kv.now());
            kv.advance(Duration::from_millis(100));
        }
        assert!(!has_key());
        assert_eq!(sessions.believes_in(session.lease), Some(false));
    }

    #[test]
    fn a_heartbeat_counts_from_when_it_was_sent() {
        let (kv, sessions) = sessions();
        block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        kv.advance(Duration::from_secs(5));
        kv.inject(CallKind::KeepAlive, 0, Fault::Delay(Duration::from_secs(1)));
        block_on(sessions.beat());
        assert_eq!(kv.now(), Moment(Duration::from_secs(6)));
        assert_eq!(sessions.good_until(WORKER), Some(Moment(Duration::from_millis(5_000 + 13_500))));
    }

    #[test]
    fn a_session_counts_from_when_it_was_asked_for() {
        let (kv, sessions) = sessions();
        kv.inject(CallKind::Lease, 0, Fault::Delay(Duration::from_secs(1)));
        block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        assert_eq!(kv.now(), Moment(Duration::from_secs(1)));
        assert_eq!(sessions.good_until(WORKER), Some(Moment(Duration::from_millis(13_500))));
    }

    #[test]
    fn a_session_the_store_has_forgotten_ends_at_the_next_beat() {
        let (kv, sessions) = sessions();
        let session = block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        kv.expire_lease(session.lease);
        assert_eq!(sessions.believes_in(session.lease), Some(true));
        block_on(sessions.beat());
        assert_eq!(sessions.believes_in(session.lease), Some(false));
        let reopened = block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        assert_ne!(reopened.lease, session.lease);
    }

    #[test]
    fn a_session_whose_heartbeats_were_lost_is_revived_and_not_replaced() {
        let (kv, sessions) = sessions();
        let session = block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        block_on(kv.txn(Txn::of(vec![Op::put_attached("owner", "w", session.lease)]), FAR)).expect("written");
        kv.advance(Duration::from_millis(13_600));
        assert_eq!(sessions.believes_in(session.lease), Some(false));
        let reopened = block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        assert_eq!(reopened.lease, session.lease);
        assert_eq!(sessions.good_until(WORKER), Some(Moment(Duration::from_millis(13_600 + 13_500))));
        kv.advance(Duration::from_secs(2));
        assert_eq!(kv.inspect(|store| store.keys().count()), 1, "its owner keys are there");
    }

    #[test]
    fn a_session_is_not_replaced_while_the_store_may_still_keep_it() {
        let (kv, sessions) = sessions();
        let session = block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        kv.advance(Duration::from_millis(13_600));
        kv.inject(CallKind::KeepAlive, 0, Fault::LoseRequest);
        block_on(sessions.open(WORKER, TTL, FAR)).expect_err("the store did not say whether it keeps the session");
        assert_eq!(sessions.believes_in(session.lease), Some(false));
        assert_eq!(block_on(sessions.open(WORKER, TTL, FAR)).expect("opened").lease, session.lease);
    }

    #[test]
    fn no_one_believes_in_a_session_that_was_replaced() {
        let (kv, sessions) = sessions();
        let session = block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        kv.advance(Duration::from_secs(16));
        let reopened = block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        assert_ne!(reopened.lease, session.lease);
        assert_eq!(sessions.believes_in(session.lease), Some(false));
        kv.advance(Duration::from_secs(16));
        let again = block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        let known = [session, reopened, again].map(|session| sessions.believes_in(session.lease));
        assert_eq!(known, [None, Some(false), Some(true)], "what ended long ago is forgotten");
    }

    #[test]
    fn an_unconfirmed_heartbeat_neither_ends_nor_extends_the_session() {
        let (kv, sessions) = sessions();
        let session = block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        kv.advance(Duration::from_secs(5));
        kv.inject(CallKind::KeepAlive, 0, Fault::LoseAnswer);
        block_on(sessions.beat());
        assert_eq!(sessions.good_until(WORKER), Some(session.good_until));
    }

    #[test]
    fn closing_frees_the_workers_keys_at_once() {
        let (kv, sessions) = sessions();
        let session = block_on(sessions.open(WORKER, TTL, FAR)).expect("opened");
        block_on(kv.txn(Txn::of(vec![Op::put_attached("owner", "w", session.lease)]), FAR)).expect("written");
        block_on(sessions.close(WORKER, FAR)).expect("closed");
        assert_eq!(kv.inspect(|store| store.keys().count()), 0);
        assert_eq!(sessions.good_until(WORKER), None);
    }
}
