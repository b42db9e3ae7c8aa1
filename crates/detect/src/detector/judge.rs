//! Which matches are findings: what their bytes say, what is allowed, and which of several rules speaks.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use crate::allow;
use crate::check::Outcome;
use crate::decode::Chain;
use crate::entropy;
use crate::finding::{Finding, Secret};
use crate::lines::Position;
use crate::placeholder;
use crate::program::{Look, Program, Subject};
use crate::rule::{Confidence, OnFailedCheck, Rule};

use super::search::Layer;
use super::{Block, Detector, HARMLESS_MAX};

/// A finding that waits for the ones it may overlap with.
pub(super) struct Held {
    pub(super) rule: u16,
    pub(super) block: u64,
    pub(super) span: Range<u64>,
    pub(super) secret_span: Range<u64>,
    pub(super) start: Position,
    pub(super) end: Position,
    pub(super) matched: Vec<u8>,
    pub(super) secret: Range<usize>,
    pub(super) entropy: f32,
    pub(super) confidence: Confidence,
    pub(super) outcome: Outcome,
    pub(super) chain: Chain,
    pub(super) outdone: bool,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held(rule {}, {:?})", self.rule, self.secret_span)
    }
}

impl Detector {
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
            (Outcome::Checksum, _) => Confidence::ChecksumValid,
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
    pub(super) fn judge(
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
    pub(super) fn release(&mut self, before: u64, sink: &mut dyn FnMut(&Finding<'_>)) {
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

fn demoted(confidence: Confidence) -> Confidence {
    match confidence {
        Confidence::ChecksumValid => Confidence::High,
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
