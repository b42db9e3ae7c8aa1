//! Datagrams a handler has written and the lane has not yet sent: a fixed pool, filled in place, sent in batches.
//!
//! An empty queue begins again at its front: a lane that sends little at a time touches little of it, and what it touches
//! stays in the cache.

use std::net::SocketAddr;

/// A queue of outgoing datagrams in memory taken once.
#[derive(Debug)]
pub(crate) struct SendQueue {
    bytes: Box<[u8]>,
    /// Filled from the front, like the bytes.
    slots: Vec<(SocketAddr, u16)>,
    datagrams_max: usize,
    datagram_bytes_max: usize,
    head: usize,
    len: usize,
}

/// Why a datagram was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendRefused {
    /// One call of the handler wrote more datagrams than the queue holds.
    QueueFull,
    /// The datagram is longer than the configured maximum.
    TooLong,
}

impl core::fmt::Display for SendRefused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::QueueFull => "the lane's send queue is full: send less in one call, or try again on a timer",
            Self::TooLong => "the datagram is longer than `datagram_bytes_max`",
        })
    }
}

impl std::error::Error for SendRefused {}

impl SendQueue {
    pub(crate) fn new(datagrams_max: usize, datagram_bytes_max: usize) -> Self {
        Self {
            bytes: vec![0; datagrams_max * datagram_bytes_max].into_boxed_slice(),
            slots: Vec::with_capacity(datagrams_max),
            datagrams_max,
            datagram_bytes_max,
            head: 0,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Lets `write` fill the next datagram and say its length; a length of zero sends nothing.
    pub(crate) fn push_with(
        &mut self,
        to: SocketAddr,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), SendRefused> {
        if self.len == self.datagrams_max {
            return Err(SendRefused::QueueFull);
        }
        let at = (self.head + self.len) % self.datagrams_max;
        let start = at * self.datagram_bytes_max;
        let len = write(&mut self.bytes[start..start + self.datagram_bytes_max]);
        assert!(len <= self.datagram_bytes_max, "a writer cannot have written beyond its buffer");
        if len > 0 {
            match self.slots.get_mut(at) {
                Some(slot) => *slot = (to, len as u16),
                None => self.slots.push((to, len as u16)),
            }
            self.len += 1;
        }
        Ok(())
    }

    pub(crate) fn push(&mut self, to: SocketAddr, datagram: &[u8]) -> Result<(), SendRefused> {
        if datagram.len() > self.datagram_bytes_max {
            return Err(SendRefused::TooLong);
        }
        self.push_with(to, |buffer| {
            buffer[..datagram.len()].copy_from_slice(datagram);
            datagram.len()
        })
    }

    /// The `index`-th datagram from the front.
    pub(crate) fn get(&self, index: usize) -> Option<(SocketAddr, &[u8])> {
        if index >= self.len {
            return None;
        }
        let at = (self.head + index) % self.datagrams_max;
        let (to, len) = self.slots[at];
        let start = at * self.datagram_bytes_max;
        Some((to, &self.bytes[start..start + usize::from(len)]))
    }

    /// Forgets the first `n` datagrams.
    pub(crate) fn advance(&mut self, n: usize) {
        let n = n.min(self.len);
        self.len -= n;
        self.head = if self.len == 0 { 0 } else { (self.head + n) % self.datagrams_max };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_bounded_in_number_and_length() {
        let to: SocketAddr = "192.0.2.1:5".parse().unwrap();
        let mut queue = SendQueue::new(2, 4);
        assert_eq!(queue.push(to, b"12345"), Err(SendRefused::TooLong));
        assert_eq!(queue.push_with(to, |_| 0), Ok(()));
        assert_eq!(queue.len(), 0, "nothing written, nothing queued");
        for _ in 0..5 {
            assert_eq!(queue.push(to, b"one"), Ok(()));
            assert_eq!(queue.push(to, b"two!"), Ok(()));
            assert_eq!(queue.push(to, b"x"), Err(SendRefused::QueueFull));
            assert_eq!(queue.get(1), Some((to, &b"two!"[..])));
            queue.advance(1);
            assert_eq!(queue.get(0), Some((to, &b"two!"[..])));
            queue.advance(9);
            assert_eq!(queue.get(0), None);
        }
    }

    #[test]
    fn a_queue_that_was_empty_writes_where_it_wrote_before() {
        let to: SocketAddr = "192.0.2.1:5".parse().unwrap();
        let mut queue = SendQueue::new(8, 4);
        for _ in 0..20 {
            queue.push(to, b"one").unwrap();
            queue.push(to, b"two").unwrap();
            queue.advance(1);
            queue.advance(1);
        }
        assert!(queue.bytes[2 * 4..].iter().all(|byte| *byte == 0), "only two places were ever needed");
    }
}
