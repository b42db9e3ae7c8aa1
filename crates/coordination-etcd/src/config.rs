//! What an operator may set, checked before anything connects.
//!
//! Every refusal names the field and says what would be right. Secrets live in [`Secret`], whose `Debug` prints a length.

use core::fmt;
use core::time::Duration;

use crate::counters::KEYS;

/// Everything the etcd backend needs to know.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// Where the members are: `http://host:port` or `https://host:port`, all of the same scheme.
    pub endpoints: Vec<String>,
    /// The prefix of every key: two fleets with different namespaces share a cluster without meeting.
    pub namespace: String,
    /// User and password, for a cluster with authentication on.
    pub credentials: Option<Credentials>,
    /// Certificates; needed for `https` endpoints.
    pub tls: Option<Tls>,
    /// How long one member may take to accept a connection.
    pub connect_timeout: Duration,
    /// How long one request may take before it is called lost. An operation may make several.
    pub attempt_timeout: Duration,
    /// By when an operation has ended, with all its retries.
    pub call_timeout: Duration,
    /// How often a busy connection is probed. etcd by default cuts off clients that probe more than every 5 s.
    pub keep_alive_interval: Duration,
    /// How long a probe may stay unanswered.
    pub keep_alive_timeout: Duration,
    /// How often one operation is tried after lost races and failures that did not apply.
    pub attempts_max: u32,
    /// The first pause between tries; it doubles, with jitter.
    pub retry_delay_min: Duration,
    /// The longest pause between tries.
    pub retry_delay_max: Duration,
    /// How long a worker's etcd lease outlives its last heartbeat: the failover time after a crash.
    pub session_ttl: Duration,
    /// The least of it for runs with short leases, whose sessions are otherwise as short as they are: raise it where
    /// workers are paused for seconds, by a loaded machine for instance.
    pub session_ttl_min: Duration,
    /// How far ahead a claimant's clock may be before it would steal: this much is added to a foreign deadline.
    pub skew_tolerance: Duration,
    /// How long a lease lasts in runs that do not say.
    pub lease_duration_default: Duration,
    /// How long a worker waits after a successful claim before its next; zero for none.
    pub claim_cooldown: Duration,
    /// How old the advice may be that comes with acquires and renewals: how many shards can be claimed. Zero makes each of
    /// them read its own.
    pub hint_age_max: Duration,
    /// The server's `--max-txn-ops`.
    pub txn_ops_max: usize,
    /// The server's `--max-request-bytes`, less some room for its own framing.
    pub request_bytes_max: usize,
    /// How many shards' operations one request carries at most.
    pub batch_ops_max: usize,
    /// How many batches are under way at once.
    pub batches_in_flight_max: usize,
    /// Shards a tenant may have.
    pub shards_per_tenant_max: u64,
    /// Shards all tenants together may have.
    pub shards_total_max: u64,
}

impl Default for EtcdConfig {
    /// A local server, no TLS, times for a fleet on one network.
    fn default() -> Self {
        Self {
            endpoints: vec!["http://127.0.0.1:2379".to_owned()],
            namespace: "tessera".to_owned(),
            credentials: None,
            tls: None,
            connect_timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_secs(2),
            call_timeout: Duration::from_secs(10),
            keep_alive_interval: Duration::from_secs(6),
            keep_alive_timeout: Duration::from_secs(3),
            attempts_max: 16,
            retry_delay_min: Duration::from_millis(2),
            retry_delay_max: Duration::from_millis(200),
            session_ttl: Duration::from_secs(15),
            session_ttl_min: SESSION_TTL_MIN,
            skew_tolerance: Duration::from_secs(1),
            lease_duration_default: Duration::from_secs(30),
            claim_cooldown: Duration::ZERO,
            hint_age_max: Duration::from_secs(1),
            txn_ops_max: 128,
            request_bytes_max: 1_500_000,
            batch_ops_max: 64,
            batches_in_flight_max: 4,
            shards_per_tenant_max: 100_000,
            shards_total_max: 1_000_000,
        }
    }
}

/// A user of a cluster with authentication on.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The user's name.
    pub user: String,
    /// The user's password.
    pub password: Secret,
}

/// Certificates, in PEM.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Whom to believe: the authority that signed the servers' certificates.
    pub ca_pem: Vec<u8>,
    /// Who we are, where the cluster asks for client certificates.
    pub identity: Option<TlsIdentity>,
    /// The name expected in the servers' certificates, where it is not the host of the endpoint.
    pub server_name: Option<String>,
}

/// A client certificate with its key, in PEM.
#[derive(Clone, Debug)]
pub struct TlsIdentity {
    /// The certificate.
    pub certificate_pem: Vec<u8>,
    /// Its private key.
    pub key_pem: Secret,
}

/// Text that must not reach a log: its `Debug` prints a length.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps the text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one place that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}

/// A setting that cannot work, and what would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The field at fault.
    pub field: &'static str,
    /// What is wrong with it and what would be right.
    pub problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd setting `{}`: {}", self.field, self.problem)
    }
}

impl std::error::Error for ConfigError {}

/// The most a namespace may measure; keys repeat it.
pub const NAMESPACE_BYTES_MAX: usize = 64;
/// The most members a client is told of.
pub const ENDPOINTS_MAX: usize = 32;
/// etcd raises shorter leases to about this, so a shorter wish would be a false promise.
pub const SESSION_TTL_MIN: Duration = Duration::from_secs(2);
/// The least that the server's `--max-txn-ops` may be: a removal writes all keys of both counters of a tenant beside what it
/// deletes. Everything else takes less, or is cut into pieces that fit.
pub const TXN_OPS_MIN: usize = 2 * KEYS + 8;

impl EtcdConfig {
    /// Reads `etcd://[user:password@]host:port[,host:port…][/namespace]`; `etcds://` means TLS, whose certificates are
    /// set separately.
    ///
    /// # Errors
    /// If it is not of that form; the error says which part.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let wrong = |problem: &str| ConfigError { field: "url", problem: problem.to_owned() };
        let (scheme, rest) = if let Some(rest) = url.strip_prefix("etcd://") {
            ("http", rest)
        } else if let Some(rest) = url.strip_prefix("etcds://") {
            ("https", rest)
        } else {
            return Err(wrong("must begin with etcd:// or etcds://"));
        };
        let (authority, namespace) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let mut config =
            Self { endpoints: hosts.split(',').map(|host| format!("{scheme}://{host}")).collect(), ..Self::default() };
        if !namespace.is_empty() {
            config.namespace = namespace.to_owned();
        }
        if let Some(login) = login {
            let (user, password) = login.split_once(':').ok_or_else(|| wrong("a login is user:password"))?;
            config.credentials = Some(Credentials { user: user.to_owned(), password: Secret::new(password) });
        }
        Ok(config)
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field that cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_endpoints()?;
        validate_namespace(&self.namespace)?;
        if let Some(credentials) = &self.credentials {
            require(!credentials.user.is_empty(), "credentials", || "the user name is empty".to_owned())?;
            require(!credentials.password.0.is_empty(), "credentials", || "the password is empty".to_owned())?;
        }
        self.validate_times()?;
        self.validate_bounds()
    }

    fn validate_endpoints(&self) -> Result<(), ConfigError> {
        let field = "endpoints";
        require(!self.endpoints.is_empty(), field, || "name at least one, such as http://127.0.0.1:2379".to_owned())?;
        require(self.endpoints.len() <= ENDPOINTS_MAX, field, || {
            format!("{} given, at most {ENDPOINTS_MAX} are used", self.endpoints.len())
        })?;
        for (index, url) in self.endpoints.iter().enumerate() {
            let uri: http::Uri = url
                .parse()
                .map_err(|error| ConfigError { field, problem: format!("{url:?} is not a URL: {error}") })?;
            let scheme = uri.scheme_str().unwrap_or_default();
            require(matches!(scheme, "http" | "https"), field, || {
                format!("{url:?} must begin with http:// or https://")
            })?;
            require(uri.port_u16().is_some(), field, || format!("{url:?} names no port; etcd's is usually 2379"))?;
            require(matches!(uri.path(), "" | "/") && uri.query().is_none(), field, || {
                format!("{url:?} has a path; an endpoint is scheme, host and port")
            })?;
            require(!uri.authority().is_some_and(|a| a.as_str().contains('@')), field, || {
                "an endpoint holds a login; set `credentials` instead".to_owned()
            })?;
            require(!self.endpoints[..index].contains(url), field, || format!("{url:?} is named twice"))?;
            require((scheme == "https") == self.tls.is_some(), "tls", || match scheme {
                "https" => format!("{url:?} speaks TLS, but no certificate authority is set"),
                _ => format!("certificates are set, but {url:?} is not https"),
            })?;
        }
        Ok(())
    }

    fn validate_times(&self) -> Result<(), ConfigError> {
        for (field, time) in [
            ("connect_timeout", self.connect_timeout),
            ("attempt_timeout", self.attempt_timeout),
            ("call_timeout", self.call_timeout),
            ("keep_alive_interval", self.keep_alive_interval),
            ("keep_alive_timeout", self.keep_alive_timeout),
            ("retry_delay_min", self.retry_delay_min),
            ("retry_delay_max", self.retry_delay_max),
            ("lease_duration_default", self.lease_duration_default),
        ] {
            require(!time.is_zero(), field, || "zero would never succeed".to_owned())?;
            require(time <= Duration::from_secs(3600), field, || format!("{time:?} is over an hour"))?;
        }
        require(self.attempt_timeout <= self.call_timeout, "attempt_timeout", || {
            format!("{:?} is longer than call_timeout, {:?}", self.attempt_timeout, self.call_timeout)
        })?;
        require(self.retry_delay_min <= self.retry_delay_max, "retry_delay_min", || {
            format!("{:?} is longer than retry_delay_max, {:?}", self.retry_delay_min, self.retry_delay_max)
        })?;
        require(self.session_ttl >= SESSION_TTL_MIN, "session_ttl", || {
            format!("{:?} is below {SESSION_TTL_MIN:?}, the least that etcd grants", self.session_ttl)
        })?;
        require(self.session_ttl <= Duration::from_secs(3600), "session_ttl", || {
            format!("{:?} would leave a dead worker's shards idle for over an hour", self.session_ttl)
        })?;
        require((SESSION_TTL_MIN..=self.session_ttl).contains(&self.session_ttl_min), "session_ttl_min", || {
            format!(
                "{:?} is not within {SESSION_TTL_MIN:?}..={:?} (session_ttl)",
                self.session_ttl_min, self.session_ttl
            )
        })?;
        // A heartbeat is sent each third of the TTL; if one attempt could outlast a third, one lost answer could cost
        // the session.
        require(self.attempt_timeout <= self.session_ttl / 2, "attempt_timeout", || {
            format!("{:?} is more than half of session_ttl, {:?}", self.attempt_timeout, self.session_ttl)
        })?;
        require(self.claim_cooldown <= Duration::from_secs(3600), "claim_cooldown", || {
            format!("{:?} is over an hour", self.claim_cooldown)
        })?;
        require(self.hint_age_max <= Duration::from_secs(3600), "hint_age_max", || {
            format!("{:?} is over an hour", self.hint_age_max)
        })?;
        require(self.skew_tolerance <= Duration::from_secs(3600), "skew_tolerance", || {
            format!("{:?} is over an hour: set the clocks instead", self.skew_tolerance)
        })
    }

    fn validate_bounds(&self) -> Result<(), ConfigError> {
        require((1..=1000).contains(&self.attempts_max), "attempts_max", || {
            format!("{} is not within 1..=1000", self.attempts_max)
        })?;
        require((TXN_OPS_MIN..=65_536).contains(&self.txn_ops_max), "txn_ops_max", || {
            format!("{} is not within {TXN_OPS_MIN}..=65536; etcd's default is 128", self.txn_ops_max)
        })?;
        // One record with its longest key, metadata and token must fit.
        require((131_072..=64 << 20).contains(&self.request_bytes_max), "request_bytes_max", || {
            format!("{} is not within 131072..=67108864; etcd's default is 1572864", self.request_bytes_max)
        })?;
        require(self.batch_ops_max >= 1 && self.batch_ops_max < self.txn_ops_max, "batch_ops_max", || {
            format!("{} is not within 1..{} (txn_ops_max)", self.batch_ops_max, self.txn_ops_max)
        })?;
        require((1..=64).contains(&self.batches_in_flight_max), "batches_in_flight_max", || {
            format!("{} is not within 1..=64", self.batches_in_flight_max)
        })?;
        require(self.shards_per_tenant_max >= 1, "shards_per_tenant_max", || "zero admits no shard".to_owned())?;
        require(self.shards_total_max >= 1, "shards_total_max", || "zero admits no shard".to_owned())
    }
}

/// A namespace is path segments of plain ASCII, so that keys stay readable and no segment can imitate another.
fn validate_namespace(namespace: &str) -> Result<(), ConfigError> {
    let field = "namespace";
    require((1..=NAMESPACE_BYTES_MAX).contains(&namespace.len()), field, || {
        format!("{} bytes; 1 to {NAMESPACE_BYTES_MAX} are allowed", namespace.len())
    })?;
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.');
    require(namespace.split('/').all(|segment| !segment.is_empty() && segment.bytes().all(plain)), field, || {
        format!("{namespace:?} must be segments of a-z, 0-9, '-', '_' or '.', joined by single '/'")
    })
}

fn require(holds: bool, field: &'static str, problem: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError { field, problem: problem() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field_refused(change: impl FnOnce(&mut EtcdConfig)) -> &'static str {
        let mut config = EtcdConfig::default();
        change(&mut config);
        config.validate().expect_err("the change must be refused").field
    }

    #[test]
    fn the_default_is_valid() {
        assert_eq!(EtcdConfig::default().validate(), Ok(()));
    }

    #[test]
    fn each_refusal_names_its_field() {
        assert_eq!(field_refused(|c| c.endpoints.clear()), "endpoints");
        assert_eq!(field_refused(|c| c.endpoints = vec!["127.0.0.1:2379".into()]), "endpoints");
        assert_eq!(field_refused(|c| c.endpoints = vec!["ftp://a:1".into()]), "endpoints");
        assert_eq!(field_refused(|c| c.endpoints = vec!["http://a".into()]), "endpoints");
        assert_eq!(field_refused(|c| c.endpoints = vec!["http://a:1/x".into()]), "endpoints");
        assert_eq!(field_refused(|c| c.endpoints = vec!["http://u:p@a:1".into()]), "endpoints");
        assert_eq!(field_refused(|c| c.endpoints = vec!["http://a:1".into(), "http://a:1".into()]), "endpoints");
        assert_eq!(field_refused(|c| c.endpoints = vec!["https://a:1".into()]), "tls");
        assert_eq!(field_refused(|c| c.tls = Some(Tls { ca_pem: vec![], identity: None, server_name: None })), "tls");
        assert_eq!(field_refused(|c| c.namespace = String::new()), "namespace");
        assert_eq!(field_refused(|c| c.namespace = "a//b".into()), "namespace");
        assert_eq!(field_refused(|c| c.namespace = "Ünder".into()), "namespace");
        assert_eq!(field_refused(|c| c.namespace = "x".repeat(NAMESPACE_BYTES_MAX + 1)), "namespace");
        assert_eq!(
            field_refused(|c| c.credentials = Some(Credentials { user: String::new(), password: Secret::new("p") })),
            "credentials"
        );
        assert_eq!(field_refused(|c| c.call_timeout = Duration::ZERO), "call_timeout");
        assert_eq!(field_refused(|c| c.attempt_timeout = Duration::from_secs(11)), "attempt_timeout");
        assert_eq!(field_refused(|c| c.session_ttl = Duration::from_millis(1_999)), "session_ttl");
        assert_eq!(field_refused(|c| c.session_ttl = Duration::from_secs(3)), "attempt_timeout");
        assert_eq!(field_refused(|c| c.session_ttl_min = Duration::from_secs(16)), "session_ttl_min");
        let over_an_hour = Duration::from_secs(3601);
        assert_eq!(field_refused(|c| c.connect_timeout = over_an_hour), "connect_timeout");
        assert_eq!(field_refused(|c| c.keep_alive_interval = Duration::ZERO), "keep_alive_interval");
        assert_eq!(field_refused(|c| c.keep_alive_timeout = Duration::ZERO), "keep_alive_timeout");
        assert_eq!(field_refused(|c| c.retry_delay_min = over_an_hour / 2), "retry_delay_min");
        assert_eq!(field_refused(|c| c.retry_delay_max = Duration::ZERO), "retry_delay_max");
        assert_eq!(field_refused(|c| c.lease_duration_default = Duration::ZERO), "lease_duration_default");
        assert_eq!(field_refused(|c| c.claim_cooldown = over_an_hour), "claim_cooldown");
        assert_eq!(field_refused(|c| c.hint_age_max = over_an_hour), "hint_age_max");
        assert_eq!(field_refused(|c| c.skew_tolerance = over_an_hour), "skew_tolerance");
        assert_eq!(field_refused(|c| c.request_bytes_max = 131_071), "request_bytes_max");
        assert_eq!(field_refused(|c| c.batch_ops_max = 0), "batch_ops_max");
        assert_eq!(field_refused(|c| c.attempts_max = 0), "attempts_max");
        assert_eq!(field_refused(|c| c.txn_ops_max = TXN_OPS_MIN - 1), "txn_ops_max");
        assert_eq!(field_refused(|c| c.batch_ops_max = 128), "batch_ops_max");
        assert_eq!(field_refused(|c| c.batches_in_flight_max = 65), "batches_in_flight_max");
        assert_eq!(field_refused(|c| c.shards_per_tenant_max = 0), "shards_per_tenant_max");
        assert_eq!(field_refused(|c| c.shards_total_max = 0), "shards_total_max");
    }

    #[test]
    fn a_url_gives_endpoints_login_and_namespace() {
        let config = EtcdConfig::from_url("etcd://ann:s3:cret@a:1,b:2/fleet/one").expect("well formed");
        assert_eq!(config.endpoints, ["http://a:1", "http://b:2"]);
        assert_eq!(config.namespace, "fleet/one");
        let login = config.credentials.as_ref().expect("a login was given");
        assert_eq!((login.user.as_str(), login.password.expose()), ("ann", "s3:cret"));
        assert_eq!(config.validate(), Ok(()));
        assert!(EtcdConfig::from_url("http://a:1").is_err());
    }

    #[test]
    fn no_debug_output_shows_a_password() {
        let config = EtcdConfig::from_url("etcd://ann:hunter2@a:1").expect("well formed");
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
