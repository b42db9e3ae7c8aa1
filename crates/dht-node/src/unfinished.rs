//! Large values that are being stored, as the data folder knows them: a node that ended in the middle of one forgets its parts when it
//! starts again.
//!
//! The logs bring back every part that was stored, and without the root, which comes last, nothing names them: they would be kept alive
//! for ever, and no caller could delete them. So the ids of all records are in a file before the first is stored, and the file goes when
//! the root is stored or all the rest forgotten.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;

use tessera_contracts::point::{ContentId, Point as _};

use crate::call::block_on;
use crate::data_dir::write_new;
use crate::error::NodeError;
use crate::forget::{self, Rest};
use crate::inner::{Inner, running};

/// More than the ids of the largest value take.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A file that says of which value records may be kept that nothing names. Stays unless the value is said to be finished.
#[derive(Debug)]
pub(crate) struct Unfinished(PathBuf);

impl Unfinished {
    /// Before the first of the records `ids` of the value `root` is stored.
    pub(crate) fn begin(folder: &Path, root: &ContentId, ids: &BTreeSet<ContentId>) -> io::Result<Self> {
        let path = folder.join(root.to_string());
        let content: Vec<u8> = ids.iter().flat_map(|id| *id.as_bytes()).collect();
        match write_new(&path, &content) {
            // An earlier rest of the same value was not forgotten yet, and has the same records.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Self(path)),
            written => written.map(|()| Self(path)),
        }
    }

    /// All of the value is stored, or nothing is left of it. A file that cannot be removed is looked at again after the next start.
    pub(crate) fn finish(self) {
        let _ = fs::remove_file(self.0);
    }

    /// The values that a former run left in `folder`.
    fn left_in(folder: &Path) -> Vec<(ContentId, Self)> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, Self(entry.path())))).collect()
    }

    /// Its records. A file that was cut short is of a value of which nothing was stored yet.
    fn ids(&self) -> io::Result<BTreeSet<ContentId>> {
        let mut content = Vec::new();
        fs::File::open(&self.0)?.take(FILE_BYTES_MAX).read_to_end(&mut content)?;
        Ok(content.as_chunks().0.iter().map(|id| ContentId::from_bytes(*id)).collect())
    }
}

/// Forgets, one after the other, the parts of values that a former run did not finish. Does not keep the node running.
pub(crate) fn forget_left_over(inner: Weak<Inner>, folder: &Path) {
    let left = Unfinished::left_in(folder);
    if left.is_empty() {
        return;
    }
    // Without a thread to spare it is done after the next start.
    let _ = std::thread::Builder::new().name("node-undo".to_owned()).spawn(move || {
        for (root, unfinished) in left {
            let Ok(writers) = running(&inner).map(|inner| inner.writers.clone()) else { return };
            let _turn = block_on(writers.take(root));
            // A call stored the same value meanwhile and finished it.
            let Ok(ids) = unfinished.ids() else { continue };
            // A file may outlive its value by a power failure: a value with a root was stored, and its id told.
            forget_rest(&inner, &Rest { root, ids, stored_before: true }, Some(unfinished));
        }
    });
}

/// How often forgetting the rest of a value is tried, and at which interval: a lane that is down may keep a manifest that names the
/// same parts, and has so long to come back.
const TRIES_MAX: usize = 60;
const TRY_EVERY: Duration = Duration::from_secs(2);

/// Forgets the rest of a value; blocks. If the node stops meanwhile, it is not held up, and the file
/// tells the next start.
pub(crate) fn forget_rest(inner: &Weak<Inner>, rest: &Rest, file: Option<Unfinished>) {
    for _ in 0..TRIES_MAX {
        match block_on(forget::undo(inner, rest)) {
            Ok(()) => return file.into_iter().for_each(Unfinished::finish),
            Err(NodeError::Stopped) => return,
            Err(_) => std::thread::sleep(TRY_EVERY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_what_may_be_left_until_the_value_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let (root, ids) = (ContentId::from_bytes([7; 32]), [1, 2, 7].map(|n| ContentId::from_bytes([n; 32])).into());
        drop(Unfinished::begin(folder.path(), &root, &ids).unwrap());
        let again = Unfinished::begin(folder.path(), &root, &ids).unwrap();
        fs::write(folder.path().join("no id"), [1; 64]).unwrap();
        let left = Unfinished::left_in(folder.path());
        assert_eq!(left.len(), 1, "a file of no value is left alone");
        assert_eq!((left[0].0, left[0].1.ids().unwrap()), (root, ids));
        fs::write(&left[0].1.0, [9; 70]).unwrap();
        assert_eq!(
            left[0].1.ids().unwrap(),
            BTreeSet::from([ContentId::from_bytes([9; 32])]),
            "a torn file does no harm"
        );
        again.finish();
        assert!(Unfinished::left_in(folder.path()).is_empty() && left[0].1.ids().is_err());
    }
}
