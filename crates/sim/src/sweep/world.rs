//! A world: machines with workers, a disk that they share, a coordinator, and faults.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tessera_contracts::keyspace::Fraction;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::summary::{ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::{AcquireScratch, CoordinatorRuntimeConfig, InMemoryCoordinator, RunManagement};
use tessera_scan::files::{self, Folder};
use tessera_scan::findings::record::{Record, Records, Span};
use tessera_scan::findings::{Draft, FileSink, Merged, merge};
use tessera_scan::op_ids::OpIds;
use tessera_scan::plan::key::target_range;
use tessera_scan::plan::ledger::OpenPlan;
use tessera_scan::plan::paths::PathsWriter;
use tessera_scan::plan::record::{Listed, PlanId, PlanRecord, TargetPlan};
use tessera_scan::report::finding::group;
use tessera_scan::run::conclude::account;
use tessera_scan::run::label::RunKey;
use tessera_scan::source::git::attribution::Introductions;
use tessera_scan::source::item::ItemKind;
use tessera_scan::sweep::worker::BackendCalls;
use tessera_scan::sweep::worker::driver::{Driver, Stepped};
use tessera_scan::sweep::{Sharing, SweepEnd, WorkerConfig};

use super::broken::Defect;
use super::checker::{Reported, Sight, Violation, check};
use super::config::{At, Config, Met, Trouble, Weather};
use super::disk::{Disk, Machine};
use super::faults::FaultyCalls;
use super::site::{SimSite, SkewedClock, View, Views};
use super::truth::{PlantedPlace, Truth, place_of};
use crate::coordination::dice::Dice;

const RUN: RunId = RunId::new(1);
const KEY: RunKey = RunKey::new(RUN, RunIncarnation::new(1));
/// The machine that plans and reports.
const SUBMITTER: Machine = 0;
/// Machines that see no target to the end, at most: the coordinator parks a shard that three workers cannot reach.
const UNHEALTHY_MAX: usize = 2;
/// Actions after which a world without faults must have come to its end.
const CALM_STEPS_MAX: u64 = 200_000;
/// Actions between two looks of the operator.
const OPERATOR_STEPS: u64 = 500;

/// Counters of a world.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Actions of workers.
    pub actions: u64,
    /// Items read, also those that were read again.
    pub items: u64,
    /// Segments that a later owner did again.
    pub superseded: u64,
    /// Processes that died.
    pub deaths: u64,
    /// Shards at the end.
    pub shards: u64,
    /// Of these, those that splits made.
    pub splits: u64,
    /// Times that a target was away for a page, and back when its worker looked at its root.
    pub returns: u64,
    /// How often each kind of trouble happened.
    pub met: Met,
}

impl Report {
    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            actions: self.actions + other.actions,
            items: self.items + other.items,
            superseded: self.superseded + other.superseded,
            deaths: self.deaths + other.deaths,
            shards: self.shards + other.shards,
            splits: self.splits + other.splits,
            returns: self.returns + other.returns,
            met: self.met.plus(&other.met),
        }
    }
}

struct Process {
    worker: WorkerId,
    driver: Driver<SimSite, SkewedClock>,
    wakes_at: u64,
    stops: bool,
}

struct Host {
    machine: Machine,
    views: Rc<Views>,
    process: Option<Process>,
    /// When a process may be started.
    starts_at: u64,
    /// Whether its last worker found nothing left to do.
    is_finished: bool,
}

/// A world.
pub(super) struct World {
    config: Config,
    weather: Weather,
    defect: Defect,
    dice: Dice,
    truth: Rc<Truth>,
    disk: Disk,
    plan: Arc<OpenPlan>,
    backend: InMemoryCoordinator,
    scratch: AcquireScratch,
    now: Rc<Cell<u64>>,
    hosts: Vec<Host>,
    /// Shards that the run began with.
    registered: u64,
    /// Workers so far.
    workers: u64,
    report: Report,
}

fn tenant() -> TenantId {
    TenantId::from_name("simulated")
}

/// Simulates one world.
pub fn simulate(config: &Config, defect: Defect) -> Result<Report, Violation> {
    World::new(config, defect)?.run()
}

impl World {
    fn new(config: &Config, defect: Defect) -> Result<Self, Violation> {
        let weather = config.weather();
        let mut dice = Dice::new(config.seed ^ 0x5eed);
        let truth = Truth::draw(&mut dice, weather.targets, weather.items_max, defect);
        let disk = Disk::new(dice.roll(), weather.disk);
        let plan = submit(&truth, &disk, &mut dice, defect)?;
        let skew_allowance = if dice.happens(500_000) { weather.skew } else { 0 };
        let runtime = CoordinatorRuntimeConfig {
            clock_skew_allowance: skew_allowance,
            slab_capacity: 1 << 20,
            ..CoordinatorRuntimeConfig::for_shards(20_000)
        };
        let mut backend = InMemoryCoordinator::new(runtime).expect("a good configuration");
        let registered = register(&truth, &mut backend, &weather, &mut dice);
        let views = || Views {
            of: RefCell::new(vec![View::Planned; truth.targets.len()]),
            flakes: Cell::new(0),
            items: Cell::new(0),
            pages_away: Cell::new(0),
            returns: Cell::new(0),
        };
        let host = |machine| Host { machine, views: Rc::new(views()), process: None, starts_at: 0, is_finished: false };
        let hosts = (1..=weather.machines as Machine).map(host).collect();
        Ok(Self {
            config: config.clone(),
            defect,
            dice,
            disk,
            plan: Arc::new(plan),
            backend,
            scratch: AcquireScratch::new(),
            now: Rc::new(Cell::new(1_000)),
            hosts,
            registered,
            workers: 0,
            report: Report::default(),
            truth: Rc::new(truth),
            weather,
        })
    }

    fn run(mut self) -> Result<Report, Violation> {
        for _ in 0..self.config.steps {
            self.trouble();
            self.step();
        }
        self.calm_down();
        self.settle()?;
        // Workers that were taken for dead still write.
        self.conclude(self.weather.stale_for)?;
        self.conclude(0)?;
        self.wake_all();
        self.settle()?;
        self.conclude(0)?;
        self.report.items = self.hosts.iter().map(|host| host.views.items.get()).sum();
        self.report.returns = self.returns();
        self.report.met = self.report.met.plus(&self.disk.met());
        Ok(self.report)
    }

    // --- workers

    /// One action of one worker. Time passes where nothing can be done.
    fn step(&mut self) {
        let first = self.dice.below(self.hosts.len() as u64) as usize;
        let order = (first..self.hosts.len()).chain(0..first);
        let now = self.now.get();
        let mut next_at = u64::MAX;
        for index in order {
            let host = &self.hosts[index];
            let runs_at = host.process.as_ref().map_or(host.starts_at, |process| process.wakes_at);
            if host.is_finished {
                continue;
            }
            if runs_at <= now {
                if host.process.is_none() {
                    self.start(index);
                } else if self.config.at.is_some_and(|at| at.action == self.report.actions) {
                    self.strike(index);
                } else {
                    self.act(index);
                }
                return;
            }
            next_at = next_at.min(runs_at);
        }
        if next_at != u64::MAX {
            self.now.set(next_at);
            self.disk.set_now(next_at);
        }
    }

    fn act(&mut self, index: usize) {
        let Self { hosts, backend, scratch, dice, weather, now, report, defect, .. } = self;
        let host = &mut hosts[index];
        let Some(process) = &mut host.process else { return };
        let calls = BackendCalls::new(backend, process.driver.config(), scratch);
        let (per_million, defect, met) = (weather.call, *defect, &mut report.met);
        let mut calls = FaultyCalls { calls, dice, per_million, defect, met };
        let stepped = process.driver.step(&mut calls, process.stops);
        report.actions += 1;
        match stepped {
            Stepped::Did | Stepped::ShardOver(_) => {}
            Stepped::Wait(pause) => process.wakes_at = now.get() + u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            Stepped::End(SweepEnd::Finished | SweepEnd::RunSettled) => {
                host.process = None;
                host.is_finished = true;
            }
            Stepped::End(_) => {
                host.process = None;
                host.starts_at = now.get() + 100;
            }
        }
        if dice.happens(weather.time) {
            now.set(now.get() + dice.between(1, weather.time_max));
            self.disk.set_now(now.get());
        }
    }

    fn start(&mut self, index: usize) {
        self.workers += 1;
        let worker = WorkerId::new(self.workers);
        let (dice, weather) = (&mut self.dice, &self.weather);
        let host = &mut self.hosts[index];
        let sink = match FileSink::create(&self.disk.seen_by(host.machine), KEY, worker, self.workers) {
            Ok(sink) => sink,
            Err(_) => {
                host.starts_at = self.now.get() + 50;
                return;
            }
        };
        let mut config = WorkerConfig::new(tenant(), RUN, worker).in_a_fleet(weather.lease_duration);
        config.safe_point_interval = dice.between(5, weather.safe_points_max);
        config.renew_interval = weather.lease_duration / 6;
        config.page.items_max = dice.between(1, weather.page_max) as usize;
        config.patience = None;
        config.idle_wait_max = Duration::from_millis(200);
        config.sharing = Sharing {
            asks: dice.happens(800_000) && self.config.has("asks"),
            ask_interval: 50,
            split_cost_min: 0,
            replace_cost_min: dice.between(1, 4_000_000),
            replace_children: dice.between(1, 4) as usize,
        };
        let site = SimSite {
            truth: Rc::clone(&self.truth),
            views: Rc::clone(&host.views),
            plan: Arc::clone(&self.plan),
            now: Rc::clone(&self.now),
            defect: self.defect,
            here: None,
        };
        let ahead = dice.below(weather.skew + 1);
        if ahead > 0 {
            self.report.met.count("skew");
        }
        let clock = SkewedClock { now: Rc::clone(&self.now), ahead };
        let draft = Draft::new(self.defect.around(sink));
        let driver = Driver::new(config, draft, site, clock).with_op_ids(OpIds::new(dice.roll()));
        host.process = Some(Process { worker, driver, wakes_at: self.now.get(), stops: false });
    }

    // --- faults

    fn trouble(&mut self) {
        let index = self.dice.below(self.hosts.len() as u64) as usize;
        let (dice, weather, now) = (&mut self.dice, &self.weather, self.now.get());
        let (host, met) = (&mut self.hosts[index], &mut self.report.met);
        if dice.happens(weather.crash) && host.process.is_some() {
            let loses_power = dice.happens(weather.power);
            self.kill(index, loses_power);
        } else if dice.happens(weather.pause) {
            if let Some(process) = &mut host.process {
                process.wakes_at = now + dice.between(1, 4 * weather.lease_duration);
                met.count("pauses");
            }
        } else if dice.happens(weather.stop) {
            if let Some(process) = &mut host.process {
                process.stops = true;
                met.count("stops");
            }
        } else if dice.happens(weather.mount) {
            self.remount(index);
        } else if dice.happens(weather.split) {
            self.request_split(|_| true);
        } else if dice.happens(weather.yields) {
            let Some(shard) = self.held(|_| true) else { return };
            let (now, key) = (LogicalTime::new(now), ShardKey::new(RUN, shard.shard));
            if self.backend.request_yield(now, tenant(), key, shard.epoch()).is_ok() {
                self.report.met.count("yields");
            }
        }
    }

    /// The trouble that was asked for meets the worker of a host.
    fn strike(&mut self, index: usize) {
        let Some(At { trouble, .. }) = self.config.at.take() else { return };
        let Some(process) = &mut self.hosts[index].process else { return };
        let worker = process.worker;
        match trouble {
            Trouble::PowerCut => self.kill(index, true),
            Trouble::Split => self.request_split(|holder| holder == worker),
            Trouble::Pause => {
                process.wakes_at = self.now.get() + 2 * self.weather.lease_duration;
                self.report.met.count("pauses");
            }
        }
    }

    /// Asks the owner of a shard to split it, if there is one such owner.
    fn request_split(&mut self, is_owner: impl Fn(WorkerId) -> bool) {
        let Some(shard) = self.held(is_owner) else { return };
        let now = LogicalTime::new(self.now.get());
        let kept = Fraction::from_millionths(self.dice.between(1, 999_999) as u32).unwrap_or(Fraction::HALF);
        let key = ShardKey::new(RUN, shard.shard);
        if self.backend.request_split(now, tenant(), key, shard.epoch(), kept).is_ok() {
            self.report.met.count("splits");
        }
    }

    /// A process dies, and perhaps its machine with it.
    fn kill(&mut self, index: usize, loses_power: bool) {
        let host = &mut self.hosts[index];
        host.process = None;
        host.starts_at = self.now.get() + self.dice.between(0, 2 * self.weather.lease_duration);
        self.report.met.count("crashes");
        if loses_power {
            self.disk.cut_power(host.machine);
            self.report.met.count("power");
        }
        self.report.deaths += 1;
    }

    /// A machine sees a target differently from now on. Its worker goes on.
    fn remount(&mut self, index: usize) {
        let target = self.dice.below(self.truth.targets.len() as u64) as usize;
        let mut views = self.hosts[index].views.of.borrow_mut();
        let changed = [View::Newer, View::Older];
        let (view, kind) = match views[target] {
            View::Planned | View::Newer if self.weather.changes && self.dice.happens(500_000) => {
                (changed[self.dice.below(2) as usize], "changes")
            }
            View::Planned | View::Newer => {
                let gone = [View::Empty, View::Absent, View::Flaky, View::Blinking, View::Blinking];
                (gone[self.dice.below(5) as usize], "mounts")
            }
            View::Older | View::Empty | View::Absent | View::Flaky | View::Blinking => (View::Planned, "mounts"),
        };
        views[target] = view;
        self.report.met.count(kind);
    }

    fn returns(&self) -> u64 {
        self.hosts.iter().map(|host| host.views.returns.get()).sum()
    }

    /// One of the shards that are held by such an owner.
    fn held(&mut self, is_owner: impl Fn(WorkerId) -> bool) -> Option<ShardSummary> {
        let now = LogicalTime::new(self.now.get());
        let is_held =
            |shard: &ShardSummary| shard.lease.is_some_and(|lease| lease.deadline > now && is_owner(lease.owner));
        let mut held = self.shards(is_held);
        if held.is_empty() {
            return None;
        }
        Some(held.swap_remove(self.dice.below(held.len() as u64) as usize))
    }

    fn shards(&mut self, is_wanted: impl Fn(&ShardSummary) -> bool) -> Vec<ShardSummary> {
        let (mut all, mut some, now) = (Vec::new(), Vec::new(), LogicalTime::new(self.now.get()));
        let mut page = Some(ShardPage::first(1_000));
        while let Some(at) = page {
            let listed = self.backend.list_shards_into(now, tenant(), RUN, &ShardFilter::all(), at, &mut some);
            page = listed.expect("the run is there");
            all.extend(some.drain(..).filter(|shard| is_wanted(shard)));
        }
        all
    }

    // --- the end

    /// From now on nothing fails. Few machines still do not see everything.
    fn calm_down(&mut self) {
        let weather = &mut self.weather;
        (weather.crash, weather.call, weather.mount) = (0, 0, 0);
        self.disk.heal();
        let mut unhealthy = 0;
        for index in 0..self.hosts.len() {
            let is_well = |view: &View| matches!(view, View::Planned | View::Newer | View::Blinking);
            let is_healthy = self.hosts[index].views.of.borrow().iter().all(is_well);
            let heals = !is_healthy && (index == 0 || unhealthy == UNHEALTHY_MAX || self.dice.happens(500_000));
            let stays = !is_healthy && !heals;
            unhealthy += usize::from(stays);
            for view in self.hosts[index].views.of.borrow_mut().iter_mut() {
                if heals || matches!(view, View::Flaky | View::Blinking) {
                    *view = View::Planned;
                }
            }
        }
    }

    /// Works until no shard is open. The operator puts parked shards back.
    fn settle(&mut self) -> Result<(), Violation> {
        for step in 0..CALM_STEPS_MAX {
            if step.is_multiple_of(OPERATOR_STEPS) {
                let now = LogicalTime::new(self.now.get());
                let progress = self.backend.get_run_progress(now, tenant(), RUN).expect("the run is there");
                if progress.counts.active + progress.counts.parked == 0 {
                    return Ok(());
                }
                if progress.counts.parked > 0 {
                    for shard in self.shards(|shard| shard.status == ShardStatus::Parked) {
                        self.unpark(&shard);
                    }
                }
            }
            self.step();
        }
        let open = self.shards(|shard| matches!(shard.status, ShardStatus::Active | ShardStatus::Parked));
        Err(Violation::new("RunSettles", format!("{} shards are still open: {:?}", open.len(), open.first())))
    }

    fn unpark(&mut self, shard: &ShardSummary) {
        let now = LogicalTime::new(self.now.get());
        let op_id = OpId::new(self.dice.roll() | 1);
        let key = ShardKey::new(RUN, shard.shard);
        self.backend.unpark_shard(now, tenant(), key, shard.epoch(), op_id).expect("it is parked");
        for host in &mut self.hosts {
            host.is_finished = false;
        }
    }

    /// Workers that were not heard of go on, each for some steps.
    fn wake_all(&mut self) {
        let now = self.now.get();
        for process in self.hosts.iter_mut().filter_map(|host| host.process.as_mut()) {
            process.wakes_at = process.wakes_at.min(now);
        }
        for _ in 0..200 * self.hosts.len() {
            self.step();
        }
    }

    /// Holds a report of now against the truth. With stale lists it need not be whole.
    fn conclude(&mut self, stale_for: u64) -> Result<(), Violation> {
        self.disk.set_stale_for(stale_for);
        let folder = self.disk.seen_by(SUBMITTER);
        let merged = merge(&folder, KEY).expect("nothing fails any more");
        let plan = PlanRecord::load(&folder);
        let receipt = account(&mut self.backend, tenant(), RUN, &merged).expect("nothing fails any more");
        let receipt = receipt.against(&plan, &merged);
        (self.report.superseded, self.report.shards) = (merged.superseded, receipt.shards.total().into());
        self.report.splits = self.report.shards.saturating_sub(self.registered);
        let stored = stored(&folder, &merged).expect("nothing fails any more");
        let findings = group(merged.occurrences.into_values(), &Introductions::default());
        let reported = Reported { findings: &findings, receipt: &receipt, stored: &stored };
        let sight = Sight {
            lists_are_fresh: stale_for == 0,
            trees_stay: !self.weather.changes,
            pages_are_whole: self.hosts.iter().all(|host| host.views.pages_away.get() == 0),
            targets_stay: self.returns() == 0,
        };
        check(&self.truth, &reported, sight)
    }
}

/// The places in those segments of findings files that the merge counts.
fn stored(folder: &impl Folder, merged: &Merged) -> io::Result<Vec<PlantedPlace>> {
    let counts: BTreeSet<&Span> = merged.segments.iter().map(|segment| &segment.span).collect();
    let mut places = Vec::new();
    for name in folder.list()?.iter().filter(|name| name.ends_with(".findings")) {
        let bytes = files::read(folder, name)?;
        let Ok(records) = Records::new(&bytes) else { continue };
        let mut pending = Vec::new();
        for record in records.map_while(Result::ok) {
            match record {
                Record::Begin { .. } => pending.clear(),
                Record::Finding(occurrence) => pending.push(place_of(&occurrence)),
                Record::Segment(segment) if counts.contains(&segment.span) => places.append(&mut pending),
                Record::Segment(_) => pending.clear(),
                Record::Compared(_) => {}
            }
        }
    }
    Ok(places)
}

/// Plans the run and stores the plan, on a machine that may die on the way and begins anew.
fn submit(truth: &Truth, disk: &Disk, dice: &mut Dice, defect: Defect) -> Result<OpenPlan, Violation> {
    let folder = defect.folder(disk.seen_by(SUBMITTER));
    loop {
        let id = PlanId(dice.roll());
        match plan(truth, &*folder, id, dice, defect) {
            Ok(true) => break,
            Ok(false) | Err(_) => disk.cut_power(SUBMITTER),
        }
    }
    disk.cut_power(SUBMITTER);
    let broken = |error: String| Violation::new("PlanIsDurable", format!("a stored plan cannot be read: {error}"));
    let plan = OpenPlan::load(disk.seen_by(SUBMITTER)).map_err(|error| broken(error.to_string()))?;
    read_lists(&plan).map_err(|error| broken(error.to_string()))?;
    Ok(plan)
}

/// Reads each list of a plan to its end.
fn read_lists(plan: &OpenPlan) -> io::Result<()> {
    for target in &plan.record().targets {
        let mut ledger = plan.ledger(target.target, Bound::Unbounded)?;
        ledger.pass(Bound::Unbounded, &mut |_| {})?;
        if !ledger.take().coverage.covers(&target.planned) {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(())
}

/// Whether the plan was stored before the machine died.
fn plan(truth: &Truth, folder: &dyn Folder, id: PlanId, dice: &mut Dice, defect: Defect) -> io::Result<bool> {
    let mut targets = Vec::new();
    for target in &truth.targets {
        if dice.happens(50_000) {
            return Ok(false);
        }
        let mut paths = PathsWriter::create(folder)?;
        let (mut items, mut bytes, mut lost) = (0, 0, defect == Defect::PlanLosesPath);
        for planted in truth.planned(target.number) {
            items += 1;
            bytes += planted.item.size;
            if planted.item.kind == ItemKind::File && !std::mem::take(&mut lost) {
                paths.push(&planted.item.key)?;
            }
        }
        let (name, planned) = paths.finish()?;
        let listed = Listed::Paths { name };
        let (path, rules) = (target.path.clone(), target.rules);
        targets.push(TargetPlan { target: target.number, path, rules, items, bytes, planned, listed });
    }
    let record = PlanRecord { id, made_at: 0, program: "tessera-sim".into(), targets, left_out: Vec::new() };
    record.store(folder).map_err(io::Error::other)?;
    Ok(true)
}

/// Cuts each target at some of its items. How many shards that makes.
fn register(truth: &Truth, backend: &mut InMemoryCoordinator, weather: &Weather, dice: &mut Dice) -> u64 {
    let mut cuts: Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> = Vec::new();
    for target in &truth.targets {
        let (start, end) = target_range(target.number);
        let keys: Vec<&Vec<u8>> = truth.planned(target.number).map(|planted| &planted.item.key).collect();
        let mut edges = vec![start.to_vec()];
        if !keys.is_empty() {
            edges.extend((0..dice.below(4)).map(|_| keys[dice.below(keys.len() as u64) as usize].clone()));
        }
        edges.push(end.to_vec());
        edges.sort();
        edges.dedup();
        let metadata = target.encode().expect("a short description");
        cuts.extend(edges.windows(2).map(|edge| (edge[0].clone(), edge[1].clone(), metadata.clone())));
    }
    let shards: Vec<InitialShardInput<'_>> = cuts
        .iter()
        .zip(1..)
        .map(|((start, end, metadata), id)| InitialShardInput {
            metadata,
            ..InitialShardInput::new(ShardId::new(id), start, end)
        })
        .collect();
    let config =
        RunConfig { lease_duration: Some(weather.lease_duration), max_shard_retries: 0, ..RunConfig::default() };
    backend
        .create_run_with_shards(LogicalTime::new(1), tenant(), RUN, KEY.incarnation, config, &shards, OpId::new(1))
        .expect("a good manifest");
    shards.len() as u64
}
