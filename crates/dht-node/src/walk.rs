//! Snapshots and hand-overs of a lane's state, record by record, while the lane works.
//!
//! A walk copies a part of the state at one moment (the slots of a hand-over, or a sixteenth of all slots) and gives the copy
//! out as fast as it is taken. Later changes are logged after the copy, so nothing is missed; walking the
//! live structures instead could miss a record that moved from ahead of the walk to behind it.

use tessera_contracts::prefix_map::Slot;
use tessera_dht::node::LaneNode;
use tessera_dht::time::Now;
use tessera_lanes::handler::{RecordSink, Walk};

/// Slots copied at once by a snapshot: a compromise between the copy's size and the number of passes over the state.
const SLOTS_PER_PART: u16 = 16;

/// Records copied and not yet taken: kind, slot, length, payload, one after the other.
#[derive(Debug, Default)]
struct Copied {
    bytes: Vec<u8>,
    at: usize,
}

impl Copied {
    fn push(&mut self, kind: u8, slot: Slot, payload: &[u8]) -> bool {
        self.bytes.extend_from_slice(&[kind, slot.0]);
        self.bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(payload);
        true
    }

    /// Gives out the rest; false if the sink is full.
    fn drain(&mut self, sink: &mut RecordSink<'_>) -> bool {
        while let Some((head, rest)) = self.bytes[self.at..].split_first_chunk::<6>() {
            let len = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
            if !sink.put(head[0], Slot(head[1]), &rest[..len]) {
                return false;
            }
            self.at += 6 + len;
        }
        self.bytes.clear();
        self.at = 0;
        true
    }
}

/// A hand-over of one slot.
#[derive(Debug, Default)]
pub(crate) struct SlotWalk(Copied);

impl SlotWalk {
    pub(crate) fn new(node: &LaneNode, slot: Slot, now: Now) -> Self {
        let mut copied = Copied::default();
        node.export_slots(|of| of == slot, now, |kind, slot, payload| copied.push(kind, slot, payload));
        Self(copied)
    }

    pub(crate) fn step(&mut self, sink: &mut RecordSink<'_>) -> Walk {
        if self.0.drain(sink) { Walk::Done } else { Walk::More(1) }
    }
}

/// A snapshot of everything.
#[derive(Debug, Default)]
pub(crate) struct SnapshotWalk {
    copied: Copied,
    /// The first slot that was not copied yet; past the last one, the contacts are left; then nothing.
    next: u16,
}

impl SnapshotWalk {
    pub(crate) fn step(&mut self, node: &LaneNode, now: Now, sink: &mut RecordSink<'_>) -> Walk {
        if !self.copied.drain(sink) {
            return Walk::More(1);
        }
        let Self { copied, next } = self;
        let part = *next..*next + SLOTS_PER_PART;
        *next = part.end;
        if part.start < 256 {
            let wanted = |slot: Slot| part.contains(&u16::from(slot.0));
            node.export_slots(wanted, now, |kind, slot, payload| copied.push(kind, slot, payload));
        } else if part.start == 256 {
            node.export_contacts(|kind, slot, payload| copied.push(kind, slot, payload));
        } else {
            return Walk::Done;
        }
        // One part a turn, so that the lane serves in between.
        copied.drain(sink);
        Walk::More(1)
    }
}
