//! Packs made to harm: each costs little more than it is long, and says what is wrong with it.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::blobs::{BlobRead, StoreReader};
use crate::cache::ObjectCache;
use crate::history::History;
use crate::kinds::Kinds;
use crate::oid::Oid;
use crate::pack::PackReader;
use crate::places::{BOUNDS, Bounds};
use crate::{At, CHAIN_MAX, Store, WORK_BYTES_MAX};
use test_support::Repository;

type Name = [u8; 20];

fn name(number: u32) -> Name {
    let mut name = [7; 20];
    name[..4].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
    name[4..8].copy_from_slice(&number.to_be_bytes());
    name
}

/// A pack of made-up entries, with names of their own choosing.
struct MadePack {
    bytes: Vec<u8>,
    offsets: BTreeMap<Name, u32>,
}

impl MadePack {
    fn new() -> Self {
        Self { bytes: b"PACK\0\0\0\x02\0\0\0\0".to_vec(), offsets: BTreeMap::new() }
    }

    /// Types: 1 to 4 for whole objects, 7 for a delta to `base`.
    fn entry(&mut self, name: Name, kind: u8, size: u64, base: &[u8], data: &[u8]) {
        self.offsets.insert(name, self.bytes.len() as u32);
        let (mut byte, mut rest) = (kind << 4 | (size & 15) as u8, size >> 4);
        while rest > 0 {
            self.bytes.push(byte | 0x80);
            (byte, rest) = ((rest & 127) as u8, rest >> 7);
        }
        self.bytes.push(byte);
        self.bytes.extend_from_slice(base);
        let mut zlib = ZlibEncoder::new(&mut self.bytes, Compression::fast());
        zlib.write_all(data).unwrap();
        zlib.finish().unwrap();
    }

    /// A delta that keeps the three bytes of its base.
    fn same_three(&mut self, name: Name, base: Name) {
        self.entry(name, 7, 4, &base, &[3, 3, 0x90, 3]);
    }

    fn into_repository(self) -> (Repository, Store) {
        let repository = Repository::new();
        let mut index = b"\xfftOc\0\0\0\x02".to_vec();
        for first in 0..=255_u8 {
            let count = self.offsets.keys().filter(|name| name[0] <= first).count() as u32;
            index.extend_from_slice(&count.to_be_bytes());
        }
        index.extend(self.offsets.keys().flatten());
        index.resize(index.len() + 4 * self.offsets.len(), 0);
        index.extend(self.offsets.values().flat_map(|offset| offset.to_be_bytes()));
        index.resize(index.len() + 40, 0);
        let dir = repository.path().join(".git/objects/pack");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("pack-1.pack"), self.bytes).unwrap();
        std::fs::write(dir.join("pack-1.idx"), index).unwrap();
        let store = Store::open(repository.path()).unwrap();
        (repository, store)
    }
}

fn place(store: &Store, name: &Name) -> (usize, u64) {
    match store.find(&Oid::new(name).unwrap()) {
        Some(At::Pack(pack, offset)) => (pack, offset),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_ring_of_deltas_is_walked_once_and_all_on_it_are_corrupt() {
    let mut pack = MadePack::new();
    // Longer than any chain is followed, and a tail that leads to it.
    let ring = CHAIN_MAX as u32 + 500;
    for i in 0..ring {
        pack.same_three(name(i), name((i + 1) % ring));
    }
    pack.same_three(name(ring), name(5));
    let (repository, store) = pack.into_repository();
    let (mut kinds, mut reader) = (Kinds::default(), PackReader::new());
    let (number, tail) = place(&store, &name(ring));
    assert_eq!(kinds.packed(&store, &mut reader, number, tail), None);
    assert!((0..=ring).all(|i| kinds.leads_nowhere(number, place(&store, &name(i)).1)));
    let mut reader = StoreReader::<()>::new(repository.path(), Arc::new(store));
    let asked: Vec<Name> = (0..=ring).map(name).collect();
    reader.request(asked.iter().map(|name| &name[..]));
    assert!(asked.iter().all(|_| reader.next(1 << 20).unwrap() == BlobRead::Corrupt));
}

#[test]
fn trees_that_contain_themselves_are_walked_up_to_a_bound_and_never_called_whole() {
    let mut pack = MadePack::new();
    let entry = |mode: &str, entry: &str, of: Name| [format!("{mode} {entry}\0").as_bytes(), &of[..]].concat();
    // Two ways into itself, so that there are more paths than there are atoms.
    let tree = [
        entry("100644", "a", name(3)),
        entry("40000", "b", name(2)),
        entry("40000", "c", name(2)),
        entry("100644", "d", name(4)),
    ]
    .concat();
    let commit = format!("tree {}\n\n", crate::oid::hex_oid(&name(2)));
    pack.entry(name(1), 1, commit.len() as u64, &[], commit.as_bytes());
    pack.entry(name(2), 2, tree.len() as u64, &[], &tree);
    pack.entry(name(3), 3, 3, &[], b"one");
    pack.entry(name(4), 3, 3, &[], b"two");
    let (repository, _) = pack.into_repository();
    let refs = repository.path().join(".git/refs/heads/main");
    std::fs::write(refs, crate::oid::hex_oid(&name(1))).unwrap();
    let store = Store::open(repository.path()).unwrap();
    let history = History::of(&store, Bounds { paths_per_blob: 5_000, ..BOUNDS }, 1).unwrap();
    let stands: Vec<_> = history.blobs().filter(|blob| blob.is_present).map(|blob| blob.stands).collect();
    assert_eq!(stands.len(), 2);
    assert!(stands.iter().all(|stands| stands.has_more && stands.places.len() <= 5_000), "{}", stands[0].places.len());
    assert!(history.is_broken());
}

#[test]
fn a_length_that_is_a_lie_takes_no_memory() {
    let mut pack = MadePack::new();
    pack.entry(name(1), 3, 60 << 20, &[], b"short");
    pack.entry(name(2), 3, 3, &[], &[b'x'; 100_000]);
    let (_repository, store) = pack.into_repository();
    let (mut reader, mut out) = (PackReader::new(), Vec::new());
    for lie in [name(1), name(2)] {
        let (number, at) = place(&store, &lie);
        let entry = store.entry(&mut reader, number, at).unwrap();
        assert!(store.inflate(&mut reader, number, &entry, &mut out).is_err());
        assert!(out.capacity() < 1 << 20, "{}", out.capacity());
        let mut offered = 0;
        let pieces = reader.pieces(number, &store.packs[number], entry.data_at, entry.size, &mut |piece| {
            offered += piece.len();
            true
        });
        assert!(pieces.is_err() && offered == 0);
    }
}

#[test]
fn a_small_blob_made_from_one_that_is_too_large_is_not_called_skipped_or_clean() {
    let mut pack = MadePack::new();
    // The base claims 64 KiB copied 1,600 times.
    pack.entry(name(1), 3, 1 << 16, &[], &[b'q'; 1 << 16]);
    let mut large = vec![0x80, 0x80, 4, 0x80, 0x80, 0x80, 50];
    large.resize(large.len() + 1_600, 0x80);
    pack.entry(name(2), 7, large.len() as u64, &name(1), &large);
    pack.entry(name(3), 7, 7, &name(2), &[0x80, 0x80, 0x80, 50, 3, 0x90, 3]);
    let (repository, store) = pack.into_repository();
    let mut reader = StoreReader::<()>::new(repository.path(), Arc::new(store));
    for number in [2, 3] {
        reader.request(std::iter::once(&name(number)[..]));
        assert_eq!(reader.next(64 << 20).unwrap(), BlobRead::TooLarge(100 << 20));
        assert!(matches!(reader.pieces(&name(number), &mut |_| true).unwrap(), BlobRead::TooLarge(_)));
    }
}

#[test]
fn commits_in_a_long_chain_are_each_put_together_once() {
    let mut pack = MadePack::new();
    pack.entry(name(0), 1, 3, &[], b"abc");
    for i in 1..40 {
        pack.same_three(name(i), name(i - 1));
    }
    let (_repository, store) = pack.into_repository();
    let mut cache = ObjectCache::new(&store);
    assert_eq!(**cache.read(&Oid::new(&name(39)).unwrap()).unwrap().1, *b"abc");
    assert!((0..39).all(|i| cache.knows(place(&store, &name(i)))));
}

#[test]
fn what_is_put_together_on_the_way_to_an_object_has_a_bound() {
    let mut pack = MadePack::new();
    pack.entry(name(0), 3, 1 << 16, &[], &[b'q'; 1 << 16]);
    // A megabyte of it, and then that megabyte again and again, at eight bytes each.
    let mut megabyte = vec![0x80, 0x80, 4, 0x80, 0x80, 0x40];
    megabyte.resize(megabyte.len() + 16, 0x80);
    pack.entry(name(1), 7, megabyte.len() as u64, &name(0), &megabyte);
    let last = 2 + (WORK_BYTES_MAX >> 20) as u32;
    for i in 2..=last {
        pack.entry(name(i), 7, 8, &name(i - 1), &[0x80, 0x80, 0x40, 0x80, 0x80, 0x40, 0xc0, 0x10]);
    }
    let (repository, store) = pack.into_repository();
    let walked = ObjectCache::new(&store).read(&Oid::new(&name(last)).unwrap()).unwrap_err();
    assert_eq!(walked.to_string(), "it takes too much to put it together");
    let mut reader = StoreReader::<()>::new(repository.path(), Arc::new(store));
    reader.request([&name(last)[..], &name(20)[..]].into_iter());
    assert_eq!(reader.next(64 << 20).unwrap(), BlobRead::Corrupt);
    assert_eq!(reader.next(64 << 20).unwrap(), BlobRead::Read);
}
