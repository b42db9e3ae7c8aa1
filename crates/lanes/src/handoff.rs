//! Slots on their way from one lane to another.
//!
//! The old owner stops handling a slot the moment it learns of the new map, and forwards messages that still come for it. So the
//! slot's state stands still while it is exported, record by record over the bulk ring, paced by that ring. The new owner
//! imports, makes the records durable, and acknowledges; only then does the old owner forget. A lane that dies on either
//! side starts the hand-over again: imports are merges, so a repeat does no harm.

use std::collections::VecDeque;

use tessera_contracts::prefix_map::{LaneIndex, MapVersion, Slot};

use crate::wal::Lsn;

/// A slot that this lane hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    pub(crate) slot: Slot,
    pub(crate) to: LaneIndex,
    pub(crate) step: ExportStep,
}

/// How far a hand-over has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportStep {
    /// The next record to send is the handler's number this.
    Sending(u64),
    /// All records are sent; the closing frame is not.
    Closing,
    /// The new owner has not yet said that it is safe.
    AwaitingAck,
}

/// A slot whose records have all arrived, and how far the log must be before we may say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) slot: Slot,
    pub(crate) from: LaneIndex,
    /// The map by which it was sent.
    pub(crate) by: MapVersion,
    pub(crate) safe_at: Lsn,
}

/// All hand-overs of one lane.
#[derive(Debug, Default)]
pub(crate) struct Handoffs {
    /// In the order they were asked for; the first that is not waiting is the one being sent.
    pub(crate) exports: VecDeque<Export>,
    pub(crate) imports: Vec<Import>,
}

impl Handoffs {
    pub(crate) fn is_empty(&self) -> bool {
        self.exports.is_empty() && self.imports.is_empty()
    }

    /// Starts handing `slot` to `to`; a hand-over of the same slot to another lane is replaced.
    pub(crate) fn export(&mut self, slot: Slot, to: LaneIndex) {
        self.cancel(slot);
        self.exports.push_back(Export { slot, to, step: ExportStep::Sending(0) });
    }

    /// The slot is (again) ours: do not hand it over.
    pub(crate) fn cancel(&mut self, slot: Slot) {
        self.exports.retain(|export| export.slot != slot);
    }

    /// Whether `from`'s acknowledgement ends a hand-over that waits for it.
    pub(crate) fn acked(&mut self, slot: Slot, from: LaneIndex) -> bool {
        let before = self.exports.len();
        self.exports
            .retain(|export| !(export.slot == slot && export.to == from && export.step == ExportStep::AwaitingAck));
        self.exports.len() < before
    }

    /// `lane` died: records it had received may be gone, and slots it was sending will be sent anew.
    pub(crate) fn lane_died(&mut self, lane: LaneIndex) {
        for export in self.exports.iter_mut().filter(|export| export.to == lane) {
            export.step = ExportStep::Sending(0);
        }
        self.imports.retain(|import| import.from != lane);
    }

    /// The hand-over to work on now.
    pub(crate) fn active(&mut self) -> Option<&mut Export> {
        self.exports.iter_mut().find(|export| export.step != ExportStep::AwaitingAck)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_ends_only_a_hand_over_that_waits_for_it() {
        let mut handoffs = Handoffs::default();
        handoffs.export(Slot(7), LaneIndex(1));
        assert!(!handoffs.acked(Slot(7), LaneIndex(1)), "still sending: this is the answer to an earlier life");
        handoffs.active().unwrap().step = ExportStep::AwaitingAck;
        assert!(!handoffs.acked(Slot(7), LaneIndex(2)));
        assert!(handoffs.acked(Slot(7), LaneIndex(1)));
        assert!(handoffs.is_empty());
    }

    #[test]
    fn a_receiver_that_dies_gets_everything_again() {
        let mut handoffs = Handoffs::default();
        handoffs.export(Slot(7), LaneIndex(1));
        handoffs.active().unwrap().step = ExportStep::AwaitingAck;
        assert_eq!(handoffs.active(), None);
        handoffs.lane_died(LaneIndex(1));
        assert_eq!(handoffs.active().unwrap().step, ExportStep::Sending(0));
    }
}
