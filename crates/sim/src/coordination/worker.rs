//! A worker as a state machine with its own clock: claims, writes results, checkpoints, renews, answers orders; and, when
//! the world is hostile to it, retries requests without an answer, forgets, or goes on with a lease it has long lost.

use std::ops::Range;

use tessera_contracts::ids::{LogicalTime, OpId};
use tessera_contracts::split::{plan_split_replace, plan_split_residual};
use tessera_contracts::{ShardSpec, ShardSpecRef};
use tessera_coordination::Lease;
use tessera_coordination::record::orders::Orders;
use tessera_coordination::record::status::ParkReason;

use super::call::{Answer, Call, Caller, Outcome, Request, Why, key_bytes};
use super::config::{Config, Rates};
use super::dice::Dice;
use super::refusal::Refusal;

/// How often a request is repeated before the worker gives up on its shard.
const ATTEMPTS_MAX: u32 = 6;
/// A worker that was told nothing for so long repeats its request.
pub const PATIENCE: u64 = 25;

/// A worker.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Its number.
    pub number: usize,
    /// How far its clock is from true time.
    pub clock_offset: i64,
    /// It does nothing before this time.
    pub paused_until: u64,
    /// The lease it believes to hold.
    pub held: Option<Held>,
    /// The request it waits for.
    pub waiting: Option<Waiting>,
    /// It checkpoints after about so many keys.
    pub checkpoint_pace: u64,
    /// It does not look at its clock before it has asked for something: a zombie, if its lease is gone.
    pub oblivious: bool,
    /// It stops for good after giving back its shard, and starts anew.
    pub draining: bool,
    /// At how many keys it cuts a shard that it replaces, at most.
    cuts_max: u64,
    /// Keys that it cannot reach.
    out_of_reach: Vec<Range<u16>>,
    /// A refused split ends its hold, as it does in the model; otherwise the work goes on unsplit.
    splits_or_forgets: bool,
}

/// The shard a worker believes to hold.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its lease, as last heard.
    pub lease: Lease,
    /// First key of the shard.
    pub lo: u16,
    /// First key beyond the shard.
    pub hi: u16,
    /// The next key to process.
    pub next: u16,
    /// Keys below this are checkpointed, as far as it knows.
    pub told: u16,
    /// Its orders.
    pub orders: Orders,
}

/// A request under way.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The request; repeated as it is.
    pub request: Request,
    /// Tells its answers from those to other requests.
    pub ticket: u64,
    /// When it was last sent.
    pub since: u64,
    /// How often it was sent.
    pub attempts: u32,
}

/// The next deed of a worker.
#[derive(Debug)]
pub enum Act {
    /// Nothing at the moment.
    Rest,
    /// Records the result of its next key.
    Write,
    /// Asks.
    Ask(Request),
    /// Asks again.
    AskAgain,
}

impl Worker {
    /// A worker that holds nothing yet.
    pub fn new(number: usize, clock_offset: i64, config: &Config, dice: &mut Dice) -> Self {
        Self {
            number,
            clock_offset,
            paused_until: 0,
            held: None,
            waiting: None,
            checkpoint_pace: dice.between(1, 6),
            oblivious: false,
            draining: false,
            cuts_max: if config.as_modelled { 1 } else { 2 },
            out_of_reach: config.out_of_reach(number),
            splits_or_forgets: config.as_modelled,
        }
    }

    /// Time on its own clock.
    pub fn clock(&self, now: u64) -> LogicalTime {
        LogicalTime::new(now.saturating_add_signed(self.clock_offset))
    }

    /// The call that carries a request.
    pub fn call(&self, now: u64, request: Request) -> Call {
        Call { at: self.clock(now), caller: Caller::Worker(self.number), request }
    }

    /// Starts anew, knowing nothing.
    pub fn forget(&mut self) {
        self.held = None;
        self.waiting = None;
        self.draining = false;
        self.oblivious = false;
    }

    /// Decides what to do at true time `now`.
    pub fn act(&mut self, now: u64, lease_length: u64, rates: &Rates, dice: &mut Dice, op: &mut u64) -> Act {
        if now < self.paused_until {
            return Act::Rest;
        }
        if let Some(waiting) = &self.waiting {
            if now < waiting.since + PATIENCE {
                return Act::Rest;
            }
            if waiting.attempts >= ATTEMPTS_MAX || matches!(waiting.request, Request::Claim) {
                // A claim without an answer may have left a lease that no worker knows of; it ends by itself.
                self.forget();
                return Act::Rest;
            }
            return Act::AskAgain;
        }
        let clock = self.clock(now);
        let Some(held) = &self.held else { return Act::Ask(Request::Claim) };
        let lease = held.lease;
        let mut new_op = || {
            *op += 1;
            OpId::new(*op)
        };
        let done = (held.next > held.lo).then(|| held.next - 1);
        if held.orders.cancelled.is_some() {
            self.forget();
            return Act::Rest;
        }
        if self.draining {
            return Act::Ask(Request::Release { lease, last: done, why: Why::Drained, op: new_op() });
        }
        if held.orders.standing.yield_requested {
            return Act::Ask(Request::Release { lease, last: done, why: Why::Yielded, op: new_op() });
        }
        if self.out_of_reach.iter().any(|range| range.contains(&held.lo)) {
            let why = Why::unreachable(clock, lease_length, dice);
            return Act::Ask(Request::Release { lease, last: done, why, op: new_op() });
        }
        let room = held.hi - held.next.max(held.lo + 1).min(held.hi);
        if held.orders.standing.split_requested.is_some() && room > 0 {
            return Act::Ask(Self::residual(held, dice, new_op()));
        }
        if lease.deadline().get() < clock.get() + lease_length / 2 && !self.oblivious {
            return Act::Ask(Request::Renew { lease });
        }
        if dice.happens(rates.park) {
            let reason = ParkReason::ALL[dice.below(ParkReason::ALL.len() as u64) as usize];
            return Act::Ask(Request::Park { lease, reason, op: new_op() });
        }
        if dice.happens(rates.release) {
            return Act::Ask(Request::Release { lease, last: done, why: Why::Released, op: new_op() });
        }
        if dice.happens(rates.split_residual) && room > 0 {
            return Act::Ask(Self::residual(held, dice, new_op()));
        }
        if dice.happens(rates.split_replace) && held.hi - held.lo > 2 {
            return Act::Ask(Self::replacement(held, self.cuts_max, dice, new_op()));
        }
        if held.next < held.hi {
            if held.next > held.told && dice.below(self.checkpoint_pace) == 0 {
                self.oblivious = false;
                return Act::Ask(Request::Checkpoint { lease, last: done, op: new_op() });
            }
            return Act::Write;
        }
        self.oblivious = false;
        Act::Ask(Request::Complete { lease, last: done, op: new_op() })
    }

    fn spec(held: &Held) -> ShardSpec {
        ShardSpec::new(&key_bytes(held.lo), &key_bytes(held.hi), b"simulated").expect("a held range has keys")
    }

    fn residual(held: &Held, dice: &mut Dice, op: OpId) -> Request {
        let least = held.next.max(held.lo + 1);
        let at = dice.between(u64::from(least), u64::from(held.hi) - 1) as u16;
        let spec = Self::spec(held);
        let done = (held.next > held.lo).then(|| key_bytes(held.next - 1));
        let done = done.as_ref().map(|key| key.as_slice());
        let plan = plan_split_residual(spec.view(), done, &key_bytes(at)).expect("the point is ahead and inside");
        Request::SplitResidual { lease: held.lease, plan, op }
    }

    fn replacement(held: &Held, cuts_max: u64, dice: &mut Dice, op: OpId) -> Request {
        let mut points: Vec<u16> =
            (0..cuts_max).map(|_| dice.between(u64::from(held.lo) + 1, u64::from(held.hi) - 1) as u16).collect();
        points.sort_unstable();
        points.dedup();
        let points: Vec<[u8; 2]> = points.into_iter().map(key_bytes).collect();
        let points: Vec<&[u8]> = points.iter().map(|point| point.as_slice()).collect();
        let spec = Self::spec(held);
        let parent: ShardSpecRef<'_> = spec.view();
        let plan = plan_split_replace(parent, &points).expect("the points rise and lie inside");
        Request::SplitReplace { lease: held.lease, plan, op }
    }

    /// Applies an answer; answers to anything but the request it waits for are ignored.
    pub fn hear(&mut self, ticket: u64, answer: &Answer) {
        let Some(waiting) = self.waiting.take_if(|waiting| waiting.ticket == ticket) else { return };
        match answer {
            Answer::Failed => {
                // It may have happened: ask again, in the same words, when patience ends.
                self.waiting = Some(waiting);
            }
            Answer::Granted { lease, lo, hi, next, .. } => {
                let held =
                    Held { lease: *lease, lo: *lo, hi: *hi, next: *next, told: *next, orders: Orders::default() };
                self.held = Some(held);
            }
            Answer::NoShard | Answer::Throttled => self.draining = false,
            Answer::Renewed(renewed) => {
                if let Some(held) = &mut self.held {
                    held.lease = held.lease.extended_to(renewed.new_deadline);
                    held.orders = renewed.orders;
                }
            }
            Answer::Accepted { outcome, .. } => self.accepted(&waiting.request, *outcome),
            Answer::Refused(
                Refusal::Lease(_) | Refusal::RunSettled | Refusal::OtherIncarnation | Refusal::NoSuchShard,
            ) => self.forget(),
            Answer::Refused(_) => {
                // A split that does not fit, say. The lease still stands; orders for it are dropped.
                if let Some(held) = &mut self.held {
                    held.orders.standing.split_requested = None;
                }
                let split = matches!(waiting.request, Request::SplitResidual { .. } | Request::SplitReplace { .. });
                if !split || self.splits_or_forgets {
                    self.forget();
                }
            }
        }
    }

    fn accepted(&mut self, request: &Request, outcome: Outcome) {
        match request {
            Request::Checkpoint { last, .. } => {
                if let (Some(held), Some(last)) = (&mut self.held, last) {
                    held.told = last + 1;
                }
            }
            Request::SplitResidual { plan, .. } if outcome != Outcome::Superseded => {
                if let Some(held) = &mut self.held {
                    held.hi = super::call::edge_number(plan.kept().end());
                    held.orders.standing.split_requested = None;
                }
            }
            _ => self.forget(),
        }
    }
}
