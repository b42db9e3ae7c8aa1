//! Objects that lie in files of their own, because they are young.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::ZlibDecoder;

use crate::oid::{Oid, hex_oid};
use crate::pack::PIECE_BYTES;
use crate::{Kind, OBJECT_BYTES_MAX, ObjectError, plain_file};

/// Longest head: a type, a size and a zero.
const HEAD_BYTES_MAX: u64 = 32;

/// Where the object would lie in this folder of objects.
fn path_in(dir: &Path, oid: &Oid) -> PathBuf {
    let hex = hex_oid(oid.as_bytes());
    dir.join(&hex[..2]).join(&hex[2..])
}

/// Whether the object lies in this folder of objects.
pub(crate) fn is_in(dir: &Path, oid: &Oid) -> bool {
    path_in(dir, oid).exists()
}

/// An object whose head was read.
pub(crate) struct Loose {
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    content: ZlibDecoder<io::BufReader<File>>,
}

/// Opens the object, if it lies in this folder of objects.
pub(crate) fn open(dir: &Path, oid: &Oid) -> Result<Option<Loose>, ObjectError> {
    const HEAD: ObjectError = ObjectError::Corrupt("the head of an object makes no sense");
    let file = match plain_file::open(&path_in(dir, oid)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut content = ZlibDecoder::new(io::BufReader::new(file));
    let mut head = Vec::new();
    let mut byte = [0];
    loop {
        content.read_exact(&mut byte).map_err(|_| HEAD)?;
        if byte[0] == 0 {
            break;
        }
        head.push(byte[0]);
        if head.len() as u64 > HEAD_BYTES_MAX {
            return Err(HEAD);
        }
    }
    let (kind, size) = std::str::from_utf8(&head).ok().and_then(|head| head.split_once(' ')).ok_or(HEAD)?;
    let kind = match kind {
        "commit" => Kind::Commit,
        "tree" => Kind::Tree,
        "blob" => Kind::Blob,
        "tag" => Kind::Tag,
        _ => return Err(HEAD),
    };
    Ok(Some(Loose { kind, size: size.parse().map_err(|_| HEAD)?, content }))
}

impl Loose {
    /// Reads the content into `out`.
    pub(crate) fn read(self, out: &mut Vec<u8>) -> Result<(), ObjectError> {
        if self.size > OBJECT_BYTES_MAX {
            return Err(ObjectError::TooLarge(self.size));
        }
        out.clear();
        // One byte more, so that content longer than its head says shows.
        self.content
            .take(self.size + 1)
            .read_to_end(out)
            .map_err(|_| ObjectError::Corrupt("an object cannot be inflated"))?;
        if out.len() as u64 == self.size {
            Ok(())
        } else {
            Err(ObjectError::Corrupt("an object is not as long as it says"))
        }
    }
}

impl Loose {
    /// Offers the content to `sink` in pieces, until it wants no more.
    pub(crate) fn pieces(mut self, sink: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), ObjectError> {
        let (mut piece, mut rest) = (vec![0; PIECE_BYTES], self.size);
        while rest > 0 {
            let len = rest.min(PIECE_BYTES as u64) as usize;
            let read = self.content.read_exact(&mut piece[..len]);
            read.map_err(|_| ObjectError::Corrupt("an object cannot be inflated"))?;
            rest -= len as u64;
            if !sink(&piece[..len]) {
                return Ok(());
            }
        }
        match self.content.read(&mut piece[..1]) {
            Ok(0) => Ok(()),
            _ => Err(ObjectError::Corrupt("an object is not as long as it says")),
        }
    }
}

/// Names of all objects in this folder of objects, in order.
pub(crate) fn all(dir: &Path, oid_len: usize) -> io::Result<Vec<Oid>> {
    let mut all = Vec::new();
    for first in 0..=255_u8 {
        let prefix = hex_oid(&[first]);
        let entries = match std::fs::read_dir(dir.join(&prefix)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let name = entry?.file_name();
            let hex = [prefix.as_bytes(), name.as_encoded_bytes()].concat();
            all.extend(Oid::from_hex(&hex).filter(|oid| oid.as_bytes().len() == oid_len));
        }
    }
    all.sort_unstable();
    Ok(all)
}
