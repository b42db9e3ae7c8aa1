//! The folder of sockets, in which nodes that were killed leave theirs behind.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use tessera_dht_node::control::runtime_dir;

/// How old a socket without a listener must be.
const DEAD_SOCKET_AGE_MIN: Duration = Duration::from_secs(60);

/// Removes the sockets of nodes that were killed. Only those without a listener, and not recent ones: a node that starts at this
/// moment has made its socket and is about to listen.
pub(crate) fn remove_dead_sockets() {
    for entry in std::fs::read_dir(runtime_dir()).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let is_ours = name.to_str().is_some_and(|name| name.starts_with("node-") && name.ends_with(".sock"));
        let Ok(meta) = entry.metadata() else { continue };
        let age = meta.modified().ok().and_then(|made| made.elapsed().ok());
        let is_old = age.is_some_and(|age| age > DEAD_SOCKET_AGE_MIN);
        if is_ours && meta.file_type().is_socket() && is_old && is_deserted(&path) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether a socket has no listener. A node that hangs still listens.
fn is_deserted(socket: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connect = || -> rustix::io::Result<()> {
        let caller = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&caller, &SocketAddrUnix::new(socket)?)
    };
    connect() == Err(rustix::io::Errno::CONNREFUSED)
}
