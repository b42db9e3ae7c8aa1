//! The file: four tables of a redb database.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `format` | "format" | the version of this layout |
//! | `runs` | tenant, run | run record |
//! | `roots` | tenant, run | list of roots |
//! | `cold`, `hot` | tenant, run, shard | the two parts of a shard's record |
//!
//! Numbers in keys are big-endian, so that a run's shards lie together. Values are those of
//! [`tessera_coordination::stored`].

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition, TableError};
use tessera_contracts::ids::{RunId, ShardId, ShardKey, TenantId};
use tessera_coordination::error::InfraError;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::stored::{ColdPart, HOT_BYTES_USUAL, HotPart, HotView, RootsPart, RunPart, join};
use tessera_coordination::{CoordinatorRuntimeConfig, InMemoryCoordinator};

use crate::error::OpenError;

/// The layout that is written.
const FORMAT: u32 = 1;

const FORMATS: TableDefinition<'_, &str, u32> = TableDefinition::new("format");
const RUNS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("runs");
const ROOTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("roots");
const COLD: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("cold");
const HOT: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("hot");

/// What one commit writes.
#[derive(Debug, Default)]
pub(crate) struct Write {
    pub(crate) runs: Vec<RunRecord>,
    /// Shards whose cold part is written.
    pub(crate) whole: Vec<ShardRecord>,
    pub(crate) hot: HotParts,
    pub(crate) gone: Vec<(TenantId, RunId)>,
}

/// Hot parts one behind the other, as they are stored: they are most of what is ever written, and to encode one where the
/// record lies takes less time than to copy the record.
#[derive(Debug, Default)]
pub(crate) struct HotParts {
    /// Each shard and where its bytes end.
    shards: Vec<(TenantId, ShardKey, usize)>,
    bytes: Vec<u8>,
}

impl HotParts {
    pub(crate) fn with_capacity(shards: usize) -> Self {
        Self { shards: Vec::with_capacity(shards), bytes: Vec::with_capacity(shards * HOT_BYTES_USUAL) }
    }

    pub(crate) fn push(&mut self, tenant: TenantId, key: ShardKey, part: &HotView<'_>) {
        part.append_to(&mut self.bytes);
        self.shards.push((tenant, key, self.bytes.len()));
    }

    fn iter(&self) -> impl Iterator<Item = ([u8; 48], &[u8])> {
        let mut begin = 0;
        self.shards.iter().map(move |(tenant, key, end)| {
            let part = &self.bytes[begin..*end];
            begin = *end;
            (shard_key(*tenant, *key), part)
        })
    }
}

#[derive(Debug)]
pub(crate) struct Store {
    database: Database,
}

impl Store {
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let io = |source| OpenError::Io { path: path.to_path_buf(), source };
        // An empty file is what `touch` and other tools leave behind: as good as none.
        if !fs::metadata(path).is_ok_and(|found| found.len() > 0) {
            Self::create(path)?;
        }
        let database = Database::open(path).map_err(|error| OpenError::of_database(path, error))?;
        let store = Self { database }.checked(path)?;
        // Whoever is here owns the file, so what a crashed creator left behind is nobody's.
        for leftover in leftovers(path).map_err(io)? {
            fs::remove_file(leftover).map_err(io)?;
        }
        Ok(store)
    }

    /// Makes the file under another name and links it into place when it is whole: a crash in the middle must not leave a
    /// file that the next start refuses. If another process was faster, its file stands.
    fn create(path: &Path) -> Result<(), OpenError> {
        let io = |source| OpenError::Io { path: path.to_path_buf(), source };
        let mut name = path.as_os_str().to_owned();
        name.push(format!("{LEFTOVER}{}", std::process::id()));
        let draft = PathBuf::from(name);
        let _ = fs::remove_file(&draft);
        let database = Database::create(&draft).map_err(|error| OpenError::of_database(path, error))?;
        drop(Self { database }.checked(path)?);
        if fs::metadata(path).is_ok_and(|found| found.len() == 0) {
            fs::remove_file(path).map_err(io)?;
        }
        match fs::hard_link(&draft, path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(io(error)),
            _ => fs::remove_file(&draft).map_err(io)?,
        }
        // The new name lives in the folder, which has to reach the disk as well.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)
    }

    /// Opens storage that is not a file; for tests that tear it.
    pub(crate) fn open_backend(path: &Path, backend: impl StorageBackend) -> Result<Self, OpenError> {
        let database = Database::builder().create_with_backend(backend);
        let database = database.map_err(|error| OpenError::of_database(path, error))?;
        Self { database }.checked(path)
    }

    /// Refuses a database of another layout, and marks a new one.
    fn checked(self, path: &Path) -> Result<Self, OpenError> {
        let damaged = |error: redb::Error| OpenError::Damaged { path: path.to_path_buf(), problem: error.to_string() };
        let found = self.format().map_err(damaged)?;
        match found {
            Some(FORMAT) => Ok(self),
            Some(_) => Err(OpenError::Format { path: path.to_path_buf(), found, known: FORMAT }),
            None if self.is_empty().map_err(damaged)? => {
                self.mark().map_err(damaged)?;
                Ok(self)
            }
            None => Err(OpenError::Format { path: path.to_path_buf(), found, known: FORMAT }),
        }
    }

    fn format(&self) -> Result<Option<u32>, redb::Error> {
        match self.database.begin_read()?.open_table(FORMATS) {
            Ok(table) => Ok(table.get("format")?.map(|found| found.value())),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn is_empty(&self) -> Result<bool, redb::Error> {
        Ok(self.database.begin_read()?.list_tables()?.next().is_none())
    }

    fn mark(&self) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        transaction.open_table(FORMATS)?.insert("format", FORMAT)?;
        for table in [RUNS, ROOTS, COLD, HOT] {
            transaction.open_table(table)?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Writes all of it, durably, or none.
    pub(crate) fn write(&self, write: &Write) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        // Each table that is opened is looked up first; a checkpoint needs one.
        if !write.gone.is_empty() || !write.runs.is_empty() {
            let mut runs = transaction.open_table(RUNS)?;
            let mut roots = transaction.open_table(ROOTS)?;
            for (tenant, run) in &write.gone {
                let key = run_key(*tenant, *run);
                runs.remove(key.as_slice())?;
                roots.remove(key.as_slice())?;
            }
            for record in &write.runs {
                let key = run_key(record.tenant, record.run);
                runs.insert(key.as_slice(), RunPart::of(record, None).encode().as_slice())?;
                let list = RootsPart { roots: record.root_shards.clone() };
                roots.insert(key.as_slice(), list.encode().as_slice())?;
            }
        }
        if !write.gone.is_empty() || !write.whole.is_empty() {
            let mut cold = transaction.open_table(COLD)?;
            for (tenant, run) in &write.gone {
                let shards = shards_of(*tenant, *run);
                cold.retain_in(shards.0.as_slice()..=shards.1.as_slice(), |_, _| false)?;
            }
            for record in &write.whole {
                let part = ColdPart::of(record).encode();
                cold.insert(shard_key(record.tenant, record.key).as_slice(), part.as_slice())?;
            }
        }
        if !write.gone.is_empty() || !write.hot.shards.is_empty() {
            let mut hot = transaction.open_table(HOT)?;
            for (tenant, run) in &write.gone {
                let shards = shards_of(*tenant, *run);
                hot.retain_in(shards.0.as_slice()..=shards.1.as_slice(), |_, _| false)?;
            }
            for (key, part) in write.hot.iter() {
                hot.insert(key.as_slice(), part)?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// Everything in the file, as a coordinator.
    pub(crate) fn load(&self, config: CoordinatorRuntimeConfig) -> Result<InMemoryCoordinator, InfraError> {
        let mut memory = InMemoryCoordinator::new(config)
            .map_err(|error| InfraError::transient("local.config", error.to_string()))?;
        let transaction = self.database.begin_read().map_err(|error| unreadable(&error))?;
        let runs = transaction.open_table(RUNS).map_err(|error| unreadable(&error))?;
        let roots = transaction.open_table(ROOTS).map_err(|error| unreadable(&error))?;
        let cold = transaction.open_table(COLD).map_err(|error| unreadable(&error))?;
        let hot = transaction.open_table(HOT).map_err(|error| unreadable(&error))?;
        for row in runs.iter().map_err(|error| unreadable(&error))? {
            let (key, part) = row.map_err(|error| unreadable(&error))?;
            let (tenant, run) = parse_run_key(key.value())?;
            let list = roots.get(key.value()).map_err(|error| unreadable(&error))?;
            let list = list.ok_or_else(|| corrupt(format!("run {run} has no list of roots")))?;
            let list = RootsPart::decode(list.value()).map_err(|error| corrupt(format!("run {run}: {error}")))?;
            let part = RunPart::decode(part.value()).map_err(|error| corrupt(format!("run {run}: {error}")))?;
            memory.restore_run(part.into_record(tenant, run, list.roots))?;
        }
        for row in hot.iter().map_err(|error| unreadable(&error))? {
            let (key, part) = row.map_err(|error| unreadable(&error))?;
            let (tenant, shard) = parse_shard_key(key.value())?;
            let other = cold.get(key.value()).map_err(|error| unreadable(&error))?;
            let other = other.ok_or_else(|| corrupt(format!("shard {shard} has no range")))?;
            let hot = HotPart::decode(part.value()).map_err(|error| corrupt(format!("shard {shard}: {error}")))?;
            let cold = ColdPart::decode(other.value()).map_err(|error| corrupt(format!("shard {shard}: {error}")))?;
            memory.restore_shard(&join(tenant, shard, cold, hot))?;
        }
        Ok(memory)
    }
}

/// Between a file's name and the process that was making it.
const LEFTOVER: &str = ".new-";

fn leftovers(path: &Path) -> io::Result<Vec<PathBuf>> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut prefix = path.file_name().unwrap_or_default().to_owned();
    prefix.push(LEFTOVER);
    let is_leftover = |name: &OsStr| name.as_encoded_bytes().starts_with(prefix.as_encoded_bytes());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if is_leftover(&entry.file_name()) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn unreadable(error: &dyn std::error::Error) -> InfraError {
    InfraError::corruption("local.read", error.to_string())
}

fn corrupt(problem: String) -> InfraError {
    InfraError::corruption("local.load", problem)
}

fn run_key(tenant: TenantId, run: RunId) -> [u8; 40] {
    let mut key = [0; 40];
    key[..32].copy_from_slice(tenant.as_bytes());
    key[32..].copy_from_slice(&run.get().to_be_bytes());
    key
}

fn shard_key(tenant: TenantId, shard: ShardKey) -> [u8; 48] {
    let mut key = [0; 48];
    key[..40].copy_from_slice(&run_key(tenant, shard.run));
    key[40..].copy_from_slice(&shard.shard.get().to_be_bytes());
    key
}

/// The first and the last key that a shard of the run can have.
fn shards_of(tenant: TenantId, run: RunId) -> ([u8; 48], [u8; 48]) {
    let at = |shard| shard_key(tenant, ShardKey::new(run, ShardId::new(shard)));
    (at(0), at(u64::MAX))
}

fn parse_run_key(key: &[u8]) -> Result<(TenantId, RunId), InfraError> {
    let (tenant, rest) = key.split_first_chunk().ok_or_else(|| corrupt("a run's key is too short".to_string()))?;
    let run = rest.try_into().map_err(|_| corrupt("a run's key has the wrong length".to_string()))?;
    Ok((TenantId::from_bytes(*tenant), RunId::new(u64::from_be_bytes(run))))
}

fn parse_shard_key(key: &[u8]) -> Result<(TenantId, ShardKey), InfraError> {
    let (rest, shard) = key.split_last_chunk().ok_or_else(|| corrupt("a shard's key is too short".to_string()))?;
    let (tenant, run) = parse_run_key(rest)?;
    Ok((tenant, ShardKey::new(run, ShardId::new(u64::from_be_bytes(*shard)))))
}
