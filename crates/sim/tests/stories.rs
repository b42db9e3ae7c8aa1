//! A violation that was found can be kept: as a story that the broken backend fails and the right one passes.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use tessera_conformance::{BackendConfig, BackendFactory, InMemory, Need, run_story};
use tessera_coordination::InMemoryCoordinator;
use tessera_sim::coordination::broken::{Broken, Rule};
use tessera_sim::coordination::config::{Config, Level};
use tessera_sim::coordination::stage::{Deed, Stage, Violation};
use tessera_sim::coordination::world::World;
use tessera_sim::coordination::{checkers, coordinator, shorten, shrink, story};

/// Makes backends with one rule broken.
struct Faulty(Rule);

impl BackendFactory for Faulty {
    type Backend = Broken<InMemoryCoordinator>;

    fn create(&self, config: &BackendConfig) -> Self::Backend {
        Broken::new(InMemory.create(config), self.0)
    }

    fn offers(&self, need: Need) -> bool {
        InMemory.offers(need)
    }
}

fn stage(rule: Rule, config: &Config) -> Stage<Broken<InMemoryCoordinator>> {
    let mut checkers = checkers::all();
    checkers.retain(|checker| checker.name() == rule.caught_by());
    Stage::new(checkers, config.clone(), Broken::new(coordinator(config), rule), rule.sink())
}

/// The smallest world found in which the rule shows, and the shortest script.
fn found(rule: Rule) -> (Config, Violation) {
    let simulate = |config: &Config| World::around(stage(rule, config), config.clone()).run();
    let violations = (0..400)
        // Without vandals, whose leases are forged: a story has only those that were granted.
        .map(|seed| Config::draw(seed, 3_000, Level::Stormy, seed % 3 == 2).without("vandal"))
        .filter_map(|config| simulate(&config).err().map(|violation| (config, violation)));
    // Some worlds need much to come to the point, so the shortest of a few is told.
    let shortened = violations.take(6).map(|(config, violation)| {
        let (least, violation) = shrink(&config, &violation, simulate);
        let shortest = shorten(&violation, |script| stage(rule, &least).play(script));
        assert_eq!(shortest.property, violation.property);
        assert!(shortest.script.len() <= violation.script.len());
        (least, shortest)
    });
    shortened.min_by_key(|(_, violation)| violation.script.len()).unwrap()
}

#[test]
fn a_saved_violation_is_a_story_that_the_broken_backend_fails_and_the_right_one_passes() {
    // Rules of the backend whose breach shows in its answers or records; a breach that only a result store can see is no story.
    let rules = [
        Rule::FenceUnchecked,
        Rule::ExpiryUnchecked,
        Rule::RunIgnored,
        Rule::OpLogForgotten,
        Rule::UnparkUnconditional,
        Rule::SplitShowsNoChildren,
        Rule::CheckpointRunsAhead,
        Rule::ActiveRunIsSettled,
        Rule::HintsLie,
        Rule::IncarnationUnchecked,
        Rule::ReportParks,
        Rule::ReportForgotten,
    ];
    for rule in rules {
        let (config, violation) = found(rule);
        let text = story::of(&config, &violation).unwrap();
        assert_eq!(run_story(&InMemory, "saved", &text).unwrap(), None, "{rule:?}: the right backend passes\n{text}");
        let told = run_story(&Faulty(rule), "saved", &text).expect_err(&format!("{rule:?} goes unnoticed in\n{text}"));
        assert!(told.to_string().contains("stories/saved.txt:"), "the failure names its line: {told}");
        assert!(text.lines().count() < 120, "{rule:?}: short enough to be read\n{text}");
    }
}

#[test]
fn a_script_is_cut_down_to_what_is_needed() {
    let (_, violation) = found(Rule::FenceUnchecked);
    assert!(violation.script.len() <= 16, "{} deeds: {:#?}", violation.script.len(), violation.calls);
}

#[test]
fn a_shortened_violation_of_the_result_store_keeps_the_grants_that_lead_to_it() {
    let (_, violation) = found(Rule::SinkUnfenced);
    let results = violation.script.iter().filter(|deed| matches!(deed, Deed::Write(_))).count();
    let grants = violation.calls.iter().filter(|call| call.contains("fence")).count();
    assert!(results >= 2 && grants >= 2, "an old owner wrote after a new one: {:#?}", violation.script);
    assert!(violation.script.len() <= 16, "{} deeds", violation.script.len());
}
