//! One state of a small world, and the steps that lead out of it.
//!
//! The real decisions stand here in place of the model's formulas; the rest (beliefs of workers, requests under way, results
//! accepted) is the world around them, step for step as in the model.
//!
//! A world carries more than the protocol can see: absolute times, ownership history, counters. [`World::visible_state`]
//! leaves those out, so that two worlds that behave alike count as one, as they do in the model.

mod properties;
mod visible;

use std::rc::Rc;

use tessera_contracts::ids::{
    LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan, plan_split_replace, plan_split_residual};
use tessera_contracts::{Cursor, CursorSemantics, CursorUpdate, ShardSpec};
use tessera_coordination::Lease;
use tessera_coordination::decide::release::Release;
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::decide::unreachable::Peers;
use tessera_coordination::decide::{
    Birth, Verdict, acquire, checkpoint, complete, park, release, renew, settle_run, split_replace, split_residual,
    unpark, unreachable,
};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::state::{Change, ShardState, Spawned};
use tessera_coordination::record::status::{ParkReason, ShardStatus};
use tessera_coordination::record::unreachable::{Unreachable, UnreachableReport};
use tessera_coordination::record::view::{OwnerSignal, ShardView};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::progress::ShardCounts;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::shard_limits::ShardCensus;

use super::bounds::{Bounds, Kind};

const TENANT: TenantId = TenantId::from_bytes([7; 32]);
const RUN: RunId = RunId::new(1);
const ROOT: ShardId = ShardId::new(1);
/// Clocks start here, so that no time is the unassigned one.
const EPOCH: u64 = 100;

/// A state. Its op-logs have `LOG` entries: one or two show in a few steps the faults that sixteen hide.
#[derive(Clone, Debug)]
pub struct World<const LOG: usize> {
    now: u64,
    run: RunRecord,
    shards: Vec<Shard<LOG>>,
    /// Whether each worker has a session in the run; kept where shards are reported as unreachable.
    live: Vec<bool>,
    skew: Vec<u64>,
    requests: Vec<Request>,
    beliefs: Vec<Option<Belief>>,
    sink: Vec<Writer>,
    recorded: u64,
    executed: Vec<u8>,
    control: Vec<Writer>,
    broken: Option<&'static str>,
    trail: Rc<Trail>,
}

/// The way to a state, shared by all that came the same way.
#[derive(Debug)]
struct Trail {
    step: String,
    before: Option<Rc<Trail>>,
}

#[derive(Clone, Debug)]
struct Shard<const LOG: usize> {
    key: ShardKey,
    state: ShardState<LOG>,
    spec: ShardSpec,
    cursor: Cursor,
    spawned: Vec<Spawned>,
    unreachable: Vec<UnreachableReport>,
    /// Place of the parent and the operation that made it.
    born: Option<(usize, usize)>,
}

/// The last writer and its fence; fence 0 before the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Writer {
    fence: u64,
    worker: usize,
}

impl Writer {
    /// Whether a write by `worker` under `fence` comes too late, or shares a fence with another worker.
    const fn forbids(self, worker: usize, fence: u64) -> bool {
        fence < self.fence || (fence == self.fence && worker != self.worker)
    }
}

/// A request, which can be delivered again at any time.
#[derive(Clone, Debug)]
struct Request {
    kind: Kind,
    worker: usize,
    shard: usize,
    epoch: ShardEpoch,
    argument: u8,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Leased(Lease),
    Replace(Lease, SplitReplacePlan),
    Residual(Lease, SplitResidualPlan),
    Operator,
}

/// The lease a worker thinks it holds.
#[derive(Clone, Debug)]
struct Belief {
    lease: Lease,
    shard: usize,
    lo: u8,
    hi: u8,
    /// The next key it will process.
    next: u8,
    /// The operation whose answer it waits for.
    waits_for: Option<usize>,
}

/// The fate of a delivered request.
enum Fate<const LOG: usize> {
    Executed(Box<World<LOG>>),
    Replayed,
    Refused,
    /// The world has no room for the children.
    NoRoom,
}

fn key_bytes(key: u8) -> [u8; 1] {
    [b'a' + key]
}

/// The cursor that says keys below `next` are done, for a shard that starts at `lo`.
fn cursor_before(lo: u8, next: u8) -> Cursor {
    let last = (next > lo).then(|| key_bytes(next - 1));
    Cursor::new(last.as_ref().map(|key| key.as_slice()), None).expect("a one-byte key is a legal cursor")
}

impl<const LOG: usize> Shard<LOG> {
    fn lo(&self) -> u8 {
        self.spec.start()[0] - b'a'
    }

    fn hi(&self) -> u8 {
        self.spec.end()[0] - b'a'
    }

    /// The first key that is not done.
    fn next(&self) -> u8 {
        self.cursor.last_key().map_or(self.lo(), |key| key[0] - b'a' + 1)
    }

    fn fence(&self) -> u64 {
        self.state.head.fence.get()
    }

    fn apply(&mut self, change: &Change<'_>) {
        self.state.apply(change);
        if let Some(cursor) = change.cursor {
            self.cursor = cursor.to_owned();
        }
        if let Some(spec) = change.spec {
            self.spec = spec.to_owned();
        }
        change.unreachable.apply(&mut self.unreachable);
    }

    fn is_reported_by(&self, worker: usize) -> bool {
        unreachable::is_reported_by(&self.unreachable, worker_id(worker))
    }

    /// Whether it is parked because no worker reaches it.
    fn is_cut_off(&self) -> bool {
        self.state.head.park.is_some_and(|park| park.reason == ParkReason::Unreachable)
    }
}

impl<const LOG: usize> World<LOG> {
    /// One world for each way the clocks can differ.
    pub fn initial(bounds: &Bounds) -> Vec<Self> {
        assert_eq!(bounds.op_log_cap, LOG, "the explored op-log has {LOG} entries");
        let (run, root) = new_run(bounds, 1, EPOCH);
        let world = Self {
            now: EPOCH,
            run,
            shards: vec![root],
            live: vec![false; bounds.workers],
            skew: vec![0; bounds.workers],
            requests: Vec::new(),
            beliefs: vec![None; bounds.workers],
            sink: vec![Writer::default(); bounds.shards_max],
            recorded: 0,
            executed: vec![0; bounds.ops_max],
            control: vec![Writer::default(); bounds.shards_max],
            broken: None,
            trail: Rc::new(Trail { step: "start".to_string(), before: None }),
        };
        let mut worlds = vec![world];
        for worker in 0..bounds.workers {
            worlds = worlds
                .iter()
                .flat_map(|world| (0..=bounds.skew_max).map(|skew| (world.clone(), skew)))
                .map(|(mut world, skew)| {
                    world.skew[worker] = skew;
                    world
                })
                .collect();
        }
        worlds
    }

    /// The worlds one step away.
    pub fn successors(&self, bounds: &Bounds) -> Vec<Self> {
        let mut next = vec![self.after("tick".to_string(), |world| world.now += 1)];
        for worker in 0..bounds.workers {
            self.acquisitions(worker, bounds, &mut next);
            if self.beliefs[worker].is_some() {
                next.push(self.after(format!("w{worker} forgets"), |world| world.beliefs[worker] = None));
                next.extend(self.renewed(worker));
                next.extend(self.result_written(worker));
                self.sendings(worker, bounds, &mut next);
            } else if bounds.knows_sessions() {
                self.comings_and_goings(worker, &mut next);
                self.claims_that_park(worker, bounds, &mut next);
            }
        }
        for op in 0..self.requests.len() {
            self.deliveries(op, bounds, &mut next);
        }
        self.unpark_sendings(bounds, &mut next);
        next.extend(self.settled(Settlement::Complete));
        if bounds.cancelling {
            next.extend(self.settled(Settlement::Cancel));
        }
        next.extend(self.recreated(bounds));
        next
    }

    fn after(&self, step: String, change: impl FnOnce(&mut Self)) -> Self {
        let mut world = self.clone();
        world.trail = Rc::new(Trail { step, before: Some(Rc::clone(&self.trail)) });
        change(&mut world);
        world
    }

    fn clock_of(&self, worker: usize) -> LogicalTime {
        LogicalTime::new(self.now + self.skew[worker])
    }

    fn view(&self, place: usize) -> ShardView<'_, LOG> {
        let shard = &self.shards[place];
        ShardView {
            tenant: TENANT,
            key: shard.key,
            incarnation: self.run.incarnation,
            state: &shard.state,
            spec: shard.spec.view(),
            cursor: shard.cursor.as_update(),
            spawned: &shard.spawned,
            unreachable: &shard.unreachable,
            run: self.run.gate(1),
            owner: OwnerSignal::Alive,
        }
    }

    fn is_run_active(&self) -> bool {
        self.run.status == RunStatus::Active
    }

    fn blame(&mut self, property: &'static str, guilty: bool) {
        if guilty && self.broken.is_none() {
            self.broken = Some(property);
        }
    }

    /// The workers that have a session.
    fn sessions(&self) -> Vec<WorkerId> {
        (0..self.live.len()).filter(|worker| self.live[*worker]).map(worker_id).collect()
    }

    /// A worker that holds nothing asks in vain and is known from then on, or stops.
    fn comings_and_goings(&self, worker: usize, next: &mut Vec<Self>) {
        let holds = |shard: &Shard<LOG>| shard.state.head.lease.is_some_and(|holder| holder.owner == worker_id(worker));
        let (may_join, may_leave) = (self.is_run_active(), !self.shards.iter().any(holds));
        let (may, does) = if self.live[worker] { (may_leave, "leaves") } else { (may_join, "joins") };
        if may {
            let step = format!("w{worker} {does}");
            next.push(self.after(step, |world| world.live[worker] = !self.live[worker]));
        }
    }

    /// A claim passes over a shard that its worker has reported, and finds that no other worker is left.
    fn claims_that_park(&self, worker: usize, bounds: &Bounds, next: &mut Vec<Self>) {
        let sessions = self.sessions();
        for place in (0..self.shards.len()).filter(|place| self.shards[*place].is_reported_by(worker)) {
            let (view, now) = (self.view(place), self.clock_of(worker));
            let decided = unreachable::decide(&view, Peers::Sessions(&sessions), now, bounds.skew_tolerance);
            let shard = &self.shards[place];
            let is_past = |deadline: LogicalTime| now.get() >= deadline.get() + bounds.skew_tolerance;
            let is_open = shard.state.head.status == ShardStatus::Active
                && shard.state.head.lease.is_none_or(|holder| is_past(holder.deadline));
            let is_left = |worker: usize| self.live[worker] && !shard.is_reported_by(worker);
            let is_due = self.is_run_active() && is_open && !sessions.is_empty() && !(0..bounds.workers).any(is_left);
            match decided {
                Some((change, _)) => next.push(self.after(format!("a claim of w{worker} parks {place}"), |world| {
                    world.shards[place].apply(&change);
                })),
                // Other ways lead to the same states, so their number does not show it.
                None if is_due => next.push(self.after(format!("a claim of w{worker} leaves {place}"), |world| {
                    world.blame("UnreachableForAll", true);
                })),
                None => {}
            }
        }
    }

    /// The settled run is retired and created again. Workers do not know, and their requests may still arrive.
    fn recreated(&self, bounds: &Bounds) -> Option<Self> {
        let next = self.run.incarnation.get() + 1;
        if self.is_run_active() || next > bounds.incarnation_max {
            return None;
        }
        let (run, root) = new_run(bounds, next, self.now);
        Some(self.after(format!("run: incarnation {next}"), |world| {
            (world.run, world.shards) = (run, vec![root]);
            (world.sink, world.control) =
                (vec![Writer::default(); bounds.shards_max], vec![Writer::default(); bounds.shards_max]);
            (world.recorded, world.live) = (0, vec![false; bounds.workers]);
        }))
    }

    /// Whether something was granted or sent in the run that is there.
    fn is_of_this_run(&self, epoch: ShardEpoch) -> bool {
        epoch.incarnation == self.run.incarnation
    }

    fn acquisitions(&self, worker: usize, bounds: &Bounds, next: &mut Vec<Self>) {
        if self.beliefs[worker].is_some() {
            return;
        }
        for place in 0..self.shards.len() {
            let shard = &self.shards[place];
            if shard.fence() >= bounds.fence_max {
                continue;
            }
            let name = worker_id(worker);
            let decided = acquire::decide(&self.view(place), name, self.clock_of(worker), bounds.skew_tolerance);
            let Ok(acquisition) = decided else { continue };
            let lease = acquisition.outcome.expect("no retry budget is set");
            for heard in [true, false] {
                let step = format!("w{worker} acquires {place}{}", if heard { "" } else { ", unheard" });
                next.push(self.after(step, |world| {
                    world.shards[place].apply(&acquisition.change);
                    world.blame("SettledRunIsQuiet", !self.is_run_active());
                    world.live[worker] = bounds.knows_sessions();
                    if heard {
                        let (lo, hi, from) = (shard.lo(), shard.hi(), shard.next());
                        world.beliefs[worker] =
                            Some(Belief { lease, shard: place, lo, hi, next: from, waits_for: None });
                    }
                }));
            }
        }
    }

    fn renewed(&self, worker: usize) -> Option<Self> {
        let belief = self.beliefs[worker].as_ref().filter(|belief| belief.shard < self.shards.len())?;
        let lease = belief.lease.presented_by(TENANT).ok()?;
        let renewal = renew::decide(&self.view(belief.shard), lease, self.clock_of(worker)).ok()?;
        let (change, _) = renewal.extension?;
        Some(self.after(format!("w{worker} renews"), |world| {
            world.shards[belief.shard].apply(&change);
            world.blame("IncarnationFenced", !self.is_of_this_run(belief.lease.epoch()));
        }))
    }

    /// A worker writes the result of its next key. It looks at no clock: the result store alone keeps a zombie out.
    fn result_written(&self, worker: usize) -> Option<Self> {
        let belief = self.beliefs[worker].as_ref().filter(|belief| belief.waits_for.is_none())?;
        if belief.next >= belief.hi {
            return None;
        }
        let (place, fence, key) = (belief.shard, belief.lease.fence().get(), belief.next);
        let last = self.sink[place];
        Some(self.after(format!("w{worker} writes {key}"), |world| {
            if !self.is_of_this_run(belief.lease.epoch()) || fence < last.fence {
                world.beliefs[worker] = None;
                return;
            }
            world.sink[place] = Writer { fence, worker };
            world.recorded |= 1 << key;
            world.blame("EffectsFenced", last.forbids(worker, fence));
            let shard = &self.shards[place];
            world.blame("EffectsInRange", fence == shard.fence() && key >= shard.hi());
            if let Some(belief) = &mut world.beliefs[worker] {
                belief.next += 1;
            }
        }))
    }

    fn sendings(&self, worker: usize, bounds: &Bounds, next: &mut Vec<Self>) {
        let Some(belief) = self.beliefs[worker].as_ref().filter(|belief| belief.waits_for.is_none()) else { return };
        if self.requests.len() >= bounds.ops_max {
            return;
        }
        for kind in Kind::OF_WORKERS.into_iter().filter(|kind| bounds.kinds.contains(kind)) {
            let arguments = match kind {
                Kind::Checkpoint if belief.next > belief.lo => belief.next..belief.next + 1,
                Kind::Complete if belief.next == belief.hi => belief.next..belief.next + 1,
                Kind::Release | Kind::Unreachable => belief.next..belief.next + 1,
                Kind::Park => 0..1,
                Kind::SplitReplace => belief.lo + 1..belief.hi,
                Kind::SplitResidual => belief.next.max(belief.lo + 1)..belief.hi,
                _ => 0..0,
            };
            for argument in arguments {
                let request = Request {
                    kind,
                    worker,
                    shard: belief.shard,
                    epoch: belief.lease.epoch(),
                    argument,
                    body: belief.body(kind, argument),
                };
                next.push(self.after(format!("w{worker} sends {kind:?} {argument}"), |world| {
                    world.requests.push(request);
                    if let Some(belief) = &mut world.beliefs[worker] {
                        belief.waits_for = Some(self.requests.len());
                    }
                }));
            }
        }
    }

    fn unpark_sendings(&self, bounds: &Bounds, next: &mut Vec<Self>) {
        if !bounds.kinds.contains(&Kind::Unpark) || self.requests.len() >= bounds.ops_max {
            return;
        }
        for (place, shard) in self.shards.iter().enumerate() {
            if matches!(shard.state.head.status, ShardStatus::Parked | ShardStatus::Done) {
                let request = Request {
                    kind: Kind::Unpark,
                    worker: usize::MAX,
                    shard: place,
                    epoch: ShardEpoch::new(self.run.incarnation, shard.state.head.fence),
                    argument: 0,
                    body: Body::Operator,
                };
                next.push(self.after(format!("operator unparks {place}"), |world| world.requests.push(request)));
            }
        }
    }

    fn deliveries(&self, op: usize, bounds: &Bounds, next: &mut Vec<Self>) {
        let request = &self.requests[op];
        let fate = match &request.body {
            _ if request.shard >= self.shards.len() => Fate::Refused,
            Body::Operator => self.unparked(op, bounds),
            Body::Leased(lease) => self.leased(op, lease, bounds),
            Body::Replace(lease, plan) => self.replaced(op, lease, plan, bounds),
            Body::Residual(lease, plan) => self.residual(op, lease, plan, bounds),
        };
        let (world, accepted) = match fate {
            Fate::NoRoom => return,
            Fate::Executed(world) => (*world, true),
            Fate::Replayed => {
                let former = !self.is_of_this_run(request.epoch);
                (self.after(format!("op {op} replayed"), |world| world.blame("IncarnationFenced", former)), true)
            }
            Fate::Refused => {
                let forgotten = !self.remembers(op);
                let world = self.after(format!("op {op} refused"), |world| {
                    world.blame("ReplayAnswersAgree", self.executed[op] > 0 && !forgotten);
                });
                (world, false)
            }
        };
        let mut heard = world.clone();
        heard.absorb(op, accepted);
        next.push(heard);
        next.push(world);
    }

    /// Whether a retry is recognised: by the op-log while it remembers, and by the children for ever.
    fn remembers(&self, op: usize) -> bool {
        let place = self.requests[op].shard;
        let logged = |shard: &Shard<LOG>| shard.state.op_log.find(op_id(op)).is_some();
        self.shards.get(place).is_some_and(logged) || self.shards.iter().any(|shard| shard.born == Some((place, op)))
    }

    /// The worker hears the answer: it goes on, with a narrower range after a residual split, or it is done here.
    fn absorb(&mut self, op: usize, accepted: bool) {
        let Request { kind, worker, argument, .. } = self.requests[op];
        let Some(slot) = self.beliefs.get_mut(worker) else { return };
        let Some(belief) = slot.as_mut().filter(|belief| belief.waits_for == Some(op)) else { return };
        match kind {
            Kind::Checkpoint if accepted => belief.waits_for = None,
            Kind::SplitResidual if accepted => {
                belief.waits_for = None;
                belief.hi = argument;
            }
            _ => *slot = None,
        }
    }

    /// The world once the real code has accepted `op`.
    fn executed(&self, op: usize, change: &Change<'_>, births: &[Birth<'_>], bounds: &Bounds) -> Fate<LOG> {
        if self.shards.len() + births.len() > bounds.shards_max {
            return Fate::NoRoom;
        }
        let Request { kind, worker, shard: place, epoch, .. } = self.requests[op];
        let fence = epoch.fence.get();
        let world = self.after(format!("op {op} executed: {kind:?}"), |world| {
            world.executed[op] = (world.executed[op] + 1).min(2);
            world.blame("IncarnationFenced", !self.is_of_this_run(epoch));
            world.blame("SettledRunIsQuiet", !self.is_run_active());
            if kind != Kind::Unpark {
                let holder = self.shards[place].state.head.lease;
                let expired = holder.is_none_or(|holder| holder.is_past(self.clock_of(worker)));
                world.blame("ExpiredIsRefused", expired);
                world.blame("ControlFenced", self.control[place].forbids(worker, fence));
                world.control[place] = Writer { fence, worker };
            }
            world.shards[place].apply(change);
            for birth in births {
                world.shards[place].spawned.push(birth.as_spawned());
                world.shards.push(Shard {
                    key: birth.key,
                    state: ShardState::newborn(birth.cursor_semantics, birth.parent),
                    spec: birth.spec.to_owned(),
                    cursor: birth.cursor.to_owned(),
                    spawned: Vec::new(),
                    unreachable: Vec::new(),
                    born: Some((place, op)),
                });
            }
        });
        Fate::Executed(Box::new(world))
    }

    fn leased(&self, op: usize, lease: &Lease, bounds: &Bounds) -> Fate<LOG> {
        let request = &self.requests[op];
        let view = self.view(request.shard);
        let now = self.clock_of(request.worker);
        let lo = self.shards[request.shard].lo();
        let cursor = cursor_before(lo, request.argument);
        let Ok(lease) = lease.presented_by(TENANT) else { return Fate::Refused };
        let (id, sessions) = (op_id(op), self.sessions());
        let verdict = match request.kind {
            Kind::Checkpoint => checkpoint::decide(&view, lease, cursor.as_update(), id, now).ok(),
            Kind::Complete => complete::decide(&view, lease, cursor.as_update(), id, now).ok(),
            Kind::Release | Kind::Unreachable => {
                let progress: Option<CursorUpdate<'_>> = (!cursor.is_initial()).then(|| cursor.as_update());
                let reason = match request.kind {
                    Kind::Unreachable => ReleaseReason::Unreachable(Unreachable::NONE),
                    _ => ReleaseReason::Released,
                };
                let release = Release { cursor: progress, reason };
                release::decide(&view, lease, release, Peers::Sessions(&sessions), id, now).ok()
            }
            _ => park::decide(&view, lease, Park::because(ParkReason::Other), id, now).ok(),
        };
        match verdict {
            None => Fate::Refused,
            Some(Verdict::Replay(_)) => Fate::Replayed,
            Some(Verdict::Execute(change)) => self.executed(op, &change, &[], bounds),
        }
    }

    fn replaced(&self, op: usize, lease: &Lease, plan: &SplitReplacePlan, bounds: &Bounds) -> Fate<LOG> {
        let request = &self.requests[op];
        let Ok(lease) = lease.presented_by(TENANT) else { return Fate::Refused };
        let (view, now) = (self.view(request.shard), self.clock_of(request.worker));
        match split_replace::decide(&view, lease, plan, op_id(op), &ShardCensus::default(), now) {
            Err(_) => Fate::Refused,
            Ok(Verdict::Replay(_)) => Fate::Replayed,
            Ok(Verdict::Execute(split)) => self.executed(op, &split.change, &split.births, bounds),
        }
    }

    fn residual(&self, op: usize, lease: &Lease, plan: &SplitResidualPlan, bounds: &Bounds) -> Fate<LOG> {
        let request = &self.requests[op];
        let Ok(lease) = lease.presented_by(TENANT) else { return Fate::Refused };
        let (view, now) = (self.view(request.shard), self.clock_of(request.worker));
        match split_residual::decide(&view, lease, plan, op_id(op), &ShardCensus::default(), now) {
            Err(_) => Fate::Refused,
            Ok(Verdict::Replay(_)) => Fate::Replayed,
            Ok(Verdict::Execute(split)) => self.executed(op, &split.change, &split.births, bounds),
        }
    }

    fn unparked(&self, op: usize, bounds: &Bounds) -> Fate<LOG> {
        let request = &self.requests[op];
        let place = request.shard;
        let now = LogicalTime::new(self.now);
        match unpark::decide(&self.view(place), request.epoch, op_id(op), now) {
            Err(_) => Fate::Refused,
            Ok(Verdict::Replay(_)) => Fate::Replayed,
            Ok(Verdict::Execute(_)) if self.shards[place].fence() >= bounds.fence_max => Fate::Refused,
            Ok(Verdict::Execute(change)) => self.executed(op, &change, &[], bounds),
        }
    }

    fn settled(&self, settlement: Settlement) -> Option<Self> {
        let count = |status| self.shards.iter().filter(|shard| shard.state.head.status == status).count() as u32;
        let counts = ShardCounts {
            active: count(ShardStatus::Active),
            done: count(ShardStatus::Done),
            split: count(ShardStatus::Split),
            parked: count(ShardStatus::Parked),
        };
        // A new op id each time, so that only the run's status can refuse it.
        let id = OpId::new(1_000 + self.run.op_log.len() as u64);
        let decided = settle_run::decide(&self.run, settlement, &counts, id, LogicalTime::new(self.now)).ok()?;
        let Verdict::Execute(change) = decided else { return None };
        Some(self.after(format!("run: {settlement:?}"), |world| world.run.apply(&change, [])))
    }

    /// The steps that led here, oldest first.
    pub fn trail(&self) -> Vec<String> {
        let mut steps = Vec::new();
        let mut at = Some(&self.trail);
        while let Some(trail) = at {
            steps.push(trail.step.clone());
            at = trail.before.as_ref();
        }
        steps.reverse();
        steps
    }
}

impl Belief {
    fn body(&self, kind: Kind, argument: u8) -> Body {
        let spec = ShardSpec::new(&key_bytes(self.lo), &key_bytes(self.hi), &[]).expect("a leased range has keys");
        let point = key_bytes(argument);
        match kind {
            Kind::SplitReplace => Body::Replace(
                self.lease,
                plan_split_replace(spec.view(), &[&point]).expect("the point lies inside the range"),
            ),
            Kind::SplitResidual => Body::Residual(
                self.lease,
                plan_split_residual(spec.view(), None, &point).expect("the point lies inside"),
            ),
            _ => Body::Leased(self.lease),
        }
    }
}

/// The run with this incarnation, and its root.
fn new_run<const LOG: usize>(bounds: &Bounds, incarnation: u64, now: u64) -> (RunRecord, Shard<LOG>) {
    let config = RunConfig { lease_duration: Some(bounds.lease_ticks), max_shard_retries: 0, ..RunConfig::default() };
    let mut run = RunRecord::newborn(TENANT, RUN, RunIncarnation::new(incarnation), config, LogicalTime::new(now));
    run.status = RunStatus::Active;
    run.root_shards = vec![ROOT];
    let root = Shard {
        key: ShardKey::new(RUN, ROOT),
        state: ShardState::newborn(CursorSemantics::Completed, None),
        spec: ShardSpec::new(&key_bytes(0), &key_bytes(bounds.keys), &[]).expect("the sweep has a key"),
        cursor: cursor_before(0, 0),
        spawned: Vec::new(),
        unreachable: Vec::new(),
        born: None,
    };
    (run, root)
}

fn worker_id(worker: usize) -> WorkerId {
    WorkerId::new(worker as u64 + 1)
}

fn op_id(op: usize) -> OpId {
    OpId::new(op as u64 + 1)
}
