//! A caller talks only to a node of its own user, or of root.
//!
//! The folder of sockets has a guessable name in a place where every user may make folders. The user that makes it first could
//! listen there and receive values meant for a node. So before the first byte is sent, the folder must be closed to other users,
//! and the process that listens must belong to the same user, as the system says and not as the process says.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::sockopt;

const ROOT: u32 = 0;

/// Why a socket is not talked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Distrusted {
    /// Its folder belongs to another user.
    FolderOf {
        /// The folder.
        folder: PathBuf,
        /// Whose it is.
        uid: u32,
    },
    /// Others may put sockets into its folder.
    FolderOpen {
        /// The folder.
        folder: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Another user's process listens there.
    PeerOf {
        /// The socket.
        socket: PathBuf,
        /// That user.
        uid: u32,
    },
}

impl fmt::Display for Distrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FolderOf { folder, uid } => write!(
                f,
                "the folder of sockets {} belongs to another user (uid {uid}), who could listen there: no node is asked or served \
                 there. Set TESSERA_RUNTIME_DIR to a folder of your own, for the node as well, or become that user",
                folder.display()
            ),
            Self::FolderOpen { folder, mode } => write!(
                f,
                "the folder of sockets {} can be written by others (mode {mode:o}), who could listen there: no node is asked or served \
                 there. If it is yours, run `chmod 700` on it and look for what others left in it; else set TESSERA_RUNTIME_DIR to a folder \
                 of your own, for the node as well",
                folder.display()
            ),
            Self::PeerOf { socket, uid } => write!(
                f,
                "another user (uid {uid}) listens at {}: no node is asked there. Choose a node of your own with --socket, or become \
                 that user",
                socket.display()
            ),
        }
    }
}

impl std::error::Error for Distrusted {}

/// The user this process acts for.
pub(super) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether only `user` and root can have put the socket where it is.
pub(super) fn check_folder(socket: &Path, user: u32) -> io::Result<Result<(), Distrusted>> {
    let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let meta = fs::metadata(folder)?;
    let (uid, mode) = (meta.uid(), meta.permissions().mode() & 0o7777);
    let folder = folder.to_owned();
    Ok(match () {
        () if ![user, ROOT].contains(&uid) => Err(Distrusted::FolderOf { folder, uid }),
        () if mode & 0o022 != 0 => Err(Distrusted::FolderOpen { folder, mode }),
        () => Ok(()),
    })
}

/// Whether `user` or root listens at the other end.
pub(super) fn check_peer(stream: &UnixStream, socket: &Path, user: u32) -> io::Result<Result<(), Distrusted>> {
    let uid = sockopt::socket_peercred(stream)?.uid.as_raw();
    let trusted = [user, ROOT].contains(&uid);
    Ok(if trusted { Ok(()) } else { Err(Distrusted::PeerOf { socket: socket.to_owned(), uid }) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    const STRANGER: u32 = 54_321;

    fn folder(mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        let socket = dir.path().join("node.sock");
        (dir, socket)
    }

    #[test]
    fn a_folder_that_others_may_write_is_not_trusted() {
        for (mode, trusted) in [(0o700, true), (0o755, true), (0o720, false), (0o702, false), (0o1777, false)] {
            let (dir, socket) = folder(mode);
            let expected =
                if trusted { Ok(()) } else { Err(Distrusted::FolderOpen { folder: dir.path().to_owned(), mode }) };
            assert_eq!(check_folder(&socket, own_uid()).unwrap(), expected);
        }
        assert!(check_folder(Path::new("no such folder/node.sock"), own_uid()).is_err());
    }

    #[test]
    fn a_folder_of_another_user_is_not_trusted_and_that_of_root_is() {
        let (dir, socket) = folder(0o700);
        let uid = if own_uid() == ROOT {
            std::os::unix::fs::chown(dir.path(), Some(STRANGER), None).unwrap();
            STRANGER
        } else {
            own_uid()
        };
        let expected = Distrusted::FolderOf { folder: dir.path().to_owned(), uid };
        assert_eq!(check_folder(&socket, uid).unwrap(), Ok(()));
        assert_eq!(check_folder(&socket, uid + 1).unwrap(), Err(expected), "a user that is not its owner");
        assert_eq!(check_folder(Path::new("/etc/node.sock"), uid).unwrap(), Ok(()), "only root writes there");
    }

    #[test]
    fn a_listener_of_another_user_is_not_trusted() {
        let (_dir, path) = folder(0o700);
        let _listener = UnixListener::bind(&path).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        assert_eq!(check_peer(&stream, &path, own_uid()).unwrap(), Ok(()));
        let (stream, path, uid) = if own_uid() == ROOT { of_a_stranger() } else { (stream, path, own_uid()) };
        assert_eq!(check_peer(&stream, &path, uid).unwrap(), Ok(()));
        let expected = Distrusted::PeerOf { socket: path.clone(), uid };
        assert_eq!(check_peer(&stream, &path, uid + 1).unwrap(), Err(expected), "a user that does not run the node");
    }

    /// Needs root: a connection to a socket on which a thread listens that has switched to another user.
    fn of_a_stranger() -> (UnixStream, PathBuf, u32) {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
        let (dir, path) = folder(0o700);
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let listening = std::thread::spawn(move || {
            rustix::thread::set_thread_uid(rustix::thread::Uid::from_raw(STRANGER)).unwrap();
            rustix::net::listen(&socket, 1).unwrap();
            socket
        });
        let _socket = listening.join().unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        drop(dir);
        (stream, path, STRANGER)
    }
}
