//! Whom an idle worker should ask for half of its work.
//!
//! The coordinator knows ranges and cursors, not bytes: of the shards being worked on, the one with the widest range ahead
//! is the best guess at the one that will take longest. A caller that measures its work knows better and calls
//! `request_split` itself.

use alloc::vec::Vec;
use core::cmp::Reverse;

use tessera_contracts::ids::{LogicalTime, RunId, ShardId, TenantId};
use tessera_contracts::keyspace::Fraction;

use super::summary::{SHARD_PAGE_LIMIT_MAX, ShardFilter, ShardPage, ShardSummary};
use crate::backend::RunManagement;
use crate::error::{GetRunError, OrderError};

/// The shard among `summaries` with the widest range ahead, of those held at `now` and not asked for a split already.
pub fn widest_remaining(summaries: &[ShardSummary], now: LogicalTime) -> Option<&ShardSummary> {
    let held = |summary: &&ShardSummary| summary.lease.is_some_and(|holder| !holder.is_past(now));
    let unasked = |summary: &&ShardSummary| summary.orders.split_requested.is_none();
    summaries.iter().filter(held).filter(unasked).max_by_key(|summary| width_ahead(summary))
}

/// How wide the range ahead of a shard's cursor is: ranges whose ends part earlier are wider, and among those that part at
/// the same byte, the one whose next eight bytes are further apart.
fn width_ahead(summary: &ShardSummary) -> (Reverse<usize>, u64) {
    let end = summary.end.expose().unwrap_or_default();
    let from = summary.last_key.expose().or(summary.start.expose()).unwrap_or_default();
    let common = from.iter().zip(end).take_while(|(a, b)| a == b).count();
    let next = |key: &[u8], fill: u8| {
        let mut bytes = [fill; 8];
        bytes.iter_mut().zip(&key[common..]).for_each(|(byte, seen)| *byte = *seen);
        u64::from_be_bytes(bytes)
    };
    // An end that is not there lies behind every key.
    let end = if end.is_empty() { u64::MAX } else { next(end, 0) };
    (Reverse(common), end.saturating_sub(next(from, 0)))
}

/// Asks the holder with the widest range ahead to keep `fraction` of it and split off the rest. Answers which shard was
/// asked, if there is one to ask. Looks at one page of open shards, from `after` on, so that its cost is bounded; the page
/// is left in `seen`.
pub fn ask_for_work<B: RunManagement + ?Sized>(
    backend: &mut B,
    now: LogicalTime,
    tenant: TenantId,
    run: RunId,
    after: Option<ShardId>,
    fraction: Fraction,
    seen: &mut Vec<ShardSummary>,
) -> Result<Option<ShardId>, AskError> {
    let page = ShardPage { after, limit: SHARD_PAGE_LIMIT_MAX };
    backend.list_shards_into(now, tenant, run, &ShardFilter::active(), page, seen)?;
    let Some(summary) = widest_remaining(seen, now) else { return Ok(None) };
    let key = tessera_contracts::ShardKey::new(run, summary.shard);
    backend.request_split(now, tenant, key, summary.epoch(), fraction)?;
    Ok(Some(summary.shard))
}

/// Asking for work failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The run could not be read.
    #[error(transparent)]
    Run(#[from] GetRunError),
    /// The holder could not be asked; it may have given the shard up a moment ago.
    #[error(transparent)]
    Order(#[from] OrderError),
}

#[cfg(test)]
mod tests {
    use tessera_contracts::ids::{FenceEpoch, RunIncarnation, WorkerId};
    use tessera_contracts::redact::RedactedKey;

    use super::*;
    use crate::record::lease::LeaseHolder;
    use crate::record::orders::StandingOrders;
    use crate::record::status::ShardStatus;

    fn summary(id: u64, start: &[u8], last_key: Option<&[u8]>, end: &[u8], deadline: u64) -> ShardSummary {
        ShardSummary {
            shard: ShardId::new(id),
            incarnation: RunIncarnation::new(1),
            status: ShardStatus::Active,
            fence: FenceEpoch::new(2),
            lease: Some(LeaseHolder { owner: WorkerId::new(1), deadline: LogicalTime::new(deadline) }),
            park: None,
            orders: StandingOrders::NONE,
            acquire_count: 1,
            stalled_acquisitions: 0,
            start: RedactedKey::new(Some(start)),
            end: RedactedKey::new(Some(end)),
            last_key: RedactedKey::new(last_key),
            parent: None,
            spawned_count: 0,
            unreachable_reports: 0,
        }
    }

    fn widest(summaries: &[ShardSummary]) -> Option<u64> {
        widest_remaining(summaries, LogicalTime::new(10)).map(|summary| summary.shard.get())
    }

    #[test]
    fn the_widest_range_ahead_of_a_cursor_is_chosen() {
        let narrow = summary(1, b"repo/a", None, b"repo/c", 99);
        let wide = summary(2, b"repo/c", None, b"repo/x", 99);
        let worked = summary(3, b"a", Some(b"repo/y"), b"repo/z", 99);
        assert_eq!(widest(&[narrow.clone(), wide.clone(), worked.clone()]), Some(2));
        let fresh = summary(4, b"a", None, b"z", 99);
        assert_eq!(widest(&[narrow.clone(), wide.clone(), fresh]), Some(4), "ranges that part earlier are wider");
        let endless = summary(5, b"y", None, b"", 99);
        assert_eq!(widest(&[summary(6, b"a", None, b"z", 99), endless]), Some(5));
    }

    #[test]
    fn who_is_not_working_or_was_asked_already_is_not_asked() {
        let wide = summary(1, b"a", None, b"z", 99);
        let narrow = summary(2, b"a", None, b"b", 99);
        assert_eq!(widest(&[summary(1, b"a", None, b"z", 10), narrow.clone()]), Some(2), "its lease has ended");
        assert_eq!(widest(&[summary(1, b"a", None, b"z", 11), narrow.clone()]), Some(1));
        assert_eq!(widest(&[ShardSummary { lease: None, ..wide.clone() }, narrow.clone()]), Some(2));
        let orders = StandingOrders { split_requested: Some(Fraction::HALF), ..StandingOrders::NONE };
        assert_eq!(widest(&[ShardSummary { orders, ..wide }, narrow]), Some(2));
        assert_eq!(widest(&[]), None);
    }
}
