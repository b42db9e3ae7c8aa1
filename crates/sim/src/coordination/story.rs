//! A broken property as a story of the conformance suite: commands, and the answers of a right backend.
//!
//! The calls that led to it are played on the in-memory coordinator, whose answers are what the story expects. So the story
//! passes there, and fails on the backend that was found out. (If the in-memory coordinator itself was, its wrong answers
//! are written, and the first lines of the story say which property they break.) Results have no place in a story, nor
//! has a forged lease: only requests to a backend are told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use tessera_conformance::{Failures, told};
use tessera_contracts::ShardSpec;
use tessera_contracts::ids::{ShardEpoch, ShardId, WorkerId};
use tessera_coordination::decide::order::OrderRequest;

use super::call::{Answer, Call, Caller, INCARNATION, Outcome, REGISTRATION, Request, Why, key_bytes};
use super::config::Config;
use super::coordinator;
use super::sink::Sink;
use super::stage::{BEGINNING, Deed, Stage, Violation};

/// The shortest part found of `script` that is still broken. Leaves out pieces, large ones first.
pub fn shorten(script: &[Deed], mut is_broken: impl FnMut(&[Deed]) -> bool) -> Vec<Deed> {
    let mut shortest = script.to_vec();
    let mut piece = shortest.len().div_ceil(2);
    while piece > 0 {
        let mut start = 0;
        while start < shortest.len() {
            let mut shorter = shortest.clone();
            shorter.drain(start..(start + piece).min(shortest.len()));
            if is_broken(&shorter) {
                shortest = shorter;
            } else {
                start += piece;
            }
        }
        piece /= 2;
    }
    shortest
}

/// The violation as a story.
pub fn of(config: &Config, violation: &Violation) -> Result<String, Failures> {
    told("saved", &commands(config, violation))
}

/// Says how the shards and leases of a script are called in a story.
struct Names {
    roots: u64,
    shards: BTreeMap<ShardId, String>,
    spawned: BTreeMap<ShardId, usize>,
    leases: BTreeSet<(WorkerId, ShardId, String)>,
}

fn commands(config: &Config, violation: &Violation) -> String {
    let Config { seed, lease, retries, skew_allowance, cooldown, shards_max, .. } = config;
    let mut text = format!("# {} holds.\n# It did not: {} (seed {seed}).\n", violation.property, violation.what);
    if *skew_allowance > 0 {
        text.push_str("needs clock skew\n");
    }
    if *cooldown > 0 {
        text.push_str("needs cooldown\n");
    }
    let limits = format!("tenant shards {shards_max} total shards {shards_max}");
    let _ = writeln!(text, "config {limits} skew {skew_allowance} cooldown {cooldown}");
    let edges: Vec<u16> = config.edges().collect();
    let roots: Vec<String> = (1..)
        .zip(edges.windows(2))
        .map(|(shard, edges)| format!("{shard}=[{},{}){{simulated}}", key(edges[0]), key(edges[1])))
        .collect();
    let shards = format!("lease {lease} retries {retries} shards {} op {REGISTRATION}", roots.join(" "));
    let _ = writeln!(text, "at {BEGINNING} start run 1 incarnation {} {shards}", INCARNATION.get());
    let mut names =
        Names { roots: config.roots, shards: BTreeMap::new(), spawned: BTreeMap::new(), leases: BTreeSet::new() };
    names.begin();
    // The right answers tell the shards, and the leases of each worker.
    let mut stage = Stage::new(Vec::new(), config.clone(), coordinator(config), Sink::default());
    let mut last = None;
    for deed in &violation.script {
        let Deed::Call(_, call, _) = deed else { continue };
        let line = match &call.request {
            Request::Start { incarnation, .. } => {
                Some(format!("start run 1 incarnation {} {shards}", incarnation.get()))
            }
            _ => names.line(call),
        };
        let Some(line) = line else { continue };
        let Ok(answer) = stage.perform(call, false) else { continue };
        names.learn(call, &answer);
        let _ = writeln!(text, "at {} {line}", call.at);
        last = call.request.shard().or(last);
    }
    if let Some(name) = last.and_then(|shard| names.shards.get(&shard)) {
        let _ = writeln!(text, "show {name}");
    }
    text.push_str("show run 1\n");
    text
}

impl Names {
    /// The run has the shards that it begins with, and no others.
    fn begin(&mut self) {
        self.shards = (1..=self.roots).map(|root| (ShardId::new(root), root.to_string())).collect();
        self.spawned.clear();
    }

    fn learn(&mut self, call: &Call, answer: &Answer) {
        if let (Request::Start { .. }, Answer::Accepted { outcome: Outcome::Executed, .. }) = (&call.request, answer) {
            self.begin();
        }
        match (answer, call.request.shard()) {
            (Answer::Granted { lease, .. }, _) => {
                self.leases.insert((lease.owner(), lease.shard(), epoch_text(lease.epoch())));
            }
            (Answer::Accepted { outcome: Outcome::Executed, children }, Some(parent)) => {
                for child in children {
                    let before = self.spawned.entry(parent).or_default();
                    *before += 1;
                    let name = format!("{}.{before}", self.shards[&parent]);
                    self.shards.insert(*child, name);
                }
            }
            _ => {}
        }
    }

    /// The call in the words of a story; none if it names a shard or lease that is not there.
    fn line(&self, call: &Call) -> Option<String> {
        let shard = match call.request.shard() {
            Some(shard) => self.shards.get(&shard)?.as_str(),
            None => "",
        };
        let who = match (call.request.lease(), call.caller) {
            (Some(lease), _) => {
                let known = self.leases.contains(&(lease.owner(), lease.shard(), epoch_text(lease.epoch())));
                known.then(|| format!("w{}#{}", lease.owner().get(), epoch_text(lease.epoch())))?
            }
            (None, Caller::Worker(worker)) => format!("w{}", worker + 1),
            (None, Caller::Operator | Caller::Vandal) => String::new(),
            (None, Caller::Stranger) => return None,
        };
        let op = call.request.op().map(|op| format!(" op {}", op.get())).unwrap_or_default();
        Some(match &call.request {
            Request::Claim => format!("{who} claims run 1"),
            Request::Acquire { .. } => format!("{who} acquires {shard}"),
            Request::Renew { .. } => format!("{who} renews {shard}"),
            Request::Checkpoint { last, .. } => format!("{who} checkpoints {shard} at {}{op}", cursor(*last)),
            Request::Complete { last, .. } => format!("{who} completes {shard} at {}{op}", cursor(*last)),
            Request::Park { reason, .. } => {
                let reason = reason.as_str().replace(' ', "-");
                format!("{who} parks {shard} for {reason} saying \"simulated\"{op}")
            }
            Request::Release { last, why, .. } => {
                let at = last.map(|last| format!(" at {}", cursor(Some(last)))).unwrap_or_default();
                let why = match why {
                    Why::Released => "released".to_string(),
                    Why::Yielded => "yielded".to_string(),
                    Why::Drained => "drained".to_string(),
                    Why::Unreachable(retry_after) => {
                        let wait = retry_after.map(|until| format!(" retry after {until}")).unwrap_or_default();
                        format!("unreachable saying \"simulated\"{wait}")
                    }
                };
                format!("{who} releases {shard}{at} because {why}{op}")
            }
            Request::SplitReplace { plan, .. } => {
                let children: Vec<String> = plan.children().iter().map(range).collect();
                format!("{who} replaces {shard} with {}{op}", children.join(" "))
            }
            Request::SplitResidual { plan, .. } => {
                format!("{who} splits {shard} keeping {} giving {}{op}", range(plan.kept()), range(plan.residual()))
            }
            Request::Unpark { expected, .. } => format!("unpark {shard} expecting fence {}{op}", epoch_text(*expected)),
            Request::Order { epoch, order: OrderRequest::Yield, .. } => {
                format!("ask {shard} at fence {} to yield", epoch_text(*epoch))
            }
            Request::Order { epoch, .. } => format!("ask {shard} at fence {} to keep 50%", epoch_text(*epoch)),
            Request::CompleteRun { .. } => format!("complete run 1{op}"),
            Request::CancelRun { .. } => format!("cancel run 1{op}"),
            Request::Retire { settled_until } => format!("retire runs settled by {settled_until}"),
            Request::CreateRun { .. } | Request::Register { .. } | Request::Start { .. } => return None,
        })
    }
}

fn epoch_text(epoch: ShardEpoch) -> String {
    format!("{}/{}", epoch.incarnation.get(), epoch.fence)
}

fn key(number: u16) -> String {
    let [high, low] = key_bytes(number);
    format!("\\x{high:02x}\\x{low:02x}")
}

fn cursor(last: Option<u16>) -> String {
    last.map_or_else(|| "none".to_string(), |last| format!("{}~t\\x{:02x}", key(last), last as u8))
}

fn range(spec: &ShardSpec) -> String {
    let bytes = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    format!("[{},{}){{{}}}", bytes(spec.start()), bytes(spec.end()), bytes(spec.metadata()))
}
