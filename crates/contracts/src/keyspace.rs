//! Keys between keys.
//!
//! To cut a range one needs a key inside it. Byte strings of any length are read as fractions in base 256: `"a"` is
//! 0x61 / 256, and an unbounded end is 1. That gives midpoints between strings of unequal length. Where a fraction is
//! too coarse a picture, because `"a"` and `"a\0"` are the same number but not the same key, the shortest key that
//! sorts between two others is found directly.
//!
//! Keys found here are as short as they can be without leaving the place asked for: they are stored, sent and read by
//! people.

use alloc::vec::Vec;

use crate::limits::MAX_KEY_SIZE;
use crate::shard_spec::KeyRange;

/// A share of something, in millionths; more than none and less than all.
///
/// Whole numbers, so that every machine cuts at the same place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fraction(u32);

impl Fraction {
    /// One half.
    pub const HALF: Self = Self(500_000);

    const WHOLE: u32 = 1_000_000;

    /// `millionths` of a whole, from 1 to 999,999.
    pub const fn from_millionths(millionths: u32) -> Result<Self, FractionError> {
        match millionths {
            1..Self::WHOLE => Ok(Self(millionths)),
            _ => Err(FractionError { millionths }),
        }
    }

    /// The number of millionths.
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// This share of `count`, rounded down.
    pub fn of(self, count: usize) -> usize {
        (count as u128 * u128::from(self.0) / u128::from(Self::WHOLE)) as usize
    }
}

/// Why a number of millionths is no [`Fraction`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{millionths} millionths is not a share between nothing and all; give 1 to 999999")]
pub struct FractionError {
    /// The number seen.
    pub millionths: u32,
}

/// A key about `fraction` of the way through `range`, strictly above its start and below its end.
///
/// `None` if no such key of at most [`MAX_KEY_SIZE`] bytes exists.
pub fn key_at_fraction(range: KeyRange<'_>, fraction: Fraction) -> Option<Vec<u8>> {
    // A thousandth of the range is finer than a guess about where the work lies.
    key_at(range, u64::from(fraction.0), u64::from(Fraction::WHOLE), 1_000)
}

/// The `pieces - 1` keys that cut `range` into pieces of about equal width, in order, strictly inside.
///
/// `None` if there are not that many keys to be found.
pub fn keys_evenly(range: KeyRange<'_>, pieces: usize) -> Option<Vec<Vec<u8>>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    for cut in 1..pieces {
        let above = keys.last().map_or(range.start(), Vec::as_slice);
        let wanted = key_at(range, cut as u64, pieces as u64, (pieces as u64).saturating_mul(64))
            .filter(|key| key.as_slice() > above);
        // In a very narrow range neighbouring cuts may meet; then the next key that exists will do.
        let key = wanted.or_else(|| shortest_key_between(above, range.end()))?;
        keys.push(key);
    }
    Some(keys)
}

/// The shortest key strictly above `low` and strictly below `high`; an empty `high` is no bound.
///
/// `None` if there is none of at most [`MAX_KEY_SIZE`] bytes.
pub fn shortest_key_between(low: &[u8], high: &[u8]) -> Option<Vec<u8>> {
    let is_below_high = |key: &[u8]| high.is_empty() || key < high;
    // The least key above `low` of each length: `low` cut there and raised by one. A byte of 255 cannot be raised, and
    // raising one before it was tried at a shorter length. All of the part shared with `high` would overshoot.
    for at in shared_prefix(low, high)..low.len().min(MAX_KEY_SIZE) {
        if low[at] < u8::MAX {
            let mut key = low[..=at].to_vec();
            key[at] += 1;
            if is_below_high(&key) {
                return Some(key);
            }
        }
    }
    // The key that follows `low` directly. If not even this one fits, nothing lies between.
    let mut next = Vec::with_capacity(low.len() + 1);
    next.extend_from_slice(low);
    next.push(0);
    (next.len() <= MAX_KEY_SIZE && is_below_high(&next)).then_some(next)
}

/// The shortest key strictly above `low` and not above `high`: the boundary to put between two neighbouring keys.
///
/// `None` if `low` is not below `high`.
pub fn shortest_separator(low: &[u8], high: &[u8]) -> Option<Vec<u8>> {
    // All that both share and one byte more: anything shorter sorts before `low` or after `high`.
    (low < high).then(|| high[..=shared_prefix(low, high)].to_vec())
}

/// A key at `numerator / denominator` of the way through `range`, wrong by at most one part in `parts` of its width.
fn key_at(range: KeyRange<'_>, numerator: u64, denominator: u64, parts: u64) -> Option<Vec<u8>> {
    let (start, end) = (range.start(), range.end());
    let shared = if range.has_end() { shared_prefix(start, end) } else { 0 };
    // The first eight bytes after what both ends share, as numbers; an unbounded end is one past the largest.
    let low = window(&start[shared..]);
    let high = if range.has_end() { window(&end[shared..]) } else { 1 << 64 };
    let width = high - low;
    // The width is at most 2^64 and the numerator below 2^64, so the product fits.
    let target = low + width * u128::from(numerator) / u128::from(denominator);
    let tolerance = width / u128::from(parts);

    for len in 1..=WINDOW_BYTES {
        let unit = 1_u128 << (8 * (WINDOW_BYTES - len));
        // The nearest key of this length, rounded to the nearest so that short keys do not all fall to one side.
        let rounded = (target + unit / 2) / unit * unit;
        if rounded.abs_diff(target) > tolerance || rounded >= 1 << 64 {
            continue;
        }
        let mut key = start[..shared].to_vec();
        key.extend_from_slice(&(rounded as u64).to_be_bytes()[..len]);
        if key.len() > MAX_KEY_SIZE {
            break;
        }
        if key.as_slice() > start && range.reaches_up_to(&key) {
            return Some(key);
        }
    }
    shortest_key_between(start, end)
}

const WINDOW_BYTES: usize = 8;

/// The first eight bytes as a number; missing ones count as zero.
fn window(bytes: &[u8]) -> u128 {
    let mut window = [0; WINDOW_BYTES];
    for (to, from) in window.iter_mut().zip(bytes) {
        *to = *from;
    }
    u128::from(u64::from_be_bytes(window))
}

fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    fn range<'a>(start: &'a [u8], end: &'a [u8]) -> KeyRange<'a> {
        KeyRange::new(start, end).unwrap()
    }

    fn half(start: &[u8], end: &[u8]) -> Option<Vec<u8>> {
        key_at_fraction(range(start, end), Fraction::HALF)
    }

    #[test]
    fn midpoints_are_short_and_in_the_middle() {
        assert_eq!(half(b"", b""), Some(vec![0x80]));
        assert_eq!(half(b"a", b"c"), Some(b"b".to_vec()));
        assert_eq!(half(b"a", b"b"), Some(b"a\x80".to_vec()));
        assert_eq!(half(b"src/a", b"src/b"), Some(b"src/a\x80".to_vec()));
        assert_eq!(half(b"", b"\x01"), Some(b"\0\x80".to_vec()));
        assert_eq!(half(b"\xff", b""), Some(b"\xff\x80".to_vec()));
        // Unequal lengths: 0x6100 and 0x6280 have 0x61c0 between them.
        assert_eq!(half(b"a", b"b\x80"), Some(b"a\xc0".to_vec()));
    }

    #[test]
    fn adjacent_keys_have_nothing_between_them() {
        assert_eq!(half(b"a", b"a\0"), None);
        assert_eq!(half(b"", b"\0"), None);
        assert_eq!(half(b"a", b"a\0\0"), Some(b"a\0".to_vec()));
        assert_eq!(keys_evenly(range(b"a", b"a\0\0"), 3), None);
        assert_eq!(keys_evenly(range(b"a", b"a\0\0\0"), 3), Some(vec![b"a\0".to_vec(), b"a\0\0".to_vec()]));
    }

    #[test]
    fn the_longest_keys_leave_no_room_for_a_longer_one() {
        let low = vec![7; MAX_KEY_SIZE];
        let mut high = low.clone();
        high[MAX_KEY_SIZE - 1] = 8;
        assert_eq!(half(&low, &high), None);
        high[MAX_KEY_SIZE - 1] = 9;
        assert!(half(&low, &high).is_some());
    }

    #[test]
    fn more_pieces_than_there_are_keys_are_none_however_many() {
        assert_eq!(keys_evenly(range(b"a", b"a\0\0"), usize::MAX), None);
        assert_eq!(keys_evenly(range(b"a", b""), 0), Some(vec![]));
    }

    #[test]
    fn no_key_over_the_limit_is_found_even_between_two_that_are() {
        let mut low = vec![7; MAX_KEY_SIZE];
        let mut high = low.clone();
        low.push(1);
        high.push(9);
        assert_eq!(shortest_key_between(&low, &high), None);
    }

    #[test]
    fn a_run_of_255_is_stepped_over() {
        let mut low = b"a".to_vec();
        low.extend_from_slice(&[0xff; 40]);
        let mut between = low.clone();
        between.push(0);
        assert_eq!(half(&low, b"b"), Some(between));
        assert_eq!(shortest_key_between(b"a\xff\x01", b"b"), Some(b"a\xff\x02".to_vec()));
        assert_eq!(shortest_key_between(b"ab", b""), Some(b"b".to_vec()));
    }

    #[test]
    fn separators_keep_only_what_tells_two_keys_apart() {
        assert_eq!(shortest_separator(b"src/lib.rs", b"src/main.rs"), Some(b"src/m".to_vec()));
        assert_eq!(shortest_separator(b"a", b"abc"), Some(b"ab".to_vec()));
        assert_eq!(shortest_separator(b"a", b"a"), None);
        assert_eq!(shortest_separator(b"b", b"a"), None);
    }

    #[test]
    fn fractions_lie_between_none_and_all() {
        assert_eq!(Fraction::from_millionths(0), Err(FractionError { millionths: 0 }));
        assert_eq!(Fraction::from_millionths(1_000_000), Err(FractionError { millionths: 1_000_000 }));
        assert_eq!(Fraction::from_millionths(500_000), Ok(Fraction::HALF));
        assert_eq!((Fraction::HALF.of(7), Fraction::HALF.of(usize::MAX)), (3, usize::MAX / 2));
    }

    /// Short strings over few letters, so that equal, adjacent and prefix cases are common.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(prop::sample::select(vec![0, 1, 0x61, 0xfe, 0xff]), 0..12),
            prop::collection::vec(any::<u8>(), 0..24),
        ]
    }

    fn ordered_pair() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        (key(), key()).prop_filter_map("a range", |(a, b)| match a.cmp(&b) {
            _ if b.is_empty() => Some((a, b)),
            core::cmp::Ordering::Less => Some((a, b)),
            core::cmp::Ordering::Greater if !a.is_empty() => Some((b, a)),
            _ => None,
        })
    }

    /// Whether some key lies strictly between, by the definition of the order alone.
    fn something_between(low: &[u8], high: &[u8]) -> bool {
        let mut successor = low.to_vec();
        successor.push(0);
        high.is_empty() || successor.as_slice() < high
    }

    proptest! {
        #[test]
        fn a_key_at_a_fraction_is_strictly_inside_and_found_whenever_one_exists(
            (start, end) in ordered_pair(), millionths in 1_u32..1_000_000,
        ) {
            let fraction = Fraction::from_millionths(millionths).unwrap();
            let found = key_at_fraction(range(&start, &end), fraction);
            prop_assert_eq!(found.is_some(), something_between(&start, &end));
            if let Some(key) = found {
                prop_assert!(key > start && (end.is_empty() || key < end));
            }
        }

        #[test]
        fn the_shortest_key_between_is_between_and_no_shorter_one_is(
            (low, high) in ordered_pair(),
        ) {
            let found = shortest_key_between(&low, &high);
            prop_assert_eq!(found.is_some(), something_between(&low, &high));
            if let Some(key) = found {
                prop_assert!(key > low && (high.is_empty() || key < high));
                // Any key of a shorter length lies at or below the longest of that length not above `low`'s cut, or
                // at or above the next one: try that next one.
                for len in 1..key.len() {
                    let mut shorter = low[..len.min(low.len())].to_vec();
                    shorter.resize(len, 0);
                    if shorter <= low {
                        while shorter.last() == Some(&0xff) {
                            shorter.pop();
                        }
                        match shorter.last_mut() {
                            Some(last) => *last += 1,
                            None => continue,
                        }
                    }
                    prop_assert!(!high.is_empty() && shorter >= high);
                }
            }
        }

        #[test]
        fn even_cuts_are_in_order_strictly_inside_and_of_even_width(
            (start, end) in ordered_pair(), pieces in 2_usize..=256,
        ) {
            let range = range(&start, &end);
            if let Some(keys) = keys_evenly(range, pieces) {
                prop_assert_eq!(keys.len(), pieces - 1);
                prop_assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
                prop_assert!(keys.iter().all(|key| *key > start && (end.is_empty() || *key < end)));

                let shared = if end.is_empty() { 0 } else { shared_prefix(&start, &end) };
                let high = if end.is_empty() { 1 << 64 } else { window(&end[shared..]) };
                let width = high - window(&start[shared..]);
                // Where the range is wide enough to be seen as a number, every piece is within a tenth of its share.
                if width > 1 << 32 {
                    let fair = width / pieces as u128;
                    let edges: Vec<_> = core::iter::once(window(&start[shared..]))
                        .chain(keys.iter().map(|key| window(&key[shared..])))
                        .chain([high])
                        .collect();
                    for pair in edges.windows(2) {
                        prop_assert!((pair[1] - pair[0]).abs_diff(fair) <= fair / 10);
                    }
                }
            }
        }

        #[test]
        fn a_separator_keeps_the_lower_key_below_and_the_upper_key_above(
            (low, high) in ordered_pair().prop_filter("bounded", |(_, high)| !high.is_empty()),
        ) {
            let separator = shortest_separator(&low, &high).unwrap();
            prop_assert!(low < separator && separator <= high);
            prop_assert!(separator.len() <= shared_prefix(&low, &high) + 1);
        }
    }
}
