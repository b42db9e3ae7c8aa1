//! What survives a restart: contacts, records, providers, and what this node publishes.
//!
//! Each piece is keyed by its id, not by its lane, so that a start with another number of lanes hands it to whoever owns it
//! then. A piece may come twice and means "it is so". Everything read back is judged like something a stranger sent,
//! except that signatures were verified before it was written and are not verified again: the log has its checksums.

use tessera_contracts::point::{ContentId, Point as _};
use tessera_contracts::prefix_map::Slot;

use super::LaneNode;
use super::outbox::{Importance, Logged, Outbox};
use crate::contact::Contact;
use crate::identity::{Crypto, PublicKey};
use crate::record::{RecordRefused, RecordView, TTL_SECS_MAX};
use crate::store::records::Class;
use crate::time::Now;
use crate::wire::message::{CONTACT_BYTES, PROVIDER_BYTES, SignedProvider};

/// Kinds of log records.
pub mod log_kind {
    /// A contact that answered: contact.
    pub const CONTACT: u8 = 1;
    /// A record held for others: giver's key, expiry (u64 seconds), record.
    pub const RECORD: u8 = 2;
    /// A provider held for others: content id, signed provider.
    pub const PROVIDER: u8 = 3;
    /// An id this node provides: content id, next announcement (u64 seconds since 1970).
    pub const PUBLISHED: u8 = 4;
    /// An id this node no longer provides: content id.
    pub const UNPUBLISHED: u8 = 5;
    /// A record this node stores again and again: record.
    pub const KEPT_ALIVE: u8 = 6;
    /// A record this node no longer stores again, nor holds: content id.
    pub const FORGOTTEN: u8 = 7;
    /// A record this node no longer stores again, though it may hold it or another version of it: content id.
    pub const NOT_KEPT_ALIVE: u8 = 8;
}

impl<C: Crypto> LaneNode<C> {
    /// Takes back what was logged before a restart, or exported by another lane. Call before
    /// [`LaneNode::on_start`] when recovering.
    pub fn on_record(&mut self, now: Now, kind: u8, payload: &[u8]) {
        match kind {
            log_kind::CONTACT => {
                if let Some(contact) = payload.first_chunk::<CONTACT_BYTES>().map(Contact::from_wire) {
                    self.remember(contact);
                }
            }
            log_kind::RECORD => {
                let Some((giver, rest)) = payload.split_first_chunk::<32>() else { return };
                let Some((expires, record)) = rest.split_first_chunk::<8>() else { return };
                let left = u64::from_le_bytes(*expires).saturating_sub(now.unix_secs());
                if let Ok(view) = RecordView::read(record)
                    && left > 0
                {
                    let ttl = u32::try_from(left).unwrap_or(u32::MAX).min(TTL_SECS_MAX);
                    let giver = PublicKey(*giver);
                    let id = view.id();
                    let _ = self.records.keep(now, &id, &view, Class::Held, ttl, giver, &mut self.rng);
                }
            }
            log_kind::PROVIDER => {
                let Some((id, provider)) = payload.split_first_chunk::<32>() else { return };
                let Some(provider) = provider.first_chunk::<PROVIDER_BYTES>().map(SignedProvider::from_wire) else {
                    return;
                };
                if provider.issued_secs.saturating_add(u64::from(provider.ttl_secs)) > now.unix_secs() {
                    let id = ContentId::from_bytes(*id);
                    let _ = self.providers.keep(now, &id, &provider, &mut self.rng);
                }
            }
            log_kind::PUBLISHED => {
                let Some((id, due)) = payload.split_first_chunk::<32>() else { return };
                let due_secs = due.first_chunk().map_or(0, |due| u64::from_le_bytes(*due));
                if self.published.len() >= self.config.published_max {
                    return;
                }
                // What fell due while we were away is spread over a while: others restart at the same time.
                // Nothing is due later than a lifetime from now, whatever the log says.
                let wait_secs = due_secs.saturating_sub(now.unix_secs()).min(u64::from(self.config.provide_ttl_secs));
                let wait_ms = wait_secs * 1000;
                let wait_ms = wait_ms + self.rng.below(60_000);
                // A restart, or another lane, is no reason to show whose it is.
                self.schedule(&ContentId::from_bytes(*id), now.mono_ms + wait_ms, self.config.stem_hops > 0);
            }
            log_kind::UNPUBLISHED => {
                if let Some(id) = payload.first_chunk() {
                    let id = ContentId::from_bytes(*id);
                    if let Some(published) = self.published.remove(&id) {
                        self.published_due.remove(&(published.due_ms, id));
                    }
                }
            }
            log_kind::KEPT_ALIVE => {
                if let Ok(view) = RecordView::read(payload)
                    && matches!(view.check_times(now.unix_secs()), Ok(()) | Err(RecordRefused::NotYetIssued))
                {
                    let due_ms = self.again_ms(now, payload);
                    self.set_alive(&view.id(), due_ms, payload);
                }
            }
            log_kind::FORGOTTEN => {
                if let Some(id) = payload.first_chunk() {
                    let id = ContentId::from_bytes(*id);
                    self.drop_alive(&id);
                    self.records.remove(&id);
                }
            }
            log_kind::NOT_KEPT_ALIVE => {
                if let Some(id) = payload.first_chunk() {
                    self.drop_alive(&ContentId::from_bytes(*id));
                }
            }
            _ => {}
        }
    }

    /// The slot that a log record belongs to now; none if it belongs to no slot's owner. It was logged under the slot that it had for
    /// the identity of then: a node that was given another has its ids elsewhere.
    #[must_use]
    pub fn slot_of_record(&self, kind: u8, payload: &[u8]) -> Option<Slot> {
        let id_of = |record: &[u8]| RecordView::read(record).ok().map(|view| view.id());
        let id = match kind {
            log_kind::RECORD => id_of(payload.get(40..)?)?,
            log_kind::KEPT_ALIVE => id_of(payload)?,
            log_kind::PROVIDER
            | log_kind::PUBLISHED
            | log_kind::UNPUBLISHED
            | log_kind::FORGOTTEN
            | log_kind::NOT_KEPT_ALIVE => ContentId::from_bytes(*payload.first_chunk()?),
            _ => return None,
        };
        Some(self.map.slot(&self.own, &id))
    }

    /// Writes the state of `slot`, or of all slots, as log records: for a snapshot, or to hand the slot to another lane.
    /// `put` returns false when it takes no more; the walk then ends and the caller starts over with more room.
    pub fn export(&self, slot: Option<Slot>, now: Now, mut put: impl FnMut(u8, Slot, &[u8]) -> bool) -> bool {
        let wanted = |of: Slot| slot.is_none_or(|slot| slot == of);
        self.export_slots(wanted, now, &mut put) && (slot.is_some() || self.export_contacts(put))
    }

    /// As [`LaneNode::export`], of all slots that are `wanted`, without the contacts: those belong to no slot's owner.
    pub fn export_slots(
        &self,
        wanted: impl Fn(Slot) -> bool,
        now: Now,
        mut put: impl FnMut(u8, Slot, &[u8]) -> bool,
    ) -> bool {
        let wanted = |id: &ContentId| {
            let of_id = self.map.slot(&self.own, id);
            wanted(of_id).then_some(of_id)
        };
        let mut buffer = [0; 40 + crate::record::RECORD_BYTES_MAX];
        for (id, kept) in self.records.iter().filter(|(_, kept)| kept.class == Class::Held) {
            if let Some(slot) = wanted(&id) {
                let len = write_record(&mut buffer, &kept.giver, kept.expires_secs, kept.bytes);
                if !put(log_kind::RECORD, slot, &buffer[..len]) {
                    return false;
                }
            }
        }
        for (id, provider) in self.providers.iter() {
            if let Some(slot) = wanted(&id) {
                buffer[..32].copy_from_slice(id.as_bytes());
                buffer[32..32 + PROVIDER_BYTES].copy_from_slice(&provider.to_wire());
                if !put(log_kind::PROVIDER, slot, &buffer[..32 + PROVIDER_BYTES]) {
                    return false;
                }
            }
        }
        for (id, published) in &self.published {
            if let Some(slot) = wanted(id) {
                let due_secs = now.unix_secs() + published.due_ms.saturating_sub(now.mono_ms) / 1000;
                buffer[..32].copy_from_slice(id.as_bytes());
                buffer[32..40].copy_from_slice(&due_secs.to_le_bytes());
                if !put(log_kind::PUBLISHED, slot, &buffer[..40]) {
                    return false;
                }
            }
        }
        for (id, kept) in &self.kept_alive {
            if let Some(slot) = wanted(id)
                && !put(log_kind::KEPT_ALIVE, slot, &kept.record)
            {
                return false;
            }
        }
        true
    }

    /// Writes the live contacts as log records. They belong to the lane that knows them, so they are logged under a slot of
    /// its own: under another's they would be forgotten with it. A lane that gets other slots logs them again.
    pub fn export_contacts(&self, mut put: impl FnMut(u8, Slot, &[u8]) -> bool) -> bool {
        self.table.iter_live().all(|peer| put(log_kind::CONTACT, self.home_slot, &peer.contact.to_wire()))
    }

    /// Forgets the state of `slot`: another lane has it now.
    pub fn drop_slot(&mut self, slot: Slot) {
        let of = |id: &ContentId| self.map.slot(&self.own, id) == slot;
        let records: alloc::vec::Vec<_> = self.records.iter().map(|(id, _)| id).filter(of).collect();
        let providers: alloc::vec::Vec<_> = self.providers.iter().map(|(id, _)| id).filter(of).collect();
        let published: alloc::vec::Vec<_> = self.published.keys().copied().filter(of).collect();
        let kept_alive: alloc::vec::Vec<_> = self.kept_alive.keys().copied().filter(of).collect();
        for id in records {
            self.records.remove(&id);
        }
        for id in providers {
            self.providers.remove(&id);
        }
        for id in published {
            if let Some(published) = self.published.remove(&id) {
                self.published_due.remove(&(published.due_ms, id));
            }
        }
        for id in kept_alive {
            self.drop_alive(&id);
        }
    }

    pub(super) fn log_contact(&mut self, contact: &Contact, out: &mut impl Outbox) {
        let slot = self.home_slot;
        out.log(log_kind::CONTACT, slot, &contact.to_wire(), Importance::Soft);
    }

    pub(super) fn log_published(&mut self, now: Now, id: &ContentId, out: &mut impl Outbox) -> bool {
        let mut payload = [0; 40];
        payload[..32].copy_from_slice(id.as_bytes());
        payload[32..].copy_from_slice(&now.unix_secs().to_le_bytes());
        self.log_hard(log_kind::PUBLISHED, id, &payload, out)
    }
}

/// Logs a record that is to be held, of an id that belongs to `slot`.
pub(super) fn log_record(
    now: Now,
    slot: Slot,
    view: &RecordView<'_>,
    giver: PublicKey,
    out: &mut impl Outbox,
) -> Logged {
    let mut buffer = [0; 40 + crate::record::RECORD_BYTES_MAX];
    let len = write_record(&mut buffer, &giver, view.expires_secs(now.unix_secs()), view.bytes);
    out.log(log_kind::RECORD, slot, &buffer[..len], Importance::Hard)
}

fn write_record(buffer: &mut [u8], giver: &PublicKey, expires_secs: u64, record: &[u8]) -> usize {
    buffer[..32].copy_from_slice(&giver.0);
    buffer[32..40].copy_from_slice(&expires_secs.to_le_bytes());
    buffer[40..40 + record.len()].copy_from_slice(record);
    40 + record.len()
}
