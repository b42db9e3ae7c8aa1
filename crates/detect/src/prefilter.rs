//! One pass over the bytes that finds every keyword of every rule.
//!
//! The automaton is Aho and Corasick's, as a table with one row for each state and one column for each class of bytes. Three
//! things make the pass quick, without a line of unsafe code. A block is read in four places at once: each step waits for the
//! one before, since the next row's number is the last cell's content, and four chains of loads overlap. Rows are
//! numbered breadth-first, so the few that nearly every byte touches lie side by side and stay in the nearest cache. And a
//! cell takes two bytes if there are few rows and classes, as with the built-in rules; other sets take the wider form.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use crate::error::RuleError;

/// A keyword at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Where the keyword begins.
    pub(crate) start: u32,
    /// Which keyword.
    pub(crate) keyword: u32,
}

/// Hits by lane: reused from block to block, so that a block without findings allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Hits([Vec<Hit>; LANES]);

impl Hits {
    /// All hits, in order of where the keyword ends within each lane, lane by lane.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Hit> + '_ {
        self.0.iter().flatten().copied()
    }
}

const LANES: usize = 4;
/// Shorter texts are read by one lane.
const LANE_BYTES_MIN: usize = 256;
/// Most rows of the wide form: a quarter of a gigabyte.
const ROWS_MAX: usize = 1 << 18;

#[derive(Debug)]
pub(crate) struct Prefilter {
    rows: Rows,
    keywords: Keywords,
}

#[derive(Debug)]
enum Rows {
    Narrow(Table<u16, 6>),
    Wide(Table<u32, 8>),
}

/// What the keywords are, apart from how they are found.
#[derive(Debug)]
struct Keywords {
    lengths: Vec<u32>,
    bytes_max: usize,
}

impl Prefilter {
    /// Builds the automaton; `keywords` are distinct, not empty and lower case.
    pub(crate) fn new(keywords: &[&[u8]]) -> Result<Self, RuleError> {
        let trie = Trie::new(keywords)?;
        let rows =
            Table::new(&trie).map_or_else(|| Table::new(&trie).map(Rows::Wide), |table| Some(Rows::Narrow(table)));
        let keywords = Keywords {
            lengths: keywords.iter().map(|word| word.len() as u32).collect(),
            bytes_max: keywords.iter().map(|word| word.len()).max().unwrap_or(1),
        };
        Ok(Self { rows: rows.expect("a trie has at most ROWS_MAX nodes and 256 classes"), keywords })
    }

    /// Finds every keyword that begins in `own`; it may end behind it.
    pub(crate) fn scan(&self, text: &[u8], own: Range<usize>, hits: &mut Hits) {
        hits.0.iter_mut().for_each(Vec::clear);
        if self.keywords.lengths.is_empty() || own.is_empty() {
            return;
        }
        match &self.rows {
            Rows::Narrow(table) => table.scan(&self.keywords, text, own, hits),
            Rows::Wide(table) => table.scan(&self.keywords, text, own, hits),
        }
    }

    pub(crate) fn keyword_len(&self, keyword: u32) -> usize {
        self.keywords.lengths[keyword as usize] as usize
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let rows = match &self.rows {
            Rows::Narrow(table) => table.next.len() * 2,
            Rows::Wide(table) => table.next.len() * 4,
        };
        rows + self.keywords.lengths.len() * 4
    }
}

/// A cell: the number of the next row, and [`Cell::ENDS`] if a keyword ends there.
trait Cell: Copy + Default {
    const ROWS_MAX: usize;
    /// The bit above every row number.
    const ENDS: usize = Self::ROWS_MAX;
    fn new(number: usize) -> Self;
    fn number(self) -> usize;
}

impl Cell for u16 {
    const ROWS_MAX: usize = 1 << 15;
    fn new(number: usize) -> Self {
        number as u16
    }
    #[inline(always)]
    fn number(self) -> usize {
        usize::from(self)
    }
}

impl Cell for u32 {
    const ROWS_MAX: usize = ROWS_MAX;
    fn new(number: usize) -> Self {
        number as u32
    }
    #[inline(always)]
    fn number(self) -> usize {
        self as usize
    }
}

#[derive(Debug)]
struct Table<C, const COLUMNS_LOG2: u32> {
    /// Row by row, one cell for each class.
    next: Vec<C>,
    classes: Box<[u8; 256]>,
    /// The keywords that end at each row.
    ends: Vec<Box<[u32]>>,
}

impl<C: Cell, const COLUMNS_LOG2: u32> Table<C, COLUMNS_LOG2> {
    /// `None` if there are more rows or classes than this form has room for.
    fn new(trie: &Trie) -> Option<Self> {
        if trie.nodes.len() > C::ROWS_MAX || trie.classes_len > 1 << COLUMNS_LOG2 {
            return None;
        }
        let order = trie.breadth_first();
        let mut row_of = alloc::vec![0; order.len()];
        for (row, &node) in order.iter().enumerate() {
            row_of[node] = row;
        }
        let mut next = alloc::vec![C::default(); order.len() << COLUMNS_LOG2];
        let mut ends: Vec<Box<[u32]>> = Vec::with_capacity(order.len());
        let mut fallback = alloc::vec![0; order.len()];
        // A row's fallback is nearer to the root, so its own cells are complete when they are copied.
        for (row, &node) in order.iter().enumerate() {
            let back: usize = fallback[row];
            let mut words = trie.nodes[node].ends.clone();
            if row > 0 {
                words.extend_from_slice(&ends[back]);
                next.copy_within(back << COLUMNS_LOG2..(back + 1) << COLUMNS_LOG2, row << COLUMNS_LOG2);
            }
            ends.push(words.into_boxed_slice());
            for &(class, child) in &trie.nodes[node].children {
                let cell = row << COLUMNS_LOG2 | usize::from(class);
                fallback[row_of[child]] = if row == 0 { 0 } else { next[cell].number() };
                next[cell] = C::new(row_of[child]);
            }
        }
        for cell in &mut next {
            if !ends[cell.number()].is_empty() {
                *cell = C::new(cell.number() | C::ENDS);
            }
        }
        Some(Self { next, classes: trie.classes.clone(), ends })
    }

    /// The content of a cell; `row` has no flag.
    #[inline(always)]
    fn step(&self, row: usize, byte: u8) -> usize {
        self.next[row << COLUMNS_LOG2 | usize::from(self.classes[usize::from(byte)])].number()
    }

    fn scan(&self, keywords: &Keywords, text: &[u8], own: Range<usize>, hits: &mut Hits) {
        let share = own.len() / LANES;
        if share < LANE_BYTES_MIN {
            self.lane(keywords, text, own, 0, 0, &mut hits.0[0]);
            return;
        }
        let begin: [usize; LANES] = core::array::from_fn(|lane| own.start + lane * share);
        let lanes = begin.map(|at| &text[at..at + share]);
        let (mut rows, mut at) = ([0; LANES], 0);
        while at < share {
            (rows, at) = self.until_keyword(rows, lanes, at);
            for lane in 0..LANES {
                rows[lane] =
                    self.collect(keywords, rows[lane], begin[lane] + at, begin[lane] + share, &mut hits.0[lane]);
            }
        }
        for lane in 0..LANES {
            let end = if lane + 1 < LANES { begin[lane + 1] } else { own.end };
            self.lane(keywords, text, begin[lane]..end, rows[lane], share, &mut hits.0[lane]);
        }
    }

    /// Reads on alone from `skip` bytes into `own`, and past its end as far as a keyword that began in it can reach.
    fn lane(
        &self,
        keywords: &Keywords,
        text: &[u8],
        own: Range<usize>,
        mut row: usize,
        skip: usize,
        hits: &mut Vec<Hit>,
    ) {
        let from = own.start + skip;
        let until = text.len().min(own.end + keywords.bytes_max - 1);
        for (i, &byte) in text[from..until].iter().enumerate() {
            row = self.step(row, byte);
            if row & C::ENDS != 0 {
                row = self.collect(keywords, row, from + i + 1, own.end, hits);
            }
        }
    }

    /// Reads in all lanes from `at` until a keyword ends in one of them, or the lanes end. A function of its own, so that rows and
    /// places stay in registers.
    #[inline(never)]
    fn until_keyword(&self, rows: [usize; LANES], lanes: [&[u8]; LANES], at: usize) -> ([usize; LANES], usize) {
        let [mut a, mut b, mut c, mut d] = rows;
        let rest = lanes[0][at..].iter().zip(&lanes[1][at..]).zip(&lanes[2][at..]).zip(&lanes[3][at..]);
        for (i, (((&of_a, &of_b), &of_c), &of_d)) in rest.enumerate() {
            a = self.step(a, of_a);
            b = self.step(b, of_b);
            c = self.step(c, of_c);
            d = self.step(d, of_d);
            if (a | b | c | d) & C::ENDS != 0 {
                return ([a, b, c, d], at + i + 1);
            }
        }
        ([a, b, c, d], lanes[0].len())
    }

    /// Notes the keywords that end at `end`, and returns the row without its flag.
    fn collect(&self, keywords: &Keywords, row: usize, end: usize, begins_before: usize, hits: &mut Vec<Hit>) -> usize {
        if row & C::ENDS == 0 {
            return row;
        }
        let row = row & !C::ENDS;
        for &keyword in &*self.ends[row] {
            let start = end - keywords.lengths[keyword as usize] as usize;
            if start < begins_before {
                hits.push(Hit { start: start as u32, keyword });
            }
        }
        row
    }
}

/// The keywords as a tree: a node for each beginning of a keyword.
struct Trie {
    nodes: Vec<Node>,
    classes: Box<[u8; 256]>,
    /// Classes that occur: 0 is every byte of no keyword.
    classes_len: usize,
}

#[derive(Clone, Default)]
struct Node {
    children: Vec<(u8, usize)>,
    ends: Vec<u32>,
}

impl Trie {
    fn new(keywords: &[&[u8]]) -> Result<Self, RuleError> {
        let mut classes = Box::new([0u8; 256]);
        let mut classes_len = 1;
        for &byte in keywords.iter().copied().flatten() {
            // A keyword has no capital, so there are at most 231 classes.
            if classes[usize::from(byte)] == 0 {
                classes[usize::from(byte)] = classes_len as u8;
                classes[usize::from(byte.to_ascii_uppercase())] = classes_len as u8;
                classes_len += 1;
            }
        }
        let mut nodes = alloc::vec![Node::default()];
        for (i, word) in keywords.iter().enumerate() {
            let mut at = 0;
            for &byte in *word {
                let class = classes[usize::from(byte)];
                let known = nodes[at].children.iter().find(|(known, _)| *known == class).map(|&(_, child)| child);
                at = known.unwrap_or_else(|| {
                    let child = nodes.len();
                    nodes[at].children.push((class, child));
                    nodes.push(Node::default());
                    child
                });
            }
            nodes[at].ends.push(i as u32);
            if nodes.len() > ROWS_MAX {
                return Err(RuleError::TooMany { what: "keywords", count: keywords.len(), count_max: i });
            }
        }
        Ok(Self { nodes, classes, classes_len })
    }

    fn breadth_first(&self) -> Vec<usize> {
        let mut order = alloc::vec![0];
        let mut at = 0;
        while at < order.len() {
            let node = order[at];
            order.extend(self.nodes[node].children.iter().map(|&(_, child)| child));
            at += 1;
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(text: &[u8], own: Range<usize>, words: &[&[u8]]) -> Vec<(usize, usize)> {
        let mut all = Vec::new();
        for start in own {
            for (i, word) in words.iter().enumerate() {
                if text[start..].len() >= word.len() && text[start..start + word.len()].eq_ignore_ascii_case(word) {
                    all.push((start, i));
                }
            }
        }
        all
    }

    fn found(prefilter: &Prefilter, text: &[u8], own: Range<usize>) -> Vec<(usize, usize)> {
        let mut hits = Hits::default();
        prefilter.scan(text, own, &mut hits);
        let mut found: Vec<(usize, usize)> =
            hits.iter().map(|hit| (hit.start as usize, hit.keyword as usize)).collect();
        found.sort_unstable();
        found
    }

    proptest! {
        #[test]
        fn four_lanes_find_what_a_plain_search_finds(text in "[abAB]{0,5000}", cut in 0usize..5000, end in 0usize..5000) {
            let words: [&[u8]; 5] = [b"ab", b"abba", b"bbb", b"aabab", b"ba"];
            let text = text.as_bytes();
            let own = cut.min(end).min(text.len())..cut.max(end).min(text.len());
            prop_assert_eq!(found(&Prefilter::new(&words).unwrap(), text, own.clone()), plain(text, own, &words));
        }
    }

    #[test]
    fn keywords_for_which_the_narrow_form_has_no_room_are_found_too() {
        let spread = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let many_rows: Vec<Vec<u8>> = (0..3_000).map(|i| alloc::format!("{:016x}", spread(i)).into_bytes()).collect();
        let many_classes: Vec<Vec<u8>> = (b'!'..=b'@').chain(b'['..=255).map(|byte| alloc::vec![byte, b'#']).collect();
        for words in [many_rows, many_classes] {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let prefilter = Prefilter::new(&words).unwrap();
            assert!(matches!(prefilter.rows, Rows::Wide(_)));
            let text = words[..80].concat();
            assert_eq!(found(&prefilter, &text, 0..text.len()), plain(&text, 0..text.len(), &words));
        }
    }
}
