//! What is known and not to be reported again.
//!
//! `.gitleaksignore` names places by fingerprint, one a line: `file:rule:line`, or `commit:file:rule:line` in a history. A
//! file that lies in a target speaks of that target alone, and names files below the target. One at the root of the repository around
//! a target names files below that root: `x.env` there is not the `x.env` of a folder.
//!
//! A baseline is an earlier report, and is named by a flag, so it holds for all targets. Ours names secrets by their id
//! and not by line, so it stays valid when code moves, and the same works in an ignore file: a line with a secret's id. Gitleaks' names
//! places and the secrets there; both must be the same, as in gitleaks: a place with another secret than then is a new finding. It is
//! compared by rule, file, commit, line and secret. (Gitleaks also compares columns, description, author and message, which
//! tell nothing more about what leaked and which the two programs do not write alike.)
//!
//! A redacted baseline does not tell its secrets, so they cannot be compared, and a place alone is not enough: its entries suppress
//! nothing, and [`Suppressions::notes`] says so. Reports that this program writes in gitleaks' format carry the secret's id beside
//! the redacted secret and can be compared.

use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tessera_detect::{IdKey, SecretId};
use tessera_git_objects::layout;

use crate::report::finding::{Finding, Location};
use crate::report::redact::legible;
use crate::report::root::Roots;
use crate::run::ScanReport;
use crate::source::small_file;

/// Known places and secrets.
#[derive(Debug)]
pub struct Suppressions {
    id_key: IdKey,
    /// In all targets.
    everywhere: Known,
    /// In one target, by its path.
    in_target: BTreeMap<PathBuf, OwnLists>,
    notes: Vec<String>,
}

/// What ignore files say about one target.
#[derive(Debug, Default)]
struct OwnLists {
    /// With paths below the root of the repository around the target.
    of_repository: Known,
    /// With paths below the target.
    of_target: Known,
}

impl OwnLists {
    fn names(&self, finding: &Finding, location: &Location, roots: &Roots) -> bool {
        self.of_repository.names(finding, location, || vec![roots.path_of(location)])
            || self.of_target.names(finding, location, || vec![location.occurrence.path.clone()])
    }
}

#[derive(Debug, Default)]
struct Known {
    fingerprints: HashSet<String>,
    secrets: HashSet<String>,
    /// Places, each with the secret that was there.
    found: HashSet<(String, SecretId)>,
}

/// Why a list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SuppressError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is no report.
    #[error("{path} is no report of tessera or gitleaks in JSON: {reason}")]
    Baseline {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
}

impl Default for Suppressions {
    fn default() -> Self {
        Self::new([0; 32])
    }
}

impl Suppressions {
    /// Nothing is known yet. Secrets are named under `id_key`, as in the run.
    pub fn new(id_key: [u8; 32]) -> Self {
        let (everywhere, in_target, notes) = Default::default();
        Self { id_key: IdKey::new(id_key), everywhere, in_target, notes }
    }

    /// Adds what the ignore file of a target names, if it has one, and what that of its repository does. `target` is absolute and
    /// without links.
    pub fn add_ignore_file_of(&mut self, target: &Path) -> Result<(), SuppressError> {
        let own = self.in_target.entry(target.to_path_buf()).or_default();
        if let Some(root) = layout::root_of(target).ok().filter(|root| root != target) {
            own.of_repository.add_ignore_file_in(&root)?;
        }
        own.of_target.add_ignore_file_in(target)
    }

    /// Adds the lines of an ignore file, for all targets.
    pub fn add_lines(&mut self, text: &str) {
        self.everywhere.add_lines(text);
    }

    /// Adds everything an earlier report names.
    pub fn add_baseline(&mut self, path: &Path) -> Result<(), SuppressError> {
        let name = path.display().to_string();
        let text = std::fs::read(path).map_err(|source| SuppressError::Io { path: name.clone(), source })?;
        let added = self.everywhere.add_report(&text, &self.id_key);
        let Added { entries, redacted } =
            added.map_err(|reason| SuppressError::Baseline { path: name.clone(), reason })?;
        if redacted > 0 {
            self.notes.push(format!(
                "{redacted} of {entries} findings of the baseline {name} are redacted: their secrets cannot be compared, so they \
                 suppress nothing; make the baseline with `tessera scan --format json`, or with gitleaks without --redact"
            ));
        }
        Ok(())
    }

    /// What a user should know about the lists that were added.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Leaves out what is known; returns how many places that were.
    pub fn apply(&self, report: &mut ScanReport) -> u64 {
        let ScanReport { targets, findings, .. } = report;
        let roots = Roots::of(targets);
        let own: BTreeMap<u32, &OwnLists> =
            targets.iter().filter_map(|target| Some((target.number, self.in_target.get(&target.path)?))).collect();
        let mut known = 0;
        findings.retain_mut(|finding| {
            let mut locations = std::mem::take(&mut finding.locations);
            locations.retain(|location| {
                let of_target = own.get(&location.occurrence.target);
                let is_known = self.everywhere.names(finding, location, || paths_known_by(&roots, location))
                    || of_target.is_some_and(|lists| lists.names(finding, location, &roots));
                known += u64::from(is_known);
                !is_known
            });
            finding.locations = locations;
            !finding.locations.is_empty()
        });
        known
    }
}

/// What an earlier report had.
#[derive(Debug, PartialEq, Eq)]
struct Added {
    entries: usize,
    /// Entries whose secret cannot be compared.
    redacted: usize,
}

impl Known {
    fn add_ignore_file_in(&mut self, folder: &Path) -> Result<(), SuppressError> {
        let path = folder.join(".gitleaksignore");
        match small_file::read_found(&path) {
            Ok(text) => {
                self.add_lines(&text);
                Ok(())
            }
            // What is no folder has none in it.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
            Err(source) => Err(SuppressError::Io { path: path.display().to_string(), source }),
        }
    }

    fn add_lines(&mut self, text: &str) {
        for line in text.lines() {
            let line = line.split(" #").next().unwrap_or_default().trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line.len() == 64 && line.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                self.secrets.insert(line.to_ascii_lowercase());
            } else {
                self.fingerprints.insert(line.to_owned());
            }
        }
    }

    fn add_report(&mut self, text: &[u8], id_key: &IdKey) -> Result<Added, String> {
        let report: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let text_of = |entry: &Value, field: &str| entry.get(field).and_then(Value::as_str).map(str::to_owned);
        if let Some(findings) = report.get("findings").and_then(Value::as_array) {
            for finding in findings {
                self.secrets.insert(text_of(finding, "secret_id").ok_or("a finding has no secret_id")?);
            }
            return Ok(Added { entries: findings.len(), redacted: 0 });
        }
        let entries = report.as_array().ok_or("neither a list nor an object with findings")?;
        let mut redacted = 0;
        for entry in entries {
            let required = |field: &str| text_of(entry, field).ok_or_else(|| format!("a finding has no {field}"));
            let (rule, file, secret) = (required("RuleID")?, required("File")?, required("Secret")?);
            let line = entry.get("StartLine").and_then(Value::as_u64).ok_or("a finding has no StartLine")?;
            let commit = text_of(entry, "Commit").unwrap_or_default();
            let id = match text_of(entry, "SecretID") {
                Some(id) => parse_id(&id).ok_or("a SecretID is not one")?,
                None => {
                    redacted += usize::from(looks_redacted(&secret));
                    id_key.secret_id(secret.as_bytes())
                }
            };
            self.found.insert((place_named(&commit, &file, &rule, line), id));
        }
        Ok(Added { entries: entries.len(), redacted })
    }

    /// Whether it names this place, whose file may be called any of `paths`.
    fn names(&self, finding: &Finding, location: &Location, paths: impl Fn() -> Vec<Vec<u8>>) -> bool {
        if self.secrets.contains(&finding.secret_id.to_string()) {
            return true;
        }
        if self.fingerprints.is_empty() && self.found.is_empty() {
            return false;
        }
        paths().into_iter().any(|path| {
            let place = fingerprint(&finding.rule, location, &legible(&path));
            self.fingerprints.contains(&place) || self.found.contains(&(place, finding.secret_id))
        })
    }
}

/// Whether a report does not tell this secret: what gitleaks writes for `--redact`, or we without `--show-secrets`.
fn looks_redacted(secret: &str) -> bool {
    secret == "REDACTED" || secret.ends_with("...") || secret.ends_with("****")
}

fn parse_id(text: &str) -> Option<SecretId> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks_exact(2);
    let bytes: Option<Vec<u8>> = pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect();
    (text.len() == 64).then_some(bytes?)?.try_into().ok().map(SecretId)
}

/// A place as gitleaks names it, with the file at this path.
pub(super) fn fingerprint(rule: &str, location: &Location, path: &str) -> String {
    let commit = location.introduced.as_ref().map_or("", |introduced| &introduced.commit);
    place_named(commit, path, rule, location.occurrence.start.line)
}

/// The paths under which a list for all targets may know a place: below its root, as our reports have it, or below its target, as programs have it
/// that were started there.
fn paths_known_by(roots: &Roots, location: &Location) -> Vec<Vec<u8>> {
    vec![roots.path_of(location), roots.plain_path_of(location), location.occurrence.path.clone()]
}

fn place_named(commit: &str, file: &str, rule: &str, line: u64) -> String {
    if commit.is_empty() { format!("{file}:{rule}:{line}") } else { format!("{commit}:{file}:{rule}:{line}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::tests::{findings, report};

    /// Places left out, and places left.
    fn applied(suppressions: &Suppressions) -> (u64, usize) {
        let mut report = report();
        let known = suppressions.apply(&mut report);
        (known, report.findings.iter().map(|finding| finding.locations.len()).sum())
    }

    #[test]
    fn a_fingerprint_silences_one_place_and_a_secret_id_all_of_them() {
        let mut suppressions = Suppressions::default();
        suppressions.add_lines("# known\n\na.env:github-pat:2   # test key\n");
        assert_eq!(applied(&suppressions), (1, 1));
        let mut suppressions = Suppressions::default();
        suppressions.add_lines(&findings()[0].secret_id.to_string().to_uppercase());
        assert_eq!(applied(&suppressions), (2, 0));
    }

    #[test]
    fn an_ignore_file_speaks_of_its_own_target_alone() {
        let dir = tempfile::tempdir().unwrap();
        let id = findings()[0].secret_id.to_string();
        for lines in [&id[..], "a.env:github-pat:2\nb/b.env:github-pat:1\n"] {
            std::fs::write(dir.path().join(".gitleaksignore"), lines).unwrap();
            let mut suppressions = Suppressions::default();
            suppressions.add_ignore_file_of(dir.path()).unwrap();
            suppressions.add_ignore_file_of(Path::new("/no/such/target")).unwrap();
            assert_eq!(applied(&suppressions), (0, 2), "of another target");
            let mut report = report();
            report.targets[0].path = dir.path().to_path_buf();
            // One of the two places is in another target.
            report.findings[0].locations[1].occurrence.target = 1;
            assert_eq!((suppressions.apply(&mut report), report.findings[0].locations.len()), (1, 1));
            assert_eq!(report.findings[0].locations[0].occurrence.target, 1);
        }
    }

    #[test]
    fn an_ignore_file_of_a_repository_names_places_below_its_root_and_that_of_a_folder_below_the_folder() {
        let repository = test_support::Repository::new();
        let root = repository.path().canonicalize().unwrap();
        let folder = root.join("src");
        std::fs::create_dir(&folder).unwrap();
        for (dir, line, known) in
            [(&root, "a.env", 0), (&root, "src/a.env", 1), (&folder, "a.env", 1), (&folder, "src/a.env", 0)]
        {
            let file = dir.join(".gitleaksignore");
            std::fs::write(&file, format!("{line}:github-pat:2\n")).unwrap();
            let mut suppressions = Suppressions::default();
            suppressions.add_ignore_file_of(&folder).unwrap();
            let mut report = report();
            report.targets[0].path.clone_from(&folder);
            assert_eq!(suppressions.apply(&mut report), known, "{line} in {}", dir.display());
            std::fs::remove_file(file).unwrap();
        }
    }

    fn baseline(suppressions: &mut Suppressions, report: &Value) -> Result<Added, String> {
        suppressions.everywhere.add_report(report.to_string().as_bytes(), &suppressions.id_key)
    }

    #[test]
    fn a_place_of_gitleaks_is_known_only_with_the_same_secret() {
        let key = IdKey::new([7; 32]);
        let secret_id = key.secret_id(b"the secret");
        let entry = |change: fn(&mut Value)| {
            let mut entry = json!({
                "RuleID": "github-pat", "File": "a.env", "StartLine": 2, "Commit": "", "Secret": "the secret",
                "Match": "x", "Fingerprint": "of another version",
            });
            change(&mut entry);
            let mut suppressions = Suppressions::new([7; 32]);
            baseline(&mut suppressions, &json!([entry])).unwrap();
            let mut report = report();
            report.findings[0].secret_id = secret_id;
            suppressions.apply(&mut report)
        };
        assert_eq!(entry(|_| {}), 1);
        let changes: [fn(&mut Value); 5] = [
            |entry| entry["Secret"] = "it was rotated".into(),
            |entry| entry["RuleID"] = "other".into(),
            |entry| entry["File"] = "b.env".into(),
            |entry| entry["StartLine"] = 3.into(),
            |entry| entry["Commit"] = "abcd".into(),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            assert_eq!(entry(change), 0, "case {index}");
        }
    }

    #[test]
    fn a_redacted_baseline_suppresses_nothing_and_says_so_unless_it_names_the_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("known.json");
        let id = findings()[0].secret_id.to_string();
        for (secret, own_id, known, notes) in [
            ("REDACTED", None, 0, 1),
            ("ghp_...", None, 0, 1),
            ("ghp_****", None, 0, 1),
            ("ghp_****", Some(&id), 1, 0),
            ("another one", None, 0, 0),
        ] {
            let mut entry = json!({"RuleID": "github-pat", "File": "a.env", "StartLine": 2, "Secret": secret});
            if let Some(id) = own_id {
                entry["SecretID"] = id.as_str().into();
            }
            std::fs::write(&path, json!([entry]).to_string()).unwrap();
            let mut suppressions = Suppressions::default();
            suppressions.add_baseline(&path).unwrap();
            assert_eq!((applied(&suppressions).0, suppressions.notes().len()), (known, notes), "{secret} {own_id:?}");
            assert!(suppressions.notes().iter().all(|note| note.contains("1 of 1") && note.contains("known.json")));
        }
    }

    #[test]
    fn a_baseline_of_ours_names_secrets_and_what_is_no_baseline_is_refused() {
        let mut ours = Suppressions::default();
        let id = findings()[0].secret_id.to_string();
        baseline(&mut ours, &json!({"findings": [{"secret_id": id}]})).unwrap();
        assert_eq!(applied(&ours), (2, 0));
        for bad in [&b"{}"[..], b"[{}]", b"nonsense", br#"{"findings": [{}]}"#, br#"[{"Fingerprint": "a:b:1"}]"#] {
            assert!(Suppressions::default().everywhere.add_report(bad, &IdKey::new([0; 32])).is_err());
        }
    }
}
