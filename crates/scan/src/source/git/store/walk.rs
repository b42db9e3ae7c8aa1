//! Which blobs the refs lead to, and by which commit each came in.
//!
//! Commits are visited parents first, the older one first where that leaves a choice, and of each only the trees that no
//! commit before it had. So each tree is read once, and a blob met for the first time came in with the commit at hand:
//! had a parent had it, it would have been met there.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::rc::Rc;

use super::cache::ObjectCache;
use super::layout::LayoutError;
use super::oid::Oid;
use super::{Kind, ObjectError, Store};

/// Deepest nesting of directories; deeper ones are made to harm.
const DEPTH_MAX: usize = 2_048;
/// Longest chain of tags that point to tags.
const TAGS_MAX: usize = 64;
/// Longest path kept; a list does not keep more either.
const PATH_BYTES_MAX: usize = 4_096;
/// Bytes of the trees on the way from a root to where the walk is; real ones have thousandths of it.
const OPEN_BYTES_MAX: usize = 128 << 20;
/// Most parents of one commit; the record is 66.
const PARENTS_MAX: usize = 4_096;
/// Most parents of all commits together; the largest histories have a fifth of it.
const ALL_PARENTS_MAX: usize = 8 << 20;

type Table<V> = HashMap<Oid, V, foldhash::fast::RandomState>;

/// How a blob came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Came {
    /// The commit, by its place among [`Walked::commits`]; `None` if a ref points to it or its tree.
    pub(crate) commit: Option<u32>,
    /// The path, by its place among [`Walked::paths`].
    pub(crate) path: u32,
}

/// What a walk met.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    /// Commits, parents before children.
    pub(crate) commits: Vec<Oid>,
    /// Paths of blobs, each once.
    pub(crate) paths: Vec<Rc<[u8]>>,
    /// Blobs, each with how it came in.
    pub(crate) blobs: Table<Came>,
    /// Objects that are referred to and not there.
    pub(crate) missing: Vec<Oid>,
    /// Commits whose parents were left out when the repository was cloned.
    pub(crate) cut: Vec<Oid>,
    /// Whether something could not be read, so that there may be blobs that were not met.
    pub(crate) is_broken: bool,
}

/// Walks from all refs.
pub(crate) fn walk(store: &Store) -> Result<Walked, LayoutError> {
    let mut walk = Walk {
        objects: ObjectCache::new(store),
        walked: Walked::default(),
        trees: HashSet::default(),
        names: HashMap::default(),
    };
    let tips = store.layout.tips();
    walk.walked.is_broken = tips.is_broken;
    let shallow = store.layout.shallow()?;
    let mut commits = Commits::default();
    let (mut loose_trees, mut loose_blobs) = (Vec::new(), Vec::new());
    for tip in tips.oids {
        match walk.peeled(tip) {
            Ok((Kind::Commit, oid)) => commits.load(&mut walk, oid, &shallow),
            Ok((Kind::Tree, oid)) => loose_trees.push(oid),
            Ok((_, oid)) => loose_blobs.push(oid),
            // Only blobs are so large; whoever reads it finds out.
            Err(ObjectError::TooLarge(_)) => loose_blobs.push(tip),
            Err(error) => walk.failed(tip, &error, true),
        }
    }
    for (commit, number) in commits.parents_first().into_iter().zip(0..) {
        walk.walked.commits.push(commits.all[commit].oid);
        walk.tree(commits.all[commit].tree, Some(number));
    }
    for tree in loose_trees {
        walk.tree(tree, None);
    }
    for blob in loose_blobs {
        walk.blob(blob, None, &[]);
    }
    Ok(walk.walked)
}

struct Walk<'s> {
    objects: ObjectCache<'s>,
    walked: Walked,
    trees: HashSet<Oid, foldhash::fast::RandomState>,
    /// Places of paths.
    names: HashMap<Rc<[u8]>, u32, foldhash::fast::RandomState>,
}

impl Walk<'_> {
    /// What a ref points to, behind tags.
    fn peeled(&mut self, mut oid: Oid) -> Result<(Kind, Oid), ObjectError> {
        for _ in 0..TAGS_MAX {
            let (kind, content) = self.objects.read(&oid)?;
            if kind != Kind::Tag {
                return Ok((kind, oid));
            }
            let line = content.split(|&byte| byte == b'\n').next().unwrap_or_default();
            oid = line
                .strip_prefix(b"object ")
                .and_then(Oid::from_hex)
                .ok_or(ObjectError::Corrupt("a tag has no object"))?;
        }
        Err(ObjectError::Corrupt("tags point to tags without end"))
    }

    fn failed(&mut self, oid: Oid, error: &ObjectError, hides_more: bool) {
        if let ObjectError::Missing = error {
            self.walked.missing.push(oid);
            self.walked.is_broken |= hides_more;
        } else {
            self.walked.is_broken = true;
        }
    }

    fn blob(&mut self, oid: Oid, commit: Option<u32>, path: &[u8]) {
        let std::collections::hash_map::Entry::Vacant(place) = self.walked.blobs.entry(oid) else { return };
        // Names can be long and folders deep: all of a path, for each blob, would be more than the repository is.
        let path = &path[..path.len().min(PATH_BYTES_MAX)];
        let path = match self.names.get(path) {
            Some(&number) => number,
            None => {
                let (number, path): (_, Rc<[u8]>) = (self.walked.paths.len() as u32, path.into());
                self.walked.paths.push(Rc::clone(&path));
                self.names.insert(path, number);
                number
            }
        };
        place.insert(Came { commit, path });
    }

    /// Visits a tree and all below it that were not met before.
    fn tree(&mut self, root: Oid, commit: Option<u32>) {
        let mut path = Vec::new();
        // Trees under way: content, how far it is read, length of the path to it.
        let mut open: Vec<(Rc<Vec<u8>>, usize, usize)> = Vec::new();
        let mut open_bytes = 0;
        let mut enter = Some(root);
        loop {
            if let Some(oid) = enter.take()
                && self.trees.insert(oid)
            {
                match self.objects.read(&oid) {
                    Ok((Kind::Tree, content))
                        if open.len() < DEPTH_MAX && open_bytes + content.len() <= OPEN_BYTES_MAX =>
                    {
                        open_bytes += content.len();
                        open.push((content, 0, path.len()));
                    }
                    Ok(_) => self.walked.is_broken = true,
                    // The objects it names cannot be told; those it shares with other trees are met there.
                    Err(error) => self.failed(oid, &error, false),
                }
            }
            let Some((content, at, base)) = open.last_mut() else { return };
            path.truncate(*base);
            if *at == content.len() {
                open_bytes -= content.len();
                open.pop();
                continue;
            }
            let Some(entry) = tree_entry(&content[*at..], root.as_bytes().len()) else {
                self.walked.is_broken = true;
                open_bytes -= content.len();
                open.pop();
                continue;
            };
            *at += entry.len;
            let kind = entry.mode;
            if kind == Mode::Other {
                continue;
            }
            // Most blobs were met before: their path is never put together.
            if kind == Mode::Blob && self.walked.blobs.contains_key(&entry.oid) {
                continue;
            }
            if kind == Mode::Tree && self.trees.contains(&entry.oid) {
                continue;
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(entry.name);
            match kind {
                Mode::Tree => enter = Some(entry.oid),
                _ => self.blob(entry.oid, commit, &path),
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Tree,
    Blob,
    /// A submodule: its commit is in another repository.
    Other,
}

struct TreeEntry<'t> {
    mode: Mode,
    name: &'t [u8],
    oid: Oid,
    /// Its own length.
    len: usize,
}

/// The entry at the start of what is left of a tree.
fn tree_entry(tree: &[u8], oid_len: usize) -> Option<TreeEntry<'_>> {
    // Modes have five or six digits.
    let space = tree.iter().take(8).position(|&byte| byte == b' ')?;
    let mode = match &tree[..space] {
        b"40000" | b"040000" => Mode::Tree,
        b"160000" => Mode::Other,
        _ => Mode::Blob,
    };
    let zero = space + memchr::memchr(0, &tree[space..])?;
    let end = zero + 1 + oid_len;
    let oid = Oid::new(tree.get(zero + 1..end)?)?;
    Some(TreeEntry { mode, name: &tree[space + 1..zero], oid, len: end })
}

#[derive(Debug)]
struct Commit {
    oid: Oid,
    tree: Oid,
    time: i64,
    parents: std::ops::Range<usize>,
}

/// Commits and how they hang together.
#[derive(Debug, Default)]
struct Commits {
    all: Vec<Commit>,
    parents: Vec<Oid>,
    numbers: Table<u32>,
}

impl Commits {
    /// Loads a commit and all that come before it.
    fn load(&mut self, walk: &mut Walk<'_>, tip: Oid, shallow: &HashSet<Oid>) {
        let mut wanted = vec![tip];
        while let Some(oid) = wanted.pop() {
            if self.numbers.contains_key(&oid) {
                continue;
            }
            let room = PARENTS_MAX.min(ALL_PARENTS_MAX - self.parents.len());
            let read = walk.objects.read(&oid).and_then(|(kind, content)| {
                let head = (kind == Kind::Commit).then(|| Head::of(&content, room)).flatten();
                head.ok_or(ObjectError::Corrupt("a commit makes no sense"))
            });
            // One that cannot be read is not asked for again.
            self.numbers.insert(oid, u32::MAX);
            match read {
                Ok(head) => {
                    let first = self.parents.len();
                    if !shallow.contains(&oid) {
                        self.parents.extend(&head.parents);
                        wanted.extend(head.parents.iter().filter(|&parent| !self.numbers.contains_key(parent)));
                    } else if !head.parents.is_empty() {
                        walk.walked.cut.push(oid);
                    }
                    self.numbers.insert(oid, self.all.len() as u32);
                    let parents = first..self.parents.len();
                    self.all.push(Commit { oid, tree: head.tree, time: head.time, parents });
                }
                Err(error) => walk.failed(oid, &error, true),
            }
        }
    }

    /// Numbers of commits, parents before children, older before younger.
    fn parents_first(&self) -> Vec<usize> {
        let number = |oid: &Oid| self.numbers.get(oid).map(|&number| number as usize).filter(|&i| i < self.all.len());
        let parents = |commit: &Commit| self.parents[commit.parents.clone()].iter().filter_map(number);
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); self.all.len()];
        let mut waits_for = vec![0_u32; self.all.len()];
        for (i, commit) in self.all.iter().enumerate() {
            for parent in parents(commit) {
                children[parent].push(i as u32);
                waits_for[i] += 1;
            }
        }
        let entry = |i: usize| Reverse((self.all[i].time, self.all[i].oid, i));
        let mut ready: BinaryHeap<_> = (0..self.all.len()).filter(|&i| waits_for[i] == 0).map(entry).collect();
        let mut order = Vec::with_capacity(self.all.len());
        while let Some(Reverse((_, _, i))) = ready.pop() {
            order.push(i);
            for &child in &children[i] {
                let child = child as usize;
                waits_for[child] -= 1;
                if waits_for[child] == 0 {
                    ready.push(entry(child));
                }
            }
        }
        order
    }
}

/// What a walk needs of a commit.
struct Head {
    tree: Oid,
    parents: Vec<Oid>,
    time: i64,
}

impl Head {
    /// `None` if this is no commit, or one with more than `parents_max` parents.
    fn of(content: &[u8], parents_max: usize) -> Option<Self> {
        let (mut tree, mut parents, mut time) = (None, Vec::new(), 0);
        for line in content.split(|&byte| byte == b'\n').take_while(|line| !line.is_empty()) {
            if let Some(hex) = line.strip_prefix(b"tree ") {
                tree = Some(Oid::from_hex(hex)?);
            } else if let Some(hex) = line.strip_prefix(b"parent ") {
                if parents.len() == parents_max {
                    return None;
                }
                parents.push(Oid::from_hex(hex)?);
            } else if let Some(who) = line.strip_prefix(b"committer ") {
                // `Name <address> seconds zone`; a nonsensical time only changes the order.
                let seconds = who.rsplit(|&byte| byte == b' ').nth(1).unwrap_or_default();
                time = std::str::from_utf8(seconds).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
                break;
            }
        }
        Some(Self { tree: tree?, parents, time })
    }
}
