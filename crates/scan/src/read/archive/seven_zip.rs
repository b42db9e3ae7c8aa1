//! 7z: a header at the end says how its members are packed, often many of them as one stream.

use std::io::{self, Read};

use sevenz_rust2::{ArchiveReader, Error, Password};

use super::{ReadSeek, Stop, Walk, inside};
use crate::source::item::UnreadableReason;

pub(super) fn walk(file: &mut dyn ReadSeek, path: &[u8], depth: u32, walk: &mut Walk<'_>) -> Result<(), Stop> {
    let mut reader = ArchiveReader::new(file, Password::empty()).map_err(|_| Stop::Broken)?;
    reader.set_thread_count(1);
    let mut stopped = None;
    let done = reader.for_each_entries(|entry, content| {
        if entry.is_directory() {
            return Ok(true);
        }
        let name = inside(path, entry.name().as_bytes());
        match walk.member(&name, content, depth + 1).and_then(|()| checked(content, walk)) {
            Ok(()) => Ok(true),
            // What follows in the stream cannot be reached; streams behind it can.
            Err(Stop::Broken) if !walk.budget.is_spent.get() => {
                walk.members.unreadable(&name, UnreadableReason::ArchiveDamaged);
                Ok(true)
            }
            Err(stop) => {
                stopped = Some(stop);
                Err(Error::from(io::Error::other("no more is wanted")))
            }
        }
    });
    match (stopped, done) {
        (Some(stop), _) => Err(stop),
        (None, Ok(())) => Ok(()),
        (None, Err(_)) => Err(Stop::Broken),
    }
}

/// The rest of what was not taken, for its checksum.
fn checked(content: &mut dyn Read, walk: &Walk<'_>) -> Result<(), Stop> {
    io::copy(&mut super::Counted { inner: content, budget: walk.budget }, &mut io::sink())?;
    Ok(())
}
