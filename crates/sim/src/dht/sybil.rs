//! Hostile nodes: they speak the protocol well enough to be believed, and lie in everything that matters.
//!
//! A Sybil answers pings, names only its accomplices as nearest to whatever is asked, acknowledges every write and keeps
//! none, denies records it has seen, forges immutable ones, and serves old versions of mutable ones. The ring decides what its members
//! do: they may name made-up contacts instead, keep silent about values, or name honest nodes until a moment of the ring's choice.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::PublicKey;
use tessera_dht::node::steering_slot;
use tessera_dht::record::immutable_record;
use tessera_dht::rng::LaneRng;
use tessera_dht::seal::cookie::Scope;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::seal::{Opened, SealLimits, Sealer};
use tessera_dht::time::Now;
use tessera_dht::wire::header::{HEADER_BYTES, Suite};
use tessera_dht::wire::message::{CONTACT_BYTES, Capabilities, Contacts, Envelope, Message, Providers, capability};
use tessera_dht::wire::{BODY_BYTES_MAX, CONTACTS_MAX, DATAGRAM_BYTES_MAX};

use super::crypto::SimCrypto;

/// What all accomplices share.
#[derive(Default)]
pub(crate) struct Ring {
    pub(crate) members: Vec<(NodeId, Contact)>,
    /// Old, validly signed versions of mutable records.
    pub(crate) stale: BTreeMap<ContentId, Vec<u8>>,
    /// Ground keys at addresses where nothing listens.
    pub(crate) made_up: Vec<(NodeId, Contact)>,
    /// Honest nodes: whom members name that behave.
    pub(crate) honest: Vec<(NodeId, Contact)>,
    pub(crate) conduct: Conduct,
}

/// What the members of a ring do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conduct {
    /// They name honest nodes for now.
    pub(crate) behaves: bool,
    /// They name made-up contacts instead of each other, and deny what they are asked for instead of forging it.
    pub(crate) names_made_up: bool,
    /// They deny what they are asked for instead of forging it.
    pub(crate) denies: bool,
    /// They do not answer questions for values.
    pub(crate) is_silent_about_values: bool,
}

pub(crate) struct Sybil {
    sealer: Sealer<SimCrypto>,
    ring: Rc<RefCell<Ring>>,
    rng: LaneRng,
}

impl Sybil {
    pub(crate) fn new(crypto: SimCrypto, network: &str, ring: Rc<RefCell<Ring>>, seed: [u8; 32], now: Now) -> Self {
        let mut rng = LaneRng::new(seed);
        let limits = SealLimits {
            agreements_max: 512,
            streams_max: 512,
            stranger_agreements_per_sec: 1_000_000,
            stranger_agreements_burst: 1_000_000,
            ..SealLimits::default()
        };
        let sealer = Sealer::new(crypto, NetworkKey::of_name(network), Suite::Aes256Gcm, &limits, &mut rng, now);
        Self { sealer, ring, rng }
    }

    pub(crate) fn on_datagram(&mut self, now: Now, from: Addr, datagram: &mut [u8]) -> Vec<(Addr, Vec<u8>)> {
        let Ok(Opened { header, body, .. }) = self.sealer.open(now, datagram, |_, _| true) else { return Vec::new() };
        let Ok(envelope) = Envelope::read(body) else { return Vec::new() };
        if envelope.message.is_reply() {
            // A cookie to prove ourselves with at the next knock.
            let (sender, cookie) = (header.sender, envelope.cookie);
            self.sealer.keep_cookie(now, &sender, cookie);
            return Vec::new();
        }
        let conduct = self.ring.borrow().conduct;
        let asks_for_value = matches!(envelope.message, Message::FindValue { .. } | Message::GetProviders { .. });
        if conduct.is_silent_about_values && asks_for_value {
            return Vec::new();
        }
        let mut list = [0; CONTACTS_MAX * CONTACT_BYTES];
        let token = [7; 16];
        let forged;
        let stale;
        let reply = match &envelope.message {
            Message::Ping => Message::Pong { observed: from },
            Message::Negotiate(_) => Message::Negotiated { capabilities: all_capabilities(), observed: from },
            Message::FindNode { target, .. } => {
                let len = self.accomplices(target, CONTACTS_MAX, &mut list);
                Message::Nodes { token, contacts: Contacts::over(&list[..len]) }
            }
            Message::FindValue { id, .. } => {
                let len = self.accomplices(id.as_bytes(), 8, &mut list);
                let closer = Contacts::over(&list[..len.min(8 * CONTACT_BYTES)]);
                stale = self.ring.borrow().stale.get(id).cloned();
                let forges = !conduct.names_made_up && !conduct.behaves && !conduct.denies;
                match (&stale, if forges { self.rng.below(3) } else { 2 }) {
                    (Some(record), _) if forges => {
                        Message::Value { token, record: Some(record), closer: Contacts::default() }
                    }
                    (_, 0) => {
                        forged = immutable_record(b"a forgery", 1000).unwrap_or_default();
                        Message::Value { token, record: Some(&forged), closer: Contacts::default() }
                    }
                    (_, 1) => return Vec::new(),
                    _ => Message::Value { token, record: None, closer },
                }
            }
            Message::Store { .. } => Message::Stored { closer: Contacts::default() },
            Message::Announce { .. } => Message::Announced { kept: u16::MAX },
            Message::GetProviders { id, .. } => {
                let len = self.accomplices(id.as_bytes(), 8, &mut list);
                let closer = Contacts::over(&list[..len]);
                Message::Providers {
                    token,
                    total: 0,
                    next: 0,
                    part: 0,
                    parts: 1,
                    providers: Providers::default(),
                    closer,
                }
            }
            _ => return Vec::new(),
        };
        let reply = Envelope { flags: 0, correlation: envelope.correlation, cookie: [9; 8], message: reply };
        self.seal(now, &header.sender, envelope.correlation as u8, &reply, false)
            .map(|bytes| (from, bytes))
            .into_iter()
            .collect()
    }

    /// A request that makes `to` notice us.
    pub(crate) fn knock(&mut self, now: Now, to: &Contact) -> Option<Vec<u8>> {
        let target = self.rng.bytes();
        let envelope = Envelope {
            flags: 0,
            correlation: self.rng.u64(),
            cookie: self.sealer.cookie_of(now, &to.key),
            message: Message::FindNode { target, scope: Scope::EXACT },
        };
        let slot = steering_slot(&to.id(), &target);
        self.seal(now, &to.key, slot, &envelope, true)
    }

    fn seal(&mut self, now: Now, to: &PublicKey, slot: u8, envelope: &Envelope<'_>, pad: bool) -> Option<Vec<u8>> {
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        let len = envelope.write(&mut buffer[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX]).ok()?;
        let len = if pad { BODY_BYTES_MAX } else { len };
        let len = self.sealer.seal(now, to, slot, &mut buffer, len).ok()?;
        Some(buffer[..len].to_vec())
    }

    fn accomplices(&mut self, target: &[u8; 32], count: usize, list: &mut [u8]) -> usize {
        let target = ContentId::from_bytes(*target);
        let ring = self.ring.borrow();
        let named = match ring.conduct {
            Conduct { behaves: true, .. } => &ring.honest,
            Conduct { names_made_up: true, .. } => &ring.made_up,
            _ => &ring.members,
        };
        let mut near: Vec<_> = named.iter().collect();
        near.sort_by_key(|(id, _)| id.distance_to(&target));
        // The nearest, but not always the same ones: as many different faces as the ring has.
        let skip = self.rng.below(4) as usize;
        let mut len = 0;
        for (_, contact) in near.into_iter().skip(skip).take(count) {
            list[len..len + CONTACT_BYTES].copy_from_slice(&contact.to_wire());
            len += CONTACT_BYTES;
        }
        len
    }
}

fn all_capabilities() -> Capabilities {
    Capabilities {
        version_min: 1,
        version_max: 1,
        datagram_bytes_max: DATAGRAM_BYTES_MAX as u16,
        bits: capability::STORES | capability::RELAYS | capability::STEMS | 3,
    }
}
