//! Routes events to components, and the effects of components to those above them.
//!
//! No rule of the protocol is here: which component an event is for, in which order the parts of a tick come, and the consequences of an
//! effect.

use alloc::vec;
use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, Point as _};

use super::admission::{Admission, refusal};
use super::command::{Answer, Budget, Command, CommandId, Outcome, Written};
use super::config::NodeConfig;
use super::context::{Context, Place};
use super::effects::Effect;
use super::link::Link;
use super::log::log_kind;
use super::membership::Membership;
use super::operations::{OperationId, Operations, Start, Task};
use super::outbox::message_kind;
use super::peers::{Answered, Incoming, Peers, Question, Received};
use super::republishing::{NextAnnounced, NextStem, Republishing};
use super::requests::{Purpose, Request, Requests, Timer};
use super::server::Server;
use crate::abuse::Abuse;
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::AnyCrypto;
use crate::lookup::{Finish, Goal, PROVIDERS_FOUND_MAX};
use crate::record::RecordView;
use crate::rng::LaneRng;
use crate::seal::cookie::Proofs;
use crate::seal::keys::NetworkKey;
use crate::store::NotKept;
use crate::store::records::judge_versions;
use crate::time::Now;
use crate::wire::message::{CONTACT_BYTES, ErrorCode, Message};

/// The components of a lane, from the lowest to the highest.
#[derive(Debug)]
pub(super) struct Router {
    pub(super) peers: Peers,
    pub(super) operations: Operations,
    pub(super) server: Server,
    pub(super) republishing: Republishing,
}

impl Router {
    pub(super) fn new(place: &Place, crypto: AnyCrypto, rng: &mut LaneRng, now: Now) -> Self {
        let network = NetworkKey::of_name(&place.config.network);
        let proofs = Proofs::new(&crypto, &network);
        let link = Link::new(place, crypto, network, rng, now);
        let server = Server::new(place, rng, now);
        let admission = Admission::new(Abuse::new(place.config.abuse, place.lanes(), rng), proofs);
        let requests = Requests::new(&place.config, rng);
        Self {
            peers: Peers::new(link, requests, admission, Membership::new(place)),
            operations: Operations::new(place, rng, now.mono_ms),
            server,
            republishing: Republishing::new(place, now.mono_ms),
        }
    }

    /// Takes all memory that the lane's tables and queues may ever need.
    pub(super) fn reserve_all(&mut self, config: &NodeConfig) {
        self.peers.reserve_all();
        self.operations.reserve_all(config);
        self.server.reserve_all(config);
        self.republishing.reserve_all();
    }

    /// The map of slots to lanes has changed, and with it this lane's share of all limits.
    pub(super) fn on_map(&mut self, place: &Place, now_ms: u64) {
        self.peers.set_lanes(place.lanes());
        self.operations.set_lanes(place, now_ms);
        self.republishing.set_lanes(place, now_ms);
    }

    /// Handles the effects of components.
    fn route(&mut self, cx: &mut Context<'_>) {
        while let Some(effect) = cx.effects.pop() {
            match effect {
                Effect::LookedAround { is_answered } => {
                    if self.peers.members_mut().looked_around(cx.place, is_answered) {
                        cx.tick_soon();
                    }
                }
                Effect::LookupEnded { operation, finish } => {
                    let answer = match self.operations.task_of(operation) {
                        Task::Get { mutable } => self.answer_get(cx, operation, mutable, finish),
                        Task::FindProviders => self.answer_providers(cx, operation, finish),
                        _ => self.operations.answer(cx, operation),
                    };
                    self.complete(cx, operation, answer, finish);
                }
                Effect::WriteEnded { operation, finish } => {
                    let mut end = self.operations.take_write(cx, operation);
                    self.republishing.on_write_ended(cx, self.server.ledger_mut(), &mut end);
                    self.complete(cx, operation, Answer::Written(end.written), finish);
                }
            }
        }
    }

    /// Ends an operation, and tells its command: of a put that is to be kept alive when the log has it.
    fn complete(&mut self, cx: &mut Context<'_>, operation: OperationId, answer: Answer, finish: Finish) {
        let (id, _) = self.operations.target_of(operation);
        let waits_for_log =
            self.operations.task_of(operation) == Task::Put && self.republishing.alive().get(&id).is_some();
        match self.operations.complete(cx, &mut self.peers, operation, answer, finish) {
            Some((command, outcome)) if waits_for_log => self.server.ledger_mut().complete(cx, command, outcome),
            Some((command, outcome)) => cx.out.complete(command, outcome),
            None => {}
        }
    }

    #[inline]
    pub(super) fn on_datagram(&mut self, cx: &mut Context<'_>, from: Addr, datagram: &mut [u8], hops: u8) {
        match self.peers.receive(cx, from, datagram, hops) {
            Some(Incoming::Message(received)) if received.envelope.message.is_reply() => self.on_reply(cx, &received),
            Some(Incoming::Message(received)) => self.on_request(cx, &received),
            Some(Incoming::Challenge { request, correlation }) => self.on_challenge(cx, &request, correlation),
            None => {}
        }
    }

    #[inline]
    fn on_request(&mut self, cx: &mut Context<'_>, received: &Received<'_>) {
        let Self { peers, server, republishing, .. } = self;
        let (request, Some(asker)) = (&received.envelope.message, peers.identify(cx, received)) else { return };
        if !peers.admit(cx, &asker, received) {
            return;
        }
        match request {
            Message::Leaving => return peers.left(cx, &asker),
            Message::FindValue { id, sequence_min } => {
                let own = kept_for_others(cx, peers, republishing, id);
                server.find_value(cx, peers, &asker, (id, *sequence_min), own);
            }
            Message::Stem { hops_left, announcement } => {
                // No token goes with it, and its signatures will be checked: not for an address that may be made up.
                let taken = match asker.proven {
                    true => republishing.stems_mut().take(*hops_left, announcement),
                    false => Err(ErrorCode::CookieRequired),
                };
                peers.answer(cx, &asker, &taken.map_or_else(refusal, |()| Message::StemTaken));
            }
            request => server.serve(cx, peers, &asker, request),
        }
        peers.meet_asker(cx, &asker);
    }

    fn on_reply(&mut self, cx: &mut Context<'_>, received: &Received<'_>) {
        let Some(answered) = self.peers.on_reply(cx, received) else { return };
        let Self { peers, operations, server, republishing } = self;
        let Answered { request, whole, took_ms, .. } = &answered;
        let (correlation, message) = (received.envelope.correlation, &received.envelope.message);
        match &request.purpose {
            Purpose::Lookup { .. } => operations.on_lookup_reply(cx, peers, (correlation, request, *whole), message),
            Purpose::Write { .. } => {
                operations.on_write_reply(cx, peers, correlation, &request.purpose, Some(message));
            }
            Purpose::Ping(command) => {
                let observed = if let Message::Pong { observed } = message { Some(*observed) } else { None };
                cx.out.complete(*command, Outcome::local(Answer::Pong { rtt_ms: *took_ms, observed }));
            }
            Purpose::Relay(asker) => server.relayed(cx, peers, asker, Some(message)),
            Purpose::Stem { .. } => republishing.on_stem_answer(cx, peers, &request.purpose, request.to, Some(message)),
            Purpose::StemOn { number, attempt } => {
                republishing.stems_mut().on_answer(cx, peers, (*number, *attempt), request.to, Some(message));
            }
            Purpose::Verify | Purpose::Prove | Purpose::StillThere { .. } => {}
        }
        self.route(cx);
        self.peers.prove(cx, &answered);
    }

    /// A node that has many strangers has sent a cookie in place of an answer: it is asked again with it.
    fn on_challenge(&mut self, cx: &mut Context<'_>, request: &Request, correlation: u64) {
        let Self { peers, operations, server, republishing } = self;
        let again = refusal(ErrorCode::CookieRequired);
        let Request { to, id, purpose, .. } = request;
        match purpose {
            Purpose::Lookup { .. } => operations.on_lookup_reply(cx, peers, (correlation, request, true), &again),
            Purpose::Write { .. } => operations.on_write_reply(cx, peers, correlation, purpose, Some(&again)),
            Purpose::Stem { .. } => republishing.on_stem_answer(cx, peers, purpose, *to, Some(&again)),
            Purpose::StemOn { number, attempt } => {
                republishing.stems_mut().on_answer(cx, peers, (*number, *attempt), *to, Some(&again));
            }
            // The question is not kept here: its asker can ask again.
            Purpose::Relay(asker) => server.relayed(cx, peers, asker, None),
            Purpose::Verify => peers.verify(cx, *to, *id),
            Purpose::Ping(command) => {
                if peers.ask(cx, Question::to(*to, id, Message::Ping, *purpose)).is_none() {
                    cx.out.complete(*command, Outcome::local(Answer::Silence));
                }
            }
            Purpose::Prove | Purpose::StillThere { .. } => {
                peers.ask(cx, Question::to(*to, id, Message::Ping, *purpose));
            }
        }
        self.route(cx);
    }

    fn on_request_timeout(&mut self, cx: &mut Context<'_>, correlation: u64) {
        let Some(request) = self.peers.on_timeout(cx, correlation) else { return };
        let Self { peers, operations, server, republishing } = self;
        match &request.purpose {
            Purpose::Lookup { .. } => operations.on_lookup_timeout(cx, peers, correlation, &request),
            Purpose::Write { .. } => operations.on_write_reply(cx, peers, correlation, &request.purpose, None),
            Purpose::Ping(command) => cx.out.complete(*command, Outcome::local(Answer::Silence)),
            Purpose::Relay(asker) => server.relayed(cx, peers, asker, None),
            Purpose::Stem { .. } => republishing.on_stem_answer(cx, peers, &request.purpose, request.to, None),
            Purpose::StemOn { number, attempt } => {
                republishing.stems_mut().on_answer(cx, peers, (*number, *attempt), request.to, None);
            }
            Purpose::Verify | Purpose::Prove => {}
            Purpose::StillThere { or_at } => peers.verify(cx, Contact { addr: *or_at, ..request.to }, request.id),
        }
        self.route(cx);
    }

    /// Another lane of this node says something.
    pub(super) fn on_lane_message(&mut self, cx: &mut Context<'_>, kind: u8, payload: &[u8]) {
        match kind {
            message_kind::PROVIDERS => self.server.take_providers(cx, payload),
            _ => self.peers.on_lane_message(cx, kind, payload),
        }
    }

    pub(super) fn on_time(&mut self, cx: &mut Context<'_>) {
        while let Some((_, timer)) = cx.timers.wheel.pop_due(cx.now.mono_ms) {
            match timer {
                Timer::Request(correlation) => self.on_request_timeout(cx, correlation),
                Timer::Operation(id) => {
                    self.operations.on_timer(cx, &mut self.peers, id);
                    self.route(cx);
                }
                Timer::Tick => self.tick(cx),
            }
        }
    }

    /// The log has made everything up to `number` as safe as it promises.
    pub(super) fn on_durable(&mut self, cx: &mut Context<'_>, number: u64) {
        self.server.on_durable(cx, &mut self.peers, number);
    }

    /// The lane's periodic work: expire, join, ping, refresh, publish again.
    pub(super) fn tick(&mut self, cx: &mut Context<'_>) {
        cx.timers.tick_at(cx.now.mono_ms + cx.rng.jittered_ms(cx.place.config.tick_ms.max(10)));
        let Self { server, republishing, operations, .. } = self;
        server.expire(cx, |id| republishing.give_on(id));
        operations.drop_idle(cx.place);
        server.ledger_mut().drop_old(cx);
        self.keep_joined(cx);
        self.heal(cx);
        self.peers.ping_idle(cx);
        self.refresh(cx);
        self.publish_due(cx);
    }

    /// Joins, and joins again whenever the table has run dry.
    pub(super) fn keep_joined(&mut self, cx: &mut Context<'_>) {
        if self.peers.join_if_alone(cx) {
            return;
        }
        let may_begin = self.operations.may_work_unasked(cx.place);
        if self.peers.members_mut().starts_looking(cx.now, may_begin) {
            self.look_around(cx);
        }
        if self.operations.may_work_unasked(cx.place)
            && let Some(point) = self.peers.members_mut().point_to_fill(cx)
        {
            self.begin(cx, Start::unasked(Task::Refresh, point));
        }
        self.try_seed(cx);
    }

    /// Looks around by a seed that is back, and tries a seed that is not in the table.
    pub(super) fn try_seed(&mut self, cx: &mut Context<'_>) {
        let may_begin = self.operations.may_work_unasked(cx.place);
        if self.peers.members_mut().seed_is_back(may_begin) {
            self.look_around(cx);
        }
        self.peers.try_seed(cx);
    }

    /// Deals with lost contacts that came back, and tries those that are due.
    pub(super) fn heal(&mut self, cx: &mut Context<'_>) {
        let may_begin = self.operations.may_work_unasked(cx.place);
        let returned = self.peers.members_mut().take_returned(cx, may_begin);
        if returned.is_healed {
            self.server.give_on_soon(cx);
        }
        if returned.look_around {
            self.look_around(cx);
        }
        self.peers.try_lost(cx);
    }

    pub(super) fn refresh(&mut self, cx: &mut Context<'_>) {
        if self.operations.may_work_unasked(cx.place)
            && let Some(point) = self.peers.members_mut().point_to_refresh(cx)
        {
            self.begin(cx, Start::unasked(Task::Refresh, point));
        }
    }

    /// Looks for our own neighbours.
    fn look_around(&mut self, cx: &mut Context<'_>) {
        let begins = self.operations.has_room(cx.place);
        self.peers.members_mut().set_looking(begins);
        self.begin(cx, Start::unasked(Task::Join, *cx.place.own.as_bytes()));
    }

    /// Begins an operation; `Some` is the answer if it cannot.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>, start: Start) -> Option<Answer> {
        let is_put = start.task == Task::Put;
        // A lane that looks for providers may be the only holder, and asks all nodes but itself.
        let here = (start.task == Task::FindProviders).then(|| ContentId::from_bytes(start.target));
        let here = here.iter().flat_map(|id| self.server.providers().of(id));
        let begun = self.operations.begin(cx, &mut self.peers, start, here);
        self.route(cx);
        cx.counters.lookups_refused += u64::from(!begun && !is_put);
        (!begun).then_some(Answer::TooBusy)
    }

    /// Starts publications that are due, as far as operations and pace allow.
    pub(super) fn publish_due(&mut self, cx: &mut Context<'_>) {
        if self.peers.members().table().is_empty() {
            return; // Without contacts, announcing would only use up the schedule.
        }
        self.keep_alive_due(cx);
        self.give_on_due(cx);
        while self.operations.may_work_unasked(cx.place) {
            match self.republishing.next_announced(cx, &mut self.peers) {
                NextAnnounced::Offered => {}
                NextAnnounced::Sweep(target, announcing) => drop(self.begin(cx, Start::announce(&target, announcing))),
                NextAnnounced::Nothing => break,
            }
        }
        self.serve_stems(cx);
    }

    pub(super) fn keep_alive_due(&mut self, cx: &mut Context<'_>) {
        while self.operations.may_work_unasked(cx.place)
            && let Some((id, record)) = self.republishing.alive_mut().next_due(cx)
        {
            let is_held_here = self.peers.members().holds_its_own(cx.place);
            self.begin(cx, Start { is_held_here, ..Start::put(&id, record) });
        }
    }

    pub(super) fn give_on_due(&mut self, cx: &mut Context<'_>) {
        while self.operations.may_work_unasked(cx.place)
            && let Some((id, refusals, record)) = self.republishing.next_given_on(cx, self.server.records())
        {
            cx.counters.records_republished += 1;
            let is_held_here = self.peers.members().holds_its_own(cx.place);
            self.begin(cx, Start { refusals: Some(refusals), is_held_here, ..Start::put(&id, record) });
        }
    }

    pub(super) fn serve_stems(&mut self, cx: &mut Context<'_>) {
        for _ in 0..self.republishing.stems().len() {
            let may_begin = self.operations.may_work_unasked(cx.place);
            match self.republishing.stems_mut().next(cx, &mut self.peers, may_begin) {
                NextStem::Done => {}
                NextStem::Spread(id, announcing) => drop(self.begin(cx, Start::announce(&id, announcing))),
                NextStem::Waits => return,
            }
        }
    }

    /// The node is about to stop.
    pub(super) fn leave(&mut self, cx: &mut Context<'_>) {
        self.peers.leave(cx);
    }

    /// The program asks for something.
    pub(super) fn on_command(&mut self, cx: &mut Context<'_>, id: CommandId, mut command: Command) {
        let mut budget = Budget::default();
        while let Command::Within { budget: inner_budget, command: inner } = command {
            (budget, command) = (inner_budget, *inner);
        }
        let is_logged = matches!(command, Command::Forget { .. } | Command::Provide { .. } | Command::Unprovide { .. });
        let start = |task, target, goal| Start { command: Some(id), goal, budget, ..Start::unasked(task, target) };
        let answer = match command {
            Command::Within { .. } => unreachable!("unwrapped above"),
            Command::Bootstrap { contacts } => {
                self.peers.members_mut().take_seeds(cx.place, contacts);
                cx.tick_soon();
                Some(Answer::Noted)
            }
            Command::Ping { contact } => self.ping(cx, id, contact),
            Command::Forget { id: content } => Some(self.forget(cx, &content)),
            Command::Cancel { command } => {
                let is_under_way = self.operations.cancel(cx, &mut self.peers, command);
                self.route(cx);
                Some(if is_under_way { Answer::Noted } else { Answer::NotUnderWay })
            }
            Command::Unprovide { ids } => {
                self.operations.withdraw(&cx.place.own_key, &ids);
                Some(self.republishing.unprovide(cx, self.server.ledger_mut(), &ids))
            }
            Command::Provide { ids } => Some(self.republishing.provide(cx, self.server.ledger_mut(), &ids)),
            Command::FindNode { target } => self.begin(cx, start(Task::FindNode, target, Goal::Nodes)),
            Command::Get { id: content, .. } | Command::FindProviders { id: content, .. }
                if !cx.place.owns(&content) =>
            {
                Some(Answer::WrongLane)
            }
            Command::Get { id: content, mutable, privacy } => {
                let sequence_min = self.operations.sequence_of(&content).unwrap_or(0);
                let goal = if mutable { Goal::Mutable { sequence_min } } else { Goal::Immutable };
                let start = Start { privacy, ..start(Task::Get { mutable }, *content.as_bytes(), goal) };
                self.get(cx, &content, mutable, start)
            }
            Command::Put { record, keep_alive } => self.put(cx, id, record, keep_alive, budget),
            Command::FindProviders { id: content, limit } => {
                let goal = Goal::Providers { limit: limit.clamp(1, PROVIDERS_FOUND_MAX) };
                self.begin(cx, start(Task::FindProviders, *content.as_bytes(), goal))
            }
        };
        match answer.map(Outcome::local) {
            Some(outcome) if is_logged => self.server.ledger_mut().complete(cx, id, outcome),
            Some(outcome) => cx.out.complete(id, outcome),
            None => {}
        }
    }

    fn ping(&mut self, cx: &mut Context<'_>, command: CommandId, contact: Contact) -> Option<Answer> {
        if contact.key == cx.place.own_key {
            return Some(Answer::Pong { rtt_ms: 0, observed: None });
        }
        if !self.peers.sealer().agrees_with(&contact.key) {
            return Some(Answer::UnusableKey);
        }
        let id = self.peers.node_id(&contact.key);
        let question = Question::to(contact, &id, Message::Ping, Purpose::Ping(command));
        self.peers.ask(cx, question).is_none().then_some(Answer::TooBusy)
    }

    /// Stops storing a record again, and drops the copy kept here.
    fn forget(&mut self, cx: &mut Context<'_>, id: &ContentId) -> Answer {
        if !cx.place.owns(id) {
            return Answer::WrongLane;
        }
        let held = self.server.forget(id);
        if !self.republishing.alive_mut().remove(id) && !held {
            return Answer::NotHere;
        }
        match self.server.ledger_mut().log(cx, log_kind::FORGOTTEN, id, id.as_bytes()) {
            true => Answer::Noted,
            false => Answer::NotLogged,
        }
    }

    /// The record of `id` that is here: held or cached, or kept alive where there was no room to hold it.
    pub(super) fn record_here(&mut self, now: Now, id: &ContentId) -> Option<&[u8]> {
        self.server.record(now, id).or(self.republishing.alive().valid(now, id))
    }

    fn get(&mut self, cx: &mut Context<'_>, id: &ContentId, mutable: bool, start: Start) -> Option<Answer> {
        if !mutable && let Some(record) = self.record_here(cx.now, id) {
            return Some(Answer::Record(record.to_vec()));
        }
        self.begin(cx, start)
    }

    /// The answer of a lookup for a record.
    fn answer_get(&mut self, cx: &mut Context<'_>, operation: OperationId, mutable: bool, finish: Finish) -> Answer {
        let (id, found) = self.operations.target_of(operation);
        let view = found.as_deref().and_then(|bytes| RecordView::read(bytes).ok());
        // After a start no record has been read yet, but records kept here were seen.
        let here = self.record_here(cx.now, &id).and_then(|bytes| RecordView::read(bytes).ok());
        let here = here.map(|view| view.sequence());
        let seen = self.operations.sequence_of(&id).max(here).filter(|_| mutable);
        if let Some(view) = view.filter(|view| seen.is_none_or(|seen| view.sequence() >= seen)) {
            self.server.cache(cx, &id, &view);
            self.operations.hint_cache(cx, &mut self.peers, operation, view.bytes);
        }
        let found_sequence = view.map(|view| view.sequence()).filter(|_| mutable);
        // A reader here never goes back: a version seen before outranks the network's answer.
        if let Some(seen) = seen.filter(|seen| found_sequence.is_none_or(|found| found < *seen)) {
            if let Some(kept) = self.record_here(cx.now, &id)
                && RecordView::read(kept).is_ok_and(|view| view.sequence() >= seen)
            {
                return Answer::Record(kept.to_vec());
            }
            return match found_sequence {
                Some(found) => Answer::OnlyStale { seen, found },
                None => self.nothing_found(cx, operation, finish),
            };
        }
        if let Some(sequence) = found_sequence {
            self.operations.see_sequence(&id, sequence);
        }
        match found {
            Some(record) => Answer::Record(record),
            None => self.nothing_found(cx, operation, finish),
        }
    }

    /// The answer of a lookup for providers: those that it found, or that there may be some all the same.
    fn answer_providers(&mut self, cx: &Context<'_>, operation: OperationId, finish: Finish) -> Answer {
        let found = self.operations.answer(cx, operation);
        let is_empty = matches!(&found, Answer::Providers(found) if found.is_empty());
        match is_empty && self.nothing_found(cx, operation, finish) == Answer::Inconclusive {
            true => Answer::Inconclusive,
            false => found,
        }
    }

    /// The answer of a lookup that came back with nothing. One that was cancelled claims no more than its caller wants to know.
    fn nothing_found(&mut self, cx: &Context<'_>, operation: OperationId, finish: Finish) -> Answer {
        match finish == Finish::Cancelled || self.operations.is_conclusive(cx, &self.peers, operation, finish) {
            true => Answer::NoRecord,
            false => Answer::Inconclusive,
        }
    }

    fn put(
        &mut self,
        cx: &mut Context<'_>,
        command: CommandId,
        record: Vec<u8>,
        keep_alive: bool,
        budget: Budget,
    ) -> Option<Answer> {
        let Ok(view) = RecordView::read(&record) else { return Some(Answer::BadRecord) };
        let id = view.id();
        let sealer = self.peers.sealer();
        if view.check_under_own_id(sealer.crypto(), sealer.network(), cx.now.unix_secs()).is_err() {
            return Some(Answer::BadRecord);
        }
        if !cx.place.owns(&id) {
            return Some(Answer::WrongLane);
        }
        if let Some(code) = self.refused_here(cx.now, &id, &view) {
            return Some(Answer::Written(Written { refused: vec![(code, 1)], ..Written::default() }));
        }
        if keep_alive && let Err(answer) = self.republishing.keep_alive(cx, self.server.ledger_mut(), &id, &record) {
            return Some(answer);
        }
        if view.mutable.is_some() {
            self.operations.see_sequence(&id, view.sequence());
        }
        let is_holder = self.peers.members().holds_its_own(cx.place);
        let kept = self.server.keep_own(cx, &id, &view, is_holder);
        if !kept && !keep_alive && self.peers.members().table().live_len() == 0 {
            return Some(Answer::NoRoom); // No other node will have it either.
        }
        let is_held_here = is_holder && (kept || keep_alive);
        self.begin(cx, Start { command: Some(command), budget, is_held_here, ..Start::put(&id, record) })
    }

    /// This lane's own objection to a version that is to be written. Where the node is alone, no other would object; where it is not, a
    /// record it keeps alive must not give way to one that all others will refuse.
    fn refused_here(&self, now: Now, id: &ContentId, record: &RecordView<'_>) -> Option<ErrorCode> {
        let sequence = record.mutable?.sequence;
        let is_stale = self.operations.peek_sequence(id).is_some_and(|seen| sequence < seen);
        let held = self.server.records().peek(id).filter(|kept| kept.expires_secs > now.unix_secs());
        let known = held.map(|kept| kept.bytes).into_iter().chain(self.republishing.alive().get(id));
        let known = known.filter_map(|bytes| RecordView::read(bytes).ok());
        let known = known.filter(|known| known.check_times(now.unix_secs()).is_ok());
        match known.map(|known| judge_versions(&known, record)).find_map(Result::err) {
            Some(NotKept::Equivocation) => Some(ErrorCode::Equivocation),
            Some(NotKept::Stale { .. }) => Some(ErrorCode::StaleSequence),
            _ => is_stale.then_some(ErrorCode::StaleSequence),
        }
    }

    /// Takes back a piece that was logged before a restart, or exported by another lane.
    pub(super) fn on_record(&mut self, cx: &mut Context<'_>, kind: u8, payload: &[u8]) {
        let id = payload.first_chunk().map(|id| ContentId::from_bytes(*id));
        match (kind, id) {
            (log_kind::CONTACT, _) => {
                if let Some(contact) = payload.first_chunk::<CONTACT_BYTES>().map(Contact::from_wire) {
                    self.peers.members_mut().remember(cx.place, contact);
                }
            }
            (log_kind::RECORD, _) => self.server.restore_record(cx, payload),
            (log_kind::PROVIDER, _) => self.server.restore_provider(cx, payload),
            (log_kind::PUBLISHED, _) => self.republishing.restore_announced(cx, payload),
            (log_kind::UNPUBLISHED, Some(id)) => self.republishing.restore_unannounced(&id),
            (log_kind::KEPT_ALIVE, _) => self.republishing.restore_alive(cx, payload),
            (log_kind::FORGOTTEN, Some(id)) => {
                self.republishing.alive_mut().remove(&id);
                self.server.forget(&id);
            }
            (log_kind::NOT_KEPT_ALIVE, Some(id)) => {
                self.republishing.alive_mut().remove(&id);
            }
            _ => {}
        }
    }

    /// Writes all state but contacts as log records. `put` returns false when it takes no more.
    pub(super) fn export(&self, now: Now, mut put: impl FnMut(u8, &ContentId, &[u8]) -> bool) -> bool {
        self.server.export(&mut put) && self.republishing.export(now, put)
    }

    /// Drops state of slots that another lane owns now.
    pub(super) fn drop_where(&mut self, is_gone: impl Fn(&ContentId) -> bool) {
        self.server.drop_where(&is_gone);
        self.republishing.drop_where(is_gone);
    }
}

/// A record that this node keeps alive, as others get it. It is with its K holders, and only where there are fewer is this node one of them.
pub(super) fn kept_for_others<'r>(
    cx: &Context<'_>,
    peers: &Peers,
    republishing: &'r Republishing,
    id: &ContentId,
) -> Option<&'r [u8]> {
    if peers.members().holds_its_own(cx.place) { republishing.alive().valid(cx.now, id) } else { None }
}
