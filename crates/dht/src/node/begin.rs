//! Commands that become operations: checked, and begun.

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, Point as _};

use super::LaneNode;
use super::command::{Answer, CommandId, Privacy};
use super::operation::Task;
use super::outbox::Outbox;
use crate::identity::Crypto;
use crate::lookup::{Goal, PROVIDERS_FOUND_MAX};
use crate::record::RecordView;
use crate::time::Now;

impl<C: Crypto> LaneNode<C> {
    pub(super) fn command_find_node(
        &mut self,
        now: Now,
        command: CommandId,
        target: [u8; 32],
        out: &mut impl Outbox,
    ) -> Option<Answer> {
        self.begin(now, Task::FindNode, Some(command), target, Goal::Nodes, Privacy::None, out)
    }

    pub(super) fn command_get(
        &mut self,
        now: Now,
        command: CommandId,
        id: ContentId,
        mutable: bool,
        privacy: Privacy,
        out: &mut impl Outbox,
    ) -> Option<Answer> {
        if !self.owns(&id) {
            return Some(Answer::WrongLane);
        }
        if !mutable && let Some(record) = self.record_here(now, &id) {
            return Some(Answer::Record(record.to_vec()));
        }
        let seen = self.sequences.get(id.as_bytes()).copied().unwrap_or(0);
        let goal = if mutable { Goal::Mutable { sequence_min: seen } } else { Goal::Immutable };
        self.begin(now, Task::Get { mutable }, Some(command), *id.as_bytes(), goal, privacy, out)
    }

    pub(super) fn command_put(
        &mut self,
        now: Now,
        command: CommandId,
        record: Vec<u8>,
        keep_alive: bool,
        out: &mut impl Outbox,
    ) -> Option<Answer> {
        let Ok(view) = RecordView::read(&record) else { return Some(Answer::BadRecord) };
        let id = view.id();
        if view.check_under_own_id(self.sealer.crypto(), self.sealer.network(), now.unix_secs()).is_err() {
            return Some(Answer::BadRecord);
        }
        if !self.owns(&id) {
            return Some(Answer::WrongLane);
        }
        if keep_alive && let Err(answer) = self.keep_alive(now, &id, &record, out) {
            return Some(answer);
        }
        if view.mutable.is_some() {
            self.see_sequence(&id, view.sequence());
        }
        let kept = self.keep_own(now, &id, &view, out);
        if !kept && !keep_alive && self.table.live_len() == 0 {
            return Some(Answer::NoRoom); // Nobody else will have it either.
        }
        self.begin_put(now, Some(command), &id, record, out)
    }

    pub(super) fn begin_put(
        &mut self,
        now: Now,
        command: Option<CommandId>,
        id: &ContentId,
        record: Vec<u8>,
        out: &mut impl Outbox,
    ) -> Option<Answer> {
        let Some(at) = self.reserve() else { return Some(Answer::TooBusy) };
        self.operations[usize::from(at)].record = record;
        self.start(now, at, Task::Put, command, *id.as_bytes(), Goal::Nodes, Privacy::None, out);
        None
    }

    pub(super) fn command_find_providers(
        &mut self,
        now: Now,
        command: CommandId,
        id: ContentId,
        limit: usize,
        out: &mut impl Outbox,
    ) -> Option<Answer> {
        if !self.owns(&id) {
            return Some(Answer::WrongLane);
        }
        let goal = Goal::Providers { limit: limit.clamp(1, PROVIDERS_FOUND_MAX) };
        self.begin(now, Task::FindProviders, Some(command), *id.as_bytes(), goal, Privacy::None, out)
    }
}
