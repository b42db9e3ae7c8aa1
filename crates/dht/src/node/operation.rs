//! Operations: a lookup, and for writes what follows it.
//!
//! An operation is a slot that is used again and again while there is something to do, and given back when there is not; a
//! generation number keeps late replies to those before it out.

use alloc::boxed::Box;
use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_stdx::TimerHandle;

use super::LaneNode;
use super::ask::{Purpose, Timer};
use super::command::{Answer, Asked, Budget, CommandId, Outcome, Privacy, Written};
use super::outbox::Outbox;
use super::publish::Spread;
use crate::contact::Contact;
use crate::identity::Crypto;
use crate::lookup::{Ask, Candidate, FRONTIER_MAX, Finish, Goal, Lookup, LookupConfig, Standing};
use crate::rng::LaneRng;
use crate::routing::size_of_density;
use crate::seal::cookie::Scope;
use crate::time::Now;
use crate::wire::PROVIDER_PARTS_MAX;
use crate::wire::codec::Writer;
use crate::wire::message::{Message, Token};

/// What an operation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Idle,
    FindNode,
    Get {
        mutable: bool,
    },
    Put,
    FindProviders,
    /// Find our own neighbours: the end of it is the end of joining.
    Join,
    /// Refresh a bucket.
    Upkeep,
    /// Announce ids of one region.
    Spread,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Looking for the region only, under a false target.
    Blind,
    Walking,
    Writing,
}

/// A node that is written to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder {
    pub(super) id: NodeId,
    pub(super) contact: Contact,
    pub(super) token: Token,
    pub(super) acknowledged: bool,
    /// It is written to, but what it says makes no quorum: nearer ones have yet to answer.
    pub(super) stands_in: bool,
    pub(super) silences: u8,
    /// It asked not to be written to before.
    pub(super) resume_ms: u64,
    /// How many times more it has asked so than it has taken what it was sent.
    pub(super) pauses: u8,
}

impl Holder {
    pub(super) fn of(candidate: &Candidate) -> Self {
        Self {
            id: candidate.id,
            contact: candidate.contact,
            token: candidate.token.unwrap_or_default(),
            acknowledged: candidate.had_result,
            stands_in: false,
            silences: 0,
            resume_ms: 0,
            pauses: 0,
        }
    }
}

/// One operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) generation: u32,
    pub(super) task: Task,
    pub(super) lookup: Lookup,
    pub(super) command: Option<CommandId>,
    pub(super) phase: Phase,
    pub(super) privacy: Privacy,
    /// The point really looked for; while blind the lookup has another.
    pub(super) target: [u8; 32],
    /// When it is looked at again though nothing comes.
    timer: Option<(u64, TimerHandle)>,
    pub(super) budget: Budget,
    /// Whether its lookup has been given the configured seeds.
    pub(super) fell_back: bool,
    /// How often it has been given contacts that fell silent lately, and how many had answered it the last time.
    pub(super) lost_offered: (u8, u16),
    /// Correlation ids of what is in flight: few, and all that is left to clean up when the operation ends.
    in_flight: Vec<u64>,
    pub(super) record: Vec<u8>,
    /// It gives a held record on, which so many times before was refused by somebody who was asked too often.
    pub(super) regives: Option<u8>,
    pub(super) holders: Vec<Holder>,
    pub(super) next_holder: usize,
    pub(super) writes_in_flight: usize,
    pub(super) written: Written,
    pub(super) spread: Spread,
}

impl Operation {
    pub(super) fn new() -> Self {
        Self {
            generation: 0,
            task: Task::Idle,
            lookup: Lookup::new(),
            command: None,
            phase: Phase::Walking,
            privacy: Privacy::None,
            target: [0; 32],
            timer: None,
            budget: Budget::default(),
            fell_back: false,
            lost_offered: (0, 0),
            in_flight: Vec::with_capacity(IN_FLIGHT_RESERVED),
            record: Vec::new(),
            regives: None,
            holders: Vec::with_capacity(FRONTIER_MAX),
            next_holder: 0,
            writes_in_flight: 0,
            written: Written::default(),
            spread: Spread::default(),
        }
    }
}

impl<C: Crypto> LaneNode<C> {
    pub(super) fn cancel(&mut self, now: Now, command: CommandId, out: &mut impl Outbox) -> Answer {
        let found = self.operations.iter().position(|op| op.task != Task::Idle && op.command == Some(command));
        let Some(at) = found else { return Answer::NotUnderWay };
        self.operations[at].lookup.cancel();
        self.finish(now, at as u16, Finish::Cancelled, out);
        Answer::Noted
    }

    /// Begins an operation; `Some` is the answer if it cannot.
    pub(super) fn begin(
        &mut self,
        now: Now,
        task: Task,
        command: Option<CommandId>,
        target: [u8; 32],
        goal: Goal,
        privacy: Privacy,
        out: &mut impl Outbox,
    ) -> Option<Answer> {
        let Some(at) = self.reserve() else {
            self.counters.lookups_refused += 1;
            return Some(Answer::TooBusy);
        };
        self.start(now, at, task, command, target, goal, privacy, out);
        None
    }

    /// A free operation, made if there is room for another.
    pub(super) fn reserve(&mut self) -> Option<u16> {
        if let Some(at) = self.operations.iter().position(|op| op.task == Task::Idle) {
            return Some(at as u16);
        }
        (self.operations.len() < self.config.operations_max).then(|| {
            self.operations.push(Box::new(Operation::new()));
            (self.operations.len() - 1) as u16
        })
    }

    /// Gives back the memory of operations that are free, but for those before one that is not.
    pub(super) fn drop_idle_operations(&mut self) {
        if self.config.reserve_memory {
            return;
        }
        while self.operations.pop_if(|operation| operation.task == Task::Idle).is_some() {}
    }

    /// Whether something may begin that no command waits for: joining, refreshing, storing again, announcing.
    pub(super) fn may_work_unasked(&self) -> bool {
        self.spare_operations() > spared_operations(self.config.operations_max)
    }

    /// Requests that may be in flight before another is sent that no command waits for.
    pub(super) fn unasked_requests_max(&self) -> usize {
        let most = self.requests.capacity();
        most - spared_requests(most)
    }

    /// Operations that are free.
    pub(super) fn spare_operations(&self) -> usize {
        let busy = self.operations.iter().filter(|op| op.task != Task::Idle).count();
        self.config.operations_max - busy
    }

    pub(super) fn start(
        &mut self,
        now: Now,
        at: u16,
        task: Task,
        command: Option<CommandId>,
        target: [u8; 32],
        goal: Goal,
        privacy: Privacy,
        out: &mut impl Outbox,
    ) {
        self.counters.lookups_started += 1;
        let walk = if privacy == Privacy::Blind { self.blinded(&target) } else { target };
        let radius = match task {
            Task::Spread => self.operations[usize::from(at)].spread.radius,
            _ => self.radius_of(self.config.lookup.k),
        };
        let config = self.config.lookup;
        let operation = &mut self.operations[usize::from(at)];
        operation.generation = self.counters.lookups_started as u32;
        (operation.task, operation.command, operation.privacy) = (task, command, privacy);
        operation.phase = if privacy == Privacy::Blind { Phase::Blind } else { Phase::Walking };
        operation.target = target;
        operation.holders.clear();
        operation.next_holder = 0;
        operation.writes_in_flight = 0;
        operation.written = Written::default();
        let blind_goal = if privacy == Privacy::Blind { Goal::Nodes } else { goal };
        // A write must find everybody it belongs to, and a sweep everybody of a region: both take the time that needs, and as
        // all the nearest will have to be asked, there is nothing to be spared by asking few at a time.
        let config = match task {
            Task::Put => LookupConfig { budget_ms: config.budget_ms * 2, alpha_min: config.alpha_max, ..config },
            Task::Spread => LookupConfig { budget_ms: config.budget_ms * 8, alpha_min: config.alpha_max, ..config },
            _ => config,
        };
        // Of contacts that may all be gone, more are asked at once.
        let alpha_min = if self.table.live_len() == 0 { config.alpha_max } else { config.alpha_min };
        let config = LookupConfig { alpha_min, ..config };
        let budget = if command.is_some() { self.budget } else { Budget::default() };
        operation.budget = budget;
        let config = within(config, budget);
        operation.lookup.start(now.mono_ms, config, walk, blind_goal, radius);
        let (k, point) = (config.k, ContentId::from_bytes(walk));
        let abuse = &self.abuse;
        let closest = self
            .table
            .closest(&point, k.max(config.paths * 4), |peer| !abuse.is_quarantined(now.mono_ms, &peer.contact.key));
        for peer in self.table.peers_of(&closest) {
            operation.lookup.offer(peer.id, peer.contact, peer.round_trip.srtt_ms());
        }
        if task == Task::Join
            && let Some(first) = self.join.ask_first.take()
        {
            operation.lookup.offer_first(self.sealer.node_id(&first.key), first);
        }
        (operation.fell_back, operation.lost_offered) = (false, (0, 0));
        // Just started, or cut off: nobody is turned away while there is a lost or remembered contact or a seed to try.
        if self.table.live_len() == 0 {
            self.fall_back(now, at);
            self.offer_remembered(now, at);
        }
        let due_ms = now.mono_ms + self.rng.jittered_ms(self.config.refresh_ms);
        self.table.refreshed(&point, due_ms);
        if task == Task::FindProviders {
            self.find_providers_here(now, at, out);
        }
        self.drive(now, at, out);
    }

    /// Sends what may be sent, and ends what has ended.
    pub(super) fn drive(&mut self, now: Now, at: u16, out: &mut impl Outbox) {
        loop {
            let unasked_max = self.unasked_requests_max();
            let Self { operations, abuse, outstanding, config, requests, .. } = self;
            let Some(operation) = operations.get_mut(usize::from(at)) else { return };
            if operation.phase == Phase::Writing || operation.task == Task::Idle {
                return;
            }
            if let Some(finish) = operation.lookup.finished(now.mono_ms) {
                if finish == Finish::Exhausted && self.offer_lost(now, at) {
                    continue;
                }
                self.finish(now, at, finish, out);
                return;
            }
            let requests_max = if operation.command.is_some() { requests.capacity() } else { unasked_max };
            if requests.len() >= requests_max {
                break; // Nobody is to blame for that: whoever is next is asked when there is room.
            }
            let ask = operation.lookup.next(now.mono_ms, |candidate| {
                let in_flight = outstanding.peek(candidate.id.as_bytes()).map_or(0, |count| usize::from(*count));
                in_flight < config.requests_per_peer_max && !abuse.is_quarantined(now.mono_ms, &candidate.contact.key)
            });
            let Some(ask) = ask else { break };
            if !self.send_step(now, at, &ask, out) {
                self.operations[usize::from(at)].lookup.unsendable(&ask.id);
            }
        }
        let operation = &mut self.operations[usize::from(at)];
        // Whoever may not be asked now may be later: look again soon rather than at the end of the budget.
        let wake_ms = operation.lookup.wake_ms();
        let wake_ms = if !operation.lookup.waits() { wake_ms.min(now.mono_ms + 100) } else { wake_ms };
        self.wake_at(at, wake_ms.max(now.mono_ms + 1));
    }

    pub(super) fn wake_at(&mut self, at: u16, wake_ms: u64) {
        let operation = &mut self.operations[usize::from(at)];
        if let Some((set_ms, timer)) = operation.timer {
            if set_ms == wake_ms {
                return; // As after most answers: the end of the lookup's time.
            }
            self.timers.cancel(timer);
        }
        let timer = Timer::Operation { at, generation: operation.generation };
        operation.timer = self.timers.insert(wake_ms, timer).ok().map(|timer| (wake_ms, timer));
    }

    pub(super) fn on_operation_timer(&mut self, now: Now, at: u16, generation: u32, out: &mut impl Outbox) {
        if self.is_current(at, generation) {
            self.operations[usize::from(at)].timer = None;
            match self.operations[usize::from(at)].phase {
                Phase::Writing => self.pump_writes(now, at, out),
                _ => self.drive(now, at, out),
            }
        }
    }

    pub(super) fn is_current(&self, at: u16, generation: u32) -> bool {
        self.operations.get(usize::from(at)).is_some_and(|op| op.generation == generation && op.task != Task::Idle)
    }

    fn send_step(&mut self, now: Now, at: u16, ask: &Ask, out: &mut impl Outbox) -> bool {
        let operation = &self.operations[usize::from(at)];
        let (mut target, mut scope) = (*operation.lookup.target(), Scope::WIDEST);
        if operation.task == Task::Put
            && let Some(token) = self.tokens.of(now.mono_ms, &ask.id, &ContentId::from_bytes(target))
        {
            return self.store_at_once(now, at, ask, token, out);
        }
        let operation = &self.operations[usize::from(at)];
        let purpose = Purpose::Lookup { at, generation: operation.generation, peer: ask.id, stores: false };
        if operation.task == Task::Spread && operation.spread.is_regional() {
            // An answer names those nearest to one point. To meet everybody of a region, ask about points all over it, and
            // for a token that is good for all of it.
            let shared = operation.spread.radius.leading_zeros();
            target = random_point(&mut self.rng, &target, shared);
            scope = Scope::region(shared);
        }
        let operation = &self.operations[usize::from(at)];
        let id = ContentId::from_bytes(target);
        let message = match operation.lookup.goal() {
            Goal::Nodes => Message::FindNode { target, scope },
            Goal::Immutable => Message::FindValue { id, sequence_min: 0 },
            Goal::Mutable { sequence_min } => Message::FindValue { id, sequence_min },
            // A relay hands on one datagram, so it is asked for one.
            Goal::Providers { .. } => {
                let relayed = operation.privacy == Privacy::Relay && ask.first_leg;
                let parts_max = if relayed { 1 } else { PROVIDER_PARTS_MAX as u8 };
                Message::GetProviders { id, page: ask.page, parts_max }
            }
        };
        if operation.privacy == Privacy::Relay
            && ask.first_leg
            && let Some(relay) = self.relay_for(now, ask, &target)
        {
            let mut payload = [0; 64];
            let mut writer = Writer::new(&mut payload);
            if message.write_payload(&mut writer).is_ok() {
                let len = writer.len();
                let wrapped = Message::Relay { to: ask.contact, kind: message.kind(), payload: &payload[..len] };
                let relay_id = self.sealer.node_id(&relay.key);
                return self.request(now, relay, relay_id, relay_id.as_bytes(), &wrapped, purpose, out);
            }
        }
        self.request(now, ask.contact, ask.id, &target, &message, purpose, out)
    }

    /// A lookup is over: go on to the writing, or answer.
    pub(super) fn finish(&mut self, now: Now, at: u16, finish: Finish, out: &mut impl Outbox) {
        let k = self.config.lookup.k;
        let operation = &mut self.operations[usize::from(at)];
        let task = operation.task;
        if operation.phase != Phase::Writing {
            self.cancel_requests(at);
        }
        let operation = &mut self.operations[usize::from(at)];
        if operation.phase == Phase::Blind && finish != Finish::Cancelled {
            self.unblind(now, at, out);
            return;
        }
        if finish == Finish::Cancelled && operation.phase == Phase::Writing {
            self.finish_write(now, at, finish, out);
            return;
        }
        self.lookup_totals.record(finish, &operation.lookup.stats(now.mono_ms));
        if finish == Finish::Exhausted {
            // Everybody within the K-th answer's distance was asked: a fair sample of how dense the space is there.
            let mut answered = operation.lookup.candidates().iter().filter(|c| c.standing == Standing::Answered);
            if let Some(farthest) = answered.nth(k - 1) {
                let sample = (now.mono_ms, size_of_density(k, farthest.distance));
                self.size_samples[self.size_samples_len % super::SIZE_SAMPLES] = sample;
                self.size_samples_len += 1;
            }
        }
        match task {
            Task::Put | Task::Spread if finish != Finish::Cancelled => {
                operation.phase = Phase::Writing;
                if task == Task::Put && matches!(finish, Finish::OutOfTime | Finish::OutOfRequests) {
                    // It ended before it had met all who should hold the record: to count those it met would make a quorum of
                    // however few they are, or however far.
                    let unheard = operation.lookup.unheard() as u16;
                    operation.written.holders += unheard;
                    operation.written.silent += unheard;
                }
                // Who thinks the region is larger than it may be gives a token for less: it is no use for the rest.
                let regional = task == Task::Spread && operation.spread.is_regional();
                let scope =
                    if regional { Scope::region(operation.spread.radius.leading_zeros()) } else { Scope::EXACT };
                for candidate in operation.lookup.holders() {
                    if candidate.token.is_none_or(|token| Scope::of_token(&token) > scope) {
                        continue;
                    }
                    let stands_in = task == Task::Put && operation.lookup.stands_in(candidate);
                    operation.holders.push(Holder { stands_in, ..Holder::of(candidate) });
                }
                if task == Task::Spread {
                    self.plan_spread(now, at);
                }
                self.pump_writes(now, at, out);
            }
            Task::Upkeep => self.release(at),
            Task::Join => {
                let anybody = operation.lookup.stats(now.mono_ms).answers > 0;
                self.release(at);
                self.on_join_done(now, anybody);
            }
            _ => {
                let answer = match task {
                    Task::Get { mutable } => self.answer_get(now, at, mutable, out),
                    Task::FindProviders => Answer::Providers(operation.lookup.providers().to_vec()),
                    Task::Put | Task::Spread => Answer::Written(operation.written.clone()),
                    _ => Answer::Nodes(operation.lookup.holders().take(k).map(|c| c.contact).collect()),
                };
                self.complete(now, at, answer, Some(finish), out);
            }
        }
    }

    pub(super) fn complete(
        &mut self,
        now: Now,
        at: u16,
        answer: Answer,
        finish: Option<Finish>,
        out: &mut impl Outbox,
    ) {
        let operation = &self.operations[usize::from(at)];
        if let Some(command) = operation.command {
            let asked = operation
                .lookup
                .candidates()
                .iter()
                .filter(|candidate| candidate.standing != Standing::Fresh)
                .map(|candidate| Asked {
                    id: candidate.id,
                    addr: candidate.contact.addr,
                    standing: candidate.standing,
                    hops: candidate.hops,
                    useful: candidate.had_result
                        || operation.holders.iter().any(|holder| holder.id == candidate.id && holder.acknowledged),
                    via: candidate.via,
                    asked_after_ms: candidate.asked_ms.saturating_sub(operation.lookup.started_ms()),
                    took_ms: (candidate.answered_ms > 0)
                        .then(|| candidate.answered_ms.saturating_sub(candidate.asked_ms)),
                })
                .collect();
            let stats = operation.lookup.stats(now.mono_ms);
            let outcome = Outcome { answer, finish, stats, asked };
            let is_kept_alive = self.kept_alive.contains_key(&ContentId::from_bytes(operation.target));
            if operation.task == Task::Put && is_kept_alive {
                self.complete_when_safe(now, command, outcome, out);
            } else {
                out.complete(command, outcome);
            }
        }
        self.release(at);
    }

    /// Notes a request of an operation.
    pub(super) fn note_sent(&mut self, at: u16, correlation: u64) {
        self.operations[usize::from(at)].in_flight.push(correlation);
    }

    /// Notes that a request of an operation is no longer in flight.
    pub(super) fn note_settled(&mut self, at: u16, generation: u32, correlation: u64) {
        let Some(operation) = self.operations.get_mut(usize::from(at)).filter(|op| op.generation == generation) else {
            return;
        };
        if let Some(place) = operation.in_flight.iter().position(|sent| *sent == correlation) {
            operation.in_flight.swap_remove(place);
        }
    }

    /// Forgets what an operation still has in flight: nobody waits for it any more, and the peers' tokens are free again.
    pub(super) fn cancel_requests(&mut self, at: u16) {
        while let Some(correlation) = self.operations[usize::from(at)].in_flight.pop() {
            self.settle(correlation);
        }
    }

    /// Makes an operation free, at a cost that does not depend on how much it did.
    fn release(&mut self, at: u16) {
        self.cancel_requests(at);
        let operation = &mut self.operations[usize::from(at)];
        operation.task = Task::Idle;
        let command = operation.command.take();
        operation.record = Vec::new();
        operation.regives = None;
        operation.spread = Spread::default();
        if let Some((_, timer)) = operation.timer.take() {
            self.timers.cancel(timer);
        }
        // After a command the next is likely; what goes on in the background comes seldom.
        if command.is_none() {
            self.drop_idle_operations();
        }
    }
}

/// Of so many operations, those that background work leaves for commands: four, but of few not more than half, as a lane that never joins
/// serves no command either.
fn spared_operations(operations_max: usize) -> usize {
    (operations_max / 2).min(4)
}

/// The same of requests: a quarter.
fn spared_requests(requests_max: usize) -> usize {
    requests_max / 4
}

/// How a lookup behaves that has a budget of its own.
pub(super) fn within(config: LookupConfig, budget: Budget) -> LookupConfig {
    let alpha_max = budget.alpha_max.unwrap_or(config.alpha_max);
    LookupConfig {
        budget_ms: budget.time_ms.unwrap_or(config.budget_ms),
        requests_max: budget.requests_max.unwrap_or(config.requests_max),
        alpha_max,
        alpha_min: config.alpha_min.min(alpha_max),
        ..config
    }
}

/// A random point that shares the first `bits` bits of `point`.
pub(super) fn random_point(rng: &mut LaneRng, point: &[u8; 32], bits: u32) -> [u8; 32] {
    let mut random: [u8; 32] = rng.bytes();
    for bit in 0..bits.min(256) as usize {
        let mask = 0x80 >> (bit % 8);
        random[bit / 8] = random[bit / 8] & !mask | point[bit / 8] & mask;
    }
    random
}

/// Requests of one operation for which room is reserved: as many as a lookup or a write has in flight by default.
const IN_FLIGHT_RESERVED: usize = 24;
