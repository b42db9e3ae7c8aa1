//! The handle that workers hold, and the group commit behind it.
//!
//! The first caller in an open batch leads it: it waits for the write under way, then writes for all that joined since. The
//! others sleep until their own batch is settled, so that a write wakes its own callers, once, and no others: with many
//! threads, waking is the main cost. The next leader is woken first: the disk has nothing to do until it comes.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use redb::StorageBackend;
use tessera_coordination::backend::Wrapper;
use tessera_coordination::error::InfraError;
use tessera_coordination::events::EventSink;
use tessera_coordination::{CoordinatorRuntimeConfig, InMemoryCoordinator};

use crate::changes::{Changes, Recorder};
use crate::error::OpenError;
use crate::file;
use crate::rows::Rows;
use crate::store::Store;

/// Coordination through one file. Cheap to clone: every worker thread has its own handle, and they share each write.
///
/// An answer is given once everything it rests on is durable, reads included: no caller has seen a change that a crash takes back.
#[derive(Clone, Debug)]
pub struct LocalCoordinator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    config: CoordinatorRuntimeConfig,
    state: Mutex<State>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.store.tidy();
    }
}

#[derive(Debug)]
struct State {
    memory: InMemoryCoordinator,
    /// The changes of the open batch.
    changes: Changes,
    /// Where the rows of a batch are gathered, kept for its memory; the writer has it.
    rows: Rows,
    /// The batch that operations join now.
    open: Arc<Batch>,
    /// Whether a leader is to write it.
    led: bool,
    /// The batch that is being written.
    in_flight: Option<Arc<Batch>>,
    /// Set when even reading the file again failed: nothing in memory can be trusted any more.
    broken: Option<String>,
}

/// Operations that share one write, and how it went.
#[derive(Debug, Default)]
struct Batch {
    /// Set when nothing is being written, so that the leader can go on.
    turn: OnceLock<()>,
    outcome: OnceLock<Result<(), String>>,
}

impl Batch {
    fn call_leader(&self) {
        // Once is enough.
        let _ = self.turn.set(());
    }

    /// Only the first word counts: a batch that was given up is not settled again.
    fn settle(&self, outcome: Result<(), String>) {
        let _ = self.outcome.set(outcome);
    }

    /// Waits until it is known how it went.
    fn settled(&self) -> Result<(), InfraError> {
        self.outcome.wait().clone().map_err(|problem| InfraError::transient("local.commit", problem))
    }
}

impl LocalCoordinator {
    /// Opens the file, or makes it. Only one process can have it open.
    pub fn open(path: impl AsRef<Path>, config: CoordinatorRuntimeConfig) -> Result<Self, OpenError> {
        let path = path.as_ref();
        Self::with_store(path, file::open(path)?, config)
    }

    /// Uses other storage than a file: for tests that tear it, and for platforms that bring their own. A store that is made
    /// in empty storage gets a log of at most `log_bytes`; one that is there keeps its own.
    pub fn open_backend(
        backend: impl StorageBackend,
        log_bytes: u32,
        config: CoordinatorRuntimeConfig,
    ) -> Result<Self, OpenError> {
        let path = Path::new("<storage>");
        Self::with_store(path, Store::open(path, Arc::new(backend), log_bytes)?, config)
    }

    fn with_store(path: &Path, store: Store, config: CoordinatorRuntimeConfig) -> Result<Self, OpenError> {
        let memory = store.load(config).map_err(|failed| OpenError::of_load(path, failed))?;
        let (changes, rows) = (Changes::default(), Rows::default());
        let state = State { memory, changes, rows, open: Arc::default(), led: false, in_flight: None, broken: None };
        let shared = Shared { store, config, state: Mutex::new(state) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Writes the open batch as soon as the one before it is written, for all callers that join until then.
    fn lead<'s>(&'s self, mut state: MutexGuard<'s, State>) -> Result<(), InfraError> {
        state.led = true;
        let batch = Arc::clone(&state.open);
        if state.in_flight.is_some() {
            drop(state);
            batch.turn.wait();
            state = self.lock();
        }
        // If the write before it failed, this batch was given up with it.
        if batch.outcome.get().is_none() {
            self.write_open_batch(state);
        }
        batch.settled()
    }

    fn write_open_batch(&self, mut state: MutexGuard<'_, State>) {
        let batch = std::mem::take(&mut state.open);
        state.led = false;
        if let Some(problem) = &state.broken {
            return batch.settle(Err(problem.clone()));
        }
        let changes = std::mem::take(&mut state.changes);
        let mut rows = std::mem::take(&mut state.rows);
        let gathered = changes.append_to(&mut rows, &mut state.memory);
        state.in_flight = Some(Arc::clone(&batch));
        drop(state);
        let written = gathered
            .map_err(|error| error.to_string())
            .and_then(|()| self.shared.store.write(rows.bytes()).map_err(|failed| failed.to_string()));
        rows.clear();
        let mut state = self.lock();
        state.rows = rows;
        state.in_flight = None;
        if let Err(problem) = &written {
            self.go_back(&mut state, problem);
        }
        let next = state.led.then(|| Arc::clone(&state.open));
        // Sleeping callers find the lock free when they wake.
        drop(state);
        if let Some(next) = next {
            next.call_leader();
        }
        batch.settle(written);
    }

    /// The file did not take a write: memory returns to the state of the file, and callers that joined since are told.
    fn go_back(&self, state: &mut State, problem: &str) {
        match self.shared.store.load(self.shared.config) {
            Ok(memory) => state.memory = memory,
            Err(error) => state.broken = Some(format!("{problem}; and reading the file again failed: {error}")),
        }
        state.changes = Changes::default();
        state.led = false;
        let given_up = std::mem::take(&mut state.open);
        given_up.settle(Err(problem.to_string()));
        given_up.call_leader();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(|poisoned| {
            // A decision panicked over a violated invariant. It may have changed memory, and that must never reach the
            // file: from here on nothing is answered, and the file keeps its last good state.
            let mut state = poisoned.into_inner();
            state.changes = Changes::default();
            state.broken = Some("an operation violated an invariant; restart to go on from the file".to_string());
            state
        })
    }
}

impl Wrapper for LocalCoordinator {
    type Inner = InMemoryCoordinator;

    /// Runs one operation in memory and answers when all that it rests on is durable.
    fn pass<T, E: From<InfraError>>(
        &mut self,
        events: &mut dyn EventSink,
        operation: impl FnOnce(&mut InMemoryCoordinator, &mut dyn EventSink) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut state = self.lock();
        if let Some(problem) = &state.broken {
            return Err(InfraError::corruption("local.broken", problem.clone()).into());
        }
        let mut kept = Vec::new();
        let State { memory, changes, .. } = &mut *state;
        let mut recorder = Recorder { changes, kept: events.is_enabled().then_some(&mut kept) };
        let answer = operation(memory, &mut recorder);
        let rests_on = if state.changes.is_empty() { state.in_flight.clone() } else { Some(Arc::clone(&state.open)) };
        if state.changes.is_empty() || state.led {
            drop(state);
            rests_on.map_or(Ok(()), |batch| batch.settled())?;
        } else {
            self.lead(state)?;
        }
        for event in kept {
            events.emit(event);
        }
        answer
    }
}
