//! The same random sequence of commands on a backend and on the in-memory coordinator.
//!
//! Both must answer every command alike, in every fact and event, and hold equal records afterwards. Commands are drawn
//! from what exists: ids, keys and times are few, so that retries, conflicts, takeovers, exhausted budgets and limits all
//! come up by themselves. Which shard a claim hands out is the one thing a backend may choose; the other side acquires that
//! shard by name.
//!
//! A difference is cut down to a short sequence and printed as a story, with the answers the in-memory coordinator gives.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tessera_contracts::{CursorSemantics, LogicalTime, RunId, TenantId};
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::status::{ParkReason, ShardStatus};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::summary::ShardFilter;
use tessera_coordination::shard_limits::ShardLimits;
use tessera_coordination::{CoordinationFacade, InMemoryCoordinator, RunManagement};

use crate::backend::{BackendConfig, BackendFactory, InMemory, Need};
use crate::command::{Command, Holder, Ops, OrderText, ReleaseText, ReplaceText, ResidualText, RootText, Roots};
use crate::line::Answer;
use crate::story::panic_text;
use crate::text::{CursorText, EpochText, RangeText, ShardName};
use crate::watch::{Played, Watch};
use crate::world::{World, tenant_called};

const TENANTS: [&str; 2] = ["acme", "globex"];

/// Runs that a failure may be replayed to cut it down. Bounded: a backend may be slow.
const SHRINK_RUNS_MAX: usize = 250;

/// How often all records are compared, in steps.
const COMPARE_ALL_EVERY: usize = 16;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Turn {
    at: u64,
    tenant: &'static str,
    command: Command,
}

/// Plays `steps` random commands on a backend of `factory` and on the in-memory coordinator.
pub(crate) fn compare<F: BackendFactory>(factory: &F, seed: u64, steps: usize) -> Result<(), String> {
    let mut dice = Dice { state: seed, reports_unreachable: factory.offers(Need::NoSessions) };
    let config = BackendConfig {
        default_lease_duration: 12,
        shard_limits: ShardLimits { per_tenant_max: dice.between(6, 16), total_max: dice.between(10, 24) },
        clock_skew_allowance: if factory.offers(Need::ClockSkew) { dice.between(0, 3) } else { 0 },
        ..BackendConfig::default()
    };
    let mut turns: Vec<Turn> = Vec::new();
    let problem = caught(|| {
        let mut pair = Pair::new(factory, config);
        let mut at = 1;
        for step in 0..steps {
            at = dice.time_after(at);
            let turn = dice.turn(at, step, &turns, &mut pair.reference);
            turns.push(turn);
            pair.step(&turns[step], step % COMPARE_ALL_EVERY == 0 || step + 1 == steps)?;
        }
        Ok(())
    });
    let Err(problem) = problem else { return Ok(()) };
    let (turns, problem) = shrink(factory, config, turns, problem);
    Err(format!(
        "seed {seed:#x} (replay it with TESSERA_CONFORMANCE_SEED={seed:#x}): {problem}\n\
         the shortest sequence found, as a story with the answers that were expected:\n\n{}",
        as_story(config, &turns)
    ))
}

fn caught(play: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(play))
        .unwrap_or_else(|panic| Err(format!("the backend panicked: {}", panic_text(&*panic))))
}

/// Leaves out turns that are not needed for the failure, in ever smaller pieces.
fn shrink<F: BackendFactory>(
    factory: &F,
    config: BackendConfig,
    mut turns: Vec<Turn>,
    mut problem: String,
) -> (Vec<Turn>, String) {
    let mut runs = 0;
    let mut piece = turns.len() / 2;
    while piece > 0 {
        let mut start = 0;
        while start < turns.len() && runs < SHRINK_RUNS_MAX {
            let mut shorter = turns.clone();
            shorter.drain(start..(start + piece).min(turns.len()));
            runs += 1;
            match replay(factory, config, &shorter) {
                Some((failing, found)) => {
                    shorter.truncate(failing + 1);
                    (turns, problem) = (shorter, found);
                }
                None => start += piece,
            }
        }
        piece /= 2;
    }
    (turns, problem)
}

/// The first turn that fails, and how. Turns that no longer make sense are passed over.
fn replay<F: BackendFactory>(factory: &F, config: BackendConfig, turns: &[Turn]) -> Option<(usize, String)> {
    let mut at = 0;
    let played = caught(|| {
        let mut pair = Pair::new(factory, config);
        for (index, turn) in turns.iter().enumerate() {
            at = index;
            pair.step(turn, true)?;
        }
        Ok(())
    });
    played.err().map(|problem| (at, problem))
}

/// The turns as a story: it expects the answers of the in-memory coordinator.
fn as_story(config: BackendConfig, turns: &[Turn]) -> String {
    let ShardLimits { per_tenant_max, total_max } = config.shard_limits;
    let mut story = format!(
        "# Say here what went wrong.\nconfig lease {} tenant shards {per_tenant_max} total shards {total_max} skew {}\n",
        config.default_lease_duration, config.clock_skew_allowance
    );
    let mut world = World::new(InMemory.create(&config));
    let mut tenant = "acme";
    for turn in turns {
        let Ok(answers) = world.play(turn.at, turn.tenant, &turn.command) else { continue };
        if turn.tenant != tenant {
            tenant = turn.tenant;
            let _ = writeln!(story, "tenant {tenant}");
        }
        let answer = answers.first().map_or_else(String::new, |answer| answer.to_string());
        let _ = writeln!(story, "at {} {} -> {answer}", turn.at, turn.command);
    }
    story
}

/// The backend under test, the reference, and the watch on the former.
struct Pair<B> {
    subject: World<B>,
    reference: World<InMemoryCoordinator>,
    watch: Watch,
}

impl<B: CoordinationFacade> Pair<B> {
    fn new<F: BackendFactory<Backend = B>>(factory: &F, config: BackendConfig) -> Self {
        Self {
            subject: World::new(factory.create(&config)),
            reference: World::new(InMemory.create(&config)),
            watch: Watch::new(config),
        }
    }

    fn step(&mut self, turn: &Turn, compare_all: bool) -> Result<(), String> {
        let Turn { at, tenant, command } = turn;
        let failed = |problem: String| format!("at {at} {command} (tenant {tenant}): {problem}");
        let Ok(answers) = self.subject.play(*at, tenant, command) else {
            // A mistake in the sequence, such as a lease that was not given, is one on both sides.
            return match self.reference.play(*at, tenant, command) {
                Err(_) => Ok(()),
                Ok(_) => Err(failed("only the in-memory coordinator could be asked this".into())),
            };
        };
        self.answers_agree(turn, &answers).map_err(failed)?;
        let played = Played { at: *at, tenant, command, answers: &answers };
        self.watch.look(&mut self.subject, &played).map_err(failed)?;
        self.records_agree(turn, compare_all).map_err(failed)
    }

    fn answers_agree(&mut self, turn: &Turn, answers: &[Answer]) -> Result<(), String> {
        let Turn { at, tenant, command } = turn;
        let mut expected = Vec::new();
        match (command, answers) {
            (Command::Claim { .. }, [answer]) if parks_unreachable(answer) => {
                expected.extend(self.reference.play(*at, tenant, command)?);
            }
            (Command::Claim { worker, .. }, [answer]) => {
                let mut mirrored = Vec::new();
                let mut rest = answer.clone();
                // Shards that used up their retries are parked on the way to an available one.
                for event in &answer.events {
                    let shard = event.get("shard").unwrap_or_default();
                    let shard: ShardName =
                        shard.parse().map_err(|_| format!("the claim told of an unknown {shard}"))?;
                    let acquire = Command::Acquire { worker: *worker, shard };
                    let answers = self.reference.play(*at, tenant, &acquire)?;
                    mirrored.extend(answers.iter().flat_map(|answer| answer.events.clone()));
                    if let Some(granted) = answers.into_iter().find(|answer| answer.line.verdict() == "granted") {
                        expected.push(granted);
                    }
                }
                rest.events.clear();
                if expected.is_empty() {
                    expected = self.reference.play(*at, tenant, command)?;
                }
                expected.iter_mut().for_each(|answer| answer.events.clear());
                if mirrored != answer.events {
                    return Err(format!("the claim told {:?}, expected {mirrored:?}", answer.events));
                }
                return if expected == [rest] { Ok(()) } else { Err(different(&expected, answers)) };
            }
            _ => expected.extend(self.reference.play(*at, tenant, command)?),
        }
        // Any candidates will do, if there are more than were asked for.
        if matches!(command, Command::Candidates { .. }) {
            let verdicts = |answers: &[Answer]| answers.iter().map(|answer| answer.line.verdict().to_owned()).collect();
            let (seen, expected): (Vec<_>, Vec<_>) = (verdicts(answers), verdicts(&expected));
            return if seen == expected { Ok(()) } else { Err(format!("answered {seen:?}, expected {expected:?}")) };
        }
        if expected == answers { Ok(()) } else { Err(different(&expected, answers)) }
    }

    fn records_agree(&mut self, turn: &Turn, compare_all: bool) -> Result<(), String> {
        let tenant = tenant_called(turn.tenant);
        let mut shards: Vec<_> = if compare_all {
            self.reference.shards().collect()
        } else {
            let named = turn.command.shards().into_iter().filter_map(|name| self.reference.resolve(tenant, name).ok());
            named.map(|key| (tenant, key)).collect()
        };
        if compare_all && shards != self.subject.shards().collect::<Vec<_>>() {
            return Err("the two hold different shards".into());
        }
        shards.dedup();
        for (tenant, key) in shards {
            let (expected, seen) =
                (self.reference.backend.get_shard(tenant, key), self.subject.backend.get_shard(tenant, key));
            if expected != seen {
                let name = self.reference.name(tenant, key);
                let (Ok(seen), Ok(expected)) = (&seen, &expected) else {
                    return Err(format!("shard {name} is {seen:?}, expected {expected:?}"));
                };
                let words = (self.subject.shown(seen), self.reference.shown(expected));
                // Differences that words do not show, such as an entry of the op-log, are shown in full.
                return Err(if words.0 == words.1 {
                    format!("shard {name} is\n  {seen:?}\nexpected\n  {expected:?}")
                } else {
                    format!("shard {name} is\n  {}\nexpected\n  {}", words.0, words.1)
                });
            }
            let run = (self.reference.backend.get_run(tenant, key.run), self.subject.backend.get_run(tenant, key.run));
            if run.0 != run.1 {
                return Err(format!("run {} is\n  {:?}\nexpected\n  {:?}", key.run.get(), run.1, run.0));
            }
        }
        Ok(())
    }
}

/// Whether a claim parked a shard that no worker is left for, which no acquire does.
fn parks_unreachable(answer: &Answer) -> bool {
    answer.events.iter().any(|event| event.get("because") == Some("unreachable") && event.verdict() == "shard parked")
}

fn different(expected: &[Answer], seen: &[Answer]) -> String {
    let text = |answers: &[Answer]| answers.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ");
    format!("answered\n  {}\nexpected\n  {}", text(seen), text(expected))
}

/// SplitMix64: small, and the same on every machine.
struct Dice {
    state: u64,
    /// Whether the backend tells participants as the in-memory coordinator does, so that reports of shards that cannot be
    /// reached come to the same.
    reports_unreachable: bool,
}

impl Dice {
    fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high - low + 1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll() % 100 < percent
    }

    fn one_of<T: Clone>(&mut self, choices: &[T]) -> Option<T> {
        (!choices.is_empty()).then(|| choices[(self.roll() % choices.len() as u64) as usize].clone())
    }

    /// Mostly a little later, sometimes past every lease, sometimes a clock that runs behind.
    fn time_after(&mut self, at: u64) -> u64 {
        match self.roll() % 20 {
            0 => at.saturating_sub(self.between(1, 3)).max(1),
            1 => at + self.between(10, 30),
            2..=8 => at,
            _ => at + self.between(1, 3),
        }
    }

    fn key(&mut self) -> Vec<u8> {
        let mut key = vec![b'a' + (self.roll() % 26) as u8];
        if self.chance(30) {
            key.push(b'a' + (self.roll() % 26) as u8);
        }
        key
    }

    /// A key of the shard that lies ahead, mostly.
    fn key_ahead(&mut self, record: Option<&ShardRecord>) -> Vec<u8> {
        let mut key = self.key();
        if let Some(record) = record {
            for _ in 0..12 {
                if record.spec.range().contains(&key)
                    && crate::world::last_key(record).is_none_or(|last| last <= &key[..])
                {
                    break;
                }
                key = self.key();
            }
        }
        key
    }

    fn cursor(&mut self, record: Option<&ShardRecord>) -> CursorText {
        if self.chance(8) {
            return CursorText::default();
        }
        let token = self.chance(30).then(|| self.key());
        CursorText { last_key: Some(self.key_ahead(record)), token }
    }

    /// Few ids, so that they meet again; 0 now and then, which is none.
    fn op(&mut self) -> Ops {
        Ops::one(if self.chance(60) { self.between(100, 100_000) } else { self.between(0, 20) })
    }

    /// The number a creator draws: mostly its own, now and then 0, which is none.
    fn incarnation(&mut self) -> Option<u64> {
        self.chance(4).then_some(0)
    }

    /// Mostly the ownership that there is, now and then another one, also of another run that had the same id.
    fn epoch(&mut self, fence: u64) -> EpochText {
        let fence = if self.chance(85) { fence } else { self.between(1, 5) };
        EpochText { incarnation: self.chance(10).then(|| self.between(0, 5)), fence }
    }

    fn config(&mut self) -> RunConfig {
        RunConfig {
            cursor_semantics: if self.chance(50) { CursorSemantics::Completed } else { CursorSemantics::Dispatched },
            lease_duration: self.chance(60).then(|| self.between(0, 15)),
            max_shard_retries: self.between(0, 4) as u32,
        }
    }

    fn roots(&mut self) -> Roots {
        let count = self.between(1, 4) as usize;
        let mut edges: Vec<_> = (0..=count).map(|_| self.key()).collect();
        if !self.chance(5) {
            edges.sort();
            edges.dedup();
        }
        let roots = edges.windows(2).zip(1..).map(|(edges, shard)| RootText {
            shard,
            range: RangeText {
                start: edges[0].clone(),
                end: edges[1].clone(),
                metadata: if shard == 1 { b"meta".into() } else { Vec::new() },
            },
            cursor: CursorText::default(),
        });
        Roots::Listed(roots.collect())
    }

    fn turn(&mut self, at: u64, step: usize, before: &[Turn], world: &mut World<InMemoryCoordinator>) -> Turn {
        if step < TENANTS.len() {
            return Turn { at, tenant: TENANTS[step], command: self.main_run() };
        }
        if self.chance(10)
            && let Some(again) = self.one_of(before)
        {
            return Turn { at, ..again };
        }
        let tenant = if self.chance(70) { TENANTS[0] } else { TENANTS[1] };
        if self.chance(25)
            && let Some(command) = self.reuse(at, tenant, world)
        {
            return Turn { at, tenant, command };
        }
        Turn { at, tenant, command: self.command(at, tenant, world) }
    }

    /// The run that most commands are about.
    fn main_run(&mut self) -> Command {
        let config = RunConfig { lease_duration: None, ..self.config() };
        let ranges = ["[b,j){meta}", "[j,r)", "[r,x)"].map(|range| range.parse().expect("these are ranges"));
        let root = |(range, shard)| RootText { shard, range, cursor: CursorText::default() };
        let roots = Roots::Listed(ranges.into_iter().zip(1..).map(root).collect());
        Command::Start { run: 1, incarnation: None, config, roots, op: Ops::one(1) }
    }

    /// The next step towards another run of the same id, while holders of the settled one are still about.
    fn reuse(&mut self, at: u64, tenant: &'static str, world: &mut World<InMemoryCoordinator>) -> Option<Command> {
        match world.backend.get_run(tenant_called(tenant), RunId::new(1)) {
            Ok(run) if run.status.is_terminal() => Some(Command::Retire { settled_until: at, limit: 3 }),
            Ok(_) => None,
            Err(_) => Some(self.main_run()),
        }
    }

    fn command(&mut self, at: u64, tenant: &'static str, world: &mut World<InMemoryCoordinator>) -> Command {
        let id = tenant_called(tenant);
        let run = if self.chance(85) { 1 } else { self.between(0, 3) };
        let worker = if self.chance(97) { self.between(1, 4) } else { 0 };
        let records = records(world, id);
        let any = |dice: &mut Self| dice.one_of(&records);
        let named = |world: &World<InMemoryCoordinator>, record: &ShardRecord| -> Option<ShardName> {
            world.name(id, record.key).parse().ok()
        };
        let kind = self.roll() % 100;
        if kind < 45
            && let Some(command) = self.lease_gated(at, tenant, world)
        {
            return command;
        }
        let op = self.op();
        match kind {
            // A shard by a name that may mean nothing here, or something to another tenant only.
            45..=47 => {
                let shard = ShardName { run: self.between(1, 3), root: self.between(1, 4), below: Vec::new() };
                if self.chance(50) { Command::ShowShard { shard } } else { Command::Acquire { worker, shard } }
            }
            48..=64 => {
                if let Some(shard) = any(self).and_then(|record| named(world, &record)) {
                    return Command::Acquire { worker, shard };
                }
                Command::Claim { worker, run }
            }
            65..=71 => Command::Claim { worker, run },
            72..=77 => {
                let parked: Vec<_> =
                    records.iter().filter(|record| record.state.head.status == ShardStatus::Parked).cloned().collect();
                let chosen = if self.chance(80) { self.one_of(&parked) } else { any(self) };
                match chosen.and_then(|record| Some((named(world, &record)?, record.state.head.fence.get()))) {
                    Some((shard, fence)) => Command::Unpark { shard, epoch: self.epoch(fence), op },
                    None => Command::Progress { run },
                }
            }
            78..=82 => match any(self).and_then(|record| Some((named(world, &record)?, record.state.head.fence.get())))
            {
                Some((shard, fence)) => {
                    let order = if self.chance(50) { OrderText::Yield } else { OrderText::KeepPercent(50) };
                    Command::Order { shard, epoch: self.epoch(fence), order }
                }
                None => Command::ListRuns { after: None, limit: 10 },
            },
            83 => {
                Command::CreateRun { run: self.between(0, 3), incarnation: self.incarnation(), config: self.config() }
            }
            84 => Command::Register { run: self.between(1, 3), roots: self.roots(), op },
            85 => Command::Start {
                run: self.between(1, 3),
                incarnation: self.incarnation(),
                config: self.config(),
                roots: self.roots(),
                op,
            },
            86 => {
                let settlement = [Settlement::Complete, Settlement::Complete, Settlement::Fail, Settlement::Cancel];
                let settlement = self.one_of(&settlement).unwrap_or(Settlement::Complete);
                // Mostly a run that is not the main one, so that work goes on.
                let run = if settlement == Settlement::Complete || self.chance(50) { 1 } else { self.between(2, 3) };
                Command::Settle { run, settlement, op }
            }
            87 => Command::Retire {
                settled_until: at.saturating_sub(self.between(0, 40)),
                limit: self.between(0, 2) as usize,
            },
            88..=89 => {
                let mut filter = self
                    .one_of(&[
                        ShardFilter::all(),
                        ShardFilter::active(),
                        ShardFilter::available(),
                        ShardFilter::parked(),
                    ])
                    .unwrap_or_default();
                filter.root_only = self.chance(20);
                Command::ListShards { run, filter, limit: self.between(0, 6) as usize }
            }
            90..=91 => Command::Candidates { run, worker, limit: self.between(0, 6) as usize },
            92..=93 => Command::Explain { run, worker },
            94 => Command::ShowRun { run },
            95 => Command::ListRuns {
                after: self.chance(50).then(|| self.between(0, 3)),
                limit: self.between(0, 3) as usize,
            },
            96..=97 => match any(self).and_then(|record| named(world, &record)) {
                Some(shard) => Command::ShowShard { shard },
                None => Command::Progress { run },
            },
            _ => Command::Progress { run },
        }
    }

    /// Something a worker does with a lease it has, or once had.
    fn lease_gated(
        &mut self,
        at: u64,
        tenant: &'static str,
        world: &mut World<InMemoryCoordinator>,
    ) -> Option<Command> {
        let id = tenant_called(tenant);
        let held: Vec<_> =
            world.leases().filter(|lease| lease.tenant() == id || self.state.is_multiple_of(16)).copied().collect();
        let live = held.iter().filter(|lease| lease.deadline() > LogicalTime::new(at)).copied().collect::<Vec<_>>();
        let lease =
            if self.chance(85) { self.one_of(&live).or_else(|| self.one_of(&held)) } else { self.one_of(&held) }?;
        let shard: ShardName = world.name(lease.tenant(), lease.key()).parse().ok()?;
        let owner = TENANTS.into_iter().find(|name| tenant_called(name) == lease.tenant() && *name != tenant);
        let latest = held.iter().rfind(|other| other.key() == lease.key() && other.owner() == lease.owner());
        let epoch = (latest != Some(&lease))
            .then(|| EpochText { incarnation: Some(lease.incarnation().get()), fence: lease.fence().get() });
        let holder = Holder { tenant: owner.map(Into::into), worker: lease.owner().get(), epoch };
        let record = world.backend.get_shard(lease.tenant(), lease.key()).ok();
        let record = record.as_ref();
        let op = self.op();
        Some(match self.roll() % 45 {
            0..=5 => Command::Renew { holder, shards: vec![shard] },
            6..=7 => {
                let same =
                    held.iter().filter(|other| other.owner() == lease.owner() && other.tenant() == lease.tenant());
                let mut shards: Vec<ShardName> =
                    same.filter_map(|lease| world.name(lease.tenant(), lease.key()).parse().ok()).collect();
                shards.sort();
                shards.dedup();
                Command::Renew { holder: Holder { epoch: None, ..holder }, shards }
            }
            8..=19 => Command::Checkpoint { holder, shard, cursor: self.cursor(record), op },
            20..=23 => Command::Complete { holder, shard, cursor: self.cursor(record), op },
            24..=27 => Command::Park {
                holder,
                shard,
                reason: self.one_of(&ParkReason::ALL)?,
                detail: self.chance(40).then(|| "words, and more".into()),
                retry_after: self.chance(30).then(|| at + 5),
                op,
            },
            28..=31 => {
                let mut edges = self.cuts(record, 2)?;
                if self.chance(15) {
                    edges.reverse();
                }
                let children = edges.windows(2).map(|edges| RangeText {
                    start: edges[0].clone(),
                    end: edges[1].clone(),
                    metadata: b"child".into(),
                });
                Command::Replace { holder, shard, plan: ReplaceText::With(children.collect()), op }
            }
            32..=37 => {
                let edges = self.cuts(record, 1)?;
                let part =
                    |start: &[u8], end: &[u8]| RangeText { start: start.into(), end: end.into(), metadata: Vec::new() };
                let gap = if self.chance(10) { self.key() } else { edges[1].clone() };
                let plan = ResidualText::Parts { kept: part(&edges[0], &edges[1]), residual: part(&gap, &edges[2]) };
                Command::Split { holder, shard, plan, op }
            }
            38..=42 => {
                let cursor = self.chance(50).then(|| self.cursor(record));
                let reason = if self.reports_unreachable && self.chance(40) {
                    let detail = self.chance(50).then(|| "no route".into());
                    ReleaseText::Unreachable { detail, retry_after: self.chance(30).then(|| at + self.between(0, 9)) }
                } else {
                    self.one_of(&[ReleaseText::Released, ReleaseText::Yielded, ReleaseText::Drained])?
                };
                Command::Release { holder, shard, cursor, reason, op }
            }
            _ => Command::Drain { holder, held: vec![(shard, self.chance(50).then(|| self.cursor(record)))], op },
        })
    }

    /// The edges of a shard with up to `count` cuts between them, ahead of its progress mostly.
    fn cuts(&mut self, record: Option<&ShardRecord>, count: usize) -> Option<Vec<Vec<u8>>> {
        let record = record?;
        let mut cuts: Vec<_> = (0..count).map(|_| self.key_ahead(Some(record))).collect();
        cuts.sort();
        let (start, end) = (record.spec.start().to_vec(), record.spec.end().to_vec());
        Some([vec![start], cuts, vec![end]].concat())
    }
}

fn records(world: &mut World<InMemoryCoordinator>, tenant: TenantId) -> Vec<ShardRecord> {
    let shards: Vec<_> = world.shards().filter(|(owner, _)| *owner == tenant).collect();
    shards.into_iter().filter_map(|(tenant, key)| world.backend.get_shard(tenant, key).ok()).collect()
}
