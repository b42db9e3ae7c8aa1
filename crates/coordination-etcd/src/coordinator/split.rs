//! Splits: the parent's change and its children, seen by readers together or not at all.
//!
//! What fits into one transaction goes into one. A larger split is staged: its children are written first, marked as
//! staged, which no reader sees because their parent does not list them; then one transaction changes the parent; then the
//! children are entered into the index of free shards. A marker names the split from before the first child is written
//! until the last is indexed, so a coordinator that finds it after a crash can finish the split, if the parent was changed, or undo
//! it, once the parent has moved on without it.
//!
//! A shard has one marker, and a split that finds another attempt's there undoes that attempt before it writes its own: a
//! marker that is written over names its children no more, and they would stay for good. Every request of a staged split,
//! the one that changes the parent included, therefore proves that the marker is still its own.

use std::sync::Arc;

use bytes::Bytes;
use tessera_contracts::{RunId, ShardId, ShardKey, TenantId};
use tessera_coordination::decide::{Split, Verdict};
use tessera_coordination::error::{AccessRefused, IdempotentOutcome, InfraError, SplitError};
use tessera_coordination::events::EventKind;
use tessera_coordination::operation::Guard;
use tessera_coordination::record::lease::Lease;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::view::ShardView;
use tessera_coordination::shard_limits::ShardCensus;

use super::commit::{Commit, Transition};
use super::stored::{self, StoredShard, found};
use super::tallies::{Tally, TallyChange};
use super::{Inner, failed, unreadable};
use crate::codec::{ColdPart, FamilyPart, HatchingPart};
use crate::keyspace::{ShardIndex, shard_of};
use crate::kv::{
    Compare, Fate, KeyValue, Kv, KvError, KvErrorKind, Moment, Op, OpResponse, RangeRequest, Revision, Txn, by_deadline,
};

/// What a split answered, and what to tell observers.
pub(super) struct Done<T> {
    pub(super) answer: T,
    pub(super) event: Option<EventKind>,
}

/// What to do about a split.
pub(super) enum SplitStep<T> {
    /// Nothing; answer this.
    Answer(IdempotentOutcome<T>),
    /// Store the parent and its children, then answer.
    Store(Box<Planned<T>>),
}

/// A split to be stored.
pub(super) struct Planned<T> {
    next: Arc<ShardRecord>,
    children: Vec<(ShardKey, ColdPart)>,
    answer: T,
    event: Option<EventKind>,
}

impl<T> SplitStep<T> {
    pub(super) fn of(record: &ShardRecord, verdict: Verdict<Split<'_, '_, T>, T>) -> Self {
        let split = match verdict {
            Verdict::Replay(outcome) => return Self::Answer(outcome),
            Verdict::Execute(split) => split,
        };
        let event = EventKind::of_split(record.key.shard, &split);
        let mut next = record.clone();
        next.apply(&split.change, &split.births);
        let children = split.births.iter().map(|birth| {
            let cold = ColdPart {
                incarnation: birth.incarnation,
                spec: birth.spec.to_owned(),
                cursor_semantics: birth.cursor_semantics,
                parent: birth.parent,
                born_at: birth.cursor.to_owned(),
                spawned: Vec::new(),
                staged: false,
            };
            (birth.key, cold)
        });
        Self::Store(Box::new(Planned {
            next: Arc::new(next),
            children: children.collect(),
            answer: split.answer,
            event,
        }))
    }
}

/// What a split writes beside its parent.
struct SplitWrites {
    counted: TallyChange,
    /// The children, encoded.
    colds: Vec<Vec<u8>>,
    /// Whether that is more than one transaction holds.
    staged: bool,
}

/// What lies where a split would write, while its parent is as it was decided on.
struct Ahead {
    /// The marker of an attempt at a large split of the parent: this one's or another's.
    marker: Option<KeyValue>,
    /// An earlier attempt wrote children of the same names.
    has_children: bool,
}

impl Ahead {
    /// Whether an attempt at a large split was broken off, or is under way.
    const fn is_staged(&self) -> bool {
        self.marker.is_some() || self.has_children
    }
}

/// A child of a split under way, as it lay in the store.
pub(super) struct StagedChild {
    shard: ShardId,
    /// Its parent lists it: the split has happened, and the counters count it.
    pub(super) is_listed: bool,
    /// It is in no index yet, unless it was held.
    is_staged: bool,
    /// It was held.
    is_touched: bool,
}

/// How many children a transaction that does nothing else enters into the store.
const CHUNK: usize = 48;

impl<K: Kv> Inner<K> {
    pub(super) async fn split<T: Clone + Send>(
        &self,
        operation: &'static str,
        tenant: TenantId,
        lease: &Lease,
        decide: impl Fn(&ShardView<'_>, &ShardRecord, &ShardCensus) -> Result<SplitStep<T>, SplitError> + Send,
    ) -> Result<Done<IdempotentOutcome<T>>, SplitError> {
        let deadline = self.deadline();
        let key = lease.key();
        // Two that write the same stripe of a counter would only make each other lose.
        let _turn = by_deadline(&self.kv, deadline, self.split_turns.acquire()).await.ok_or_else(|| {
            let waited = "other splits of this process had all turns";
            failed(operation, &KvError::new(Fate::Unsent, KvErrorKind::Deadline, waited))
        })?;
        let mut stored: StoredShard = self.known::<SplitError>(operation, tenant, key, deadline).await?;
        let mut tally = self.tally(operation, tenant, deadline).await?;
        let mut tally_is_fresh = false;
        let mut in_doubt: Option<Option<EventKind>> = None;
        let mut unanswered = None;
        // Another attempt is in the way: what is left of it is dealt with in the course of staging.
        let mut is_in_the_way = false;
        // Looking again at what was only remembered is no attempt: it happens once, and what follows is fresh.
        let mut attempts = 0;
        while attempts < self.config.attempts_max {
            let planned = match decide(&stored.view(self), &stored.record, &tally.census()) {
                Err(_) | Ok(SplitStep::Answer(_)) if !stored.fresh => {
                    stored = self.reload::<SplitError>(operation, tenant, key, deadline).await?;
                    continue;
                }
                Err(SplitError::LimitExceeded(_)) if !tally_is_fresh => {
                    tally = self.refreshed_tally(operation, tenant, tally, deadline).await?;
                    tally_is_fresh = true;
                    continue;
                }
                Err(_) if stored.may_yet_become(unanswered, Guard::SessionStands) => {
                    return Err(InfraError::undecided(operation).into());
                }
                Err(refused) => return Err(refused),
                Ok(SplitStep::Answer(answer)) => {
                    return Ok(match in_doubt {
                        Some(event) => Done { answer: IdempotentOutcome::Executed(answer.into_inner()), event },
                        None => Done { answer, event: None },
                    });
                }
                Ok(SplitStep::Store(planned)) => planned,
            };
            let writes = self.writes_of(&planned, &tally, is_in_the_way)?;
            if writes.staged && !stored.fresh {
                // Its children may be there because it has happened: that is not decided on what is remembered.
                stored = self.reload::<SplitError>(operation, tenant, key, deadline).await?;
                continue;
            }
            match self.store_split(operation, &stored, &planned, &writes, deadline).await? {
                Commit::Won { shard, .. } => {
                    self.tally_changed(tenant, &writes.counted, shard.hot_revision);
                    let Planned { answer, event, .. } = *planned;
                    return Ok(Done { answer: IdempotentOutcome::Executed(answer), event });
                }
                Commit::Lost(fresh) => {
                    let fresh = *fresh.ok_or(AccessRefused::ShardNotFound { key })?;
                    // Not for the parent's sake: a child's name may be taken, and then trying again does not help.
                    if fresh.hot_revision == stored.hot_revision {
                        let ahead = self.look_ahead(operation, &fresh, &planned, deadline).await?;
                        is_in_the_way = ahead.is_some_and(|ahead| ahead.is_staged());
                    }
                    stored = fresh;
                }
                Commit::Doubtful(fresh) => {
                    in_doubt = Some(planned.event);
                    unanswered = Some(stored.hot_revision);
                    stored = *fresh.ok_or(AccessRefused::ShardNotFound { key })?;
                }
            }
            tally = self.refreshed_tally(operation, tenant, tally, deadline).await?;
            tally_is_fresh = true;
            attempts += 1;
            self.breathe(attempts).await;
        }
        Err(InfraError::contended(operation).into())
    }

    /// What a split writes beside its parent; it is staged if it is large, or if it must be.
    fn writes_of<T>(
        &self,
        planned: &Planned<T>,
        tally: &Tally,
        must_be_staged: bool,
    ) -> Result<SplitWrites, SplitError> {
        let counted = tally.add(planned.children.len() as u64)?;
        let colds: Vec<Vec<u8>> = planned.children.iter().map(|(_, cold)| cold.encode()).collect();
        let staged = must_be_staged || !self.fits_one_transaction(&colds, &counted);
        Ok(SplitWrites { staged, colds, counted })
    }

    async fn store_split<T>(
        &self,
        operation: &'static str,
        stored: &StoredShard,
        planned: &Planned<T>,
        writes: &SplitWrites,
        deadline: Moment,
    ) -> Result<Commit, SplitError> {
        let (tenant, key) = (stored.record.tenant, stored.record.key);
        let mut transition = Transition::new(stored, &planned.next, Guard::SessionStands);
        for part in [&writes.counted.all, &writes.counted.of_tenant] {
            transition.compares.extend(part.compares.iter().cloned());
            transition.ops.extend(part.ops.iter().cloned());
        }
        let marker_path = self.space.hatching(tenant, key);
        if !writes.staged {
            transition.compares.push(Compare::absent(&marker_path));
            for ((key, _), cold) in planned.children.iter().zip(&writes.colds) {
                let path = self.space.cold(tenant, *key);
                transition.compares.push(Compare::absent(&path));
                transition.ops.push(Op::put(path, cold.clone()));
            }
            transition.ops.extend(self.announced(tenant, &planned.children));
            return Ok(self.commit(operation, transition, deadline).await?);
        }
        let marker = HatchingPart {
            decided_on: stored.hot_revision,
            children: planned.children.iter().map(|(key, _)| key.shard).collect(),
        };
        if !self.stage(operation, stored, planned, &marker, deadline).await? {
            let moved_on = self.load(operation, tenant, key, deadline).await?;
            return Ok(Commit::Lost(moved_on.map(Box::new)));
        }
        transition.compares.push(Compare::value_is(&marker_path, marker.encode()));
        let commit = self.commit(operation, transition, deadline).await?;
        if let Commit::Won { .. } = &commit {
            // The split has happened. If the rest fails now, the next claim that looks for work finishes it.
            let _ = self.publish(operation, stored, &marker, deadline).await;
        }
        Ok(commit)
    }

    /// What makes the children of a split known to claims: an entry for a lone one, or else a family.
    fn announced(&self, tenant: TenantId, children: &[(ShardKey, ColdPart)]) -> Option<Op> {
        let (first, _) = children.first()?;
        if children.len() == 1 {
            return Some(Op::put(self.space.index(ShardIndex::Free, tenant, *first), ""));
        }
        let family = FamilyPart { children: children.iter().map(|(key, _)| key.shard).collect() };
        Some(Op::put(self.space.family(tenant, *first), family.encode()))
    }

    fn fits_one_transaction(&self, colds: &[Vec<u8>], change: &TallyChange) -> bool {
        let children = colds.len();
        // The parent's hot and cold parts, its owner key and its index entry, and what makes the children known.
        let ops = 4 + children + 1 + change.all.ops.len() + change.of_tenant.ops.len();
        // Its run, hot and cold parts and owner key, and that no other split of it is under way.
        let compares = 5 + children + change.all.compares.len() + change.of_tenant.compares.len();
        let bytes: usize = colds.iter().map(|cold| cold.len() + 512).sum();
        ops.max(compares) <= self.config.txn_ops_max && bytes + 131_072 <= self.config.request_bytes_max
    }

    /// Writes the marker and the children of a large split. Each transaction proves that the parent has not moved on, and each
    /// behind the first that no other attempt has taken the marker; false if one of that is not so any more.
    async fn stage<T>(
        &self,
        operation: &'static str,
        stored: &StoredShard,
        planned: &Planned<T>,
        own: &HatchingPart,
        deadline: Moment,
    ) -> Result<bool, SplitError> {
        let tenant = stored.record.tenant;
        let Some(ahead) = self.look_ahead(operation, stored, planned, deadline).await? else { return Ok(false) };
        if !self.take_marker(operation, stored, ahead.marker, own, deadline).await? {
            return Ok(false);
        }
        let marker = self.space.hatching(tenant, stored.record.key);
        for chunk in planned.children.chunks(self.chunk(&planned.children)) {
            let cold = |(key, cold): &(ShardKey, ColdPart)| {
                let staged = ColdPart { staged: true, ..cold.clone() };
                Op::put(self.space.cold(tenant, *key), staged.encode())
            };
            let mut compares = parent_unmoved(stored);
            compares.push(Compare::value_is(&marker, own.encode()));
            let txn = Txn { compares, success: chunk.iter().map(cold).collect(), failure: vec![] };
            // Writing the same again changes nothing.
            if !self.repeat(operation, txn, deadline).await?.succeeded {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes this attempt's marker where there is none or its own; finishes or undoes the attempt whose marker is there. False if parent or
    /// marker are not as they were read any more.
    async fn take_marker(
        &self,
        operation: &'static str,
        stored: &StoredShard,
        found_there: Option<KeyValue>,
        own: &HatchingPart,
        deadline: Moment,
    ) -> Result<bool, SplitError> {
        let path = self.space.hatching(stored.record.tenant, stored.record.key);
        let mut there = found_there.map(|kv| kv.value);
        if let Some(value) = &there
            && *value != own.encode()
        {
            let other = HatchingPart::decode(value).map_err(|error| unreadable(operation, &error))?;
            if lists(stored, &other) {
                // A residual split that has happened, and left its parent open.
                self.publish(operation, stored, &other, deadline).await?;
            } else if !self.undo_other(operation, stored, other, deadline).await? {
                return Ok(false);
            }
            there = None;
        }
        if there.is_some() {
            return Ok(true);
        }
        let mut compares = parent_unmoved(stored);
        compares.push(Compare::absent(&path));
        let success = vec![Op::put(&path, own.encode())];
        let txn = Txn { compares, success, failure: vec![Op::get(&path)] };
        let answer = self.repeat(operation, txn, deadline).await?;
        let is_own = |answer: &OpResponse| found(answer).is_some_and(|kv| kv.value == own.encode());
        // One that was repeated finds what it wrote the first time.
        Ok(answer.succeeded || answer.responses.first().is_some_and(is_own))
    }

    /// Undoes another attempt at a split of the same parent. If that was decided on the same state of it, its author may still be
    /// at work, and the attempt is taken from it first: under a marker that is not the author's it can neither stage nor split.
    /// False if parent or marker are not as they were read any more.
    async fn undo_other(
        &self,
        operation: &'static str,
        stored: &StoredShard,
        other: HatchingPart,
        deadline: Moment,
    ) -> Result<bool, SplitError> {
        let (tenant, key) = (stored.record.tenant, stored.record.key);
        let path = self.space.hatching(tenant, key);
        let disowned = HatchingPart { decided_on: HatchingPart::NEVER, ..other.clone() };
        let mut compares = parent_unmoved(stored);
        compares.push(Compare::value_is(&path, other.encode()));
        let success = vec![Op::put(&path, disowned.encode())];
        let txn = Txn { compares, success, failure: vec![Op::get(&path)] };
        let answer = self.repeat(operation, txn, deadline).await?;
        let is_disowned = |answer: &OpResponse| found(answer).is_some_and(|kv| kv.value == disowned.encode());
        if !answer.succeeded && !answer.responses.first().is_some_and(is_disowned) {
            return Ok(false);
        }
        self.undo(operation, stored, &disowned, deadline).await?;
        Ok(true)
    }

    /// What lies where a split would write. Refuses the split if a shard that is not of its own making has the name of a child: it
    /// would be written over, and the marker would have it deleted should the split be undone. What this split itself staged
    /// before is written again. `None` if the parent is no longer what the split was decided on: then its children may be
    /// there because it has happened.
    async fn look_ahead<T>(
        &self,
        operation: &'static str,
        stored: &StoredShard,
        planned: &Planned<T>,
        deadline: Moment,
    ) -> Result<Option<Ahead>, SplitError> {
        let (tenant, parent) = (stored.record.tenant, stored.record.key.shard);
        let children = planned.children.iter().map(|(child, _)| Op::get(self.space.cold(tenant, *child)));
        let gets = [Op::get(self.space.hatching(tenant, stored.record.key))].into_iter().chain(children);
        let gets: Vec<Op> = gets.collect();
        let mut answers = Vec::with_capacity(gets.len());
        for chunk in gets.chunks(self.config.txn_ops_max) {
            let reads = Txn { compares: parent_unmoved(stored), success: chunk.to_vec(), failure: vec![] };
            let read = self.kv.txn(reads, deadline).await.map_err(|error| failed(operation, &error))?;
            if !read.succeeded {
                return Ok(None);
            }
            answers.extend(read.responses);
        }
        let mut answers = answers.iter();
        let marker = answers.next().and_then(found).cloned();
        let mut ahead = Ahead { marker, has_children: false };
        for ((child, _), answer) in planned.children.iter().zip(answers) {
            let Some(there) = found(answer) else { continue };
            let there = ColdPart::decode(&there.value).map_err(|error| unreadable(operation, &error))?;
            if !there.staged || there.parent != Some(parent) {
                let taken = format!("another shard has the name {} that a child derives", child.shard);
                return Err(InfraError::corruption(operation, taken).into());
            }
            ahead.has_children = true;
        }
        Ok(Some(ahead))
    }

    fn chunk(&self, children: &[(ShardKey, ColdPart)]) -> usize {
        let largest = children.iter().map(|(_, cold)| cold.encode().len() + 512).max().unwrap_or(1);
        (self.config.request_bytes_max / largest).clamp(1, CHUNK.min(self.config.txn_ops_max / 2))
    }

    /// Runs a transaction that may be repeated at will.
    pub(super) async fn repeat(
        &self,
        operation: &'static str,
        txn: Txn,
        deadline: Moment,
    ) -> Result<crate::kv::TxnResponse, InfraError> {
        let mut attempt = 1;
        loop {
            match self.kv.txn(txn.clone(), deadline).await {
                Err(error) if error.is_transient() && attempt < self.config.attempts_max => {
                    if self.kv.now() >= deadline {
                        return Err(failed(operation, &error));
                    }
                    attempt += 1;
                    self.breathe(attempt).await;
                }
                answer => return answer.map_err(|error| failed(operation, &error)),
            }
        }
    }

    /// Finishes or undoes every large split of a run that was left half done.
    pub(super) async fn finish_hatching(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        deadline: Moment,
    ) -> Result<(), InfraError> {
        let read = RangeRequest::of(self.space.all_hatching(tenant, run));
        let markers = self.kv.range(read, deadline).await.map_err(|error| failed(operation, &error))?.kvs;
        for marker in markers {
            let part = HatchingPart::decode(&marker.value).map_err(|error| unreadable(operation, &error))?;
            let Some(shard) = shard_of(&marker.key) else { continue };
            let parent = self.load(operation, tenant, ShardKey::new(run, shard), deadline).await?;
            match parent {
                Some(parent) if lists(&parent, &part) => {
                    self.publish(operation, &parent, &part, deadline).await?;
                }
                Some(parent) if parent.hot_revision != part.decided_on => {
                    self.undo(operation, &parent, &part, deadline).await?;
                }
                // Its author may still be at work.
                Some(_) => {}
                None => {}
            }
        }
        Ok(())
    }

    /// Children of splits that had happened at this revision and that were in no index yet: open, and never held.
    pub(super) async fn unindexed_children(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        revision: Revision,
        deadline: Moment,
    ) -> Result<Vec<ShardId>, InfraError> {
        let read = RangeRequest::of(self.space.all_hatching(tenant, run)).at(revision);
        let markers = self.kv.range(read, deadline).await.map_err(|error| failed(operation, &error))?.kvs;
        let mut unindexed = Vec::new();
        for marker in markers {
            for child in self.staged_children(operation, tenant, run, &marker, revision, deadline).await? {
                if child.is_listed && child.is_staged && !child.is_touched {
                    unindexed.push(child.shard);
                }
            }
        }
        Ok(unindexed)
    }

    /// The children that a marker names and that lay in the store at this revision.
    pub(super) async fn staged_children(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        marker: &KeyValue,
        revision: Revision,
        deadline: Moment,
    ) -> Result<Vec<StagedChild>, InfraError> {
        let part = HatchingPart::decode(&marker.value).map_err(|error| unreadable(operation, &error))?;
        let Some(parent) = shard_of(&marker.key) else { return Ok(Vec::new()) };
        let get = |path: Bytes| Op::Range(RangeRequest::one(path).at(revision));
        let cold = |shard: ShardId| get(self.space.cold(tenant, ShardKey::new(run, shard)).into());
        let hot = |shard: ShardId| get(self.space.hot(tenant, ShardKey::new(run, shard)).into());
        let mut there = Vec::new();
        for chunk in part.children.chunks((self.config.txn_ops_max - 1) / 2) {
            let mut reads = vec![cold(parent)];
            reads.extend(chunk.iter().flat_map(|child| [cold(*child), hot(*child)]));
            let read = self.kv.txn(Txn::of(reads), deadline).await.map_err(|error| failed(operation, &error))?;
            let Some((parent, answers)) = read.responses.split_first() else { continue };
            for (shard, answers) in chunk.iter().copied().zip(answers.chunks(2)) {
                let [cold, hot] = answers else { continue };
                let Some(cold) = found(cold) else { continue };
                let cold = ColdPart::decode(&cold.value).map_err(|error| unreadable(operation, &error))?;
                let is_listed = found(parent).map_or(Ok(false), |parent| stored::lists(operation, parent, shard))?;
                let (is_staged, is_touched) = (cold.staged, found(hot).is_some());
                there.push(StagedChild { shard, is_listed, is_staged, is_touched });
            }
        }
        Ok(there)
    }

    /// Enters the children of a published split into the index of free shards, those at least that no worker has held,
    /// and removes the marker.
    async fn publish(
        &self,
        operation: &'static str,
        parent: &StoredShard,
        part: &HatchingPart,
        deadline: Moment,
    ) -> Result<(), InfraError> {
        let (tenant, key) = (parent.record.tenant, parent.record.key);
        let marker = self.space.hatching(tenant, key);
        let in_its_name = || vec![Compare::value_is(&marker, part.encode())];
        for chunk in part.children.chunks(CHUNK.min(self.config.txn_ops_max / 4)) {
            let keys: Vec<ShardKey> = chunk.iter().map(|child| ShardKey::new(key.run, *child)).collect();
            let reads = keys.iter().map(|key| Op::get(self.space.cold(tenant, *key))).collect();
            let colds = self.kv.txn(Txn::of(reads), deadline).await.map_err(|error| failed(operation, &error))?;
            let mut entries = Vec::with_capacity(keys.len());
            for (key, answer) in keys.iter().zip(&colds.responses) {
                let Some(kv) = found(answer) else { continue };
                let cold = ColdPart::decode(&kv.value).map_err(|error| unreadable(operation, &error))?;
                entries.push(Op::Txn(Txn {
                    compares: vec![
                        Compare::unchanged_since(self.space.cold(tenant, *key), kv.mod_revision),
                        Compare::absent(self.space.hot(tenant, *key)),
                    ],
                    success: vec![
                        Op::put(self.space.cold(tenant, *key), ColdPart { staged: false, ..cold }.encode()),
                        Op::put(self.space.index(ShardIndex::Free, tenant, *key), ""),
                    ],
                    failure: vec![],
                }));
            }
            let txn = Txn { compares: in_its_name(), success: entries, failure: vec![] };
            self.repeat(operation, txn, deadline).await?;
        }
        let txn = Txn { compares: in_its_name(), success: vec![Op::delete(&marker)], failure: vec![] };
        self.repeat(operation, txn, deadline).await?;
        Ok(())
    }

    /// Removes the children of a split that can never be published.
    async fn undo(
        &self,
        operation: &'static str,
        parent: &StoredShard,
        part: &HatchingPart,
        deadline: Moment,
    ) -> Result<(), InfraError> {
        let (tenant, key) = (parent.record.tenant, parent.record.key);
        let never_published = |child: &&ShardId| !parent.record.spawned.iter().any(|born| born.id == **child);
        let orphans: Vec<ShardId> = part.children.iter().filter(never_published).copied().collect();
        // Only in the name of this very attempt: another may have been staged meanwhile, with the same children.
        let marker = self.space.hatching(tenant, key);
        let in_its_name = || vec![Compare::value_is(&marker, part.encode())];
        for chunk in orphans.chunks(CHUNK.min(self.config.txn_ops_max)) {
            let deletes = chunk.iter().map(|child| Op::delete(self.space.cold(tenant, ShardKey::new(key.run, *child))));
            let txn = Txn { compares: in_its_name(), success: deletes.collect(), failure: vec![] };
            self.repeat(operation, txn, deadline).await?;
        }
        let txn = Txn { compares: in_its_name(), success: vec![Op::delete(&marker)], failure: vec![] };
        self.repeat(operation, txn, deadline).await?;
        Ok(())
    }
}

fn lists(parent: &StoredShard, part: &HatchingPart) -> bool {
    part.children.iter().all(|child| parent.record.spawned.iter().any(|born| born.id == *child))
}

/// Run, record and session of the parent are what the split was decided on.
fn parent_unmoved(stored: &StoredShard) -> Vec<Compare> {
    let paths = Arc::clone(&stored.paths);
    let lease = stored.owner.map_or(crate::kv::EtcdLeaseId::NONE, |owner| owner.lease);
    vec![
        Compare::unchanged_since(paths.run.clone(), stored.run.revision),
        Compare::unchanged_since(paths.hot.clone(), stored.hot_revision),
        Compare::attached_to(paths.owner.clone(), lease),
        Compare::exists(paths.owner.clone()),
    ]
}
