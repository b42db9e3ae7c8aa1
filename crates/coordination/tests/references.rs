//! What operators and readers are told is there: what to do when a rule breaks, and where the ideas come from.

const ARCHITECTURE: &str = include_str!("../../../ARCHITECTURE.md");

fn section(title: &str) -> &'static str {
    let begun = ARCHITECTURE.split_once(title).map(|(_, text)| text).unwrap_or_default();
    begun.split("\n#").next().unwrap_or_default()
}

#[test]
fn operators_are_told_what_a_broken_invariant_is_and_what_to_do() {
    let guidance = section("### When an invariant breaks\n");
    for word in ["bug of ours", "Watch", "`invariant`", "`illegal transition`", "Nothing stored is damaged", "report"] {
        assert!(guidance.contains(word), "the guidance does not say `{word}`");
    }
}

#[test]
fn every_source_is_named_with_the_place_where_its_idea_is_used() {
    let sources = section("## Where the ideas come from\n");
    for (source, place) in [
        ("Gray and Cheriton", "crates/coordination/src/record/lease.rs"),
        ("Kleppmann", "crates/coordination/src/validation.rs"),
        ("Stripe", "crates/coordination/src/record/op_log.rs"),
        ("FoundationDB", "crates/contracts/src/shard_spec.rs"),
        ("Spanner", "crates/contracts/src/shard_spec.rs"),
        ("VOPR", "crates/sim/src/lib.rs"),
        ("Lamport", "specs/coordination/README.md"),
        ("Newcombe", "specs/coordination/README.md"),
    ] {
        let row = sources.lines().find(|line| line.contains(source));
        assert!(row.is_some_and(|row| row.contains(place)), "{source} is not named beside {place}");
        let there = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(place);
        assert!(there.exists(), "{place} is gone");
    }
}
