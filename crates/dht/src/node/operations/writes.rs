//! The second half of a write: telling the holders that a lookup found, a few at a time.

use alloc::vec::Vec;

use tessera_contracts::point::NodeId;
use tessera_stdx::TokenBucket;

use super::announcing::Announcing;
use super::operation::{Phase, Start, Task};
use crate::contact::Contact;
use crate::lookup::{Candidate, FRONTIER_MAX, Lookup};
use crate::node::command::Written;
use crate::retry::{HOLDER_PAUSES_MAX, HOLDER_SILENCES_MAX, holder_pause_ms, may_repeat};
use crate::seal::cookie::Scope;
use crate::time::Now;
use crate::wire::message::{ErrorCode, Message, Token};

/// A node that is written to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder {
    pub(super) id: NodeId,
    pub(super) contact: Contact,
    pub(super) token: Token,
    acknowledged: bool,
    /// It is written to, but what it says makes no quorum: nearer ones have yet to answer.
    stands_in: bool,
    silences: u8,
    /// It asked not to be written to before.
    resume_ms: u64,
    /// How many times more it has asked so than it has taken what it was sent.
    pauses: u8,
}

impl Holder {
    fn of(candidate: &Candidate) -> Self {
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

/// A datagram to one holder: the record, or the announcements from `batch` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) holder: u8,
    pub(super) batch: u32,
    pub(super) attempt: u8,
}

/// What to write next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Write(Write),
    /// Nothing now: the pace or the holders forbid it for a moment.
    Later,
    Done,
}

/// The writes of one operation.
#[derive(Debug)]
pub(super) struct Writes {
    pub(super) record: Vec<u8>,
    /// It gives a held record on, which was refused so many times before by holders that were asked too often.
    pub(super) refusals: Option<u8>,
    is_held_here: bool,
    pub(super) announcing: Announcing,
    pub(super) written: Written,
    holders: Vec<Holder>,
    next_holder: usize,
    in_flight: usize,
}

impl Writes {
    pub(super) fn new() -> Self {
        Self {
            record: Vec::new(),
            refusals: None,
            is_held_here: false,
            announcing: Announcing::default(),
            written: Written::default(),
            holders: Vec::with_capacity(FRONTIER_MAX),
            next_holder: 0,
            in_flight: 0,
        }
    }

    /// Begins anew, with what is to be written.
    pub(super) fn begin(&mut self, start: Start) {
        (self.record, self.refusals, self.is_held_here) = (start.record, start.refusals, start.is_held_here);
        if let Some(announcing) = start.announcing {
            self.announcing = *announcing;
        }
        self.clear();
    }

    /// Nothing is written yet; what is to be written stays.
    pub(super) fn clear(&mut self) {
        self.holders.clear();
        (self.next_holder, self.in_flight, self.written) = (0, 0, Written::default());
    }

    pub(super) fn release(&mut self) {
        (self.record, self.refusals, self.announcing) = (Vec::new(), None, Announcing::default());
    }

    /// What the writes came to, with the quorum of a share in per cent.
    pub(super) fn result(&self, quorum_percent: u8) -> Written {
        self.written.clone().with_quorum(quorum_percent, self.is_held_here)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn holder(&self, at: u8) -> &Holder {
        &self.holders[usize::from(at)]
    }

    pub(super) fn is_acknowledged_by(&self, id: &NodeId) -> bool {
        self.holders.iter().any(|holder| holder.id == *id && holder.acknowledged)
    }

    pub(super) fn is_acknowledged(&self) -> bool {
        self.holders.iter().any(|holder| holder.acknowledged)
    }

    /// A holder refused the record that a step of the lookup sent it.
    pub(super) fn refused_early(&mut self, code: ErrorCode) {
        self.written.holders += 1;
        self.written.refuse(code);
    }

    /// Nodes that should hold the record were not met before the lookup ended. To count only those that were met would make a quorum of
    /// however few they are, or however far.
    pub(super) fn unmet(&mut self, nodes: u16) {
        self.written.holders += nodes;
        self.written.silent += nodes;
    }

    /// So many nodes should hold the record. Those that were not met are missing: to count only those that were would make a quorum of however few
    /// an attacker lets a writer see.
    pub(super) fn expect_holders(&mut self, expected: u16) {
        let met = self.written.holders + self.holders.iter().filter(|holder| !holder.stands_in).count() as u16;
        self.unmet(expected.saturating_sub(met));
    }

    /// Takes the holders that a lookup found.
    pub(super) fn take_holders(&mut self, task: Task, lookup: &Lookup, k: usize) {
        // A node that thinks the region is larger than it may be gives a token for less: it is no use for the rest.
        let scope = if task == Task::Announce { self.announcing.scope() } else { Scope::EXACT };
        for candidate in lookup.holders() {
            if candidate.token.is_some_and(|token| Scope::of_token(&token) <= scope) {
                let stands_in = task == Task::Put && lookup.stands_in(candidate);
                self.holders.push(Holder { stands_in, ..Holder::of(candidate) });
            }
        }
        if task == Task::Announce {
            self.announcing.plan(k, self.holders.iter().map(|holder| &holder.id));
        }
    }

    /// Remembers the nodes that a blind lookup found; none of them is written to.
    pub(super) fn take_found(&mut self, lookup: &Lookup) {
        for candidate in lookup.holders() {
            if self.holders.len() < FRONTIER_MAX && self.holders.iter().all(|holder| holder.id != candidate.id) {
                self.holders.push(Holder::of(candidate));
            }
        }
    }

    pub(super) fn found(&self) -> &[Holder] {
        &self.holders
    }

    /// The next datagram to send.
    pub(super) fn next(&mut self, now: Now, task: Task, pace: &mut TokenBucket) -> Next {
        if task == Task::Announce {
            return self.next_announcement(now, pace);
        }
        while let Some(holder) = self.holders.get(self.next_holder) {
            let at = self.next_holder as u8;
            self.next_holder += 1;
            self.written.holders += u16::from(!holder.stands_in);
            if !holder.acknowledged {
                return Next::Write(Write { holder: at, batch: 0, attempt: 1 });
            }
            self.written.acknowledged += u16::from(!holder.stands_in);
        }
        Next::Done
    }

    /// Holders take turns, so that none is hurried.
    fn next_announcement(&mut self, now: Now, pace: &mut TokenBucket) -> Next {
        let mut is_waiting = false;
        for at in self.announcing.turns(self.holders.len()) {
            let holder = &self.holders[at];
            let Some(batch) = self.announcing.next_for(at).filter(|_| holder.silences < HOLDER_SILENCES_MAX) else {
                continue;
            };
            if holder.resume_ms > now.mono_ms || pace.take(now.mono_ms, 1).is_err() {
                is_waiting = true;
                continue;
            }
            self.announcing.take_turn(at, batch);
            self.written.holders += 1;
            return Next::Write(Write { holder: at as u8, batch: batch as u32, attempt: 1 });
        }
        if is_waiting { Next::Later } else { Next::Done }
    }

    /// A write was sent, or could not be.
    pub(super) fn sent(&mut self, write: Write, is_sent: bool) {
        if is_sent {
            self.in_flight += 1;
        } else {
            self.written.silent += u16::from(!self.holder(write.holder).stands_in);
        }
    }

    /// A holder answered. Returns how many announced ids it did not keep, and the write to send again, if any.
    pub(super) fn answered(
        &mut self,
        now: Now,
        write: Write,
        task: Task,
        message: &Message<'_>,
    ) -> (u32, Option<Write>) {
        self.in_flight -= 1;
        let at = usize::from(write.holder);
        let holder = &mut self.holders[at];
        holder.silences = 0;
        match message {
            Message::Stored { .. } => {
                holder.acknowledged = true;
                self.written.acknowledged += u16::from(!holder.stands_in);
            }
            Message::Announced { kept } => {
                holder.acknowledged = true;
                holder.pauses = holder.pauses.saturating_sub(1);
                self.written.acknowledged += 1;
                return (self.announcing.sent_in_batch(at, write.batch).saturating_sub(kept.count_ones()), None);
            }
            Message::Error { code: ErrorCode::RateLimited, retry_after_ms } if task == Task::Announce => {
                self.pause(now, at, write.batch, *retry_after_ms);
            }
            Message::Error { code: ErrorCode::CookieRequired, .. } if may_repeat(write.attempt) => {
                return (0, Some(Write { attempt: write.attempt + 1, ..write }));
            }
            _ if holder.stands_in => {}
            Message::Error { code, .. } => self.written.refuse(*code),
            _ => self.written.refuse(ErrorCode::Malformed),
        }
        (0, None)
    }

    /// A holder was silent. Returns the write to send again, if any.
    pub(super) fn timed_out(&mut self, write: Write) -> Option<Write> {
        self.in_flight -= 1;
        let holder = &mut self.holders[usize::from(write.holder)];
        holder.silences = holder.silences.saturating_add(1);
        if may_repeat(write.attempt) && holder.silences < HOLDER_SILENCES_MAX {
            return Some(Write { attempt: write.attempt + 1, ..write });
        }
        self.written.silent += u16::from(!holder.stands_in);
        None
    }

    /// A holder asked for a pause: it gets the batch again after it. Not for ever: it gets nothing more if it never does anything else.
    fn pause(&mut self, now: Now, at: usize, batch: u32, retry_after_ms: u32) {
        let holder = &mut self.holders[at];
        // What was under way when it asked says nothing new.
        if holder.resume_ms <= now.mono_ms {
            holder.pauses += 1;
        }
        if holder.pauses >= HOLDER_PAUSES_MAX {
            self.announcing.give_up(at);
            self.written.refuse(ErrorCode::RateLimited);
            return;
        }
        holder.resume_ms = now.mono_ms + holder_pause_ms(retry_after_ms);
        self.announcing.resume_at(at, batch);
    }
}

impl Phase {
    /// Whether candidates are being asked.
    pub(super) fn is_lookup(self) -> bool {
        self != Self::Writing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::lone_lane::{T, contact};
    use tessera_stdx::{Rate, TokenBucket};

    fn holder(n: u8, acknowledged: bool) -> Holder {
        let contact = contact(n);
        Holder {
            id: contact.id(),
            contact,
            token: [n; 16],
            acknowledged,
            stands_in: false,
            silences: 0,
            resume_ms: 0,
            pauses: 0,
        }
    }

    fn pace() -> TokenBucket {
        TokenBucket::full(Rate { tokens: 1, ticks: core::num::NonZeroU32::MIN }, 1, T.mono_ms)
    }

    #[test]
    fn holders_that_have_the_record_are_counted_and_not_written_to() {
        let mut writes = Writes::new();
        writes.holders.extend([holder(1, true), holder(2, false), holder(3, true)]);
        let write = Write { holder: 1, batch: 0, attempt: 1 };
        assert_eq!(writes.next(T, Task::Put, &mut pace()), Next::Write(write));
        assert_eq!(writes.next(T, Task::Put, &mut pace()), Next::Done);
        assert_eq!((writes.written.holders, writes.written.acknowledged), (3, 2));
    }

    #[test]
    fn a_write_is_repeated_once_after_silence_or_a_refused_cookie_and_then_counts_as_silent_or_refused() {
        let refusal = Message::Error { code: ErrorCode::CookieRequired, retry_after_ms: 0 };
        let (first, second) = (Write { holder: 0, batch: 0, attempt: 1 }, Write { holder: 0, batch: 0, attempt: 2 });
        let mut writes = Writes::new();
        writes.holders.push(holder(1, false));
        writes.sent(first, true);
        assert_eq!(writes.timed_out(first), Some(second));
        writes.sent(second, true);
        assert_eq!((writes.timed_out(second), writes.written.silent, writes.in_flight()), (None, 1, 0));
        writes.sent(first, true);
        assert_eq!(writes.answered(T, first, Task::Put, &refusal), (0, Some(second)));
        writes.sent(second, true);
        assert_eq!(writes.answered(T, second, Task::Put, &refusal), (0, None));
        assert_eq!(writes.written.refused, [(ErrorCode::CookieRequired, 1)]);
    }
}
