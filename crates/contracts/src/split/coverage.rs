//! Whether a plan covers its shard exactly: no key lost, no key in two places.
//!
//! The coordinator asks this of every plan, because a plan is made by a worker from what it knew, and the shard may
//! have changed since.

use crate::cursor::{CursorViolation, check_in_range};
use crate::shard_spec::{Edge, KeyRange};
use crate::split::{SplitReplacePlan, SplitResidualPlan};

/// Checks that the children of `plan` tile `parent` from its start to its end.
pub fn validate_split_coverage(parent: KeyRange<'_>, plan: &SplitReplacePlan) -> Result<(), CoverageError> {
    let children = plan.children();
    let [first, .., last] = children else { unreachable!("a plan has at least two children") };
    if first.start() != parent.start() {
        return Err(CoverageError::Edge { edge: Edge::Start, child: 0 });
    }
    for (child, pair) in children.windows(2).enumerate() {
        let (this, next) = (pair[0].range(), pair[1].range());
        if this.overlaps(next) {
            return Err(CoverageError::Overlap { child, next: child + 1 });
        }
        if this.end() != next.start() {
            return Err(CoverageError::Gap { child, next: child + 1 });
        }
    }
    if last.end() != parent.end() {
        return Err(CoverageError::Edge { edge: Edge::End, child: children.len() - 1 });
    }
    Ok(())
}

/// Checks that the kept part and the residual of `plan` are together exactly `parent`.
pub fn validate_residual_split_bounds(parent: KeyRange<'_>, plan: &SplitResidualPlan) -> Result<(), ResidualError> {
    let (kept, residual) = (plan.kept().range(), plan.residual().range());
    if kept.start() != parent.start() {
        return Err(ResidualError::KeptStart);
    }
    if residual.end() != parent.end() {
        return Err(ResidualError::ResidualEnd);
    }
    if kept.overlaps(residual) {
        return Err(ResidualError::Overlap);
    }
    if kept.end() != residual.start() {
        return Err(ResidualError::Gap);
    }
    Ok(())
}

/// Checks the bounds, and that the parent's progress stays in its kept part.
pub fn validate_residual_split(
    parent: KeyRange<'_>,
    parent_last_key: Option<&[u8]>,
    plan: &SplitResidualPlan,
) -> Result<(), ResidualError> {
    validate_residual_split_bounds(parent, plan)?;
    check_in_range(plan.kept().range(), parent_last_key).map_err(ResidualError::Cursor)
}

/// Why children do not cover their parent. Children are numbered from 0 in key order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CoverageError {
    /// The outermost child does not end where the parent does.
    #[error("the {edge} of child {child} is not the {edge} of the parent")]
    Edge {
        /// Which end.
        edge: Edge,
        /// The outermost child there.
        child: usize,
    },
    /// Keys between two children belong to neither.
    #[error("there is a gap between child {child} and child {next}")]
    Gap {
        /// The lower child.
        child: usize,
        /// The upper child.
        next: usize,
    },
    /// Keys belong to two children.
    #[error("child {child} and child {next} overlap")]
    Overlap {
        /// The lower child.
        child: usize,
        /// The upper child.
        next: usize,
    },
}

/// Why a residual split does not fit its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResidualError {
    /// The parent would lose its lowest keys, or take some it does not have.
    #[error("the kept range does not start where the parent does")]
    KeptStart,
    /// The highest keys would be lost, or taken from elsewhere.
    #[error("the residual range does not end where the parent does")]
    ResidualEnd,
    /// Keys belong to both.
    #[error("the kept and the residual range overlap")]
    Overlap,
    /// Keys belong to neither.
    #[error("there is a gap between the kept and the residual range")]
    Gap,
    /// The parent has processed keys that it would give away.
    #[error("the parent's progress would leave its range: {0}")]
    Cursor(CursorViolation),
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::shard_spec::ShardSpec;

    fn range<'a>(start: &'a [u8], end: &'a [u8]) -> KeyRange<'a> {
        KeyRange::new(start, end).unwrap()
    }

    fn spec(start: &[u8], end: &[u8]) -> ShardSpec {
        ShardSpec::new(start, end, b"").unwrap()
    }

    fn coverage(parent: KeyRange<'_>, children: &[(&[u8], &[u8])]) -> Result<(), CoverageError> {
        let plan = SplitReplacePlan::new(children.iter().map(|(start, end)| spec(start, end)).collect()).unwrap();
        validate_split_coverage(parent, &plan)
    }

    #[test]
    fn children_that_tile_their_parent_pass_in_any_order() {
        assert_eq!(coverage(range(b"b", b"d"), &[(b"c", b"d"), (b"b", b"c")]), Ok(()));
        assert_eq!(coverage(KeyRange::ALL, &[(b"", b"c"), (b"c", b"x"), (b"x", b"")]), Ok(()));
    }

    #[test]
    fn children_must_reach_both_ends_and_not_beyond() {
        let parent = range(b"b", b"d");
        let start = Err(CoverageError::Edge { edge: Edge::Start, child: 0 });
        let end = Err(CoverageError::Edge { edge: Edge::End, child: 1 });
        assert_eq!(coverage(parent, &[(b"b\0", b"c"), (b"c", b"d")]), start);
        assert_eq!(coverage(parent, &[(b"a", b"c"), (b"c", b"d")]), start);
        assert_eq!(coverage(parent, &[(b"", b"c"), (b"c", b"d")]), start);
        assert_eq!(coverage(parent, &[(b"b", b"c"), (b"c", b"cz")]), end);
        assert_eq!(coverage(parent, &[(b"b", b"c"), (b"c", b"d\0")]), end);
        assert_eq!(coverage(parent, &[(b"b", b"c"), (b"c", b"")]), end);
    }

    #[test]
    fn gaps_and_overlaps_name_the_two_children() {
        let parent = range(b"b", b"f");
        let children: [(&[u8], &[u8]); 3] = [(b"b", b"c"), (b"c", b"d"), (b"d\0", b"f")];
        assert_eq!(coverage(parent, &children), Err(CoverageError::Gap { child: 1, next: 2 }));
        let children: [(&[u8], &[u8]); 3] = [(b"b", b"c\0"), (b"c", b"d"), (b"d", b"f")];
        assert_eq!(coverage(parent, &children), Err(CoverageError::Overlap { child: 0, next: 1 }));
        assert_eq!(coverage(parent, &[(b"b", b"f"), (b"b", b"f")]), Err(CoverageError::Overlap { child: 0, next: 1 }));
        // An unbounded child in the middle covers everything above it.
        assert_eq!(
            coverage(KeyRange::ALL, &[(b"", b""), (b"c", b"")]),
            Err(CoverageError::Overlap { child: 0, next: 1 })
        );
    }

    fn bounds(kept: (&[u8], &[u8]), residual: (&[u8], &[u8])) -> Result<(), ResidualError> {
        let plan = SplitResidualPlan::new(spec(kept.0, kept.1), spec(residual.0, residual.1));
        validate_residual_split_bounds(range(b"b", b"f"), &plan)
    }

    #[test]
    fn a_residual_split_keeps_the_lower_part_and_loses_nothing() {
        assert_eq!(bounds((b"b", b"d"), (b"d", b"f")), Ok(()));
        assert_eq!(bounds((b"b\0", b"d"), (b"d", b"f")), Err(ResidualError::KeptStart));
        assert_eq!(bounds((b"a", b"d"), (b"d", b"f")), Err(ResidualError::KeptStart));
        assert_eq!(bounds((b"b", b"d"), (b"d", b"e")), Err(ResidualError::ResidualEnd));
        assert_eq!(bounds((b"b", b"d"), (b"d", b"")), Err(ResidualError::ResidualEnd));
        assert_eq!(bounds((b"b", b"d"), (b"d\0", b"f")), Err(ResidualError::Gap));
        assert_eq!(bounds((b"b", b"d\0"), (b"d", b"f")), Err(ResidualError::Overlap));
        // The parts the wrong way round would move the parent away from its progress.
        assert_eq!(bounds((b"d", b"f"), (b"b", b"d")), Err(ResidualError::KeptStart));
    }

    #[test]
    fn progress_stays_with_the_parent() {
        let plan = SplitResidualPlan::new(spec(b"b", b"d"), spec(b"d", b"f"));
        let check = |last_key| validate_residual_split(range(b"b", b"f"), last_key, &plan);
        assert_eq!(check(None), Ok(()));
        assert_eq!(check(Some(b"c\xff")), Ok(()));
        assert_eq!(check(Some(b"d")), Err(ResidualError::Cursor(CursorViolation::AboveRange { len: 1 })));
    }

    proptest! {
        /// Against the plain definition: every key of the parent in exactly one child, every other key in none.
        ///
        /// Points 1 to 6 are keys; 0 is the unbounded start and 7 the unbounded end. Children start out as a tiling, and
        /// most often one edge is then moved.
        #[test]
        fn a_plan_covers_exactly_if_each_key_has_one_home(
            cuts in prop::collection::btree_set(0_u8..8, 3..6),
            moved in prop::option::weighted(0.8, (0_usize..4, any::<bool>(), 0_u8..8)),
        ) {
            let cuts: Vec<u8> = cuts.into_iter().collect();
            let parent = cuts[0]..cuts[cuts.len() - 1];
            let mut children: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
            if let Some((child, is_start, point)) = moved {
                let count = children.len();
                let child = &mut children[child % count];
                *(if is_start { &mut child.start } else { &mut child.end }) = point;
                prop_assume!(child.start < child.end);
            }
            let edge = |point: u8| if point == 0 || point == 7 { Vec::new() } else { Vec::from([point]) };
            let plan = children.iter().map(|child| spec(&edge(child.start), &edge(child.end))).collect();
            let covered = (0..7_u8).all(|point| {
                let homes = children.iter().filter(|child| child.contains(&point)).count();
                homes == usize::from(parent.contains(&point))
            });
            let (start, end) = (edge(parent.start), edge(parent.end));
            let verdict = validate_split_coverage(range(&start, &end), &SplitReplacePlan::new(plan).unwrap());
            prop_assert_eq!(verdict.is_ok(), covered);
        }
    }
}
