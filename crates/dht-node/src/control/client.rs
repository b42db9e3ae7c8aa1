//! The caller's side of the socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::execute::Refused;

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
            Self::Io(error) => write!(f, "the connection to the node broke: {error}"),
        }
    }
}

impl std::error::Error for CallError {}

impl Client {
    /// Connects to the node whose socket is at `path`.
    pub fn connect(path: &Path) -> Result<Self, CallError> {
        let stream = super::connect(path).map_err(|error| CallError::of(error, path))?;
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
            _ => super::connect(&self.path).map_err(broken)?,
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
