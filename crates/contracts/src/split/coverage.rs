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

/// Checks that what `plan` keeps and what it gives away are together exactly `parent`.
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

/// Checks the bounds, and that the parent's progress stays in what it keeps.
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
