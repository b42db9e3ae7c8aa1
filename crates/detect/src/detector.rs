//! Runs a program over bytes and says what it found.
//!
//! A source is cut into blocks at fixed offsets. A block *owns* the keywords that begin in it and sees
//! [`OVERLAP_BYTES`] on either side, more than any match is long, so nothing is lost between blocks; and because the cut
//! depends on offsets alone, a source gives the same findings whether it comes in one slice or byte by byte.
//! Findings are held back for one block: by then every rule that could speak about the same bytes has spoken, and the
//! surest one is reported.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use crate::assign;
use crate::check::Outcome;
use crate::decode::{self, Chain, DECODE_DEPTH_MAX};
use crate::error::RuleError;
use crate::finding::{Finding, Secret};
use crate::lines::{LineCursor, Position};
use crate::path_class::LastClass;
use crate::pattern::Reach;
use crate::program::{Bank, Look, Program, WINDOW_BYTES_MAX};
use crate::rule::{Confidence, Rule};
use crate::ruleset::RuleSet;
use crate::stream::Stream;

mod judge;
mod search;

use judge::Held;
use search::Depth;

/// Bytes a block owns.
pub const BLOCK_BYTES: usize = 128 << 10;
/// Bytes a block sees before and after what it owns: no match is longer.
pub const OVERLAP_BYTES: usize = 16 << 10;

// Findings are held back for one block, which must cover what two matches that touch can reach.
const _: () = assert!(BLOCK_BYTES >= 2 * OVERLAP_BYTES);

/// What to look for beyond the rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Findings below this are not reported, and rules that cannot reach it are not run.
    pub confidence_min: Confidence,
    /// How many encodings may be nested around a secret; 0 decodes nothing. At most [`DECODE_DEPTH_MAX`].
    pub decode_depth: usize,
    /// Whether remarks in a line are honoured: `tessera:allow`, `gitleaks:allow`, and those of other scanners.
    pub honour_remarks: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { confidence_min: Confidence::Medium, decode_depth: 2, honour_remarks: true }
    }
}

/// Where bytes come from, as far as rules care.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source<'a> {
    /// Path with `/` between its parts.
    pub path: Option<&'a [u8]>,
    /// Commit id in hex.
    pub commit: Option<&'a str>,
}

impl<'a> Source<'a> {
    /// A source known by its path.
    pub fn path(path: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { path: Some(path.as_ref()), commit: None }
    }
}

/// What became of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Bytes read.
    pub bytes: u64,
    /// Findings reported.
    pub findings: u64,
    /// Matches of any rule's expression, also those that were then found harmless.
    pub matches: u64,
    /// Matches that their own bytes speak against: too regular, placeholders, wrong checksums. What stands around them
    /// changes nothing about that.
    pub harmless: u64,
    /// Matches that an allowlist or a remark in the line called harmless.
    pub allowed: u64,
    /// Matches that failed their offline check.
    pub failed_checks: u64,
    /// Bytes offered to expressions, counted again for each rule: the work beyond the one pass over the bytes.
    pub expression_bytes: u64,
    /// A global allowlist names the path or commit: nothing was searched.
    pub source_allowed: bool,
}

/// Finds secrets. One for each worker: it owns its working memory and shares nothing that changes.
///
/// ```
/// use tessera_detect::{Detector, RuleSet, Source, template};
///
/// let mut detector = Detector::new(&RuleSet::builtin())?;
/// let text = template::expand("token: ghp_<<github 30>>\n", &mut template::Seed::new(1)).expect("a known recipe");
/// let mut found = Vec::new();
/// detector.scan_bytes(Source::path("ci.yml"), text.as_bytes(), |finding| {
///     found.push((finding.rule.id.clone(), finding.start.line, finding.secret.redacted()));
/// });
/// assert_eq!(found, [("github-pat".to_string(), 1, "ghp_****".to_string())]);
/// # Ok::<(), tessera_detect::RuleError>(())
/// ```
pub struct Detector {
    pub(crate) program: Arc<Program>,
    pub(crate) bank: Bank,
    pub(crate) last_class: LastClass,
    depths: [Depth; DECODE_DEPTH_MAX + 1],
    pub(crate) state: State,
    /// Where a [`Stream`] collects its chunks; here, so that one detector's streams share it.
    pub(crate) buffer: Vec<u8>,
}

/// What is remembered of the source between blocks.
#[derive(Debug)]
pub(crate) struct State {
    block: u64,
    lines: LineCursor,
    /// How far before the view the run of digits began that enters it.
    run_origin: usize,
    /// Rules that do not look at this path.
    pub(crate) asleep: Vec<bool>,
    seen: BTreeSet<(u16, u64, u64)>,
    held: Vec<Held>,
    /// Where the first harmless matches are.
    pub(crate) harmless: Vec<Range<u64>>,
    /// Matches are counted and not judged by what stands around them.
    pub(crate) is_probing: bool,
    pub(crate) summary: Summary,
}

/// Places of harmless matches that are remembered of a source.
pub(crate) const HARMLESS_MAX: usize = 256;

/// One block of a source.
pub(crate) struct Block<'a> {
    pub(crate) source: Source<'a>,
    /// What is seen.
    pub(crate) view: &'a [u8],
    /// Offset of the view in the source.
    pub(crate) base: u64,
    /// What is owned, within the view.
    pub(crate) own: Range<usize>,
}

impl Detector {
    /// Makes `rules` ready, with default [`Options`].
    ///
    /// # Errors
    /// If the rules contradict one another (a composite rule names one that is not there).
    pub fn new(rules: &RuleSet) -> Result<Self, RuleError> {
        Self::with_options(rules, Options::default())
    }

    /// Makes `rules` ready.
    ///
    /// # Errors
    /// As [`Detector::new`].
    pub fn with_options(rules: &RuleSet, mut options: Options) -> Result<Self, RuleError> {
        options.decode_depth = options.decode_depth.min(DECODE_DEPTH_MAX);
        Ok(Self::running(Arc::new(Program::new(rules, options)?)))
    }

    /// Another detector with the same rules, for another thread: shares what is immutable.
    pub fn fork(&self) -> Self {
        Self::running(Arc::clone(&self.program))
    }

    fn running(program: Arc<Program>) -> Self {
        let rules = program.rules.len();
        let depths = core::array::from_fn(|_| Depth {
            last_end: alloc::vec![0; rules],
            windows: alloc::vec![None; rules],
            ..Depth::default()
        });
        let state = State {
            block: 0,
            lines: LineCursor::new(),
            run_origin: 0,
            asleep: alloc::vec![false; rules],
            seen: BTreeSet::new(),
            held: Vec::new(),
            harmless: Vec::new(),
            is_probing: false,
            summary: Summary::default(),
        };
        Self { bank: Bank::new(&program), last_class: LastClass::default(), program, depths, state, buffer: Vec::new() }
    }

    /// Number of rules that run.
    pub fn rules_len(&self) -> usize {
        self.program.rules.len()
    }

    /// The rules that run, each with how far before the start of its keyword a match can begin, and how far behind it end;
    /// `None` if it can lie anywhere in the text once a keyword was seen.
    pub fn reaches(&self) -> impl Iterator<Item = (&Rule, Option<(usize, usize)>)> {
        self.program.rules.iter().zip(&self.program.plans).map(|(rule, plan)| {
            let reach = match plan.look {
                Look::Text(Reach::Anchored { after }) => Some((0, after)),
                Look::Text(Reach::Around { before, after }) => Some((before, after)),
                Look::Text(Reach::Anywhere) => None,
                Look::Assigned { after, .. } => Some((assign::NAME_BYTES_MAX, assign::REACH_MAX + after)),
                Look::Path => Some((0, 0)),
            };
            // Further secrets may follow, however many.
            let reach = if plan.then.is_some() { reach.map(|(before, _)| (before, WINDOW_BYTES_MAX)) } else { reach };
            (rule, reach)
        })
    }

    /// Bytes of the shared keyword automaton.
    pub fn automaton_bytes(&self) -> usize {
        self.program.prefilter.memory_bytes()
    }

    /// Searches a source that is in memory.
    pub fn scan_bytes(&mut self, source: Source<'_>, bytes: &[u8], mut sink: impl FnMut(&Finding<'_>)) -> Summary {
        if self.begin(source, &mut sink) {
            let mut at = 0;
            while at < bytes.len() {
                let block = block_at(source, bytes, 0, at);
                self.run(&block, &mut sink);
                at += BLOCK_BYTES;
            }
        }
        self.state.summary.bytes = bytes.len() as u64;
        self.end(&mut sink)
    }

    /// Searches a source that comes in chunks, in constant memory.
    ///
    /// ```
    /// use tessera_detect::{Detector, RuleSet, Source, template};
    ///
    /// let mut detector = Detector::new(&RuleSet::builtin())?;
    /// let text = template::expand("key = npm_<<github 30>>", &mut template::Seed::new(2)).expect("a known recipe");
    /// let (head, tail) = text.as_bytes().split_at(20);
    /// let mut found = 0;
    /// let mut stream = detector.stream(Source::path(".npmrc"), |_: &tessera_detect::Finding<'_>| found += 1);
    /// stream.push(head);
    /// stream.push(tail);
    /// let summary = stream.finish();
    /// assert_eq!((summary.findings, summary.bytes, found), (1, 46, 1));
    /// # Ok::<(), tessera_detect::RuleError>(())
    /// ```
    pub fn stream<'d, S: FnMut(&Finding<'_>)>(&'d mut self, source: Source<'d>, sink: S) -> Stream<'d, S> {
        Stream::new(self, source, sink)
    }

    /// Forgets the last source; returns whether this one is to be searched at all.
    pub(crate) fn begin(&mut self, source: Source<'_>, sink: &mut dyn FnMut(&Finding<'_>)) -> bool {
        let program = Arc::clone(&self.program);
        let state = &mut self.state;
        state.block = 0;
        state.lines = LineCursor::new();
        state.run_origin = 0;
        state.seen.clear();
        state.held.clear();
        state.harmless.clear();
        state.is_probing = false;
        state.summary = Summary::default();
        self.depths[0].last_end.fill(0);
        let class = self.last_class.of(&program, &mut self.bank, source.path);
        let by_commit = |bank: &mut Bank| {
            let global = program.allowlists.iter().filter(|plan| plan.list.rules.is_empty());
            source.commit.is_some()
                && global.into_iter().any(|plan| bank.allows_source(&program, plan, source.path, source.commit))
        };
        if class.is_allowed() || by_commit(&mut self.bank) {
            state.summary.source_allowed = true;
            return false;
        }
        for (index, &rule) in program.with_path.iter().enumerate() {
            let plan = &program.plans[usize::from(rule)];
            let matches = class.wakes(index);
            state.asleep[usize::from(rule)] = !matches;
            let allowed = matches
                && plan.allow.iter().any(|plan| self.bank.allows_source(&program, plan, source.path, source.commit));
            if matches && !allowed && matches!(plan.look, Look::Path) && !program.rules[usize::from(rule)].silent {
                let known = &program.rules[usize::from(rule)];
                state.summary.findings += 1;
                sink(&Finding {
                    rule: known,
                    span: 0..0,
                    secret_span: 0..0,
                    start: Position { line: 1, column: 1 },
                    end: Position { line: 1, column: 1 },
                    secret: Secret::new(b""),
                    matched: Secret::new(b""),
                    entropy: 0.0,
                    confidence: known.confidence,
                    outcome: Outcome::Unchecked,
                    decoded_from: Chain::default(),
                });
            }
        }
        true
    }

    /// Searches one block; blocks come in order, each once.
    pub(crate) fn run(&mut self, block: &Block<'_>, sink: &mut dyn FnMut(&Finding<'_>)) {
        if block.base == 0 {
            self.state.lines.begin(block.view);
        }
        self.search_block(block);
        self.release(self.state.block, sink);

        let next_view = block.own.end.saturating_sub(OVERLAP_BYTES);
        let before_next = &block.view[..next_view];
        let run = decode::run_at_end(before_next);
        self.state.run_origin = if run == before_next.len() { run + self.state.run_origin } else { run };
        self.state.lines.advance_view(block.view, block.base, block.base + next_view as u64);
        if !self.state.seen.is_empty() {
            let floor = block.base + next_view as u64;
            self.state.seen.retain(|&(_, _, end)| end > floor);
        }
        self.state.block += 1;
    }

    /// Reports what is still held.
    pub(crate) fn end(&mut self, sink: &mut dyn FnMut(&Finding<'_>)) -> Summary {
        self.release(u64::MAX, sink);
        self.state.summary
    }

    pub(crate) fn count_bytes(&mut self, bytes: u64) {
        self.state.summary.bytes += bytes;
    }
}

impl fmt::Debug for Detector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Detector({} rules)", self.program.rules.len())
    }
}

/// The block that owns from offset `at` on; `bytes` begins at offset `base` and holds all that the block may see.
pub(crate) fn block_at<'a>(source: Source<'a>, bytes: &'a [u8], base: usize, at: usize) -> Block<'a> {
    let start = at.saturating_sub(OVERLAP_BYTES);
    let end = (base + bytes.len()).min(at + BLOCK_BYTES + OVERLAP_BYTES);
    let own_end = (base + bytes.len()).min(at + BLOCK_BYTES);
    Block { source, view: &bytes[start - base..end - base], base: start as u64, own: at - start..own_end - start }
}
