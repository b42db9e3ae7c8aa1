//! Records stored again: those this node was asked to keep alive, and those it holds for others.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use tessera_contracts::point::{ContentId, Point as _};
use tessera_contracts::prefix_map::PrefixMap;
use tessera_stdx::{Rate, TokenBucket};

use super::LaneNode;
use super::command::{Answer, Privacy};
use super::log::log_kind;
use super::operation::Task;
use super::outbox::Outbox;
use super::upkeep::REPUBLISH_MAX;
use crate::chunk::parts_of;
use crate::identity::Crypto;
use crate::lookup::Goal;
use crate::record::{RecordRefused, RecordView, TTL_SECS_MAX, with_lifetime_left};
use crate::store::records::Class;
use crate::time::Now;

/// Held records given on in a second, all lanes together: after a split has healed many are due at once, and their holders have others to
/// serve, who are just as busy.
const REPUBLISHED_PER_SEC: u32 = 20;

/// Somebody who was asked too often is given a record so many times before the next turn of it.
const REFUSALS_MAX: u8 = 3;

/// A held record that is due to be given to its holders.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    pub(super) id: ContentId,
    /// So many times somebody refused it for being asked too often.
    pub(super) refusals: u8,
}

/// A lane's share of the pace at which held records are given on.
pub(super) fn republish_pace(map: &PrefixMap, now_ms: u64) -> TokenBucket {
    let ticks = const { NonZeroU32::new(1000).expect("a thousand is not zero") };
    let tokens = (REPUBLISHED_PER_SEC / map.lanes() as u32).max(1);
    TokenBucket::full(Rate { tokens, ticks }, tokens, now_ms)
}

/// A record that is kept alive was issued before that, so one whose time has yet to come says that it is the clock that is behind, as on a
/// machine that has just started. After this it is looked at again.
const CLOCK_MS: u64 = 60_000;

/// Whether a record is within its time.
fn times_of(now: Now, record: &[u8]) -> Result<(), RecordRefused> {
    RecordView::read(record).map_err(|_| RecordRefused::Signature)?.check_times(now.unix_secs())
}

/// A record that this node stores again and again.
#[derive(Debug)]
pub(super) struct KeptAlive {
    due_ms: u64,
    pub(super) record: Vec<u8>,
}

impl<C: Crypto> LaneNode<C> {
    /// Stores a record again at half its lifetime.
    pub(super) fn keep_alive(
        &mut self,
        now: Now,
        id: &ContentId,
        record: &[u8],
        out: &mut impl Outbox,
    ) -> Result<(), Answer> {
        if !self.has_room_alive(id, record) {
            return Err(Answer::NoRoom);
        }
        // First: what the log does not take must not replace what it has, and what a restart would bring back.
        if !self.log_hard(log_kind::KEPT_ALIVE, id, record, out) {
            return Err(Answer::NotLogged);
        }
        let due_ms = self.again_ms(now, record);
        self.set_alive(id, due_ms, record);
        Ok(())
    }

    /// Has one time at which `id` is stored again, however often this is said. False if there is no room for it.
    pub(super) fn set_alive(&mut self, id: &ContentId, due_ms: u64, record: &[u8]) -> bool {
        if !self.has_room_alive(id, record) {
            return false;
        }
        self.drop_alive(id);
        self.kept_alive_bytes += record.len();
        self.kept_alive_due.insert((due_ms, *id));
        self.kept_alive.insert(*id, KeptAlive { due_ms, record: record.to_vec() });
        true
    }

    fn has_room_alive(&self, id: &ContentId, record: &[u8]) -> bool {
        let before = self.kept_alive.get(id).map_or(0, |kept| kept.record.len());
        self.kept_alive_bytes - before + record.len() <= self.config.kept_alive_bytes_max
    }

    pub(super) fn drop_alive(&mut self, id: &ContentId) -> bool {
        let Some(kept) = self.kept_alive.remove(id) else { return false };
        self.kept_alive_due.remove(&(kept.due_ms, *id));
        self.kept_alive_bytes -= kept.record.len();
        true
    }

    /// The record of `id` for whoever asks from outside. What is kept alive is with its K holders, and only where there are fewer is this
    /// node one of them.
    pub(super) fn record_for_others(&mut self, now: Now, id: &ContentId) -> Option<&[u8]> {
        if self.holds_its_own() {
            return self.record_here(now, id);
        }
        self.records.get(id).filter(|kept| kept.expires_secs > now.unix_secs()).map(|kept| kept.bytes)
    }

    /// The record of `id` that is here: held or cached, or kept alive where there was no room to hold it.
    pub(super) fn record_here(&mut self, now: Now, id: &ContentId) -> Option<&[u8]> {
        if self.records.get(id).is_some_and(|kept| kept.expires_secs > now.unix_secs()) {
            return self.records.peek(id).map(|kept| kept.bytes);
        }
        let record = &self.kept_alive.get(id)?.record;
        RecordView::read(record).is_ok_and(|view| view.check_times(now.unix_secs()).is_ok()).then_some(record)
    }

    fn alive_at(&mut self, id: &ContentId, due_ms: u64) {
        if let Some(kept) = self.kept_alive.get_mut(id) {
            self.kept_alive_due.remove(&(kept.due_ms, *id));
            kept.due_ms = due_ms;
            self.kept_alive_due.insert((due_ms, *id));
        }
    }

    /// Records that are kept alive and are manifests, with the parts they name.
    pub fn manifests_kept_alive(&self) -> impl Iterator<Item = (ContentId, Vec<ContentId>)> {
        self.kept_alive.iter().filter_map(|(id, kept)| {
            let view = RecordView::read(&kept.record).ok().filter(|view| view.mutable.is_none())?;
            Some((*id, parts_of(view.value)?))
        })
    }

    /// Stops storing a record again, and drops the copy kept here.
    pub(super) fn forget(&mut self, id: &ContentId, out: &mut impl Outbox) -> Answer {
        if !self.owns(id) {
            return Answer::WrongLane;
        }
        let held = self.records.remove(id);
        if !self.drop_alive(id) && !held {
            return Answer::NotHere;
        }
        if self.log_hard(log_kind::FORGOTTEN, id, id.as_bytes(), out) { Answer::Noted } else { Answer::NotLogged }
    }

    /// Nobody took a record that is to be kept alive: it is stored again soon, not at half its lifetime.
    pub(super) fn keep_alive_soon(&mut self, now: Now, id: &ContentId) {
        let due_ms = now.mono_ms + self.rng.jittered_ms(10 * self.config.tick_ms);
        self.alive_at(id, due_ms);
    }

    /// Half of what is left of a record's life, jittered; of one whose time has yet to come, a little.
    pub(super) fn again_ms(&mut self, now: Now, record: &[u8]) -> u64 {
        let now_secs = now.unix_secs();
        let wait_ms = RecordView::read(record).map_or(0, |view| match view.check_times(now_secs) {
            Err(RecordRefused::NotYetIssued) => CLOCK_MS,
            _ => view.expires_secs(now_secs).saturating_sub(now_secs).min(u64::from(TTL_SECS_MAX)) * 500,
        });
        now.mono_ms + self.rng.jittered_ms(wait_ms.max(1000))
    }

    /// Stores again what is due, as far as operations allow.
    pub(super) fn keep_alive_due(&mut self, now: Now, out: &mut impl Outbox) {
        while let Some((due_ms, id)) = self.kept_alive_due.first().copied()
            && due_ms <= now.mono_ms
            && self.may_work_unasked()
        {
            let Some(record) = self.kept_alive.get(&id).map(|kept| kept.record.clone()) else { return };
            let due_ms = self.again_ms(now, &record);
            match times_of(now, &record) {
                Ok(()) => {
                    self.alive_at(&id, due_ms);
                    self.begin_put(now, None, &id, record, out);
                }
                Err(RecordRefused::NotYetIssued) => self.alive_at(&id, due_ms),
                Err(_) => {
                    self.drop_alive(&id); // Its owner has to sign it again.
                }
            }
        }
    }

    /// Gives records that this lane holds for others to those who should hold them today: holders come and go while the
    /// owner may be away. Nobody's lifetime grows by it.
    pub(super) fn republish_due(&mut self, now: Now, out: &mut impl Outbox) {
        while self.may_work_unasked()
            && let Some(due) = self.republish.pop_front()
        {
            let Some(kept) = self.records.peek(&due.id).filter(|kept| kept.class == Class::Held) else { continue };
            let left = kept.expires_secs.saturating_sub(now.unix_secs());
            let Some(record) = with_lifetime_left(kept.bytes, left) else { continue };
            let paced = self.republish_pace.take(now.mono_ms, 1);
            let Some(at) = paced.ok().and_then(|()| self.reserve()) else {
                self.republish.push_front(due);
                return;
            };
            self.counters.records_republished += 1;
            let operation = &mut self.operations[usize::from(at)];
            (operation.record, operation.regives) = (record, Some(due.refusals));
            self.start(now, at, Task::Put, None, *due.id.as_bytes(), Goal::Nodes, Privacy::None, out);
        }
    }

    /// Somebody who should hold a record was asked too often: it is given the record again soon, and not for ever.
    pub(super) fn regive_later(&mut self, id: ContentId, refusals: u8) {
        if refusals + 1 < REFUSALS_MAX && self.republish.len() < REPUBLISH_MAX {
            self.republish.push_back(Due { id, refusals: refusals + 1 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::identity::Identity;
    use crate::node::command::{CommandId, Outcome};
    use crate::node::lone_lane::{Sent, T, contact, lane, lane_among};
    use crate::node::outbox::{Importance, Logged, MessageClass};
    use crate::record::{MutableDraft, immutable_record, mutable_record};
    use tessera_contracts::prefix_map::{LaneIndex, Slot};

    fn after(ms: u64) -> Now {
        Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms }
    }

    /// A record that lives for a hundred seconds.
    fn value(n: u8) -> (ContentId, Vec<u8>) {
        let record = immutable_record(&[n], 100).unwrap();
        (RecordView::read(&record).unwrap().id(), record)
    }

    fn hold(lane: &mut LaneNode<Identity>, n: u8) -> ContentId {
        let ((id, record), giver) = (value(n), Identity::from_seed(&[9; 32]).public_key());
        let view = RecordView::read(&record).unwrap();
        lane.records.keep(T, &id, &view, Class::Held, 100, giver, &mut lane.rng).unwrap();
        id
    }

    fn meet_all(lane: &mut LaneNode<Identity>) {
        for contact in (10..=255).map(contact) {
            lane.table.answered(T.mono_ms, contact.id(), contact, Some(10));
        }
        assert!(!lane.holds_its_own());
    }

    #[test]
    fn held_records_are_given_on_at_a_pace() {
        let mut lane = lane();
        for n in 0..100 {
            let id = hold(&mut lane, n);
            lane.republish.push_back(Due { id, refusals: 0 });
        }
        let mut given = |ms| {
            lane.republish_due(after(ms), &mut Sent::default());
            lane.counters.records_republished
        };
        assert_eq!([given(0), given(1), given(500), given(1000), given(60_000)], [20, 20, 30, 40, 60]);
        assert_eq!(lane.republish.len(), 40, "and none is dropped");
    }

    #[test]
    fn lanes_share_the_paces_of_their_node_also_after_their_number_has_changed() {
        // What may go at once, of held records and of announcements.
        let at_once = |lane: &mut LaneNode<Identity>| {
            let taken = |pace: &mut TokenBucket| (0..).take_while(|_| pace.take(T.mono_ms, 1).is_ok()).count();
            (taken(&mut lane.republish_pace), taken(&mut lane.announce_pace))
        };
        for (lanes, expected) in [(1, (20, 100)), (4, (5, 25)), (64, (1, 1))] {
            assert_eq!(at_once(&mut lane_among(1, 0, lanes)), expected, "{lanes} lanes");
            let mut changed = lane();
            changed.on_map(lane_among(1, 0, lanes).map);
            assert_eq!(at_once(&mut changed), expected, "now {lanes} lanes");
        }
    }

    /// Who has a log that takes nothing.
    struct Unlogging;

    impl Outbox for Unlogging {
        fn send(&mut self, _: Addr, _: &[u8]) {}
        fn forward(&mut self, _: Slot, _: Addr, _: &[u8], _: u8) {}
        fn message(&mut self, _: LaneIndex, _: MessageClass, _: u8, _: u64, _: &[u8]) {}
        fn log(&mut self, _: u8, _: Slot, _: &[u8], _: Importance) -> Logged {
            Logged::Refused
        }
        fn complete(&mut self, _: CommandId, _: Outcome) {}
    }

    #[test]
    fn a_record_that_the_log_refuses_leaves_kept_alive_what_the_log_has() {
        let mut lane = lane();
        let (id, first) = value(1);
        assert_eq!(lane.keep_alive(T, &id, &first, &mut Unlogging), Err(Answer::NotLogged));
        assert!(lane.kept_alive.is_empty() && lane.kept_alive_due.is_empty());
        assert_eq!(lane.keep_alive(T, &id, &first, &mut Sent::default()), Ok(()));
        let (second, due) = (immutable_record(&[1], 200).unwrap(), lane.kept_alive_due.clone());
        assert_eq!(lane.keep_alive(T, &id, &second, &mut Unlogging), Err(Answer::NotLogged));
        assert_eq!(lane.kept_alive.get(&id).map(|kept| &kept.record), Some(&first), "a restart finds it, too");
        assert_eq!((&lane.kept_alive_due, lane.kept_alive_bytes), (&due, first.len()));
        assert_eq!(lane.keep_alive(T, &id, &second, &mut Sent::default()), Ok(()));
        assert_eq!(lane.kept_alive.get(&id).map(|kept| &kept.record), Some(&second));
    }

    #[test]
    fn a_clock_that_steps_back_for_a_while_costs_nothing_that_is_kept_alive() {
        let owner = Identity::from_seed(&[7; 32]);
        for in_log in [false, true] {
            let mut lane = lane();
            let draft = MutableDraft {
                salt: [0; 32],
                sequence: 1,
                issued_secs: T.unix_secs(),
                ttl_secs: TTL_SECS_MAX,
                value: Some(b"value"),
            };
            let record = mutable_record(&draft, &owner, lane.sealer.network()).unwrap();
            let id = RecordView::read(&record).unwrap().id();
            let peer = contact(10);
            lane.table.answered(T.mono_ms, peer.id(), peer, Some(10));
            // As on a machine that has yet to be told the time.
            let behind = |ms: u64| Now { mono_ms: T.mono_ms + ms, unix_ms: ms };
            if in_log {
                lane.on_record(behind(0), log_kind::KEPT_ALIVE, &record);
            } else {
                assert!(lane.set_alive(&id, T.mono_ms, &record));
            }
            for ms in (0..600_000).step_by(1000) {
                lane.keep_alive_due(behind(ms), &mut Sent::default());
            }
            assert_eq!((lane.kept_alive.len(), lane.counters.lookups_started), (1, 0), "in the log: {in_log}");
            let mut ms = 600_000;
            while lane.counters.lookups_started == 0 {
                ms += 1000;
                lane.keep_alive_due(after(ms), &mut Sent::default());
                assert!(ms <= 700_000, "it is stored again soon after: {in_log}");
            }
        }
    }

    #[test]
    fn what_is_only_kept_alive_is_served_to_others_while_there_are_fewer_than_its_holders() {
        let mut lane = lane();
        let (id, record) = value(1);
        assert!(lane.set_alive(&id, u64::MAX, &record));
        assert!(lane.record_for_others(T, &id).is_some());
        meet_all(&mut lane);
        assert_eq!(lane.record_for_others(T, &id), None, "it is with its holders");
        assert!(lane.record_here(T, &id).is_some(), "and here for our own commands");
    }

    #[test]
    fn a_record_is_served_to_others_until_it_expires_though_nobody_has_taken_it_out_yet() {
        let mut lane = lane();
        meet_all(&mut lane);
        let id = hold(&mut lane, 1);
        assert!(lane.record_for_others(after(99_999), &id).is_some());
        assert_eq!(lane.record_for_others(after(100_000), &id), None);
    }
}
