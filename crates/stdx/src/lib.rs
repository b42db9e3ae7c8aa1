//! Structures of fixed capacity: bounded when they are made, and none of them allocates afterwards.
//!
//! Unsafe code is denied rather than forbidden because [`RingBuffer`] keeps items in uninitialised slots; its
//! module argues each block, is small, and is tested against `VecDeque`. Everything else here is safe code.
//!
//! Time is a number that the caller passes in. Nothing reads a clock, so everything runs the same under simulation.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod byte_slab;
mod ewma;
mod ring_buffer;
mod timing_wheel;
mod token_bucket;

pub use byte_slab::{ByteSlab, ByteSlot, SlabFull};
pub use ewma::Ewma;
pub use ring_buffer::{RingBuffer, RingBufferIter};
pub use timing_wheel::{TimerHandle, TimingWheel, WheelFull};
pub use token_bucket::{Rate, TakeRefused, TokenBucket, TokenLevel};
