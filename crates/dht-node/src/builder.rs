//! From settings to a running node.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use tessera_contracts::prefix_map::{PrefixMap, Selector};
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, Identity};
use tessera_dht::node::LaneNode;
use tessera_dht::node::config::NodeConfig;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::store::records::RecordLimits;
use tessera_lanes::config::LaneConfig;
use tessera_lanes::runtime::{self, ReliefPolicy, RestartPolicy, Runtime, RuntimeConfig};
use tessera_lanes::telemetry::trace_file::TraceFiles;
use tessera_lanes::wal::{Durability, LogConfig};
use zeroize::Zeroizing;

use crate::births::Births;
use crate::call::Call;
use crate::clock::Clock;
use crate::data_dir::{DataDir, DataDirError, fresh_seed};
use crate::handler::{DhtLane, Flags};
use crate::inner::Inner;
use crate::metrics;
use crate::node::Node;
use crate::oneshot::lock;
use crate::peer_addr::PeerAddr;
use crate::published::Published;
use crate::simulated::lane_config;
use crate::unfinished;

/// How long lanes may take to recover and to hand each other the slots that changed owner.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Trace events that wait to be taken if only dropped messages are traced.
const TRACED_DROPS_MAX: usize = 64;

/// Bytes of the largest value, cut into records: 64 MiB, the records' own headers and their manifests, and as much again.
const LARGEST_VALUE_ROOM: usize = 128 << 20;
/// Records of the largest value, 74,000 or so, and some for others.
const LARGEST_VALUE_RECORDS: usize = 1 << 17;

/// Settings of a node. Every one has a default; [`start`](Self::start) does the rest.
#[derive(Debug, Clone)]
pub struct NodeBuilder {
    listen: SocketAddr,
    bootstrap: Vec<Contact>,
    lanes: Option<usize>,
    data: Option<PathBuf>,
    seed: Option<Zeroizing<[u8; 32]>>,
    metrics: Option<SocketAddr>,
    address_diversity: Option<bool>,
    log: LogConfig,
    kernel_steering: bool,
    relief: Option<ReliefPolicy>,
    pin: bool,
    share_threads: bool,
    trace_every: u32,
    trace_files: Option<TraceFiles>,
    test_hooks: bool,
    /// Settings of the DHT for a network of strangers.
    config: NodeConfig,
    /// The same for a private network: relaxed first, so that later settings hold in both.
    config_among_own: NodeConfig,
}

impl Default for NodeBuilder {
    fn default() -> Self {
        // Room for the largest value there is, in a network of two nodes of one lane.
        let config = NodeConfig {
            kept_alive_bytes_max: LARGEST_VALUE_ROOM,
            records: RecordLimits {
                records_max: LARGEST_VALUE_RECORDS,
                bytes_max: LARGEST_VALUE_ROOM as u32,
                ..RecordLimits::default()
            },
            ..NodeConfig::default()
        };
        let mut config_among_own = config.clone();
        trust_neighbours(&mut config_among_own);
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            bootstrap: Vec::new(),
            lanes: None,
            data: None,
            seed: None,
            metrics: None,
            address_diversity: None,
            log: LogConfig::default(),
            kernel_steering: true,
            relief: Some(ReliefPolicy::default()),
            pin: false,
            share_threads: true,
            trace_every: 0,
            trace_files: None,
            test_hooks: false,
            config,
            config_among_own,
        }
    }
}

impl NodeBuilder {
    /// Where to listen; port zero picks a free one. Default: a free port of this machine only, `127.0.0.1:0`.
    #[must_use]
    pub fn listen(mut self, addr: SocketAddr) -> Self {
        self.listen = addr;
        self
    }

    /// Nodes to join by, besides those remembered in the data folder. Without any, this is the first node of a network.
    #[must_use]
    pub fn bootstrap(mut self, peers: impl IntoIterator<Item = PeerAddr>) -> Self {
        self.bootstrap.extend(peers.into_iter().map(|peer| peer.0));
        self
    }

    /// How many lanes: event loops that share nothing. Default: one per physical core.
    #[must_use]
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = Some(lanes);
        self
    }

    /// A folder that keeps the node's identity, contacts and the records it holds for others. Default: none, and all of it is gone
    /// when the node stops.
    #[must_use]
    pub fn data_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.data = Some(path.as_ref().to_owned());
        self
    }

    /// The identity's secret, instead of the data folder's or a fresh one.
    #[must_use]
    pub fn seed(mut self, seed: [u8; 32]) -> Self {
        self.seed = Some(Zeroizing::new(seed));
        self
    }

    /// The network's name; nodes of different networks do not understand each other. Default: `tessera`.
    #[must_use]
    pub fn network(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.configure(|config| config.network.clone_from(&name))
    }

    /// Only ask, never serve: for programs that are soon gone or cannot be reached.
    #[must_use]
    pub fn client(self, client: bool) -> Self {
        self.configure(|config| config.client = client)
    }

    /// The address others are told. Default: the one they see.
    #[must_use]
    pub fn public_addr(self, addr: SocketAddr) -> Self {
        self.configure(|config| config.public_addr = Some(addr.into()))
    }

    /// Where metrics are served for Prometheus, at `/metrics`. Default: nowhere.
    #[must_use]
    pub fn metrics(mut self, addr: SocketAddr) -> Self {
        self.metrics = Some(addr);
        self
    }

    /// Whether few nodes of one address block are trusted at a time, and each is limited: right on the open internet, wrong
    /// where all nodes are one's own and share a block. Default: off if the node listens on a loopback or private address. Places of
    /// private blocks are never counted; limits on requests and stores that [`configure`](Self::configure) sets hold either way.
    #[must_use]
    pub fn address_diversity(mut self, diversity: bool) -> Self {
        self.address_diversity = Some(diversity);
        self
    }

    /// When something stored for another counts as safe, and is acknowledged.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.log.durability = durability;
        self
    }

    /// How long a lane's log grows before a snapshot of the lane's state replaces it. Default: 16 MB.
    #[must_use]
    pub fn compact_log_at(mut self, bytes: u64) -> Self {
        self.log.compact_bytes_min = bytes;
        self
    }

    /// Whether the kernel hands datagrams straight to the lane that owns them. Without it, lanes pass them on.
    #[must_use]
    pub fn kernel_steering(mut self, steering: bool) -> Self {
        self.kernel_steering = steering;
        self
    }

    /// When a lane that stays busy has another serve half of its slots, and takes them back; `None` leaves that to [`Node::relieve`]. Default: after
    /// half a minute at 85 %, until both could be done by one lane at half its time.
    #[must_use]
    pub fn relief(mut self, policy: Option<ReliefPolicy>) -> Self {
        self.relief = policy;
        self
    }

    /// Whether lanes are pinned to cores, and look for work a moment longer before they sleep. Default: no, since an application
    /// may have better use for a core; a daemon pins.
    #[must_use]
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// Whether lanes that are not pinned share threads with those of all such nodes of the process. Default: yes.
    ///
    /// Lanes of one node are on different threads as far as there are cores. Those of different nodes are on the same one for as long
    /// as it has time to spare when they start, and stay there: that takes least of the processor, but nodes that become busy later
    /// have one core between them. A lane that hangs, as in a waker that blocks, holds up those on its thread until they are given up
    /// with it and start again on another. Where either matters, let lanes have threads of their own.
    #[must_use]
    pub fn share_threads(mut self, share: bool) -> Self {
        self.share_threads = share;
        self
    }

    /// Whether each lane takes the memory of its tables and queues when it starts, up to their bounds, instead of as they fill. Default: no,
    /// since most nodes meet few others and hold little.
    #[must_use]
    pub fn reserve_memory(self, reserve: bool) -> Self {
        self.configure(|config| config.reserve_memory = reserve)
    }

    /// Of how many events one is traced; zero traces only drops.
    #[must_use]
    pub fn trace_every(mut self, every: u32) -> Self {
        self.trace_every = every;
        self
    }

    /// Writes traces to files in this folder, a JSON object a line, of at most so many bytes in all. Default: they wait for
    /// [`Node::take_traces`].
    #[must_use]
    pub fn trace_files(mut self, folder: impl AsRef<Path>, bytes_max: u64) -> Self {
        self.trace_files = Some(TraceFiles { folder: folder.as_ref().to_owned(), bytes_max });
        self
    }

    /// Allows [`Node::inject_panic`] and [`Node::inject_stall`], for tests.
    #[must_use]
    pub fn test_hooks(mut self, allowed: bool) -> Self {
        self.test_hooks = allowed;
        self
    }

    /// Changes the finer settings of the DHT: bounds, paces, privacy. Called twice: with the settings for a network of strangers,
    /// and with those for one where all nodes are one's own.
    #[must_use]
    pub fn configure(mut self, change: impl Fn(&mut NodeConfig)) -> Self {
        change(&mut self.config);
        change(&mut self.config_among_own);
        self
    }

    /// As [`start`](Self::start), for an executor whose threads are not to be blocked while logs are read.
    pub fn start_async(self) -> Call<Result<Node, StartError>> {
        Call::elsewhere(|| self.start())
    }

    /// Starts the node. It serves when this returns; joining the network goes on in the background.
    pub fn start(mut self) -> Result<Node, StartError> {
        let data = self.data.as_deref().map(|path| DataDir::open(path, &self.config.network)).transpose()?;
        let seed = match (self.seed.take(), &data) {
            (Some(seed), _) => seed,
            (None, Some(data)) => data.key()?,
            (None, None) => fresh_seed().map_err(StartError::Random)?,
        };
        let identity = Identity::from_seed(&seed);
        let (id, key) = (identity.node_id(), identity.public_key());
        if !self.address_diversity.unwrap_or(!is_private(self.listen.ip())) {
            self.config = self.config_among_own.clone();
        }
        let config = RuntimeConfig {
            selector: Selector::default(),
            lane: LaneConfig { trace_every: self.trace_every, ..lane_config() },
            bind: Some(self.listen),
            kernel_steering: self.kernel_steering,
            relief: self.relief,
            log: data.as_ref().map(|data| (data.log(), self.log)),
            pin: self.pin,
            share_threads: self.share_threads && !self.pin,
            // To look for work a while before sleeping costs a core that only a lane with one of its own has to spare.
            spin: if self.pin { RuntimeConfig::default().spin } else { Duration::ZERO },
            traces_max: if self.trace_every == 0 { TRACED_DROPS_MAX } else { RuntimeConfig::default().traces_max },
            trace_files: self.trace_files.take(),
            restart: RestartPolicy::default(),
            ..RuntimeConfig::default()
        };
        let lanes = self.lanes.unwrap_or(config.lanes);
        let config = RuntimeConfig { lanes, ..config };
        let (flags, births) = (Arc::new(Flags::default()), Arc::new(Births::default()));
        let runtime = self.start_lanes(config, seed.clone(), flags.clone(), births.clone())?;
        let bound = runtime.address().unwrap_or(self.listen);
        let inner = Arc::new(Inner {
            id,
            listen: PeerAddr::new(key.0, bound),
            network_key: NetworkKey::of_name(&self.config.network),
            network: self.config.network,
            seed,
            client: self.config.client,
            test_hooks: self.test_hooks,
            flags,
            metrics: RwLock::new(None),
            runtime: RwLock::new(Some(Arc::new(runtime))),
            published: data.is_none().then(Published::default),
            unfinished: data.as_ref().map(DataDir::unfinished),
            data: RwLock::new(data),
            stopper: Mutex::default(),
            commands: AtomicU64::new(1),
            events_waiting: Mutex::default(),
            births,
            writers: Arc::default(),
            undoing: Arc::default(),
            parts_in_use: Arc::default(),
        });
        settle(&inner)?;
        if let Some(folder) = &inner.unfinished {
            unfinished::forget_left_over(Arc::downgrade(&inner), folder);
        }
        if inner.published.is_some() {
            inner.births.see_to(Arc::downgrade(&inner));
        }
        if let Some(addr) = self.metrics {
            let server = metrics::Server::start(addr, &inner).map_err(|error| StartError::Metrics { addr, error })?;
            if let Ok(mut metrics) = inner.metrics.write() {
                *metrics = Some(server);
            }
        }
        Ok(Node::of(inner))
    }

    fn start_lanes(
        &self,
        config: RuntimeConfig,
        seed: Zeroizing<[u8; 32]>,
        flags: Arc<Flags>,
        births: Arc<Births>,
    ) -> Result<Runtime<crate::handler::NodeCommand>, StartError> {
        let origin = Instant::now();
        let (selector, lanes) = (config.selector, config.lanes);
        let seeds = Arc::new(self.bootstrap.clone());
        let dht = self.config.clone();
        let listen = self.listen;
        Runtime::start(config, move |lane| {
            births.born(lane);
            let clock = Clock::new(origin);
            // A lane learns the true map when it starts; until then it only needs a map that contains it.
            let map =
                PrefixMap::new(selector, lanes.max(usize::from(lane.0) + 1)).expect("lanes are counted by a byte");
            let fresh = fresh_seed().expect("the system gives random numbers, as it did when the node started");
            let node = LaneNode::new(dht.clone(), Identity::from_seed(&seed), map, lane, *fresh, clock.early());
            DhtLane::new(Box::new(node), clock, seeds.clone(), flags.clone())
        })
        .map_err(|error| match error {
            runtime::StartError::Io { error, .. } if error.kind() == std::io::ErrorKind::AddrInUse => {
                StartError::PortTaken(listen)
            }
            error => StartError::Lanes(error),
        })
    }
}

/// Waits until every lane has recovered and has all slots it owns.
fn settle(inner: &Inner) -> Result<(), StartError> {
    let deadline = Instant::now() + START_PATIENCE;
    let Ok(runtime) = inner.runtime() else { return Ok(()) };
    let mut failures = Vec::new();
    while !runtime.is_settled() {
        for event in runtime.take_events() {
            if event.what.contains("restarts in") || event.what.contains("could not be") {
                failures.push(event.what.clone());
            }
            lock(&inner.events_waiting).push(event);
        }
        if failures.len() >= 3 || Instant::now() > deadline {
            let why = failures.pop().unwrap_or_else(|| "lanes do not settle".to_owned());
            // Of a node that does not start, no lane will.
            let why = why.split("; restarts in").next().unwrap_or_default().to_owned();
            drop(runtime);
            inner.stop(false);
            return Err(StartError::Recovery(why));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// Relaxes the limits per address block: on a private network or one machine a block says nothing about a node's owner. Limits
/// that the caller sets afterwards hold.
fn trust_neighbours(config: &mut NodeConfig) {
    config.table.per_prefix_in_bucket = usize::MAX;
    config.table.per_prefix_in_table = usize::MAX;
    config.lookup.per_prefix_max = usize::MAX;
    config.abuse.per_prefix_per_sec = config.abuse.per_prefix_per_sec.max(200_000);
    config.abuse.per_peer_per_sec = config.abuse.per_peer_per_sec.max(20_000);
    config.abuse.unproven_per_sec = config.abuse.unproven_per_sec.max(20_000);
    config.abuse.strangers_per_prefix_per_sec = config.abuse.strangers_per_prefix_per_sec.max(1_000);
    // All there is room for, however much that is set to.
    config.records.bytes_per_giver_max = u32::MAX;
}

/// Whether an address is this machine's or a private network's.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Why a node did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The data folder cannot be used.
    Data(DataDirError),
    /// The port is taken.
    PortTaken(SocketAddr),
    /// The lanes could not be started.
    Lanes(runtime::StartError),
    /// Lanes could not recover from the data folder.
    Recovery(String),
    /// The metrics address cannot be listened on.
    Metrics {
        /// Which.
        addr: SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
    /// The system gave no random numbers.
    Random(std::io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(error) => error.fmt(f),
            Self::PortTaken(addr) => write!(
                f,
                "{addr} is in use by another program: choose another with --listen, or port 0 for any free one"
            ),
            Self::Lanes(error) => error.fmt(f),
            Self::Recovery(why) => write!(
                f,
                "the node cannot recover its state: {why}: it needs to read and write all files of its data folder"
            ),
            Self::Metrics { addr, error } => write!(
                f,
                "listening for metrics on {addr} failed: {error}: choose another address with --metrics, or port 0 for any free one"
            ),
            Self::Random(error) => write!(f, "the system gives no random numbers: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<DataDirError> for StartError {
    fn from(error: DataDirError) -> Self {
        Self::Data(error)
    }
}
