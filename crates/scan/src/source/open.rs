//! Sources that this crate does not know: lines of a log, rows of a table, whatever has keys in a lasting order.
//!
//! A [`Connector`] tells the items of a target ([`SourceFamily`], held to its contract by [`CheckedPages`]); a [`Handler`] does
//! with an item whatever is to be done. Workers, splits, leases, segments, receipts and
//! fleets are those of files and repositories: [`OpenFleet`](crate::fleet::OpenFleet) plans a run,
//! registers it, works on it and concludes it, in one process or in many. The program
//! `examples/log_lines.rs` is such a source, whole.
//!
//! Keys begin with the number of the target ([`key`](crate::plan::key)), and an item keeps its key as long as the run goes on.
//!
//! # What a cursor says
//!
//! The sweep makes everything durable ([`Handler::make_durable`], then the segment) and only then moves the cursor. What that
//! covers is the handler's to choose, and the run says which ([`CursorSemantics`]):
//!
//! - *Completed*: items up to the cursor are done. A handler searches an item, and hands what it finds to the draft.
//! - *Dispatched*: items up to the cursor are handed on, durably. A handler writes items to a queue and syncs it. A worker that
//!   dies between the queue and the cursor leaves items that its heir hands on once more, so the consumer knows items by
//!   their keys. A receipt that is complete says that each item was handed on, not that it was done: no worker does again
//!   what the queue or its consumer loses.
//!
//! [`CheckedPages`]: tessera_contracts::source_family::CheckedPages
//! [`CursorSemantics`]: tessera_contracts::CursorSemantics

use std::io;
use std::iter::Peekable;
use std::path::Path;

use tessera_contracts::source_family::{ItemPages, Page, PageLimits, SourceError, SourceFamily, SourceItem};

use crate::findings::{Draft, SinkError};
use crate::plan::target::Target;
use crate::source::item::{SkipReason, UnreadableReason};

/// A kind of source. Workers of a machine share one.
///
/// Targets name it by [`SourceFamily::name`] ([`TargetKind::Open`](crate::plan::target::TargetKind::Open)). A machine
/// without a connector of that name leaves the target to others. The metadata of a shard is its target
/// ([`Target::decode`]), for connectors that read more than one.
pub trait Connector: SourceFamily + Sync {
    /// What is done with its items.
    type Handler: Handler<Self::Item>;

    /// Whether `target` can be read from here as it was planned. What is
    /// [`NotFound`](tessera_contracts::source_family::SourceErrorClass::NotFound) here is left to other machines.
    fn locate(&self, target: &Target) -> Result<(), SourceError>;

    /// A handler for one worker of the run whose folder is `dir`.
    fn handler(&self, dir: &Path) -> io::Result<Self::Handler>;
}

/// Does items, one after the other, for one worker.
pub trait Handler<I> {
    /// Does one. What is found in it goes to `draft`, which also names what cannot be read; the item itself is counted by
    /// the worker.
    fn handle(&mut self, item: &I, draft: &mut Draft) -> Result<Handled, HandlerError>;

    /// Makes everything durable that was done so far. The cursor moves past it next.
    fn make_durable(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Forgets what was done since everything was durable last: it is done again, here or by another worker. A queue that
    /// takes nothing back leaves it to its consumer, which knows items by their keys.
    fn abandon(&mut self) {}
}

/// What became of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// It is done, or handed on.
    Done,
    /// It is left out on purpose.
    Skipped(SkipReason),
    /// It cannot be read, and never will be. It counts, and the receipt is not complete.
    Unreadable(UnreadableReason),
}

/// Why an item cannot be done now.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// The source fails.
    #[error("{0}")]
    Source(SourceError),
    /// What was found cannot be written.
    #[error(transparent)]
    Sink(#[from] SinkError),
}

/// Pages of items that come one by one, in the order of their keys.
pub struct Paged<I: Iterator>(Peekable<I>);

impl<I: Iterator> Paged<I> {
    /// Pages of `items`.
    pub fn new(items: I) -> Self {
        Self(items.peekable())
    }
}

impl<T: SourceItem, I: Iterator<Item = Result<T, SourceError>>> ItemPages for Paged<I> {
    type Item = T;

    fn next_page(&mut self, limits: PageLimits) -> Result<Page<T>, SourceError> {
        let (mut items, mut bytes) = (Vec::new(), 0_u64);
        let has_room =
            |items: &Vec<T>, bytes| items.is_empty() || (items.len() < limits.items_max && bytes <= limits.bytes_max);
        while let Some(next) = self.0.next_if(|next| {
            bytes = bytes.saturating_add(next.as_ref().map_or(0, SourceItem::bytes));
            has_room(&items, bytes)
        }) {
            items.push(next?);
        }
        Ok(Page { items, token: None, is_last: self.0.peek().is_none() })
    }
}

impl<I: Iterator> std::fmt::Debug for Paged<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Paged").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::source_family::SourceErrorClass;

    use super::*;

    #[derive(Debug)]
    struct Row(u64);

    impl SourceItem for Row {
        fn key(&self) -> &[u8] {
            b"k"
        }

        fn bytes(&self) -> u64 {
            self.0
        }
    }

    fn pages(sizes: &[u64]) -> Vec<(usize, bool)> {
        let mut pages = Paged::new(sizes.iter().map(|&size| Ok(Row(size))));
        let limits = PageLimits { items_max: 3, bytes_max: 10 };
        let mut shapes = Vec::new();
        while shapes.last().is_none_or(|(_, is_last)| !is_last) {
            let page = pages.next_page(limits).unwrap();
            shapes.push((page.items.len(), page.is_last));
        }
        shapes
    }

    #[test]
    fn pages_hold_what_the_limits_allow_and_at_least_one_item() {
        assert_eq!(pages(&[]), [(0, true)]);
        assert_eq!(pages(&[1, 1, 1]), [(3, true)]);
        assert_eq!(pages(&[1, 1, 1, 1]), [(3, false), (1, true)]);
        assert_eq!(pages(&[5, 5, 1]), [(2, false), (1, true)]);
        assert_eq!(pages(&[5, 6]), [(1, false), (1, true)]);
        assert_eq!(pages(&[99, 1, 99]), [(1, false), (1, false), (1, true)]);
    }

    #[test]
    fn a_failure_ends_the_page_and_is_told() {
        let failure = SourceError::new(SourceErrorClass::Transient, "gone");
        let mut pages = Paged::new([Ok(Row(1)), Err(failure.clone()), Ok(Row(2))].into_iter());
        assert_eq!(pages.next_page(PageLimits::default()).unwrap_err(), failure);
    }
}
