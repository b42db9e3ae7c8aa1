//! The contents of blobs, read along their deltas.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::delta::Copied;
use crate::kinds::Kinds;
use crate::oid::Oid;
use crate::pack::{Held, PackReader};
use crate::{At, CHAIN_MAX, Kind, NO_END, OBJECT_BYTES_MAX, ObjectError, Store, TOO_MUCH, WORK_BYTES_MAX, apply};

/// Bytes of bases that are kept. A chain is most often fifty blobs long; of longer or larger ones the beginnings are made again.
const KEPT_BYTES_MAX: usize = 12 << 20;

/// What became of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobRead {
    /// It was read.
    Read,
    /// It is larger than asked for, or made from something that is too large for memory; so many bytes.
    TooLarge(u64),
    /// The operating system refuses.
    Denied,
    /// The repository does not have it.
    Missing,
    /// It cannot be read.
    Corrupt,
}

/// An object of the chain that leads to the last blob.
#[derive(Debug)]
struct Link<N> {
    offset: u64,
    kind: Kind,
    content: Vec<u8>,
    /// What the caller found out about it.
    note: Option<N>,
}

/// Reads blobs out of a store. `N` is what the caller notes of a blob, and meets again at those that are made from it.
#[derive(Debug)]
pub struct StoreReader<N> {
    path: PathBuf,
    store: Arc<Store>,
    reader: PackReader,
    /// `None` for what is no name of an object.
    asked: VecDeque<Option<Oid>>,
    /// The pack that `chain` is of.
    pack: usize,
    /// Bases of the last blob, each a delta of the one before it, and the blob itself.
    chain: Vec<Link<N>>,
    chain_bytes: usize,
    /// What the last blob has in common with the link before it.
    copied: Vec<Copied>,
    /// A blob that lies in a file of its own.
    loose: Option<Vec<u8>>,
    delta: Vec<u8>,
    /// Deltas that lead nowhere, once one was met.
    kinds: Kinds,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
}

impl<N> StoreReader<N> {
    /// A reader of this store, which was opened at `path`.
    pub fn new(path: &Path, store: Arc<Store>) -> Self {
        Self {
            path: path.to_path_buf(),
            store,
            reader: PackReader::new(),
            asked: VecDeque::new(),
            pack: 0,
            chain: Vec::new(),
            chain_bytes: 0,
            copied: Vec::new(),
            loose: None,
            delta: Vec::new(),
            kinds: Kinds::default(),
            spare: Vec::new(),
        }
    }

    /// Asks for blobs, to be read in this order.
    pub fn request<'o>(&mut self, oids: impl Iterator<Item = &'o [u8]>) {
        self.asked.extend(oids.map(Oid::new));
    }

    /// Reads the next one, as long as it is at most `bytes_max` bytes long. An error is one that passes.
    pub fn next(&mut self, bytes_max: u64) -> io::Result<BlobRead> {
        let Some(oid) = self.asked.pop_front().flatten() else { return Ok(BlobRead::Corrupt) };
        let read = self.read(&oid, bytes_max);
        if let Err(ObjectError::Corrupt(_)) = read {
            // What was put together before it broke is of no further use.
            self.cut_chain(0);
        }
        outcome(read)
    }

    /// Reads a blob that is too large to be held, and offers it to `sink` in pieces of some hundred kilobytes until it wants
    /// no more. Not every one can be read so: then it is too large.
    pub fn pieces(&mut self, oid: &[u8], sink: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<BlobRead> {
        outcome(match Oid::new(oid) {
            Some(oid) => self.whole_in_pieces(&oid, sink),
            None => Err(ObjectError::Missing),
        })
    }

    /// The content of the last one, if it was read.
    pub fn content(&self) -> &[u8] {
        match (&self.loose, self.chain.last()) {
            (Some(content), _) => content,
            (None, Some(link)) => &link.content,
            (None, None) => &[],
        }
    }

    /// What was noted of the blob from which the last one is made, and the stretches that come from it, in order.
    pub fn kin(&self) -> Option<(&N, &[Copied])> {
        if self.loose.is_some() || self.copied.is_empty() {
            return None;
        }
        let base = self.chain.len().checked_sub(2).map(|base| &self.chain[base])?;
        base.note.as_ref().map(|note| (note, &self.copied[..]))
    }

    /// Notes something of the last one, for those that are made from it.
    pub fn note(&mut self, note: N) {
        if let (None, Some(link)) = (&self.loose, self.chain.last_mut()) {
            link.note = Some(note);
        }
    }

    /// Forgets what was asked for and not read.
    pub fn reset(&mut self) {
        self.asked.clear();
    }

    fn read(&mut self, oid: &Oid, bytes_max: u64) -> Result<(), ObjectError> {
        self.loose = None;
        self.copied.clear();
        match self.find(oid)? {
            At::Loose(dir) => {
                let loose = self.store.loose(dir, oid)?;
                if loose.kind != Kind::Blob {
                    return Err(ObjectError::Corrupt("it is no blob"));
                }
                if loose.size > bytes_max {
                    return Err(ObjectError::TooLarge(loose.size));
                }
                let mut content = self.buffer();
                loose.read(&mut content)?;
                self.loose = Some(content);
                Ok(())
            }
            At::Pack(pack, offset) => self.packed(pack, offset, bytes_max),
        }
    }

    /// Finds an object, also if it was put into a new pack since the store was opened.
    fn find(&mut self, oid: &Oid) -> Result<At, ObjectError> {
        if let Some(at) = self.store.find(oid) {
            return Ok(at);
        }
        if self.store.is_stale()
            && let Ok(store) = Store::open(&self.path)
        {
            self.cut_chain(0);
            self.reader = PackReader::new();
            self.kinds = Kinds::default();
            self.store = Arc::new(store);
        }
        self.store.find(oid).ok_or(ObjectError::Missing)
    }

    fn packed(&mut self, pack: usize, offset: u64, bytes_max: u64) -> Result<(), ObjectError> {
        if pack != self.pack {
            self.cut_chain(0);
            self.pack = pack;
        }
        let store = Arc::clone(&self.store);
        let mut entry = store.entry(&mut self.reader, pack, offset)?;
        // Backwards to a link that is there, or to the whole object at the beginning.
        let (mut at, mut wanted) = (offset, Vec::new());
        let known = loop {
            if let Some(link) = self.chain.iter().rposition(|link| link.offset == at) {
                break link + 1;
            }
            wanted.push((at, entry));
            match store.base_of(pack, &entry)? {
                None => break 0,
                Some(base) if wanted.len() > CHAIN_MAX || self.kinds.leads_nowhere(pack, base) => {
                    // Looks whether it is a ring, so that the others on it are not tried.
                    self.kinds.packed(&store, &mut self.reader, pack, offset);
                    return Err(NO_END);
                }
                Some(base) => at = base,
            }
            entry = store.entry(&mut self.reader, pack, at)?;
        };
        self.cut_chain(known);
        let mut work = 0;
        while let Some((offset, entry)) = wanted.pop() {
            let bytes_max = if wanted.is_empty() { bytes_max } else { OBJECT_BYTES_MAX };
            // Of large ones only the base stays while the next is made.
            self.drop_first(1);
            let mut content = self.buffer();
            let kind = match entry.held {
                Held::Whole(_) if entry.size > bytes_max => return Err(ObjectError::TooLarge(entry.size)),
                Held::Whole(kind) => {
                    store.inflate(&mut self.reader, pack, &entry, &mut content)?;
                    self.copied.clear();
                    kind
                }
                _ => {
                    let base = self.chain.last().expect("a delta is never the first of a chain");
                    let kind = base.kind;
                    store.inflate(&mut self.reader, pack, &entry, &mut self.delta)?;
                    let applied = apply(&base.content, &self.delta, bytes_max, &mut content, &mut self.copied);
                    self.delta.clear();
                    self.delta.shrink_to(KEPT_BYTES_MAX / 8);
                    applied?;
                    kind
                }
            };
            work += content.len() as u64;
            if work > WORK_BYTES_MAX {
                return Err(TOO_MUCH);
            }
            self.push(Link { offset, kind, content, note: None });
        }
        match self.chain.last() {
            Some(link) if link.content.len() as u64 > bytes_max => {
                Err(ObjectError::TooLarge(link.content.len() as u64))
            }
            Some(link) if link.kind == Kind::Blob => Ok(()),
            _ => Err(ObjectError::Corrupt("it is no blob")),
        }
    }

    /// Offers a blob of any size in pieces, if it is stored whole.
    fn whole_in_pieces(&mut self, oid: &Oid, sink: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), ObjectError> {
        const NO_BLOB: ObjectError = ObjectError::Corrupt("it is no blob");
        match self.find(oid)? {
            At::Loose(dir) => {
                let loose = self.store.loose(dir, oid)?;
                if loose.kind == Kind::Blob { loose.pieces(sink) } else { Err(NO_BLOB) }
            }
            At::Pack(pack, offset) => {
                let entry = self.store.entry(&mut self.reader, pack, offset)?;
                match entry.held {
                    Held::Whole(Kind::Blob) => {
                        self.reader.pieces(pack, &self.store.packs[pack], entry.data_at, entry.size, sink)
                    }
                    Held::Whole(_) => Err(NO_BLOB),
                    Held::DeltaTo(_) | Held::DeltaToNamed(_) => Err(ObjectError::TooLarge(entry.size)),
                }
            }
        }
    }

    fn push(&mut self, link: Link<N>) {
        self.chain_bytes += link.content.len();
        self.chain.push(link);
        // The last two stay: the blob, and the one it is made from.
        self.drop_first(2);
    }

    /// Drops the beginning of the chain as long as it is too large, but for the last `len` links.
    fn drop_first(&mut self, len: usize) {
        while self.chain_bytes > KEPT_BYTES_MAX && self.chain.len() > len {
            let first = self.chain.remove(0);
            self.chain_bytes -= first.content.len();
            self.keep_buffer(first.content);
        }
    }

    /// Keeps the first links of the chain.
    fn cut_chain(&mut self, len: usize) {
        while self.chain.len() > len {
            let link = self.chain.pop().expect("it is longer than that");
            self.chain_bytes -= link.content.len();
            self.keep_buffer(link.content);
        }
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn keep_buffer(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < 4 && buffer.capacity() <= KEPT_BYTES_MAX / 8 {
            self.spare.push(buffer);
        }
    }
}

/// What became of a blob; an error of the operating system is of this object, or one that passes.
fn outcome(read: Result<(), ObjectError>) -> io::Result<BlobRead> {
    match read {
        Ok(()) => Ok(BlobRead::Read),
        Err(ObjectError::Missing) => Ok(BlobRead::Missing),
        Err(ObjectError::TooLarge(size)) => Ok(BlobRead::TooLarge(size)),
        Err(ObjectError::Corrupt(_)) => Ok(BlobRead::Corrupt),
        Err(ObjectError::Io(source)) => match source.kind() {
            io::ErrorKind::PermissionDenied => Ok(BlobRead::Denied),
            io::ErrorKind::InvalidData => Ok(BlobRead::Corrupt),
            _ => Err(source),
        },
    }
}
