//! Which fleet a command is about: where its coordinator is, whose runs, and where findings go.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tessera_contracts::{ShardEpoch, TenantId, WorkerId};
use tessera_coordination::backend::BlockOn;
use tessera_coordination_etcd::config::{Secret, Tls, TlsIdentity};
use tessera_coordination_etcd::{EtcdConfig, EtcdCoordinator, sync};
use tessera_scan::error::ScanError;
use tessera_scan::fleet::patience::infra_of;
use tessera_scan::fleet::{Connect, HELD_MAX, Patience, Patient};
use tessera_scan::run::coordinator_name::CoordinatorName;
use tessera_scan::run::label::RunKey;
use tessera_scan::run::request::TENANT_DEFAULT;
use tessera_scan::sweep::Held;

use crate::login::Parted;
use crate::{hint, login};

/// The flags of a fleet.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FleetArgs {
    // As an attribute: documentation would take the brackets for links.
    #[arg(
        help = "The fleet's coordinator: etcd://[USER@]HOST:2379[,HOST:2379…][/NAMESPACE], or etcds:// for TLS; the password of USER is in the variable TESSERA_COORDINATOR_PASSWORD or in a file"
    )]
    #[arg(long, value_name = "URL", env = "TESSERA_COORDINATOR", hide_env_values = true, global = true)]
    pub(crate) coordinator: Option<String>,

    /// The folder for findings, which every machine of the fleet reaches under this path
    #[arg(long, value_name = "DIR", env = "TESSERA_FINDINGS", global = true)]
    pub(crate) findings: Option<PathBuf>,

    /// Whose runs; tenants do not see each other's
    #[arg(long, value_name = "NAME", env = "TESSERA_TENANT", default_value = TENANT_DEFAULT, global = true)]
    pub(crate) tenant: String,

    /// A file with the password of the coordinator's user
    #[arg(long, value_name = "FILE", env = "TESSERA_COORDINATOR_PASSWORD_FILE", global = true)]
    coordinator_password_file: Option<PathBuf>,

    /// The authority that signed the coordinator's certificate, in PEM (for etcds://)
    #[arg(long, value_name = "FILE", global = true)]
    coordinator_ca: Option<PathBuf>,

    /// Our certificate for the coordinator, in PEM
    #[arg(long, value_name = "FILE", requires = "coordinator_key", global = true)]
    coordinator_cert: Option<PathBuf>,

    /// The key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "coordinator_cert", global = true)]
    coordinator_key: Option<PathBuf>,

    /// Settings to use instead of those in tessera.toml
    #[arg(long, value_name = "FILE", env = "TESSERA_CONFIG", global = true)]
    pub(crate) config: Option<PathBuf>,

    /// How long the coordinator may be away before the program ends, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, global = true)]
    give_up_after: u64,
}

/// A fleet that can be reached.
#[derive(Debug)]
pub(crate) struct Fleet {
    config: EtcdConfig,
    /// The flags that name it, for hints.
    pub(crate) flags: Vec<String>,
    pub(crate) findings: Option<PathBuf>,
    pub(crate) give_up_after: Duration,
}

impl FleetArgs {
    /// The flags that name this fleet, for a hint: as they were given, without the password.
    pub(crate) fn flags(&self) -> Vec<String> {
        let Some(url) = &self.coordinator else { return self.tenant_flag() };
        let mut flags = vec!["--coordinator".to_owned(), hint::without_password(url)];
        for (flag, path) in [
            ("--findings", &self.findings),
            ("--coordinator-password-file", &self.coordinator_password_file),
            ("--coordinator-ca", &self.coordinator_ca),
            ("--coordinator-cert", &self.coordinator_cert),
            ("--coordinator-key", &self.coordinator_key),
        ] {
            flags.extend(hint::path_flag(flag, path.as_deref()));
        }
        flags.extend(self.tenant_flag());
        flags
    }

    fn tenant_flag(&self) -> Vec<String> {
        if self.tenant == TENANT_DEFAULT { Vec::new() } else { vec!["--tenant".to_owned(), self.tenant.clone()] }
    }

    pub(crate) fn tenant(&self) -> TenantId {
        TenantId::from_name(&self.tenant)
    }

    /// The fleet that was named, if one was.
    pub(crate) fn fleet(&self) -> Result<Option<Fleet>, String> {
        let Some(url) = &self.coordinator else { return Ok(None) };
        let Parted { url, login } = login::parted(url);
        let mut config = EtcdConfig::from_url(&url).map_err(|error| error.to_string())?;
        config.credentials = login::credentials(login, self.coordinator_password_file.as_deref())?;
        config.tls = self.tls()?;
        config.validate().map_err(|error| error.to_string())?;
        let findings = match &self.findings {
            // Workers elsewhere are told nothing of where we are: the path must mean the same everywhere.
            Some(dir) => Some(std::path::absolute(dir).map_err(|error| format!("--findings: {error}"))?),
            None => None,
        };
        let give_up_after = Duration::from_secs(self.give_up_after);
        Ok(Some(Fleet { config, flags: self.flags(), findings, give_up_after }))
    }

    fn tls(&self) -> Result<Option<Tls>, String> {
        let read =
            |path: &Path| std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()));
        let Some(ca) = &self.coordinator_ca else { return Ok(None) };
        let identity = match (&self.coordinator_cert, &self.coordinator_key) {
            (Some(certificate), Some(key)) => {
                let key_pem = String::from_utf8(read(key)?).map_err(|_| format!("{} is not PEM", key.display()))?;
                Some(TlsIdentity { certificate_pem: read(certificate)?, key_pem: Secret::new(key_pem) })
            }
            _ => None,
        };
        Ok(Some(Tls { ca_pem: read(ca)?, identity, server_name: None }))
    }
}

impl Fleet {
    /// The coordinator as run ids and findings folders name it.
    pub(crate) fn name(&self) -> CoordinatorName {
        CoordinatorName::Etcd { namespace: self.config.namespace.clone() }
    }

    /// Where a run was looked for, for an error.
    pub(crate) fn place(&self) -> String {
        format!("etcd at {}, namespace {}", self.config.endpoints.join(","), self.config.namespace)
    }

    /// The coordinator for a submitter or an operator: calls that fail for now are repeated for as long as the user allows.
    pub(crate) fn patient<'p>(&self, stop: &'p AtomicBool) -> Result<Patient<'p, EtcdCoordinator>, String> {
        let patience = Patience::new(self.give_up_after, stop, &|text| tell!("warning: {text}"));
        Ok(Patient::new(self.connect()?, patience))
    }

    /// The folder for findings, for commands that need it.
    pub(crate) fn findings(&self) -> Result<&Path, String> {
        self.findings.as_deref().ok_or_else(|| {
            "name the folder for findings with --findings DIR: every machine of the fleet must reach it under this path"
                .into()
        })
    }
}

/// The coordinator's refusal, or the failure of its store without the name of a call.
pub(crate) fn failure(error: impl std::error::Error + 'static) -> String {
    if infra_of(&error).is_some() { ScanError::coordinator(error).to_string() } else { error.to_string() }
}

impl Connect for Fleet {
    type Backend = EtcdCoordinator;

    fn connect(&self) -> Result<EtcdCoordinator, String> {
        sync::connect(self.config.clone()).map_err(|error| error.to_string())
    }

    fn join(&self, backend: &mut EtcdCoordinator, tenant: TenantId, worker: WorkerId) {
        // A coordinator that is away or denies access is told of by the next look for runs.
        let _ = backend.executor.block_on(backend.backend.join(tenant, worker));
    }

    fn abstain(&self, backend: &mut EtcdCoordinator, tenant: TenantId, run: RunKey, worker: WorkerId) {
        let _ = backend.executor.block_on(backend.backend.abstain(tenant, run.run, run.incarnation, worker));
    }

    fn take_part(&self, backend: &mut EtcdCoordinator, tenant: TenantId, run: RunKey, worker: WorkerId) {
        let _ = backend.executor.block_on(backend.backend.take_part(tenant, run.run, run.incarnation, worker));
    }

    fn held(&self, backend: &mut EtcdCoordinator, tenant: TenantId, run: RunKey) -> Vec<Held> {
        let held =
            backend.executor.block_on(backend.backend.held(tenant, run.run, HELD_MAX as u32)).unwrap_or_default();
        // The owners of another creation of the run refuse what they are asked.
        let epoch = |fence| ShardEpoch::new(run.incarnation, fence);
        held.into_iter().map(|(shard, fence)| Held { shard, epoch: epoch(fence) }).collect()
    }

    fn leave(&self, backend: &mut EtcdCoordinator, worker: WorkerId) {
        // Not told, the session ends by itself in a few seconds.
        let _ = backend.executor.block_on(backend.backend.end_session(worker));
    }
}
