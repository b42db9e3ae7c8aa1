//! The part that a user of the runtime writes: a state machine that is called with events and answers through its [`Context`].
//!
//! A handler belongs to one lane and is called by no other thread, so it needs no lock and no atomics. It must not block: a lane
//! that stalls past its bound is replaced. It sees no clock, socket or thread, so the same handler runs in
//! [`simulated`](crate::simulated) time. Messages are delivered at most once and may be lost with a lane; a handler tolerates
//! repeats (by correlation id and kind) and gaps.

use std::net::SocketAddr;

use tessera_contracts::prefix_map::{LaneIndex, MapVersion, Slot};

use crate::context::Context;
use crate::envelope::Envelope;
use crate::wal::Lsn;

/// The state of one lane and its reaction to events.
///
/// A [`Runtime`](crate::runtime::Runtime) asks for a [`Send`] handler: a lane that shares its thread is made, recovered and
/// started on another thread than that of its turns.
///
/// On every start, first or after a failure, the calls are: [`on_recovered`](Self::on_recovered) for each record of the
/// log, then [`on_start`](Self::on_start), then everything else in the order it happens.
pub trait Handler {
    /// A command of the program outside to a lane.
    type Command;

    /// A record this lane logged before it was restarted. Records come in the order they were logged, but a lane can crash
    /// between a snapshot and the log it replaces, or while a slot moves: a record may come twice, and must mean "it is so",
    /// never "one more".
    fn on_recovered(&mut self, record: Record<'_>) {
        let _ = record;
    }

    /// The slot that a record belongs to. Only a handler whose slots may change between two starts, as those of ids do when their
    /// origin changes, has to implement it: records are handed to the lanes that own these slots.
    fn slot_of(&self, record: &Record<'_>) -> Slot {
        record.slot
    }

    /// The lane runs: set timers, greet others.
    fn on_start(&mut self, cx: &mut Context) {
        let _ = cx;
    }

    /// A datagram arrived. Its bytes may be changed in place, to decrypt them.
    fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
        let _ = (cx, datagram);
    }

    /// Another lane (or this one) sent a message.
    fn on_message(&mut self, cx: &mut Context, message: Message<'_>) {
        let _ = (cx, message);
    }

    /// The timer set with this token is due.
    fn on_timer(&mut self, cx: &mut Context, token: u64) {
        let _ = (cx, token);
    }

    /// The program outside asks for something.
    fn on_command(&mut self, cx: &mut Context, command: Self::Command) {
        let _ = (cx, command);
    }

    /// Something about the lanes themselves changed.
    fn on_notice(&mut self, cx: &mut Context, notice: Notice) {
        let _ = (cx, notice);
    }

    /// Writes the whole state as records, so that older ones can be forgotten. Called with zero first and then with the value that
    /// the last call returned in [`Walk::More`]; in between the lane keeps working, and its records of that time are replayed after.
    fn on_snapshot(&mut self, from: u64, sink: &mut RecordSink<'_>) -> Walk {
        let _ = (from, sink);
        Walk::Done
    }

    /// Writes the state that belongs to `slot`, which another lane owns from now on. Called as [`on_snapshot`](Self::on_snapshot)
    /// is; messages for the slot are already forwarded, so its state does not change any more. It is kept until
    /// [`Notice::SlotLeft`], because the receiver may die and need it again.
    fn on_export(&mut self, slot: Slot, from: u64, sink: &mut RecordSink<'_>) -> Walk {
        let _ = (slot, from, sink);
        Walk::Done
    }

    /// A record of a slot that this lane now owns. State that has arrived for the slot since the change is newer: merge, and log it.
    /// A record comes when the log has room for one; if the log refuses it all the same, the slot's former owner keeps its own copy.
    fn on_import(&mut self, cx: &mut Context, record: Record<'_>) {
        let _ = (cx, record);
    }
}

/// A datagram from the network.
#[derive(Debug)]
pub struct Datagram<'a> {
    /// Its sender, as the kernel saw it.
    pub from: SocketAddr,
    /// Its payload, valid during the call.
    pub bytes: &'a mut [u8],
    /// How many lanes passed it on before it came here.
    pub hops: u8,
}

/// A message from a lane.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Its header.
    pub envelope: &'a Envelope,
    /// Its payload, valid during the call. A handler that needs it longer copies it.
    pub payload: &'a [u8],
}

/// A piece of a lane's state, as logged or handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The handler's name for it.
    pub kind: u8,
    /// The group of ids it belongs to, which decides whose it is when the number of lanes changes.
    pub slot: Slot,
    /// Its content.
    pub payload: &'a [u8],
}

/// Takes the records of a snapshot or an export.
pub struct RecordSink<'a> {
    pub(crate) put: &'a mut dyn FnMut(Record<'_>) -> bool,
}

impl core::fmt::Debug for RecordSink<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("RecordSink")
    }
}

impl RecordSink<'_> {
    /// Takes a record. False means "no room now": return [`Walk::More`] with the place of this very record.
    #[must_use = "a record that was not taken must be offered again"]
    pub fn put(&mut self, kind: u8, slot: Slot, payload: &[u8]) -> bool {
        (self.put)(Record { kind, slot, payload })
    }
}

/// How far a snapshot or an export has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// That was all.
    Done,
    /// Call again with this.
    More(u64),
}

/// News about the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A lane died with this many of our messages in flight. They are lost.
    LaneDown {
        /// Which.
        lane: LaneIndex,
        /// Messages to it that it never took.
        lost: u64,
    },
    /// A lane is there: a new one, or a restarted one.
    LaneUp {
        /// Which.
        lane: LaneIndex,
    },
    /// From now on slots are owned as the map of this version says.
    MapChanged {
        /// The new version.
        version: MapVersion,
    },
    /// All of a slot's state has arrived here from its former owner.
    SlotArrived {
        /// Which.
        slot: Slot,
    },
    /// A slot's state is safe with its new owner: forget it.
    SlotLeft {
        /// Which.
        slot: Slot,
    },
    /// The message with this correlation id was handled.
    Acked {
        /// Which.
        correlation_id: u64,
    },
    /// No acknowledgement came, however often we asked.
    AckGivenUp {
        /// Which.
        correlation_id: u64,
        /// The lane that did not answer.
        dst: LaneIndex,
    },
    /// Every record up to this one is as safe as the configured durability promises.
    Durable {
        /// The last safe record.
        upto: Lsn,
    },
    /// The log cannot be written any more. Nothing logged after the last [`Notice::Durable`] is safe.
    LogFailed,
    /// The runtime stops; this is the last call.
    Stopping,
}
