//! The caller's side of the socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::execute::Refused;
use super::trust::{self, Distrusted};

/// How long a connection waits for its request; after that there is a new one, since the node may have given up this one.
const REQUEST_WITHIN: Duration = Duration::from_secs(1);

/// A way to a running node.
#[derive(Debug)]
pub struct Client {
    /// The connection for the next call, and since when it is there.
    stream: Option<(UnixStream, Instant)>,
    path: PathBuf,
}

/// Why a call over the socket failed.
#[derive(Debug)]
pub enum CallError {
    /// The node said no.
    Refused(Refused),
    /// The node has a socket, but says nothing.
    Silent(PathBuf),
    /// It is not sure whose node it is: it was told nothing.
    Distrusted(Distrusted),
    /// The connection broke.
    Io(io::Error),
}

impl CallError {
    fn of(error: io::Error, path: &Path) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Silent(path.to_owned()),
            _ => Self::Io(error),
        }
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(refused) => refused.fmt(f),
            Self::Silent(path) => write!(
                f,
                "the node at {} does not answer: it is stopped or hangs, or too many callers wait for it. Try again; if that \
                 does not help, look into its log, end its process and start it again",
                path.display()
            ),
            Self::Distrusted(why) => why.fmt(f),
            Self::Io(error) if is_gone(error) => f.write_str(
                "the node went away before it had answered: it was stopped or killed, and what was asked of it may not be done. \
                 Look into its log",
            ),
            Self::Io(error) if is_deserted(error) => f.write_str(
                "the node went away: no process listens at its socket any more. It was stopped or killed; look into its log",
            ),
            Self::Io(error) => write!(f, "the connection to the node broke: {error}"),
        }
    }
}

impl std::error::Error for CallError {}

/// Whether the other end was closed in the middle of something.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Whether no process listens: the socket was left behind, or there is none.
fn is_deserted(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

impl Client {
    /// Connects to the node whose socket is at `path`, if it is run by this user or by root.
    pub fn connect(path: &Path) -> Result<Self, CallError> {
        let stream = reach(path, trust::own_uid())?;
        Ok(Self { stream: Some((stream, Instant::now())), path: path.to_owned() })
    }

    /// The socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks, telling progress, and returns the answer. It may take as long as it takes; a node that says nothing for several
    /// seconds is given up.
    pub fn call(
        &mut self,
        request: &Value,
        body: &[u8],
        mut progress: impl FnMut(usize, usize),
    ) -> Result<(Value, Vec<u8>), CallError> {
        let broken = |error| CallError::of(error, &self.path);
        let mut stream = match self.stream.take() {
            Some((stream, since)) if since.elapsed() < REQUEST_WITHIN => stream,
            _ => reach(&self.path, trust::own_uid())?,
        };
        super::write(&mut stream, request, body).map_err(broken)?;
        loop {
            let message = super::read(&mut stream).map_err(broken)?;
            let Some((mut answer, body)) = message else {
                return Err(CallError::Io(io::ErrorKind::UnexpectedEof.into()));
            };
            if let Some([done, total]) = answer["progress"].as_array().map(Vec::as_slice) {
                progress(done.as_u64().unwrap_or(0) as usize, total.as_u64().unwrap_or(0) as usize);
            } else if answer["working"] == true {
                // Not forgotten.
            } else if answer["ok"].is_null() {
                return Err(CallError::Refused(Refused::of_json(&answer)));
            } else {
                return Ok((answer["ok"].take(), body));
            }
        }
    }
}

/// A connection to a node of `user` or of root: nothing was said on it yet.
fn reach(path: &Path, user: u32) -> Result<UnixStream, CallError> {
    let broken = |error| CallError::of(error, path);
    trust::check_folder(path, user).map_err(broken)?.map_err(CallError::Distrusted)?;
    let stream = super::connect(path).map_err(broken)?;
    trust::check_peer(&stream, path, user).map_err(broken)?.map_err(CallError::Distrusted)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_node_that_may_belong_to_another_user_is_told_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let user = trust::own_uid();
        assert!(reach(&path, user).is_ok());
        assert_eq!(listener.accept().unwrap().0.read(&mut [0; 8]).unwrap(), 0, "nothing is said before it is asked");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(Client::connect(&path), Err(CallError::Distrusted(Distrusted::FolderOpen { .. }))));
        let mut client = Client { stream: None, path: path.clone() };
        let asked = client.call(&serde_json::json!({ "op": "status" }), b"a secret", |_, _| {});
        assert!(matches!(asked, Err(CallError::Distrusted(_))), "a connection made later is no safer: {asked:?}");
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "no connection was made");
    }

    #[test]
    fn a_node_that_ends_in_the_middle_of_a_call_is_said_to_be_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.sock");
        let listener = UnixListener::bind(&path).unwrap();
        // At once, after some of the request, and after some of the answer.
        for (reads, answer) in
            [(0, &b""[..]), (8, b""), (8, b"\x09\x00\x00"), (8, b"\x09\x00\x00\x00\x00\x00\x00\x00{")]
        {
            let mut client = Client::connect(&path).unwrap();
            let (mut node, _) = listener.accept().unwrap();
            let ends = std::thread::spawn(move || {
                node.read_exact(&mut vec![0; reads]).unwrap();
                io::Write::write_all(&mut node, answer).unwrap();
            });
            let error = client.call(&serde_json::json!({ "op": "put" }), &vec![0; 1 << 20], |_, _| {}).unwrap_err();
            ends.join().unwrap();
            assert!(error.to_string().contains("went away before it had answered"), "{reads} {answer:?}: {error:?}");
        }
        // The node stops between two calls, by a signal that lets it remove its socket and by one that does not.
        let mut client = Client { stream: None, path: path.clone() };
        drop(listener);
        for removes in [false, true] {
            if removes {
                std::fs::remove_file(&path).unwrap();
            }
            let error = client.call(&serde_json::json!({ "op": "top" }), &[], |_, _| {}).unwrap_err();
            assert!(error.to_string().contains("the node went away: no process listens"), "{removes}: {error:?}");
        }
    }
}
