//! The machine by itself: what follows on what.

use std::time::Duration;

use tessera_contracts::keyspace::Fraction;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::source_family::{Page, SourceError, SourceErrorClass};
use tessera_contracts::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, TenantId, WorkerId};
use tessera_coordination::record::orders::{Orders, StandingOrders};
use tessera_coordination::record::snapshot::AcquireScratch;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::session::SessionState;
use tessera_coordination::{InMemoryCoordinator, RunManagement, ShardClaiming};

use super::*;
use crate::source::ahead::Ahead;
use crate::source::item::{Item, ItemKind};

const RUN: RunId = RunId::new(1);
const KEY: RunKey = RunKey::new(RUN, RunIncarnation::new(1));

fn tenant() -> TenantId {
    TenantId::from_name("test")
}

fn config() -> WorkerConfig {
    let mut config = WorkerConfig::new(tenant(), RUN, WorkerId::new(1));
    (config.safe_point_interval, config.renew_interval) = (100, 50);
    config.sharing.split_cost_min = 0;
    config
}

/// A grant of the shard `[a, z)`.
fn session() -> SessionState {
    let mut memory = InMemoryCoordinator::default();
    let shards = [InitialShardInput::new(ShardId::new(1), b"a", b"z")];
    let now = LogicalTime::new(1);
    memory
        .create_run_with_shards(now, tenant(), RUN, KEY.incarnation, RunConfig::default(), &shards, OpId::new(1))
        .unwrap();
    let mut scratch = AcquireScratch::new();
    let acquired = memory.claim_next_available(now, tenant(), RUN, WorkerId::new(1), &mut scratch).unwrap();
    SessionState::begin(&acquired)
}

struct Stage {
    sweep: Sweep,
    now: u64,
    stops: bool,
    gives_way: bool,
}

impl Stage {
    fn new(config: WorkerConfig) -> Self {
        Self { sweep: Sweep::new(config, KEY, OpIds::new(7)), now: 1_000, stops: false, gives_way: false }
    }

    fn tell(&mut self, event: Event) -> Action {
        let (now, stops, gives_way) = (LogicalTime::new(self.now), self.stops, self.gives_way);
        self.sweep.step(event, Moment { now, stops, gives_way })
    }

    fn answer(&mut self, answer: Answer) -> Action {
        self.tell(Event::Answered(answer))
    }

    /// Claims the shard and reads up to the first page.
    fn opened(config: WorkerConfig) -> Self {
        let mut stage = Self::new(config);
        assert!(matches!(stage.tell(Event::Done), Action::Call(Call::Claim)));
        let granted = Granted { session: session(), has_stalled: false };
        assert!(matches!(stage.answer(Answer::Granted(Box::new(granted))), Action::Begin { cursor: None, .. }));
        assert!(matches!(stage.tell(Event::Done), Action::Locate { has_stalled: false, .. }));
        assert!(matches!(stage.tell(Event::Done), Action::Open(_)));
        assert!(matches!(stage.tell(Event::Done), Action::NextPage));
        stage
    }

    fn page(&mut self, keys: &[&str], is_last: bool) -> Action {
        let items = keys.iter().map(|key| item(key)).collect();
        self.tell(Event::Paged(Page { items, token: None, is_last }))
    }

    fn read(&mut self, key: &str) -> Action {
        self.tell(Event::Read { item: item(key), missing: 0, wants_safe_point: false })
    }

    /// Orders come with a renewal in the middle of an item.
    fn order(&mut self, orders: Orders) {
        assert!(self.sweep.renewed(&Answer::Renewed(renewal(orders))));
    }
}

fn renewal(orders: Orders) -> tessera_coordination::decide::renew::RenewResult {
    let mut memory = InMemoryCoordinator::default();
    let shards = [InitialShardInput::new(ShardId::new(1), b"a", b"z")];
    let now = LogicalTime::new(1);
    memory
        .create_run_with_shards(now, tenant(), RUN, KEY.incarnation, RunConfig::default(), &shards, OpId::new(1))
        .unwrap();
    let mut session =
        tessera_coordination::WorkerSession::claim(&mut memory, now, tenant(), RUN, WorkerId::new(1)).unwrap();
    let mut renewal = session.renew(now).unwrap();
    renewal.orders = orders;
    renewal
}

fn split_order() -> Orders {
    let standing = StandingOrders { split_requested: Some(Fraction::HALF), ..StandingOrders::NONE };
    Orders { standing, ..Orders::default() }
}

fn item(key: &str) -> Item {
    Item { key: key.as_bytes().to_vec(), size: 1, kind: ItemKind::File, stamp: None }
}

fn failure(is_transient: bool) -> Answer {
    Answer::Failed(CallFailure { message: "away".into(), is_transient })
}

fn vanished() -> Event {
    Event::SourceFailed(SourceError::new(SourceErrorClass::Transient, "gone for now"))
}

/// Whether `action` reads this key.
fn reads(action: &Action, key: &str) -> bool {
    matches!(action, Action::Read(item) if item.key == key.as_bytes())
}

#[test]
fn findings_are_durable_before_the_cursor_moves() {
    let mut stage = Stage::opened(config());
    assert!(reads(&stage.page(&["b", "c"], true), "b"));
    stage.now += 100;
    let Action::MakeDurable(span) = stage.read("b") else { panic!("a safe point is due") };
    assert_eq!((span.from, span.to), (None, Some(b"b".to_vec())));
    let Action::Call(Call::Checkpoint { cursor, .. }) = stage.tell(Event::Done) else { panic!("then the cursor") };
    assert_eq!(cursor, Some(b"b".to_vec()));
    assert!(reads(&stage.answer(Answer::Done), "c"));
    let Action::Pass { end } = stage.read("c") else { panic!("no safe point is due") };
    assert_eq!(end, b"z");
    let Action::MakeDurable(span) = stage.tell(Event::Passed { missing: 0 }) else { panic!("the last segment") };
    assert_eq!((span.from, span.to), (Some(b"b".to_vec()), Some(b"c".to_vec())));
    assert!(matches!(stage.tell(Event::Done), Action::Call(Call::Complete { cursor: Some(_), .. })));
    assert!(matches!(stage.answer(Answer::Done), Action::ShardOver(ShardEnd::Done)));
    assert!(matches!(stage.tell(Event::Done), Action::Call(Call::Claim)));
}

#[test]
fn a_store_that_fails_ends_the_worker_and_the_cursor_stays() {
    let mut stage = Stage::opened(config());
    stage.page(&["b"], true);
    stage.read("b");
    assert!(matches!(stage.tell(Event::Passed { missing: 0 }), Action::MakeDurable(_)));
    let error =
        crate::findings::FileSink::create(std::path::Path::new("/no/such/folder/at/all"), KEY, WorkerId::new(1), 1)
            .unwrap_err();
    assert!(matches!(stage.tell(Event::StoreFailed(error)), Action::End(SweepEnd::StoreFailed(_))));
}

#[test]
fn a_call_that_fails_for_now_is_repeated_with_the_same_op_id_and_not_for_ever() {
    let mut stage = Stage::opened(config());
    stage.page(&["b", "c"], true);
    stage.now += 100;
    stage.read("b");
    let Action::Call(first) = stage.tell(Event::Done) else { panic!("a checkpoint") };
    let mut pauses = Vec::new();
    let end = loop {
        match stage.answer(failure(true)) {
            Action::Wait(pause) => pauses.push(pause),
            end => break end,
        }
        let Action::Call(again) = stage.tell(Event::Woken) else { panic!("the same call") };
        assert_eq!(again, first);
    };
    assert!(matches!(end, Action::End(SweepEnd::CoordinatorFailed(_))));
    assert_eq!((pauses.len(), pauses[0]), (5, Duration::from_millis(40)));
    assert!(pauses.is_sorted());
}

#[test]
fn after_an_error_of_the_source_it_goes_on_from_the_last_safe_point() {
    let mut stage = Stage::opened(config());
    stage.page(&["b", "c", "d"], false);
    stage.now += 100;
    stage.read("b");
    stage.tell(Event::Done);
    assert!(reads(&stage.answer(Answer::Done), "c"));
    assert!(reads(&stage.read("c"), "d"));
    assert!(matches!(stage.tell(vanished()), Action::Abandon { forget_source: false }));
    assert!(matches!(stage.tell(Event::Done), Action::Wait(_)));
    let Action::Open(state) = stage.tell(Event::Woken) else { panic!("it tries again") };
    assert_eq!(state.cursor().last_key(), Some(&b"b"[..]));
    stage.tell(Event::Done);
    assert!(reads(&stage.page(&["c"], true), "c"), "what was not durable is read again");
    stage.read("c");
    let Action::MakeDurable(span) = stage.tell(Event::Passed { missing: 0 }) else { panic!("the last segment") };
    assert_eq!((span.from, span.to), (Some(b"b".to_vec()), Some(b"c".to_vec())));
}

#[test]
fn errors_in_a_row_park_the_shard_and_progress_in_between_forgives_them() {
    let mut stage = Stage::opened(config());
    for round in 0..5 {
        stage.page(&["b", "c", "d", "e", "f", "g"][round..], false);
        stage.now += 100;
        stage.read(["b", "c", "d", "e", "f"][round]);
        stage.tell(Event::Done);
        stage.answer(Answer::Done);
        assert!(matches!(stage.tell(vanished()), Action::Abandon { forget_source: false }));
        stage.tell(Event::Done);
        stage.tell(Event::Woken);
        stage.tell(Event::Done);
    }
    for error in 1..=2 {
        let forget = error == 2;
        assert!(matches!(stage.tell(vanished()), Action::Abandon { forget_source } if forget_source == forget));
        let next = stage.tell(Event::Done);
        if forget {
            assert!(matches!(next, Action::Call(Call::Park { .. })), "{next:?}");
        } else {
            stage.tell(Event::Woken);
            stage.tell(Event::Done);
        }
    }
    assert!(matches!(stage.answer(Answer::Done), Action::ShardOver(ShardEnd::Parked)));
}

#[test]
fn a_target_that_is_not_here_is_handed_to_others_only_where_there_are_others() {
    for is_one_of_many in [false, true] {
        let mut stage = Stage::opened(WorkerConfig { is_one_of_many, ..config() });
        let error = SourceError::new(SourceErrorClass::NotFound, "not mounted");
        assert!(matches!(stage.tell(Event::SourceFailed(error)), Action::Abandon { forget_source: true }));
        match (stage.tell(Event::Done), is_one_of_many) {
            (Action::Call(Call::Release { reason: HandBack::Unreachable(detail), .. }), true) => {
                assert_eq!(detail, "not mounted");
            }
            (Action::Call(Call::Park { .. }), false) => {}
            (other, _) => panic!("{other:?}"),
        }
    }
}

#[test]
fn missing_items_are_believed_only_while_the_target_is_there() {
    let mut stage = Stage::opened(config());
    stage.page(&["b", "c"], true);
    stage.now += 100;
    let action = stage.tell(Event::Read { item: item("b"), missing: 3, wants_safe_point: false });
    assert!(matches!(action, Action::Look));
    assert!(matches!(stage.tell(Event::Done), Action::MakeDurable(_)));
    stage.tell(Event::Done);
    assert!(reads(&stage.answer(Answer::Done), "c"));
    assert!(matches!(stage.read("c"), Action::Pass { .. }));
    assert!(matches!(stage.tell(Event::Passed { missing: 1 }), Action::Look));
    let error = SourceError::new(SourceErrorClass::NotFound, "empty here");
    assert!(matches!(stage.tell(Event::SourceFailed(error)), Action::Abandon { .. }), "nothing of it counts");
}

#[test]
fn a_split_at_a_safe_point_gives_the_rest_of_the_page_away() {
    let mut stage = Stage::opened(config());
    stage.page(&["b", "c", "d", "e"], true);
    stage.order(split_order());
    assert!(matches!(stage.read("b"), Action::MakeDurable(_)), "an order makes a safe point due");
    stage.tell(Event::Done);
    let Action::LookAhead(state) = stage.answer(Answer::Done) else { panic!("it weighs what lies ahead") };
    assert_eq!(state.cursor().last_key(), Some(&b"b"[..]));
    let ahead = Ahead::from_costs([(b"c".to_vec(), 1), (b"d".to_vec(), 2), (b"e".to_vec(), 3)], true);
    let Action::Call(Call::SplitResidual { plan, .. }) = stage.tell(Event::Ahead(Some(ahead))) else {
        panic!("it splits")
    };
    assert_eq!(plan.kept().end(), b"d");
    assert!(reads(&stage.answer(Answer::Split(ShardId::new(9))), "c"));
    let Action::Pass { end } = stage.read("c") else { panic!("the rest of the page is another's") };
    assert_eq!(end, b"d");
}

#[test]
fn a_split_whose_fate_is_unknown_ends_the_hold_and_a_refused_one_does_not() {
    for is_transient in [false, true] {
        let mut stage = Stage::opened(config());
        stage.page(&["b", "c", "d"], true);
        stage.order(split_order());
        stage.read("b");
        stage.tell(Event::Done);
        stage.answer(Answer::Done);
        let ahead = Ahead::from_costs([(b"c".to_vec(), 1), (b"d".to_vec(), 2)], true);
        stage.tell(Event::Ahead(Some(ahead)));
        let mut action = stage.answer(failure(is_transient));
        while matches!(action, Action::Wait(_)) {
            stage.tell(Event::Woken);
            action = stage.answer(failure(is_transient));
        }
        if is_transient {
            assert!(matches!(action, Action::Abandon { .. }), "{action:?}");
        } else {
            assert!(reads(&action, "c"), "{action:?}");
            assert!(reads(&stage.read("c"), "d"), "and it does not try again for the same order");
        }
    }
}

#[test]
fn a_worker_that_stops_keeps_what_is_done_and_hands_the_shard_back() {
    let mut stage = Stage::opened(config());
    stage.page(&["b", "c"], true);
    assert!(reads(&stage.read("b"), "c"));
    stage.stops = true;
    let Action::MakeDurable(span) = stage.tell(Event::Interrupted) else { panic!("what is done is kept") };
    assert_eq!(span.to, Some(b"b".to_vec()), "without the item that was interrupted");
    stage.tell(Event::Done);
    let release = stage.answer(Answer::Done);
    assert!(matches!(release, Action::Call(Call::Release { reason: HandBack::Stopping, .. })), "{release:?}");
    assert!(matches!(stage.answer(Answer::Done), Action::ShardOver(ShardEnd::HandedBack)));
    assert!(matches!(stage.tell(Event::Done), Action::End(SweepEnd::Stopped)));
}

#[test]
fn a_worker_that_gives_way_finishes_its_item_and_hands_the_shard_back_with_its_cursor() {
    let mut stage = Stage::opened(config());
    stage.page(&["b", "c"], true);
    stage.gives_way = true;
    let Action::MakeDurable(span) = stage.read("b") else { panic!("the end of an item is a safe point now") };
    assert_eq!(span.to, Some(b"b".to_vec()));
    let checkpoint = stage.tell(Event::Done);
    assert!(
        matches!(&checkpoint, Action::Call(Call::Checkpoint { cursor, .. }) if *cursor == span.to),
        "{checkpoint:?}"
    );
    let release = stage.answer(Answer::Done);
    assert!(matches!(release, Action::Call(Call::Release { reason: HandBack::GivingWay, .. })), "{release:?}");
    assert!(matches!(stage.answer(Answer::Done), Action::ShardOver(ShardEnd::HandedBack)));
    assert!(matches!(stage.tell(Event::Done), Action::End(SweepEnd::GaveWay)));
}

#[test]
fn a_worker_without_patience_ends_at_the_first_refusal_and_asks_nothing_else() {
    let mut stage = Stage::new(WorkerConfig { patience: Some(Duration::ZERO), ..config() });
    assert!(matches!(stage.tell(Event::Done), Action::Call(Call::Claim)));
    assert!(matches!(stage.answer(Answer::NothingToClaim), Action::End(SweepEnd::Idle)));
}

#[test]
fn a_lost_lease_abandons_the_segment() {
    let mut stage = Stage::opened(config());
    stage.page(&["b", "c"], true);
    stage.read("b");
    assert!(!stage.sweep.renewed(&Answer::Lost));
    assert!(matches!(stage.tell(Event::Interrupted), Action::Abandon { forget_source: false }));
    assert!(matches!(stage.tell(Event::Done), Action::ShardOver(ShardEnd::Lost)));
}

#[test]
fn the_lease_is_renewed_between_pages_and_a_failure_that_can_pass_is_borne() {
    let mut stage = Stage::opened(config());
    stage.page(&["b"], false);
    stage.now += 50;
    assert!(matches!(stage.read("b"), Action::Call(Call::Renew)));
    assert!(matches!(stage.answer(failure(true)), Action::NextPage));
    assert!(!stage.sweep.is_renewal_due(LogicalTime::new(stage.now + 49)));
    assert!(stage.sweep.is_renewal_due(LogicalTime::new(stage.now + 50)));
}

#[test]
fn a_shard_of_another_creation_of_the_run_is_given_back_untouched() {
    let mut stage = Stage::new(config());
    stage.sweep.key = RunKey::new(RUN, RunIncarnation::new(2));
    stage.tell(Event::Done);
    let granted = Granted { session: session(), has_stalled: false };
    let release = stage.answer(Answer::Granted(Box::new(granted)));
    assert!(matches!(release, Action::Call(Call::Release { reason: HandBack::Foreign, .. })), "{release:?}");
    assert!(matches!(stage.answer(Answer::Done), Action::ShardOver(ShardEnd::RunSettled)));
    assert!(matches!(stage.tell(Event::Done), Action::End(SweepEnd::RunSettled)));
}

#[test]
fn a_worker_without_work_asks_one_owner_at_a_time_waits_longer_each_time_and_loses_patience() {
    let mut stage = Stage::new(WorkerConfig { patience: Some(Duration::from_millis(600)), place: 1, ..config() });
    let held = [1, 2].map(|shard| Held { shard: ShardId::new(shard), epoch: session().lease().epoch() });
    let mut asked = Vec::new();
    let mut pauses = Vec::new();
    stage.tell(Event::Done);
    let end = loop {
        assert!(matches!(stage.answer(Answer::NothingToClaim), Action::Call(Call::CountOpen)));
        let next = stage.answer(Answer::Open(2));
        if let Action::End(end) = next {
            break end;
        }
        assert!(matches!(next, Action::Call(Call::ListHeld)));
        let mut next = stage.answer(Answer::Held(held.to_vec()));
        if let Action::Call(Call::RequestSplit { shard, .. }) = next {
            asked.push(shard.get());
            next = stage.answer(failure(false));
        }
        let Action::Wait(pause) = next else { panic!("{next:?}") };
        pauses.push(pause.as_millis() as u64);
        stage.now += pauses[pauses.len() - 1];
        assert!(matches!(stage.tell(Event::Woken), Action::Call(Call::Claim)));
    };
    assert!(matches!(end, SweepEnd::Idle), "{end:?}");
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 200, 200]);
    assert_eq!(asked, [2, 1, 2], "the same one only after a while");
}

#[test]
fn a_shard_is_replaced_only_once_it_is_durable_that_its_owner_began_it() {
    for is_refused in [false, true] {
        let mut config = config();
        (config.sharing.replace_cost_min, config.sharing.replace_children) = (0, 2);
        let mut stage = Stage::new(config);
        stage.tell(Event::Done);
        let granted = Granted { session: session_of_share(), has_stalled: false };
        stage.answer(Answer::Granted(Box::new(granted)));
        stage.tell(Event::Done);
        assert!(matches!(stage.tell(Event::Done), Action::LookAhead(_)));
        let ahead = Ahead::from_costs([(b"p".to_vec(), 1), (b"r".to_vec(), 2), (b"s".to_vec(), 3)], true);
        assert!(matches!(stage.tell(Event::Ahead(Some(ahead))), Action::Open(_)));
        let Action::MakeDurable(span) = stage.tell(Event::Done) else { panic!("an empty segment") };
        assert_eq!((span.from, span.to), (None, None));
        assert!(matches!(stage.tell(Event::Done), Action::Call(Call::SplitReplace { .. })));
        if is_refused {
            assert!(matches!(stage.answer(failure(false)), Action::NextPage), "it is swept as it is");
        } else {
            assert!(matches!(stage.answer(Answer::Done), Action::ShardOver(ShardEnd::Replaced)));
        }
    }
}

/// A grant of the upper half of the shard, which its first owner gave away.
fn session_of_share() -> SessionState {
    let mut memory = InMemoryCoordinator::default();
    let shards = [InitialShardInput::new(ShardId::new(1), b"a", b"z")];
    let now = LogicalTime::new(1);
    memory
        .create_run_with_shards(now, tenant(), RUN, KEY.incarnation, RunConfig::default(), &shards, OpId::new(1))
        .unwrap();
    let mut first =
        tessera_coordination::WorkerSession::claim(&mut memory, now, tenant(), RUN, WorkerId::new(1)).unwrap();
    let plan = tessera_contracts::split::plan_split_residual(first.spec(), None, b"m").unwrap();
    first.split_residual(now, &plan, OpId::new(2)).unwrap();
    let mut scratch = AcquireScratch::new();
    let acquired = memory.claim_next_available(now, tenant(), RUN, WorkerId::new(2), &mut scratch).unwrap();
    SessionState::begin(&acquired)
}
