//! Replacing split: the parent retires and its children take over all of its range.
//!
//! The parent is terminal afterwards, so nothing pushes the operation out of its op-log and a retry is recognised for
//! ever. A child whose range holds the parent's last key starts from there: what was processed is not done again.
//! (Children that lie wholly behind the cursor start afresh; a planner cuts ahead of it.)

use alloc::vec::Vec;

use tessera_contracts::ids::{LogicalTime, OpId, ShardId, ShardKey};
use tessera_contracts::limits::MAX_SPAWNED_PER_SHARD;
use tessera_contracts::split::{DerivedShardKind, SplitReplacePlan, derive_split_shard_id, validate_split_coverage};
use tessera_contracts::{CursorUpdate, ShardSpec};

use super::{Birth, Split, Verdict};
use crate::error::{IdempotentOutcome, SplitError, SplitRefused};
use crate::payload;
use crate::record::lease::Presented;
use crate::record::state::Change;
use crate::record::status::ShardStatus;
use crate::record::view::ShardView;
use crate::shard_limits::{ShardCensus, check_shard_limits};
use crate::validation::{Admission, admit};

/// Decides whether the shard is replaced; the answer is the children's ids in key order.
pub fn decide<'p: 'v, 'v, const LOG: usize>(
    view: &ShardView<'v, LOG>,
    lease: Presented<'_>,
    plan: &'p SplitReplacePlan,
    op_id: OpId,
    census: &ShardCensus,
    now: LogicalTime,
) -> Result<Verdict<Split<'p, 'v, Vec<ShardId>>, Vec<ShardId>>, SplitError> {
    let operation = payload::split_replace(op_id, plan);
    if let Admission::Replay(_) = admit::<SplitError, LOG>(view, lease, &operation, now)? {
        let made_by_this = view.spawned.iter().filter(|child| child.payload_hash == operation.payload_hash);
        return Ok(Verdict::Replay(IdempotentOutcome::Replayed(made_by_this.map(|child| child.id).collect())));
    }
    validate_split_coverage(view.spec.range(), plan).map_err(SplitRefused::from)?;
    check_spawn_cap(view.spawned.len(), plan.children().len())?;
    check_shard_limits(census, plan.children().len() as u64)?;
    let birth = |(position, spec): (usize, &'p ShardSpec)| {
        let index = (view.spawned.len() + position) as u32;
        let id = derive_split_shard_id(view.key.run, view.key.shard, op_id, DerivedShardKind::Child, index);
        Birth {
            key: ShardKey::new(view.key.run, id),
            incarnation: view.incarnation,
            spec: spec.view(),
            cursor: inherited_cursor(view, spec),
            cursor_semantics: view.state.cursor_semantics,
            parent: Some(view.key.shard),
            payload_hash: operation.payload_hash,
        }
    };
    let births: Vec<_> = plan.children().iter().enumerate().map(birth).collect();
    let answer = births.iter().map(|birth| birth.key.shard).collect();
    let head = view.state.head.settled(ShardStatus::Split);
    let change = Change { logged: Some(operation.executed_at(now)), ..Change::of_head(head) };
    Ok(Verdict::Execute(Split { change, births, answer }))
}

/// Where a child starts: at the parent's last key if that lies in its range. The token stays behind: it belongs to the
/// parent's way through the parent's range.
fn inherited_cursor<'r, const LOG: usize>(view: &ShardView<'r, LOG>, child: &ShardSpec) -> CursorUpdate<'r> {
    view.cursor
        .last_key()
        .filter(|key| child.range().contains(key))
        .and_then(|key| CursorUpdate::at_key(key).ok())
        .unwrap_or_default()
}

/// Whether the shard may spawn `added` more in its life.
pub(super) const fn check_spawn_cap(spawned: usize, added: usize) -> Result<(), SplitRefused> {
    if spawned + added > MAX_SPAWNED_PER_SHARD {
        return Err(SplitRefused::SpawnCap { spawned, added, max: MAX_SPAWNED_PER_SHARD });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use tessera_contracts::split::plan_split_replace;

    use super::*;
    use crate::decide::checkpoint;
    use crate::decide::testing::{KEY, Shard, TENANT, at, key, op, run};
    use crate::error::LeaseRefused;
    use crate::events::EventKind;
    use crate::record::lease::Lease;
    use crate::record::state::Spawned;
    use crate::shard_limits::ShardLimits;

    type Answer = Result<IdempotentOutcome<Vec<ShardId>>, SplitError>;

    fn split(shard: &mut Shard, lease: &Lease, plan: &SplitReplacePlan, id: u64, census: &ShardCensus) -> Answer {
        let record = shard.record.clone();
        let view = record.view(shard.gate, shard.owner);
        let decided = decide(&view, lease.presented_by(TENANT).unwrap(), plan, op(id), census, at(1001));
        decided.map(|verdict| match verdict {
            Verdict::Execute(split) => {
                shard.record.apply(&split.change, &split.births);
                IdempotentOutcome::Executed(split.answer)
            }
            Verdict::Replay(outcome) => outcome,
        })
    }

    fn plan(points: &[&[u8]]) -> SplitReplacePlan {
        plan_split_replace(Shard::<16>::new().record.spec.view(), points).unwrap()
    }

    #[test]
    fn children_have_derived_names_their_parent_and_tile_its_range() {
        let (shard, lease) = Shard::<16>::leased();
        let plan = plan(&[b"e", b"h"]);
        let view = shard.view();
        let presented = lease.presented_by(TENANT).unwrap();
        let Ok(Verdict::Execute(split)) = decide(&view, presented, &plan, op(1), &ShardCensus::default(), at(1001))
        else {
            panic!("a fresh split is executed")
        };
        assert_eq!(split.births.len(), 3);
        let mut from = &b"b"[..];
        for (index, birth) in split.births.iter().enumerate() {
            let derived = derive_split_shard_id(KEY.run, KEY.shard, op(1), DerivedShardKind::Child, index as u32);
            assert_eq!((birth.key.shard, birth.parent), (derived, Some(KEY.shard)));
            assert_eq!(birth.spec.start(), from);
            assert_eq!(birth.cursor_semantics, shard.record.state.cursor_semantics);
            from = birth.spec.end();
        }
        assert_eq!(from, b"m");
        let children = split.births.iter().map(|birth| birth.key.shard).collect();
        assert_eq!(EventKind::of_split(KEY.shard, &split), Some(EventKind::ShardSplit { parent: KEY.shard, children }));
    }

    #[test]
    fn the_parent_retires_and_a_retry_finds_the_same_children_for_ever() {
        let (mut shard, lease) = Shard::leased();
        let plan = plan(&[b"e"]);
        let census = ShardCensus::default();
        let first = split(&mut shard, &lease, &plan, 1, &census).unwrap();
        assert!(first.is_executed());
        let head = shard.record.state.head;
        assert_eq!((head.status, head.lease), (ShardStatus::Split, None));
        let replayed = split(&mut shard, &lease, &plan, 1, &census).unwrap();
        assert_eq!(replayed, IdempotentOutcome::Replayed(first.into_inner()));
        let other = split(&mut shard, &lease, &plan, 2, &census);
        assert_eq!(other, Err(LeaseRefused::Terminal { status: ShardStatus::Split }.into()));
    }

    #[test]
    fn children_are_numbered_from_those_that_the_parent_has() {
        let (mut shard, lease) = Shard::<16>::leased();
        let hash = tessera_contracts::PayloadHash::from_stored(9).unwrap();
        shard.record.spawned = vec![Spawned { id: ShardId::new(ShardId::DERIVED_BIT), payload_hash: hash }; 3];
        let answer = split(&mut shard, &lease, &plan(&[b"e"]), 1, &ShardCensus::default()).unwrap();
        let numbered = |index| derive_split_shard_id(KEY.run, KEY.shard, op(1), DerivedShardKind::Child, index);
        assert_eq!(answer, IdempotentOutcome::Executed(vec![numbered(3), numbered(4)]));
        let replayed = split(&mut shard, &lease, &plan(&[b"e"]), 1, &ShardCensus::default()).unwrap();
        assert_eq!(replayed, IdempotentOutcome::Replayed(vec![numbered(3), numbered(4)]), "and no older ones");
    }

    #[test]
    fn the_child_that_holds_the_last_key_resumes_there_and_the_others_begin() {
        let (mut shard, lease) = Shard::<16>::leased();
        let progress = CursorUpdate::new(Some(b"e"), Some(b"token")).unwrap();
        run!(shard, lease, checkpoint::decide, progress, op(1), at(1001)).unwrap();
        let plan = plan(&[b"e", b"h"]);
        let view = shard.view();
        let presented = lease.presented_by(TENANT).unwrap();
        let Ok(Verdict::Execute(split)) = decide(&view, presented, &plan, op(2), &ShardCensus::default(), at(1001))
        else {
            panic!("a fresh split is executed")
        };
        let cursors: Vec<_> = split.births.iter().map(|birth| birth.cursor).collect();
        assert_eq!(cursors, [CursorUpdate::initial(), key(b"e"), CursorUpdate::initial()]);
    }

    #[test]
    fn a_plan_that_does_not_cover_the_shard_is_refused() {
        let (mut shard, lease) = Shard::leased();
        let child = |start: &[u8], end: &[u8]| ShardSpec::new(start, end, b"").unwrap();
        for children in [
            vec![child(b"b", b"e"), child(b"f", b"m")],
            vec![child(b"b", b"f"), child(b"e", b"m")],
            vec![child(b"a", b"e"), child(b"e", b"m")],
            vec![child(b"b", b"e"), child(b"e", b"n")],
        ] {
            let plan = SplitReplacePlan::new(children).unwrap();
            let refused = split(&mut shard, &lease, &plan, 1, &ShardCensus::default());
            assert!(matches!(refused, Err(SplitError::Split(SplitRefused::Coverage(_)))));
        }
        assert_eq!(shard.record.state.head.status, ShardStatus::Active);
    }

    #[test]
    fn the_last_child_of_a_life_is_made_and_the_next_is_not() {
        let hash = tessera_contracts::PayloadHash::from_stored(9).unwrap();
        let spawned =
            |count: usize| vec![Spawned { id: ShardId::new(ShardId::DERIVED_BIT), payload_hash: hash }; count];
        let plan = plan(&[b"e"]);
        let (mut shard, lease) = Shard::leased();
        shard.record.spawned = spawned(MAX_SPAWNED_PER_SHARD - 1);
        let refused = split(&mut shard, &lease, &plan, 1, &ShardCensus::default());
        let (spawned_so_far, max) = (MAX_SPAWNED_PER_SHARD - 1, MAX_SPAWNED_PER_SHARD);
        assert_eq!(refused, Err(SplitRefused::SpawnCap { spawned: spawned_so_far, added: 2, max }.into()));
        shard.record.spawned = spawned(MAX_SPAWNED_PER_SHARD - 2);
        assert!(split(&mut shard, &lease, &plan, 1, &ShardCensus::default()).is_ok());
        assert_eq!(shard.record.spawned.len(), MAX_SPAWNED_PER_SHARD);
    }

    #[test]
    fn limits_are_checked_before_growth_and_not_on_a_replay() {
        let (mut shard, lease) = Shard::leased();
        let plan = plan(&[b"e"]);
        let census = |of_tenant| ShardCensus {
            limits: ShardLimits { per_tenant_max: 3, total_max: 100 },
            of_tenant,
            total: of_tenant,
        };
        let refused = split(&mut shard, &lease, &plan, 1, &census(2));
        assert!(matches!(refused, Err(SplitError::LimitExceeded(_))));
        assert!(split(&mut shard, &lease, &plan, 1, &census(1)).unwrap().is_executed());
        assert!(matches!(split(&mut shard, &lease, &plan, 1, &census(3)), Ok(IdempotentOutcome::Replayed(_))));
    }
}
