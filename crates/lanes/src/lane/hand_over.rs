//! What a lane does about slots that change owner: see [`handoff`](crate::handoff) for the protocol.

use std::sync::Arc;

use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, Slot};

use crate::context::link_to;
use crate::handler::{Handler, Notice, Record, RecordSink, Walk};
use crate::handoff::ExportStep;
use crate::lane::Lane;
use crate::ring::bulk::Frame;
use crate::wal::Importance;
use crate::wal::queue::Entry;

impl<H: Handler> Lane<H> {
    pub(super) fn adopt(&mut self, map: Arc<PrefixMap>) {
        if !map.version().is_after(self.cx.map.version()) {
            return; // Mail is in order, so this is the map we started with.
        }
        let me = self.cx.lane;
        let old = std::mem::replace(&mut self.cx.map, map);
        for moved in old.moves_to(&self.cx.map) {
            if moved.from == me {
                self.cx.arriving[usize::from(moved.slot.0)] = false;
                self.handoffs.export(moved.slot, moved.to);
            } else if moved.to == me {
                // If it comes back before it was all gone, what we have is still whole.
                self.handoffs.cancel(moved.slot);
                // Its former owner may have learnt of the map before us, and be done already.
                let done = self.arrived[usize::from(moved.slot.0)];
                let version = self.cx.map.version();
                self.cx.arriving[usize::from(moved.slot.0)] =
                    !done.is_some_and(|done| done == version || done.is_after(version));
            } else if let Some(export) = self.handoffs.exports.iter().find(|export| export.slot == moved.slot) {
                let slot = export.slot;
                self.handoffs.export(slot, moved.to);
            }
        }
        let version = self.cx.map.version();
        self.publish_handoffs();
        self.cx.counters.map_version.set(u64::from(version.0));
        self.handler.on_notice(&mut self.cx, Notice::MapChanged { version });
    }

    pub(super) fn publish_handoffs(&self) {
        let arriving = self.cx.arriving.iter().filter(|arriving| **arriving).count();
        self.cx.counters.handoffs_pending.set((self.handoffs.exports.len() + arriving) as u64);
    }

    pub(super) fn slot_left(&mut self, slot: Slot, to: LaneIndex) {
        if !self.handoffs.acked(slot, to) {
            return;
        }
        if let Some(log) = &mut self.cx.log {
            // If there is no room, a restart hands the slot over once more: dearer, not wrong.
            let _ = log.push(Entry::Released { slot }, &[], Importance::Hard);
        }
        self.publish_handoffs();
        self.handler.on_notice(&mut self.cx, Notice::SlotLeft { slot });
    }

    /// Tells former owners which slots are safe here.
    pub(super) fn settle_imports(&mut self) -> bool {
        let mut busy = false;
        let mut at = 0;
        while at < self.handoffs.imports.len() {
            let import = self.handoffs.imports[at];
            let told = import.safe_at <= self.durable_seen
                && link_to(&mut self.cx.links, import.from).is_some_and(|link| {
                    link.touch();
                    link.bulk.try_push(Frame::SlotSafe { slot: import.slot.0 }, &[])
                });
            if !told {
                at += 1;
                continue;
            }
            self.handoffs.imports.swap_remove(at);
            self.cx.arriving[usize::from(import.slot.0)] = false;
            self.publish_handoffs();
            self.handler.on_notice(&mut self.cx, Notice::SlotArrived { slot: import.slot });
            busy = true;
        }
        busy
    }

    /// Sends as much of the slot being handed over as its bulk ring takes.
    pub(super) fn hand_over(&mut self) -> bool {
        let Some(export) = self.handoffs.active() else { return false };
        let Some(link) = link_to(&mut self.cx.links, export.to) else { return false };
        link.touch();
        let mut sent = 0;
        if let ExportStep::Sending(from) = export.step {
            let bulk = &mut link.bulk;
            let mut put = |record: Record<'_>| {
                // A record that can never fit would stop the hand-over for ever; the log has the same bound, so it cannot be.
                assert!(bulk.can_ever_fit(record.payload.len()), "an exported record fits the bulk ring");
                let taken = bulk.try_push(Frame::Record { kind: record.kind, slot: record.slot.0 }, record.payload);
                sent += usize::from(taken);
                taken
            };
            export.step = match self.handler.on_export(export.slot, from, &mut RecordSink { put: &mut put }) {
                Walk::More(next) => ExportStep::Sending(next),
                Walk::Done => ExportStep::Closing,
            };
        }
        let done = Frame::SlotDone { slot: export.slot.0, map_version: self.cx.map.version().0 };
        if export.step == ExportStep::Closing && link.bulk.try_push(done, &[]) {
            export.step = ExportStep::AwaitingAck;
            sent += 1;
        }
        sent > 0
    }
}
