//! A directory in memory that loses power on demand, for tests and simulations of crashes.
//!
//! Synced data survives. Of the rest, creations, renames and removals survive as a prefix of the calls, and a
//! file's unsynced bytes survive sector by sector, as if the disk had written them in any order; a sector that did not make it
//! reads as it was before (as zeros, if the file was not so long), or as noise, or the file ends before it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::wal::storage::{Storage, StorageFile};

const SECTOR_BYTES: usize = 512;

/// The directory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct FaultyDirectory {
    state: Arc<Mutex<State>>,
}

/// An open file of a [`FaultyDirectory`].
#[derive(Debug)]
pub struct FaultyFile {
    state: Arc<Mutex<State>>,
    inode: u64,
    /// Where the next bytes go; the file beyond is room.
    end: usize,
    /// Files opened before a crash are dead after it.
    power_cycle: u64,
}

#[derive(Debug, Default)]
struct State {
    next_inode: u64,
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<String, u64>,
    /// The directory that is certain after a crash, and the changes since.
    names_synced: BTreeMap<String, u64>,
    pending: Vec<NameChange>,
    operations: u64,
    operations_max: Option<u64>,
    /// The first operation after the last has been refused.
    dead: bool,
    power_cycle: u64,
    syncs: u64,
}

#[derive(Clone, Debug)]
enum NameChange {
    Set(String, u64),
    Rename(String, String),
    Remove(String),
}

#[derive(Debug, Default)]
struct Inode {
    bytes: Vec<u8>,
    synced: Vec<u8>,
}

impl FaultyDirectory {
    /// Loses power after this many more operations that write: the one after them, and all later ones, fail.
    pub fn fail_after(&self, operations: u64) {
        let mut state = self.lock();
        state.operations_max = Some(state.operations + operations);
    }

    /// Operations that wrote something, so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Times a file was synced.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// Loses power and comes back, with the fate of everything unsynced decided by `random`.
    pub fn crash(&self, mut random: impl FnMut() -> u64) {
        let mut state = self.lock();
        state.operations_max = None;
        state.dead = false;
        state.power_cycle += 1;
        let survivors = random() as usize % (state.pending.len() + 1);
        let mut names = std::mem::take(&mut state.names_synced);
        for change in state.pending.drain(..).take(survivors).collect::<Vec<_>>() {
            apply(&mut names, &change);
        }
        state.names.clone_from(&names);
        state.names_synced = names;
        for inode in state.inodes.values_mut() {
            inode.tear(&mut random);
        }
    }

    /// Flips one bit of a file, as a failing disk might.
    pub fn flip_bit(&self, name: &str, at: usize, bit: u8) {
        let mut state = self.lock();
        if let Some(inode) = state.names.get(name).copied().and_then(|inode| state.inodes.get_mut(&inode))
            && let Some(byte) = inode.bytes.get_mut(at)
        {
            *byte ^= 1 << (bit % 8);
            inode.synced.clone_from(&inode.bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inode {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[at..end].copy_from_slice(bytes);
    }

    fn tear(&mut self, random: &mut impl FnMut() -> u64) {
        if self.bytes.len() < self.synced.len() {
            // Cut shorter than its synced length and not synced since: either length may be left.
            if random().is_multiple_of(2) {
                self.bytes.clone_from(&self.synced);
            }
        } else {
            let unsynced = self.bytes.len() - self.synced.len();
            self.bytes.truncate(self.synced.len() + random() as usize % (unsynced + 1));
            let is_new = |at: &usize| self.synced.get(*at) != self.bytes.get(*at);
            let mut at = (0..self.bytes.len()).find(is_new).unwrap_or(self.bytes.len());
            let new_end = (at..self.bytes.len()).rfind(is_new).map_or(at, |last| last + 1);
            while at < new_end {
                let sector_end = (at / SECTOR_BYTES + 1) * SECTOR_BYTES;
                let end = sector_end.min(new_end);
                match random() % 4 {
                    0 => (at..end).for_each(|at| self.bytes[at] = self.synced.get(at).copied().unwrap_or(0)),
                    1 => self.bytes[at..end].fill_with(|| random() as u8),
                    _ => {}
                }
                at = end;
            }
        }
        self.synced.clone_from(&self.bytes);
    }
}

impl State {
    fn write(&mut self) -> io::Result<()> {
        if self.operations_max.is_some_and(|most| self.operations >= most) {
            return Err(io::Error::other("the power is off"));
        }
        self.operations += 1;
        Ok(())
    }

    fn change(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.pending.push(change);
    }
}

fn apply(names: &mut BTreeMap<String, u64>, change: &NameChange) {
    match change {
        NameChange::Set(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        NameChange::Rename(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        NameChange::Remove(name) => {
            names.remove(name);
        }
    }
}

fn not_found(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no file {name}"))
}

impl Storage for FaultyDirectory {
    type File = FaultyFile;

    fn create(&self, name: &str) -> io::Result<FaultyFile> {
        let mut state = self.lock();
        state.write()?;
        let inode = state.next_inode;
        state.next_inode += 1;
        state.inodes.insert(inode, Inode::default());
        state.change(NameChange::Set(name.to_owned(), inode));
        Ok(FaultyFile { state: self.state.clone(), inode, end: 0, power_cycle: state.power_cycle })
    }

    fn open(&self, name: &str, len: u64) -> io::Result<FaultyFile> {
        let mut state = self.lock();
        state.write()?;
        let inode = *state.names.get(name).ok_or_else(|| not_found(name))?;
        let power_cycle = state.power_cycle;
        let file = state.inodes.get_mut(&inode).ok_or_else(|| not_found(name))?;
        file.bytes.truncate(len as usize);
        Ok(FaultyFile { state: self.state.clone(), inode, end: len as usize, power_cycle })
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let state = self.lock();
        let inode = state.names.get(name).and_then(|inode| state.inodes.get(inode));
        inode.map(|inode| inode.bytes.clone()).ok_or_else(|| not_found(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.lock().names.keys().cloned().collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.write()?;
        if !state.names.contains_key(from) {
            return Err(not_found(from));
        }
        state.change(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.write()?;
        if !state.names.contains_key(name) {
            return Err(not_found(name));
        }
        state.change(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.write()?;
        state.pending.clear();
        state.names_synced = state.names.clone();
        Ok(())
    }
}

impl StorageFile for FaultyFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        // The power may fail in the middle of this: then the bytes are with the disk, and the crash decides which survive.
        let at = self.end;
        self.end += bytes.len();
        self.with(true, |inode| inode.write(at, bytes))
    }

    fn make_room(&mut self, bytes: usize) -> io::Result<()> {
        let at = self.end;
        self.with(true, |inode| inode.write(at, &vec![0; bytes]))
    }

    fn give_back_room(&mut self) -> io::Result<()> {
        let end = self.end;
        self.with(true, |inode| inode.bytes.truncate(end))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.with(false, |inode| inode.synced.clone_from(&inode.bytes))?;
        self.state.lock().unwrap_or_else(PoisonError::into_inner).syncs += 1;
        Ok(())
    }
}

impl FaultyFile {
    fn with(&mut self, happens_halfway: bool, act: impl FnOnce(&mut Inode)) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.power_cycle != self.power_cycle {
            return Err(io::Error::other("the file was open when the power failed"));
        }
        let dying = state.operations_max == Some(state.operations) && !state.dead;
        state.dead |= dying;
        let written = state.write();
        if written.is_ok() || (dying && happens_halfway) {
            act(state.inodes.get_mut(&self.inode).ok_or_else(|| not_found("(removed)"))?);
        }
        written
    }
}
