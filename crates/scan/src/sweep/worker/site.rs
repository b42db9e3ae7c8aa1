//! What a worker can read: files and repositories of this machine.

use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tessera_contracts::RestoredShardState;
use tessera_contracts::source_family::{
    CheckedPages, ItemPages, Page, PageLimits, SourceError, SourceErrorClass, SourceFamily,
};

use super::Equipment;
use super::blobs::Blobs;
use super::caution::Caution;
use super::caution::alone::Together;
use super::driver::{ItemEnd, Site};
use super::items::{Items, git_failed};
use super::sources::Sources;
use crate::findings::{Draft, SinkError, plan_failed};
use crate::op_ids::random_u64;
use crate::plan::ledger::Ledger;
use crate::source::ahead::Ahead;
use crate::source::item::Item;
use crate::source::{Source, SourcePages};

/// Files and repositories of this machine.
pub struct LocalSite<'s> {
    items: Items<'s>,
    sources: Sources,
    /// The shard that is read.
    here: Option<Here>,
}

struct Here {
    source: Arc<Source>,
    pages: Option<CheckedPages<SourcePages>>,
    /// Held while items of a page are read without care.
    together: Option<Together>,
}

impl<'s> LocalSite<'s> {
    /// What a worker reads with `equipment`, until `stop` is set; `is_one_of_many` if others may read what it cannot.
    pub fn new(equipment: Equipment, stop: &'s AtomicBool, is_one_of_many: bool) -> Self {
        let Equipment { reader, sources, dir, plan, progress } = equipment;
        let (blobs, caution) = (Blobs::default(), Caution::new(&dir));
        let items = Items { reader, blobs, caution, progress, stop, is_one_of_many };
        Self { items, sources: Sources::new(sources, dir, plan), here: None }
    }
}

impl Here {
    fn of(here: &mut Option<Self>) -> &mut Self {
        here.as_mut().expect("a shard is located before it is read")
    }
}

impl Site for LocalSite<'_> {
    fn locate(&mut self, state: &RestoredShardState, has_stalled: bool) -> Result<(), SourceError> {
        let source = self.sources.of(state.spec().metadata())?;
        let chosen = self.items.reader.choose_rules(source.target().rules);
        chosen.map_err(|error| SourceError::new(SourceErrorClass::Poisoned, error.to_string()))?;
        self.items.caution.begin_shard(state, has_stalled);
        if let Source::Objects(_) = *source {
            self.items.reader.remember_clean_text(random_u64());
        }
        self.here = Some(Here { source, pages: None, together: None });
        Ok(())
    }

    fn look_ahead(&mut self, state: &RestoredShardState) -> Result<Ahead, SourceError> {
        Ahead::of(&*Here::of(&mut self.here).source, state)
    }

    fn open(&mut self, state: &RestoredShardState, draft: &mut Draft) -> Result<(), SourceError> {
        let here = Here::of(&mut self.here);
        let target = here.source.target().number;
        let low = match state.cursor().last_key() {
            Some(cursor) => Bound::Excluded(cursor),
            None => Bound::Included(state.spec().start()),
        };
        let ledger = match &self.sources.plan {
            Some(plan) => plan.ledger(target, low).map_err(|error| plan_failed(&error))?,
            None => Ledger::default(),
        };
        draft.open(target, ledger);
        here.pages = Some(CheckedPages::new(here.source.open(state)?, state.clone()));
        Ok(())
    }

    fn next_page(
        &mut self,
        limits: PageLimits,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Page<Item>>, SourceError> {
        let here = Here::of(&mut self.here);
        here.together = None;
        let pages = here.pages.as_mut().expect("a shard is opened before it is read");
        let mut page = pages.next_page(limits)?;
        self.items.caution.condemn(&mut page.items);
        let Some(together) = self.items.caution.together(goes_on) else { return Ok(None) };
        here.together = together;
        self.items.blobs.request(&here.source, &page.items).map_err(|error| git_failed(&error))?;
        Ok(Some(page))
    }

    fn read(
        &mut self,
        item: &Item,
        draft: &mut Draft,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<ItemEnd, SinkError> {
        let here = Here::of(&mut self.here);
        self.items.item(&here.source, item, draft, goes_on)
    }

    fn wants_safe_point(&mut self) -> bool {
        self.items.caution.wants_safe_point()
    }

    fn look(&mut self) -> Result<(), SourceError> {
        self.sources.check(Here::of(&mut self.here).source.target())
    }

    fn leave(&mut self, forget_source: bool) {
        if let Some(here) = self.here.take().filter(|_| forget_source) {
            self.sources.forget(&here.source);
        }
    }

    fn shown(&mut self, text: &str) -> String {
        self.items.reader.shown(text).as_str().to_owned()
    }
}

impl std::fmt::Debug for LocalSite<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let here: Option<&PathBuf> = self.here.as_ref().map(|here| &here.source.target().path);
        f.debug_struct("LocalSite").field("here", &here).finish_non_exhaustive()
    }
}
