//! Metrics for Prometheus: what the lanes' runtime counts, and what the DHT in each lane does. Names are in
//! `docs/METRICS.md`.
//!
//! A thread of its own serves them; it asks lanes by message and never makes one wait.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use tessera_lanes::telemetry::prometheus;

use crate::call::block_on;
use crate::error::NodeError;
use crate::handler::NodeCommand;
use crate::inner::Inner;
use crate::status::{Status, named};

/// What a scraper may send, and how long it may take to.
const REQUEST_BYTES_MAX: usize = 4096;
const PATIENCE: Duration = Duration::from_millis(500);

/// How the node is, asked of every lane.
pub(crate) async fn status(inner: &Inner) -> Result<Status, NodeError> {
    let lanes = inner.ask_lanes(NodeCommand::Status).await?;
    let runtime = inner.runtime()?;
    Ok(Status {
        id: inner.id,
        listen: inner.listen,
        network: inner.network.clone(),
        lanes_wanted: runtime.map().lanes(),
        lanes,
        log_failed: inner.flags.log_failed.load(Ordering::Relaxed),
        kernel_steering: runtime.is_kernel_steered(),
        alarms: runtime.alarms().iter().map(ToString::to_string).collect(),
    })
}

/// The whole text a scraper gets.
pub(crate) async fn render(inner: &Inner) -> Result<String, NodeError> {
    let status = status(inner).await?;
    let runtime = inner.runtime()?;
    let mut text = prometheus::render(&runtime.snapshot(), &runtime.alarms());
    drop(runtime);
    // Writing to a string cannot fail.
    let _ = dht(&mut text, &status);
    Ok(text)
}

fn dht(text: &mut String, status: &Status) -> std::fmt::Result {
    writeln!(text, "# HELP tessera_dht_up Connected in both directions.\n# TYPE tessera_dht_up gauge")?;
    writeln!(text, "tessera_dht_up {}", u8::from(status.is_up()))?;
    writeln!(text, "# HELP tessera_dht_log_failed A log cannot be written.\n# TYPE tessera_dht_log_failed gauge")?;
    writeln!(text, "tessera_dht_log_failed {}", u8::from(status.log_failed))?;
    writeln!(text, "# HELP tessera_dht_contacts Live contacts of a lane.\n# TYPE tessera_dht_contacts gauge")?;
    for lane in &status.lanes {
        writeln!(text, "tessera_dht_contacts{{lane=\"{}\"}} {}", lane.lane, lane.health.live_peers)?;
    }
    writeln!(text, "# HELP tessera_dht_network_size Nodes of the network, estimated.")?;
    writeln!(text, "# TYPE tessera_dht_network_size gauge")?;
    for lane in &status.lanes {
        writeln!(text, "tessera_dht_network_size{{lane=\"{}\"}} {}", lane.lane, lane.network_size.round())?;
    }
    let names: Vec<&str> = status
        .lanes
        .first()
        .map_or_else(Vec::new, |lane| named(&lane.counters).iter().map(|(name, _)| *name).collect());
    for (at, name) in names.iter().enumerate() {
        writeln!(
            text,
            "# HELP tessera_dht_{name}_total See docs/METRICS.md.\n# TYPE tessera_dht_{name}_total counter"
        )?;
        for lane in &status.lanes {
            writeln!(text, "tessera_dht_{name}_total{{lane=\"{}\"}} {}", lane.lane, named(&lane.counters)[at].1)?;
        }
    }
    writeln!(text, "# HELP tessera_dht_held What a lane holds.\n# TYPE tessera_dht_held gauge")?;
    for lane in &status.lanes {
        for (name, now, _) in &lane.bounds {
            writeln!(text, "tessera_dht_held{{lane=\"{}\",what=\"{name}\"}} {now}", lane.lane)?;
        }
    }
    writeln!(text, "# HELP tessera_dht_held_max The most a lane may hold.\n# TYPE tessera_dht_held_max gauge")?;
    for lane in &status.lanes {
        for (name, _, most) in &lane.bounds {
            writeln!(text, "tessera_dht_held_max{{lane=\"{}\",what=\"{name}\"}} {most}", lane.lane)?;
        }
    }
    Ok(())
}

/// The thread that serves; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Server {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(addr: SocketAddr, inner: &Arc<Inner>) -> io::Result<Self> {
        let listener = TcpListener::bind(addr)?;
        let addr = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, inner) = (stop.clone(), Arc::downgrade(inner));
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                if stopping.load(Ordering::Relaxed) {
                    return;
                }
                // A scraper that misbehaves spoils its own scrape.
                let _ = stream.and_then(|stream| serve(stream, &inner));
            }
        })?;
        Ok(Self { addr, stop, thread: Some(thread) })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A connection to itself ends the wait for one.
        let woken = TcpStream::connect_timeout(&self.addr, PATIENCE).is_ok();
        if let Some(thread) = self.thread.take()
            && woken
        {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: TcpStream, inner: &Weak<Inner>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let mut chunk = [0; 512];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        match stream.read(&mut chunk)? {
            0 => break,
            len => request.extend_from_slice(&chunk[..len]),
        }
    }
    let Some(inner) = inner.upgrade() else { return Ok(()) };
    let (status, body) = if request.starts_with(b"GET /metrics ") {
        match block_on(render(&inner)) {
            Ok(text) => ("200 OK", text),
            Err(error) => ("503 Service Unavailable", format!("{error}\n")),
        }
    } else if request.starts_with(b"GET /health ") {
        match block_on(self::status(&inner)) {
            Ok(status) => match status.trouble() {
                None => ("200 OK", "up\n".to_owned()),
                Some(trouble) => ("503 Service Unavailable", format!("{trouble}\n")),
            },
            Err(error) => ("503 Service Unavailable", format!("{error}\n")),
        }
    } else {
        ("404 Not Found", "Metrics are at /metrics, health is at /health.\n".to_owned())
    };
    drop(inner);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let len = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}
