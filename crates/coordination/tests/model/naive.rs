//! The protocol as its specification tells it, with plain maps and strings and no thought of speed.
//!
//! Written from the rules, not from the code: it shares no function with the crate under test. Fingerprints are the
//! parameters themselves as text, the op-log is a list, and every question is answered by looking at everything.

use std::collections::BTreeMap;

pub(crate) const OP_LOG: usize = 16;
pub(crate) const LEASE: u64 = 20;
pub(crate) const RETRIES: u32 = 3;

#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) start: u8,
    pub(crate) end: u8,
    pub(crate) last_key: Option<u8>,
    pub(crate) token: Option<u8>,
    pub(crate) status: &'static str,
    pub(crate) fence: u64,
    pub(crate) holder: Option<(u64, u64)>,
    pub(crate) log: Vec<(u64, String, &'static str)>,
    /// Children with the op that made them and its parameters.
    pub(crate) children: Vec<(u64, u64, String)>,
    pub(crate) fruitless: u32,
    pub(crate) asked_to_yield: bool,
}

impl Shard {
    fn new(start: u8, end: u8) -> Self {
        Self {
            start,
            end,
            last_key: None,
            token: None,
            status: "active",
            fence: 1,
            holder: None,
            log: Vec::new(),
            children: Vec::new(),
            fruitless: 0,
            asked_to_yield: false,
        }
    }

    fn remember(&mut self, op: u64, payload: String) {
        self.log.push((op, payload, "completed"));
        if self.log.len() > OP_LOG {
            self.log.remove(0);
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) shard: u64,
    pub(crate) worker: u64,
    pub(crate) fence: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) run: &'static str,
    pub(crate) run_log: Vec<(u64, &'static str)>,
    pub(crate) shards: BTreeMap<u64, Shard>,
}

/// An operation's answer: `Ok` with a word, or `Err` with the name of the reason.
pub(crate) type Answer = Result<&'static str, &'static str>;

impl World {
    pub(crate) fn new(ranges: &[(u64, u8, u8)]) -> Self {
        let shards = ranges.iter().map(|&(id, start, end)| (id, Shard::new(start, end))).collect();
        Self { run: "active", run_log: Vec::new(), shards }
    }

    pub(crate) fn claimable(&self, id: u64, now: u64) -> bool {
        let shard = &self.shards[&id];
        shard.status == "active" && shard.holder.is_none_or(|(_, deadline)| deadline <= now)
    }

    pub(crate) fn available(&self, now: u64) -> usize {
        if self.run != "active" {
            return 0;
        }
        self.shards.keys().filter(|id| self.claimable(**id, now)).count()
    }

    pub(crate) fn soonest_deadline(&self, now: u64) -> Option<u64> {
        if self.run != "active" {
            return None;
        }
        let live = self.shards.values().filter_map(|shard| shard.holder.map(|(_, deadline)| deadline));
        live.filter(|deadline| *deadline > now).min()
    }

    pub(crate) fn acquire(&mut self, worker: u64, id: u64, now: u64) -> Result<Lease, &'static str> {
        let claimable = self.shards.contains_key(&id) && self.claimable(id, now);
        let Some(shard) = self.shards.get_mut(&id) else { return Err("ShardNotFound") };
        if self.run != "active" {
            return Err("RunNotActive");
        }
        if shard.status != "active" {
            return Err("ShardTerminal");
        }
        if !claimable {
            return Err("AlreadyLeased");
        }
        if shard.fruitless >= RETRIES {
            shard.status = "parked";
            shard.holder = None;
            shard.asked_to_yield = false;
            return Err("RetriesExhausted");
        }
        shard.fence += 1;
        shard.fruitless += 1;
        shard.holder = Some((worker, now + LEASE));
        shard.asked_to_yield = false;
        Ok(Lease { shard: id, worker, fence: shard.fence })
    }

    /// The checks of every lease-gated operation, in their order.
    fn admit(&self, lease: Lease, op: Option<(u64, &str)>, now: u64) -> Result<Option<&'static str>, &'static str> {
        let Some(shard) = self.shards.get(&lease.shard) else { return Err("ShardNotFound") };
        if let Some((op, payload)) = op
            && let Some((_, seen, result)) = shard.log.iter().find(|(id, ..)| *id == op)
        {
            return match (seen == payload, *result) {
                (false, _) => Err("OpIdConflict"),
                (true, "completed") => Ok(Some("replayed")),
                (true, _) => Ok(Some("superseded")),
            };
        }
        // A renewal has no op id, and tells of a settled run instead of refusing.
        if op.is_some() && self.run != "active" {
            return Err("RunNotActive");
        }
        if shard.status != "active" {
            return Err("ShardTerminal");
        }
        if shard.fence != lease.fence {
            return Err("StaleFence");
        }
        match shard.holder {
            None => Err("OwnerDivergence"),
            Some((_, deadline)) if now >= deadline => Err("LeaseExpired"),
            Some((worker, _)) if worker != lease.worker => Err("OwnerDivergence"),
            Some(_) => Ok(None),
        }
    }

    pub(crate) fn renew(&mut self, lease: Lease, now: u64) -> Answer {
        self.admit(lease, None, now)?;
        if self.run != "active" {
            return Ok("cancelled");
        }
        let shard = self.shards.get_mut(&lease.shard).expect("admitted");
        let (worker, deadline) = shard.holder.expect("admitted");
        shard.holder = Some((worker, deadline.max(now + LEASE)));
        Ok(if shard.asked_to_yield { "please yield" } else { "renewed" })
    }

    fn check_progress(shard: &Shard, key: Option<u8>) -> Result<(), &'static str> {
        match (shard.last_key, key) {
            (Some(_), None) => return Err("CursorRegression"),
            (Some(old), Some(new)) if new < old => return Err("CursorRegression"),
            _ => {}
        }
        match key {
            Some(key) if key < shard.start || key >= shard.end => Err("CursorOutOfBounds"),
            _ => Ok(()),
        }
    }

    fn progress(shard: &mut Shard, key: Option<u8>, token: Option<u8>) {
        if (shard.last_key, shard.token) != (key, token) {
            shard.fruitless = 0;
        }
        (shard.last_key, shard.token) = (key, token);
    }

    pub(crate) fn checkpoint(&mut self, lease: Lease, cursor: (Option<u8>, Option<u8>), op: u64, now: u64) -> Answer {
        let payload = format!("checkpoint {cursor:?}");
        if let Some(replay) = self.admit(lease, Some((op, &payload)), now)? {
            return Ok(replay);
        }
        let shard = self.shards.get_mut(&lease.shard).expect("admitted");
        if cursor.0.is_none() {
            return Err("CheckpointMissingKey");
        }
        Self::check_progress(shard, cursor.0)?;
        Self::progress(shard, cursor.0, cursor.1);
        shard.remember(op, payload);
        Ok("executed")
    }

    pub(crate) fn complete(&mut self, lease: Lease, cursor: (Option<u8>, Option<u8>), op: u64, now: u64) -> Answer {
        let payload = format!("complete {cursor:?}");
        if let Some(replay) = self.admit(lease, Some((op, &payload)), now)? {
            return Ok(replay);
        }
        let shard = self.shards.get_mut(&lease.shard).expect("admitted");
        Self::check_progress(shard, cursor.0)?;
        Self::progress(shard, cursor.0, cursor.1);
        shard.status = "done";
        shard.holder = None;
        shard.remember(op, payload);
        Ok("executed")
    }

    pub(crate) fn park(&mut self, lease: Lease, reason: u8, op: u64, now: u64) -> Answer {
        let payload = format!("park {reason}");
        if let Some(replay) = self.admit(lease, Some((op, &payload)), now)? {
            return Ok(replay);
        }
        let shard = self.shards.get_mut(&lease.shard).expect("admitted");
        shard.status = "parked";
        shard.holder = None;
        shard.remember(op, payload);
        Ok("executed")
    }

    pub(crate) fn release(&mut self, lease: Lease, key: Option<u8>, op: u64, now: u64) -> Answer {
        let payload = format!("release {key:?}");
        if let Some(replay) = self.admit(lease, Some((op, &payload)), now)? {
            return Ok(replay);
        }
        let shard = self.shards.get_mut(&lease.shard).expect("admitted");
        if key.is_some() {
            Self::check_progress(shard, key)?;
            Self::progress(shard, key, None);
        }
        shard.fruitless = shard.fruitless.saturating_sub(1);
        shard.holder = None;
        shard.asked_to_yield = false;
        shard.remember(op, payload);
        Ok("executed")
    }

    /// `children` are the ranges of the plan in key order; `named` gives the names the real coordinator chose.
    pub(crate) fn split_replace(
        &mut self,
        lease: Lease,
        children: &[(u8, u8)],
        op: u64,
        now: u64,
        named: &[u64],
    ) -> Answer {
        let payload = format!("split_replace {children:?}");
        if let Some(replay) = self.admit(lease, Some((op, &payload)), now)? {
            return Ok(replay);
        }
        let shard = self.shards.get_mut(&lease.shard).expect("admitted");
        let mut covered = shard.start;
        for &(start, end) in children {
            if start != covered {
                return Err("SplitInvalid");
            }
            covered = end;
        }
        if covered != shard.end {
            return Err("SplitInvalid");
        }
        shard.status = "split";
        shard.holder = None;
        shard.remember(op, payload.clone());
        let last_key = shard.last_key;
        for (&(start, end), &name) in children.iter().zip(named) {
            let shard = self.shards.get_mut(&lease.shard).expect("admitted");
            shard.children.push((name, op, payload.clone()));
            let mut child = Shard::new(start, end);
            child.last_key = last_key.filter(|key| (start..end).contains(key));
            self.shards.insert(name, child);
        }
        Ok("executed")
    }

    pub(crate) fn split_residual(
        &mut self,
        lease: Lease,
        plan: (u8, u8, u8),
        op: u64,
        now: u64,
        named: &[u64],
    ) -> Answer {
        let payload = format!("split_residual {plan:?}");
        let Some(shard) = self.shards.get(&lease.shard) else { return Err("ShardNotFound") };
        let forgotten = shard.log.iter().all(|(id, ..)| *id != op);
        let made = shard.children.iter().find(|(_, by, with)| *by == op && with.starts_with("split_residual"));
        if let Some((_, _, with)) = made.filter(|_| forgotten) {
            return if *with == payload { Ok("replayed") } else { Err("OpIdConflict") };
        }
        if let Some(replay) = self.admit(lease, Some((op, &payload)), now)? {
            return Ok(replay);
        }
        let (start, at, end) = plan;
        let shard = self.shards.get_mut(&lease.shard).expect("admitted");
        if (start, end) != (shard.start, shard.end) || shard.last_key.is_some_and(|key| key >= at) {
            return Err("SplitInvalid");
        }
        shard.end = at;
        shard.fruitless = 0;
        shard.remember(op, payload.clone());
        for &name in named {
            let shard = self.shards.get_mut(&lease.shard).expect("admitted");
            shard.children.push((name, op, payload.clone()));
            self.shards.insert(name, Shard::new(at, end));
        }
        Ok("executed")
    }

    pub(crate) fn unpark(&mut self, id: u64, fence: u64, op: u64) -> Answer {
        let payload = format!("unpark {fence}");
        let Some(shard) = self.shards.get_mut(&id) else { return Err("ShardNotFound") };
        if let Some((_, seen, _)) = shard.log.iter().find(|(id, ..)| *id == op) {
            return if *seen == payload { Ok("replayed") } else { Err("OpIdConflict") };
        }
        if self.run != "active" {
            return Err("RunNotActive");
        }
        if shard.status != "parked" {
            return Err("NotParked");
        }
        if shard.fence != fence {
            return Err("FenceMoved");
        }
        shard.status = "active";
        shard.fence += 1;
        shard.fruitless = 0;
        for (_, payload, result) in &mut shard.log {
            if payload.starts_with("park ") {
                *result = "superseded";
            }
        }
        shard.remember(op, payload);
        Ok("executed")
    }

    pub(crate) fn request_yield(&mut self, id: u64, fence: u64, now: u64) -> Answer {
        let Some(shard) = self.shards.get_mut(&id) else { return Err("ShardNotFound") };
        if self.run != "active" {
            return Err("RunNotActive");
        }
        if shard.status != "active" {
            return Err("ShardTerminal");
        }
        if shard.fence != fence {
            return Err("StaleFence");
        }
        if shard.holder.is_none_or(|(_, deadline)| deadline <= now) {
            return Err("NotLeased");
        }
        shard.asked_to_yield = true;
        Ok("executed")
    }

    pub(crate) fn settle(&mut self, to: &'static str, op: u64) -> Answer {
        if let Some((_, was)) = self.run_log.iter().find(|(id, _)| *id == op) {
            return if *was == to { Ok("replayed") } else { Err("OpIdConflict") };
        }
        if self.run != "active" {
            return Err("Illegal");
        }
        let unfinished = |shard: &Shard| shard.status == "active" || shard.status == "parked";
        if to == "done" && self.shards.values().any(unfinished) {
            return Err("ShardsOpen");
        }
        self.run = to;
        self.run_log.push((op, to));
        Ok("executed")
    }
}
