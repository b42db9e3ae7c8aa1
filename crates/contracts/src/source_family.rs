//! The boundary between coordination and the swept source.
//!
//! Coordination deals in shards: a range of keys and a cursor. A *source family* turns one into items: files of a
//! directory tree, objects of a repository. One process and a fleet both run shards through
//! [`SourceFamily`], so both read the same way.
//!
//! The contract of a family: within a shard, items come in strictly rising key order, only keys of the shard, only keys
//! after the cursor, in pages no larger than asked for. [`CheckedPages`] holds a family to it, because a cursor that
//! moves past an item that comes late would lose that item without a trace.
//!
//! Reading is synchronous: a family that waits for a network is driven from a thread that may wait. Failures are sorted
//! by who should act ([`SourceErrorClass`]), which is also how a shard is parked for them.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::cursor::{Cursor, CursorError, CursorUpdate};
use crate::restored_state::RestoredShardState;

/// Something that can be swept shard by shard.
pub trait SourceFamily {
    /// One thing to process.
    type Item: SourceItem;
    /// A shard being read.
    type Pages<'f>: ItemPages<Item = Self::Item>
    where
        Self: 'f;

    /// The name of the family in metadata, logs and reports.
    fn name(&self) -> &'static str;

    /// Starts reading where `state` says.
    fn open<'f>(&'f self, state: &RestoredShardState) -> Result<Self::Pages<'f>, SourceError>;
}

/// Something with a place in the keyspace.
pub trait SourceItem {
    /// Its key; not empty.
    fn key(&self) -> &[u8];

    /// How much it counts against [`PageLimits::bytes_max`].
    fn bytes(&self) -> u64;
}

/// A shard being read, page by page.
pub trait ItemPages {
    /// One thing to process.
    type Item: SourceItem;

    /// The next items in key order. A page without items and without an end may be followed by one with items.
    fn next_page(&mut self, limits: PageLimits) -> Result<Page<Self::Item>, SourceError>;
}

/// How much a page may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimits {
    /// Most items; at least 1.
    pub items_max: usize,
    /// Most bytes of items. A single item over it comes alone.
    pub bytes_max: u64,
}

impl Default for PageLimits {
    fn default() -> Self {
        Self { items_max: 256, bytes_max: 8 << 20 }
    }
}

/// Some items, in key order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<I> {
    /// The items; perhaps none.
    pub items: Vec<I>,
    /// How to go on after the last item of this page, for families that cannot seek by key alone.
    pub token: Option<Box<[u8]>>,
    /// Whether the shard has nothing after this page.
    pub is_last: bool,
}

impl<I: SourceItem> Page<I> {
    /// The cursor that says every item of this page is done; `None` if the page has no items.
    pub fn cursor_after(&self) -> Option<Result<Cursor, CursorError>> {
        self.items.last().map(|last| Cursor::new(Some(last.key()), self.token.as_deref()))
    }
}

/// Pages of a family that are checked against its contract.
#[derive(Debug)]
pub struct CheckedPages<P> {
    pages: P,
    state: RestoredShardState,
    last_key: Vec<u8>,
    has_ended: bool,
}

impl<P: ItemPages> CheckedPages<P> {
    /// Checks `pages`, which were opened with `state`.
    pub fn new(pages: P, state: RestoredShardState) -> Self {
        let last_key = state.cursor().last_key().unwrap_or_default().to_vec();
        Self { pages, state, last_key, has_ended: false }
    }

    /// Says that the shard was narrowed, so that items it gave away are no longer read.
    pub fn narrow(&mut self, state: RestoredShardState) {
        self.state = state;
    }
}

impl<P: ItemPages> ItemPages for CheckedPages<P> {
    type Item = P::Item;

    /// The next page, or `Poisoned` if the family breaks its contract. After the last page there are only empty ones.
    ///
    /// Items at or above the end of the shard are cut off and end it: the shard may have been narrowed since the family
    /// opened it. A page that holds more than asked for is refused, since it was a promise about memory.
    fn next_page(&mut self, limits: PageLimits) -> Result<Page<P::Item>, SourceError> {
        if self.has_ended {
            return Ok(Page { items: Vec::new(), token: None, is_last: true });
        }
        let mut page = self.pages.next_page(limits)?;
        let bytes: u64 = page.items.iter().fold(0, |sum, item| sum.saturating_add(item.bytes()));
        if page.items.len() > limits.items_max.max(1) || (bytes > limits.bytes_max && page.items.len() > 1) {
            return Err(broken(Breach::PageTooLarge { items: page.items.len(), bytes }));
        }
        // Before anything is cut off: a late item behind one past the end would be cut off with it.
        let mut key_before = self.last_key.as_slice();
        for item in &page.items {
            if item.key() <= key_before {
                return Err(broken(Breach::KeyNotRising { len: item.key().len() }));
            }
            key_before = item.key();
        }
        let range = self.state.spec().range();
        if let Some(end) = page.items.iter().position(|item| !range.reaches_up_to(item.key())) {
            page.items.truncate(end);
            // The token belongs to an item that is no longer in the page.
            page.token = None;
            page.is_last = true;
        }
        for item in &page.items {
            if !range.reaches_down_to(item.key()) {
                return Err(broken(Breach::KeyBelowShard { len: item.key().len() }));
            }
            if let Err(error) = CursorUpdate::at_key(item.key()) {
                return Err(broken(Breach::KeyInvalid(error)));
            }
        }
        if let Some(last) = page.items.last() {
            self.last_key.clear();
            self.last_key.extend_from_slice(last.key());
        }
        self.has_ended = page.is_last;
        Ok(page)
    }
}

/// Why a shard cannot be read, sorted by who should act.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{class}: {detail}")]
pub struct SourceError {
    /// The role that should act.
    pub class: SourceErrorClass,
    /// What failed and on what, for the operator of the scan; never contents or credentials.
    pub detail: String,
}

impl SourceError {
    /// An error of this class.
    pub fn new(class: SourceErrorClass, detail: impl Into<String>) -> Self {
        Self { class, detail: detail.into() }
    }
}

/// The role that should act on a [`SourceError`]. Each class has its park reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceErrorClass {
    /// An operator grants access: park as `PermissionDenied`.
    PermissionDenied,
    /// The target is gone: park as `NotFound`.
    NotFound,
    /// No one, at first: try again, and park as `TooManyErrors` when trying did not help.
    Transient,
    /// A developer looks into it: park as `Poisoned`.
    Poisoned,
}

impl SourceErrorClass {
    /// Whether the same call may work a little later.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Transient)
    }
}

impl fmt::Display for SourceErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PermissionDenied => "permission denied",
            Self::NotFound => "not found",
            Self::Transient => "temporary failure",
            Self::Poisoned => "inconsistent source",
        })
    }
}

/// How a family broke its contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Breach {
    #[error("a page holds {items} items of {bytes} bytes, more than asked for")]
    PageTooLarge { items: usize, bytes: u64 },
    #[error("an item's key ({len} bytes) is not above the one before it")]
    KeyNotRising { len: usize },
    #[error("an item's key ({len} bytes) sorts before the start of the shard")]
    KeyBelowShard { len: usize },
    #[error("an item's key cannot be a cursor: {0}")]
    KeyInvalid(CursorError),
}

fn broken(breach: Breach) -> SourceError {
    SourceError::new(SourceErrorClass::Poisoned, alloc::format!("the source family broke its contract: {breach}"))
}

#[cfg(test)]
mod tests {
    use alloc::collections::{BTreeSet, VecDeque};
    use alloc::string::ToString;
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;
    use crate::limits::MAX_KEY_SIZE;
    use crate::shard_spec::{CursorSemantics, ShardSpecRef};

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Item(Vec<u8>, u64);

    impl SourceItem for Item {
        fn key(&self) -> &[u8] {
            &self.0
        }

        fn bytes(&self) -> u64 {
            self.1
        }
    }

    /// Hands out prepared pages for any request.
    struct Prepared(VecDeque<Page<Item>>);

    impl ItemPages for Prepared {
        type Item = Item;

        fn next_page(&mut self, _: PageLimits) -> Result<Page<Item>, SourceError> {
            self.0.pop_front().ok_or_else(|| SourceError::new(SourceErrorClass::Transient, "no more prepared"))
        }
    }

    fn page(keys: &[&[u8]], is_last: bool) -> Page<Item> {
        Page { items: keys.iter().map(|key| Item(key.to_vec(), 10)).collect(), token: Some(Box::from(*b"t")), is_last }
    }

    fn state(last_key: Option<&[u8]>) -> RestoredShardState {
        let spec = ShardSpecRef::new(b"b", b"f", b"").unwrap();
        RestoredShardState::new(spec, CursorUpdate::new(last_key, None).unwrap(), CursorSemantics::Completed).unwrap()
    }

    fn checked(last_key: Option<&[u8]>, pages: impl Into<VecDeque<Page<Item>>>) -> CheckedPages<Prepared> {
        CheckedPages::new(Prepared(pages.into()), state(last_key))
    }

    const LIMITS: PageLimits = PageLimits { items_max: 3, bytes_max: 30 };

    fn refusal(mut pages: CheckedPages<Prepared>) -> SourceError {
        loop {
            match pages.next_page(LIMITS) {
                Ok(page) => assert!(!page.is_last, "this family should have been refused"),
                Err(error) => return error,
            }
        }
    }

    #[test]
    fn pages_in_order_come_through_and_the_last_one_ends() {
        let mut pages = checked(Some(b"b"), [page(&[b"b\0", b"c"], false), page(&[], false), page(&[b"d"], true)]);
        assert_eq!(pages.next_page(LIMITS), Ok(page(&[b"b\0", b"c"], false)));
        assert_eq!(pages.next_page(LIMITS), Ok(page(&[], false)));
        assert_eq!(pages.next_page(LIMITS), Ok(page(&[b"d"], true)));
        // The family would fail now, but it is not asked again.
        let after = pages.next_page(LIMITS).unwrap();
        assert!(after.is_last && after.items.is_empty());
    }

    #[test]
    fn keys_that_do_not_rise_are_refused_within_and_across_pages() {
        let poisoned = |error: SourceError| error.class == SourceErrorClass::Poisoned;
        assert!(poisoned(refusal(checked(None, [page(&[b"c", b"c"], true)]))));
        assert!(poisoned(refusal(checked(None, [page(&[b"d"], false), page(&[b"c"], true)]))));
        assert!(poisoned(refusal(checked(Some(b"c"), [page(&[b"c"], true)]))));
        assert!(poisoned(refusal(checked(None, [page(&[b"a"], true)]))));
        assert!(poisoned(refusal(checked(None, [page(&[b""], true)]))));
        assert!(poisoned(refusal(checked(None, [page(&[&vec![b'c'; MAX_KEY_SIZE + 1]], true)]))));
        assert!(checked(None, [page(&[&vec![b'c'; MAX_KEY_SIZE]], true)]).next_page(LIMITS).is_ok());
    }

    #[test]
    fn items_past_the_end_are_cut_off_and_end_the_shard() {
        let mut pages = checked(None, [page(&[b"e", b"f", b"g"], false)]);
        let last = pages.next_page(LIMITS).unwrap();
        assert_eq!((last.items, last.token, last.is_last), (vec![Item(b"e".to_vec(), 10)], None, true));
    }

    #[test]
    fn an_item_that_comes_late_is_not_cut_off_with_those_past_the_end() {
        let late = refusal(checked(None, [page(&[b"f", b"c"], false)]));
        assert_eq!(late.class, SourceErrorClass::Poisoned);
    }

    #[test]
    fn a_narrowed_shard_ends_earlier() {
        let mut pages = checked(None, [page(&[b"b"], false), page(&[b"c", b"d"], false)]);
        pages.next_page(LIMITS).unwrap();
        let mut narrowed = state(Some(b"b"));
        narrowed.narrow(ShardSpecRef::new(b"b", b"d", b"").unwrap()).unwrap();
        pages.narrow(narrowed);
        let last = pages.next_page(LIMITS).unwrap();
        assert_eq!((last.items.len(), last.is_last), (1, true));
    }

    #[test]
    fn pages_larger_than_asked_for_are_refused_but_one_large_item_comes_alone() {
        assert!(checked(None, [page(&[b"b", b"c", b"d"], true)]).next_page(LIMITS).is_ok());
        let error = refusal(checked(None, [page(&[b"b", b"c", b"d", b"e"], true)]));
        assert_eq!(
            error.to_string(),
            "inconsistent source: the source family broke its contract: a page holds 4 items of 40 bytes, more than asked for"
        );
        // Too many, though small enough together.
        let empty = |key: &[u8]| Item(key.to_vec(), 0);
        let items = [b"b", b"c", b"d", b"e"].map(|key| empty(key)).to_vec();
        let many = refusal(checked(None, [Page { items, token: None, is_last: true }]));
        assert_eq!(many.class, SourceErrorClass::Poisoned);
        let large = |keys: &[&[u8]]| Page {
            items: keys.iter().map(|key| Item(key.to_vec(), 31)).collect(),
            token: None,
            is_last: true,
        };
        assert!(checked(None, [large(&[b"b"])]).next_page(LIMITS).is_ok());
        assert_eq!(refusal(checked(None, [large(&[b"b", b"c"])])).class, SourceErrorClass::Poisoned);
    }

    #[test]
    fn failures_of_the_family_come_through_unchanged() {
        let error = refusal(checked(None, []));
        assert!(error.class.is_retryable());
        assert_eq!(error.to_string(), "temporary failure: no more prepared");
    }

    #[test]
    fn the_cursor_after_a_page_is_its_last_item_with_its_token() {
        let cursor = page(&[b"b", b"c"], false).cursor_after().unwrap().unwrap();
        assert_eq!((cursor.last_key(), cursor.token()), (Some(&b"c"[..]), Some(&b"t"[..])));
        assert!(page(&[], false).cursor_after().is_none());
    }

    /// The simplest honest family: a set of keys.
    struct Keys(BTreeSet<Vec<u8>>);

    struct KeyPages<'f> {
        ahead: VecDeque<&'f Vec<u8>>,
    }

    impl SourceFamily for Keys {
        type Item = Item;
        type Pages<'f> = KeyPages<'f>;

        fn name(&self) -> &'static str {
            "keys"
        }

        fn open<'f>(&'f self, state: &RestoredShardState) -> Result<KeyPages<'f>, SourceError> {
            Ok(KeyPages { ahead: self.0.iter().filter(|key| state.is_ahead(key)).collect() })
        }
    }

    impl ItemPages for KeyPages<'_> {
        type Item = Item;

        fn next_page(&mut self, limits: PageLimits) -> Result<Page<Item>, SourceError> {
            let count = self.ahead.len().min(limits.items_max);
            let items = self.ahead.drain(..count).map(|key| Item(key.clone(), 1)).collect();
            Ok(Page { items, token: None, is_last: self.ahead.is_empty() })
        }
    }

    proptest! {
        /// A worker that dies after any page and is resumed from its cursor still sees every key of the shard once.
        #[test]
        fn a_shard_read_in_many_lives_is_read_once(
            keys in prop::collection::btree_set(prop::collection::vec(b'a'..b'h', 1..4), 0..60),
            lives in prop::collection::vec(1_usize..4, 1..40),
            items_max in 1_usize..5,
        ) {
            let family = Keys(keys);
            let limits = PageLimits { items_max, bytes_max: 100 };
            let (mut cursor, mut seen, mut is_done) = (Cursor::initial(), Vec::new(), false);
            for pages_to_live in lives.into_iter().chain(core::iter::repeat(4)) {
                let spec = ShardSpecRef::new(b"b", b"f", b"").unwrap();
                let state = RestoredShardState::new(spec, cursor.as_update(), CursorSemantics::Completed).unwrap();
                let mut pages = CheckedPages::new(family.open(&state).unwrap(), state);
                for _ in 0..pages_to_live {
                    let page = pages.next_page(limits).unwrap();
                    if let Some(after) = page.cursor_after() {
                        cursor = after.unwrap();
                    }
                    is_done |= page.is_last;
                    seen.extend(page.items.into_iter().map(|item| item.0));
                }
                if is_done {
                    break;
                }
            }
            let expected: Vec<_> = family.0.into_iter().filter(|key| (&b"b"[..]..b"f").contains(&key.as_slice())).collect();
            prop_assert_eq!(seen, expected);
        }
    }
}
