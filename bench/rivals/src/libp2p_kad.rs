//! The `libp2p` crate: Kademlia with twenty replicas over TCP, Noise and Yamux, set up as its own examples do. Connections are
//! kept open, and a get ends with the first record found: both in its favour.

use std::collections::HashMap;
use std::error::Error;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use libp2p::futures::StreamExt as _;
use libp2p::kad::store::{MemoryStore, MemoryStoreConfig};
use libp2p::kad::{self, GetRecordOk, Mode, QueryId, QueryResult, Quorum, Record, RecordKey};
use libp2p::multiaddr::{Multiaddr, Protocol};
use libp2p::swarm::{NetworkBehaviour, Swarm, SwarmEvent};
use libp2p::{PeerId, StreamProtocol, SwarmBuilder, identify, noise, tcp, yamux};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use crate::network::{Got, Network};

/// The name of its nodes' protocol.
pub(crate) const PROTOCOL: &str = "/rivals/kad/1.0.0";
/// More than all rounds write to a node: by default its store is full after 1,024, and its puts fail.
const RECORDS_MAX: usize = 1 << 17;
const REPLICAS: NonZeroUsize = NonZeroUsize::new(20).expect("twenty is not zero");

pub(crate) struct Libp2p {
    _runtime: Runtime,
    nodes: Vec<mpsc::UnboundedSender<Ask>>,
    first: At,
}

enum Ask {
    Put(Record, oneshot::Sender<Got>),
    Get(RecordKey, oneshot::Sender<Got>),
    /// How many peers it knows.
    Known(oneshot::Sender<usize>),
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    kad: kad::Behaviour<MemoryStore>,
    identify: identify::Behaviour,
}

impl Network for Libp2p {
    type Id = RecordKey;

    fn start(count: usize) -> Result<Self, Box<dyn Error>> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let mut nodes = Vec::new();
        let mut first: Option<At> = None;
        for _ in 0..count {
            let (sender, asks) = mpsc::unbounded_channel();
            let (swarm, at) = runtime.block_on(swarm(first.as_ref()))?;
            first.get_or_insert(at);
            runtime.spawn(run(swarm, asks));
            nodes.push(sender);
        }
        let network = Self { _runtime: runtime, nodes, first: first.ok_or("a network has at least one node")? };
        let deadline = Instant::now() + Duration::from_secs(60);
        while (0..count)
            .any(|node| block_on(network.ask(node, Ask::Known)).is_ok_and(|known| known < count.min(20) - 1))
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(network)
    }

    async fn put(&self, node: usize, value: Vec<u8>) -> Result<RecordKey, Box<dyn Error>> {
        let key = RecordKey::new(&value);
        let record = Record::new(key.clone(), value);
        match self.ask(node, |reply| Ask::Put(record, reply)).await? {
            Got::Missing => Err("no node holds a value".into()),
            _ => Ok(key),
        }
    }

    async fn get(&self, node: usize, id: &RecordKey) -> Result<Got, Box<dyn Error>> {
        self.ask(node, |reply| Ask::Get(id.clone(), reply)).await
    }
}

impl Libp2p {
    /// The first node's address and identity.
    pub(crate) fn first_address(&self) -> Multiaddr {
        let (id, address) = &self.first;
        address.clone().with(Protocol::P2p(*id))
    }

    async fn ask<T>(&self, node: usize, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Result<T, Box<dyn Error>> {
        let (reply, answer) = oneshot::channel();
        self.nodes[node].send(ask(reply)).map_err(|_| "the node's task ended")?;
        Ok(answer.await?)
    }
}

type At = (PeerId, Multiaddr);

async fn swarm(first: Option<&At>) -> Result<(Swarm<Behaviour>, At), Box<dyn Error>> {
    let mut swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, yamux::Config::default)?
        .with_behaviour(|key| {
            let id = key.public().to_peer_id();
            let mut config = kad::Config::new(StreamProtocol::new(PROTOCOL));
            config.set_replication_factor(REPLICAS);
            let room = MemoryStoreConfig { max_records: RECORDS_MAX, ..MemoryStoreConfig::default() };
            let mut kad = kad::Behaviour::with_config(id, MemoryStore::with_config(id, room), config);
            kad.set_mode(Some(Mode::Server));
            let identify = identify::Behaviour::new(identify::Config::new("/rivals/1.0.0".into(), key.public()));
            Behaviour { kad, identify }
        })?
        .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(600)))
        .build();
    swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse()?)?;
    let address = loop {
        if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
            break address;
        }
    };
    if let Some((id, address)) = first {
        swarm.behaviour_mut().kad.add_address(id, address.clone());
        swarm.behaviour_mut().kad.bootstrap()?;
    }
    let id = *swarm.local_peer_id();
    Ok((swarm, (id, address)))
}

async fn run(mut swarm: Swarm<Behaviour>, mut asks: mpsc::UnboundedReceiver<Ask>) {
    let mut waiting: HashMap<QueryId, oneshot::Sender<Got>> = HashMap::new();
    loop {
        tokio::select! {
            ask = asks.recv() => match ask {
                None => return,
                Some(Ask::Put(record, reply)) => match swarm.behaviour_mut().kad.put_record(record, Quorum::All) {
                    Ok(query) => drop(waiting.insert(query, reply)),
                    Err(_) => drop(reply.send(Got::Missing)),
                },
                Some(Ask::Get(key, reply)) => {
                    let query = swarm.behaviour_mut().kad.get_record(key);
                    waiting.insert(query, reply);
                }
                Some(Ask::Known(reply)) => {
                    let known = swarm.behaviour_mut().kad.kbuckets().map(|bucket| bucket.num_entries()).sum();
                    let _ = reply.send(known);
                }
            },
            event = swarm.select_next_some() => match event {
                SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. })) => {
                    for address in info.listen_addrs {
                        swarm.behaviour_mut().kad.add_address(&peer_id, address);
                    }
                }
                SwarmEvent::Behaviour(BehaviourEvent::Kad(kad::Event::OutboundQueryProgressed { id, result, .. })) => {
                    let got = match result {
                        QueryResult::GetRecord(Ok(GetRecordOk::FoundRecord(found))) => {
                            if let Some(mut query) = swarm.behaviour_mut().kad.query_mut(&id) {
                                query.finish();
                            }
                            if found.peer.is_none() { Got::Here } else { Got::Asked }
                        }
                        QueryResult::GetRecord(_) => Got::Missing,
                        // Some of the twenty may have failed: most hold it.
                        QueryResult::PutRecord(_) => Got::Asked,
                        _ => continue,
                    };
                    if let Some(reply) = waiting.remove(&id) {
                        let _ = reply.send(got);
                    }
                }
                _ => {}
            },
        }
    }
}
