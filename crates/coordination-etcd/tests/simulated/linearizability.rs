//! The checker of histories refuses what no order explains, and nothing else.

use crate::history::{Record, Run, RunCall, Shard, ShardCall, check};

fn fresh() -> Shard {
    Shard { fence: 1, last_key: vec![], end: vec![9], done: false }
}

fn at<C>(began: u64, ended: u64, call: C) -> Record<C> {
    Record { began, ended, call, certain: true }
}

fn lost<C>(began: u64, call: C) -> Record<C> {
    Record { began, ended: u64::MAX, call, certain: false }
}

fn grant(fence: u64, last_key: &[u8]) -> ShardCall {
    ShardCall::Acquire { fence, last_key: last_key.into(), end: vec![9] }
}

fn checkpoint(fence: u64, key: u8) -> ShardCall {
    ShardCall::Checkpoint { fence, last_key: vec![key] }
}

fn read(fence: u64, last_key: &[u8]) -> ShardCall {
    ShardCall::Read(Shard { fence, last_key: last_key.into(), ..fresh() })
}

#[test]
fn what_happened_one_after_the_other_is_accepted() {
    let history = [
        at(0, 1, grant(2, &[])),
        at(2, 3, checkpoint(2, 4)),
        at(4, 5, read(2, &[4])),
        at(6, 7, ShardCall::Release { fence: 2 }),
        at(8, 9, grant(3, &[4])),
        at(10, 11, ShardCall::Complete { fence: 3, last_key: vec![8] }),
    ];
    assert_eq!(check(&fresh(), &history), Ok(()));
}

#[test]
fn calls_that_overlap_may_have_happened_in_either_order() {
    for seen in [&[][..], &[4]] {
        let history = [at(0, 1, grant(2, &[])), at(2, 9, checkpoint(2, 4)), at(3, 4, read(2, seen))];
        assert_eq!(check(&fresh(), &history), Ok(()));
    }
}

#[test]
fn a_call_without_an_answer_may_have_happened_or_not() {
    for seen in [&[][..], &[4]] {
        let history = [at(0, 1, grant(2, &[])), lost(2, checkpoint(2, 4)), at(5, 6, grant(3, seen))];
        assert_eq!(check(&fresh(), &history), Ok(()));
    }
    let history = [at(0, 1, grant(2, &[])), lost(2, checkpoint(2, 4)), at(5, 6, read(2, &[5]))];
    check(&fresh(), &history).expect_err("nobody ever wrote 5");
}

#[test]
fn broken_histories_are_refused() {
    let stale_read = vec![at(0, 1, grant(2, &[])), at(2, 3, checkpoint(2, 4)), at(4, 5, read(2, &[]))];
    let lost_write = vec![at(0, 1, grant(2, &[])), at(2, 3, checkpoint(2, 4)), at(4, 5, grant(3, &[]))];
    let two_holders = vec![at(0, 1, grant(2, &[])), at(2, 3, grant(2, &[]))];
    let late_writer = vec![at(0, 1, grant(2, &[])), at(2, 3, grant(3, &[])), at(4, 5, checkpoint(2, 4))];
    let went_back = vec![at(0, 1, grant(2, &[])), at(2, 3, checkpoint(2, 4)), at(4, 5, checkpoint(2, 3))];
    let fence_went_back = vec![at(0, 1, grant(2, &[])), at(2, 3, read(3, &[])), at(4, 5, read(2, &[]))];
    let worked_on_what_was_done = vec![
        at(0, 1, grant(2, &[])),
        at(2, 3, ShardCall::Complete { fence: 2, last_key: vec![8] }),
        at(4, 5, grant(3, &[8])),
    ];
    let kept_what_was_given_away =
        vec![at(0, 1, grant(2, &[])), at(2, 3, ShardCall::Narrow { fence: 2, end: vec![5] }), at(4, 5, grant(3, &[]))];
    for (index, broken) in [
        stale_read,
        lost_write,
        two_holders,
        late_writer,
        went_back,
        fence_went_back,
        worked_on_what_was_done,
        kept_what_was_given_away,
    ]
    .iter()
    .enumerate()
    {
        let said = check(&fresh(), broken).expect_err(&format!("history {index} cannot have happened"));
        assert!(said.contains("Linearizable"), "{said}");
    }
}

#[test]
fn a_run_that_was_completed_is_never_active_again() {
    let done = at(2, 3, RunCall::Complete);
    let before = at(0, 1, RunCall::Read(Run::Active));
    assert_eq!(check(&Run::Active, &[before, done.clone(), at(4, 5, RunCall::Complete)]), Ok(()));
    check(&Run::Active, &[done.clone(), at(4, 5, RunCall::Read(Run::Active))]).expect_err("it is over");
    check(&Run::Active, &[done, at(4, 5, RunCall::Refused)]).expect_err("it is over");
    check(&Run::Active, &[at(0, 1, RunCall::Read(Run::Completed))]).expect_err("nobody completed it");
}

#[test]
fn many_overlapping_calls_are_decided_in_bearable_time() {
    // Twelve writes without an answer, each seen by one of the reads that follow.
    let mut history = vec![at(0, 1, grant(2, &[]))];
    history.extend((1..=12).map(|key| lost(2, checkpoint(2, key))));
    history.extend((1..=12).map(|key| at(2 * u64::from(key) + 2, 2 * u64::from(key) + 3, read(2, &[key]))));
    assert_eq!(check(&fresh(), &history), Ok(()));
    history.push(at(100, 101, read(2, &[11])));
    check(&fresh(), &history).expect_err("12 was seen before");
}
