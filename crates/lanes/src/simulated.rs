//! The same lanes on one thread, with virtual time, a virtual network and a disk that can lose power: deterministic by seed.
//!
//! A [`VirtualNode`] has S lanes and their logs; a [`VirtualNetwork`] has nodes and carries datagrams between them with delay,
//! loss and duplication. Rings, classes, timers, hand-overs and the log are the very code of the real runtime; what is
//! replaced is the thread, the clock, the socket and the file system. In which order lanes take their turns is part of the
//! seed.

mod network;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use tessera_contracts::prefix_map::{LaneIndex, MapError, PrefixMap, Selector, Slot};

use crate::config::LaneConfig;
use crate::context::Context;
use crate::handler::Handler;
use crate::lane::{Lane, Mail};
use crate::orders::{Order, OrderInbox, Orders};
use crate::ring::link::link;
use crate::ring::park::Parker;
use crate::ring::pressure::Pressure;
use crate::telemetry::counters::LaneCounters;
use crate::time::LaneTime;
use crate::wal::LogConfig;
use crate::wal::faulty::FaultyDirectory;
use crate::wal::log::{Finding, Wal, lanes_with_files, remove_lane};
use crate::wal::queue::{WriterParkers, log_queue};
use crate::wal::writer::Writer;

pub use network::{NetworkConfig, VirtualNetwork};

/// What a virtual node is made of.
#[derive(Clone, Debug)]
pub struct VirtualConfig {
    /// How many lanes it starts with.
    pub lanes: usize,
    /// The bounds of each.
    pub lane: LaneConfig,
    /// How it logs; `None` for not at all.
    pub log: Option<LogConfig>,
    /// Everything that is random follows from this.
    pub seed: u64,
}

/// A node of a virtual network: lanes that take their turns on the caller's thread.
pub struct VirtualNode<H: Handler> {
    config: VirtualConfig,
    make: Box<dyn FnMut(LaneIndex) -> H>,
    lanes: Vec<Option<VirtualLane<H>>>,
    /// Slots by lane; also what a real node's packet filter would know.
    map: Arc<PrefixMap>,
    /// The map before it, for lanes that take the place of one that had not heard of the present one.
    former: Arc<PrefixMap>,
    /// Counters of lanes that are down. They outlive the lane, as in a real runtime.
    down: BTreeMap<LaneIndex, Arc<LaneCounters>>,
    disk: FaultyDirectory,
    now: LaneTime,
    rng: ChaCha8Rng,
    outgoing: Vec<(SocketAddr, Vec<u8>)>,
    findings: Vec<Finding>,
    /// What the lanes' turns take of the node's time. Nothing, unless it is set.
    pub cost: TurnCost,
    /// Of a thousand datagrams, how many reach a lane at random instead of the one their slot byte names.
    pub misroute_permille: u32,
}

/// How long a virtual lane's turn takes: it takes no other until then, as if it had a core to itself and that was busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnCost {
    /// For a turn that found something to do.
    pub turn: Duration,
    /// For each message, frame and timer it handled.
    pub each: Duration,
}

struct VirtualLane<H> {
    lane: Lane<H>,
    writer: Option<Writer<FaultyDirectory>>,
    parker: Arc<Parker>,
    pressure: Arc<Pressure>,
    counters: Arc<LaneCounters>,
    stalled_until: LaneTime,
    orders: Orders,
    /// What a lane that takes no turns has yet to be given.
    mail: VecDeque<Mail>,
}

impl<H: Handler> VirtualLane<H> {
    /// Tells the lane at once, or with its next turn if it has none now.
    fn tell(&mut self, now: LaneTime, mail: Mail) {
        self.mail.push_back(mail);
        self.read_mail(now);
    }

    fn read_mail(&mut self, now: LaneTime) {
        while self.stalled_until <= now
            && let Some(mail) = self.mail.pop_front()
        {
            self.lane.mail(now, mail);
        }
    }
}

impl<H: Handler> std::fmt::Debug for VirtualNode<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualNode").field("lanes", &self.lanes.len()).field("now", &self.now).finish_non_exhaustive()
    }
}

impl<H: Handler> VirtualNode<H> {
    /// A node whose lanes run what `make` makes, started at time zero on an empty disk.
    pub fn new(config: VirtualConfig, make: impl FnMut(LaneIndex) -> H + 'static) -> Result<Self, MapError> {
        Self::on_disk(config, FaultyDirectory::default(), LaneTime(0), make)
    }

    /// A node started on what a disk already holds, perhaps written by more or fewer lanes.
    pub fn on_disk(
        config: VirtualConfig,
        disk: FaultyDirectory,
        now: LaneTime,
        make: impl FnMut(LaneIndex) -> H + 'static,
    ) -> Result<Self, MapError> {
        let map = Arc::new(PrefixMap::new(Selector::default(), config.lanes)?);
        let mut node = Self {
            former: map.clone(),
            map,
            down: BTreeMap::new(),
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            make: Box::new(make),
            lanes: Vec::new(),
            disk,
            now,
            outgoing: Vec::new(),
            findings: Vec::new(),
            cost: TurnCost::default(),
            misroute_permille: 0,
            config,
        };
        for lane in 0..node.config.lanes {
            node.start_lane(LaneIndex(lane as u8));
        }
        node.adopt_orphans();
        Ok(node)
    }

    /// Starts a lane, new or in place of a dead one, and links it with all others.
    fn start_lane(&mut self, index: LaneIndex) {
        let place = usize::from(index.0);
        if self.lanes.len() <= place {
            self.lanes.resize_with(place + 1, || None);
        }
        let before = self.down.remove(&index);
        let former = before.is_some().then(|| self.former.clone());
        let counters = before.unwrap_or_default();
        let (parker, pressure) = (Parker::without_socket(), Arc::new(Pressure::default()));
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        let mut cx =
            Box::new(Context::new(index, &self.config.lane, self.map.clone(), seed, self.now, counters.clone()));
        let mut writer = None;
        let mut recovered = None;
        if let Some(log) = self.config.log {
            let (wal, found) = Wal::open(self.disk.clone(), index, self.rng.next_u64())
                .expect("a virtual disk fails only when told to, and its node is then crashed as a whole");
            self.findings.extend(found.findings.iter().cloned());
            let (sender, receiver) = log_queue(log.queue_bytes_max, WriterParkers::default());
            writer = Some(Writer::new(wal, receiver, log, parker.clone(), self.rng.next_u64()));
            cx.log = Some(sender);
            recovered = Some(found);
        }
        let mut lane = Lane::new((self.make)(index), cx);
        lane.recover(recovered.iter().flat_map(|found| found.records()), former.as_deref());
        let sizes = self.config.lane.rings;
        for other in self.lanes.iter_mut().flatten() {
            let there = other.lane.cx.lane;
            let (out, inlet) = link(index, there, &sizes, other.parker.clone(), other.pressure.clone());
            lane.mail(self.now, Mail::Link(Box::new(out)));
            other.tell(self.now, Mail::Inlet(Box::new(inlet)));
            let (out, inlet) = link(there, index, &sizes, parker.clone(), pressure.clone());
            other.tell(self.now, Mail::Link(Box::new(out)));
            lane.mail(self.now, Mail::Inlet(Box::new(inlet)));
        }
        let (out, inlet) = link(index, index, &sizes, parker.clone(), pressure.clone());
        lane.mail(self.now, Mail::Link(Box::new(out)));
        lane.mail(self.now, Mail::Inlet(Box::new(inlet)));
        lane.start(self.now);
        let stalled_until = LaneTime(0);
        let (orders, inbox) = Orders::new(counters.orders_done.get(), pressure.clone());
        lane.mail(self.now, Mail::Orders(OrderInbox(inbox)));
        let mail = VecDeque::new();
        self.lanes[place] = Some(VirtualLane { lane, writer, parker, pressure, counters, stalled_until, orders, mail });
    }

    /// Gives the records of lanes that no longer exist to lanes that do.
    fn adopt_orphans(&mut self) {
        let Some(_) = self.config.log else { return };
        let orphans = lanes_with_files(&self.disk).expect("a virtual disk can be listed");
        let lanes = self.config.lanes;
        for orphan in orphans.into_iter().filter(|lane| usize::from(lane.0) >= lanes) {
            let (wal, found) =
                Wal::open(self.disk.clone(), orphan, self.rng.next_u64()).expect("a virtual disk can be read");
            drop(wal);
            self.findings.extend(found.findings.iter().cloned());
            for record in found.records() {
                let owner = usize::from(self.map.lane_of_slot(record.slot).0);
                if let Some(owner) = &mut self.lanes[owner] {
                    owner.lane.import(self.now, record);
                }
            }
            self.run_until_idle();
            self.sync();
            remove_lane(&self.disk, orphan).expect("a virtual disk can be written");
        }
    }

    /// The time of the node.
    #[must_use]
    pub fn now(&self) -> LaneTime {
        self.now
    }

    /// The map the lanes have been told of.
    #[must_use]
    pub fn map(&self) -> &PrefixMap {
        &self.map
    }

    /// The counters of a lane.
    #[must_use]
    pub fn counters(&self, lane: LaneIndex) -> Option<&LaneCounters> {
        let runs = self.lanes.get(usize::from(lane.0)).and_then(Option::as_ref).map(|lane| &lane.counters);
        runs.or_else(|| self.down.get(&lane)).map(|counters| &**counters)
    }

    /// The handler of a lane, to look into it.
    #[must_use]
    pub fn handler(&self, lane: LaneIndex) -> Option<&H> {
        self.lanes.get(usize::from(lane.0))?.as_ref().map(|lane| lane.lane.handler())
    }

    /// How many lanes run.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes.iter().flatten().count()
    }

    /// The disk, to damage it.
    #[must_use]
    pub fn disk(&self) -> &FaultyDirectory {
        &self.disk
    }

    /// What recoveries found besides good records, so far.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Asks something of a lane; false if there is no such lane.
    pub fn command(&mut self, lane: LaneIndex, command: H::Command) -> bool {
        let now = self.now;
        match self.lanes.get_mut(usize::from(lane.0)).and_then(Option::as_mut) {
            Some(lane) => {
                lane.lane.command(now, command);
                true
            }
            None => false,
        }
    }

    /// A datagram from the network: to the lane its slot byte names, as the packet filter would, or to one at random.
    pub fn datagram(&mut self, from: SocketAddr, bytes: &mut [u8]) {
        let steered = self
            .config
            .lane
            .steer_offset
            .and_then(|offset| bytes.get(usize::from(offset)))
            .map(|byte| self.map.lane_of_slot(Slot(*byte)));
        let astray = self.rng.next_u64() % 1000 < u64::from(self.misroute_permille);
        let lane = match steered {
            Some(lane) if !astray => usize::from(lane.0),
            _ => self.rng.next_u64() as usize % self.lanes.len().max(1),
        };
        let now = self.now;
        if let Some(lane) = self.lanes.get_mut(lane).and_then(Option::as_mut) {
            lane.lane.datagram(now, from, bytes);
        }
    }

    /// One turn of every lane, in an order drawn from the seed. Says whether any had something to do.
    pub fn turn(&mut self) -> bool {
        let mut order: Vec<usize> = (0..self.lanes.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, self.rng.next_u64() as usize % (at + 1));
        }
        let mut busy = false;
        for at in order {
            let Some(lane) = &mut self.lanes[at] else { continue };
            lane.read_mail(self.now);
            let _ = lane.orders.step(LaneIndex(at as u8), self.now, lane.counters.orders_done.get());
            if lane.stalled_until <= self.now {
                let before = lane.lane.work;
                let found = lane.lane.turn(self.now);
                if found {
                    let work = u32::try_from(lane.lane.work - before).unwrap_or(u32::MAX);
                    lane.stalled_until = self.now.after(self.cost.turn + self.cost.each * work);
                }
                busy |= found;
            }
            while let Some((to, bytes)) = lane.lane.cx.sends.get(0) {
                self.outgoing.push((to, bytes.to_vec()));
                lane.lane.cx.sends.advance(1);
                lane.counters.datagrams_out.add(1);
                busy = true;
            }
            if let Some(writer) = &mut lane.writer {
                // A failed writer has told its lane; the test that made the disk fail crashes the node.
                let _ = writer.turn(self.now);
            }
        }
        for lane in self.lanes.iter_mut().flatten() {
            lane.lane.cx.wakes.wake();
        }
        busy
    }

    /// Gives turns until no lane has work at this time.
    pub fn run_until_idle(&mut self) {
        while self.turn() {}
    }

    /// When something will happen though nothing comes in.
    #[must_use]
    pub fn next_wake(&self) -> Option<LaneTime> {
        let lanes = self.lanes.iter().flatten();
        let wake_of = |lane: &VirtualLane<H>| {
            let waiting = (lane.stalled_until > self.now && lane.lane.has_waiting()).then_some(lane.stalled_until);
            waiting.or_else(|| lane.lane.next_wake().map(|wake| wake.max(lane.stalled_until)))
        };
        lanes.filter_map(wake_of).min()
    }

    /// Lets time pass until `until`, stopping at every moment at which a lane has something to do.
    pub fn run_until(&mut self, until: LaneTime) {
        loop {
            self.run_until_idle();
            let step = self.now.after(Duration::from_millis(1)); // The log's writer is looked at every millisecond.
            let next = self.next_wake().map_or(until, |wake| wake.max(LaneTime(self.now.0 + 1)));
            let writers_wait =
                self.lanes.iter().flatten().any(|lane| lane.writer.as_ref().is_some_and(|w| w.is_waiting()));
            let next = if writers_wait { next.min(step) } else { next };
            if self.now >= until {
                break;
            }
            self.now = next.min(until);
        }
    }

    /// Datagrams the node has sent since this was last called.
    pub fn take_outgoing(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut self.outgoing)
    }

    /// A lane panics: its state is gone, its log is not. It is started again at once, the others are told.
    pub fn crash_lane(&mut self, lane: LaneIndex) {
        self.kill_lane(lane);
        self.restart_lane(lane);
    }

    /// A lane panics, or hangs and is given up, and the others are told. It is down until [`restart_lane`](Self::restart_lane).
    pub fn kill_lane(&mut self, lane: LaneIndex) {
        let Some(mut dying) = self.lanes.get_mut(usize::from(lane.0)).and_then(Option::take) else { return };
        if let Some(writer) = &mut dying.writer {
            // What the lane queued is the writer's, and the writer lives.
            let _ = writer.turn(self.now).and_then(|_| writer.sync());
        }
        self.down.insert(lane, dying.counters);
        for other in self.lanes.iter_mut().flatten() {
            other.tell(self.now, Mail::Unlink(lane));
        }
    }

    /// A lane that is down starts again, from its log.
    pub fn restart_lane(&mut self, lane: LaneIndex) {
        if self.down.contains_key(&lane) {
            self.start_lane(lane);
        }
    }

    /// A lane takes no turns until `until`; its messages and datagrams wait.
    pub fn stall_lane(&mut self, lane: LaneIndex, until: LaneTime) {
        if let Some(Some(lane)) = self.lanes.get_mut(usize::from(lane.0)) {
            lane.stalled_until = until;
        }
    }

    /// Puts everything logged on disk.
    pub fn sync(&mut self) {
        for writer in self.lanes.iter_mut().flatten().filter_map(|lane| lane.writer.as_mut()) {
            let _ = writer.turn(self.now).and_then(|_| writer.sync());
        }
    }

    /// The power fails: all lanes are gone, and of what was not synced, the disk keeps what the seed decides. The disk that is
    /// left can be given to [`VirtualNode::on_disk`].
    #[must_use]
    pub fn power_failure(mut self) -> FaultyDirectory {
        let disk = self.disk.clone();
        disk.crash(|| self.rng.next_u64());
        disk
    }

    /// Changes the number of lanes. New lanes start at once; lanes that go hand over their slots first, as time passes.
    /// As in a real runtime, none is to be down, and the last change to have come to its end.
    pub fn resize(&mut self, lanes: usize) -> Result<(), MapError> {
        let map = self.map.resized(lanes)?;
        for lane in 0..lanes {
            if self.lanes.get(lane).is_none_or(Option::is_none) {
                self.start_lane(LaneIndex(lane as u8));
            }
        }
        self.set_map(map);
        Ok(())
    }

    /// Lends a slot to another lane, to relieve its own.
    pub fn lend(&mut self, slot: Slot, helper: LaneIndex) -> Result<(), MapError> {
        let map = self.map.lent(slot, helper)?;
        self.set_map(map);
        Ok(())
    }

    /// Takes every lent slot back.
    pub fn return_all(&mut self) {
        self.set_map(self.map.all_returned());
    }

    fn set_map(&mut self, map: PrefixMap) {
        self.former = std::mem::replace(&mut self.map, Arc::new(map));
        for lane in self.lanes.iter_mut().flatten() {
            lane.orders.give(Order::Map(self.map.clone()));
        }
    }

    /// Removes lanes that own nothing by the map once they have handed everything over. Says whether any are left to remove.
    pub fn retire_idle_lanes(&mut self) -> bool {
        let keep = self.map.lanes();
        let mut left = false;
        for at in keep..self.lanes.len() {
            let Some(lane) = &mut self.lanes[at] else { continue };
            lane.orders.give(Order::Retire);
            if !lane.lane.is_retired() {
                left = true;
                continue;
            }
            lane.lane.stop(self.now);
            if let Some(writer) = &mut lane.writer {
                let _ = writer.turn(self.now).and_then(|_| writer.sync());
            }
            self.lanes[at] = None;
            for other in self.lanes.iter_mut().flatten() {
                other.tell(self.now, Mail::Unlink(LaneIndex(at as u8)));
            }
            if self.config.log.is_some() {
                remove_lane(&self.disk, LaneIndex(at as u8)).expect("a virtual disk can be written");
            }
        }
        left
    }
}
