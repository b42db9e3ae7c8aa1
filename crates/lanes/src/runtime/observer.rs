//! Looks at the counters and keeps the alarms; serves both as Prometheus text, and writes traces to files, on a thread of its
//! own if either is wanted. No lane knows of it, and where that thread shares a core with a lane it gives way.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::nice;

use crate::runtime::{RuntimeConfig, Shared, StartError, lock};
use crate::telemetry::alarms::{Alarm, Alarms};
use crate::telemetry::prometheus;
use crate::telemetry::snapshot::Snapshot;
use crate::telemetry::trace_file::TraceWriter;
use crate::time::{LaneTime, micros};

/// How often the counters are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a waiting connection is looked for in between.
const ACCEPT_EVERY: Duration = Duration::from_millis(25);
/// How often traces are written, if they are.
const FLUSH_EVERY: Duration = Duration::from_millis(50);
/// How much nicer to others the observer is than the lanes.
const NICER: i32 = 10;
/// The most bytes of a request, and the time to send it.
const REQUEST_BYTES_MAX: usize = 4096;
const REQUEST_PATIENCE: Duration = Duration::from_millis(500);

/// The running observer; dropping it ends it.
#[derive(Debug)]
pub(super) struct Observer {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    address: Option<SocketAddr>,
}

impl Observer {
    /// Whether a runtime of these settings needs the thread: for alarms alone, the supervisor has time enough.
    pub(super) fn is_wanted(config: &RuntimeConfig) -> bool {
        config.metrics.is_some() || config.trace_files.is_some()
    }

    pub(super) fn start<C: Send + 'static>(config: &RuntimeConfig, shared: Arc<Shared<C>>) -> Result<Self, StartError> {
        let io = |doing: &'static str| move |error| StartError::Io { doing: doing.to_owned(), error };
        let listener = config.metrics.map(TcpListener::bind).transpose().map_err(io("binding the metrics address"))?;
        let address =
            listener.as_ref().map(TcpListener::local_addr).transpose().map_err(io("binding the metrics address"))?;
        if let Some(listener) = &listener {
            listener.set_nonblocking(true).map_err(io("setting up the metrics address"))?;
        }
        let traces = config.trace_files.as_ref().map(TraceWriter::open).transpose();
        let traces = traces.map_err(io("opening the folder of the trace files"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let thread = std::thread::Builder::new()
            .name("lanes-observer".to_owned())
            .spawn(move || watch(&shared, listener.as_ref(), traces, &stopping))
            .map_err(io("starting the observer"))?;
        Ok(Self { thread: Some(thread), stop, address })
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn watch<C>(shared: &Shared<C>, listener: Option<&TcpListener>, mut traces: Option<TraceWriter>, stop: &AtomicBool) {
    // Linux counts niceness by thread, and any thread may become nicer.
    if let Err(error) = nice(NICER) {
        shared.event(None, format!("the observer runs at the lanes' own priority, which may slow them: {error}"));
    }
    let mut alarms = AlarmWatch::new();
    while !stop.load(Ordering::Relaxed) {
        alarms.look(shared);
        let wait = match listener.map(TcpListener::accept) {
            // A scraper that misbehaves spoils its own scrape.
            Some(Ok((stream, _))) => {
                let _ = serve(stream, shared);
                Duration::ZERO
            }
            Some(Err(_)) => ACCEPT_EVERY,
            None if traces.is_some() => FLUSH_EVERY,
            None => LOOK_EVERY,
        };
        write_traces(shared, &mut traces);
        std::thread::park_timeout(wait);
    }
    write_traces(shared, &mut traces);
}

/// Keeps the alarms up to date.
#[derive(Debug)]
pub(super) struct AlarmWatch {
    origin: Instant,
    alarms: Alarms,
    next_look: Instant,
}

impl AlarmWatch {
    pub(super) fn new() -> Self {
        let origin = Instant::now();
        Self { origin, alarms: Alarms::default(), next_look: origin }
    }

    /// Looks at the counters, if it is time to.
    pub(super) fn look<C>(&mut self, shared: &Shared<C>) {
        if Instant::now() < self.next_look {
            return;
        }
        self.next_look += LOOK_EVERY;
        let mut standing = self.alarms.observe(LaneTime(micros(self.origin.elapsed())), &read(shared));
        standing.extend(lock(&shared.waiting_for_disk).iter().map(|lane| Alarm::DiskHangs { lane: *lane }));
        *lock(&shared.alarms) = standing;
    }
}

/// Empties the lanes' traces into the files. A disk that fails ends the writing, not the lanes.
fn write_traces<C>(shared: &Shared<C>, traces: &mut Option<TraceWriter>) {
    let Some(writer) = traces else { return };
    shared.take_traces(|event| writer.push(&event));
    if let Err(error) = writer.flush() {
        shared.event(None, format!("traces are not written any more: {error}"));
        *traces = None;
    }
}

fn read<C>(shared: &Shared<C>) -> Snapshot {
    let counters = shared.counters.read().unwrap_or_else(PoisonError::into_inner).clone();
    Snapshot::of(&counters)
}

fn serve<C>(mut stream: TcpStream, shared: &Shared<C>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(REQUEST_PATIENCE))?;
    stream.set_write_timeout(Some(REQUEST_PATIENCE))?;
    let mut request = Vec::new();
    let mut chunk = [0; 512];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        match stream.read(&mut chunk)? {
            0 => break,
            len => request.extend_from_slice(&chunk[..len]),
        }
    }
    let (status, body) = if request.starts_with(b"GET /metrics ") {
        let alarms = lock(&shared.alarms).clone();
        ("200 OK", prometheus::render(&read(shared), &alarms))
    } else {
        ("404 Not Found", "Metrics are at /metrics.\n".to_owned())
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}
