//! Datagrams received and echoed by a lane, beside the bare system calls.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tessera_lanes::handler::Datagram;
use tessera_lanes::runtime::{Runtime, RuntimeConfig};
use tessera_lanes::{Context, Handler};

use crate::harness::Pair;

/// Datagrams in one operation: enough that the first wake-up does not decide the figure on a busy machine.
const DATAGRAMS: u64 = 1024;
/// Datagrams under way at once.
const WINDOW: u64 = 64;

struct Echo;

impl Handler for Echo {
    type Command = ();

    fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
        // A full queue loses an echo; the client would notice.
        let _ = cx.send_datagram(datagram.from, datagram.bytes);
    }
}

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// 200-byte datagrams through a lane, and through the least an echo can be.
pub(super) fn figure() -> Pair {
    let config =
        RuntimeConfig { lanes: 1, bind: Some(local()), spin: Duration::ZERO, pin: false, ..RuntimeConfig::default() };
    let runtime = Runtime::start(config, |_| Echo).expect("a lane on loopback starts");
    let bare = BareEcho::start();
    let (ours, reference) = (Client::new(runtime.address().expect("it is bound")), Client::new(bare.address));
    // Both are up before anything is timed: the harness sizes its samples by the first operations.
    ours.exchange(DATAGRAMS);
    reference.exchange(DATAGRAMS);
    Pair::new(
        move |times| {
            let _keep = &runtime;
            ours.exchange(times * DATAGRAMS);
        },
        move |times| {
            let _keep = &bare;
            reference.exchange(times * DATAGRAMS);
        },
    )
}

struct Client {
    socket: UdpSocket,
    server: SocketAddr,
}

impl Client {
    fn new(server: SocketAddr) -> Self {
        let socket = UdpSocket::bind(local()).expect("loopback can be bound");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout can be set");
        Self { socket, server }
    }

    fn exchange(&self, times: u64) {
        let mut buffer = [7; 200];
        let mut sent = 0;
        while sent < times {
            let burst = WINDOW.min(times - sent);
            for _ in 0..burst {
                self.socket.send_to(&buffer, self.server).expect("loopback takes a datagram");
            }
            for _ in 0..burst {
                self.socket.recv(&mut buffer).expect("every datagram is echoed");
            }
            sent += burst;
        }
    }
}

/// The least an echo can be: poll, recvmmsg, sendmmsg with the same headers.
struct BareEcho {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BareEcho {
    fn start() -> Self {
        let socket = UdpSocket::bind(local()).expect("loopback can be bound");
        let address = socket.local_addr().expect("a bound socket has an address");
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let thread = std::thread::spawn(move || bare::echo(&socket, &stopping));
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for BareEcho {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[allow(unsafe_code, reason = "the reference is the bare system call")]
mod bare {
    use std::net::UdpSocket;
    use std::os::fd::{AsFd, AsRawFd};
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    const BATCH: usize = 64;

    pub(super) fn echo(socket: &UdpSocket, stop: &AtomicBool) {
        let mut buffers = vec![[0u8; 1500]; BATCH];
        // SAFETY: all-zero bytes are valid addresses, vectors and headers: integers and null pointers.
        let (mut names, mut parts, mut headers): (
            [libc::sockaddr_storage; BATCH],
            [libc::iovec; BATCH],
            [libc::mmsghdr; BATCH],
        ) = unsafe { std::mem::zeroed() };
        while !stop.load(Ordering::Relaxed) {
            for at in 0..BATCH {
                parts[at] = libc::iovec { iov_base: buffers[at].as_mut_ptr().cast(), iov_len: 1500 };
                headers[at].msg_hdr.msg_name = (&raw mut names[at]).cast();
                headers[at].msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
                headers[at].msg_hdr.msg_iov = &raw mut parts[at];
                headers[at].msg_hdr.msg_iovlen = 1;
            }
            // SAFETY: every header points to a name, one vector and 1500 writable bytes, all of which outlive the call.
            let received = unsafe {
                libc::recvmmsg(
                    socket.as_raw_fd(),
                    headers.as_mut_ptr(),
                    BATCH as u32,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut(),
                )
            };
            if received <= 0 {
                let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                let _ = poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)], Some(&timeout));
                continue;
            }
            for at in 0..received as usize {
                parts[at].iov_len = headers[at].msg_len as usize;
            }
            // SAFETY: the first `received` headers were filled by the kernel and now describe what to send back.
            unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), received as u32, 0) };
        }
    }
}
