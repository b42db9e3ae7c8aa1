//! A backend with one rule broken: it accepts requests it should refuse, forgets operations it should remember, or shows impossible
//! records. A check that does not notice it is no check; `docs/MUTANTS.md` names the check that catches each rule.

use clap::ValueEnum;
use tessera_contracts::ids::{FenceEpoch, LogicalTime, OpId, RunId, ShardKey, TenantId, WorkerId};
use tessera_contracts::{Cursor, CursorUpdate, ShardSpec};
use tessera_coordination::Lease;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::record::view::OwnerSignal;
use tessera_coordination::run::status::{RunGate, RunStatus};
use tessera_coordination::run::summary::{ShardFilter, ShardPage};

use super::call::{Backend, edge_number, key_bytes, key_number};
use super::forged::Forged;
use super::sink::Sink;

mod backend;

/// Which rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the names say which rule is broken")]
pub enum Rule {
    None,
    SinkUnfenced,
    SplitDenied,
    FenceUnchecked,
    ExpiryUnchecked,
    RunIgnored,
    OpLogForgotten,
    UnparkUnconditional,
    SplitShowsNoChildren,
    ActiveRunIsSettled,
    CursorBelowStart,
    CursorForgotten,
    FenceGoesBack,
    OwnerSwapped,
    DoneIsOpen,
    ChildIsShort,
    CheckpointRunsAhead,
    RunChangesItsMind,
    NoSkewTolerance,
    NoCooldown,
    HintsLie,
    NothingCompletes,
    CursorUnchecked,
    ReleaseForgotten,
    IncarnationUnchecked,
    SinkMixesRuns,
    ReportParks,
    ReportForgotten,
    ReportStallsClaims,
}

impl Rule {
    /// Every rule that can be broken.
    pub const ALL: [Self; 28] = [
        Self::SinkUnfenced,
        Self::SplitDenied,
        Self::FenceUnchecked,
        Self::ExpiryUnchecked,
        Self::RunIgnored,
        Self::OpLogForgotten,
        Self::UnparkUnconditional,
        Self::SplitShowsNoChildren,
        Self::ActiveRunIsSettled,
        Self::CursorBelowStart,
        Self::CursorForgotten,
        Self::FenceGoesBack,
        Self::OwnerSwapped,
        Self::DoneIsOpen,
        Self::ChildIsShort,
        Self::CheckpointRunsAhead,
        Self::RunChangesItsMind,
        Self::NoSkewTolerance,
        Self::NoCooldown,
        Self::HintsLie,
        Self::NothingCompletes,
        Self::CursorUnchecked,
        Self::ReleaseForgotten,
        Self::IncarnationUnchecked,
        Self::SinkMixesRuns,
        Self::ReportParks,
        Self::ReportForgotten,
        Self::ReportStallsClaims,
    ];

    /// The property that is there for it.
    pub const fn caught_by(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::SinkUnfenced => "EffectsFenced",
            Self::SplitDenied => "EffectsInRange",
            Self::FenceUnchecked => "ControlFenced",
            Self::ExpiryUnchecked => "ExpiredIsRefused",
            Self::RunIgnored => "SettledRunIsQuiet",
            Self::OpLogForgotten => "ReplayAnswersAgree",
            Self::UnparkUnconditional => "AtMostOnce",
            Self::SplitShowsNoChildren => "RecordInvariants",
            Self::ActiveRunIsSettled => "RunInvariants",
            Self::CursorBelowStart => "CursorInBounds",
            Self::CursorForgotten => "CursorMonotonic",
            Self::FenceGoesBack => "FenceMonotonic",
            Self::OwnerSwapped => "OwnerChangeBumpsFence",
            Self::DoneIsOpen => "TerminalIrreversible",
            Self::ChildIsShort => "SplitTiles",
            Self::CheckpointRunsAhead => "Coverage",
            Self::RunChangesItsMind => "RunTerminalIrreversible",
            Self::NoSkewTolerance => "NoTheftFromLiveOwner",
            Self::NoCooldown => "ClaimCooldown",
            Self::HintsLie => "HintsAreTrue",
            Self::NothingCompletes => "RunSettles",
            Self::CursorUnchecked => "WrongIsRefused",
            Self::ReleaseForgotten => "DoneAsAsked",
            Self::IncarnationUnchecked | Self::SinkMixesRuns => "IncarnationFenced",
            Self::ReportParks | Self::ReportForgotten | Self::ReportStallsClaims => "UnreachableForAll",
        }
    }

    /// The result store beside a backend with this rule broken.
    pub fn sink(self) -> Sink {
        let mut sink = Sink::default();
        sink.unfenced = self == Self::SinkUnfenced;
        sink.mixed = self == Self::SinkMixesRuns;
        sink
    }
}

/// A backend that breaks one rule.
#[derive(Debug)]
pub struct Broken<B> {
    inner: B,
    rule: Rule,
    reads: u64,
    ops: u64,
}

impl<B: Backend> Broken<B> {
    /// The backend `inner`, with this rule broken.
    pub fn new(inner: B, rule: Rule) -> Self {
        Self { inner, rule, reads: 0, ops: 1 << 40 }
    }

    fn fresh_op(&mut self) -> OpId {
        self.ops += 1;
        OpId::new(self.ops)
    }

    fn op(&mut self, op: OpId) -> OpId {
        if self.rule == Rule::OpLogForgotten { self.fresh_op() } else { op }
    }

    /// Another lease or another time than the worker showed.
    fn let_in(&mut self, now: LogicalTime, tenant: TenantId, lease: &Lease) -> (LogicalTime, Lease) {
        let Ok(record) = self.inner.get_shard(tenant, lease.key()) else { return (now, *lease) };
        let gate = RunGate { status: RunStatus::Active, lease_duration: 1, max_shard_retries: 0 };
        let current = Lease::of_holder(&record.view(gate, OwnerSignal::Alive));
        match (self.rule, current) {
            (Rule::FenceUnchecked, Some(current)) => (now, current),
            // Of the lease it showed, all but the run that it was granted in.
            (Rule::IncarnationUnchecked, _) => {
                let (owner, fence) = (lease.owner(), lease.fence());
                (now, Forged { owner, fence, ..Forged::of(&record) }.granted())
            }
            (Rule::ExpiryUnchecked, Some(current)) => {
                (LogicalTime::new(now.get().min(current.deadline().get() - 1)), *lease)
            }
            _ => (now, *lease),
        }
    }

    /// Whether some open shard of the run was reported unreachable.
    fn has_reported_shards(&mut self, tenant: TenantId, run: RunId) -> bool {
        let (mut page, mut found) = (Some(ShardPage::first(1_000)), Vec::new());
        while let Some(next) = page {
            let listed =
                self.inner.list_shards_into(LogicalTime::new(1), tenant, run, &ShardFilter::all(), next, &mut found);
            for shard in found.iter().map(|summary| ShardKey::new(run, summary.shard)) {
                let record = self.inner.get_shard(tenant, shard);
                if record.is_ok_and(|record| !record.state.head.status.is_terminal() && !record.unreachable.is_empty())
                {
                    return true;
                }
            }
            page = listed.unwrap_or_default();
        }
        false
    }

    fn one_key_ahead(&mut self, tenant: TenantId, lease: &Lease, cursor: CursorUpdate<'_>) -> Option<Cursor> {
        if self.rule != Rule::CheckpointRunsAhead {
            return None;
        }
        let record = self.inner.get_shard(tenant, lease.key()).ok()?;
        let next = key_bytes(key_number(cursor.last_key()?) + 1);
        record
            .spec
            .range()
            .contains(&next)
            .then(|| Cursor::new(Some(&next), None).expect("a key of two bytes makes a cursor"))
    }

    /// Shows an impossible record now and then.
    fn distort(&self, record: &mut ShardRecord) {
        let head = &mut record.state.head;
        // The first reads are true, so that there is something to differ from.
        let now_and_then = self.reads > 20 && self.reads.is_multiple_of(3);
        match self.rule {
            Rule::SplitShowsNoChildren if head.status == ShardStatus::Split => record.spawned.clear(),
            Rule::CursorBelowStart => {
                let start = edge_number(record.spec.start());
                if start > 0 && now_and_then {
                    record.cursor =
                        Cursor::new(Some(&key_bytes(start - 1)), None).expect("a key of two bytes makes a cursor");
                }
            }
            Rule::CursorForgotten if now_and_then => record.cursor = Cursor::initial(),
            Rule::FenceGoesBack if now_and_then => head.fence = FenceEpoch::INITIAL,
            Rule::OwnerSwapped if now_and_then => {
                if let Some(holder) = &mut head.lease {
                    holder.owner = WorkerId::new(77);
                }
            }
            Rule::DoneIsOpen if now_and_then && head.status == ShardStatus::Done => head.status = ShardStatus::Active,
            Rule::ChildIsShort if record.state.parent.is_some() && record.cursor.is_initial() => {
                let (start, end) = (edge_number(record.spec.start()), edge_number(record.spec.end()));
                if end - start > 1 {
                    record.spec =
                        ShardSpec::new(&key_bytes(start), &key_bytes(end - 1), b"").expect("there are keys left");
                }
            }
            _ => {}
        }
    }
}
