//! Serving others: contacts, records and providers for askers, their writes, and relayed questions.

mod ledger;

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, Point as _};

use super::admission::{Asker, REPLY_PAYLOAD_MAX, ReplyTo, refusal};
use super::config::NodeConfig;
use super::context::{Context, Place};
use super::log::{log_kind, write_record};
use super::operations::is_lie;
use super::outbox::{Logged, MessageClass, message_kind};
use super::peers::{Peers, Question, capabilities};
use super::requests::Purpose;
use crate::abuse::Offence;
use crate::addr::AddrPrefix;
use crate::contact::Contact;
use crate::identity::PublicKey;
use crate::record::{RECORD_BYTES_MAX, RecordRefused, RecordView, TTL_SECS_MAX, check_provider};
use crate::rng::LaneRng;
use crate::seal::cookie::Scope;
use crate::store::providers::ProviderStore;
use crate::store::records::{Class, Keeping, RecordStore};
use crate::store::{Giver, NotKept, Origin};
use crate::time::Now;
use crate::wire::message::{
    Announcement, CONTACT_BYTES, Contacts, ErrorCode, Message, PROVIDER_BYTES, PROVIDERS_HEAD_BYTES, Providers,
    SignedProvider, Token, kind,
};
use crate::wire::{
    ANNOUNCED_IDS_MAX, CLOSER_CONTACTS_MAX, CONTACTS_MAX, DATAGRAM_BYTES_MAX, PAYLOAD_BYTES_MAX, PROVIDER_PARTS_MAX,
    PROVIDERS_PER_PAGE_MAX, PROVIDERS_PER_PART_MAX,
};

pub(super) use ledger::Ledger;
use ledger::Promised;

/// Contacts that a page of providers leaves room for.
const CONTACTS_BESIDE_PROVIDERS: usize = 4;

/// After a split has healed, the newest records, which were stored on one side of it, are given to their current holders: so many,
/// within this time.
const REGIVEN_MAX: usize = 256;
const REGIVEN_MS: u64 = 5000;

/// A lane's service to others.
#[derive(Debug)]
pub(super) struct Server {
    records: RecordStore,
    providers: ProviderStore,
    ledger: Ledger,
    /// Askers of the requests being relayed.
    relays: Vec<RelayedFor>,
}

/// The asker of a request being relayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RelayedFor {
    asker: PublicKey,
    prefix: AddrPrefix,
}

impl Server {
    pub(super) fn new(place: &Place, rng: &mut LaneRng, now: Now) -> Self {
        let (own, config) = (place.own, &place.config);
        Self {
            records: RecordStore::new(own, config.records, rng, now),
            providers: ProviderStore::new(own, config.providers, rng, now),
            ledger: Ledger::new(config),
            relays: Vec::with_capacity(config.relays_max),
        }
    }

    pub(super) fn reserve_all(&mut self, config: &NodeConfig) {
        self.records.reserve_all();
        self.providers.reserve_all();
        self.ledger.reserve_all(config);
    }

    pub(super) fn records(&self) -> &RecordStore {
        &self.records
    }

    pub(super) fn providers(&self) -> &ProviderStore {
        &self.providers
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// The record of `id` that is held or cached here.
    pub(super) fn record(&mut self, now: Now, id: &ContentId) -> Option<&[u8]> {
        self.records.get(id).filter(|kept| kept.expires_secs > now.unix_secs()).map(|kept| kept.bytes)
    }

    /// Answers a request that no other component has a say in.
    pub(super) fn serve(&mut self, cx: &mut Context<'_>, peers: &mut Peers, asker: &Asker, request: &Message<'_>) {
        match request {
            Message::Ping => peers.answer(cx, asker, &Message::Pong { observed: asker.addr }),
            Message::Negotiate(_) => {
                let capabilities = capabilities(cx.place);
                peers.answer(cx, asker, &Message::Negotiated { capabilities, observed: asker.addr });
            }
            Message::FindNode { target, scope } => find_node(cx, peers, asker, target, *scope),
            Message::GetProviders { id, page, parts_max } => {
                self.get_providers(cx, peers, asker, (id, *page, *parts_max));
            }
            Message::Store { token, closer_max, record } => {
                let stored = self.keep_record(cx, peers, (asker, token), record, Class::Held);
                let reply = stored.map(|(id, logged)| (Promised::Stored { id, closer_max: *closer_max }, logged));
                self.acknowledge(cx, peers, asker, reply);
            }
            Message::CacheHint { token, record } => {
                // Never answered.
                let _ = self.keep_record(cx, peers, (asker, token), record, Class::Cached);
            }
            Message::Announce { token, announcement } => {
                let announced = self.keep_announced(cx, peers, (asker, token), announcement);
                let reply = announced.map(|(kept, logged)| (Promised::Announced { kept }, logged));
                self.acknowledge(cx, peers, asker, reply);
            }
            Message::Relay { to, kind, payload } => {
                if let Err(code) = self.relay(cx, peers, asker, to, (*kind, payload)) {
                    peers.answer(cx, asker, &refusal(code));
                }
            }
            _ => {}
        }
    }

    /// Answers FIND_VALUE; `own` is a record that this node keeps alive and is a holder of.
    pub(super) fn find_value(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        asker: &Asker,
        (id, sequence_min): (&ContentId, u64),
        own: Option<&[u8]>,
    ) {
        let token = peers.admission().token(cx.now, asker, id, Scope::EXACT);
        let is_wanted = |record: &&[u8]| {
            RecordView::read(record).is_ok_and(|view| view.mutable.is_none() || view.sequence() >= sequence_min)
        };
        let record = self.record(cx.now, id).or(own).filter(is_wanted);
        let room = (REPLY_PAYLOAD_MAX - 19 - record.map_or(0, <[u8]>::len)) / CONTACT_BYTES;
        let mut list = [0; CLOSER_CONTACTS_MAX * CONTACT_BYTES];
        let room = room.min(CLOSER_CONTACTS_MAX);
        let len = peers.members().write_closest(id.as_bytes(), room, &asker.id, &mut list);
        peers.answer(cx, asker, &Message::Value { token, record, closer: Contacts::over(&list[..len]) });
    }

    /// A page of providers, in as many datagrams as it takes and may take: one for an address that has not echoed its cookie.
    fn get_providers(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        asker: &Asker,
        (id, page, parts_max): (&ContentId, u32, u8),
    ) {
        let token = peers.admission().token(cx.now, asker, id, Scope::EXACT);
        let total = self.providers.count(id);
        let fit = |beside: usize| {
            let room = (REPLY_PAYLOAD_MAX - PROVIDERS_HEAD_BYTES - beside) / PROVIDER_BYTES;
            room.min(PROVIDERS_PER_PART_MAX)
        };
        // The first page leaves room for contacts; the asker that comes for more has them.
        let in_first = fit(if page == 0 { CONTACTS_BESIDE_PROVIDERS * CONTACT_BYTES } else { 0 });
        let left = total.saturating_sub(page as usize).min(PROVIDERS_PER_PAGE_MAX);
        let later = left.saturating_sub(in_first).div_ceil(PROVIDERS_PER_PART_MAX);
        let parts_max = if asker.proven { usize::from(parts_max).clamp(1, PROVIDER_PARTS_MAX) } else { 1 };
        let parts = (1 + later).min(parts_max);
        let (mut start, end) = (page as usize, page as usize + left);
        for part in 0..parts {
            let room = if part == 0 { in_first } else { PROVIDERS_PER_PART_MAX };
            let mut list = [0; PROVIDERS_PER_PART_MAX * PROVIDER_BYTES];
            let mut count = 0;
            let on_part = self.providers.of(id).skip(start).take(room.min(end - start.min(end)));
            for (entry, provider) in list.as_chunks_mut::<PROVIDER_BYTES>().0.iter_mut().zip(on_part) {
                *entry = provider.to_wire();
                count += 1;
            }
            start += count;
            let mut closer = [0; CLOSER_CONTACTS_MAX * CONTACT_BYTES];
            let mut closer_len = 0;
            if part == 0 {
                let room = (REPLY_PAYLOAD_MAX - PROVIDERS_HEAD_BYTES - count * PROVIDER_BYTES) / CONTACT_BYTES;
                let room = room.min(CLOSER_CONTACTS_MAX);
                closer_len = peers.members().write_closest(id.as_bytes(), room, &asker.id, &mut closer);
            }
            let reply = Message::Providers {
                token,
                total: total as u16,
                next: if count > 0 && start < total { start as u32 } else { 0 },
                part: part as u8,
                parts: parts as u8,
                providers: Providers::over(&list[..count * PROVIDER_BYTES]),
                closer: Contacts::over(&closer[..closer_len]),
            };
            peers.answer(cx, asker, &reply);
        }
    }

    /// Answers a write: at once if it is safe or refused, else when it is safe.
    fn acknowledge(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        asker: &Asker,
        reply: Result<(Promised, Logged), ErrorCode>,
    ) {
        match reply {
            Ok((reply, Logged::Safe)) => keep_promise(cx, peers, asker, reply),
            Ok((reply, Logged::At(at))) => self.ledger.promise(cx.now, at, asker.reply_to(), reply),
            Ok((_, Logged::Refused)) => peers.answer(cx, asker, &refusal(ErrorCode::Busy)),
            Err(code) => peers.answer(cx, asker, &refusal(code)),
        }
    }

    /// The log has made everything up to `number` as safe as it promises: waiting peers are answered.
    pub(super) fn on_durable(&mut self, cx: &mut Context<'_>, peers: &mut Peers, number: u64) {
        while let Some((to, reply)) = self.ledger.next_kept(number) {
            let asker = peers.asker(cx, &to);
            keep_promise(cx, peers, &asker, reply);
        }
        self.ledger.on_durable(cx, number);
    }

    /// Keeps a record that this node itself puts. With fewer than K others it is one of those the record belongs to, and
    /// holds it like theirs; else it keeps a copy for a while. False if there is no room for it.
    pub(super) fn keep_own(
        &mut self,
        cx: &mut Context<'_>,
        id: &ContentId,
        view: &RecordView<'_>,
        is_holder: bool,
    ) -> bool {
        let class = if is_holder { Class::Held } else { Class::Cached };
        self.keep(cx, id, view, class, cx.place.own_key.into()).is_ok()
    }

    /// Keeps a valid record, and logs it if it is to be held: an unlogged record is not held, and a repeat must find it missing.
    fn keep(
        &mut self,
        cx: &mut Context<'_>,
        id: &ContentId,
        view: &RecordView<'_>,
        class: Class,
        giver: Giver,
    ) -> Result<Keeping, NotKept> {
        let ttl_max = if class == Class::Cached { cx.place.config.cache_ttl_secs } else { TTL_SECS_MAX };
        let Self { records, ledger, .. } = self;
        let Context { now, place, rng, out, .. } = cx;
        records.keep_if_logged(*now, id, view, class, ttl_max, giver, rng, || {
            let mut buffer = [0; 40 + RECORD_BYTES_MAX];
            let len = write_record(&mut buffer, &giver.key, view.expires_secs(now.unix_secs()), view.bytes);
            ledger.log_to(*out, log_kind::RECORD, place.slot_of(id), &buffer[..len])
        })
    }

    /// Keeps a record that another node gave, if its token and the record itself hold.
    fn keep_record(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        (asker, token): (&Asker, &Token),
        record: &[u8],
        class: Class,
    ) -> Result<(ContentId, Logged), ErrorCode> {
        self.may_keep(cx)?;
        let Ok(view) = RecordView::read(record) else {
            return Err(invalid_record(cx, peers, asker, RecordRefused::Signature));
        };
        let id = view.id();
        if !peers.admission().token_holds(cx.now, asker, &id, token) {
            return Err(bad_token(cx, peers, asker));
        }
        if class == Class::Held && peers.is_too_far(cx, &id) {
            return Err(ErrorCode::TooFar);
        }
        let check = |peers: &Peers| {
            view.check_under_own_id(peers.sealer().crypto(), peers.sealer().network(), cx.now.unix_secs())
        };
        // A signature is the dearest check: old and known versions are told apart first.
        match self.records.judge_sequence(&id, &view, class) {
            // It may still be on its way to the disk: the last logged piece is the latest it can be.
            Ok(Keeping::AlreadyHeld) => {
                self.records.put_off(cx.now, &id, record, class, cx.rng);
                return Ok((id, self.ledger.last_logged()));
            }
            Ok(Keeping::Changed) => {}
            // Only a second value that the owner really signed is an equivocation, and only the owner is to blame for it: any other node
            // that brings one holds it in good faith, as both sides of a network that fell apart do.
            Err(NotKept::Equivocation) => {
                if let Err(refused) = check(peers) {
                    return Err(invalid_record(cx, peers, asker, refused));
                }
                if view.mutable.is_some_and(|mutable| mutable.owner == asker.key) {
                    peers.offence(cx, &asker.key, Offence::Equivocation);
                }
                return Err(ErrorCode::Equivocation);
            }
            Err(NotKept::Stale { .. }) => return Err(ErrorCode::StaleSequence),
            Err(NotKept::GiverFull | NotKept::Full | NotKept::NotLogged) => return Err(ErrorCode::Full),
        }
        if let Err(refused) = check(peers) {
            return Err(invalid_record(cx, peers, asker, refused));
        }
        match self.keep(cx, &id, &view, class, Giver { key: asker.key, origin: origin_of(cx, asker) }) {
            Ok(kept) => {
                cx.counters.records_stored += u64::from(kept == Keeping::Changed && class == Class::Held);
                Ok((id, self.ledger.last_logged()))
            }
            Err(NotKept::NotLogged) => Err(ErrorCode::Busy),
            Err(_) => Err(ErrorCode::Full),
        }
    }

    /// Whether anything of others is kept now.
    fn may_keep(&self, cx: &Context<'_>) -> Result<(), ErrorCode> {
        match cx.place.config.client {
            true => Err(ErrorCode::Unsupported),
            false if self.ledger.is_full(&cx.place.config) => Err(ErrorCode::Busy),
            false => Ok(()),
        }
    }

    /// Keeps the valid ones of announced ids, here or at the lanes that own them. Bit i: the i-th was kept.
    fn keep_announced(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        (asker, token): (&Asker, &Token),
        announcement: &Announcement<'_>,
    ) -> Result<(u16, Logged), ErrorCode> {
        self.may_keep(cx)?;
        // One token for all: it was asked for with a scope that covers them.
        if announcement.ids().any(|(id, _)| !peers.admission().token_holds(cx.now, asker, &id, token)) {
            return Err(bad_token(cx, peers, asker));
        }
        if !peers.members().may_be_named(cx.place, &announcement.provider.addr) {
            return Err(ErrorCode::Invalid);
        }
        let (mut kept, origin) = (0, origin_of(cx, asker));
        for (i, (id, provider)) in announcement.providers().enumerate().take(ANNOUNCED_IDS_MAX) {
            if self.providers.holds_newer(&id, &provider) {
                kept |= 1 << i;
                continue;
            }
            if peers.is_too_far(cx, &id) {
                continue;
            }
            let (crypto, network) = (peers.sealer().crypto(), peers.sealer().network());
            match check_provider(&provider, &id, crypto, network, cx.now.unix_secs()) {
                Ok(()) if self.keep_provider(cx, &id, &provider, origin) => kept |= 1 << i,
                Err(refused) if is_lie(refused) => return Err(invalid_record(cx, peers, asker, refused)),
                _ => {}
            }
        }
        Ok((kept, self.ledger.last_logged()))
    }

    /// Keeps a verified provider at the lane that owns its id.
    fn keep_provider(
        &mut self,
        cx: &mut Context<'_>,
        id: &ContentId,
        provider: &SignedProvider,
        origin: Origin,
    ) -> bool {
        let entry = provider_entry(id, provider, origin);
        if !cx.place.owns(id) {
            cx.tell_owner(id, MessageClass::Coordination, message_kind::PROVIDERS, &entry);
            return true;
        }
        self.keep_entry(cx, (id, provider, origin), &entry)
    }

    /// Keeps a verified provider here.
    fn keep_entry(
        &mut self,
        cx: &mut Context<'_>,
        (id, provider, origin): (&ContentId, &SignedProvider, Origin),
        entry: &[u8; PROVIDER_ENTRY_BYTES],
    ) -> bool {
        // A message of another lane may come twice, or after a newer one.
        if self.providers.holds_newer(id, provider) {
            return true;
        }
        let Self { providers, ledger, .. } = self;
        let Context { now, place, rng, out, .. } = cx;
        let kept = providers.keep_if_logged(*now, id, (provider, origin), rng, || {
            ledger.log_to(*out, log_kind::PROVIDER, place.slot_of(id), entry)
        });
        cx.counters.providers_stored += u64::from(kept.is_ok());
        kept.is_ok()
    }

    /// Another lane was sent providers that this one owns: by the map of the runtime, which may be newer than ours. To pass them on from here would
    /// begin their time to live anew.
    pub(super) fn take_providers(&mut self, cx: &mut Context<'_>, payload: &[u8]) {
        for entry in payload.as_chunks::<PROVIDER_ENTRY_BYTES>().0 {
            if let Some((id, provider, origin)) = read_provider_entry(entry) {
                self.keep_entry(cx, (&id, &provider, origin), entry);
            }
        }
    }

    /// Keeps a record that a lookup of our own found.
    pub(super) fn cache(&mut self, cx: &mut Context<'_>, id: &ContentId, view: &RecordView<'_>) {
        let _ = self.keep(cx, id, view, Class::Cached, cx.place.own_key.into());
    }

    /// Whether one more request may be relayed for an asker: it, and its address prefix if that is a public one, have a share of all.
    fn may_relay_for(&self, config: &NodeConfig, who: &RelayedFor) -> bool {
        let NodeConfig { relays_max, relay_asker_share, relay_prefix_share, .. } = config;
        let share_of = |parts: usize| (relays_max / parts.max(1)).max(1);
        let by_asker = self.relays.iter().filter(|relay| relay.asker == who.asker).count();
        let by_prefix = self.relays.iter().filter(|relay| relay.prefix == who.prefix).count();
        self.relays.len() < *relays_max
            && by_asker < share_of(*relay_asker_share)
            && (who.prefix.is_private() || by_prefix < share_of(*relay_prefix_share))
    }

    /// Asks a node on behalf of another, which hides the asker. Only lookups are relayed, only so many at once, only for an address that is
    /// proven, and a request to relay is a full datagram: the asker sends as many bytes as we do.
    fn relay(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        asker: &Asker,
        to: &Contact,
        (inner, payload): (u8, &[u8]),
    ) -> Result<(), ErrorCode> {
        let relays_max = cx.place.config.relays_max;
        let id = peers.node_id(&to.key);
        if !matches!(inner, kind::FIND_NODE | kind::FIND_VALUE | kind::GET_PROVIDERS) || relays_max == 0 {
            return Err(ErrorCode::Unsupported);
        }
        // Else a sender from made-up addresses would have as many limits as it makes up.
        if !asker.proven {
            return Err(ErrorCode::CookieRequired);
        }
        let who = RelayedFor { asker: asker.key, prefix: asker.addr.prefix() };
        if !self.may_relay_for(&cx.place.config, &who) {
            return Err(ErrorCode::Busy);
        }
        if asker.datagram_len < DATAGRAM_BYTES_MAX {
            return Err(ErrorCode::Malformed);
        }
        if id == cx.place.own || !peers.members().may_be_named(cx.place, &to.addr) {
            return Err(ErrorCode::Unsupported);
        }
        let Ok(mut message) = Message::read_payload(inner, payload) else {
            peers.offence(cx, &asker.key, Offence::Malformed);
            return Err(ErrorCode::Malformed);
        };
        // One datagram is handed back, so one is asked for.
        if let Message::GetProviders { parts_max, .. } = &mut message {
            *parts_max = 1;
        }
        let about = match message {
            Message::FindNode { target, .. } => target,
            Message::FindValue { id, .. } | Message::GetProviders { id, .. } => *id.as_bytes(),
            _ => [0; 32],
        };
        let purpose = Purpose::Relay(asker.reply_to());
        peers.ask(cx, Question { to: *to, id, about: &about, message, purpose }).ok_or(ErrorCode::Busy)?;
        self.relays.push(who);
        Ok(())
    }

    /// The node that was asked on behalf of another has answered, or was silent.
    pub(super) fn relayed(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        asker: &ReplyTo,
        answer: Option<&Message<'_>>,
    ) {
        let who = RelayedFor { asker: asker.key, prefix: asker.addr.prefix() };
        if let Some(at) = self.relays.iter().position(|relay| *relay == who) {
            self.relays.swap_remove(at);
        }
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let mut writer = crate::wire::codec::Writer::new(&mut payload);
        let reply = match answer {
            Some(answer) if answer.write_payload(&mut writer).is_ok() => {
                let len = writer.len();
                Message::Relayed { kind: answer.kind(), payload: &payload[..len] }
            }
            _ => refusal(ErrorCode::RelayFailed),
        };
        peers.reply_to(cx, asker, &reply);
    }

    /// Drops expired records. `again` is told of held records that are due to be given to their current holders.
    pub(super) fn expire(&mut self, cx: &mut Context<'_>, again: impl FnMut(&ContentId)) {
        self.records.expire(cx.now, cx.rng, again);
        self.providers.expire(cx.now);
    }

    /// A split has healed: the newest records are due soon.
    pub(super) fn give_on_soon(&mut self, cx: &mut Context<'_>) {
        self.records.hurry(cx.now, REGIVEN_MAX, REGIVEN_MS, cx.rng);
    }

    /// Drops the record of `id`. False if there is none.
    pub(super) fn forget(&mut self, id: &ContentId) -> bool {
        self.records.remove(id)
    }

    /// Takes back a record that was logged.
    pub(super) fn restore_record(&mut self, cx: &mut Context<'_>, payload: &[u8]) {
        let Some((giver, rest)) = payload.split_first_chunk::<32>() else { return };
        let Some((expires, record)) = rest.split_first_chunk::<8>() else { return };
        let left = u64::from_le_bytes(*expires).saturating_sub(cx.now.unix_secs());
        if let Ok(view) = RecordView::read(record)
            && left > 0
        {
            let ttl = u32::try_from(left).unwrap_or(u32::MAX).min(TTL_SECS_MAX);
            let _ = self.records.keep(cx.now, &view.id(), &view, Class::Held, ttl, PublicKey(*giver), cx.rng);
        }
    }

    /// Takes back a provider that was logged.
    pub(super) fn restore_provider(&mut self, cx: &mut Context<'_>, payload: &[u8]) {
        let Some((id, provider, origin)) = read_provider_entry(payload) else { return };
        if provider.issued_secs.saturating_add(u64::from(provider.ttl_secs)) > cx.now.unix_secs() {
            let _ = self.providers.keep(cx.now, &id, (&provider, origin), cx.rng);
        }
    }

    /// Writes records and providers as log records. `put` returns false when it takes no more.
    pub(super) fn export(&self, mut put: impl FnMut(u8, &ContentId, &[u8]) -> bool) -> bool {
        let mut buffer = [0; 40 + RECORD_BYTES_MAX];
        let held = self.records.iter().filter(|(_, kept)| kept.class == Class::Held);
        held.into_iter().all(|(id, kept)| {
            let len = write_record(&mut buffer, &kept.giver, kept.expires_secs, kept.bytes);
            put(log_kind::RECORD, &id, &buffer[..len])
        }) && self
            .providers
            .iter()
            .all(|(id, provider, origin)| put(log_kind::PROVIDER, &id, &provider_entry(&id, provider, origin)))
    }

    /// Drops records of slots that another lane owns now.
    pub(super) fn drop_where(&mut self, is_gone: impl Fn(&ContentId) -> bool) {
        let records: alloc::vec::Vec<_> = self.records.iter().map(|(id, _)| id).filter(&is_gone).collect();
        let providers: alloc::vec::Vec<_> = self.providers.iter().map(|(id, ..)| id).filter(&is_gone).collect();
        for id in records {
            self.records.remove(&id);
        }
        for id in providers {
            self.providers.remove(&id);
        }
    }
}

#[inline]
fn find_node(cx: &mut Context<'_>, peers: &mut Peers, asker: &Asker, target: &[u8; 32], scope: Scope) {
    let token = peers.region_token(cx, asker, target, scope);
    let mut list = [0; CONTACTS_MAX * CONTACT_BYTES];
    let len = peers.members().write_closest(target, CONTACTS_MAX, &asker.id, &mut list);
    peers.answer(cx, asker, &Message::Nodes { token, contacts: Contacts::over(&list[..len]) });
}

fn keep_promise(cx: &mut Context<'_>, peers: &mut Peers, asker: &Asker, reply: Promised) {
    match reply {
        Promised::Stored { id, closer_max } => {
            let mut list = [0; CONTACTS_MAX * CONTACT_BYTES];
            let room = asker.contacts_max(1).min(usize::from(closer_max));
            let len = peers.members().write_closest(id.as_bytes(), room, &asker.id, &mut list);
            peers.answer(cx, asker, &Message::Stored { closer: Contacts::over(&list[..len]) });
        }
        Promised::Announced { kept } => peers.answer(cx, asker, &Message::Announced { kept }),
    }
}

fn bad_token(cx: &mut Context<'_>, peers: &mut Peers, asker: &Asker) -> ErrorCode {
    peers.offence(cx, &asker.key, Offence::BadToken);
    ErrorCode::BadToken
}

/// A record does not hold.
fn invalid_record(cx: &mut Context<'_>, peers: &mut Peers, asker: &Asker, refused: RecordRefused) -> ErrorCode {
    if is_lie(refused) {
        cx.counters.records_invalid += 1;
        peers.offence(cx, &asker.key, Offence::InvalidRecord);
    }
    ErrorCode::Invalid
}

/// The origin under which an asker's records count.
fn origin_of(cx: &Context<'_>, asker: &Asker) -> Origin {
    if cx.place.config.defences.shares_by_origin { Origin::of(&asker.key, &asker.addr) } else { Origin::ANY }
}

const PROVIDER_ENTRY_BYTES: usize = 32 + PROVIDER_BYTES + 8;

/// A provider as it is logged, and handed to the lane that owns its id: with whose announcement it was.
fn provider_entry(id: &ContentId, provider: &SignedProvider, origin: Origin) -> [u8; PROVIDER_ENTRY_BYTES] {
    let mut entry = [0; PROVIDER_ENTRY_BYTES];
    entry[..32].copy_from_slice(id.as_bytes());
    entry[32..32 + PROVIDER_BYTES].copy_from_slice(&provider.to_wire());
    entry[32 + PROVIDER_BYTES..].copy_from_slice(&origin.to_wire());
    entry
}

/// Reads such an entry. An older build's entry does not name its origin: its provider, then.
fn read_provider_entry(entry: &[u8]) -> Option<(ContentId, SignedProvider, Origin)> {
    let (id, rest) = entry.split_first_chunk::<32>()?;
    let (provider, rest) = rest.split_first_chunk::<PROVIDER_BYTES>()?;
    let provider = SignedProvider::from_wire(provider);
    let of_provider = || Origin::of(&provider.provider.key, &provider.provider.addr);
    let origin = rest.first_chunk().map_or_else(of_provider, Origin::from_wire);
    Some((ContentId::from_bytes(*id), provider, origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Views for tests of other components.
    impl Server {
        pub(crate) fn records_mut(&mut self) -> &mut RecordStore {
            &mut self.records
        }
    }
}
