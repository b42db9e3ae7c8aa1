//! The second half of a write: telling the holders that a lookup found, a few at a time, each at most twice.

use tessera_contracts::point::{ContentId, NodeId, Point as _};

use super::LaneNode;
use super::ask::Purpose;
use super::command::Answer;
use super::log::log_kind;
use super::operation::{Holder, Phase, Task};
use super::outbox::Outbox;
use super::publish::Pace;
use crate::contact::Contact;
use crate::identity::Crypto;
use crate::lookup::{Ask, Finish};
use crate::record::RecordView;
use crate::time::Now;
use crate::wire::CONTACTS_MAX;
use crate::wire::message::{ErrorCode, Message, Token};

/// Contacts that a late step of a write's lookup asks for.
const CONTACTS_LATER: usize = 4;

/// When writes that their pace holds up are looked at again.
const PACE_MS: u64 = 50;

impl<C: Crypto> LaneNode<C> {
    /// Sends the writes that may be sent, and ends the operation when none is left.
    pub(super) fn pump_writes(&mut self, now: Now, at: u16, out: &mut impl Outbox) {
        loop {
            let Some(operation) = self.operations.get_mut(usize::from(at)) else { return };
            if operation.task == Task::Idle || operation.phase != Phase::Writing {
                return;
            }
            if operation.writes_in_flight >= self.config.writes_in_flight_max {
                return;
            }
            let is_asked = operation.command.is_some();
            let requests_max = if is_asked { self.requests.capacity() } else { self.unasked_requests_max() };
            if self.requests.len() >= requests_max {
                self.wake_at(at, now.mono_ms + PACE_MS);
                return;
            }
            let operation = &mut self.operations[usize::from(at)];
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
            let Holder { acknowledged, stands_in, .. } = operation.holders[target];
            operation.written.holders += u16::from(!stands_in);
            if acknowledged {
                operation.written.acknowledged += u16::from(!stands_in);
            } else {
                self.send_store(now, at, target, 1, out);
            }
        }
        if self.operations[usize::from(at)].writes_in_flight == 0 {
            self.finish_write(now, at, Finish::Exhausted, out);
        }
    }

    fn send_store(&mut self, now: Now, at: u16, target: usize, attempt: u8, out: &mut impl Outbox) {
        let operation = &mut self.operations[usize::from(at)];
        let holder = operation.holders[target];
        let purpose = Purpose::Write { at, generation: operation.generation, target: target as u8, batch: 0, attempt };
        let sent = self.store(now, at, holder.contact, holder.id, holder.token, 0, purpose, out);
        let operation = &mut self.operations[usize::from(at)];
        if sent {
            operation.writes_in_flight += 1;
        } else {
            operation.written.silent += u16::from(!holder.stands_in);
        }
    }

    /// A step of the lookup that is the write itself, with a token from before.
    pub(super) fn store_at_once(&mut self, now: Now, at: u16, ask: &Ask, token: Token, out: &mut impl Outbox) -> bool {
        let operation = &self.operations[usize::from(at)];
        let purpose = Purpose::Lookup { at, generation: operation.generation, peer: ask.id, stores: true };
        // The first few name everybody there is. Of as many as are asked at once, only somebody very near would be news, and
        // the rest are not asked for more: whoever names contacts has to look for them. Where those who were named are gone,
        // it takes more to know who is left.
        let (few, more) = (self.config.lookup.alpha_min, self.config.lookup.alpha_max);
        let closer_max = match operation.lookup.well_informed() {
            rank if rank <= few => CONTACTS_MAX,
            rank if rank <= more => CONTACTS_LATER,
            _ => 0,
        };
        let sent = self.store(now, at, ask.contact, ask.id, token, closer_max as u8, purpose, out);
        if sent {
            self.operations[usize::from(at)].lookup.writes_to(&ask.id);
        }
        sent
    }

    fn store(
        &mut self,
        now: Now,
        at: u16,
        to: Contact,
        id: NodeId,
        token: Token,
        closer_max: u8,
        purpose: Purpose,
        out: &mut impl Outbox,
    ) -> bool {
        let operation = &mut self.operations[usize::from(at)];
        let about = operation.target;
        // The record is lent out for the call: building the datagram needs the rest of the lane.
        let record = core::mem::take(&mut operation.record);
        let message = Message::Store { token, closer_max, record: &record };
        let sent = self.request(now, to, id, &about, &message, purpose, out);
        self.operations[usize::from(at)].record = record;
        sent
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
            Message::Stored { .. } => {
                holder.acknowledged = true;
                operation.written.acknowledged += u16::from(!holder.stands_in);
            }
            Message::Announced { kept } => {
                holder.acknowledged = true;
                holder.pauses = holder.pauses.saturating_sub(1);
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
            _ if holder.stands_in => {}
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
            operation.written.silent += u16::from(!holder.stands_in);
        }
        self.pump_writes(now, at, out);
    }

    fn resend(&mut self, now: Now, at: u16, target: usize, batch: u32, out: &mut impl Outbox) {
        match self.operations[usize::from(at)].task {
            Task::Spread => self.resend_batch(now, at, target, batch, out),
            _ => self.send_store(now, at, target, 2, out),
        }
    }

    pub(super) fn finish_write(&mut self, now: Now, at: u16, finish: Finish, out: &mut impl Outbox) {
        let operation = &mut self.operations[usize::from(at)];
        let written = core::mem::take(&mut operation.written);
        if operation.task == Task::Spread {
            self.counters.announces_refused += written.refused.iter().map(|(_, count)| u64::from(*count)).sum::<u64>();
            self.counters.announces_unanswered += u64::from(written.silent);
            self.spread_done(now, at);
        }
        let operation = &self.operations[usize::from(at)];
        if let Some(refusals) = operation.regives
            && written.refused.iter().any(|(code, _)| *code == ErrorCode::RateLimited)
        {
            self.regive_later(ContentId::from_bytes(operation.target), refusals);
        }
        let operation = &self.operations[usize::from(at)];
        if operation.task == Task::Put && written.acknowledged == 0 {
            let id = ContentId::from_bytes(operation.target);
            // One of them may say so to be rid of it; and of a record that has no versions nobody can.
            let is_mutable = RecordView::read(&operation.record).is_ok_and(|view| view.mutable.is_some());
            let is_outdated =
                |(code, _): &&(ErrorCode, u16)| matches!(code, ErrorCode::StaleSequence | ErrorCode::Equivocation);
            let say_so: u32 = written.refused.iter().filter(is_outdated).map(|(_, count)| u32::from(*count)).sum();
            if !is_mutable || say_so * 2 <= u32::from(written.holders) {
                self.keep_alive_soon(now, &id);
            } else if self.kept_alive.get(&id).is_some_and(|kept| kept.record == operation.record) {
                // Another version is out. To go on storing this one would only draw the same answer, and blame.
                self.drop_alive(&id);
                // A log that does not take it brings the record back once, to be given up again.
                self.log_hard(log_kind::NOT_KEPT_ALIVE, &id, id.as_bytes(), out);
            }
        }
        self.complete(now, at, Answer::Written(written), Some(finish), out);
    }
}
