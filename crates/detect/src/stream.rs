//! A source that comes in chunks.

use crate::detector::{BLOCK_BYTES, Detector, OVERLAP_BYTES, Source, Summary, block_at};
use crate::finding::Finding;
use core::fmt;

/// Collects chunks into blocks and searches each as soon as all it may see is there.
///
/// Memory is one block and its overlaps, whatever the size of the source. Findings do not depend on how the source
/// was cut into chunks. Dropped without [`Stream::finish`], the end of the source is not searched.
pub struct Stream<'d, S: FnMut(&Finding<'_>)> {
    detector: &'d mut Detector,
    source: Source<'d>,
    sink: S,
    /// Offset of the buffer's first byte.
    base: usize,
    /// Where the next block begins.
    at: usize,
    wanted: bool,
}

impl<'d, S: FnMut(&Finding<'_>)> Stream<'d, S> {
    pub(crate) fn new(detector: &'d mut Detector, source: Source<'d>, mut sink: S) -> Self {
        let wanted = detector.begin(source, &mut sink);
        detector.buffer.clear();
        detector.buffer.reserve(BLOCK_BYTES + 2 * OVERLAP_BYTES);
        Self { detector, source, sink, base: 0, at: 0, wanted }
    }

    /// Takes the next bytes of the source.
    pub fn push(&mut self, mut chunk: &[u8]) {
        self.detector.count_bytes(chunk.len() as u64);
        if !self.wanted {
            return;
        }
        while !chunk.is_empty() {
            let full = self.at + BLOCK_BYTES + OVERLAP_BYTES - self.base;
            let room = full - self.detector.buffer.len();
            let (now, later) = chunk.split_at(room.min(chunk.len()));
            self.detector.buffer.extend_from_slice(now);
            chunk = later;
            if self.detector.buffer.len() == full {
                self.run_block();
            }
        }
    }

    /// Searches what is left and says what became of the source.
    pub fn finish(mut self) -> Summary {
        while self.wanted && self.at < self.base + self.detector.buffer.len() {
            self.run_block();
        }
        self.detector.end(&mut self.sink)
    }

    fn run_block(&mut self) {
        // The block borrows the buffer while the detector works: lend it out and take it back.
        let mut buffer = core::mem::take(&mut self.detector.buffer);
        self.detector.run(&block_at(self.source, &buffer, self.base, self.at), &mut self.sink);
        self.at += BLOCK_BYTES;
        let keep_from = (self.at.saturating_sub(OVERLAP_BYTES) - self.base).min(buffer.len());
        buffer.copy_within(keep_from.., 0);
        buffer.truncate(buffer.len() - keep_from);
        self.base += keep_from;
        self.detector.buffer = buffer;
    }
}

impl<S: FnMut(&Finding<'_>)> fmt::Debug for Stream<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream(at {})", self.at)
    }
}
