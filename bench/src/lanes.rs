//! The runtime of lanes beside the bare system calls and rings it is made of.
//!
//! CPU is that of the whole process, so the load generator of the echo is counted on both sides alike, and so is a thread
//! that spins because the other has not answered yet.

use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_lanes::handler::{Datagram, Message};
use tessera_lanes::runtime::{Runtime, RuntimeConfig};
use tessera_lanes::wal::log::Wal;
use tessera_lanes::wal::record::RecordType;
use tessera_lanes::wal::storage::Directory;
use tessera_lanes::{Class, Context, Envelope, Handler, Kind};

use crate::harness::{Figure, Pair};

pub(crate) fn figures() -> Vec<Figure> {
    vec![
        Figure::cost(
            "lanes/echo",
            "200-byte datagram echoed by a lane, beside recvmmsg+sendmmsg; client included",
            echo,
        ),
        Figure::cost(
            "lanes/message",
            "message of 16 bytes between lanes, beside 48 bytes over a bare rtrb ring",
            message,
        ),
        Figure::cost("lanes/wake", "command to a sleeping lane and its answer, beside two std channels", wake),
        Figure::rate("lanes/log", "64 records of 256 bytes logged and synced, beside write+fdatasync", 64 * 256, log),
    ]
}

/// Datagrams and messages in one operation: enough that the first wake-up does not decide the figure on a busy machine.
const DATAGRAMS: u64 = 1024;
const MESSAGES: u64 = 65_536;
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

fn echo() -> Pair {
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

const GO_ON: Kind = Kind::new(1);
const PIECE: Kind = Kind::new(2);

/// Lane 0 sends as many messages as it is told to lane 1, as fast as the ring takes them; lane 1 says when it has them all.
#[derive(Default)]
struct Flood {
    left: u64,
    awaited: u64,
    done: Option<Sender<()>>,
}

enum Order {
    Send(u64),
    Await(u64, Sender<()>),
    Answer(SyncSender<()>),
}

impl Flood {
    fn pour(&mut self, cx: &mut Context) {
        while self.left > 0 {
            let piece = Envelope::to_lane(LaneIndex(1), Class::Coordination, PIECE);
            if !cx.send(piece, &[9; 16]).is_accepted() {
                break;
            }
            self.left -= 1;
        }
        if self.left > 0 {
            // A note to self: come back after a turn.
            let _ = cx.send(Envelope::to_lane(cx.lane(), Class::Control, GO_ON), &[]);
        }
    }
}

impl Handler for Flood {
    type Command = Order;

    fn on_command(&mut self, cx: &mut Context, order: Order) {
        match order {
            Order::Send(messages) => {
                self.left = messages;
                self.pour(cx);
            }
            Order::Await(messages, done) => (self.awaited, self.done) = (messages, Some(done)),
            Order::Answer(to) => drop(to.send(())),
        }
    }

    fn on_message(&mut self, cx: &mut Context, message: Message<'_>) {
        if message.envelope.kind == GO_ON {
            return self.pour(cx);
        }
        self.awaited -= 1;
        if self.awaited == 0
            && let Some(done) = self.done.take()
        {
            let _ = done.send(());
        }
    }
}

fn message() -> Pair {
    let runtime =
        Runtime::start(RuntimeConfig { lanes: 2, pin: false, ..RuntimeConfig::default() }, |_| Flood::default())
            .expect("two lanes start");
    let ring = BareRing::start();
    Pair::new(
        move |times| {
            let (done, finished) = channel();
            let sent = runtime.command(LaneIndex(1), Order::Await(times * MESSAGES, done));
            // Commands to two lanes are not ordered: the receiver must know what to wait for before the first message.
            let (to, answer) = sync_channel(1);
            let ready = runtime.command(LaneIndex(1), Order::Answer(to)).is_ok() && answer.recv().is_ok();
            assert!(sent.is_ok() && ready && runtime.command(LaneIndex(0), Order::Send(times * MESSAGES)).is_ok());
            finished.recv().expect("lane 1 gets them all");
        },
        move |times| ring.carry(times * MESSAGES),
    )
}

/// The least a message can be: 48 bytes through one ring between two threads that spin.
struct BareRing {
    orders: Sender<u64>,
    awaited: Sender<u64>,
    finished: Receiver<()>,
}

impl BareRing {
    fn start() -> Self {
        let (mut producer, mut consumer) = rtrb::RingBuffer::<[u64; 6]>::new(1024);
        let (orders, order_inbox) = channel::<u64>();
        let (awaited, await_inbox) = channel::<u64>();
        let (done, finished) = channel();
        std::thread::spawn(move || {
            for times in order_inbox {
                for n in 0..times {
                    while producer.push([n; 6]).is_err() {
                        std::hint::spin_loop();
                    }
                }
            }
        });
        std::thread::spawn(move || {
            for times in await_inbox {
                for _ in 0..times {
                    while consumer.pop().is_err() {
                        std::hint::spin_loop();
                    }
                }
                if done.send(()).is_err() {
                    break;
                }
            }
        });
        Self { orders, awaited, finished }
    }

    fn carry(&self, times: u64) {
        self.awaited.send(times).expect("the consumer lives");
        self.orders.send(times).expect("the producer lives");
        self.finished.recv().expect("the consumer answers");
    }
}

fn wake() -> Pair {
    let config = RuntimeConfig { lanes: 1, spin: Duration::ZERO, pin: false, ..RuntimeConfig::default() };
    let runtime = Runtime::start(config, |_| Flood::default()).expect("a lane starts");
    let (ask, asked) = sync_channel::<SyncSender<()>>(1);
    std::thread::spawn(move || {
        asked.iter().for_each(|to| {
            // Nobody waits any more once the figure is done.
            let _ = to.send(());
        })
    });
    Pair::new(
        move |times| {
            let (to, answer) = sync_channel(1);
            for _ in 0..times {
                assert!(runtime.command(LaneIndex(0), Order::Answer(to.clone())).is_ok());
                answer.recv().expect("the lane answers");
            }
        },
        move |times| {
            let (to, answer) = sync_channel(1);
            for _ in 0..times {
                ask.send(to.clone()).expect("the thread lives");
                answer.recv().expect("the thread answers");
            }
        },
    )
}

/// A directory for the run, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tessera-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary directory can be written");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn log() -> Pair {
    let (here, there) = (Scratch::new("log"), Scratch::new("raw"));
    let directory = Directory::open(&here.0).expect("the directory is there");
    let (mut wal, _) = Wal::open(directory, LaneIndex(0), 1).expect("an empty log opens");
    let mut raw = File::create(there.0.join("raw")).expect("a file can be created");
    let payload = [5; 256];
    let mut batch = Vec::new();
    let mut raw_batch = Vec::new();
    Pair::new(
        move |times| {
            let _keep = &here;
            for _ in 0..times {
                batch.clear();
                for slot in 0..64 {
                    wal.encode(&mut batch, RecordType::State, 1, Slot(slot), &payload);
                }
                wal.append(&batch).and_then(|()| wal.sync()).expect("the disk takes it");
            }
        },
        move |times| {
            let _keep = &there;
            for _ in 0..times {
                raw_batch.clear();
                for _ in 0..64 {
                    raw_batch.extend_from_slice(&[0; 20]);
                    raw_batch.extend_from_slice(&payload);
                }
                raw.write_all(&raw_batch).and_then(|()| raw.sync_data()).expect("the disk takes it");
            }
        },
    )
}
