//! etcd's data: keys with their revisions and versions, and leases that own keys.
//!
//! One transaction is one revision, whatever it writes, and none if it changes nothing. All compares, at every depth,
//! are evaluated before the first write; reads see the writes before them. A lease's end deletes its keys in one revision.
//! What was replaced is kept for a while, so that earlier revisions can be read until they are compacted.

use core::ops::Bound;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::admission::{self, Limits};
use crate::kv::{
    Compare, CompareOp, CompareTarget, EtcdLeaseId, GrantedLease, KeyValue, Keys, KvError, KvErrorKind,
    LeaseTimeToLive, Moment, Op, OpResponse, RangeRequest, RangeResponse, Revision, Txn, TxnResponse,
};

/// etcd raises shorter leases to this: one and a half election timeouts, in whole seconds.
const LEASE_TTL_MIN: Duration = Duration::from_secs(2);
/// Replaced values that are kept. A server keeps all until it is told to compact; a simulation runs for millions of writes.
const REPLACED_MAX: usize = 4_096;

/// The state of a simulated cluster.
#[derive(Clone, Debug)]
pub struct Store {
    limits: Limits,
    revision: i64,
    keys: BTreeMap<Bytes, Stored>,
    leases: BTreeMap<EtcdLeaseId, Lease>,
    /// What every write replaced, the oldest first.
    replaced: VecDeque<Replaced>,
    /// The first revision that can still be read.
    compacted: i64,
}

/// What a key held before the write of `revision`.
#[derive(Clone, Debug)]
struct Replaced {
    revision: i64,
    key: Bytes,
    before: Option<Stored>,
}

#[derive(Clone, Debug)]
struct Stored {
    value: Bytes,
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    lease: EtcdLeaseId,
}

#[derive(Clone, Debug)]
struct Lease {
    ttl: Duration,
    expires: Moment,
    keys: BTreeSet<Bytes>,
}

impl Default for Store {
    /// Empty, at revision 1 as a new etcd is.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            revision: 1,
            keys: BTreeMap::new(),
            leases: BTreeMap::new(),
            replaced: VecDeque::new(),
            compacted: 0,
        }
    }
}

impl Store {
    /// The current revision.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        Revision(self.revision)
    }

    /// How many leases are alive.
    #[must_use]
    pub fn lease_count(&self) -> usize {
        self.leases.len()
    }

    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Every key in order, for a test that looks at all of it.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.keys.keys()
    }

    /// Reads keys.
    ///
    /// # Errors
    /// If the key is empty, or the revision is one that is not there yet or not kept any more.
    pub fn range(&self, request: &RangeRequest) -> Result<RangeResponse, KvError> {
        admission::check_key(&request.keys)?;
        self.check_revision(request)?;
        Ok(self.read(request, self.revision))
    }

    /// Runs a transaction.
    ///
    /// # Errors
    /// What the server would refuse: see [`admission::admit`]; and a put attached to a lease that does not exist.
    pub fn txn(&mut self, txn: &Txn) -> Result<TxnResponse, KvError> {
        admission::admit(txn, &self.limits)?;
        let path = self.decide(txn);
        self.check_leases(txn, &mut path.iter().copied())?;
        self.check_revisions(txn, &mut path.iter().copied())?;
        let mut writer = Writer { revision: self.revision + 1, changed: false };
        let mut answer = self.run(txn, &mut path.iter().copied(), &mut writer);
        if writer.changed {
            self.revision = writer.revision;
        }
        answer.revision = Revision(self.revision);
        Ok(answer)
    }

    /// Forgets what was before `revision`, as a server does that is told to compact.
    pub fn compact(&mut self, revision: Revision) {
        self.compacted = self.compacted.max(revision.0.min(self.revision));
        while self.replaced.front().is_some_and(|replaced| replaced.revision <= self.compacted) {
            self.replaced.pop_front();
        }
    }

    /// Creates a lease.
    ///
    /// # Errors
    /// If the id is taken.
    pub fn lease_grant(&mut self, id: EtcdLeaseId, ttl: Duration, now: Moment) -> Result<GrantedLease, KvError> {
        if self.leases.contains_key(&id) {
            return Err(KvError::not_applied(KvErrorKind::LeaseExists, format!("sim: lease {id}")));
        }
        let whole_seconds = Duration::from_secs(u64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(u64::MAX));
        let ttl = whole_seconds.max(LEASE_TTL_MIN);
        self.leases.insert(id, Lease { ttl, expires: now.after(ttl), keys: BTreeSet::new() });
        Ok(GrantedLease { id, ttl })
    }

    /// Ends a lease and deletes its keys, in one revision.
    ///
    /// # Errors
    /// If there is no such lease.
    pub fn lease_revoke(&mut self, id: EtcdLeaseId) -> Result<(), KvError> {
        let lease = self
            .leases
            .remove(&id)
            .ok_or_else(|| KvError::not_applied(KvErrorKind::LeaseNotFound, format!("sim: lease {id}")))?;
        if !lease.keys.is_empty() {
            self.revision += 1;
            for key in lease.keys {
                let before = self.keys.remove(&key);
                self.keep(Replaced { revision: self.revision, key, before });
            }
        }
        Ok(())
    }

    /// Extends a lease to its full length; `None` if it is gone.
    pub fn lease_keep_alive(&mut self, id: EtcdLeaseId, now: Moment) -> Option<Duration> {
        let lease = self.leases.get_mut(&id)?;
        lease.expires = now.after(lease.ttl);
        Some(lease.ttl)
    }

    /// What a lease has left; `None` if it is gone.
    #[must_use]
    pub fn lease_time_to_live(&self, id: EtcdLeaseId, now: Moment) -> Option<LeaseTimeToLive> {
        let lease = self.leases.get(&id)?;
        let remaining = Duration::from_secs(now.until(lease.expires).as_secs());
        Some(LeaseTimeToLive { remaining, granted: lease.ttl })
    }

    /// When the next lease runs out.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Moment> {
        self.leases.values().map(|lease| lease.expires).min()
    }

    /// Ends every lease whose time has come.
    pub fn expire(&mut self, now: Moment) {
        let mut due: Vec<(Moment, EtcdLeaseId)> =
            self.leases.iter().filter(|(_, lease)| lease.expires <= now).map(|(id, l)| (l.expires, *id)).collect();
        due.sort_unstable();
        for (_, id) in due {
            self.lease_revoke(id).expect("the lease was found just above");
        }
    }

    /// Which branch each transaction takes, outermost first, in the order they will run.
    fn decide(&self, txn: &Txn) -> Vec<bool> {
        let holds = txn.compares.iter().all(|compare| self.holds(compare));
        let mut path = vec![holds];
        for op in branch(txn, holds) {
            if let Op::Txn(nested) = op {
                path.extend(self.decide(nested));
            }
        }
        path
    }

    fn holds(&self, compare: &Compare) -> bool {
        let mut found = self.within(&compare.keys).peekable();
        if found.peek().is_none() {
            // A missing key is all zeros, except that no value is equal, unequal or otherwise related to nothing.
            return compare_one(compare, None);
        }
        found.all(|(_, stored)| compare_one(compare, Some(stored)))
    }

    /// A put attached to a dead lease fails the whole transaction before anything is written.
    fn check_leases(&self, txn: &Txn, path: &mut impl Iterator<Item = bool>) -> Result<(), KvError> {
        let taken = path.next().unwrap_or_default();
        for op in branch(txn, taken) {
            match op {
                Op::Put { lease, .. } if *lease != EtcdLeaseId::NONE && !self.leases.contains_key(lease) => {
                    return Err(KvError::not_applied(KvErrorKind::LeaseNotFound, format!("sim: lease {lease}")));
                }
                Op::Txn(nested) => self.check_leases(nested, path)?,
                Op::Put { .. } | Op::Range(_) | Op::Delete(_) => {}
            }
        }
        Ok(())
    }

    fn check_revisions(&self, txn: &Txn, path: &mut impl Iterator<Item = bool>) -> Result<(), KvError> {
        let taken = path.next().unwrap_or_default();
        for op in branch(txn, taken) {
            match op {
                Op::Range(range) => self.check_revision(range)?,
                Op::Txn(nested) => self.check_revisions(nested, path)?,
                Op::Put { .. } | Op::Delete(_) => {}
            }
        }
        Ok(())
    }

    fn check_revision(&self, request: &RangeRequest) -> Result<(), KvError> {
        match request.revision.0 {
            0 => Ok(()),
            future if future > self.revision => {
                Err(KvError::not_applied(KvErrorKind::InvalidRequest, "sim: required revision is a future revision"))
            }
            past if past < self.compacted => {
                Err(KvError::not_applied(KvErrorKind::Compacted, "sim: required revision has been compacted"))
            }
            _ => Ok(()),
        }
    }

    /// Remembers what a write replaced, and forgets what lies too far back.
    fn keep(&mut self, replaced: Replaced) {
        self.replaced.push_back(replaced);
        if self.replaced.len() > REPLACED_MAX {
            let oldest = self.replaced[0].revision;
            self.compact(Revision(oldest));
        }
    }

    fn run(&mut self, txn: &Txn, path: &mut impl Iterator<Item = bool>, writer: &mut Writer) -> TxnResponse {
        let succeeded = path.next().unwrap_or_default();
        let mut responses = Vec::new();
        for op in branch(txn, succeeded) {
            responses.push(match op {
                Op::Range(range) => {
                    let seen = if writer.changed { writer.revision } else { self.revision };
                    OpResponse::Range(self.read(range, seen))
                }
                Op::Put { key, value, lease } => {
                    self.put(key, value, *lease, writer);
                    OpResponse::Put
                }
                Op::Delete(keys) => OpResponse::Delete { deleted: self.delete(keys, writer) },
                Op::Txn(nested) => OpResponse::Txn(self.run(nested, path, writer)),
            });
        }
        TxnResponse { revision: Revision(0), succeeded, responses }
    }

    fn put(&mut self, key: &Bytes, value: &Bytes, lease: EtcdLeaseId, writer: &mut Writer) {
        let revision = writer.write();
        let before = self.keys.get(key);
        let (create_revision, version) =
            before.map_or((revision, 1), |stored| (stored.create_revision, stored.version + 1));
        let lease_before = before.map(|stored| stored.lease);
        if let Some(attached) = lease_before.and_then(|lease| self.leases.get_mut(&lease)) {
            attached.keys.remove(key);
        }
        if let Some(attached) = self.leases.get_mut(&lease) {
            attached.keys.insert(key.clone());
        }
        let stored = Stored { value: value.clone(), create_revision, mod_revision: revision, version, lease };
        let before = self.keys.insert(key.clone(), stored);
        self.keep(Replaced { revision, key: key.clone(), before });
    }

    fn delete(&mut self, keys: &Keys, writer: &mut Writer) -> i64 {
        let doomed: Vec<Bytes> = self.within(keys).map(|(key, _)| key.clone()).collect();
        let deleted = count(doomed.len());
        for key in doomed {
            let revision = writer.write();
            let before = self.keys.remove(&key);
            if let Some(attached) = before.as_ref().and_then(|stored| self.leases.get_mut(&stored.lease)) {
                attached.keys.remove(&key);
            }
            self.keep(Replaced { revision, key, before });
        }
        deleted
    }

    fn read(&self, request: &RangeRequest, revision: i64) -> RangeResponse {
        match request.revision.0 {
            0 => respond(request, revision, || self.within(&request.keys)),
            past => {
                let then = self.within_at(&request.keys, past);
                respond(request, revision, || then.iter().map(|(key, stored)| (*key, *stored)))
            }
        }
    }

    /// The keys as they were at an earlier revision.
    fn within_at(&self, keys: &Keys, revision: i64) -> BTreeMap<&Bytes, &Stored> {
        let bounds = Bounds::of(keys);
        let mut then: BTreeMap<&Bytes, &Stored> = self.within(keys).collect();
        for Replaced { key, before, .. } in self.replaced.iter().rev().take_while(|later| later.revision > revision) {
            match before {
                Some(before) if bounds.contains(key) => drop(then.insert(key, before)),
                Some(_) | None => drop(then.remove(key)),
            }
        }
        then
    }

    fn within(&self, keys: &Keys) -> impl Iterator<Item = (&Bytes, &Stored)> {
        let bounds = Bounds::of(keys);
        let start = Bound::Included(bounds.start.clone());
        self.keys.range((start, Bound::Unbounded)).take_while(move |(key, _)| bounds.contains(key))
    }
}

/// Which keys a request means, with etcd's two special ends: none means one key, a single zero byte means "to the last".
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    start: Bytes,
    end: Option<Bytes>,
}

impl Bounds {
    pub(super) fn of(keys: &Keys) -> Self {
        match keys {
            Keys::One(key) => Self::one(key),
            Keys::Range { start, end } if end.is_empty() => Self::one(start),
            Keys::Range { start, end } if end[..] == [0] => Self { start: start.clone(), end: None },
            Keys::Range { start, end } => Self { start: start.clone(), end: Some(end.clone()) },
        }
    }

    fn one(key: &Bytes) -> Self {
        let mut next = key.to_vec();
        next.push(0);
        Self { start: key.clone(), end: Some(next.into()) }
    }

    pub(super) fn contains(&self, key: &Bytes) -> bool {
        self.start <= *key && self.end.as_ref().is_none_or(|end| key < end)
    }
}

/// The revision a transaction writes at, and whether it wrote.
struct Writer {
    revision: i64,
    changed: bool,
}

impl Writer {
    fn write(&mut self) -> i64 {
        self.changed = true;
        self.revision
    }
}

fn branch(txn: &Txn, succeeded: bool) -> &[Op] {
    if succeeded { &txn.success } else { &txn.failure }
}

fn compare_one(compare: &Compare, stored: Option<&Stored>) -> bool {
    let number = |of: fn(&Stored) -> i64, given: i64| Some(stored.map_or(0, of).cmp(&given));
    let ordering = match &compare.target {
        CompareTarget::Version(given) => number(|stored| stored.version, *given),
        CompareTarget::CreateRevision(given) => number(|stored| stored.create_revision, given.0),
        CompareTarget::ModRevision(given) => number(|stored| stored.mod_revision, given.0),
        CompareTarget::Lease(given) => number(|stored| stored.lease.0, given.0),
        CompareTarget::Value(given) => stored.map(|stored| stored.value.cmp(given)),
    };
    ordering.is_some_and(|ordering| match compare.op {
        CompareOp::Equal => ordering.is_eq(),
        CompareOp::NotEqual => ordering.is_ne(),
        CompareOp::Greater => ordering.is_gt(),
        CompareOp::Less => ordering.is_lt(),
    })
}

fn key_value(key: &Bytes, stored: &Stored, keys_only: bool) -> KeyValue {
    KeyValue {
        key: key.clone(),
        value: if keys_only { Bytes::new() } else { stored.value.clone() },
        create_revision: Revision(stored.create_revision),
        mod_revision: Revision(stored.mod_revision),
        version: stored.version,
        lease: stored.lease,
    }
}

/// The answer to a read that finds these.
fn respond<'s, I: Iterator<Item = (&'s Bytes, &'s Stored)>>(
    request: &RangeRequest,
    revision: i64,
    found: impl Fn() -> I,
) -> RangeResponse {
    let total = found().count();
    let limit = if request.limit == 0 { usize::MAX } else { request.limit as usize };
    let kvs = if request.count_only {
        Vec::new()
    } else {
        found().take(limit).map(|(key, stored)| key_value(key, stored, request.keys_only)).collect()
    };
    let more = !request.count_only && total > limit;
    RangeResponse { revision: Revision(revision), kvs, more, count: count(total) }
}

fn count(of: usize) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Moment = Moment(Duration::ZERO);

    fn get(store: &Store, key: &'static str) -> Option<KeyValue> {
        store.range(&RangeRequest::one(key)).expect("well formed").into_one()
    }

    fn write(store: &mut Store, ops: Vec<Op>) -> TxnResponse {
        store.txn(&Txn::of(ops)).expect("admitted")
    }

    #[test]
    fn one_transaction_is_one_revision_and_an_idle_one_is_none() {
        let mut store = Store::default();
        assert_eq!(write(&mut store, vec![Op::put("a", "1"), Op::put("b", "2")]).revision, Revision(2));
        assert_eq!(write(&mut store, vec![Op::delete("nothing")]).revision, Revision(2));
        assert_eq!(get(&store, "b").expect("written").mod_revision, Revision(2));
    }

    #[test]
    fn nested_compares_see_the_state_before_and_nested_reads_the_state_during() {
        let mut store = Store::default();
        let second = Txn { compares: vec![Compare::exists("a")], success: vec![], failure: vec![Op::get("a")] };
        let answer = write(&mut store, vec![Op::Txn(Txn::of(vec![Op::put("a", "1")])), Op::Txn(second)]);
        let OpResponse::Txn(second) = &answer.responses[1] else { panic!("the second answer is a transaction's") };
        assert!(!second.succeeded, "the sibling's put must not be seen by the compare");
        assert!(matches!(&second.responses[..], [OpResponse::Range(range)] if range.count == 1));
    }

    #[test]
    fn a_deleted_key_starts_anew() {
        let mut store = Store::default();
        write(&mut store, vec![Op::put("a", "1")]);
        write(&mut store, vec![Op::put("a", "2")]);
        assert_eq!(get(&store, "a").expect("written").version, 2);
        write(&mut store, vec![Op::delete("a")]);
        write(&mut store, vec![Op::put("a", "3")]);
        let again = get(&store, "a").expect("written");
        assert_eq!((again.version, again.create_revision), (1, Revision(5)));
    }

    #[test]
    fn an_earlier_revision_is_read_as_it_was_until_it_is_compacted() {
        let mut store = Store::default();
        let lease = EtcdLeaseId(9);
        store.lease_grant(lease, Duration::from_secs(5), T0).expect("granted");
        write(&mut store, vec![Op::put("a", "1"), Op::put_attached("b", "1", lease)]);
        let then = store.revision();
        write(&mut store, vec![Op::put("a", "2"), Op::put("c", "1")]);
        store.expire(Moment(Duration::from_secs(5)));
        write(&mut store, vec![Op::delete("a")]);
        let all = RangeRequest::of(Keys::Range { start: "a".into(), end: "z".into() });
        let values = |store: &Store, at: Revision| {
            let read = store.range(&all.clone().at(at)).map_err(|error| error.kind)?;
            assert_eq!((read.count, read.revision), (read.kvs.len() as i64, store.revision()));
            Ok(read.kvs.iter().map(|kv| [&kv.key[..], &kv.value[..]].concat()).collect::<Vec<_>>())
        };
        assert_eq!(values(&store, then), Ok(vec![b"a1".to_vec(), b"b1".to_vec()]));
        assert_eq!(values(&store, Revision(then.0 + 1)), Ok(vec![b"a2".to_vec(), b"b1".to_vec(), b"c1".to_vec()]));
        assert_eq!(values(&store, store.revision()), Ok(vec![b"c1".to_vec()]));
        assert_eq!(values(&store, Revision(store.revision().0 + 1)), Err(KvErrorKind::InvalidRequest));
        store.compact(Revision(then.0 + 1));
        assert_eq!(values(&store, then), Err(KvErrorKind::Compacted));
        assert_eq!(values(&store, Revision(then.0 + 1)).map(|found| found.len()), Ok(3));
    }

    #[test]
    fn what_was_replaced_long_ago_is_compacted_by_itself() {
        let mut store = Store::default();
        write(&mut store, vec![Op::put("a", "1")]);
        let then = store.revision();
        let read = |store: &Store| store.range(&RangeRequest::one("a").at(then)).map(|read| read.count);
        for _ in 0..REPLACED_MAX {
            write(&mut store, vec![Op::put("b", "x")]);
        }
        assert_eq!(read(&store).map_err(|error| error.kind), Ok(1));
        write(&mut store, vec![Op::put("b", "x"), Op::put("c", "x")]);
        assert_eq!(read(&store).map_err(|error| error.kind), Err(KvErrorKind::Compacted));
    }

    #[test]
    fn no_compare_of_values_holds_for_a_missing_key() {
        let store = Store::default();
        for op in [CompareOp::Equal, CompareOp::NotEqual, CompareOp::Greater, CompareOp::Less] {
            let target = CompareTarget::Value(Bytes::new());
            assert!(!store.holds(&Compare { keys: Keys::One("k".into()), op, target }));
        }
        assert!(store.holds(&Compare::absent("k")));
        assert!(store.holds(&Compare::none_in(Keys::with_prefix("k"))));
    }

    #[test]
    fn a_lease_takes_its_keys_along_except_those_that_moved_away() {
        let mut store = Store::default();
        let lease = EtcdLeaseId(9);
        store.lease_grant(lease, Duration::from_secs(5), T0).expect("granted");
        write(&mut store, vec![Op::put_attached("a", "1", lease), Op::put_attached("b", "1", lease)]);
        write(&mut store, vec![Op::put("b", "2")]);
        store.expire(Moment(Duration::from_millis(4_999)));
        assert!(get(&store, "a").is_some());
        store.expire(Moment(Duration::from_secs(5)));
        assert!(get(&store, "a").is_none() && get(&store, "b").is_some());
        assert_eq!(store.revision(), Revision(4));
    }

    #[test]
    fn a_put_to_a_dead_lease_undoes_the_whole_transaction() {
        let mut store = Store::default();
        let txn = Txn::of(vec![Op::put("a", "1"), Op::put_attached("b", "1", EtcdLeaseId(404))]);
        assert_eq!(store.txn(&txn).expect_err("no such lease").kind, KvErrorKind::LeaseNotFound);
        assert!(get(&store, "a").is_none());
    }
}
