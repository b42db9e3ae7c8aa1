//! What the answers to a lookup mean: they are judged before anything they say is used.

use tessera_contracts::point::{ContentId, NodeId, Point as _};

use super::LaneNode;
use super::ask::{Purpose, Request};
use super::command::{Answer, Privacy};
use super::operation::{Phase, Task};
use super::outbox::Outbox;
use crate::abuse::Offence;
use crate::identity::Crypto;
use crate::lookup::Standing;
use crate::record::{RecordRefused, RecordView, check_provider, check_provider_times};
use crate::store::records::Class;
use crate::time::Now;
use crate::wire::message::{ErrorCode, Message, Token};

impl<C: Crypto> LaneNode<C> {
    /// A lookup for providers begins with those this lane holds itself: it may be the only holder, and asks everybody but itself.
    pub(super) fn find_providers_here(&mut self, now: Now, at: u16, out: &mut impl Outbox) {
        let Self { operations, providers, own, .. } = self;
        let operation = &mut operations[usize::from(at)];
        for provider in providers.of(&ContentId::from_bytes(operation.target)) {
            // It was verified when it came; only its time may be over since.
            if check_provider_times(provider, now.unix_secs()).is_ok() {
                operation.lookup.found_provider(own, provider);
                if let Some(command) = operation.command {
                    out.found_provider(command, provider);
                }
            }
        }
    }

    pub(super) fn on_lookup_reply(
        &mut self,
        now: Now,
        at: u16,
        generation: u32,
        peer: &NodeId,
        request: &Request,
        message: &Message<'_>,
        whole: bool,
        out: &mut impl Outbox,
    ) {
        if !self.is_current(at, generation) || self.operations[usize::from(at)].phase == Phase::Writing {
            return;
        }
        match message {
            Message::Relayed { kind, payload } => match Message::read_payload(*kind, payload) {
                Ok(inner) if !matches!(inner, Message::Relayed { .. }) => {
                    self.take_answer(now, at, peer, None, &inner, true, out);
                }
                _ => {
                    self.offence(now, &request.to.key, Offence::Malformed, out);
                    self.operations[usize::from(at)].lookup.requeue(peer);
                }
            },
            Message::Error { code: ErrorCode::CookieRequired, .. } if request.id != *peer => {
                self.operations[usize::from(at)].lookup.requeue_through(peer, request.id);
            }
            // A relay that says no speaks for itself: the peer is asked directly.
            _ if request.id != *peer => self.operations[usize::from(at)].lookup.requeue(peer),
            answer => self.take_answer(now, at, peer, Some(request), answer, whole, out),
        }
        self.drive(now, at, out);
    }

    /// Some parts of an answer came and the rest did not: the peer is asked on from where the gap starts.
    pub(super) fn on_lookup_gap(
        &mut self,
        now: Now,
        at: u16,
        generation: u32,
        peer: &NodeId,
        next: u32,
        out: &mut impl Outbox,
    ) {
        if self.is_current(at, generation) && self.operations[usize::from(at)].phase != Phase::Writing {
            self.operations[usize::from(at)].lookup.heard_enough(now.mono_ms, peer, next);
            self.drive(now, at, out);
        }
    }

    /// Feeds one answer, or a part of one, to a lookup. `direct` is the request if the peer itself answered it; what came through a relay
    /// cannot be held against anybody.
    fn take_answer(
        &mut self,
        now: Now,
        at: u16,
        peer: &NodeId,
        direct: Option<&Request>,
        message: &Message<'_>,
        whole: bool,
        out: &mut impl Outbox,
    ) {
        let secs = now.unix_secs();
        let stores = direct.is_some_and(|request| matches!(request.purpose, Purpose::Lookup { stores: true, .. }));
        let target = ContentId::from_bytes(*self.operations[usize::from(at)].lookup.target());
        let (token, closer) = match message {
            Message::Nodes { token, contacts } => {
                if direct.is_some() && self.operations[usize::from(at)].task != Task::Spread {
                    self.tokens.keep(now.mono_ms, peer, &target, *token);
                }
                (*token, *contacts)
            }
            Message::Stored { closer } if stores => (Token::default(), *closer),
            // The token is no use: it is asked as if there had been none.
            Message::Error { code: ErrorCode::BadToken | ErrorCode::TooFar | ErrorCode::CookieRequired, .. }
                if stores =>
            {
                self.tokens.forget(peer);
                self.operations[usize::from(at)].lookup.requeue(peer);
                return;
            }
            Message::Error { code, .. } if stores => {
                let operation = &mut self.operations[usize::from(at)];
                operation.lookup.refused(peer, *code);
                operation.written.holders += 1;
                operation.written.refuse(*code);
                return;
            }
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
        let mut valid_sequence = None;
        if let Message::Value { record: Some(record), .. } = message {
            let known = self.operations[usize::from(at)].lookup.record() == Some(record);
            let judged = RecordView::read(record).map_err(|_| RecordRefused::Signature).and_then(|view| {
                // Byte for byte what was verified already needs no second signature check.
                if !known {
                    view.check(&target, self.sealer.crypto(), self.sealer.network(), secs)?;
                }
                Ok(view.sequence())
            });
            match judged {
                Ok(sequence) => valid_sequence = Some(sequence),
                Err(RecordRefused::Expired | RecordRefused::NotYetIssued) => {}
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
        let waited_for = if whole {
            operation.lookup.answered(now.mono_ms, peer, token, contacts)
        } else {
            operation.lookup.heard(peer, token, contacts)
        };
        if !waited_for {
            return;
        }
        match message {
            Message::Stored { .. } => operation.lookup.took_record(peer),
            Message::Value { record: Some(record), .. } => {
                if let Some(sequence) = valid_sequence {
                    operation.lookup.found_record(peer, record, sequence);
                }
            }
            Message::Providers { providers, next, .. } => {
                for provider in providers.iter() {
                    // Whose time is over, or has yet to come, is passed over above without a look at its signature.
                    if check_provider_times(&provider, secs).is_ok() {
                        let known = operation.lookup.providers().len();
                        operation.lookup.found_provider(peer, &provider);
                        if let Some(command) = operation.command
                            && operation.lookup.providers().len() > known
                        {
                            out.found_provider(command, &provider);
                        }
                    }
                }
                if whole && *next > 0 {
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
        asked: &NodeId,
        stores: bool,
        out: &mut impl Outbox,
    ) {
        if self.is_current(at, generation) && self.operations[usize::from(at)].phase != Phase::Writing {
            let lookup = &mut self.operations[usize::from(at)].lookup;
            if stores {
                self.tokens.forget(peer);
                lookup.write_timed_out(peer);
            } else if asked == peer {
                lookup.timed_out(now.mono_ms, peer);
                if lookup.meets_silence() {
                    self.fall_back(now, at);
                }
                self.give_up_lost(at, peer);
                self.widen(now, at);
            } else {
                lookup.requeue(peer); // The silence was the relay's.
            }
            self.drive(now, at, out);
        }
    }

    pub(super) fn answer_get(&mut self, now: Now, at: u16, mutable: bool, out: &mut impl Outbox) -> Answer {
        let operation = &self.operations[usize::from(at)];
        let id = ContentId::from_bytes(operation.target);
        let found = operation.lookup.record().map(<[u8]>::to_vec);
        let view = found.as_deref().and_then(|bytes| RecordView::read(bytes).ok());
        // After a start nobody has read anything yet, but what is kept here was seen.
        let here =
            self.record_here(now, &id).and_then(|bytes| RecordView::read(bytes).ok()).map(|view| view.sequence());
        let seen = self.sequences.get(id.as_bytes()).copied().max(here).filter(|_| mutable);
        if let Some(view) = view.filter(|view| seen.is_none_or(|seen| view.sequence() >= seen)) {
            let _ = self.keep_logged(now, &id, &view, Class::Cached, self.own_key, out);
            self.hint_cache(now, at, view.bytes, out);
        }
        if !mutable {
            return found.map_or(Answer::NoRecord, Answer::Record);
        }
        // A reader here never goes back: what it has seen before outranks what the network says now.
        let found_sequence = view.map(|view| view.sequence());
        if let Some(seen) = seen.filter(|seen| found_sequence.is_none_or(|found| found < *seen)) {
            return match self.record_here(now, &id) {
                Some(kept) if RecordView::read(kept).is_ok_and(|view| view.sequence() >= seen) => {
                    Answer::Record(kept.to_vec())
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::Goal;
    use crate::node::lone_lane::{Sent, T, contact, lane};
    use crate::seal::cookie::Scope;
    use crate::wire::message::kind;

    #[test]
    fn a_token_that_came_through_a_relay_is_not_kept() {
        // Who answers itself, and whom a relay speaks for. A token names whom it was given to, and that was the relay; or the relay made it
        // up, and whoever is shown it blames us.
        for (through_relay, is_kept) in [(false, true), (true, false)] {
            let (mut lane, mut sent) = (lane(), Sent::default());
            let (asked, peer) = (contact(10), contact(11));
            lane.table.answered(T.mono_ms, peer.id(), peer, Some(10));
            let (target, goal) = (*contact(12).id().as_bytes(), Goal::Immutable);
            lane.begin(T, Task::Get { mutable: false }, None, target, goal, Privacy::None, &mut sent);
            let generation = lane.operations[0].generation;
            let to = if through_relay { asked } else { peer };
            let purpose = Purpose::Lookup { at: 0, generation, peer: peer.id(), stores: false };
            assert!(lane.request(T, to, to.id(), &target, &Message::Ping, purpose, &mut sent));
            let request = *lane.requests.iter().next().map(|(_, request)| request).unwrap();
            assert_eq!(request.id, to.id());
            let mut payload = [Scope::WIDEST.to_wire(); 17];
            payload[16] = 0;
            let nodes = Message::read_payload(kind::NODES, &payload).unwrap();
            let relayed = Message::Relayed { kind: kind::NODES, payload: &payload };
            let message = if through_relay { relayed } else { nodes };
            lane.on_lookup_reply(T, 0, generation, &peer.id(), &request, &message, true, &mut sent);
            let token = lane.tokens.of(T.mono_ms, &peer.id(), &ContentId::from_bytes(target));
            assert_eq!(token.is_some(), is_kept, "through a relay: {through_relay}");
        }
    }
}
