//! Resources a lane needs before it runs: a parker and a thread. One trait, so that a
//! test can stand in for a system that refuses.

use std::io;
use std::sync::Arc;

use crate::ring::park::Parker;

/// Creates parkers and threads, or refuses.
pub(super) trait Spawner: Send + Sync {
    /// Makes a parker for a lane, with a socket or without.
    fn parker(&self, has_socket: bool) -> io::Result<Arc<Parker>>;
    /// A thread of that name that runs `body`.
    fn thread(&self, name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// The operating system.
pub(super) struct System;

impl Spawner for System {
    fn parker(&self, has_socket: bool) -> io::Result<Arc<Parker>> {
        if has_socket { Parker::with_socket() } else { Ok(Parker::without_socket()) }
    }

    fn thread(&self, name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        std::thread::Builder::new().name(name).spawn(body).map(drop)
    }
}
