//! The names that the specification promises at the root of the crate, used from there.

use tessera_contracts::split::plan_split_residual;
use tessera_contracts::{LogicalTime, RunId, RunIncarnation, ShardSpec, TenantId};
use tessera_coordination as root;
use tessera_coordination::RunManagement;
use tessera_coordination::run::config::RunConfig;

#[test]
fn default_ceilings_have_the_types_of_the_fields_they_fill() {
    let config = root::CoordinatorRuntimeConfig {
        max_shards_per_tenant: root::DEFAULT_MAX_SHARDS_PER_TENANT,
        max_total_shards: root::DEFAULT_MAX_TOTAL_SHARDS,
        slab_capacity: root::DEFAULT_MAX_AUTO_SLAB_CAPACITY,
        ..root::CoordinatorRuntimeConfig::default()
    };
    assert_eq!(config, root::CoordinatorRuntimeConfig::default());
}

#[test]
fn progress_is_evaluated_and_listings_are_filtered_by_names_of_the_root() {
    let (tenant, run, now) = (TenantId::from_name("acme"), RunId::new(1), LogicalTime::new(1));
    let mut store = root::InMemoryCoordinator::default();
    store.create_run(now, tenant, run, RunIncarnation::new(7), RunConfig::default()).unwrap();
    let progress: root::RunProgress = store.get_run_progress(now, tenant, run).unwrap();
    assert_eq!(root::evaluate_run_terminal(&progress.counts), root::RunTerminalEvaluation::StillActive);
    assert!(root::ShardFilter::all().roots().root_only);
    let deadline: fn(&root::ShardSummary) -> _ = root::ShardSummary::lease_deadline;
    let _ = deadline;
}

#[test]
fn a_spec_in_the_arena_is_read_through_its_handle() {
    let spec = ShardSpec::new(b"a", b"m", b"metadata").unwrap();
    let mut arena = root::ShardArena::with_capacity(1_024);
    let handle: root::ShardSpecHandle = arena.insert(spec.view()).unwrap();
    assert_eq!(arena.get(handle), Some(spec.view()));
}

#[test]
fn residual_bounds_outside_the_parent_are_refused() {
    let spec = |start: &[u8], end: &[u8]| ShardSpec::new(start, end, b"").unwrap();
    let parent = spec(b"a", b"m");
    let plan = plan_split_residual(parent.view(), None, b"g").unwrap();
    assert!(root::validate_residual_split_bounds(parent.view().range(), &plan).is_ok());
    assert!(root::validate_residual_split_bounds(spec(b"a", b"k").view().range(), &plan).is_err());
}
