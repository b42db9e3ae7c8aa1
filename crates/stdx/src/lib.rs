//! Structures of fixed capacity: what they hold is bounded when they are made, and none of them allocates afterwards.
//!
//! Unsafe code is denied rather than forbidden because [`ring_buffer`] keeps items in uninitialised slots; that module
//! argues each block, is small, and is tested against `VecDeque`. Everything else here is safe code.
//!
//! Time is a number that the caller passes in. Nothing reads a clock, so everything runs the same under simulation.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod bounded_heap;
pub mod byte_slab;
pub mod ewma;
pub mod ring_buffer;
pub mod timing_wheel;
pub mod token_bucket;

pub use bounded_heap::BoundedHeap;
pub use byte_slab::{ByteSlab, ByteSlot, SlabFull};
pub use ewma::Ewma;
pub use ring_buffer::RingBuffer;
pub use timing_wheel::{TimerHandle, TimingWheel, WheelFull};
pub use token_bucket::{Rate, TakeRefused, TokenBucket};
