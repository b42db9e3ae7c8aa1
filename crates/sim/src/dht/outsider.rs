//! An attacker that speaks the protocol from an address of its own, and says what no lane would say.

use std::cell::RefCell;
use std::rc::Rc;

use tessera_contracts::point::Point as _;
use tessera_dht::addr::Addr;
use tessera_dht::node::steering_slot;
use tessera_dht::rng::LaneRng;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::seal::{Opened, SealLimits, Sealer};
use tessera_dht::wire::header::{Challenge, HEADER_BYTES, Suite};
use tessera_dht::wire::message::{Cookie, Envelope, Message, flag};
use tessera_dht::wire::{BODY_BYTES_MAX, DATAGRAM_BYTES_MAX};

use super::crypto::SimCrypto;
use super::scenario::NETWORK;
use super::world::{Being, World};

/// What has come to an outsider's address.
pub(crate) type Inbox = Rc<RefCell<Vec<Vec<u8>>>>;

/// No datagram takes longer there and back.
const ROUND_TRIP_MS: u64 = 700;

pub(crate) struct Outsider {
    sealer: Sealer<SimCrypto>,
    seed: [u8; 32],
    at: usize,
    pub(crate) addr: Addr,
    inbox: Inbox,
    /// The cookie of the node that it talks to.
    pub(crate) cookie: Cookie,
    correlation: u64,
}

impl Outsider {
    /// An outsider with the keys of `seed`, which lives at `addr`.
    pub(crate) fn new(world: &mut World, seed: [u8; 32], addr: Addr) -> Self {
        let inbox = Inbox::default();
        let at = world.add_being(seed, addr, Being::Outsider(inbox.clone()));
        let sealer = sealer(world, seed, seed);
        Self { sealer, seed, at, addr, inbox, cookie: [0; 8], correlation: 0 }
    }

    /// What its keys are made of.
    pub(crate) fn seed(&self) -> [u8; 32] {
        self.seed
    }

    /// Goes on as another incarnation, as a lane that was started again.
    pub(crate) fn reincarnate(&mut self, world: &mut World) {
        let incarnation = world.rng.bytes();
        self.sealer = sealer(world, self.seed, incarnation);
    }

    /// A datagram for a node, padded like a first request.
    pub(crate) fn datagram(&mut self, world: &World, to: usize, message: Message<'_>) -> Vec<u8> {
        let (now, node) = (world.now(), &world.nodes[to]);
        self.correlation += 256;
        let envelope = Envelope { flags: flag::CLIENT, correlation: self.correlation, cookie: self.cookie, message };
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        envelope.write(&mut buffer[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX]).expect("it fits");
        let slot = steering_slot(&node.id, node.id.as_bytes());
        let len = self.sealer.seal(now, &node.contact.key, slot, &mut buffer, BODY_BYTES_MAX).expect("a usable key");
        buffer[..len].to_vec()
    }

    /// Sends a datagram of its own making to a node, and waits for what comes. Returns how many answers came.
    pub(crate) fn send(&mut self, world: &mut World, to: usize, datagram: Vec<u8>) -> usize {
        self.inbox.borrow_mut().clear();
        let addr = world.nodes[to].contact.addr;
        world.transmit(self.at, self.addr, addr, datagram);
        world.run_for(ROUND_TRIP_MS);
        self.inbox.borrow().len()
    }

    /// Says something to a node, hands what it answers to `read`, and keeps the cookie that comes with it.
    pub(crate) fn say(
        &mut self,
        world: &mut World,
        to: usize,
        message: Message<'_>,
        mut read: impl FnMut(&Message<'_>),
    ) {
        let datagram = self.datagram(world, to, message);
        self.send(world, to, datagram);
        let now = world.now();
        for mut bytes in self.inbox.take() {
            if let Some(challenge) = Challenge::read(&bytes) {
                self.cookie = challenge.cookie;
            } else if let Ok(Opened { body, .. }) = self.sealer.open(now, &mut bytes, |_, _| true)
                && let Ok(envelope) = Envelope::read(body)
            {
                self.cookie = envelope.cookie;
                read(&envelope.message);
            }
        }
    }

    /// Shows a node its address.
    pub(crate) fn prove(&mut self, world: &mut World, to: usize) {
        for _ in 0..2 {
            self.say(world, to, Message::Ping, |_| {});
        }
    }
}

fn sealer(world: &World, seed: [u8; 32], incarnation: [u8; 32]) -> Sealer<SimCrypto> {
    let (crypto, network) = (world.crypto(seed), NetworkKey::of_name(NETWORK));
    let limits = SealLimits { agreements_max: 8, streams_max: 8, ..SealLimits::default() };
    Sealer::new(crypto, network, Suite::Aes256Gcm, &limits, &mut LaneRng::new(incarnation), world.now())
}
