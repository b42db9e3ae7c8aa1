//! What ignore rules leave out of a tree, compared with what git says about random trees.
//!
//! The expectation comes from `git` and the file system alone. A file belongs to the innermost repository around it. It is
//! expected if any repository around it tracks it, or if its own repository does not ignore it (both by
//! `git ls-files -co --exclude-standard`). Where there is no repository, every file is to be read.
//!
//! Each run draws a fresh seed and prints it; `TESSERA_IGNORE_SEED` replays it, `TESSERA_IGNORE_CASES` sets how many cases
//! each test tries.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tessera_contracts::source_family::{CheckedPages, ItemPages, PageLimits, SourceFamily};
use tessera_contracts::{CursorSemantics, CursorUpdate, RestoredShardState, ShardSpecRef};
use tessera_scan::op_ids::random_u64;
use tessera_scan::plan::key;
use tessera_scan::plan::target::{ReadOptions, Target, TargetKind};
use tessera_scan::source::directory::DirectorySource;
use tessera_scan::source::item::{Item, ItemKind};

const SEED_VARIABLE: &str = "TESSERA_IGNORE_SEED";
const CASES_VARIABLE: &str = "TESSERA_IGNORE_CASES";
const CASES: u64 = 60;

#[test]
fn random_trees_are_read_as_git_lists_them_when_the_target_is_the_repository() {
    compare_many("repository", |random| Shape {
        root_is_repository: true,
        target: Relation::Root,
        ..Shape::any(random)
    });
}

#[test]
fn random_trees_are_read_as_git_lists_them_when_repositories_lie_below_the_target() {
    compare_many("parent", |random| Shape { root_is_repository: false, target: Relation::Root, ..Shape::any(random) });
}

#[test]
fn random_trees_are_read_as_git_lists_them_when_the_target_lies_in_a_repository() {
    compare_many("subfolder", |random| Shape {
        root_is_repository: true,
        target: Relation::Subfolder,
        ..Shape::any(random)
    });
}

#[test]
fn random_trees_are_read_as_git_lists_them_whatever_the_form_of_the_index() {
    compare_many("index", |random| Shape {
        index: random.choose(&[Index::Version4, Index::Split, Index::Sha256, Index::SplitVersion4]),
        ..Shape::any(random)
    });
}

/// How a case is laid out.
#[derive(Debug, Clone, Copy)]
struct Shape {
    root_is_repository: bool,
    target: Relation,
    index: Index,
    /// Whether `.git` is a file that names a folder elsewhere, as in submodules and linked working trees.
    has_git_file: bool,
    repositories: usize,
    files: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Root,
    Subfolder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Index {
    Plain,
    Version4,
    Split,
    SplitVersion4,
    Sha256,
}

impl Shape {
    fn any(random: &mut Random) -> Self {
        Self {
            root_is_repository: random.chance(2),
            target: Relation::Root,
            index: Index::Plain,
            has_git_file: random.chance(4),
            repositories: random.below(4),
            files: 6 + random.below(30),
        }
    }
}

fn compare_many(name: &str, shape: impl Fn(&mut Random) -> Shape) {
    let number = |variable: &str| std::env::var(variable).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = number(SEED_VARIABLE).unwrap_or_else(random_u64);
    let cases = number(CASES_VARIABLE).unwrap_or(CASES);
    println!("{name}: {cases} cases; replay them with {SEED_VARIABLE}={seed}");
    for case in 0..cases {
        let mut random = Random(seed ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let shape = shape(&mut random);
        let tree = Tree::new(&mut random, shape);
        let expected = tree.expected();
        let walk = Walk::new(&tree.target);
        let read = walk.files();
        for _ in 0..3 {
            // A walk that begins in the middle sees the rules and repositories around it as one from the start does.
            if let Some(last) = (!walk.items.is_empty()).then(|| random.below(walk.items.len())) {
                let rest = walk.after(Some(&walk.items[last].key));
                // Whether a file was young when it was met depends on the time of the walk.
                let timeless = |items: &[Item]| -> Vec<Item> {
                    items.iter().map(|item| Item { stamp: None, ..item.clone() }).collect()
                };
                assert_eq!(
                    timeless(&rest),
                    timeless(&walk.items[last + 1..]),
                    "{name}, case {case}, {SEED_VARIABLE}={seed}, after item {last}"
                );
            }
        }
        if read != expected {
            let of =
                |paths: BTreeSet<&PathBuf>| paths.into_iter().map(|path| format!("\n  {path:?}")).collect::<String>();
            panic!(
                "{name}, case {case} of seed {seed} ({SEED_VARIABLE}={seed}), {shape:?}, target {:?}\nmissed:{}\nread in \
                 excess:{}\nignore files:{}\nrepositories: {:?}",
                tree.target,
                of(expected.difference(&read).collect()),
                of(read.difference(&expected).collect()),
                tree.rules(),
                tree.repositories,
            );
        }
    }
}

/// A target, read as a scan reads it.
struct Walk<'t> {
    target: &'t Path,
    source: DirectorySource,
    items: Vec<Item>,
}

impl<'t> Walk<'t> {
    fn new(target: &'t Path) -> Self {
        let path = target.to_path_buf();
        let options = ReadOptions::default();
        let source =
            DirectorySource::new(Target { number: 1, path, kind: TargetKind::Tree, rules: 0, options }).unwrap();
        let mut walk = Self { target, source, items: Vec::new() };
        walk.items = walk.after(None);
        walk
    }

    /// What comes after a cursor.
    fn after(&self, cursor: Option<&[u8]>) -> Vec<Item> {
        let (start, end) = key::target_range(1);
        let spec = ShardSpecRef::new(&start, &end, b"").unwrap();
        let cursor = CursorUpdate::new(cursor, None).unwrap();
        let state = RestoredShardState::new(spec, cursor, CursorSemantics::Completed).unwrap();
        let mut pages = CheckedPages::new(self.source.open(&state).unwrap(), state.clone());
        let mut items = Vec::new();
        loop {
            let page = pages.next_page(PageLimits { items_max: 7, bytes_max: u64::MAX }).unwrap();
            items.extend(page.items);
            if page.is_last {
                return items;
            }
        }
    }

    /// The paths of the files that a scan would read.
    fn files(&self) -> BTreeSet<PathBuf> {
        assert!(!self.items.iter().any(|item| matches!(item.kind, ItemKind::Unreadable { .. })), "{:?}", self.items);
        let files = self.items.iter().filter(|item| item.kind == ItemKind::File);
        let way = |item: &Item| OsString::from_vec(key::display_path(&item.key[key::TARGET_BYTES..]));
        files.map(|item| self.target.join(way(item))).collect()
    }
}

/// A tree on disk, made at random.
struct Tree {
    _place: tempfile::TempDir,
    root: PathBuf,
    target: PathBuf,
    /// Beside the tree, for folders of repositories that lie elsewhere.
    base: PathBuf,
    repositories: BTreeSet<PathBuf>,
    files: BTreeSet<PathBuf>,
}

impl Tree {
    fn new(random: &mut Random, shape: Shape) -> Self {
        let place = tempfile::tempdir().unwrap();
        let base = place.path().canonicalize().unwrap();
        let root = base.join("root");
        std::fs::create_dir(&root).unwrap();
        let mut tree = Self {
            _place: place,
            target: root.clone(),
            root,
            base,
            repositories: BTreeSet::new(),
            files: BTreeSet::new(),
        };
        for _ in 0..shape.files {
            tree.file(random);
        }
        let dirs: Vec<PathBuf> = tree.dirs();
        // Outermost first, so that an outer repository may track what a nested one takes over.
        let mut roots: BTreeSet<PathBuf> = (0..shape.repositories).map(|_| random.choose(&dirs)).collect();
        roots.remove(&tree.root);
        if shape.root_is_repository {
            roots.insert(tree.root.clone());
        }
        for dir in &roots {
            tree.repository(random, dir, shape);
        }
        for _ in 0..random.below(6) {
            let dir = random.choose(&dirs);
            std::fs::write(dir.join(".gitignore"), rules(random)).unwrap();
            tree.files.insert(dir.join(".gitignore"));
        }
        if shape.target == Relation::Subfolder {
            // A folder that is ignored is read when it is named; so the named one must not be.
            let chosen = (0..5).map(|_| random.choose(&dirs)).find(|dir| !tree.is_ignored(dir));
            tree.target = chosen.unwrap_or_else(|| tree.root.clone());
        }
        tree
    }

    fn file(&mut self, random: &mut Random) {
        let mut path = self.root.clone();
        for _ in 0..random.below(4) {
            path.push(OsStr::from_bytes(random.choose(DIR_NAMES)));
        }
        path.push(OsStr::from_bytes(random.choose(FILE_NAMES)));
        // Some paths run through others that are files; those cannot be made.
        if std::fs::create_dir_all(path.parent().unwrap()).is_ok() && std::fs::write(&path, "x").is_ok() {
            self.files.insert(path);
        }
    }

    fn dirs(&self) -> Vec<PathBuf> {
        let above = self.files.iter().flat_map(|file| file.ancestors().skip(1));
        let dirs: BTreeSet<PathBuf> = above.filter(|dir| dir.starts_with(&self.root)).map(Path::to_path_buf).collect();
        dirs.into_iter().chain([self.root.clone()]).collect()
    }

    /// Makes a repository of `dir` that tracks some of what lies in it.
    fn repository(&mut self, random: &mut Random, dir: &Path, shape: Shape) {
        let mut args = vec!["init", "-q", "--template="];
        if shape.index == Index::Sha256 {
            args.push("--object-format=sha256");
        }
        let elsewhere = self.base.join(format!("git-{}", self.repositories.len()));
        let separate = format!("--separate-git-dir={}", elsewhere.display());
        if shape.has_git_file {
            args.push(&separate);
        }
        git(dir, &args, b"");
        self.repositories.insert(dir.to_path_buf());
        let mut settings = String::new();
        if matches!(shape.index, Index::Version4 | Index::SplitVersion4) {
            settings += "[index]\n\tversion = 4\n";
        }
        if matches!(shape.index, Index::Split | Index::SplitVersion4) {
            settings += "[core]\n\tsplitIndex = true\n[splitIndex]\n\tmaxPercentChange = 100\n";
        }
        let git_dir = if shape.has_git_file { elsewhere } else { dir.join(".git") };
        let mut config = std::fs::File::options().append(true).open(git_dir.join("config")).unwrap();
        config.write_all(settings.as_bytes()).unwrap();
        if random.chance(3) {
            std::fs::create_dir_all(git_dir.join("info")).unwrap();
            std::fs::write(git_dir.join("info/exclude"), rules(random)).unwrap();
        }
        let inside: Vec<&PathBuf> = self.files.iter().filter(|file| file.starts_with(dir)).collect();
        let mut some = |one_in| -> Vec<u8> {
            let chosen = inside.iter().filter(|_| random.chance(one_in));
            chosen.flat_map(|file| [file.strip_prefix(dir).unwrap().as_os_str().as_bytes(), b"\0"].concat()).collect()
        };
        let (first, second, removed) = (some(3), some(8), some(6));
        let update = |args: &[&str], paths: &[u8]| {
            git(dir, &[&["update-index", "-z"], args, &["--stdin"]].concat(), paths);
        };
        update(&["--add"], &first);
        if shape.index != Index::Plain {
            // In a split index, the second half lies above what the first one shares, and removals are marks in it.
            update(&["--add"], &second);
            update(&["--force-remove"], &removed);
        }
    }

    fn is_ignored(&self, dir: &Path) -> bool {
        dir.ancestors().take_while(|dir| dir.starts_with(&self.root) && **dir != *self.root).any(|dir| {
            let Some(owner) = self.owner(dir.parent().unwrap()) else { return false };
            let way = dir.strip_prefix(owner).unwrap();
            let way = if way.as_os_str().is_empty() { Path::new(".") } else { way };
            let mut command = git_command(owner);
            command.args(["check-ignore", "-q", "--no-index", "--"]).arg(way);
            command.status().unwrap().success()
        })
    }

    /// The innermost repository around a path.
    fn owner(&self, path: &Path) -> Option<&PathBuf> {
        self.repositories.iter().filter(|root| path.starts_with(root)).max_by_key(|root| root.as_os_str().len())
    }

    /// What git lists in a repository, and whether each is tracked.
    fn listed(&self, root: &Path) -> Vec<(PathBuf, bool)> {
        let mut command = git_command(root);
        let output = command.args(["ls-files", "-z", "-t", "-co", "--exclude-standard"]).output().unwrap();
        assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
        let lines = output.stdout.split(|&byte| byte == 0).filter(|line| !line.is_empty());
        let path = |line: &[u8]| root.join(PathBuf::from(OsString::from_vec(line[2..].to_vec())));
        lines.map(|line| (path(line), line[0] != b'?')).collect()
    }

    fn expected(&self) -> BTreeSet<PathBuf> {
        let mut expected = BTreeSet::new();
        expected.extend(self.files.iter().filter(|file| self.owner(file).is_none()).cloned());
        for root in &self.repositories {
            let listed = self.listed(root).into_iter();
            let kept = listed.filter(|(path, is_tracked)| *is_tracked || self.owner(path) == Some(root));
            expected.extend(kept.map(|(path, _)| path));
        }
        expected.retain(|path| {
            path.starts_with(&self.target) && path.symlink_metadata().is_ok_and(|metadata| metadata.is_file())
        });
        expected
    }

    fn rules(&self) -> String {
        let mut texts = BTreeMap::new();
        for dir in self.dirs() {
            for name in [".gitignore", ".git/info/exclude"] {
                if let Ok(text) = std::fs::read(dir.join(name)) {
                    texts.insert(dir.join(name), String::from_utf8_lossy(&text).into_owned());
                }
            }
        }
        texts.into_iter().map(|(path, text)| format!("\n  {path:?}: {text:?}")).collect()
    }
}

const DIR_NAMES: &[&[u8]] = &[b"a", b"b", b"build", b"x.log", b"!n", b"d d", b"#h", b"a-b"];
const FILE_NAMES: &[&[u8]] = &[
    b"a",
    b"b",
    b"c",
    b"x.log",
    b"y.log",
    b"k.env",
    b".env",
    b"#h",
    b"!n",
    b"[z]",
    b"s ",
    b"t\t",
    b"\xff\xfe",
    b"caf\xc3\xa9",
    b"a*b",
    b"back\\slash",
    b"build",
    b"foobar",
    b"foo",
    b"Foo",
    b"a-b",
];

/// The text of an ignore file.
fn rules(random: &mut Random) -> Vec<u8> {
    let mut text = Vec::new();
    if random.chance(20) {
        text.extend_from_slice(b"\xef\xbb\xbf");
    }
    let lines = 1 + random.below(6);
    for line in 0..lines {
        text.extend_from_slice(&rule(random));
        if random.chance(12) {
            text.push(b'\r');
        }
        if line + 1 < lines || random.chance(2) {
            text.push(b'\n');
        }
    }
    text
}

fn rule(random: &mut Random) -> Vec<u8> {
    match random.below(16) {
        0 => return Vec::new(),
        1 => return b"# x.log".to_vec(),
        2 => {
            return random
                .choose(&[&b"*"[..], b"/*", b"**", b"/**", b"*/", b"!*/", b"/", b"!", b"\\", b"a\0b"])
                .to_vec();
        }
        _ => {}
    }
    let mut rule = Vec::new();
    if random.chance(4) {
        rule.push(b'!');
    }
    if random.chance(4) {
        rule.push(b'/');
    }
    let parts = 1 + random.below(3) * random.below(2);
    for part in 0..parts {
        if part > 0 {
            rule.push(b'/');
        }
        match random.below(4) {
            0 => rule.extend_from_slice(random.choose(DIR_NAMES)),
            1 => rule.extend_from_slice(random.choose(FILE_NAMES)),
            _ => rule.extend_from_slice(random.choose(GLOBS)),
        }
    }
    match random.below(12) {
        0 | 1 => rule.push(b'/'),
        2 => rule.extend_from_slice(b"/**"),
        3 => rule.extend_from_slice(b"  "),
        4 => rule.push(b'\t'),
        5 => rule.extend_from_slice(b"\\ "),
        _ => {}
    }
    rule
}

const GLOBS: &[&[u8]] = &[
    b"*.log",
    b"*",
    b"**",
    b"?",
    b"*.env",
    b"[a-c]",
    b"[!a]",
    b"[^b]",
    b"[[:alpha:]]",
    b"foo*",
    b"*bar",
    b"f?o",
    b"\\#h",
    b"\\!n",
    b"\\[z\\]",
    b"[z]",
    b"a\\*b",
    b"a*b",
    b"**b",
    b"foo**",
    b"*o*",
    b"[a",
    b"[]a]",
    b"[",
    b"{a,b}",
    b"build",
    b"back\\\\slash",
    b".*",
    b"x.*",
    b"[\\a]",
    b"[a-",
    b"[!",
    b"\xff*",
    b"*\xff\xfe",
    b"caf?",
    b"caf??",
    b"[F]oo",
    b"[[:upper:]]oo",
    b"s\\ ",
    b"a\\b",
    b"[a-z]-[a-z]",
    b"***",
    b"*?*",
    b"[c-a]",
    b"[[:nope:]]",
    b"[a-c-e]",
];

fn git_command(dir: &Path) -> Command {
    let mut command = Command::new("git");
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "XDG_CONFIG_HOME"] {
        command.env_remove(variable);
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null").env("HOME", "/nonexistent");
    // None of this has to outlive the machine.
    command.env("LC_ALL", "C").arg("-C").arg(dir).args(["-c", "core.fsync=none"]);
    command
}

fn git(dir: &Path, args: &[&str], input: &[u8]) {
    let mut child =
        git_command(dir).args(args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// True once in `one_in` times.
    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    fn choose<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}
