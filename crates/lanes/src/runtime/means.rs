//! What a lane asks of the system before it runs: something to be woken by, and a thread. Asked for in one place, so that a
//! test can play a system that refuses.

use std::io;
use std::sync::Arc;

use crate::ring::park::Bed;

/// A system that gives or refuses.
pub(super) trait Means: Send + Sync {
    /// A bed for a lane, with a socket or without.
    fn bed(&self, has_socket: bool) -> io::Result<Arc<Bed>>;
    /// A thread of that name that runs `body`.
    fn thread(&self, name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// The operating system.
pub(super) struct System;

impl Means for System {
    fn bed(&self, has_socket: bool) -> io::Result<Arc<Bed>> {
        if has_socket { Bed::beside_a_socket() } else { Ok(Bed::alone()) }
    }

    fn thread(&self, name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        std::thread::Builder::new().name(name).spawn(body).map(drop)
    }
}
