//! Whether a recorded history of calls could have happened one call at a time.
//!
//! Calls have a beginning and an end, and overlap. A history is *linearizable* if each call can be given a moment between
//! its two ends so that, taken in that order, every answer is what a plain register would have answered. The search is
//! Wing and Gong's with Lowe's memory of what was tried: of the calls that nothing else has to precede, try each that
//! the register allows, and never the same set of calls with the same register twice. A call whose answer was lost may
//! have happened or not: both are tried.

// Each test program uses its share of this.
#![allow(dead_code, unreachable_pub)]

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// A register that answers calls one at a time.
pub trait Register: Clone + Eq + Hash + Debug {
    /// What was asked and what was answered.
    type Call: Debug;

    /// The register after the call, if it could have answered so.
    fn after(&self, call: &Self::Call) -> Option<Self>;
}

/// A call as its caller saw it.
#[derive(Clone, Debug)]
pub struct Record<C> {
    /// When it was begun, on one clock for all callers.
    pub began: u64,
    /// When it was answered; `u64::MAX` if it never was.
    pub ended: u64,
    pub call: C,
    /// Whether it surely happened. Otherwise it may have.
    pub certain: bool,
}

/// The calls up to the first that no order explains.
pub fn check<R: Register>(start: &R, history: &[Record<R::Call>]) -> Result<(), String> {
    let mut records: Vec<&Record<R::Call>> = history.iter().collect();
    records.sort_by_key(|record| (record.began, record.ended));
    let certain = records.iter().filter(|record| record.certain).count();
    let mut tried: HashSet<(Vec<u64>, R)> = HashSet::new();
    let mut open = vec![(vec![0u64; records.len().div_ceil(64)], 0, start.clone())];
    let mut furthest = (0, start.clone(), Vec::new());
    while let Some((done, certain_done, register)) = open.pop() {
        if certain_done == certain {
            return Ok(());
        }
        if !tried.insert((done.clone(), register.clone())) {
            continue;
        }
        let is_done = |index: usize| done[index / 64] & 1 << (index % 64) != 0;
        // Whatever began after some certain call had ended must wait for that call.
        let waiting = || records.iter().enumerate().filter(|(index, _)| !is_done(*index));
        let until = waiting().filter(|(_, r)| r.certain).map(|(_, r)| r.ended).min().unwrap_or(u64::MAX);
        let mut stuck = Vec::new();
        for (index, record) in waiting().take_while(|(_, record)| record.began <= until) {
            let Some(after) = register.after(&record.call) else {
                stuck.push(format!("{record:?}"));
                continue;
            };
            let mut with = done.clone();
            with[index / 64] |= 1 << (index % 64);
            open.push((with, certain_done + usize::from(record.certain), after));
        }
        if certain_done >= furthest.0 {
            furthest = (certain_done, register, stuck);
        }
    }
    let (explained, register, stuck) = furthest;
    Err(format!(
        "Linearizable: {explained} of {certain} calls can be explained; at {register:?} none of these could follow:\n  {}",
        stuck.join("\n  ")
    ))
}

/// A shard as a register: who may write, how far the work is, how far it reaches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    pub fence: u64,
    pub last_key: Vec<u8>,
    pub end: Vec<u8>,
    pub done: bool,
}

/// A call on a shard, with its answer.
#[derive(Clone, Debug)]
pub enum ShardCall {
    /// Granted with this fence; the shard was at this key and reached to this end.
    Acquire { fence: u64, last_key: Vec<u8>, end: Vec<u8> },
    /// Accepted from the holder of this fence.
    Checkpoint { fence: u64, last_key: Vec<u8> },
    /// The holder gave the rest behind `end` away.
    Narrow { fence: u64, end: Vec<u8> },
    /// Given back.
    Release { fence: u64 },
    /// Finished.
    Complete { fence: u64, last_key: Vec<u8> },
    /// Anyone's look at it.
    Read(Shard),
}

impl Register for Shard {
    type Call = ShardCall;

    fn after(&self, call: &ShardCall) -> Option<Self> {
        let held = |fence: &u64| *fence == self.fence && !self.done;
        match call {
            // A grant whose answer was lost raised the fence unseen, so it may be higher than the last one seen by more.
            ShardCall::Acquire { fence, last_key, end } => {
                let free = *fence > self.fence && !self.done && *last_key == self.last_key && *end == self.end;
                free.then(|| Self { fence: *fence, ..self.clone() })
            }
            ShardCall::Checkpoint { fence, last_key } => {
                let onward = held(fence) && *last_key >= self.last_key;
                onward.then(|| Self { last_key: last_key.clone(), ..self.clone() })
            }
            ShardCall::Narrow { fence, end } => {
                (held(fence) && *end < self.end).then(|| Self { end: end.clone(), ..self.clone() })
            }
            ShardCall::Release { fence } => held(fence).then(|| self.clone()),
            ShardCall::Complete { fence, last_key } => {
                let onward = held(fence) && *last_key >= self.last_key;
                onward.then(|| Self { last_key: last_key.clone(), done: true, ..self.clone() })
            }
            ShardCall::Read(seen) => {
                let same = Self { fence: self.fence, ..seen.clone() } == *self;
                (same && seen.fence >= self.fence).then(|| seen.clone())
            }
        }
    }
}

/// A run as a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Run {
    Active,
    Completed,
}

/// A call on a run, with its answer.
#[derive(Clone, Copy, Debug)]
pub enum RunCall {
    /// It was, or had been, completed.
    Complete,
    /// It could not be completed, since there was work left.
    Refused,
    /// Anyone's look at it.
    Read(Run),
}

impl Register for Run {
    type Call = RunCall;

    fn after(&self, call: &RunCall) -> Option<Self> {
        match call {
            RunCall::Complete => Some(Self::Completed),
            RunCall::Refused => (*self == Self::Active).then_some(*self),
            RunCall::Read(seen) => (seen == self).then_some(*self),
        }
    }
}
