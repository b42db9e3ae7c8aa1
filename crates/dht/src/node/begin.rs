//! Commands that become operations: checked, and begun.

use alloc::vec;
use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, Point as _};

use super::LaneNode;
use super::command::{Answer, CommandId, Privacy, Written};
use super::operation::Task;
use super::outbox::Outbox;
use crate::identity::Crypto;
use crate::lookup::{Goal, PROVIDERS_FOUND_MAX};
use crate::record::RecordView;
use crate::store::NotKept;
use crate::store::records::judge_versions;
use crate::time::Now;
use crate::wire::message::ErrorCode;

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
        if let Some(code) = self.refused_here(now, &id, &view) {
            return Some(Answer::Written(Written { refused: vec![(code, 1)], ..Written::default() }));
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

    /// What this lane itself knows against a version that is to be written. Where the node is alone, nobody else would object; and where it
    /// is not, what it keeps alive must not give way to what all others will refuse.
    fn refused_here(&self, now: Now, id: &ContentId, record: &RecordView<'_>) -> Option<ErrorCode> {
        let sequence = record.mutable?.sequence;
        let is_stale = self.sequences.peek(id.as_bytes()).is_some_and(|seen| sequence < *seen);
        let held = self.records.peek(id).filter(|kept| kept.expires_secs > now.unix_secs()).map(|kept| kept.bytes);
        let alive = self.kept_alive.get(id).map(|kept| &kept.record[..]);
        let known = held.into_iter().chain(alive).filter_map(|bytes| RecordView::read(bytes).ok());
        let known = known.filter(|known| known.check_times(now.unix_secs()).is_ok());
        let refused = known.map(|known| judge_versions(&known, record)).find_map(Result::err);
        match refused {
            Some(NotKept::Equivocation) => Some(ErrorCode::Equivocation),
            Some(NotKept::Stale { .. }) => Some(ErrorCode::StaleSequence),
            _ => is_stale.then_some(ErrorCode::StaleSequence),
        }
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
