//! The stories leave nothing out: every operation, and every way each of them can be answered.
//!
//! Failures of a store (`BackendError`) are not here: no story can make a healthy store fail.

use std::collections::BTreeSet;

use tessera_conformance::{InMemory, stories, stories_seen};

const ACCESS: &[&str] = &["tenant mismatch", "shard not found", "other incarnation", "run not active"];
const LEASE: &[&str] = &["terminal", "stale fence", "expired", "not the holder"];
const OP_ID: &[&str] = &["op id conflict"];
const CURSOR: &[&str] = &["cursor regression", "cursor below range", "cursor above range"];
const LIMITS: &[&str] = &["tenant limit", "total limit", "spawn cap", "no room"];
const MANIFEST: &[&str] = &[
    "too many root shards",
    "no root shards",
    "root has id 0",
    "root has a derived id",
    "root listed twice",
    "root is unbounded",
    "root range invalid",
    "roots overlap",
    "root cursor invalid",
    "root cursor out of range",
];
const NO_RUN: &[&str] = &["run not found"];

/// The possible refusals of each operation.
fn refusals() -> Vec<(&'static str, Vec<&'static str>)> {
    let gated = |own: &[&[&'static str]]| [&[ACCESS, LEASE, OP_ID], own].concat().concat();
    let settled = [NO_RUN, OP_ID, &["illegal transition"]].concat();
    let unowned = ["shard not found", "run not active"];
    let named = ["shard not found", "other incarnation", "run not active"];
    let ordered = [&named[..], &["terminal", "stale fence", "not leased"]].concat();
    let replaced = ["children miss the start", "children miss the end", "children leave a gap", "children overlap"];
    let shrunk = [
        "kept part misses the start",
        "residual misses the end",
        "kept part and residual overlap",
        "kept part and residual leave a gap",
        "progress would leave the kept part",
    ];
    vec![
        (
            "acquire_and_restore_into",
            [
                &unowned[..],
                &[
                    "terminal",
                    "already leased",
                    "unassigned worker",
                    "retries exhausted",
                    "reported unreachable",
                    "held back",
                ],
            ]
            .concat(),
        ),
        // A renewal in a settled run is an answer, and says stop.
        ("renew", [&["tenant mismatch", "shard not found", "other incarnation"], LEASE].concat()),
        ("checkpoint", gated(&[CURSOR, &["missing key", "no room"]])),
        ("complete", gated(&[CURSOR, &["cursor reset", "no room"]])),
        ("release", gated(&[CURSOR, &["missing key", "no room"]])),
        ("park_shard", gated(&[&["no room"]])),
        ("split_replace", gated(&[LIMITS, &replaced])),
        ("split_residual", gated(&[LIMITS, &shrunk])),
        ("unpark_shard", [&named[..], OP_ID, &["not parked", "fence moved"]].concat()),
        ("request_yield", ordered.clone()),
        ("request_split", ordered),
        (
            "create_run",
            vec![
                "run exists",
                "unassigned run",
                "unassigned tenant",
                "unassigned incarnation",
                "zero lease duration",
                "too many runs",
            ],
        ),
        (
            "register_shards",
            [NO_RUN, OP_ID, MANIFEST, &["not initializing", "tenant limit", "total limit", "no room"]].concat(),
        ),
        (
            "create_run_with_shards",
            vec![
                "config mismatch",
                "unassigned run",
                "unassigned tenant",
                "unassigned incarnation",
                "zero lease duration",
                "too many runs",
            ],
        ),
        ("complete_run", [&settled[..], &["shards open"]].concat()),
        ("fail_run", settled.clone()),
        ("cancel_run", settled),
        ("get_run", NO_RUN.to_vec()),
        ("get_shard", vec!["shard not found"]),
        ("get_run_progress", NO_RUN.to_vec()),
        ("list_shards_into", NO_RUN.to_vec()),
        ("collect_claim_candidates_into", NO_RUN.to_vec()),
        ("explain_claim", NO_RUN.to_vec()),
        (
            "claim_next_available",
            vec!["run not found", "run not active", "unassigned worker", "none available", "throttled"],
        ),
    ]
}

/// The possible answers of each operation when it is not refused.
const ANSWERS: &[(&str, &[&str])] = &[
    ("acquire_and_restore_into", &["granted"]),
    ("claim_next_available", &["granted"]),
    ("renew", &["renewed"]),
    ("renew_many", &["renewed", "refused: terminal", "refused: other incarnation"]),
    ("checkpoint", &["executed", "replayed"]),
    ("complete", &["executed", "replayed"]),
    ("release", &["executed", "replayed"]),
    ("drain", &["executed", "replayed", "refused: terminal", "refused: other incarnation"]),
    ("park_shard", &["executed", "replayed", "superseded"]),
    ("split_replace", &["executed", "replayed"]),
    ("split_residual", &["executed", "replayed"]),
    ("unpark_shard", &["executed", "replayed"]),
    ("request_yield", &["asked"]),
    ("request_split", &["asked"]),
    ("create_run", &["created"]),
    ("register_shards", &["executed", "replayed"]),
    ("create_run_with_shards", &["executed", "replayed"]),
    ("complete_run", &["executed", "replayed"]),
    ("fail_run", &["executed"]),
    ("cancel_run", &["executed", "replayed"]),
    ("retire_runs", &["0 retired", "1 retired"]),
    ("get_run", &["initializing", "active", "done", "cancelled"]),
    ("get_shard", &["active", "done", "split", "parked"]),
    ("get_run_progress", &["still active", "has failures", "all done"]),
    (
        "explain_claim",
        &["claimable", "run not active", "cooling down", "all leased", "only parked left", "all settled"],
    ),
    (
        "event",
        &[
            "shard acquired",
            "shard checkpointed",
            "residual created",
            "shard unparked",
            "lease renewed",
            "shard released",
            "holder asked",
            "shard completed",
            "shard parked",
            "shard split",
            "run created",
            "run activated",
            "run completed",
            "run failed",
            "run cancelled",
            "run retired",
        ],
    ),
];

/// `answer.rs` names every variant of every error, and must: it matches without a wildcard. So a variant that is new there
/// is asked for here, and by the test below in every operation that the table lists it for.
#[test]
fn every_error_variant_is_told_in_a_story() {
    let words = refusals_in(include_str!("../src/answer.rs"));
    assert!(words.len() > 50, "{} ways to refuse were found in the source: {words:?}", words.len());
    let listed: BTreeSet<_> = refusals().into_iter().flat_map(|(_, reasons)| reasons).collect();
    let told: Vec<_> = stories().map(|(_, text)| text).collect();
    // A healthy store does not fail, and lets its coordinator in.
    let untold = ["store failed for now", "store is corrupt", "store refuses the caller"];
    for words in words.difference(&BTreeSet::from(untold)) {
        let refusal = format!("refused: {words}");
        assert!(told.iter().any(|text| text.contains(&refusal)), "no story has `{refusal}`");
        assert!(listed.iter().any(|listed| listed.starts_with(words)), "no operation is listed with `{words}`");
    }
    for because in ["because deadline", "because session lost"] {
        assert!(told.iter().any(|text| text.contains(because)), "no story has `{because}`");
    }
}

/// The texts that refusals begin with, from the implementations of `Refused`: the arguments of `Line::refused`, given directly
/// or out of a `match`. Of a text that names an edge, the part before the name.
fn refusals_in(source: &'static str) -> BTreeSet<&'static str> {
    let impls = source.split("\nimpl Refused for ").skip(1).map(|text| text.split("\n}\n").next().unwrap_or(text));
    let helper = source.split("fn no_room()").nth(1).and_then(|text| text.split('}').next());
    let literals = impls.chain(helper).flat_map(|text| {
        let parts: Vec<_> = text.split('"').collect();
        parts.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>()
    });
    let begins = |before: &str| {
        let handed =
            ["Line::refused(", "Line::refused(format_args!(", "=> ", "=> ("].iter().any(|end| before.ends_with(end));
        // Which of two ways a lease expired is said in addition.
        handed && !before.lines().next_back().is_some_and(|line| line.contains("ExpiredBecause::"))
    };
    literals.filter(|(before, _)| begins(before)).map(|(_, words)| words.split('{').next().unwrap_or(words)).collect()
}

#[test]
fn every_operation_is_seen_with_every_answer_it_can_give() {
    let seen = stories_seen(&InMemory).unwrap();
    let refused = refusals().into_iter().flat_map(|(operation, reasons)| {
        reasons.into_iter().map(move |reason| (operation, format!("refused: {reason}")))
    });
    let answered =
        ANSWERS.iter().flat_map(|(operation, answers)| answers.iter().map(|answer| (*operation, (*answer).to_owned())));
    let missing: BTreeSet<_> = refused.chain(answered).filter(|answer| !seen.contains(answer)).collect();
    assert!(missing.is_empty(), "no story shows: {missing:#?}");
}
