//! The golden vectors in `vectors/`, which another implementation can read, hold for this one.
//!
//! The files were written by a separate, plain implementation of the rules they state, so a mistake would have to be made
//! twice.

use std::fs;
use std::path::Path;

use tessera_contracts::canonical::CanonicalBytes;
use tessera_contracts::domain;
use tessera_contracts::ids::{OpId, RunId, ShardId, TenantId};
use tessera_contracts::point::{ContentId, NodeId, Point};
use tessera_contracts::prefix_map::{Selector, Slot};
use tessera_contracts::split::{DerivedShardKind, SplitReplacePlan, SplitResidualPlan, derive_split_shard_id};
use tessera_contracts::{CursorUpdate, PayloadHash, ShardSpec};

#[test]
fn hashes_in_every_domain() {
    let lines = lines("domains.txt");
    for [context, material, hash] in lines.iter().map(fields) {
        let domain = domain::ALL.iter().find(|domain| domain.context() == context).expect("a registered context");
        assert_eq!(hex(&domain.hash(&bytes(material))), hash, "{context}, {material}");
    }
    for domain in domain::ALL {
        assert!(lines.iter().any(|line| line[0] == domain.context()), "{domain:?} has no vector");
    }
}

#[test]
fn payload_hashes() {
    for line in lines("payload_hashes.txt") {
        match line[0].as_str() {
            "cursor" => {
                let [_, operation, last_key, token, canonical, hash] = fields(&line);
                let (last_key, token) = (optional(last_key), optional(token));
                let cursor = CursorUpdate::new(last_key.as_deref(), token.as_deref()).expect("a valid cursor");
                check_payload(operation, &cursor, canonical, hash);
            }
            "replace" => {
                let [_, operation, children, canonical, hash] = fields(&line);
                let plan = SplitReplacePlan::new(children.split(' ').map(spec).collect()).expect("a valid plan");
                check_payload(operation, &plan, canonical, hash);
            }
            "residual" => {
                let [_, operation, kept, residual, canonical, hash] = fields(&line);
                check_payload(operation, &SplitResidualPlan::new(spec(kept), spec(residual)), canonical, hash);
            }
            other => panic!("unknown kind of line: {other}"),
        }
    }
}

#[test]
fn split_ids() {
    for line in lines("split_ids.txt") {
        let [run, parent, operation, kind, index, id] = fields(&line);
        let kind = match kind {
            "child" => DerivedShardKind::Child,
            "residual" => DerivedShardKind::Residual,
            other => panic!("unknown kind of shard: {other}"),
        };
        let run: RunId = run.parse().expect("a run id");
        let parent: ShardId = parent.parse().expect("a shard id");
        let operation: OpId = operation.parse().expect("an operation id");
        let derived = derive_split_shard_id(run, parent, operation, kind, index.parse().expect("an index"));
        assert_eq!(derived.to_string(), id, "{line:?}");
    }
}

#[test]
fn points_and_slots() {
    for line in lines("points.txt") {
        match line[0].as_str() {
            "node" => {
                let [_, key, id] = fields(&line);
                assert_eq!(NodeId::of_public_key(&key32(key)).to_string(), id);
            }
            "immutable" => {
                let [_, value, id] = fields(&line);
                assert_eq!(ContentId::of_immutable(&bytes(value)).to_string(), id);
            }
            "mutable" => {
                let [_, owner, salt, id] = fields(&line);
                assert_eq!(ContentId::of_mutable(&key32(owner), &bytes(salt)).to_string(), id);
            }
            "tenant" => {
                let [_, name, id] = fields(&line);
                assert_eq!(TenantId::from_name(name).to_string(), id);
            }
            "slot" => {
                let [_, own, id, distance, leading, striped] = fields(&line);
                let (own, id): (NodeId, ContentId) =
                    (own.parse().expect("a node id"), id.parse().expect("a content id"));
                let seen = own.distance_to(&id);
                assert_eq!(seen.to_string(), distance);
                assert_eq!(Selector::Leading.slot(seen), Slot(leading.parse().expect("a slot")));
                assert_eq!(Selector::default().slot(seen), Slot(striped.parse().expect("a slot")));
            }
            other => panic!("unknown kind of line: {other}"),
        }
    }
}

fn check_payload(operation: &str, payload: &impl CanonicalBytes, canonical: &str, hash: &str) {
    let mut written = Vec::new();
    payload.write_canonical(&mut written);
    assert_eq!(hex(&written), canonical, "canonical bytes for {operation}");
    let operations = ["checkpoint", "complete", "split_replace", "split_residual"];
    let operation = operations.into_iter().find(|known| *known == operation).expect("a known operation");
    assert_eq!(format!("{:016x}", PayloadHash::of(operation, payload).get()), hash, "hash for {operation}");
}

/// The lines of a vector file, cut into fields. A file that lost its content would test nothing, so that fails.
fn lines(file: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines: Vec<Vec<String>> = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split(" | ").map(str::to_owned).collect())
        .collect();
    assert!(!lines.is_empty(), "{} has no vectors", path.display());
    lines
}

fn fields<const N: usize>(line: &Vec<String>) -> [&str; N] {
    let fields: Vec<&str> = line.iter().map(String::as_str).collect();
    fields.try_into().unwrap_or_else(|_| panic!("a line of {N} fields: {line:?}"))
}

fn spec(text: &str) -> ShardSpec {
    let parts: Vec<Vec<u8>> = text.split(':').map(bytes).collect();
    ShardSpec::new(&parts[0], &parts[1], &parts[2]).expect("a valid spec")
}

fn optional(text: &str) -> Option<Vec<u8>> {
    (text != "-").then(|| bytes(text))
}

fn bytes(text: &str) -> Vec<u8> {
    let digits = if text == "\"\"" { "" } else { text };
    assert!(digits.len().is_multiple_of(2), "hex comes in pairs: {text}");
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex")).collect()
}

fn key32(text: &str) -> [u8; 32] {
    bytes(text).try_into().expect("32 bytes")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
