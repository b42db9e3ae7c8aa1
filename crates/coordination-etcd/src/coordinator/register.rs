//! Registration: a run's roots, all at once for every reader, however many they are.
//!
//! A small one is one transaction. A large one is staged: the run's record first names the attempt, which counts its
//! shards against the limits and removes what an earlier attempt left; then the shards are written, each transaction
//! proving that the attempt is still the one; then one transaction makes the run active. Until then the run is
//! initializing and no reader sees its shards. After a crash the registration is simply made again.

use tessera_contracts::manifest::{InitialShardInput, validate_manifest};
use tessera_contracts::{LogicalTime, OpId, RunId, ShardKey, TenantId};
use tessera_coordination::decide::{Birth, Verdict, register_shards};
use tessera_coordination::error::{IdempotentOutcome, InfraError, RegisterShardsError, RunNotFound};

use super::stored::StoredRun;
use super::tallies::TallyChange;
use super::{Inner, failed};
use crate::codec::{ColdPart, RootsPart, RunPart, Staging};
use crate::keyspace::{ShardIndex, Window};
use crate::kv::{Compare, Fate, Kv, Moment, Op, RangeRequest, Revision, Txn};

impl<K: Kv> Inner<K> {
    pub(super) async fn register_shards(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        shards: &[InitialShardInput<'_>],
        op_id: OpId,
    ) -> Result<IdempotentOutcome<u32>, RegisterShardsError> {
        let operation = "register_shards";
        let deadline = self.deadline();
        let mut manifest = None;
        let mut in_doubt = false;
        for attempt in 1..=self.config.attempts_max {
            let stored = self.load_run(operation, tenant, run, deadline).await?.ok_or(RunNotFound { run })?;
            let manifest = match &manifest {
                Some(manifest) => manifest,
                None => manifest.insert(validate_manifest(shards)?),
            };
            let tally = self.fresh_tally(operation, tenant, deadline).await?;
            let mut record = stored.part.to_record(tenant, run, Vec::new());
            let mut census = tally.census();
            // What an earlier attempt at this very registration reserved is given back in the same step.
            let reserved = stored.part.staging.map_or(0, |staging| u64::from(staging.reserved));
            census.of_tenant = census.of_tenant.saturating_sub(reserved);
            census.total = census.total.saturating_sub(reserved);
            let registration = match register_shards::decide(&record, manifest, op_id, &census, now)? {
                Verdict::Replay(IdempotentOutcome::Replayed(count)) if in_doubt => {
                    return Ok(IdempotentOutcome::Executed(count));
                }
                Verdict::Replay(outcome) => return Ok(outcome),
                Verdict::Execute(registration) => registration,
            };
            record.apply(&registration.change, registration.births.iter().map(|birth| birth.key.shard));
            let count = record.root_shards.len() as u32;
            let active = RunPart::of(&record);
            let roots = RootsPart { roots: record.root_shards };
            let births: Vec<(ShardKey, Vec<u8>)> = registration.births.iter().map(encode_birth).collect();
            let plan = Plan { tenant, run, active, roots, births };
            let change = if u64::from(count) >= reserved {
                tally.add(u64::from(count) - reserved)?
            } else {
                tally.subtract(reserved - u64::from(count))
            };
            match self.publish_run(operation, &stored, &plan, &change, deadline).await? {
                Published::Yes(revision) => {
                    if let Some(revision) = revision {
                        self.tally_changed(tenant, &change, revision);
                    }
                    return Ok(IdempotentOutcome::Executed(count));
                }
                Published::Lost => {}
                Published::Doubtful => in_doubt = true,
            }
            self.breathe(attempt).await;
        }
        Err(InfraError::contended(operation).into())
    }

    async fn publish_run(
        &self,
        operation: &'static str,
        stored: &StoredRun,
        plan: &Plan,
        change: &TallyChange,
        deadline: Moment,
    ) -> Result<Published, InfraError> {
        let counters = change.all.ops.len() + change.of_tenant.ops.len();
        let ops = 2 * plan.births.len() + counters + 4;
        let compares = 1 + change.all.compares.len() + change.of_tenant.compares.len();
        let bytes: usize = plan.births.iter().map(|(_, cold)| cold.len() + 512).sum();
        let small = stored.part.staging.is_none()
            && ops.max(compares) <= self.config.txn_ops_max
            && bytes + 131_072 <= self.config.request_bytes_max;
        if small {
            let mut txn = self.activation(stored.part.created_at, stored.revision, plan);
            extend(&mut txn, change);
            txn.success.extend(self.entries(plan, &plan.births));
            return self.outcome(operation, txn, deadline).await;
        }
        let staging = Staging { attempt: self.kv.random(), reserved: plan.births.len() as u32 };
        let Some(staged_at) = self.announce(operation, stored, plan, staging, change, deadline).await? else {
            return Ok(Published::Lost);
        };
        self.tally_changed(plan.tenant, change, staged_at);
        for chunk in chunks(&plan.births, self.config.txn_ops_max / 2, self.config.request_bytes_max) {
            let path = self.space.run(plan.tenant, plan.run);
            let txn = Txn {
                compares: vec![Compare::unchanged_since(path, staged_at)],
                success: self.entries(plan, chunk),
                failure: vec![],
            };
            if !self.repeat(operation, txn, deadline.after(self.config.call_timeout)).await?.succeeded {
                return Ok(Published::Lost);
            }
        }
        if !self.all_are_there(operation, plan, deadline.after(self.config.call_timeout)).await? {
            return Ok(Published::Lost);
        }
        let txn = self.activation(stored.part.created_at, staged_at, plan);
        let published = self.outcome(operation, txn, deadline.after(self.config.call_timeout)).await?;
        Ok(match published {
            // The counters were changed when the attempt was announced.
            Published::Yes(_) => Published::Yes(None),
            other => other,
        })
    }

    /// Whether as many shards lie in the store as were to be written. Nothing deletes one of them without writing the run's
    /// record first, which the activation compares; so a registration that is answered as executed has all its shards even if
    /// something forgets to.
    async fn all_are_there(&self, operation: &'static str, plan: &Plan, deadline: Moment) -> Result<bool, InfraError> {
        let read = RangeRequest::of(self.space.colds_after(plan.tenant, plan.run, None)).count_only();
        let found = self.kv.range(read, deadline).await.map_err(|error| failed(operation, &error))?;
        Ok(usize::try_from(found.count) == Ok(plan.births.len()))
    }

    /// Names the attempt in the run's record, counts its shards, and removes what an earlier one left. Answers the
    /// revision that proves it, or `None` if another coordinator was first.
    async fn announce(
        &self,
        operation: &'static str,
        stored: &StoredRun,
        plan: &Plan,
        staging: Staging,
        change: &TallyChange,
        deadline: Moment,
    ) -> Result<Option<Revision>, InfraError> {
        let path = self.space.run(plan.tenant, plan.run);
        let announced = stored.part.staged(staging);
        let mut txn = Txn {
            compares: vec![Compare::unchanged_since(&path, stored.revision)],
            success: vec![
                Op::put(&path, announced.encode()),
                Op::Delete(self.space.colds_after(plan.tenant, plan.run, None)),
                Op::Delete(self.space.indexed(ShardIndex::Free, plan.tenant, plan.run, Window::ALL)),
            ],
            failure: vec![],
        };
        extend(&mut txn, change);
        match self.kv.txn(txn, deadline).await {
            Ok(answer) => Ok(answer.succeeded.then_some(answer.revision)),
            Err(error) if error.fate == Fate::Ambiguous => {
                let now = self.load_run(operation, plan.tenant, plan.run, deadline).await?;
                Ok(now.filter(|now| now.part.staging == Some(staging)).map(|now| now.revision))
            }
            Err(error) => Err(failed(operation, &error)),
        }
    }

    /// The transaction that makes the run active.
    fn activation(&self, created_at: LogicalTime, revision: Revision, plan: &Plan) -> Txn {
        let path = self.space.run(plan.tenant, plan.run);
        Txn {
            compares: vec![Compare::unchanged_since(&path, revision)],
            success: vec![
                Op::put(&path, plan.active.encode()),
                Op::put(self.space.roots(plan.tenant, plan.run), plan.roots.encode()),
                Op::delete(self.space.new_run(created_at, plan.tenant, plan.run)),
                Op::put(self.space.active_run(plan.tenant, plan.run), ""),
            ],
            failure: vec![],
        }
    }

    fn entries(&self, plan: &Plan, births: &[(ShardKey, Vec<u8>)]) -> Vec<Op> {
        let entry = |(key, cold): &(ShardKey, Vec<u8>)| {
            [
                Op::put(self.space.cold(plan.tenant, *key), cold.clone()),
                Op::put(self.space.index(ShardIndex::Free, plan.tenant, *key), ""),
            ]
        };
        births.iter().flat_map(entry).collect()
    }

    async fn outcome(&self, operation: &'static str, txn: Txn, deadline: Moment) -> Result<Published, InfraError> {
        match self.kv.txn(txn, deadline).await {
            Ok(answer) if answer.succeeded => Ok(Published::Yes(Some(answer.revision))),
            Ok(_) => Ok(Published::Lost),
            Err(error) if error.fate == Fate::Ambiguous => Ok(Published::Doubtful),
            Err(error) => Err(failed(operation, &error)),
        }
    }
}

/// A registration to be stored.
struct Plan {
    tenant: TenantId,
    run: RunId,
    active: RunPart,
    roots: RootsPart,
    births: Vec<(ShardKey, Vec<u8>)>,
}

enum Published {
    /// Stored, at this revision if the counters were changed with it.
    Yes(Option<Revision>),
    Lost,
    Doubtful,
}

fn extend(txn: &mut Txn, change: &TallyChange) {
    for part in [&change.all, &change.of_tenant] {
        txn.compares.extend(part.compares.iter().cloned());
        txn.success.extend(part.ops.iter().cloned());
    }
}

fn encode_birth(birth: &Birth<'_>) -> (ShardKey, Vec<u8>) {
    let cold = ColdPart {
        incarnation: birth.incarnation,
        spec: birth.spec.to_owned(),
        cursor_semantics: birth.cursor_semantics,
        parent: birth.parent,
        born_at: birth.cursor.to_owned(),
        spawned: Vec::new(),
        staged: false,
    };
    (birth.key, cold.encode())
}

/// Cuts births into runs that fit one request each, by count and by bytes.
fn chunks(births: &[(ShardKey, Vec<u8>)], count_max: usize, bytes_max: usize) -> Vec<&[(ShardKey, Vec<u8>)]> {
    let mut chunks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, (_, cold)) in births.iter().enumerate() {
        let size = cold.len() + 512;
        if index > start && (index - start >= count_max || bytes + size > bytes_max) {
            chunks.push(&births[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += size;
    }
    if start < births.len() {
        chunks.push(&births[start..]);
    }
    chunks
}

#[cfg(test)]
mod tests {
    use tessera_contracts::ShardId;

    use super::*;

    #[test]
    fn chunks_lose_nothing_and_fit() {
        let births: Vec<(ShardKey, Vec<u8>)> = (0..1_000)
            .map(|n| (ShardKey::new(RunId::new(1), ShardId::new(n)), vec![0; (n as usize * 37) % 3_000]))
            .collect();
        let chunks = chunks(&births, 64, 40_000);
        assert_eq!(chunks.iter().map(|chunk| chunk.len()).sum::<usize>(), 1_000);
        for chunk in chunks {
            let bytes: usize = chunk.iter().map(|(_, cold)| cold.len() + 512).sum();
            assert!(chunk.len() <= 64 && bytes <= 40_000);
        }
    }
}
