//! One operation: a lookup, and for writes what follows it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_stdx::TimerHandle;

use super::announcing::Announcing;
use super::writes::Writes;
use crate::contact::Contact;
use crate::lookup::{Candidate, Finish, Goal, Lookup, LookupConfig, Standing};
use crate::node::command::{Answer, Asked, Budget, CommandId, Outcome, Privacy};
use crate::node::context::Context;
use crate::node::peers::Peers;
use crate::node::requests::Timer;

/// Names one operation, until it has ended; after that it finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OperationId {
    pub(super) at: u16,
    /// Keeps late replies to former operations in the same place out.
    pub(super) generation: u32,
}

#[cfg(test)]
impl OperationId {
    /// The name of no operation that is under way.
    pub(crate) const fn none() -> Self {
        Self { at: 0, generation: 0 }
    }
}

/// What an operation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    Idle,
    FindNode,
    Get {
        mutable: bool,
    },
    Put,
    FindProviders,
    /// Find our own neighbours: the end of it is the end of joining.
    Join,
    /// Refresh a bucket.
    Refresh,
    /// Announce ids of one region.
    Announce,
}

impl Task {
    /// How a lookup for this task behaves. A write must find everybody it belongs to, and a sweep everybody of a region: both take the time
    /// that needs, and as all the nearest will have to be asked, there is nothing to be spared by asking few at a time.
    pub(super) fn lookup_config(self, config: LookupConfig) -> LookupConfig {
        let budgets = match self {
            Self::Put => 2,
            Self::Announce => 8,
            _ => return config,
        };
        LookupConfig { budget_ms: config.budget_ms * budgets, alpha_min: config.alpha_max, ..config }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Looking for the region only, under a false target.
    Blind,
    /// The same for a lookup that ended inconclusively, or for a write that met a crowd.
    Around,
    Walking,
    Writing,
}

/// What an operation begins with.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) task: Task,
    pub(crate) command: Option<CommandId>,
    pub(crate) target: [u8; 32],
    pub(crate) goal: Goal,
    pub(crate) privacy: Privacy,
    pub(crate) budget: Budget,
    /// What a put stores; and if it is held for others, how often holders that were asked too often refused it before.
    pub(crate) record: Vec<u8>,
    pub(crate) refusals: Option<u8>,
    /// This node is one of those that the record belongs to, and holds it.
    pub(crate) is_held_here: bool,
    pub(crate) announcing: Option<Box<Announcing>>,
}

impl Start {
    /// Work that no command waits for.
    pub(crate) fn unasked(task: Task, target: [u8; 32]) -> Self {
        Self {
            task,
            command: None,
            target,
            goal: Goal::Nodes,
            privacy: Privacy::None,
            budget: Budget::default(),
            record: Vec::new(),
            refusals: None,
            is_held_here: false,
            announcing: None,
        }
    }

    /// Storing a record.
    pub(crate) fn put(id: &ContentId, record: Vec<u8>) -> Self {
        Self { record, ..Self::unasked(Task::Put, *id.as_bytes()) }
    }

    /// Announcing ids around a point.
    pub(crate) fn announce(target: &ContentId, announcing: Box<Announcing>) -> Self {
        Self { announcing: Some(announcing), ..Self::unasked(Task::Announce, *target.as_bytes()) }
    }
}

/// Contacts that a lookup was given besides those it began with.
#[derive(Debug, Clone, Copy, Default)]
struct Offered {
    /// Whether it has been given the configured seeds.
    seeds: bool,
    /// How often it has been given contacts that fell silent lately, and how many had answered it the last time.
    lost_rounds: u8,
    answers_before: u16,
}

/// What a walk came to that was followed by another.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstWalk {
    pub(super) requests: u16,
    pub(super) elapsed_ms: u64,
    pub(super) goal: Goal,
    met_crowd: bool,
}

/// Rounds in which a lookup is given contacts that fell silent lately: another follows only if one of the last was there.
pub(super) const LOST_ROUNDS_MAX: u8 = 4;

/// Requests of one operation for which room is reserved: as many as a lookup or a write has in flight by default.
const IN_FLIGHT_RESERVED: usize = 24;

/// One operation. Its memory is used again and again while there is something to do.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) id: OperationId,
    pub(super) task: Task,
    pub(super) command: Option<CommandId>,
    pub(super) budget: Budget,
    pub(super) privacy: Privacy,
    /// The point really looked for; while blind the lookup has another.
    pub(super) target: [u8; 32],
    pub(super) phase: Phase,
    pub(super) lookup: Lookup,
    pub(super) writes: Writes,
    offered: Offered,
    /// What a walk came to that was followed by another, by way of the region.
    pub(super) first_walk: Option<FirstWalk>,
    awaited: Awaited,
}

/// What an operation waits for, and all that is left to clean up when it ends.
#[derive(Debug)]
struct Awaited {
    /// When it is looked at again though nothing comes.
    wake: Option<(u64, TimerHandle)>,
    /// Correlation ids of what is in flight: few.
    in_flight: Vec<u64>,
}

impl Operation {
    pub(super) fn new(at: u16) -> Self {
        Self {
            id: OperationId { at, generation: 0 },
            task: Task::Idle,
            command: None,
            budget: Budget::default(),
            privacy: Privacy::None,
            target: [0; 32],
            phase: Phase::Walking,
            lookup: Lookup::new(),
            writes: Writes::new(),
            offered: Offered::default(),
            first_walk: None,
            awaited: Awaited { wake: None, in_flight: Vec::with_capacity(IN_FLIGHT_RESERVED) },
        }
    }

    /// Begins anew.
    pub(super) fn begin(&mut self, generation: u32, start: Start) {
        self.id.generation = generation;
        (self.task, self.command, self.target) = (start.task, start.command, start.target);
        (self.privacy, self.budget) = (start.privacy, start.budget);
        self.phase = if start.privacy == Privacy::Blind { Phase::Blind } else { Phase::Walking };
        self.offered = Offered::default();
        self.first_walk = None;
        self.writes.begin(start);
    }

    /// Gives back what it held, and is free.
    pub(super) fn release(&mut self, cx: &mut Context<'_>) {
        self.task = Task::Idle;
        self.command = None;
        self.first_walk = None;
        self.writes.release();
        if let Some((_, timer)) = self.awaited.wake.take() {
            cx.timers.wheel.cancel(timer);
        }
    }

    pub(super) fn content_id(&self) -> ContentId {
        ContentId::from_bytes(self.target)
    }

    /// Looks again at `wake_ms`, and at no other time that was set before.
    pub(super) fn wake_at(&mut self, cx: &mut Context<'_>, wake_ms: u64) {
        if let Some((set_ms, timer)) = self.awaited.wake {
            if set_ms == wake_ms {
                return; // As after most answers: the end of the lookup's time.
            }
            cx.timers.wheel.cancel(timer);
        }
        let timer = cx.timers.wheel.insert(wake_ms, Timer::Operation(self.id));
        self.awaited.wake = timer.ok().map(|timer| (wake_ms, timer));
    }

    /// Its timer has fired.
    pub(super) fn woken(&mut self) {
        self.awaited.wake = None;
    }

    pub(super) fn sent(&mut self, correlation: u64) {
        self.awaited.in_flight.push(correlation);
    }

    pub(super) fn settled(&mut self, correlation: u64) {
        if let Some(place) = self.awaited.in_flight.iter().position(|sent| *sent == correlation) {
            self.awaited.in_flight.swap_remove(place);
        }
    }

    /// Forgets what is still in flight: nothing waits for it any more, and the peers' shares of requests are free again.
    pub(super) fn cancel_requests(&mut self, cx: &mut Context<'_>, peers: &mut Peers) {
        while let Some(correlation) = self.awaited.in_flight.pop() {
            peers.cancel(cx, correlation);
        }
    }

    /// Gives the lookup some of the configured seeds. Once: they are few, and everybody's.
    pub(super) fn offer_seeds(&mut self, cx: &mut Context<'_>, peers: &Peers) {
        if !core::mem::replace(&mut self.offered.seeds, true) {
            let now = cx.now;
            let is_usable = |seed: &Contact| !peers.admission().is_quarantined(now, &seed.key);
            peers.members().offer_seeds(cx, &mut self.lookup, is_usable);
        }
    }

    /// Gives the lookup as many of the next nearest of the table as have been silent. A lookup that no command or write waits for does not ask the
    /// more, the more are gone.
    pub(super) fn widen(&mut self, cx: &Context<'_>, peers: &Peers) {
        let lacking = if matches!(self.task, Task::Join | Task::Refresh) { 0 } else { self.lookup.lacking() };
        if lacking > 0 {
            let is_usable = |contact: &Contact| !peers.is_quarantined(cx, &contact.key);
            peers.members().offer_next(&mut self.lookup, lacking, is_usable);
        }
    }

    /// Gives a lookup that would end without what it looks for contacts that fell silent lately. Says whether there are any.
    pub(super) fn offer_lost(&mut self, cx: &Context<'_>, peers: &Peers) -> bool {
        let answers = self.lookup.stats(cx.now.mono_ms).answers;
        let Offered { lost_rounds, answers_before, .. } = &mut self.offered;
        let goes_on = *lost_rounds == 0 || *lost_rounds < LOST_ROUNDS_MAX && answers > *answers_before;
        if !matches!(self.task, Task::Get { .. } | Task::FindProviders) || self.phase != Phase::Walking || !goes_on {
            return false;
        }
        (*lost_rounds, *answers_before) = (*lost_rounds + 1, answers);
        peers.members().offer_lost(&mut self.lookup, |contact| !peers.is_quarantined(cx, &contact.key))
    }

    /// A contact that was asked only because it may be back, and is not, is not asked twice: a command waits for the answer that there is
    /// nothing.
    pub(super) fn give_up_lost(&mut self, peers: &Peers, peer: &NodeId) {
        if self.offered.lost_rounds > 0 && peers.members().is_lost(peer) {
            self.lookup.give_up(peer);
        }
    }

    /// What its command is told.
    pub(super) fn outcome(&self, cx: &Context<'_>, answer: Answer, finish: Finish) -> Outcome {
        let asked = self.lookup.candidates().iter().filter(|candidate| candidate.standing != Standing::Fresh);
        let asked = asked.map(|candidate| Asked {
            id: candidate.id,
            addr: candidate.contact.addr,
            standing: candidate.standing,
            hops: candidate.hops,
            useful: candidate.had_result || self.writes.is_acknowledged_by(&candidate.id),
            via: candidate.via,
            asked_after_ms: candidate.asked_ms.saturating_sub(self.lookup.started_ms()),
            took_ms: (candidate.answered_ms > 0).then(|| candidate.answered_ms.saturating_sub(candidate.asked_ms)),
        });
        let mut stats = self.lookup.stats(cx.now.mono_ms);
        if let Some(before) = &self.first_walk {
            stats.requests = stats.requests.saturating_add(before.requests);
            stats.elapsed_ms = stats.elapsed_ms.saturating_add(before.elapsed_ms);
        }
        Outcome { answer, finish: Some(finish), stats, asked: asked.collect() }
    }

    /// How many other nodes the target belongs to: K, or all of a smaller network. Of its own table, such a network has lost those that were
    /// silent.
    pub(super) fn holders_expected(&self, cx: &Context<'_>, peers: &Peers, finish: Finish) -> usize {
        let k = cx.place.config.lookup.k;
        let others = (peers.members().network_size(cx.timers.wheel.now()) + 0.5) as usize - 1;
        if others >= k || finish != Finish::Exhausted {
            return others.min(k);
        }
        let is_gone = |candidate: &&Candidate| {
            candidate.via.is_none() && matches!(candidate.standing, Standing::Silent | Standing::Dead)
        };
        others.saturating_sub(self.lookup.candidates().iter().filter(is_gone).count())
    }

    /// Whether a lookup that ended so and found nothing says that there is nothing. A walk around leaves out those that were asked before: where it
    /// met no others, or where the first met a crowd, holders may be among those that neither met.
    pub(super) fn is_conclusive(&self, cx: &Context<'_>, peers: &Peers, finish: Finish) -> bool {
        let leaves_open = self.first_walk.is_some_and(|first| first.met_crowd || finish == Finish::Alone);
        !leaves_open && self.lookup.is_conclusive(finish, self.holders_expected(cx, peers, finish))
    }

    /// Whether a walk that ended so is to be followed by another, by way of the region. Once, and not if its command has a budget of its own.
    pub(super) fn goes_around(&self, cx: &Context<'_>, peers: &Peers, finish: Finish) -> bool {
        let config = &cx.place.config.lookup;
        let may = config.retry_by_region
            && self.phase == Phase::Walking
            && self.first_walk.is_none()
            && self.budget == Budget::default()
            // Where nobody answers, nobody knows a way around.
            && self.lookup.stats(cx.now.mono_ms).answers > 0;
        may && match self.task {
            Task::Get { .. } => self.lookup.record().is_none() && !self.is_conclusive(cx, peers, finish),
            Task::FindProviders => self.lookup.providers().is_empty() && !self.is_conclusive(cx, peers, finish),
            Task::Put => self.lookup.is_crowded(),
            _ => false,
        }
    }

    /// How wide the region is taken to be in which a walk goes around, in those of K nodes. The crowd that a write goes around counts in the
    /// estimate of who met it.
    pub(super) fn widths_around(&self) -> usize {
        if self.task == Task::Put { 2 } else { 1 }
    }

    /// Whether each step asks about another point of the region: a write is to meet everybody who lives there.
    pub(super) fn sweeps_region(&self) -> bool {
        self.task == Task::Put && self.phase == Phase::Around
    }

    /// Goes around: keeps what the walk came to, and whom it need not ask again.
    pub(super) fn keep_first_walk(&mut self, cx: &Context<'_>) {
        let stats = self.lookup.stats(cx.now.mono_ms);
        let met_crowd = self.lookup.is_crowded();
        if self.task == Task::Put {
            // It goes to those again to whom it belongs.
            self.writes.clear();
            self.writes.take_found(&self.lookup);
        } else {
            self.lookup.remember_asked();
        }
        let (requests, elapsed_ms, goal) = (stats.requests, stats.elapsed_ms, self.lookup.goal());
        self.first_walk = Some(FirstWalk { requests, elapsed_ms, goal, met_crowd });
    }
}

/// How a lookup behaves that has a budget of its own.
pub(super) fn within(config: LookupConfig, budget: Budget) -> LookupConfig {
    let alpha_max = budget.alpha_max.unwrap_or(config.alpha_max);
    LookupConfig {
        budget_ms: budget.time_ms.unwrap_or(config.budget_ms),
        requests_max: budget.requests_max.unwrap_or(config.requests_max),
        alpha_max,
        alpha_min: config.alpha_min.min(alpha_max),
        ..config
    }
}
