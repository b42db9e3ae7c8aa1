//! The network side of a lane: one UDP socket per lane on one port, datagrams in batches, steered by the kernel to their owner.

pub(crate) mod batch;
pub(crate) mod calls;
pub(crate) mod group;
pub(crate) mod send_queue;
pub mod steering;
#[allow(unsafe_code, reason = "recvmmsg, sendmmsg and one socket option have no safe binding")]
mod sys;
