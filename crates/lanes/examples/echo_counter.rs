//! A counter of words over UDP, sharded over lanes: `cargo run -p tessera-lanes --example echo_counter`
//!
//! Every word has one owner, picked by its first byte; owners keep their own table and share nothing. A datagram is
//! `slot byte + word`, the answer is `word count`. The kernel hands each datagram to its owner by the slot byte.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use tessera_lanes::config::LaneConfig;
use tessera_lanes::handler::Datagram;
use tessera_lanes::runtime::{Runtime, RuntimeConfig};
use tessera_lanes::{Context, Handler};

#[derive(Default)]
struct Words {
    counts: HashMap<Vec<u8>, u64>,
}

impl Handler for Words {
    type Command = ();

    fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
        let Some((_slot, word)) = datagram.bytes.split_first() else { return };
        let count = self.counts.entry(word.to_vec()).or_default();
        *count += 1;
        let answer = format!("{} {count} (lane {})", String::from_utf8_lossy(word), cx.lane().0);
        // A datagram may be lost; the client asks again if it cares.
        let _ = cx.send_datagram(datagram.from, answer.as_bytes());
    }
}

pub(crate) fn run() -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let config = RuntimeConfig {
        lanes: 4,
        lane: LaneConfig { steer_offset: Some(0), ..LaneConfig::default() },
        bind: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::start(config, |_lane| Words::default())?;
    let address = runtime.address().ok_or("the lanes listen on no address")?;
    let client = UdpSocket::bind("127.0.0.1:0")?;
    client.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut said = Vec::new();
    for word in ["lane", "ring", "lane", "zebra", "lane"] {
        let slot = word.as_bytes()[0].wrapping_mul(37);
        client.send_to(&[&[slot], word.as_bytes()].concat(), address)?;
        let mut answer = [0; 128];
        let (len, _) = client.recv_from(&mut answer)?;
        said.push(String::from_utf8_lossy(&answer[..len]).into_owned());
    }
    said.push(format!("{} datagrams reached a lane that was not their owner", runtime.snapshot().total("misrouted")));
    runtime.shutdown();
    Ok(said)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    run()?.iter().for_each(|line| println!("{line}"));
    Ok(())
}
