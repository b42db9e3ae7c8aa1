//! Planned files that a later look at their trees does not meet.

use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::paths::{PathsCursor, PlannedPaths};
use super::record::{Listed, PlanRecord};

/// Files of one tree that an earlier plan names and a later one does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gone {
    /// How many.
    pub(crate) files: u64,
    /// The root of the tree.
    pub(crate) root: PathBuf,
}

/// The first tree of `before` with files that `now` lacks. The lists of both lie in `dir`.
pub(crate) fn first_gone(before: &PlanRecord, now: &PlanRecord, dir: &Path) -> io::Result<Option<Gone>> {
    for plan in &before.targets {
        let Listed::Paths { name } = &plan.listed else { continue };
        let files = match now.target(plan.target).map(|plan| &plan.listed) {
            Some(Listed::Paths { name: now }) if now == name => 0,
            Some(Listed::Paths { name: now }) => missing(dir, name, now)?,
            _ => plan.planned.planned,
        };
        if files > 0 {
            return Ok(Some(Gone { files, root: plan.path.clone() }));
        }
    }
    Ok(None)
}

/// How many keys of the list `before` are not in the list `now`.
fn missing(dir: &Path, before: &[u8; 16], now: &[u8; 16]) -> io::Result<u64> {
    let cursor = |name| PathsCursor::new(Arc::new(PlannedPaths::open(dir, name)?), Bound::Unbounded);
    let (mut before, mut now, mut missing) = (cursor(before)?, cursor(now)?, 0);
    while let Some(key) = before.peek()? {
        while now.peek()?.is_some_and(|met| met < key) {
            now.advance();
        }
        if now.peek()? != Some(key) {
            missing += 1;
        }
        before.advance();
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::super::paths::PathsWriter;
    use super::super::record::{PlanId, TargetPlan};
    use super::*;

    /// A plan with a list of these names for each target.
    fn plan(dir: &Path, targets: &[&[&str]]) -> PlanRecord {
        let target = |(number, names): (u32, &&[&str])| {
            let mut writer = PathsWriter::create(dir).unwrap();
            names.iter().for_each(|name| writer.push(name.as_bytes()).unwrap());
            let (name, planned) = writer.finish().unwrap();
            let (path, listed) = (format!("/srv/{number}").into(), Listed::Paths { name });
            TargetPlan { target: number, path, rules: 0, items: 0, bytes: 0, planned, listed }
        };
        let targets = (0..).zip(targets).map(target).collect();
        PlanRecord { id: PlanId(1), made_at: 0, program: String::new(), targets, left_out: Vec::new() }
    }

    #[test]
    fn a_planned_file_is_gone_if_the_later_plan_does_not_name_it_and_new_ones_take_nothing_away() {
        let dir = tempfile::tempdir().unwrap();
        let before = plan(dir.path(), &[&["a"], &["b", "d", "f"]]);
        let gone = |now: &[&[&str]]| {
            let gone = first_gone(&before, &plan(dir.path(), now), dir.path()).unwrap();
            gone.map(|gone| (gone.root.display().to_string(), gone.files))
        };
        assert_eq!(gone(&[&["a"], &["b", "d", "f"]]), None);
        assert_eq!(gone(&[&["0", "a", "z"], &["a", "b", "c", "d", "e", "f", "g"]]), None);
        let second = |files| Some(("/srv/1".to_owned(), files));
        assert_eq!(gone(&[&["a"], &["b", "d"]]), second(1), "the last one");
        assert_eq!(gone(&[&["a"], &["d", "f"]]), second(1), "the first one");
        assert_eq!(gone(&[&["a"], &["b", "c", "e", "f"]]), second(1), "as many others do not replace it");
        assert_eq!(gone(&[&["a"], &[]]), second(3));
        assert_eq!(gone(&[&["a"]]), second(3), "a target that is not there any more");
        assert_eq!(gone(&[&[], &[]]), Some(("/srv/0".to_owned(), 1)));
    }
}
