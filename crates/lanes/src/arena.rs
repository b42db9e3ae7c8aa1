//! Memory of one lane for the length of one operation: an arena that the runtime empties before every handler call, and a pool
//! of buffers for data that lives longer. Both are of fixed size, so that no operation goes to the allocator.

/// Bytes that live until the next handler call.
#[derive(Debug)]
pub struct Arena {
    bytes: Vec<u8>,
}

/// A place in an [`Arena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Arena {
    pub(crate) fn with_capacity(bytes_max: u32) -> Self {
        Self { bytes: Vec::with_capacity(bytes_max as usize) }
    }

    /// Keeps a copy of `bytes` until the next call of the handler; `None` if the arena is used up.
    pub fn push(&mut self, bytes: &[u8]) -> Option<Span> {
        if bytes.len() > self.bytes.capacity() - self.bytes.len() {
            return None;
        }
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        Some(Span { start, len: bytes.len() as u32 })
    }

    /// The bytes at `span`; empty if the span is of an earlier call.
    #[must_use]
    pub fn get(&self, span: Span) -> &[u8] {
        let start = span.start as usize;
        self.bytes.get(start..start + span.len as usize).unwrap_or(&[])
    }

    /// The bytes at `span`, to change them; empty if the span is of an earlier call.
    pub fn get_mut(&mut self, span: Span) -> &mut [u8] {
        let start = span.start as usize;
        self.bytes.get_mut(start..start + span.len as usize).unwrap_or(&mut [])
    }

    pub(crate) fn reset(&mut self) {
        self.bytes.clear();
    }
}

/// Buffers of one lane, lent and given back. They never go to another lane.
#[derive(Debug)]
pub struct BufferPool {
    free: Vec<Vec<u8>>,
    buffer_bytes: usize,
    lent: usize,
}

impl BufferPool {
    pub(crate) fn new(buffers: usize, buffer_bytes: usize) -> Self {
        Self { free: (0..buffers).map(|_| Vec::with_capacity(buffer_bytes)).collect(), buffer_bytes, lent: 0 }
    }

    /// An empty buffer with room for a datagram; `None` if all are lent.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let buffer = self.free.pop()?;
        self.lent += 1;
        Some(buffer)
    }

    /// Gives a buffer back. A buffer of another pool, or one that has grown, is freed instead.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        if self.lent > 0 && buffer.capacity() == self.buffer_bytes {
            self.lent -= 1;
            buffer.clear();
            self.free.push(buffer);
        }
    }

    /// Buffers that can still be taken.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arena_is_bounded_and_old_spans_read_as_nothing() {
        let mut arena = Arena::with_capacity(8);
        let span = arena.push(b"abcde").unwrap();
        assert_eq!(arena.get(span), b"abcde");
        assert_eq!(arena.push(b"fghi"), None);
        arena.get_mut(span)[0] = b'z';
        assert_eq!(arena.get(span), b"zbcde");
        arena.reset();
        assert_eq!(arena.get(span), b"");
        assert!(arena.push(b"12345678").is_some());
    }

    #[test]
    fn the_pool_lends_what_it_has_and_takes_back_only_its_own() {
        let mut pool = BufferPool::new(2, 64);
        let (first, _second) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        pool.give(Vec::with_capacity(5));
        assert_eq!(pool.available(), 0);
        pool.give(first);
        assert_eq!(pool.available(), 1);
    }
}
