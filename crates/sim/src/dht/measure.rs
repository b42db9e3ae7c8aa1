//! Figures and aims.

use super::checkers::Violation;

/// One measured figure, with what it should be.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: String,
    /// The aim in words, and whether it was met; `None` for a figure without one.
    pub(crate) aim: Option<(String, bool)>,
    /// What others have published of theirs.
    pub(crate) published: &'static str,
}

/// What a scenario found.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) title: String,
    pub(crate) replay: String,
    pub(crate) figures: Vec<Figure>,
    pub(crate) violations: Vec<Violation>,
    pub(crate) checks: u64,
}

impl Findings {
    pub(crate) fn note(&mut self, name: &str, value: impl ToString) {
        self.figures.push(Figure { name: name.into(), value: value.to_string(), aim: None, published: "" });
    }

    pub(crate) fn aim(&mut self, name: &str, value: impl ToString, aim: &str, met: bool) {
        let aim = Some((aim.into(), met));
        self.figures.push(Figure { name: name.into(), value: value.to_string(), aim, published: "" });
    }

    /// Puts a published figure of others beside the last one.
    pub(crate) fn beside(&mut self, published: &'static str) {
        if let Some(figure) = self.figures.last_mut() {
            figure.published = published;
        }
    }

    pub(crate) fn passed(&self) -> bool {
        self.violations.is_empty() && self.figures.iter().all(|f| f.aim.as_ref().is_none_or(|(_, met)| *met))
    }

    pub(crate) fn table(&self) -> String {
        let head = "| figure | measured | aim | | published by others |\n| --- | --- | --- | --- | --- |\n";
        let mut out = format!("### {}\n\n{head}", self.title);
        for figure in &self.figures {
            let (aim, verdict) = match &figure.aim {
                None => ("", ""),
                Some((aim, true)) => (aim.as_str(), "met"),
                Some((aim, false)) => (aim.as_str(), "**missed**"),
            };
            out += &format!("| {} | {} | {aim} | {verdict} | {} |\n", figure.name, figure.value, figure.published);
        }
        let verdict = if self.violations.is_empty() { "met" } else { "**missed**" };
        let (violations, checks) = (self.violations.len(), self.checks);
        out += &format!("| checkers | {violations} violations in {checks} checks | 0 | {verdict} | |\n");
        for violation in &self.violations {
            out += &format!("\n- {}: {}", violation.property, violation.what);
        }
        out + "\n"
    }
}

/// The value below which `share` of the sorted samples lie.
pub(crate) fn percentile(samples: &mut [u64], share: f64) -> u64 {
    if samples.is_empty() {
        return 0;
    }
    samples.sort_unstable();
    samples[((samples.len() - 1) as f64 * share) as usize]
}

/// A share in per cent with two decimals.
pub(crate) fn percent(part: usize, of: usize) -> String {
    format!("{:.2} %", 100.0 * part as f64 / of.max(1) as f64)
}

/// Seconds of processor time this thread has used, where the system tells.
pub(crate) fn cpu_secs() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanos as f64 / 1e9)
}
