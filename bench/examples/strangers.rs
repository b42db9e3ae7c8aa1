//! Newcomers join and put while strangers flood the only node that they know, on real sockets.
//!
//! Every datagram of the flood has a new key and no cookie, so each would cost the flooded node a key agreement before it shows that nothing
//! sealed it. The first column is without a flood, the second under it, the third under it while strangers are not challenged: with the limit
//! on agreements alone, of which the flood takes nearly all.

use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use tessera_dht::identity::PublicKey;
use tessera_dht::rng::LaneRng;
use tessera_dht::seal::keys::period_at;
use tessera_dht::wire::DATAGRAM_BYTES_MAX;
use tessera_dht::wire::header::{Header, Suite};
use tessera_dht_node::Node;

/// Measures how long newcomers take to join and put while strangers flood their seed
#[derive(Debug, Parser)]
#[command(name = "strangers")]
struct Args {
    /// Datagrams of strangers per second
    #[arg(long, default_value_t = 50_000)]
    rate: u64,
    /// Nodes of the network
    #[arg(long, default_value_t = 20)]
    nodes: usize,
    /// Newcomers
    #[arg(long, default_value_t = 10)]
    tries: usize,
}

/// A try counts if it is done by then.
const IN_TIME: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(is_met) => ExitCode::from(u8::from(!is_met)),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Prints the figures. Whether nine of ten newcomers were in time under the flood.
fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let mut in_time = Vec::new();
    for (name, rate, challenges) in
        [("no flood", 0, true), ("flood", args.rate, true), ("flood, strangers not challenged", args.rate, false)]
    {
        let mut took = measure(args, rate, challenges)?;
        took.sort_unstable();
        let done = took.iter().filter(|took| **took <= IN_TIME).count();
        let middle = took[took.len() / 2];
        println!(
            "{name}: {done} of {} within {IN_TIME:?}, median {middle:.0?}, slowest {:.0?}",
            took.len(),
            took[took.len() - 1]
        );
        in_time.push(done);
    }
    Ok(in_time[1] * 10 >= args.tries * 9)
}

/// How long each newcomer took from its start to a stored record; as long as may be for one that failed.
fn measure(args: &Args, rate: u64, challenges: bool) -> Result<Vec<Duration>, Box<dyn Error>> {
    let seed = Node::builder()
        .lanes(1)
        .configure(|config| {
            if !challenges {
                config.abuse.unproven_strangers_per_sec = u32::MAX;
            }
        })
        .start()?;
    let others = (1..args.nodes).map(|_| Node::builder().lanes(1).bootstrap([seed.address()]).start());
    let _others: Vec<Node> = others.collect::<Result<_, _>>()?;
    while seed.status().wait()?.contacts() + 1 < args.nodes {
        std::thread::sleep(Duration::from_millis(50));
    }
    let flood = Flood::start(seed.listen_addr(), rate)?;
    std::thread::sleep(Duration::from_secs(1));
    let mut took = Vec::new();
    for n in 0..args.tries {
        let started = Instant::now();
        let newcomer = Node::builder().lanes(1).bootstrap([seed.address()]).start()?;
        let stored = loop {
            let stored = newcomer.put(format!("newcomer {n} at rate {rate}, {challenges}")).wait();
            // A node without contacts keeps its values to itself.
            let is_joined = newcomer.status().wait()?.contacts() > 0;
            if is_joined && stored.is_ok() || started.elapsed() > 5 * IN_TIME {
                break is_joined && stored.is_ok();
            }
        };
        took.push(if stored { started.elapsed() } else { 5 * IN_TIME });
    }
    let sent = flood.stop();
    if rate > 0 {
        println!("  {sent} datagrams of strangers per second");
    }
    Ok(took)
}

/// A thread that sends datagrams as strangers do.
struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    started: Instant,
    thread: std::thread::JoinHandle<()>,
}

impl Flood {
    fn start(to: SocketAddr, rate: u64) -> Result<Self, Box<dyn Error>> {
        let sockets = (0..16).map(|_| UdpSocket::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (stop.clone(), sent.clone());
        let thread = std::thread::spawn(move || {
            let (mut rng, started, mut n) = (LaneRng::new([7; 32]), Instant::now(), 0_u64);
            while !stopped.load(Ordering::Relaxed) {
                let due = (started.elapsed().as_secs_f64() * rate as f64) as u64;
                while n < due {
                    let datagram = knock(&mut rng);
                    let _ = sockets[n as usize % sockets.len()].send_to(&datagram, to);
                    n += 1;
                }
                count.store(n, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Ok(Self { stop, sent, started: Instant::now(), thread })
    }

    /// Ends the flood. How many a second there were.
    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        (self.sent.load(Ordering::Relaxed) as f64 / self.started.elapsed().as_secs_f64()) as u64
    }
}

/// A padded datagram of a key that has never been seen. Nothing sealed it, which shows only after an agreement.
fn knock(rng: &mut LaneRng) -> [u8; DATAGRAM_BYTES_MAX] {
    let unix_secs = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let header = Header {
        slot: rng.u64() as u8,
        reply_slot: 0,
        suite: Suite::Aes256Gcm,
        period: period_at(unix_secs),
        counter: 0,
        incarnation: rng.bytes(),
        sender: PublicKey(rng.bytes()),
    };
    let mut datagram = [0; DATAGRAM_BYTES_MAX];
    header.write(datagram.first_chunk_mut().expect("a header fits"));
    datagram
}
