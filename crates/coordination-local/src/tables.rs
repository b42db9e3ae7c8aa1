//! The tables: a redb database behind the log.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `format` | "format" | the version of the file's layout |
//! | `log` | "contained" | the number of the last entry of the log that the tables contain |
//! | `runs` | tenant, run | run record |
//! | `roots` | tenant, run | list of roots |
//! | `cold`, `hot` | tenant, run, shard | the two parts of a shard's record |
//!
//! Values are those of [`tessera_coordination::stored`].

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};
use tessera_coordination::error::InfraError;
use tessera_coordination::stored::{ColdPart, HotPart, RootsPart, RunPart, join};
use tessera_coordination::{CoordinatorRuntimeConfig, InMemoryCoordinator};

use crate::rows::{Latest, Ordered, parse_run_key, parse_shard_key, shards_of};

type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

const FORMATS: TableDefinition<'_, &str, u32> = TableDefinition::new("format");
const LOG: TableDefinition<'_, &str, u64> = TableDefinition::new("log");
const RUNS: Definition = TableDefinition::new("runs");
const ROOTS: Definition = TableDefinition::new("roots");
const COLD: Definition = TableDefinition::new("cold");
const HOT: Definition = TableDefinition::new("hot");

/// The layout that a database says it has.
pub(crate) fn format(database: &Database) -> Result<Option<u32>, redb::Error> {
    match database.begin_read()?.open_table(FORMATS) {
        Ok(table) => Ok(table.get("format")?.map(|found| found.value())),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Marks a new database as one of this layout.
pub(crate) fn mark(database: &Database, format: u32) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(FORMATS)?.insert("format", format)?;
    transaction.open_table(LOG)?.insert("contained", 0)?;
    for table in [RUNS, ROOTS, COLD, HOT] {
        transaction.open_table(table)?;
    }
    transaction.commit()?;
    Ok(())
}

/// The number of the last entry of the log that the tables contain; `None` if they do not say.
pub(crate) fn contained(database: &Database) -> Result<Option<u64>, redb::Error> {
    let table = database.begin_read()?.open_table(LOG)?;
    let contained = table.get("contained")?.map(|found| found.value());
    Ok(contained)
}

/// Puts rows into the tables, which then contain the log up to a number; answers up to which they did before.
pub(crate) fn apply(transaction: &WriteTransaction, latest: &Latest<'_>, contained: u64) -> Result<u64, redb::Error> {
    let before = transaction.open_table(LOG)?.insert("contained", contained)?.map_or(0, |before| before.value());
    for (definition, rows) in [(RUNS, &latest.runs), (ROOTS, &latest.roots)] {
        let gone = latest.gone.iter().map(|run| (*run, *run));
        replace(transaction, definition, gone, rows)?;
    }
    for (definition, rows) in [(COLD, &latest.cold), (HOT, &latest.hot)] {
        replace(transaction, definition, latest.gone.iter().map(shards_of), rows)?;
    }
    Ok(before)
}

/// Removes rows within `gone`, then writes `rows`.
fn replace<const KEY_BYTES: usize>(
    transaction: &WriteTransaction,
    definition: Definition,
    gone: impl ExactSizeIterator<Item = ([u8; KEY_BYTES], [u8; KEY_BYTES])>,
    rows: &Ordered<'_>,
) -> Result<(), redb::Error> {
    // Each table that is opened is looked up first.
    if gone.len() == 0 && rows.is_empty() {
        return Ok(());
    }
    let mut table = transaction.open_table(definition)?;
    for (first, last) in gone {
        table.retain_in(first.as_slice()..=last.as_slice(), |_, _| false)?;
    }
    for (key, value) in rows {
        table.insert(*key, *value)?;
    }
    Ok(())
}

/// Everything in the tables, as a coordinator.
pub(crate) fn load(
    transaction: &WriteTransaction,
    config: CoordinatorRuntimeConfig,
) -> Result<InMemoryCoordinator, InfraError> {
    let mut memory =
        InMemoryCoordinator::new(config).map_err(|error| InfraError::transient("local.config", error.to_string()))?;
    let open = |table| transaction.open_table(table).map_err(|error| unreadable(&error));
    let (runs, roots, cold, hot) = (open(RUNS)?, open(ROOTS)?, open(COLD)?, open(HOT)?);
    for row in runs.iter().map_err(|error| unreadable(&error))? {
        let (key, part) = row.map_err(|error| unreadable(&error))?;
        let (tenant, run) = parse_run_key(key.value()).ok_or_else(|| corrupt("a run's key is none".to_string()))?;
        let list = roots.get(key.value()).map_err(|error| unreadable(&error))?;
        let list = list.ok_or_else(|| corrupt(format!("run {run} has no list of roots")))?;
        let list = RootsPart::decode(list.value()).map_err(|error| corrupt(format!("run {run}: {error}")))?;
        let part = RunPart::decode(part.value()).map_err(|error| corrupt(format!("run {run}: {error}")))?;
        memory.restore_run(part.into_record(tenant, run, list.roots))?;
    }
    for row in hot.iter().map_err(|error| unreadable(&error))? {
        let (key, part) = row.map_err(|error| unreadable(&error))?;
        let (tenant, shard) =
            parse_shard_key(key.value()).ok_or_else(|| corrupt("a shard's key is none".to_string()))?;
        let other = cold.get(key.value()).map_err(|error| unreadable(&error))?;
        let other = other.ok_or_else(|| corrupt(format!("shard {shard} has no range")))?;
        let hot = HotPart::decode(part.value()).map_err(|error| corrupt(format!("shard {shard}: {error}")))?;
        let cold = ColdPart::decode(other.value()).map_err(|error| corrupt(format!("shard {shard}: {error}")))?;
        let record =
            join(tenant, shard, cold, hot).map_err(|mismatch| corrupt(format!("shard {shard}: {mismatch}")))?;
        memory.restore_shard(&record)?;
    }
    Ok(memory)
}

fn unreadable(error: &dyn std::error::Error) -> InfraError {
    InfraError::corruption("local.read", error.to_string())
}

pub(crate) fn corrupt(problem: String) -> InfraError {
    InfraError::corruption("local.load", problem)
}
