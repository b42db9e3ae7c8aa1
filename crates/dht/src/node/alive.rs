//! Records stored again: those this node was asked to keep alive, and those it holds for others.

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, Point as _};

use super::LaneNode;
use super::command::Answer;
use super::log::log_kind;
use super::outbox::Outbox;
use super::publish::SPARED_OPERATIONS;
use crate::chunk::parts_of;
use crate::identity::Crypto;
use crate::record::{RecordView, with_lifetime_left};
use crate::store::records::Class;
use crate::time::Now;

/// A record that this node stores again and again.
#[derive(Debug)]
pub(super) struct KeptAlive {
    due_ms: u64,
    pub(super) record: Vec<u8>,
}

impl<C: Crypto> LaneNode<C> {
    /// Stores a record again at half its lifetime.
    pub(super) fn keep_alive(
        &mut self,
        now: Now,
        id: &ContentId,
        record: &[u8],
        out: &mut impl Outbox,
    ) -> Result<(), Answer> {
        let due_ms = self.again_ms(now, record);
        if !self.set_alive(id, due_ms, record) {
            return Err(Answer::NoRoom);
        }
        if !self.log_hard(log_kind::KEPT_ALIVE, id, record, out) {
            self.drop_alive(id);
            return Err(Answer::NotLogged);
        }
        Ok(())
    }

    /// Has one time at which `id` is stored again, however often this is said. False if there is no room for it.
    pub(super) fn set_alive(&mut self, id: &ContentId, due_ms: u64, record: &[u8]) -> bool {
        let before = self.kept_alive.get(id).map_or(0, |kept| kept.record.len());
        if self.kept_alive_bytes - before + record.len() > self.config.kept_alive_bytes_max {
            return false;
        }
        self.drop_alive(id);
        self.kept_alive_bytes += record.len();
        self.kept_alive_due.insert((due_ms, *id));
        self.kept_alive.insert(*id, KeptAlive { due_ms, record: record.to_vec() });
        true
    }

    pub(super) fn drop_alive(&mut self, id: &ContentId) -> bool {
        let Some(kept) = self.kept_alive.remove(id) else { return false };
        self.kept_alive_due.remove(&(kept.due_ms, *id));
        self.kept_alive_bytes -= kept.record.len();
        true
    }

    /// The record of `id` for whoever asks from outside. What is kept alive is with its K holders, and only where there are fewer is this
    /// node one of them.
    pub(super) fn record_for_others(&mut self, now: Now, id: &ContentId) -> Option<&[u8]> {
        if self.holds_its_own() {
            return self.record_here(now, id);
        }
        self.records.get(id).filter(|kept| kept.expires_secs > now.unix_secs()).map(|kept| kept.bytes)
    }

    /// The record of `id` that is here: held or cached, or kept alive where there was no room to hold it.
    pub(super) fn record_here(&mut self, now: Now, id: &ContentId) -> Option<&[u8]> {
        if self.records.get(id).is_some_and(|kept| kept.expires_secs > now.unix_secs()) {
            return self.records.peek(id).map(|kept| kept.bytes);
        }
        let record = &self.kept_alive.get(id)?.record;
        RecordView::read(record).is_ok_and(|view| view.check_times(now.unix_secs()).is_ok()).then_some(record)
    }

    fn alive_at(&mut self, id: &ContentId, due_ms: u64) {
        if let Some(kept) = self.kept_alive.get_mut(id) {
            self.kept_alive_due.remove(&(kept.due_ms, *id));
            kept.due_ms = due_ms;
            self.kept_alive_due.insert((due_ms, *id));
        }
    }

    /// Records that are kept alive and are manifests, with the parts they name.
    pub fn manifests_kept_alive(&self) -> impl Iterator<Item = (ContentId, Vec<ContentId>)> {
        self.kept_alive.iter().filter_map(|(id, kept)| {
            let view = RecordView::read(&kept.record).ok().filter(|view| view.mutable.is_none())?;
            Some((*id, parts_of(view.value)?))
        })
    }

    /// Stops storing a record again, and drops the copy kept here.
    pub(super) fn forget(&mut self, id: &ContentId, out: &mut impl Outbox) -> Answer {
        if !self.owns(id) {
            return Answer::WrongLane;
        }
        let held = self.records.remove(id);
        if !self.drop_alive(id) && !held {
            return Answer::NotHere;
        }
        if self.log_hard(log_kind::FORGOTTEN, id, id.as_bytes(), out) { Answer::Noted } else { Answer::NotLogged }
    }

    /// Nobody took a record that is to be kept alive: it is stored again soon, not at half its lifetime.
    pub(super) fn keep_alive_soon(&mut self, now: Now, id: &ContentId) {
        let due_ms = now.mono_ms + self.rng.jittered_ms(10 * self.config.tick_ms);
        self.alive_at(id, due_ms);
    }

    /// Half of what is left of a record's life, jittered.
    pub(super) fn again_ms(&mut self, now: Now, record: &[u8]) -> u64 {
        let now_secs = now.unix_secs();
        let left = RecordView::read(record).map_or(0, |view| view.expires_secs(now_secs).saturating_sub(now_secs));
        now.mono_ms + self.rng.jittered_ms((left * 500).max(1000))
    }

    /// Stores again what is due, as far as operations allow.
    pub(super) fn keep_alive_due(&mut self, now: Now, out: &mut impl Outbox) {
        while let Some((due_ms, id)) = self.kept_alive_due.first().copied()
            && due_ms <= now.mono_ms
            && self.spare_operations() > SPARED_OPERATIONS
        {
            let Some(record) = self.kept_alive.get(&id).map(|kept| kept.record.clone()) else { return };
            let alive = RecordView::read(&record).is_ok_and(|view| view.check_times(now.unix_secs()).is_ok());
            if alive {
                let due_ms = self.again_ms(now, &record);
                self.alive_at(&id, due_ms);
                self.begin_put(now, None, &id, record, out);
            } else {
                self.drop_alive(&id); // Its owner has to sign it again.
            }
        }
    }

    /// Gives records that this lane holds for others to those who should hold them today: holders come and go while the
    /// owner may be away. Nobody's lifetime grows by it.
    pub(super) fn republish_due(&mut self, now: Now, out: &mut impl Outbox) {
        while self.spare_operations() > SPARED_OPERATIONS
            && let Some(id) = self.republish.pop_front()
        {
            let Some(kept) = self.records.peek(&id).filter(|kept| kept.class == Class::Held) else { continue };
            let left = kept.expires_secs.saturating_sub(now.unix_secs());
            let Some(record) = with_lifetime_left(kept.bytes, left) else { continue };
            self.counters.records_republished += 1;
            self.begin_put(now, None, &id, record, out);
        }
    }
}
