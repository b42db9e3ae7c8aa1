//! Holds a report against the planted secrets.

use std::collections::{BTreeMap, BTreeSet};

use tessera_scan::report::finding::Finding;
use tessera_scan::report::receipt::Receipt;
use tessera_scan::source::item::{ItemKind, UnreadableReason};

use super::truth::{PlantedPlace, Truth, place_of};

/// All properties, by name.
pub const PROPERTIES: [&str; 7] = [
    "PlanIsDurable",
    "RunSettles",
    "NoPlaceIsInvented",
    "NoPlaceIsListedTwice",
    "NoPlaceIsMissing",
    "ReceiptIsThePlan",
    "CompleteWhenItCanBe",
];

/// A property that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Its name.
    pub property: &'static str,
    /// The observation.
    pub what: String,
}

impl Violation {
    pub(super) fn new(property: &'static str, what: String) -> Self {
        Self { property, what }
    }
}

/// A report, and the findings files it is made of.
#[derive(Debug)]
pub(super) struct Reported<'r> {
    pub(super) findings: &'r [Finding],
    pub(super) receipt: &'r Receipt,
    /// The places in segments that count, as they stand in the files: the merge knows each id once.
    pub(super) stored: &'r [PlantedPlace],
}

/// What workers and the submitter could see.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sight {
    /// The submitter's list has all findings files.
    pub(super) lists_are_fresh: bool,
    /// No file was added to a target, and none was removed.
    pub(super) trees_stay: bool,
    /// No page was read while its target was away.
    pub(super) pages_are_whole: bool,
    /// No target went away for a page and was back when the worker looked at its root: items of the page are missing then.
    pub(super) targets_stay: bool,
}

/// Checks one report.
pub(super) fn check(truth: &Truth, reported: &Reported<'_>, sight: Sight) -> Result<(), Violation> {
    let Reported { findings, receipt, stored } = *reported;
    let locations = findings.iter().flat_map(|finding| &finding.locations);
    let places: Vec<PlantedPlace> = locations.map(|location| place_of(&location.occurrence)).collect();
    for place in places.iter().chain(stored) {
        let planted = || truth.items.values().flat_map(|planted| &planted.occurrences);
        if !truth.places.contains(place) && !planted().any(|known| place_of(known) == *place) {
            return Err(Violation::new("NoPlaceIsInvented", format!("nothing was planted at {}", shown(place))));
        }
    }
    each_once(&places, "the report")?;
    let (is_complete, reported) = (receipt.is_complete(), places.iter().collect::<BTreeSet<_>>());
    if is_complete || sight.lists_are_fresh {
        receipt_is_the_plan(truth, receipt, sight)?;
        no_place_is_missing(truth, &reported, receipt)?;
    }
    if sight.lists_are_fresh {
        // A stale list may lack the file of the owner that did a segment again.
        each_once(stored, "segments that count")?;
    }
    if sight.lists_are_fresh && sight.trees_stay {
        complete_when_it_can_be(receipt, sight)?;
    }
    Ok(())
}

fn each_once(places: &[PlantedPlace], whence: &str) -> Result<(), Violation> {
    let mut known = BTreeSet::new();
    match places.iter().find(|place| !known.insert(*place)) {
        None => Ok(()),
        Some(twice) => {
            let what = format!("{whence}: {} is listed twice", shown(twice));
            Err(Violation::new("NoPlaceIsListedTwice", what))
        }
    }
}

/// Each planted secret is reported, or its item is one of those that the receipt counts as missing.
fn no_place_is_missing(truth: &Truth, reported: &BTreeSet<&PlantedPlace>, receipt: &Receipt) -> Result<(), Violation> {
    let absent = truth.places.iter().filter(|place| !reported.contains(place));
    let items: BTreeMap<_, _> = absent.map(|place| ((place.0, &place.1), place)).collect();
    let missing = receipt.planned_not_read();
    match items.values().next() {
        Some(place) if items.len() as u64 > missing => {
            let what = format!(
                "the secrets of {} items are missing, and the receipt counts {missing} items as not read; one is at {}",
                items.len(),
                shown(place)
            );
            Err(Violation::new("NoPlaceIsMissing", what))
        }
        _ => Ok(()),
    }
}

/// The receipt counts every item once, whether the run is complete or not.
fn receipt_is_the_plan(truth: &Truth, receipt: &Receipt, sight: Sight) -> Result<(), Violation> {
    let (mut planned, mut others, mut left_out, mut left_out_later) = (0, 0, 0, 0);
    for item in truth.items.values() {
        // Items left out are not planned, and may be gone.
        let count = match (item.item.kind == ItemKind::File, item.is_planned) {
            (true, true) => &mut planned,
            (true, false) => &mut others,
            (false, true) => &mut left_out,
            (false, false) => &mut left_out_later,
        };
        *count += 1_u64;
    }
    let (plan, tally, missing) = (&receipt.plan, &receipt.tally, receipt.planned_not_read());
    let (others, left_out_later) = if sight.trees_stay { (0, 0) } else { (others, left_out_later) };
    // The plan does not know these, so none of them is missing when it is gone.
    let left_out_min = if sight.trees_stay && sight.pages_are_whole { left_out } else { 0 };
    let left_out = left_out_min..=left_out + left_out_later;
    let adds_up = plan.planned == planned
        && plan.met == planned
        && plan.added <= others
        && tally.scanned + missing == planned + plan.added
        && left_out.contains(&tally.skipped_total());
    if adds_up {
        return Ok(());
    }
    let what = format!(
        "{planned} files were planned, at most {others} more could be seen, and {left_out:?} items are left out; the receipt \
         counts {} scanned, {} left out and {missing} missing, {} met of {} planned, and {} added",
        tally.scanned,
        tally.skipped_total(),
        plan.met,
        plan.planned,
        plan.added,
    );
    Err(Violation::new("ReceiptIsThePlan", what))
}

/// Nothing but a target that was away for a page stands in the way of a complete receipt.
fn complete_when_it_can_be(receipt: &Receipt, sight: Sight) -> Result<(), Violation> {
    let mut but_for_missing = receipt.clone();
    if !sight.targets_stay {
        but_for_missing.tally.unreadable.remove(&UnreadableReason::PlannedNotRead);
    }
    if but_for_missing.is_complete() {
        return Ok(());
    }
    let Receipt { tally, shards, damage, shards_short, plan, .. } = receipt;
    let what = format!(
        "nothing stands in the way, and the receipt is not complete: {tally:?}, {shards:?}, damage {damage:?}, \
         {shards_short} shards short, {plan:?}"
    );
    Err(Violation::new("CompleteWhenItCanBe", what))
}

fn shown((target, path, offset): &PlantedPlace) -> String {
    format!("{target}/{}:{offset}", String::from_utf8_lossy(path))
}
