//! The memory of an idle lane: its buffers are the system's while nothing comes. Alone in its process, because it measures the
//! whole process.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use tessera_lanes::config::LaneConfig;
use tessera_lanes::handler::Datagram;
use tessera_lanes::runtime::{Runtime, RuntimeConfig};
use tessera_lanes::{Context, Handler};

/// So long a test waits for something that must happen; it does not measure.
const PATIENCE: Duration = Duration::from_secs(600);
/// Long, so that the buffers stand out.
const DATAGRAM_BYTES: usize = 60_000;

struct Echo;

impl Handler for Echo {
    type Command = ();

    fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
        // As often as fits: the send queue is filled, too.
        while cx.send_datagram(datagram.from, datagram.bytes).is_ok() {}
    }

    fn on_command(&mut self, _: &mut Context, (): ()) {}
}

fn resident_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_lane_that_has_nothing_to_do_gives_the_memory_of_its_buffers_back() {
    const MUCH_KILOBYTES: u64 = 8 << 10;
    let config = RuntimeConfig {
        lanes: 1,
        lane: LaneConfig { datagram_bytes_max: DATAGRAM_BYTES, ..LaneConfig::default() },
        bind: Some("127.0.0.1:0".parse().unwrap()),
        spin: Duration::ZERO,
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::start(config, |_| Echo).unwrap();
    let before = resident_kilobytes();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let deadline = Instant::now() + PATIENCE;
    while resident_kilobytes() < before + MUCH_KILOBYTES {
        assert!(Instant::now() < deadline, "256 datagrams of 60 kB were never in memory");
        client.send_to(&[7; DATAGRAM_BYTES], runtime.address().unwrap()).unwrap();
    }
    while resident_kilobytes() > before + MUCH_KILOBYTES / 4 {
        assert!(Instant::now() < deadline, "{} kB more than before", resident_kilobytes() - before);
        std::thread::sleep(Duration::from_millis(10));
    }
    client.send_to(b"still there?", runtime.address().unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; DATAGRAM_BYTES];
    while client.recv(&mut answer).unwrap() != b"still there?".len() {}
    runtime.shutdown();
}
