//! Namers: how much of what a node said about others has held, and what follows for the rest of what it said.
//!
//! A contact that another node names is hearsay until it answers. Anybody can name ground keys at addresses where nothing listens, nearer to
//! the target than any node there is. So each namer has a bounded share of the frontier; once two more of its contacts were silent than answered,
//! its others are *doubted*: asked last, and first to make room. Two namers answer for a contact that both name, and it is doubted when neither
//! is believed.

use tessera_contracts::point::NodeId;

use super::{Candidate, Lookup, Standing};

/// So many answers at most speak for a namer: a few live accomplices must not buy time for many made-up ones.
const GOOD_MAX: u8 = 2;

/// What has become of the contacts that a node named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// Contacts that came into view by it.
    taken: u8,
    good: u8,
    silent: u8,
}

impl Named {
    fn is_distrusted(self) -> bool {
        // One may be a datagram that was lost.
        self.silent > self.good + 1
    }
}

impl Lookup {
    fn namer(&self, via: Option<NodeId>) -> Option<usize> {
        via.and_then(|via| self.position(&via))
    }

    /// Whether a namer may bring another contact into view. It is noted that it does.
    pub(super) fn take_share(&mut self, via: Option<NodeId>) -> bool {
        let per_namer_max = self.config.per_namer_max;
        let Some(namer) = self.namer(via) else { return true };
        let named = &mut self.frontier[namer].named;
        if usize::from(named.taken) >= per_namer_max {
            return false;
        }
        named.taken = named.taken.saturating_add(1);
        true
    }

    /// Whether what `via` names is doubted.
    pub(super) fn distrusts(&self, via: Option<NodeId>) -> bool {
        self.namer(via).is_some_and(|namer| self.frontier[namer].named.is_distrusted())
    }

    /// Whether nobody speaks for a candidate: not our own table, and not what else its namer named.
    pub(super) fn is_unvouched(&self, candidate: &Candidate) -> bool {
        candidate.standing != Standing::Answered
            && self.namer(candidate.via).is_some_and(|namer| self.frontier[namer].named.good == 0)
    }

    /// A contact that `via` named has answered.
    pub(super) fn credit(&mut self, via: Option<NodeId>) {
        if !self.config.doubt_namers {
            return;
        }
        let Some(namer) = self.namer(via) else { return };
        let named = &mut self.frontier[namer].named;
        let was_distrusted = named.is_distrusted();
        named.good = (named.good + 1).min(GOOD_MAX);
        if was_distrusted && !named.is_distrusted() {
            self.doubt(via, false);
        }
    }

    /// A contact that `via` named was silent.
    pub(super) fn blame(&mut self, via: Option<NodeId>) {
        if !self.config.doubt_namers {
            return;
        }
        let Some(namer) = self.namer(via) else { return };
        let named = &mut self.frontier[namer].named;
        named.silent = named.silent.saturating_add(1);
        if named.is_distrusted() {
            self.doubt(via, true);
        }
    }

    fn doubt(&mut self, via: Option<NodeId>, doubted: bool) {
        for at in 0..self.frontier.len() {
            let Candidate { via: first, also, .. } = self.frontier[at];
            if first != via && also != via {
                continue;
            }
            let other = if first == via { also } else { first };
            self.frontier[at].doubted = doubted && (other.is_none() || self.distrusts(other));
        }
        self.is_all_asked = false;
    }

    /// `via` names a candidate that is in view already.
    pub(super) fn named_by(&mut self, at: usize, via: Option<NodeId>) {
        let Candidate { standing, doubted, via: first, also, .. } = self.frontier[at];
        if via.is_none() || via == first || via == also || first.is_none() {
            return;
        }
        if standing == Standing::Answered {
            return self.credit(via);
        }
        let is_believed = !self.distrusts(via);
        if standing == Standing::Fresh && is_believed && (doubted || also.is_none()) {
            self.frontier[at].also = via;
            self.frontier[at].doubted = false;
            self.is_all_asked = false;
        }
    }

    /// Whether a question to a candidate has to wait. Once a question met silence, at most half of those in flight go to contacts that nobody
    /// speaks for.
    pub(super) fn has_to_wait(&self, candidate: &Candidate) -> bool {
        if !self.config.doubt_namers || self.stats.timeouts == 0 || !self.is_unvouched(candidate) {
            return false;
        }
        let asked = |other: &&Candidate| other.standing == Standing::Asked && self.is_unvouched(other);
        self.frontier.iter().filter(asked).count() >= (self.alpha / 2).max(1)
    }

    /// Whose place a newcomer takes that `via` names and that belongs at `place`, in a frontier that is full. Those that were silent go first,
    /// then those that are doubted, then hearsay that nothing speaks for. A newcomer for which nothing speaks takes no other place; another takes
    /// that of farther hearsay. One that answered makes room only if the target's holders lie nearer, and one of our own table not for hearsay.
    pub(super) fn makes_room(&self, place: usize, via: Option<NodeId>) -> Option<usize> {
        let farthest = |may_go: &dyn Fn(&Candidate) -> bool| self.frontier.iter().rposition(may_go);
        if !self.config.evict_silent_first {
            return farthest(&|candidate| candidate.standing != Standing::Asked).filter(|at| *at >= place);
        }
        if self.distrusts(via) {
            return None;
        }
        let is_fresh = |candidate: &Candidate| candidate.standing == Standing::Fresh;
        let is_silent = |candidate: &Candidate| matches!(candidate.standing, Standing::Silent | Standing::Dead);
        let is_unvouched = |candidate: &Candidate| is_fresh(candidate) && self.is_unvouched(candidate);
        let worst = farthest(&is_silent).or_else(|| farthest(&|candidate| is_fresh(candidate) && candidate.doubted));
        if worst.is_some() {
            return worst;
        }
        let is_vouched = self.namer(via).is_none_or(|namer| self.frontier[namer].named.good > 0);
        if !is_vouched {
            return farthest(&is_unvouched).filter(|at| *at >= place);
        }
        let hearsay = farthest(&is_unvouched)
            .or_else(|| farthest(&|candidate| is_fresh(candidate) && (candidate.via.is_some() || via.is_none())))
            .filter(|at| *at >= place || is_unvouched(&self.frontier[*at]));
        hearsay.or_else(|| {
            let holds = |candidate: &Candidate| matches!(candidate.standing, Standing::Asked | Standing::Answered);
            let at = farthest(&|candidate| candidate.standing != Standing::Asked && !is_fresh(candidate))?;
            let answered = self.frontier.iter().filter(|candidate| holds(candidate)).count();
            (at >= place && answered > self.config.k && self.frontier[at].distance > self.radius).then_some(at)
        })
    }
}
