//! Random histories, written by `git fast-import`: renames, copies, merges, octopus merges, tags, several roots and branches.

use std::collections::BTreeMap;
use std::path::Path;

use super::git::{command, git, git_fed, init};
use super::names;
use super::random::Random;
use super::token::{text_with, token};

/// Contents that commits place under paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    mode: &'static str,
    /// The number of a blob.
    blob: usize,
}

type Tree = BTreeMap<Vec<u8>, Entry>;

/// A random history in the making.
#[derive(Debug)]
struct Writing {
    tokens: Vec<String>,
    blobs: Vec<Vec<u8>>,
    commits: Vec<(Tree, Vec<usize>)>,
}

/// How large a history becomes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) commits: usize,
    pub(crate) tokens: usize,
    /// Whether refs may name blobs and trees, which gives blobs without a path.
    pub(crate) odd_refs: bool,
}

impl Default for Size {
    fn default() -> Self {
        Self { commits: 12, tokens: 8, odd_refs: true }
    }
}

/// Makes a repository with a random history in `dir`.
pub(crate) fn grow(random: &mut Random, dir: &Path, size: Size) {
    let mut args = Vec::new();
    if random.percent(25) {
        args.push("--bare");
    }
    if random.percent(15) {
        args.push("--object-format=sha256");
    }
    if random.percent(6) {
        args.push("--ref-format=reftable");
    }
    init(dir, &args);
    extend(random, dir, size);
    rearrange(random, dir);
}

/// Adds a random history, with refs of its own, to the repository in `dir`.
pub(crate) fn extend(random: &mut Random, dir: &Path, size: Size) {
    let mut writing = Writing {
        tokens: (0..size.tokens.max(1)).map(|_| token(random)).collect(),
        blobs: Vec::new(),
        commits: Vec::new(),
    };
    for _ in 0..random.within(1..size.commits + 1) {
        writing.commit(random);
    }
    let unpack = if random.percent(50) { "0" } else { "100000" };
    let marks = dir.join("marks");
    let limit = format!("fastimport.unpackLimit={unpack}");
    let export = format!("--export-marks={}", marks.display());
    let work = format!("{:08x}", random.next() as u32);
    git_fed(dir, &["-c", &limit, "fast-import", "--quiet", "--force", &export], &writing.stream(random, &work, size));
    let oids = read_marks(&marks);
    std::fs::remove_file(marks).unwrap();
    name_commits(random, dir, &writing, &oids, &work, size);
}

impl Writing {
    /// Adds a commit with up to four parents.
    fn commit(&mut self, random: &mut Random) {
        let parents = match (self.commits.len(), random.below(100)) {
            (0, _) | (_, 0..8) => 0,
            (_, 8..75) => 1,
            (_, 75..92) => 2,
            _ => random.within(3..5),
        };
        let mut chosen: Vec<usize> = Vec::new();
        for _ in 0..parents {
            // Mostly a recent one, so that histories grow long.
            let back = random.below(self.commits.len()).min(random.below(self.commits.len()));
            let parent = self.commits.len() - 1 - back;
            if !chosen.contains(&parent) {
                chosen.push(parent);
            }
        }
        let mut tree = chosen.first().map_or_else(Tree::new, |&parent| self.commits[parent].0.clone());
        for &parent in chosen.iter().skip(1) {
            let theirs = self.commits[parent].0.clone();
            for (path, entry) in theirs {
                if random.percent(60) {
                    put(&mut tree, path, entry);
                }
            }
        }
        for _ in 0..random.below(4) {
            self.change(random, &mut tree);
        }
        self.commits.push((tree, chosen));
    }

    fn change(&mut self, random: &mut Random, tree: &mut Tree) {
        let known: Vec<Vec<u8>> = tree.keys().cloned().collect();
        let new_path = names::path(random);
        if known.is_empty() || random.percent(35) {
            let mode = *random.pick(&["100644", "100644", "100644", "100755", "120000"]);
            let entry = Entry { mode, blob: self.blob(random, mode) };
            return put(tree, new_path, entry);
        }
        let path = random.pick(&known).clone();
        let entry = tree[&path];
        match random.below(5) {
            // A rename.
            0 => {
                tree.remove(&path);
                put(tree, new_path, entry);
            }
            // A copy: one blob at two paths.
            1 => put(tree, new_path, entry),
            2 => drop(tree.remove(&path)),
            // Content of an earlier version, perhaps of another file.
            3 if !self.blobs.is_empty() => {
                put(tree, path, Entry { mode: "100644", blob: random.below(self.blobs.len()) });
            }
            _ => {
                let entry = Entry { mode: "100644", blob: self.blob(random, "100644") };
                put(tree, path, entry);
            }
        }
    }

    fn blob(&mut self, random: &mut Random, mode: &str) -> usize {
        let tokens: Vec<&str> = (0..*random.pick(&[0, 0, 1, 1, 2]))
            .map(|_| &self.tokens[..][random.below(self.tokens.len())][..])
            .collect();
        let text = match mode {
            "120000" => tokens.first().map_or("target", |token| token).as_bytes().to_vec(),
            _ => text_with(random, &tokens),
        };
        self.blobs.push(text);
        self.blobs.len() - 1
    }

    /// The input of `git fast-import`: blobs have the marks from 1 on, commits follow.
    fn stream(&self, random: &mut Random, work: &str, size: Size) -> Vec<u8> {
        let mut out = Vec::new();
        for (blob, text) in self.blobs.iter().enumerate() {
            out.extend(format!("blob\nmark :{}\ndata {}\n", blob + 1, text.len()).bytes());
            out.extend(text);
            out.push(b'\n');
        }
        for (number, (tree, parents)) in self.commits.iter().enumerate() {
            let mark = |commit: usize| self.blobs.len() + 1 + commit;
            let message = format!("change {number}");
            out.extend(format!("commit refs/work/{work}/{number}\nmark :{}\n", mark(number)).bytes());
            out.extend(format!("committer Ada <ada@example.org> {} +0000\n", 1_700_000_000 + number * 60).bytes());
            out.extend(format!("data {}\n{message}\n", message.len()).bytes());
            for (place, &parent) in parents.iter().enumerate() {
                let word = if place == 0 { "from" } else { "merge" };
                out.extend(format!("{word} :{}\n", mark(parent)).bytes());
            }
            out.extend(b"deleteall\n");
            for (path, entry) in tree {
                out.extend(format!("M {} :{} ", entry.mode, entry.blob + 1).bytes());
                out.extend(quoted(path));
                out.push(b'\n');
            }
            out.push(b'\n');
        }
        if random.percent(25) {
            self.annotate(random, &mut out, work, size);
        }
        out
    }

    /// Annotated tags of a commit, or of a blob that no commit need have.
    fn annotate(&self, random: &mut Random, out: &mut Vec<u8>, work: &str, size: Size) {
        let first = if size.odd_refs { 1 } else { 1 + self.blobs.len() };
        let end = 1 + self.blobs.len() + self.commits.len();
        for number in 0..random.within(1..3) {
            let mark = random.within(first..end);
            out.extend(format!("tag {work}-annotated-{number}\nfrom :{mark}\n").bytes());
            out.extend(b"tagger Ada <ada@example.org> 1700000000 +0000\ndata 3\ntag\n");
        }
    }
}

/// Puts an entry at a path, and removes entries that cannot stay beside it.
fn put(tree: &mut Tree, path: Vec<u8>, entry: Entry) {
    let is_below = |path: &[u8], folder: &[u8]| path.starts_with(folder) && path.get(folder.len()) == Some(&b'/');
    tree.retain(|other, _| !is_below(other, &path) && !is_below(&path, other));
    tree.insert(path, entry);
}

/// A path as `git fast-import` reads it.
fn quoted(path: &[u8]) -> Vec<u8> {
    let mut text = vec![b'"'];
    for &byte in path {
        match byte {
            b'"' | b'\\' => text.extend([b'\\', byte]),
            b' '..=b'~' => text.push(byte),
            _ => text.extend(format!("\\{byte:03o}").bytes()),
        }
    }
    text.push(b'"');
    text
}

fn read_marks(path: &Path) -> BTreeMap<usize, String> {
    let text = std::fs::read_to_string(path).unwrap();
    let marks = text.lines().map(|line| line.strip_prefix(':').unwrap().split_once(' ').unwrap());
    marks.map(|(mark, oid)| (mark.parse().unwrap(), oid.to_owned())).collect()
}

/// Gives some commits names; commits to which no name leads are unreachable.
fn name_commits(
    random: &mut Random,
    dir: &Path,
    writing: &Writing,
    oids: &BTreeMap<usize, String>,
    work: &str,
    size: Size,
) {
    let commit = |number: usize| &oids[&(writing.blobs.len() + 1 + number)];
    let last = writing.commits.len() - 1;
    let mut lines = String::new();
    if random.percent(90) {
        lines += &format!("update refs/heads/{work} {}\n", commit(last));
    }
    for number in 0..random.below(4) {
        let kind = *random.pick(&["heads", "tags", "remotes/origin", "notes", "stash-like"]);
        lines += &format!("update refs/{kind}/{work}-{number} {}\n", commit(random.below(last + 1)));
    }
    if size.odd_refs && random.percent(10) {
        lines += &format!("update refs/tags/{work}-blob {}\n", oids.get(&1).unwrap_or(commit(last)));
    }
    if size.odd_refs && random.percent(10) {
        let tree = git(dir, &["rev-parse", &format!("{}^{{tree}}", commit(random.below(last + 1)))]);
        lines += &format!("update refs/tags/{work}-tree {}", String::from_utf8(tree).unwrap());
    }
    if random.percent(10) {
        // Git shows another commit in place of this one; both are in the repository.
        lines +=
            &format!("update refs/replace/{} {}\n", commit(random.below(last + 1)), commit(random.below(last + 1)));
    }
    for number in 0..=last {
        lines += &format!("delete refs/work/{work}/{number}\n");
    }
    git_fed(dir, &["update-ref", "--stdin"], lines.as_bytes());
    if random.percent(15) {
        git(dir, &["update-ref", "--no-deref", "HEAD", commit(random.below(last + 1))]);
    }
}

/// Stores the same history in another form.
fn rearrange(random: &mut Random, dir: &Path) {
    for _ in 0..random.below(3) {
        match random.below(6) {
            0 => git(dir, &["pack-refs", "--all"]),
            1 => git(dir, &["repack", "-q", "-a", "-d", "-f", "--depth=50"]),
            2 => git(dir, &["repack", "-q"]),
            3 => git(dir, &["commit-graph", "write", "--reachable"]),
            4 => {
                git(dir, &["repack", "-q"]);
                // A history without any object has no pack, and git then refuses.
                command(dir, &["multi-pack-index", "write"]).output().unwrap().stdout
            }
            _ => git(dir, &["prune-packed"]),
        };
    }
}

/// Makes a repository in `dir` with many versions of a few long texts, which git stores as changes to each other. Secrets come whole,
/// come and go in pieces, and are completed by what is removed.
pub(crate) fn grow_versions(random: &mut Random, dir: &Path) {
    init(dir, &[]);
    let mut texts: Vec<Vec<String>> =
        (0..3).map(|_| (0..random.within(200..2_000)).map(|_| line(random)).collect()).collect();
    let mut stream = Vec::new();
    for version in 0..random.within(20..60) {
        let number = random.below(texts.len());
        for _ in 0..random.within(1..5) {
            edit(random, &mut texts[number]);
        }
        let text = texts[number].join("\n") + if random.percent(50) { "\n" } else { "" };
        let commit = format!(
            "commit refs/heads/main\ncommitter Ada <ada@example.org> {} +0000\ndata 6\nchange\n",
            1_700_000_000 + version
        );
        stream.extend(commit.bytes());
        stream.extend(format!("M 100644 inline text-{number}\ndata {}\n{text}\n", text.len()).bytes());
    }
    git_fed(dir, &["-c", "fastimport.unpackLimit=0", "fast-import", "--quiet"], &stream);
    let depth = format!("--depth={}", random.pick(&[4, 50]));
    git(dir, &["repack", "-q", "-a", "-d", "-f", &depth]);
}

/// What keeps two pieces of a secret apart.
const BETWEEN: [&str; 3] = ["~", "!!", "\n"];

fn line(random: &mut Random) -> String {
    match random.below(20) {
        0 => "password = \"changeme\"".to_owned(),
        1 => "w".repeat(random.below(3_000)),
        2 => "ghp_ is how they begin".to_owned(),
        3 => String::new(),
        _ => format!("let value_{} = compute({});", random.below(9_999), random.below(9_999)),
    }
}

fn edit(random: &mut Random, text: &mut Vec<String>) {
    let at = random.below(text.len());
    match random.below(8) {
        0 => drop(text.splice(at..at, (0..random.within(1..20)).map(|_| line(random)).collect::<Vec<_>>())),
        1 if text.len() > 100 => drop(text.drain(at..text.len().min(at + random.within(1..40)))),
        2 => text[at] = format!("{}{}", random.pick(&["", "x", "\t\""]), token(random)),
        3 | 4 => {
            let (secret, between) = (token(random), *random.pick(&BETWEEN));
            let (head, tail) = secret.split_at(random.within(1..secret.len()));
            text[at] = format!("{head}{between}{tail}");
        }
        // What is between two pieces is removed.
        5 | 6 => {
            for line in text.iter_mut().skip(at).take(200).filter(|line| line.len() < 100) {
                *line = BETWEEN.iter().fold(std::mem::take(line), |line, between| line.replace(between, ""));
            }
        }
        _ => {
            let len = random.below(text[at].len() + 1);
            text[at].truncate(len);
        }
    }
}

/// Clones a repository in a random way. A shallow clone lacks a part of the history.
pub(crate) fn clone(random: &mut Random, from: &Path, to: &Path) {
    let mut clone = command(from, &["clone", "-q"]);
    match random.below(5) {
        0 => drop(clone.arg("--bare").arg(from)),
        1 => drop(clone.arg("--mirror").arg(from)),
        2 => drop(clone.arg("--shared").arg("--no-checkout").arg(from)),
        3 => drop(
            clone
                .arg("--no-checkout")
                .arg("--depth=2")
                .arg("--no-single-branch")
                .arg(format!("file://{}", from.display())),
        ),
        _ => drop(clone.arg("--no-checkout").arg(from)),
    }
    super::git::answer({
        clone.arg(to);
        clone
    });
}

/// Clones a repository with its work tree.
pub(crate) fn clone_plainly(from: &Path, to: &Path) {
    let mut clone = command(from, &["clone", "-q"]);
    clone.arg(from).arg(to);
    super::git::answer(clone);
}
