//! What a worker can read through a connector: a source that this crate does not know.

use std::collections::VecDeque;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tessera_contracts::RestoredShardState;
use tessera_contracts::source_family::{
    CheckedPages, ItemPages, Page, PageLimits, SourceError, SourceErrorClass, SourceFamily, SourceItem,
};

use super::WorkerProgress;
use super::driver::{ItemEnd, Site};
use crate::findings::{Draft, SinkError, plan_failed};
use crate::plan::ledger::OpenPlan;
use crate::plan::target::{Target, TargetKind};
use crate::source::ahead::Ahead;
use crate::source::item::{Item, ItemKind};
use crate::source::open::{Connector, Handled, Handler, HandlerError};

/// A connector's sources, and the handler of one worker.
pub struct OpenSite<'s, C: Connector> {
    connector: &'s C,
    handler: C::Handler,
    plan: Arc<OpenPlan>,
    progress: Arc<WorkerProgress>,
    /// The run's folder.
    dir: PathBuf,
    here: Option<Here<'s, C>>,
}

/// The shard that is read.
struct Here<'s, F: SourceFamily + 's> {
    target: Target,
    pages: Option<CheckedPages<F::Pages<'s>>>,
    /// Items of the last page that were not read so far.
    items: VecDeque<F::Item>,
}

impl<'s, C: Connector> OpenSite<'s, C> {
    /// A worker's site: it handles what `connector` finds, and holds it against `plan`. The run's folder is `dir`.
    pub fn new(connector: &'s C, dir: &Path, plan: Arc<OpenPlan>, progress: Arc<WorkerProgress>) -> io::Result<Self> {
        let handler = connector.handler(dir)?;
        Ok(Self { connector, handler, plan, progress, dir: dir.to_path_buf(), here: None })
    }

    fn here(&mut self) -> &mut Here<'s, C> {
        self.here.as_mut().expect("a shard is located before it is read")
    }

    fn find(&self, target: &Target) -> Result<(), SourceError> {
        match &target.kind {
            TargetKind::Open { family } if **family == *self.connector.name() => self.connector.locate(target),
            _ => Err(target.without_connector()),
        }
    }
}

impl<C: Connector> Site for OpenSite<'_, C> {
    fn locate(&mut self, state: &RestoredShardState, _: bool) -> Result<(), SourceError> {
        let target = Target::decode(state.spec().metadata())
            .map_err(|error| SourceError::new(SourceErrorClass::Poisoned, error.to_string()))?;
        self.find(&target)?;
        self.here = Some(Here { target, pages: None, items: VecDeque::new() });
        Ok(())
    }

    fn look_ahead(&mut self, state: &RestoredShardState) -> Result<Ahead, SourceError> {
        Ahead::of(self.connector, state)
    }

    fn open(&mut self, state: &RestoredShardState, draft: &mut Draft) -> Result<(), SourceError> {
        let here = self.here.as_mut().expect("a shard is located before it is read");
        let low = match state.cursor().last_key() {
            Some(cursor) => Bound::Excluded(cursor),
            None => Bound::Included(state.spec().start()),
        };
        let ledger = self.plan.ledger(here.target.number, low).map_err(|error| plan_failed(&error))?;
        draft.open(here.target.number, ledger);
        here.items.clear();
        here.pages = Some(CheckedPages::new(self.connector.open(state)?, state.clone()));
        Ok(())
    }

    fn next_page(
        &mut self,
        limits: PageLimits,
        _: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Page<Item>>, SourceError> {
        let here = self.here();
        let pages = here.pages.as_mut().expect("a shard is opened before it is read");
        let Page { items, token, is_last } = pages.next_page(limits)?;
        let named = items.iter().map(named).collect();
        here.items = items.into();
        Ok(Some(Page { items: named, token, is_last }))
    }

    fn read(&mut self, item: &Item, draft: &mut Draft, _: &mut dyn FnMut() -> bool) -> Result<ItemEnd, SinkError> {
        let Self { handler, here, progress, .. } = self;
        let here = here.as_mut().expect("a shard is located before it is read");
        let next = here.items.pop_front().expect("items are read once each, in their order");
        debug_assert_eq!(next.key(), item.key);
        match handler.handle(&next, draft) {
            Ok(Handled::Done) => {
                draft.tally.add_scanned(item.size);
                progress.bytes.fetch_add(item.size, Ordering::Relaxed);
            }
            Ok(Handled::Skipped(reason)) => draft.tally.add_skipped(reason, 1),
            Ok(Handled::Unreadable(reason)) => draft.tally.add_unreadable(reason, 1),
            Err(HandlerError::Source(error)) => return Ok(ItemEnd::SourceFailed(error)),
            Err(HandlerError::Sink(error)) => return Err(error),
        }
        progress.items.fetch_add(1, Ordering::Relaxed);
        Ok(draft.met(item).map_or_else(ItemEnd::SourceFailed, |()| ItemEnd::Done))
    }

    fn wants_safe_point(&mut self) -> bool {
        false
    }

    fn make_durable(&mut self) -> Result<(), SinkError> {
        self.handler.make_durable().map_err(|error| SinkError::new(&self.dir, error))
    }

    fn abandon(&mut self) {
        self.handler.abandon();
    }

    fn look(&mut self) -> Result<(), SourceError> {
        let here = self.here.as_ref().expect("a shard is located before it is read");
        self.find(&here.target)
    }

    fn leave(&mut self, _: bool) {
        self.here = None;
    }

    fn shown(&mut self, text: &str) -> String {
        text.to_owned()
    }
}

/// An item as the sweep sees it: a name and a size.
fn named(item: &impl SourceItem) -> Item {
    Item { key: item.key().to_vec(), size: item.bytes(), kind: ItemKind::File, stamp: None }
}

impl<C: Connector> std::fmt::Debug for OpenSite<'_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenSite").field("connector", &self.connector.name()).finish_non_exhaustive()
    }
}
