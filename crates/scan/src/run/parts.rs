//! More targets than one run can have: several runs, one after the other, under one report.
//!
//! A registration takes so many shards at once and no more (A §11). Each part is a run of its own, with its own name, so that an
//! interrupted list goes on with the part it was in, and the parts before it are not read again.

use std::sync::atomic::Ordering;

use tessera_contracts::limits::MAX_INITIAL_SHARDS;

use crate::error::ScanError;
use crate::plan::SHARDS_MAX;
use crate::report::finding::group_again;
use crate::report::receipt::{PlanAccount, Receipt};
use crate::run::left_out::LeftOut;
use crate::run::request::ScanRequest;
use crate::run::{Control, Origin, ReadBefore, ScanReport};

/// Most targets of one run: each has a shard, and larger ones have more.
pub const TARGETS_MAX: usize = MAX_INITIAL_SHARDS - SHARDS_MAX;

/// Examples of unreadable things that a report keeps.
const NOTES_MAX: usize = 1_000;

/// Has `scan` do `request` in as many runs as it needs.
pub fn scan_in_parts(
    request: &ScanRequest,
    control: &mut Control<'_>,
    scan: impl FnMut(&ScanRequest, &mut Control<'_>) -> Result<ScanReport, ScanError>,
) -> Result<ScanReport, ScanError> {
    in_parts_of(TARGETS_MAX, request, control, scan)
}

fn in_parts_of(
    targets_max: usize,
    request: &ScanRequest,
    control: &mut Control<'_>,
    mut scan: impl FnMut(&ScanRequest, &mut Control<'_>) -> Result<ScanReport, ScanError>,
) -> Result<ScanReport, ScanError> {
    if request.paths.len() <= targets_max {
        return scan(request, control);
    }
    let mut whole: Option<ScanReport> = None;
    let mut left_out = request.left_out.clone();
    for (paths, number) in request.paths.chunks(targets_max).zip(0_u32..) {
        let first_target = number * targets_max as u32;
        if let Some(whole) = whole.as_mut().filter(|_| control.stop.load(Ordering::Relaxed)) {
            let not_begun = paths.iter().map(|path| LeftOut::found(path, "the scan was stopped before its turn"));
            whole.receipt.plan.left_out.extend(not_begun);
            continue;
        }
        let part = ScanRequest { paths: paths.to_vec(), left_out: std::mem::take(&mut left_out), ..request.clone() };
        let report = match (scan(&part, control), &mut whole) {
            (Ok(report), _) => report,
            // Not one target of this part can be scanned; those of others were.
            (Err(error), Some(whole)) if request.tolerant && error.is_of_a_target() => {
                whole.receipt.plan.left_out.extend(paths.iter().map(|path| LeftOut::found(path, &error)));
                continue;
            }
            (Err(error), _) => return Err(error),
        };
        match &mut whole {
            Some(whole) => add(whole, report, first_target),
            None => whole = Some(report),
        }
    }
    Ok(whole.expect("there is more than one part"))
}

/// Adds the report of a part, whose targets are numbered from `first_target` on in the whole.
fn add(whole: &mut ScanReport, mut part: ScanReport, first_target: u32) {
    whole.further_runs.push(part.run);
    whole.origin = match (std::mem::replace(&mut whole.origin, Origin::Scanned), part.origin) {
        (Origin::Known, Origin::Known) => Origin::Known,
        (Origin::Resumed(before), Origin::Resumed(also)) => Origin::Resumed(ReadBefore {
            same: before.same + also.same,
            read_again: before.read_again + also.read_again,
        }),
        (resumed @ Origin::Resumed(_), _) | (_, resumed @ Origin::Resumed(_)) => resumed,
        (anew @ Origin::ScannedAnew { .. }, _) | (_, anew @ Origin::ScannedAnew { .. }) => anew,
        _ => Origin::Scanned,
    };
    whole.ended = match (whole.ended, part.ended) {
        (Some(one), Some(other)) => Some(if one.at < other.at { other } else { one }),
        _ => None,
    };
    whole.elapsed += part.elapsed;
    for target in &mut part.targets {
        target.number += first_target;
    }
    whole.targets.append(&mut part.targets);
    for location in part.findings.iter_mut().flat_map(|finding| &mut finding.locations) {
        location.occurrence.target += first_target;
    }
    whole.findings = group_again(std::mem::take(&mut whole.findings).into_iter().chain(part.findings));
    add_receipt(&mut whole.receipt, part.receipt, first_target);
}

fn add_receipt(whole: &mut Receipt, part: Receipt, first_target: u32) {
    // Named in full: a new field is not forgotten here.
    let Receipt { tally, shards, mut parked, mut notes, mut damage, shards_short, plan, by_target } = part;
    whole.tally.merge(&tally);
    whole.shards.active += shards.active;
    whole.shards.done += shards.done;
    whole.shards.split += shards.split;
    whole.shards.parked += shards.parked;
    whole.parked.append(&mut parked);
    notes.iter_mut().for_each(|note| note.target += first_target);
    whole.notes.append(&mut notes);
    whole.notes.truncate(NOTES_MAX);
    whole.damage.append(&mut damage);
    whole.shards_short += shards_short;
    whole.by_target.extend(by_target.into_iter().map(|(target, account)| (target + first_target, account)));
    let PlanAccount { planned, met, added, uncompared, short_targets, problem, mut left_out } = plan;
    let plan = &mut whole.plan;
    plan.planned = plan.planned.saturating_add(planned);
    plan.met = plan.met.saturating_add(met);
    plan.added = plan.added.saturating_add(added);
    plan.uncompared = plan.uncompared.saturating_add(uncompared);
    plan.short_targets.extend(short_targets.iter().map(|target| target + first_target));
    plan.problem = plan.problem.take().or(problem);
    plan.left_out.append(&mut left_out);
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::atomic::AtomicBool;

    use tessera_detect::template;

    use super::*;
    use crate::report::Format;
    use crate::report::tests::written_of;
    use crate::run::{Keeping, scan};

    fn folders(root: &Path, names: &[&str]) -> Vec<PathBuf> {
        let token = template::expand("ghp_<<github 30>>", &mut template::Seed::new(1)).unwrap();
        for name in names {
            std::fs::create_dir_all(root.join(name)).unwrap();
            std::fs::write(root.join(name).join("key.env"), format!("{token}\n")).unwrap();
        }
        names.iter().map(|name| root.join(name)).collect()
    }

    fn in_parts(targets_max: usize, request: &ScanRequest, stop_after: usize) -> Result<ScanReport, ScanError> {
        let (stop, mut done) = (AtomicBool::new(false), 0);
        let mut control = Control { stop: &stop, progress: &mut |_| {} };
        in_parts_of(targets_max, request, &mut control, |part, control| {
            let report = scan(part, &Keeping::Nothing, control);
            done += 1;
            stop.store(done == stop_after, Ordering::Relaxed);
            report
        })
    }

    #[test]
    fn a_report_of_several_runs_says_what_one_run_would_say() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let names = ["a", "b", "c", "d", "e"];
        let request = ScanRequest { workers: 1, ..ScanRequest::of_paths(folders(&root, &names)) };
        let (one, many) = (in_parts(5, &request, 0).unwrap(), in_parts(2, &request, 0).unwrap());
        assert_eq!((one.further_runs.len(), many.further_runs.len()), (0, 2));
        let places = |report: &ScanReport| written_of(report, Format::Csv);
        assert_eq!(places(&many), places(&one));
        assert_eq!((many.findings.len(), many.findings[0].locations.len()), (1, 5));
        let counts = |report: &ScanReport| {
            let receipt = &report.receipt;
            (receipt.tally.clone(), receipt.plan.clone(), receipt.by_target.clone())
        };
        assert_eq!(counts(&many), counts(&one));
        assert!(many.receipt.is_complete());
    }

    #[test]
    fn the_documented_bound_is_ours() {
        let bound = format!("{},{:03}", TARGETS_MAX / 1_000, TARGETS_MAX % 1_000);
        let document = include_str!("../../../../docs/SCANNING.md");
        assert!(document.contains(&format!("more than {bound} repositories becomes several runs")), "{bound}");
    }

    #[test]
    fn what_a_stopped_scan_did_not_come_to_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let paths = folders(&dir.path().canonicalize().unwrap(), &["a", "b", "c"]);
        let request = ScanRequest { workers: 1, ..ScanRequest::of_paths(paths.clone()) };
        let report = in_parts(1, &request, 2).unwrap();
        let left_out: Vec<_> = report.receipt.plan.left_out.iter().map(|left| left.path.clone()).collect();
        assert_eq!((left_out.as_slice(), report.receipt.is_complete()), (&paths[2..], false));
    }

    #[test]
    fn what_is_gone_when_its_turn_comes_is_named_and_the_others_are_scanned() {
        let dir = tempfile::tempdir().unwrap();
        let mut paths = folders(&dir.path().canonicalize().unwrap(), &["a"]);
        paths.push(dir.path().join("gone"));
        let strict = ScanRequest { workers: 1, ..ScanRequest::of_paths(paths.clone()) };
        let request = ScanRequest { tolerant: true, ..strict.clone() };
        for targets_max in [1, 2] {
            assert!(matches!(in_parts(targets_max, &strict, 0), Err(ScanError::Path { .. })));
            let report = in_parts(targets_max, &request, 0).unwrap();
            let left_out = &report.receipt.plan.left_out;
            assert_eq!((left_out.len(), &left_out[0].path), (1, &paths[1]), "{left_out:?}");
            assert_eq!((report.findings.len(), report.receipt.is_complete()), (1, false));
        }
        let gone = ScanRequest { paths: vec![paths[1].clone()], ..request };
        assert!(in_parts(1, &gone, 0).is_err(), "nothing is left to scan");
    }
}
