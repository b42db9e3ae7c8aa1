//! A report as it may be displayed.
//!
//! The writers of all formats see a report through these types alone. They hand out numbers, our own words and names, and
//! [`Shown`] text, never text from scanned content as it is: whatever a writer does, a secret in a subject, an author's name or a
//! path was shortened before.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use tessera_contracts::RunId;
use tessera_coordination::run::progress::ShardCounts;
use tessera_detect::{Confidence, FindingId, Position, Rule, SecretId, Severity};

use super::Written;
use crate::findings::tally::Tally;
use crate::plan::target::Target;
use crate::report::by_target::{Outcome, TargetAccount};
use crate::report::finding::{Finding, Location};
use crate::report::receipt::{PlanAccount, not_searched};
use crate::report::redact::{Redactor, Shown};
use crate::report::root::Roots;
use crate::report::suppress::fingerprint;
use crate::run::ExitStatus;
use crate::run::ended::RunEnd;
use crate::source::git::attribution::Attribution;
use crate::source::git::hex_oid;
use crate::source::item::UnreadableReason;

/// A report that may be displayed.
pub(super) struct View<'r> {
    written: &'r Written<'r>,
    redactor: Redactor,
    /// Looked for when a format asks.
    roots: OnceCell<Roots>,
}

/// One secret.
pub(super) struct FindingView<'v> {
    view: &'v View<'v>,
    finding: &'v Finding,
}

/// One place of it.
pub(super) struct PlaceView<'v> {
    view: &'v View<'v>,
    finding: &'v Finding,
    location: &'v Location,
}

/// The commit that brought it there.
pub(super) struct CommitView<'v> {
    view: &'v View<'v>,
    introduced: &'v Attribution,
}

/// Something that was not read.
pub(super) struct NoteView {
    /// The target it belongs to.
    pub(super) target: Option<Shown>,
    /// The path below the target; empty if it is the target itself.
    pub(super) path: Shown,
    pub(super) reason: UnreadableReason,
}

/// One target.
pub(super) struct TargetRow {
    pub(super) path: Shown,
    pub(super) account: TargetAccount,
    /// Different secrets that stand in it.
    pub(super) secrets: u64,
    /// Places of secrets in it.
    pub(super) places: u64,
}

/// Something that was asked for and not scanned.
pub(super) struct LeftOutView {
    pub(super) path: Shown,
    /// The list and line; empty if it stands in none.
    pub(super) named_at: Shown,
    pub(super) why: Shown,
}

/// What is wrong with the findings folder.
pub(super) struct DamageView {
    pub(super) text: Shown,
    pub(super) loses_findings: bool,
}

impl TargetRow {
    /// Why not everything of it was read; empty if everything was.
    pub(super) fn reason(&self) -> String {
        let account = &self.account;
        let mut reasons: Vec<String> = Vec::new();
        if let Outcome::Parked(reason) = account.outcome() {
            reasons.push(reason.to_string());
        }
        reasons.extend(account.tally.unreadable.iter().map(|(reason, count)| format!("{count} {reason}")));
        if account.is_short {
            reasons.push("not every planned item is accounted for".to_owned());
        }
        if account.tally.findings_cut > 0 {
            reasons.push(format!("{} findings cut", account.tally.findings_cut));
        }
        reasons.join(", ")
    }

    /// Whether there is something to look at.
    pub(super) fn is_notable(&self) -> bool {
        self.secrets > 0 || self.account.outcome() != Outcome::Complete
    }
}

impl<'r> View<'r> {
    pub(super) fn of(written: &'r Written<'r>) -> Self {
        let redactor = Redactor::of_run(written.job, &written.report.findings, written.redacted_percent);
        Self { written, redactor, roots: OnceCell::new() }
    }

    pub(super) fn run(&self) -> RunId {
        self.written.report.run
    }

    pub(super) fn is_resumed(&self) -> bool {
        self.written.report.is_resumed()
    }

    pub(super) fn ended(&self) -> Option<RunEnd> {
        self.written.report.ended
    }

    pub(super) fn exit_status(&self) -> ExitStatus {
        self.written.report.exit_status()
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.written.report.elapsed
    }

    pub(super) fn suppressed(&self) -> u64 {
        self.written.suppressed
    }

    pub(super) fn colours(&self) -> bool {
        self.written.colours
    }

    pub(super) fn targets(&self) -> Vec<Shown> {
        self.written.report.targets.iter().map(|target| self.path_of_target(target)).collect()
    }

    pub(super) fn has_many_targets(&self) -> bool {
        self.written.report.targets.len() > 1
    }

    pub(super) fn findings(&self) -> impl Iterator<Item = FindingView<'_>> {
        self.written.report.findings.iter().map(|finding| FindingView { view: self, finding })
    }

    pub(super) fn findings_len(&self) -> usize {
        self.written.report.findings.len()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.written.report.receipt.is_complete()
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.written.report.receipt.tally
    }

    pub(super) fn not_searched(&self) -> Vec<&'static str> {
        not_searched(&self.written.report.targets)
    }

    pub(super) fn shards(&self) -> ShardCounts {
        self.written.report.receipt.shards
    }

    pub(super) fn shards_short(&self) -> u64 {
        self.written.report.receipt.shards_short
    }

    pub(super) fn planned_not_read(&self) -> u64 {
        self.written.report.receipt.planned_not_read()
    }

    /// The numbers of the plan; why it cannot be read is told by [`View::plan_problem`].
    pub(super) fn plan(&self) -> PlanAccount {
        PlanAccount { problem: None, left_out: Vec::new(), ..self.written.report.receipt.plan.clone() }
    }

    pub(super) fn plan_problem(&self) -> Option<Shown> {
        self.written.report.receipt.plan.problem.as_ref().map(|problem| self.redactor.show(problem))
    }

    /// What was asked for and not scanned at all.
    pub(super) fn left_out(&self) -> impl ExactSizeIterator<Item = LeftOutView> {
        self.written.report.receipt.plan.left_out.iter().map(|left_out| LeftOutView {
            path: self.redactor.show(left_out.path.as_os_str().as_bytes()),
            named_at: self.redactor.show(&left_out.named_at),
            why: self.redactor.show(&left_out.why),
        })
    }

    /// Each target by itself.
    pub(super) fn target_rows(&self) -> Vec<TargetRow> {
        let mut found: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for finding in &self.written.report.findings {
            let mut last = None;
            // Places of a target follow one another.
            for location in &finding.locations {
                let target = location.occurrence.target;
                let (secrets, places) = found.entry(target).or_default();
                *places += 1;
                *secrets += u64::from(last.replace(target) != Some(target));
            }
        }
        let row = |target: &Target| {
            let account = self.written.report.receipt.by_target.get(&target.number).cloned().unwrap_or_default();
            let (secrets, places) = found.get(&target.number).copied().unwrap_or_default();
            TargetRow { path: self.path_of_target(target), account, secrets, places }
        };
        self.written.report.targets.iter().map(row).collect()
    }

    pub(super) fn further_runs(&self) -> &[RunId] {
        &self.written.report.further_runs
    }

    pub(super) fn parked(&self) -> Vec<Shown> {
        self.written.report.receipt.parked.iter().map(|line| self.redactor.show(line)).collect()
    }

    pub(super) fn notes_len(&self) -> usize {
        self.written.report.receipt.notes.len()
    }

    /// The first of the things that were not read.
    pub(super) fn notes(&self, max: usize) -> impl Iterator<Item = NoteView> {
        let notes = self.written.report.receipt.notes.iter().take(max);
        notes.map(|note| NoteView {
            target: self.target_numbered(note.target).map(|target| self.path_of_target(target)),
            path: self.redactor.show(&note.path),
            reason: note.reason,
        })
    }

    pub(super) fn damage(&self) -> impl Iterator<Item = DamageView> {
        self.written.report.receipt.damage.iter().map(|damage| DamageView {
            text: self.redactor.show(damage.to_string()),
            loses_findings: damage.loses_findings(),
        })
    }

    fn located(&self) -> &Roots {
        self.roots.get_or_init(|| Roots::of(&self.written.report.targets))
    }

    /// The roots that paths of places begin at, by number, as bytes that a program reads.
    pub(super) fn roots(&self) -> Vec<Vec<u8>> {
        let shown = |path: &Path| self.redactor.show_bytes(path.as_os_str().as_encoded_bytes());
        self.located().paths().iter().map(|path| shown(path)).collect()
    }

    fn path_of_target(&self, target: &Target) -> Shown {
        self.redactor.show(target.path.to_string_lossy().as_bytes())
    }

    fn target_of(&self, location: &Location) -> Option<&Target> {
        self.target_numbered(location.occurrence.target)
    }

    fn target_numbered(&self, number: u32) -> Option<&Target> {
        let targets = &self.written.report.targets;
        let at = targets.binary_search_by_key(&number, |target| target.number).ok()?;
        targets.get(at)
    }

    /// The rule of a finding, as the target it was first found in has it.
    fn rule_of(&self, finding: &Finding) -> Option<&Rule> {
        let rules = &self.written.job.rules;
        let number = self.target_of(finding.first()).map_or(0, |target| usize::from(target.rules));
        let own = rules.get(number).and_then(|rules| rules.set().get(&finding.rule));
        own.or_else(|| rules.iter().find_map(|rules| rules.set().get(&finding.rule)))
    }
}

// Names and titles of rules may be the scanned repository's own.
impl<'v> FindingView<'v> {
    pub(super) fn rule(&self) -> Shown {
        self.view.redactor.show(&self.finding.rule)
    }

    pub(super) fn title(&self) -> Shown {
        let rule = self.view.rule_of(self.finding);
        self.view.redactor.show(rule.map_or(&self.finding.rule, |rule| &rule.title))
    }

    pub(super) fn tags(&self) -> Vec<Shown> {
        let rule = self.view.rule_of(self.finding);
        rule.iter().flat_map(|rule| &rule.tags).map(|tag| self.view.redactor.show(tag)).collect()
    }

    pub(super) fn severity(&self) -> Severity {
        self.finding.severity
    }

    pub(super) fn confidence(&self) -> Confidence {
        self.finding.confidence
    }

    /// One of our own words.
    pub(super) fn check(&self) -> &'v str {
        &self.finding.check
    }

    pub(super) fn entropy(&self) -> f32 {
        self.finding.entropy
    }

    pub(super) fn secret(&self) -> Shown {
        self.view.redactor.secret_of(self.finding)
    }

    pub(super) fn matched(&self) -> Shown {
        self.view.redactor.match_of(self.finding)
    }

    pub(super) fn secret_id(&self) -> SecretId {
        self.finding.secret_id
    }

    pub(super) fn places(&self) -> impl Iterator<Item = PlaceView<'v>> + use<'v> {
        let (view, finding) = (self.view, self.finding);
        finding.locations.iter().map(move |location| PlaceView { view, finding, location })
    }

    pub(super) fn places_len(&self) -> usize {
        self.finding.locations.len()
    }
}

impl<'v> PlaceView<'v> {
    pub(super) fn id(&self) -> FindingId {
        self.location.occurrence.id
    }

    pub(super) fn target(&self) -> Option<Shown> {
        self.view.target_of(self.location).map(|target| self.view.path_of_target(target))
    }

    /// The path below the target; the name of the file if the target is one, and the id of a blob that stands at no path.
    pub(super) fn path(&self) -> Shown {
        let occurrence = &self.location.occurrence;
        match (&occurrence.path[..], &occurrence.blob) {
            ([], Some(blob)) => self.view.redactor.show(hex_oid(blob)),
            ([], None) => {
                let name = self.view.target_of(self.location).and_then(|target| target.path.file_name());
                self.view.redactor.show(name.unwrap_or_default().to_string_lossy().as_bytes())
            }
            (path, _) => self.view.redactor.show(path),
        }
    }

    /// The number of the root it lies below.
    pub(super) fn root(&self) -> usize {
        self.view.located().number_of(self.location)
    }

    /// The path below its root, as bytes that a program reads.
    pub(super) fn path_in_root(&self) -> Vec<u8> {
        match self.view.located().path_of(self.location) {
            path if path.is_empty() => self.path().as_str().into(),
            path => self.view.redactor.show_bytes(&path),
        }
    }

    /// The path for programs that know one root alone.
    pub(super) fn plain_path(&self) -> Shown {
        match self.view.located().plain_path_of(self.location) {
            path if path.is_empty() => self.path(),
            path => self.view.redactor.show(path),
        }
    }

    /// The path below the target as it is, if it is no text.
    pub(super) fn path_bytes(&self) -> Option<Vec<u8>> {
        let bytes = &self.location.occurrence.path;
        std::str::from_utf8(bytes).is_err().then(|| self.view.redactor.show_bytes(bytes))
    }

    /// Whether the target is the file it stands in.
    pub(super) fn is_target(&self) -> bool {
        self.location.occurrence.path.is_empty() && self.location.occurrence.blob.is_none()
    }

    pub(super) fn start(&self) -> Position {
        self.location.occurrence.start
    }

    pub(super) fn end(&self) -> Position {
        self.location.occurrence.end
    }

    pub(super) fn offset(&self) -> u64 {
        self.location.occurrence.offset
    }

    /// Names of encodings: our own words.
    pub(super) fn decoded_from(&self) -> &'v [String] {
        &self.location.occurrence.decoded_from
    }

    /// The blob, in hex.
    pub(super) fn blob(&self) -> Option<String> {
        self.location.occurrence.blob.as_deref().map(hex_oid)
    }

    pub(super) fn commit(&self) -> Option<CommitView<'v>> {
        self.location.introduced.as_ref().map(|introduced| CommitView { view: self.view, introduced })
    }

    /// The place as gitleaks names it.
    pub(super) fn fingerprint(&self) -> Shown {
        let path = self.plain_path();
        self.view.redactor.show(fingerprint(&self.finding.rule, self.location, path.as_str()))
    }
}

impl<'v> CommitView<'v> {
    /// In hex.
    pub(super) fn id(&self) -> &'v str {
        &self.introduced.commit
    }

    pub(super) fn author(&self) -> Shown {
        self.view.redactor.show(&self.introduced.author)
    }

    pub(super) fn email(&self) -> Shown {
        self.view.redactor.show(&self.introduced.email)
    }

    pub(super) fn date(&self) -> Shown {
        self.view.redactor.show(&self.introduced.date)
    }

    pub(super) fn subject(&self) -> Shown {
        self.view.redactor.show(&self.introduced.subject)
    }
}
