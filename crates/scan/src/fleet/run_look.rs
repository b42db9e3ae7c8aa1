//! Whether a run is over, asked gently.
//!
//! Many submitters may follow many runs, each for hours. So the coordinator is asked for two things only, neither of which costs more
//! with more shards: the line about the run, which workers settle once nothing is left in it, and at longer intervals the
//! settlement itself, which is refused with the number of open shards. The second one finds a run whose rest is parked: no worker
//! settles it.
//!
//! In reads of the store: one a second, and [`SETTLE_READS`] every [`SETTLE_INTERVAL`], together less than two a second.

use std::time::{Duration, Instant};

use tessera_contracts::{RunId, TenantId};
use tessera_coordination::RunManagement;
use tessera_coordination::error::RunTransitionError;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::RunSummary;

use crate::clock::wall_clock;
use crate::error::ScanError;
use crate::op_ids::OpIds;
use crate::run::folder::RunFolder;
use crate::run::label::RunKey;

/// Between two looks at the line about the run.
const LINE_INTERVAL: Duration = Duration::from_millis(1_000);

/// Between two tries to settle it.
const SETTLE_INTERVAL: Duration = Duration::from_millis(8_000);

/// Ranges that a try reads in etcd: the run, its roots, and five counts.
const SETTLE_READS: u128 = 7;

const _: () = {
    let (line, settle) = (LINE_INTERVAL.as_millis(), SETTLE_INTERVAL.as_millis());
    assert!(1_000 * (settle + SETTLE_READS * line) < 2 * line * settle, "a follower reads less than twice a second");
};

/// Looks at one run again and again.
pub(super) struct RunLook {
    tenant: TenantId,
    key: RunKey,
    line_due: Option<Instant>,
    settle_due: Option<Instant>,
    is_over: bool,
    page: Vec<RunSummary>,
}

impl RunLook {
    /// Looks at the run of `folder`. If it goes on from before, all of it may be done already.
    pub(super) fn new(folder: &RunFolder, goes_on: bool) -> Self {
        let (tenant, key) = (folder.label().tenant, folder.key());
        Self { tenant, key, line_due: None, settle_due: goes_on.then(Instant::now), is_over: false, page: Vec::new() }
    }

    /// Whether nothing is left to do. Asks the coordinator if it is time to.
    pub(super) fn is_over<B: RunManagement>(&mut self, backend: &mut B, now: Instant) -> Result<bool, ScanError> {
        if !self.is_over && self.line_due.is_none_or(|due| now >= due) {
            self.line_due = Some(now + LINE_INTERVAL);
            self.is_over = self.is_settled(backend)?;
        }
        let settle_due = *self.settle_due.get_or_insert(now + SETTLE_INTERVAL);
        if !self.is_over && now >= settle_due {
            self.settle_due = Some(now + SETTLE_INTERVAL);
            self.is_over = self.nothing_is_open(backend)?;
        }
        Ok(self.is_over)
    }

    /// Whether the run has ended, as the line about it says: one read.
    fn is_settled<B: RunManagement>(&mut self, backend: &mut B) -> Result<bool, ScanError> {
        // The one after the run before it is the run, unless it is gone.
        let before = self.key.run.get().checked_sub(1).map(RunId::new);
        backend.list_runs_into(self.tenant, before, 1, &mut self.page).map_err(ScanError::coordinator)?;
        match self.page.first().filter(|line| line.run == self.key.run) {
            Some(line) if line.incarnation != self.key.incarnation => {
                Err(ScanError::OtherIncarnation { prepared: self.key, current: line.incarnation })
            }
            Some(line) => Ok(line.status != RunStatus::Active),
            // The error says what became of it.
            None => backend.get_run(self.tenant, self.key.run).map(|_| false).map_err(ScanError::coordinator),
        }
    }

    /// Whether no shard is open. If that is because all are done, the run is settled, as a worker would have done.
    fn nothing_is_open<B: RunManagement>(&mut self, backend: &mut B) -> Result<bool, ScanError> {
        match backend.complete_run(wall_clock(), self.tenant, self.key.run, OpIds::random().next_id()) {
            Ok(_) | Err(RunTransitionError::Illegal { .. }) => Ok(true),
            Err(RunTransitionError::ShardsOpen { active, .. }) => Ok(active == 0),
            Err(error) => Err(ScanError::coordinator(error)),
        }
    }
}
