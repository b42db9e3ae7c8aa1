//! A disk that machines share, and that keeps no more than file systems promise.
//!
//! Appended and unsynced bytes are lost with their machine, from any byte on; a file's block that was allocated and never written
//! reads as zeros. A file that was cut may have its old end again. A name that was not synced may be gone or be the old one.
//! A list may leave out a file that another machine has just made. Synced data stays.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tessera_scan::files::{AppendFile, Folder, ReadFile};

use super::config::Met;
use crate::coordination::dice::Dice;

/// A machine that has the disk mounted.
pub type Machine = u32;

/// Rates of faults, in a million.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskFaults {
    /// An append writes a part and fails.
    pub append: u32,
    /// A sync fails, and some of it may be durable.
    pub sync: u32,
    /// A file cannot be made or renamed.
    pub name: u32,
    /// The end of a file that a power cut tears reads as zeros.
    pub zeros: u32,
}

/// A disk that machines share.
#[derive(Debug, Clone)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    files: BTreeMap<String, Stored>,
    dice: Dice,
    faults: DiskFaults,
    met: Met,
    now: u64,
    /// Files younger than this are left out of another machine's lists.
    stale_for: u64,
}

#[derive(Debug)]
struct Stored {
    /// Which of all files that had this name.
    id: u64,
    writer: Machine,
    made_at: u64,
    /// Shared with those that have it open.
    bytes: Arc<Vec<u8>>,
    /// So many bytes are durable.
    synced: usize,
    /// Its end before it was cut and where that began, if it may come back.
    uncut: Option<(usize, Vec<u8>)>,
    name: Name,
}

#[derive(Debug)]
enum Name {
    Durable,
    /// Not there after a power cut, perhaps.
    New,
    /// The old name may be back after a power cut, and the earlier file under the new one.
    Renamed {
        from: String,
        replaced: Option<Box<Stored>>,
    },
}

impl Disk {
    /// An empty disk.
    pub fn new(seed: u64, faults: DiskFaults) -> Self {
        let files = BTreeMap::new();
        let (dice, met) = (Dice::new(seed), Met::default());
        Self(Arc::new(Mutex::new(State { files, dice, faults, met, now: 0, stale_for: 0 })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk as a machine sees it.
    pub fn seen_by(&self, machine: Machine) -> Mounted {
        Mounted { disk: self.clone(), machine }
    }

    /// Time passes.
    pub fn set_now(&self, now: u64) {
        self.state().now = now;
    }

    /// From now on nothing fails.
    pub fn heal(&self) {
        self.state().faults = DiskFaults::default();
    }

    /// How long files stay out of other machines' lists.
    pub fn set_stale_for(&self, stale_for: u64) {
        self.state().stale_for = stale_for;
    }

    /// How often it failed.
    pub fn met(&self) -> Met {
        self.state().met
    }

    /// The machine loses its power.
    pub fn cut_power(&self, machine: Machine) {
        let state = &mut *self.state();
        let own = state.files.iter().filter(|(_, stored)| stored.writer == machine);
        let names: Vec<String> = own.map(|(name, _)| name.clone()).collect();
        for name in names {
            let Some(mut stored) = state.files.remove(&name) else { continue };
            stored.tear(&mut state.dice, state.faults.zeros, &mut state.met);
            let keeps_name = state.dice.happens(500_000);
            match std::mem::replace(&mut stored.name, Name::Durable) {
                Name::New if !keeps_name => {}
                Name::Renamed { from, replaced } if !keeps_name => {
                    if let Some(replaced) = replaced {
                        state.files.insert(name, *replaced);
                    }
                    state.files.insert(from, stored);
                }
                _ => {
                    state.files.insert(name, stored);
                }
            }
        }
    }
}

impl Stored {
    /// Applies a power cut.
    fn tear(&mut self, dice: &mut Dice, zeros: u32, met: &mut Met) {
        let bytes = Arc::make_mut(&mut self.bytes);
        if let Some((from, end)) = self.uncut.take().filter(|_| dice.happens(300_000)) {
            bytes.truncate(from);
            bytes.extend_from_slice(&end);
        }
        let kept = dice.between(self.synced as u64, bytes.len() as u64) as usize;
        if dice.happens(zeros) {
            met.count("zeros");
            bytes[kept..].fill(0);
        } else {
            bytes.truncate(kept);
        }
        self.synced = bytes.len();
    }
}

/// The disk as a machine sees it.
#[derive(Debug, Clone)]
pub struct Mounted {
    disk: Disk,
    machine: Machine,
}

fn fails(what: &str) -> io::Error {
    io::Error::other(format!("simulated: {what} failed"))
}

fn missing() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Folder for Mounted {
    fn make(&self) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn AppendFile>> {
        let state = &mut *self.disk.state();
        if state.dice.happens(state.faults.name) {
            state.met.count("disk");
            return Err(fails("making a file"));
        }
        if state.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = state.dice.roll();
        state.files.insert(
            name.to_owned(),
            Stored {
                id,
                writer: self.machine,
                made_at: state.now,
                bytes: Arc::default(),
                synced: 0,
                uncut: None,
                name: Name::New,
            },
        );
        Ok(Box::new(Appended { disk: self.disk.clone(), name: name.to_owned(), id }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadFile>> {
        let state = &mut *self.disk.state();
        let stored = state.files.get(name).ok_or_else(missing)?;
        // Another machine's cache is not seen before it is synced, or only in part.
        let seen = if stored.writer == self.machine {
            stored.bytes.len()
        } else {
            state.dice.between(stored.synced as u64, stored.bytes.len() as u64) as usize
        };
        Ok(Box::new(Bytes { bytes: Arc::clone(&stored.bytes), seen }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let state = &mut *self.disk.state();
        let is_stale = |stored: &Stored| stored.writer != self.machine && state.now < stored.made_at + state.stale_for;
        let listed = state.files.iter().filter(|(_, stored)| !is_stale(stored));
        let listed: Vec<String> = listed.map(|(name, _)| name.clone()).collect();
        if listed.len() < state.files.len() {
            state.met.count("stale");
        }
        Ok(listed)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let state = &mut *self.disk.state();
        if state.dice.happens(state.faults.name) {
            state.met.count("disk");
            return Err(fails("a rename"));
        }
        let mut stored = state.files.remove(from).ok_or_else(missing)?;
        let replaced = state.files.remove(to).map(Box::new);
        stored.name = Name::Renamed { from: from.to_owned(), replaced };
        state.files.insert(to.to_owned(), stored);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.state().files.remove(name).map(|_| ()).ok_or_else(missing)
    }

    fn sync(&self) -> io::Result<()> {
        let state = &mut *self.disk.state();
        if state.dice.happens(state.faults.sync) {
            state.met.count("disk");
            return Err(fails("a sync of names"));
        }
        for stored in state.files.values_mut().filter(|stored| stored.writer == self.machine) {
            stored.name = Name::Durable;
        }
        Ok(())
    }

    fn path_of(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }
}

/// A file that is being written.
#[derive(Debug)]
struct Appended {
    disk: Disk,
    name: String,
    id: u64,
}

impl Appended {
    fn with<T>(&self, write: impl FnOnce(&mut Stored, &mut Dice, DiskFaults) -> io::Result<T>) -> io::Result<T> {
        let state = &mut *self.disk.state();
        let stored = state.files.get_mut(&self.name).filter(|stored| stored.id == self.id).ok_or_else(missing)?;
        let written = write(stored, &mut state.dice, state.faults);
        if written.is_err() {
            state.met.count("disk");
        }
        written
    }
}

impl AppendFile for Appended {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.with(|stored, dice, faults| {
            if dice.happens(faults.append) {
                let part = dice.between(0, bytes.len() as u64) as usize;
                Arc::make_mut(&mut stored.bytes).extend_from_slice(&bytes[..part]);
                return Err(io::ErrorKind::StorageFull.into());
            }
            Arc::make_mut(&mut stored.bytes).extend_from_slice(bytes);
            Ok(())
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        self.with(|stored, dice, faults| {
            if dice.happens(faults.sync) {
                stored.synced = dice.between(stored.synced as u64, stored.bytes.len() as u64) as usize;
                return Err(fails("a sync"));
            }
            (stored.synced, stored.uncut) = (stored.bytes.len(), None);
            Ok(())
        })
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.with(|stored, _, _| {
            let len = len as usize;
            if len < stored.bytes.len() {
                stored.uncut = Some((len, Arc::make_mut(&mut stored.bytes).split_off(len)));
                stored.synced = stored.synced.min(len);
            }
            Ok(())
        })
    }
}

/// A machine's view of a file when it opened it.
#[derive(Debug)]
struct Bytes {
    bytes: Arc<Vec<u8>>,
    seen: usize,
}

impl ReadFile for Bytes {
    fn byte_len(&self) -> io::Result<u64> {
        Ok(self.seen as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let from = usize::try_from(at).map_err(io::Error::other)?;
        let part = self.bytes[..self.seen].get(from..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with a synced and an unsynced part, after a power cut.
    fn after_power_cut(seed: u64, zeros: u32) -> Option<Vec<u8>> {
        let disk = Disk::new(seed, DiskFaults { zeros, ..DiskFaults::default() });
        let folder = disk.seen_by(1);
        let mut file = folder.create("f").unwrap();
        file.append(b"durable").unwrap();
        file.sync().unwrap();
        folder.sync().unwrap();
        file.append(b"lost, perhaps").unwrap();
        disk.cut_power(1);
        tessera_scan::files::read(&folder, "f").ok()
    }

    #[test]
    fn a_power_cut_keeps_what_was_synced_and_anything_or_nothing_of_the_rest() {
        let lengths: std::collections::BTreeSet<usize> = (0..200)
            .map(|seed| {
                let kept = after_power_cut(seed, 0).unwrap();
                assert!(b"durablelost, perhaps".starts_with(&kept) && kept.starts_with(b"durable"));
                kept.len()
            })
            .collect();
        assert_eq!(lengths, (7..=20).collect());
        let zeroed = (0..50).filter(|seed| after_power_cut(*seed, 1_000_000).unwrap().ends_with(&[0])).count();
        assert!(zeroed > 30, "{zeroed}");
    }

    #[test]
    fn names_are_durable_once_they_are_synced() {
        let (mut gone, mut old) = (0, 0);
        for seed in 0..100 {
            let disk = Disk::new(seed, DiskFaults::default());
            let folder = disk.seen_by(1);
            tessera_scan::files::replace(&folder, "a", b"first").unwrap();
            let mut file = folder.create("b").unwrap();
            file.append(b"second").unwrap();
            file.sync().unwrap();
            folder.create("c").unwrap();
            folder.rename("b", "a").unwrap();
            disk.cut_power(1);
            gone += usize::from(!folder.list().unwrap().contains(&"c".to_owned()));
            let now = tessera_scan::files::read(&folder, "a").unwrap();
            assert!(now == b"first" || now == b"second", "whole, one or the other");
            old += usize::from(now == b"first");
        }
        assert!((20..80).contains(&gone) && (20..80).contains(&old), "{gone} {old}");
    }

    #[test]
    fn another_machine_sees_what_was_synced_and_young_files_late() {
        let disk = Disk::new(1, DiskFaults::default());
        disk.set_stale_for(10);
        let mut file = disk.seen_by(1).create("f").unwrap();
        file.append(b"x").unwrap();
        file.sync().unwrap();
        assert_eq!((disk.seen_by(1).list().unwrap().len(), disk.seen_by(2).list().unwrap().len()), (1, 0));
        disk.set_now(10);
        assert_eq!(disk.seen_by(2).list().unwrap(), ["f"]);
        assert_eq!(tessera_scan::files::read(&disk.seen_by(2), "f").unwrap(), b"x");
    }
}
