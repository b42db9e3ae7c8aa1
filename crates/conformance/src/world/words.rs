//! Answers, records and events in the words of a story.

use tessera_contracts::keyspace::Fraction;
use tessera_contracts::{CursorSemantics, LogicalTime, RunId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::CoordinationFacade;
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::decide::unreachable::held_back_until;
use tessera_coordination::events::{EventKind, StateTransitionEvent};
use tessera_coordination::record::orders::StandingOrders;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::snapshot::CapacityHint;
use tessera_coordination::run::summary::{ShardFilter, ShardPage, ShardSummary};

use crate::answer::Refused;
use crate::command::reason_text;
use crate::line::{Answer, Line};
use crate::text::{CursorText, RangeText, key_text};

use super::World;

impl<B: CoordinationFacade> World<B> {
    /// A record in words.
    pub(crate) fn shown(&self, record: &ShardRecord) -> Answer {
        let (tenant, head) = (record.tenant, &record.state.head);
        let spawned: Vec<ShardId> = record.spawned.iter().map(|child| child.id).collect();
        let line = Line::new(head.status)
            .fact("incarnation", record.incarnation.get())
            .fact("fence", head.fence)
            .optional("holder", head.lease.map(|holder| worker(holder.owner)))
            .optional("until", head.lease.map(|holder| holder.deadline))
            .fact("range", RangeText::of(record.spec.view()))
            .fact("cursor", CursorText::of(record.cursor.as_update()))
            .fact("semantics", semantics(record.state.cursor_semantics))
            .optional("parent", record.state.parent.map(|id| self.name(tenant, ShardKey::new(record.key.run, id))))
            .list("spawned", self.names(tenant, record.key.run, &spawned))
            .fact("stalled", head.stalled_acquisitions)
            .optional("parked", head.park.map(|park| reason_text(park.reason)))
            .optional("retry after", head.park.and_then(|park| park.retry_after))
            .optional("detail", record.park_detail.as_ref().map(|detail| format!("{detail:?}")))
            .list("unreachable for", record.unreachable.iter().map(|report| worker(report.worker)))
            .optional("held back until", held_back_until(&record.unreachable))
            .fact("asks", orders(head.orders))
            .fact("freed", head.freed)
            .fact("remembers", record.state.op_log.len());
        let rows = record.state.history.iter().map(|owner| {
            Line::new(worker(owner.worker))
                .fact("fence", owner.fence)
                .fact("since", owner.since)
                .fact("because", owner.reason)
        });
        Answer { line, rows: rows.collect(), events: Vec::new() }
    }

    /// All pages of a listing. How full a page is, is the backend's choice; what all of them show together is not.
    pub(super) fn list_shards(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        filter: &ShardFilter,
        limit: usize,
    ) -> Answer {
        let (mut shown, mut page, mut next) = (Vec::new(), Vec::new(), Some(ShardPage::first(limit)));
        while let Some(at) = next {
            next = match self.backend.list_shards_into(now, tenant, run, filter, at, &mut page) {
                Ok(next) => next,
                Err(error) => return error.line().into(),
            };
            if page.len() > at.effective_limit() {
                return Line::new(format_args!("a page of {} shows {}", at.effective_limit(), page.len())).into();
            }
            if next.is_some_and(|next| next.after <= at.after) {
                return Line::new("the next page begins where this one did").into();
            }
            shown.append(&mut page);
        }
        if !shown.is_sorted_by_key(|summary: &ShardSummary| summary.shard) {
            return Line::new("shards are not listed in the order of their ids").into();
        }
        let mut rows: Vec<_> = shown.iter().map(|summary| (self.name_of(tenant, run, summary), summary)).collect();
        // Ids of split shards are hashes: sorted by name they read better.
        rows.sort_by(|(a, _), (b, _)| a.cmp(b));
        let rows = rows.into_iter().map(|(name, summary)| {
            Line::new(name)
                .fact("status", summary.status)
                .fact("incarnation", summary.incarnation.get())
                .fact("fence", summary.fence)
                .fact("acquired", summary.acquire_count)
                .optional("holder", summary.lease.map(|holder| worker(holder.owner)))
                .optional("until", summary.lease_deadline())
                .optional("parked", summary.park.map(|park| reason_text(park.reason)))
                .optional("retry after", summary.park.and_then(|park| park.retry_after))
                .fact("asks", orders(summary.orders))
                .fact("stalled", summary.stalled_acquisitions)
                .optional("start", summary.start.expose().map(key_text))
                .optional("end", summary.end.expose().map(key_text))
                .optional("cursor", summary.last_key.expose().map(key_text))
                .optional("parent", summary.parent.map(|id| self.name(tenant, ShardKey::new(run, id))))
                .fact("spawned", summary.spawned_count)
                .fact("reports", summary.unreachable_reports)
        });
        let rows: Vec<_> = rows.collect();
        Answer { line: Line::new(format_args!("{} shards", rows.len())), rows, events: Vec::new() }
    }

    fn name_of(&self, tenant: TenantId, run: RunId, summary: &ShardSummary) -> String {
        self.name(tenant, ShardKey::new(run, summary.shard))
    }

    pub(super) fn names(&self, tenant: TenantId, run: RunId, shards: &[ShardId]) -> Vec<String> {
        shards.iter().map(|shard| self.name(tenant, ShardKey::new(run, *shard))).collect()
    }

    pub(super) fn event_line(&self, now: LogicalTime, tenant: TenantId, event: &StateTransitionEvent) -> Line {
        let name = |shard: &ShardId| self.name(event.tenant, ShardKey::new(event.run, *shard));
        let line = match &event.kind {
            EventKind::ShardAcquired { shard, worker: owner, fence_epoch, reason } => Line::new("shard acquired")
                .fact("shard", name(shard))
                .fact("by", worker(*owner))
                .fact("fence", fence_epoch)
                .fact("because", reason),
            EventKind::ShardCheckpointed { shard, last_key } => Line::new("shard checkpointed")
                .fact("shard", name(shard))
                .optional("at", last_key.expose().map(key_text)),
            EventKind::ShardResidualCreated { parent, residual } => {
                Line::new("residual created").fact("parent", name(parent)).fact("residual", name(residual))
            }
            EventKind::ShardUnparked { shard, new_fence_epoch } => {
                Line::new("shard unparked").fact("shard", name(shard)).fact("fence", new_fence_epoch)
            }
            EventKind::ShardLeaseRenewed { shard, new_deadline } => {
                Line::new("lease renewed").fact("shard", name(shard)).fact("until", new_deadline)
            }
            EventKind::ShardReleased { shard, reason } => {
                Line::new("shard released").fact("shard", name(shard)).fact("because", reason)
            }
            EventKind::ShardOrdered { shard, order } => {
                let line = Line::new("holder asked").fact("shard", name(shard));
                match order {
                    OrderRequest::Yield => line.fact("to", "yield"),
                    OrderRequest::Split(kept) => line.fact("to keep", percent_text(*kept)),
                }
            }
            EventKind::ShardCompleted { shard } => Line::new("shard completed").fact("shard", name(shard)),
            EventKind::ShardParked { shard, reason } => {
                Line::new("shard parked").fact("shard", name(shard)).fact("because", reason_text(*reason))
            }
            EventKind::ShardSplit { parent, children } => {
                Line::new("shard split").fact("parent", name(parent)).list("children", children.iter().map(name))
            }
            EventKind::RunCreated => Line::new("run created"),
            EventKind::RunActivated { shard_count } => Line::new("run activated").fact("shards", shard_count),
            EventKind::RunCompleted => Line::new("run completed"),
            EventKind::RunFailed => Line::new("run failed"),
            EventKind::RunCancelled => Line::new("run cancelled"),
            EventKind::RunRetired { shard_count } => Line::new("run retired").fact("shards", shard_count),
            other => Line::new(format_args!("{other:?}")),
        };
        let line = line.fact("run", event.run.get());
        let line = if event.tenant == tenant { line } else { line.fact("of another tenant", event.tenant) };
        if event.at == now { line } else { line.fact("at another time", event.at) }
    }
}

pub(super) fn percent(kept: u32) -> Fraction {
    Fraction::from_millionths(kept * 10_000).expect("a story's percentages lie between 1 and 99")
}

fn percent_text(kept: Fraction) -> String {
    format!("{}%", kept.millionths() / 10_000)
}

pub(super) fn worker(id: WorkerId) -> String {
    format!("w{}", id.get())
}

pub(super) const fn semantics(semantics: CursorSemantics) -> &'static str {
    match semantics {
        CursorSemantics::Completed => "completed",
        CursorSemantics::Dispatched => "dispatched",
    }
}

pub(super) fn orders(orders: StandingOrders) -> String {
    match (orders.yield_requested, orders.split_requested) {
        (false, None) => "nothing".into(),
        (true, None) => "yield".into(),
        (false, Some(kept)) => format!("keep {}", percent_text(kept)),
        (true, Some(kept)) => format!("yield and keep {}", percent_text(kept)),
    }
}

pub(super) fn with_capacity(line: Line, capacity: CapacityHint) -> Line {
    line.fact("available", capacity.available_count).optional("earliest", capacity.earliest_deadline)
}
