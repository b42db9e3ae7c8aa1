//! A machine of a fleet: takes part in every run of a tenant until it is told to stop.
//!
//! Each thread has its own handle and its own shards. To the coordinator they are one worker: what this machine cannot reach, none
//! of its threads can, and it is said once. They share whose turn it is (`run_turns`). Where a run has no shard left for a
//! thread, the thread settles the run or asks an owner to share, and goes to the next.
//!
//! One more thread looks for runs, with a handle of its own: the others may be in the middle of a shard, and a coordinator that
//! does not answer holds up the end of the worker for one call.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tessera_contracts::keyspace::Fraction;
use tessera_contracts::{LogicalTime, ShardKey, TenantId, WorkerId};
use tessera_coordination::RunManagement;
use tessera_coordination::error::{GetRunError, RunTransitionError};
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::RunSummary;

use super::patience::{Patience, infra_of};
use super::run_turns::{RunTurns, TurnEnd};
use super::sites::{LocalSites, Place, Sites};
use super::{Connect, pause};
use crate::clock::wall_clock;
use crate::error::ScanError;
use crate::findings::LazySink;
use crate::op_ids::{OpIds, random_u64};
use crate::plan::ledger::OpenPlan;
use crate::run::coordinator_name::CoordinatorName;
use crate::run::folder::RunFolder;
use crate::run::label::RunKey;
use crate::sweep::WorkerConfig;
use crate::sweep::worker::{Turn, Worker, WorkerEnd, WorkerError, WorkerProgress};

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

/// Between two looks for runs. A look is one read of the store, two if there is no run.
const LOOK_INTERVAL: Duration = Duration::from_millis(2_000);
/// The same for a worker that has just begun: it is there because there is something to do.
const LOOK_INTERVAL_AT_FIRST: Duration = Duration::from_millis(500);
const AT_FIRST: Duration = Duration::from_secs(10);
/// Between two looks of a thread without work at the runs that were seen.
const IDLE_WAIT: Duration = Duration::from_millis(100);
/// Between two questions of a thread with work whether its turn is over.
const TURN_WAIT: Duration = Duration::from_millis(50);
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
    let turns = &Turns::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..serving.threads.max(1) as u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut server =
                        Server { serving, sites, id, thread, stop: stop_all, progress, log, turns, asks: 0 };
                    let end = server.run(connect);
                    if end.is_err() {
                        stop_all.store(true, Ordering::Relaxed);
                    }
                    end
                })
            })
            .collect();
        let lookout = scope.spawn(move || {
            let end = look_out(serving, connect, turns, stop_all, log);
            if end.is_err() {
                stop_all.store(true, Ordering::Relaxed);
            }
            end
        });
        while threads.iter().any(|thread| !thread.is_finished()) {
            if stop.load(Ordering::Relaxed) {
                stop_all.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        stop_all.store(true, Ordering::Relaxed);
        let mut end = Ok(());
        for thread in threads.into_iter().chain([lookout]) {
            end = end.and(thread.join().unwrap_or_else(|_| Err(ScanError::Coordinator("a worker panicked".into()))));
        }
        end
    })
}

/// Sees which runs there are, until `stop` is set.
fn look_out<C: Connect>(
    serving: &Serving,
    connect: &C,
    turns: &Turns,
    stop: &AtomicBool,
    log: &(dyn Fn(&str) + Sync),
) -> Result<(), ScanError> {
    let mut backend = connect.connect().map_err(ScanError::Coordinator)?;
    let mut patience = Patience::new(serving.give_up_after, stop, log);
    let began = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match active_runs(&mut backend, serving.tenant) {
            Ok(runs) => {
                patience.succeeded();
                turns.lock().listed(&runs, Instant::now());
                pause(look_interval(began.elapsed(), random_u64()), stop);
            }
            Err(error) => {
                turns.lock().lost_sight();
                bear(&mut patience, &error)?;
            }
        }
    }
    Ok(())
}

/// A quarter more or less than what is said above, so that workers that began together do not ask together.
fn look_interval(age: Duration, dice: u64) -> Duration {
    let interval = if age < AT_FIRST { LOOK_INTERVAL_AT_FIRST } else { LOOK_INTERVAL };
    interval * (75 + (dice % 51) as u32) / 100
}

/// What the threads share of [`RunTurns`]. It is held for moments, never during a call.
#[derive(Debug, Default)]
struct Turns(Mutex<RunTurns>);

impl Turns {
    fn lock(&self) -> MutexGuard<'_, RunTurns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn of one thread in a run.
struct ThreadTurn<'t> {
    turns: &'t Turns,
    thread: u64,
    asked: Cell<Option<Instant>>,
}

impl Turn for ThreadTurn<'_> {
    fn is_over(&self) -> bool {
        let now = Instant::now();
        let asks = self.asked.get().is_none_or(|asked| now.saturating_duration_since(asked) >= TURN_WAIT);
        asks && {
            let is_over = self.turns.lock().gives_way(self.thread, now);
            // Once it is over it stays over.
            self.asked.set((!is_over).then_some(now));
            is_over
        }
    }

    fn found_work(&self) {
        self.turns.lock().found_work(self.thread);
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
    turns: &'s Turns,
    /// How often it asked an owner to share, so that it asks another one each time.
    asks: u64,
}

/// One worker for each run that goes on. Another creation of a run is another run: it has its own job, folder and findings.
type Workers<'s, S> = BTreeMap<RunKey, SiteWorker<'s, S>>;
type SiteWorker<'s, S> = Worker<'s, <S as Sites>::Site<'s>, fn() -> LogicalTime>;

impl<'s, S: Sites> Server<'s, S> {
    fn run<C: Connect>(&mut self, connect: &C) -> Result<(), ScanError> {
        let mut backend = connect.connect().map_err(ScanError::Coordinator)?;
        let mut workers = Workers::<S>::new();
        let mut patience = Patience::new(self.serving.give_up_after, self.stop, self.log);
        let tenant = self.serving.tenant;
        while !self.stop.load(Ordering::Relaxed) {
            if !self.turns.lock().is_listed() {
                pause(IDLE_WAIT, self.stop);
                continue;
            }
            connect.join(&mut backend, tenant, self.id);
            let (run, unusable, is_done) = {
                let mut turns = self.turns.lock();
                workers.retain(|run, _| turns.goes_on(run));
                (turns.begin(self.thread, Instant::now()), turns.unusable(), turns.is_done())
            };
            for run in unusable {
                connect.abstain(&mut backend, tenant, run, self.id);
            }
            match run {
                Some(run) => {
                    let end = self.turn(connect, &mut backend, run, &mut workers, &mut patience);
                    let (end, failure) = end.map_or_else(|error| (TurnEnd::Over, Some(error)), |end| (end, None));
                    self.turns.lock().end(self.thread, end, Instant::now());
                    if let Some(failure) = failure {
                        return Err(failure);
                    }
                }
                None if self.serving.until_done && is_done => break,
                None => pause(IDLE_WAIT, self.stop),
            }
        }
        connect.leave(&mut backend, self.id);
        Ok(())
    }

    /// Works on `run` until it has nothing more for this thread, or another run waits.
    fn turn<C: Connect>(
        &mut self,
        connect: &C,
        backend: &mut C::Backend,
        run: RunKey,
        workers: &mut Workers<'s, S>,
        patience: &mut Patience<'_>,
    ) -> Result<TurnEnd, ScanError> {
        if let Some(end) = self.prepare(connect, backend, run, workers) {
            return Ok(end);
        }
        let Some(worker) = workers.get_mut(&run) else { return Ok(TurnEnd::Over) };
        let turn = ThreadTurn { turns: self.turns, thread: self.thread, asked: Cell::new(None) };
        match worker.run_while(backend, &turn) {
            Ok(WorkerEnd::Idle | WorkerEnd::Finished) => self.settle_or_ask(connect, backend, run, patience),
            Ok(end) => {
                patience.succeeded();
                Ok(if end == WorkerEnd::RunSettled { TurnEnd::Gone } else { TurnEnd::Over })
            }
            // The run was retired under its workers. If it goes on all the same, the next turn says what is wrong.
            Err(WorkerError::Sink(error)) if error.is_gone() => {
                workers.remove(&run);
                Ok(TurnEnd::Over)
            }
            Err(WorkerError::Coordinator { message, is_transient: true }) => {
                patience.failed(&message).map_err(ScanError::Coordinator)?;
                Ok(TurnEnd::Over)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes sure that there is a worker for `run`; otherwise says how the turn ends.
    fn prepare<C: Connect>(
        &self,
        connect: &C,
        backend: &mut C::Backend,
        run: RunKey,
        workers: &mut Workers<'s, S>,
    ) -> Option<TurnEnd> {
        if workers.contains_key(&run) {
            return None;
        }
        let was_unusable = || self.turns.lock().unusable().contains(&run);
        match self.worker(backend, run) {
            Ok(Some(worker)) => {
                connect.take_part(backend, self.serving.tenant, run, self.id);
                workers.insert(run, worker);
                if was_unusable() {
                    self.turns.lock().found_work(self.thread);
                }
                None
            }
            Ok(None) => Some(TurnEnd::Gone),
            Err(error) => {
                connect.abstain(backend, self.serving.tenant, run, self.id);
                if !was_unusable() {
                    (self.log)(&format!("cannot take part in run {}: {error}", run.run));
                }
                Some(TurnEnd::Unusable)
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

    /// The run had no shard to claim. It may be done, then it is settled; otherwise an owner is asked to share. Neither takes longer
    /// with more shards.
    fn settle_or_ask<C: Connect>(
        &mut self,
        connect: &C,
        backend: &mut C::Backend,
        run: RunKey,
        patience: &mut Patience<'_>,
    ) -> Result<TurnEnd, ScanError> {
        let (now, tenant) = (wall_clock(), self.serving.tenant);
        let settled = match backend.complete_run(now, tenant, run.run, OpIds::random().next_id()) {
            // The run is not known to be done: the next turn tries again, without a rest.
            Err(error) if infra_of(&error).is_some() => return bear(patience, &error).map(|()| TurnEnd::Over),
            settled => settled,
        };
        patience.succeeded();
        match settled {
            Ok(_) | Err(RunTransitionError::Illegal { .. } | RunTransitionError::RunNotFound(_)) => {
                return Ok(TurnEnd::Gone);
            }
            Err(RunTransitionError::ShardsOpen { active: 0, .. }) => return Ok(TurnEnd::Finished),
            Err(RunTransitionError::ShardsOpen { .. }) => {}
            Err(error) => return Err(ScanError::coordinator(error)),
        }
        let held = connect.held(backend, tenant, run);
        if !held.is_empty() {
            // Threads that wait begin at different owners.
            let place = self.id.get().wrapping_add(self.thread).wrapping_add(self.asks);
            let asked = held[(place % held.len() as u64) as usize];
            self.asks += 1;
            // A wish. It is refused if the shard has just changed hands or ended: then there is another one to ask next time.
            let key = ShardKey::new(run.run, asked.shard);
            let _ = backend.request_split(now, tenant, key, asked.epoch, Fraction::HALF);
        }
        Ok(TurnEnd::Idle)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_worker_looks_more_often_and_no_two_workers_look_in_step() {
        let of = |age, dice| look_interval(Duration::from_secs(age), dice).as_millis();
        assert_eq!([of(9, 0), of(9, 25), of(9, 50), of(9, 51)], [375, 500, 625, 375]);
        assert_eq!([of(10, 0), of(10, 25), of(10, 50)], [1_500, 2_000, 2_500]);
    }
}
