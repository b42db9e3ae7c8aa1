//! Any bytes are a repository: objects of a pack, or the pack and its index themselves. Listing its history and reading what
//! was listed come to an end, with contents or with a reason.

#![no_main]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use flate2::{Compression, write::ZlibEncoder};
use libfuzzer_sys::fuzz_target;
use tessera_scan::plan::target::{ReadOptions, Target, TargetKind};
use tessera_scan::source::git::list::{ObjectList, Scope};
use tessera_scan::source::git::objects::ObjectsSource;
use tessera_scan::source::git::reader::BlobRead;

/// Largest blob that is asked for.
const BLOB_BYTES_MAX: u64 = 1 << 16;

/// In a made object, these stand for the name of the object whose number follows: in hexadecimal, as commits have it, and in
/// bytes, as trees do. No fuzzer finds forty digits by itself.
const NAME_IN_HEX: u8 = 0xfe;
const NAME_IN_BYTES: u8 = 0xfd;

static PLACE: LazyLock<PathBuf> = LazyLock::new(|| {
    let place = std::env::temp_dir().join(format!("tessera-fuzz-repository-{}", std::process::id()));
    for folder in ["lists", "repo/.git/objects/pack", "repo/.git/refs/heads"] {
        fs::create_dir_all(place.join(folder)).expect("a temporary folder can be made");
    }
    let git = place.join("repo/.git");
    fs::write(git.join("HEAD"), "ref: refs/heads/main\n").expect("written");
    fs::write(git.join("config"), "[core]\n\trepositoryformatversion = 0\n").expect("written");
    fs::write(git.join("refs/heads/main"), hex(1)).expect("written");
    place
});

fuzz_target!(|bytes: &[u8]| {
    let Some((&how, rest)) = bytes.split_first() else { return };
    let (pack, index) = if how & 1 == 0 { made(rest) } else { raw(rest) };
    let (repository, lists) = (PLACE.join("repo"), PLACE.join("lists"));
    let packs = repository.join(".git/objects/pack");
    fs::write(packs.join("pack-1.pack"), pack).expect("written");
    fs::write(packs.join("pack-1.idx"), index).expect("written");
    read_all(&repository, &lists);
});

fn read_all(repository: &Path, lists: &Path) {
    let name = match ObjectList::build(repository, Scope::History, lists) {
        Ok(name) => name,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let list = ObjectList::open(lists, &name).expect("what was written can be read");
    let entries = list.read(0, usize::MAX >> 1).expect("what was written can be read");
    assert_eq!(entries.len() as u64, list.len());
    let target = Target {
        number: 0,
        path: repository.to_path_buf(),
        kind: TargetKind::Objects { list: name },
        rules: 0,
        options: ReadOptions::default(),
    };
    let source = ObjectsSource::new(target, &name, lists).expect("what was written can be read");
    let mut reader = source.reader();
    let named = || entries.iter().filter(|entry| !entry.oid.is_empty());
    reader.request(&mut named().map(|entry| &entry.oid[..])).expect("it has no one to ask");
    for entry in named() {
        match reader.next(BLOB_BYTES_MAX) {
            Ok(BlobRead::Read) => assert!(reader.content().len() as u64 <= BLOB_BYTES_MAX),
            Ok(BlobRead::TooLarge(bytes)) => {
                assert!(bytes > BLOB_BYTES_MAX);
                let mut offered = 0;
                let count = &mut |piece: &[u8]| {
                    offered += piece.len() as u64;
                    true
                };
                if let Ok(BlobRead::Read) = reader.pieces(&entry.oid, count) {
                    assert_eq!(offered, bytes);
                }
            }
            Ok(BlobRead::Missing | BlobRead::Corrupt | BlobRead::Denied) => {}
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    fs::remove_dir_all(lists).and_then(|()| fs::create_dir(lists)).expect("the temporary folder is ours");
}

/// A pack and an index as they come.
fn raw(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (pack, index) = bytes.split_at(bytes.len() / 2);
    let fanout = [0, 0, 0, 1].repeat(256);
    ([b"PACK\0\0\0\x02", pack].concat(), [b"\xfftOc\0\0\0\x02", &fanout[..], index].concat())
}

/// A pack whose entries have heads that fit, and the index of it. Each entry is told as its type, its base if it is a delta,
/// its length, and so many bytes.
fn made(mut bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut pack = b"PACK\0\0\0\x02\0\0\0\0".to_vec();
    let mut offsets: Vec<u32> = Vec::new();
    while offsets.len() < 200
        && let [kind, base, len, rest @ ..] = bytes
    {
        let (told, after) = rest.split_at(usize::from(*len).min(rest.len()));
        bytes = after;
        let (kind, object) = (kind & 7, with_names(told));
        let at = pack.len() as u32;
        // The size in four bits, and then in sevens.
        let (mut head, mut size) = ((kind << 4) | (object.len() & 15) as u8, object.len() >> 4);
        while size > 0 {
            pack.push(head | 0x80);
            (head, size) = ((size & 0x7f) as u8, size >> 7);
        }
        pack.push(head);
        match kind {
            6 => {
                let to = offsets.get(usize::from(*base)).copied().unwrap_or_default();
                pack.extend(distance(at - to));
            }
            7 => pack.extend([*base; 20]),
            _ => {}
        }
        let mut encoder = ZlibEncoder::new(pack, Compression::fast());
        encoder.write_all(&object).expect("memory takes all");
        pack = encoder.finish().expect("memory takes all");
        offsets.push(at);
    }
    let mut index = b"\xfftOc\0\0\0\x02".to_vec();
    // The object with number n is named by n, twenty times.
    index.extend((0..=255_u32).flat_map(|first| first.min(offsets.len() as u32).to_be_bytes()));
    index.extend((1..=offsets.len()).flat_map(|number| [number as u8; 20]));
    index.extend(offsets.iter().flat_map(|_| [0; 4]));
    index.extend(offsets.iter().flat_map(|offset| offset.to_be_bytes()));
    index.extend([0; 40]);
    (pack, index)
}

/// How far back a base lies, as packs tell it.
fn distance(mut far: u32) -> Vec<u8> {
    let mut bytes = vec![(far & 0x7f) as u8];
    while far >> 7 > 0 {
        far = (far >> 7) - 1;
        bytes.insert(0, 0x80 | (far & 0x7f) as u8);
    }
    bytes
}

fn with_names(told: &[u8]) -> Vec<u8> {
    let mut object = Vec::new();
    let mut rest = told;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after.split_first()) {
            (NAME_IN_HEX, Some((&number, after))) => {
                object.extend(hex(number).into_bytes());
                rest = after;
            }
            (NAME_IN_BYTES, Some((&number, after))) => {
                object.extend([number; 20]);
                rest = after;
            }
            _ => object.push(byte),
        }
    }
    object
}

fn hex(number: u8) -> String {
    format!("{number:02x}").repeat(20)
}
