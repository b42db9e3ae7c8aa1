//! The `mainline` crate: BitTorrent's DHT, without encryption and with its own number of replicas a value.

#![allow(deprecated)] // Its plain calls: an executor of its own would only add to its cost.

use std::error::Error;

use mainline::{Id, Testnet};

use crate::network::{Got, Network};

pub(crate) struct Mainline {
    testnet: Testnet,
}

impl Network for Mainline {
    type Id = Id;

    fn start(count: usize) -> Result<Self, Box<dyn Error>> {
        Ok(Self { testnet: Testnet::new(count)? })
    }

    fn put(&self, node: usize, value: Vec<u8>) -> Result<Id, Box<dyn Error>> {
        Ok(self.testnet.nodes[node].put_immutable(&value)?)
    }

    fn get(&self, node: usize, id: &Id) -> Result<Got, Box<dyn Error>> {
        Ok(if self.testnet.nodes[node].get_immutable(*id).is_some() { Got::Asked } else { Got::Missing })
    }
}
