//! What lies ahead of a cursor, weighed, so that it can be shared.
//!
//! Looks at names and sizes without opening anything, and not for ever: beyond a limit all that is known is that there is more.

use tessera_contracts::RestoredShardState;
use tessera_contracts::keyspace::Fraction;
use tessera_contracts::source_family::{ItemPages, PageLimits, SourceError, SourceFamily, SourceItem};

use super::ITEM_COST_BYTES;

/// Items looked at ahead of a cursor to find where to cut.
const LOOKAHEAD_ITEMS_MAX: usize = 20_000;

/// Items that lie ahead.
#[derive(Debug)]
pub struct Ahead {
    /// Keys, and the cost of all up to and with each.
    items: Vec<(Vec<u8>, u64)>,
    /// Whether these are all.
    pub is_whole: bool,
}

impl Ahead {
    /// Looks ahead of the cursor of `state`.
    pub fn of(source: &impl SourceFamily, state: &RestoredShardState) -> Result<Self, SourceError> {
        let mut pages = source.open(state)?;
        let mut items: Vec<(Vec<u8>, u64)> = Vec::new();
        let mut cost = 0_u64;
        let limits = PageLimits { items_max: 1_000, bytes_max: u64::MAX };
        loop {
            let page = pages.next_page(limits)?;
            for item in &page.items {
                cost = cost.saturating_add(item.bytes().saturating_add(ITEM_COST_BYTES));
                items.push((item.key().to_vec(), cost));
            }
            if page.is_last || items.len() >= LOOKAHEAD_ITEMS_MAX {
                return Ok(Self { items, is_whole: page.is_last });
            }
        }
    }

    /// Keys, each with the cost of all up to and with it.
    #[cfg(test)]
    pub(crate) fn from_costs(items: impl IntoIterator<Item = (Vec<u8>, u64)>, is_whole: bool) -> Self {
        Self { items: items.into_iter().collect(), is_whole }
    }

    /// What it costs, as far as it was looked at.
    pub fn cost(&self) -> u64 {
        self.items.last().map_or(0, |(_, cost)| *cost)
    }

    /// A key at which to cut, so that about `kept` of the work stays below it. `None` if fewer than two items are left.
    pub fn cut(&self, kept: Fraction) -> Option<&[u8]> {
        let share = u128::from(self.cost()) * u128::from(kept.millionths()) / 1_000_000;
        // At least one item stays and one goes.
        let last = self.items.len().checked_sub(1).filter(|&last| last > 0)?;
        let first_given = self.items.partition_point(|(_, cost)| u128::from(*cost) <= share).clamp(1, last);
        Some(&self.items[first_given].0)
    }

    /// Keys at which to cut into up to `pieces` of about equal work, rising. What was not looked at goes to the last.
    pub fn cuts(&self, pieces: usize) -> Vec<&[u8]> {
        let mut cuts: Vec<&[u8]> = Vec::new();
        for piece in 1..pieces {
            let share = u128::from(self.cost()) * piece as u128 / pieces as u128;
            let at = self.items.partition_point(|(_, cost)| u128::from(*cost) <= share);
            match self.items.get(at) {
                Some((key, _)) if at > 0 && cuts.last().is_none_or(|last| *last < key.as_slice()) => cuts.push(key),
                _ => {}
            }
        }
        cuts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(costs: &[u64]) -> Ahead {
        let mut sum = 0;
        let items = costs.iter().zip(0_u8..).map(|(cost, key)| {
            sum += cost;
            (vec![key], sum)
        });
        Ahead { items: items.collect(), is_whole: true }
    }

    #[test]
    fn a_cut_leaves_about_the_asked_share_and_always_something_on_either_side() {
        let half = Fraction::HALF;
        assert_eq!(ahead(&[1, 1, 1, 1]).cut(half), Some(&[2_u8][..]));
        assert_eq!(ahead(&[9, 1]).cut(half), Some(&[1_u8][..]));
        assert_eq!(ahead(&[1, 1, 9]).cut(half), Some(&[2_u8][..]));
        assert_eq!((ahead(&[5]).cut(half), ahead(&[]).cut(half)), (None, None));
    }

    #[test]
    fn pieces_hold_equal_work_as_far_as_items_can_be_parted() {
        assert_eq!(ahead(&[1; 8]).cuts(4), [&[2_u8][..], &[4], &[6]]);
        assert_eq!(ahead(&[1, 100, 1]).cuts(4), [&[1_u8][..]]);
        assert!(ahead(&[7]).cuts(4).is_empty());
        assert!(ahead(&[]).cuts(4).is_empty());
    }
}
