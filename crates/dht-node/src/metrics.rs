//! Metrics for Prometheus: counters of the lanes' runtime and of the DHT in each lane. Names are in
//! `docs/METRICS.md`.
//!
//! Threads of their own serve them, a few side by side; they ask lanes by message and never make one wait. A scraper has a
//! few seconds for its request, and the node does not wait for scrapers when it stops.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tessera_dht::lookup::{Histogram, LookupTotals};
use tessera_lanes::telemetry::prometheus;

use crate::call::block_on;
use crate::control::places::Places;
use crate::error::NodeError;
use crate::handler::NodeCommand;
use crate::inner::Inner;
use crate::status::{Status, named};

/// The most bytes of a request, and the time to send it; reading the answer may take as long again.
const REQUEST_BYTES_MAX: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(2);

/// Scrapers served at once; more wait until one has its answer, or had its time.
const SCRAPERS_MAX: usize = 8;

/// How long to wait after a connection could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a node that stops tries to wake the thread that waits for scrapers.
const WAKE_PATIENCE: Duration = Duration::from_millis(500);

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
    writeln!(text, "# HELP tessera_dht_lookups_ended_total Lookups by how they ended.")?;
    writeln!(text, "# TYPE tessera_dht_lookups_ended_total counter")?;
    for lane in &status.lanes {
        for (reason, count) in lane.lookups.ended() {
            let (lane, reason) = (lane.lane, reason.name());
            writeln!(text, "tessera_dht_lookups_ended_total{{lane=\"{lane}\",reason=\"{reason}\"}} {count}")?;
        }
    }
    histogram(text, status, "tessera_dht_lookup_milliseconds", |lookups| &lookups.milliseconds)?;
    histogram(text, status, "tessera_dht_lookup_hops", |lookups| &lookups.hops)?;
    histogram(text, status, "tessera_dht_lookup_parallel_requests", |lookups| &lookups.parallel)?;
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

fn histogram(text: &mut String, status: &Status, name: &str, of: fn(&LookupTotals) -> &Histogram) -> std::fmt::Result {
    writeln!(text, "# HELP {name} See docs/METRICS.md.\n# TYPE {name} histogram")?;
    for lane in &status.lanes {
        let (values, lane) = (of(&lane.lookups), lane.lane);
        for (bound, count) in values.at_most() {
            writeln!(text, "{name}_bucket{{lane=\"{lane}\",le=\"{bound}\"}} {count}")?;
        }
        writeln!(text, "{name}_bucket{{lane=\"{lane}\",le=\"+Inf\"}} {}", values.count())?;
        writeln!(text, "{name}_sum{{lane=\"{lane}\"}} {}", values.sum())?;
        writeln!(text, "{name}_count{{lane=\"{lane}\"}} {}", values.count())?;
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
        let (stopping, inner, places) = (stop.clone(), Arc::downgrade(inner), Places::new(SCRAPERS_MAX));
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                let Some(place) = places.take(&stopping) else { return };
                if stopping.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), inner) = (stream, inner.clone()) else {
                    // Files have run out, or the like: to try at once would keep a core busy until there are some.
                    std::thread::sleep(ACCEPT_PAUSE);
                    continue;
                };
                // Without a thread to serve it, the connection is closed again.
                let _ = std::thread::Builder::new().name("metrics-call".to_owned()).spawn(move || {
                    let _place = place;
                    // A scraper that misbehaves spoils its own scrape.
                    let _ = serve(stream, &inner);
                });
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
        let woken = TcpStream::connect_timeout(&self.addr, WAKE_PATIENCE).is_ok();
        if let Some(thread) = self.thread.take()
            && woken
        {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: TcpStream, inner: &Weak<Inner>) -> io::Result<()> {
    let request = request(&mut stream, Instant::now() + PATIENCE)?;
    let Some(inner) = inner.upgrade() else { return Ok(()) };
    let (status, body) = match asked_for(&request) {
        Some("/metrics") => match block_on(render(&inner)) {
            Ok(text) => ("200 OK", text),
            Err(error) => ("503 Service Unavailable", format!("{error}\n")),
        },
        Some("/health") => match block_on(self::status(&inner)) {
            Ok(status) => health(&status),
            Err(error) => ("503 Service Unavailable", format!("{error}\n")),
        },
        _ => ("404 Not Found", "Metrics are at /metrics, health is at /health.\n".to_owned()),
    };
    drop(inner);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let len = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    answer(&mut stream, (head + &body).as_bytes(), Instant::now() + PATIENCE)
}

/// Whether the node does its work, in the first line; then further facts for the operator.
fn health(status: &Status) -> (&'static str, String) {
    let (code, mut text) = match status.trouble() {
        None => ("200 OK", "up\n".to_owned()),
        Some(trouble) => ("503 Service Unavailable", format!("{trouble}\n")),
    };
    for alarm in &status.alarms {
        text.push_str(&format!("alarm: {alarm}\n"));
    }
    (code, text)
}

/// The path of a request, without its query. Lines may end without a carriage return: RFC 9112, 2.2.
fn asked_for(request: &[u8]) -> Option<&str> {
    let line = request.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let path = words.next().filter(|method| *method == "GET").and_then(|_| words.next())?;
    path.split('?').next()
}

/// Reads until the empty line, the end, or the limit.
fn request(stream: &mut TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut chunk = [0; 512];
    let is_whole = |request: &[u8]| {
        request.windows(4).any(|end| end == b"\r\n\r\n") || request.windows(2).any(|end| end == b"\n\n")
    };
    while !is_whole(&request) && request.len() < REQUEST_BYTES_MAX {
        stream.set_read_timeout(Some(left_until(deadline)?))?;
        match stream.read(&mut chunk)? {
            0 => break,
            len => request.extend_from_slice(&chunk[..len]),
        }
    }
    Ok(request)
}

fn answer(stream: &mut TcpStream, mut answer: &[u8], deadline: Instant) -> io::Result<()> {
    while !answer.is_empty() {
        stream.set_write_timeout(Some(left_until(deadline)?))?;
        match stream.write(answer)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            len => answer = &answer[len..],
        }
    }
    Ok(())
}

fn left_until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_whatever_lines_end_with_and_whatever_is_asked_of_it() {
        for (request, path) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Some("/metrics")),
            ("GET /metrics HTTP/1.0\n\n", Some("/metrics")),
            ("GET /metrics?x=1 HTTP/1.1\r\n\r\n", Some("/metrics")),
            ("GET /metricsx HTTP/1.1\r\n\r\n", Some("/metricsx")),
            ("POST /metrics HTTP/1.1\r\n\r\n", None),
            ("GET", None),
            ("", None),
        ] {
            assert_eq!(asked_for(request.as_bytes()), path, "{request:?}");
        }
        assert_eq!(asked_for(b"GET /\xff HTTP/1.1\n\n"), None);
    }
}
