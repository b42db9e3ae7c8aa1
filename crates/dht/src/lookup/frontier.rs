//! The frontier: who is in view, who is wanted next, and who the holders are.
//!
//! A sorted array of fixed capacity. An address prefix has few places in it, so that an attacker with many identities in
//! one network takes none from others; those of private networks are not counted. A crowd around the target makes the lookup wider.

use tessera_contracts::point::{ContentId, NodeId, Point as _};

use super::namers::Named;
use super::{Candidate, FRONTIER_MAX, Goal, Lookup, Standing};
use crate::addr::AddrPrefix;
use crate::contact::Contact;

/// Assumed of a node whose round trip is unknown.
const DEFAULT_SRTT_MS: u16 = 150;

impl Lookup {
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

    /// How many of the K nearest have yet to answer: they belong to the holders as far as anybody knows.
    #[must_use]
    pub fn unheard(&self) -> usize {
        let nearest = self.frontier.iter().filter(|candidate| candidate.may_be_there()).take(self.config.k);
        nearest.filter(|candidate| candidate.standing != Standing::Answered).count()
    }

    /// Whether a holder is one only because nearer ones have yet to answer: it is written to, but a reader of the target looks
    /// for those.
    #[must_use]
    pub fn stands_in(&self, holder: &Candidate) -> bool {
        let nearer = self.frontier.iter().take_while(|candidate| candidate.distance < holder.distance);
        holder.distance > self.radius && nearer.filter(|candidate| candidate.may_be_there()).count() >= self.config.k
    }

    /// How many more it would have to know of to have K that answered, or still may. Where nobody was silent it does not say: those
    /// who answer name others.
    #[must_use]
    pub fn lacking(&self) -> usize {
        if self.stats.timeouts == 0 {
            return 0;
        }
        self.config.k.saturating_sub(self.frontier.iter().filter(|candidate| candidate.may_be_there()).count())
    }

    /// Whether it has been told of `id`.
    #[must_use]
    pub fn knows(&self, id: &NodeId) -> bool {
        self.position(id).is_some()
    }

    /// Someone crowds in: far more nodes within the radius than the network's size explains; or, in its innermost sixteenth to
    /// eighth, as many as make a quorum by themselves, where one or two are expected. The latter is what a reader beside the
    /// target sees, whose own table names little else than the crowd.
    pub(crate) fn is_crowded(&self) -> bool {
        let inner = self.radius.leading_zeros() + 4;
        let within = |is_near: &dyn Fn(&Candidate) -> bool| self.frontier.iter().filter(|c| is_near(c)).count();
        within(&|candidate| candidate.distance <= self.radius) > self.config.k * 2
            || within(&|candidate| candidate.distance.leading_zeros() >= inner) >= self.config.sequence_quorum
    }

    /// Nearest candidate of `path` that is wanted, could be asked at `now`, and may be. Among equals in distance (the
    /// same number of leading zeros) of the first few, the one with the shortest known round trip.
    pub(super) fn best_of_path(
        &self,
        path: u8,
        now_ms: u64,
        may_ask: &mut impl FnMut(&Candidate) -> bool,
    ) -> Option<usize> {
        let mut best: Option<usize> = None;
        let mut looked = 0;
        for at in self.wanted(path) {
            let candidate = &self.frontier[at];
            if candidate.standing == Standing::Silent && now_ms < candidate.asked_ms + self.config.retry_cooldown_ms {
                continue;
            }
            if self.has_to_wait(candidate) || !may_ask(candidate) {
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

    pub(super) fn next_wanted(&self) -> Option<usize> {
        (0..self.config.paths as u8).find_map(|path| self.wanted(path).next())
    }

    /// Slots of `path` still to be asked: those to be asked first, then nearest first the fresh ones among its share of the
    /// K nearest or within the radius, those that did not answer to a record after the others; then, if the lookup would end
    /// unsatisfied, silent ones there.
    fn wanted(&self, path: u8) -> impl Iterator<Item = usize> + '_ {
        let share = self.config.k.div_ceil(self.config.paths);
        let on_path = move |candidate: &&Candidate| candidate.path == path;
        let first = move |candidate: &Candidate| candidate.first && candidate.standing == Standing::Fresh;
        let firsts = if self.has_first { &self.frontier[..] } else { &[] };
        let first = firsts.iter().enumerate().filter(move |(_, c)| first(c) && on_path(c));
        let fresh = move |did_not_answer: bool| {
            let (mut rank, mut rank_of_all) = (0, 0);
            let fresh = self.frontier.iter().enumerate().map_while(move |(at, candidate)| {
                // They are sorted: a candidate beyond all three bounds is followed only by others beyond them.
                if rank >= share && rank_of_all >= self.config.k && candidate.distance > self.radius {
                    return None;
                }
                if !candidate.may_be_there() {
                    return Some(None);
                }
                rank_of_all += 1;
                if !on_path(&candidate) {
                    return Some(None);
                }
                rank += 1;
                // Its share keeps a path going whatever the others found; the K nearest of all are wanted, whichever path found them.
                let near = rank <= share || rank_of_all <= self.config.k || candidate.distance <= self.radius;
                let wanted = candidate.standing == Standing::Fresh && near && !candidate.first;
                Some((wanted && candidate.writes == did_not_answer).then_some((at, candidate)))
            });
            fresh.flatten()
        };
        let again = core::iter::once(()).filter(|()| self.silent_writes > 0).flat_map(move |()| fresh(true));
        // Silent peers count only when nothing fresh is left, nothing is under way, and something is missing.
        let silent = core::iter::once(()).filter(|()| self.is_unsatisfied()).flat_map(move |()| {
            let mut rank = 0;
            self.frontier.iter().enumerate().filter(move |(_, candidate)| {
                if !on_path(candidate) {
                    return false;
                }
                rank += 1;
                let is_doubted = candidate.standing == Standing::Fresh && candidate.doubted;
                (candidate.standing == Standing::Silent || is_doubted) && rank <= share
            })
        });
        first.chain(fresh(false)).chain(again).chain(silent).map(|(at, _)| at)
    }

    /// Whether what it is after is missing, or not all of it is there, with those who have answered so far.
    fn is_unsatisfied(&self) -> bool {
        match self.goal {
            Goal::Nodes => self.frontier.iter().filter(|c| c.standing == Standing::Answered).count() < self.config.k,
            Goal::Immutable | Goal::Mutable { .. } => self.record.is_empty(),
            Goal::Providers { .. } => self.providers.is_empty(),
        }
    }

    pub(super) fn waiting(&self, from: &NodeId) -> Option<usize> {
        self.position(from).filter(|at| self.frontier[*at].standing == Standing::Asked)
    }

    pub(super) fn position(&self, id: &NodeId) -> Option<usize> {
        let distance = id.distance_to(&ContentId::from_bytes(self.target));
        self.frontier.binary_search_by_key(&distance, |candidate| candidate.distance).ok()
    }

    /// Whether one more of an address prefix may come into view.
    pub(super) fn prefix_has_room(&self, prefix: AddrPrefix) -> bool {
        let per_prefix_max = self.config.per_prefix_max;
        let is_counted = per_prefix_max < FRONTIER_MAX && !prefix.is_private();
        let same = |candidate: &&Candidate| candidate.contact.addr.prefix() == prefix;
        !is_counted || self.frontier.iter().filter(same).count() < per_prefix_max
    }

    pub(super) fn insert(
        &mut self,
        id: NodeId,
        contact: Contact,
        hops: u8,
        path: u8,
        srtt_ms: Option<u64>,
        via: Option<NodeId>,
    ) {
        let distance = id.distance_to(&ContentId::from_bytes(self.target));
        let mut place = match self.frontier.binary_search_by_key(&distance, |candidate| candidate.distance) {
            Err(place) => place,
            // Seen already, on whichever path: paths stay disjoint.
            Ok(at) => {
                self.named_again(at, contact.addr, via);
                return;
            }
        };
        if place == FRONTIER_MAX && !self.config.evict_silent_first || self.was_tried(&id) || !self.take_share(via) {
            return;
        }
        let doubted = self.distrusts(via);
        // One prefix, few places: a nearer newcomer takes the place of the farthest of its own kind not yet asked.
        let prefix: AddrPrefix = contact.addr.prefix();
        let same = |candidate: &Candidate| candidate.contact.addr.prefix() == prefix;
        if !self.prefix_has_room(prefix) {
            let farthest = self.frontier.iter().rposition(|c| same(c) && c.standing == Standing::Fresh);
            match farthest {
                Some(at) if at >= place => {
                    self.frontier.remove(at);
                }
                _ => return,
            }
        } else if self.frontier.len() == FRONTIER_MAX {
            match self.makes_room(place, via) {
                Some(at) => {
                    self.frontier.remove(at);
                    place -= usize::from(at < place);
                }
                None => return,
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
            also: None,
            doubted,
            named: Named::default(),
            first: false,
            writes: false,
            srtt_ms: srtt_ms.map_or(DEFAULT_SRTT_MS, |ms| ms.min(u64::from(u16::MAX)) as u16),
            relay: None,
            elsewhere: None,
            moves: 0,
            page: 0,
            pages: 0,
            via,
            asked_ms: 0,
            answered_ms: 0,
            attempts: 0,
        };
        self.frontier.insert(place, candidate);
        self.is_all_asked = false;
    }
}
