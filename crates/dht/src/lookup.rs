//! One iterative lookup: who to ask next, what the answers mean, and when it is over.
//!
//! The frontier is a fixed array of candidates sorted by distance; visited and in-flight are states of its slots, so
//! there are no false positives and nothing to allocate. A lookup ends when the K nearest candidates that are not known
//! to be dead have answered, *and* everybody has who lies within the radius in which K nodes are expected by the size
//! of the network: an attacker who crowds in next to a target makes the lookup wider, not shorter. A candidate that
//! timed out does not hold the others up; it is asked once more only if the lookup would otherwise end unsatisfied.
//!
//! The machine knows neither sockets nor seals: it is told what came, and says whom to ask. Here is what happens to a lookup;
//! `frontier` has who is in view and who is wanted next.

mod candidate;
mod config;
mod frontier;
mod namers;
mod stats;
#[cfg(test)]
mod tests;
mod totals;

use alloc::vec::Vec;

use tessera_contracts::point::{Distance, NodeId, Point as _};

use crate::contact::Contact;
use crate::retry::may_repeat;
use crate::wire::message::{ErrorCode, SignedProvider, Token};

pub use candidate::{Ask, Candidate, Standing};
pub use config::{Goal, LookupConfig};
pub use stats::{Finish, LookupStats, Trajectory};
pub use totals::{Histogram, LookupTotals};

/// Candidates one lookup keeps in view.
pub const FRONTIER_MAX: usize = 64;

/// Providers one lookup collects at most.
pub const PROVIDERS_FOUND_MAX: usize = 128;

/// Pages of providers one peer is asked for.
const PAGES_MAX: u8 = 16;

/// As many say who is near the target before it is written to more at once than are asked, but for those who surely are.
const ANSWERS_BEFORE_WRITES: u16 = 3;

/// Disjoint paths at most.
pub const PATHS_MAX: usize = 8;

/// One lookup. Made once and started again and again; its memory is kept.
#[derive(Debug)]
pub struct Lookup {
    config: LookupConfig,
    target: [u8; 32],
    goal: Goal,
    /// Sorted by distance.
    frontier: Vec<Candidate>,
    /// A candidate in it is to be asked before all others.
    has_first: bool,
    /// Nobody is wanted any more, as the last look at all of them said. Answers change that only by what they name.
    is_all_asked: bool,
    alpha: usize,
    healthy: u8,
    in_flight: usize,
    /// Records sent instead of questions, and not answered in time.
    silent_writes: usize,
    started_ms: u64,
    deadline_ms: u64,
    radius: Distance,
    stats: LookupStats,
    record: Vec<u8>,
    sequence: u64,
    agreeing: usize,
    providers: Vec<SignedProvider>,
    cancelled: bool,
    /// First bits of the ids that a former walk to the same target has asked: none is asked again.
    tried: Vec<u64>,
    /// The same of the last walk, until it is known whether there will be another.
    asked_before: Vec<u64>,
}

impl Lookup {
    /// A lookup that has yet to start.
    #[must_use]
    pub fn new() -> Self {
        Self {
            config: LookupConfig::default(),
            target: [0; 32],
            goal: Goal::Nodes,
            frontier: Vec::with_capacity(FRONTIER_MAX + 1),
            has_first: false,
            is_all_asked: false,
            alpha: 0,
            healthy: 0,
            in_flight: 0,
            silent_writes: 0,
            started_ms: 0,
            deadline_ms: 0,
            radius: Distance::ZERO,
            stats: LookupStats::default(),
            record: Vec::with_capacity(crate::record::RECORD_BYTES_MAX),
            sequence: 0,
            agreeing: 0,
            providers: Vec::with_capacity(PROVIDERS_FOUND_MAX),
            cancelled: false,
            tried: Vec::with_capacity(FRONTIER_MAX),
            asked_before: Vec::with_capacity(FRONTIER_MAX),
        }
    }

    /// Starts over for `target`. Costs the same however large the last lookup was.
    ///
    /// `radius` is where K nodes are expected; [`Lookup::offer`] then takes the first candidates.
    pub fn start(&mut self, now_ms: u64, config: LookupConfig, target: [u8; 32], goal: Goal, radius: Distance) {
        self.config = LookupConfig {
            k: config.k.clamp(1, FRONTIER_MAX),
            paths: config.paths.clamp(1, PATHS_MAX),
            alpha_min: config.alpha_min.max(1),
            alpha_max: config.alpha_max.max(config.alpha_min.max(1)),
            ..config
        };
        self.target = target;
        self.goal = goal;
        self.frontier.clear();
        self.has_first = false;
        self.is_all_asked = false;
        self.alpha = self.config.alpha_min;
        self.healthy = 0;
        self.in_flight = 0;
        self.silent_writes = 0;
        self.started_ms = now_ms;
        self.deadline_ms = now_ms.saturating_add(config.budget_ms);
        self.radius = if config.widen { radius } else { Distance::ZERO };
        self.stats = LookupStats { alpha_peak: self.alpha as u8, ..LookupStats::default() };
        self.stats.alpha.note(self.alpha);
        self.record.clear();
        self.sequence = 0;
        self.agreeing = 0;
        self.providers.clear();
        self.cancelled = false;
        self.tried.clear();
    }

    /// Remembers who was asked, for another walk to the same target.
    pub fn remember_asked(&mut self) {
        let asked = self.frontier.iter().filter(|candidate| candidate.asked_ms > 0 || candidate.attempts > 0);
        self.asked_before.clear();
        self.asked_before.extend(asked.map(|candidate| candidate.id.prefix_u64()));
    }

    /// Does not ask those again that were remembered.
    pub fn leave_out_asked(&mut self) {
        core::mem::swap(&mut self.tried, &mut self.asked_before);
        self.asked_before.clear();
    }

    pub(crate) fn was_tried(&self, id: &NodeId) -> bool {
        self.tried.contains(&id.prefix_u64())
    }

    /// Whether nothing that was found means that there is nothing: most of the `expected` nodes nearest to the target answered, as far as
    /// is known who they are, and no crowd stands in front of others.
    #[must_use]
    pub fn is_conclusive(&self, finish: Finish, expected: usize) -> bool {
        if finish == Finish::Alone {
            return true; // A network of one.
        }
        let expected = expected.min(self.config.k).max(1);
        let has_answered = |candidate: &&Candidate| candidate.standing == Standing::Answered;
        let in_view = self.frontier.len().min(expected);
        let nearest = self.frontier.iter().take(expected).filter(has_answered).count();
        let answered = self.frontier.iter().filter(has_answered).count();
        finish == Finish::Exhausted && nearest * 2 > in_view && answered * 2 >= expected && !self.is_crowded()
    }

    /// The point looked for.
    #[must_use]
    pub fn target(&self) -> &[u8; 32] {
        &self.target
    }

    /// What it is after.
    #[must_use]
    pub fn goal(&self) -> Goal {
        self.goal
    }

    /// When it is stopped at the latest.
    #[must_use]
    pub fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }

    /// Takes a seed from our own table. Seeds are dealt out to the disjoint paths in turn.
    pub fn offer(&mut self, id: NodeId, contact: Contact, srtt_ms: Option<u64>) {
        let path = (self.frontier.len() % self.config.paths) as u8;
        self.insert(id, contact, 1, path, srtt_ms, None);
    }

    /// Takes a candidate that is asked before all others, however far: it is likelier to be alive.
    pub fn offer_first(&mut self, id: NodeId, contact: Contact) {
        self.offer(id, contact, None);
        if let Some(at) = self.position(&id) {
            self.frontier[at].first = true;
            (self.has_first, self.is_all_asked) = (true, false);
        }
    }

    /// Whether as many as were asked first have stayed silent, and nobody else has spoken.
    #[must_use]
    pub fn meets_silence(&self) -> bool {
        self.stats.answers == 0 && usize::from(self.stats.timeouts) >= self.config.alpha_min
    }

    /// Whom to ask now, if anybody. `may_ask` is the caller's say: a peer may have too much in flight, or be in quarantine.
    pub fn next(&mut self, now_ms: u64, mut may_ask: impl FnMut(&Candidate) -> bool) -> Option<Ask> {
        if self.is_all_asked {
            debug_assert!(self.next_wanted().is_none(), "whatever makes a candidate wanted says so");
            return None;
        }
        let at_once = self.alpha.max(self.config.paths);
        if self.questions_in_flight() >= at_once || self.stats.requests >= self.config.requests_max {
            return None;
        }
        let mut chosen = None;
        for turn in 0..self.config.paths {
            let path = (usize::from(self.stats.requests) + turn) % self.config.paths;
            chosen = self.best_of_path(path as u8, now_ms, &mut may_ask);
            if chosen.is_some() {
                break;
            }
        }
        let Some(at) = chosen else {
            self.is_all_asked = self.next_wanted().is_none();
            return None;
        };
        if self.in_flight >= at_once && !self.surely_belongs(&self.frontier[at]) {
            return None;
        }
        let candidate = &mut self.frontier[at];
        candidate.standing = Standing::Asked;
        candidate.asked_ms = now_ms;
        candidate.attempts += 1;
        candidate.writes = false;
        let ask = Ask {
            id: candidate.id,
            contact: candidate.contact,
            page: candidate.page,
            first_leg: candidate.hops == 1 && candidate.attempts == 1,
            relay: candidate.relay,
        };
        self.in_flight += 1;
        self.stats.requests += 1;
        Some(ask)
    }

    /// What was sent to `to`, who is asked now, is the record itself. A node within the radius is written to whatever others
    /// will say; and once a few have answered, and so have said who else is near, the rest learn nothing from waiting either: up
    /// to K of these are in flight beside the questions.
    pub fn writes_to(&mut self, to: &NodeId) {
        if let Some(at) = self.waiting(to) {
            self.frontier[at].writes = true;
        }
    }

    /// Whether an answer is waited for.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.in_flight > 0
    }

    /// How many have said, or may yet say, who is near, less one for each that was silent: what was said named a node that is gone,
    /// so that one more has to say whom it knows.
    #[must_use]
    pub fn well_informed(&self) -> usize {
        let silences = usize::from(self.stats.timeouts) + self.silent_writes;
        (usize::from(self.stats.answers) + self.in_flight).saturating_sub(silences)
    }

    /// Whether what is written to a wanted candidate is not written in vain: nothing that will be said makes it less wanted.
    fn surely_belongs(&self, candidate: &Candidate) -> bool {
        self.stats.answers >= ANSWERS_BEFORE_WRITES || candidate.distance <= self.radius
    }

    fn questions_in_flight(&self) -> usize {
        if self.in_flight < self.alpha {
            return self.in_flight;
        }
        let is_write = |candidate: &&Candidate| {
            candidate.writes && candidate.standing == Standing::Asked && self.surely_belongs(candidate)
        };
        self.in_flight - self.frontier.iter().filter(is_write).count().min(self.config.k)
    }

    /// An answer came from `from`: its token, and the contacts it named. Returns whether it was waited for.
    pub fn answered(
        &mut self,
        now_ms: u64,
        from: &NodeId,
        token: Token,
        closer: impl Iterator<Item = (NodeId, Contact)>,
    ) -> bool {
        let Some(at) = self.waiting(from) else { return false };
        self.in_flight -= 1;
        self.stats.answers += 1;
        let candidate = &mut self.frontier[at];
        candidate.standing = Standing::Answered;
        candidate.token = Some(token);
        candidate.answered_ms = now_ms;
        let (hops, path, namers) = (candidate.hops.saturating_add(1), candidate.path, [candidate.via, candidate.also]);
        let quick = now_ms.saturating_sub(candidate.asked_ms) <= u64::from(candidate.srtt_ms).saturating_mul(2);
        self.ease(quick);
        namers.into_iter().for_each(|namer| self.credit(namer));
        for (id, contact) in closer {
            self.insert(id, contact, hops, path, None, Some(*from));
        }
        true
    }

    /// A part of an answer came from `from`, and more parts will: its token and contacts are used, and it is still waited
    /// for. Returns whether it was.
    pub fn heard(&mut self, from: &NodeId, token: Token, closer: impl Iterator<Item = (NodeId, Contact)>) -> bool {
        let Some(at) = self.waiting(from) else { return false };
        let candidate = &mut self.frontier[at];
        candidate.token = Some(token);
        let (hops, path) = (candidate.hops.saturating_add(1), candidate.path);
        for (id, contact) in closer {
            self.insert(id, contact, hops, path, None, Some(*from));
        }
        true
    }

    /// The rest of an answer in parts stayed away: what came counts, and `from` is asked on from `next`.
    pub fn heard_enough(&mut self, now_ms: u64, from: &NodeId, next: u32) {
        if let Some(token) = self.position(from).and_then(|at| self.frontier[at].token) {
            self.answered(now_ms, from, token, core::iter::empty());
            self.more_pages(from, next);
        }
    }

    /// `from` returned a valid record; call after [`Lookup::answered`].
    pub fn found_record(&mut self, from: &NodeId, record: &[u8], sequence: u64) {
        let Some(at) = self.position(from) else { return };
        self.frontier[at].had_result = true;
        let hops = self.frontier[at].hops;
        if self.record.is_empty() || sequence > self.sequence {
            self.record.clear();
            self.record.extend_from_slice(record);
            self.sequence = sequence;
            self.agreeing = 1;
            self.stats.hops = hops;
        } else if sequence == self.sequence {
            if record == self.record.as_slice() {
                self.agreeing += 1;
            } else if self.sequence > 0 && record > self.record.as_slice() {
                // The owner signed two values under one number. All readers settle on the same one.
                self.record.clear();
                self.record.extend_from_slice(record);
            }
        }
    }

    /// `from` keeps the record that it was sent instead of a question; call after [`Lookup::answered`].
    pub fn took_record(&mut self, from: &NodeId) {
        if let Some(at) = self.position(from) {
            self.frontier[at].had_result = true;
        }
    }

    /// `from` returned a valid provider; call after [`Lookup::answered`].
    pub fn found_provider(&mut self, from: &NodeId, provider: &SignedProvider) {
        if let Some(at) = self.position(from) {
            self.frontier[at].had_result = true;
            self.stats.hops = if self.providers.is_empty() { self.frontier[at].hops } else { self.stats.hops };
        }
        if let Some(held) = self.providers.iter_mut().find(|held| held.provider.key == provider.provider.key) {
            if held.issued_secs < provider.issued_secs {
                *held = *provider;
            }
        } else if self.providers.len() < PROVIDERS_FOUND_MAX {
            self.providers.push(*provider);
        }
    }

    /// `from` has another page of providers; it will be asked for it.
    pub fn more_pages(&mut self, from: &NodeId, next: u32) {
        let enough = matches!(self.goal, Goal::Providers { limit } if self.providers.len() >= limit);
        if let Some(at) = self.position(from) {
            let candidate = &mut self.frontier[at];
            if !enough && next > candidate.page && candidate.pages < PAGES_MAX {
                candidate.page = next;
                candidate.pages += 1;
                candidate.attempts = 0;
                candidate.standing = Standing::Fresh;
                self.is_all_asked = false;
            }
        }
    }

    /// `from` answered, and what it said was invalid.
    pub fn lied(&mut self, from: &NodeId) {
        if let Some(at) = self.position(from) {
            if self.frontier[at].standing == Standing::Asked {
                self.in_flight -= 1;
            }
            self.frontier[at].standing = Standing::Lied;
            self.is_all_asked = false;
            self.frontier[at].token = None;
            self.stats.lies += 1;
        }
    }

    /// `from` said no.
    pub fn refused(&mut self, from: &NodeId, code: ErrorCode) {
        if let Some(at) = self.waiting(from) {
            self.in_flight -= 1;
            self.stats.refusals += 1;
            self.frontier[at].standing = Standing::Refused(code);
            self.is_all_asked = false;
        }
    }

    /// `from` did not answer in time.
    pub fn timed_out(&mut self, now_ms: u64, from: &NodeId) {
        let Some(at) = self.waiting(from) else { return };
        self.in_flight -= 1;
        self.stats.timeouts += 1;
        self.set_alpha((self.alpha + 1).min(self.config.alpha_max));
        self.stats.alpha_peak = self.stats.alpha_peak.max(self.alpha as u8);
        self.healthy = 0;
        let candidate = &mut self.frontier[at];
        candidate.asked_ms = now_ms;
        candidate.standing = if may_repeat(candidate.attempts) { Standing::Silent } else { Standing::Dead };
        self.is_all_asked = false;
        let (namers, is_first) = ([candidate.via, candidate.also], candidate.attempts == 1);
        self.ask_elsewhere(at);
        if is_first {
            namers.into_iter().for_each(|namer| self.blame(namer));
        }
    }

    /// `from` did not answer in time to the record that it was sent instead of a question. To keep one may take longer than to
    /// answer: it is asked a question, after all who have not been asked at all.
    pub fn write_timed_out(&mut self, from: &NodeId) {
        if let Some(at) = self.waiting(from) {
            self.requeue(from);
            self.silent_writes += 1;
            self.frontier[at].writes = true;
        }
    }

    /// The request could not be sent; as if it had never been chosen, and it will not be again.
    pub fn unsendable(&mut self, from: &NodeId) {
        if let Some(at) = self.waiting(from) {
            self.in_flight -= 1;
            self.stats.requests -= 1;
            self.frontier[at].standing = Standing::Dead;
            self.is_all_asked = false;
        }
    }

    /// The request to `from` failed for no fault of its own (a relay, a missing cookie): it is asked once more.
    pub fn requeue(&mut self, from: &NodeId) {
        if let Some(at) = self.waiting(from) {
            self.in_flight -= 1;
            let candidate = &mut self.frontier[at];
            candidate.standing = if may_repeat(candidate.attempts) { Standing::Fresh } else { Standing::Dead };
            candidate.writes = false;
            self.is_all_asked = false;
        }
    }

    /// The caller gave up.
    pub fn cancel(&mut self) {
        self.cancelled = true;
    }

    /// Whether it is over at `now`, and why.
    #[must_use]
    pub fn finished(&self, now_ms: u64) -> Option<Finish> {
        if self.cancelled {
            return Some(Finish::Cancelled);
        }
        match self.goal {
            Goal::Immutable if !self.record.is_empty() => return Some(Finish::Found),
            Goal::Mutable { .. } if self.agreeing >= self.config.sequence_quorum && !self.is_crowded() => {
                return Some(Finish::Found);
            }
            Goal::Providers { limit } if self.providers.len() >= limit => return Some(Finish::Found),
            _ => {}
        }
        if self.frontier.is_empty() {
            return Some(Finish::Alone);
        }
        let found = !self.record.is_empty() || !self.providers.is_empty();
        let ended = |otherwise| Some(if found { Finish::Found } else { otherwise });
        if now_ms >= self.deadline_ms {
            return ended(Finish::OutOfTime);
        }
        if self.in_flight == 0 && self.stats.requests >= self.config.requests_max {
            return ended(Finish::OutOfRequests);
        }
        if self.in_flight == 0 && self.next_wanted().is_none() { ended(Finish::Exhausted) } else { None }
    }

    /// When to look again though nothing comes: a silent peer's pause ends, or the budget does.
    #[must_use]
    pub fn wake_ms(&self) -> u64 {
        if self.stats.timeouts == 0 {
            return self.deadline_ms; // Nobody was ever silent.
        }
        let retry = self
            .frontier
            .iter()
            .filter(|candidate| candidate.standing == Standing::Silent)
            .map(|candidate| candidate.asked_ms + self.config.retry_cooldown_ms)
            .min();
        retry.map_or(self.deadline_ms, |retry| retry.min(self.deadline_ms))
    }

    /// The record found, if any.
    #[must_use]
    pub fn record(&self) -> Option<&[u8]> {
        (!self.record.is_empty()).then_some(&self.record[..])
    }

    /// When it was started.
    #[must_use]
    pub fn started_ms(&self) -> u64 {
        self.started_ms
    }

    /// The providers found.
    #[must_use]
    pub fn providers(&self) -> &[SignedProvider] {
        &self.providers
    }

    /// All candidates, nearest first.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.frontier
    }

    /// The numbers, as of `now`.
    #[must_use]
    pub fn stats(&self, now_ms: u64) -> LookupStats {
        let nearest = self.frontier.iter().find(|candidate| candidate.standing == Standing::Answered);
        let hops = if self.stats.hops > 0 { self.stats.hops } else { nearest.map_or(0, |candidate| candidate.hops) };
        let elapsed_ms = now_ms.saturating_sub(self.started_ms);
        LookupStats { hops, elapsed_ms, alpha_end: self.alpha as u8, ..self.stats }
    }

    /// Four good answers in a row take one request out of flight again.
    fn ease(&mut self, quick: bool) {
        self.healthy = if quick { self.healthy + 1 } else { 0 };
        if self.healthy >= 4 {
            self.set_alpha((self.alpha - 1).max(self.config.alpha_min));
            self.healthy = 0;
        }
    }

    fn set_alpha(&mut self, alpha: usize) {
        if alpha != self.alpha {
            self.alpha = alpha;
            self.stats.alpha.note(alpha);
        }
    }
}

impl Default for Lookup {
    fn default() -> Self {
        Self::new()
    }
}
