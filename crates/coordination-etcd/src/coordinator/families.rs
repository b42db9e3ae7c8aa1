//! Families: children that were born together and are found together, for as long as one of them is untouched.
//!
//! An entry in the index of free shards for every child would be half of what a split writes. One key names them all
//! instead. It is written with them and never changed: a child that was held once is in the other indexes from then on, and
//! its hot part tells. A coordinator that reads a family of which no member is left removes it.

use tessera_contracts::{RunId, ShardId, ShardKey, TenantId};
use tessera_coordination::error::InfraError;

use super::{Inner, failed, unreadable};
use crate::codec::FamilyPart;
use crate::keyspace::Window;
use crate::kv::{Compare, KeyValue, Keys, Kv, Moment, Op, OpResponse, RangeRequest, Revision, Txn};

/// Members a family has at least: one that is alone has an entry in the index of free shards.
const MEMBERS_MIN: u32 = 2;
/// Families of one page where all are counted.
const PAGE: u32 = 64;
/// Where counting ends: a run that is refused its completion has many open shards then, and how many matters little.
const COUNTED_MAX: u32 = 4_096;

/// How many members of families are wanted, and as of which revision; zero is the latest.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) members: usize,
    pub(super) revision: Revision,
}

impl<K: Kv> Inner<K> {
    /// Asks for families that have so many members, if they have the fewest they can have.
    pub(super) fn families(&self, tenant: TenantId, run: RunId, window: Window, members: u32) -> RangeRequest {
        with_members(self.space.families(tenant, run, window), members)
    }

    /// Counts one if the shard had ever been held at this revision; zero is the latest.
    pub(super) fn is_touched(&self, tenant: TenantId, key: ShardKey, revision: Revision) -> Op {
        Op::Range(RangeRequest::one(self.space.hot(tenant, key)).count_only().at(revision))
    }

    /// Members of these families that had never been held: all of them, or somewhat more than are wanted. A family that is
    /// seen to have none left is removed.
    pub(super) async fn newborn(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        families: &[KeyValue],
        wanted: Wanted,
        deadline: Moment,
    ) -> Result<Vec<ShardId>, InfraError> {
        let mut members = Vec::new();
        for (family, kv) in families.iter().enumerate() {
            let part = FamilyPart::decode(&kv.value).map_err(|error| unreadable(operation, &error))?;
            members.extend(part.children.into_iter().map(|child| (family, child)));
        }
        let (mut untouched, mut has_any) = (Vec::new(), vec![false; families.len()]);
        for some in members.chunks(self.config.txn_ops_max) {
            if untouched.len() >= wanted.members {
                // These were not looked at.
                some.iter().for_each(|(family, _)| has_any[*family] = true);
                continue;
            }
            let read = |child: ShardId| self.is_touched(tenant, ShardKey::new(run, child), wanted.revision);
            let reads = Txn::of(some.iter().map(|(_, child)| read(*child)).collect());
            let read = self.kv.txn(reads, deadline).await.map_err(|error| failed(operation, &error))?;
            for ((family, child), answer) in some.iter().zip(&read.responses) {
                if matches!(answer, OpResponse::Range(hot) if hot.count == 0) {
                    untouched.push(*child);
                    has_any[*family] = true;
                }
            }
        }
        let grown = families.iter().zip(has_any).filter(|(_, has_any)| !has_any).map(|(kv, _)| {
            // As it was read: a later run may have the same name and the same children.
            let compares = vec![Compare::unchanged_since(kv.key.clone(), kv.mod_revision)];
            Op::Txn(Txn { compares, success: vec![Op::delete(kv.key.clone())], failure: vec![] })
        });
        let grown: Vec<Op> = grown.collect();
        // A nested transaction counts twice against the server's limit.
        for some in grown.chunks((self.config.txn_ops_max / 2).max(1)) {
            self.repeat(operation, Txn::of(some.to_vec()), deadline).await?;
        }
        Ok(untouched)
    }

    /// How many members of a run's families had never been held at this revision, as far as [`COUNTED_MAX`]; families that
    /// have none left are removed on the way.
    pub(super) async fn newborn_count(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        revision: Revision,
        deadline: Moment,
    ) -> Result<u32, InfraError> {
        let mut keys = self.space.families(tenant, run, Window::ALL);
        let mut count = 0;
        loop {
            let read = RangeRequest::of(keys.clone()).limit(PAGE).at(revision);
            let families = self.kv.range(read, deadline).await.map_err(|error| failed(operation, &error))?;
            let all = Wanted { members: usize::MAX, revision };
            let newborn = self.newborn(operation, tenant, run, &families.kvs, all, deadline).await?;
            count += newborn.len() as u32;
            let (Some(last), true) = (families.kvs.last(), families.more && count < COUNTED_MAX) else {
                return Ok(count);
            };
            keys = behind(keys, last);
        }
    }
}

/// Asks for families among these keys, as [`Inner::families`] does.
pub(super) fn with_members(keys: Keys, members: u32) -> RangeRequest {
    RangeRequest::of(keys).limit(members.div_ceil(MEMBERS_MIN))
}

/// What of a range lies behind this one.
pub(super) fn behind(keys: Keys, last: &KeyValue) -> Keys {
    match keys {
        Keys::Range { end, .. } => Keys::Range { start: [&last.key[..], b"\0"].concat().into(), end },
        other => other,
    }
}
