//! Opening a runtime: everything that can be refused (logs, sockets, threads) is asked for before the first lane runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustix::thread::sched_getaffinity;
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap};

use crate::handler::Handler;
use crate::net::calls::Calls;
use crate::net::group::SocketGroup;
use crate::runtime::observer::{AlarmWatch, Observer};
use crate::runtime::spawner::Spawner;
use crate::runtime::supervisor::relieving::ReliefWatch;
use crate::runtime::supervisor::{Request, Start, Supervisor};
use crate::runtime::supervisor_thread::{self, Ended, NotRegistered, SupervisorTask, TaskSender};
use crate::runtime::{RuntimeConfig, Shared, StartError, cores};
use crate::wal::log::lanes_with_files;
use crate::wal::storage::Directory;

/// What is shared with the supervisor, the way to ask something of it, and what tells that it has ended.
type Made<C> = (Arc<Shared<C>>, TaskSender<Request>, Ended);

/// Starts the supervisor and all lanes.
pub(in crate::runtime) fn start<H, F>(
    config: &RuntimeConfig,
    make: Arc<F>,
    spawner: Arc<dyn Spawner>,
) -> Result<Made<H::Command>, StartError>
where
    H: Handler + Send + 'static,
    H::Command: Send + 'static,
    F: Fn(LaneIndex) -> H + Send + Sync + 'static,
{
    let io = |doing: &str| {
        let doing = doing.to_owned();
        move |error| StartError::Io { doing, error }
    };
    let map = Arc::new(PrefixMap::new(config.selector, config.lanes).map_err(StartError::Lanes)?);
    let log = match &config.log {
        None => None,
        Some((path, log)) => {
            let directory =
                Directory::open(path).map_err(io(&format!("opening the log directory {}", path.display())))?;
            let lock = File::create(path.join("lanes.lock")).map_err(io("creating the lock of the log directory"))?;
            // A second process would join the socket group and write the same logs.
            lock.try_lock().map_err(|error| StartError::Io {
                doing: format!("locking {}: is another process using it?", path.display()),
                error: error.into(),
            })?;
            Some((directory, *log, lock))
        }
    };
    let sockets = config
        .bind
        .map(|at| SocketGroup::bind(at, config.lanes, config.socket_buffer_bytes).map_err(io(&format!("binding {at}"))))
        .transpose()?;
    let shared = Arc::new(Shared::new(map.clone(), sockets.as_ref().map(SocketGroup::address)));
    let cores = config.cores.clone().unwrap_or_else(cores::allowed);
    let calls = match sockets.as_ref().map(SocketGroup::probe_batches) {
        Some(Err(error)) => {
            let what = format!(
                "datagrams cannot be moved in batches ({error}): every one costs a system call, which is slower. \
                 Allow recvmmsg and sendmmsg in the sandbox of the process"
            );
            shared.event(None, what);
            Calls::Single
        }
        _ if config.batched_calls => Calls::Batched { slot_at: config.lane.steer_offset },
        _ => Calls::Single,
    };
    let (requests, inbox) = TaskSender::new();
    let mut supervisor = Supervisor {
        config: config.clone(),
        make,
        spawner,
        shared: shared.clone(),
        requests: requests.clone(),
        inbox,
        former: map.clone(),
        map,
        sockets,
        log,
        origin: Instant::now(),
        cores,
        home: sched_getaffinity(None).ok(),
        calls,
        lanes: BTreeMap::new(),
        logs_left: Vec::new(),
        change: None,
        next_change: None,
        relief: config.relief.map(ReliefWatch::new),
        alarms: (!Observer::is_wanted(config)).then(AlarmWatch::new),
        stopping: false,
        stop_by: None,
    };
    supervisor.steer();
    let orphans = supervisor.find_orphans().map_err(io("listing the log directory"))?;
    for lane in 0..supervisor.config.lanes {
        let adopted = orphans.iter().copied().filter(|orphan| usize::from(orphan.0) % supervisor.config.lanes == lane);
        let adopted = adopted.collect();
        if let Err(error) = supervisor.start_lane(LaneIndex(lane as u8), Start::First, adopted) {
            see_out(Box::new(supervisor), &requests);
            return Err(io("starting a lane")(error));
        }
    }
    let ended =
        supervisor_thread::register(Box::new(supervisor), &requests).map_err(|NotRegistered { task, error }| {
            see_out(task, &requests);
            io("starting the supervisor")(error)
        })?;
    Ok((shared, requests, ended))
}

/// Stops the lanes that have been started, and waits for them as dropping a runtime does: no other thread would ever stop them, and
/// they would keep their port and go on writing logs that are not locked any more.
fn see_out(mut supervisor: Box<dyn SupervisorTask>, requests: &TaskSender<Request>) {
    let _ = requests.send(Request::Stop);
    while let Some(pause) = supervisor.turn() {
        std::thread::sleep(pause);
    }
}

impl<H, F> Supervisor<H, F>
where
    H: Handler + Send + 'static,
    H::Command: Send + 'static,
    F: Fn(LaneIndex) -> H + Send + Sync + 'static,
{
    /// Lanes that have a log here and no longer exist.
    fn find_orphans(&self) -> io::Result<Vec<LaneIndex>> {
        let Some((directory, ..)) = &self.log else { return Ok(Vec::new()) };
        let lanes = lanes_with_files(directory)?.into_iter();
        Ok(lanes.filter(|lane| usize::from(lane.0) >= self.config.lanes).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
    use std::time::Duration;

    use super::*;
    use crate::ring::park::Parker;
    use crate::runtime::Runtime;
    use crate::runtime::spawner::System;
    use crate::wal::LogConfig;

    /// A system that has only so many threads left.
    struct FewThreads(AtomicU32);

    impl Spawner for FewThreads {
        fn parker(&self, has_socket: bool) -> io::Result<Arc<Parker>> {
            System.parker(has_socket)
        }

        fn thread(&self, name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
            let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            taken.map_err(|_| io::Error::from(io::ErrorKind::WouldBlock)).and_then(|_| System.thread(name, body))
        }
    }

    /// A lane that is there for as long as it has this.
    struct There(#[expect(dead_code, reason = "it is there to be dropped")] Sender<()>);

    impl Handler for There {
        type Command = ();
    }

    #[test]
    fn of_a_runtime_that_does_not_start_no_lane_is_left() {
        let folder = std::env::temp_dir().join(format!("tessera-lanes-few-threads-{}", std::process::id()));
        let mut config = RuntimeConfig {
            lanes: 3,
            spin: Duration::ZERO,
            bind: Some("127.0.0.1:0".parse().unwrap()),
            log: Some((folder.clone(), LogConfig::default())),
            ..RuntimeConfig::default()
        };
        for (threads, share_threads) in [(1, false), (2, false), (2, true)] {
            config.share_threads = share_threads;
            let (there, gone) = channel();
            let few = Arc::new(FewThreads(threads.into()));
            let refused = Runtime::start_with(config.clone(), move |_| There(there.clone()), few);
            assert!(matches!(refused, Err(StartError::Io { .. })), "{refused:?}");
            let left = gone.recv_timeout(Duration::ZERO);
            assert_eq!(left, Err(RecvTimeoutError::Disconnected), "a lane still holds the log and the port");
            let (there, _) = channel();
            Runtime::start(config.clone(), move |_| There(there.clone())).unwrap();
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
