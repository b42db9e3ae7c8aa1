//! Properties of every state and of every step; named as in the model.

use tessera_coordination::record::invariants;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::status::RunStatus;

use super::World;
use crate::explore::bounds::{Bounds, Kind};

impl<const LOG: usize> World<LOG> {
    /// The first property that this state, or the step that led to it from `before`, breaks.
    pub fn check(&self, before: &Self, bounds: &Bounds) -> Result<(), &'static str> {
        if let Some(property) = self.broken {
            return Err(property);
        }
        for shard in &self.shards {
            if invariants::check(shard.key, &shard.state, &shard.spawned).is_err() {
                return Err("RecordInvariants");
            }
            if shard.next() > shard.hi() {
                return Err("CursorInBounds");
            }
            let home = shard.state.head.status != ShardStatus::Split;
            if home && (shard.lo()..shard.next()).any(|key| self.recorded & (1 << key) == 0) {
                return Err("Coverage");
            }
        }
        let all = (1 << bounds.keys) - 1;
        if self.run.status == RunStatus::Done && self.recorded != all {
            return Err("Coverage");
        }
        for key in 0..bounds.keys {
            let homes = self.shards.iter().filter(|shard| shard.state.head.status != ShardStatus::Split);
            if homes.filter(|shard| (shard.lo()..shard.hi()).contains(&key)).count() != 1 {
                return Err("SplitTiles");
            }
        }
        let twice = self
            .requests
            .iter()
            .zip(&self.executed)
            .any(|(request, executed)| *executed > 1 && request.kind != Kind::Checkpoint);
        if twice {
            return Err("AtMostOnce");
        }
        self.check_step(before)
    }

    fn check_step(&self, before: &Self) -> Result<(), &'static str> {
        if self.run.incarnation != before.run.incarnation {
            // Records are compared with those of the same run.
            return Ok(());
        }
        if before.run.status.is_terminal() && self.run.status != before.run.status {
            return Err("RunTerminalIrreversible");
        }
        for (old, new) in before.shards.iter().zip(&self.shards) {
            let (was, is) = (&old.state.head, &new.state.head);
            if new.fence() < old.fence() {
                return Err("FenceMonotonic");
            }
            if new.next() < old.next() {
                return Err("CursorMonotonic");
            }
            let unparked = was.status == ShardStatus::Parked && is.status == ShardStatus::Active;
            if was.status.is_terminal() && is.status != was.status && !(unparked && new.fence() > old.fence()) {
                return Err("TerminalIrreversible");
            }
            let (owner, owner_before) = (is.lease.map(|holder| holder.owner), was.lease.map(|holder| holder.owner));
            if owner.is_some() && owner != owner_before && new.fence() <= old.fence() {
                return Err("OwnerChangeBumpsFence");
            }
            let is_granted = is.lease.is_some() && new.fence() > old.fence();
            let reported_by = |worker: usize| old.is_reported_by(worker);
            if is_granted && owner.is_some_and(|owner| reported_by(owner.get() as usize - 1)) {
                return Err("UnreachableForAll");
            }
            let is_deserted = (0..self.live.len()).all(|worker| !before.live[worker] || new.is_reported_by(worker));
            if new.is_cut_off() && !old.is_cut_off() && !(is_deserted && before.live.contains(&true)) {
                return Err("UnreachableForAll");
            }
            if let Some(holder) = was.lease.filter(|_| is.lease.is_some() && new.fence() > old.fence()) {
                let worker = holder.owner.get() as usize - 1;
                if !holder.is_past(before.clock_of(worker)) {
                    return Err("NoTheftFromLiveOwner");
                }
            }
        }
        Ok(())
    }
}
