//! The only types that cross lanes: bounded single-producer single-consumer rings and a word to wake each
//! other by.
//!
//! The rings themselves are `rtrb`'s. Added here: payload bytes beside the envelopes, the drop policy of each class, exact
//! knowledge of messages still in flight, the pressure flag by which Control sheds the lower classes, and parking.
//! All of it is safe code but for [`inbox`], the queue by which commands come from outside. Loom explores that queue, the parking
//! protocol, the order of payload and envelope, and the reserved places of Control, and shows that each fails without its
//! ordering; the pressure and skip counters are relaxed hints of which a stale reading sheds or keeps a few messages too many, never
//! more.

pub(crate) mod bulk;
#[allow(unsafe_code, reason = "a queue whose taker may hang hands its nodes on by pointers")]
pub(crate) mod inbox;
pub(crate) mod inflight;
pub(crate) mod link;
#[cfg(test)]
mod loom_tests;
pub(crate) mod message;
pub(crate) mod park;
pub(crate) mod pressure;
pub(crate) mod stage;
pub(crate) mod wake_set;
