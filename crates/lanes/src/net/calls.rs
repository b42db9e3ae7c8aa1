//! Which system calls move datagrams: whole batches, or one by one where the system refuses that.
//!
//! `recvmmsg` and `sendmmsg` are in every Linux of the last decade, but a sandbox may filter them. A lane without them serves
//! all the same, a call per datagram; the runtime says so when it starts.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::net::{RecvFlags, SendFlags, recvfrom, sendto};

use crate::drain::BATCH_MAX;
use crate::net::sys::{self, Merge, Received};

/// How datagrams are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// A batch in one call.
    Batched {
        /// Where a datagram's slot byte stands, if datagrams are steered by it.
        slot_at: Option<u16>,
    },
    /// One call per datagram.
    Single,
}

impl Calls {
    /// Whether the system allows batches on this socket. Moves nothing.
    pub(crate) fn probe(socket: BorrowedFd<'_>) -> io::Result<()> {
        sys::receive(socket, &mut [0], 1, 0, &mut [])?;
        sys::send_nothing(socket)
    }

    /// Receives up to `most` datagrams without waiting, the *i*-th into the *i*-th `stride` bytes of `buffer`.
    pub(super) fn receive(
        self,
        socket: BorrowedFd<'_>,
        buffer: &mut [u8],
        stride: usize,
        most: usize,
        received: &mut [Received],
    ) -> io::Result<usize> {
        if let Self::Batched { .. } = self {
            return sys::receive(socket, buffer, stride, most, received);
        }
        let mut count = 0;
        for (chunk, out) in buffer.chunks_exact_mut(stride).zip(received.iter_mut()).take(most) {
            // With TRUNC the kernel tells the datagram's true length, however much of it fitted.
            match recvfrom(socket, &mut *chunk, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok((_, len, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok()).unwrap_or(Received::NONE.from);
                    *out = Received { from, len: len.min(stride), truncated: len > stride };
                    count += 1;
                }
                Err(rustix::io::Errno::AGAIN) => break,
                // Datagrams before it are handled first; an error that stays comes again.
                Err(_) if count > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count)
    }

    /// Sends datagrams without waiting, as many of those `waiting` as `next` gives up to the batch size; says how many the kernel
    /// took.
    pub(super) fn send<'a>(
        self,
        socket: BorrowedFd<'_>,
        waiting: usize,
        mut next: impl FnMut(usize) -> Option<(SocketAddr, &'a [u8])>,
    ) -> io::Result<usize> {
        if let Self::Batched { slot_at } = self {
            // A route or a device that cannot cut (too long for its packets, no checksums in hardware) refuses the run. Then its
            // datagrams are sent one by one, and each refusal is its own.
            return match sys::send(socket, Merge::Runs { slot_at }, waiting, &mut next) {
                Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    sys::send(socket, Merge::Nothing, waiting, next)
                }
                sent => sent,
            };
        }
        let mut count = 0;
        while count < BATCH_MAX
            && let Some((to, bytes)) = next(count)
        {
            match sendto(socket, bytes, SendFlags::DONTWAIT, &to) {
                Ok(_) => count += 1,
                Err(_) if count > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count)
    }
}
