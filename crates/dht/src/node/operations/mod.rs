//! Operations: lookups and writes, on behalf of commands and of the lane's own upkeep.
//!
//! An operation walks (`crate::lookup`), and if it is a write it then tells the holders that it found (`writes`, `announcing`).
//! What its end means is for others: it is reported as an effect, and the operation is released when that has been dealt with.

mod announcing;
mod answers;
mod operation;
mod tokens;
mod writes;

use alloc::boxed::Box;
use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_stdx::TokenBucket;

use super::command::{Answer, CommandId, Outcome, Privacy, Written};
use super::config::NodeConfig;
use super::context::{Context, Place};
use super::effects::Effect;
use super::pace_of;
use super::peers::{Peers, Question};
use super::requests::{Purpose, Request};
use crate::abuse::Offence;
use crate::contact::Contact;
use crate::identity::PublicKey;
use crate::keyed_lru::KeyedLru;
use crate::lookup::{Ask, Finish, Goal, Lookup, LookupConfig, LookupTotals, Standing};
use crate::record::check_provider_times;
use crate::rng::LaneRng;
use crate::routing::size_of_density;
use crate::seal::cookie::Scope;
use crate::wire::codec::Writer;
use crate::wire::message::{ANNOUNCED_BYTES, ErrorCode, Message, SignedProvider, Token, capability};
use crate::wire::{ANNOUNCED_IDS_MAX, CONTACTS_MAX, PROVIDER_PARTS_MAX};

pub(super) use announcing::Announcing;
use answers::Judged;
pub(super) use answers::is_lie;
use operation::{Operation, Phase, within};
pub(super) use operation::{OperationId, Start, Task};
use tokens::HeldTokens;
use writes::{Next, Write};

/// Contacts that a late step of a write's lookup asks for.
const CONTACTS_LATER: usize = 4;

/// When writes that their pace holds up are looked at again.
const PACE_MS: u64 = 50;

/// When a lookup is looked at again that may ask no candidate now: rather soon than at the end of its budget.
const RETRY_MS: u64 = 100;

/// Requests for other ids of the region that accompany a blind lookup's real ones.
const NEIGHBOUR_PROBES: usize = 3;

/// How a write ended.
#[derive(Debug)]
pub(super) struct WriteEnd {
    pub(super) id: ContentId,
    pub(super) written: Written,
    /// The record, of a put.
    pub(super) record: Option<Vec<u8>>,
    /// Of a put that gave a held record on: how often it was refused before by holders that were asked too often.
    pub(super) refusals: Option<u8>,
    /// What was announced, if no holder took any of it.
    pub(super) untaken: Option<Announcing>,
}

/// The operations of a lane.
#[derive(Debug)]
pub(super) struct Operations {
    #[expect(
        clippy::vec_box,
        reason = "one that is done gives its kilobyte back: a node that has joined seldom has any"
    )]
    slots: Vec<Box<Operation>>,
    tokens: HeldTokens,
    /// Highest sequences seen, so that a reader here never goes back.
    sequences: KeyedLru<[u8; 32], u64>,
    announce_pace: TokenBucket,
    totals: LookupTotals,
}

impl Operations {
    pub(super) fn new(place: &Place, rng: &mut LaneRng, now_ms: u64) -> Self {
        Self {
            slots: Vec::with_capacity(place.config.operations_max),
            sequences: KeyedLru::new(place.config.sequences_max, rng.u64()),
            tokens: HeldTokens::new(rng.u64()),
            announce_pace: announce_pace(place, now_ms),
            totals: LookupTotals::default(),
        }
    }

    pub(super) fn reserve_all(&mut self, config: &NodeConfig) {
        self.tokens.reserve_all();
        self.sequences.reserve_all();
        let room = self.slots.len()..config.operations_max;
        self.slots.extend(room.map(|at| Box::new(Operation::new(at as u16))));
    }

    /// The number of lanes changed, and with it this lane's share of the pace of announcements.
    pub(super) fn set_lanes(&mut self, place: &Place, now_ms: u64) {
        self.announce_pace = announce_pace(place, now_ms);
    }

    pub(super) fn totals(&self) -> &LookupTotals {
        &self.totals
    }

    /// Operations under way.
    pub(super) fn len(&self) -> usize {
        self.slots.iter().filter(|operation| operation.task != Task::Idle).count()
    }

    pub(super) fn token_bytes(&self) -> (usize, usize) {
        self.tokens.bytes()
    }

    pub(super) fn sequence_bytes(&self) -> (usize, usize) {
        self.sequences.bytes()
    }

    /// Whether something may begin that no command waits for: joining, refreshing, storing again, announcing. It leaves four operations to
    /// commands, but of few not more than half, as a lane that never joins serves no command either.
    pub(super) fn may_work_unasked(&self, place: &Place) -> bool {
        let most = place.config.operations_max;
        most - self.len() > (most / 2).min(4)
    }

    /// Whether another operation may begin at all.
    pub(super) fn has_room(&self, place: &Place) -> bool {
        self.len() < place.config.operations_max
    }

    /// The highest sequence of a mutable record that was seen here.
    pub(super) fn sequence_of(&mut self, id: &ContentId) -> Option<u64> {
        self.sequences.get(id.as_bytes()).copied()
    }

    pub(super) fn peek_sequence(&self, id: &ContentId) -> Option<u64> {
        self.sequences.peek(id.as_bytes()).copied()
    }

    pub(super) fn see_sequence(&mut self, id: &ContentId, sequence: u64) {
        let seen = self.sequences.get_or_insert_with(*id.as_bytes(), || sequence);
        *seen = sequence.max(*seen);
    }

    /// An operation that is under way.
    fn current(&mut self, id: OperationId) -> Option<&mut Operation> {
        let operation = self.slots.get_mut(usize::from(id.at))?;
        (operation.id == id && operation.task != Task::Idle).then_some(&mut **operation)
    }

    /// An operation that an effect names.
    fn named(&mut self, id: OperationId) -> &mut Operation {
        self.current(id).expect("an operation is released when its end has been dealt with")
    }

    /// Gives back the memory of operations that are free, but for those before one that is not.
    pub(super) fn drop_idle(&mut self, place: &Place) {
        if !place.config.reserve_memory {
            while self.slots.pop_if(|operation| operation.task == Task::Idle).is_some() {}
        }
    }

    /// Begins an operation; one for providers with those that are known `here`. False if there is no room for another operation.
    pub(super) fn begin<'p>(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        start: Start,
        here: impl Iterator<Item = &'p SignedProvider>,
    ) -> bool {
        let Some(id) = self.start(cx, peers, start) else { return false };
        let operation = self.named(id);
        for provider in here {
            // It was verified when it came; only its time may be over since.
            if check_provider_times(provider, cx.now.unix_secs()).is_ok() {
                operation.lookup.found_provider(&cx.place.own, provider);
                if let Some(command) = operation.command {
                    cx.out.found_provider(command, provider);
                }
            }
        }
        self.drive(cx, peers, id);
        true
    }

    /// Takes a free operation, and gives its lookup the contacts it begins with.
    fn start(&mut self, cx: &mut Context<'_>, peers: &mut Peers, start: Start) -> Option<OperationId> {
        let operation = self.free(cx.place)?;
        cx.counters.lookups_started += 1;
        let Start { task, target, goal, privacy, budget, .. } = start;
        operation.begin(cx.counters.lookups_started as u32, start);
        let is_blind = privacy == Privacy::Blind;
        let walk = if is_blind { blinded(cx, peers, &target) } else { target };
        let radius = match task {
            Task::Announce => operation.writes.announcing.radius(),
            _ => peers.members().radius_of(cx, cx.place.config.lookup.k),
        };
        let config = task.lookup_config(cx.place.config.lookup);
        // Of contacts that may all be gone, more are asked at once.
        let is_alone = peers.members().table().live_len() == 0;
        let alpha_min = if is_alone { config.alpha_max } else { config.alpha_min };
        let config = within(LookupConfig { alpha_min, ..config }, budget);
        let goal = if is_blind { Goal::Nodes } else { goal };
        operation.lookup.start(cx.now.mono_ms, config, walk, goal, radius);
        let point = ContentId::from_bytes(walk);
        offer_closest(cx, peers, &mut operation.lookup);
        if task == Task::Join
            && let Some(first) = peers.members_mut().take_first()
        {
            operation.lookup.offer_first(first.id(), first);
        }
        // Just started, or cut off: nobody is turned away while there is a lost or remembered contact or a seed to try.
        if is_alone {
            operation.offer_seeds(cx, peers);
            let is_usable = |contact: &Contact| !peers.is_quarantined(cx, &contact.key);
            peers.members().offer_remembered(&mut operation.lookup, is_usable);
        }
        peers.members_mut().refreshed(cx, &point);
        Some(operation.id)
    }

    /// A free operation, made if there is room for another.
    fn free(&mut self, place: &Place) -> Option<&mut Operation> {
        let free = self.slots.iter().position(|operation| operation.task == Task::Idle);
        let at = free.unwrap_or(self.slots.len());
        if at == self.slots.len() {
            if at == place.config.operations_max {
                return None;
            }
            self.slots.push(Box::new(Operation::new(at as u16)));
        }
        Some(&mut self.slots[at])
    }

    /// Sends what may be sent, and ends what has ended.
    fn drive(&mut self, cx: &mut Context<'_>, peers: &mut Peers, id: OperationId) {
        let Self { slots, tokens, .. } = self;
        let operation = &mut *slots[usize::from(id.at)];
        loop {
            if let Some(finish) = operation.lookup.finished(cx.now.mono_ms) {
                if finish == Finish::Exhausted && operation.offer_lost(cx, peers) {
                    continue;
                }
                self.end_lookup(cx, peers, id, finish);
                return;
            }
            if !peers.requests().has_room(operation.command.is_some()) {
                break; // No candidate is to blame for that: the next is asked when there is room.
            }
            let may_ask =
                |candidate: &crate::lookup::Candidate| peers.may_ask(cx, &candidate.id, &candidate.contact.key);
            let Some(ask) = operation.lookup.next(cx.now.mono_ms, may_ask) else { break };
            match send_step(cx, peers, operation, tokens, &ask) {
                Some(correlation) => operation.sent(correlation),
                None => operation.lookup.unsendable(&ask.id),
            }
        }
        let wake_ms = operation.lookup.wake_ms();
        let wake_ms = if !operation.lookup.waits() { wake_ms.min(cx.now.mono_ms + RETRY_MS) } else { wake_ms };
        operation.wake_at(cx, wake_ms.max(cx.now.mono_ms + 1));
    }

    pub(super) fn on_timer(&mut self, cx: &mut Context<'_>, peers: &mut Peers, id: OperationId) {
        if let Some(operation) = self.current(id) {
            operation.woken();
            if operation.phase.is_lookup() {
                self.drive(cx, peers, id);
            } else {
                self.pump_writes(cx, peers, id);
            }
        }
    }

    /// A step of a lookup was answered; `whole` if no other part of the answer is expected.
    pub(super) fn on_lookup_reply(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        (correlation, request, whole): (u64, &Request, bool),
        message: &Message<'_>,
    ) {
        let Purpose::Lookup { operation: id, peer, .. } = request.purpose else { return };
        let Some(operation) = self.current(id) else { return };
        if whole {
            operation.settled(correlation);
        }
        if !operation.phase.is_lookup() {
            return;
        }
        let is_relayed = request.id != peer;
        match message {
            Message::Relayed { kind, payload } => match Message::read_payload(*kind, payload) {
                Ok(inner) if !matches!(inner, Message::Relayed { .. }) => {
                    self.take_answer(cx, peers, id, (&peer, None), &inner, true);
                }
                _ => {
                    operation.lookup.requeue(&peer);
                    peers.offence(cx, &request.to.key, Offence::Malformed);
                }
            },
            Message::Error { code: ErrorCode::CookieRequired, .. } if is_relayed => {
                operation.lookup.requeue_through(&peer, request.id);
            }
            // A relay that says no speaks for itself: the peer is asked directly.
            _ if is_relayed => operation.lookup.requeue(&peer),
            answer => self.take_answer(cx, peers, id, (&peer, Some(request)), answer, whole),
        }
        self.drive(cx, peers, id);
    }

    /// Feeds one answer, or a part of one, to a lookup. `direct` is the request if the peer itself answered it; what came through a relay
    /// cannot be held against the peer.
    fn take_answer(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        id: OperationId,
        (peer, direct): (&NodeId, Option<&Request>),
        message: &Message<'_>,
        whole: bool,
    ) {
        let Self { slots, tokens, .. } = self;
        let operation = &mut *slots[usize::from(id.at)];
        let stores = direct.is_some_and(|request| matches!(request.purpose, Purpose::Lookup { stores: true, .. }));
        let secs = cx.now.unix_secs();
        let judged = answers::judge(message, &operation.lookup, stores, peers.sealer(), secs);
        let (token, closer, sequence) = match judged {
            Judged::Answer { token, closer, sequence } => (token, closer, sequence),
            Judged::TokenRefused => {
                tokens.forget(peer);
                return operation.lookup.requeue(peer);
            }
            Judged::WriteRefused(code) => {
                operation.lookup.refused(peer, code);
                return operation.writes.refused_early(code);
            }
            Judged::AskAgain => return operation.lookup.requeue(peer),
            Judged::Refused(code) => return operation.lookup.refused(peer, code),
            Judged::Lie(offence) => {
                cx.counters.records_invalid += u64::from(offence == Offence::InvalidRecord);
                operation.lookup.lied(peer);
                if let Some(request) = direct {
                    peers.offence(cx, &request.to.key, offence);
                }
                return;
            }
        };
        let is_about_target = operation.task != Task::Announce && !operation.sweeps_region();
        if matches!(message, Message::Nodes { .. }) && direct.is_some() && is_about_target {
            tokens.keep(cx.now.mono_ms, peer, &ContentId::from_bytes(*operation.lookup.target()), token);
        }
        let contacts = closer.iter().filter_map(|contact| {
            let id = peers.node_id(&contact.key);
            let may_dial = peers.members().may_dial(cx.place, &contact, &id);
            let usable = may_dial && id != cx.place.own && !peers.is_quarantined(cx, &contact.key);
            usable.then_some((id, contact))
        });
        let waited_for = if whole {
            operation.lookup.answered(cx.now.mono_ms, peer, token, contacts)
        } else {
            operation.lookup.heard(peer, token, contacts)
        };
        if !waited_for {
            return;
        }
        match message {
            Message::Stored { .. } => operation.lookup.took_record(peer),
            Message::Value { record: Some(record), .. } => {
                if let Some(sequence) = sequence {
                    operation.lookup.found_record(peer, record, sequence);
                }
            }
            Message::Providers { providers, next, .. } => {
                // One whose time is over, or has yet to come, was passed over without a look at its signature.
                for provider in providers.iter().filter(|provider| check_provider_times(provider, secs).is_ok()) {
                    let known = operation.lookup.providers().len();
                    operation.lookup.found_provider(peer, &provider);
                    if let Some(command) = operation.command
                        && operation.lookup.providers().len() > known
                    {
                        cx.out.found_provider(command, &provider);
                    }
                }
                if whole && *next > 0 {
                    operation.lookup.more_pages(peer, *next);
                }
            }
            _ => {}
        }
    }

    /// A step of a lookup was not answered in time, or not in full.
    pub(super) fn on_lookup_timeout(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        correlation: u64,
        request: &Request,
    ) {
        let Purpose::Lookup { operation: id, peer, stores } = request.purpose else { return };
        let Some(operation) = self.current(id) else { return };
        operation.settled(correlation);
        if !operation.phase.is_lookup() {
            return;
        }
        if let Some(next) = request.gap() {
            // Some parts of an answer came and the rest did not: the peer is asked on from where the gap starts.
            operation.lookup.heard_enough(cx.now.mono_ms, &peer, next);
        } else if stores {
            operation.lookup.write_timed_out(&peer);
            self.tokens.forget(&peer);
        } else if request.id == peer {
            operation.lookup.timed_out(cx.now.mono_ms, &peer);
            if operation.lookup.meets_silence() {
                operation.offer_seeds(cx, peers);
            }
            operation.give_up_lost(peers, &peer);
            operation.widen(cx, peers);
        } else {
            operation.lookup.requeue(&peer); // The silence was the relay's.
        }
        self.drive(cx, peers, id);
    }

    /// A lookup is over: go on to the writing, or report it.
    fn end_lookup(&mut self, cx: &mut Context<'_>, peers: &mut Peers, id: OperationId, finish: Finish) {
        let k = cx.place.config.lookup.k;
        let operation = &mut *self.slots[usize::from(id.at)];
        operation.cancel_requests(cx, peers);
        let is_cancelled = finish == Finish::Cancelled;
        if matches!(operation.phase, Phase::Blind | Phase::Around) && !is_cancelled {
            return self.unblind(cx, peers, id);
        }
        if !is_cancelled && operation.goes_around(cx, peers, finish) {
            return self.go_around(cx, peers, id);
        }
        let stats = operation.lookup.stats(cx.now.mono_ms);
        self.totals.record(finish, &stats);
        if finish == Finish::Exhausted {
            // Everybody within the K-th answer's distance was asked: a fair sample of how dense the space is there.
            let mut answered = operation.lookup.candidates().iter().filter(|c| c.standing == Standing::Answered);
            if let Some(farthest) = answered.nth(k - 1) {
                peers.members_mut().sample_size(cx.now, &operation.target, size_of_density(k, farthest.distance));
            }
        }
        match operation.task {
            Task::Put | Task::Announce if !is_cancelled => {
                operation.phase = Phase::Writing;
                if operation.task == Task::Put && matches!(finish, Finish::OutOfTime | Finish::OutOfRequests) {
                    operation.writes.unmet(operation.lookup.unheard() as u16);
                }
                operation.writes.take_holders(operation.task, &operation.lookup, k);
                if operation.task == Task::Put {
                    operation.writes.expect_holders(operation.holders_expected(cx, peers, finish) as u16);
                }
                self.pump_writes(cx, peers, id);
            }
            Task::Refresh => self.release(cx, peers, id),
            Task::Join => {
                self.release(cx, peers, id);
                cx.effects.push(Effect::LookedAround { is_answered: stats.answers > 0 });
            }
            _ => cx.effects.push(Effect::LookupEnded { operation: id, finish }),
        }
    }

    /// A walk to the target met a crowd, or silence where holders should be. What stands in front of them is nearer to the target than they are:
    /// another walk goes to a random point of the region, and comes to the target from there.
    fn go_around(&mut self, cx: &mut Context<'_>, peers: &mut Peers, id: OperationId) {
        let operation = &mut *self.slots[usize::from(id.at)];
        cx.counters.lookups_around += 1;
        operation.keep_first_walk(cx);
        operation.phase = Phase::Around;
        let walk = point_around(cx, peers, operation);
        let radius = peers.members().radius_of(cx, cx.place.config.lookup.k * operation.widths_around());
        let config = operation.task.lookup_config(cx.place.config.lookup);
        operation.lookup.start(cx.now.mono_ms, config, walk, Goal::Nodes, radius);
        offer_closest(cx, peers, &mut operation.lookup);
        self.drive(cx, peers, id);
    }

    /// The region is known; now ask those in it for the id itself, among requests for other ids near it.
    fn unblind(&mut self, cx: &mut Context<'_>, peers: &mut Peers, id: OperationId) {
        let Self { slots, sequences, .. } = self;
        let operation = &mut *slots[usize::from(id.at)];
        let target = operation.target;
        // Nobody is written to: the holders' places are free to remember who was found.
        if operation.first_walk.is_none() {
            operation.writes.clear();
        }
        operation.writes.take_found(&operation.lookup);
        let goal = match (operation.first_walk, operation.task) {
            (Some(first), _) => first.goal,
            (None, Task::Get { mutable: true }) => {
                Goal::Mutable { sequence_min: sequences.peek(&target).copied().unwrap_or(0) }
            }
            _ => Goal::Immutable,
        };
        operation.phase = Phase::Walking;
        let k = cx.place.config.lookup.k;
        let radius = peers.members().radius_of(cx, k * operation.widths_around());
        let is_private = operation.privacy == Privacy::Blind;
        let config = within(operation.task.lookup_config(cx.place.config.lookup), operation.budget);
        let spent = operation.lookup.stats(cx.now.mono_ms);
        operation.lookup.start(cx.now.mono_ms, config, target, goal, radius);
        if let Some(before) = &mut operation.first_walk {
            before.requests = before.requests.saturating_add(spent.requests);
            before.elapsed_ms = before.elapsed_ms.saturating_add(spent.elapsed_ms);
            operation.lookup.leave_out_asked();
            // A blind lookup shows its target to the region only, where the nearest of our own table need not be.
            if !is_private {
                offer_closest(cx, peers, &mut operation.lookup);
            }
            // Of the K nearest of our own table, the crowd may be most.
            if operation.task == Task::Put {
                let is_usable = |contact: &Contact| !peers.is_quarantined(cx, &contact.key);
                peers.members().offer_next(&mut operation.lookup, k, is_usable);
            }
        }
        for holder in operation.writes.found() {
            operation.lookup.offer(holder.id, holder.contact, None);
        }
        for holder in operation.writes.found().iter().rev().take(if is_private { NEIGHBOUR_PROBES } else { 0 }) {
            let decoy = blinded(cx, peers, &target);
            let message = Message::FindValue { id: ContentId::from_bytes(decoy), sequence_min: 0 };
            let (to, id, purpose) = (holder.contact, holder.id, Purpose::Verify);
            peers.ask(cx, Question { to, id, about: &decoy, message, purpose });
        }
        operation.writes.clear();
        self.drive(cx, peers, id);
    }

    /// Sends the writes that may be sent, and reports the end of the operation when none is left.
    fn pump_writes(&mut self, cx: &mut Context<'_>, peers: &mut Peers, id: OperationId) {
        let Self { slots, announce_pace, .. } = self;
        let operation = &mut *slots[usize::from(id.at)];
        loop {
            if operation.writes.in_flight() >= cx.place.config.writes_in_flight_max {
                return;
            }
            let next = match peers.requests().has_room(operation.command.is_some()) {
                true => operation.writes.next(cx.now, operation.task, announce_pace),
                false => Next::Later,
            };
            match next {
                Next::Write(write) => send_write(cx, peers, operation, write),
                Next::Later => return operation.wake_at(cx, cx.now.mono_ms + PACE_MS),
                Next::Done => break,
            }
        }
        if operation.writes.in_flight() == 0 {
            cx.effects.push(Effect::WriteEnded { operation: id, finish: Finish::Exhausted });
        }
    }

    /// A holder answered a write, or was silent if there is no `message`.
    pub(super) fn on_write_reply(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        correlation: u64,
        purpose: &Purpose,
        message: Option<&Message<'_>>,
    ) {
        let Purpose::Write { operation: id, holder, batch, attempt } = *purpose else { return };
        let Some(operation) = self.current(id) else { return };
        operation.settled(correlation);
        let write = Write { holder, batch, attempt };
        let again = match message {
            Some(message) => {
                let (not_kept, again) = operation.writes.answered(cx.now, write, operation.task, message);
                cx.counters.announces_not_kept += u64::from(not_kept);
                again
            }
            None => operation.writes.timed_out(write),
        };
        if let Some(write) = again {
            send_write(cx, peers, operation, write);
        }
        self.pump_writes(cx, peers, id);
    }

    /// Ids that this node announces no more: what is under way tells no further holder of them. A holder that has been told forgets it in time, but
    /// one told after the caller was answered would name this node for a lifetime from then.
    pub(super) fn withdraw(&mut self, own: &PublicKey, ids: &[ContentId]) {
        let announces = |operation: &&mut Box<Operation>| operation.task == Task::Announce;
        for operation in self.slots.iter_mut().filter(announces) {
            ids.iter().for_each(|id| operation.writes.announcing.withdraw(own, id));
        }
    }

    /// Gives up the operation of a command. False if it is not under way.
    pub(super) fn cancel(&mut self, cx: &mut Context<'_>, peers: &mut Peers, command: CommandId) -> bool {
        let mut busy = self.slots.iter_mut().filter(|operation| operation.task != Task::Idle);
        let Some(operation) = busy.find(|operation| operation.command == Some(command)) else { return false };
        let (id, finish) = (operation.id, Finish::Cancelled);
        operation.lookup.cancel();
        if operation.phase.is_lookup() {
            self.end_lookup(cx, peers, id, finish);
        } else {
            cx.effects.push(Effect::WriteEnded { operation: id, finish });
        }
        true
    }

    pub(super) fn task_of(&mut self, id: OperationId) -> Task {
        self.named(id).task
    }

    /// The id that an operation is about, and the record that its lookup found.
    pub(super) fn target_of(&mut self, id: OperationId) -> (ContentId, Option<Vec<u8>>) {
        let operation = self.named(id);
        (operation.content_id(), operation.lookup.record().map(<[u8]>::to_vec))
    }

    /// Whether the lookup of an operation that found nothing says that there is nothing.
    pub(super) fn is_conclusive(&mut self, cx: &Context<'_>, peers: &Peers, id: OperationId, finish: Finish) -> bool {
        let operation = self.named(id);
        operation.is_conclusive(cx, peers, finish)
    }

    /// The answer to a lookup that no other component has a say in.
    pub(super) fn answer(&mut self, cx: &Context<'_>, id: OperationId) -> Answer {
        let operation = self.named(id);
        match operation.task {
            Task::FindProviders => Answer::Providers(operation.lookup.providers().to_vec()),
            Task::Put | Task::Announce => Answer::Written(operation.writes.result(cx.place.config.put_quorum_percent)),
            _ => {
                let holders = operation.lookup.holders().take(cx.place.config.lookup.k);
                Answer::Nodes(holders.map(|candidate| candidate.contact).collect())
            }
        }
    }

    /// Takes what a write came to.
    pub(super) fn take_write(&mut self, cx: &mut Context<'_>, id: OperationId) -> WriteEnd {
        let operation = self.named(id);
        let (id, is_put) = (operation.content_id(), operation.task == Task::Put);
        let writes = &mut operation.writes;
        let written = writes.result(cx.place.config.put_quorum_percent);
        if !is_put {
            cx.counters.announces_refused += written.refused.iter().map(|(_, count)| u64::from(*count)).sum::<u64>();
            cx.counters.announces_unanswered += u64::from(written.silent);
        }
        let untaken = (!is_put && !writes.is_acknowledged()).then(|| core::mem::take(&mut writes.announcing));
        let record = is_put.then(|| core::mem::take(&mut writes.record));
        WriteEnd { id, written, record, refusals: writes.refusals, untaken }
    }

    /// Ends an operation. Returns what its command is told.
    pub(super) fn complete(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        id: OperationId,
        answer: Answer,
        finish: Finish,
    ) -> Option<(CommandId, Outcome)> {
        let operation = self.named(id);
        let told = operation.command.map(|command| (command, operation.outcome(cx, answer, finish)));
        self.release(cx, peers, id);
        told
    }

    /// Makes an operation free, at a cost that does not depend on how much it did.
    fn release(&mut self, cx: &mut Context<'_>, peers: &mut Peers, id: OperationId) {
        let operation = &mut self.slots[usize::from(id.at)];
        operation.cancel_requests(cx, peers);
        let is_commanded = operation.command.is_some();
        operation.release(cx);
        // After a command the next is likely; what goes on in the background comes seldom.
        if !is_commanded {
            self.drop_idle(cx.place);
        }
    }

    /// Tells the nearest node that answered without the record what it was missing.
    pub(super) fn hint_cache(&mut self, cx: &mut Context<'_>, peers: &mut Peers, id: OperationId, record: &[u8]) {
        let operation = self.named(id);
        if !cx.place.config.cache_hints || operation.privacy != Privacy::None {
            return;
        }
        let mut candidates = operation.lookup.candidates().iter();
        let missed = candidates.find(|candidate| candidate.standing == Standing::Answered && !candidate.had_result);
        if let Some(missed) = missed
            && let Some(token) = missed.token
        {
            let hint = Message::CacheHint { token, record };
            peers.notify(cx, &missed.contact, &missed.id, &operation.target, &hint);
        }
    }
}

/// This lane's share of the pace of announcements; a tenth of a second's worth may go at once.
fn announce_pace(place: &Place, now_ms: u64) -> TokenBucket {
    pace_of(place, place.config.announces_per_sec, 10, now_ms)
}

/// Asks one candidate of a lookup. Returns the correlation id, or `None` if it cannot be asked.
fn send_step(
    cx: &mut Context<'_>,
    peers: &mut Peers,
    operation: &mut Operation,
    tokens: &mut HeldTokens,
    ask: &Ask,
) -> Option<u64> {
    let (mut target, mut scope) = (*operation.lookup.target(), Scope::WIDEST);
    if operation.task == Task::Put
        && operation.phase == Phase::Walking
        && let Some(token) = tokens.of(cx.now.mono_ms, &ask.id, &ContentId::from_bytes(target))
    {
        return store_at_once(cx, peers, operation, ask, token);
    }
    if operation.task == Task::Announce
        && let Some(bits) = operation.writes.announcing.region_bits()
    {
        // An answer names those nearest to one point. To meet everybody of a region, ask about points all over it, and
        // for a token that is good for all of it.
        target = random_point(cx.rng, &target, bits);
        scope = Scope::region(bits);
    }
    if operation.sweeps_region() {
        // A crowd fills most of each answer about a point that it is nearest to, and those of the target's holders that are farther are in none.
        target = point_around(cx, peers, operation);
    }
    let id = ContentId::from_bytes(target);
    let is_relayed = operation.privacy == Privacy::Relay && ask.first_leg;
    let message = match operation.lookup.goal() {
        Goal::Nodes => Message::FindNode { target, scope },
        Goal::Immutable => Message::FindValue { id, sequence_min: 0 },
        Goal::Mutable { sequence_min } => Message::FindValue { id, sequence_min },
        // A relay hands on one datagram, so it is asked for one.
        Goal::Providers { .. } => {
            let parts_max = if is_relayed { 1 } else { PROVIDER_PARTS_MAX as u8 };
            Message::GetProviders { id, page: ask.page, parts_max }
        }
    };
    let purpose = Purpose::Lookup { operation: operation.id, peer: ask.id, stores: false };
    if is_relayed && let Some(relay) = relay_for(cx, peers, ask, &target) {
        let mut payload = [0; 64];
        let mut writer = Writer::new(&mut payload);
        if message.write_payload(&mut writer).is_ok() {
            let len = writer.len();
            let wrapped = Message::Relay { to: ask.contact, kind: message.kind(), payload: &payload[..len] };
            let relay_id = peers.node_id(&relay.key);
            return peers.ask(cx, Question::to(relay, &relay_id, wrapped, purpose));
        }
    }
    peers.ask(cx, Question { to: ask.contact, id: ask.id, about: &target, message, purpose })
}

/// A step of the lookup that is the write itself, with a token from before.
fn store_at_once(
    cx: &mut Context<'_>,
    peers: &mut Peers,
    operation: &mut Operation,
    ask: &Ask,
    token: Token,
) -> Option<u64> {
    // The first few name everybody there is. Of as many as are asked at once, only a node very near would be news, and the rest are not
    // asked for more: a node that names contacts has to look for them. Where those that were named are gone, it takes more to know who
    // is left.
    let LookupConfig { alpha_min: few, alpha_max: more, .. } = cx.place.config.lookup;
    let closer_max = match operation.lookup.well_informed() {
        rank if rank <= few => CONTACTS_MAX,
        rank if rank <= more => CONTACTS_LATER,
        _ => 0,
    };
    let message = Message::Store { token, closer_max: closer_max as u8, record: &operation.writes.record };
    let purpose = Purpose::Lookup { operation: operation.id, peer: ask.id, stores: true };
    let question = Question { to: ask.contact, id: ask.id, about: &operation.target, message, purpose };
    let sent = peers.ask(cx, question);
    if sent.is_some() {
        operation.lookup.writes_to(&ask.id);
    }
    sent
}

/// Sends a holder its record or announcements.
fn send_write(cx: &mut Context<'_>, peers: &mut Peers, operation: &mut Operation, write: Write) {
    let writes = &operation.writes;
    let holder = writes.holder(write.holder);
    let Write { holder: at, batch, attempt } = write;
    let purpose = Purpose::Write { operation: operation.id, holder: at, batch, attempt };
    let mut list;
    let (about, message) = if operation.task == Task::Announce {
        list = [0; ANNOUNCED_IDS_MAX * ANNOUNCED_BYTES];
        let Some((announcement, first)) = writes.announcing.batch(usize::from(at), batch, &mut list) else { return };
        cx.counters.announces_sent += 1;
        (*first.as_bytes(), Message::Announce { token: holder.token, announcement })
    } else {
        (operation.target, Message::Store { token: holder.token, closer_max: 0, record: &writes.record })
    };
    let question = Question { to: holder.contact, id: holder.id, about: &about, message, purpose };
    let sent = peers.ask(cx, question);
    operation.writes.sent(write, sent.is_some());
    if let Some(correlation) = sent {
        operation.sent(correlation);
    }
}

/// Gives a lookup the nearest of the table.
fn offer_closest(cx: &Context<'_>, peers: &Peers, lookup: &mut Lookup) {
    let (table, point) = (peers.members().table(), ContentId::from_bytes(*lookup.target()));
    let config = &cx.place.config.lookup;
    let is_usable = |contact: &Contact| !peers.is_quarantined(cx, &contact.key);
    let closest = table.closest(&point, config.k.max(config.paths * 4), |peer| is_usable(&peer.contact));
    for peer in table.peers_of(&closest) {
        lookup.offer(peer.id, peer.contact, peer.round_trip.srtt_ms());
    }
}

/// A point that shares only the target's region: what it lies in, not what it is.
fn blinded(cx: &mut Context<'_>, peers: &Peers, target: &[u8; 32]) -> [u8; 32] {
    let shared = region_bits(cx, peers);
    random_point(cx.rng, target, shared)
}

/// A point of the region by way of which a walk goes around. That of a sweep is half as wide: wherever the walk goes in it, all of it lies within
/// the walk's radius.
fn point_around(cx: &mut Context<'_>, peers: &Peers, operation: &Operation) -> [u8; 32] {
    let shared = region_bits(cx, peers) + u32::from(operation.sweeps_region());
    random_point(cx.rng, &operation.target, shared)
}

/// How many bits all points of a target's region share.
fn region_bits(cx: &Context<'_>, peers: &Peers) -> u32 {
    peers.members().radius_of(cx, cx.place.config.lookup.k * 2).leading_zeros()
}

/// The node that asks in our place: the relay that has just seen where we are, or one from another part of the space than the target, which
/// should not be among those asked later.
fn relay_for(cx: &mut Context<'_>, peers: &Peers, ask: &Ask, target: &[u8; 32]) -> Option<Contact> {
    let known = ask.relay.and_then(|id| peers.members().table().get(&id)).map(|peer| peer.contact);
    known.or_else(|| {
        let own = cx.place.own;
        let bucket = own.distance_to(&ContentId::from_bytes(*target)).leading_zeros();
        peers.pick(cx, |candidate| {
            candidate.capabilities & capability::RELAYS != 0
                && candidate.id != ask.id
                && own.distance_to(&candidate.id).leading_zeros() != bucket
        })
    })
}

/// A random point that shares the first `bits` bits of `point`.
fn random_point(rng: &mut LaneRng, point: &[u8; 32], bits: u32) -> [u8; 32] {
    let mut random: [u8; 32] = rng.bytes();
    for bit in 0..bits.min(256) as usize {
        let mask = 0x80 >> (bit % 8);
        random[bit / 8] = random[bit / 8] & !mask | point[bit / 8] & mask;
    }
    random
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::LaneNode;
    use crate::node::lone_lane::{Sent, T, contact, lane};
    use crate::node::membership::LOST_PER_ROUND;
    use crate::node::requests::Purpose;
    use crate::seal::cookie::Scope;
    use crate::wire::message::kind;
    use alloc::collections::BTreeSet;

    /// What tests of other components look at.
    impl Operations {
        pub(crate) fn announce_pace_mut(&mut self) -> &mut TokenBucket {
            &mut self.announce_pace
        }
    }

    #[test]
    fn a_lookup_without_a_result_asks_the_nearest_lost_and_spares_and_more_while_they_answer() {
        let mut lane = lane();
        let is_far = |n: &u8| (contact(*n).id().as_bytes()[0] ^ lane.place.own.as_bytes()[0]) & 0x80 != 0;
        let far: Vec<_> = (0..=255).filter(is_far).map(contact).collect();
        let (live, rest) = far.split_at(lane.table().k());
        let (spares, lost) = (&rest[..6], &rest[6..12]);
        for contact in live.iter().chain(spares) {
            lane.table_mut().answered(T.mono_ms, contact.id(), *contact, Some(10));
        }
        for contact in lost {
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, *contact, contact.id()));
        }
        assert_eq!((lane.table().live_len(), lane.table().len()), (live.len(), live.len() + spares.len()));
        let target = [0x77; 32];
        let task = Task::Get { mutable: false };
        assert!(lane.act(T, |lane, cx| lane.begin_for(cx, task, None, target, Goal::Immutable)).is_none());
        let mut nearest = rest[..12].to_vec();
        nearest.sort_by_key(|contact| contact.id().distance_to(&ContentId::from_bytes(target)));
        let known = |lane: &LaneNode| {
            nearest
                .iter()
                .map(|contact| lane.router.operations.slots[0].lookup.knows(&contact.id()))
                .collect::<Vec<_>>()
        };
        assert_eq!(known(&lane), [false; 12]);
        assert!(lane.act(T, |lane, cx| lane.operations.slots[0].offer_lost(cx, &lane.peers)));
        assert_eq!(known(&lane)[..5], [true, true, true, true, false]);
        assert!(
            !lane.act(T, |lane, cx| lane.operations.slots[0].offer_lost(cx, &lane.peers)),
            "nobody has answered since"
        );
        let lookup = &mut lane.router.operations.slots[0].lookup;
        let asked = lookup.candidates().iter().find(|candidate| candidate.standing == Standing::Asked).unwrap().id;
        assert!(lookup.answered(T.mono_ms, &asked, [1; 16], core::iter::empty()));
        assert!(lane.act(T, |lane, cx| lane.operations.slots[0].offer_lost(cx, &lane.peers)));
        assert_eq!(known(&lane)[..9], [true, true, true, true, true, true, true, true, false]);
    }

    #[test]
    fn the_more_are_silent_the_more_are_asked_where_somebody_waits_for_it_and_else_no_more() {
        for (task, asks_more) in
            [(Task::FindNode, true), (Task::Put, true), (Task::Join, false), (Task::Refresh, false)]
        {
            let (mut lane, mut sent) = (lane(), Sent::default());
            for contact in (100..200).map(contact) {
                lane.table_mut().answered(T.mono_ms, contact.id(), contact, Some(10));
            }
            let began_with = lane.place.config.lookup.k;
            lane.with(T, &mut sent, |lane, cx| lane.begin_for(cx, task, None, [0x77; 32], Goal::Nodes));
            assert_eq!(lane.router.operations.slots[0].lookup.candidates().len(), began_with);
            // Nobody ever answers.
            let mut now = T;
            while lane.router.operations.len() > 0 {
                now = now.later(core::time::Duration::from_millis(10));
                lane.on_time(now, &mut sent);
            }
            let asked: BTreeSet<_> = sent.0.iter().map(|(to, _)| *to).collect();
            assert_eq!(asked.len() > began_with, asks_more, "{task:?}: {} were asked", asked.len());
            assert!(asked.len() >= began_with, "{task:?}: {} were asked", asked.len());
        }
    }

    #[test]
    fn a_write_that_meets_a_crowd_goes_to_more_of_its_own_table_than_the_crowd_has_places_of() {
        let mut lane = lane();
        for contact in (100..200).map(contact) {
            lane.table_mut().answered(T.mono_ms, contact.id(), contact, Some(10));
        }
        let target = [0x77; 32];
        let in_crowd = |n: u8| {
            let mut id = target;
            id[31] = n;
            (NodeId::from_bytes(id), contact(n))
        };
        lane.act(T, |lane, cx| lane.begin_for(cx, Task::Put, None, target, Goal::Nodes));
        let mut phases = Vec::new();
        while lane.router.operations.slots[0].phase != Phase::Walking || phases.last() != Some(&Phase::Around) {
            phases.push(lane.router.operations.slots[0].phase);
            let lookup = &mut lane.router.operations.slots[0].lookup;
            let asked = lookup.candidates().iter().filter(|candidate| candidate.standing == Standing::Asked);
            for id in asked.map(|candidate| candidate.id).collect::<Vec<_>>() {
                lookup.answered(T.mono_ms, &id, [1; 16], (1..9).map(in_crowd));
            }
            let id = lane.router.operations.slots[0].id;
            lane.act(T, |lane, cx| lane.operations.drive(cx, &mut lane.peers, id));
        }
        let nearest = lane.table().closest(&ContentId::from_bytes(target), crate::routing::K_MAX, |_| true);
        let lookup = &lane.router.operations.slots[0].lookup;
        let known = lane.table().peers_of(&nearest).filter(|peer| lookup.knows(&peer.id)).count();
        assert_eq!(known, crate::routing::K_MAX);
    }

    /// A lane that knows twenty contacts, all alive and none a spare, and lost thirty.
    fn with_lost() -> LaneNode {
        let mut lane = lane();
        for contact in (100..120).map(contact) {
            lane.table_mut().answered(T.mono_ms, contact.id(), contact, Some(10));
        }
        for contact in (200..230).map(contact) {
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, contact, contact.id()));
        }
        lane
    }

    fn known(lane: &LaneNode) -> usize {
        (200..230).filter(|n| lane.router.operations.slots[0].lookup.knows(&contact(*n).id())).count()
    }

    #[test]
    fn only_what_somebody_waits_to_find_asks_the_lost() {
        for (task, goal, asks) in [
            (Task::Get { mutable: false }, Goal::Immutable, true),
            (Task::FindProviders, Goal::Providers { limit: 1 }, true),
            (Task::FindNode, Goal::Nodes, false),
            (Task::Put, Goal::Nodes, false),
            (Task::Join, Goal::Nodes, false),
            (Task::Refresh, Goal::Nodes, false),
        ] {
            let mut lane = with_lost();
            lane.act(T, |lane, cx| lane.begin_for(cx, task, None, [0x77; 32], goal));
            assert_eq!(
                (lane.act(T, |lane, cx| lane.operations.slots[0].offer_lost(cx, &lane.peers)), known(&lane)),
                (asks, if asks { LOST_PER_ROUND } else { 0 }),
                "{task:?}"
            );
        }
    }

    #[test]
    fn the_lost_are_asked_in_four_rounds_at_most_however_many_answer() {
        let mut lane = with_lost();
        let task = Task::Get { mutable: false };
        lane.act(T, |lane, cx| lane.begin_for(cx, task, None, [0x77; 32], Goal::Immutable));
        for round in 1..=operation::LOST_ROUNDS_MAX + 2 {
            assert_eq!(
                lane.act(T, |lane, cx| lane.operations.slots[0].offer_lost(cx, &lane.peers)),
                round <= operation::LOST_ROUNDS_MAX,
                "round {round}"
            );
            let lookup = &mut lane.router.operations.slots[0].lookup;
            let asked = lookup.candidates().iter().find(|candidate| candidate.standing == Standing::Asked);
            let asked =
                asked.map(|candidate| candidate.id).or_else(|| lookup.next(T.mono_ms, |_| true).map(|ask| ask.id));
            assert!(lookup.answered(T.mono_ms, &asked.unwrap(), [1; 16], core::iter::empty()));
        }
        assert_eq!(known(&lane), LOST_PER_ROUND * usize::from(operation::LOST_ROUNDS_MAX));
    }

    #[test]
    fn a_lost_contact_in_quarantine_is_not_asked() {
        let mut lane = with_lost();
        for key in (200..230).map(|n| contact(n).key) {
            while !lane.router.peers.admission().is_quarantined(T, &key) {
                lane.router.peers.admission_mut().offence(T, &key, crate::abuse::Offence::InvalidRecord);
            }
        }
        let task = Task::Get { mutable: false };
        lane.act(T, |lane, cx| lane.begin_for(cx, task, None, [0x77; 32], Goal::Immutable));
        lane.act(T, |lane, cx| lane.operations.slots[0].offer_lost(cx, &lane.peers));
        assert_eq!(known(&lane), 0);
    }

    #[test]
    fn who_is_lost_and_waits_for_a_place_too_is_offered_once() {
        let mut lane = lane();
        let is_far = |n: &u8| (contact(*n).id().as_bytes()[0] ^ lane.place.own.as_bytes()[0]) & 0x80 != 0;
        let far: Vec<_> = (0..=255).filter(is_far).map(contact).take(lane.table().k() + 6).collect();
        let back = &far[lane.table().k()..];
        for contact in back {
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, *contact, contact.id()));
        }
        for contact in &far {
            lane.table_mut().answered(T.mono_ms, contact.id(), *contact, Some(10));
        }
        assert_eq!(lane.table().iter_spares().count(), back.len());
        let task = Task::Get { mutable: false };
        lane.act(T, |lane, cx| lane.begin_for(cx, task, None, [0x77; 32], Goal::Immutable));
        assert!(lane.act(T, |lane, cx| lane.operations.slots[0].offer_lost(cx, &lane.peers)));
        let offered = back.iter().filter(|contact| lane.router.operations.slots[0].lookup.knows(&contact.id())).count();
        assert_eq!(offered, LOST_PER_ROUND);
    }

    #[test]
    fn a_lookup_that_knows_nobody_alive_begins_with_as_many_lost_as_remembered_ones() {
        // So many lost and remembered contacts, and so many of each it begins with.
        for (lost, remembered, of_lost, of_remembered) in
            [(30, 30, 8, 8), (30, 0, 16, 0), (0, 30, 0, 16), (30, 3, 13, 3), (3, 30, 3, 13), (8, 8, 8, 8), (2, 2, 2, 2)]
        {
            let mut lane = lane();
            let (lost, remembered) = (100..100 + lost, 200..200 + remembered);
            for contact in lost.clone().map(contact) {
                lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, contact, contact.id()));
            }
            // Most of those who were met before the last start were met again since.
            for contact in remembered.clone().chain(lost.clone()).map(contact) {
                lane.act(T, |lane, cx| lane.peers.members_mut().remember(cx.place, contact));
            }
            lane.act(T, |lane, cx| lane.begin_for(cx, Task::FindNode, None, [0x77; 32], Goal::Nodes));
            let known = |n: &u8| lane.router.operations.slots[0].lookup.knows(&contact(*n).id());
            let begins_with = (lost.filter(known).count(), remembered.filter(known).count());
            assert_eq!(begins_with, (of_lost, of_remembered));
        }
    }

    #[test]
    fn relays_that_know_where_we_are_come_first_and_without_one_any_will_do() {
        let mut lane = lane();
        // Nobody is in the bucket of the nearest ids.
        let (target, asked) = (
            *lane.place.own.as_bytes(),
            Ask { id: contact(9).id(), contact: contact(9), page: 0, first_leg: true, relay: None },
        );
        let relays: Vec<Contact> = (10..30).map(contact).collect();
        for relay in &relays {
            lane.table_mut().answered(T.mono_ms, relay.id(), *relay, Some(10));
            lane.table_mut().get_mut(&relay.id()).unwrap().capabilities = capability::RELAYS;
        }
        let picked = |lane: &mut LaneNode| {
            (0..200)
                .map(|_| lane.act(T, |lane, cx| relay_for(cx, &lane.peers, &asked, &target)).unwrap().addr)
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(picked(&mut lane).len(), relays.len());
        let knowing = &relays[5..8];
        for relay in knowing {
            lane.act(T, |lane, cx| lane.peers.verify(cx, *relay, relay.id()));
            lane.keep_cookie(&relay.key, [7; 8]);
        }
        assert_eq!(picked(&mut lane), knowing.iter().map(|relay| relay.addr).collect());
    }

    #[test]
    fn a_token_that_came_through_a_relay_is_not_kept() {
        // Who answers itself, and whom a relay speaks for. A token names whom it was given to, and that was the relay; or the relay made it
        // up, and a node that is shown it blames us.
        for (through_relay, is_kept) in [(false, true), (true, false)] {
            let (mut lane, mut sent) = (lane(), Sent::default());
            let (asked, peer) = (contact(10), contact(11));
            lane.table_mut().answered(T.mono_ms, peer.id(), peer, Some(10));
            let (target, goal) = (*contact(12).id().as_bytes(), Goal::Immutable);
            lane.with(T, &mut sent, |lane, cx| lane.begin_for(cx, Task::Get { mutable: false }, None, target, goal));
            let operation = lane.router.operations.slots[0].id;
            let to = if through_relay { asked } else { peer };
            let purpose = Purpose::Lookup { operation, peer: peer.id(), stores: false };
            assert!(lane.with(T, &mut sent, |lane, cx| lane.request(
                cx,
                to,
                to.id(),
                &target,
                &Message::Ping,
                purpose
            )));
            let (correlation, request) = lane.router.peers.requests().first();
            assert_eq!(request.id, to.id());
            let mut payload = [Scope::WIDEST.to_wire(); 17];
            payload[16] = 0;
            let nodes = Message::read_payload(kind::NODES, &payload).unwrap();
            let relayed = Message::Relayed { kind: kind::NODES, payload: &payload };
            let message = if through_relay { relayed } else { nodes };
            lane.with(T, &mut sent, |lane, cx| {
                lane.operations.on_lookup_reply(cx, &mut lane.peers, (correlation, &request, true), &message)
            });
            let token = lane.router.operations.tokens.of(T.mono_ms, &peer.id(), &ContentId::from_bytes(target));
            assert_eq!(token.is_some(), is_kept, "through a relay: {through_relay}");
        }
    }
}
