//! The pieces of state that survive a restart: contacts, records, providers, and this node's own publications.
//!
//! Each piece is keyed by its id, not by its lane, so that a start with another number of lanes hands it to the lane that owns it
//! then. A piece may come twice and means "it is so". Everything read back is judged like a stranger's datagram,
//! except that signatures were verified before it was written and are not verified again: the log has its checksums.

use tessera_contracts::point::ContentId;

use crate::identity::PublicKey;
use crate::record::RecordView;

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

/// The content id that a log record is about; none if it belongs to no slot's owner.
pub(super) fn id_of_record(kind: u8, payload: &[u8]) -> Option<ContentId> {
    let id_of = |record: &[u8]| RecordView::read(record).ok().map(|view| view.id());
    match kind {
        log_kind::RECORD => id_of(payload.get(40..)?),
        log_kind::KEPT_ALIVE => id_of(payload),
        log_kind::PROVIDER
        | log_kind::PUBLISHED
        | log_kind::UNPUBLISHED
        | log_kind::FORGOTTEN
        | log_kind::NOT_KEPT_ALIVE => Some(ContentId::from_bytes(*payload.first_chunk()?)),
        _ => None,
    }
}

/// Writes a record that is held, as it is logged. Returns its length.
pub(super) fn write_record(buffer: &mut [u8], giver: &PublicKey, expires_secs: u64, record: &[u8]) -> usize {
    buffer[..32].copy_from_slice(&giver.0);
    buffer[32..40].copy_from_slice(&expires_secs.to_le_bytes());
    buffer[40..40 + record.len()].copy_from_slice(record);
    40 + record.len()
}
