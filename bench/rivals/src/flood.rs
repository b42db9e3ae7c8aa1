//! The cost of serving FIND_NODE, beside a loop that only echoes: what the kernel and the machine take anyway.

use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tessera_dht::identity::{Identity, PublicKey};
use tessera_dht::node::steering_slot;
use tessera_dht::rng::LaneRng;
use tessera_dht::seal::cookie::Scope;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::seal::{SealLimits, Sealer};
use tessera_dht::time::Now;
use tessera_dht::wire::header::{HEADER_BYTES, Suite};
use tessera_dht::wire::message::{Envelope, Message};
use tessera_dht::wire::{BODY_BYTES_MAX, DATAGRAM_BYTES_MAX};
use tessera_dht_node::{Node, PeerAddr, Point as _};

use crate::figures::{Moment, Rounds};

/// Requests under way at once.
const WINDOW: usize = 64;
const ROUND: Duration = Duration::from_millis(1500);
const ROUNDS: usize = 7;

/// Floods a node and an echo in turns and compares the CPU of this process.
pub(crate) fn compare() -> Result<Rounds, Box<dyn Error>> {
    let generous = |builder: tessera_dht_node::NodeBuilder| {
        builder.lanes(1).configure(|config| {
            config.abuse.per_peer_per_sec = 100_000_000;
            config.abuse.per_prefix_per_sec = 100_000_000;
        })
    };
    let node = generous(Node::builder()).start()?;
    // Enough contacts for a full answer of sixteen.
    let _others: Vec<Node> =
        (0..24).map(|_| Node::builder().lanes(1).bootstrap([node.address()]).start()).collect::<Result<_, _>>()?;
    while node.status().wait()?.contacts() < 20 {
        std::thread::sleep(Duration::from_millis(50));
    }
    let echo = Echo::start()?;
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        let served = |node: &Node| -> Result<u64, Box<dyn Error>> {
            Ok(node.status().wait()?.lanes.iter().map(|lane| lane.counters.requests_served).sum())
        };
        let (mut flood, before, begun) = (flood(Some(node.address()), None)?, served(&node)?, Moment::now());
        flood.wait()?;
        let count = served(&node)? - before;
        rounds.add("ours", begun.cost_of_each(count as usize));
        let (mut flood, before, begun) = (self::flood(None, Some(echo.addr))?, echo.count(), Moment::now());
        flood.wait()?;
        rounds.add("echo", begun.cost_of_each((echo.count() - before) as usize));
    }
    Ok(rounds)
}

fn flood(node: Option<PeerAddr>, echo: Option<SocketAddr>) -> std::io::Result<Child> {
    let target = node.map(|node| node.to_string()).or(echo.map(|addr| addr.to_string())).unwrap_or_default();
    let kind = if node.is_some() { "node" } else { "echo" };
    Command::new(std::env::current_exe()?).args(["send-flood", kind, &target]).stdin(Stdio::null()).spawn()
}

/// The other process: keeps a window of requests under way for one round.
pub(crate) fn send(kind: &str, target: &str) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let mut asker = if kind == "node" { Some(Asker::new(target.parse()?, &socket)?) } else { None };
    let addr: SocketAddr = target.rsplit('@').next().unwrap_or_default().parse()?;
    // As long as a FIND_NODE.
    let plain = [7; 132];
    let (mut buffer, mut under_way) = ([0; 2048], 0_usize);
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        while under_way < WINDOW {
            match &mut asker {
                Some(asker) => {
                    let datagram = asker.find_node()?;
                    socket.send_to(datagram, addr)?;
                }
                None => drop(socket.send_to(&plain, addr)?),
            }
            under_way += 1;
        }
        match socket.recv_from(&mut buffer) {
            Ok(_) => under_way -= 1,
            Err(_) => under_way = 0,
        }
    }
    Ok(())
}

struct Asker {
    sealer: Sealer<Identity>,
    node: PeerAddr,
    cookie: [u8; 8],
    targets: LaneRng,
    buffer: [u8; DATAGRAM_BYTES_MAX],
}

fn now() -> Now {
    let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    Now { mono_ms: 1, unix_ms }
}

impl Asker {
    /// Says hello first: only who has echoed a cookie gets long answers to short questions.
    fn new(node: PeerAddr, socket: &UdpSocket) -> Result<Self, Box<dyn Error>> {
        let mut seed = [0; 32];
        seed[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let mut rng = LaneRng::new(seed);
        let network = NetworkKey::of_name("tessera");
        let limits = SealLimits::default();
        let sealer = Sealer::new(Identity::from_seed(&seed), network, Suite::Aes256Gcm, &limits, &mut rng, now());
        let mut asker = Self { sealer, node, cookie: [0; 8], targets: rng, buffer: [0; DATAGRAM_BYTES_MAX] };
        let len = asker.seal(Message::Ping, BODY_BYTES_MAX)?;
        socket.send_to(&asker.buffer[..len], node.addr())?;
        let mut answer = [0; 2048];
        let (len, _) = socket.recv_from(&mut answer)?;
        let (_, body) = asker.sealer.open(now(), &mut answer[..len], || true).map_err(|why| format!("{why:?}"))?;
        asker.cookie = Envelope::read(body).map_err(|why| format!("{why:?}"))?.cookie;
        Ok(asker)
    }

    fn find_node(&mut self) -> Result<&[u8], Box<dyn Error>> {
        let target = self.targets.bytes();
        let len = self.seal(Message::FindNode { target, scope: Scope::EXACT }, 0)?;
        Ok(&self.buffer[..len])
    }

    fn seal(&mut self, message: Message<'_>, len_min: usize) -> Result<usize, Box<dyn Error>> {
        let envelope = Envelope { flags: 1, correlation: 256, cookie: self.cookie, message };
        let body = &mut self.buffer[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX];
        let len = envelope.write(body).map_err(|why| format!("{why:?}"))?.max(len_min);
        let slot = steering_slot(&self.node.id(), self.node.id().as_bytes());
        let key = PublicKey(self.node.key());
        Ok(self.sealer.seal(now(), &key, slot, &mut self.buffer, len).map_err(|why| format!("{why:?}"))?)
    }
}

/// A thread that returns every datagram as it came: one call to receive, one to send.
struct Echo {
    addr: SocketAddr,
    count: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Echo {
    fn start() -> std::io::Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let (addr, count, stop) = (socket.local_addr()?, Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counting, stopping) = (count.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !stopping.load(Ordering::Relaxed) {
                if let Ok((len, from)) = socket.recv_from(&mut buffer)
                    && socket.send_to(&buffer[..len], from).is_ok()
                {
                    counting.store(counting.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
            }
        });
        Ok(Self { addr, count, stop })
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
