//! One iterative lookup: who to ask next, what the answers mean, and when it is over.
//!
//! The frontier is a fixed array of candidates sorted by distance; visited and in-flight are states of its slots, so
//! there are no false positives and nothing to allocate. A lookup ends when the K nearest candidates that are not known
//! to be dead have answered, *and* everybody has who lies within the radius in which K nodes are expected by the size
//! of the network: an attacker who crowds in next to a target makes the lookup wider, not shorter. A candidate that
//! timed out does not hold the others up; it is asked once more only if the lookup would otherwise end unsatisfied.
//!
//! The machine knows neither sockets nor seals: it is told what came, and says whom to ask.

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, Distance, NodeId, Point as _};

use crate::addr::AddrPrefix;
use crate::contact::Contact;
use crate::wire::message::{ErrorCode, SignedProvider, Token};

/// Candidates one lookup keeps in view.
pub const FRONTIER_MAX: usize = 64;

/// Providers one lookup collects at most.
pub const PROVIDERS_FOUND_MAX: usize = 128;

/// Pages of providers one peer is asked for.
const PAGES_MAX: u8 = 16;

/// Disjoint paths at most.
pub const PATHS_MAX: usize = 8;

/// How lookups behave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LookupConfig {
    /// How many of the nearest must have answered.
    pub k: usize,
    /// Requests in flight to begin with, and when all goes well.
    pub alpha_min: usize,
    /// Requests in flight when answers stay away.
    pub alpha_max: usize,
    /// When a lookup is stopped, whatever it has found.
    pub budget_ms: u64,
    /// Requests one lookup may send.
    pub requests_max: u16,
    /// Candidates of one address prefix in the frontier.
    pub per_prefix_max: usize,
    /// Paths that share no node; one is ordinary Kademlia.
    pub paths: usize,
    /// Widen the end of a lookup to the radius in which K nodes are expected.
    pub widen: bool,
    /// Pause before a silent peer is asked once more.
    pub retry_cooldown_ms: u64,
    /// Peers that must agree on the highest sequence before a mutable lookup may end early.
    pub sequence_quorum: usize,
}

impl Default for LookupConfig {
    fn default() -> Self {
        Self {
            k: 20,
            alpha_min: 3,
            alpha_max: 8,
            budget_ms: 2000,
            requests_max: 128,
            per_prefix_max: 2,
            paths: 1,
            widen: true,
            retry_cooldown_ms: 100,
            sequence_quorum: 7,
        }
    }
}

/// What a lookup is after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The nodes nearest to the target.
    Nodes,
    /// The immutable record: the first valid one ends the lookup.
    Immutable,
    /// The mutable record with the highest sequence number.
    Mutable {
        /// Sequence numbers below it are of no interest.
        sequence_min: u64,
    },
    /// Providers, up to a number.
    Providers {
        /// How many are enough.
        limit: usize,
    },
}

/// Where a candidate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Not asked yet.
    Fresh,
    /// Asked; no answer yet.
    Asked,
    /// Answered.
    Answered,
    /// Did not answer in time, and may be asked once more.
    Silent,
    /// Did not answer twice.
    Dead,
    /// Said no.
    Refused(ErrorCode),
    /// Answered something invalid; nothing it said was used.
    Lied,
}

/// One node in a lookup's view.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// Its id.
    pub id: NodeId,
    /// How far it is from the target.
    pub distance: Distance,
    /// How to reach it.
    pub contact: Contact,
    /// Where it stands.
    pub standing: Standing,
    /// How many answers led to it; a peer from our own table has 1.
    pub hops: u8,
    /// The disjoint path it belongs to.
    pub path: u8,
    /// Allows a write to it, once it has answered.
    pub token: Option<Token>,
    /// Whether it returned the record or providers.
    pub had_result: bool,
    /// Who named it first; `None` for a peer of our own table.
    pub via: Option<NodeId>,
    /// When it was last asked, or fell silent; zero for never.
    pub asked_ms: u64,
    /// When it answered or refused; zero for not yet.
    pub answered_ms: u64,
    /// Asked before others, however far it is.
    first: bool,
    /// Its round trip as known before the lookup.
    srtt_ms: u16,
    page: u32,
    pages: u8,
    attempts: u8,
}

/// Whom to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Its id.
    pub id: NodeId,
    /// How to reach it.
    pub contact: Contact,
    /// Which page of providers.
    pub page: u32,
    /// Whether it comes from our own table and is asked for the first time: a leg that a relay may take.
    pub first_leg: bool,
}

/// Why a lookup ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// What was wanted was found.
    Found,
    /// All who should know have been asked.
    Exhausted,
    /// Time ran out.
    OutOfTime,
    /// The request cap was reached.
    OutOfRequests,
    /// There was nobody to ask.
    Alone,
    /// The caller gave up.
    Cancelled,
}

/// The values a small number went through: the first ones, and how many changes there were in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trajectory {
    values: [u8; 16],
    changes: u16,
}

impl Trajectory {
    fn note(&mut self, value: usize) {
        if let Some(slot) = self.values.get_mut(usize::from(self.changes)) {
            *slot = value.min(usize::from(u8::MAX)) as u8;
        }
        self.changes = self.changes.saturating_add(1);
    }

    /// The first values, the one at the start included.
    #[must_use]
    pub fn values(&self) -> &[u8] {
        &self.values[..usize::from(self.changes).min(self.values.len())]
    }

    /// How many values there were, those not kept included.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.changes)
    }

    /// Whether nothing has been noted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes == 0
    }
}

/// Numbers every lookup ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LookupStats {
    /// Requests sent, retries included.
    pub requests: u16,
    /// Answers that were used.
    pub answers: u16,
    /// Requests that were not answered in time.
    pub timeouts: u16,
    /// Refusals, of any kind.
    pub refusals: u16,
    /// Answers that were invalid.
    pub lies: u16,
    /// How many answers in a row led to the result, or to the nearest node.
    pub hops: u8,
    /// How many requests the lookup allowed itself in flight, as that changed.
    pub alpha: Trajectory,
    /// The most requests the lookup allowed itself in flight.
    pub alpha_peak: u8,
    /// The same at the end.
    pub alpha_end: u8,
    /// From start to end.
    pub elapsed_ms: u64,
}

/// One lookup. Made once and started again and again; its memory is kept.
#[derive(Debug)]
pub struct Lookup {
    config: LookupConfig,
    target: [u8; 32],
    goal: Goal,
    /// Sorted by distance.
    frontier: Vec<Candidate>,
    alpha: usize,
    healthy: u8,
    in_flight: usize,
    started_ms: u64,
    deadline_ms: u64,
    radius: Distance,
    stats: LookupStats,
    record: Vec<u8>,
    sequence: u64,
    agreeing: usize,
    providers: Vec<SignedProvider>,
    cancelled: bool,
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
            alpha: 0,
            healthy: 0,
            in_flight: 0,
            started_ms: 0,
            deadline_ms: 0,
            radius: Distance::ZERO,
            stats: LookupStats::default(),
            record: Vec::with_capacity(crate::record::RECORD_BYTES_MAX),
            sequence: 0,
            agreeing: 0,
            providers: Vec::with_capacity(PROVIDERS_FOUND_MAX),
            cancelled: false,
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
        self.alpha = self.config.alpha_min;
        self.healthy = 0;
        self.in_flight = 0;
        self.started_ms = now_ms;
        self.deadline_ms = now_ms + config.budget_ms;
        self.radius = if config.widen { radius } else { Distance::ZERO };
        self.stats = LookupStats { alpha_peak: self.alpha as u8, ..LookupStats::default() };
        self.stats.alpha.note(self.alpha);
        self.record.clear();
        self.sequence = 0;
        self.agreeing = 0;
        self.providers.clear();
        self.cancelled = false;
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

    /// Takes somebody who is asked before all others, however far: whose life is likelier than theirs.
    pub fn offer_first(&mut self, id: NodeId, contact: Contact) {
        self.offer(id, contact, None);
        if let Some(at) = self.position(&id) {
            self.frontier[at].first = true;
        }
    }

    /// Whether as many as were asked first have stayed silent, and nobody else has spoken.
    #[must_use]
    pub fn meets_silence(&self) -> bool {
        self.stats.answers == 0 && usize::from(self.stats.timeouts) >= self.config.alpha_min
    }

    /// Whom to ask now, if anybody. `may_ask` is the caller's say: a peer may have too much in flight, or be in quarantine.
    pub fn next(&mut self, now_ms: u64, mut may_ask: impl FnMut(&Candidate) -> bool) -> Option<Ask> {
        if self.in_flight >= self.alpha.max(self.config.paths) || self.stats.requests >= self.config.requests_max {
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
        let at = chosen?;
        let candidate = &mut self.frontier[at];
        candidate.standing = Standing::Asked;
        candidate.asked_ms = now_ms;
        candidate.attempts += 1;
        let ask = Ask {
            id: candidate.id,
            contact: candidate.contact,
            page: candidate.page,
            first_leg: candidate.hops == 1 && candidate.attempts == 1,
        };
        self.in_flight += 1;
        self.stats.requests += 1;
        Some(ask)
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
        let (hops, path) = (candidate.hops.saturating_add(1), candidate.path);
        let quick = now_ms.saturating_sub(candidate.asked_ms) <= u64::from(candidate.srtt_ms).saturating_mul(2);
        self.ease(quick);
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
        candidate.standing = if candidate.attempts < 2 { Standing::Silent } else { Standing::Dead };
    }

    /// The request could not be sent; as if it had never been chosen, and it will not be again.
    pub fn unsendable(&mut self, from: &NodeId) {
        if let Some(at) = self.waiting(from) {
            self.in_flight -= 1;
            self.stats.requests -= 1;
            self.frontier[at].standing = Standing::Dead;
        }
    }

    /// The request to `from` failed for no fault of its own (a relay, a missing cookie): it is asked once more.
    pub fn requeue(&mut self, from: &NodeId) {
        if let Some(at) = self.waiting(from) {
            self.in_flight -= 1;
            let candidate = &mut self.frontier[at];
            candidate.standing = if candidate.attempts < 2 { Standing::Fresh } else { Standing::Dead };
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

    /// Those to whom a write for the target belongs: the K nearest that answered, and all within the radius.
    pub fn holders(&self) -> impl Iterator<Item = &Candidate> {
        let (k, radius) = (self.config.k, self.radius);
        self.frontier
            .iter()
            .filter(|candidate| candidate.standing == Standing::Answered)
            .enumerate()
            .filter(move |(rank, candidate)| *rank < k || candidate.distance <= radius)
            .map(|(_, candidate)| candidate)
    }

    /// Someone crowds in: far more nodes within the radius than the network's size explains.
    fn is_crowded(&self) -> bool {
        self.frontier.iter().filter(|candidate| candidate.distance <= self.radius).count() > self.config.k * 2
    }

    /// Nearest candidate of `path` that is wanted, could be asked at `now`, and may be. Among equals in distance (the
    /// same number of leading zeros) of the first few, the one with the shortest known round trip.
    fn best_of_path(&self, path: u8, now_ms: u64, may_ask: &mut impl FnMut(&Candidate) -> bool) -> Option<usize> {
        let mut best: Option<usize> = None;
        let mut looked = 0;
        for at in self.wanted(path) {
            let candidate = &self.frontier[at];
            if candidate.standing == Standing::Silent && now_ms < candidate.asked_ms + self.config.retry_cooldown_ms {
                continue;
            }
            if !may_ask(candidate) {
                continue;
            }
            match best {
                None => best = Some(at),
                Some(first) => {
                    let first = &self.frontier[first];
                    let equal = first.distance.leading_zeros() == candidate.distance.leading_zeros();
                    if equal && !first.first && candidate.srtt_ms < first.srtt_ms / 2 {
                        best = Some(at);
                    }
                }
            }
            looked += 1;
            if looked == 3 {
                break;
            }
        }
        best
    }

    fn next_wanted(&self) -> Option<usize> {
        (0..self.config.paths as u8).find_map(|path| self.wanted(path).next())
    }

    /// Slots of `path` still to be asked: those to be asked first, then nearest first the fresh ones among its share of the
    /// K nearest or within the radius; then, if the lookup would end unsatisfied, silent ones there.
    fn wanted(&self, path: u8) -> impl Iterator<Item = usize> + '_ {
        let share = self.config.k.div_ceil(self.config.paths);
        let on_path = move |candidate: &&Candidate| candidate.path == path;
        let counts = |candidate: &Candidate| {
            matches!(candidate.standing, Standing::Fresh | Standing::Asked | Standing::Answered)
        };
        let first = move |candidate: &Candidate| candidate.first && candidate.standing == Standing::Fresh;
        let first = self.frontier.iter().enumerate().filter(move |(_, c)| first(c) && on_path(c));
        let (mut rank, mut rank_of_all) = (0, 0);
        let fresh = self.frontier.iter().enumerate().filter(move |(_, candidate)| {
            if !counts(candidate) {
                return false;
            }
            rank_of_all += 1;
            if !on_path(candidate) {
                return false;
            }
            rank += 1;
            // Its share keeps a path going whatever the others found; the K nearest of all are wanted whoever found them.
            let near = rank <= share || rank_of_all <= self.config.k || candidate.distance <= self.radius;
            candidate.standing == Standing::Fresh && near && !candidate.first
        });
        // Silent peers count only when nothing fresh is left, nothing is under way, and something is missing.
        let answered = self.frontier.iter().filter(|c| c.standing == Standing::Answered).count();
        let unsatisfied = match self.goal {
            Goal::Nodes => answered < self.config.k,
            Goal::Immutable | Goal::Mutable { .. } => self.record.is_empty(),
            Goal::Providers { .. } => self.providers.is_empty(),
        };
        let mut rank = 0;
        let silent = self.frontier.iter().enumerate().filter(move |(_, candidate)| {
            if !on_path(candidate) || !unsatisfied {
                return false;
            }
            rank += 1;
            candidate.standing == Standing::Silent && rank <= share
        });
        first.chain(fresh).chain(silent).map(|(at, _)| at)
    }

    fn waiting(&self, from: &NodeId) -> Option<usize> {
        self.position(from).filter(|at| self.frontier[*at].standing == Standing::Asked)
    }

    fn position(&self, id: &NodeId) -> Option<usize> {
        let distance = id.distance_to(&ContentId::from_bytes(self.target));
        self.frontier.binary_search_by_key(&distance, |candidate| candidate.distance).ok()
    }

    fn insert(&mut self, id: NodeId, contact: Contact, hops: u8, path: u8, srtt_ms: Option<u64>, via: Option<NodeId>) {
        let distance = id.distance_to(&ContentId::from_bytes(self.target));
        let Err(mut place) = self.frontier.binary_search_by_key(&distance, |candidate| candidate.distance) else {
            return; // Seen already, on whichever path: paths stay disjoint.
        };
        if place == FRONTIER_MAX {
            return;
        }
        // One prefix, few places: a nearer newcomer takes the place of the farthest of its own kind not yet asked.
        let prefix: AddrPrefix = contact.addr.prefix();
        let same = |candidate: &Candidate| candidate.contact.addr.prefix() == prefix;
        if self.frontier.iter().filter(|candidate| same(candidate)).count() >= self.config.per_prefix_max {
            let farthest = self.frontier.iter().rposition(|c| same(c) && c.standing == Standing::Fresh);
            match farthest {
                Some(at) if at >= place => {
                    self.frontier.remove(at);
                }
                _ => return,
            }
        } else if self.frontier.len() == FRONTIER_MAX {
            // The farthest goes, unless an answer of it is still to come.
            match self.frontier.iter().rposition(|candidate| candidate.standing != Standing::Asked) {
                Some(at) if at >= place => {
                    self.frontier.remove(at);
                }
                _ => return,
            }
        }
        place = place.min(self.frontier.len());
        let candidate = Candidate {
            id,
            distance,
            contact,
            standing: Standing::Fresh,
            hops,
            path,
            token: None,
            had_result: false,
            first: false,
            srtt_ms: srtt_ms.map_or(DEFAULT_SRTT_MS, |ms| ms.min(u64::from(u16::MAX)) as u16),
            page: 0,
            pages: 0,
            via,
            asked_ms: 0,
            answered_ms: 0,
            attempts: 0,
        };
        self.frontier.insert(place, candidate);
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

/// Assumed of a node whose round trip is unknown.
const DEFAULT_SRTT_MS: u16 = 150;

impl Default for Lookup {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::identity::PublicKey;
    use crate::rng::LaneRng;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    fn node(n: u16) -> (NodeId, Contact) {
        let mut key = [0; 32];
        key[..2].copy_from_slice(&n.to_le_bytes());
        let [a, b] = n.to_le_bytes();
        let contact = Contact { key: PublicKey(key), addr: Addr::v4([10, a, b, 1], 1) };
        (contact.id(), contact)
    }

    const TARGET: [u8; 32] = [0x77; 32];

    fn started(config: LookupConfig, goal: Goal, seeds: impl Iterator<Item = u16>) -> Lookup {
        let mut lookup = Lookup::new();
        lookup.start(0, config, TARGET, goal, Distance::ZERO);
        for n in seeds {
            let (id, contact) = node(n);
            lookup.offer(id, contact, Some(100));
        }
        lookup
    }

    fn small() -> LookupConfig {
        LookupConfig { k: 4, ..LookupConfig::default() }
    }

    fn ask(lookup: &mut Lookup, now: u64) -> NodeId {
        lookup.next(now, |_| true).expect("somebody to ask").id
    }

    /// Runs a lookup to its end against nodes that know `knows` and answer at once.
    fn run(lookup: &mut Lookup, knows: impl Fn(&NodeId) -> Vec<(NodeId, Contact)>) -> (Finish, BTreeSet<NodeId>) {
        let mut asked = BTreeSet::new();
        for now in 0.. {
            if let Some(finish) = lookup.finished(now) {
                return (finish, asked);
            }
            let batch: Vec<_> = core::iter::from_fn(|| lookup.next(now, |_| true)).collect();
            for ask in batch {
                assert!(asked.insert(ask.id), "nobody is asked twice");
                lookup.answered(now, &ask.id, [0; 16], knows(&ask.id).into_iter());
            }
        }
        unreachable!()
    }

    #[test]
    fn finds_exactly_the_nearest_k_of_a_connected_network() {
        let all: Vec<_> = (0..300).map(node).collect();
        let near = |point: &NodeId, count: usize| {
            let mut sorted = all.clone();
            sorted.sort_by_key(|(id, _)| id.distance_to(point));
            sorted.truncate(count);
            sorted
        };
        let mut lookup = started(LookupConfig::default(), Goal::Nodes, 0..3);
        // Everybody knows whoever is nearest to the target among a random half.
        let knows = |id: &NodeId| {
            let mut rng = LaneRng::new(*id.as_bytes());
            let mut half: Vec<_> = all.iter().filter(|_| rng.below(2) == 0).copied().collect();
            half.sort_by_key(|(id, _)| id.distance_to(&NodeId::from_bytes(TARGET)));
            half.truncate(16);
            half
        };
        assert_eq!(run(&mut lookup, knows).0, Finish::Exhausted);
        let found: Vec<_> = lookup.holders().take(20).map(|candidate| candidate.id).collect();
        let expected: Vec<_> = near(&NodeId::from_bytes(TARGET), 20).into_iter().map(|(id, _)| id).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn no_more_than_alpha_are_in_flight_and_alpha_grows_with_silence() {
        let mut lookup = started(LookupConfig::default(), Goal::Nodes, 0..40);
        let first: Vec<_> = core::iter::from_fn(|| lookup.next(0, |_| true)).map(|ask| ask.id).collect();
        assert_eq!(first.len(), 3);
        lookup.timed_out(100, &first[0]);
        lookup.timed_out(100, &first[1]);
        let more = core::iter::from_fn(|| lookup.next(100, |_| true)).count();
        assert_eq!(more, 4, "two were lost and two more are allowed: five in flight");
        assert_eq!(lookup.stats(100).alpha_peak, 5);
    }

    #[test]
    fn four_quick_answers_take_alpha_back_down() {
        let mut lookup = started(LookupConfig::default(), Goal::Nodes, 0..40);
        let first = ask(&mut lookup, 0);
        lookup.timed_out(100, &first);
        for _ in 0..4 {
            let id = ask(&mut lookup, 100);
            lookup.answered(150, &id, [0; 16], core::iter::empty());
        }
        assert_eq!(lookup.stats(150).alpha_end, 3);
        assert_eq!(lookup.stats(150).alpha.values(), [3, 4, 3], "and the way there is told");
    }

    #[test]
    fn among_equally_near_peers_the_fast_one_is_asked_first() {
        let mut lookup = Lookup::new();
        let nearest = |n: u16| node(n).0.distance_to(&NodeId::from_bytes(TARGET)).leading_zeros();
        let equal: Vec<u16> = (0..400).filter(|n| nearest(*n) == 3).take(2).collect();
        let [a, b] = equal[..] else { panic!("of 400 nodes some are equally near") };
        for (slow, fast) in [(a, b), (b, a)] {
            lookup.start(0, LookupConfig::default(), TARGET, Goal::Nodes, Distance::ZERO);
            for (n, srtt) in [(slow, 202), (fast, 100)] {
                lookup.offer(node(n).0, node(n).1, Some(srtt));
            }
            assert_eq!(ask(&mut lookup, 0), node(fast).0, "less than half the round trip outweighs a little distance");
        }
    }

    #[test]
    fn a_peer_that_may_not_be_asked_now_is_passed_over_and_asked_later() {
        let mut lookup = started(small(), Goal::Nodes, 0..4);
        let nearest = lookup.candidates()[0].id;
        let first = lookup.next(0, |candidate| candidate.id != nearest).expect("somebody else").id;
        assert_ne!(first, nearest);
        assert_eq!(ask(&mut lookup, 0), nearest, "it has a token again");
    }

    #[test]
    fn who_is_to_be_asked_first_is_however_far_and_however_slow() {
        let mut lookup = started(LookupConfig::default(), Goal::Nodes, 0..40);
        let farthest = (40..400).map(node).max_by_key(|(id, _)| id.distance_to(&NodeId::from_bytes(TARGET))).unwrap();
        assert!(!lookup.meets_silence(), "nobody has been asked");
        for silent in [false, false, true] {
            let id = ask(&mut lookup, 0);
            lookup.timed_out(100, &id);
            assert_eq!(lookup.meets_silence(), silent);
        }
        lookup.offer_first(farthest.0, farthest.1);
        assert_eq!(ask(&mut lookup, 100), farthest.0);
        lookup.answered(110, &farthest.0, [0; 16], core::iter::empty());
        assert!(!lookup.meets_silence(), "somebody has spoken");
        assert_ne!(ask(&mut lookup, 110), farthest.0);
    }

    #[test]
    fn no_more_providers_are_collected_than_there_is_room_for() {
        let mut lookup = started(small(), Goal::Providers { limit: 1000 }, 0..10);
        let id = ask(&mut lookup, 0);
        lookup.answered(1, &id, [0; 16], core::iter::empty());
        for n in 0..2 * PROVIDERS_FOUND_MAX as u16 {
            let provider = SignedProvider { provider: node(n).1, issued_secs: 1, ttl_secs: 1, signature: [0; 64] };
            lookup.found_provider(&id, &provider);
        }
        assert_eq!(lookup.providers().len(), PROVIDERS_FOUND_MAX);
    }

    #[test]
    fn a_part_of_an_answer_is_used_at_once_and_a_gap_is_asked_for_again() {
        let mut lookup = started(small(), Goal::Providers { limit: 9 }, 0..1);
        let id = ask(&mut lookup, 0);
        assert!(lookup.heard(&id, [7; 16], core::iter::once(node(50))));
        assert!(lookup.candidates().iter().any(|candidate| candidate.id == node(50).0));
        assert_eq!(lookup.finished(5), None, "the rest is still waited for");
        lookup.heard_enough(6, &id, 14);
        assert_eq!(lookup.next(6, |candidate| candidate.id == id).map(|ask| ask.page), Some(14));
    }

    #[test]
    fn a_silent_peer_holds_nobody_up_and_is_asked_once_more_only_if_something_is_missing() {
        let mut lookup = started(small(), Goal::Immutable, 0..4);
        let silent = ask(&mut lookup, 0);
        lookup.timed_out(50, &silent);
        for _ in 0..3 {
            let id = ask(&mut lookup, 60);
            lookup.answered(70, &id, [0; 16], core::iter::empty());
        }
        assert_eq!(lookup.next(80, |_| true), None, "its pause is not over");
        assert_eq!((lookup.finished(80), lookup.wake_ms()), (None, 150));
        assert_eq!(ask(&mut lookup, 150), silent);
        lookup.timed_out(250, &silent);
        assert_eq!(lookup.finished(250), Some(Finish::Exhausted));
        assert_eq!((lookup.stats(250).requests, lookup.stats(250).timeouts), (5, 2));
    }

    #[test]
    fn the_first_valid_immutable_record_ends_the_lookup() {
        let mut lookup = started(small(), Goal::Immutable, 0..10);
        let id = ask(&mut lookup, 0);
        lookup.answered(5, &id, [0; 16], core::iter::empty());
        assert_eq!(lookup.finished(5), None);
        lookup.found_record(&id, b"record", 0);
        assert_eq!(lookup.finished(5), Some(Finish::Found));
        assert_eq!(lookup.record(), Some(&b"record"[..]));
    }

    #[test]
    fn a_mutable_lookup_ends_early_on_a_quorum_of_the_highest_sequence_only() {
        let config = LookupConfig { sequence_quorum: 2, ..LookupConfig::default() };
        let mut lookup = started(config, Goal::Mutable { sequence_min: 0 }, 0..20);
        for (sequence, over) in [(5, false), (7, false), (5, false), (6, false), (7, true)] {
            let id = ask(&mut lookup, 0);
            lookup.answered(1, &id, [0; 16], core::iter::empty());
            lookup.found_record(&id, &[sequence as u8], sequence);
            assert_eq!(lookup.finished(1).is_some(), over, "after {sequence}");
        }
        assert_eq!(lookup.record(), Some(&[7][..]));
    }

    #[test]
    fn a_quorum_ends_no_mutable_lookup_while_somebody_crowds_in() {
        // Up to twice K within the radius of K are chance; one more is a crowd, and may be the quorum.
        for (within, over) in [(8, true), (9, false)] {
            let mut lookup = Lookup::new();
            let config = LookupConfig { sequence_quorum: 2, ..small() };
            lookup.start(0, config, TARGET, Goal::Mutable { sequence_min: 0 }, Distance::MAX);
            for (id, contact) in (0..within).map(node) {
                lookup.offer(id, contact, None);
            }
            for _ in 0..2 {
                let id = ask(&mut lookup, 0);
                lookup.answered(1, &id, [0; 16], core::iter::empty());
                lookup.found_record(&id, &[7], 7);
            }
            assert_eq!(lookup.finished(1).is_some(), over, "{within} within the radius");
        }
    }

    #[test]
    fn a_liar_is_not_believed_and_not_asked_again() {
        let mut lookup = started(small(), Goal::Nodes, 0..2);
        let liar = ask(&mut lookup, 0);
        lookup.lied(&liar);
        let honest = ask(&mut lookup, 0);
        assert!(!lookup.answered(1, &liar, [0; 16], core::iter::once(node(99))), "it is too late to be honest");
        lookup.answered(1, &honest, [0; 16], core::iter::empty());
        assert_eq!(lookup.finished(1), Some(Finish::Exhausted));
        assert!(lookup.holders().all(|candidate| candidate.id != liar));
    }

    #[test]
    fn budgets_stop_a_lookup_that_would_go_on() {
        let mut lookup = started(small(), Goal::Nodes, 0..10);
        ask(&mut lookup, 0);
        assert_eq!(lookup.finished(1999), None);
        assert_eq!(lookup.finished(2000), Some(Finish::OutOfTime));
        let mut lookup = started(LookupConfig { requests_max: 1, ..small() }, Goal::Nodes, 0..10);
        let id = ask(&mut lookup, 0);
        assert_eq!(lookup.next(0, |_| true), None);
        lookup.answered(1, &id, [0; 16], core::iter::empty());
        assert_eq!(lookup.finished(1), Some(Finish::OutOfRequests));
        let lookup = started(small(), Goal::Nodes, 0..0);
        assert_eq!(lookup.finished(0), Some(Finish::Alone));
        let mut lookup = started(small(), Goal::Nodes, 0..10);
        lookup.cancel();
        assert_eq!(lookup.finished(0), Some(Finish::Cancelled));
    }

    #[test]
    fn one_prefix_has_two_places_and_they_go_to_its_nearest() {
        let mut lookup = started(small(), Goal::Nodes, 0..0);
        let same_24 = |n: u16| {
            let (id, contact) = node(n);
            (id, Contact { addr: Addr::v4([192, 0, 2, n as u8], 1), ..contact })
        };
        let mut all: Vec<_> = (0..50).map(same_24).collect();
        for (id, contact) in &all {
            lookup.offer(*id, *contact, None);
        }
        all.sort_by_key(|(id, _)| id.distance_to(&NodeId::from_bytes(TARGET)));
        let kept: Vec<_> = lookup.candidates().iter().map(|candidate| candidate.id).collect();
        assert_eq!(kept, [all[0].0, all[1].0]);
    }

    #[test]
    fn a_crowd_near_the_target_makes_the_lookup_wider() {
        let mut lookup = Lookup::new();
        lookup.start(0, small(), TARGET, Goal::Nodes, Distance::MAX);
        for n in 0..30 {
            let (id, contact) = node(n);
            lookup.offer(id, contact, None);
        }
        let (_, asked) = run(&mut lookup, |_| Vec::new());
        assert_eq!(asked.len(), 30, "all within the radius, not only k = 4");
        assert_eq!(lookup.holders().count(), 30);
    }

    #[test]
    fn disjoint_paths_share_no_node_and_each_gets_its_share() {
        let config = LookupConfig { paths: 2, ..LookupConfig::default() };
        let mut lookup = started(config, Goal::Nodes, 0..2);
        // Path 0 meets a ring of liars who name only each other; path 1 still reaches the honest rest.
        let liars: Vec<_> = (100..140).map(node).collect();
        let honest: Vec<_> = (200..240).map(node).collect();
        let start = lookup.candidates().iter().find(|c| c.path == 0).unwrap().id;
        let liar_ids: BTreeSet<_> = liars.iter().map(|(id, _)| *id).chain([start]).collect();
        let (_, asked) = run(&mut lookup, |id| if liar_ids.contains(id) { liars.clone() } else { honest.clone() });
        let honest_asked = honest.iter().filter(|(id, _)| asked.contains(id)).count();
        assert!(honest_asked >= 9, "path 1 asks its ten nearest whatever path 0 found: {honest_asked}");
    }

    #[test]
    fn providers_are_merged_by_key_and_the_newest_statement_wins() {
        let mut lookup = started(small(), Goal::Providers { limit: 2 }, 0..10);
        let id = ask(&mut lookup, 0);
        let provider =
            |n, issued_secs| SignedProvider { provider: node(n).1, issued_secs, ttl_secs: 1, signature: [0; 64] };
        lookup.answered(1, &id, [0; 16], core::iter::empty());
        for (n, issued) in [(1, 5), (1, 9), (1, 7)] {
            lookup.found_provider(&id, &provider(n, issued));
        }
        assert_eq!((lookup.providers().len(), lookup.providers()[0].issued_secs), (1, 9));
        lookup.more_pages(&id, 6);
        assert_eq!(lookup.next(2, |other| other.id == id).map(|ask| ask.page), Some(6));
        lookup.found_provider(&id, &provider(2, 1));
        assert_eq!(lookup.finished(2), Some(Finish::Found));
    }

    proptest! {
        #[test]
        fn bounds_hold_and_it_always_ends(seeds in prop::collection::vec(0..2000_u16, 1..30), script in prop::collection::vec((0..6_u8, 0..2000_u16), 0..400), paths in 1..4_usize) {
            let config = LookupConfig { paths, per_prefix_max: 3, ..LookupConfig::default() };
            let mut lookup = started(config, Goal::Immutable, seeds.into_iter());
            let mut script = script.into_iter();
            let mut in_flight: Vec<NodeId> = Vec::new();
            let mut now = 0;
            while lookup.finished(now).is_none() {
                while let Some(ask) = lookup.next(now, |_| true) { in_flight.push(ask.id); }
                prop_assert!(in_flight.len() <= 8);
                prop_assert!(lookup.candidates().len() <= FRONTIER_MAX);
                prop_assert!(lookup.candidates().is_sorted_by(|a, b| a.distance < b.distance));
                prop_assert!(lookup.stats(now).requests <= 128);
                now += 7;
                let Some(id) = in_flight.pop() else { now = lookup.wake_ms().max(now); continue };
                match script.next() {
                    Some((0, _)) => lookup.timed_out(now, &id),
                    Some((1, _)) => lookup.lied(&id),
                    Some((2, _)) => lookup.refused(&id, ErrorCode::Busy),
                    Some((_, n)) => { lookup.answered(now, &id, [0; 16], (n..n.saturating_add(16)).map(node)); }
                    None => lookup.timed_out(now, &id),
                }
            }
        }
    }
}
