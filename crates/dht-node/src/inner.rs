//! The way of a command: to the lane that owns its id, and again if the lane changed or died meanwhile.
//!
//! Every command of the DHT may be repeated: a record stored twice is stored once. So a caller never sees a lane go down or
//! a slot move; it sees an answer that took a little longer.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use tessera_contracts::point::{ContentId, NodeId};
use tessera_contracts::prefix_map::LaneIndex;
use tessera_dht::node::command::{Answer, Command, CommandId, Outcome};
use tessera_dht::seal::keys::NetworkKey;
use tessera_lanes::runtime::{CommandRefused, Event, Runtime};
use zeroize::Zeroizing;

use crate::births::Births;
use crate::data_dir::DataDir;
use crate::error::NodeError;
use crate::handler::{Flags, NodeCommand, Waiting};
use crate::oneshot::{self, lock};
use crate::parts_in_use::PartsInUse;
use crate::peer_addr::PeerAddr;
use crate::providers::Found;
use crate::published::Published;
use crate::timer;
use crate::turns::Turns;

/// How long a command is offered to lanes that are busy, down or changing before the caller is told.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// How long to wait for a log that failed.
const LOG_PATIENCE: Duration = Duration::from_secs(2);
/// How long lanes have to say how they are: far longer than one needs that does not hang.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(2);
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(250);

/// A running node.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) id: NodeId,
    pub(crate) listen: PeerAddr,
    pub(crate) network: String,
    pub(crate) network_key: NetworkKey,
    pub(crate) seed: Zeroizing<[u8; 32]>,
    pub(crate) client: bool,
    pub(crate) test_hooks: bool,
    pub(crate) flags: Arc<Flags>,
    pub(crate) metrics: RwLock<Option<crate::metrics::Server>>,
    /// The lanes; `None` once the node has stopped.
    pub(crate) runtime: RwLock<Option<Arc<Runtime<NodeCommand>>>>,
    pub(crate) data: RwLock<Option<DataDir>>,
    /// Held by the caller that stops the node.
    pub(crate) stopper: Mutex<()>,
    /// Zero is for commands without a waiting caller.
    pub(crate) commands: AtomicU64,
    /// Events that no lane's thread reports, and those from before the node could be asked.
    pub(crate) events_waiting: Mutex<Vec<Event>>,
    /// The program's published values, for a node without logs.
    pub(crate) published: Option<Published>,
    /// The lanes that started, and their successors.
    pub(crate) births: Arc<Births>,
    /// Turns to write or forget a value.
    pub(crate) writers: Arc<Turns>,
    /// Turns to forget the rest of a value that was given up: one at a time, so all by one id.
    pub(crate) undoing: Arc<Turns>,
    /// Where large values are named that are being stored, if there is a data folder.
    pub(crate) unfinished: Option<PathBuf>,
    /// Which parts of large values are being stored or forgotten.
    pub(crate) parts_in_use: Arc<PartsInUse>,
}

impl Inner {
    /// The lanes, if the node runs.
    pub(crate) fn runtime(&self) -> Result<Arc<Runtime<NodeCommand>>, NodeError> {
        self.runtime.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or(NodeError::Stopped)
    }

    /// Has a command done by the owner of `point`.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        point: &[u8; 32],
        found: Option<Arc<Found>>,
        command: impl Fn() -> Command,
    ) -> Result<Outcome, NodeError> {
        ask(&Arc::downgrade(self), point, found, command).await
    }

    /// Gives a command to the owner of `point`: which lane it is and the command's id, or `None` if the lane does not take it.
    fn send(
        &self,
        point: &ContentId,
        command: Command,
        waiting: Waiting,
    ) -> Result<Option<(LaneIndex, CommandId)>, NodeError> {
        let runtime = self.runtime()?;
        let lane = runtime.map().lane(&self.id, point);
        let id = CommandId(self.commands.fetch_add(1, Ordering::Relaxed));
        Ok(runtime.command(lane, NodeCommand::Dht(id, command, waiting)).is_ok().then_some((lane, id)))
    }

    /// Asks every lane; those that are down or do not answer in time are left out.
    pub(crate) async fn ask_lanes<T>(
        &self,
        question: impl Fn(oneshot::Sender<T>) -> NodeCommand,
    ) -> Result<Vec<T>, NodeError> {
        Ok(all_of(self.put_to_lanes(question)?).await)
    }

    /// Puts a question to every lane that takes one.
    pub(crate) fn put_to_lanes<T>(
        &self,
        question: impl Fn(oneshot::Sender<T>) -> NodeCommand,
    ) -> Result<Vec<oneshot::Receiver<T>>, NodeError> {
        let runtime = self.runtime()?;
        let mut answers = Vec::new();
        for lane in 0..runtime.map().lanes() {
            let (sender, receiver) = oneshot::channel();
            match runtime.command(LaneIndex(lane as u8), question(sender)) {
                Ok(()) => answers.push(receiver),
                Err(CommandRefused::Busy(_) | CommandRefused::Down(_)) => {}
            }
        }
        Ok(answers)
    }

    /// Stops the lanes; their logs are whole when this returns, also for a second caller meanwhile.
    pub(crate) fn stop(&self, leaving: bool) {
        let _alone = lock(&self.stopper);
        self.flags.leaving.store(leaving, Ordering::Relaxed);
        self.flags.stopping.store(true, Ordering::Relaxed);
        drop(self.metrics.write().unwrap_or_else(PoisonError::into_inner).take());
        let runtime = self.runtime.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runtime) = runtime {
            // Callers that wait for a change of lanes are told at once, and release the runtime.
            runtime.begin_stop();
            // A call in the middle of a question holds the runtime too, for a moment; the last one stops the lanes.
            let mut runtime = Some(runtime);
            let deadline = Instant::now() + Duration::from_secs(5);
            while let Some(held) = runtime.take() {
                match Arc::try_unwrap(held) {
                    Ok(last) => last.shutdown(),
                    Err(held) if Instant::now() < deadline => {
                        std::thread::sleep(Duration::from_millis(1));
                        runtime = Some(held);
                    }
                    Err(held) => drop(held),
                }
            }
        }
        // The lock goes last: the next node on this folder finds the logs closed.
        drop(self.data.write().unwrap_or_else(PoisonError::into_inner).take());
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listen.addr()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop(true);
    }
}

/// As [`Inner::ask`], for callers that must not keep the node running while they wait.
pub(crate) async fn ask(
    inner: &Weak<Inner>,
    point: &[u8; 32],
    found: Option<Arc<Found>>,
    command: impl Fn() -> Command,
) -> Result<Outcome, NodeError> {
    let point = ContentId::from_bytes(*point);
    let (mut deadline, mut why) = (Instant::now() + PATIENCE, NodeError::Busy);
    let mut pause = PAUSE_MIN;
    loop {
        let (outcome, answer) = oneshot::channel();
        let sent = running(inner)?.send(&point, command(), Waiting { outcome, found: found.clone() })?;
        if let Some((lane, id)) = sent {
            let mut unfinished = Unfinished { inner: inner.clone(), lane, id, ended: false };
            let answer = answer.await;
            unfinished.ended = true;
            match answer {
                Ok(Outcome { answer: Answer::NoRoom, .. }) => return Err(NodeError::NoRoom),
                Ok(Outcome { answer: Answer::NotLogged, .. }) => {
                    why = NodeError::NotLogged;
                    // A log that was only behind takes it a moment later.
                    let failed = running(inner)?.flags.log_failed.load(Ordering::Relaxed);
                    deadline = deadline.min(Instant::now() + if failed { Duration::ZERO } else { LOG_PATIENCE });
                }
                Ok(Outcome { answer: Answer::WrongLane | Answer::TooBusy, .. }) | Err(oneshot::Lost) => {}
                Ok(outcome) => return Ok(outcome),
            }
        }
        if Instant::now() + pause > deadline {
            return Err(why);
        }
        timer::after(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The node, if it runs. A caller that must not keep it running holds this only while it sends a command.
pub(crate) fn running(inner: &Weak<Inner>) -> Result<Arc<Inner>, NodeError> {
    inner.upgrade().ok_or(NodeError::Stopped)
}

/// The lanes' answers, without those that come too late.
pub(crate) async fn all_of<T>(answers: Vec<oneshot::Receiver<T>>) -> Vec<T> {
    let mut limit = pin!(timer::after(ANSWER_PATIENCE));
    let (mut all, mut is_late) = (Vec::with_capacity(answers.len()), false);
    for answer in answers {
        // By the time a lane is known to hang, the others have long answered.
        let answered = match is_late {
            false => timer::unless(limit.as_mut(), answer).await,
            true => timer::unless(std::future::ready(()), answer).await,
        };
        is_late |= answered.is_none();
        all.extend(answered.and_then(Result::ok));
    }
    all
}

/// Cancels a command whose caller went away.
struct Unfinished {
    inner: Weak<Inner>,
    lane: LaneIndex,
    id: CommandId,
    ended: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // In this order: if this is the last reference, the node stops when the first is dropped, after the second.
        if !self.ended
            && let Ok(inner) = running(&self.inner)
            && let Ok(runtime) = inner.runtime()
        {
            // If the lane cannot be told, it finishes the command in vain.
            let _ = runtime.command(self.lane, NodeCommand::Cancel(self.id));
        }
    }
}
