//! Whether some order of calls, one at a time, explains what callers were answered and what is left.
//!
//! A call takes effect at one moment between its beginning and its end; one that is made of several steps by contract takes
//! effect at one moment for each. Every order of steps that respects this is played on the in-memory coordinator, from the same
//! start, until one gives the same answers and leaves the same records. Calls about sessions have no form in memory: schedules
//! with one of those are judged by coordinators on etcd, one for each caller, that were started anew.
//!
//! Which shard a claim is granted is the coordinator's choice, so the reference is told which it was.

use std::collections::HashMap;

use tessera_contracts::ShardId;
use tessera_coordination::backend::{BlockOn, NeverWaits};
use tessera_coordination_etcd::sim_kv::block_on;

use crate::calls::Call;
use crate::contents::Contents;
use crate::player::{Answer, Leases, StepsTold};
use crate::starts::{Desk, MadeStore, Start};

/// A call as its caller saw it.
#[derive(Clone, Debug)]
pub struct Span {
    /// Who called.
    pub caller: usize,
    pub call: Call,
    pub began: u64,
    /// `u64::MAX` if its caller died before it was answered.
    pub ended: u64,
    /// `None` if it was not answered: then it has happened, or a part of it, or nothing.
    pub answer: Option<Answer>,
}

/// Calls and their steps, in turn.
type Order = Vec<(usize, usize)>;

/// What came of an order: an answer for each call, and what was left.
#[derive(Clone)]
struct Outcome {
    answers: Vec<Answer>,
    left: Vec<String>,
}

/// Judges schedules of the same operations from the same start.
pub struct Judge<'s> {
    start: &'s Start,
    store: &'s MadeStore,
    known: HashMap<Played, Outcome>,
}

/// An order of calls, each of them with its caller and with what a claim was granted.
type Played = (Order, Vec<(usize, Call, Option<ShardId>)>);

/// What was called and answered, a line each.
fn told(history: &[Span]) -> String {
    let answers = history.iter().map(|span| match &span.answer {
        Some(answer) => format!("    {:?} -> {}", span.call, answer.text),
        None => format!("    {:?} -> (its caller died)", span.call),
    });
    answers.collect::<Vec<_>>().join("\n")
}

impl<'s> Judge<'s> {
    pub fn new(start: &'s Start, store: &'s MadeStore) -> Self {
        Self { start, store, known: HashMap::new() }
    }

    /// Looks for an order that explains it. `shards` are those that there are now.
    ///
    /// # Errors
    /// If none does: what each of them would have answered and left instead.
    pub fn explain(&mut self, history: &[Span], shards: Vec<ShardId>, left: &[String]) -> Result<(), String> {
        let in_memory = self.start.has_memory_form() && history.iter().all(|span| span.call.has_memory_form());
        let mut differences = Vec::new();
        for order in orders(history, in_memory) {
            for claimed in claims(history, &shards) {
                let calls = history.iter().zip(&claimed).map(|(span, claimed)| (span.caller, span.call, *claimed));
                let played = (order.clone(), calls.collect());
                let (start, store) = (self.start, self.store);
                let outcome = self.known.entry(played).or_insert_with(|| {
                    if in_memory {
                        play_in_memory(start, history, &order, &claimed)
                    } else {
                        play_started_anew(store, history, &order, &claimed)
                    }
                });
                match difference(history, left, outcome) {
                    None => return Ok(()),
                    Some(difference) => differences.push(format!("  order {order:?}: {difference}")),
                }
            }
        }
        differences.dedup();
        Err(format!("Linearizable: no order explains\n{}\n{}", told(history), differences.join("\n")))
    }
}

/// What claims were granted, as told; what a claim was granted whose caller died, any of the shards may tell.
fn claims(history: &[Span], shards: &[ShardId]) -> Vec<Vec<Option<ShardId>>> {
    let mut found = vec![Vec::new()];
    for span in history {
        let possible: Vec<Option<ShardId>> = match (&span.answer, span.call) {
            (Some(answer), _) => vec![answer.claimed],
            (None, Call::Claim { .. }) => [None].into_iter().chain(shards.iter().copied().map(Some)).collect(),
            (None, _) => vec![None],
        };
        found = found
            .iter()
            .flat_map(|before| possible.iter().map(|claimed| [&before[..], &[*claimed]].concat()))
            .collect();
    }
    found
}

/// Where an outcome is another than what was seen.
fn difference(history: &[Span], left: &[String], outcome: &Outcome) -> Option<String> {
    for (span, expected) in history.iter().zip(&outcome.answers) {
        if let Some(answer) = &span.answer
            && answer.text != expected.text
        {
            return Some(format!("{:?} would be answered {}", span.call, expected.text));
        }
    }
    let missing = outcome.left.iter().find(|line| !left.contains(line));
    let surplus = left.iter().find(|line| !outcome.left.contains(line));
    match (missing, surplus) {
        (None, None) => None,
        (missing, surplus) => Some(format!(
            "would leave\n      {}\n    and not\n      {}",
            missing.map_or("nothing else", String::as_str),
            surplus.map_or("nothing else", String::as_str)
        )),
    }
}

/// Every order in which no call begins after one that began when it had ended.
fn orders(history: &[Span], in_memory: bool) -> Vec<Order> {
    let steps: Vec<usize> = history.iter().map(|span| span.call.steps(in_memory)).collect();
    let mut found = Vec::new();
    extend(history, &steps, &mut Vec::new(), &mut found);
    found
}

fn extend(history: &[Span], steps: &[usize], order: &mut Order, found: &mut Vec<Order>) {
    let left = |call: usize| (0..steps[call]).filter(|step| !order.contains(&(call, *step))).collect::<Vec<_>>();
    // Steps of a call that was not answered may never happen.
    if (0..history.len()).all(|call| left(call).is_empty() || history[call].answer.is_none()) {
        found.push(order.clone());
    }
    let mut next = Order::new();
    for call in 0..history.len() {
        let waits =
            (0..history.len()).any(|other| history[other].ended < history[call].began && !left(other).is_empty());
        if !waits {
            let possible = if history[call].call.steps_are_unordered() { usize::MAX } else { 1 };
            next.extend(left(call).into_iter().take(possible).map(|step| (call, step)));
        }
    }
    for step in next {
        order.push(step);
        extend(history, steps, order, found);
        order.pop();
    }
}

fn play_in_memory(start: &Start, history: &[Span], order: &Order, claimed: &[Option<ShardId>]) -> Outcome {
    let mut memory = start.memory();
    // Each caller goes by the leases that it was granted itself.
    let begun_with = memory.leases.clone();
    let mut leases: HashMap<usize, Leases> = HashMap::new();
    let mut told = vec![StepsTold::default(); history.len()];
    let mut ended = vec![false; history.len()];
    for (call, step) in order.iter().copied() {
        if ended[call] {
            continue;
        }
        memory.caller = history[call].caller;
        memory.leases = leases.remove(&memory.caller).unwrap_or_else(|| begun_with.clone());
        let played = memory.play_step(history[call].call, step, &mut told[call], claimed[call]);
        ended[call] = NeverWaits.block_on(played);
        leases.insert(memory.caller, memory.leases.clone());
    }
    let shards = NeverWaits.block_on(memory.shards());
    let left = NeverWaits.block_on(memory.state(&shards));
    Outcome { answers: told.into_iter().map(StepsTold::answer).collect(), left: sorted(left) }
}

fn play_started_anew(store: &MadeStore, history: &[Span], order: &Order, claimed: &[Option<ShardId>]) -> Outcome {
    let kv = Start::cold(store).kv;
    let mut desks: HashMap<usize, Desk> = HashMap::new();
    let mut told = vec![StepsTold::default(); history.len()];
    let mut ended = vec![false; history.len()];
    for (call, step) in order.iter().copied() {
        if ended[call] {
            continue;
        }
        let caller = history[call].caller;
        let desk = desks.entry(caller).or_insert_with(|| Desk::new(&kv, store.leases.clone()));
        desk.side.caller = caller;
        match (history[call].call, step) {
            // A coordinator that was started anew has no session to end, so the store ends it.
            (Call::EndSession { worker }, _) => {
                block_on(desk.side.play(Call::ExpireSession { worker }));
                told[call] = StepsTold::nothing();
            }
            (Call::Claim { worker, .. }, 0) => drop(block_on(desk.side.play(Call::Join { worker }))),
            (Call::Claim { .. }, 1) if claimed[call].is_some() => {}
            (vain @ Call::Claim { .. }, 1) => {
                let mut first = StepsTold::default();
                block_on(desk.side.play_step(vain, 0, &mut first, None));
                if first.is_grant() {
                    (told[call], ended[call]) = (first, true);
                }
            }
            (other, step) => ended[call] = block_on(desk.side.play_step(other, step, &mut told[call], claimed[call])),
        }
    }
    Outcome {
        answers: told.into_iter().map(StepsTold::answer).collect(),
        left: Contents::read(&kv).expect("readable").visible(),
    }
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}
