//! The file, as one store: batches go to the log, and from there to the tables when the log is full.

use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::{Database, StorageBackend, WriteTransaction};
use tessera_coordination::error::InfraError;
use tessera_coordination::{CoordinatorRuntimeConfig, InMemoryCoordinator};

use crate::error::{Failed, OpenError};
use crate::layout::{Behind, FORMAT, Found, Header};
use crate::log::Log;
use crate::rows::Latest;
use crate::tables;

/// How long the log of a new file may become. It bounds the entries that the tables do not contain yet, and so the time of a start
/// after a crash.
pub(crate) const LOG_BYTES: u32 = 4 << 20;

#[derive(Debug)]
pub(crate) struct Store {
    log: Mutex<Log>,
    database: Database,
}

impl Store {
    /// Opens storage, or makes a store with a log of so many bytes in it if it is empty. Errors name it `path`.
    pub(crate) fn open(path: &Path, storage: Arc<dyn StorageBackend>, log_bytes: u32) -> Result<Self, OpenError> {
        let io = |source| OpenError::Io { path: path.to_path_buf(), source };
        let damaged = |problem: String| OpenError::Damaged { path: path.to_path_buf(), problem };
        let of_another = |found| OpenError::Format { path: path.to_path_buf(), found, known: FORMAT };
        let is_new = storage.len().map_err(io)? == 0;
        if is_new {
            let header = Header { log_bytes, salt: random() };
            let made = storage.set_len(header.tables_at()).and_then(|()| storage.write(0, &header.encode()));
            made.and_then(|()| storage.sync_data()).map_err(io)?;
        }
        let header = match Header::find(&*storage).map_err(io)? {
            Found::Ours(header) => header,
            Found::Other(format) => return Err(of_another(Some(format))),
            Found::Damaged => return Err(damaged("its header is damaged".to_string())),
            Found::None => return Err(damaged("it is not a file of coordination runs".to_string())),
        };
        let behind = Behind { storage: Arc::clone(&storage), at: header.tables_at() };
        if !is_new && behind.len().map_err(io)? == 0 {
            return Err(damaged("it ends before its tables".to_string()));
        }
        let database = Database::builder().create_with_backend(behind);
        let database = database.map_err(|error| OpenError::of_database(path, error))?;
        let unreadable = |error: redb::Error| damaged(error.to_string());
        if is_new {
            tables::mark(&database, FORMAT).map_err(unreadable)?;
        }
        match tables::format(&database).map_err(unreadable)? {
            Some(FORMAT) => {}
            found => return Err(of_another(found)),
        }
        let contained = tables::contained(&database).map_err(unreadable)?;
        let contained = contained.ok_or_else(|| damaged("its tables do not say what they contain".to_string()))?;
        let log = Log::open(storage, header, contained).map_err(io)?.map_err(damaged)?;
        Ok(Self { log: Mutex::new(log), database })
    }

    /// Writes all rows of a batch, durably, or none. If that fails, the store is to be loaded before the next write.
    pub(crate) fn write(&self, rows: &[u8]) -> Result<(), Failed> {
        let mut log = self.log();
        if log.has_room_for(rows) {
            return log.append(rows).map_err(|error| Failed::storage(&error));
        }
        if log.can_ever_hold(rows) {
            self.fold(&mut log, &[], |_| Ok(()))?;
            return log.append(rows).map_err(|error| Failed::storage(&error));
        }
        self.fold(&mut log, rows, |_| Ok(()))
    }

    /// Everything in the file, as a coordinator. Entries of the log are in the tables afterwards, and a batch that could
    /// not be written counts for nothing from then on.
    pub(crate) fn load(&self, config: CoordinatorRuntimeConfig) -> Result<InMemoryCoordinator, Failed> {
        let mut log = self.log();
        self.fold(&mut log, &[], |transaction| tables::load(transaction, config))
    }

    /// Leaves nothing in the log, which makes the next start short. If it fails, that start does it. Not for a store that
    /// was not loaded: its log may be the reason why it is refused.
    pub(crate) fn tidy(&self) {
        let _ = self.fold(&mut self.log(), &[], |_| Ok(()));
    }

    /// Puts the rows of the log, and some more, into the tables, unless `check` refuses the result.
    fn fold<T>(
        &self,
        log: &mut Log,
        more: &[u8],
        check: impl FnOnce(&WriteTransaction) -> Result<T, InfraError>,
    ) -> Result<T, Failed> {
        let entries = log.entries().map_err(|error| Failed::storage(&error))?;
        let mut latest = Latest::default();
        for rows in entries.rows() {
            rows.and_then(|rows| latest.take_in(rows)).map_err(tables::corrupt)?;
        }
        latest.take_in(more).map_err(tables::corrupt)?;
        let transaction = self.database.begin_write().map_err(|error| Failed::storage(&error))?;
        let contained = tables::apply(&transaction, &latest, log.last()).map_err(|error| Failed::storage(&error))?;
        let answer = check(&transaction)?;
        if contained != log.last() || !more.is_empty() {
            transaction.commit().map_err(|error| Failed::storage(&error))?;
            log.restart();
        }
        Ok(answer)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // Nothing is left half done in it by a panic: an entry counts once it was synced.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number that differs from file to file.
fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
