//! Operations: a lookup, and for writes what follows it.
//!
//! An operation is a slot that is used again and again; a generation number keeps late replies of its former lives out.

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_stdx::TimerHandle;

use super::LaneNode;
use super::ask::{Purpose, Request, Timer};
use super::command::{Answer, Asked, CommandId, Outcome, Privacy, Written};
use super::outbox::Outbox;
use super::publish::{Pace, Spread};
use crate::abuse::Offence;
use crate::contact::Contact;
use crate::identity::Crypto;
use crate::lookup::{Ask, Finish, Goal, Lookup, LookupConfig, PROVIDERS_FOUND_MAX, Standing};
use crate::record::{RecordRefused, RecordView, check_provider};
use crate::rng::LaneRng;
use crate::routing::size_of_density;
use crate::seal::cookie::Scope;
use crate::store::records::Class;
use crate::time::Now;
use crate::wire::codec::Writer;
use crate::wire::message::{ErrorCode, Message, Token, capability};

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
enum Phase {
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
    pub(super) silences: u8,
    /// It asked not to be written to before.
    pub(super) resume_ms: u64,
}

/// One operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) generation: u32,
    pub(super) task: Task,
    pub(super) lookup: Lookup,
    command: Option<CommandId>,
    phase: Phase,
    privacy: Privacy,
    /// The point really looked for; while blind the lookup has another.
    target: [u8; 32],
    timer: Option<TimerHandle>,
    /// Correlation ids of what is in flight: few, and all that is left to clean up when the operation ends.
    in_flight: Vec<u64>,
    pub(super) record: Vec<u8>,
    pub(super) holders: Vec<Holder>,
    next_holder: usize,
    pub(super) writes_in_flight: usize,
    pub(super) written: Written,
    pub(super) spread: Spread,
}

impl Operation {
    fn new() -> Self {
        Self {
            generation: 0,
            task: Task::Idle,
            lookup: Lookup::new(),
            command: None,
            phase: Phase::Walking,
            privacy: Privacy::None,
            target: [0; 32],
            timer: None,
            in_flight: Vec::with_capacity(IN_FLIGHT_RESERVED),
            record: Vec::new(),
            holders: Vec::with_capacity(crate::lookup::FRONTIER_MAX),
            next_holder: 0,
            writes_in_flight: 0,
            written: Written::default(),
            spread: Spread::default(),
        }
    }
}

impl<C: Crypto> LaneNode<C> {
    pub(super) fn command_find_node(
        &mut self,
        now: Now,
        command: CommandId,
        target: [u8; 32],
        out: &mut impl Outbox,
    ) -> Option<Answer> {
        self.begin(now, Task::FindNode, Some(command), target, Goal::Nodes, Privacy::None, out)
    }

    pub(super) fn command_get(
        &mut self,
        now: Now,
        command: CommandId,
        id: ContentId,
        mutable: bool,
        privacy: Privacy,
        out: &mut impl Outbox,
    ) -> Option<Answer> {
        if !self.owns(&id) {
            return Some(Answer::WrongLane);
        }
        if !mutable
            && let Some(kept) = self.records.get(&id)
            && kept.expires_secs > now.unix_secs()
        {
            return Some(Answer::Record(kept.bytes.to_vec()));
        }
        let seen = self.sequences.get(id.as_bytes()).copied().unwrap_or(0);
        let goal = if mutable { Goal::Mutable { sequence_min: seen } } else { Goal::Immutable };
        self.begin(now, Task::Get { mutable }, Some(command), *id.as_bytes(), goal, privacy, out)
    }

    pub(super) fn command_put(
        &mut self,
        now: Now,
        command: CommandId,
        record: Vec<u8>,
        keep_alive: bool,
        out: &mut impl Outbox,
    ) -> Option<Answer> {
        let Ok(view) = RecordView::read(&record) else { return Some(Answer::BadRecord) };
        let id = view.id();
        if view.check(&id, self.sealer.crypto(), self.sealer.network(), now.unix_secs()).is_err() {
            return Some(Answer::BadRecord);
        }
        if !self.owns(&id) {
            return Some(Answer::WrongLane);
        }
        if view.mutable.is_some() {
            self.see_sequence(&id, view.sequence());
        }
        let _ =
            self.records.keep(now, &id, &view, Class::Cached, self.config.cache_ttl_secs, self.own_key, &mut self.rng);
        if keep_alive {
            self.keep_alive(now, &id, &record, out);
        }
        self.begin_put(now, Some(command), &id, record, out)
    }

    pub(super) fn begin_put(
        &mut self,
        now: Now,
        command: Option<CommandId>,
        id: &ContentId,
        record: Vec<u8>,
        out: &mut impl Outbox,
    ) -> Option<Answer> {
        let Some(at) = self.reserve() else { return Some(Answer::TooBusy) };
        self.operations[usize::from(at)].record = record;
        self.start(now, at, Task::Put, command, *id.as_bytes(), Goal::Nodes, Privacy::None, out);
        None
    }

    pub(super) fn command_find_providers(
        &mut self,
        now: Now,
        command: CommandId,
        id: ContentId,
        limit: usize,
        out: &mut impl Outbox,
    ) -> Option<Answer> {
        if !self.owns(&id) {
            return Some(Answer::WrongLane);
        }
        let goal = Goal::Providers { limit: limit.clamp(1, PROVIDERS_FOUND_MAX) };
        self.begin(now, Task::FindProviders, Some(command), *id.as_bytes(), goal, Privacy::None, out)
    }

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
            self.operations.push(Operation::new());
            (self.operations.len() - 1) as u16
        })
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
        operation.generation = operation.generation.wrapping_add(1);
        (operation.task, operation.command, operation.privacy) = (task, command, privacy);
        operation.phase = if privacy == Privacy::Blind { Phase::Blind } else { Phase::Walking };
        operation.target = target;
        operation.holders.clear();
        operation.next_holder = 0;
        operation.writes_in_flight = 0;
        operation.written = Written::default();
        let blind_goal = if privacy == Privacy::Blind { Goal::Nodes } else { goal };
        // A write must find everybody it belongs to, and a sweep everybody of a region: both take the time that needs.
        let config = match task {
            Task::Put => LookupConfig { budget_ms: config.budget_ms * 2, ..config },
            Task::Spread => LookupConfig { budget_ms: config.budget_ms * 8, alpha_min: config.alpha_max, ..config },
            _ => config,
        };
        operation.lookup.start(now.mono_ms, config, walk, blind_goal, radius);
        let (k, point) = (config.k, ContentId::from_bytes(walk));
        let abuse = &self.abuse;
        let closest = self
            .table
            .closest(&point, k.max(config.paths * 4), |peer| !abuse.is_quarantined(now.mono_ms, &peer.contact.key));
        for peer in self.table.peers_of(&closest) {
            operation.lookup.offer(peer.id, peer.contact, peer.round_trip.srtt_ms());
        }
        self.table.refreshed(now.mono_ms, &point);
        self.drive(now, at, out);
    }

    /// A point that shares only the target's region: what it lies in, not what it is.
    fn blinded(&mut self, target: &[u8; 32]) -> [u8; 32] {
        let shared = self.radius_of(self.config.lookup.k * 2).leading_zeros();
        random_point(&mut self.rng, target, shared)
    }

    /// Sends what may be sent, and ends what has ended.
    pub(super) fn drive(&mut self, now: Now, at: u16, out: &mut impl Outbox) {
        loop {
            let Self { operations, abuse, outstanding, config, .. } = self;
            let operation = &mut operations[usize::from(at)];
            if operation.phase == Phase::Writing || operation.task == Task::Idle {
                return;
            }
            if let Some(finish) = operation.lookup.finished(now.mono_ms) {
                self.finish(now, at, finish, out);
                return;
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
        let idle = operation.lookup.candidates().iter().all(|candidate| candidate.standing != Standing::Asked);
        let wake_ms = operation.lookup.wake_ms();
        let wake_ms = if idle { wake_ms.min(now.mono_ms + 100) } else { wake_ms };
        self.wake_at(at, wake_ms.max(now.mono_ms + 1));
    }

    fn wake_at(&mut self, at: u16, wake_ms: u64) {
        let operation = &mut self.operations[usize::from(at)];
        if let Some(timer) = operation.timer.take() {
            self.timers.cancel(timer);
        }
        let timer = Timer::Operation { at, generation: operation.generation };
        operation.timer = self.timers.insert(wake_ms, timer).ok();
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

    fn is_current(&self, at: u16, generation: u32) -> bool {
        self.operations.get(usize::from(at)).is_some_and(|op| op.generation == generation && op.task != Task::Idle)
    }

    fn send_step(&mut self, now: Now, at: u16, ask: &Ask, out: &mut impl Outbox) -> bool {
        let operation = &self.operations[usize::from(at)];
        let purpose = Purpose::Lookup { at, generation: operation.generation, peer: ask.id };
        let (mut target, mut scope) = (*operation.lookup.target(), Scope::EXACT);
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
            Goal::Providers { .. } => Message::GetProviders { id, page: ask.page },
        };
        if operation.privacy == Privacy::Relay
            && ask.first_leg
            && let Some(relay) = self.pick_relay(&ask.id, &target)
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

    /// Somebody who relays, from another part of the space than the target: it should not be among those asked later.
    fn pick_relay(&mut self, peer: &NodeId, target: &[u8; 32]) -> Option<Contact> {
        let bucket = self.own.distance_to(&ContentId::from_bytes(*target)).leading_zeros();
        let own = self.own;
        let fits = move |candidate: &crate::routing::Peer| {
            candidate.capabilities & capability::RELAYS != 0
                && candidate.id != *peer
                && own.distance_to(&candidate.id).leading_zeros() != bucket
        };
        let count = self.table.iter_live().filter(|candidate| fits(candidate)).count() as u64;
        let pick = self.rng.below(count) as usize;
        self.table.iter_live().filter(|candidate| fits(candidate)).nth(pick).map(|candidate| candidate.contact)
    }

    pub(super) fn on_lookup_reply(
        &mut self,
        now: Now,
        at: u16,
        generation: u32,
        peer: &NodeId,
        request: &Request,
        message: &Message<'_>,
        out: &mut impl Outbox,
    ) {
        if !self.is_current(at, generation) || self.operations[usize::from(at)].phase == Phase::Writing {
            return;
        }
        match message {
            Message::Relayed { kind, payload } => match Message::read_payload(*kind, payload) {
                Ok(inner) if !matches!(inner, Message::Relayed { .. }) => {
                    self.take_answer(now, at, peer, None, &inner, out);
                }
                _ => {
                    self.offence(now, &request.to.key, Offence::Malformed, out);
                    self.operations[usize::from(at)].lookup.requeue(peer);
                }
            },
            answer => self.take_answer(now, at, peer, Some(request), answer, out),
        }
        self.drive(now, at, out);
    }

    /// Feeds one answer to a lookup. `direct` is the request if the peer itself answered it; what came through a relay
    /// cannot be held against anybody.
    fn take_answer(
        &mut self,
        now: Now,
        at: u16,
        peer: &NodeId,
        direct: Option<&Request>,
        message: &Message<'_>,
        out: &mut impl Outbox,
    ) {
        let secs = now.unix_secs();
        let target = ContentId::from_bytes(*self.operations[usize::from(at)].lookup.target());
        let (token, closer) = match message {
            Message::Nodes { token, contacts } => (*token, *contacts),
            Message::Value { token, closer, .. } => (*token, *closer),
            Message::Providers { token, closer, .. } => (*token, *closer),
            Message::Error { code: ErrorCode::CookieRequired | ErrorCode::RelayFailed, .. } => {
                self.operations[usize::from(at)].lookup.requeue(peer);
                return;
            }
            Message::Error { code, .. } => {
                self.operations[usize::from(at)].lookup.refused(peer, *code);
                return;
            }
            _ => {
                self.liar(now, at, peer, direct, Offence::Malformed, out);
                return;
            }
        };
        // What it returns must hold before anything it says is used.
        let mut sequence = 0;
        if let Message::Value { record: Some(record), .. } = message {
            let known = self.operations[usize::from(at)].lookup.record() == Some(record);
            let judged = RecordView::read(record).map_err(|_| RecordRefused::Signature).and_then(|view| {
                sequence = view.sequence();
                // Byte for byte what was verified already needs no second signature check.
                if known { Ok(()) } else { view.check(&target, self.sealer.crypto(), self.sealer.network(), secs) }
            });
            match judged {
                Ok(()) => {}
                Err(RecordRefused::Expired | RecordRefused::NotYetIssued) => sequence = u64::MAX,
                Err(_) => {
                    self.counters.records_invalid += 1;
                    self.liar(now, at, peer, direct, Offence::InvalidRecord, out);
                    return;
                }
            }
        }
        if let Message::Providers { providers, .. } = message {
            let lookup = &self.operations[usize::from(at)].lookup;
            for provider in providers.iter() {
                if lookup.providers().contains(&provider) {
                    continue;
                }
                match check_provider(&provider, &target, self.sealer.crypto(), self.sealer.network(), secs) {
                    Ok(()) | Err(RecordRefused::Expired | RecordRefused::NotYetIssued) => {}
                    Err(_) => {
                        self.counters.records_invalid += 1;
                        self.liar(now, at, peer, direct, Offence::InvalidRecord, out);
                        return;
                    }
                }
            }
        }
        let Self { operations, sealer, abuse, own, .. } = self;
        let operation = &mut operations[usize::from(at)];
        let contacts = closer.iter().filter_map(|contact| {
            let id = sealer.node_id(&contact.key);
            let usable = contact.addr.is_dialable() && id != *own && !abuse.is_quarantined(now.mono_ms, &contact.key);
            usable.then_some((id, contact))
        });
        if !operation.lookup.answered(now.mono_ms, peer, token, contacts) {
            return;
        }
        match message {
            Message::Value { record: Some(record), .. } if sequence != u64::MAX => {
                operation.lookup.found_record(peer, record, sequence);
            }
            Message::Providers { providers, next, .. } => {
                for provider in providers.iter() {
                    let expires = provider.issued_secs.saturating_add(u64::from(provider.ttl_secs));
                    if expires > secs {
                        let known = operation.lookup.providers().len();
                        operation.lookup.found_provider(peer, &provider);
                        if let Some(command) = operation.command
                            && operation.lookup.providers().len() > known
                        {
                            out.found_provider(command, &provider);
                        }
                    }
                }
                if *next > 0 {
                    operation.lookup.more_pages(peer, *next);
                }
            }
            _ => {}
        }
    }

    fn liar(
        &mut self,
        now: Now,
        at: u16,
        peer: &NodeId,
        direct: Option<&Request>,
        offence: Offence,
        out: &mut impl Outbox,
    ) {
        self.operations[usize::from(at)].lookup.lied(peer);
        if let Some(request) = direct {
            self.offence(now, &request.to.key, offence, out);
        }
    }

    pub(super) fn on_lookup_timeout(
        &mut self,
        now: Now,
        at: u16,
        generation: u32,
        peer: &NodeId,
        out: &mut impl Outbox,
    ) {
        if self.is_current(at, generation) && self.operations[usize::from(at)].phase != Phase::Writing {
            self.operations[usize::from(at)].lookup.timed_out(now.mono_ms, peer);
            self.drive(now, at, out);
        }
    }

    /// A lookup is over: go on to the writing, or answer.
    fn finish(&mut self, now: Now, at: u16, finish: Finish, out: &mut impl Outbox) {
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
            self.finish_write(now, at, out);
            return;
        }
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
                // Who thinks the region is larger than it may be gives a token for less: it is no use for the rest.
                let regional = task == Task::Spread && operation.spread.is_regional();
                let scope =
                    if regional { Scope::region(operation.spread.radius.leading_zeros()) } else { Scope::EXACT };
                for candidate in operation.lookup.holders() {
                    if candidate.token.is_none_or(|token| Scope::of_token(&token) > scope) {
                        continue;
                    }
                    operation.holders.push(Holder {
                        id: candidate.id,
                        contact: candidate.contact,
                        token: candidate.token.unwrap_or_default(),
                        acknowledged: false,
                        silences: 0,
                        resume_ms: 0,
                    });
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

    /// The region is known; now ask those in it for the id itself, among requests for other ids near it.
    fn unblind(&mut self, now: Now, at: u16, out: &mut impl Outbox) {
        let operation = &mut self.operations[usize::from(at)];
        let target = operation.target;
        let found: Vec<_> = operation.lookup.holders().map(|c| (c.id, c.contact)).collect();
        let goal = match operation.task {
            Task::Get { mutable: true } => {
                let seen = self.sequences.peek(&target).copied().unwrap_or(0);
                Goal::Mutable { sequence_min: seen }
            }
            _ => Goal::Immutable,
        };
        operation.phase = Phase::Walking;
        let radius = self.radius_of(self.config.lookup.k);
        let operation = &mut self.operations[usize::from(at)];
        operation.lookup.start(now.mono_ms, self.config.lookup, target, goal, radius);
        for (id, contact) in &found {
            operation.lookup.offer(*id, *contact, None);
        }
        for (id, contact) in found.iter().rev().take(NEIGHBOUR_PROBES) {
            let decoy = self.blinded(&target);
            let message = Message::FindValue { id: ContentId::from_bytes(decoy), sequence_min: 0 };
            self.request(now, *contact, *id, &decoy, &message, Purpose::Verify, out);
        }
        self.drive(now, at, out);
    }

    fn answer_get(&mut self, now: Now, at: u16, mutable: bool, out: &mut impl Outbox) -> Answer {
        let operation = &self.operations[usize::from(at)];
        let id = ContentId::from_bytes(operation.target);
        let found = operation.lookup.record().map(<[u8]>::to_vec);
        let view = found.as_deref().and_then(|bytes| RecordView::read(bytes).ok());
        if let Some(view) = view {
            let ttl = self.config.cache_ttl_secs;
            let _ = self.records.keep(now, &id, &view, Class::Cached, ttl, self.own_key, &mut self.rng);
            self.hint_cache(now, at, view.bytes, out);
        }
        if !mutable {
            return found.map_or(Answer::NoRecord, Answer::Record);
        }
        // A reader here never goes back: what it has seen before outranks what the network says now.
        let found_sequence = view.map(|view| view.sequence());
        let seen = self.sequences.get(id.as_bytes()).copied();
        if let Some(seen) = seen.filter(|seen| found_sequence.is_none_or(|found| found < *seen)) {
            let kept = self.records.get(&id).filter(|kept| kept.expires_secs > now.unix_secs());
            return match kept {
                Some(kept) if RecordView::read(kept.bytes).is_ok_and(|view| view.sequence() >= seen) => {
                    Answer::Record(kept.bytes.to_vec())
                }
                _ => found_sequence.map_or(Answer::NoRecord, |found| Answer::OnlyStale { seen, found }),
            };
        }
        if let Some(sequence) = found_sequence {
            self.see_sequence(&id, sequence);
        }
        found.map_or(Answer::NoRecord, Answer::Record)
    }

    pub(super) fn see_sequence(&mut self, id: &ContentId, sequence: u64) {
        let seen = self.sequences.get_or_insert_with(*id.as_bytes(), || sequence);
        *seen = sequence.max(*seen);
    }

    /// Tells the nearest node that answered without the record what it was missing.
    fn hint_cache(&mut self, now: Now, at: u16, record: &[u8], out: &mut impl Outbox) {
        let operation = &self.operations[usize::from(at)];
        if !self.config.cache_hints || operation.privacy != Privacy::None {
            return;
        }
        let missed = operation
            .lookup
            .candidates()
            .iter()
            .find(|candidate| candidate.standing == Standing::Answered && !candidate.had_result)
            .and_then(|candidate| candidate.token.map(|token| (candidate.id, candidate.contact, token)));
        if let Some((id, contact, token)) = missed {
            let target = operation.target;
            self.notify(now, contact, &id, &target, &Message::CacheHint { token, record }, out);
        }
    }

    /// Sends the writes that may be sent, and ends the operation when none is left.
    pub(super) fn pump_writes(&mut self, now: Now, at: u16, out: &mut impl Outbox) {
        loop {
            let operation = &mut self.operations[usize::from(at)];
            if operation.task == Task::Idle || operation.phase != Phase::Writing {
                return;
            }
            if operation.writes_in_flight >= self.config.writes_in_flight_max {
                return;
            }
            if operation.task == Task::Spread {
                match self.send_next_batch(now, at, out) {
                    Pace::Sent => continue,
                    Pace::Later => {
                        self.wake_at(at, now.mono_ms + PACE_MS);
                        return;
                    }
                    Pace::Done => break,
                }
            }
            let Some(target) = (operation.next_holder < operation.holders.len()).then_some(operation.next_holder)
            else {
                break;
            };
            operation.next_holder += 1;
            operation.written.holders += 1;
            self.send_store(now, at, target, 1, out);
        }
        if self.operations[usize::from(at)].writes_in_flight == 0 {
            self.finish_write(now, at, out);
        }
    }

    fn send_store(&mut self, now: Now, at: u16, target: usize, attempt: u8, out: &mut impl Outbox) {
        let operation = &mut self.operations[usize::from(at)];
        let holder = operation.holders[target];
        let purpose = Purpose::Write { at, generation: operation.generation, target: target as u8, batch: 0, attempt };
        let about = operation.target;
        // The record is lent out for the call: building the datagram needs the rest of the lane.
        let record = core::mem::take(&mut operation.record);
        let message = Message::Store { token: holder.token, record: &record };
        let sent = self.request(now, holder.contact, holder.id, &about, &message, purpose, out);
        let operation = &mut self.operations[usize::from(at)];
        operation.record = record;
        if sent {
            operation.writes_in_flight += 1;
        } else {
            operation.written.silent += 1;
        }
    }

    pub(super) fn on_write_reply(
        &mut self,
        now: Now,
        at: u16,
        generation: u32,
        target: u8,
        batch: u32,
        attempt: u8,
        message: &Message<'_>,
        out: &mut impl Outbox,
    ) {
        if !self.is_current(at, generation) {
            return;
        }
        let operation = &mut self.operations[usize::from(at)];
        operation.writes_in_flight -= 1;
        let holder = &mut operation.holders[usize::from(target)];
        holder.silences = 0;
        match message {
            Message::Stored => {
                holder.acknowledged = true;
                operation.written.acknowledged += 1;
            }
            Message::Announced { kept } => {
                holder.acknowledged = true;
                operation.written.acknowledged += 1;
                let not_kept = self.sent_in_batch(at, usize::from(target), batch).saturating_sub(kept.count_ones());
                self.counters.announces_not_kept += u64::from(not_kept);
            }
            Message::Error { code: ErrorCode::RateLimited, retry_after_ms } if operation.task == Task::Spread => {
                self.pause_holder(now, at, usize::from(target), batch, *retry_after_ms);
            }
            Message::Error { code: ErrorCode::CookieRequired, .. } if attempt < 2 => {
                self.resend(now, at, usize::from(target), batch, out);
            }
            Message::Error { code, .. } => operation.written.refuse(*code),
            _ => operation.written.refuse(ErrorCode::Malformed),
        }
        self.pump_writes(now, at, out);
    }

    pub(super) fn on_write_timeout(
        &mut self,
        now: Now,
        at: u16,
        generation: u32,
        target: u8,
        batch: u32,
        attempt: u8,
        out: &mut impl Outbox,
    ) {
        if !self.is_current(at, generation) {
            return;
        }
        let operation = &mut self.operations[usize::from(at)];
        operation.writes_in_flight -= 1;
        let holder = &mut operation.holders[usize::from(target)];
        holder.silences = holder.silences.saturating_add(1);
        if attempt < 2 && holder.silences < 3 {
            self.resend(now, at, usize::from(target), batch, out);
        } else {
            operation.written.silent += 1;
        }
        self.pump_writes(now, at, out);
    }

    fn resend(&mut self, now: Now, at: u16, target: usize, batch: u32, out: &mut impl Outbox) {
        match self.operations[usize::from(at)].task {
            Task::Spread => self.resend_batch(now, at, target, batch, out),
            _ => self.send_store(now, at, target, 2, out),
        }
    }

    fn finish_write(&mut self, now: Now, at: u16, out: &mut impl Outbox) {
        let operation = &mut self.operations[usize::from(at)];
        let written = core::mem::take(&mut operation.written);
        if operation.task == Task::Spread {
            self.counters.announces_refused += written.refused.iter().map(|(_, count)| u64::from(*count)).sum::<u64>();
            self.counters.announces_unanswered += u64::from(written.silent);
            self.spread_done(now, at);
        }
        self.complete(now, at, Answer::Written(written), Some(Finish::Exhausted), out);
    }

    fn complete(&mut self, now: Now, at: u16, answer: Answer, finish: Option<Finish>, out: &mut impl Outbox) {
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
            out.complete(command, Outcome { answer, finish, stats, asked });
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
    fn cancel_requests(&mut self, at: u16) {
        while let Some(correlation) = self.operations[usize::from(at)].in_flight.pop() {
            self.settle(correlation);
        }
    }

    /// Makes an operation free, at a cost that does not depend on how much it did.
    fn release(&mut self, at: u16) {
        self.cancel_requests(at);
        let operation = &mut self.operations[usize::from(at)];
        operation.task = Task::Idle;
        operation.command = None;
        operation.record = Vec::new();
        operation.spread = Spread::default();
        operation.generation = operation.generation.wrapping_add(1);
        if let Some(timer) = operation.timer.take() {
            self.timers.cancel(timer);
        }
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

/// When writes that their pace holds up are looked at again.
const PACE_MS: u64 = 50;

/// Requests of one operation for which room is reserved: as many as a lookup or a write has in flight by default.
const IN_FLIGHT_RESERVED: usize = 16;

/// Requests for other ids of the region that accompany a blind lookup's real ones.
const NEIGHBOUR_PROBES: usize = 3;
