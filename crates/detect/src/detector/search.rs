//! Where a rule looks: windows around its keywords, in the text and in what pieces of it decode to.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use regex_automata::{Anchored, Input};

use crate::assign::{self, Assignment};
use crate::decode::{self, Chain, Segment};
use crate::edge::is_left_edge;
use crate::pattern::Reach;
use crate::prefilter::Hits;
use crate::program::{Look, WINDOW_BYTES_MAX};

use super::{Block, Detector};

/// Working memory of one level of decoding.
#[derive(Debug, Default)]
pub(super) struct Depth {
    pub(super) hits: Hits,
    /// For each rule, where its last match ended (as an offset of the layer's source).
    pub(super) last_end: Vec<u64>,
    /// For each rule, the window being grown.
    pub(super) windows: Vec<Option<(usize, usize)>>,
    /// Rules that have a window.
    pub(super) touched: Vec<u16>,
    /// Rules that were woken and look at the whole block.
    pub(super) whole: Vec<u16>,
    pub(super) segments: Vec<Segment>,
    pub(super) text: Vec<u8>,
}

/// A text to search: the view itself, or what a piece of another layer decodes to.
pub(super) struct Layer<'a> {
    pub(super) text: &'a [u8],
    pub(super) own: Range<usize>,
    /// Offset of the text, for layers that are a view; decoded ones begin at 0.
    pub(super) base: u64,
    pub(super) within: Option<(&'a Layer<'a>, Segment)>,
    pub(super) chain: Chain,
}

impl Layer<'_> {
    /// Where bytes of this layer stand in the view.
    pub(super) fn in_view(&self, range: Range<usize>) -> Range<usize> {
        match &self.within {
            None => range,
            Some((outer, segment)) => outer.in_view(segment.encoded_range(outer.text, range)),
        }
    }
}

impl Detector {
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
            let keyword = start..start + program.prefilter.keyword_len(hit.keyword);
            // Read once for all rules that the keyword wakes.
            let mut assignment = None;
            for &rule in &*program.woken[hit.keyword as usize] {
                let i = usize::from(rule);
                if self.state.asleep[i] {
                    continue;
                }
                match program.plans[i].look {
                    Look::Text(Reach::Anchored { after }) => {
                        let until = layer.text.len().min(start + after);
                        let is_possible = program.plans[i].opening.fits(layer.text, start);
                        if is_possible && layer.base + hit.start as u64 >= depth.last_end[i] {
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
                        let read = assignment.get_or_insert_with(|| Assignment::read(layer.text, &keyword));
                        if let Some(read) = read {
                            self.attempt_value(block, layer, rule, start, read, &mut depth.last_end[i]);
                        }
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
            let end = self.judge_all(block, layer, rule, span, secret);
            from = end.max(from + 1);
            *last_end = layer.base + end as u64;
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
        let start = span.start;
        let end = self.judge_all(block, layer, rule, span, secret);
        *last_end = layer.base + end as u64;
        Some(start..end)
    }

    /// Judges a match, and the secrets that its rule finds right behind it. Returns where all that ends.
    fn judge_all(
        &mut self,
        block: &Block<'_>,
        layer: &Layer<'_>,
        rule: u16,
        span: Range<usize>,
        secret: Range<usize>,
    ) -> usize {
        let Some(then) = self.program.plans[usize::from(rule)].then else {
            let end = span.end;
            self.judge(block, layer, rule, span, secret);
            return end;
        };
        // Each stands for itself: at its own line, and with the remarks of that line.
        let mut end = secret.end;
        self.judge(block, layer, rule, secret.clone(), secret);
        loop {
            let until = layer.text.len().min(end + WINDOW_BYTES_MAX);
            match self.find_pattern(layer, then, None, end..until, Anchored::Yes) {
                Some((_, next)) if next.end > end => {
                    end = next.end;
                    self.judge(block, layer, rule, next.clone(), next);
                }
                _ => return end.max(span.end),
            }
        }
    }

    fn attempt_value(
        &mut self,
        block: &Block<'_>,
        layer: &Layer<'_>,
        rule: u16,
        start: usize,
        read: &Assignment,
        last_end: &mut u64,
    ) {
        let plan = &self.program.plans[usize::from(rule)];
        let (look, opening) = (plan.look, plan.opening);
        let Look::Assigned { qualified, quoted, spaced, secretive, after } = look else { return };
        for value in read.values.into_iter().flatten() {
            let is_possible = value.spaced == spaced
                && opening.fits(layer.text, value.at)
                && (value.quoted || !quoted)
                && layer.base + (value.at as u64) >= *last_end
                && (!qualified || read.is_qualified(layer.text))
                && !(secretive && read.is_about_a_secret(layer.text));
            if !is_possible {
                continue;
            }
            let until = layer.text.len().min(value.at + after);
            let Some((span, secret)) = self.find(layer, rule, value.at..until, Anchored::Yes) else { continue };
            if assign::ends_at(layer.text, span.end) {
                *last_end = layer.base + span.end as u64;
                self.judge(block, layer, rule, start..span.end, secret);
                return;
            }
        }
    }

    /// The first match in a window that begins where the rule's matches may, and the secret within it.
    fn find(
        &mut self,
        layer: &Layer<'_>,
        rule: u16,
        mut window: Range<usize>,
        anchored: Anchored,
    ) -> Option<(Range<usize>, Range<usize>)> {
        if !self.program.rules[usize::from(rule)].at_edge {
            return self.find_anywhere(layer, rule, window, anchored);
        }
        if anchored.is_anchored() {
            return is_left_edge(layer.text, window.start)
                .then(|| self.find_anywhere(layer, rule, window, anchored))
                .flatten();
        }
        loop {
            let (span, secret) = self.find_anywhere(layer, rule, window.clone(), anchored)?;
            if is_left_edge(layer.text, span.start) {
                return Some((span, secret));
            }
            window.start = span.start + 1;
        }
    }

    /// The first match in a window, and the secret within it.
    fn find_anywhere(
        &mut self,
        layer: &Layer<'_>,
        rule: u16,
        window: Range<usize>,
        anchored: Anchored,
    ) -> Option<(Range<usize>, Range<usize>)> {
        let pattern = self.program.plans[usize::from(rule)].pattern;
        let group = self.program.rules[usize::from(rule)].secret_group;
        self.find_pattern(layer, pattern, group, window, anchored)
    }

    /// The first match of an expression in a window, and the group in it that is the secret.
    fn find_pattern(
        &mut self,
        layer: &Layer<'_>,
        pattern: u32,
        secret_group: Option<usize>,
        window: Range<usize>,
        anchored: Anchored,
    ) -> Option<(Range<usize>, Range<usize>)> {
        self.state.summary.expression_bytes += window.len() as u64;
        let matcher = self.bank.matcher(&self.program, pattern);
        let input = Input::new(layer.text).span(window).anchored(anchored);
        matcher.regex.search_captures_with(&mut matcher.cache, &input, &mut matcher.captures);
        let span = matcher.captures.get_match()?.range();
        let group = match secret_group {
            Some(group) => matcher.captures.get_group(group),
            None => (1..matcher.captures.group_len())
                .find_map(|i| matcher.captures.get_group(i).filter(|g| g.start < g.end)),
        };
        let secret = group.map_or(span.clone(), |group| group.start..group.end);
        Some((span, secret))
    }
}
