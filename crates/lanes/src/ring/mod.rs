//! What crosses lanes, and nothing else does: bounded single-producer single-consumer rings, one flag, one eventfd.
//!
//! The rings themselves are `rtrb`'s. Added here: payload bytes beside the envelopes, the drop policy of each class, exact
//! knowledge of what is still in flight, the pressure flag by which Control sheds the lower classes, and parking.
//! All of it is safe code; what threads do to each other in it is explored by loom in the tests of `park` and `pressure`.

pub(crate) mod bulk;
pub(crate) mod inflight;
pub(crate) mod link;
pub(crate) mod message;
pub(crate) mod park;
pub(crate) mod pressure;
pub(crate) mod stage;
