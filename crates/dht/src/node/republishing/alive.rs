//! Records that this node stores again at half their lifetime, until they expire or are forgotten.

use alloc::vec::Vec;

use tessera_contracts::point::ContentId;

use super::agenda::Agenda;
use crate::chunk::parts_of;
use crate::node::context::{Context, Place};
use crate::record::{RecordRefused, RecordView, TTL_SECS_MAX};
use crate::time::Now;

/// A record that is kept alive was issued before that, so one whose time has yet to come says that it is the clock that is behind, as on a
/// machine that has just started. One whose time is over may say that the clock is ahead. After this it is looked at again.
const CLOCK_MS: u64 = 60_000;

/// Records that are kept alive.
///
/// A record whose time is over by the clock alone is not stored again, and not dropped either: the clock may be wrong and be set right. It is
/// dropped when its whole lifetime has also passed since it came here, by the clock that is never set, or when there is no room for another.
#[derive(Debug, Default)]
pub(crate) struct KeptAlive {
    agenda: Agenda<Alive>,
    bytes: usize,
}

#[derive(Debug, Clone)]
struct Alive {
    record: Vec<u8>,
    /// When it came here, by the clock that is never set.
    since_ms: u64,
}

impl Alive {
    /// Whether its time is over by both clocks.
    fn is_over(&self, now: Now) -> bool {
        let lifetime_ms = RecordView::read(&self.record).map_or(0, |view| u64::from(view.ttl_secs) * 1000);
        times_of(now, &self.record).is_err() && now.mono_ms >= self.since_ms.saturating_add(lifetime_ms)
    }
}

impl KeptAlive {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, id: &ContentId) -> Option<&[u8]> {
        self.agenda.get(id).map(|alive| &alive.record[..])
    }

    /// The record of `id`, if its time is not over.
    pub(crate) fn valid(&self, now: Now, id: &ContentId) -> Option<&[u8]> {
        self.get(id).filter(|record| times_of(now, record).is_ok())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ContentId, &[u8])> {
        self.agenda.iter().map(|(id, _, alive)| (id, &alive.record[..]))
    }

    /// Records that are manifests, with the parts they name.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = (ContentId, Vec<ContentId>)> {
        self.iter().filter_map(|(id, record)| {
            let view = RecordView::read(record).ok().filter(|view| view.mutable.is_none())?;
            Some((*id, parts_of(view.value)?))
        })
    }

    pub(super) fn has_room(&self, place: &Place, id: &ContentId, record: &[u8]) -> bool {
        let before = self.get(id).map_or(0, <[u8]>::len);
        self.bytes - before + record.len() <= place.config.kept_alive_bytes_max
    }

    /// Makes room for a record by dropping expired ones. False if there is still none.
    pub(super) fn make_room(&mut self, now: Now, place: &Place, id: &ContentId, record: &[u8]) -> bool {
        if !self.has_room(place, id, record) {
            let is_expired = |(_, record): &(&ContentId, &[u8])| times_of(now, record) == Err(RecordRefused::Expired);
            let expired: Vec<_> = self.iter().filter(is_expired).map(|(id, _)| *id).collect();
            for id in &expired {
                self.remove(id);
            }
        }
        self.has_room(place, id, record)
    }

    /// Keeps a record alive, if there is room for it.
    pub(super) fn set(&mut self, cx: &mut Context<'_>, id: &ContentId, record: &[u8]) {
        let due_ms = again_ms(cx, record);
        if self.has_room(cx.place, id, record) {
            let alive = Alive { record: record.to_vec(), since_ms: cx.now.mono_ms };
            let before = self.agenda.set(id, due_ms, alive);
            self.bytes = self.bytes + record.len() - before.map_or(0, |before| before.record.len());
        }
    }

    pub(crate) fn remove(&mut self, id: &ContentId) -> bool {
        let Some(alive) = self.agenda.remove(id) else { return false };
        self.bytes -= alive.record.len();
        true
    }

    pub(super) fn drop_where(&mut self, is_gone: impl Fn(&ContentId) -> bool) {
        let gone = self.iter().filter(|(id, _)| is_gone(id));
        self.bytes -= gone.map(|(_, record)| record.len()).sum::<usize>();
        self.agenda.retain(is_gone);
    }

    /// No holder took a record: it is stored again soon, not at half its lifetime.
    pub(super) fn hurry(&mut self, cx: &mut Context<'_>, id: &ContentId) {
        let due_ms = cx.now.mono_ms + cx.rng.jittered_ms(10 * cx.place.config.tick_ms);
        self.agenda.put_off(id, due_ms);
    }

    /// The next record to store again.
    pub(crate) fn next_due(&mut self, cx: &mut Context<'_>) -> Option<(ContentId, Vec<u8>)> {
        while let Some(id) = self.agenda.first_due(cx.now.mono_ms) {
            let alive = self.agenda.get(&id)?;
            let (is_over, times) = (alive.is_over(cx.now), times_of(cx.now, &alive.record));
            let due_ms = again_ms(cx, &alive.record);
            match times {
                Ok(()) => {
                    let record = alive.record.clone();
                    self.agenda.put_off(&id, due_ms);
                    return Some((id, record));
                }
                Err(RecordRefused::NotYetIssued | RecordRefused::Expired) if !is_over => {
                    self.agenda.put_off(&id, due_ms);
                }
                Err(_) => {
                    self.remove(&id); // Its owner has to sign it again.
                }
            }
        }
        None
    }
}

/// Whether a record is within its time.
pub(super) fn times_of(now: Now, record: &[u8]) -> Result<(), RecordRefused> {
    RecordView::read(record).map_err(|_| RecordRefused::Signature)?.check_times(now.unix_secs())
}

/// Half of the rest of a record's life, jittered; a little while for a record that is not yet valid or has expired.
fn again_ms(cx: &mut Context<'_>, record: &[u8]) -> u64 {
    let now_secs = cx.now.unix_secs();
    let wait_ms = RecordView::read(record).map_or(0, |view| match view.check_times(now_secs) {
        Err(RecordRefused::NotYetIssued | RecordRefused::Expired) => CLOCK_MS,
        _ => view.expires_secs(now_secs).saturating_sub(now_secs).min(u64::from(TTL_SECS_MAX)) * 500,
    });
    cx.now.mono_ms + cx.rng.jittered_ms(wait_ms.max(1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::identity::Crypto as _;
    use crate::identity::Identity;
    use crate::node::LaneNode;
    use crate::node::command::Answer;
    use crate::node::command::{CommandId, Outcome};
    use crate::node::log::log_kind;
    use crate::node::lone_lane::{T, contact, lane, lane_among};
    use crate::node::outbox::Outbox;
    use crate::node::outbox::{Importance, Logged, MessageClass};
    use crate::node::router::kept_for_others;
    use crate::record::{MutableDraft, immutable_record, mutable_record};
    use crate::store::records::Class;
    use tessera_contracts::prefix_map::{LaneIndex, Slot};
    use tessera_stdx::TokenBucket;

    /// Views for tests of other components.
    impl KeptAlive {
        pub(crate) fn set_due(&mut self, id: &ContentId, due_ms: u64, record: &[u8]) {
            self.agenda.set(id, due_ms, Alive { record: record.to_vec(), since_ms: T.mono_ms });
            self.bytes += record.len();
        }
    }

    fn after(ms: u64) -> Now {
        Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms }
    }

    /// A record that lives for a hundred seconds.
    fn value(n: u8) -> (ContentId, Vec<u8>) {
        let record = immutable_record(&[n], 100).unwrap();
        (RecordView::read(&record).unwrap().id(), record)
    }

    fn hold(lane: &mut LaneNode, n: u8) -> ContentId {
        let ((id, record), giver) = (value(n), Identity::from_seed(&[9; 32]).public_key());
        let view = RecordView::read(&record).unwrap();
        lane.act(T, |lane, cx| lane.server.records_mut().keep(T, &id, &view, Class::Held, 100, giver, cx.rng)).unwrap();
        id
    }

    fn due(lane: &LaneNode) -> Vec<(ContentId, u64)> {
        lane.router.republishing.alive.agenda.iter().map(|(id, due_ms, _)| (*id, due_ms)).collect()
    }

    fn meet_all(lane: &mut LaneNode) {
        for contact in (10..=255).map(contact) {
            lane.table_mut().answered(T.mono_ms, contact.id(), contact, Some(10));
        }
        assert!(!lane.act(T, |lane, cx| lane.peers.members().holds_its_own(cx.place)));
    }

    #[test]
    fn held_records_are_given_on_at_a_pace() {
        let mut lane = lane();
        for n in 0..100 {
            let id = hold(&mut lane, n);
            lane.router.republishing.give_on(&id);
        }
        let mut given = |ms| {
            lane.act(after(ms), |lane, cx| lane.give_on_due(cx));
            lane.counters.records_republished
        };
        assert_eq!([given(0), given(1), given(500), given(1000), given(60_000)], [20, 20, 30, 40, 60]);
        assert_eq!(lane.router.republishing.len().1, 40, "and none is dropped");
    }

    #[test]
    fn lanes_share_the_paces_of_their_node_also_after_their_number_has_changed() {
        // The bursts allowed for held records and for announcements.
        let at_once = |lane: &mut LaneNode| {
            let taken = |pace: &mut TokenBucket| (0..).take_while(|_| pace.take(T.mono_ms, 1).is_ok()).count();
            (taken(&mut lane.router.republishing.given_on_pace), taken(lane.router.operations.announce_pace_mut()))
        };
        for (lanes, expected) in [(1, (20, 100)), (4, (5, 25)), (64, (1, 1))] {
            assert_eq!(at_once(&mut lane_among(1, 0, lanes)), expected, "{lanes} lanes");
            let mut changed = lane();
            changed.on_map(lane_among(1, 0, lanes).place.map().clone());
            assert_eq!(at_once(&mut changed), expected, "now {lanes} lanes");
        }
    }

    /// An outbox whose log takes nothing.
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
        assert_eq!(
            lane.with(T, &mut Unlogging, |lane, cx| lane.republishing.keep_alive(
                cx,
                lane.server.ledger_mut(),
                &id,
                &first
            )),
            Err(Answer::NotLogged)
        );
        assert!(lane.router.republishing.alive.agenda.len() == 0);
        assert_eq!(
            lane.act(T, |lane, cx| lane.republishing.keep_alive(cx, lane.server.ledger_mut(), &id, &first)),
            Ok(())
        );
        let (second, before) = (immutable_record(&[1], 200).unwrap(), due(&lane));
        assert_eq!(
            lane.with(T, &mut Unlogging, |lane, cx| lane.republishing.keep_alive(
                cx,
                lane.server.ledger_mut(),
                &id,
                &second
            )),
            Err(Answer::NotLogged)
        );
        assert_eq!(lane.router.republishing.alive.get(&id), Some(&first[..]), "a restart finds it, too");
        assert_eq!((due(&lane), lane.router.republishing.alive.bytes()), (before, first.len()));
        assert_eq!(
            lane.act(T, |lane, cx| lane.republishing.keep_alive(cx, lane.server.ledger_mut(), &id, &second)),
            Ok(())
        );
        assert_eq!(lane.router.republishing.alive.get(&id), Some(&second[..]));
    }

    #[test]
    fn a_clock_that_is_wrong_for_a_while_costs_nothing_that_is_kept_alive() {
        const YEAR_MS: u64 = 365 * 86_400_000;
        let owner = Identity::from_seed(&[7; 32]);
        for (in_log, wrong_ms) in [(false, 0), (true, 0), (false, T.unix_ms + YEAR_MS), (true, T.unix_ms + YEAR_MS)] {
            let mut lane = lane();
            let draft = MutableDraft {
                salt: [0; 32],
                sequence: 1,
                issued_secs: T.unix_secs(),
                ttl_secs: TTL_SECS_MAX,
                value: Some(b"value"),
            };
            let record = mutable_record(&draft, &owner, lane.network()).unwrap();
            let id = RecordView::read(&record).unwrap().id();
            let peer = contact(10);
            lane.table_mut().answered(T.mono_ms, peer.id(), peer, Some(10));
            // As on a machine that has yet to be told the time, or was told a wrong one.
            let behind = |ms: u64| Now { mono_ms: T.mono_ms + ms, unix_ms: wrong_ms + ms };
            if in_log {
                lane.on_record(behind(0), log_kind::KEPT_ALIVE, &record);
            } else {
                lane.router.republishing.alive_mut().set_due(&id, T.mono_ms, &record);
            }
            for ms in (0..600_000).step_by(1000) {
                lane.act(behind(ms), |lane, cx| lane.keep_alive_due(cx));
            }
            assert_eq!(
                (lane.router.republishing.alive.agenda.len(), lane.counters.lookups_started),
                (1, 0),
                "in the log: {in_log}, at {wrong_ms}"
            );
            let mut ms = 600_000;
            while lane.counters.lookups_started == 0 {
                ms += 1000;
                lane.act(after(ms), |lane, cx| lane.keep_alive_due(cx));
                assert!(ms <= 700_000, "it is stored again soon after: {in_log}, at {wrong_ms}");
            }
        }
    }

    #[test]
    fn a_record_expired_by_both_clocks_is_dropped_and_one_expired_by_one_makes_way() {
        let mut lane = lane();
        let draft = |salt: u8| MutableDraft {
            salt: [salt; 32],
            sequence: 1,
            issued_secs: T.unix_secs(),
            ttl_secs: 100,
            value: Some(b"value"),
        };
        let owner = Identity::from_seed(&[7; 32]);
        let [first, second] = [1, 2].map(|salt| mutable_record(&draft(salt), &owner, lane.network()).unwrap());
        let id_of = |record: &[u8]| RecordView::read(record).unwrap().id();
        lane.act(T, |lane, cx| lane.republishing.alive_mut().set(cx, &id_of(&first), &first));
        let ahead = |ms: u64| Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + 200_000 };
        for ms in (0..100_000).step_by(1000) {
            lane.act(ahead(ms), |lane, cx| assert!(lane.republishing.alive_mut().next_due(cx).is_none()));
            assert_eq!(lane.router.republishing.alive.agenda.len(), 1, "after {ms} ms");
        }
        lane.place.config.kept_alive_bytes_max = first.len();
        let makes_room = |lane: &mut LaneNode, now: Now| {
            lane.act(now, |lane, cx| lane.republishing.alive_mut().make_room(now, cx.place, &id_of(&second), &second))
        };
        assert!(!makes_room(&mut lane, T), "by a clock that is right it is not over");
        assert!(makes_room(&mut lane, ahead(0)));
        lane.act(T, |lane, cx| lane.republishing.alive_mut().set(cx, &id_of(&second), &second));
        for ms in (100_000..300_000).step_by(1000) {
            lane.act(ahead(ms), |lane, cx| assert!(lane.republishing.alive_mut().next_due(cx).is_none()));
        }
        assert_eq!(lane.router.republishing.alive.agenda.len(), 0, "its whole life has passed here");
    }

    #[test]
    fn a_record_only_kept_alive_is_served_while_fewer_nodes_than_its_holders_are_known() {
        let mut lane = lane();
        let (id, record) = value(1);
        lane.router.republishing.alive_mut().set_due(&id, u64::MAX, &record);
        assert!(lane.act(T, |lane, cx| kept_for_others(cx, &lane.peers, &lane.republishing, &id).is_some()));
        meet_all(&mut lane);
        assert!(
            lane.act(T, |lane, cx| kept_for_others(cx, &lane.peers, &lane.republishing, &id).is_none()),
            "it is with its holders"
        );
        assert!(lane.act(T, |lane, cx| lane.record_here(cx.now, &id).is_some()), "and here for our own commands");
    }

    #[test]
    fn an_expired_record_is_not_served_though_it_is_not_taken_out_yet() {
        let mut lane = lane();
        meet_all(&mut lane);
        let id = hold(&mut lane, 1);
        assert!(lane.router.server.record(after(99_999), &id).is_some());
        assert_eq!(lane.router.server.record(after(100_000), &id), None);
    }
}
