//! Defects of a lane on purpose: the simulation must notice each.

use clap::ValueEnum;
use tessera_contracts::prefix_map::Slot;
use tessera_dht::node::command::Command;
use tessera_dht_node::simulated::{DhtLane, NodeCommand};
use tessera_lanes::Context;
use tessera_lanes::handler::{Datagram, Handler, Message, Notice, Record, RecordSink, Walk};

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Defect {
    /// None.
    None,
    /// The new owner of a slot drops one of four records that are handed over.
    HandOverDropsRecords,
    /// The old owner of a slot never comes to the end of its records.
    HandOverNeverEnds,
    /// A lane forgets what it is asked to store.
    PutsAreForgotten,
}

impl Defect {
    /// All that break a rule.
    pub const ALL: [Self; 3] = [Self::HandOverDropsRecords, Self::HandOverNeverEnds, Self::PutsAreForgotten];

    /// The property that must notice it.
    pub const fn caught_by(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::HandOverDropsRecords => "HandOversKeepRecords",
            Self::HandOverNeverEnds => "ChangesEnd",
            Self::PutsAreForgotten => "CommandsEnd",
        }
    }
}

/// The lane that ships, with a defect.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) lane: DhtLane,
    pub(super) defect: Defect,
    /// Records that were handed over to it.
    pub(super) imported: u64,
}

impl Handler for Lane {
    type Command = NodeCommand;

    fn on_recovered(&mut self, record: Record<'_>) {
        self.lane.on_recovered(record);
    }

    fn slot_of(&self, record: &Record<'_>) -> Slot {
        self.lane.slot_of(record)
    }

    fn on_start(&mut self, cx: &mut Context) {
        self.lane.on_start(cx);
    }

    fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
        self.lane.on_datagram(cx, datagram);
    }

    fn on_message(&mut self, cx: &mut Context, message: Message<'_>) {
        self.lane.on_message(cx, message);
    }

    fn on_timer(&mut self, cx: &mut Context, token: u64) {
        self.lane.on_timer(cx, token);
    }

    fn on_command(&mut self, cx: &mut Context, command: NodeCommand) {
        let is_put = matches!(command, NodeCommand::Dht(_, Command::Put { .. }, _));
        if self.defect != Defect::PutsAreForgotten || !is_put {
            self.lane.on_command(cx, command);
        }
    }

    fn on_notice(&mut self, cx: &mut Context, notice: Notice) {
        self.lane.on_notice(cx, notice);
    }

    fn on_snapshot(&mut self, from: u64, sink: &mut RecordSink<'_>) -> Walk {
        self.lane.on_snapshot(from, sink)
    }

    fn on_export(&mut self, slot: Slot, from: u64, sink: &mut RecordSink<'_>) -> Walk {
        match self.defect {
            Defect::HandOverNeverEnds => Walk::More(from),
            _ => self.lane.on_export(slot, from, sink),
        }
    }

    fn on_import(&mut self, cx: &mut Context, record: Record<'_>) {
        self.imported += 1;
        if self.defect != Defect::HandOverDropsRecords || !self.imported.is_multiple_of(4) {
            self.lane.on_import(cx, record);
        }
    }
}
