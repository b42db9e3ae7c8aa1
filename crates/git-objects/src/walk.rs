//! Which blobs the refs lead to, at which paths, and which commit put each there first.
//!
//! Commits are visited parents first, the older one first where that leaves a choice, and of each only the trees that no
//! commit before it had at the same path. So each tree is read once for each path it stands at, and a blob met at a path for the
//! first time was put there by the commit at hand: had a parent had it there, it would have been met then.
//!
//! What was met is remembered as a hash of 128 bits of path, name and object under a seed that nobody knows, so that two
//! entries are never taken for one.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::rc::Rc;

use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::cache::ObjectCache;
use crate::layout::LayoutError;
use crate::oid::Oid;
use crate::places::{Bounds, PATH_BYTES_MAX, Places};
use crate::{Kind, ObjectError, Store};

/// Deepest nesting of directories; deeper ones are made to harm.
const DEPTH_MAX: usize = 2_048;
/// Longest chain of tags that point to tags.
const TAGS_MAX: usize = 64;
/// Bytes of the trees on the way from a root to where the walk is; real ones have thousandths of it.
const OPEN_BYTES_MAX: usize = 128 << 20;
/// Most parents of one commit; the record is 66.
const PARENTS_MAX: usize = 4_096;
/// Most parents of all commits together; the largest histories have a fifth of it.
const ALL_PARENTS_MAX: usize = 8 << 20;

/// Most submodules that are counted.
const SUBMODULES_MAX: usize = 4_096;

type Table<V> = HashMap<Oid, V, foldhash::fast::RandomState>;

/// What a walk met.
#[derive(Debug)]
pub(crate) struct Walked {
    /// Commits, parents before children.
    pub(crate) commits: Vec<Oid>,
    /// Blobs, and where they stand.
    pub(crate) blobs: Places,
    /// Objects that are referred to and not there.
    pub(crate) missing: Vec<Oid>,
    /// Commits whose parents were left out when the repository was cloned.
    pub(crate) cut: Vec<Oid>,
    /// Paths of submodules, whose commits are in other repositories.
    pub(crate) submodules: BTreeSet<Box<[u8]>>,
    /// Whether something could not be read, so that there may be blobs that were not met.
    pub(crate) is_broken: bool,
    /// Whether a tree could not be read, so that blobs may stand at paths that were not met.
    pub(crate) hides_places: bool,
}

/// Walks from all refs. `seed` is a number that the repository's author cannot know.
pub(crate) fn walk(store: &Store, bounds: Bounds, seed: u64) -> Result<Walked, LayoutError> {
    let tips = store.layout.tips();
    let mut walk = Walk::new(store, bounds, tips.is_broken, seed);
    let shallow = store.layout.shallow()?;
    let mut commits = Commits::default();
    let (mut loose_trees, mut loose_blobs) = (Vec::new(), Vec::new());
    for tip in tips.oids {
        match walk.peeled(tip) {
            Ok((Kind::Commit, oid)) => commits.load(&mut walk, oid, &shallow),
            Ok((Kind::Tree, oid)) => loose_trees.push(oid),
            Ok((_, oid)) => loose_blobs.push(oid),
            // Only blobs are so large; reading it tells.
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
        // A ref names no path; one that is known otherwise says more.
        if !walk.walked.blobs.contains(&blob) {
            walk.walked.blobs.add(blob, b"", None);
        }
    }
    walk.mark_unlisted();
    Ok(walk.walked)
}

struct Walk<'s> {
    objects: ObjectCache<'s>,
    walked: Walked,
    bounds: Bounds,
    /// How often each tree was entered, at another path each time.
    trees: Table<u32>,
    /// Bytes of trees that were entered again.
    again_bytes: u64,
    /// Trees that stand at paths which are not listed.
    unlisted: HashSet<Oid, foldhash::fast::RandomState>,
    /// Entries that were met, each with the path to it.
    met: HashSet<u128, foldhash::fast::RandomState>,
    seed: u64,
}

/// A tree that is being read.
struct Open {
    content: Rc<Vec<u8>>,
    /// How far it is read.
    at: usize,
    /// The length of the path to it.
    base: usize,
    /// The path to it, hashed.
    dir: u128,
}

/// The path of a root.
const ROOT: u128 = 0;

impl<'s> Walk<'s> {
    fn new(store: &'s Store, bounds: Bounds, is_broken: bool, seed: u64) -> Self {
        let (commits, missing, cut) = Default::default();
        let (blobs, submodules) = (Places::new(bounds), BTreeSet::new());
        let walked = Walked { commits, blobs, missing, cut, submodules, is_broken, hides_places: is_broken };
        let (trees, unlisted, met) = Default::default();
        let objects = ObjectCache::new(store);
        Self { objects, walked, bounds, trees, again_bytes: 0, unlisted, met, seed }
    }

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
        self.walked.hides_places = true;
        if let ObjectError::Missing = error {
            self.walked.missing.push(oid);
            self.walked.is_broken |= hides_more;
        } else {
            self.walked.is_broken = true;
        }
    }

    /// The hash of `name` in a folder.
    fn hash(&self, dir: u128, name: &[u8]) -> u128 {
        let (high, low) = ((dir >> 64) as u64, dir as u64);
        xxh3_128_with_seed(name, self.seed ^ low) ^ (u128::from(high) << 64 | u128::from(high))
    }

    /// Whether a tree is to be read at the path at hand, as far as the bounds allow.
    fn may_enter(&mut self, oid: &Oid) -> bool {
        let times = self.trees.entry(*oid).or_default();
        let is_beyond = *times > 0
            && (*times >= self.bounds.paths_per_blob
                || self.walked.blobs.is_full()
                || self.again_bytes >= self.bounds.further_tree_bytes);
        if is_beyond {
            self.unlisted.insert(*oid);
            return false;
        }
        *times += 1;
        true
    }

    /// The content of a tree that is entered; `None` if it cannot be read.
    fn entered(&mut self, oid: &Oid, open: &[Open], open_bytes: usize) -> Option<Rc<Vec<u8>>> {
        let is_first = self.trees.get(oid) == Some(&1);
        match self.objects.read(oid) {
            Ok((Kind::Tree, content)) if open.len() < DEPTH_MAX && open_bytes + content.len() <= OPEN_BYTES_MAX => {
                self.again_bytes += if is_first { 0 } else { content.len() as u64 };
                return Some(content);
            }
            Ok(_) => self.walked.is_broken = true,
            // The objects it names cannot be told; those it shares with other trees are met there.
            Err(error) if is_first => self.failed(*oid, &error, false),
            Err(_) => {}
        }
        self.walked.hides_places = true;
        None
    }

    /// Visits a tree and all below it that were not met at the same path before.
    fn tree(&mut self, root: Oid, commit: Option<u32>) {
        let mut path = Vec::new();
        let mut open: Vec<Open> = Vec::new();
        let mut open_bytes = 0;
        let mut enter = self.met.insert(self.hash(ROOT, root.as_bytes())).then_some((root, ROOT));
        loop {
            if let Some((oid, dir)) = enter.take()
                && self.may_enter(&oid)
                && let Some(content) = self.entered(&oid, &open, open_bytes)
            {
                open_bytes += content.len();
                open.push(Open { content, at: 0, base: path.len(), dir });
            }
            let Some(Open { content, at, base, dir }) = open.last_mut() else { return };
            path.truncate(*base);
            let entry = match &content[*at..] {
                [] => None,
                rest => {
                    let entry = tree_entry(rest, root.as_bytes().len());
                    self.walked.is_broken |= entry.is_none();
                    self.walked.hides_places |= entry.is_none();
                    entry
                }
            };
            let Some(entry) = entry else {
                open_bytes -= content.len();
                open.pop();
                continue;
            };
            *at += entry.len;
            // Most entries were met before: their path is never put together.
            let is_tree = entry.mode == Mode::Tree;
            let dir = *dir ^ u128::from(is_tree);
            // A submodule is met at each of its commits, and counts once.
            let named = if entry.mode == Mode::Other { entry.name } else { entry.named };
            if !self.met.insert(self.hash(dir, named)) {
                continue;
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(entry.name);
            match entry.mode {
                Mode::Tree => enter = Some((entry.oid, self.hash(dir, entry.name))),
                Mode::Other if self.walked.submodules.len() < SUBMODULES_MAX => {
                    self.walked.submodules.insert(path[..path.len().min(PATH_BYTES_MAX)].into());
                }
                Mode::Other => {}
                Mode::Blob => self.walked.blobs.add(entry.oid, &path, commit),
            }
        }
    }

    /// Marks the blobs in trees that were not entered at all of their paths.
    fn mark_unlisted(&mut self) {
        let mut wanted: Vec<Oid> = self.unlisted.iter().copied().collect();
        while let Some(tree) = wanted.pop() {
            // One that cannot be read was told when it was first met.
            let Ok((Kind::Tree, content)) = self.objects.read(&tree) else { continue };
            let mut rest = &content[..];
            while let Some(entry) = tree_entry(rest, tree.as_bytes().len()) {
                rest = &rest[entry.len..];
                match entry.mode {
                    Mode::Tree if self.unlisted.insert(entry.oid) => wanted.push(entry.oid),
                    Mode::Blob => self.walked.blobs.add_unlisted(&entry.oid),
                    Mode::Tree | Mode::Other => {}
                }
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
    /// Its name and its object, as they stand there.
    named: &'t [u8],
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
    Some(TreeEntry { mode, name: &tree[space + 1..zero], named: &tree[space + 1..end], oid, len: end })
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
