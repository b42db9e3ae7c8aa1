//! Cutting a shard in two or more.
//!
//! There are two ways. *Replace*: the parent retires and children take over all of its range ([`SplitReplacePlan`]).
//! *Residual*: the parent keeps the lower part and goes on, a new shard takes the rest ([`SplitResidualPlan`]).
//!
//! [`plan`] makes plans, at given keys, at fractions of the range, or where sampled keys say the work lies. [`coverage`]
//! checks a plan against the shard as the coordinator knows it, so nothing is lost and nothing is done twice under
//! any plan. [`derive_id`] names the new shards. Carrying a plan out is the coordinator's.

pub mod coverage;
pub mod derive_id;
pub mod plan;

pub use coverage::{
    CoverageError, ResidualError, validate_residual_split, validate_residual_split_bounds, validate_split_coverage,
};
pub use derive_id::{DerivedShardKind, derive_split_shard_id};
pub use plan::{
    PlanError, SplitReplacePlan, SplitResidualPlan, plan_split_replace, plan_split_replace_at_fractions,
    plan_split_replace_by_samples, plan_split_replace_evenly, plan_split_residual, plan_split_residual_at_fraction,
    plan_split_residual_by_samples,
};
