//! The settings of a runtime and its policy for lanes that fail, with the defaults.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tessera_contracts::prefix_map::Selector;

use crate::config::LaneConfig;
use crate::runtime::cores;
use crate::runtime::relief::ReliefPolicy;
use crate::telemetry::trace_file::TraceFiles;
use crate::wal::LogConfig;

/// The settings of a runtime.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// How many lanes; by default one per physical core that the process may use.
    pub lanes: usize,
    /// Which bits of a distance pick the slot. The runtime itself never looks at ids; handlers read it from their map.
    pub selector: Selector,
    /// The bounds of each lane.
    pub lane: LaneConfig,
    /// Where lanes listen for datagrams; `None` for lanes without a network.
    pub bind: Option<SocketAddr>,
    /// The buffer asked of the kernel for each socket.
    pub socket_buffer_bytes: usize,
    /// Whether the kernel is asked to steer datagrams by their slot byte. Without it, lanes pass them on over rings.
    pub kernel_steering: bool,
    /// Whether datagrams are moved in batches (recvmmsg, sendmmsg). Without, or where the system refuses it, a call moves one.
    pub batched_calls: bool,
    /// Where lanes keep their logs, and how; `None` for lanes that forget.
    pub log: Option<(PathBuf, LogConfig)>,
    /// Whether lanes are pinned to cores.
    pub pin: bool,
    /// The cores lanes are pinned to, in turn; `None` for all the process may use when the runtime starts.
    pub cores: Option<Vec<usize>>,
    /// Whether lanes that are not pinned take turns with those of other runtimes of the process, on at most as many threads as it
    /// may use cores, instead of having a thread each. Right where a process has many small runtimes: a datagram from one lane to another
    /// then costs no change of threads, and no lane needs a stack. Lanes of one runtime are on different threads; those of
    /// different runtimes are on the same one for as long as it has time to spare when they start, and stay there. Such lanes do not
    /// look for work before they sleep. A turn that takes long holds up the others on its thread; a turn longer than their
    /// `stall_bound` has them given up with it, to start again on another thread.
    pub share_threads: bool,
    /// How long an idle lane looks for work before it sleeps. Zero if there are more lanes than cores.
    pub spin: Duration,
    /// A lane that spends longer than this in one turn is given up and replaced. Commands that wait for it are dropped then, and
    /// reach its successor if they are given again.
    pub stall_bound: Duration,
    /// How long a caller that changes the lanes waits. If they are not all open by then, everything stays as it was; if slots
    /// have begun to move, they go on to, and only the waiting ends.
    pub change_patience: Duration,
    /// How long lanes are given to stop before their threads are left behind.
    pub stop_patience: Duration,
    /// The policy for lanes that fail.
    pub restart: RestartPolicy,
    /// When a lane that stays busy has others serve half of its slots without being told to; `None` for never.
    pub relief: Option<ReliefPolicy>,
    /// Commands that may wait for a lane.
    pub commands_max: usize,
    /// Where metrics are served as Prometheus text, at `/metrics`; `None` for nowhere.
    pub metrics: Option<SocketAddr>,
    /// Trace events kept for each lane until they are read.
    pub traces_max: usize,
    /// Where traces are written; `None` leaves them to [`Runtime::take_traces`](crate::runtime::Runtime::take_traces).
    pub trace_files: Option<TraceFiles>,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            lanes: cores::lanes_by_default(),
            selector: Selector::default(),
            lane: LaneConfig::default(),
            bind: None,
            socket_buffer_bytes: 4 << 20,
            kernel_steering: true,
            batched_calls: true,
            log: None,
            pin: true,
            cores: None,
            share_threads: false,
            spin: Duration::from_micros(50),
            stall_bound: Duration::from_secs(2),
            change_patience: Duration::from_secs(30),
            stop_patience: Duration::from_secs(5),
            restart: RestartPolicy::default(),
            relief: None,
            commands_max: 1024,
            metrics: None,
            traces_max: 1024,
            trace_files: None,
        }
    }
}

/// How lanes that fail are restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// The wait before the first restart; it doubles with every failure.
    pub delay_min: Duration,
    /// The longest wait.
    pub delay_max: Duration,
    /// A lane that ran this long counts as healthy: its next failure is the first again.
    pub healthy_after: Duration,
    /// After this many failures in a row the whole runtime stops; `None` to try for ever.
    pub failures_max: Option<u32>,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            delay_min: Duration::from_millis(10),
            delay_max: Duration::from_secs(5),
            healthy_after: Duration::from_secs(30),
            failures_max: None,
        }
    }
}

impl RestartPolicy {
    /// How long to wait before restarting a lane after its `failures`-th failure in a row.
    #[must_use]
    pub fn delay(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        self.delay_min.saturating_mul(1 << doublings).min(self.delay_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_delays_double_up_to_their_bound() {
        let policy = RestartPolicy::default();
        let delays: Vec<u128> = [1, 2, 3, 10, u32::MAX].map(|failures| policy.delay(failures).as_millis()).to_vec();
        assert_eq!(delays, [10, 20, 40, 5000, 5000]);
    }
}
