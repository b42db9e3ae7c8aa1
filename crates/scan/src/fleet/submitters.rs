//! Tests: submitters of one request that race, that die at any step, and that meet operators who tidy up.
//!
//! A submitter's steps are calls to the coordinator with work on the folder in between. Here it dies before or after any of
//! its calls, and another submitter, a collection or an operator that ends and retires the run runs to its end inside any of
//! them. Whatever happened, the next submitter gets a run that workers can do: an active run whose folder is there, labelled
//! and with a job; and nothing is left but what `collect` removes. The findings folder outlives coordinators: its store may be
//! wiped, and submitters of another namespace may use it too. Whatever lies in it, a sweep reports the tree as it is.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

use tessera_contracts::{LogicalTime, RunIncarnation, TenantId, WorkerId};
use tessera_coordination::backend::Wrapper;
use tessera_coordination::error::InfraError;
use tessera_coordination::events::EventSink;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::{InMemoryCoordinator, RunManagement};
use tessera_detect::template;

use super::follow::{READ_AGAIN_MAX, Submission, complete, submit};
use super::retire::{Retiring, all_runs, key_of, retire};
use super::{Following, Patience, Patient};
use crate::clock::wall_clock;
use crate::error::ScanError;
use crate::findings::FileSink;
use crate::fleet::collect::{Collecting, collect};
use crate::op_ids::{OpIds, random_u64};
use crate::plan::ledger::OpenPlan;
use crate::read::detectors::Detectors;
use crate::report::receipt::Receipt;
use crate::run::conclude::conclude;
use crate::run::coordinator_name::CoordinatorName;
use crate::run::folder::{RunFolder, incarnations_in, runs_in};
use crate::run::job::Job;
use crate::run::label::{RunKey, RunLabel};
use crate::run::prepare::stored_sources;
use crate::run::request::{ScanRequest, TENANT_DEFAULT};
use crate::sweep::WorkerConfig;
use crate::sweep::worker::{Equipment, Worker};

/// Its rules are read once: that takes longer than all the rest.
static REQUEST: LazyLock<ScanRequest> = LazyLock::new(|| ScanRequest::of_paths(Vec::new()));

/// What happens at one call of a submitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// It dies before the call.
    DiesBefore,
    /// It dies after the call took effect, without its answer.
    DiesAfter,
    /// Another submitter runs to its end before the call.
    AnotherBefore,
    /// Another submitter runs to its end after the call took effect, before its answer.
    AnotherAfter,
    /// A collection that takes every submitter for dead runs to its end before the call.
    CollectedBefore,
    /// Likewise, after the call took effect, before its answer.
    CollectedAfter,
    /// An operator calls off all runs and retires them before the call.
    RetiredBefore,
    /// Likewise, after the call took effect, before its answer.
    RetiredAfter,
    /// The coordinator's store is wiped before the call; the findings folder is kept.
    WipedBefore,
    /// Likewise, after the call took effect, before its answer.
    WipedAfter,
    /// A submitter of another namespace with the same findings folder runs to its end before the call.
    StrangerBefore,
    /// Likewise, after the call took effect, before its answer.
    StrangerAfter,
}

/// Who runs to its end inside a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rival {
    Submitter,
    Collector,
    Retirer,
    Wiper,
    Stranger,
}

/// A coordinator that several submitters share.
#[derive(Clone)]
struct Shared {
    memory: Rc<RefCell<InMemoryCoordinator>>,
    calls: Rc<RefCell<usize>>,
    event: Option<(usize, Event)>,
    rival: Rc<dyn Fn(Rival)>,
}

impl Wrapper for Shared {
    type Inner = InMemoryCoordinator;

    fn pass<T, E: From<InfraError>>(
        &mut self,
        events: &mut dyn EventSink,
        operation: impl FnOnce(&mut InMemoryCoordinator, &mut dyn EventSink) -> Result<T, E>,
    ) -> Result<T, E> {
        let call = self.calls.replace_with(|&mut call| call + 1);
        let event = self.event.filter(|(at, _)| *at == call).map(|(_, event)| event);
        let died = || InfraError::refused("test", "the submitter died");
        match event {
            // Dead: it makes no further call.
            _ if self.event.is_some_and(|(at, event)| call > at && event.is_death()) => return Err(died().into()),
            Some(Event::DiesBefore) => return Err(died().into()),
            Some(Event::AnotherBefore) => (self.rival)(Rival::Submitter),
            Some(Event::CollectedBefore) => (self.rival)(Rival::Collector),
            Some(Event::RetiredBefore) => (self.rival)(Rival::Retirer),
            Some(Event::WipedBefore) => (self.rival)(Rival::Wiper),
            Some(Event::StrangerBefore) => (self.rival)(Rival::Stranger),
            _ => {}
        }
        let answer = operation(&mut self.memory.borrow_mut(), events);
        match event {
            Some(Event::DiesAfter) => return Err(died().into()),
            Some(Event::AnotherAfter) => (self.rival)(Rival::Submitter),
            Some(Event::CollectedAfter) => (self.rival)(Rival::Collector),
            Some(Event::RetiredAfter) => (self.rival)(Rival::Retirer),
            Some(Event::WipedAfter) => (self.rival)(Rival::Wiper),
            Some(Event::StrangerAfter) => (self.rival)(Rival::Stranger),
            _ => {}
        }
        answer
    }
}

impl Event {
    const ALL: [Self; 12] = [
        Self::DiesBefore,
        Self::DiesAfter,
        Self::AnotherBefore,
        Self::AnotherAfter,
        Self::CollectedBefore,
        Self::CollectedAfter,
        Self::RetiredBefore,
        Self::RetiredAfter,
        Self::WipedBefore,
        Self::WipedAfter,
        Self::StrangerBefore,
        Self::StrangerAfter,
    ];

    fn is_death(self) -> bool {
        matches!(self, Self::DiesBefore | Self::DiesAfter)
    }

    fn is_before(self) -> bool {
        let dies = matches!(self, Self::DiesBefore | Self::AnotherBefore | Self::CollectedBefore);
        dies || matches!(self, Self::RetiredBefore | Self::WipedBefore | Self::StrangerBefore)
    }

    /// Whether what the submitter was making may be taken from it, so that it fails.
    fn is_tidying(self) -> bool {
        let collected = matches!(self, Self::CollectedBefore | Self::CollectedAfter);
        collected || matches!(self, Self::RetiredBefore | Self::RetiredAfter | Self::WipedBefore | Self::WipedAfter)
    }
}

struct Stage {
    tree: tempfile::TempDir,
    findings: tempfile::TempDir,
    memory: Rc<RefCell<InMemoryCoordinator>>,
}

impl Stage {
    fn new() -> Self {
        let tree = tempfile::tempdir().unwrap();
        std::fs::write(tree.path().join("file"), "nothing").unwrap();
        Self { tree, findings: tempfile::tempdir().unwrap(), memory: Rc::default() }
    }

    fn following(&self) -> Following {
        Following {
            read_again_max: READ_AGAIN_MAX,
            coordinator: CoordinatorName::Etcd { namespace: "fleet".into() },
            findings: self.findings.path().to_path_buf(),
            fresh: false,
            lease_duration: 2_000,
        }
    }

    /// Submits; tells how many calls that took, and what came of it.
    fn submit(&self, event: Option<(usize, Event)>) -> (usize, Result<RunKey, ScanError>) {
        let paths = vec![self.tree.path().canonicalize().unwrap()];
        let (memory, findings) = (Rc::clone(&self.memory), self.following());
        let undisturbed = {
            let (paths, memory) = (paths.clone(), Rc::clone(&memory));
            move |rival| match rival {
                Rival::Submitter => {
                    submitted(&paths, &findings, Shared::undisturbed(Rc::clone(&memory))).unwrap();
                }
                Rival::Wiper => *memory.borrow_mut() = InMemoryCoordinator::default(),
                Rival::Stranger => {
                    let coordinator = CoordinatorName::Etcd { namespace: "stranger".into() };
                    let findings = Following { coordinator, ..findings.clone() };
                    submitted(&paths, &findings, Shared::undisturbed(Rc::default())).unwrap();
                }
                Rival::Collector => collected(&findings, &mut memory.borrow_mut()),
                Rival::Retirer => retired(&findings, &mut memory.borrow_mut()),
            }
        };
        let calls = Rc::new(RefCell::new(0));
        let shared = Shared { memory, calls: Rc::clone(&calls), event, rival: Rc::new(undisturbed) };
        let result = submitted(&paths, &self.following(), shared);
        let made = *calls.borrow();
        (made, result)
    }

    /// Every active run can be worked on, and there is one.
    fn is_workable(&self, case: &str) {
        let (mut memory, tenant) = (self.memory.borrow_mut(), tenant());
        let runs = all_runs(&mut *memory, tenant).unwrap();
        let active: Vec<_> = runs.iter().filter(|run| run.status == RunStatus::Active).collect();
        assert_eq!(active.len(), 1, "{case}: {runs:?}");
        let record = memory.get_run(tenant, active[0].run).unwrap();
        let folder = RunFolder::of_run(self.findings.path(), self.following().coordinator, &record);
        let folder = folder.unwrap_or_else(|error| panic!("{case}: {error}"));
        Job::load(folder.path()).unwrap_or_else(|error| panic!("{case}: {error}"));
    }

    /// Nothing is left but the folder of the run once leftovers are collected.
    fn is_tidy(&self, case: &str) {
        collected(&self.following(), &mut self.memory.borrow_mut());
        let known: Vec<RunKey> =
            all_runs(&mut *self.memory.borrow_mut(), tenant()).unwrap().iter().map(key_of).collect();
        let coordinator = self.following().coordinator;
        for run in runs_in(self.findings.path()).unwrap() {
            for incarnation in incarnations_in(self.findings.path(), run).unwrap() {
                let folder = self.findings.path().join(run.to_string()).join(incarnation.to_string());
                let is_strangers = RunLabel::load(&folder).is_ok_and(|label| label.coordinator != coordinator);
                let is_known = known.contains(&RunKey::new(run, incarnation));
                assert!(is_known || is_strangers, "{case}: {run}/{incarnation} is no run's");
            }
        }
    }
}

impl Stage {
    /// Lets one worker do all of a run, and concludes it: where secrets are, and the receipt.
    fn sweep(&self, key: RunKey) -> (BTreeSet<String>, Receipt) {
        thread_local! { static DETECTORS: Detectors = Job::of(&REQUEST).detectors().unwrap() }
        let mut memory = self.memory.borrow_mut();
        let record = memory.get_run(tenant(), key.run).unwrap();
        let folder = RunFolder::of_run(self.findings.path(), self.following().coordinator, &record).unwrap();
        assert_eq!(folder.key(), key);
        let sources = stored_sources(&mut *memory, tenant(), key.run, &folder).unwrap();
        let targets: Vec<_> = sources.iter().map(|source| source.target().clone()).collect();
        let id = WorkerId::new(random_u64());
        let sink = FileSink::create(&folder.findings(), key, id, random_u64()).unwrap();
        let equipment = Equipment {
            reader: Job::load(folder.path()).unwrap().reader(DETECTORS.with(Detectors::fork)),
            sources,
            dir: folder.path().to_path_buf(),
            plan: Some(Arc::new(OpenPlan::load(folder.path().to_path_buf()).unwrap())),
            progress: Arc::default(),
        };
        let (config, stop) = (WorkerConfig::new(tenant(), key.run, id), AtomicBool::new(false));
        Worker::new(config, wall_clock, equipment, Box::new(sink), &stop).run(&mut *memory).unwrap();
        complete(&mut *memory, tenant(), key.run).unwrap();
        let (findings, receipt) = conclude(&mut *memory, tenant(), key.run, &folder, &targets).unwrap();
        let places = findings.iter().flat_map(|finding| &finding.locations);
        (places.map(|at| String::from_utf8_lossy(&at.occurrence.path).into_owned()).collect(), receipt)
    }

    /// A tree of these files, each with a secret.
    fn plant(&self, names: &[&str]) {
        for entry in std::fs::read_dir(self.tree.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for (name, seed) in names.iter().zip(1..) {
            let secret = template::expand("ghp_<<github 30>>", &mut template::Seed::new(seed)).unwrap();
            std::fs::write(self.tree.path().join(name), format!("TOKEN={secret}\n")).unwrap();
        }
    }
}

impl Shared {
    fn undisturbed(memory: Rc<RefCell<InMemoryCoordinator>>) -> Self {
        Self { memory, calls: Rc::default(), event: None, rival: Rc::new(|_| {}) }
    }
}

fn tenant() -> TenantId {
    TenantId::from_name(TENANT_DEFAULT)
}

/// Collects as if every submitter were dead.
fn collected(following: &Following, memory: &mut InMemoryCoordinator) {
    let collecting = Collecting {
        coordinator: following.coordinator.clone(),
        tenant: tenant(),
        findings: following.findings.clone(),
        created_before: LogicalTime::new(u64::MAX),
        dry_run: false,
    };
    collect(&collecting, memory).unwrap();
}

/// Calls off every run and retires them all.
fn retired(following: &Following, memory: &mut InMemoryCoordinator) {
    for run in all_runs(memory, tenant()).unwrap() {
        let cancelled = memory.cancel_run(wall_clock(), tenant(), run.run, OpIds::random().next_id());
        assert!(cancelled.is_ok() || run.status.is_terminal(), "{cancelled:?}");
    }
    let retiring = Retiring {
        coordinator: following.coordinator.clone(),
        tenant: tenant(),
        findings: following.findings.clone(),
        ended_until: LogicalTime::new(u64::MAX),
        without_folder: false,
    };
    retire(&retiring, memory).unwrap();
}

fn submitted(paths: &[PathBuf], following: &Following, shared: Shared) -> Result<RunKey, ScanError> {
    let request = ScanRequest { workers: 1, paths: paths.to_vec(), ..REQUEST.clone() };
    let stop = AtomicBool::new(false);
    let mut backend = Patient::new(shared, Patience::new(std::time::Duration::ZERO, &stop, &|_| {}));
    submit(&request, paths, following, &mut backend, 0).map(|submission| match submission {
        Submission::Run(submitted) => submitted.folder.key(),
        Submission::Finished(report) => panic!("no run of this test is finished: {:?}", report.run),
    })
}

#[test]
fn wherever_a_submitter_dies_or_is_overtaken_the_next_gets_a_run_that_can_be_done() {
    let (calls, done) = Stage::new().submit(None);
    done.unwrap();
    assert!(calls >= 5, "look, look again, create, register, and check: {calls}");
    let mut cases = 0;
    // A submitter that was overtaken makes a few calls more.
    for at in 0..calls + 3 {
        for event in Event::ALL {
            let case = format!("{event:?} at call {at} of {calls}");
            let stage = Stage::new();
            let (made, first) = stage.submit(Some((at, event)));
            if made <= at {
                continue;
            }
            cases += 1;
            match (event.is_death(), &first) {
                (true, Err(_)) | (false, Ok(_)) => {}
                (false, Err(_)) if event.is_tidying() => {}
                _ => panic!("{case}: {first:?}"),
            }
            // The same command is given again, and finds the run or makes it.
            let again = stage.submit(None).1.unwrap_or_else(|error| panic!("{case}: {error}"));
            if let Ok(first) = first
                && !event.is_tidying()
            {
                assert_eq!(first, again, "{case}: both follow the same run");
            }
            stage.is_workable(&case);
            stage.is_tidy(&case);
        }
    }
    assert!(cases >= Event::ALL.len() * calls, "{cases} cases");
}

/// A run of the same request was swept before, over another tree, and its folder is still there.
#[test]
fn whatever_happened_over_a_kept_folder_a_sweep_reports_the_tree_as_it_is() {
    let mut cases = 0;
    for event in Event::ALL {
        // Before the first call, and after each: what happens before a later call happens after the one before it.
        let last = if event.is_before() { 1 } else { usize::MAX };
        for at in 0..last {
            let case = format!("{event:?} at call {at}");
            let stage = Stage::new();
            stage.plant(&["before", "both"]);
            let before = stage.submit(None).1.unwrap();
            assert_eq!(stage.sweep(before).0.len(), 2, "{case}");
            stage.plant(&["both", "now", "too"]);
            let (made, _) = stage.submit(Some((at, event)));
            if made <= at {
                break;
            }
            cases += 1;
            // Planned now, or by the submitter to which it happened.
            let again = stage.submit(None).1.unwrap_or_else(|error| panic!("{case}: {error}"));
            let (paths, receipt) = stage.sweep(again);
            assert_eq!(paths.iter().map(String::as_str).collect::<Vec<_>>(), ["both", "now", "too"], "{case}");
            assert!(receipt.is_complete(), "{case}: {receipt:?}");
            assert_eq!((receipt.tally.scanned, receipt.plan.planned, receipt.plan.added), (3, 3, 0), "{case}");
        }
    }
    assert!(cases >= Event::ALL.len() / 2 * 6, "{cases} cases");
}

#[test]
fn two_deaths_in_a_row_leave_nothing_in_the_way() {
    let (calls, _) = Stage::new().submit(None);
    for first in 0..calls {
        for second in 0..calls {
            let case = format!("after call {first}, then after call {second}");
            let stage = Stage::new();
            stage.submit(Some((first, Event::DiesAfter))).1.unwrap_err();
            // The second may have less to do, and then lives.
            drop(stage.submit(Some((second, Event::DiesAfter))));
            stage.submit(None).1.unwrap_or_else(|error| panic!("{case}: {error}"));
            stage.is_workable(&case);
            stage.is_tidy(&case);
        }
    }
}

/// What a submitter leaves that dies while it works on its folder.
#[test]
fn a_folder_that_was_begun_and_not_finished_is_in_nobodys_way() {
    let debris: [fn(&Path); 4] = [
        |_| {},
        |folder| std::fs::write(folder.join("run.0123456789abcdef"), "TSRR").unwrap(),
        |folder| std::fs::write(folder.join("job.0123456789abcdef"), "TSRJ").unwrap(),
        |folder| std::fs::create_dir(folder.join("findings")).unwrap(),
    ];
    for (index, leave) in debris.into_iter().enumerate() {
        let mut stage = Stage::new();
        let first = stage.submit(None).1.unwrap();
        let folder_of = |stage: &Stage, key: RunKey| {
            stage.findings.path().join(key.run.to_string()).join(key.incarnation.to_string())
        };
        let label = RunLabel::load(&folder_of(&stage, first)).unwrap();
        // The same run again, at a coordinator that does not know it, over what others left.
        (stage.memory, stage.findings) = (Rc::default(), tempfile::tempdir().unwrap());
        for (incarnation, is_labelled) in [(1, false), (2, true)] {
            let key = RunKey::new(first.run, RunIncarnation::new(incarnation));
            if is_labelled {
                RunFolder::create(stage.findings.path(), RunLabel { key, ..label.clone() }).unwrap();
            } else {
                std::fs::create_dir_all(folder_of(&stage, key)).unwrap();
            }
            leave(&folder_of(&stage, key));
        }
        let second = stage.submit(None).1.unwrap();
        assert_eq!(second.run, first.run, "it is the same run");
        stage.is_workable(&format!("debris {index}"));
    }
}
