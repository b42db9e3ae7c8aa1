//! A handful of real lanes with real keys on a network that is instant but for ten milliseconds, for tests of the
//! whole. A test can look at every datagram, hold back answers of a log, lose, repeat and reorder messages between lanes,
//! and silence nodes.

use std::collections::{BTreeMap, BTreeSet};

use tessera_contracts::point::{ContentId, Point as _};
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, STRIPED_BITS_DEFAULT, Selector, Slot};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, Identity};
use tessera_dht::node::LaneNode;
use tessera_dht::node::command::{Command, CommandId, Outcome, Privacy};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::node::outbox::{Importance, Logged, MessageClass, Outbox, message_kind};
use tessera_dht::record::{MutableDraft, mutable_record};
use tessera_dht::rng::LaneRng;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::seal::{Opened, SealLimits, Sealer};
use tessera_dht::time::Now;
use tessera_dht::wire::DATAGRAM_BYTES_MAX;
use tessera_dht::wire::header::{Challenge, HEADER_BYTES, Suite, slot_of};
use tessera_dht::wire::message::{Contacts, Envelope, Message, Providers, flag};

/// The answer of a member's log to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    /// Safe at once.
    Instant,
    /// Safe when the test says so.
    Waits,
    /// Takes nothing.
    Full,
}

/// The effects of one call of a lane.
pub(crate) struct Effects {
    pub(crate) sends: Vec<(Addr, Vec<u8>)>,
    pub(crate) forwards: Vec<(Slot, Addr, Vec<u8>, u8)>,
    pub(crate) messages: Vec<(LaneIndex, u8, Vec<u8>)>,
    pub(crate) logs: Vec<(u8, Vec<u8>)>,
    pub(crate) completions: Vec<(CommandId, Outcome)>,
    disk: Disk,
    logged: u64,
}

impl Effects {
    pub(crate) fn new(disk: Disk, logged: u64) -> Self {
        let (sends, forwards, messages) = (Vec::new(), Vec::new(), Vec::new());
        Self { sends, forwards, messages, logs: Vec::new(), completions: Vec::new(), disk, logged }
    }
}

impl Outbox for Effects {
    fn send(&mut self, to: Addr, datagram: &[u8]) {
        self.sends.push((to, datagram.to_vec()));
    }
    fn forward(&mut self, slot: Slot, from: Addr, datagram: &[u8], hops: u8) {
        self.forwards.push((slot, from, datagram.to_vec(), hops));
    }
    fn message(&mut self, to: LaneIndex, _: MessageClass, kind: u8, _: u64, payload: &[u8]) {
        self.messages.push((to, kind, payload.to_vec()));
    }
    fn log(&mut self, kind: u8, _: Slot, payload: &[u8], _: Importance) -> Logged {
        if self.disk == Disk::Full {
            return Logged::Refused;
        }
        self.logs.push((kind, payload.to_vec()));
        self.logged += 1;
        if self.disk == Disk::Waits { Logged::At(self.logged) } else { Logged::Safe }
    }
    fn complete(&mut self, command: CommandId, outcome: Outcome) {
        self.completions.push((command, outcome));
    }
}

pub(crate) struct Member {
    /// The number of its identity.
    pub(crate) who: usize,
    pub(crate) lanes: Vec<LaneNode>,
    pub(crate) map: PrefixMap,
    pub(crate) contact: Contact,
    pub(crate) log: Vec<(u8, Vec<u8>)>,
    pub(crate) disk: Disk,
    pub(crate) logged: u64,
}

/// Datagrams arrive ten milliseconds after they were sent.
pub(crate) struct Net {
    pub(crate) now: Now,
    pub(crate) members: Vec<Member>,
    pub(crate) by_addr: BTreeMap<Addr, usize>,
    pub(crate) flying: Vec<(Addr, Addr, Vec<u8>)>,
    pub(crate) completions: BTreeMap<CommandId, Outcome>,
    pub(crate) commands: u64,
    /// Members that neither hear nor speak.
    pub(crate) silent: BTreeSet<usize>,
    /// Members below this one and the others do not hear each other.
    pub(crate) cut: Option<usize>,
    /// The address of the request under way. A member with two addresses answers from there.
    asked_at: Option<Addr>,
    /// Lose every message between lanes.
    pub(crate) messages_lost: bool,
    /// Bring every message between lanes twice, the second time up to a second later and in another order.
    pub(crate) messages_mixed: bool,
    mixed: Vec<(usize, LaneIndex, u8, Vec<u8>)>,
    /// Every datagram since the tap was opened.
    pub(crate) tap: Option<Vec<(Addr, Addr, Vec<u8>)>>,
    /// Members for which the test answers.
    pub(crate) puppets: BTreeMap<usize, Puppet>,
    /// The cookies that puppets hand out, if not always the same.
    pub(crate) cookies: Option<Box<dyn FnMut() -> [u8; 8]>>,
    /// Which datagrams are lost.
    pub(crate) lose: Option<fn(&Seen) -> bool>,
    /// A member, and the kind of datagrams to it that are lost.
    pub(crate) lose_at: Option<(usize, u8)>,
}

/// Answers a request, as often as it likes.
pub(crate) type Puppet = Box<dyn FnMut(&Message<'_>, &mut dyn FnMut(Message<'_>))>;

/// A datagram as its receiver reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) from: Addr,
    pub(crate) kind: u8,
    /// The point or id a request is about; of a RELAY, the node to ask.
    pub(crate) about: Option<[u8; 32]>,
    /// Of a page of providers, which part.
    pub(crate) part: u8,
}

pub(crate) fn identity(n: usize) -> Identity {
    let mut seed = [(n % 256) as u8; 32];
    seed[1] = (n >> 8) as u8 + 1;
    Identity::from_seed(&seed)
}

pub(crate) fn map(lanes: usize) -> PrefixMap {
    PrefixMap::new(Selector::striped(STRIPED_BITS_DEFAULT).unwrap(), lanes).unwrap()
}

pub(crate) fn lane(n: usize, config: &NodeConfig, map: &PrefixMap, lane: u8, now: Now) -> LaneNode {
    let mut seed = [n as u8 ^ 0x55; 32];
    seed[1] = lane;
    LaneNode::new(config.clone(), identity(n), map.clone(), LaneIndex(lane), seed, now)
}

/// The only lane of a member that starts again: with fresh randomness, as the others would take its datagrams for replays.
pub(crate) fn lane_again(n: usize, now: Now) -> LaneNode {
    let mut seed = [n as u8 ^ 0x55; 32];
    seed[8..16].copy_from_slice(&now.mono_ms.to_le_bytes());
    LaneNode::new(NodeConfig::default(), identity(n), map(1), LaneIndex(0), seed, now)
}

impl Net {
    pub(crate) fn empty() -> Self {
        Self {
            now: Now { mono_ms: 1_000_000, unix_ms: 1_800_000_000_000 },
            members: Vec::new(),
            by_addr: BTreeMap::new(),
            flying: Vec::new(),
            completions: BTreeMap::new(),
            commands: 0,
            silent: BTreeSet::new(),
            cut: None,
            asked_at: None,
            messages_lost: false,
            messages_mixed: false,
            mixed: Vec::new(),
            tap: None,
            puppets: BTreeMap::new(),
            cookies: None,
            lose: None,
            lose_at: None,
        }
    }

    /// Members of one lane each that have found each other.
    pub(crate) fn of(count: usize, config: &NodeConfig) -> Self {
        Self::of_lanes(count, 1, config)
    }

    /// The same with several lanes each.
    pub(crate) fn of_lanes(count: usize, lanes: usize, config: &NodeConfig) -> Self {
        let mut net = Self::empty();
        for _ in 0..count {
            net.join(lanes, config);
            net.run(300);
        }
        net.run(20_000);
        net
    }

    /// Adds a member that knows the first one.
    pub(crate) fn join(&mut self, lanes: usize, config: &NodeConfig) -> usize {
        self.join_by(0, lanes, config)
    }

    /// Adds a member that knows another one, unless it is that one.
    pub(crate) fn join_by(&mut self, known: usize, lanes: usize, config: &NodeConfig) -> usize {
        let n = self.members.len();
        let addr = Addr::v4([10, (n >> 8) as u8, n as u8, 1], 4000);
        let contact = Contact { key: identity(n).public_key(), addr };
        let map = map(lanes);
        let lanes = (0..lanes).map(|at| lane(n, config, &map, at as u8, self.now)).collect();
        self.by_addr.insert(addr, n);
        self.members.push(Member { who: n, lanes, map, contact, log: Vec::new(), disk: Disk::Instant, logged: 0 });
        let seeds = (n != known).then(|| self.members[known].contact).into_iter().collect();
        self.start(n, seeds);
        n
    }

    /// Adds a member that the test plays, with the identity of a number, and tells each other of it.
    pub(crate) fn play(&mut self, who: usize, puppet: Puppet) -> usize {
        let n = self.members.len();
        let addr = Addr::v4([10, 99, (who >> 8) as u8, who as u8], 4000);
        let contact = Contact { key: identity(who).public_key(), addr };
        self.by_addr.insert(addr, n);
        self.puppets.insert(n, puppet);
        let (lanes, log) = (Vec::new(), Vec::new());
        self.members.push(Member { who, lanes, map: map(1), contact, log, disk: Disk::Instant, logged: 0 });
        let mut payload = [0xff; 54];
        payload[..50].copy_from_slice(&contact.to_wire());
        let now = self.now;
        for other in 0..n {
            for at in 0..self.members[other].lanes.len() {
                self.call_lane(other, at, |lane, out| lane.on_message(now, message_kind::CONTACT, &payload, out));
            }
        }
        n
    }

    pub(crate) fn start(&mut self, n: usize, seeds: Vec<Contact>) {
        let now = self.now;
        for at in 0..self.members[n].lanes.len() {
            let contacts = seeds.clone();
            self.call_lane(n, at, |lane, out| {
                lane.on_start(now, out);
                lane.on_command(now, CommandId(0), Command::Bootstrap { contacts }, out);
            });
        }
    }

    pub(crate) fn call(&mut self, n: usize, act: impl FnOnce(&mut LaneNode, &mut Effects)) {
        self.call_lane(n, 0, act);
    }

    pub(crate) fn call_lane(&mut self, n: usize, at: usize, act: impl FnOnce(&mut LaneNode, &mut Effects)) {
        let mut act = Some(act);
        self.call_dyn(n, at, &mut |lane, out| act.take().unwrap()(lane, out));
    }

    fn call_dyn(&mut self, n: usize, at: usize, act: &mut dyn FnMut(&mut LaneNode, &mut Effects)) {
        let member = &mut self.members[n];
        let mut effects = Effects::new(member.disk, member.logged);
        act(&mut member.lanes[at], &mut effects);
        member.logged = effects.logged;
        member.log.extend(effects.logs);
        let from = self.asked_at.unwrap_or(member.contact.addr);
        self.completions.extend(effects.completions);
        for (to, bytes) in effects.sends {
            if let Some(tap) = &mut self.tap {
                tap.push((from, to, bytes.clone()));
            }
            self.flying.push((from, to, bytes));
        }
        let now = self.now;
        for (slot, from, mut bytes, hops) in effects.forwards {
            let at = usize::from(self.members[n].map.lane_of_slot(slot).0);
            self.call_dyn(n, at, &mut |lane, out| lane.on_datagram(now, from, &mut bytes, hops, out));
        }
        for (to, kind, payload) in effects.messages {
            if self.messages_mixed {
                self.mixed.push((n, to, kind, payload.clone()));
                // Every second one comes late, so that a later one overtakes it.
                if self.mixed.len().is_multiple_of(2) {
                    self.mixed.push((n, to, kind, payload));
                    continue;
                }
            }
            if !self.messages_lost {
                self.call_dyn(n, usize::from(to.0), &mut |lane, out| lane.on_message(now, kind, &payload, out));
            }
        }
    }

    pub(crate) fn run(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(10) {
            self.now = self.now.later(std::time::Duration::from_millis(10));
            let now = self.now;
            for (from, to, mut bytes) in std::mem::take(&mut self.flying) {
                let sender = self.by_addr.get(&from).copied();
                if sender.is_some_and(|n| self.silent.contains(&n)) {
                    continue;
                }
                let receiver = self.by_addr.get(&to).copied().filter(|n| !self.silent.contains(n));
                let is_cut = |n: &usize| self.cut.is_some_and(|cut| sender.is_some_and(|m| (m < cut) != (*n < cut)));
                let receiver = receiver.filter(|n| !is_cut(n));
                if let Some(n) = receiver.filter(|n| self.puppets.contains_key(n)) {
                    self.pull_strings(n, from, &mut bytes);
                } else if let Some(n) = receiver.filter(|n| !self.is_lost(*n, from, &bytes)) {
                    let map = &self.members[n].map;
                    let at = slot_of(&bytes).map_or(0, |slot| usize::from(map.lane_of_slot(Slot(slot)).0));
                    self.asked_at = Some(to);
                    self.call_lane(n, at, |lane, out| lane.on_datagram(now, from, &mut bytes, 0, out));
                    self.asked_at = None;
                }
            }
            if now.mono_ms.is_multiple_of(1000) {
                for (n, to, kind, payload) in std::mem::take(&mut self.mixed).into_iter().rev() {
                    self.call_lane(n, usize::from(to.0), |lane, out| lane.on_message(now, kind, &payload, out));
                }
            }
            for n in 0..self.members.len() {
                for at in 0..self.members[n].lanes.len() {
                    if self.members[n].lanes[at].next_wake_ms().is_some_and(|wake| wake <= now.mono_ms) {
                        self.call_lane(n, at, |lane, out| lane.on_time(now, out));
                    }
                }
            }
        }
    }

    fn is_lost(&self, n: usize, from: Addr, bytes: &[u8]) -> bool {
        let at = self.lose_at.filter(|(at, _)| *at == n);
        if self.lose.is_none() && at.is_none() {
            return false;
        }
        let is_lost =
            |seen: Seen| self.lose.is_some_and(|lose| lose(&seen)) || at.is_some_and(|(_, kind)| kind == seen.kind);
        read_as(&mut sealer(identity(self.members[n].who), self.now), self.now, from, bytes).is_some_and(is_lost)
    }

    /// Lets the test answer for a member.
    fn pull_strings(&mut self, n: usize, asker: Addr, bytes: &mut [u8]) {
        let (now, own) = (self.now, self.members[n].contact.addr);
        let who = self.members[n].who;
        let mut sealer = sealer(identity(who), now);
        let Ok(Opened { header, body, .. }) = sealer.open(now, bytes, |_, _| true) else { return };
        let Ok(envelope) = Envelope::read(body) else { return };
        let (correlation, mut replies) = (envelope.correlation, Vec::new());
        let (puppet, cookies) = (self.puppets.get_mut(&n).unwrap(), &mut self.cookies);
        puppet(&envelope.message, &mut |message| {
            let cookie = cookies.as_mut().map_or([9; 8], |next| next());
            let envelope = Envelope { flags: 0, correlation, cookie, message };
            let mut datagram = [0; DATAGRAM_BYTES_MAX];
            let len = envelope.write(&mut datagram[HEADER_BYTES..DATAGRAM_BYTES_MAX - 16]).unwrap();
            replies.push((datagram, len));
        });
        // Every reply is sealed by a sealer of its own: a fresh incarnation each time.
        for (i, (mut datagram, len)) in replies.into_iter().enumerate() {
            let mut seed = [n as u8; 32];
            seed[..8].copy_from_slice(&(now.mono_ms * 100 + i as u64).to_le_bytes());
            seed[8..16].copy_from_slice(&correlation.to_le_bytes());
            let mut sealer = sealer_from(identity(who), now, seed);
            let len = sealer.seal(now, &header.sender, correlation as u8, &mut datagram, len).unwrap();
            self.flying.push((own, asker, datagram[..len].to_vec()));
        }
    }

    /// Lets a long time pass in which nothing is asked: from timer to timer.
    pub(crate) fn run_quietly(&mut self, ms: u64) {
        let until = self.now.mono_ms + ms;
        while self.now.mono_ms < until {
            if self.flying.is_empty() {
                let lanes = self.members.iter().flat_map(|member| &member.lanes);
                let wake = lanes.filter_map(LaneNode::next_wake_ms).min().unwrap_or(until).min(until);
                let ahead = wake.saturating_sub(self.now.mono_ms).saturating_sub(10);
                self.now = self.now.later(std::time::Duration::from_millis(ahead));
            }
            self.run(10);
        }
    }

    /// The log of a member has made everything safe that it was given.
    pub(crate) fn sync(&mut self, n: usize) {
        let (now, logged) = (self.now, self.members[n].logged);
        for at in 0..self.members[n].lanes.len() {
            self.call_lane(n, at, |lane, out| lane.on_durable(now, logged, out));
        }
    }

    /// Gives a command to the lane that owns `id`.
    pub(crate) fn tell(&mut self, n: usize, id: Option<&ContentId>, command: Command) -> CommandId {
        self.commands += 1;
        let (number, now) = (CommandId(self.commands), self.now);
        let own = self.members[n].lanes[0].id();
        let at = id.map_or(0, |id| usize::from(self.members[n].map.lane(&own, id).0));
        self.call_lane(n, at, |lane, out| lane.on_command(now, number, command, out));
        number
    }

    pub(crate) fn wait(&mut self, command: CommandId) -> Outcome {
        for _ in 0..60 {
            if let Some(outcome) = self.completions.remove(&command) {
                return outcome;
            }
            self.run(100);
        }
        panic!("every command completes");
    }

    pub(crate) fn ask(&mut self, n: usize, command: Command) -> Outcome {
        let id = match &command {
            Command::Get { id, .. } | Command::FindProviders { id, .. } => Some(*id),
            Command::Put { record, .. } => Some(tessera_dht::record::RecordView::read(record).unwrap().id()),
            Command::Provide { ids } => ids.first().copied(),
            _ => None,
        };
        let number = self.tell(n, id.as_ref(), command);
        self.wait(number)
    }

    pub(crate) fn put(&mut self, n: usize, record: Vec<u8>) -> Outcome {
        self.ask(n, Command::Put { record, keep_alive: false })
    }

    pub(crate) fn get(&mut self, n: usize, id: ContentId, mutable: bool) -> Outcome {
        self.ask(n, Command::Get { id, mutable, privacy: Privacy::None })
    }

    /// Everything `n` was sent since the tap was opened, as `n` reads it.
    pub(crate) fn seen_by(&self, n: usize) -> Vec<Seen> {
        let to = self.members[n].contact.addr;
        let mut sealer = sealer(identity(self.members[n].who), self.now);
        let sent = self.tap.iter().flatten().filter(|(_, addr, _)| *addr == to);
        sent.filter_map(|(from, _, bytes)| read_as(&mut sealer, self.now, *from, bytes)).collect()
    }

    /// How many datagrams of a kind a member has sent to others since the tap was opened.
    pub(crate) fn sent_by(&self, n: usize, kind: u8) -> usize {
        let seen = (0..self.members.len()).flat_map(|to| self.seen_by(to));
        seen.filter(|seen| seen.kind == kind && seen.from == self.members[n].contact.addr).count()
    }
}

/// A datagram as the owner of `sealer` reads it.
fn read_as(sealer: &mut Sealer<Identity>, now: Now, from: Addr, bytes: &[u8]) -> Option<Seen> {
    let mut bytes = bytes.to_vec();
    let body = sealer.open(now, &mut bytes, |_, _| true).ok()?.body;
    let envelope = Envelope::read(body).ok()?;
    let about = match envelope.message {
        Message::FindNode { target, .. } => Some(target),
        Message::FindValue { id, .. } | Message::GetProviders { id, .. } => Some(*id.as_bytes()),
        Message::Relay { to, .. } => Some(*to.id().as_bytes()),
        _ => None,
    };
    let part = if let Message::Providers { part, .. } = envelope.message { part } else { 0 };
    Some(Seen { from, kind: envelope.message.kind(), about, part })
}

/// Seals and opens like `identity` would.
pub(crate) fn sealer(identity: Identity, now: Now) -> Sealer<Identity> {
    sealer_from(identity, now, [8; 32])
}

pub(crate) fn sealer_from(identity: Identity, now: Now, seed: [u8; 32]) -> Sealer<Identity> {
    let limits = SealLimits { stranger_agreements_burst: 10_000, ..SealLimits::default() };
    let network = NetworkKey::of_name(&NodeConfig::default().network);
    Sealer::new(identity, network, Suite::Aes256Gcm, &limits, &mut LaneRng::new(seed), now)
}

/// A stranger that speaks the protocol and can send messages that no lane would.
pub(crate) struct Stranger {
    pub(crate) sealer: Sealer<Identity>,
    pub(crate) addr: Addr,
    /// Of its requests; [`Stranger::new`] marks it as a client.
    pub(crate) flags: u8,
    /// The cookie of each node that has answered.
    pub(crate) cookies: BTreeMap<Addr, [u8; 8]>,
    /// How long the bodies of its requests are; else as long as may be.
    pub(crate) body_bytes: Option<usize>,
}

impl Stranger {
    pub(crate) fn new(seed: u8, now: Now) -> Self {
        let sealer = sealer(Identity::from_seed(&[seed; 32]), now);
        let addr = Addr::v4([192, 0, seed, 77], 9);
        Self { sealer, addr, flags: flag::CLIENT, cookies: BTreeMap::new(), body_bytes: None }
    }

    /// Sends a message to a member at once, and hands the answers to `read`, reply by reply.
    pub(crate) fn say(&mut self, net: &mut Net, to: usize, message: Message<'_>, mut read: impl FnMut(&Message<'_>)) {
        let (now, contact) = (net.now, net.members[to].contact);
        let cookie = self.cookies.get(&contact.addr).copied().unwrap_or_default();
        let envelope = Envelope { flags: self.flags, correlation: 0x500, cookie, message };
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        let room = DATAGRAM_BYTES_MAX - HEADER_BYTES - 16;
        envelope.write(&mut datagram[HEADER_BYTES..HEADER_BYTES + room]).unwrap();
        let body_bytes = self.body_bytes.unwrap_or(room);
        let len = self.sealer.seal(now, &contact.key, 0, &mut datagram, body_bytes).unwrap();
        let from = self.addr;
        net.call(to, |lane, out| lane.on_datagram(now, from, &mut datagram[..len], 0, out));
        self.hear(net, contact.addr, &mut read);
    }

    /// Reads datagrams sent to it since.
    pub(crate) fn hear(&mut self, net: &mut Net, from: Addr, read: &mut impl FnMut(&Message<'_>)) {
        let own = self.addr;
        let (mine, rest) = std::mem::take(&mut net.flying).into_iter().partition(|(_, to, _)| *to == own);
        net.flying = rest;
        let mine: Vec<(Addr, Addr, Vec<u8>)> = mine;
        for (_, _, mut bytes) in mine {
            if let Some(challenge) = Challenge::read(&bytes) {
                self.cookies.insert(from, challenge.cookie);
                continue;
            }
            let body = self.sealer.open(net.now, &mut bytes, |_, _| true).unwrap().body;
            let envelope = Envelope::read(body).unwrap();
            self.cookies.insert(from, envelope.cookie);
            read(&envelope.message);
        }
    }
}

/// A part of a page of providers that has none.
pub(crate) fn part_of_many(part: u8) -> Message<'static> {
    let (providers, closer) = (Providers::over(&[]), Contacts::over(&[]));
    Message::Providers { token: [255; 16], total: 9, next: 1, part, parts: 5, providers, closer }
}

pub(crate) fn mutable(owner: usize, sequence: u64, value: Option<&[u8]>, now: Now) -> Vec<u8> {
    let draft = MutableDraft { salt: [0; 32], sequence, issued_secs: now.unix_secs(), ttl_secs: 3600, value };
    mutable_record(&draft, &identity(owner), &NetworkKey::of_name("tessera")).unwrap()
}
