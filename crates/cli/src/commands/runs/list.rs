//! `tessera runs`: one line a run, or all that is known of it as JSON.

use std::path::Path;

use serde_json::{Value, json};
use tessera_contracts::{LogicalTime, RunId, TenantId};
use tessera_coordination::RunManagement;
use tessera_coordination::run::progress::{RunProgress, ShardCounts};
use tessera_coordination::run::status::RunStatus;
use tessera_scan::clock::calendar::utc;
use tessera_scan::clock::wall_clock;
use tessera_scan::error::ScanError;
use tessera_scan::fleet::retire::all_runs;
use tessera_scan::run::folder::{RunFolder, runs_in};
use tessera_scan::run::glance::{Glance, latest_folder};
use tessera_scan::run::label::{RunKey, RunLabel};
use tessera_scan::run::local::HeldRun;
use tessera_scan::run::prepare::stored_targets;

use crate::fleet::{Fleet, failure};
use crate::table::{Window, age, percent};
use crate::tell::{clean, print, shown};

/// What is told of a run.
#[derive(Debug, Default)]
struct Line {
    run: Option<RunId>,
    /// In a word.
    state: String,
    /// Why nothing else is known of it.
    problem: Option<String>,
    /// The process of this machine that works on it.
    process: Option<u32>,
    created_at: Option<LogicalTime>,
    ended_at: Option<LogicalTime>,
    kind: Option<&'static str>,
    shards: Option<ShardCounts>,
    items: Option<(u64, u64)>,
    findings: Option<u64>,
    targets: Vec<String>,
    /// Of all targets, if only some are named.
    targets_total: usize,
}

impl Line {
    fn of(run: RunId) -> Self {
        Self { run: Some(run), ..Self::default() }
    }

    fn glance(&mut self, glance: &Glance) {
        self.kind = Some(glance.kind());
        self.items = Some((glance.items, glance.items_total()));
        self.findings = Some(glance.findings);
        self.targets = glance.plan.targets.iter().map(|target| path_shown(&target.path)).collect();
        self.targets_total = self.targets.len();
    }

    fn done(&self) -> String {
        match (self.items, self.shards) {
            (Some((items, total)), _) if total > 0 => percent(items, total),
            (_, Some(counts)) => percent(u64::from(counts.done + counts.split), u64::from(counts.total())),
            _ => "-".to_owned(),
        }
    }

    fn text(&self, window: Window) -> String {
        let run = self.run.map(|run| run.to_string()).unwrap_or_default();
        if let Some(problem) = &self.problem {
            return window.line(&format!("{run}  {}  {}", self.state, clean(problem)));
        }
        let age = self.created_at.map_or_else(|| "-".to_owned(), |at| age(wall_clock().get().saturating_sub(at.get())));
        let found = self.findings.map_or_else(|| "-".to_owned(), |found| found.to_string());
        let parked = self.shards.map_or(0, |counts| counts.parked);
        let parked = if parked > 0 { format!("{parked} parked  ") } else { String::new() };
        let (kind, done) = (self.kind.unwrap_or("-"), self.done());
        let start = format!("{run}  {age:>4}  {kind:<7}  {:<11}  {done:>4}  {found:>6}  {parked}", self.state);
        let more = match self.targets_total {
            0 | 1 => String::new(),
            total => format!(" and {} more", total - 1),
        };
        let first = self.targets.first().map(String::as_str).unwrap_or_default();
        let first = window.path(first, start.chars().count(), more.chars().count());
        window.line(&format!("{start}{first}{more}"))
    }

    fn value(&self) -> Value {
        let shards = self.shards.map(|counts| {
            json!({"open": counts.active, "done": counts.done, "split": counts.split, "parked": counts.parked})
        });
        json!({
            "run": self.run.map(|run| run.to_string()),
            "state": self.state,
            "problem": self.problem,
            "process": self.process,
            "created_at": self.created_at.map(utc),
            "ended_at": self.ended_at.map(utc),
            "kind": self.kind,
            "items": self.items.map(|(items, _)| items),
            "items_total": self.items.map(|(_, total)| total),
            "findings": self.findings,
            "shards": shards,
            "targets": self.targets,
            "targets_total": self.targets_total,
        })
    }
}

const HEADER: &str = "run                age  kind     state        done   found  targets";

fn write(lines: &[Line], as_json: bool, nothing: String) -> Result<(), String> {
    if as_json {
        let runs: Vec<Value> = lines.iter().map(Line::value).collect();
        return print(format!("{:#}\n", json!({ "runs": runs })));
    }
    let window = Window::of_stdout();
    let mut text = String::new();
    if window.columns.is_some() && !lines.is_empty() {
        text.push_str(&window.line(HEADER));
    }
    lines.iter().for_each(|line| text.push_str(&line.text(window)));
    print(if lines.is_empty() { nothing } else { text })
}

/// Lists the runs of this machine.
pub(super) fn list_local(dir: &Path, tenant: TenantId, as_json: bool) -> Result<(), String> {
    let runs = runs_in(dir).map_err(|error| format!("cannot list {}: {error}", dir.display()))?;
    let lines: Vec<Line> = runs.into_iter().map(|run| local_line(dir, tenant, run)).collect();
    write(&lines, as_json, format!("no runs are kept in {}\n", dir.display()))
}

fn local_line(dir: &Path, tenant: TenantId, run: RunId) -> Line {
    let mut line = Line::of(run);
    let folder = latest_folder(dir, run);
    line.created_at = folder.as_ref().map(|folder| folder.label().created_at);
    if let Some(glance) = folder.as_ref().and_then(Glance::of) {
        line.glance(&glance);
    }
    match HeldRun::open(dir, run) {
        Ok(Some(mut held)) => match held.backend.get_run(tenant, run) {
            Ok(record) => {
                let progress = held.backend.get_run_progress(wall_clock(), tenant, run).ok();
                line.shards = progress.map(|progress: RunProgress| progress.counts);
                line.ended_at = record.completed_at;
                // No process works on it: this one has its lock.
                line.state = match record.status {
                    RunStatus::Active => "interrupted".into(),
                    RunStatus::Initializing => "never began".into(),
                    status => status.to_string(),
                };
            }
            Err(_) => never_began(&mut line),
        },
        Ok(None) => never_began(&mut line),
        Err(ScanError::Busy { holder, .. }) => (line.state, line.process) = ("running".into(), holder.pid),
        Err(error) => (line.state, line.problem) = ("unreadable".into(), Some(shown(error).to_string())),
    }
    line
}

fn never_began(line: &mut Line) {
    line.state = "never began".into();
    line.problem = Some("`tessera runs collect --older-than 0s` removes it".into());
}

/// Lists the runs of a fleet.
pub(super) fn list_fleet(
    backend: &mut impl RunManagement,
    tenant: TenantId,
    fleet: &Fleet,
    as_json: bool,
) -> Result<(), String> {
    let mut lines = Vec::new();
    for run in all_runs(backend, tenant).map_err(|error| error.to_string())? {
        let mut line = Line { created_at: Some(run.created_at), ended_at: run.completed_at, ..Line::of(run.run) };
        let progress = backend.get_run_progress(wall_clock(), tenant, run.run);
        line.state = match (&progress, run.status) {
            (Ok(progress), RunStatus::Active) if progress.leased > 0 => "running".into(),
            (Ok(progress), RunStatus::Active) if progress.counts.active == 0 && progress.counts.parked > 0 => {
                "parked".into()
            }
            (_, RunStatus::Active) => "waiting".into(),
            (_, RunStatus::Initializing) => "beginning".into(),
            (_, status) => status.to_string(),
        };
        match progress {
            Ok(progress) => line.shards = Some(progress.counts),
            Err(error) => line.problem = Some(failure(error)),
        }
        let label = RunLabel {
            coordinator: fleet.name(),
            tenant,
            key: RunKey::new(run.run, run.incarnation),
            created_at: run.created_at,
        };
        let folder = fleet.findings.as_deref().and_then(|findings| RunFolder::open(findings, label).ok());
        match folder.as_ref().and_then(Glance::of) {
            Some(glance) => line.glance(&glance),
            // Without the folder the shards tell, one by one.
            None => {
                let targets = stored_targets(backend, tenant, run.run).map_err(|error| error.to_string())?;
                line.targets = targets.iter().map(|target| path_shown(&target.path)).collect();
                line.targets_total = line.targets.len();
            }
        }
        lines.push(line);
    }
    write(&lines, as_json, "the fleet has no runs of this tenant\n".into())
}

fn path_shown(path: &Path) -> String {
    clean(shown(path.display()).as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_its_window_and_says_how_many_targets_there_are() {
        let line = Line {
            state: "interrupted".into(),
            kind: Some("history"),
            created_at: Some(wall_clock()),
            items: Some((1, 3)),
            findings: Some(12),
            targets: vec!["/srv/git/a-repository-with-a-long-name".into(), "/srv/git/b".into()],
            targets_total: 120,
            ..Line::of(RunId::new(0xc0ffee))
        };
        for columns in [80, 120] {
            let text = line.text(Window { columns: Some(columns) });
            assert!(text.trim_end().chars().count() <= columns, "{text}");
            assert!(text.contains("interrupted") && text.contains(" 33% ") && text.contains("and 119 more"), "{text}");
        }
        let whole = line.text(Window { columns: None });
        assert!(whole.starts_with("0000000000c0ffee ") && whole.contains("a-repository-with-a-long-name"), "{whole}");
        assert_eq!(line.value()["targets_total"], 120);
    }

    #[test]
    fn the_header_stands_above_its_columns() {
        let line =
            Line { state: "done".into(), kind: Some("tree"), targets: vec!["/srv".into()], ..Line::of(RunId::new(1)) };
        let text = line.text(Window { columns: Some(200) });
        for (name, value) in [("kind", "tree"), ("state", "done"), ("targets", "/srv")] {
            assert_eq!(HEADER.find(name), text.find(value), "{name}: {text}");
        }
    }
}
