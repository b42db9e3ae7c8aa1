//! The floor: as many threads with a socket each that only return datagrams, and a put and a get that only exchange them.
//!
//! A put is one exchange with each of twenty, a get one with each of three, of about the lengths that ours has. Nothing is
//! looked up, stored, sealed or checked: the rest is the kernel's cost of carrying datagrams between sleeping threads.

use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::time::Duration;

use crate::network::{Got, Network};

/// Nodes a put writes to, and nodes a get asks.
const REPLICAS: usize = 20;
const ASKED: usize = 3;
/// Bytes of a STORE of a short value; an answer names sixteen contacts.
const QUESTION_BYTES: usize = 180;
const ANSWER_BYTES: usize = 930;

pub(crate) struct Bare {
    addrs: Vec<SocketAddr>,
    /// One for each node, of which one asks at a time.
    askers: Vec<Mutex<UdpSocket>>,
}

impl Bare {
    /// Asks `count` of the others, and waits for all of them.
    fn exchange(&self, node: usize, count: usize) -> Result<(), Box<dyn Error>> {
        let asker = self.askers[node].lock().map_err(|_| "another caller panicked")?;
        for other in 1..=count {
            asker.send_to(&[7; QUESTION_BYTES], self.addrs[(node + other) % self.addrs.len()])?;
        }
        let mut buffer = [0; 2048];
        for _ in 0..count {
            asker.recv_from(&mut buffer)?;
        }
        Ok(())
    }
}

impl Network for Bare {
    type Id = ();
    const BLOCKS: bool = true;

    fn start(count: usize) -> Result<Self, Box<dyn Error>> {
        let (mut addrs, mut askers) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            addrs.push(socket.local_addr()?);
            // They end with the process.
            std::thread::spawn(move || {
                let mut buffer = [0; 2048];
                while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(&buffer[..ANSWER_BYTES], from);
                }
            });
            let asker = UdpSocket::bind("127.0.0.1:0")?;
            asker.set_read_timeout(Some(Duration::from_secs(5)))?;
            askers.push(Mutex::new(asker));
        }
        Ok(Self { addrs, askers })
    }

    async fn put(&self, node: usize, _: Vec<u8>) -> Result<(), Box<dyn Error>> {
        self.exchange(node, REPLICAS)
    }

    async fn get(&self, node: usize, (): &()) -> Result<Got, Box<dyn Error>> {
        self.exchange(node, ASKED)?;
        Ok(Got::Asked)
    }
}
