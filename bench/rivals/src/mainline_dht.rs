//! The `mainline` crate: BitTorrent's DHT, without encryption and with its own number of replicas a value.

#![allow(deprecated)] // Its plain calls: an executor of its own would only add to its cost.

use std::error::Error;

use mainline::Testnet;

use crate::clock::{Moment, Table};

pub(crate) struct Network {
    testnet: Testnet,
}

impl Network {
    pub(crate) fn start(count: usize) -> Result<Self, Box<dyn Error>> {
        Ok(Self { testnet: Testnet::new(count)? })
    }

    pub(crate) fn round(&self, round: usize, each: usize, table: &mut Table) -> Result<(), Box<dyn Error>> {
        let nodes = &self.testnet.nodes;
        let mut ids = Vec::new();
        let begun = Moment::now();
        for n in 0..each {
            let writer = (round * 7 + n * 13) % nodes.len();
            let id = nodes[writer].put_immutable(format!("value {round} {n}").as_bytes())?;
            ids.push((writer, id));
        }
        table.add("put", "mainline", &begun, each);
        let begun = Moment::now();
        let mut found = 0;
        for (n, (writer, id)) in ids.iter().enumerate() {
            let reader = (writer + 17 + n) % nodes.len();
            found += usize::from(nodes[reader].get_immutable(*id).is_some());
        }
        table.add("get", "mainline", &begun, each);
        assert!(found * 10 >= each * 9, "{found} of {each} were found");
        Ok(())
    }
}
