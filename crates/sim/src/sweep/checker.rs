//! Holds a report against the planted secrets.

use std::collections::BTreeSet;

use tessera_scan::report::finding::Finding;
use tessera_scan::report::receipt::Receipt;
use tessera_scan::source::item::ItemKind;

use super::truth::{Planted, Truth, place_of};

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

/// Checks one report. `must_be_complete` if nothing stands in the way of a whole one.
pub(super) fn check(
    truth: &Truth,
    findings: &[Finding],
    receipt: &Receipt,
    must_be_complete: bool,
) -> Result<(), Violation> {
    let mut reported = BTreeSet::new();
    for location in findings.iter().flat_map(|finding| &finding.locations) {
        let place = place_of(&location.occurrence);
        let shown = shown(&place);
        let planted = truth.items.values().flat_map(|planted| &planted.occurrences);
        if !truth.places.contains(&place) && !planted.map(place_of).any(|known| known == place) {
            return Err(Violation::new("NoPlaceIsInvented", format!("nothing was planted at {shown}")));
        }
        if !reported.insert(place) {
            return Err(Violation::new("NoPlaceIsListedTwice", format!("{shown} is listed twice")));
        }
    }
    let is_complete = receipt.is_complete();
    if is_complete {
        if let Some(missing) = truth.places.iter().find(|place| !reported.contains(*place)) {
            let what = format!("the receipt is complete, and the secret at {} is missing", shown(missing));
            return Err(Violation::new("NoPlaceIsMissing", what));
        }
        receipt_is_the_plan(truth, receipt)?;
    }
    if must_be_complete && !is_complete {
        let Receipt { tally, shards, damage, shards_short, plan, .. } = receipt;
        let what = format!(
            "nothing stands in the way, and the receipt is not complete: {tally:?}, {shards:?}, damage {damage:?}, \
             {shards_short} shards short, {plan:?}"
        );
        return Err(Violation::new("CompleteWhenItCanBe", what));
    }
    Ok(())
}

/// A complete receipt counts every planned item once, and nothing that no machine could see.
fn receipt_is_the_plan(truth: &Truth, receipt: &Receipt) -> Result<(), Violation> {
    // Items left out are not planned, and may be gone.
    let is_planned = |planted: &&Planted| planted.is_planned && planted.item.kind == ItemKind::File;
    let planned = truth.items.values().filter(is_planned).count() as u64;
    let all = truth.items.len() as u64;
    let (met, enumerated) = (receipt.plan.met, receipt.tally.enumerated());
    if met != receipt.plan.planned || !(planned..=all).contains(&enumerated) || receipt.plan.added > all - planned {
        let what = format!(
            "{planned} items were planned and {all} could be seen; the receipt counts {enumerated}, and {met} of {} planned",
            receipt.plan.planned
        );
        return Err(Violation::new("ReceiptIsThePlan", what));
    }
    Ok(())
}

fn shown((target, path, offset): &(u32, Vec<u8>, u64)) -> String {
    format!("{target}/{}:{offset}", String::from_utf8_lossy(path))
}
