//! Recall and precision on the labelled snippets in `labelled/`, by class, by confidence and by rule.
//!
//! `cargo test -p tessera-detect --test labelled -- --nocapture` prints the tables. Rules are tuned on `train.toml`; what is claimed is
//! measured on `test.toml`. Both are written by us: they say that the rules do what they mean to in the surroundings where
//! secrets are usually found, not how many of the world's secrets they find.

use std::collections::BTreeMap;

use tessera_detect::template::{Seed, expand};
use tessera_detect::{Confidence, Detector, Options, RuleSet, Source};

const SEEDS: u64 = 20;

#[derive(Default, Clone, Copy)]
struct Count {
    secrets: usize,
    found: usize,
    reports: usize,
    wrong: usize,
}

impl Count {
    fn recall(self) -> f64 {
        share(self.found, self.secrets)
    }

    fn precision(self) -> f64 {
        share(self.reports - self.wrong, self.reports)
    }
}

fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

#[derive(Default)]
struct Measured {
    all: Count,
    by_class: BTreeMap<String, Count>,
    by_confidence: BTreeMap<Confidence, Count>,
    wrong_by_rule: BTreeMap<String, usize>,
    missed: BTreeMap<String, usize>,
}

/// A snippet without its marks, and where the marks stood.
fn unmarked(text: &str) -> (String, Vec<std::ops::Range<usize>>) {
    let (mut out, mut spans, mut rest) = (String::new(), Vec::new(), text);
    while let Some((before, marked)) = rest.split_once("{+") {
        let (secret, after) = marked.split_once("+}").expect("every mark is closed");
        out.push_str(before);
        spans.push(out.len()..out.len() + secret.len());
        out.push_str(secret);
        rest = after;
    }
    out.push_str(rest);
    (out, spans)
}

fn measure(file: &str, confidence_min: Confidence) -> Measured {
    let path = format!("{}/labelled/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the labelled set is there");
    let table = toml::de::DeTable::parse(&text).expect("the labelled set is TOML");
    let options = Options { confidence_min, ..Options::default() };
    let mut detector = Detector::with_options(&RuleSet::builtin(), options).expect("consistent");
    let mut measured = Measured::default();
    let snippets = table.get_ref().get("snippets").and_then(|list| list.get_ref().as_array()).expect("an array");
    for snippet in snippets.iter() {
        let snippet = snippet.get_ref().as_table().expect("a table");
        let field = |name: &str| {
            snippet.get(name).and_then(|value| value.get_ref().as_str()).unwrap_or_else(|| panic!("{name} is a string"))
        };
        for seed in 0..SEEDS {
            let text = expand(field("text"), &mut Seed::new(seed)).expect("recipes are known");
            let (text, secrets) = unmarked(&text);
            let mut is_found = vec![false; secrets.len()];
            let class = measured.by_class.entry(field("class").into()).or_default();
            class.secrets += secrets.len();
            measured.all.secrets += secrets.len();
            detector.scan_bytes(Source::path(field("path")), text.as_bytes(), |finding| {
                let span = finding.secret_span.start as usize..finding.secret_span.end as usize;
                let met = secrets.iter().position(|secret| secret.start < span.end && span.start < secret.end);
                let level = measured.by_confidence.entry(finding.confidence).or_default();
                for count in [&mut measured.all, class, level] {
                    count.reports += 1;
                    count.wrong += usize::from(met.is_none());
                }
                match met {
                    Some(i) => is_found[i] = true,
                    None => {
                        let line = text[..span.start].rfind('\n').map_or(0, |at| at + 1);
                        let line = text[line..].lines().next().unwrap_or_default();
                        *measured.wrong_by_rule.entry(format!("{}: {line}", finding.rule.id)).or_default() += 1;
                    }
                }
            });
            let count = is_found.iter().filter(|&&is| is).count();
            class.found += count;
            measured.all.found += count;
            for (i, _) in is_found.iter().enumerate().filter(|(_, is)| !**is) {
                let line = field("text").split("{+").nth(i + 1).and_then(|rest| rest.split("+}").next());
                *measured.missed.entry(format!("{} {}", field("path"), line.unwrap_or_default())).or_default() += 1;
            }
        }
    }
    measured
}

fn show(what: &str, measured: &Measured) {
    println!("{what:<24} {:>8} {:>7} {:>9} {:>8} {:>6}", "secrets", "recall", "precision", "reports", "wrong");
    let line = |name: &str, count: Count| {
        let Count { secrets, reports, wrong, .. } = count;
        let (recall, precision) = (count.recall(), count.precision());
        println!("  {name:<22} {secrets:>8} {recall:>7.3} {precision:>9.3} {reports:>8} {wrong:>6}");
    };
    measured.by_class.iter().for_each(|(class, count)| line(class, *count));
    line("all", measured.all);
    for (level, count) in &measured.by_confidence {
        println!("  {level:<22} {:>16} {:>9.3} {:>8} {:>6}", "", count.precision(), count.reports, count.wrong);
    }
    println!("  wrong, by rule:");
    measured.wrong_by_rule.iter().for_each(|(what, count)| println!("    {count:>4}  {what}"));
    println!("  missed:");
    measured.missed.iter().for_each(|(what, count)| println!("    {count:>4}  {what}"));
}

#[test]
fn recall_and_precision_on_the_test_split_are_what_is_claimed() {
    show("train, default", &measure("train.toml", Confidence::Medium));
    let test = measure("test.toml", Confidence::Medium);
    show("test, default", &test);
    assert!(test.all.recall() >= 0.90, "recall {:.3}", test.all.recall());
    assert!(test.all.precision() >= 0.95, "precision {:.3}", test.all.precision());
}

#[test]
fn the_precision_of_each_level_is_the_one_that_the_program_tells() {
    let test = measure("test.toml", Confidence::Low);
    for (level, count) in test.by_confidence {
        let told = level.measured_precision().expect("the level was measured");
        assert!((count.precision() - told).abs() < 0.03, "{level}: {:.3} measured, {told} told", count.precision());
    }
}
