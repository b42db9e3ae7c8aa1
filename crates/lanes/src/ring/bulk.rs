//! A ring of byte frames between two lanes, for content that does not fit a message: datagrams that reached the wrong lane, and the
//! records of slots that change lanes.
//!
//! In order and bounded in bytes. A producer that finds it full keeps its frame (slots on the move) or counts a drop (datagrams).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use rtrb::{Consumer, Producer, RingBuffer};

/// The longest body of a frame: the largest UDP payload.
pub(crate) const BULK_BODY_BYTES_MAX: usize = 65_507;

const HEADER_BYTES: usize = 28;

/// How the header of a record begins.
const RECORD_CODE: u8 = 2;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A datagram for the lane at the other end; `hops` forwards so far, this one included.
    Datagram { from: SocketAddr, hops: u8 },
    /// A record of a slot that moves to the lane at the other end.
    Record { kind: u8, slot: u8 },
    /// The last record of a slot has been sent, by the owner as of the map before this version.
    SlotDone { slot: u8, map_version: u16 },
    /// Everything of the slot that the lane at the other end sent is safe here.
    SlotSafe { slot: u8 },
}

pub(crate) fn bulk_ring(bytes_max: usize) -> (BulkProducer, BulkConsumer) {
    let (producer, consumer) = RingBuffer::new(bytes_max.max(HEADER_BYTES + 2048));
    (BulkProducer { bytes: producer }, BulkConsumer { bytes: consumer })
}

#[derive(Debug)]
pub(crate) struct BulkProducer {
    bytes: Producer<u8>,
}

impl BulkProducer {
    /// Appends a frame whole, or says false and appends nothing.
    pub(crate) fn try_push(&mut self, frame: Frame, body: &[u8]) -> bool {
        if body.len() > BULK_BODY_BYTES_MAX || self.bytes.slots() < HEADER_BYTES + body.len() {
            return false;
        }
        let header = encode(frame, body.len() as u16);
        // Two commits: the consumer waits for the whole length the header announces.
        self.bytes.push_entire_slice(&header).is_ok() && self.bytes.push_entire_slice(body).is_ok()
    }

    /// Whether a body of this length could ever fit.
    pub(crate) fn can_ever_fit(&self, body_len: usize) -> bool {
        body_len <= BULK_BODY_BYTES_MAX && HEADER_BYTES + body_len <= self.bytes.buffer().capacity()
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.bytes.slots() == self.bytes.buffer().capacity()
    }
}

#[derive(Debug)]
pub(crate) struct BulkConsumer {
    bytes: Consumer<u8>,
}

impl BulkConsumer {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.bytes.is_abandoned()
    }

    /// Whether the next frame is a record of a slot that moves.
    pub(crate) fn is_record_next(&self) -> bool {
        self.bytes.peek().is_ok_and(|code| *code == RECORD_CODE)
    }

    /// Takes the next whole frame, its body copied into `body`, which has room for [`BULK_BODY_BYTES_MAX`] bytes.
    pub(crate) fn pop(&mut self, body: &mut [u8]) -> Option<(Frame, usize)> {
        let mut header = [0; HEADER_BYTES];
        let chunk = self.bytes.read_chunk(HEADER_BYTES).ok()?;
        copy_out(chunk.as_slices(), &mut header);
        let (frame, len) = decode(&header);
        let len = usize::from(len);
        let chunk = self.bytes.read_chunk(HEADER_BYTES + len).ok()?;
        let (head, tail) = chunk.as_slices();
        if head.len() >= HEADER_BYTES {
            copy_out((&head[HEADER_BYTES..], tail), &mut body[..len]);
        } else {
            copy_out((&tail[HEADER_BYTES - head.len()..], &[]), &mut body[..len]);
        }
        chunk.commit_all();
        Some((frame, len))
    }
}

fn copy_out((head, tail): (&[u8], &[u8]), to: &mut [u8]) {
    to[..head.len()].copy_from_slice(head);
    to[head.len()..].copy_from_slice(tail);
}

fn encode(frame: Frame, len: u16) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[2..4].copy_from_slice(&len.to_ne_bytes());
    match frame {
        Frame::Datagram { from, hops } => {
            header[1] = hops;
            header[4..6].copy_from_slice(&from.port().to_ne_bytes());
            match from {
                SocketAddr::V4(v4) => header[8..12].copy_from_slice(&v4.ip().octets()),
                SocketAddr::V6(v6) => {
                    header[0] = 1;
                    header[8..24].copy_from_slice(&v6.ip().octets());
                    header[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                }
            }
        }
        Frame::Record { kind, slot } => {
            header[0] = RECORD_CODE;
            header[1] = kind;
            header[6] = slot;
        }
        Frame::SlotDone { slot, map_version } => {
            header[0] = 3;
            header[6] = slot;
            header[4..6].copy_from_slice(&map_version.to_ne_bytes());
        }
        Frame::SlotSafe { slot } => {
            header[0] = 4;
            header[6] = slot;
        }
    }
    header
}

fn decode(header: &[u8; HEADER_BYTES]) -> (Frame, u16) {
    let len = u16::from_ne_bytes([header[2], header[3]]);
    let port = u16::from_ne_bytes([header[4], header[5]]);
    let frame = match header[0] {
        0 => {
            let ip = Ipv4Addr::new(header[8], header[9], header[10], header[11]);
            Frame::Datagram { from: SocketAddr::V4(SocketAddrV4::new(ip, port)), hops: header[1] }
        }
        1 => {
            let mut octets = [0; 16];
            octets.copy_from_slice(&header[8..24]);
            let scope = u32::from_ne_bytes([header[24], header[25], header[26], header[27]]);
            let from = SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope);
            Frame::Datagram { from: SocketAddr::V6(from), hops: header[1] }
        }
        RECORD_CODE => Frame::Record { kind: header[1], slot: header[6] },
        3 => Frame::SlotDone { slot: header[6], map_version: port },
        4 => Frame::SlotSafe { slot: header[6] },
        other => unreachable!("no producer writes frame type {other}"),
    };
    (frame, len)
}

/// The address as an IPv4 one if it is an IPv4 address in IPv6 clothes, so that one peer has one address on a dual-stack socket.
pub(crate) fn unmapped(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), v6.port()),
            None => addr,
        },
        SocketAddr::V4(_) => addr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_around_every_wrap() {
        let (mut producer, mut consumer) = bulk_ring(2048 + HEADER_BYTES);
        let frames = [
            Frame::Datagram { from: "192.0.2.7:4321".parse().unwrap(), hops: 1 },
            Frame::Datagram { from: "[2001:db8::5%9]:65535".parse().unwrap(), hops: 2 },
            Frame::Record { kind: 200, slot: 255 },
            Frame::SlotDone { slot: 17, map_version: 40_000 },
            Frame::SlotSafe { slot: 200 },
        ];
        let mut body = vec![0; BULK_BODY_BYTES_MAX];
        for round in 0..2000usize {
            let frame = frames[round % frames.len()];
            let bytes: Vec<u8> = (0..(round * 37) % 1500).map(|at| at as u8 ^ round as u8).collect();
            assert!(producer.try_push(frame, &bytes));
            let (got, len) = consumer.pop(&mut body).unwrap();
            assert_eq!((got, &body[..len]), (frame, &bytes[..]), "round {round}");
        }
        assert!(producer.is_drained() && consumer.pop(&mut body).is_none());
    }

    #[test]
    fn a_frame_that_does_not_fit_leaves_nothing_behind() {
        let (mut producer, mut consumer) = bulk_ring(2048 + HEADER_BYTES);
        let record = Frame::Record { kind: 1, slot: 1 };
        assert!(!producer.try_push(record, &[0; 2049]));
        assert!(!producer.can_ever_fit(2049) && producer.can_ever_fit(2048));
        assert!(producer.try_push(record, &[1; 2048]));
        assert!(!producer.try_push(record, &[]));
        let mut body = vec![0; BULK_BODY_BYTES_MAX];
        assert_eq!(consumer.pop(&mut body), Some((record, 2048)));
        assert_eq!(consumer.pop(&mut body), None);
    }

    #[test]
    fn one_peer_has_one_address_on_a_dual_stack_socket() {
        assert_eq!(unmapped("[::ffff:192.0.2.1]:9".parse().unwrap()), "192.0.2.1:9".parse().unwrap());
        assert_eq!(unmapped("[2001:db8::1]:9".parse().unwrap()), "[2001:db8::1]:9".parse().unwrap());
    }
}
