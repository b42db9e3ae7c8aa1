//! The address at which others see this node, by the majority of the peers asked last.
//!
//! Announcements name that address where none was configured, and every peer that reports it is a stranger. If one report were
//! enough, any peer could send our askers elsewhere, or to a victim.

use tessera_contracts::point::{NodeId, Point as _};

use crate::addr::Addr;
use crate::contact::Contact;

/// How many have a say: of an address prefix only the last, but for those of private networks, where each has.
const SAYINGS_MAX: usize = 8;

/// The word of another lane, which has asked others.
const ANOTHER_LANE: u64 = u64::MAX;

/// The reports, and the address believed.
#[derive(Debug, Default)]
pub(super) struct SeenAt {
    /// Reports by reporter, the newest first.
    sayings: [Option<(u64, Addr)>; SAYINGS_MAX],
    believed: Option<Addr>,
}

impl SeenAt {
    /// The address reported most, if any was.
    pub(super) fn believed(&self) -> Option<Addr> {
        self.believed
    }

    /// A peer sees us at `addr`. Returns whether we believe another address than before.
    pub(super) fn say(&mut self, by: &Contact, id: &NodeId, addr: Addr) -> bool {
        let prefix = by.addr.prefix();
        self.note(if prefix.is_private() { id.prefix_u64() } else { prefix.0 }, addr);
        let said =
            |wanted: Option<Addr>| self.sayings.iter().flatten().filter(|(_, addr)| Some(*addr) == wanted).count();
        let most = self.sayings.iter().flatten().map(|(_, addr)| Some(*addr)).max_by_key(|addr| said(*addr)).flatten();
        let changes = said(most) > said(self.believed);
        if changes {
            self.believed = most;
        }
        changes
    }

    /// Another lane of this node believes in `addr`. Reports of other addresses are older.
    pub(super) fn believe(&mut self, addr: Addr) {
        self.note(ANOTHER_LANE, addr);
        for saying in &mut self.sayings {
            saying.take_if(|(_, said)| *said != addr);
        }
        self.believed = Some(addr);
    }

    fn note(&mut self, by: u64, addr: Addr) {
        let known = self.sayings.iter().position(|saying| saying.is_some_and(|(who, _)| who == by));
        self.sayings[..=known.unwrap_or(SAYINGS_MAX - 1)].rotate_right(1);
        self.sayings[0] = Some((by, addr));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Crypto as _, Identity};
    use alloc::vec::Vec;

    const HERE: Addr = Addr::v4([192, 0, 2, 1], 1);
    const THERE: Addr = Addr::v4([198, 51, 100, 1], 1);

    /// The address believed after each report: reporter, its network, address.
    fn believed(sayings: &[(u8, [u8; 3], Addr)]) -> Vec<Addr> {
        let mut seen_at = SeenAt::default();
        let after = sayings.iter().map(|(n, [a, b, c], addr)| {
            let contact =
                Contact { key: Identity::from_seed(&[*n; 32]).public_key(), addr: Addr::v4([*a, *b, *c, *n], 1) };
            let before = seen_at.believed();
            assert_eq!(seen_at.say(&contact, &contact.id(), *addr), seen_at.believed() != before);
            seen_at.believed().unwrap()
        });
        after.collect()
    }

    #[test]
    fn the_first_word_is_believed_and_then_what_more_say() {
        let nets: [[u8; 3]; 5] = core::array::from_fn(|n| [7, 7, n as u8]);
        assert_eq!(believed(&[(1, nets[1], HERE), (2, nets[2], THERE)]), [HERE, HERE]);
        let [one, two, three] = [(1, nets[1], HERE), (2, nets[2], THERE), (3, nets[3], THERE)];
        assert_eq!(believed(&[one, two, three]), [HERE, HERE, THERE]);
        assert_eq!(believed(&[one, (1, nets[1], THERE)]), [HERE, THERE], "with one reporter");
    }

    #[test]
    fn a_network_has_one_word_however_many_of_it_speak_but_for_a_private_one() {
        for (net, crowd_is_believed) in [([7, 7, 9], false), ([10, 7, 9], true)] {
            let honest = (1..4).map(|n| (n, [7, 7, n], HERE));
            let crowd = (10..20).map(|n| (n, net, THERE));
            let last = *believed(&honest.chain(crowd).collect::<Vec<_>>()).last().unwrap();
            assert_eq!(last == THERE, crowd_is_believed);
        }
    }

    #[test]
    fn a_node_that_moved_knows_after_five_of_eight_reports() {
        let old = (0..8).map(|n| (n, [7, 7, n], HERE));
        let new = (0..8).map(|n| (n, [7, 7, n], THERE));
        let all = believed(&old.chain(new).collect::<Vec<_>>());
        assert_eq!(all[8..], [HERE, HERE, HERE, HERE, THERE, THERE, THERE, THERE]);
    }

    #[test]
    fn another_lanes_word_is_taken_and_not_given_up_for_a_single_other_one() {
        let mut seen_at = SeenAt::default();
        let by = |n: u8| Contact { key: Identity::from_seed(&[n; 32]).public_key(), addr: Addr::v4([7, 7, n, 1], 1) };
        for n in 0..5 {
            seen_at.say(&by(n), &by(n).id(), HERE);
        }
        seen_at.believe(THERE);
        assert_eq!(seen_at.believed(), Some(THERE));
        assert!(!seen_at.say(&by(5), &by(5).id(), HERE));
        assert!(seen_at.say(&by(6), &by(6).id(), HERE));
    }
}
