//! The runtime of lanes beside the bare system calls and rings it is made of.
//!
//! CPU is that of the whole process, so the load generator of the echo is counted on both sides alike, and so is a thread
//! that spins because the other has not answered yet.

mod chaos;
mod commit;
mod echo;
mod log;
mod message;
mod segments;
mod wake;

use crate::harness::Figure;

pub(crate) fn figures() -> Vec<Figure> {
    vec![
        Figure::cost(
            "lanes/echo",
            "1024 datagrams of 200 bytes echoed by a lane, beside recvmmsg+sendmmsg; client included",
            echo::figure,
        ),
        Figure::cost(
            "lanes/message",
            "256 messages of 16 bytes between two lanes of one thread, beside 48 bytes over a bare rtrb ring",
            message::on_one_thread,
        )
        .gated(5.0),
        Figure::cost(
            "lanes/message-threads",
            "65536 messages of 16 bytes between lanes, beside 48 bytes over a bare rtrb ring; spinning included",
            message::between_threads,
        ),
        Figure::cost("lanes/wake", "command to a sleeping lane and its answer, beside two std channels", wake::figure),
        Figure::rate(
            "lanes/log",
            "64 records of 256 bytes logged and synced, beside write+fdatasync",
            64 * 256,
            log::append,
        ),
        Figure::rate(
            "lanes/commit",
            "64 records of 256 bytes logged by a lane until durable, beside a thread that does write+fdatasync",
            64 * 256,
            commit::one_at_a_time,
        ),
        Figure::rate(
            "lanes/commit-stream",
            "the same with two groups under way, which go with one sync, beside a thread that syncs two at a time unasked",
            64 * 256,
            commit::stream,
        ),
        Figure::cost(
            "lanes/segments-send",
            "64 datagrams of 200 bytes to one peer: sendmmsg, beside one send with UDP_SEGMENT; received by recvmmsg",
            || segments::figure(200, segments::Receiving::Batch),
        ),
        Figure::cost(
            "lanes/segments-both",
            "64 datagrams of 200 bytes to one peer: sendmmsg+recvmmsg, beside UDP_SEGMENT+UDP_GRO",
            || segments::figure(200, segments::Receiving::Merged),
        ),
        Figure::cost(
            "lanes/chaos",
            "1000 questions and answers between two lanes while a third panics and stalls, beside the same in peace",
            chaos::figure,
        ),
    ]
}
