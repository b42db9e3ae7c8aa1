//! Which blobs a history holds, in the order in which they are cheap to read.

use crate::kinds::Kinds;
use crate::layout::LayoutError;
use crate::oid::Oid;
use crate::order::{Ordered, by_delta};
use crate::pack::PackReader;
use crate::places::{Bounds, Stands};
use crate::walk::{Walked, walk};
use crate::{Kind, Store};

/// Every blob that refs lead to; if the walk breaks, every blob there is.
#[derive(Debug)]
pub struct History {
    walked: Walked,
    oids: Vec<Oid>,
    order: Vec<Ordered>,
}

/// One blob of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub oid: Oid,
    /// How long it is, as far as that can be told without reading it.
    pub size: u64,
    /// Whether the repository has it.
    pub is_present: bool,
    /// Where it stands.
    pub stands: Stands,
}

impl History {
    /// Walks from all refs. `seed` is a number that the repository's author cannot know.
    pub fn of(store: &Store, bounds: Bounds, seed: u64) -> Result<Self, LayoutError> {
        let walked = walk(store, bounds, seed)?;
        let mut oids: Vec<Oid> = walked.blobs.blobs().collect();
        if walked.is_broken {
            oids.extend(unmet(store, &walked)?);
        }
        let order = by_delta(store, &oids);
        Ok(Self { walked, oids, order })
    }

    /// Its blobs, each once, in the order in which they are cheap to read.
    pub fn blobs(&self) -> impl ExactSizeIterator<Item = Listed> + '_ {
        self.order.iter().map(|one| {
            let oid = self.oids[one.blob];
            let mut stands = self.walked.blobs.of(&oid);
            stands.has_more |= self.walked.hides_places;
            Listed { oid, size: one.size, is_present: one.is_present, stands }
        })
    }

    /// Objects that are referred to and not there.
    pub fn missing(&self) -> &[Oid] {
        &self.walked.missing
    }

    /// Commits whose parents were left out when the repository was cloned.
    pub fn cut(&self) -> &[Oid] {
        &self.walked.cut
    }

    /// Paths of submodules, each once.
    pub fn submodules(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.walked.submodules.iter().map(|path| &**path)
    }

    /// Whether something could not be read, so that there may be blobs that refs lead to and that were not met.
    pub fn is_broken(&self) -> bool {
        self.walked.is_broken
    }

    /// Commits, parents before children: places name them by number.
    pub fn into_commits(self) -> Vec<Oid> {
        self.walked.commits
    }
}

/// Blobs of the repository that the walk did not meet.
fn unmet(store: &Store, walked: &Walked) -> Result<Vec<Oid>, LayoutError> {
    let all = store.all().map_err(|source| LayoutError::Io { path: "objects".into(), source })?;
    let mut reader = PackReader::new();
    let mut kinds = Kinds::default();
    let mut is_blob = |oid: &Oid| {
        let kind = store.find(oid).and_then(|at| kinds.of(store, &mut reader, oid, at));
        // What cannot even be told is listed, so that it is counted.
        !matches!(kind, Some(Kind::Commit | Kind::Tree | Kind::Tag))
    };
    Ok(all.into_iter().filter(|oid| !walked.blobs.contains(oid) && is_blob(oid)).collect())
}
