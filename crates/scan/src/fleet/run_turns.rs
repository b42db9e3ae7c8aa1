//! Which run a thread of a worker works on, and for how long.
//!
//! Runs share the time of the worker's threads: a thread goes to the run that had the least of it. A turn ends when the run has
//! nothing more for the thread, or when another run waits: after [`SLICE_MIN`] for one that never had a turn, after [`SLICE`] for
//! one that had less time. One thread leaves for each run that waits, the others stay.
//!
//! A run that had nothing *rests*, for all threads: each time longer, so that a worker asks little, and never much longer than it
//! has been waiting. One thread looks again when the rest is over; a shard that is granted wakes all.
//!
//! Events in, choices out: the caller says what time it is, and asks the coordinator.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::run::label::RunKey;

/// How long a thread stays with its run while another one never had a turn.
const SLICE_MIN: Duration = Duration::from_millis(250);
/// How long it stays while another one had less time, and by how much less.
const SLICE: Duration = Duration::from_secs(2);
/// How long it stays while another one had nothing when it was looked at last.
const SLICE_MAX: Duration = Duration::from_secs(16);
/// The first rest of a run that had nothing, and the longest if there is only one.
const REST_MIN: Duration = Duration::from_millis(250);
const REST_MAX: Duration = Duration::from_secs(32);

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// Another run waits, or the coordinator failed.
    Over,
    /// The run has shards, and none for this worker.
    Idle,
    /// The run has no open shard, but it is not over: what is parked in it may be opened again.
    Finished,
    /// It cannot be worked on from here.
    Unusable,
    /// It is over.
    Gone,
}

/// The turns of a worker's threads.
#[derive(Debug, Default)]
pub(super) struct RunTurns {
    runs: BTreeMap<RunKey, Share>,
    /// By thread.
    turns: BTreeMap<u64, Turn>,
    /// Whether the last look for runs was answered.
    is_listed: bool,
}

/// What a run had of the worker.
#[derive(Debug, Default)]
struct Share {
    /// Time of threads.
    spent: Duration,
    /// Threads that are there.
    threads: usize,
    had_turn: bool,
    rest: Option<Rest>,
}

#[derive(Debug, Clone, Copy)]
struct Rest {
    until: Instant,
    length: Duration,
    why: TurnEnd,
}

#[derive(Debug)]
struct Turn {
    run: RunKey,
    begun: Instant,
    /// Up to when its time is added to the run's.
    counted: Instant,
    gives_way: bool,
}

impl Share {
    fn is_ready(&self, now: Instant) -> bool {
        self.rest.is_none_or(|rest| now >= rest.until)
    }

    /// Whether it waits for a thread that has been elsewhere for so long, in a run that had so much.
    fn waits(&self, lasted: Duration, other: Duration) -> bool {
        let is_new = self.threads == 0 && !self.had_turn && lasted >= SLICE_MIN;
        let slice = if self.rest.is_some() { SLICE_MAX } else { SLICE };
        is_new || (lasted >= slice && self.spent + SLICE <= other)
    }
}

impl RunTurns {
    /// These runs go on. A new one begins where the others are, so that it has its share and no more.
    pub(super) fn listed<'r>(&mut self, runs: impl IntoIterator<Item = &'r RunKey>, now: Instant) {
        self.count(now);
        self.is_listed = true;
        let least = self.runs.values().map(|share| share.spent).min().unwrap_or_default();
        let mut before = std::mem::take(&mut self.runs);
        for run in runs {
            let share = before.remove(run).unwrap_or_else(|| {
                let threads = self.turns.values().filter(|turn| turn.run == *run).count();
                Share { spent: least, threads, ..Share::default() }
            });
            self.runs.insert(*run, share);
        }
    }

    /// A look for runs failed: threads begin nothing before one is answered, and what they do goes on as long as it can.
    pub(super) fn lost_sight(&mut self) {
        self.is_listed = false;
    }

    /// Whether the last look for runs was answered.
    pub(super) fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// The run that `thread` goes to; `None` if all of them rest, or none is known.
    pub(super) fn begin(&mut self, thread: u64, now: Instant) -> Option<RunKey> {
        self.count(now);
        if !self.is_listed {
            return None;
        }
        let ready = self.runs.iter_mut().filter(|(_, share)| share.is_ready(now));
        let (run, share) = ready.min_by_key(|(_, share)| (share.spent, share.threads, share.had_turn))?;
        share.threads += 1;
        // One thread looks whether there is something again.
        if let Some(rest) = &mut share.rest {
            rest.until = now + rest.length;
        }
        let run = *run;
        self.turns.insert(thread, Turn { run, begun: now, counted: now, gives_way: false });
        Some(run)
    }

    /// The run had a shard for `thread`, so it may have some for others.
    pub(super) fn found_work(&mut self, thread: u64) {
        let share = self.turns.get(&thread).and_then(|turn| self.runs.get_mut(&turn.run));
        if let Some(share) = share {
            share.rest = None;
        }
    }

    /// Whether `thread` is to leave its run at the next safe point.
    pub(super) fn gives_way(&mut self, thread: u64, now: Instant) -> bool {
        self.count(now);
        let leaving = self.turns.values().filter(|turn| turn.gives_way).count();
        let Some(turn) = self.turns.get_mut(&thread) else { return false };
        if !turn.gives_way {
            let lasted = now.saturating_duration_since(turn.begun);
            let own = self.runs.get(&turn.run).map_or(Duration::MAX, |share| share.spent);
            let others = self.runs.iter().filter(|(run, share)| **run != turn.run && share.is_ready(now));
            turn.gives_way = others.filter(|(_, share)| share.waits(lasted, own)).count() > leaving;
        }
        turn.gives_way
    }

    /// The turn of `thread` is over.
    pub(super) fn end(&mut self, thread: u64, end: TurnEnd, now: Instant) {
        self.count(now);
        let Some(turn) = self.turns.remove(&thread) else { return };
        if end == TurnEnd::Gone {
            self.runs.remove(&turn.run);
            return;
        }
        // The longest rests are shared out: a worker with many such runs asks no more than with one.
        let resting = self.runs.values().filter(|share| share.rest.is_some()).count();
        let Some(share) = self.runs.get_mut(&turn.run) else { return };
        share.threads = share.threads.saturating_sub(1);
        share.had_turn = true;
        if end == TurnEnd::Over {
            return;
        }
        let length = match share.rest {
            None => REST_MIN,
            // Another thread came to the same end a moment ago.
            Some(rest) if rest.until.saturating_duration_since(turn.begun) > rest.length => return,
            Some(rest) => (rest.length * 2).min(REST_MAX * u32::try_from(resting).unwrap_or(u32::MAX)),
        };
        share.rest = Some(Rest { until: now + length, length, why: end });
    }

    /// Whether the run goes on, as far as is known.
    pub(super) fn goes_on(&self, run: &RunKey) -> bool {
        self.runs.contains_key(run)
    }

    /// Whether no run has work for this worker, now or later: in none is a thread, and none has shards that others hold.
    pub(super) fn is_done(&self) -> bool {
        let is_over = |rest: Rest| matches!(rest.why, TurnEnd::Finished | TurnEnd::Unusable);
        self.is_listed && self.runs.values().all(|share| share.threads == 0 && share.rest.is_some_and(is_over))
    }

    /// Runs that cannot be worked on from here.
    pub(super) fn unusable(&self) -> Vec<RunKey> {
        let is_unusable = |share: &Share| share.rest.is_some_and(|rest| rest.why == TurnEnd::Unusable);
        self.runs.iter().filter(|(_, share)| is_unusable(share)).map(|(run, _)| *run).collect()
    }

    /// Adds the time that has passed to the runs in which threads are.
    fn count(&mut self, now: Instant) {
        for turn in self.turns.values_mut() {
            let passed = now.saturating_duration_since(turn.counted);
            turn.counted = turn.counted.max(now);
            if let Some(share) = self.runs.get_mut(&turn.run) {
                share.spent = share.spent.saturating_add(passed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::{RunId, RunIncarnation};

    use super::*;

    fn run(number: u64) -> RunKey {
        RunKey::new(RunId::new(number), RunIncarnation::new(1))
    }

    /// A worker whose clock is moved by hand.
    struct Stage {
        turns: RunTurns,
        now: Instant,
    }

    impl Stage {
        fn new(runs: &[u64]) -> Self {
            let mut stage = Self { turns: RunTurns::default(), now: Instant::now() };
            stage.list(runs);
            stage
        }

        fn list(&mut self, runs: &[u64]) {
            let runs: Vec<RunKey> = runs.iter().map(|number| run(*number)).collect();
            self.turns.listed(&runs, self.now);
        }

        fn pass(&mut self, millis: u64) {
            self.now += Duration::from_millis(millis);
        }

        fn begin(&mut self, thread: u64) -> Option<u64> {
            self.turns.begin(thread, self.now).map(|run| run.run.get())
        }

        fn gives_way(&mut self, thread: u64) -> bool {
            self.turns.gives_way(thread, self.now)
        }

        fn end(&mut self, thread: u64, end: TurnEnd) {
            self.turns.end(thread, end, self.now);
        }
    }

    #[test]
    fn the_only_run_keeps_its_threads() {
        let mut stage = Stage::new(&[1]);
        assert_eq!((stage.begin(1), stage.begin(2)), (Some(1), Some(1)));
        stage.pass(3_600_000);
        assert!(!stage.gives_way(1) && !stage.gives_way(2));
    }

    #[test]
    fn one_thread_leaves_for_a_run_that_never_had_a_turn_and_the_others_stay() {
        let mut stage = Stage::new(&[1]);
        stage.begin(1);
        stage.begin(2);
        stage.pass(60_000);
        stage.list(&[1, 2]);
        assert!(stage.gives_way(2));
        assert!(!stage.gives_way(1), "one is enough");
        stage.end(2, TurnEnd::Over);
        assert_eq!(stage.begin(2), Some(2));
        stage.pass(249);
        stage.list(&[1, 2, 3]);
        assert!(!stage.gives_way(2), "too soon to leave again");
        assert!(stage.gives_way(1));
    }

    #[test]
    fn a_new_run_has_its_share_from_now_on_and_not_for_the_time_before_it_was_there() {
        let mut stage = Stage::new(&[1]);
        stage.begin(1);
        stage.pass(60_000);
        stage.list(&[1, 2]);
        assert!(stage.gives_way(1));
        stage.end(1, TurnEnd::Over);
        assert_eq!(stage.begin(1), Some(2));
        stage.pass(1_999);
        assert!(!stage.gives_way(1));
        stage.pass(1);
        assert!(stage.gives_way(1), "the other had two seconds less since");
    }

    #[test]
    fn runs_get_the_same_time_however_many_shards_they_have() {
        let mut stage = Stage::new(&[1, 2, 3]);
        let mut time = BTreeMap::new();
        for _ in 0..300 {
            let at = stage.begin(1).unwrap();
            while !stage.gives_way(1) {
                stage.pass(100);
                *time.entry(at).or_insert(0) += 100;
            }
            stage.end(1, TurnEnd::Over);
        }
        let (least, most) = (time.values().min().unwrap(), time.values().max().unwrap());
        assert!(time.len() == 3 && most - least <= 4_000, "{time:?}");
    }

    #[test]
    fn a_run_that_has_nothing_rests_for_all_threads_each_time_longer_and_hides_no_other() {
        let mut stage = Stage::new(&[1, 2]);
        assert_eq!(stage.begin(1), Some(1));
        stage.end(1, TurnEnd::Idle);
        assert_eq!(stage.begin(1), Some(2), "at once");
        stage.end(1, TurnEnd::Gone);
        stage.list(&[1]);
        let mut rests = Vec::new();
        for _ in 0..8 {
            let since = stage.now;
            while stage.begin(1).is_none() {
                stage.pass(250);
            }
            assert_eq!(stage.begin(2), None, "one looks");
            rests.push((stage.now - since).as_millis());
            stage.end(1, TurnEnd::Idle);
        }
        assert_eq!(rests, [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000]);
    }

    #[test]
    fn a_run_that_had_nothing_interrupts_another_one_rarely() {
        let mut stage = Stage::new(&[1, 2]);
        stage.begin(1);
        stage.end(1, TurnEnd::Idle);
        assert_eq!(stage.begin(1), Some(2));
        stage.pass(15_999);
        assert!(!stage.gives_way(1));
        stage.pass(1);
        assert!(stage.gives_way(1));
    }

    #[test]
    fn threads_that_come_to_the_same_end_make_one_rest_and_a_shard_ends_it() {
        let mut stage = Stage::new(&[1]);
        for thread in 1..=3 {
            assert_eq!(stage.begin(thread), Some(1));
        }
        for thread in 1..=3 {
            stage.pass(1);
            stage.end(thread, TurnEnd::Idle);
        }
        stage.pass(250);
        assert_eq!(stage.begin(1), Some(1));
        assert_eq!(stage.begin(2), None);
        stage.turns.found_work(1);
        assert_eq!(stage.begin(2), Some(1));
    }

    #[test]
    fn many_runs_without_work_are_looked_at_no_more_often_than_one() {
        let all: Vec<u64> = (1..=10).collect();
        let mut stage = Stage::new(&all);
        let mut looks = 0;
        for tick in 0..20_000 {
            while stage.begin(1).is_some() {
                stage.end(1, TurnEnd::Idle);
                looks += u32::from(tick >= 10_000);
            }
            stage.pass(100);
        }
        // 1,000 seconds, and 32 for each look.
        assert!((20..=45).contains(&looks), "{looks}");
    }

    #[test]
    fn nothing_is_done_before_the_runs_are_known() {
        assert!(!RunTurns::default().is_done());
        let mut stage = Stage::new(&[]);
        assert!(stage.turns.is_done() && stage.begin(1).is_none());
    }

    #[test]
    fn without_an_answer_about_the_runs_no_turn_begins_and_nothing_is_done() {
        let mut stage = Stage::new(&[1]);
        assert_eq!(stage.begin(1), Some(1));
        stage.turns.lost_sight();
        assert!(!stage.gives_way(1), "it goes on");
        stage.end(1, TurnEnd::Finished);
        stage.pass(60_000);
        assert!(stage.begin(1).is_none() && !stage.turns.is_done());
        stage.list(&[1]);
        assert_eq!(stage.begin(1), Some(1));
    }

    #[test]
    fn a_run_that_is_over_here_leaves_nothing_open_and_is_looked_at_again() {
        let mut stage = Stage::new(&[1, 2]);
        assert!(!stage.turns.is_done());
        assert_eq!(stage.begin(1), Some(1));
        stage.end(1, TurnEnd::Finished);
        assert_eq!(stage.begin(1), Some(2));
        stage.end(1, TurnEnd::Unusable);
        assert!(stage.turns.is_done());
        assert_eq!(stage.turns.unusable(), [run(2)]);
        assert_eq!(stage.begin(1), None);
        stage.pass(250);
        assert_eq!(stage.begin(1), Some(1));
        assert!(!stage.turns.is_done(), "a thread is there");
        assert_eq!(stage.begin(2), Some(2));
        stage.turns.found_work(2);
        assert_eq!(stage.turns.unusable(), []);
    }
}
