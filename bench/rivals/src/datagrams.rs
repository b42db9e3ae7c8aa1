//! The least a put and a get can cost: their datagrams, sent and received by one thread that does nothing else.
//!
//! As many sockets as there are nodes. The asker sends a question to each of its holders; each of them takes it and answers, and
//! the asker takes all answers. No thread sleeps or is woken, so the rest is this host's kernel's cost of carrying datagrams,
//! with one call for each end of each. Hosts of one kind differ in that by four.

use std::error::Error;
use std::net::{SocketAddr, UdpSocket};

use crate::network::{Got, Network};

/// Nodes a put writes to, and nodes a get asks.
const REPLICAS: usize = 20;
const ASKED: usize = 3;
/// Bytes of a STORE of a short value, and of answers that name sixteen contacts, four, and none.
const QUESTION_BYTES: usize = 150;
const ANSWER_BYTES: [usize; 3] = [900, 300, 110];

pub(crate) struct Datagrams {
    sockets: Vec<(UdpSocket, SocketAddr)>,
}

impl Datagrams {
    fn exchange(&self, node: usize, count: usize) -> Result<(), Box<dyn Error>> {
        let asker = &self.sockets[node].0;
        let other = |rank: usize| &self.sockets[(node + 1 + rank * 3) % self.sockets.len()];
        let mut buffer = [7; 2048];
        for rank in 0..count {
            asker.send_to(&buffer[..QUESTION_BYTES], other(rank).1)?;
        }
        for rank in 0..count {
            let (_, from) = other(rank).0.recv_from(&mut buffer)?;
            let len = ANSWER_BYTES[if rank < 3 { 0 } else { 1 + usize::from(rank >= 8) }];
            other(rank).0.send_to(&buffer[..len], from)?;
        }
        for _ in 0..count {
            asker.recv_from(&mut buffer)?;
        }
        Ok(())
    }
}

impl Network for Datagrams {
    type Id = ();

    fn start(count: usize) -> Result<Self, Box<dyn Error>> {
        let sockets = (0..count).map(|_| {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            // On loopback a datagram is there when the call that sent it returns; a lost one is an error, not a wait.
            socket.set_nonblocking(true)?;
            let addr = socket.local_addr()?;
            Ok((socket, addr))
        });
        Ok(Self { sockets: sockets.collect::<std::io::Result<_>>()? })
    }

    async fn put(&self, node: usize, _: Vec<u8>) -> Result<(), Box<dyn Error>> {
        self.exchange(node, REPLICAS)
    }

    async fn get(&self, node: usize, (): &()) -> Result<Got, Box<dyn Error>> {
        self.exchange(node, ASKED)?;
        Ok(Got::Asked)
    }
}
