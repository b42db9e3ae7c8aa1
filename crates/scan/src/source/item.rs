//! One thing to scan, and what can become of it.
//!
//! Everything a source meets becomes an item with a key, also what it will not or cannot read: so that the receipt
//! adds up, and so that a cursor never moves past something nobody counted.

use std::sync::Arc;

use tessera_contracts::source_family::SourceItem;

use crate::source::identity::Stamp;

/// One thing a source met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its place in the keyspace.
    pub key: Vec<u8>,
    /// How large it was when it was met.
    pub size: u64,
    /// What it is.
    pub kind: ItemKind,
    /// What a file looked like when it was met, so that a change is noticed later.
    pub stamp: Option<Stamp>,
}

/// What a source met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemKind {
    /// A regular file, to be read. Its path is in its key.
    File,
    /// A blob of a repository, to be read.
    Blob {
        /// Its object id: 20 or 32 bytes.
        oid: Box<[u8]>,
        /// The paths it stands at that are to be scanned, with `/` between their parts; one that is empty if none is known.
        paths: Box<[Arc<[u8]>]>,
        /// Whether it stands at further paths that nobody listed, and of which some may be to be scanned.
        has_more: bool,
    },
    /// Things that are left out on purpose.
    Skipped {
        /// Why.
        reason: SkipReason,
        /// How many; a directory that is left out counts once.
        count: u64,
    },
    /// Things that should have been read and cannot be.
    Unreadable {
        /// Why.
        reason: UnreadableReason,
        /// How many are known of.
        count: u64,
    },
}

impl SourceItem for Item {
    fn key(&self) -> &[u8] {
        &self.key
    }

    fn bytes(&self) -> u64 {
        self.size
    }
}

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $number,)*
        }

        impl $name {
            /// All of them, by number.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name in reports.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The reason with this number in stored records.
            pub const fn from_stored(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

reasons! {
    /// Why something was left out on purpose. Numbers are stored; they keep their meaning.
    SkipReason {
        /// A symbolic link: what it points to is scanned where it lies, if it lies in a target.
        Symlink = 1, "symbolic link";
        /// A device, pipe or socket.
        Special = 2, "device, pipe or socket";
        /// Named by a `.gitignore`.
        Ignored = 3, "ignored by .gitignore";
        /// Named by `--exclude`, or not named by `--include`.
        Excluded = 4, "excluded by a filter";
        /// Larger than `--max-file-size`.
        TooLarge = 5, "larger than the size limit";
        /// Not text.
        Binary = 6, "binary";
        /// Git's own folder: its objects are read by `--history`.
        GitInternal = 7, "git's own folder";
        /// An allowlist of the rules names its path.
        Allowlisted = 8, "path allowed by the rules";
        /// The folder of a repository whose index cannot be read: what it tracks is not known, so its ignored files are read too.
        GitIndexUnknown = 9, "git index unreadable: ignored files were read";
        /// An archive, a compressed file, or a document that holds its text in a packed form.
        Packed = 10, "archive or document";
        /// A place where another repository lies.
        Submodule = 11, "submodule";
        /// A text that stands for content which Git LFS keeps elsewhere.
        LfsPointer = 12, "Git LFS pointer";
    }
}

impl SkipReason {
    /// What a user does to have such items read, where something does it.
    pub const fn included_by(self) -> Option<&'static str> {
        match self {
            Self::Ignored => Some("--no-ignore reads them"),
            Self::Binary => Some("--binary reads them"),
            Self::TooLarge => Some("--max-file-size has the limit"),
            Self::GitInternal => Some("--history reads its objects"),
            Self::Packed => Some("--archives reads them"),
            Self::Submodule => Some("each is a target of its own"),
            Self::LfsPointer => Some("`git lfs pull` puts the content into the working tree"),
            Self::Symlink | Self::Special | Self::Excluded | Self::Allowlisted | Self::GitIndexUnknown => None,
        }
    }
}

reasons! {
    /// Why something could not be read. Numbers are stored; they keep their meaning.
    UnreadableReason {
        /// The operating system refused.
        PermissionDenied = 1, "permission denied";
        /// It was there when its directory was listed, and gone when it was opened.
        Vanished = 2, "vanished";
        /// It changed while it was read, twice.
        Changed = 3, "changed while read";
        /// Any other error of the operating system.
        Io = 4, "read error";
        /// Its path is longer than a key or the operating system allows.
        PathTooLong = 5, "path too long";
        /// The repository refers to an object it does not have.
        ObjectMissing = 6, "git object missing";
        /// The repository has an object that does not decompress or has another size than promised.
        ObjectCorrupt = 7, "git object corrupt";
        /// It made the scanner fail.
        Poison = 8, "scanner failed on it";
        /// More came out of an archive than its limits allow: the rest of it was not read.
        ArchiveLimit = 9, "beyond the limits for archives";
        /// An archive or a member of one that cannot be unpacked: damaged, encrypted, or of a kind we do not know.
        ArchiveDamaged = 10, "archive cannot be unpacked";
        /// A shallow clone: what came before this commit is not there.
        HistoryCut = 11, "history cut off (shallow clone)";
        /// A blob stored as a change to another one, both too large to be put together.
        ObjectTooLarge = 12, "git object too large";
        /// It was there when the run was planned, and not when its turn came.
        PlannedNotRead = 13, "planned, not read";
        /// A path of the index with a merge that is not resolved: there is no staged version of it.
        Unmerged = 20, "unmerged in the index";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_numbers_come_back_as_the_same_reason() {
        for &reason in SkipReason::ALL {
            assert_eq!(SkipReason::from_stored(reason as u8), Some(reason));
        }
        for &reason in UnreadableReason::ALL {
            assert_eq!(UnreadableReason::from_stored(reason as u8), Some(reason));
        }
        assert_eq!((SkipReason::from_stored(0), UnreadableReason::from_stored(99)), (None, None));
    }
}
