//! A simulated machine's view of the targets.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use tessera_contracts::source_family::{
    CheckedPages, ItemPages, Page, PageLimits, SourceError, SourceErrorClass, SourceFamily, SourceItem,
};
use tessera_contracts::{LogicalTime, RestoredShardState};
use tessera_scan::clock::Clock;
use tessera_scan::findings::{Draft, SinkError};
use tessera_scan::plan::key;
use tessera_scan::plan::ledger::OpenPlan;
use tessera_scan::plan::target::Target;
use tessera_scan::source::ahead::Ahead;
use tessera_scan::source::item::{Item, ItemKind};
use tessera_scan::sweep::worker::driver::{ItemEnd, Site};
use tessera_scan::sweep::worker::reachable::{RootSeen, judge_tree};

use super::broken::Defect;
use super::truth::{Planted, Truth};

/// How a machine sees a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// As it was planned.
    Planned,
    /// As it was planned, with files that were added since.
    Newer,
    /// Without some of the files that were planned.
    Older,
    /// An empty directory: it is not mounted.
    Empty,
    /// Nothing at all.
    Absent,
    /// It fails now and then.
    Flaky,
    /// It is away when its next page is read, and back when the page is done.
    Blinking,
}

impl View {
    fn shows(self, planted: &Planted) -> bool {
        match self {
            Self::Planned | Self::Flaky => planted.is_planned,
            Self::Newer => true,
            Self::Older => planted.is_planned && !planted.item.size.is_multiple_of(5),
            Self::Empty | Self::Absent | Self::Blinking => false,
        }
    }
}

/// A machine's view, and the items read through it.
#[derive(Debug)]
pub(super) struct Views {
    pub(super) of: RefCell<Vec<View>>,
    /// Counts down to the next failure of a flaky target.
    pub(super) flakes: Cell<u64>,
    /// Items read.
    pub(super) items: Cell<u64>,
    /// Pages read while their target was away.
    pub(super) pages_away: Cell<u64>,
    /// How often a target was away for a page, and back when the worker looked whether it is there.
    pub(super) returns: Cell<u64>,
}

impl Views {
    fn of(&self, target: u32) -> View {
        self.of.borrow()[target as usize]
    }

    /// Whether a flaky target fails now.
    fn flakes(&self, target: u32) -> Result<(), SourceError> {
        if self.of(target) != View::Flaky {
            return Ok(());
        }
        let left = self.flakes.get();
        self.flakes.set(left.checked_sub(1).unwrap_or(40));
        if left == 0 { Err(SourceError::new(SourceErrorClass::Transient, "simulated: a read failed")) } else { Ok(()) }
    }
}

/// A clock that is off by a constant. Reading takes time.
#[derive(Debug, Clone)]
pub(super) struct SkewedClock {
    pub(super) now: Rc<Cell<u64>>,
    pub(super) ahead: u64,
}

impl Clock for SkewedClock {
    fn now(&self) -> LogicalTime {
        LogicalTime::new(self.now.get() + self.ahead)
    }
}

/// The content that a simulated machine reads.
#[derive(Debug)]
pub(super) struct SimSite {
    pub(super) truth: Rc<Truth>,
    pub(super) views: Rc<Views>,
    pub(super) plan: Arc<OpenPlan>,
    pub(super) now: Rc<Cell<u64>>,
    pub(super) defect: Defect,
    pub(super) here: Option<Here>,
}

#[derive(Debug)]
pub(super) struct Here {
    target: Target,
    pages: Option<CheckedPages<SimPages>>,
    /// Whether the target was away for one of these pages.
    was_away: Rc<Cell<bool>>,
}

impl SimSite {
    fn here(&self) -> &Here {
        self.here.as_ref().expect("a shard is located before it is read")
    }

    fn source(&self) -> SimSource {
        let target = self.here().target.number;
        let was_away = Rc::clone(&self.here().was_away);
        SimSource { truth: Rc::clone(&self.truth), views: Rc::clone(&self.views), target, was_away }
    }

    fn check(&self, target: &Target) -> Result<(), SourceError> {
        let view = self.views.of(target.number);
        let planned = self.plan.record().target(target.number).map_or(0, |plan| plan.planned.planned);
        let seen = match view {
            View::Absent => Err(io::Error::from(io::ErrorKind::NotFound)),
            View::Empty if self.defect != Defect::EmptyRootIsRead => Ok(RootSeen::Empty),
            _ => Ok(RootSeen::Filled),
        };
        judge_tree(&target.path, seen, planned)
    }
}

impl Site for SimSite {
    fn locate(&mut self, state: &RestoredShardState, _: bool) -> Result<(), SourceError> {
        let target = Target::decode(state.spec().metadata()).expect("the world wrote it");
        self.check(&target)?;
        self.here = Some(Here { target, pages: None, was_away: Rc::default() });
        Ok(())
    }

    fn look_ahead(&mut self, state: &RestoredShardState) -> Result<Ahead, SourceError> {
        Ahead::of(&self.source(), state)
    }

    fn open(&mut self, state: &RestoredShardState, draft: &mut Draft) -> Result<(), SourceError> {
        let target = self.here().target.number;
        self.views.flakes(target)?;
        let low = match state.cursor().last_key() {
            Some(cursor) => Bound::Excluded(cursor),
            None => Bound::Included(state.spec().start()),
        };
        let ledger = self.plan.ledger(target, low).expect("the plan was stored whole");
        draft.open(target, ledger);
        let pages = self.source().open(state)?;
        self.here().was_away.set(false);
        self.here.as_mut().expect("it is located").pages = Some(CheckedPages::new(pages, state.clone()));
        Ok(())
    }

    fn next_page(
        &mut self,
        limits: PageLimits,
        _: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Page<Item>>, SourceError> {
        let here = self.here.as_mut().expect("a shard is located before it is read");
        self.views.flakes(here.target.number)?;
        here.pages.as_mut().expect("a shard is opened before it is read").next_page(limits).map(Some)
    }

    fn read(
        &mut self,
        item: &Item,
        draft: &mut Draft,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<ItemEnd, SinkError> {
        if let Err(error) = self.views.flakes(self.here().target.number) {
            return Ok(ItemEnd::SourceFailed(error));
        }
        self.views.items.set(self.views.items.get() + 1);
        let planted = &self.truth.items[&item.key];
        for _ in 0..planted.looks {
            self.now.set(self.now.get() + 30);
            if !goes_on() {
                return Ok(ItemEnd::Interrupted);
            }
        }
        match item.kind {
            ItemKind::Skipped { reason, count } => draft.tally.add_skipped(reason, count),
            _ => draft.tally.add_scanned(item.size),
        }
        for occurrence in &planted.occurrences {
            draft.found(occurrence)?;
        }
        Ok(draft.met(item).map_or_else(ItemEnd::SourceFailed, |()| ItemEnd::Done))
    }

    fn wants_safe_point(&mut self) -> bool {
        false
    }

    fn look(&mut self) -> Result<(), SourceError> {
        let here = self.here();
        let is_back = !matches!(self.views.of(here.target.number), View::Empty | View::Absent);
        if is_back && here.was_away.take() {
            self.views.returns.set(self.views.returns.get() + 1);
        }
        self.check(&here.target)
    }

    fn leave(&mut self, _: bool) {
        self.here = None;
    }

    fn shown(&mut self, text: &str) -> String {
        text.to_owned()
    }
}

/// Items of a target, as a machine sees them while it walks.
#[derive(Debug)]
struct SimSource {
    truth: Rc<Truth>,
    views: Rc<Views>,
    target: u32,
    was_away: Rc<Cell<bool>>,
}

impl SourceFamily for SimSource {
    type Item = Item;
    type Pages<'f> = SimPages;

    fn name(&self) -> &'static str {
        "simulated"
    }

    fn open(&self, state: &RestoredShardState) -> Result<SimPages, SourceError> {
        let view = self.views.of(self.target);
        if view == View::Absent {
            return Err(SourceError::new(SourceErrorClass::NotFound, "simulated: the root is gone"));
        }
        let after = state.cursor().last_key().map(<[u8]>::to_vec);
        let (start, end) = (state.spec().start().to_vec(), state.spec().end().to_vec());
        let (truth, views, was_away) = (Rc::clone(&self.truth), Rc::clone(&self.views), Rc::clone(&self.was_away));
        Ok(SimPages { truth, views, target: self.target, was_away, after, start, end })
    }
}

/// A walk under way. A file system that goes away in the middle takes the rest along.
#[derive(Debug)]
struct SimPages {
    truth: Rc<Truth>,
    views: Rc<Views>,
    target: u32,
    was_away: Rc<Cell<bool>>,
    after: Option<Vec<u8>>,
    start: Vec<u8>,
    end: Vec<u8>,
}

impl ItemPages for SimPages {
    type Item = Item;

    fn next_page(&mut self, limits: PageLimits) -> Result<Page<Item>, SourceError> {
        let low = self.after.as_deref().map_or(Bound::Included(&self.start[..]), Bound::Excluded);
        let view = self.views.of(self.target);
        if matches!(view, View::Empty | View::Absent | View::Blinking) {
            self.was_away.set(true);
            self.views.pages_away.set(self.views.pages_away.get() + 1);
        }
        if view == View::Blinking {
            self.views.of.borrow_mut()[self.target as usize] = View::Planned;
        }
        let ahead = self.truth.items.range::<[u8], _>((low, Bound::Excluded(&self.end[..])));
        let mut shown = ahead.map(|(_, planted)| planted).filter(|planted| view.shows(planted));
        let (mut items, mut bytes) = (Vec::new(), 0);
        let is_last = loop {
            let Some(planted) = shown.next() else { break true };
            bytes += planted.item.bytes();
            if !items.is_empty() && (items.len() == limits.items_max || bytes > limits.bytes_max) {
                break false;
            }
            debug_assert_eq!(key::split(&planted.item.key).map(|(target, _)| target), Some(self.target));
            items.push(planted.item.clone());
        };
        if let Some(last) = items.last() {
            self.after = Some(last.key.clone());
        }
        Ok(Page { items, token: None, is_last })
    }
}
