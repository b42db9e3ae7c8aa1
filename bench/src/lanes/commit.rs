//! Group commit through a lane, beside a file that a thread appends the same groups to and syncs.
//!
//! Like for like: both sides sync as often and write the same records, which is printed when the figure is done, from the files
//! and from the log's own count. Ours also writes the room ahead of them, zeros that spare the file system its part of a sync;
//! that is in its figures, and the unused part is in its bytes a record. CPU is that of all threads. Ours has one more than the reference: the lane, which does not
//! wait for the disk. All are on one core, as a lane and the writer of its log are by default: elsewhere most of the
//! measured time is the waking of another core.
//!
//! * *one at a time*: a group is asked for, from outside, when the last one is durable. Beside the disk this measures threads
//!   that wake each other: ours four times a group, the reference's two.
//! * *stream*: a lane has two groups under way, which then go with one sync; beside a thread that syncs as much at a time, has
//!   the next at hand and is never woken.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_lanes::handler::Notice;
use tessera_lanes::runtime::{Runtime, RuntimeConfig};
use tessera_lanes::wal::{Durability, Importance, LogConfig, Lsn};
use tessera_lanes::{Context, Handler};

use super::log::Scratch;
use crate::harness::Pair;

/// Records in a group, and their bytes.
const RECORDS: u8 = 64;
const RECORD_BYTES: usize = 256;
/// Where both sides write.
const CORE: usize = 0;

/// Groups as fast as the disk takes them.
pub(super) fn stream() -> Pair {
    figure("lanes/commit-stream", 2)
}

/// A group when the last one is durable.
pub(super) fn one_at_a_time() -> Pair {
    figure("lanes/commit", 1)
}

fn figure(name: &'static str, window: u64) -> Pair {
    let (mut lane, mut file) = (LaneSide::start(name), FileSide::start(name));
    Pair::new(move |times| lane.commit(times, window), move |times| file.commit(times, window))
}

/// How many groups are asked for at once: all if they need not be asked for one by one.
fn asked_at_once(times: u64, window: u64) -> u64 {
    if window > 1 { times } else { 1 }
}

/// So many groups, so many of them under way at once, and the caller to tell when all are durable.
struct Task {
    groups: u64,
    window: u64,
    done: SyncSender<()>,
}

/// A lane that logs groups and waits for none of them.
struct LaneSide {
    runtime: Arc<Runtime<Task>>,
    to: SyncSender<()>,
    durable: Receiver<()>,
    tally: Tally,
}

impl LaneSide {
    fn start(name: &'static str) -> Self {
        let scratch = Scratch::new("commit");
        let log = LogConfig { durability: Durability::Strict, compact_bytes_min: 1 << 40, ..LogConfig::default() };
        let config = RuntimeConfig {
            lanes: 1,
            log: Some((scratch.0.clone(), log)),
            spin: Duration::ZERO,
            cores: Some(vec![CORE]),
            ..RuntimeConfig::default()
        };
        let runtime = Arc::new(Runtime::start(config, |_| Logger::default()).expect("a lane with a log starts"));
        let (to, durable) = sync_channel(1);
        let counted = runtime.clone();
        let syncs = Box::new(move || counted.snapshot().total("log_syncs"));
        Self { runtime, to, durable, tally: Tally { name, side: "ours", scratch, groups: 0, syncs } }
    }

    fn commit(&mut self, times: u64, window: u64) {
        let groups = asked_at_once(times, window);
        for _ in 0..times / groups {
            let task = Task { groups, window, done: self.to.clone() };
            assert!(self.runtime.command(LaneIndex(0), task).is_ok(), "the lane runs");
            self.durable.recv().expect("every group becomes durable");
        }
        self.tally.groups += times;
    }
}

#[derive(Default)]
struct Logger {
    task: Option<Task>,
    /// The last records of the groups under way, oldest first; at most two are used.
    open: [Lsn; 2],
    under_way: u64,
}

impl Logger {
    fn log_groups(&mut self, cx: &mut Context) {
        let Some(task) = &mut self.task else { return };
        while self.under_way < task.window && task.groups > 0 {
            for slot in 0..RECORDS {
                let last = cx.log(1, Slot(slot), &[5; RECORD_BYTES], Importance::Hard).expect("the queue has room");
                self.open[self.under_way as usize] = last;
            }
            self.under_way += 1;
            task.groups -= 1;
        }
        if self.under_way == 0
            && let Some(task) = self.task.take()
        {
            let _ = task.done.send(()); // No thread waits any more once the figure is done.
        }
    }
}

impl Handler for Logger {
    type Command = Task;

    fn on_command(&mut self, cx: &mut Context, task: Task) {
        self.task = Some(task);
        self.log_groups(cx);
    }

    fn on_notice(&mut self, cx: &mut Context, notice: Notice) {
        let Notice::Durable { upto } = notice else { return };
        while self.under_way > 0 && self.open[0] <= upto {
            self.open[0] = self.open[1];
            self.under_way -= 1;
        }
        self.log_groups(cx);
    }
}

/// A thread that appends groups to a file and syncs each.
struct FileSide {
    ask: SyncSender<Task>,
    to: SyncSender<()>,
    durable: Receiver<()>,
    syncs: u64,
    tally: Tally,
}

impl FileSide {
    fn start(name: &'static str) -> Self {
        let scratch = Scratch::new("bare");
        let (ask, asked) = sync_channel::<Task>(1);
        let mut file = File::create(scratch.0.join("bare")).expect("a file can be created");
        std::thread::spawn(move || {
            let mut core = CpuSet::new();
            core.set(CORE);
            sched_setaffinity(None, &core).expect("the first core may be used, as on the other side");
            let mut group = Vec::new();
            for task in asked {
                let mut left = task.groups;
                while left > 0 {
                    let merged = left.min(task.window);
                    left -= merged;
                    group.clear();
                    for _ in 0..merged * u64::from(RECORDS) {
                        group.extend_from_slice(&[0; 20]);
                        group.extend_from_slice(&[5; RECORD_BYTES]);
                    }
                    file.write_all(&group).and_then(|()| file.sync_data()).expect("the disk takes it");
                }
                let _ = task.done.send(()); // No thread waits any more once the figure is done.
            }
        });
        let (to, durable) = sync_channel(1);
        let tally = Tally { name, side: "reference", scratch, groups: 0, syncs: Box::new(|| 0) };
        Self { ask, to, durable, syncs: 0, tally }
    }

    fn commit(&mut self, times: u64, window: u64) {
        let groups = asked_at_once(times, window);
        for _ in 0..times / groups {
            self.ask.send(Task { groups, window, done: self.to.clone() }).expect("the thread lives");
            self.durable.recv().expect("every group becomes durable");
        }
        self.tally.groups += times;
        self.syncs += times / groups * groups.div_ceil(window);
        let syncs = self.syncs;
        self.tally.syncs = Box::new(move || syncs);
    }
}

/// The work of one side, told at its end.
struct Tally {
    name: &'static str,
    side: &'static str,
    scratch: Scratch,
    groups: u64,
    syncs: Box<dyn Fn() -> u64>,
}

impl Drop for Tally {
    fn drop(&mut self) {
        let files = std::fs::read_dir(&self.scratch.0).into_iter().flatten().flatten();
        let bytes: u64 = files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
        let records = self.groups.max(1) * u64::from(RECORDS);
        let (name, side, groups, syncs) = (self.name, self.side, self.groups, (self.syncs)());
        let each = bytes as f64 / records as f64;
        eprintln!("{name}: {side} synced {syncs} times for {groups} groups, {each:.1} bytes a record");
    }
}
