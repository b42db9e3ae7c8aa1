//! Datagrams a handler has written and the lane has not yet sent: a fixed pool, filled in place, sent in batches.
//!
//! Datagrams lie one after the other, and an empty queue begins again at its front: a lane that sends little at a time touches
//! little of it, and that part stays in the cache.

use std::net::SocketAddr;

use crate::net::sys;

/// A queue of outgoing datagrams in memory taken once; parts not written to since they were last given back take none.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// One datagram after the other: a few short ones touch one page.
    bytes: Box<[u8]>,
    /// Filled from the front, and as long as it ever had to be; the first `head` are sent.
    slots: Vec<Slot>,
    head: usize,
    /// Where the next one is written.
    end: usize,
    /// How far bytes were written since the last query.
    reached: usize,
    datagrams_max: usize,
    datagram_bytes_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    to: SocketAddr,
    start: u32,
    len: u16,
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
            slots: Vec::new(),
            head: 0,
            end: 0,
            reached: 0,
            datagrams_max,
            datagram_bytes_max,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.head
    }

    /// Lets `write` fill the next datagram and say its length; a length of zero sends nothing.
    pub(crate) fn push_with(
        &mut self,
        to: SocketAddr,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), SendRefused> {
        if self.len() == self.datagrams_max {
            return Err(SendRefused::QueueFull);
        }
        if self.slots.len() == self.datagrams_max || self.end + self.datagram_bytes_max > self.bytes.len() {
            self.move_up();
        }
        let len = write(&mut self.bytes[self.end..self.end + self.datagram_bytes_max]);
        assert!(len <= self.datagram_bytes_max, "a writer cannot have written beyond its buffer");
        if len > 0 {
            self.slots.push(Slot { to, start: self.end as u32, len: len as u16 });
            self.end += len;
            self.reached = self.reached.max(self.end);
        }
        Ok(())
    }

    /// Moves waiting datagrams to the front. A send usually empties the queue, so there is hardly ever anything to move.
    #[cold]
    fn move_up(&mut self) {
        let start = self.slots.get(self.head).map_or(self.end, |first| first.start as usize);
        self.bytes.copy_within(start..self.end, 0);
        self.end -= start;
        self.slots.drain(..self.head);
        self.head = 0;
        for slot in &mut self.slots {
            slot.start -= start as u32;
        }
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
        let Slot { to, start, len } = *self.slots.get(self.head + index)?;
        Some((to, &self.bytes[start as usize..][..usize::from(len)]))
    }

    /// Forgets the first `n` datagrams.
    pub(crate) fn advance(&mut self, n: usize) {
        self.head += n.min(self.len());
        if self.head == self.slots.len() {
            self.slots.clear();
            (self.head, self.end) = (0, 0);
        }
    }

    /// How many datagrams it takes, and how long they may be.
    pub(crate) fn bounds(&self) -> (usize, usize) {
        (self.datagrams_max, self.datagram_bytes_max)
    }

    /// How many bytes were in use at once since this was last asked.
    pub(crate) fn take_reached(&mut self) -> usize {
        std::mem::replace(&mut self.reached, self.end)
    }

    /// Gives memory back, but for the first `kept` bytes, if there is nothing to send.
    pub(crate) fn give_back(&mut self, kept: usize) {
        if self.len() == 0 {
            sys::give_back(self.bytes.get_mut(kept..).unwrap_or_default());
        }
    }

    #[cfg(test)]
    pub(crate) fn buffer(&self) -> &[u8] {
        &self.bytes
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
        assert!(queue.bytes[2 * 3..].iter().all(|byte| *byte == 0), "only two places were ever needed");
        assert_eq!((queue.take_reached(), queue.take_reached()), (6, 0));
    }

    #[test]
    fn a_queue_that_is_never_empty_keeps_its_order_and_its_bounds() {
        let to: SocketAddr = "192.0.2.1:5".parse().unwrap();
        for len in 1..=4 {
            let mut queue = SendQueue::new(3, 4);
            let datagram = |n: u8| [n; 4];
            queue.push(to, &datagram(0)[..len]).unwrap();
            queue.push(to, &datagram(1)[..len]).unwrap();
            for n in 2..200 {
                queue.push(to, &datagram(n)[..len]).unwrap();
                assert_eq!(queue.push(to, &datagram(n)[..len]), Err(SendRefused::QueueFull));
                for (index, waiting) in [n - 2, n - 1, n].map(datagram).iter().enumerate() {
                    assert_eq!(queue.get(index), Some((to, &waiting[..len])), "{n} of {len}");
                }
                queue.advance(1);
                assert!(queue.slots.capacity() <= 4, "{n} of {len}");
            }
        }
    }
}
