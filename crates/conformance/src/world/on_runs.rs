//! An operator's commands about runs, and about shards from outside.

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, TenantId, WorkerId,
};
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::events::{EventCollector, EventKind};
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::run::explain::ClaimVerdict;
use tessera_coordination::run::progress::{RunTerminalEvaluation, evaluate_run_terminal};
use tessera_coordination::{CoordinationFacade, IdempotentOutcome};

use crate::answer::{Refused, line_of, outcome};
use crate::command::{Command, OrderText, Roots, reason_text};
use crate::line::{Answer, Line};
use crate::text::{EpochText, ShardName, key_text};

use super::World;
use super::words::{percent, semantics};

impl<B: CoordinationFacade> World<B> {
    pub(super) fn play_run_command(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        command: &Command,
        op: OpId,
        events: &mut EventCollector,
    ) -> Result<Answer, String> {
        Ok(match command {
            Command::CreateRun { run, incarnation, config } => {
                let (run, incarnation) = (RunId::new(*run), self.draw(*incarnation));
                let created = self.backend.create_run_with_events(now, tenant, run, incarnation, *config, events);
                line_of(&created, |()| Line::new("created")).into()
            }
            Command::Register { run, roots, .. } => {
                let owned = numbered(roots);
                let inputs = inputs(roots, &owned);
                let run = RunId::new(*run);
                let done = self.backend.register_shards_with_events(now, tenant, run, &inputs, op, events);
                self.registered(tenant, run, &inputs, done.as_ref().is_ok_and(IdempotentOutcome::is_executed));
                line_of(&done, |done| outcome(done).fact("count", done.get())).into()
            }
            Command::Start { run, incarnation, config, roots, .. } => {
                let owned = numbered(roots);
                let inputs = inputs(roots, &owned);
                let (run, incarnation) = (RunId::new(*run), self.draw(*incarnation));
                let done = self.backend.create_run_with_shards(now, tenant, run, incarnation, *config, &inputs, op);
                self.registered(tenant, run, &inputs, done.as_ref().is_ok_and(IdempotentOutcome::is_executed));
                line_of(&done, |done| outcome(done).fact("count", done.get())).into()
            }
            Command::Settle { run, settlement, .. } => {
                let run = RunId::new(*run);
                let done = self.backend.settle_run_with_events(now, tenant, run, *settlement, op, events);
                line_of(&done, outcome).into()
            }
            Command::Retire { settled_until, limit } => {
                let until = LogicalTime::new(*settled_until);
                let retired = self.backend.retire_runs_with_events(now, tenant, until, *limit, events);
                for event in events.iter().filter(|event| matches!(event.kind, EventKind::RunRetired { .. })) {
                    self.names.retain(|(owner, run, _), _| !(*owner == tenant && *run == event.run));
                    self.spawned.retain(|(owner, key), _| !(*owner == tenant && key.run == event.run));
                }
                line_of(&retired, |count| Line::new(format_args!("{count} retired"))).into()
            }
            Command::ShowRun { run } => line_of(&self.backend.get_run(tenant, RunId::new(*run)), |run| {
                Line::new(run.status)
                    .fact("incarnation", run.incarnation.get())
                    .fact("created", run.created_at)
                    .optional("settled", run.completed_at)
                    .list("roots", run.root_shards.iter().map(|shard| shard.get()))
                    .optional("lease", run.config.lease_duration)
                    .fact("retries", run.config.max_shard_retries)
                    .fact("semantics", semantics(run.config.cursor_semantics))
                    .list("remembers", run.op_log.iter().map(|entry| format!("{}:{}", entry.kind, entry.op_id.get())))
            })
            .into(),
            Command::ShowShard { shard } => {
                let key = self.resolve(tenant, shard)?;
                match self.backend.get_shard(tenant, key) {
                    Ok(record) => self.shown(&record),
                    Err(error) => error.line().into(),
                }
            }
            Command::ListRuns { after, limit } => {
                let mut runs = Vec::new();
                let listed = self.backend.list_runs_into(tenant, after.map(RunId::new), *limit, &mut runs);
                let rows = runs.iter().map(|run| {
                    Line::new(run.run.get())
                        .fact("status", run.status)
                        .fact("incarnation", run.incarnation.get())
                        .fact("created", run.created_at)
                        .optional("settled", run.completed_at)
                });
                let rows: Vec<_> = rows.collect();
                Answer {
                    line: line_of(&listed, |()| Line::new(format_args!("{} runs", rows.len()))),
                    rows,
                    events: Vec::new(),
                }
            }
            Command::ListShards { run, filter, limit } => {
                self.list_shards(now, tenant, RunId::new(*run), filter, *limit)
            }
            Command::Progress { run } => {
                line_of(&self.backend.get_run_progress(now, tenant, RunId::new(*run)), |progress| {
                    let evaluation = match evaluate_run_terminal(&progress.counts) {
                        RunTerminalEvaluation::StillActive => "still active",
                        RunTerminalEvaluation::HasFailures => "has failures",
                        RunTerminalEvaluation::AllDone => "all done",
                    };
                    Line::new(evaluation)
                        .fact("active", progress.counts.active)
                        .fact("done", progress.counts.done)
                        .fact("split", progress.counts.split)
                        .fact("parked", progress.counts.parked)
                        .fact("leased", progress.leased)
                        .optional("watermark", progress.watermark.expose().map(key_text))
                })
                .into()
            }
            Command::Candidates { run, worker, limit } => {
                let (run, worker) = (RunId::new(*run), WorkerId::new(*worker));
                let mut candidates = Vec::new();
                let listed =
                    self.backend.collect_claim_candidates_into(now, tenant, run, worker, *limit, &mut candidates);
                // Which candidates come first is the backend's choice, so they are shown in order of id.
                candidates.sort_unstable();
                let count = candidates.len();
                let names = self.names(tenant, run, &candidates);
                line_of(&listed, |()| Line::new(format_args!("{count} candidates")).list("shards", names)).into()
            }
            Command::Explain { run, worker } => {
                let explained = self.backend.explain_claim(now, tenant, RunId::new(*run), WorkerId::new(*worker));
                line_of(&explained, |why| {
                    let verdict = match why.verdict() {
                        ClaimVerdict::Claimable => "claimable",
                        ClaimVerdict::RunNotActive(_) => "run not active",
                        ClaimVerdict::CoolingDown { .. } => "cooling down",
                        ClaimVerdict::AllLeased { .. } => "all leased",
                        ClaimVerdict::HeldBack { .. } => "held back",
                        ClaimVerdict::OnlyUnreachableLeft => "only unreachable left",
                        ClaimVerdict::OnlyParkedLeft => "only parked left",
                        ClaimVerdict::AllSettled => "all settled",
                    };
                    let parked = ParkReason::ALL.into_iter().zip(why.parked).filter(|(_, count)| *count > 0);
                    Line::new(verdict)
                        .fact("run", why.run)
                        .fact("available", why.available)
                        .fact("leased", why.leased)
                        .optional("earliest", why.earliest_deadline)
                        .fact("unreachable", why.unreachable)
                        .fact("held back", why.held_back)
                        .optional("given out", why.soonest_given_out)
                        .list("parked", parked.map(|(reason, count)| format!("{count} {}", reason_text(reason))))
                        .optional("retry after", why.soonest_retry_after)
                        .fact("settled", why.settled)
                        .optional("cooldown until", why.cooldown_until)
                })
                .into()
            }
            Command::Unpark { shard, epoch, .. } => {
                let key = self.resolve(tenant, shard)?;
                let expected = self.epoch(tenant, key.run, *epoch);
                let done = self.backend.unpark_shard_with_events(now, tenant, key, expected, op, events);
                line_of(&done, |done| outcome(done).fact("fence", done.get())).into()
            }
            Command::Order { shard, epoch, order } => {
                let key = self.resolve(tenant, shard)?;
                let order = match order {
                    OrderText::Yield => OrderRequest::Yield,
                    OrderText::KeepPercent(kept) => OrderRequest::Split(percent(*kept)),
                };
                let epoch = self.epoch(tenant, key.run, *epoch);
                let asked = self.backend.order_with_events(now, tenant, key, epoch, order, events);
                line_of(&asked, |()| Line::new("asked")).into()
            }
            Command::LoseSession { .. } => return Err("losing a session is up to the factory of the backend".into()),
            _ => return Err(format!("`{command}` is not about a run")),
        })
    }

    /// The incarnation a creator draws: the one the story says, or one that none drew before.
    fn draw(&mut self, told: Option<u64>) -> RunIncarnation {
        RunIncarnation::new(told.unwrap_or_else(|| {
            self.drawn += 1;
            self.drawn
        }))
    }

    /// An ownership as the story names it: of the run that is there, unless the story names another incarnation.
    fn epoch(&mut self, tenant: TenantId, run: RunId, text: EpochText) -> ShardEpoch {
        let incarnation = text.incarnation.map(RunIncarnation::new).unwrap_or_else(|| {
            self.backend.get_run(tenant, run).map_or(RunIncarnation::new(u64::MAX), |record| record.incarnation)
        });
        ShardEpoch::new(incarnation, FenceEpoch::new(text.fence))
    }

    fn registered(&mut self, tenant: TenantId, run: RunId, roots: &[InitialShardInput<'_>], executed: bool) {
        if executed {
            let named = roots.iter().map(|root| ((tenant, run, root.shard), ShardName::root(run.get(), root.shard)));
            self.names.extend(named);
        }
    }
}

/// The edges of numbered roots: shard `n` covers the keys that begin with `n` in eight digits.
fn numbered(roots: &Roots) -> Vec<String> {
    match roots {
        Roots::Numbered { first, last } => (*first..=last + 1).map(|number| format!("{number:08}")).collect(),
        Roots::Listed(_) => Vec::new(),
    }
}

fn inputs<'a>(roots: &'a Roots, edges: &'a [String]) -> Vec<InitialShardInput<'a>> {
    match roots {
        Roots::Numbered { first, .. } => edges
            .windows(2)
            .zip(*first..)
            .map(|(edges, shard)| InitialShardInput::new(ShardId::new(shard), edges[0].as_bytes(), edges[1].as_bytes()))
            .collect(),
        Roots::Listed(roots) => roots
            .iter()
            .map(|root| InitialShardInput {
                shard: ShardId::new(root.shard),
                start: &root.range.start,
                end: &root.range.end,
                metadata: &root.range.metadata,
                last_key: root.cursor.last_key.as_deref(),
                token: root.cursor.token.as_deref(),
            })
            .collect(),
    }
}
