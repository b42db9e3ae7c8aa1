//! Histories: every blob that a ref leads to is read, and each of its paths is listed, for each repository by itself.

use super::truth::cases;
use super::truth::command::Tessera;
use super::truth::compare::{Truth, compare};
use super::truth::history::{self, Size};
use super::truth::{git, oracle};

#[test]
fn a_history_is_listed_as_git_knows_it() {
    cases::run(30, |case| {
        let repository = case.folder("repository");
        history::grow(&mut case.random, &repository, Size::default());
        let report = Tessera::of(case).scan(&["--no-resume".as_ref(), "--history".as_ref(), repository.as_os_str()])?;
        compare(&report, &oracle::history(&repository, oracle::ALL))
    });
}

/// Text that a version has from the one before is not searched again.
#[test]
fn versions_of_long_texts_are_searched_as_if_each_stood_alone() {
    cases::run(6, |case| {
        let repository = case.folder("repository");
        history::grow_versions(&mut case.random, &repository);
        let report = Tessera::of(case).scan(&["--no-resume".as_ref(), "--history".as_ref(), repository.as_os_str()])?;
        compare(&report, &oracle::history(&repository, oracle::ALL))
    });
}

#[test]
fn several_histories_are_listed_each_by_itself() {
    cases::run(20, |case| {
        let first = case.folder("first");
        history::grow(&mut case.random, &first, Size::default());
        let mut targets = vec![first.clone()];
        for number in 0..case.random.within(1..4) {
            let dir = case.dir().join(format!("other-{number}"));
            match case.random.below(6) {
                0 => git::init(&dir, &[]),
                1 => history::grow(&mut case.random, &dir, Size { commits: 3, tokens: 2, ..Size::default() }),
                _ => history::clone(&mut case.random, &first, &dir),
            }
            targets.push(dir);
        }
        case.random.shuffle(&mut targets);
        let mut args = vec!["--no-resume".as_ref(), "--history".as_ref()];
        args.extend(targets.iter().map(|target| target.as_os_str()));
        let report = Tessera::of(case).scan(&args)?;
        let mut truth = Truth::counted();
        for target in &targets {
            truth.join(oracle::history(target, oracle::ALL));
        }
        compare(&report, &truth)
    });
}
