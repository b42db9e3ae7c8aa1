//! Whether letting the kernel cut and merge datagrams (GSO, GRO) pays: many equal datagrams to one peer on loopback, which is
//! the best case there is. The lanes do not use it: see `tessera_lanes`' `net::batch` for the figures and the reason.

use std::net::UdpSocket;

use crate::harness::Pair;

/// How the other end takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// One by one, in a batch.
    Batch,
    /// Merged by the kernel.
    Merged,
}

const DATAGRAMS: usize = 64;

pub(super) fn figure(bytes: usize, receiving: Receiving) -> Pair {
    let (ours, reference) = (Ends::new(), Ends::new());
    sys::set(&reference.from, libc::UDP_SEGMENT, bytes as i32).expect("the kernel cuts datagrams since 4.18");
    if receiving == Receiving::Merged {
        sys::set(&reference.to, libc::UDP_GRO, 1).expect("the kernel merges datagrams since 5.0");
    }
    let payload = vec![7; bytes * DATAGRAMS];
    let whole = payload.clone();
    let mut batch = sys::Batch::new(bytes);
    let mut other_batch = sys::Batch::new(bytes);
    let mut merged = vec![0; 1 << 16];
    Pair::new(
        move |times| {
            for _ in 0..times {
                batch.send(&ours.from, &payload);
                batch.receive(&ours.to);
            }
        },
        move |times| {
            for _ in 0..times {
                let sent = reference.from.send(&whole).expect("loopback takes it");
                assert_eq!(sent, whole.len());
                match receiving {
                    Receiving::Batch => other_batch.receive(&reference.to),
                    Receiving::Merged => {
                        let mut received = 0;
                        while received < sent {
                            received += reference.to.recv(&mut merged).expect("loopback loses nothing");
                        }
                    }
                }
            }
        },
    )
}

struct Ends {
    from: UdpSocket,
    to: UdpSocket,
}

impl Ends {
    fn new() -> Self {
        let bind = || UdpSocket::bind("127.0.0.1:0").expect("loopback can be bound");
        let (from, to) = (bind(), bind());
        from.connect(to.local_addr().expect("a bound socket has an address")).expect("loopback can be reached");
        Self { from, to }
    }
}

#[allow(unsafe_code, reason = "both sides are bare system calls")]
mod sys {
    use std::io;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::DATAGRAMS;

    pub(super) fn set(socket: &UdpSocket, option: i32, value: i32) -> io::Result<()> {
        let len = size_of::<i32>() as libc::socklen_t;
        // SAFETY: the option takes an int, which is behind the pointer for the length of the call.
        let result =
            unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, option, (&raw const value).cast(), len) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(super) struct Batch {
        bytes: usize,
        buffer: Vec<u8>,
    }

    impl Batch {
        pub(super) fn new(bytes: usize) -> Self {
            Self { bytes, buffer: vec![0; bytes * DATAGRAMS] }
        }

        pub(super) fn send(&mut self, socket: &UdpSocket, payload: &[u8]) {
            self.buffer.copy_from_slice(payload);
            self.with_headers(DATAGRAMS, |headers| {
                // SAFETY: every header points to one vector of initialised bytes, which outlives the call.
                let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), DATAGRAMS as u32, 0) };
                assert_eq!(sent, DATAGRAMS as i32, "loopback takes them all");
            });
        }

        pub(super) fn receive(&mut self, socket: &UdpSocket) {
            let mut received = 0;
            while received < DATAGRAMS {
                self.with_headers(DATAGRAMS - received, |headers| {
                    let (most, none) = (headers.len() as u32, std::ptr::null_mut());
                    let flags = libc::MSG_WAITFORONE;
                    // SAFETY: every header points to one vector of writable bytes, which outlives the call.
                    let count = unsafe { libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), most, flags, none) };
                    assert!(count > 0, "loopback loses nothing: {}", io::Error::last_os_error());
                    received += count as usize;
                });
            }
        }

        fn with_headers(&mut self, count: usize, call: impl FnOnce(&mut [libc::mmsghdr])) {
            // SAFETY: all-zero bytes are valid vectors and headers: integers and null pointers.
            let (mut parts, mut headers): ([libc::iovec; DATAGRAMS], [libc::mmsghdr; DATAGRAMS]) =
                unsafe { std::mem::zeroed() };
            for ((part, header), chunk) in
                parts.iter_mut().zip(&mut headers).zip(self.buffer.chunks_exact_mut(self.bytes)).take(count)
            {
                *part = libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: chunk.len() };
                header.msg_hdr.msg_iov = part;
                header.msg_hdr.msg_iovlen = 1;
            }
            call(&mut headers[..count]);
        }
    }
}
