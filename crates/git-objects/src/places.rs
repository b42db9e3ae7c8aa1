//! Where blobs stand: at which paths, and which commit put a blob at each of them first.
//!
//! A blob is read and searched once, but every path of it is a place of what is found in it, and filters, rules and allowlists
//! judge paths. So all are kept, within bounds: a few small trees can name more paths than a disk holds. At a bound, a blob keeps
//! the paths that came first and is marked as standing at more (`Stands::has_more`). Such a blob is searched
//! whatever the filters say, and a finding in it makes the run incomplete, since not all of its places are listed.

use std::collections::HashMap;
use std::sync::Arc;

use crate::oid::Oid;

/// Longest path kept; a blob with a longer one stands at a path that is not listed.
pub const PATH_BYTES_MAX: usize = 4_096;
/// The number of no commit, and the end of a chain.
const NONE: u32 = u32::MAX;

type Table<V> = HashMap<Oid, V, foldhash::fast::RandomState>;

/// How many places are kept.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Most paths of one blob.
    pub paths_per_blob: u32,
    /// Most paths beyond the first, of all blobs together.
    pub further_places: u32,
    /// Most bytes of the paths of these.
    pub further_path_bytes: usize,
    /// Most bytes of trees that are read again because they stand at another path too.
    pub further_tree_bytes: u64,
}

/// Far beyond what histories have that people made.
pub const BOUNDS: Bounds = Bounds {
    paths_per_blob: 1 << 16,
    further_places: 4 << 20,
    further_path_bytes: 256 << 20,
    further_tree_bytes: 256 << 20,
};

/// One path of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The path, with `/` between its parts.
    pub path: Arc<[u8]>,
    /// The first commit that has the blob there, by its place in the history, parents first; `None` if that is not known.
    pub commit: Option<u32>,
}

/// Where one blob stands.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Stands {
    /// Its places, in the order in which they were met.
    pub places: Vec<Placed>,
    /// Whether it stands at more paths than these.
    pub has_more: bool,
}

/// Where blobs stand.
#[derive(Debug)]
pub struct Places {
    bounds: Bounds,
    paths: Vec<Arc<[u8]>>,
    numbers: HashMap<Arc<[u8]>, u32, foldhash::fast::RandomState>,
    links: Vec<Link>,
    blobs: Table<Chain>,
    further: u32,
    further_path_bytes: usize,
}

/// A place, and the next one of the same blob.
#[derive(Debug, Clone, Copy)]
struct Link {
    path: u32,
    commit: u32,
    next: u32,
}

#[derive(Debug, Clone, Copy)]
struct Chain {
    first: u32,
    last: u32,
    len: u32,
    has_more: bool,
}

impl Places {
    /// No blobs yet.
    pub fn new(bounds: Bounds) -> Self {
        let (paths, numbers, links, blobs) = Default::default();
        Self { bounds, paths, numbers, links, blobs, further: 0, further_path_bytes: 0 }
    }

    /// Adds a place, which was not added before.
    pub fn add(&mut self, oid: Oid, path: &[u8], commit: Option<u32>) {
        let is_cut = path.len() > PATH_BYTES_MAX;
        // Names can be long and folders deep: all of a path, for each blob, would be more than the repository is.
        let path = &path[..path.len().min(PATH_BYTES_MAX)];
        let (number, is_full) = (self.links.len() as u32, self.is_full());
        match self.blobs.get_mut(&oid) {
            None => {
                self.blobs.insert(oid, Chain { first: number, last: number, len: 1, has_more: is_cut });
            }
            Some(chain) if chain.len >= self.bounds.paths_per_blob || is_full => {
                chain.has_more = true;
                return;
            }
            Some(chain) => {
                self.links[chain.last as usize].next = number;
                *chain =
                    Chain { last: number, len: chain.len + 1, has_more: chain.has_more | is_cut, first: chain.first };
                self.further += 1;
                self.further_path_bytes += path.len();
            }
        }
        let path = self.number_of(path);
        self.links.push(Link { path, commit: commit.unwrap_or(NONE), next: NONE });
    }

    /// A blob stands at a path that is not listed.
    pub fn add_unlisted(&mut self, oid: &Oid) {
        if let Some(chain) = self.blobs.get_mut(oid) {
            chain.has_more = true;
        }
    }

    fn number_of(&mut self, path: &[u8]) -> u32 {
        if let Some(&number) = self.numbers.get(path) {
            return number;
        }
        let (number, path): (_, Arc<[u8]>) = (self.paths.len() as u32, path.into());
        self.paths.push(Arc::clone(&path));
        self.numbers.insert(path, number);
        number
    }

    /// Whether a blob is known.
    pub fn contains(&self, oid: &Oid) -> bool {
        self.blobs.contains_key(oid)
    }

    /// Whether only blobs that are not known yet get a place.
    pub fn is_full(&self) -> bool {
        self.further >= self.bounds.further_places || self.further_path_bytes >= self.bounds.further_path_bytes
    }

    /// All blobs, in no order.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = Oid> + '_ {
        self.blobs.keys().copied()
    }

    /// Where a blob stands, in the order in which places were added.
    pub fn of(&self, oid: &Oid) -> Stands {
        let Some(chain) = self.blobs.get(oid) else { return Stands::default() };
        let mut places = Vec::with_capacity(chain.len as usize);
        let mut at = chain.first;
        while let Some(link) = self.links.get(at as usize) {
            let commit = Some(link.commit).filter(|&commit| commit != NONE);
            places.push(Placed { path: Arc::clone(&self.paths[link.path as usize]), commit });
            at = link.next;
        }
        Stands { places, has_more: chain.has_more }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oid(byte: u8) -> Oid {
        Oid::new(&[byte; 20]).unwrap()
    }

    fn paths(stands: &Stands) -> Vec<&[u8]> {
        stands.places.iter().map(|place| &*place.path).collect()
    }

    #[test]
    fn places_come_back_in_order_and_each_blob_has_its_own() {
        let mut places = Places::new(BOUNDS);
        places.add(oid(1), b"a", Some(0));
        places.add(oid(2), b"a", Some(1));
        places.add(oid(1), b"b", None);
        let stands = places.of(&oid(1));
        assert_eq!((paths(&stands), stands.has_more), (vec![&b"a"[..], b"b"], false));
        assert_eq!(stands.places.iter().map(|place| place.commit).collect::<Vec<_>>(), [Some(0), None]);
        assert_eq!(paths(&places.of(&oid(2))), [b"a"]);
        assert_eq!(places.of(&oid(3)), Stands::default());
        assert!(places.contains(&oid(2)) && !places.contains(&oid(3)));
    }

    #[test]
    fn a_blob_at_the_bound_keeps_its_first_paths_and_says_that_there_are_more() {
        let mut places = Places::new(Bounds { paths_per_blob: 2, further_places: 2, ..BOUNDS });
        for path in ["a", "b"] {
            places.add(oid(1), path.as_bytes(), None);
        }
        assert!(!places.of(&oid(1)).has_more, "two are allowed");
        places.add(oid(1), b"c", None);
        let stands = places.of(&oid(1));
        assert_eq!((paths(&stands), stands.has_more), (vec![&b"a"[..], b"b"], true));
        // All together: a second further place fits, a third does not; a blob that is new always has one.
        for blob in [2, 3] {
            places.add(oid(blob), b"x", None);
            assert_eq!(places.is_full(), blob == 3, "{blob}");
            places.add(oid(blob), b"y", None);
        }
        assert!(!places.of(&oid(2)).has_more && places.of(&oid(3)).has_more);
        assert_eq!(paths(&places.of(&oid(3))), [b"x"]);
    }

    #[test]
    fn long_paths_reach_a_bound_before_many_do() {
        let mut places = Places::new(Bounds { further_path_bytes: 100, ..BOUNDS });
        for number in 0..60 {
            places.add(oid(1), format!("{number:050}").as_bytes(), None);
        }
        let stands = places.of(&oid(1));
        assert_eq!((stands.places.len(), stands.has_more), (3, true), "the first, and two of fifty bytes");
    }

    #[test]
    fn a_path_that_is_too_long_is_not_called_listed() {
        let mut places = Places::new(BOUNDS);
        places.add(oid(1), &[b'x'; PATH_BYTES_MAX], None);
        places.add(oid(2), &[b'x'; PATH_BYTES_MAX + 1], None);
        assert!(!places.of(&oid(1)).has_more && places.of(&oid(2)).has_more);
    }
}
