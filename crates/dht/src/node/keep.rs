//! Writes of others: what is kept for them, and when they are told so.
//!
//! A write is acknowledged when the log says that it is safe, not before: an acknowledgement is a promise that outlives a
//! crash. Until then the answer waits in a bounded queue; whoever has waited longer than anybody waits for an answer is
//! dropped from it, and when the queue is full writes are refused as busy. Of an announcement only what this lane keeps
//! itself is waited for: what it hands to other lanes is announced again at half its lifetime anyway.
//!
//! Our own commands that change what a restart would find wait in the same way.

use tessera_contracts::point::{ContentId, Point as _};

use super::LaneNode;
use super::ask::ReplyTo;
use super::command::{Answer, CommandId, Outcome};
use super::log::{log_kind, log_record};
use super::outbox::{Importance, Logged, MessageClass, Outbox, message_kind};
use super::serve::{Asker, refusal};
use crate::abuse::Offence;
use crate::identity::{Crypto, PublicKey};
use crate::record::{RecordRefused, RecordView, TTL_SECS_MAX, check_provider};
use crate::store::NotKept;
use crate::store::records::{Class, Keeping};
use crate::time::Now;
use crate::wire::message::{
    Announcement, CONTACT_BYTES, Contacts, ErrorCode, Message, PROVIDER_BYTES, SignedProvider, Token,
};
use crate::wire::{ANNOUNCED_IDS_MAX, CONTACTS_MAX};

/// How many times the radius of K nodes away an id may lie before a write for it is refused, if enough others are nearer.
pub(super) const TOO_FAR_FACTOR: usize = 8;

/// Nobody waits longer for an answer: the longest timeout and its jitter, doubled.
const PROMISE_MS_MAX: u64 = 1500;

/// An acknowledgement that waits for the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Promise {
    at: u64,
    made_ms: u64,
    to: ReplyTo,
    reply: Promised,
}

/// A command waits no longer than this for the log. Then it says so.
const UNLOGGED_MS_MAX: u64 = 10_000;

/// A command of our own that is done but for the log.
#[derive(Debug)]
pub(super) struct Unlogged {
    at: u64,
    made_ms: u64,
    command: CommandId,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy)]
enum Promised {
    Stored { id: ContentId, closer_max: u8 },
    Announced { kept: u16 },
}

impl<C: Crypto> LaneNode<C> {
    /// The log has made everything up to `number` as safe as it promises: those who waited for it are answered.
    pub fn on_durable(&mut self, now: Now, number: u64, out: &mut impl Outbox) {
        self.durable = self.durable.max(number);
        while let Some(promise) = self.promises.pop_front_if(|promise| promise.at <= number) {
            self.keep_promise(now, &self.asker(now, &promise.to), promise.reply, out);
        }
        while let Some(unlogged) = self.unlogged.pop_front_if(|unlogged| unlogged.at <= number) {
            out.complete(unlogged.command, unlogged.outcome);
        }
    }

    /// Completes a command of our own: at once if everything logged is safe or nothing was, else when it is.
    pub(super) fn complete_when_safe(&mut self, now: Now, command: CommandId, outcome: Outcome, out: &mut impl Outbox) {
        let changed = matches!(outcome.answer, Answer::Providing(_) | Answer::Noted | Answer::Written(_));
        match self.last_logged() {
            _ if !changed => out.complete(command, outcome),
            Logged::At(at) if self.unlogged.len() < self.config.promises_max => {
                self.unlogged.push_back(Unlogged { at, made_ms: now.mono_ms, command, outcome });
            }
            Logged::At(_) => out.complete(command, Outcome { answer: Answer::NotLogged, ..outcome }),
            _ => out.complete(command, outcome),
        }
    }

    /// Logs what a restart must find. False if the log does not take it.
    pub(super) fn log_hard(&mut self, kind: u8, id: &ContentId, payload: &[u8], out: &mut impl Outbox) -> bool {
        let logged = out.log(kind, self.map.slot(&self.own, id), payload, Importance::Hard);
        if logged != Logged::Refused {
            self.last_logged = logged;
        }
        logged != Logged::Refused
    }

    /// Gives up promises that came too late to be of use, and tells our own commands that the log is late.
    pub(super) fn drop_old_promises(&mut self, now: Now, out: &mut impl Outbox) {
        let late = |unlogged: &mut Unlogged| now.mono_ms.saturating_sub(unlogged.made_ms) > UNLOGGED_MS_MAX;
        while let Some(Unlogged { command, outcome, .. }) = self.unlogged.pop_front_if(late) {
            out.complete(command, Outcome { answer: Answer::NotLogged, ..outcome });
        }
        while self
            .promises
            .pop_front_if(|promise| now.mono_ms.saturating_sub(promise.made_ms) > PROMISE_MS_MAX)
            .is_some()
        {}
    }

    /// Answers a write: at once if it is safe, else when it is.
    fn acknowledge(&mut self, now: Now, asker: &Asker, logged: Logged, reply: Promised, out: &mut impl Outbox) {
        match logged {
            Logged::Safe => self.keep_promise(now, asker, reply, out),
            Logged::At(at) => {
                // Numbers grow, so the queue is sorted and never longer than was checked before the write.
                self.promises.push_back(Promise { at, made_ms: now.mono_ms, to: asker.reply_to(), reply });
            }
            Logged::Refused => self.answer(now, asker, &refusal(ErrorCode::Busy), out),
        }
    }

    fn keep_promise(&mut self, now: Now, asker: &Asker, reply: Promised, out: &mut impl Outbox) {
        match reply {
            Promised::Stored { id, closer_max } => {
                let mut list = [0; CONTACTS_MAX * CONTACT_BYTES];
                let room = asker.contacts_max(1).min(usize::from(closer_max));
                let len = self.write_closest(id.as_bytes(), room, &asker.id, &mut list);
                self.answer(now, asker, &Message::Stored { closer: Contacts::over(&list[..len]) }, out);
            }
            Promised::Announced { kept } => self.answer(now, asker, &Message::Announced { kept }, out),
        }
    }

    pub(super) fn serve_store(
        &mut self,
        now: Now,
        asker: &Asker,
        token: &Token,
        closer_max: u8,
        record: &[u8],
        out: &mut impl Outbox,
    ) {
        match self.keep_record(now, asker, token, record, Class::Held, out) {
            Ok((id, logged)) => self.acknowledge(now, asker, logged, Promised::Stored { id, closer_max }, out),
            Err(code) => self.answer(now, asker, &refusal(code), out),
        }
    }

    /// Whether this node is one of those that its own records belong to.
    pub(super) fn holds_its_own(&self) -> bool {
        !self.config.client && self.table.live_len() < self.config.lookup.k
    }

    /// Keeps a record that this node itself puts. With fewer than K others it is one of those the record belongs to, and
    /// holds it like theirs; else it keeps a copy for a while. False if there is no room for it.
    pub(super) fn keep_own(&mut self, now: Now, id: &ContentId, view: &RecordView<'_>, out: &mut impl Outbox) -> bool {
        let class = if self.holds_its_own() { Class::Held } else { Class::Cached };
        self.keep_logged(now, id, view, class, self.own_key, out).is_ok()
    }

    /// Keeps a valid record, and logs it if it is to be held: what was not logged is not held, and a repeat must find it missing.
    pub(super) fn keep_logged(
        &mut self,
        now: Now,
        id: &ContentId,
        view: &RecordView<'_>,
        class: Class,
        giver: PublicKey,
        out: &mut impl Outbox,
    ) -> Result<Keeping, NotKept> {
        let ttl_max = if class == Class::Cached { self.config.cache_ttl_secs } else { TTL_SECS_MAX };
        let slot = self.map.slot(&self.own, id);
        let Self { records, rng, last_logged, .. } = self;
        records.keep_if_logged(now, id, view, class, ttl_max, giver, rng, || {
            let logged = log_record(now, slot, view, giver, out);
            if logged != Logged::Refused {
                *last_logged = logged;
            }
            logged != Logged::Refused
        })
    }

    pub(super) fn serve_cache_hint(
        &mut self,
        now: Now,
        asker: &Asker,
        token: &Token,
        record: &[u8],
        out: &mut impl Outbox,
    ) {
        // Never answered, so a failure is nobody's business.
        let _ = self.keep_record(now, asker, token, record, Class::Cached, out);
    }

    pub(super) fn serve_announce(
        &mut self,
        now: Now,
        asker: &Asker,
        token: &Token,
        announcement: &Announcement<'_>,
        out: &mut impl Outbox,
    ) {
        match self.keep_announced(now, asker, token, announcement, out) {
            Ok((kept, logged)) => self.acknowledge(now, asker, logged, Promised::Announced { kept }, out),
            Err(code) => self.answer(now, asker, &refusal(code), out),
        }
    }

    fn bad_token(&mut self, now: Now, asker: &Asker, out: &mut impl Outbox) -> ErrorCode {
        self.offence(now, &asker.key, Offence::BadToken, out);
        ErrorCode::BadToken
    }

    /// A record does not hold. Clocks disagree, and lifetimes end on the way: that is no offence.
    fn invalid_record(&mut self, now: Now, asker: &Asker, refused: RecordRefused, out: &mut impl Outbox) -> ErrorCode {
        if !matches!(refused, RecordRefused::Expired | RecordRefused::NotYetIssued) {
            self.counters.records_invalid += 1;
            self.offence(now, &asker.key, Offence::InvalidRecord, out);
        }
        ErrorCode::Invalid
    }

    fn token_holds(&self, now: Now, asker: &Asker, token: &Token, id: &ContentId) -> bool {
        self.proofs.token_holds(token, &asker.addr, &asker.id, id, now.unix_secs())
    }

    fn keep_record(
        &mut self,
        now: Now,
        asker: &Asker,
        token: &Token,
        record: &[u8],
        class: Class,
        out: &mut impl Outbox,
    ) -> Result<(ContentId, Logged), ErrorCode> {
        if self.config.client {
            return Err(ErrorCode::Unsupported);
        }
        if self.promises.len() >= self.config.promises_max {
            return Err(ErrorCode::Busy);
        }
        let Ok(view) = RecordView::read(record) else {
            self.counters.records_invalid += 1;
            self.offence(now, &asker.key, Offence::InvalidRecord, out);
            return Err(ErrorCode::Invalid);
        };
        let id = view.id();
        if !self.token_holds(now, asker, token, &id) {
            return Err(self.bad_token(now, asker, out));
        }
        if class == Class::Held && self.is_too_far(&id) {
            return Err(ErrorCode::TooFar);
        }
        // A signature is the dearest check: what is old or known is told apart first.
        match self.records.judge_sequence(&id, &view, class) {
            // It may still be on its way to the disk: whatever was logged last is the latest it can be.
            Ok(Keeping::AlreadyHeld) => {
                self.records.put_off(now, &id, record, class, &mut self.rng);
                return Ok((id, self.last_logged()));
            }
            Ok(Keeping::Changed) => {}
            // Only a second value that the owner really signed is an equivocation, and only the owner is to blame for it: whoever
            // else brings one holds it in good faith, as both sides of a network that fell apart do.
            Err(NotKept::Equivocation) => {
                let checked = view.check_under_own_id(self.sealer.crypto(), self.sealer.network(), now.unix_secs());
                return Err(match checked {
                    Ok(()) => {
                        if view.mutable.is_some_and(|mutable| mutable.owner == asker.key) {
                            self.offence(now, &asker.key, Offence::Equivocation, out);
                        }
                        ErrorCode::Equivocation
                    }
                    Err(refused) => self.invalid_record(now, asker, refused, out),
                });
            }
            Err(NotKept::Stale { .. }) => return Err(ErrorCode::StaleSequence),
            Err(NotKept::GiverFull | NotKept::Full | NotKept::NotLogged) => return Err(ErrorCode::Full),
        }
        if let Err(refused) = view.check_under_own_id(self.sealer.crypto(), self.sealer.network(), now.unix_secs()) {
            return Err(self.invalid_record(now, asker, refused, out));
        }
        match self.keep_logged(now, &id, &view, class, asker.key, out) {
            Ok(kept) => {
                self.counters.records_stored += u64::from(kept == Keeping::Changed && class == Class::Held);
                Ok((id, self.last_logged()))
            }
            Err(NotKept::NotLogged) => Err(ErrorCode::Busy),
            Err(_) => Err(ErrorCode::Full),
        }
    }

    /// Keeps the valid ones of announced ids, here or at the lanes that own them. Bit i: the i-th was kept.
    fn keep_announced(
        &mut self,
        now: Now,
        asker: &Asker,
        token: &Token,
        announcement: &Announcement<'_>,
        out: &mut impl Outbox,
    ) -> Result<(u16, Logged), ErrorCode> {
        if self.config.client {
            return Err(ErrorCode::Unsupported);
        }
        if self.promises.len() >= self.config.promises_max {
            return Err(ErrorCode::Busy);
        }
        // One token for all: it was asked for with a scope that covers them.
        if announcement.ids().any(|(id, _)| !self.token_holds(now, asker, token, &id)) {
            return Err(self.bad_token(now, asker, out));
        }
        if !announcement.provider.addr.is_dialable() {
            return Err(ErrorCode::Invalid);
        }
        let mut kept = 0;
        for (i, (id, signature)) in announcement.ids().enumerate().take(ANNOUNCED_IDS_MAX) {
            let provider = SignedProvider {
                provider: announcement.provider,
                issued_secs: announcement.issued_secs,
                ttl_secs: announcement.ttl_secs,
                signature: *signature,
            };
            if self.providers.holds_newer(&id, &provider) {
                kept |= 1 << i;
                continue;
            }
            if self.is_too_far(&id) {
                continue;
            }
            match check_provider(&provider, &id, self.sealer.crypto(), self.sealer.network(), now.unix_secs()) {
                Ok(()) => {}
                Err(RecordRefused::Expired | RecordRefused::NotYetIssued) => continue,
                Err(_) => {
                    self.counters.records_invalid += 1;
                    self.offence(now, &asker.key, Offence::InvalidRecord, out);
                    return Err(ErrorCode::Invalid);
                }
            }
            if self.keep_provider(now, &id, &provider, out) {
                kept |= 1 << i;
            }
        }
        Ok((kept, self.last_logged()))
    }

    /// What was logged last, if it is not safe yet.
    fn last_logged(&self) -> Logged {
        match self.last_logged {
            Logged::At(number) if number <= self.durable => Logged::Safe,
            last => last,
        }
    }

    /// Keeps a verified provider at the lane that owns its id.
    pub(super) fn keep_provider(
        &mut self,
        now: Now,
        id: &ContentId,
        provider: &SignedProvider,
        out: &mut impl Outbox,
    ) -> bool {
        let mut entry = [0; 32 + PROVIDER_BYTES];
        entry[..32].copy_from_slice(id.as_bytes());
        entry[32..].copy_from_slice(&provider.to_wire());
        let owner = self.map.lane(&self.own, id);
        if owner != self.lane {
            out.message(owner, MessageClass::Coordination, message_kind::PROVIDERS, id.prefix_u64(), &entry);
            return true;
        }
        // A message of another lane may come twice, or after a newer one.
        if self.providers.holds_newer(id, provider) {
            return true;
        }
        let slot = self.map.slot(&self.own, id);
        let Self { providers, rng, last_logged, .. } = self;
        let kept = providers.keep_if_logged(now, id, provider, rng, || {
            let logged = out.log(log_kind::PROVIDER, slot, &entry, Importance::Hard);
            if logged != Logged::Refused {
                *last_logged = logged;
            }
            logged != Logged::Refused
        });
        self.counters.providers_stored += u64::from(kept.is_ok());
        kept.is_ok()
    }

    /// Whether so many are nearer to `id` that nobody would look for it here.
    fn is_too_far(&self, id: &ContentId) -> bool {
        let k = self.config.lookup.k;
        let own = self.own.distance_to(id);
        if own <= self.radius_of(k * TOO_FAR_FACTOR) {
            return false;
        }
        let closest = self.table.closest(id, k, |peer| peer.id.distance_to(id) < own);
        self.table.peers_of(&closest).len() == k
    }
}
