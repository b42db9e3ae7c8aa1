//! The `libp2p` crate: one connection, and a stream for each question, as its own Kademlia asks.

use std::error::Error;
use std::io;
use std::time::Instant;

use libp2p::futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, StreamExt as _};
use libp2p::multiaddr::{Multiaddr, Protocol};
use libp2p::request_response::{Behaviour, Codec, Config, Event, Message, ProtocolSupport};
use libp2p::swarm::SwarmEvent;
use libp2p::{StreamProtocol, SwarmBuilder, noise, tcp, yamux};

use super::{OTHERS, ROUND};
use crate::libp2p_kad::{Libp2p, PROTOCOL};
use crate::network::Network as _;

/// Requests under way: it refuses more than 32 streams of one connection.
const WINDOW: usize = 24;
/// No answer of twenty contacts is as long.
const ANSWER_BYTES_MAX: u64 = 16 << 10;

/// The network, and where to ask.
pub(super) fn start() -> Result<(Libp2p, String), Box<dyn Error>> {
    let network = Libp2p::start(OTHERS + 1)?;
    let target = network.first_address().to_string();
    Ok((network, target))
}

/// Asks for one round and counts the answers.
pub(super) fn send(target: &str) -> Result<u64, Box<dyn Error>> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(ask(target.parse()?))
}

async fn ask(target: Multiaddr) -> Result<u64, Box<dyn Error>> {
    let Some(Protocol::P2p(peer)) = target.iter().last() else { return Err("an address without a peer".into()) };
    let mut swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, yamux::Config::default)?
        .with_behaviour(|_| {
            let config = Config::default().with_max_concurrent_streams(2 * WINDOW);
            Behaviour::with_codec(FindNode, [(StreamProtocol::new(PROTOCOL), ProtocolSupport::Outbound)], config)
        })?
        .build();
    swarm.add_peer_address(peer, target);
    let (mut serial, mut answers) = (0_u64, 0);
    let mut next = || {
        serial += 1;
        serial.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    for _ in 0..WINDOW {
        swarm.behaviour_mut().send_request(&peer, next());
    }
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        match swarm.select_next_some().await {
            SwarmEvent::Behaviour(Event::Message { message: Message::Response { response, .. }, .. }) => {
                // A tenth of a full answer is still one with contacts.
                if response < 100 {
                    return Err(format!("an answer of {response} bytes: no contacts").into());
                }
                answers += 1;
                swarm.behaviour_mut().send_request(&peer, next());
            }
            SwarmEvent::Behaviour(Event::OutboundFailure { error, .. }) => return Err(error.to_string().into()),
            _ => {}
        }
    }
    Ok(answers)
}

/// Its message FIND_NODE, with its length in front; of an answer only the length is of interest.
#[derive(Clone)]
struct FindNode;

impl Codec for FindNode {
    type Protocol = StreamProtocol;
    type Request = u64;
    type Response = u64;

    async fn write_request<T>(&mut self, _: &StreamProtocol, io: &mut T, target: u64) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        // Field 1, the type, is 4; field 2, the key, has 32 bytes.
        let mut message = [0; 37];
        message[..5].copy_from_slice(&[36, 0x08, 4, 0x12, 32]);
        message[5..13].copy_from_slice(&target.to_be_bytes());
        io.write_all(&message).await?;
        io.flush().await
    }

    async fn read_response<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<u64>
    where
        T: AsyncRead + Unpin + Send,
    {
        let (mut len, mut byte) = (0, [0x80]);
        for shift in (0..21).step_by(7) {
            if byte[0] & 0x80 != 0 {
                io.read_exact(&mut byte).await?;
                len |= u64::from(byte[0] & 0x7f) << shift;
            }
        }
        if byte[0] & 0x80 != 0 || len > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut answer = vec![0; len as usize];
        io.read_exact(&mut answer).await?;
        Ok(len)
    }

    async fn read_request<T>(&mut self, _: &StreamProtocol, _: &mut T) -> io::Result<u64>
    where
        T: AsyncRead + Unpin + Send,
    {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn write_response<T>(&mut self, _: &StreamProtocol, _: &mut T, _: u64) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        Err(io::ErrorKind::Unsupported.into())
    }
}
