//! A network of nodes in a process of its own, driven a round at a time by the process that compares.
//!
//! Each network has its process, so that background work of one is not counted for another, and memory is that of one.
//!
//! An operation is measured twice: one after the other, where nodes and processors sleep until they are called, the cost of
//! a lone user; and with sixteen under way all the time, the cost of a busy program, and how the figures were taken that
//! the aims come from. All callers are tasks of one thread. A network that is not measured is stopped, so that its background work
//! disturbs no other; and it works for a while before it is measured again, because others had the processor and its
//! caches meanwhile, and the figure is the cost of a network that is in use.

use std::error::Error;
use std::future::Future;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use futures::executor::block_on;
use futures::stream::{FuturesUnordered, TryStreamExt as _};

use crate::figures::{Cost, Moment};
use crate::process::Process;

/// How long a network puts, and then gets, before that is measured; and how long while it is.
const WARMING: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(1);
/// Of each operation every caller does as many at least, however long they take.
const OPERATIONS_MIN: usize = 8;
/// Each value is read by as many at most.
const READERS: usize = 3;
/// Callers of a busy round, each with one operation under way.
const CALLERS: usize = 16;

/// So long a network that was stopped has to catch up with the time it missed.
const SETTLING: Duration = Duration::from_secs(3);

/// Where a value came from.
pub(crate) enum Got {
    /// The reader held it itself.
    Here,
    /// Others were asked for it.
    Asked,
    #[cfg_attr(not(any(feature = "libp2p", feature = "mainline")), expect(dead_code, reason = "ours is an error then"))]
    Missing,
}

/// Many nodes of one kind that know each other.
pub(crate) trait Network: Sized + Sync {
    type Id: Send + Sync;
    /// Whether an operation holds its thread until it is done. Then each caller needs one.
    const BLOCKS: bool = false;
    /// Starts them and waits until they know their neighbours.
    fn start(count: usize) -> Result<Self, Box<dyn Error>>;
    fn put(&self, node: usize, value: Vec<u8>) -> impl Future<Output = Result<Self::Id, Box<dyn Error>>>;
    fn get(&self, node: usize, id: &Self::Id) -> impl Future<Output = Result<Got, Box<dyn Error>>>;
}

/// The costs of operations in one round: called one after the other, and by many callers at once.
#[derive(Clone, Copy)]
pub(crate) struct Round {
    pub(crate) put: Cost,
    pub(crate) get: Cost,
    pub(crate) busy_put: Cost,
    pub(crate) busy_get: Cost,
}

impl Round {
    fn line(&self) -> String {
        let costs = [self.put, self.get, self.busy_put, self.busy_get];
        costs.map(|Cost { cpu, wall }| format!("{cpu} {wall}")).join(" ")
    }

    fn read(line: &str) -> Result<Self, Box<dyn Error>> {
        let numbers: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let (costs, []) = numbers.as_chunks::<2>() else { return Err(format!("`{line}`?").into()) };
        let [put, get, busy_put, busy_get] = costs[..] else { return Err(format!("`{line}`?").into()) };
        let cost = |[cpu, wall]: [f64; 2]| Cost { cpu, wall };
        Ok(Self { put: cost(put), get: cost(get), busy_put: cost(busy_put), busy_get: cost(busy_get) })
    }
}

/// The driven process: starts the network, then carries out each line of its input.
pub(crate) fn serve<N: Network>(count: usize) -> Result<(), Box<dyn Error>> {
    let before = resident_kilobytes()?;
    let network = N::start(count)?;
    println!("ready");
    for (round, line) in std::io::stdin().lines().enumerate() {
        match line?.as_str() {
            "round" => {
                costs_of(&network, count, round * 3, CALLERS, WARMING)?;
                let (put, get) = costs_of(&network, count, round * 3 + 1, 1, MEASURED)?;
                let (busy_put, busy_get) = costs_of(&network, count, round * 3 + 2, CALLERS, MEASURED)?;
                println!("{}", Round { put, get, busy_put, busy_get }.line());
            }
            "memory" => println!("{}", (resident_kilobytes()? - before) / count),
            other => return Err(format!("`{other}` is neither round nor memory").into()),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// The costs of a put and a get if each caller has one under way all the time, for the given time.
fn costs_of<N: Network>(
    network: &N,
    count: usize,
    round: usize,
    callers: usize,
    time: Duration,
) -> Result<(Cost, Cost), Box<dyn Error>> {
    let begun = Moment::now();
    let put = all_call::<N, _, _>(callers, async |caller| {
        let mut put = Vec::new();
        while put.len() < OPERATIONS_MIN || begun.wall_time() < time {
            let n = put.len();
            let writer = (round * 7 + caller * 29 + n * 13) % count;
            put.push((writer, network.put(writer, format!("value {round} {caller} {n}").into_bytes()).await?));
        }
        Ok(put)
    })?;
    let cost_of_put = begun.cost_of_each(put.iter().map(Vec::len).sum());
    let (asked, missing, gets) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let begun = Moment::now();
    all_call::<N, _, _>(callers, async |caller| {
        for (n, (writer, id)) in put[caller].iter().enumerate() {
            if n >= OPERATIONS_MIN && begun.wall_time() >= time {
                break;
            }
            for step in 0..READERS {
                let reader = (writer + 17 + n + step * 19) % count;
                gets.fetch_add(1, Relaxed);
                match network.get(reader, id).await? {
                    Got::Here => 0,
                    Got::Asked => asked.fetch_add(1, Relaxed),
                    Got::Missing => missing.fetch_add(1, Relaxed),
                };
            }
        }
        Ok(())
    })?;
    // Answers from the own store cost next to nothing; all CPU is put down to those that asked.
    let (asked, missing, gets) = (asked.into_inner(), missing.into_inner(), gets.into_inner());
    let cost_of_get = begun.cost_of_each(asked);
    if missing * 20 > gets || asked * 2 < gets {
        return Err(format!("{asked} asked, {missing} found nothing, of {gets}").into());
    }
    Ok((cost_of_put, cost_of_get))
}

/// Lets callers work at once: as tasks of this thread, or each on a thread of its own.
fn all_call<N: Network, T: Send, C>(callers: usize, call: C) -> Result<Vec<T>, Box<dyn Error>>
where
    C: AsyncFn(usize) -> Result<T, Box<dyn Error>> + Sync,
{
    if !N::BLOCKS || callers == 1 {
        return block_on((0..callers).map(|caller| call(caller)).collect::<FuturesUnordered<_>>().try_collect());
    }
    std::thread::scope(|scope| {
        let call = &call;
        let calls =
            (0..callers).map(|caller| scope.spawn(move || block_on(call(caller)).map_err(|why| why.to_string())));
        let started: Vec<_> = calls.collect();
        started.into_iter().map(|thread| Ok(thread.join().map_err(|_| "a caller panicked")??)).collect()
    })
}

fn resident_kilobytes() -> Result<usize, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS")).ok_or("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}

/// The driving end.
pub(crate) struct Driven(Process);

impl Driven {
    /// Starts a network of `count` nodes of the kind `who`, and waits until it is ready.
    pub(crate) fn start(who: &str, count: usize) -> Result<Self, Box<dyn Error>> {
        Self::once_ready(who, Process::start(&["serve", who, &count.to_string()])?)
    }

    /// The same of our own nodes as another build of this program has them.
    pub(crate) fn start_build(program: &Path, count: usize) -> Result<Self, Box<dyn Error>> {
        Self::once_ready(super::BEFORE, Process::start_build(program, &["serve", "ours", &count.to_string()])?)
    }

    fn once_ready(who: &str, mut process: Process) -> Result<Self, Box<dyn Error>> {
        match process.line()?.as_str() {
            "ready" => Ok(Self(process)),
            other => Err(format!("{who} did not start: {other}").into()),
        }
    }

    /// The costs of operations in one round. The network stands still until then, and afterwards.
    pub(crate) fn round(&mut self) -> Result<Round, Box<dyn Error>> {
        self.0.go_on()?;
        // Its overdue background work (pings, above all) is done at once, and is not part of the figure.
        std::thread::sleep(SETTLING);
        let round = Round::read(&self.0.ask("round")?);
        self.0.stand_still()?;
        round
    }

    pub(crate) fn stand_still(&self) -> Result<(), Box<dyn Error>> {
        self.0.stand_still()
    }

    /// Kilobytes resident for each node.
    pub(crate) fn memory(&mut self) -> Result<f64, Box<dyn Error>> {
        Ok(self.0.ask("memory")?.parse()?)
    }
}
