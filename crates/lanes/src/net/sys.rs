//! Four things the kernel offers and no safe binding does: receiving and sending datagrams in batches without allocating,
//! steering a SO_REUSEPORT group by a packet filter, and releasing memory whose contents are not needed. All pointers live for
//! one call; results are plain data. The two calls of every turn go to the kernel directly: the C library's wait for a
//! thread's cancellation around each, which this crate does not use.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::drain::{BATCH_MAX, BATCH_MIN};
use crate::net::steering::Instruction;

/// The kernel's report on one received datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) from: SocketAddr,
    pub(super) len: usize,
    /// It was longer than its buffer.
    pub(super) truncated: bool,
}

impl Received {
    /// An empty slot.
    pub(super) const NONE: Self =
        Self { from: SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)), len: 0, truncated: false };
}

/// Receives up to `most` datagrams without waiting, the *i*-th into the *i*-th `stride` bytes of `buffer`.
///
/// Returns how many came; `received` is filled that far. A sender without an address we know has none worth answering and is
/// reported as the unspecified address.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    stride: usize,
    most: usize,
    received: &mut [Received],
) -> io::Result<usize> {
    if most <= BATCH_MIN {
        receive_up_to::<BATCH_MIN>(socket, buffer, stride, most, received)
    } else {
        receive_up_to::<BATCH_MAX>(socket, buffer, stride, most, received)
    }
}

/// Not inlined, as its twin is not: what a small batch needs is a page of stack less than what a large one does.
#[inline(never)]
fn receive_up_to<const N: usize>(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    stride: usize,
    most: usize,
    received: &mut [Received],
) -> io::Result<usize> {
    let most = most.min(N).min(buffer.len() / stride).min(received.len());
    let mut names = [const { MaybeUninit::<Name>::uninit() }; N];
    let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; N];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; N];
    for (((chunk, name), part), header) in
        buffer.chunks_exact_mut(stride).zip(&mut names).zip(&mut parts).zip(&mut headers).take(most)
    {
        let part = part.write(libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: stride });
        header.write(header_of(name.as_mut_ptr(), size_of::<Name>() as libc::socklen_t, part));
    }
    // SAFETY: the first `most` headers were filled above; each points to a name, one iovec and `stride` writable bytes of
    // `buffer`, all of which outlive the call and none of which overlap. No timeout is given.
    let count = unsafe {
        let (headers, no_timeout) = (headers.as_mut_ptr(), std::ptr::null_mut::<libc::timespec>());
        libc::syscall(libc::SYS_recvmmsg, socket.as_raw_fd(), headers, most, libc::MSG_DONTWAIT, no_timeout)
    };
    if count < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) };
    }
    let count = count as usize;
    for ((header, name), out) in headers.iter().zip(&names).zip(received.iter_mut()).take(count) {
        // SAFETY: the kernel says it filled so many, which are among those written above.
        let header = unsafe { header.assume_init_ref() };
        *out = Received {
            from: read_address(name, header.msg_hdr.msg_namelen),
            len: (header.msg_len as usize).min(stride),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        };
    }
    Ok(count)
}

/// Sends datagrams without waiting, as many of those `waiting` as `next` gives up to the batch size; says how many the kernel
/// took.
///
/// With [`Merge::Runs`], datagrams of one length that follow each other to one receiver go to the kernel as one long datagram
/// that it cuts (UDP_SEGMENT): one trip through its network layers instead of many. The last of them may be shorter.
pub(super) fn send<'a>(
    socket: BorrowedFd<'_>,
    merge: Merge,
    waiting: usize,
    next: impl FnMut(usize) -> Option<(SocketAddr, &'a [u8])>,
) -> io::Result<usize> {
    if waiting <= BATCH_MIN {
        send_up_to::<BATCH_MIN>(socket, merge, next)
    } else {
        send_up_to::<BATCH_MAX>(socket, merge, next)
    }
}

#[inline(never)]
fn send_up_to<'a, const N: usize>(
    socket: BorrowedFd<'_>,
    merge: Merge,
    mut next: impl FnMut(usize) -> Option<(SocketAddr, &'a [u8])>,
) -> io::Result<usize> {
    let mut names = [const { MaybeUninit::<Name>::uninit() }; N];
    let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; N];
    let mut cuts = [const { MaybeUninit::<Cut>::uninit() }; N];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; N];
    let (mut count, mut runs) = (0, 0);
    let mut run: Option<Run<'a>> = None;
    while count < N
        && let Some((to, bytes)) = next(count)
    {
        // The kernel reads through this pointer and never writes: the missing `mut` in `bytes` is not at risk.
        let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let part: *mut libc::iovec = parts[count].write(part);
        count += 1;
        if let Some(run) = &mut run
            && let Merge::Runs { slot_at } = merge
            && run.takes(to, bytes, slot_at)
        {
            // SAFETY: the header of the current run was written below.
            let header = unsafe { headers[runs - 1].assume_init_mut() };
            let cut = cuts[runs - 1].write(Cut { segment: run.first.len() as u16, ..Cut::NONE });
            header.msg_hdr.msg_iovlen += 1;
            header.msg_hdr.msg_control = (&raw mut *cut).cast();
            header.msg_hdr.msg_controllen = size_of::<Cut>();
            continue;
        }
        let name_len = write_address(&mut names[runs], to);
        headers[runs].write(header_of(names[runs].as_mut_ptr(), name_len, part));
        run = Some(Run { to, first: bytes, bytes: bytes.len(), open: true });
        runs += 1;
    }
    if runs == 0 {
        return Ok(0);
    }
    // SAFETY: the first `runs` headers were filled above. Each points to a name, to as many iovecs as it says, which lie one
    // after the other in `parts`, and perhaps to a control message; these and the bytes behind them ('a) outlive the call.
    let sent = unsafe {
        libc::syscall(libc::SYS_sendmmsg, socket.as_raw_fd(), headers.as_mut_ptr(), runs, libc::MSG_DONTWAIT)
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: only headers that were filled above are looked at.
    let datagrams = |header: &MaybeUninit<libc::mmsghdr>| unsafe { header.assume_init_ref() }.msg_hdr.msg_iovlen;
    Ok(headers.iter().take(sent as usize).map(datagrams).sum())
}

/// The header of a datagram with one part. Only as many are written as a call needs: a batch of them is five kilobytes.
fn header_of(name: *mut Name, name_len: libc::socklen_t, part: *mut libc::iovec) -> libc::mmsghdr {
    // SAFETY: all-zero bytes are a valid mmsghdr: integers and null pointers.
    let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
    header.msg_hdr.msg_name = name.cast();
    header.msg_hdr.msg_namelen = name_len;
    header.msg_hdr.msg_iov = part;
    header.msg_hdr.msg_iovlen = 1;
    header
}

/// Whether datagrams may go to the kernel as one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Merge {
    Nothing,
    /// Those to one receiver in a row may; if they are steered, only those of one slot: on one machine the receiver's kernel
    /// steers before it cuts.
    Runs {
        slot_at: Option<u16>,
    },
}

/// Datagrams that go to the kernel as one.
struct Run<'a> {
    to: SocketAddr,
    first: &'a [u8],
    bytes: usize,
    open: bool,
}

impl Run<'_> {
    /// Whether the next datagram continues the run; then it does.
    fn takes(&mut self, to: SocketAddr, next: &[u8], slot_at: Option<u16>) -> bool {
        let slot = |bytes: &[u8]| slot_at.and_then(|at| bytes.get(usize::from(at)).copied());
        let takes = self.open
            && to == self.to
            && next.len() <= self.first.len()
            && self.bytes + next.len() <= RUN_BYTES_MAX
            && slot(next) == slot(self.first);
        if takes {
            self.bytes += next.len();
            self.open = next.len() == self.first.len(); // A shorter one is the last.
        }
        takes
    }
}

/// The longest run: the most that one UDP datagram may carry over IPv6 and IPv4 alike.
const RUN_BYTES_MAX: usize = 65_000;

/// A control message that tells the kernel where to cut.
#[repr(C)]
struct Cut {
    header: libc::cmsghdr,
    segment: u16,
    padding: [u16; 3],
}

impl Cut {
    const NONE: Self = Self {
        header: libc::cmsghdr {
            // SAFETY: CMSG_LEN only computes.
            cmsg_len: unsafe { libc::CMSG_LEN(size_of::<u16>() as u32) } as usize,
            cmsg_level: libc::SOL_UDP,
            cmsg_type: libc::UDP_SEGMENT,
        },
        segment: 0,
        padding: [0; 3],
    };
}

const _: () = {
    // SAFETY: CMSG_SPACE only computes.
    assert!(size_of::<Cut>() == unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize);
    assert!(std::mem::offset_of!(Cut, segment) == size_of::<libc::cmsghdr>());
};

/// Sends an empty batch, to learn whether the system allows batches at all.
pub(super) fn send_nothing(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no header is behind the pointer, and the kernel is told to read none.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), std::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives the pages that lie wholly within `bytes` back to the system. They take no memory until they are written to again, and hold
/// zeros where they are ordinary memory.
pub(super) fn give_back(bytes: &mut [u8]) {
    // SAFETY: sysconf only answers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0).max(1);
    let until_first = bytes.as_ptr().align_offset(page);
    let pages = bytes.len().saturating_sub(until_first) / page;
    if pages > 0 {
        // SAFETY: `until_first` is within `bytes`, and so are that many pages after it, which are ours alone for the length of the
        // call. Afterwards they hold bytes, of any value. A system that refuses has changed nothing.
        unsafe { libc::madvise(bytes.as_mut_ptr().add(until_first).cast(), pages * page, libc::MADV_DONTNEED) };
    }
}

/// Makes `program` choose the socket of every datagram to the group that `socket` belongs to.
pub(super) fn attach(socket: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let len = libc::c_ushort::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    const { assert!(size_of::<Instruction>() == size_of::<libc::sock_filter>()) };
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: `Instruction` has the layout of sock_filter, `len` of them are behind the pointer, and the kernel copies them
    // during the call without writing.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the kernel refuse to cut: it would have to compute checksums, and is told to send none.
#[cfg(test)]
pub(super) fn send_without_checksums(socket: BorrowedFd<'_>) {
    let (on, len) = (1 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the option takes an int, which is behind the pointer for the length of the call.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, (&raw const on).cast(), len)
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Room for an address of either family, aligned for both.
#[repr(C)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

fn read_address(name: &MaybeUninit<Name>, len: libc::socklen_t) -> SocketAddr {
    let len = len as usize;
    // SAFETY: either address begins with its family; the kernel wrote `len` bytes, and it is read only if they are there.
    let family = if len >= 2 { unsafe { (*name.as_ptr()).v4.sin_family } } else { 0 };
    if i32::from(family) == libc::AF_INET && len >= size_of::<libc::sockaddr_in>() {
        // SAFETY: a whole sockaddr_in was written.
        let v4 = unsafe { &(*name.as_ptr()).v4 };
        let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
        SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into()
    } else if i32::from(family) == libc::AF_INET6 && len >= size_of::<libc::sockaddr_in6>() {
        // SAFETY: as above, for a whole sockaddr_in6.
        let v6 = unsafe { &(*name.as_ptr()).v6 };
        let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
        SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id).into()
    } else {
        SocketAddr::from(([0, 0, 0, 0], 0))
    }
}

fn write_address(name: &mut MaybeUninit<Name>, to: SocketAddr) -> libc::socklen_t {
    match to {
        SocketAddr::V4(v4) => {
            let v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            name.write(Name { v4 });
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(v6) => {
            let v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            name.write(Name { v6 });
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}
