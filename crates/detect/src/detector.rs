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

use regex_automata::{Anchored, Input};

use crate::allow;
use crate::assign;
use crate::check::Outcome;
use crate::decode::{self, Chain, DECODE_DEPTH_MAX, Segment};
use crate::entropy;
use crate::error::RuleError;
use crate::finding::{Finding, Secret};
use crate::lines::{LineCursor, Position};
use crate::pattern::Reach;
use crate::placeholder;
use crate::prefilter::Hits;
use crate::program::{Bank, Look, Program, Subject, WINDOW_BYTES_MAX};
use crate::rule::{Confidence, OnFailedCheck, Rule};
use crate::ruleset::RuleSet;
use crate::stream::Stream;

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
    /// Whether `tessera:allow` and `gitleaks:allow` in a line are honoured.
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
    bank: Bank,
    depths: [Depth; DECODE_DEPTH_MAX + 1],
    pub(crate) state: State,
    /// Where a [`Stream`] collects its chunks; here, so that one detector's streams share it.
    pub(crate) buffer: Vec<u8>,
}

/// Working memory of one level of decoding.
#[derive(Debug, Default)]
struct Depth {
    hits: Hits,
    /// For each rule, where its last match ended (as an offset of the layer's source).
    last_end: Vec<u64>,
    /// For each rule, the window being grown.
    windows: Vec<Option<(usize, usize)>>,
    /// Rules that have a window.
    touched: Vec<u16>,
    /// Rules that were woken and look at the whole block.
    whole: Vec<u16>,
    segments: Vec<Segment>,
    text: Vec<u8>,
}

/// What is remembered of the source between blocks.
#[derive(Debug)]
pub(crate) struct State {
    block: u64,
    lines: LineCursor,
    /// How far before the view the run of digits began that enters it.
    run_origin: usize,
    /// Rules that do not look at this path.
    asleep: Vec<bool>,
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

/// A finding that waits for the ones it may overlap with.
struct Held {
    rule: u16,
    block: u64,
    span: Range<u64>,
    secret_span: Range<u64>,
    start: Position,
    end: Position,
    matched: Vec<u8>,
    secret: Range<usize>,
    entropy: f32,
    confidence: Confidence,
    outcome: Outcome,
    chain: Chain,
    outdone: bool,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held(rule {}, {:?})", self.rule, self.secret_span)
    }
}

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

/// A text to search: the view itself, or what a piece of another layer decodes to.
struct Layer<'a> {
    text: &'a [u8],
    own: Range<usize>,
    /// Offset of the text, for layers that are a view; decoded ones begin at 0.
    base: u64,
    within: Option<(&'a Layer<'a>, Segment)>,
    chain: Chain,
}

impl Layer<'_> {
    /// Where bytes of this layer stand in the view.
    fn in_view(&self, range: Range<usize>) -> Range<usize> {
        match &self.within {
            None => range,
            Some((outer, segment)) => outer.in_view(segment.encoded_range(outer.text, range)),
        }
    }
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
        Self { bank: Bank::new(&program), program, depths, state, buffer: Vec::new() }
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
        for plan in program.allowlists.iter().filter(|plan| plan.list.rules.is_empty()) {
            if self.bank.allows_source(&program, plan, source.path, source.commit) {
                state.summary.source_allowed = true;
                return false;
            }
        }
        for &rule in &program.with_path {
            let plan = &program.plans[usize::from(rule)];
            let matches =
                plan.path.zip(source.path).is_some_and(|(id, path)| self.bank.matcher(&program, id).is_match(path));
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

    pub(crate) fn search_block(&mut self, block: &Block<'_>) {
        let layer =
            Layer { text: block.view, own: block.own.clone(), base: block.base, within: None, chain: Chain::default() };
        self.search(block, &layer, 0);
    }

    fn search(&mut self, block: &Block<'_>, layer: &Layer<'_>, level: usize) {
        let program = Arc::clone(&self.program);
        let mut depth = core::mem::take(&mut self.depths[level]);
        if level > 0 {
            depth.last_end.fill(0);
        }
        program.prefilter.scan(layer.text, layer.own.clone(), &mut depth.hits);
        for hit in depth.hits.iter() {
            let start = hit.start as usize;
            for &rule in &*program.woken[hit.keyword as usize] {
                let i = usize::from(rule);
                if self.state.asleep[i] {
                    continue;
                }
                match program.plans[i].look {
                    Look::Text(Reach::Anchored { after }) => {
                        let until = layer.text.len().min(start + after);
                        if layer.base + hit.start as u64 >= depth.last_end[i] {
                            self.attempt(block, layer, rule, start..until, Anchored::Yes, &mut depth.last_end[i]);
                        }
                    }
                    Look::Text(Reach::Around { before, after }) => {
                        let (from, until) = (start.saturating_sub(before), layer.text.len().min(start + after));
                        match &mut depth.windows[i] {
                            Some((low, high)) if from <= *high && until >= *low => {
                                *low = (*low).min(from);
                                *high = (*high).max(until);
                            }
                            window => match window.replace((from, until)) {
                                None => depth.touched.push(rule),
                                Some((low, high)) => self.sweep(block, layer, rule, low..high, &mut depth.last_end[i]),
                            },
                        }
                    }
                    Look::Text(Reach::Anywhere) => {
                        if !depth.whole.contains(&rule) {
                            depth.whole.push(rule);
                        }
                    }
                    Look::Assigned { .. } => {
                        let keyword = start..start + program.prefilter.keyword_len(hit.keyword);
                        self.attempt_value(block, layer, rule, keyword, &mut depth.last_end[i]);
                    }
                    Look::Path => {}
                }
            }
        }
        for rule in depth.touched.drain(..) {
            let i = usize::from(rule);
            if let Some((low, high)) = depth.windows[i].take() {
                self.sweep(block, layer, rule, low..high, &mut depth.last_end[i]);
            }
        }
        for rule in depth.whole.drain(..).chain(program.unkeyed.iter().copied()) {
            let i = usize::from(rule);
            if !self.state.asleep[i] {
                let until = layer.text.len().min(layer.own.end + WINDOW_BYTES_MAX);
                self.sweep_owned(block, layer, rule, layer.own.start..until, &mut depth.last_end[i]);
            }
        }
        if level < program.options.decode_depth {
            let origin = if level == 0 { self.state.run_origin } else { 0 };
            depth.segments.clear();
            decode::segments(layer.text, layer.own.clone(), origin, &mut depth.segments);
            for segment in &depth.segments {
                segment.decode(layer.text, &mut depth.text);
                let inner = Layer {
                    text: &depth.text,
                    own: 0..depth.text.len(),
                    base: 0,
                    within: Some((layer, *segment)),
                    chain: layer.chain.with(segment.encoding),
                };
                self.search(block, &inner, level + 1);
            }
        }
        self.depths[level] = depth;
    }

    /// Every match in a window.
    fn sweep(&mut self, block: &Block<'_>, layer: &Layer<'_>, rule: u16, window: Range<usize>, last_end: &mut u64) {
        let floor = last_end.saturating_sub(layer.base) as usize;
        let mut from = window.start.max(floor);
        while from < window.end {
            match self.attempt(block, layer, rule, from..window.end, Anchored::No, last_end) {
                Some(matched) => from = matched.end.max(from + 1),
                None => break,
            }
        }
    }

    /// Every match that begins in what the layer owns.
    fn sweep_owned(
        &mut self,
        block: &Block<'_>,
        layer: &Layer<'_>,
        rule: u16,
        window: Range<usize>,
        last_end: &mut u64,
    ) {
        let floor = last_end.saturating_sub(layer.base) as usize;
        let mut from = window.start.max(floor);
        while from < layer.own.end {
            let Some((span, secret)) = self.find(layer, rule, from..window.end, Anchored::No) else { break };
            if span.start >= layer.own.end {
                break;
            }
            from = span.end.max(from + 1);
            *last_end = layer.base + span.end as u64;
            self.judge(block, layer, rule, span, secret);
        }
    }

    fn attempt(
        &mut self,
        block: &Block<'_>,
        layer: &Layer<'_>,
        rule: u16,
        window: Range<usize>,
        anchored: Anchored,
        last_end: &mut u64,
    ) -> Option<Range<usize>> {
        let (span, secret) = self.find(layer, rule, window, anchored)?;
        *last_end = layer.base + span.end as u64;
        self.judge(block, layer, rule, span.clone(), secret);
        Some(span)
    }

    fn attempt_value(
        &mut self,
        block: &Block<'_>,
        layer: &Layer<'_>,
        rule: u16,
        keyword: Range<usize>,
        last_end: &mut u64,
    ) {
        let Look::Assigned { qualified, quoted, after } = self.program.plans[usize::from(rule)].look else { return };
        for value in assign::values(layer.text, keyword.clone(), qualified).into_iter().flatten() {
            if (quoted && !value.quoted) || layer.base + (value.at as u64) < *last_end {
                continue;
            }
            let until = layer.text.len().min(value.at + after);
            let Some((span, secret)) = self.find(layer, rule, value.at..until, Anchored::Yes) else { continue };
            if assign::ends_at(layer.text, span.end) {
                *last_end = layer.base + span.end as u64;
                self.judge(block, layer, rule, keyword.start..span.end, secret);
                return;
            }
        }
    }

    /// The first match in a window, and the secret within it.
    fn find(
        &mut self,
        layer: &Layer<'_>,
        rule: u16,
        window: Range<usize>,
        anchored: Anchored,
    ) -> Option<(Range<usize>, Range<usize>)> {
        self.state.summary.expression_bytes += window.len() as u64;
        let plan = &self.program.plans[usize::from(rule)];
        let matcher = self.bank.matcher(&self.program, plan.pattern);
        let input = Input::new(layer.text).span(window).anchored(anchored);
        matcher.regex.search_captures_with(&mut matcher.cache, &input, &mut matcher.captures);
        let span = matcher.captures.get_match()?.range();
        let group = match self.program.rules[usize::from(rule)].secret_group {
            Some(group) => matcher.captures.get_group(group),
            None => (1..matcher.captures.group_len())
                .find_map(|i| matcher.captures.get_group(i).filter(|g| g.start < g.end)),
        };
        let secret = group.map_or(span.clone(), |group| group.start..group.end);
        Some((span, secret))
    }

    /// What the bytes of a secret say about it; `None` if they say that it is none.
    fn verdict(&mut self, rule: &Rule, secret: &[u8]) -> Option<(f32, Outcome, Confidence)> {
        if secret.is_empty() || !rule.needs.iter().all(|class| secret.iter().any(|&byte| class.contains(byte))) {
            return None;
        }
        let entropy = entropy::shannon(secret);
        if entropy < rule.entropy_min {
            return None;
        }
        let outcome = rule.check.map_or(Outcome::Unchecked, |check| check.run(secret));
        // A right checksum is no accident: such a token is real, whatever words it contains.
        if outcome != Outcome::Checksum && rule.skip_placeholders && placeholder::is_placeholder(secret) {
            return None;
        }
        let confidence = match (outcome, rule.on_failed_check) {
            (Outcome::Checksum, _) => Confidence::Confirmed,
            (Outcome::Failed, OnFailedCheck::Drop) => {
                self.state.summary.failed_checks += 1;
                return None;
            }
            (Outcome::Failed, OnFailedCheck::Demote) => demoted(rule.confidence),
            _ => rule.confidence,
        };
        (confidence >= self.program.options.confidence_min || rule.silent).then_some((entropy, outcome, confidence))
    }

    /// Decides whether a match is a finding, and holds it if so.
    fn judge(
        &mut self,
        block: &Block<'_>,
        layer: &Layer<'_>,
        index: u16,
        span: Range<usize>,
        secret_range: Range<usize>,
    ) {
        self.state.summary.matches += 1;
        let program = Arc::clone(&self.program);
        let (rule, plan) = (&program.rules[usize::from(index)], &program.plans[usize::from(index)]);
        let secret = &layer.text[secret_range.clone()];
        let in_view = layer.in_view(span.clone());
        let Some((entropy, outcome, confidence)) = self.verdict(rule, secret) else {
            self.state.summary.harmless += 1;
            if self.state.harmless.len() < HARMLESS_MAX {
                self.state.harmless.push(block.base + in_view.start as u64..block.base + in_view.end as u64);
            }
            return;
        };
        if self.state.is_probing {
            return;
        }
        let lines =
            allow::line_around(block.view, in_view.start).start..allow::line_around(block.view, in_view.end).end;
        let subject = Subject {
            path: block.source.path,
            commit: block.source.commit,
            secret,
            matched: &layer.text[span.clone()],
            line: &block.view[lines],
        };
        let about_this = |rules: &[u16], listed: bool| !listed || rules.contains(&index);
        let allowed = (program.options.honour_remarks && allow::has_remark(block.view, &in_view))
            || plan.allow.iter().any(|list| self.bank.allows(&program, list, &subject))
            || program.allowlists.iter().any(|list| {
                about_this(&list.rules, !list.list.rules.is_empty()) && self.bank.allows(&program, list, &subject)
            });
        if allowed {
            self.state.summary.allowed += 1;
            return;
        }
        let offsets = |range: Range<usize>| block.base + range.start as u64..block.base + range.end as u64;
        let secret_span = offsets(layer.in_view(secret_range.clone()));
        if !self.state.seen.insert((index, secret_span.start, secret_span.end)) {
            return;
        }
        let span_in_source = offsets(in_view);
        self.state.held.push(Held {
            rule: index,
            block: self.state.block,
            start: self.state.lines.position(block.view, block.base, span_in_source.start),
            end: self.state.lines.position(block.view, block.base, span_in_source.end),
            span: span_in_source,
            secret_span,
            matched: subject.matched.to_vec(),
            secret: secret_range.start - span.start..secret_range.end - span.start,
            entropy,
            confidence,
            outcome,
            chain: layer.chain,
            outdone: false,
        });
    }

    /// Reports what was held before block `before`.
    fn release(&mut self, before: u64, sink: &mut dyn FnMut(&Finding<'_>)) {
        if self.state.held.is_empty() {
            return;
        }
        let program = &self.program;
        let held = &mut self.state.held;
        held.sort_by_key(|one| (one.secret_span.start, one.secret_span.end, one.rule));
        for i in 0..held.len() {
            for j in i + 1..held.len() {
                if held[j].secret_span.start >= held[i].secret_span.end {
                    break;
                }
                if held[i].rule != held[j].rule {
                    let loser = if rank(program, &held[i]) >= rank(program, &held[j]) { j } else { i };
                    held[loser].outdone = true;
                }
            }
        }
        let held = &self.state.held;
        for one in held.iter().filter(|one| one.block < before && !one.outdone) {
            let rule = &program.rules[usize::from(one.rule)];
            if rule.silent || !has_required(program, one, held) {
                continue;
            }
            self.state.summary.findings += 1;
            sink(&Finding {
                rule,
                span: one.span.clone(),
                secret_span: one.secret_span.clone(),
                start: one.start,
                end: one.end,
                secret: Secret::new(&one.matched[one.secret.clone()]),
                matched: Secret::new(&one.matched),
                entropy: one.entropy,
                confidence: one.confidence,
                outcome: one.outcome,
                decoded_from: one.chain,
            });
        }
        self.state.held.retain(|one| one.block >= before);
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

fn demoted(confidence: Confidence) -> Confidence {
    match confidence {
        Confidence::Confirmed => Confidence::High,
        Confidence::High => Confidence::Medium,
        Confidence::Medium | Confidence::Low => Confidence::Low,
    }
}

/// Which of two findings about the same bytes is reported: the surer, then the one by format rather than by name,
/// then the graver, then the one whose rule comes first.
fn rank(program: &Program, one: &Held) -> (Confidence, bool, crate::rule::Severity, core::cmp::Reverse<u16>) {
    let rule = &program.rules[usize::from(one.rule)];
    let by_format = !matches!(program.plans[usize::from(one.rule)].look, Look::Assigned { .. });
    (one.confidence, by_format, rule.severity, core::cmp::Reverse(one.rule))
}

fn has_required(program: &Program, one: &Held, held: &[Held]) -> bool {
    let required = &program.rules[usize::from(one.rule)].required;
    required.iter().zip(&program.plans[usize::from(one.rule)].required).all(|(required, &index)| {
        held.iter().any(|other| {
            other.rule == index
                && required
                    .within_lines
                    .is_none_or(|lines| other.start.line.abs_diff(one.start.line) <= u64::from(lines))
                && required.within_columns.is_none_or(|columns| {
                    other.start.line == one.start.line
                        && other.start.column.abs_diff(one.start.column) <= u64::from(columns)
                })
        })
    })
}
