//! The sweep: what a worker does with the shards of a run.
//!
//! | module | what |
//! | --- | --- |
//! | `machine` | what a worker does and in which order: a state machine without I/O, [`Sweep`] |
//! | [`worker`] | the driver that carries it out, and the thread around both |
//! | `recheck` | reading again those segments of a resumed run whose files are not what they were |

mod machine;
pub(crate) mod recheck;
pub mod worker;

pub use machine::{
    Action, Answer, Call, CallFailure, Event, Granted, HandBack, Held, Moment, ShardEnd, Sharing, Sweep, SweepEnd,
    WorkerConfig,
};
