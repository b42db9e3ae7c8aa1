//! One property per file, named as in `specs/coordination`.

use super::watch::Checker;

mod at_most_once;
mod claim_cooldown;
mod control_fenced;
mod coverage;
mod cursor_in_bounds;
mod cursor_monotonic;
mod done_as_asked;
mod effects_fenced;
mod effects_in_range;
mod expired_is_refused;
mod fence_monotonic;
mod hints_are_true;
mod incarnation_fenced;
mod no_theft_from_live_owner;
mod owner_change_bumps_fence;
mod record_invariants;
mod replay_answers_agree;
mod run_invariants;
mod run_settles;
mod run_terminal_irreversible;
mod settled_run_is_quiet;
mod split_tiles;
mod terminal_irreversible;
mod unreachable_for_all;
mod wrong_is_refused;

/// A fresh checker for every property.
pub fn all() -> Vec<Box<dyn Checker>> {
    vec![
        Box::new(at_most_once::AtMostOnce::default()),
        Box::new(claim_cooldown::ClaimCooldown::default()),
        Box::new(control_fenced::ControlFenced),
        Box::new(coverage::Coverage),
        Box::new(cursor_in_bounds::CursorInBounds),
        Box::new(cursor_monotonic::CursorMonotonic),
        Box::new(done_as_asked::DoneAsAsked),
        Box::new(effects_fenced::EffectsFenced::default()),
        Box::new(effects_in_range::EffectsInRange),
        Box::new(expired_is_refused::ExpiredIsRefused),
        Box::new(fence_monotonic::FenceMonotonic),
        Box::new(hints_are_true::HintsAreTrue::default()),
        Box::new(incarnation_fenced::IncarnationFenced::default()),
        Box::new(no_theft_from_live_owner::NoTheftFromLiveOwner),
        Box::new(owner_change_bumps_fence::OwnerChangeBumpsFence),
        Box::new(record_invariants::RecordInvariants),
        Box::new(replay_answers_agree::ReplayAnswersAgree::default()),
        Box::new(run_invariants::RunInvariants),
        Box::new(run_settles::RunSettles),
        Box::new(run_terminal_irreversible::RunTerminalIrreversible::default()),
        Box::new(settled_run_is_quiet::SettledRunIsQuiet),
        Box::new(split_tiles::SplitTiles),
        Box::new(terminal_irreversible::TerminalIrreversible),
        Box::new(unreachable_for_all::UnreachableForAll::default()),
        Box::new(wrong_is_refused::WrongIsRefused::default()),
    ]
}
