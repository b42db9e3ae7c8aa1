//! Whether a file is still what it was when it was read.
//!
//! A file is known by its inode, size and times. Changing its content moves `ctime`, which no program can set; so a file
//! whose stamp is the same has the same content, with one exception that git also knows: a file that changes twice within
//! one tick of the file system's clock keeps its stamp. A stamp is *racy* if the file was not older than that tick when it
//! was looked at, and then proves nothing. (A second exception remains: a program that has a file mapped into its memory changes a page
//! that is already dirty without moving `ctime`, until the system has written that page back.)
//!
//! The device is left out: it differs between machines that mount the same tree. Stamps are taken before the file is
//! opened. A change in between makes the stamp too old, which costs another reading and hides nothing.
//!
//! A segment keeps one digest of all items it covers, in key order: a thousandth of what a list of them would take, and
//! enough, since a segment that differs anywhere is read again as a whole.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use xxhash_rust::xxh3::Xxh3;

use crate::source::item::{Item, ItemKind};
use crate::wire::{Malformed, Reader, Writer};

/// A file that is younger than this when it is looked at is racy: two seconds are the tick of the coarsest file systems.
pub const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// What a file looked like when it was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds since 1970.
    modified: (i64, i64),
    changed: (i64, i64),
    is_racy: bool,
}

impl Stamp {
    /// What `metadata` says. `asked_at` is a time before it was asked for.
    pub fn of(metadata: &Metadata, asked_at: SystemTime) -> Self {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        let settled = asked_at.checked_sub(SETTLED_AFTER).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let settled = settled.map_or((0, 0), |at| (at.as_secs() as i64, i64::from(at.subsec_nanos())));
        let is_racy = modified.max(changed) >= settled;
        Self { inode: metadata.ino(), size: metadata.len(), modified, changed, is_racy }
    }
}

/// One value for what all items of a segment were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity {
    /// The digest of keys and stamps, in key order.
    pub digest: u128,
    /// Whether a file among them was too young to be known by its stamp.
    pub is_racy: bool,
}

impl Identity {
    /// Whether items that gave `self` are certain to be those that now give `now`.
    pub fn is_still(&self, now: &Self) -> bool {
        self.digest == now.digest && !self.is_racy
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.fixed(&self.digest.to_le_bytes());
        writer.u8(u8::from(self.is_racy));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let digest = u128::from_le_bytes(reader.array()?);
        match reader.u8()? {
            flag @ (0 | 1) => Ok(Self { digest, is_racy: flag == 1 }),
            _ => Err(Malformed("a flag in it is neither 0 nor 1")),
        }
    }
}

/// Makes an [`Identity`] of items, one after the other.
#[derive(Clone, Default)]
pub struct IdentityBuilder {
    hasher: Xxh3,
    is_racy: bool,
}

impl IdentityBuilder {
    /// Adds the next item.
    pub fn add(&mut self, item: &Item) {
        let mut writer = Writer::default();
        writer.bytes(&item.key);
        match &item.kind {
            ItemKind::File => writer.u8(0),
            // Named by its content.
            ItemKind::Blob { .. } => writer.u8(1),
            ItemKind::Skipped { reason, count } => {
                writer.u8(2);
                writer.u8(*reason as u8);
                writer.u64(*count);
            }
            ItemKind::Unreadable { reason, count } => {
                writer.u8(3);
                writer.u8(*reason as u8);
                writer.u64(*count);
            }
        }
        if let Some(stamp) = &item.stamp {
            writer.u64(stamp.inode);
            writer.u64(stamp.size);
            for (seconds, nanoseconds) in [stamp.modified, stamp.changed] {
                writer.u64(seconds.cast_unsigned());
                writer.u64(nanoseconds.cast_unsigned());
            }
            self.is_racy |= stamp.is_racy;
        }
        self.hasher.update(&writer.0);
    }

    /// What was added since the last call.
    pub fn take(&mut self) -> Identity {
        let identity = Identity { digest: self.hasher.digest128(), is_racy: self.is_racy };
        *self = Self::default();
        identity
    }
}

impl std::fmt::Debug for IdentityBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdentityBuilder").field("is_racy", &self.is_racy).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::item::SkipReason;

    fn item(key: &[u8], stamp: Stamp) -> Item {
        Item { key: key.to_vec(), size: stamp.size, kind: ItemKind::File, stamp: Some(stamp) }
    }

    fn identity(items: &[Item]) -> Identity {
        let mut builder = IdentityBuilder::default();
        items.iter().for_each(|item| builder.add(item));
        builder.take()
    }

    const STAMP: Stamp = Stamp { inode: 1, size: 2, modified: (3, 4), changed: (5, 6), is_racy: false };

    #[test]
    fn each_part_of_a_stamp_counts() {
        let before = identity(&[item(b"a", STAMP), item(b"b", STAMP)]);
        assert!(before.is_still(&identity(&[item(b"a", STAMP), item(b"b", STAMP)])));
        let changed = [
            Stamp { inode: 9, ..STAMP },
            Stamp { size: 9, ..STAMP },
            Stamp { modified: (9, 4), ..STAMP },
            Stamp { modified: (3, 9), ..STAMP },
            Stamp { changed: (9, 6), ..STAMP },
            Stamp { changed: (5, 9), ..STAMP },
        ];
        for stamp in changed {
            assert!(!before.is_still(&identity(&[item(b"a", STAMP), item(b"b", stamp)])), "{stamp:?}");
        }
    }

    #[test]
    fn items_that_come_go_or_change_their_kind_count() {
        let (a, b) = (item(b"a", STAMP), item(b"b", STAMP));
        let before = identity(&[a.clone(), b.clone()]);
        let kind = ItemKind::Skipped { reason: SkipReason::Ignored, count: 1 };
        let left_out = Item { kind, stamp: None, ..b.clone() };
        let others = [vec![a.clone()], vec![b.clone()], vec![a.clone(), item(b"ab", STAMP), b], vec![a, left_out]];
        for other in others {
            assert!(!before.is_still(&identity(&other)), "{other:?}");
        }
    }

    #[test]
    fn a_file_as_young_as_the_look_at_it_is_known_by_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.path().symlink_metadata().unwrap();
        let changed = UNIX_EPOCH + Duration::new(metadata.ctime() as u64, metadata.ctime_nsec() as u32);
        let young = Stamp::of(&metadata, changed + SETTLED_AFTER);
        let settled = Stamp::of(&metadata, changed + SETTLED_AFTER + Duration::from_nanos(1));
        assert!(young.is_racy && !settled.is_racy);
        let racy = identity(&[item(b"a", young)]);
        assert!(!racy.is_still(&identity(&[item(b"a", settled)])) && !racy.is_still(&racy));
    }

    #[test]
    fn an_identity_comes_back_from_bytes() {
        let written = Identity { digest: u128::MAX - 7, is_racy: true };
        let mut writer = Writer::default();
        written.write(&mut writer);
        assert_eq!(Identity::read(&mut Reader(&writer.0)), Ok(written));
        *writer.0.last_mut().unwrap() = 2;
        assert!(Identity::read(&mut Reader(&writer.0)).is_err());
    }
}
