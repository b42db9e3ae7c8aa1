//! Source families: where items come from, and how one of them is read.

pub mod ahead;
mod barren;
pub mod directory;
pub mod filter;
pub mod git;
pub mod identity;
pub mod ignored;
pub mod item;
pub mod names;
pub mod open;
pub mod pattern;
pub mod repositories;
pub mod repository;
pub mod small_file;
pub mod tracked;

use std::path::Path;

use tessera_contracts::RestoredShardState;
use tessera_contracts::source_family::{ItemPages, Page, PageLimits, SourceError, SourceErrorClass, SourceFamily};

use crate::plan::target::{Target, TargetKind};
use crate::source::item::Item;
use directory::{DirectoryPages, DirectorySource};
use git::objects::{ObjectPages, ObjectsSource};

/// What opening and closing an item costs, in bytes it would read in that time.
pub const ITEM_COST_BYTES: u64 = 4 << 10;

/// Any family, by what a target asks for.
#[derive(Debug)]
pub enum Source {
    /// Files of a tree.
    Directory(DirectorySource),
    /// Blobs of a repository.
    Objects(ObjectsSource),
}

/// Pages of any family.
#[derive(Debug)]
pub enum SourcePages {
    /// Files of a tree.
    Directory(DirectoryPages),
    /// Blobs of a repository.
    Objects(ObjectPages),
}

impl Source {
    /// The family that reads `target`; lists of objects lie in `dir`.
    pub fn of_target(target: Target, dir: &Path) -> Result<Self, SourceError> {
        let refused = |error: &dyn std::fmt::Display| SourceError::new(SourceErrorClass::Poisoned, error.to_string());
        match target.kind {
            TargetKind::Tree => DirectorySource::new(target).map(Self::Directory).map_err(|error| refused(&error)),
            TargetKind::Objects { list } => {
                ObjectsSource::new(target, &list, dir).map(Self::Objects).map_err(|error| refused(&error))
            }
            TargetKind::Open { .. } => Err(target.without_connector()),
        }
    }

    /// The target it reads.
    pub fn target(&self) -> &Target {
        match self {
            Self::Directory(source) => source.target(),
            Self::Objects(source) => source.target(),
        }
    }
}

impl SourceFamily for Source {
    type Item = Item;
    type Pages<'f> = SourcePages;

    fn name(&self) -> &'static str {
        match self {
            Self::Directory(source) => source.name(),
            Self::Objects(source) => source.name(),
        }
    }

    fn open(&self, state: &RestoredShardState) -> Result<SourcePages, SourceError> {
        match self {
            Self::Directory(source) => source.open(state).map(SourcePages::Directory),
            Self::Objects(source) => source.open(state).map(SourcePages::Objects),
        }
    }
}

impl ItemPages for SourcePages {
    type Item = Item;

    fn next_page(&mut self, limits: PageLimits) -> Result<Page<Item>, SourceError> {
        match self {
            Self::Directory(pages) => pages.next_page(limits),
            Self::Objects(pages) => pages.next_page(limits),
        }
    }
}
