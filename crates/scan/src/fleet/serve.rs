//! A machine of a fleet: takes part in every run of a tenant until it is told to stop.
//!
//! Each thread has its own handle and is a worker of its own. It goes from run to run: where there is work it works, where
//! there is none it asks those who have some to share, and after a while looks at the next.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tessera_contracts::{LogicalTime, RunId, TenantId, WorkerId};
use tessera_coordination::RunManagement;
use tessera_coordination::error::GetRunError;
use tessera_coordination::run::progress::{RunTerminalEvaluation, evaluate_run_terminal};
use tessera_coordination::run::status::RunStatus;

use super::follow::complete;
use super::{Connect, Patience, pause};
use crate::clock::wall_clock;
use crate::error::ScanError;
use crate::folder::RunFolder;
use crate::job::Job;
use crate::op_ids::{OpIds, random_u64};
use crate::sink::LazySink;
use crate::worker::{Worker, WorkerConfig, WorkerEnd, WorkerError, WorkerProgress};

/// How a machine takes part.
#[derive(Debug, Clone)]
pub struct Serving {
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

/// Between two looks for runs.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
const RUNS_PER_PAGE: usize = 1_000;
/// How long a lease lasts in runs that do not say, in milliseconds.
const LEASE_DURATION_DEFAULT: u64 = 30_000;

/// Works on runs until `stop` is set. `log` is told what people should know.
pub fn serve<C: Connect + Sync>(
    serving: &Serving,
    connect: &C,
    stop: &AtomicBool,
    progress: &Arc<WorkerProgress>,
    log: &(dyn Fn(&str) + Sync),
) -> Result<(), ScanError> {
    // One that cannot go on stops all: the same disk or coordinator would stop them one by one.
    let stop_all = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..serving.threads.max(1))
            .map(|_| {
                scope.spawn(|| {
                    let end =
                        Server { serving, stop: &stop_all, progress, log, unusable: BTreeSet::new() }.run(connect);
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

struct Server<'s> {
    serving: &'s Serving,
    stop: &'s AtomicBool,
    progress: &'s Arc<WorkerProgress>,
    log: &'s (dyn Fn(&str) + Sync),
    /// Runs that cannot be worked on from here, so that it is said once.
    unusable: BTreeSet<RunId>,
}

/// One worker for each run that goes on.
type Workers<'s> = BTreeMap<RunId, Worker<'s, fn() -> LogicalTime>>;

impl<'s> Server<'s> {
    fn run<C: Connect>(&mut self, connect: &C) -> Result<(), ScanError> {
        let id = WorkerId::new(random_u64());
        let mut backend = connect.connect().map_err(ScanError::Coordinator)?;
        let mut workers = Workers::new();
        let mut patience = Patience::new(self.serving.give_up_after);
        while !self.stop.load(Ordering::Relaxed) {
            let runs = match active_runs(&mut backend, self.serving.tenant) {
                Ok(runs) => runs,
                Err(error) => {
                    self.coordinator_failed(&mut patience, &error.to_string())?;
                    continue;
                }
            };
            patience.succeeded();
            workers.retain(|run, _| runs.contains(run));
            let mut is_anything_open = false;
            for run in runs {
                if !self.prepare(&mut backend, run, id, &mut workers) {
                    continue;
                }
                let Some(worker) = workers.get_mut(&run) else { continue };
                match worker.run(&mut backend) {
                    Ok(WorkerEnd::Stopped) => break,
                    Ok(WorkerEnd::Idle) => is_anything_open = true,
                    Ok(WorkerEnd::RunSettled) => {
                        workers.remove(&run);
                    }
                    Ok(WorkerEnd::Finished) => self.settle(&mut backend, run, &mut patience)?,
                    Err(WorkerError::Coordinator { message, is_transient: true }) => {
                        is_anything_open = true;
                        self.coordinator_failed(&mut patience, &message)?;
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
        connect.leave(&mut backend, id);
        Ok(())
    }

    fn coordinator_failed(&self, patience: &mut Patience, message: &str) -> Result<(), ScanError> {
        if patience.failing.is_none() {
            (self.log)(&format!("the coordinator cannot be used: {message}; trying again"));
        }
        patience.failed(message, self.stop)
    }

    /// Whether there is a worker for `run` now.
    fn prepare(
        &mut self,
        backend: &mut impl RunManagement,
        run: RunId,
        id: WorkerId,
        workers: &mut Workers<'s>,
    ) -> bool {
        if workers.contains_key(&run) {
            return true;
        }
        match self.worker(backend, run, id) {
            Ok(worker) => {
                workers.insert(run, worker);
                self.unusable.remove(&run);
                true
            }
            Err(error) => {
                if self.unusable.insert(run) {
                    (self.log)(&format!("cannot take part in run {run}: {error}"));
                }
                false
            }
        }
    }

    fn worker(
        &self,
        backend: &mut impl RunManagement,
        run: RunId,
        id: WorkerId,
    ) -> Result<Worker<'s, fn() -> LogicalTime>, ScanError> {
        let record = backend.get_run(self.serving.tenant, run).map_err(ScanError::coordinator)?;
        let folder = RunFolder::existing(&self.serving.findings, run);
        let job = Job::load(folder.path())?;
        let detector = job.detector().map_err(ScanError::Rules)?;
        let lease_duration = record.config.lease_duration.unwrap_or(LEASE_DURATION_DEFAULT);
        Ok(Worker::new(
            wall_clock,
            WorkerConfig::new(self.serving.tenant, run, id).in_a_fleet(lease_duration),
            job.reader(detector),
            Box::new(LazySink::new(folder.findings(), id)),
            Vec::new(),
            folder.path().to_path_buf(),
            self.stop,
            Arc::clone(self.progress),
            OpIds::random(),
        ))
    }

    /// Nothing is open in the run: it is done, unless something in it is parked.
    fn settle(
        &self,
        backend: &mut impl tessera_coordination::CoordinationFacade,
        run: RunId,
        patience: &mut Patience,
    ) -> Result<(), ScanError> {
        let tenant = self.serving.tenant;
        let settled = match backend.get_run_progress(wall_clock(), tenant, run) {
            Ok(progress) if evaluate_run_terminal(&progress.counts) == RunTerminalEvaluation::AllDone => {
                complete(backend, tenant, run)
            }
            Ok(_) => Ok(()),
            Err(error) => Err(ScanError::coordinator(error)),
        };
        settled.or_else(|error| self.coordinator_failed(patience, &error.to_string()))
    }
}

fn active_runs(backend: &mut impl RunManagement, tenant: TenantId) -> Result<BTreeSet<RunId>, GetRunError> {
    let (mut active, mut page) = (BTreeSet::new(), Vec::new());
    let mut after = None;
    loop {
        backend.list_runs_into(tenant, after, RUNS_PER_PAGE, &mut page)?;
        active.extend(page.iter().filter(|run| run.status == RunStatus::Active).map(|run| run.run));
        match page.last() {
            Some(last) if page.len() == RUNS_PER_PAGE => after = Some(last.run),
            _ => return Ok(active),
        }
    }
}
