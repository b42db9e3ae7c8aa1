//! The steps of a world, in the terms of `specs/coordination/Trace.tla`, so that TLC can say whether each step of the code
//! is a step of the model.
//!
//! Beside every step stand its answer and the visible part of run and records after it. The result is a module
//! that extends `Trace.tla`: bounds, clocks and steps as definitions, nothing else.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tessera_contracts::ids::{OpId, ShardId};
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::status::RunStatus;

use super::call::{Answer, Call, Caller, Outcome, Request, edge_number, key_number};
use super::config::Config;
use super::refusal::Refusal;

/// One thing that happened.
#[derive(Debug)]
#[expect(missing_docs, reason = "the variants say what the fields are")]
pub enum Step {
    /// So many ticks passed.
    Time(u64),
    /// A request with an op id is under way. Claims and renewals have none and are told by their delivery alone.
    Sent(Call),
    /// A request arrived, and its sender heard the answer or did not.
    Delivered { call: Call, answer: Answer, heard: bool },
    /// A worker offered a result.
    Wrote { worker: usize, accepted: bool },
}

#[derive(Clone, Copy, Debug, Default)]
struct Belief {
    holds: bool,
    waits_for: Option<OpId>,
}

/// Writes the steps of one world down.
#[derive(Debug)]
pub struct Recorder {
    config: Config,
    offsets: Vec<i64>,
    /// Shards in the order of their creation: the model's ids.
    shards: Vec<ShardId>,
    /// Operations in the order they were sent: the model's op ids.
    ops: BTreeMap<OpId, usize>,
    /// Each worker's beliefs, as far as the steps so far tell.
    beliefs: Vec<Belief>,
    steps: Vec<String>,
}

impl Recorder {
    /// Nothing has happened yet.
    pub fn new(config: &Config) -> Self {
        Self {
            offsets: config.clock_offsets(),
            shards: vec![ShardId::new(1)],
            ops: BTreeMap::new(),
            beliefs: vec![Belief::default(); config.workers as usize],
            steps: Vec::new(),
            config: config.clone(),
        }
    }

    /// How many steps were written down.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether nothing was.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Writes down a step after which run and records are these.
    pub fn note(&mut self, step: Step, now: u64, run: RunStatus, records: &BTreeMap<ShardId, ShardRecord>) {
        match step {
            Step::Time(ticks) => self.push(format!("do |-> \"time\", ticks |-> {ticks}")),
            Step::Sent(call) => self.sent(&call),
            Step::Wrote { worker, accepted } => {
                self.beliefs[worker].holds &= accepted;
                let worker = worker_name(worker);
                self.push(format!("do |-> \"write\", worker |-> {worker}, accepted |-> {}", truth(accepted)));
            }
            Step::Delivered { call, answer, heard } => {
                let told = self.delivered(&call, &answer, heard);
                let seen = self.seen(now, records);
                self.push(format!("{told}, run |-> \"{}\", seen |-> {seen}", run_name(run)));
            }
        }
    }

    /// Workers that hold nothing any more, for any reason, have forgotten.
    pub fn forget_what(&mut self, holds_nothing: impl Fn(usize) -> bool) {
        for worker in 0..self.beliefs.len() {
            if self.beliefs[worker].holds && holds_nothing(worker) {
                self.beliefs[worker] = Belief::default();
                self.push(format!("do |-> \"forget\", worker |-> {}", worker_name(worker)));
            }
        }
    }

    fn push(&mut self, fields: String) {
        self.steps.push(format!("[{fields}]"));
    }

    fn place(&self, shard: ShardId) -> usize {
        self.shards.iter().position(|known| *known == shard).map_or(0, |at| at + 1)
    }

    fn sent(&mut self, call: &Call) {
        let (Some(op), Some(shard)) = (call.request.op(), call.request.shard()) else { return };
        let number = self.ops.len() + 1;
        self.ops.insert(op, number);
        let shard = self.place(shard);
        match (call.caller, kind_and_argument(&call.request)) {
            (Caller::Worker(worker), Some((kind, argument))) => {
                self.beliefs[worker].waits_for = Some(op);
                let worker = worker_name(worker);
                // A worker without progress names no key; the model has it name its first one.
                let argument = argument.map_or(-1, i32::from);
                self.push(format!(
                    "do |-> \"send\", op |-> {number}, worker |-> {worker}, kind |-> \"{kind}\", argument |-> {argument}"
                ));
            }
            _ => self.push(format!("do |-> \"unpark\", op |-> {number}, shard |-> {shard}")),
        }
    }

    fn delivered(&mut self, call: &Call, answer: &Answer, heard: bool) -> String {
        let fate = fate(answer);
        let mut made = Vec::new();
        if let Answer::Accepted { outcome, children } = answer {
            if *outcome == Outcome::Executed {
                self.shards.extend(children);
            }
            made.extend(children.iter().map(|child| self.place(*child)));
        }
        let worker = match call.caller {
            Caller::Worker(worker) => Some(worker),
            Caller::Operator | Caller::Vandal | Caller::Stranger => None,
        };
        let name = worker.map(worker_name).unwrap_or_default();
        match (&call.request, answer) {
            (Request::Claim, Answer::Granted { lease, lo, hi, next, .. }) => {
                if let Some(worker) = worker.filter(|_| heard) {
                    self.beliefs[worker] = Belief { holds: true, waits_for: None };
                }
                let (shard, fence) = (self.place(lease.shard()), lease.fence());
                let told = format!("<<{fence}, {lo}, {hi}, {next}>>");
                let heard = truth(heard);
                format!("do |-> \"acquire\", worker |-> {name}, shard |-> {shard}, told |-> {told}, heard |-> {heard}")
            }
            (Request::Claim, Answer::NoShard) => format!("do |-> \"none\", worker |-> {name}"),
            (Request::Claim, _) => format!("do |-> \"closed\", worker |-> {name}"),
            (Request::Renew { .. }, _) => format!("do |-> \"renew\", worker |-> {name}, fate |-> \"{fate}\""),
            (Request::CompleteRun { .. }, _) => format!("do |-> \"complete run\", fate |-> \"{fate}\""),
            (Request::CancelRun { .. }, _) => format!("do |-> \"cancel run\", fate |-> \"{fate}\""),
            (request, _) => {
                let is_accepted = matches!(answer, Answer::Accepted { .. });
                let goes_on =
                    is_accepted && matches!(request, Request::Checkpoint { .. } | Request::SplitResidual { .. });
                if let Some(worker) = worker.filter(|worker| heard && self.beliefs[*worker].waits_for == request.op()) {
                    self.beliefs[worker] = Belief { holds: goes_on, waits_for: None };
                }
                let op = request.op().and_then(|op| self.ops.get(&op)).copied().unwrap_or_default();
                let (heard, made) = (truth(heard), sequence(&made));
                format!("do |-> \"deliver\", op |-> {op}, fate |-> \"{fate}\", heard |-> {heard}, made |-> {made}")
            }
        }
    }

    /// All records, in the order of creation: status, fence, owner, ticks left, first key, end, first key to do, the operations
    /// that are remembered, parent.
    fn seen(&self, now: u64, records: &BTreeMap<ShardId, ShardRecord>) -> String {
        let told: Vec<String> =
            self.shards.iter().filter_map(|shard| records.get(shard)).map(|record| self.record(now, record)).collect();
        format!("<<{}>>", told.join(", "))
    }

    fn record(&self, now: u64, record: &ShardRecord) -> String {
        let head = record.state.head;
        let status = match head.status {
            ShardStatus::Active => "Active",
            ShardStatus::Done => "Done",
            ShardStatus::Split => "Split",
            ShardStatus::Parked => "Parked",
        };
        // The model's clocks are ahead by 0 .. SkewMax; ours are off either way. Its time is ours, less the largest offset.
        let model_now = now as i64 - self.config.skew as i64;
        let (owner, left) = match head.lease {
            Some(holder) => {
                let left = holder.deadline.get() as i64 - model_now;
                let owner = worker_name(holder.owner.get() as usize - 1);
                (owner, left.max(-(self.config.skew_allowance as i64)))
            }
            None => ("\"none\"".to_string(), 0),
        };
        let (lo, hi) = (edge_number(record.spec.start()), edge_number(record.spec.end()));
        let cursor = record.cursor.last_key().map_or(lo, |key| key_number(key) + 1);
        let fence = head.fence.get();
        let log: Vec<usize> =
            record.state.op_log.iter().map(|entry| self.ops.get(&entry.op_id).map_or(0, |op| *op)).collect();
        let log = sequence(&log);
        let parent = record.state.parent.map_or(0, |parent| self.place(parent));
        format!("<<\"{status}\", {fence}, {owner}, {left}, {lo}, {hi}, {cursor}, {log}, {parent}>>")
    }

    /// The whole trace as a TLA+ module of this name.
    pub fn module(&self, name: &str) -> String {
        let Config { seed, keys, lease, skew, skew_allowance, .. } = self.config;
        let workers: Vec<String> = (0..self.offsets.len()).map(worker_name).collect();
        let clocks: Vec<String> = self
            .offsets
            .iter()
            .enumerate()
            .map(|(worker, offset)| format!("{} :> {}", worker_name(worker), offset + skew as i64))
            .collect();
        let mut text =
            format!("---- MODULE {name} ----\n\\* A world of tessera-sim: seed {seed}, {} steps.\n", self.len());
        let _ = writeln!(text, "EXTENDS Trace, TLC\n");
        let _ = writeln!(text, "TheWorkers == {{{}}}", workers.join(", "));
        let _ = writeln!(text, "TheClocks == {}", clocks.join(" @@ "));
        let numbers = [
            ("KeyCount", u64::from(keys)),
            ("ShardMax", self.shards.len() as u64),
            ("OpMax", self.ops.len().max(1) as u64),
            ("LeaseTicks", lease),
            ("SkewMax", 2 * skew),
            ("SkewTolerance", skew_allowance),
        ];
        for (constant, value) in numbers {
            let _ = writeln!(text, "The{constant} == {value}");
        }
        let _ = writeln!(text, "TheSteps == <<\n{}\n>>\n====", self.steps.join(",\n"));
        text
    }
}

fn worker_name(worker: usize) -> String {
    format!("\"w{}\"", worker + 1)
}

fn sequence(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    format!("<<{}>>", numbers.join(", "))
}

const fn run_name(run: RunStatus) -> &'static str {
    match run {
        RunStatus::Active => "Active",
        RunStatus::Done => "Done",
        RunStatus::Cancelled => "Cancelled",
        RunStatus::Initializing | RunStatus::Failed => "not modelled",
    }
}

/// The answer, in the model's words.
const fn fate(answer: &Answer) -> &'static str {
    match answer {
        Answer::Accepted { outcome: Outcome::Executed, .. } => "executed",
        Answer::Accepted { outcome: Outcome::Replayed, .. } => "replayed",
        Answer::Accepted { outcome: Outcome::Superseded, .. } => "superseded",
        Answer::Renewed(renewed) if renewed.orders.cancelled.is_some() => "told to stop",
        Answer::Renewed(_) => "executed",
        Answer::Refused(Refusal::RunSettled) => "refused by the run",
        Answer::Refused(Refusal::Lease(_)) => "refused by the lease",
        Answer::Refused(_) | Answer::Granted { .. } | Answer::NoShard | Answer::Throttled | Answer::Failed => "refused",
    }
}

const fn truth(value: bool) -> &'static str {
    if value { "TRUE" } else { "FALSE" }
}

/// The model's name for it, and its key; `None` for a request that begins where the sender's shard begins.
fn kind_and_argument(request: &Request) -> Option<(&'static str, Option<u16>)> {
    Some(match request {
        Request::Checkpoint { last, .. } => ("checkpoint", last.map(|last| last + 1)),
        Request::Complete { last, .. } => ("complete", last.map(|last| last + 1)),
        Request::Release { last, .. } => ("release", last.map(|last| last + 1)),
        Request::Park { .. } => ("park", Some(0)),
        Request::SplitReplace { plan, .. } => {
            ("split_replace", plan.children().first().map(|child| edge_number(child.end())))
        }
        Request::SplitResidual { plan, .. } => ("split_residual", Some(edge_number(plan.kept().end()))),
        _ => return None,
    })
}
