//! Presence: the workers of a tenant that are live, and those of them that cannot serve a run.
//!
//! A shard that some worker could not reach stays open as long as a live worker is left that has not tried. So the coordinator
//! must know all live workers, also those that have not met the run yet: idle ones, and ones that are busy with other runs.
//! Each session of a worker has a *presence*, a key that is attached to the session's etcd lease and goes with it. The first of these writes it:
//!
//! - a worker that connects and says so ([`Inner::join`]), also where there is no run yet;
//! - the first acquire of the session, in the same transaction;
//! - a claim that finds nothing.
//!
//! Presence must not keep a shard open for ever. It ends in four ways, and each lets the next claim or report park the shard:
//!
//! - **The worker leaves.** A drained worker ends its sessions, and their presences are gone at once.
//! - **The worker dies, hangs or loses the store.** etcd drops the session after its TTL.
//! - **The worker cannot serve this run**: its findings folder or its job cannot be read, perhaps because a newer program wrote it.
//!   It never claims, so it never reports. It *abstains* ([`Inner::abstain`]): a key of its session under the run's incarnation.
//!   A session that abstains counts as absent, for this run alone.
//! - **The worker comes, and reports**: it was busy elsewhere and claims when it is done. Until then the shard waits. That is
//!   the rule: a busy worker may be the one that has the disk.
//!
//! Where there are more live workers than the record has room for reports, the report beyond the last place parks the shard.
//!
//! The transaction that parks compares that no presence was written since the look. A worker that abstained and can serve the
//! run again writes its presence anew, so this compare notices it too.

use std::collections::HashSet;

use tessera_contracts::{RunId, RunIncarnation, TenantId, WorkerId};
use tessera_coordination::decide::unreachable::{Peers, is_reported_by};
use tessera_coordination::error::InfraError;
use tessera_coordination::record::unreachable::{UNREACHABLE_REPORTS_MAX, UnreachableReport};

use super::families::behind;
use super::standings::BeingWritten;
use super::{Inner, failed, lock, span};
use crate::keyspace::{Keyspace, session_of};
use crate::kv::{
    Compare, CompareOp, CompareTarget, EtcdLeaseId, Keys, Kv, Moment, Op, OpResponse, RangeRequest, Revision, Txn,
};
use crate::session::Session;

/// Sessions that one request reads.
const PAGE: u32 = 64;
/// Abstentions remembered; forgetting them costs a write each.
const REMEMBERED_MAX: usize = 4_096;

/// One creation of a tenant's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Creation {
    pub(super) tenant: TenantId,
    pub(super) run: RunId,
    pub(super) incarnation: RunIncarnation,
}

/// Which of the live workers a decision needs to know.
#[derive(Clone, Copy)]
pub(super) enum Asked<'r> {
    /// All that made one of these reports, and two that made none: one of them may be about to.
    About(&'r [UnreachableReport]),
    /// All of them, unless there are more than can have reported one shard.
    All,
}

/// The abstentions that this coordinator wrote.
#[derive(Debug, Default)]
pub(super) struct Abstentions(HashSet<(Creation, WorkerId, EtcdLeaseId)>);

/// Live workers that may serve a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Present {
    workers: Vec<WorkerId>,
    /// As of this revision of the store.
    revision: Revision,
    /// Whether these are all of them.
    pub(super) is_complete: bool,
}

impl Present {
    pub(super) fn workers(&self) -> &[WorkerId] {
        &self.workers
    }

    pub(super) fn peers(&self) -> Peers<'_> {
        Peers::Sessions(&self.workers)
    }

    /// No worker has come since.
    pub(super) fn none_came(&self, space: &Keyspace, tenant: TenantId) -> Compare {
        let next = Revision(self.revision.0 + 1);
        Compare { keys: space.presences(tenant), op: CompareOp::Less, target: CompareTarget::ModRevision(next) }
    }

    fn add(&mut self, worker: WorkerId) {
        if !self.workers.contains(&worker) {
            self.workers.push(worker);
        }
    }

    fn suffices(&self, asked: Asked<'_>) -> bool {
        match asked {
            Asked::About(reports) => {
                self.workers.iter().filter(|worker| !is_reported_by(reports, **worker)).nth(1).is_some()
            }
            Asked::All => self.workers.len() > UNREACHABLE_REPORTS_MAX,
        }
    }
}

impl<K: Kv> Inner<K> {
    /// The live workers that may serve the run.
    pub(super) async fn present(
        &self,
        operation: &'static str,
        of: Creation,
        asked: Asked<'_>,
        deadline: Moment,
    ) -> Result<Present, InfraError> {
        let reports = match asked {
            Asked::About(reports) => reports,
            Asked::All => &[],
        };
        // Abstentions first: a session that withdraws one later writes its presence behind this revision.
        let (abstaining, revision) = self.abstaining(operation, of, deadline).await?;
        let mut keys = self.space.presences(of.tenant);
        let mut present = Present { revision, ..Present::default() };
        let mut reads = vec![Op::Range(RangeRequest::of(keys.clone()).keys_only().limit(PAGE))];
        let sessions_of = |report: &UnreachableReport| self.space.presences_of(of.tenant, report.worker);
        reads.extend(reports.iter().map(|report| Op::Range(RangeRequest::of(sessions_of(report)).count_only())));
        loop {
            let read = self.kv.txn(Txn::of(reads), deadline).await.map_err(|error| failed(operation, &error))?;
            let Some((OpResponse::Range(page), counts)) = read.responses.split_first() else {
                return Err(InfraError::corruption(operation, "presences were not answered part by part"));
            };
            for (report, count) in reports.iter().zip(counts) {
                if matches!(count, OpResponse::Range(range) if range.count > 0) {
                    present.add(report.worker);
                }
            }
            let sessions = page.kvs.iter().filter_map(|kv| session_of(&kv.key));
            sessions.filter(|session| !abstaining.contains(session)).for_each(|(worker, _)| present.add(worker));
            present.is_complete = !page.more;
            let (Some(last), true, false) = (page.kvs.last(), page.more, present.suffices(asked)) else {
                return Ok(present);
            };
            keys = behind(keys, last);
            reads = vec![Op::Range(RangeRequest::of(keys.clone()).keys_only().limit(PAGE))];
        }
    }

    /// The sessions that cannot serve the run, and the revision at which the look began.
    async fn abstaining(
        &self,
        operation: &'static str,
        of: Creation,
        deadline: Moment,
    ) -> Result<(HashSet<(WorkerId, EtcdLeaseId)>, Revision), InfraError> {
        let (mut found, mut began) = (HashSet::new(), None);
        let mut keys: Keys = self.space.abstentions(of.tenant, of.run, of.incarnation);
        loop {
            let read = RangeRequest::of(keys.clone()).keys_only().limit(PAGE);
            let page = self.kv.range(read, deadline).await.map_err(|error| failed(operation, &error))?;
            let began = *began.get_or_insert(page.revision);
            found.extend(page.kvs.iter().filter_map(|kv| session_of(&kv.key)));
            let (Some(last), true) = (page.kvs.last(), page.more) else { return Ok((found, began)) };
            keys = behind(keys, last);
        }
    }

    /// Makes a worker known to the tenant's other workers.
    pub(super) async fn join(&self, tenant: TenantId, worker: WorkerId) -> Result<(), InfraError> {
        let length = span(self.lease_duration_default());
        self.make_present("join", tenant, worker, length, self.deadline()).await.map(drop)
    }

    /// Opens a session for leases of this length and writes its presence, if that was not done.
    pub(super) async fn make_present(
        &self,
        operation: &'static str,
        tenant: TenantId,
        worker: WorkerId,
        length: core::time::Duration,
        deadline: Moment,
    ) -> Result<Session, InfraError> {
        let failed = |error| failed(operation, &error);
        let session = self.sessions.open(worker, length, deadline).await.map_err(failed)?;
        let Some(presence) = self.take_presence(tenant, &session) else { return Ok(session) };
        match self.kv.txn(Txn::of(vec![BeingWritten::write(&presence)]), deadline).await {
            Ok(_) => presence.stored(),
            Err(error) => {
                // The store may have forgotten the session; the next call opens another.
                self.sessions.check(session.lease, deadline).await;
                return Err(failed(error));
            }
        }
        Ok(session)
    }

    /// Says of every session of the worker that it cannot serve the run. Costs nothing where that was said.
    pub(super) async fn abstain(&self, of: Creation, worker: WorkerId) -> Result<(), InfraError> {
        let sessions = self.sessions.of(worker);
        let unsaid: Vec<EtcdLeaseId> = {
            let said = lock(&self.abstentions);
            let leases = sessions.iter().map(|session| session.lease);
            leases.filter(|lease| !said.0.contains(&(of, worker, *lease))).collect()
        };
        for lease in unsaid {
            let path = self.space.abstention(of.tenant, of.run, of.incarnation, worker, lease);
            let txn = Txn::of(vec![Op::put_attached(path, "", lease)]);
            self.kv.txn(txn, self.deadline()).await.map_err(|error| failed("abstain", &error))?;
            let mut said = lock(&self.abstentions);
            if said.0.len() >= REMEMBERED_MAX {
                said.0.clear();
            }
            said.0.insert((of, worker, lease));
        }
        Ok(())
    }

    /// Withdraws the worker's abstentions from the run, if it made any.
    pub(super) async fn take_part(&self, of: Creation, worker: WorkerId) -> Result<(), InfraError> {
        for session in self.sessions.of(worker) {
            let name = (of, worker, session.lease);
            if !lock(&self.abstentions).0.contains(&name) {
                continue;
            }
            let abstention = self.space.abstention(of.tenant, of.run, of.incarnation, worker, session.lease);
            let presence = self.space.presence(of.tenant, worker, session.lease);
            let txn = Txn::of(vec![Op::delete(abstention), Op::put_attached(presence, "", session.lease)]);
            self.kv.txn(txn, self.deadline()).await.map_err(|error| failed("take_part", &error))?;
            lock(&self.abstentions).0.remove(&name);
        }
        Ok(())
    }
}
