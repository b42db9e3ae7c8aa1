//! The sockets of a runtime: as many as lanes, all bound to one port with SO_REUSEPORT, in the order of the lanes.
//!
//! The kernel numbers the members of the group by the order of binding. Closing one would renumber those behind it, so a lane
//! that dies leaves its socket behind, and its successor takes it up. Only the last are closed, when their lanes have retired:
//! where the kernel does not steer, it would go on giving them a share of the datagrams that no lane reads.
//! Nor is a member ever connected: a connected one takes its peer's datagrams past the filter.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;

use socket2::{Domain, Protocol, Socket, Type};
use tessera_contracts::prefix_map::PrefixMap;

use crate::net::calls::Calls;
use crate::net::{steering, sys};

/// The sockets, by lane.
#[derive(Debug)]
pub(crate) struct SocketGroup {
    sockets: Vec<Arc<UdpSocket>>,
    address: SocketAddr,
    buffer_bytes: usize,
}

impl SocketGroup {
    /// Binds `count` sockets to `address`; port 0 picks a free one for all of them.
    pub(crate) fn bind(address: SocketAddr, count: usize, buffer_bytes: usize) -> io::Result<Self> {
        // Sockets of this group share their port with each other, and the kernel would let any program of the same user join in
        // and take a part of the datagrams; asked for a free port, it may even give one that another group has. A socket that
        // does not share finds out whether the port is free, or which one is.
        let alone = bind_alone(address)?;
        let address = alone.local_addr()?.as_socket().unwrap_or(address);
        drop(alone);
        let first = bind_one(address, buffer_bytes)?;
        let mut group = Self { address: first.local_addr()?, sockets: vec![Arc::new(first)], buffer_bytes };
        group.grow_to(count)?;
        Ok(group)
    }

    /// Binds more sockets until there are `count`.
    pub(crate) fn grow_to(&mut self, count: usize) -> io::Result<()> {
        while self.sockets.len() < count {
            self.sockets.push(Arc::new(bind_one(self.address, self.buffer_bytes)?));
        }
        Ok(())
    }

    /// Closes the last sockets until there are `count`. A socket that a lane still holds stays, and so do those before it: it would be
    /// closed later, and renumber sockets bound meanwhile.
    pub(crate) fn shrink_to(&mut self, count: usize) {
        while self.sockets.len() > count.max(1) && self.sockets.last().is_some_and(|last| Arc::strong_count(last) == 1)
        {
            self.sockets.pop();
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn socket(&self, lane: usize) -> Arc<UdpSocket> {
        self.sockets[lane].clone()
    }

    /// Whether batches may be received and sent.
    pub(crate) fn probe_batches(&self) -> io::Result<()> {
        Calls::probe(self.sockets[0].as_fd())
    }

    /// Steers datagrams by `map`. Replaces the filter attached before; no datagram is lost in between.
    pub(crate) fn steer(&self, map: &PrefixMap, offset: u16) -> io::Result<()> {
        sys::attach(self.sockets[0].as_fd(), &steering::program(map.table(), offset))
    }
}

fn bind_alone(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

fn bind_one(address: SocketAddr, buffer_bytes: usize) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_port(true)?;
    // The kernel grants as much as its limit allows; less is slower under bursts, not wrong.
    let _ = socket.set_recv_buffer_size(buffer_bytes);
    let _ = socket.set_send_buffer_size(buffer_bytes);
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[cfg(test)]
pub(crate) mod tests {
    use tessera_contracts::prefix_map::{LaneIndex, Selector, Slot};

    use super::*;
    use crate::net::batch::send_all;
    use crate::net::send_queue::SendQueue;
    use crate::telemetry::counters::LaneCounters;

    /// A process that shares the port of a group and can change its steering.
    pub(crate) fn stranger_at(address: SocketAddr) -> SocketGroup {
        let socket = bind_one(address, 1 << 16).unwrap();
        SocketGroup { sockets: vec![Arc::new(socket)], address, buffer_bytes: 1 << 16 }
    }

    /// Sends a datagram of every slot from several ports and checks which socket it reached.
    fn check(group: &SocketGroup, map: &PrefixMap, target: SocketAddr) {
        for _ in 0..3 {
            let client = UdpSocket::bind(if target.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" }).unwrap();
            for slot in 0..=255u8 {
                client.send_to(&[9, slot, 9], target).unwrap();
                let mut buffer = [0; 16];
                let lane = map.lane_of_slot(Slot(slot));
                let socket = group.socket(usize::from(lane.0));
                // Loopback delivers before send returns.
                let (len, _) = socket.recv_from(&mut buffer).unwrap_or_else(|error| panic!("slot {slot}: {error}"));
                assert_eq!(buffer[..len], [9, slot, 9]);
            }
        }
    }

    #[test]
    fn groups_that_ask_for_a_free_port_never_share_one() {
        // Left to the kernel, about one of 256 groups got the port of another.
        let groups: Vec<_> =
            (0..600).map(|_| SocketGroup::bind(SocketAddr::from(([127, 0, 0, 1], 0)), 1, 4096).unwrap()).collect();
        let ports: std::collections::BTreeSet<u16> = groups.iter().map(|group| group.address().port()).collect();
        assert_eq!(ports.len(), groups.len());
    }

    #[test]
    fn the_kernel_steers_every_slot_to_its_lane_for_both_families_and_after_every_change() {
        for lanes in [1, 2, 3, 5, 8] {
            let mut group = SocketGroup::bind("[::]:0".parse().unwrap(), lanes, 1 << 20).unwrap();
            let port = group.address().port();
            let mut map = PrefixMap::new(Selector::default(), lanes).unwrap();
            group.steer(&map, 1).unwrap();
            check(&group, &map, SocketAddr::from(([127, 0, 0, 1], port)));
            check(&group, &map, format!("[::1]:{port}").parse().unwrap());
            map = map.resized(lanes + 2).unwrap();
            group.grow_to(lanes + 2).unwrap();
            group.steer(&map, 1).unwrap();
            check(&group, &map, SocketAddr::from(([127, 0, 0, 1], port)));
            map = map.resized(1).unwrap().lent(Slot(7), LaneIndex(0)).unwrap();
            group.steer(&map, 1).unwrap();
            check(&group, &map, SocketAddr::from(([127, 0, 0, 1], port)));
        }
    }

    /// A datagram from each of many ports, so that the kernel's spreading by address meets every socket.
    fn reached(group: &SocketGroup, lanes: usize) -> Vec<usize> {
        for _ in 0..64 {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.send_to(b"x", group.address()).unwrap();
        }
        (0..lanes).map(|lane| std::iter::from_fn(|| group.socket(lane).recv_from(&mut [0; 8]).ok()).count()).collect()
    }

    #[test]
    fn a_socket_whose_lane_has_retired_gets_no_datagrams_unless_a_thread_still_holds_it() {
        let mut group = SocketGroup::bind("127.0.0.1:0".parse().unwrap(), 4, 1 << 16).unwrap();
        assert!(reached(&group, 4).iter().all(|count| *count > 0), "the kernel spreads over all of them");
        let ghost = group.socket(2);
        group.shrink_to(1);
        assert_eq!(group.sockets.len(), 3, "what a ghost holds keeps its number");
        drop(ghost);
        group.shrink_to(1);
        assert_eq!(reached(&group, 1), [64]);
        group.grow_to(3).unwrap();
        let map = PrefixMap::new(Selector::default(), 3).unwrap();
        group.steer(&map, 1).unwrap();
        check(&group, &map, group.address());
    }

    #[test]
    fn a_port_that_another_group_listens_on_is_taken() {
        let first = SocketGroup::bind("127.0.0.1:0".parse().unwrap(), 2, 1 << 16).unwrap();
        let error = SocketGroup::bind(first.address(), 2, 1 << 16).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let address = first.address();
        drop(first);
        SocketGroup::bind(address, 2, 1 << 16).unwrap();
    }

    #[test]
    fn datagrams_that_leave_in_one_piece_are_steered_each_by_its_own_slot() {
        let group = SocketGroup::bind("127.0.0.1:0".parse().unwrap(), 4, 1 << 20).unwrap();
        let map = PrefixMap::new(Selector::default(), 4).unwrap();
        group.steer(&map, 0).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut queue = SendQueue::new(256, 64);
        for slot in 0..=255u8 {
            queue.push(group.address(), &[(slot / 8).wrapping_mul(37), slot, 9]).unwrap();
        }
        let counters = LaneCounters::default();
        send_all(&client, Calls::Batched { slot_at: Some(0) }, false, &mut queue, &counters);
        let mut seen = 0;
        for lane in 0..4 {
            let mut bytes = [0; 8];
            while let Ok((len, _)) = group.socket(lane).recv_from(&mut bytes) {
                let owner = map.lane_of_slot(Slot(bytes[0]));
                assert_eq!((len, usize::from(owner.0)), (3, lane), "datagram {}", bytes[1]);
                seen += 1;
            }
        }
        assert_eq!(seen, 256);
    }
}
