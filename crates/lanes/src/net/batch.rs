//! Receiving and sending in batches on one lane's socket, in buffers the lane owns.
//!
//! A row of datagrams to one receiver is handed to the kernel in one piece that it cuts (GSO): 64 datagrams of 200 bytes then
//! cost 0.38 of the CPU on loopback (`lanes/segments-send` in the benches), and where there is no such row it costs a
//! comparison. Receiving merged (GRO) as well makes that best case cheaper still, about eighteen times on loopback
//! (`lanes/segments-both`), and is not done: a merged piece is steered as one, so datagrams of one peer for several lanes would
//! all reach the lane of the first; every buffer would have to hold 64 KiB; peers that send one datagram at a time gain nothing.

use std::io;
use std::net::{SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;

use crate::drain::BATCH_MAX;
use crate::net::calls::Calls;
use crate::net::send_queue::SendQueue;
use crate::net::sys::{self, Received};
use crate::ring::bulk::unmapped;
use crate::telemetry::counters::LaneCounters;

/// Datagrams the first call asks for.
const FIRST_BATCH: usize = 8;

/// A lane's receive buffers. The batch grows from 8 to 64 while batches come full, and shrinks when they come nearly empty. There
/// are buffers for the largest; what was not written to since it was last given back takes no memory.
#[derive(Debug)]
pub(crate) struct Receiver {
    buffer: Box<[u8]>,
    stride: usize,
    batch: usize,
    /// The most that came at once since the last query.
    reached: usize,
    drained: bool,
    calls: Calls,
    /// As many as the largest batch so far.
    received: Vec<Received>,
}

impl Receiver {
    pub(crate) fn new(datagram_bytes_max: usize, calls: Calls) -> Self {
        Self {
            buffer: vec![0; datagram_bytes_max * BATCH_MAX].into_boxed_slice(),
            stride: datagram_bytes_max,
            batch: FIRST_BATCH,
            reached: 0,
            drained: false,
            calls,
            received: vec![Received::NONE; FIRST_BATCH],
        }
    }

    /// Whether the last batch was all the socket had.
    pub(crate) fn has_drained(&self) -> bool {
        self.drained
    }

    /// Takes the socket's datagrams, up to a batch, and hands each to `each`. Returns how many there were.
    pub(crate) fn receive(
        &mut self,
        socket: &UdpSocket,
        counters: &LaneCounters,
        mut each: impl FnMut(SocketAddr, &mut [u8]),
    ) -> io::Result<usize> {
        counters.receive_calls.add(1);
        let count =
            self.calls.receive(socket.as_fd(), &mut self.buffer, self.stride, self.batch, &mut self.received)?;
        self.drained = count < self.batch;
        self.reached = self.reached.max(count);
        if count == self.batch {
            self.batch = (self.batch * 2).min(BATCH_MAX);
        } else if count * 4 < self.batch {
            self.batch = (self.batch / 2).max(FIRST_BATCH);
        }
        for (received, chunk) in self.received.iter().zip(self.buffer.chunks_exact_mut(self.stride)).take(count) {
            // Half a datagram is none.
            if !received.truncated {
                each(unmapped(received.from), &mut chunk[..received.len]);
            }
        }
        if self.received.len() < self.batch {
            self.received.resize(self.batch, Received::NONE);
        }
        Ok(count)
    }

    /// How many bytes of buffers were in use at once since this was last asked.
    pub(crate) fn take_reached(&mut self) -> usize {
        std::mem::take(&mut self.reached) * self.stride
    }

    /// Gives memory back, but for the first `kept` bytes.
    pub(crate) fn give_back(&mut self, kept: usize) {
        sys::give_back(self.buffer.get_mut(kept..).unwrap_or_default());
    }
}

/// Sends everything in `queue`. Datagrams for which the kernel has no room are dropped and counted: a datagram may always be lost, and a
/// lane never waits.
pub(crate) fn send_all(socket: &UdpSocket, calls: Calls, is_v6: bool, queue: &mut SendQueue, counters: &LaneCounters) {
    while queue.len() > 0 {
        counters.send_calls.add(1);
        let sent = calls.send(socket.as_fd(), queue.len(), |index| {
            let (to, bytes) = queue.get(index)?;
            Some((if is_v6 { mapped(to) } else { to }, bytes))
        });
        match sent {
            Ok(sent) => {
                counters.datagrams_out.add(sent as u64);
                queue.advance(sent);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                counters.datagrams_out_dropped.add(queue.len() as u64);
                queue.advance(queue.len());
            }
            // The first one was refused: unreachable, too long for the route, or the echo of an earlier ICMP. The rest may pass.
            Err(_) => {
                counters.datagrams_out_dropped.add(1);
                queue.advance(1);
            }
        }
    }
}

fn mapped(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(v4) => SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into(),
        SocketAddr::V6(_) => to,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCHED: Calls = Calls::Batched { slot_at: None };

    #[test]
    fn batches_arrive_whole_in_order_and_with_their_sender() {
        let cases = [("127.0.0.1:0", BATCHED), ("[::1]:0", BATCHED), ("[::1]:0", Calls::Single)];
        for (address, calls) in cases {
            let here = UdpSocket::bind(address).unwrap();
            let there = UdpSocket::bind(address).unwrap();
            let counters = LaneCounters::default();
            let mut queue = SendQueue::new(256, 1500);
            for n in 0..200u16 {
                let bytes = [&n.to_le_bytes()[..], &[n as u8; 100]].concat();
                queue.push(there.local_addr().unwrap(), &bytes[..2 + usize::from(n) % 100]).unwrap();
            }
            Calls::probe(here.as_fd()).unwrap();
            send_all(&here, calls, here.local_addr().unwrap().is_ipv6(), &mut queue, &counters);
            assert_eq!((counters.datagrams_out.get(), counters.send_calls.get()), (200, 4), "64 in a call");
            let mut receiver = Receiver::new(1500, calls);
            let mut seen = 0u16;
            while seen < 200 {
                receiver
                    .receive(&there, &counters, |from, bytes| {
                        assert_eq!(from, here.local_addr().unwrap());
                        assert_eq!(bytes[..2], seen.to_le_bytes());
                        assert_eq!(bytes.len(), 2 + usize::from(seen) % 100);
                        assert!(bytes[2..].iter().all(|byte| *byte == seen as u8));
                        seen += 1;
                    })
                    .unwrap();
            }
            assert_eq!(receiver.receive(&there, &counters, |_, _| panic!("nothing is left")).unwrap(), 0);
            assert!(counters.receive_calls.get() <= 16 + 200 / 64, "{} calls", counters.receive_calls.get());
        }
    }

    #[test]
    fn datagrams_to_one_receiver_in_a_row_keep_their_bounds_and_order() {
        let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let (here, first, second) = (bind(), bind(), bind());
        let counters = LaneCounters::default();
        let mut queue = SendQueue::new(256, 1500);
        // Rows of every length, cut by a change of receiver, a longer one, and a shorter one that ends the row.
        let lengths = [100, 100, 100, 40, 100, 100, 200, 200, 1, 1, 1, 1500, 1500, 1499, 1500];
        let mut expected = [Vec::new(), Vec::new()];
        for n in 0..180u8 {
            let (to, seen) = if n % 9 < 6 { (&first, 0) } else { (&second, 1) };
            let len = lengths[usize::from(n) % lengths.len()];
            queue.push(to.local_addr().unwrap(), &vec![n; len]).unwrap();
            expected[seen].push((n, len));
        }
        send_all(&here, BATCHED, false, &mut queue, &counters);
        assert_eq!((counters.datagrams_out.get(), counters.datagrams_out_dropped.get()), (180, 0));
        assert_eq!(counters.send_calls.get(), 3, "64 in a call, merged or not");
        for (socket, expected) in [&first, &second].into_iter().zip(expected) {
            let mut seen = Vec::new();
            let mut receiver = Receiver::new(1500, BATCHED);
            while seen.len() < expected.len() {
                receiver
                    .receive(socket, &counters, |from, bytes| {
                        assert_eq!(from, here.local_addr().unwrap());
                        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                        seen.push((bytes[0], bytes.len()));
                    })
                    .unwrap();
            }
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn a_row_the_kernel_will_not_cut_goes_one_by_one() {
        let here = UdpSocket::bind("127.0.0.1:0").unwrap();
        let there = UdpSocket::bind("127.0.0.1:0").unwrap();
        let counters = LaneCounters::default();
        sys::send_without_checksums(here.as_fd());
        let mut queue = SendQueue::new(8, 1500);
        for n in 0..4u8 {
            queue.push(there.local_addr().unwrap(), &[n; 100]).unwrap();
        }
        let refused = sys::send(here.as_fd(), sys::Merge::Runs { slot_at: None }, 4, |index| queue.get(index));
        assert!(refused.is_err(), "the kernel does not cut here: {refused:?}");
        send_all(&here, BATCHED, false, &mut queue, &counters);
        assert_eq!((counters.datagrams_out.get(), counters.datagrams_out_dropped.get()), (4, 0));
        let mut seen = Vec::new();
        Receiver::new(1500, BATCHED).receive(&there, &counters, |_, bytes| seen.push(bytes.to_vec())).unwrap();
        assert_eq!(seen, [0, 1, 2, 3].map(|n| vec![n; 100]));
    }

    #[test]
    fn receiving_and_sending_do_not_allocate() {
        for calls in [BATCHED, Calls::Single] {
            let here = UdpSocket::bind("127.0.0.1:0").unwrap();
            let to = here.local_addr().unwrap();
            let counters = LaneCounters::default();
            let (mut queue, mut receiver) = (SendQueue::new(64, 1500), Receiver::new(1500, calls));
            here.set_nonblocking(true).unwrap();
            let mut seen = 0;
            let mut round = || {
                for _ in 0..16 {
                    queue.push(to, &[5; 200]).unwrap();
                }
                send_all(&here, calls, false, &mut queue, &counters);
                receiver.receive(&here, &counters, |_, bytes| seen += bytes.len()).unwrap();
            };
            (0..3).for_each(|_| round()); // The batch grows until all datagrams of one receive fit, and the queue until all waiting ones do.
            let (allocations, ()) = alloc_counter::count(|| (0..20).for_each(|_| round()));
            assert_eq!((allocations, seen), (0, 23 * 16 * 200), "{calls:?}");
        }
    }

    #[test]
    fn buffers_that_were_given_back_hold_nothing_and_serve_as_before() {
        const PAGES: usize = 3 * 4096;
        let here = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (to, counters) = (here.local_addr().unwrap(), LaneCounters::default());
        let (mut queue, mut receiver) = (SendQueue::new(64, PAGES), Receiver::new(PAGES, BATCHED));
        for round in 1..4 {
            queue.push(to, &[round; PAGES]).unwrap();
            queue.give_back(0);
            assert_eq!(queue.get(0), Some((to, &[round; PAGES][..])), "what waits is kept");
            send_all(&here, BATCHED, false, &mut queue, &counters);
            let mut seen = 0;
            let count = receiver.receive(&here, &counters, |_, bytes| seen += usize::from(bytes == [round; PAGES]));
            assert_eq!((count.unwrap(), seen), (1, 1));
            assert_eq!((receiver.take_reached(), queue.take_reached()), (PAGES, PAGES));
            receiver.give_back(1);
            queue.give_back(1);
            assert_eq!((receiver.take_reached(), queue.take_reached()), (0, 0));
            let left = |buffer: &[u8]| buffer.iter().filter(|byte| **byte != 0).count();
            // Two pages lie wholly within, wherever it begins.
            assert!(left(&receiver.buffer) <= PAGES - 2 * 4096 && left(queue.buffer()) <= PAGES - 2 * 4096, "{round}");
            assert!(receiver.buffer[0] == round && queue.buffer()[0] == round, "kept bytes are unchanged");
        }
    }

    #[test]
    fn a_datagram_longer_than_allowed_is_no_datagram() {
        for calls in [BATCHED, Calls::Single] {
            let here = UdpSocket::bind("127.0.0.1:0").unwrap();
            let there = UdpSocket::bind("127.0.0.1:0").unwrap();
            here.send_to(&[1; 101], there.local_addr().unwrap()).unwrap();
            here.send_to(&[2; 100], there.local_addr().unwrap()).unwrap();
            let mut lengths = Vec::new();
            let mut receiver = Receiver::new(100, calls);
            let count = receiver.receive(&there, &LaneCounters::default(), |_, bytes| lengths.push(bytes.len()));
            assert_eq!((count.unwrap(), lengths), (2, vec![100]), "{calls:?}");
        }
    }

    #[test]
    fn one_unreachable_receiver_does_not_stop_the_others() {
        for calls in [BATCHED, Calls::Single] {
            let here = UdpSocket::bind("127.0.0.1:0").unwrap();
            let there = UdpSocket::bind("127.0.0.1:0").unwrap();
            let counters = LaneCounters::default();
            let mut queue = SendQueue::new(8, 1500);
            queue.push("[2001:db8::1]:9".parse().unwrap(), b"an address of the wrong family").unwrap();
            queue.push(there.local_addr().unwrap(), b"right").unwrap();
            send_all(&here, calls, false, &mut queue, &counters);
            assert_eq!((counters.datagrams_out.get(), counters.datagrams_out_dropped.get()), (1, 1), "{calls:?}");
        }
    }
}
