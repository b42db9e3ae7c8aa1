//! The node's side of the socket.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::execute::answer;
use super::places::Places;
use super::trust::{check_folder, own_uid};
use super::{SILENCE_MAX, WORKING_EVERY};
use crate::call::block_on;
use crate::node::Node;
use crate::oneshot::{self, lock};
use crate::timer;

/// Callers served at once; more wait for a place until one is free.
const CALLERS_MAX: usize = 64;

/// How long a caller may leave a connection without a request. Shorter than others wait for an answer, so that an unused
/// place is free before they give up.
const IDLE_MAX: Duration = Duration::from_secs(3);

/// How soon it is noticed that a caller went away while its request is worked on.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a request may take to come, with the largest value there is.
const REQUEST_MAX: Duration = Duration::from_secs(30);

/// A node's socket; dropping it removes it.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `node` at `path`. The folder is made if need be, for its owner only.
    pub fn start(node: &Node, path: &Path) -> io::Result<Self> {
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        // Another user's folder in a shared place is open to that user, and no caller would trust it.
        if let Err(distrusted) = check_folder(path, own_uid())? {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, distrusted));
        }
        match super::connect(path) {
            // It has a socket and no time: hung, but there.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(taken()),
            Ok(_) => return Err(taken()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // No process listens: a node that was killed left the socket behind.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) => {
                fs::remove_file(path)?;
            }
            // Another error does not show that no process listens.
            Err(error) => return Err(error),
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, node, places) = (stop.clone(), node.clone(), Places::new(CALLERS_MAX));
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                let Some(place) = places.take(&stopping) else { return };
                if stopping.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), node) = (stream, node.clone()) else { continue };
                // Without a thread to serve it, the connection is closed again.
                let _ = std::thread::Builder::new().name("control-call".to_owned()).spawn(move || {
                    let _place = place;
                    // A caller that goes away has no more questions.
                    let _ = serve(&node, &stream);
                });
            }
        })?;
        Ok(Self { path: path.to_owned(), stop, thread: Some(thread) })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let woken = super::connect(&self.path).is_ok();
        if let Some(thread) = self.thread.take()
            && woken
        {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

fn taken() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "another node serves this socket")
}

fn serve(node: &Node, stream: &UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    let caller = Arc::new(Caller(Mutex::new(stream.try_clone()?)));
    while let Some((request, body)) = super::read(&mut Request::new(stream))? {
        let told = caller.clone();
        let told = Arc::new(move |done: usize, total: usize| {
            let _ = told.tell(&json!({ "progress": [done, total] }), &[]);
        });
        match caller.kept_waiting(stream, answer(node, &request, body, Some(told))) {
            Some(Ok((answer, body))) => caller.tell(&json!({ "ok": answer }), &body)?,
            Some(Err(refused)) => caller.tell(&refused.to_json(), &[])?,
            None => return Ok(()),
        }
    }
    Ok(())
}

/// The caller's connection, shared by several threads: one message at a time.
struct Caller(Mutex<UnixStream>);

impl Caller {
    fn tell(&self, message: &Value, body: &[u8]) -> io::Result<()> {
        let mut stream = lock(&self.0);
        super::write(&mut *stream, message, body).inspect_err(|_| {
            // Half a message may be out, after which nothing makes sense; nor shall the next one wait as long.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        })
    }

    /// Does something, and tells now and then that it is being done. `None` if the caller went away: then it is given up.
    fn kept_waiting<T>(&self, stream: &UnixStream, work: impl Future<Output = T>) -> Option<T> {
        std::thread::scope(|scope| {
            let (end, ended) = mpsc::channel::<()>();
            let (left, gone) = oneshot::channel::<()>();
            scope.spawn(move || {
                let mut told = Instant::now();
                while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                    if is_gone(stream) {
                        return left.send(());
                    }
                    if told.elapsed() >= WORKING_EVERY {
                        told = Instant::now();
                        let _ = self.tell(&json!({ "working": true }), &[]);
                    }
                }
            });
            // Dropped in the end, and also by a panic.
            let _end = end;
            let gone = async move {
                let _ = gone.await;
            };
            block_on(timer::unless(gone, work))
        })
    }
}

/// Whether the other end is closed. A caller that only shut down writing may still read the answer.
fn is_gone(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok()
        && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// The bytes of one request: it must begin soon and be there in time, however slowly they come.
struct Request<'s> {
    stream: &'s UnixStream,
    deadline: Instant,
    has_begun: bool,
}

impl<'s> Request<'s> {
    fn new(stream: &'s UnixStream) -> Self {
        Self { stream, deadline: Instant::now() + IDLE_MAX, has_begun: false }
    }
}

impl Read for Request<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let read = self.stream.read(bytes)?;
        if !self.has_begun {
            (self.has_begun, self.deadline) = (true, Instant::now() + REQUEST_MAX);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_caller_is_told_while_its_request_takes_long() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let caller = Caller(Mutex::new(ours.try_clone().unwrap()));
        let work = async {
            timer::after(WORKING_EVERY * 5 / 4).await;
            7
        };
        // It has nothing more to say, but wants to hear.
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let done = caller.kept_waiting(&ours, work);
        caller.tell(&json!({ "ok": done }), &[]).unwrap();
        let mut told: Vec<Value> = std::iter::from_fn(|| Some(super::super::read(&mut theirs).unwrap().unwrap().0))
            .take_while(|told| *told != json!({ "ok": 7 }))
            .collect();
        // On a busy machine more than once.
        told.dedup();
        assert_eq!(told, [json!({ "working": true })]);
    }

    #[test]
    fn a_request_whose_caller_went_away_is_given_up() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let caller = Caller(Mutex::new(ours.try_clone().unwrap()));
        let leaving = std::thread::spawn(move || {
            std::thread::sleep(LOOK_EVERY * 2);
            drop(theirs);
        });
        assert_eq!(caller.kept_waiting(&ours, std::future::pending::<()>()), None);
        leaving.join().unwrap();
    }

    #[test]
    fn a_request_must_begin_soon_and_be_there_in_time_however_slowly_it_comes() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut late = Request::new(&ours);
        late.deadline = Instant::now() + Duration::from_millis(20);
        assert!(late.read(&mut [0; 8]).is_err(), "nothing came");
        // A byte now and then, each sooner than the limit.
        let mut slow = Request::new(&ours);
        theirs.write_all(b"1").unwrap();
        assert_eq!(slow.read(&mut [0; 8]).unwrap(), 1);
        let left = slow.deadline.saturating_duration_since(Instant::now());
        assert!(left > IDLE_MAX && left <= REQUEST_MAX, "it has begun, and has {left:?}");
        slow.deadline = Instant::now() + Duration::from_millis(50);
        let dripping = std::thread::spawn(move || {
            while theirs.write_all(b"1").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let begun = Instant::now();
        while slow.read(&mut [0; 8]).is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(600), "it is never late");
        }
        drop(ours);
        dripping.join().unwrap();
    }
}
