//! The coordinator in one file, the code that ships, over a disk that loses its power in the middle of a write.
//!
//! A power cut ends the call that was under way: its caller hears of a failure, and of the bytes written since the last
//! sync some are there afterwards, some are not, and some are there half. The coordinator is then opened again on the rest.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;
use tessera_coordination_local::LocalCoordinator;

use super::checkers;
use super::config::{Config, Level};
use super::dice::Dice;
use super::runtime_config;
use super::sink::Sink;
use super::stage::{Stage, Violation, Weather};
use super::world::{Report, World};

/// One world around the coordinator in a file.
pub fn simulate(config: &Config, level: Level) -> Result<Report, Violation> {
    World::around(stage(config, level), config.clone()).run()
}

/// The stage of such a world.
pub fn stage(config: &Config, level: Level) -> Stage<LocalCoordinator> {
    let disk = Disk::default();
    let backend = open(&disk, config);
    let cuts = match level {
        Level::Sunny => 0,
        Level::Breezy => 2_000,
        Level::Stormy => 30_000,
        Level::Radioactive => 90_000,
    };
    let power = Power { disk, config: config.clone(), dice: Dice::new(config.seed ^ 0xd15c_d15c), cuts };
    Stage::new(checkers::all(), config.clone(), backend, Sink::of(config)).with_weather(Box::new(power))
}

/// A log that is full after a few dozen operations, so that the power also fails while it is folded into the tables.
const LOG_BYTES: u32 = 16 << 10;

fn open(disk: &Disk, config: &Config) -> LocalCoordinator {
    let opened = LocalCoordinator::open_backend(disk.clone(), LOG_BYTES, runtime_config(config));
    opened.expect("what was synced can be opened")
}

/// When the power fails: in so many calls of a million, during one of the next few writes.
#[derive(Debug)]
struct Power {
    disk: Disk,
    config: Config,
    dice: Dice,
    cuts: u32,
}

/// A call takes about so many writes and syncs, two if the log has room; a cut falls before, into or after them.
const WRITES_OF_A_CALL: u64 = 8;

impl Weather<LocalCoordinator> for Power {
    fn set_faults(&mut self, may_happen: bool) {
        let cut = (may_happen && self.dice.happens(self.cuts)).then(|| self.dice.below(WRITES_OF_A_CALL));
        self.disk.lock().writes_until_cut = cut;
    }

    fn restart_if_down(&mut self, backend: &mut LocalCoordinator) -> bool {
        if !self.disk.lock().is_down {
            return false;
        }
        self.disk = self.disk.after_power_cut(&mut self.dice);
        *backend = open(&self.disk, &self.config);
        true
    }

    fn pass(&mut self, _: u64) {}
}

/// A written file: visible to readers at once, there for good after a sync.
#[derive(Clone, Debug, Default)]
struct Disk {
    platter: Arc<Mutex<Platter>>,
}

#[derive(Debug, Default)]
struct Platter {
    durable: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
    writes_until_cut: Option<u64>,
    is_down: bool,
}

impl Disk {
    fn lock(&self) -> MutexGuard<'_, Platter> {
        self.platter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn after_power_cut(&self, dice: &mut Dice) -> Self {
        let platter = self.lock();
        let mut image = platter.durable.clone();
        for (offset, bytes) in &platter.unsynced {
            let kept = match dice.below(3) {
                0 => 0,
                1 => bytes.len(),
                _ => dice.below(bytes.len() as u64 + 1) as usize,
            };
            put(&mut image, *offset, &bytes[..kept]);
        }
        let platter = Platter { durable: image.clone(), current: image, ..Platter::default() };
        Self { platter: Arc::new(Mutex::new(platter)) }
    }
}

fn put(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[offset..end].copy_from_slice(bytes);
}

impl Platter {
    fn use_power(&mut self) -> io::Result<()> {
        if self.writes_until_cut == Some(0) {
            self.is_down = true;
        }
        if self.is_down {
            return Err(io::Error::other("the power is gone"));
        }
        self.writes_until_cut = self.writes_until_cut.map(|left| left - 1);
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.lock();
        let end = offset as usize + out.len();
        out.copy_from_slice(platter.current.get(offset as usize..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut platter = self.lock();
        platter.use_power()?;
        // A length is metadata and taken as durable at once; the harsher half, lost contents, is kept.
        platter.current.resize(len as usize, 0);
        platter.durable.resize(len as usize, 0);
        platter.unsynced.retain(|(offset, bytes)| offset + bytes.len() <= len as usize);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.lock();
        platter.use_power()?;
        let Platter { durable, unsynced, .. } = &mut *platter;
        for (offset, bytes) in unsynced.drain(..) {
            put(durable, offset, &bytes);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.lock();
        platter.use_power()?;
        put(&mut platter.current, offset as usize, data);
        platter.unsynced.push((offset as usize, data.to_vec()));
        Ok(())
    }
}
