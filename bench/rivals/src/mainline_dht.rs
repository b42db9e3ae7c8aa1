//! The `mainline` crate: BitTorrent's DHT, without encryption and with its own number of replicas a value.

use std::error::Error;

use mainline::async_dht::AsyncDht;
use mainline::{Id, Testnet};

use crate::network::{Got, Network};

pub(crate) struct Mainline {
    _testnet: Testnet,
    nodes: Vec<AsyncDht>,
}

impl Network for Mainline {
    type Id = Id;

    fn start(count: usize) -> Result<Self, Box<dyn Error>> {
        let testnet = Testnet::new(count)?;
        let nodes = testnet.nodes.iter().map(|node| node.clone().as_async()).collect();
        Ok(Self { _testnet: testnet, nodes })
    }

    async fn put(&self, node: usize, value: Vec<u8>) -> Result<Id, Box<dyn Error>> {
        Ok(self.nodes[node].put_immutable(&value).await?)
    }

    async fn get(&self, node: usize, id: &Id) -> Result<Got, Box<dyn Error>> {
        Ok(if self.nodes[node].get_immutable(*id).await.is_some() { Got::Asked } else { Got::Missing })
    }
}
