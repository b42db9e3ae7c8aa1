//! `tessera node`: a DHT node that runs until it is told to stop, and the commands that steer a running one.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tessera_dht_node::control::runtime_dir;
use tessera_dht_node::control::server::Server;
use tessera_dht_node::{Node, PeerAddr};

use super::dht::{self, Connection};
use super::node_config::{self, Durable, Settings};
use super::node_log::{Format, Log, log_panics};
use super::node_sockets::remove_dead_sockets;
use super::node_top;
use crate::tell::print;

/// The most bytes of all files in `trace-dir`.
const TRACE_BYTES_MAX: u64 = 64 << 20;

/// Between two looks at signals and events.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Run a node of a DHT, or steer a running one
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Without any flag it is the first node of a network on this machine, and prints how to join it.

EXAMPLES
  tessera node
  tessera node --bootstrap KEY@203.0.113.7:4242 --listen 0.0.0.0:4242 --data /var/lib/tessera
  tessera node --config /etc/tessera/node.toml
  tessera node top                 watch a running node
  tessera node set-lanes 4         change its number of lanes while it runs

Flags win over the environment, and the environment over the file that --config names. A tessera.toml in the current directory \
says nothing about nodes: it may be a stranger's, and where a node listens and keeps its data is not a stranger's to say.
Its socket is in $TESSERA_RUNTIME_DIR [default: $XDG_RUNTIME_DIR/tessera, or tessera-UID in the folder for temporary files].
SIGINT, SIGTERM and SIGHUP end it in good order."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    steer: Option<Steer>,

    #[command(flatten)]
    start: Start,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    /// Where to listen [default: a free port, of this machine only unless --bootstrap names another]
    #[arg(long, value_name = "ADDR", env = "TESSERA_NODE_LISTEN", value_parser = node_config::socket_addr)]
    listen: Option<SocketAddr>,

    /// A node to join by, as it prints itself; may be given several times or with commas between them, and adds to those of --config
    #[arg(long, value_name = "KEY@HOST:PORT", env = "TESSERA_NODE_BOOTSTRAP", value_delimiter = ',')]
    bootstrap: Vec<PeerAddr>,

    /// Event loops that share nothing [default: one per physical core]
    #[arg(long, value_name = "N", env = "TESSERA_NODE_LANES")]
    lanes: Option<usize>,

    /// A folder that keeps identity, contacts and records [default: nothing is kept]
    #[arg(long, value_name = "DIR", env = "TESSERA_NODE_DATA")]
    data: Option<PathBuf>,

    /// Nodes of different networks do not understand each other [default: tessera]
    #[arg(long, value_name = "NAME", env = "TESSERA_NODE_NETWORK")]
    network: Option<String>,

    /// Serve metrics for Prometheus at http://ADDR/metrics, and health at /health
    #[arg(long, value_name = "ADDR", env = "TESSERA_NODE_METRICS", value_parser = node_config::socket_addr)]
    metrics: Option<SocketAddr>,

    /// The address others are told [default: the one they see]
    #[arg(long, value_name = "ADDR", env = "TESSERA_NODE_PUBLIC_ADDR", value_parser = node_config::public_addr)]
    public_addr: Option<SocketAddr>,

    /// Settings from a file, as docs/node.toml shows them; flags win, but --bootstrap adds to its nodes
    #[arg(long, value_name = "FILE", env = "TESSERA_NODE_CONFIG")]
    config: Option<PathBuf>,

    /// How events are logged to standard error
    #[arg(long, value_name = "FORMAT", env = "TESSERA_NODE_LOG")]
    log: Option<Format>,

    /// Allow `inject-panic` and `inject-stall`
    #[arg(long, hide = true)]
    test_hooks: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Steer {
    Top(node_top::Args),
    /// Change the number of lanes of a running node; nothing is lost
    SetLanes {
        /// How many lanes it is to have
        lanes: usize,
        #[command(flatten)]
        at: At,
    },
    /// Lend half of a lane's slots to another lane
    Relieve {
        /// The hot lane
        lane: u8,
        /// The lane that helps
        helper: u8,
        #[command(flatten)]
        at: At,
    },
    /// Take lent slots back
    MergeBack {
        #[command(flatten)]
        at: At,
    },
    /// Make a lane panic
    #[command(hide = true)]
    InjectPanic {
        lane: u8,
        #[command(flatten)]
        at: At,
    },
    /// Make a lane hang
    #[command(hide = true)]
    InjectStall {
        lane: u8,
        milliseconds: u64,
        #[command(flatten)]
        at: At,
    },
}

/// Which of the nodes that run here.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct At {
    /// The node's socket [default: that of the node started last]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let result = match &args.steer {
        None => serve(&args.start),
        Some(Steer::Top(args)) => node_top::run(args),
        Some(Steer::SetLanes { lanes, at }) => steer(at, &json!({ "op": "set-lanes", "lanes": lanes })),
        Some(Steer::Relieve { lane, helper, at }) => {
            steer(at, &json!({ "op": "relieve", "lane": lane, "helper": helper }))
        }
        Some(Steer::MergeBack { at }) => steer(at, &json!({ "op": "merge-back" })),
        Some(Steer::InjectPanic { lane, at }) => steer(at, &json!({ "op": "inject-panic", "lane": lane })),
        Some(Steer::InjectStall { lane, milliseconds, at }) => {
            steer(at, &json!({ "op": "inject-stall", "lane": lane, "milliseconds": milliseconds }))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn steer(at: &At, request: &serde_json::Value) -> Result<(), String> {
    let mut connection = Connection::local(at.socket.as_deref(), "")?;
    connection.call(request, &[], None).map_err(|refused| refused.to_string())?;
    print("done\n")
}

fn serve(start: &Start) -> Result<(), String> {
    let mut settings = match &start.config {
        Some(path) => node_config::read(path)?,
        None => Settings::default(),
    };
    settings.override_with(Settings {
        listen: start.listen,
        bootstrap: start.bootstrap.clone(),
        lanes: start.lanes,
        data: start.data.clone(),
        network: start.network.clone(),
        metrics: start.metrics,
        public_addr: start.public_addr,
        log: start.log,
        ..Settings::default()
    });
    // Before the node starts: a signal during the start is not lost.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Under `nohup` it is to outlive the terminal.
        if signal == SIGHUP && is_ignored(signal) {
            continue;
        }
        // The second one ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|error| format!("cannot catch signals: {error}"))?;
    }
    log_panics(settings.log.unwrap_or_default());
    let node = start_node(&settings, start.test_hooks)?;
    let short: String = node.id().to_string().chars().take(16).collect();
    let path = runtime_dir().join(format!("node-{short}.sock"));
    remove_dead_sockets();
    let server = Server::start(&node, &path).map_err(|error| socket_failed(&path, &error))?;
    // The node goes on if its greeting cannot be printed.
    let _ = print(greeting(&node, &settings, &path.display().to_string()));
    let mut log =
        Log::new(settings.log.unwrap_or_default(), &node).map_err(|error| format!("cannot start a thread: {error}"))?;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK_EVERY);
        log.look(&node);
    }
    drop(server);
    log.line("info", None, "stopping: peers are told");
    node.clone().shutdown();
    if node.log_failed() {
        log.line("error", None, "stopped, but not all of its state is saved");
        return Err(
            "the log could not be written: what the node took since then is gone. Is the disk of its data folder full?"
                .to_owned(),
        );
    }
    log.line("info", None, if settings.data.is_some() { "stopped, state is saved" } else { "stopped" });
    Ok(())
}

fn socket_failed(path: &Path, error: &std::io::Error) -> String {
    use std::io::ErrorKind::{InvalidFilename, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    let advice = match error.kind() {
        // Other errors than the system's own bring their advice with them.
        _ if error.raw_os_error().is_none() => "",
        // A path that is no longer than the system allows for files is still too long for a socket.
        InvalidFilename => ": set TESSERA_RUNTIME_DIR to a folder with a shorter path",
        NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem => {
            ": set TESSERA_RUNTIME_DIR to a folder that this user may write"
        }
        _ => "",
    };
    format!("cannot serve the control socket {}: {error}{advice}", path.display())
}

/// Whether this process was started with the signal ignored.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

fn start_node(settings: &Settings, test_hooks: bool) -> Result<Node, String> {
    let listen = settings.listen.unwrap_or_else(|| listen_for(&settings.bootstrap));
    let mut builder = Node::builder()
        .listen(listen)
        .bootstrap(settings.bootstrap.iter().copied())
        .pin(settings.pin.unwrap_or(true))
        .reserve_memory(settings.reserve_memory.unwrap_or(false))
        .trace_every(settings.trace_every.unwrap_or(0))
        .test_hooks(test_hooks);
    if let Some(lanes) = settings.lanes {
        builder = builder.lanes(lanes);
    }
    if settings.relieve_hot_lanes == Some(false) {
        builder = builder.relief(None);
    }
    if let Some(data) = &settings.data {
        builder = builder.data_dir(data);
    }
    if let Some(network) = &settings.network {
        builder = builder.network(network);
    }
    if let Some(metrics) = settings.metrics {
        builder = builder.metrics(metrics);
    }
    if let Some(addr) = settings.public_addr {
        builder = builder.public_addr(addr);
    }
    if let Some(diversity) = settings.address_diversity {
        builder = builder.address_diversity(diversity);
    }
    if let Some(folder) = &settings.trace_dir {
        // Made here, where the error can name the folder: the lanes' error would not.
        std::fs::create_dir_all(folder).map_err(|error| {
            format!("cannot make the folder for traces {}: {error}: choose another as `trace-dir`", folder.display())
        })?;
        builder = builder.trace_files(folder, TRACE_BYTES_MAX);
    }
    if let Some(durability) = settings.durability {
        builder = builder.durability(Durable::of(durability));
    }
    builder = builder.configure(|config| settings.limits.apply(config));
    builder.start().map_err(|error| error.to_string())
}

/// Where to listen by default: on this machine only, unless the network is elsewhere.
pub(crate) fn listen_for(bootstrap: &[PeerAddr]) -> SocketAddr {
    let ip = match bootstrap.iter().map(|peer| peer.addr().ip()).find(|ip| !ip.is_loopback()) {
        None if bootstrap.iter().any(|peer| peer.addr().is_ipv6()) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Some(IpAddr::V4(_)) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Some(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, 0)
}

/// An address by which others reach a node that listens on all of them: the one this machine would use itself. `None` where it
/// would use none, as without a network.
fn reachable(listen: SocketAddr) -> Option<SocketAddr> {
    if !listen.ip().is_unspecified() {
        return Some(listen);
    }
    let towards = if listen.is_ipv4() { "192.0.2.1:9" } else { "[2001:db8::1]:9" };
    let any = SocketAddr::new(listen.ip(), 0);
    // Connecting a datagram socket sends nothing; it only makes the system choose.
    let chosen = UdpSocket::bind(any).and_then(|socket| socket.connect(towards).and_then(|()| socket.local_addr()));
    let chosen = chosen.ok().filter(|chosen| !chosen.ip().is_unspecified())?;
    Some(SocketAddr::new(chosen.ip(), listen.port()))
}

fn greeting(node: &Node, settings: &Settings, socket: &str) -> String {
    let mut text = format!("node     {}\nlisten   {}\n", node.id(), node.listen_addr());
    let _ = writeln!(text, "network  {}", node.network());
    match &settings.data {
        Some(data) => drop(writeln!(text, "data     {}", data.display())),
        None => text.push_str("data     not kept: with --data DIR, identity and records outlive a restart\n"),
    }
    if let Some(metrics) = node.metrics_addr() {
        let _ = writeln!(text, "metrics  http://{metrics}/metrics");
    }
    let _ = writeln!(text, "socket   {socket}\n\njoin this network from another terminal:");
    let address = settings.public_addr.or_else(|| reachable(node.listen_addr()));
    let address = match address {
        Some(address) => PeerAddr::new(node.address().key(), address).to_string(),
        None => {
            text.push_str(
                "(no address of this machine was found: put one that others reach in place of ADDRESS, or say it with \
                 --public-addr)\n",
            );
            let key = node.address().to_string();
            format!("{}@ADDRESS:{}", key.split('@').next().unwrap_or_default(), node.listen_addr().port())
        }
    };
    let network = match settings.network.as_deref() {
        None => String::new(),
        Some(name) => format!(" --network {}", dht::quoted(name)),
    };
    let _ = writeln!(text, "  tessera node --bootstrap {address}{network}");
    if node.listen_addr().ip().is_loopback() {
        text.push_str("for nodes on other machines, start this one with --listen 0.0.0.0:PORT\n");
    }
    text
}
