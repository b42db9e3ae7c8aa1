//! Plans, and where to cut.
//!
//! A worker that knows its keys cuts at them. One that knows nothing cuts the keyspace evenly, which is right for hashes
//! and poor for names. One that has sampled keys, each standing for an equal amount of work, cuts at their quantiles.
//!
//! New shards inherit the parent's metadata. Every plan made here covers its parent exactly.

use alloc::vec::Vec;

use crate::canonical::{CanonicalBytes, CanonicalSink};
use crate::cursor::check_in_range;
use crate::keyspace::{Fraction, key_at_fraction, keys_evenly, shortest_separator};
use crate::limits::{MAX_SPLIT_CHILDREN, MIN_SPLIT_CHILDREN};
use crate::shard_spec::{KeyRange, ShardSpec, ShardSpecRef, SpecError};

/// Children that are to replace their parent: 2 to 256, sorted by start.
///
/// Sorted, so that a retry that lists the same children in another order is the same operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitReplacePlan {
    children: Vec<ShardSpec>,
}

impl SplitReplacePlan {
    /// A plan with these children, in any order.
    pub fn new(mut children: Vec<ShardSpec>) -> Result<Self, PlanError> {
        check_child_count(children.len())?;
        children.sort_by(|a, b| a.start().cmp(b.start()));
        Ok(Self { children })
    }

    /// The children, by start key.
    pub fn children(&self) -> &[ShardSpec] {
        &self.children
    }
}

impl CanonicalBytes for SplitReplacePlan {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        sink.sequence(self.children.iter());
    }
}

/// The part that a shard keeps, and the part that it gives away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitResidualPlan {
    kept: ShardSpec,
    residual: ShardSpec,
}

impl SplitResidualPlan {
    /// A plan that shrinks the parent to `kept` and makes a new shard over `residual`.
    pub const fn new(kept: ShardSpec, residual: ShardSpec) -> Self {
        Self { kept, residual }
    }

    /// The parent after the split.
    pub const fn kept(&self) -> &ShardSpec {
        &self.kept
    }

    /// The new shard.
    pub const fn residual(&self) -> &ShardSpec {
        &self.residual
    }
}

impl CanonicalBytes for SplitResidualPlan {
    fn write_canonical(&self, sink: &mut impl CanonicalSink) {
        self.kept.write_canonical(sink);
        self.residual.write_canonical(sink);
    }
}

/// Cuts `parent` at `points`, which rise strictly and lie strictly inside.
pub fn plan_split_replace(parent: ShardSpecRef<'_>, points: &[&[u8]]) -> Result<SplitReplacePlan, PlanError> {
    check_child_count(points.len().saturating_add(1))?;
    let mut children = Vec::with_capacity(points.len() + 1);
    let mut start = parent.start();
    for (index, &point) in points.iter().enumerate() {
        if point <= parent.start() || !parent.range().reaches_up_to(point) {
            return Err(PlanError::PointOutside { index, len: point.len() });
        }
        if point <= start {
            return Err(PlanError::PointsOutOfOrder { index });
        }
        children.push(piece(parent, start, point)?);
        start = point;
    }
    children.push(piece(parent, start, parent.end())?);
    SplitReplacePlan::new(children)
}

/// Cuts `parent` into `children` parts of about equal width.
pub fn plan_split_replace_evenly(parent: ShardSpecRef<'_>, children: usize) -> Result<SplitReplacePlan, PlanError> {
    check_child_count(children)?;
    let points = keys_evenly(parent.range(), children).ok_or(PlanError::TooNarrow { children })?;
    plan_split_replace(parent, &as_slices(&points))
}

/// Cuts `parent` at `fractions` of its width, which rise strictly.
pub fn plan_split_replace_at_fractions(
    parent: ShardSpecRef<'_>,
    fractions: &[Fraction],
) -> Result<SplitReplacePlan, PlanError> {
    let children = fractions.len().saturating_add(1);
    check_child_count(children)?;
    if let Some(before) = fractions.windows(2).position(|pair| pair[0] >= pair[1]) {
        return Err(PlanError::PointsOutOfOrder { index: before + 1 });
    }
    let mut points: Vec<Vec<u8>> = Vec::with_capacity(fractions.len());
    for &fraction in fractions {
        let point = key_at_fraction(parent.range(), fraction).ok_or(PlanError::TooNarrow { children })?;
        if points.last().is_some_and(|last| *last >= point) {
            return Err(PlanError::TooNarrow { children });
        }
        points.push(point);
    }
    plan_split_replace(parent, &as_slices(&points))
}

/// Cuts `parent` into up to `children` parts with about equally many `samples` each.
///
/// Samples may come in any order and more than once; those outside the parent are ignored. Fewer parts come out where
/// one sampled key outweighs a whole part, since a single key cannot be cut.
pub fn plan_split_replace_by_samples(
    parent: ShardSpecRef<'_>,
    samples: &[&[u8]],
    children: usize,
) -> Result<SplitReplacePlan, PlanError> {
    check_child_count(children)?;
    let inside = sorted_inside(parent.range(), samples);
    let mut points: Vec<Vec<u8>> = Vec::new();
    for cut in 1..children {
        let Some(point) = boundary_at(&inside, inside.len() * cut / children) else { continue };
        if points.last().is_none_or(|last| *last < point) {
            points.push(point);
        }
    }
    if points.is_empty() {
        return Err(PlanError::TooFewSamples { inside: inside.len() });
    }
    plan_split_replace(parent, &as_slices(&points))
}

/// Gives away everything from `at` on. `last_key` is how far the parent has come.
pub fn plan_split_residual(
    parent: ShardSpecRef<'_>,
    last_key: Option<&[u8]>,
    at: &[u8],
) -> Result<SplitResidualPlan, PlanError> {
    if at <= parent.start() || !parent.range().reaches_up_to(at) {
        return Err(PlanError::PointOutside { index: 0, len: at.len() });
    }
    let kept = piece(parent, parent.start(), at)?;
    if check_in_range(kept.range(), last_key).is_err() {
        return Err(PlanError::AlreadyProcessed { len: at.len() });
    }
    Ok(SplitResidualPlan::new(kept, piece(parent, at, parent.end())?))
}

/// Keeps about `kept` of the width that remains after `last_key` and gives away the rest.
pub fn plan_split_residual_at_fraction(
    parent: ShardSpecRef<'_>,
    last_key: Option<&[u8]>,
    kept: Fraction,
) -> Result<SplitResidualPlan, PlanError> {
    let at = key_at_fraction(remaining(parent, last_key)?, kept).ok_or(PlanError::TooNarrow { children: 2 })?;
    plan_split_residual(parent, last_key, &at)
}

/// Keeps about `kept` of the `samples` that lie after `last_key` and gives away the rest.
///
/// Samples may come in any order and more than once; those outside or already processed are ignored.
pub fn plan_split_residual_by_samples(
    parent: ShardSpecRef<'_>,
    last_key: Option<&[u8]>,
    samples: &[&[u8]],
    kept: Fraction,
) -> Result<SplitResidualPlan, PlanError> {
    let mut ahead = sorted_inside(remaining(parent, last_key)?, samples);
    ahead.retain(|sample| Some(*sample) != last_key);
    let at = boundary_at(&ahead, kept.of(ahead.len()).max(1));
    let at = at.ok_or(PlanError::TooFewSamples { inside: ahead.len() })?;
    plan_split_residual(parent, last_key, &at)
}

/// Why a plan cannot be made. Points are counted from 0; keys are shown by length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Fewer than two children.
    #[error("a split makes at least {min} shards, not {count}")]
    TooFewChildren {
        /// Children asked for.
        count: usize,
        /// Fewest allowed.
        min: usize,
    },
    /// More children than one split may make.
    #[error("{count} children, over the limit of {max} in one split")]
    TooManyChildren {
        /// Children asked for.
        count: usize,
        /// Most allowed.
        max: usize,
    },
    /// A cut that would leave nothing on one side.
    #[error("cut {index} (a key of {len} bytes) is not strictly inside the shard")]
    PointOutside {
        /// Which cut.
        index: usize,
        /// Its length.
        len: usize,
    },
    /// A cut that is not above the one before it.
    #[error("cut {index} is not above the one before it")]
    PointsOutOfOrder {
        /// Which cut.
        index: usize,
    },
    /// A cut below the keys already processed.
    #[error("the cut (a key of {len} bytes) is not above the parent's progress, which the parent must keep")]
    AlreadyProcessed {
        /// Its length.
        len: usize,
    },
    /// No room for that many cuts.
    #[error("the range is too narrow to be cut into {children}")]
    TooNarrow {
        /// Parts asked for.
        children: usize,
    },
    /// Samples that give no place to cut.
    #[error("{inside} sampled keys lie in the range; a cut needs two different ones")]
    TooFewSamples {
        /// Samples that could be used.
        inside: usize,
    },
    /// The progress given does not belong to this shard.
    #[error("the parent's progress lies outside its range")]
    ProgressOutside,
    /// A part that breaks the rules of a range.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

fn check_child_count(count: usize) -> Result<(), PlanError> {
    match count {
        ..MIN_SPLIT_CHILDREN => Err(PlanError::TooFewChildren { count, min: MIN_SPLIT_CHILDREN }),
        MIN_SPLIT_CHILDREN..=MAX_SPLIT_CHILDREN => Ok(()),
        _ => Err(PlanError::TooManyChildren { count, max: MAX_SPLIT_CHILDREN }),
    }
}

fn piece(parent: ShardSpecRef<'_>, start: &[u8], end: &[u8]) -> Result<ShardSpec, SpecError> {
    ShardSpec::new(start, end, parent.metadata())
}

/// The range ahead of `last_key`, which is itself its start.
fn remaining<'a>(parent: ShardSpecRef<'a>, last_key: Option<&'a [u8]>) -> Result<KeyRange<'a>, PlanError> {
    let Some(last_key) = last_key else { return Ok(parent.range()) };
    check_in_range(parent.range(), Some(last_key)).map_err(|_| PlanError::ProgressOutside)?;
    Ok(KeyRange::new(last_key, parent.end())?)
}

fn sorted_inside<'a>(range: KeyRange<'_>, samples: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let mut inside: Vec<_> = samples.iter().copied().filter(|sample| range.contains(sample)).collect();
    inside.sort_unstable();
    inside
}

/// The shortest key with `below` of the sorted samples under it, or the nearest such place above a run of equal ones.
fn boundary_at(sorted: &[&[u8]], below: usize) -> Option<Vec<u8>> {
    let last_below = sorted.get(below.checked_sub(1)?)?;
    let first_above = sorted[below..].iter().find(|sample| *sample > last_below)?;
    shortest_separator(last_below, first_above)
}

fn as_slices(keys: &[Vec<u8>]) -> Vec<&[u8]> {
    keys.iter().map(Vec::as_slice).collect()
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;
    use crate::split::{validate_residual_split, validate_split_coverage};

    fn parent<'a>(start: &'a [u8], end: &'a [u8]) -> ShardSpecRef<'a> {
        ShardSpecRef::new(start, end, b"meta").unwrap()
    }

    fn starts(plan: &SplitReplacePlan) -> Vec<&[u8]> {
        plan.children().iter().map(ShardSpec::start).collect()
    }

    fn millionths(number: u32) -> Fraction {
        Fraction::from_millionths(number).unwrap()
    }

    #[test]
    fn children_inherit_the_metadata_and_meet_at_the_cuts() {
        let plan = plan_split_replace(parent(b"a", b""), &[b"g", b"p"]).unwrap();
        let expected: [(&[u8], &[u8]); 3] = [(b"a", b"g"), (b"g", b"p"), (b"p", b"")];
        for (child, (start, end)) in plan.children().iter().zip(expected) {
            assert_eq!(child.view(), ShardSpecRef::new(start, end, b"meta").unwrap());
        }
    }

    #[test]
    fn cuts_at_the_edges_or_out_of_order_are_refused() {
        let cut = |points: &[&[u8]]| plan_split_replace(parent(b"b", b"f"), points).unwrap_err();
        assert_eq!(cut(&[b"b"]), PlanError::PointOutside { index: 0, len: 1 });
        assert_eq!(cut(&[b"c", b"f"]), PlanError::PointOutside { index: 1, len: 1 });
        assert_eq!(cut(&[b"a"]), PlanError::PointOutside { index: 0, len: 1 });
        assert_eq!(cut(&[b""]), PlanError::PointOutside { index: 0, len: 0 });
        assert_eq!(cut(&[b"d", b"d"]), PlanError::PointsOutOfOrder { index: 1 });
        assert_eq!(cut(&[b"d", b"c"]), PlanError::PointsOutOfOrder { index: 1 });
        assert!(plan_split_replace(parent(b"b", b"f"), &[b"b\0"]).is_ok());
    }

    #[test]
    fn two_to_256_children_are_allowed() {
        let few = PlanError::TooFewChildren { count: 1, min: 2 };
        let many = PlanError::TooManyChildren { count: 257, max: 256 };
        assert_eq!(plan_split_replace(parent(b"", b""), &[]), Err(few));
        assert_eq!(plan_split_replace_evenly(parent(b"", b""), 1), Err(few));
        assert_eq!(plan_split_replace_evenly(parent(b"", b""), 257), Err(many));
        assert_eq!(plan_split_replace_evenly(parent(b"", b""), 256).unwrap().children().len(), 256);
        assert_eq!(plan_split_replace_at_fractions(parent(b"", b""), &[]), Err(few));
        assert_eq!(plan_split_replace_by_samples(parent(b"", b""), &[], 257), Err(many));
        let child = ShardSpec::new(b"a", b"b", b"").unwrap();
        assert_eq!(SplitReplacePlan::new(vec![child.clone(); 257]), Err(many));
        assert_eq!(SplitReplacePlan::new(vec![child]), Err(few));
    }

    #[test]
    fn the_order_of_a_list_of_children_does_not_change_the_plan() {
        let (low, high) = (ShardSpec::new(b"a", b"b", b"").unwrap(), ShardSpec::new(b"b", b"c", b"").unwrap());
        let plan = SplitReplacePlan::new(vec![high.clone(), low.clone()]).unwrap();
        assert_eq!(plan, SplitReplacePlan::new(vec![low, high]).unwrap());
    }

    #[test]
    fn even_and_fractional_cuts_fall_where_asked() {
        let even = plan_split_replace_evenly(parent(b"", b""), 4).unwrap();
        assert_eq!(starts(&even), [&b""[..], b"\x40", b"\x80", b"\xc0"]);
        let quarters = [millionths(250_000), millionths(750_000)];
        let plan = plan_split_replace_at_fractions(parent(b"", b""), &quarters).unwrap();
        assert_eq!(starts(&plan), [&b""[..], b"\x40", b"\xc0"]);
        let wrong = [millionths(2), millionths(2)];
        let refused = plan_split_replace_at_fractions(parent(b"", b""), &wrong);
        assert_eq!(refused, Err(PlanError::PointsOutOfOrder { index: 1 }));
    }

    #[test]
    fn a_range_of_one_key_cannot_be_cut() {
        let narrow = parent(b"a", b"a\0");
        assert_eq!(plan_split_replace_evenly(narrow, 2), Err(PlanError::TooNarrow { children: 2 }));
        assert_eq!(
            plan_split_replace_at_fractions(narrow, &[Fraction::HALF]),
            Err(PlanError::TooNarrow { children: 2 })
        );
        assert_eq!(
            plan_split_residual_at_fraction(narrow, None, Fraction::HALF),
            Err(PlanError::TooNarrow { children: 2 })
        );
    }

    #[test]
    fn samples_put_the_cuts_where_the_work_is() {
        let samples: Vec<&[u8]> = vec![b"src/d", b"src/a", b"src/b", b"src/c", b"outside"];
        let plan = plan_split_replace_by_samples(parent(b"src/", b"src0"), &samples, 2).unwrap();
        assert_eq!(starts(&plan), [&b"src/"[..], b"src/c"]);
        // One key that outweighs everything: the cut goes after it, and there are fewer parts than asked for.
        let heavy: Vec<&[u8]> = vec![b"a", b"a", b"a", b"a", b"a", b"b"];
        let plan = plan_split_replace_by_samples(parent(b"", b""), &heavy, 4).unwrap();
        assert_eq!(starts(&plan), [&b""[..], b"b"]);
    }

    #[test]
    fn samples_that_show_no_place_to_cut_are_refused() {
        let refused = |samples: &[&[u8]]| plan_split_replace_by_samples(parent(b"b", b"f"), samples, 2).unwrap_err();
        assert_eq!(refused(&[]), PlanError::TooFewSamples { inside: 0 });
        assert_eq!(refused(&[b"c", b"c", b"z"]), PlanError::TooFewSamples { inside: 2 });
    }

    #[test]
    fn a_residual_split_leaves_progress_with_the_parent() {
        let parent = parent(b"b", b"f");
        let plan = plan_split_residual(parent, Some(b"c"), b"d").unwrap();
        assert_eq!((plan.kept().start(), plan.kept().end()), (&b"b"[..], &b"d"[..]));
        assert_eq!((plan.residual().start(), plan.residual().end()), (&b"d"[..], &b"f"[..]));
        assert_eq!((plan.kept().metadata(), plan.residual().metadata()), (&b"meta"[..], &b"meta"[..]));
        let cut = |last_key, at| plan_split_residual(parent, last_key, at).unwrap_err();
        assert_eq!(cut(Some(b"d"), b"d"), PlanError::AlreadyProcessed { len: 1 });
        assert_eq!(cut(Some(b"e"), b"d"), PlanError::AlreadyProcessed { len: 1 });
        assert_eq!(cut(None, b"b"), PlanError::PointOutside { index: 0, len: 1 });
        assert_eq!(cut(None, b"f"), PlanError::PointOutside { index: 0, len: 1 });
    }

    #[test]
    fn a_fraction_is_taken_of_what_remains() {
        let plan = plan_split_residual_at_fraction(parent(b"\x10", b"\x90"), Some(b"\x50"), Fraction::HALF).unwrap();
        assert_eq!(plan.residual().start(), b"\x70");
        let plan = plan_split_residual_at_fraction(parent(b"\x10", b"\x90"), None, Fraction::HALF).unwrap();
        assert_eq!(plan.residual().start(), b"\x50");
        let refused = plan_split_residual_at_fraction(parent(b"b", b"f"), Some(b"f"), Fraction::HALF);
        assert_eq!(refused, Err(PlanError::ProgressOutside));
    }

    #[test]
    fn samples_already_processed_do_not_count() {
        let samples: Vec<&[u8]> = vec![b"b1", b"c1", b"c2", b"d1", b"d2", b"e1"];
        let plan = plan_split_residual_by_samples(parent(b"b", b"f"), Some(b"c2"), &samples, Fraction::HALF).unwrap();
        // Ahead are d1, d2 and e1; half of three, rounded down, is one.
        assert_eq!(plan.residual().start(), b"d2");
        let one: Vec<&[u8]> = vec![b"c2", b"d1"];
        let refused = plan_split_residual_by_samples(parent(b"b", b"f"), Some(b"c2"), &one, Fraction::HALF);
        assert_eq!(refused, Err(PlanError::TooFewSamples { inside: 1 }));
        // A share too small for a sample still keeps one: giving everything away would be no split.
        let plan = plan_split_residual_by_samples(parent(b"b", b"f"), None, &samples, millionths(1)).unwrap();
        assert_eq!(plan.residual().start(), b"c");
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(vec![0, 1, 0x61, 0x62, 0xff]), 0..6)
    }

    /// Ranges bounded and not, some of them very narrow.
    fn range() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        (key(), key()).prop_filter_map("a range", |(a, b)| {
            KeyRange::new(&a, &b)
                .is_ok()
                .then_some((a.clone(), b.clone()))
                .or_else(|| KeyRange::new(&b, &a).is_ok().then_some((b, a)))
        })
    }

    fn fractions() -> impl Strategy<Value = Vec<Fraction>> {
        prop::collection::btree_set(1_u32..1_000_000, 1..6).prop_map(|set| set.into_iter().map(millionths).collect())
    }

    proptest! {
        #[test]
        fn every_replacing_plan_made_here_covers_its_parent(
            (start, end) in range(),
            points in prop::collection::vec(key(), 0..6),
            children in 2_usize..9,
            fractions in fractions(),
        ) {
            let parent = parent(&start, &end);
            let points = as_slices(&points);
            for plan in [
                plan_split_replace(parent, &points),
                plan_split_replace_evenly(parent, children),
                plan_split_replace_at_fractions(parent, &fractions),
                plan_split_replace_by_samples(parent, &points, children),
            ].into_iter().flatten() {
                prop_assert_eq!(validate_split_coverage(parent.range(), &plan), Ok(()));
            }
        }

        #[test]
        fn every_residual_plan_made_here_covers_its_parent_and_keeps_its_progress(
            (start, end) in range(), last_key in prop::option::of(key()), at in key(),
            samples in prop::collection::vec(key(), 0..8), kept in 1_u32..1_000_000,
        ) {
            let parent = parent(&start, &end);
            let last_key = last_key.as_deref().filter(|key| !key.is_empty());
            let samples = as_slices(&samples);
            for plan in [
                plan_split_residual(parent, last_key, &at),
                plan_split_residual_at_fraction(parent, last_key, millionths(kept)),
                plan_split_residual_by_samples(parent, last_key, &samples, millionths(kept)),
            ].into_iter().flatten() {
                prop_assert_eq!(validate_residual_split(parent.range(), last_key, &plan), Ok(()));
            }
        }

        #[test]
        fn parts_by_samples_hold_about_equally_many_different_keys(
            keys in prop::collection::btree_set(prop::collection::vec(any::<u8>(), 1..6), 16..200),
            children in 2_usize..9,
        ) {
            let keys: Vec<Vec<u8>> = keys.into_iter().collect();
            let plan = plan_split_replace_by_samples(parent(b"", b""), &as_slices(&keys), children).unwrap();
            prop_assert_eq!(plan.children().len(), children);
            for child in plan.children() {
                let held = keys.iter().filter(|key| child.range().contains(key)).count();
                prop_assert!(held == keys.len() / children || held == keys.len().div_ceil(children));
            }
        }
    }
}
