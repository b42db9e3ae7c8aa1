//! Our nodes.

use std::error::Error;
use std::time::{Duration, Instant};

use tessera_dht_node::{ContentId, Node};

use crate::clock::{Moment, Table};

pub(crate) struct Network {
    nodes: Vec<Node>,
}

impl Network {
    pub(crate) fn start(count: usize) -> Result<Self, Box<dyn Error>> {
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

    pub(crate) fn round(&self, round: usize, each: usize, table: &mut Table) -> Result<(), Box<dyn Error>> {
        let count = self.nodes.len();
        let mut ids: Vec<(usize, ContentId)> = Vec::new();
        let (begun, mut replicas) = (Moment::now(), 0);
        for n in 0..each {
            let writer = (round * 7 + n * 13) % count;
            let stored = self.nodes[writer].put(format!("value {round} {n}").into_bytes()).wait()?;
            replicas += usize::from(stored.replicas);
            ids.push((writer, stored.id));
        }
        table.add("put", "ours", &begun, each);
        assert!(replicas / each >= 18, "about twenty nodes hold each: {}", replicas / each);
        // Readers that have to ask: a holder answers from its own store, which would flatter the figure.
        let asks = |reader: usize, id: &ContentId| {
            self.nodes[reader].get(*id).wait().map(|value| value.explain.finish.is_some())
        };
        let (mut asked, mut total) = (0, 0);
        let begun = Moment::now();
        for (n, (writer, id)) in ids.iter().enumerate() {
            for step in 0..3 {
                let reader = (writer + 17 + n + step * 19) % count;
                asked += usize::from(reader != *writer && asks(reader, id)?);
                total += 1;
            }
        }
        // Answers from the own store cost next to nothing; all CPU is put down to those that asked.
        table.add("get", "ours", &begun, asked.max(1));
        assert!(asked * 2 > total, "{asked} of {total} had to ask");
        Ok(())
    }
}

/// Memory per node.
pub(crate) fn memory(count: usize) -> Result<(), Box<dyn Error>> {
    let before = resident_kilobytes()?;
    let network = Network::start(count)?;
    std::thread::sleep(Duration::from_secs(3));
    let after = resident_kilobytes()?;
    println!("memory: {count} nodes of one lane in one process: {} kB resident for each", (after - before) / count);
    drop(network);
    Ok(())
}

fn resident_kilobytes() -> Result<usize, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS")).ok_or("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}
