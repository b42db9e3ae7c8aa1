//! How other programs on this machine use a running node: a Unix socket that only its owner may open.
//!
//! A message is two lengths, a JSON object and bytes; a request is answered by any number of progress messages and one last
//! message. However long a request takes, the node says every other second that it is at it: a caller takes a longer silence
//! for a node that hangs, and the node closes connections on which no request comes. [`execute`](execute::execute) does what a
//! request asks, so that a short-lived node in the caller's own process answers exactly as a daemon would.
//!
//! ```text
//! request   {"op": "put", "ttl_secs": 3600}            + the value
//! progress  {"progress": [3, 12]}
//! patience  {"working": true}
//! answer    {"ok": {...}}                              + a value, for those that return one
//! refusal   {"error": "...", "kind": "not_found"}
//! ```

pub mod client;
pub mod execute;
pub mod owner;
pub(crate) mod places;
pub mod server;
pub mod trust;

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use serde_json::Value;
use tessera_dht::chunk::CHUNKED_BYTES_MAX;

/// The longest JSON of a message, and the longest value.
const JSON_BYTES_MAX: usize = 16 << 20;
const BODY_BYTES_MAX: usize = CHUNKED_BYTES_MAX as usize;

/// How often the node says that it is still at it.
const WORKING_EVERY: Duration = Duration::from_secs(2);

/// How long either side may be silent in the middle of an exchange, and how long a connection may take. Several times the above,
/// so that a machine under load is not taken for one that hangs.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Connects to the socket at `path`; `WouldBlock` if its owner accepts no connections.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A connection waits while many others do. Of the limits a socket has, this one is also for that.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(SILENCE_MAX))?;
    let address = SocketAddrUnix::new(path)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    let stream = UnixStream::from(socket);
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    Ok(stream)
}

/// Writes a message.
pub(crate) fn write(stream: &mut impl Write, json: &Value, body: &[u8]) -> io::Result<()> {
    let json = json.to_string();
    let mut head = [0; 8];
    head[..4].copy_from_slice(&(json.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&(body.len() as u32).to_le_bytes());
    stream.write_all(&head)?;
    stream.write_all(json.as_bytes())?;
    stream.write_all(body)
}

/// Reads a message; `None` at the end of the stream.
pub(crate) fn read(stream: &mut impl Read) -> io::Result<Option<(Value, Vec<u8>)>> {
    let mut head = [0; 8];
    let first = loop {
        match stream.read(&mut head) {
            // A signal was handled meanwhile: with a time limit, the system does not go on by itself.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    match first {
        0 => return Ok(None),
        len => stream.read_exact(&mut head[len..])?,
    }
    let len = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
    let (json_len, body_len) = (len(0), len(4));
    if json_len > JSON_BYTES_MAX || body_len > BODY_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message longer than any of ours"));
    }
    let mut json = vec![0; json_len];
    stream.read_exact(&mut json)?;
    // Grows as bytes come: a length alone reserves nothing.
    let mut body = Vec::new();
    stream.take(body_len as u64).read_to_end(&mut body)?;
    if body.len() < body_len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let json = serde_json::from_slice(&json).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((json, body)))
}

/// Where the sockets of this user's nodes are: `TESSERA_RUNTIME_DIR`, or a folder of the session, or one in the folder for
/// temporary files.
#[must_use]
pub fn runtime_dir() -> PathBuf {
    choose_runtime_dir(|name| std::env::var_os(name))
}

/// A variable that is empty says nothing, nor does a folder of the session that is not absolute, as the XDG base directories have
/// it: it would be another one wherever a command is typed.
fn choose_runtime_dir(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let said = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_session = || said("XDG_RUNTIME_DIR").filter(|dir| dir.is_absolute()).map(|dir| dir.join("tessera"));
    said("TESSERA_RUNTIME_DIR")
        .or_else(of_session)
        .unwrap_or_else(|| std::env::temp_dir().join(format!("tessera-{}", rustix::process::getuid().as_raw())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_variable_that_is_empty_and_a_session_that_is_nowhere_say_nothing_about_where_sockets_are() {
        let chosen = |own: Option<&str>, session: Option<&str>| {
            choose_runtime_dir(|name| if name == "TESSERA_RUNTIME_DIR" { own } else { session }.map(OsString::from))
        };
        assert_eq!(chosen(Some("/own"), Some("/session")), Path::new("/own"));
        assert!(
            chosen(None, Some("session")).starts_with(std::env::temp_dir()),
            "which folder that is depends on where one is"
        );
        for nothing in [None, Some("")] {
            assert_eq!(chosen(nothing, Some("/session")), Path::new("/session/tessera"));
            assert!(chosen(None, nothing).starts_with(std::env::temp_dir()));
            assert!(chosen(Some(""), nothing).is_absolute());
        }
    }

    #[test]
    fn messages_round_trip_and_a_cut_one_is_told_from_the_end() {
        let mut bytes = Vec::new();
        write(&mut bytes, &json!({"op": "put"}), b"value").unwrap();
        let mut stream = &bytes[..];
        assert_eq!(read(&mut stream).unwrap(), Some((json!({"op": "put"}), b"value".to_vec())));
        assert_eq!(read(&mut stream).unwrap(), None);
        for len in 1..bytes.len() {
            assert!(read(&mut &bytes[..len]).is_err(), "{len} bytes are no message");
        }
    }

    #[test]
    fn a_length_beyond_the_bounds_is_refused_before_anything_is_read() {
        for head in [[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], [2, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]] {
            assert_eq!(read(&mut &head[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
