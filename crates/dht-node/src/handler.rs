//! One lane of the node: the pure [`LaneNode`] in a runtime's hands.
//!
//! This is a shell: it gives the lane events and the time, and carries out the lane's effects. It decides nothing about the DHT.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tessera_contracts::point::{ContentId, Point as _};
use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::node::LaneNode;
use tessera_dht::node::command::{Answer, Command, CommandId, Outcome};
use tessera_dht::node::log::log_kind;
use tessera_dht::node::outbox::{Importance, Logged, MessageClass, Outbox, message_kind};
use tessera_dht::record::RecordView;
use tessera_dht::time::Now;
use tessera_dht::wire::message::SignedProvider;
use tessera_lanes::handler::{Datagram, Handler, Message, Notice, Record, RecordSink, Walk};
use tessera_lanes::wal::{self, LogRefused};
use tessera_lanes::{Class, Context, Envelope, Kind};
use tessera_stdx::TimerHandle;

use crate::clock::Clock;
use crate::oneshot;
use crate::providers::Found;
use crate::status::LaneStatus;
use crate::walk::{SlotWalk, SnapshotWalk};

/// A command of the program to a lane.
#[derive(Debug)]
pub enum NodeCommand {
    /// A command of the DHT.
    Dht(CommandId, Command, Waiting),
    /// The caller no longer waits for this command.
    Cancel(CommandId),
    /// How is the lane?
    Status(oneshot::Sender<LaneStatus>),
    /// Whom does it know?
    Peers(oneshot::Sender<Vec<(Contact, Option<u64>)>>),
    /// Which manifests does it keep alive, and what do they name?
    Manifests(oneshot::Sender<Vec<(ContentId, Vec<ContentId>)>>),
    /// Does it keep this manifest alive?
    Keeps(ContentId, oneshot::Sender<bool>),
    /// Fail, to show that the node outlives it. Only nodes built with test hooks send these.
    Panic,
    /// Hang for so long.
    Stall(Duration),
}

/// The caller that waits for the outcome of a command.
#[derive(Debug)]
pub struct Waiting {
    pub(crate) outcome: oneshot::Sender<Outcome>,
    /// Where providers go as they are found.
    pub(crate) found: Option<Arc<Found>>,
}

/// State shared by the lanes of a node and the program outside. Written rarely, and by the outside only.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    /// The node is stopping: peers are told.
    pub(crate) leaving: AtomicBool,
    /// The node is stopping: lanes that end are not reported.
    pub(crate) stopping: AtomicBool,
    /// A log could not be written.
    pub(crate) log_failed: AtomicBool,
}

/// The timer that drives the DHT's own timers, and the one that ends a lane's wait for contacts.
const DHT_TIMER: u64 = 0;
const STARTUP_TIMER: u64 = 1;

/// How long a lane without contacts keeps commands back before it answers that it is alone.
const STARTUP_MAX: Duration = Duration::from_secs(2);

/// The most commands kept back. A caller beyond that is told to ask again, which it does by itself.
const HELD_MAX: usize = 1024;

/// "I have told you of so many contacts": u32. Kinds below are the DHT's own.
const INTRODUCED: Kind = Kind::new(0x80);

/// One lane.
#[derive(Debug)]
pub struct DhtLane {
    /// Five kilobytes: on its own, it is not moved over the stack of the thread that makes the lane.
    node: Box<LaneNode>,
    clock: Clock,
    seeds: Arc<Vec<Contact>>,
    flags: Arc<Flags>,
    waiting: HashMap<CommandId, Waiting>,
    /// When the timer for the DHT is set to.
    wake: Option<(u64, TimerHandle)>,
    snapshot: SnapshotWalk,
    exports: HashMap<Slot, SlotWalk>,
    startup: Startup,
}

/// A lane that has just started has no contacts: it could neither find nor store anything. If it is about to be told of contacts, it
/// keeps commands back until then.
#[derive(Debug)]
enum Startup {
    /// Commands wait for the first contact.
    Waiting {
        held: Vec<(CommandId, Command)>,
        expects_contacts: bool,
    },
    Over,
}

impl DhtLane {
    pub(crate) fn new(node: Box<LaneNode>, clock: Clock, seeds: Arc<Vec<Contact>>, flags: Arc<Flags>) -> Self {
        Self {
            node,
            clock,
            seeds,
            flags,
            waiting: HashMap::new(),
            wake: None,
            snapshot: SnapshotWalk::default(),
            exports: HashMap::new(),
            startup: Startup::Waiting { held: Vec::new(), expects_contacts: false },
        }
    }

    /// The lane of the DHT in it.
    pub fn node(&self) -> &LaneNode {
        &self.node
    }

    /// Ends the wait if the lane has a contact or `gives_up`, and begins the commands that were kept back.
    fn end_startup(&mut self, cx: &mut Context, gives_up: bool) {
        let Startup::Waiting { held, .. } = &mut self.startup else { return };
        if self.node.table().live_len() == 0 && !gives_up {
            return;
        }
        let held = std::mem::take(held);
        self.startup = Startup::Over;
        for (id, command) in held {
            self.begin(cx, id, command);
        }
    }

    /// Begins a command. While records of its slot are still on their way, the caller is told to ask again, which it does by itself: a
    /// record that comes later would undo a forget, or be newer than the version to be written.
    fn begin(&mut self, cx: &mut Context, id: CommandId, command: Command) {
        let own = self.node.id();
        let has_come = |of: &ContentId| cx.is_settled(cx.map().slot(&own, of));
        if about(&command).all(|of| has_come(&of)) {
            self.with(cx, |node, now, out| node.on_command(now, id, command, out));
        } else {
            Out { cx, waiting: &mut self.waiting }.complete(id, Outcome::local(Answer::TooBusy));
        }
    }

    /// Calls the lane and sees to its timers.
    fn with(&mut self, cx: &mut Context, act: impl FnOnce(&mut LaneNode, Now, &mut Out<'_>)) {
        let now = self.clock.at(cx.now());
        act(&mut self.node, now, &mut Out { cx, waiting: &mut self.waiting });
        let Some(due_ms) = self.node.next_wake_ms() else { return };
        if let Some((set_ms, timer)) = self.wake {
            // A timer that comes too early finds nothing due and is set again: cheaper than moving it each time.
            if set_ms <= due_ms {
                return;
            }
            cx.cancel_timer(timer);
        }
        let delay = Duration::from_millis(due_ms.saturating_sub(now.mono_ms));
        self.wake = cx.set_timer(delay, DHT_TIMER).ok().map(|timer| (due_ms, timer));
    }

    fn status(&mut self, cx: &Context) -> LaneStatus {
        let now = self.clock.at(cx.now());
        LaneStatus {
            lane: usize::from(cx.lane().0),
            health: self.node.health(now),
            counters: *self.node.counters(),
            lookups: *self.node.lookup_totals(),
            bounds: self.node.bounds().to_vec(),
            network_size: self.node.network_size(),
            observed: self.node.observed().map(Addr::to_socket_addr),
            commands_waiting: self.waiting.len(),
        }
    }

    /// A new lane has no contacts: it gets ours.
    fn introduce(&mut self, cx: &mut Context, to: LaneIndex) {
        let mut told = 0_u32;
        for peer in self.node.table().iter_live() {
            let mut payload = [0; 54];
            payload[..50].copy_from_slice(&peer.contact.to_wire());
            let rtt_ms = peer.round_trip.srtt_ms().map_or(u32::MAX, |ms| ms as u32);
            payload[50..].copy_from_slice(&rtt_ms.to_le_bytes());
            let prefix = peer.id.prefix_u64();
            let envelope = Envelope { key_prefix: prefix, ..Envelope::to_lane(to, Class::Hints, CONTACT_KIND) };
            // A hint that finds no room is heard another time.
            let _ = cx.send(envelope, &payload);
            told += 1;
        }
        if let Some(observed) = self.node.observed() {
            tell_surely(
                cx,
                Envelope::to_lane(to, Class::Control, Kind::new(message_kind::OBSERVED)),
                &observed.to_wire(),
            );
        }
        tell_surely(cx, Envelope::to_lane(to, Class::Control, INTRODUCED), &told.to_le_bytes());
    }
}

/// Sends a control message until it is acknowledged, as often as its time to live allows. If as many wait for that already as may, it is a hint:
/// peers that misbehave must neither keep lanes from each other nor raise the alarm for lost control messages.
fn tell_surely(cx: &mut Context, envelope: Envelope, payload: &[u8]) {
    let correlation_id = cx.random_u64() | 1;
    let _ = if cx.can_await_ack() {
        cx.send_acked(Envelope { correlation_id, ..envelope }, payload)
    } else {
        cx.send(Envelope { class: Class::Hints, ..envelope }, payload)
    };
}

/// The ids whose state a command reads or writes.
fn about(command: &Command) -> impl Iterator<Item = ContentId> + '_ {
    let (one, many) = match command {
        Command::Get { id, .. } | Command::FindProviders { id, .. } | Command::Forget { id } => (Some(*id), &[][..]),
        Command::Put { record, .. } => (RecordView::read(record).ok().map(|view| view.id()), &[][..]),
        Command::Provide { ids } | Command::Unprovide { ids } => (None, &ids[..]),
        _ => (None, &[][..]),
    };
    one.into_iter().chain(many.iter().copied())
}

const CONTACT_KIND: Kind = Kind::new(message_kind::CONTACT);

impl Handler for DhtLane {
    type Command = NodeCommand;

    fn on_recovered(&mut self, record: Record<'_>) {
        if let Startup::Waiting { expects_contacts, .. } = &mut self.startup {
            *expects_contacts |= record.kind == log_kind::CONTACT;
        }
        let now = self.clock.early();
        self.node.on_record(now, record.kind, record.payload);
    }

    fn slot_of(&self, record: &Record<'_>) -> Slot {
        self.node.slot_of_record(record.kind, record.payload).unwrap_or(record.slot)
    }

    fn on_start(&mut self, cx: &mut Context) {
        let seeds = self.seeds.as_ref().clone();
        let map = cx.map().clone();
        self.with(cx, |node, now, out| {
            node.on_map(map);
            node.on_start(now, out);
            node.on_command(now, CommandId(0), Command::Bootstrap { contacts: seeds }, out);
        });
        if let Startup::Waiting { expects_contacts, .. } = &mut self.startup {
            *expects_contacts |= !self.seeds.is_empty();
            let alone = !*expects_contacts && cx.map().lanes() == 1;
            if alone || cx.set_timer(STARTUP_MAX, STARTUP_TIMER).is_err() {
                self.end_startup(cx, true);
            }
        }
    }

    fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
        let Datagram { from, bytes, hops } = datagram;
        self.with(cx, |node, now, out| node.on_datagram(now, Addr::from(from), bytes, hops, out));
        self.end_startup(cx, false);
    }

    fn on_message(&mut self, cx: &mut Context, message: Message<'_>) {
        if message.envelope.kind == INTRODUCED {
            if let Startup::Waiting { expects_contacts, .. } = &mut self.startup {
                *expects_contacts |= message.payload != 0_u32.to_le_bytes();
                let gives_up = !*expects_contacts;
                self.end_startup(cx, gives_up);
            }
            return;
        }
        let kind = message.envelope.kind.get();
        self.with(cx, |node, now, out| node.on_message(now, kind, message.payload, out));
        self.end_startup(cx, false);
    }

    fn on_timer(&mut self, cx: &mut Context, token: u64) {
        if token == DHT_TIMER {
            self.wake = None;
            self.with(cx, |node, now, out| node.on_time(now, out));
        } else if token == STARTUP_TIMER {
            self.end_startup(cx, true);
        }
    }

    fn on_command(&mut self, cx: &mut Context, command: NodeCommand) {
        match command {
            NodeCommand::Dht(id, command, waiting) => {
                if let Startup::Waiting { held, .. } = &mut self.startup {
                    if held.len() == HELD_MAX {
                        waiting.outcome.send(Outcome::local(Answer::TooBusy));
                        return;
                    }
                    held.push((id, command));
                    self.waiting.insert(id, waiting);
                } else {
                    self.waiting.insert(id, waiting);
                    self.begin(cx, id, command);
                }
            }
            NodeCommand::Cancel(command) => {
                self.with(cx, |node, now, out| node.on_command(now, CommandId(0), Command::Cancel { command }, out));
                self.waiting.remove(&command);
                if let Startup::Waiting { held, .. } = &mut self.startup {
                    held.retain(|(id, _)| *id != command);
                }
            }
            NodeCommand::Status(reply) => reply.send(self.status(cx)),
            NodeCommand::Peers(reply) => {
                let peers = self.node.table().iter_live();
                reply.send(peers.map(|peer| (peer.contact, peer.round_trip.srtt_ms())).collect());
            }
            NodeCommand::Manifests(reply) => reply.send(self.node.manifests_kept_alive().collect()),
            NodeCommand::Keeps(id, reply) => reply.send(self.node.manifests_kept_alive().any(|(of, _)| of == id)),
            NodeCommand::Panic => panic!("this lane was told to panic"),
            NodeCommand::Stall(time) => std::thread::sleep(time),
        }
    }

    fn on_notice(&mut self, cx: &mut Context, notice: Notice) {
        match notice {
            Notice::MapChanged { .. } => {
                self.node.on_map(cx.map().clone());
                // Contacts are logged under a slot of this lane, and it may have lost that slot.
                self.node.export_contacts(|kind, slot, payload| {
                    let _ = cx.log(kind, slot, payload, wal::Importance::Soft);
                    true
                });
            }
            Notice::SlotLeft { slot } => {
                self.exports.remove(&slot);
                self.node.drop_slot(slot);
            }
            Notice::Durable { upto } => self.with(cx, |node, now, out| node.on_durable(now, upto.0, out)),
            Notice::LaneUp { lane } => self.introduce(cx, lane),
            Notice::LogFailed => self.flags.log_failed.store(true, Ordering::Relaxed),
            Notice::Stopping if self.flags.leaving.load(Ordering::Relaxed) => {
                self.with(cx, |node, now, out| node.leave(now, out));
            }
            _ => {}
        }
    }

    fn on_snapshot(&mut self, from: u64, sink: &mut RecordSink<'_>) -> Walk {
        if from == 0 {
            self.snapshot = SnapshotWalk::default();
        }
        let now = self.clock.early();
        self.snapshot.step(&self.node, now, sink)
    }

    fn on_export(&mut self, slot: Slot, from: u64, sink: &mut RecordSink<'_>) -> Walk {
        let now = self.clock.early();
        if from == 0 {
            self.exports.insert(slot, SlotWalk::new(&self.node, slot, now));
        }
        let walk = self.exports.entry(slot).or_insert_with(|| SlotWalk::new(&self.node, slot, now));
        walk.step(sink)
    }

    fn on_import(&mut self, cx: &mut Context, record: Record<'_>) {
        let now = self.clock.early();
        self.node.on_record(now, record.kind, record.payload);
        // If the log does not take it, the runtime sees that and does not tell the former owner that it is safe.
        let _ = cx.log(record.kind, record.slot, record.payload, wal::Importance::Hard);
    }
}

fn class_of(class: MessageClass) -> Class {
    match class {
        MessageClass::Control => Class::Control,
        MessageClass::Coordination => Class::Coordination,
        MessageClass::Hint => Class::Hints,
    }
}

/// A lane's effects, carried out by the runtime.
struct Out<'a> {
    cx: &'a mut Context,
    waiting: &'a mut HashMap<CommandId, Waiting>,
}

impl Outbox for Out<'_> {
    fn send(&mut self, to: Addr, datagram: &[u8]) {
        // A datagram that finds no room is lost like any other, and counted by the runtime.
        let _ = self.cx.send_datagram(to.to_socket_addr(), datagram);
    }

    fn forward(&mut self, slot: Slot, from: Addr, datagram: &[u8], hops: u8) {
        // The lane counts this hop already; so does the runtime.
        let _ = self.cx.forward_datagram(slot, from.to_socket_addr(), datagram, hops.saturating_sub(1));
    }

    fn message(&mut self, to: LaneIndex, class: MessageClass, kind: u8, prefix: u64, payload: &[u8]) {
        let envelope = Envelope { key_prefix: prefix, ..Envelope::to_lane(to, class_of(class), Kind::new(kind)) };
        match class {
            MessageClass::Control => tell_surely(self.cx, envelope, payload),
            MessageClass::Coordination | MessageClass::Hint => _ = self.cx.send(envelope, payload),
        }
    }

    fn message_to_owner(
        &mut self,
        (_, slot): (LaneIndex, Slot),
        class: MessageClass,
        kind: u8,
        prefix: u64,
        payload: &[u8],
    ) {
        // The slot is the address: the runtime passes the message on if the slot has moved, with what is left of its time to live. One that
        // says the same as one in flight is dropped there.
        let correlation_id = self.waiting.hasher().hash_one(payload) | 1;
        let envelope = Envelope::to_slot(slot, class_of(class), Kind::new(kind));
        let _ = self.cx.send(Envelope { key_prefix: prefix, correlation_id, ..envelope }, payload);
    }

    fn log(&mut self, kind: u8, slot: Slot, payload: &[u8], importance: Importance) -> Logged {
        let importance = match importance {
            Importance::Soft => wal::Importance::Soft,
            Importance::Hard => wal::Importance::Hard,
        };
        match self.cx.log(kind, slot, payload, importance) {
            Ok(number) => Logged::At(number.0),
            Err(LogRefused::NoLog) => Logged::Safe,
            Err(_) => Logged::Refused,
        }
    }

    fn found_provider(&mut self, command: CommandId, provider: &SignedProvider) {
        if let Some(found) = self.waiting.get(&command).and_then(|waiting| waiting.found.as_ref()) {
            found.push(provider);
        }
    }

    fn complete(&mut self, command: CommandId, outcome: Outcome) {
        if let Some(waiting) = self.waiting.remove(&command)
            && let Some(waker) = waiting.outcome.answer(outcome)
        {
            self.cx.wake_caller(waker);
        }
    }
}
