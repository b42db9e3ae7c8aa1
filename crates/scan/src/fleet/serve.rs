//! A machine of a fleet: takes part in every run of a tenant until it is told to stop.
//!
//! Each thread has its own handle and its own shards. To the coordinator they are one worker: what this machine cannot reach, none
//! of its threads can, and it is said once. A thread goes from run to run: where there is work it works, where
//! there is none it asks those who have some to share, and after a while looks at the next.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tessera_contracts::{LogicalTime, RunId, TenantId, WorkerId};
use tessera_coordination::RunManagement;
use tessera_coordination::error::GetRunError;
use tessera_coordination::run::progress::{RunTerminalEvaluation, evaluate_run_terminal};
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::RunSummary;

use super::follow::complete;
use super::patience::{Patience, infra_of};
use super::sites::{LocalSites, Place, Sites};
use super::{Connect, pause};
use crate::clock::wall_clock;
use crate::error::ScanError;
use crate::findings::LazySink;
use crate::op_ids::random_u64;
use crate::plan::ledger::OpenPlan;
use crate::run::coordinator_name::CoordinatorName;
use crate::run::folder::RunFolder;
use crate::run::label::RunKey;
use crate::sweep::WorkerConfig;
use crate::sweep::worker::{Worker, WorkerEnd, WorkerError, WorkerProgress};

/// How a machine takes part.
#[derive(Debug, Clone)]
pub struct Serving {
    /// The coordinator that is asked.
    pub coordinator: CoordinatorName,
    /// Whose runs.
    pub tenant: TenantId,
    /// The folder that all machines reach under this path.
    pub findings: PathBuf,
    /// Threads; each is a worker.
    pub threads: usize,
    /// How long the coordinator may be away.
    pub give_up_after: Duration,
    /// End when no run has anything open, instead of waiting for the next.
    pub until_done: bool,
}

/// Between two looks for runs, of all threads together. A look is one read of the store, two if there is no run.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// How long a thread stays with the only run there is before it looks for others.
const SLICE: Duration = Duration::from_secs(2);
/// Between two looks at a run in which nothing was open, and whose rest is parked: a look costs more with more shards.
const FINISHED_INTERVAL: Duration = Duration::from_secs(5);
const RUNS_PER_PAGE: usize = 1_000;
/// How long a lease lasts in runs that do not say, in milliseconds.
const LEASE_DURATION_DEFAULT: u64 = 30_000;

/// Works on runs over files and repositories until `stop` is set. `log` is told what people should know.
pub fn serve<C: Connect + Sync>(
    serving: &Serving,
    connect: &C,
    stop: &AtomicBool,
    progress: &Arc<WorkerProgress>,
    log: &(dyn Fn(&str) + Sync),
) -> Result<(), ScanError> {
    serve_sites(serving, connect, &LocalSites, stop, progress, log)
}

/// The same for runs over whatever `sites` read.
pub fn serve_sites<C: Connect + Sync, S: Sites>(
    serving: &Serving,
    connect: &C,
    sites: &S,
    stop: &AtomicBool,
    progress: &Arc<WorkerProgress>,
    log: &(dyn Fn(&str) + Sync),
) -> Result<(), ScanError> {
    // One that cannot go on stops all: the same disk or coordinator would stop them one by one.
    let stop_all = &AtomicBool::new(false);
    let id = WorkerId::new(random_u64());
    let board = &Board::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..serving.threads.max(1) as u64)
            .map(|thread| {
                scope.spawn(move || {
                    let unusable = BTreeSet::new();
                    let mut server =
                        Server { serving, sites, id, thread, stop: stop_all, progress, log, board, unusable };
                    let end = server.run(connect);
                    if end.is_err() {
                        stop_all.store(true, Ordering::Relaxed);
                    }
                    end
                })
            })
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            if stop.load(Ordering::Relaxed) {
                stop_all.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut end = Ok(());
        for thread in threads {
            end = end.and(thread.join().unwrap_or_else(|_| Err(ScanError::Coordinator("a worker panicked".into()))));
        }
        end
    })
}

/// The runs that go on, as one of the threads saw them last: all of them need one look, not one each.
#[derive(Debug, Default)]
struct Board(Mutex<Option<(Instant, BTreeSet<RunKey>)>>);

impl Board {
    fn runs(&self, backend: &mut impl RunManagement, tenant: TenantId) -> Result<BTreeSet<RunKey>, GetRunError> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, runs)) = seen.as_ref().filter(|(at, _)| at.elapsed() < LOOK_INTERVAL) {
            return Ok(runs.clone());
        }
        let runs = active_runs(backend, tenant)?;
        *seen = Some((Instant::now(), runs.clone()));
        Ok(runs)
    }

    /// The next look asks the coordinator. Called at each of its failures: a list from before one does not tell that it is over.
    fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A run that was seen is over: nobody needs to see it again.
    fn take_off(&self, run: &RunKey) {
        if let Some((_, runs)) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            runs.remove(run);
        }
    }
}

struct Server<'s, S> {
    serving: &'s Serving,
    sites: &'s S,
    /// Who this machine is to the coordinator.
    id: WorkerId,
    /// Which of its threads this is.
    thread: u64,
    stop: &'s AtomicBool,
    progress: &'s Arc<WorkerProgress>,
    log: &'s (dyn Fn(&str) + Sync),
    board: &'s Board,
    /// Runs that cannot be worked on from here, so that it is said once.
    unusable: BTreeSet<RunKey>,
}

/// One worker for each run that goes on. Another creation of a run is another run: it has its own job, folder and findings.
type Workers<'s, S> = BTreeMap<RunKey, SiteWorker<'s, S>>;
type SiteWorker<'s, S> = Worker<'s, <S as Sites>::Site<'s>, fn() -> LogicalTime>;

impl<'s, S: Sites> Server<'s, S> {
    fn run<C: Connect>(&mut self, connect: &C) -> Result<(), ScanError> {
        let mut backend = connect.connect().map_err(ScanError::Coordinator)?;
        let mut workers = Workers::<S>::new();
        // Runs in which nothing was open, and when: what is parked in them may be opened again.
        let mut finished: BTreeMap<RunKey, Instant> = BTreeMap::new();
        let mut patience = Patience::new(self.serving.give_up_after, self.stop, self.log);
        while !self.stop.load(Ordering::Relaxed) {
            let runs = match self.board.runs(&mut backend, self.serving.tenant) {
                Ok(runs) => runs,
                Err(error) => {
                    self.board.clear();
                    bear(&mut patience, &error)?;
                    continue;
                }
            };
            patience.succeeded();
            connect.join(&mut backend, self.serving.tenant, self.id);
            workers.retain(|run, _| runs.contains(run));
            let mut is_anything_open = false;
            finished.retain(|run, at: &mut Instant| runs.contains(run) && at.elapsed() < FINISHED_INTERVAL);
            let is_only_one = runs.len() == 1;
            for run in runs {
                if finished.contains_key(&run) || !self.prepare(connect, &mut backend, run, &mut workers) {
                    continue;
                }
                let Some(worker) = workers.get_mut(&run) else { continue };
                // Runs take turns, a shard each, so that a small one ends in time however large its neighbours are.
                let begun = Instant::now();
                match worker.run_while(&mut backend, &|| is_only_one && begun.elapsed() < SLICE) {
                    Ok(WorkerEnd::Stopped) => break,
                    Ok(WorkerEnd::Idle | WorkerEnd::Yielded) => is_anything_open = true,
                    Ok(WorkerEnd::RunSettled) => {
                        workers.remove(&run);
                        self.board.take_off(&run);
                    }
                    Ok(WorkerEnd::Finished) => {
                        self.settle(&mut backend, run.run, &mut patience)?;
                        finished.insert(run, Instant::now());
                    }
                    // The run was retired under its workers. If it goes on all the same, the next look says what is wrong.
                    Err(WorkerError::Sink(error)) if error.is_gone() => {
                        workers.remove(&run);
                    }
                    Err(WorkerError::Coordinator { message, is_transient: true }) => {
                        is_anything_open = true;
                        self.board.clear();
                        patience.failed(&message).map_err(ScanError::Coordinator)?;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            if !is_anything_open {
                if self.serving.until_done {
                    break;
                }
                pause(LOOK_INTERVAL, self.stop);
            }
        }
        connect.leave(&mut backend, self.id);
        Ok(())
    }

    /// Whether there is a worker for `run` now.
    fn prepare<C: Connect>(
        &mut self,
        connect: &C,
        backend: &mut C::Backend,
        run: RunKey,
        workers: &mut Workers<'s, S>,
    ) -> bool {
        if workers.contains_key(&run) {
            return true;
        }
        match self.worker(backend, run) {
            Ok(Some(worker)) => {
                connect.take_part(backend, self.serving.tenant, run, self.id);
                workers.insert(run, worker);
                self.unusable.remove(&run);
                true
            }
            Ok(None) => {
                self.board.take_off(&run);
                false
            }
            Err(error) => {
                connect.abstain(backend, self.serving.tenant, run, self.id);
                if self.unusable.insert(run) {
                    (self.log)(&format!("cannot take part in run {}: {error}", run.run));
                }
                false
            }
        }
    }

    /// A worker for `run`; `None` if the run ended, is gone, or was created anew since it was listed.
    fn worker(&self, backend: &mut impl RunManagement, run: RunKey) -> Result<Option<SiteWorker<'s, S>>, ScanError> {
        let record = match backend.get_run(self.serving.tenant, run.run) {
            Err(GetRunError::RunNotFound(_)) => return Ok(None),
            record => record.map_err(ScanError::coordinator)?,
        };
        if record.incarnation != run.incarnation || record.status != RunStatus::Active {
            return Ok(None);
        }
        let folder = RunFolder::of_run(&self.serving.findings, self.serving.coordinator.clone(), &record)?;
        let plan = Arc::new(OpenPlan::load(folder.path().to_path_buf())?);
        let progress = Arc::clone(self.progress);
        let place = Place { folder: &folder, plan, progress: Arc::clone(&progress), stop: self.stop };
        let site = self.sites.site(&place)?;
        let lease_duration = record.config.lease_duration.unwrap_or(LEASE_DURATION_DEFAULT);
        let config = WorkerConfig::new(self.serving.tenant, run.run, self.id).in_a_fleet(lease_duration);
        let config = WorkerConfig { place: self.id.get().wrapping_add(self.thread), ..config };
        let sink = Box::new(LazySink::new(folder.findings(), folder.key(), self.id));
        Ok(Some(Worker::at(site, config, wall_clock as fn() -> LogicalTime, sink, progress, self.stop)))
    }

    /// Nothing is open in the run: it is done, unless something in it is parked.
    fn settle(
        &self,
        backend: &mut impl RunManagement,
        run: RunId,
        patience: &mut Patience<'_>,
    ) -> Result<(), ScanError> {
        let tenant = self.serving.tenant;
        let progress = match backend.get_run_progress(wall_clock(), tenant, run) {
            Ok(progress) => progress,
            Err(error) => {
                self.board.clear();
                return bear(patience, &error);
            }
        };
        if evaluate_run_terminal(&progress.counts) != RunTerminalEvaluation::AllDone {
            return Ok(());
        }
        complete(backend, tenant, run).or_else(|error| {
            self.board.clear();
            bear(patience, &error)
        })
    }
}

/// Waits a little if the failure can pass, and the next look tries again; otherwise the worker cannot go on.
fn bear(patience: &mut Patience<'_>, error: &(dyn std::error::Error + 'static)) -> Result<(), ScanError> {
    match infra_of(error) {
        Some(infra) if infra.is_transient() => patience.failed(infra.message()).map_err(ScanError::Coordinator),
        Some(infra) => Err(ScanError::coordinator(infra.clone())),
        None => Err(ScanError::Coordinator(error.to_string())),
    }
}

fn active_runs(backend: &mut impl RunManagement, tenant: TenantId) -> Result<BTreeSet<RunKey>, GetRunError> {
    let (mut active, mut page) = (BTreeSet::new(), Vec::new());
    let mut after = None;
    loop {
        backend.list_runs_into(tenant, after, RUNS_PER_PAGE, &mut page)?;
        let is_active = |run: &&RunSummary| run.status == RunStatus::Active;
        active.extend(page.iter().filter(is_active).map(|run| RunKey::new(run.run, run.incarnation)));
        match page.last() {
            Some(last) if page.len() == RUNS_PER_PAGE => after = Some(last.run),
            _ => return Ok(active),
        }
    }
}
