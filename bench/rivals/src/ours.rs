//! Our nodes, of one lane each and otherwise as they come.

use std::error::Error;
use std::time::{Duration, Instant};

use tessera_dht_node::{ContentId, Node};

use crate::network::{Got, Network};

pub(crate) struct Ours {
    nodes: Vec<Node>,
}

impl Network for Ours {
    type Id = ContentId;

    fn start(count: usize) -> Result<Self, Box<dyn Error>> {
        let mut nodes: Vec<Node> = Vec::new();
        for _ in 0..count {
            let seed = nodes.first().map(Node::address);
            nodes.push(Node::builder().lanes(1).bootstrap(seed).start()?);
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while nodes.iter().any(|node| node.status().wait().is_ok_and(|status| status.contacts() < count.min(20) - 1))
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(Self { nodes })
    }

    async fn put(&self, node: usize, value: Vec<u8>) -> Result<ContentId, Box<dyn Error>> {
        let stored = self.nodes[node].put(value).await?;
        if usize::from(stored.replicas) < self.nodes.len().min(20) * 9 / 10 {
            return Err(format!("only {} nodes hold a value", stored.replicas).into());
        }
        Ok(stored.id)
    }

    async fn get(&self, node: usize, id: &ContentId) -> Result<Got, Box<dyn Error>> {
        let value = self.nodes[node].get(*id).await?;
        Ok(if value.explain.finish.is_some() { Got::Asked } else { Got::Here })
    }
}
