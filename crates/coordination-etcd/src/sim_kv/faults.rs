//! What goes wrong, and when: scripted for a test that needs one moment, seeded for a simulation that needs many.

use core::time::Duration;

use crate::kv::{Compare, CompareOp, CompareTarget, EtcdLeaseId, Op, Txn};
use crate::random::SplitMix64;

/// One thing that goes wrong with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store says no before it acts.
    Refuse,
    /// No member can be reached; nothing was sent.
    Unreachable,
    /// The request is lost on the way; the caller cannot know.
    LoseRequest,
    /// The store acts, and its answer is lost.
    LoseAnswer,
    /// The caller's deadline passes, and the request arrives this much later all the same.
    Late(Duration),
    /// Another client wrote first: every compare fails, so the failure branches run.
    CompareMiss,
    /// The etcd leases that the transaction names run out just before it arrives.
    LeaseLost,
    /// The request is on its way for this long.
    Delay(Duration),
}

/// Which calls a fault may meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// Reads and read-only transactions.
    Read,
    /// Transactions that may write.
    Write,
    /// Granting and revoking leases.
    Lease,
    /// Heartbeats.
    KeepAlive,
}

/// How often, in parts per million of the calls it can meet, each fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRates {
    /// [`Fault::Refuse`], any call.
    pub refuse_ppm: u32,
    /// [`Fault::Unreachable`], any call.
    pub unreachable_ppm: u32,
    /// [`Fault::LoseRequest`], any call.
    pub lose_request_ppm: u32,
    /// [`Fault::LoseAnswer`], any call.
    pub lose_answer_ppm: u32,
    /// [`Fault::Late`], writes, by up to ten seconds.
    pub late_ppm: u32,
    /// [`Fault::CompareMiss`], writes.
    pub compare_miss_ppm: u32,
    /// [`Fault::LeaseLost`], writes.
    pub lease_lost_ppm: u32,
    /// [`Fault::Delay`], any call, by up to a second.
    pub delay_ppm: u32,
}

impl FaultRates {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        refuse_ppm: 0,
        unreachable_ppm: 0,
        lose_request_ppm: 0,
        lose_answer_ppm: 0,
        late_ppm: 0,
        compare_miss_ppm: 0,
        lease_lost_ppm: 0,
        delay_ppm: 0,
    };

    /// A bad day: about a fifth of all writes meet something.
    pub const STORMY: Self = Self {
        refuse_ppm: 10_000,
        unreachable_ppm: 20_000,
        lose_request_ppm: 20_000,
        lose_answer_ppm: 30_000,
        late_ppm: 10_000,
        compare_miss_ppm: 80_000,
        lease_lost_ppm: 5_000,
        delay_ppm: 30_000,
    };
}

/// Which call meets which fault.
#[derive(Debug)]
pub(super) struct FaultPlan {
    random: SplitMix64,
    rates: FaultRates,
    scripted: Vec<Scripted>,
}

#[derive(Debug)]
struct Scripted {
    kind: CallKind,
    skip: u64,
    fault: Fault,
}

impl FaultPlan {
    pub(super) const fn new(seed: u64) -> Self {
        Self { random: SplitMix64::new(!seed), rates: FaultRates::NONE, scripted: Vec::new() }
    }

    pub(super) const fn set_rates(&mut self, rates: FaultRates) {
        self.rates = rates;
    }

    pub(super) fn inject(&mut self, kind: CallKind, skip: u64, fault: Fault) {
        self.scripted.push(Scripted { kind, skip, fault });
    }

    /// The fault of the next call of this kind: a scripted one if its turn has come, else the dice.
    pub(super) fn next(&mut self, kind: CallKind) -> Option<Fault> {
        let due = self.scripted.iter().position(|scripted| scripted.kind == kind && scripted.skip == 0);
        for scripted in self.scripted.iter_mut().filter(|scripted| scripted.kind == kind) {
            scripted.skip = scripted.skip.saturating_sub(1);
        }
        if let Some(index) = due {
            return Some(self.scripted.remove(index).fault);
        }
        self.roll(kind)
    }

    fn roll(&mut self, kind: CallKind) -> Option<Fault> {
        if self.rates == FaultRates::NONE {
            return None;
        }
        let mut roll = u32::try_from(self.random.below(1_000_000)).unwrap_or(0);
        let wait = self.random.below(10_000);
        let rates = &self.rates;
        let writes = kind == CallKind::Write;
        let candidates = [
            (rates.refuse_ppm, true, Fault::Refuse),
            (rates.unreachable_ppm, true, Fault::Unreachable),
            (rates.lose_request_ppm, true, Fault::LoseRequest),
            (rates.lose_answer_ppm, true, Fault::LoseAnswer),
            (rates.late_ppm, writes, Fault::Late(Duration::from_millis(wait))),
            (rates.compare_miss_ppm, writes, Fault::CompareMiss),
            (rates.lease_lost_ppm, writes, Fault::LeaseLost),
            (rates.delay_ppm, true, Fault::Delay(Duration::from_millis(wait / 10))),
        ];
        for (rate, applies, fault) in candidates {
            if roll < rate {
                return applies.then_some(fault);
            }
            roll -= rate;
        }
        None
    }
}

/// The same transaction with its compares, nested ones too, made to fail.
pub(super) fn missing_every_compare(txn: Txn) -> Txn {
    let miss = |op: Op| if let Op::Txn(nested) = op { Op::Txn(missing_every_compare(nested)) } else { op };
    let mut compares = txn.compares;
    if let Some(first) = compares.first_mut() {
        // A version is never negative, so this holds for no key, present or absent.
        *first = Compare { keys: first.keys.clone(), op: CompareOp::Less, target: CompareTarget::Version(0) };
    }
    Txn {
        compares,
        success: txn.success.into_iter().map(miss).collect(),
        failure: txn.failure.into_iter().map(miss).collect(),
    }
}

/// The leases that a transaction compares with or attaches keys to.
pub(super) fn leases_named(txn: &Txn) -> Vec<EtcdLeaseId> {
    let compared = txn.compares.iter().filter_map(|compare| match compare.target {
        CompareTarget::Lease(lease) => Some(lease),
        _ => None,
    });
    let mut named: Vec<EtcdLeaseId> = compared.collect();
    for op in txn.success.iter().chain(&txn.failure) {
        match op {
            Op::Put { lease, .. } => named.push(*lease),
            Op::Txn(nested) => named.extend(leases_named(nested)),
            Op::Range(_) | Op::Delete(_) => {}
        }
    }
    named.retain(|lease| *lease != EtcdLeaseId::NONE);
    named.sort_unstable();
    named.dedup();
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scripted_fault_meets_exactly_the_call_it_names() {
        let mut plan = FaultPlan::new(0);
        plan.inject(CallKind::Write, 2, Fault::LoseAnswer);
        assert_eq!(plan.next(CallKind::Write), None);
        assert_eq!(plan.next(CallKind::Read), None);
        assert_eq!(plan.next(CallKind::Write), None);
        assert_eq!(plan.next(CallKind::Write), Some(Fault::LoseAnswer));
        assert_eq!(plan.next(CallKind::Write), None);
    }

    #[test]
    fn rates_are_met_and_reads_never_miss_a_compare() {
        let mut plan = FaultPlan::new(9);
        plan.set_rates(FaultRates { compare_miss_ppm: 250_000, ..FaultRates::NONE });
        let misses = (0..10_000).filter(|_| plan.next(CallKind::Write) == Some(Fault::CompareMiss)).count();
        assert!((2_200..2_800).contains(&misses), "{misses} of 10,000 at a quarter");
        assert!((0..1_000).all(|_| plan.next(CallKind::Read).is_none()));
    }
}
