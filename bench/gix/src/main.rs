//! Every blob of a whole history, by our reader and by gix: CPU time, memory, and a digest of what was read.
//!
//! ```text
//! cargo run --release --manifest-path bench/gix/Cargo.toml -- ours REPOSITORY
//! cargo run --release --manifest-path bench/gix/Cargo.toml -- gix REPOSITORY
//! cargo run --release --manifest-path bench/gix/Cargo.toml -- gix-ordered REPOSITORY
//! ```
//!
//! Each walks from all refs over all commits and trees, each tree once, and then inflates every blob it met, once. Ours also keeps at
//! which paths a blob stands and by which commit it came in, since a report names both, and reads blobs that tags name; gix is asked
//! for the ids in trees alone.
//! `gix` reads blobs as they were met, `gix-ordered` in the order of their place in the pack, with the cache of bases that its
//! documentation recommends.

use std::collections::HashSet;
use std::error::Error;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use gix::objs::TreeRefIter;
use gix::objs::tree::EntryKind;
use gix::objs::{Find as _, FindExt as _};
use rustix::time::{ClockId, clock_gettime};
use tessera_git_objects::Store;
use tessera_git_objects::blobs::{BlobRead, StoreReader};
use tessera_git_objects::history::History;
use tessera_git_objects::places::BOUNDS;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What was read.
#[derive(Default)]
struct Read {
    blobs: u64,
    bytes: u64,
    /// The sum of hashes of blobs: the same in any order.
    digest: u64,
    /// Blobs that the repository does not have: a partial clone.
    missing: u64,
}

impl Read {
    fn add(&mut self, content: &[u8]) {
        self.blobs += 1;
        self.bytes += content.len() as u64;
        self.digest = self.digest.wrapping_add(foldhash::fast::FixedState::with_seed(1).hash_one(content));
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [reader, path] = &args[..] else { return Err("usage: ours|gix|gix-ordered REPOSITORY".into()) };
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let mut walked = 0.0;
    let mut walked_at = || walked = cpu_seconds() - cpu;
    let read = match reader.as_str() {
        "ours" => ours(Path::new(path), &mut walked_at)?,
        "gix" => by_gix(Path::new(path), false, &mut walked_at)?,
        "gix-ordered" => by_gix(Path::new(path), true, &mut walked_at)?,
        _ => return Err("no such reader".into()),
    };
    println!(
        "{reader}: {} blobs ({} missing), {:.0} MB, digest {:016x}; CPU {:.2} s ({walked:.2} s to list), {:.2} s passed, {:.0} MB at most",
        read.blobs,
        read.missing,
        read.bytes as f64 / 1e6,
        read.digest,
        cpu_seconds() - cpu,
        start.elapsed().as_secs_f64(),
        peak_mb()?,
    );
    Ok(())
}

fn ours(path: &Path, walked: &mut dyn FnMut()) -> Result<Read> {
    let store = Arc::new(Store::open(path)?);
    let history = History::of(&store, BOUNDS, RandomState::new().hash_one(0))?;
    walked();
    let mut reader = StoreReader::<()>::new(path, store);
    let mut read = Read::default();
    for listed in history.blobs() {
        reader.request(std::iter::once(listed.oid.as_bytes()));
        match reader.next(u64::MAX)? {
            BlobRead::Read => read.add(reader.content()),
            BlobRead::Missing => read.missing += 1,
            other => return Err(format!("{:?}: {other:?}", listed.oid.as_bytes()).into()),
        }
    }
    Ok(read)
}

fn by_gix(path: &Path, ordered: bool, walked: &mut dyn FnMut()) -> Result<Read> {
    let mut repo = gix::open(path)?;
    repo.object_cache_size_if_unset(64 << 20);
    let mut tips = Vec::new();
    for reference in repo.references()?.all()? {
        let mut reference = reference?;
        if let Ok(commit) = reference.peel_to_commit() {
            tips.push(commit.id);
        }
    }
    let (mut trees, mut blobs) = (HashSet::new(), HashSet::new());
    let (mut list, mut waiting, mut buffer) = (Vec::new(), Vec::new(), Vec::new());
    for commit in repo.rev_walk(tips).all()? {
        let tree = repo.find_commit(commit?.id)?.tree_id()?.detach();
        waiting.push(tree);
        while let Some(tree) = waiting.pop() {
            if !trees.insert(tree) {
                continue;
            }
            let entries: TreeRefIter<'_> = repo.objects.find_tree_iter(&tree, &mut buffer)?;
            for entry in entries {
                let entry = entry?;
                match entry.mode.kind() {
                    EntryKind::Tree => waiting.push(entry.oid.to_owned()),
                    EntryKind::Blob | EntryKind::BlobExecutable | EntryKind::Link => {
                        if blobs.insert(entry.oid.to_owned()) {
                            list.push(entry.oid.to_owned());
                        }
                    }
                    EntryKind::Commit => {}
                }
            }
        }
    }
    if ordered {
        use gix::odb::pack::Find as _;
        repo.objects.prevent_pack_unload();
        let mut placed = Vec::new();
        for oid in list {
            let at = repo.objects.location_by_oid(&oid, &mut buffer)?.map(|at| (at.pack_id, at.pack_offset));
            placed.push((at, oid));
        }
        placed.sort_unstable();
        list = placed.into_iter().map(|(_, oid)| oid).collect();
    }
    walked();
    let mut read = Read::default();
    for oid in list {
        match repo.objects.try_find(&oid, &mut buffer)? {
            Some(blob) => read.add(blob.data),
            None => read.missing += 1,
        }
    }
    Ok(read)
}

/// CPU time of all threads of this process.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The most memory that this process had, in megabytes.
fn peak_mb() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no peak in /proc/self/status")?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1_024.0 / 1e6)
}
