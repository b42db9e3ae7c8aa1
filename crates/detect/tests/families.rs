//! Secrets that only their surroundings tell, by family, from `labelled/families.toml`: each way of writing them is read, and
//! what stands where a secret will be is left alone.

use tessera_detect::template::{Seed, expand};
use tessera_detect::{Detector, RuleSet, Source};

const SEEDS: u64 = 10;
/// What a value drawn at random may look like: now and then it resembles a stand-in or words.
const MISSES_MAX: usize = 2;

struct Family {
    name: String,
    path: String,
    with: Vec<String>,
    without: Vec<String>,
}

fn families() -> Vec<Family> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/labelled/families.toml");
    let text = std::fs::read_to_string(path).expect("the list is there");
    let table = toml::de::DeTable::parse(&text).expect("the list is TOML");
    let list = table.get_ref().get("family").and_then(|list| list.get_ref().as_array()).expect("an array");
    let family = |table: &toml::de::DeTable<'_>| {
        let text = |name: &str| table[name].get_ref().as_str().expect("a string").to_owned();
        let texts = |name: &str| {
            let list = table[name].get_ref().as_array().expect("an array");
            list.iter().map(|text| text.get_ref().as_str().expect("a string").to_owned()).collect()
        };
        Family { name: text("name"), path: text("path"), with: texts("true"), without: texts("false") }
    };
    list.iter().map(|one| family(one.get_ref().as_table().expect("a table"))).collect()
}

/// How often one of `SEEDS` texts made from `recipe` is reported, at the mark if it has one.
fn reports(detector: &mut Detector, path: &str, recipe: &str) -> usize {
    let is_reported = |seed: &u64| {
        let text = expand(recipe, &mut Seed::new(*seed)).expect("recipes are known");
        let (before, rest) = text.split_once("{+").unwrap_or((&text, ""));
        let (secret, after) = rest.split_once("+}").unwrap_or((rest, ""));
        let marked = if rest.is_empty() { 0..text.len() } else { before.len()..before.len() + secret.len() };
        let mut is_found = false;
        detector.scan_bytes(Source::path(path), format!("{before}{secret}{after}\n").as_bytes(), |finding| {
            let span = finding.secret_span.start as usize..finding.secret_span.end as usize;
            is_found |= span.start < marked.end && marked.start < span.end;
        });
        is_found
    };
    (0..SEEDS).filter(is_reported).count()
}

#[test]
fn each_way_of_writing_a_secret_is_read() {
    let mut detector = Detector::new(&RuleSet::builtin()).expect("built-in rules are consistent");
    let mut missed = Vec::new();
    for family in families() {
        for recipe in &family.with {
            let misses = SEEDS as usize - reports(&mut detector, &family.path, recipe);
            if misses > MISSES_MAX {
                missed.push(format!("{}: {misses} of {SEEDS} missed: {recipe}", family.name));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn stand_ins_and_look_alikes_are_left_alone() {
    let mut detector = Detector::new(&RuleSet::builtin()).expect("built-in rules are consistent");
    let mut wrong = Vec::new();
    for family in families() {
        for recipe in &family.without {
            if reports(&mut detector, &family.path, recipe) > 0 {
                wrong.push(format!("{}: {recipe}", family.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
