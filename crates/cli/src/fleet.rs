//! Which fleet a command is about: where its coordinator is, whose runs, and where findings go.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tessera_contracts::{TenantId, WorkerId};
use tessera_coordination::backend::BlockOn;
use tessera_coordination_etcd::config::{Secret, Tls, TlsIdentity};
use tessera_coordination_etcd::{EtcdConfig, EtcdCoordinator, sync};
use tessera_scan::fleet::Connect;

/// The flags of a fleet.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FleetArgs {
    // As an attribute: documentation would take the brackets for links.
    #[arg(
        help = "The fleet's coordinator: etcd://[USER:PASSWORD@]HOST:2379[,HOST:2379…][/NAMESPACE], or etcds:// for TLS"
    )]
    #[arg(long, value_name = "URL", env = "TESSERA_COORDINATOR", hide_env_values = true, global = true)]
    pub(crate) coordinator: Option<String>,

    /// The folder for findings, which every machine of the fleet reaches under this path
    #[arg(long, value_name = "DIR", env = "TESSERA_FINDINGS", global = true)]
    pub(crate) findings: Option<PathBuf>,

    /// Whose runs; tenants do not see each other's
    #[arg(long, value_name = "NAME", env = "TESSERA_TENANT", default_value = tessera_scan::request::TENANT_DEFAULT, global = true)]
    pub(crate) tenant: String,

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
    pub(crate) findings: Option<PathBuf>,
    pub(crate) give_up_after: Duration,
}

impl FleetArgs {
    pub(crate) fn tenant(&self) -> TenantId {
        TenantId::from_name(&self.tenant)
    }

    /// The fleet that was named, if one was.
    pub(crate) fn fleet(&self) -> Result<Option<Fleet>, String> {
        let Some(url) = &self.coordinator else { return Ok(None) };
        let mut config = EtcdConfig::from_url(url).map_err(|error| error.to_string())?;
        config.tls = self.tls()?;
        config.validate().map_err(|error| error.to_string())?;
        let findings = match &self.findings {
            // Workers elsewhere are told nothing of where we are: the path must mean the same everywhere.
            Some(dir) => Some(std::path::absolute(dir).map_err(|error| format!("--findings: {error}"))?),
            None => None,
        };
        let give_up_after = Duration::from_secs(self.give_up_after);
        Ok(Some(Fleet { config, findings, give_up_after }))
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
    /// The folder for findings, for commands that need it.
    pub(crate) fn findings(&self) -> Result<&Path, String> {
        self.findings.as_deref().ok_or_else(|| {
            "name the folder for findings with --findings DIR: every machine of the fleet must reach it under this path"
                .into()
        })
    }
}

impl Connect for Fleet {
    type Backend = EtcdCoordinator;

    fn connect(&self) -> Result<EtcdCoordinator, String> {
        sync::connect(self.config.clone()).map_err(|error| error.to_string())
    }

    fn leave(&self, backend: &mut EtcdCoordinator, worker: WorkerId) {
        // Not told, the session ends by itself in a few seconds.
        let _ = backend.executor.block_on(backend.backend.end_session(worker));
    }
}
