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
use crate::runtime::keeper::{self, Caller, Departure};
use crate::runtime::means::Means;
use crate::runtime::observer::{AlarmWatch, Observer};
use crate::runtime::supervisor::{Request, Start, Supervisor};
use crate::runtime::{RuntimeConfig, Shared, StartError, cores};
use crate::wal::log::lanes_with_files;
use crate::wal::storage::Directory;

/// What is shared with the supervisor, the way to ask something of it, and what tells that it has ended.
type Made<C> = (Arc<Shared<C>>, Caller<Request>, Departure);

/// Starts the supervisor and all lanes.
pub(in crate::runtime) fn start<H, F>(
    config: &RuntimeConfig,
    make: Arc<F>,
    means: Arc<dyn Means>,
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
    let (requests, inbox) = Caller::new();
    let mut supervisor = Supervisor {
        config: config.clone(),
        make,
        means,
        shared: shared.clone(),
        requests: requests.clone(),
        inbox,
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
        alarms: (!Observer::is_wanted(config)).then(AlarmWatch::new),
        stopping: false,
        stop_by: None,
    };
    supervisor.steer();
    let orphans = supervisor.find_orphans().map_err(io("listing the log directory"))?;
    for lane in 0..supervisor.config.lanes {
        let adopted = orphans.iter().copied().filter(|orphan| usize::from(orphan.0) % supervisor.config.lanes == lane);
        let adopted = adopted.collect();
        supervisor.start_lane(LaneIndex(lane as u8), Start::First, adopted).map_err(io("starting a lane"))?;
    }
    let ended = keeper::keep(Box::new(supervisor), &requests).map_err(io("starting the supervisor"))?;
    Ok((shared, requests, ended))
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
