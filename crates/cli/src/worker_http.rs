//! What a worker serves over HTTP: `/metrics` for Prometheus, `/health` and `/ready` for whatever starts and stops workers.
//!
//! One thread takes connections and a few answer them; a client has two seconds for its request and as long to read the answer.
//! Names are in `docs/METRICS.md`.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};
use tessera_scan::fleet::state::{LATENCY_BOUNDS, ServingState};

/// The most bytes of a request, and the time to send it; reading the answer may take as long again.
const REQUEST_BYTES_MAX: usize = 4_096;
const PATIENCE: Duration = Duration::from_secs(2);

/// Clients served at once; others are turned away.
const CLIENTS_MAX: usize = 8;

/// Panics in any thread of this process.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// What is served.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) state: Arc<ServingState>,
    pub(crate) findings: PathBuf,
    pub(crate) threads: usize,
    pub(crate) started: Instant,
}

/// Counts panics from now on. The message is printed as before.
pub(crate) fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(info);
    }));
}

/// Serves until the process ends. Returns the address, whose port the system chose if it was 0.
pub(crate) fn listen(at: SocketAddr, served: Served) -> Result<SocketAddr, String> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "cannot serve at {at}: another program listens there; choose another port with --http, or 0 for a free one"
            )
        }
        _ => format!("cannot serve at {at}: {error}"),
    };
    let listener = TcpListener::bind(at).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let (served, clients) = (Arc::new(served), Arc::new(AtomicUsize::new(0)));
    let take = move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // Out of file descriptors, say; trying again at once would only heat the machine.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            if clients.fetch_add(1, Ordering::AcqRel) >= CLIENTS_MAX {
                clients.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let (served, clients_of) = (Arc::clone(&served), Arc::clone(&clients));
            let answer = move || {
                let _ = answer(stream, &served);
                clients_of.fetch_sub(1, Ordering::AcqRel);
            };
            if std::thread::Builder::new().name("http-client".into()).spawn(answer).is_err() {
                clients.fetch_sub(1, Ordering::AcqRel);
            }
        }
    };
    std::thread::Builder::new().name("http".into()).spawn(take).map_err(failed)?;
    Ok(address)
}

fn answer(mut stream: TcpStream, served: &Served) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let mut buffer = [0; 1_024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > REQUEST_BYTES_MAX {
            return Ok(());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            read => request.extend_from_slice(&buffer[..read]),
        }
    }
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let (status, kind, body) = answer_to(line, served);
    let len = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

fn answer_to(line: &[u8], served: &Served) -> (&'static str, &'static str, String) {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let mut words = line.split(|&byte| byte == b' ');
    match (words.next(), words.next()) {
        (Some(b"GET" | b"HEAD"), Some(b"/metrics")) => {
            ("200 OK", "text/plain; version=0.0.4; charset=utf-8", metrics(served))
        }
        (Some(b"GET" | b"HEAD"), Some(b"/health")) => ("200 OK", PLAIN, "up\n".into()),
        (Some(b"GET" | b"HEAD"), Some(b"/ready")) => match unready(served) {
            None => ("200 OK", PLAIN, "ready\n".into()),
            Some(why) => ("503 Service Unavailable", PLAIN, format!("{why}\n")),
        },
        (Some(b"GET" | b"HEAD"), Some(_)) => ("404 Not Found", PLAIN, "see /metrics, /health and /ready\n".into()),
        _ => ("400 Bad Request", PLAIN, "only GET\n".into()),
    }
}

/// Why the worker cannot work now.
fn unready(served: &Served) -> Option<String> {
    if let Some(cause) = served.state.outage() {
        return Some(format!("the coordinator cannot be used: {cause}"));
    }
    if !served.state.has_looked() {
        return Some("the coordinator has not answered yet".to_owned());
    }
    findings_problem(&served.findings)
}

/// Why findings cannot be written, with what would have to be so.
pub(crate) fn findings_problem(dir: &std::path::Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let shown = dir.display();
    match std::fs::metadata(dir) {
        Err(error) => Some(format!("the folder for findings {shown} cannot be used: {error}")),
        Ok(metadata) if !metadata.is_dir() => Some(format!("{shown} is no folder for findings: it is no directory")),
        Ok(metadata) => {
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            let needed = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
            access(dir, needed).err().map(|_| {
                format!(
                    "the folder for findings {shown} belongs to uid {} and gid {} with mode {:04o}; this worker has uid {uid} and \
                     gid {gid} and needs to read, write and enter it: chown it, or give the mode 0770 or 2770 for a group that all \
                     workers and submitters are in",
                    metadata.uid(),
                    metadata.gid(),
                    metadata.mode() & 0o7777,
                )
            })
        }
    }
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, kind, help);
        let _ = writeln!(self.0, "{name} {value}");
    }
}

/// The text a scraper gets.
fn metrics(served: &Served) -> String {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (state, progress) = (&served.state, &served.state.progress);
    let mut text = Text(String::new());
    text.family("tessera_worker_info", "gauge", "Always 1; the labels say which worker this is.");
    let (name, version) = (label(&served.name), env!("CARGO_PKG_VERSION"));
    let _ = writeln!(text.0, "tessera_worker_info{{name=\"{name}\",version=\"{version}\"}} 1");
    text.one("tessera_worker_uptime_seconds", "gauge", "Since the worker began.", served.started.elapsed().as_secs());
    text.one("tessera_worker_threads", "gauge", "Threads that work.", served.threads);
    let is_ready = u8::from(unready(served).is_none());
    text.one("tessera_worker_ready", "gauge", "1 if coordinator and findings folder can be used.", is_ready);
    text.one("tessera_worker_runs", "gauge", "Runs that go on, as the worker saw them last.", of(&state.runs));
    text.one(
        "tessera_worker_runs_unusable",
        "gauge",
        "Of these, those that cannot be worked on from here.",
        of(&state.runs_unusable),
    );
    text.one("tessera_worker_items_total", "counter", "Items met.", of(&progress.items));
    text.one("tessera_worker_bytes_total", "counter", "Bytes searched.", of(&progress.bytes));
    text.one(
        "tessera_worker_findings_total",
        "counter",
        "Places of secrets, also those that are found again later.",
        of(&progress.findings),
    );
    text.family("tessera_worker_shards_total", "counter", "Shards that the worker no longer holds, by how that came.");
    for (end, count) in progress.shard_ends() {
        let _ = writeln!(text.0, "tessera_worker_shards_total{{end=\"{end}\"}} {count}");
    }
    text.one("tessera_worker_lost_leases_total", "counter", "Shards that another worker took over.", progress.lost());
    text.one("tessera_worker_coordinator_retries_total", "counter", "Calls that were tried again.", of(&state.retries));
    text.one(
        "tessera_worker_coordinator_outages_total",
        "counter",
        "Times the coordinator went away.",
        of(&state.outages),
    );
    let name = "tessera_worker_store_latency_seconds";
    text.family(name, "histogram", "How long calls to the coordinator took.");
    let latency = state.latency();
    for (bound, count) in LATENCY_BOUNDS.iter().zip(&latency.up_to) {
        let _ = writeln!(text.0, "{name}_bucket{{le=\"{}\"}} {count}", bound.as_secs_f64());
    }
    let _ = writeln!(text.0, "{name}_bucket{{le=\"+Inf\"}} {}", latency.count);
    let _ = writeln!(text.0, "{name}_sum {}\n{name}_count {}", latency.sum.as_secs_f64(), latency.count);
    text.one("tessera_worker_invariant_panics_total", "counter", "Panics in any thread; each is a bug.", of(&PANICS));
    text.0
}

/// A value of a label, escaped as the format wants it.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
