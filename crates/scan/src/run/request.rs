//! What a user asks for, and the name of the run that answers it.
//!
//! The same request finds its own interrupted run: a run's id is a hash of the coordinator, the tenant, what is scanned, how,
//! and with which rules. Two requests that may find different things have different names, and so have runs of different
//! coordinators: an id pasted into a command for the wrong one matches nothing there.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use tessera_contracts::canonical::CanonicalSink;
use tessera_contracts::{RunId, TenantId, domain};

use crate::error::ScanError;
use crate::plan::target::ReadOptions;
use crate::read::rules::{Rules, RunRules};
use crate::run::coordinator_name::CoordinatorName;
use crate::run::left_out::LeftOut;
use crate::source::git::range::CommitRange;
use crate::wire::Writer;

/// What to scan, and how.
#[derive(Debug, Clone)]
pub struct ScanRequest {
    /// Who asks. Tenants do not see each other's runs.
    pub tenant: TenantId,
    /// Directories, files or repositories; the current directory if there is none.
    pub paths: Vec<PathBuf>,
    /// What of them.
    pub scope: ScanScope,
    /// Which commits of a history; all that refs lead to if none is named.
    pub range: Option<CommitRange>,
    /// What is left out.
    pub options: ReadOptions,
    /// What to look for.
    pub rules: RunRules,
    /// How hard to look.
    pub detect: tessera_detect::Options,
    /// Threads; 0 for one a core. In a fleet: how many the run is cut for at least.
    pub workers: usize,
    /// Keep secrets, so that reports can show them.
    pub keep_secrets: bool,
    /// The key under which secrets and findings are named.
    pub id_key: [u8; 32],
    /// Whether a path that cannot be scanned is left out and named, instead of being the end of the scan.
    pub tolerant: bool,
    /// What a list names besides these paths, and cannot be scanned.
    pub left_out: Vec<LeftOut>,
}

/// What of a path is scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanScope {
    /// Files as they lie there.
    Files,
    /// Every blob that a ref of the repository leads to.
    History,
    /// What is staged for the next commit.
    Staged,
}

/// The tenant of a user who names none.
pub const TENANT_DEFAULT: &str = "local";

impl ScanRequest {
    /// A request for these paths with all defaults.
    pub fn of_paths(paths: Vec<PathBuf>) -> Self {
        Self {
            tenant: TenantId::from_name(TENANT_DEFAULT),
            paths,
            scope: ScanScope::Files,
            range: None,
            options: ReadOptions::default(),
            rules: Rules::builtin().into(),
            detect: tessera_detect::Options::default(),
            workers: 0,
            keep_secrets: false,
            id_key: [0; 32],
            tolerant: false,
            left_out: Vec::new(),
        }
    }

    /// How many threads that means.
    pub(crate) fn worker_count(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        }
    }

    /// Where it leads: absolute, without links, each path once.
    pub(crate) fn canonical_paths(&self) -> Result<Vec<PathBuf>, ScanError> {
        let here = [PathBuf::from(".")];
        let paths = if self.paths.is_empty() { &here[..] } else { &self.paths };
        let (mut canonical, mut known) = (Vec::new(), HashSet::new());
        for path in paths {
            let failed = |source| ScanError::Path { path: path.clone(), source };
            let found = path.canonicalize().and_then(|found| Ok((std::fs::metadata(&found)?, found)));
            let (kind, found) = match found {
                Ok(found) => found,
                // It was there when it was listed. The plan says why it is not scanned.
                Err(_) if self.tolerant => {
                    canonical.push(path.clone());
                    continue;
                }
                Err(error) => return Err(failed(error)),
            };
            if !kind.is_file() && !kind.is_dir() {
                // Inside a tree it is skipped; a user who names one wants it searched, and must not be told that all is clean.
                let why = "a device, pipe or socket is not read; write what it has to say to a file, and scan that";
                return Err(failed(std::io::Error::other(why)));
            }
            if known.insert(found.clone()) {
                canonical.push(found);
            }
        }
        Ok(canonical)
    }

    /// The name of its run at `coordinator`, the `attempt`-th: a fleet remembers runs that ended, so each new one has another
    /// number.
    pub(crate) fn run_id(&self, coordinator: &CoordinatorName, paths: &[PathBuf], attempt: u64) -> RunId {
        let mut options = Writer::default();
        self.options.write(&mut options);
        self.range.iter().for_each(|range| range.write(&mut options));
        let mut hasher = domain::RUN_NAME_V1.hasher();
        hasher.bytes(b"scan 4");
        coordinator.hash_into(&mut hasher);
        hasher.fixed(self.tenant.as_bytes());
        hasher.u64(attempt);
        hasher.u64(paths.len() as u64);
        for path in paths {
            hasher.bytes(path.as_os_str().as_bytes());
            hasher.fixed(&self.rules.for_target(path).set().fingerprint());
        }
        hasher.u8(self.scope as u8);
        hasher.bytes(&options.0);
        hasher.bytes(self.detect.confidence_min.as_str().as_bytes());
        hasher.u64(self.detect.decode_depth as u64);
        hasher.u8(u8::from(self.detect.honour_remarks));
        hasher.u8(u8::from(self.keep_secrets));
        hasher.fixed(&self.id_key);
        RunId::new(hasher.finish_u64().max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_may_find_different_things_have_different_names() {
        let paths = [PathBuf::from("/srv")];
        let request = ScanRequest::of_paths(Vec::new());
        let local = CoordinatorName::Local;
        let name = request.run_id(&local, &paths, 0);
        assert_eq!(request.run_id(&local, &paths, 0), name, "the same request is found again");
        let changes: [fn(&mut ScanRequest); 9] = [
            |request| request.range = Some(CommitRange::default()),
            |request| request.tenant = TenantId::from_name("other"),
            |request| request.scope = ScanScope::History,
            |request| request.options.read_binary = true,
            |request| request.detect.decode_depth = 0,
            |request| request.keep_secrets = true,
            |request| request.id_key = [1; 32],
            |request| request.rules = Rules::from_gitleaks("", &mut |_| Err(String::new())).unwrap().into(),
            |request| {
                let own = Rules::from_gitleaks("[[rules]]\nid = 'x'\nregex = 'x{9}'\n", &mut |_| Err(String::new()));
                request.rules.add_own("/srv".into(), own.unwrap()).unwrap();
            },
        ];
        let etcd = |namespace: &str| CoordinatorName::Etcd { namespace: namespace.into() };
        let elsewhere = [CoordinatorName::Memory, etcd("a"), etcd("b"), etcd("")];
        let mut names = vec![name, request.run_id(&local, &paths, 1), request.run_id(&local, &[], 0)];
        names.extend(elsewhere.iter().map(|coordinator| request.run_id(coordinator, &paths, 0)));
        for change in changes {
            let mut changed = request.clone();
            change(&mut changed);
            names.push(changed.run_id(&local, &paths, 0));
        }
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        // How many threads work on it changes nothing that is found.
        assert_eq!(ScanRequest { workers: 7, ..request }.run_id(&local, &paths, 0), name);
    }
}
