//! The caller's side of the socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::execute::Refused;

/// A connection to a running node.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
}

/// Why a call over the socket failed.
#[derive(Debug)]
pub enum CallError {
    /// The node said no.
    Refused(Refused),
    /// The connection broke.
    Io(io::Error),
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(refused) => refused.fmt(f),
            Self::Io(error) => write!(f, "the connection to the node broke: {error}"),
        }
    }
}

impl std::error::Error for CallError {}

impl Client {
    /// Connects to the node whose socket is at `path`.
    pub fn connect(path: &Path) -> io::Result<Self> {
        Ok(Self { stream: UnixStream::connect(path)?, path: path.to_owned() })
    }

    /// The socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks, telling progress, and returns the answer.
    pub fn call(
        &mut self,
        request: &Value,
        body: &[u8],
        mut progress: impl FnMut(usize, usize),
    ) -> Result<(Value, Vec<u8>), CallError> {
        super::write(&mut self.stream, request, body).map_err(CallError::Io)?;
        loop {
            let message = super::read(&mut self.stream).map_err(CallError::Io)?;
            let Some((mut answer, body)) = message else {
                return Err(CallError::Io(io::ErrorKind::UnexpectedEof.into()));
            };
            if let Some([done, total]) = answer["progress"].as_array().map(Vec::as_slice) {
                progress(done.as_u64().unwrap_or(0) as usize, total.as_u64().unwrap_or(0) as usize);
            } else if answer["ok"].is_null() {
                return Err(CallError::Refused(Refused::of_json(&answer)));
            } else {
                return Ok((answer["ok"].take(), body));
            }
        }
    }
}
