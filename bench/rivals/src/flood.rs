//! The cost of serving FIND_NODE under flood, beside a loop that only echoes: the cost of the kernel and the machine.
//!
//! All implementations are asked alike. The server is one of twenty-five nodes in a process of its own, so that answers are full;
//! the asker is another process, which keeps a window of requests under way and counts the answers. The serving process's cost
//! without requests is measured in the same round and taken off.

mod echo;
#[cfg(feature = "libp2p")]
mod libp2p;
#[cfg(feature = "mainline")]
mod mainline;
mod ours;

use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::EVERYBODY;
use crate::figures::{Cost, Rounds, cpu_of_this_process};
use crate::process::Process;

/// Requests under way at once.
const WINDOW: usize = 64;
const ROUND: Duration = Duration::from_millis(1500);
const ROUNDS: usize = 7;
/// Enough others for a full answer of sixteen or twenty contacts.
const OTHERS: usize = 24;

const ECHO: &str = "echo";

/// Floods all implementations in turns and compares the CPU of the processes that serve.
pub(crate) fn compare() -> Result<Rounds, Box<dyn Error>> {
    let mut servers = EVERYBODY
        .iter()
        .chain(&[ECHO])
        .map(|who| Ok((*who, Server::start(who)?)))
        .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    let mut rounds = Rounds::default();
    for round in 0..ROUNDS {
        for (who, server) in &mut servers {
            eprintln!("{who}: flood {} of {ROUNDS}", round + 1);
            rounds.add(who, server.round(who)?);
        }
    }
    Ok(rounds)
}

/// The driving end of a process that serves.
struct Server {
    process: Process,
    target: String,
}

impl Server {
    fn start(who: &str) -> Result<Self, Box<dyn Error>> {
        let mut process = Process::start(&["serve-flood", who])?;
        let target = process.line()?;
        Ok(Self { process, target })
    }

    /// The cost of each answer of one round.
    fn round(&mut self, who: &str) -> Result<Cost, Box<dyn Error>> {
        let before_rest = self.cpu()?;
        std::thread::sleep(ROUND);
        let before = self.cpu()?;
        let begun = Instant::now();
        let sent = Command::new(std::env::current_exe()?)
            .args(["send-flood", who, &self.target])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        let wall = begun.elapsed();
        let at_rest = (before - before_rest) / ROUND.as_secs_f64() * wall.as_secs_f64();
        let cpu = self.cpu()? - before - at_rest;
        let answers: f64 = String::from_utf8(sent.stdout)?.trim().parse().map_err(|_| format!("{who}: no flood"))?;
        if answers < 1000.0 {
            return Err(format!("{who} answered {answers} requests in {ROUND:?}: too few to compare").into());
        }
        Ok(Cost { cpu: cpu / answers, wall: wall.as_secs_f64() * 1e6 / answers })
    }

    /// Microseconds it has taken so far.
    fn cpu(&mut self) -> Result<f64, Box<dyn Error>> {
        Ok(self.process.ask("cpu")?.parse()?)
    }
}

/// The process that serves: says where it can be asked, then how much CPU it has taken, a line for each line.
pub(crate) fn serve(who: &str) -> Result<(), Box<dyn Error>> {
    match who {
        ECHO => answer_lines(&echo::start()?),
        "ours" => {
            let (_nodes, target) = ours::start()?;
            answer_lines(&target)
        }
        #[cfg(feature = "libp2p")]
        "libp2p" => {
            let (_network, target) = libp2p::start()?;
            answer_lines(&target)
        }
        #[cfg(feature = "mainline")]
        "mainline" => {
            let (_testnet, target) = mainline::start()?;
            answer_lines(&target)
        }
        other => Err(format!("unknown implementation `{other}`").into()),
    }
}

fn answer_lines(target: &str) -> Result<(), Box<dyn Error>> {
    println!("{target}");
    for line in std::io::stdin().lines() {
        line?;
        println!("{}", cpu_of_this_process().as_secs_f64() * 1e6);
    }
    Ok(())
}

/// The process that asks, for one round: prints how many answers it got.
pub(crate) fn send(who: &str, target: &str) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let answers = match who {
        // As long as our FIND_NODE.
        ECHO => window(&socket, target.parse()?, |datagram| datagram.resize(132, 7)),
        "ours" => {
            let mut asker = ours::Asker::new(target.parse()?, &socket)?;
            let addr = asker.addr();
            window(&socket, addr, |datagram| asker.find_node(datagram))
        }
        #[cfg(feature = "libp2p")]
        "libp2p" => libp2p::send(target),
        #[cfg(feature = "mainline")]
        "mainline" => {
            let mut serial = 0;
            window(&socket, target.parse()?, |datagram| mainline::find_node(&mut serial, datagram))
        }
        other => return Err(format!("unknown implementation `{other}`").into()),
    }?;
    println!("{answers}");
    Ok(())
}

/// Keeps a window of datagrams under way for one round and counts the answers.
fn window(socket: &UdpSocket, addr: SocketAddr, mut next: impl FnMut(&mut Vec<u8>)) -> Result<u64, Box<dyn Error>> {
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let (mut datagram, mut answer, mut under_way, mut answers) = (Vec::new(), [0; 2048], 0_usize, 0);
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        while under_way < WINDOW {
            datagram.clear();
            next(&mut datagram);
            socket.send_to(&datagram, addr)?;
            under_way += 1;
        }
        match socket.recv_from(&mut answer) {
            Ok(_) => (under_way, answers) = (under_way - 1, answers + 1),
            Err(_) => under_way = 0,
        }
    }
    Ok(answers)
}
