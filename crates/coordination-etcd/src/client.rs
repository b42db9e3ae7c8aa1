//! The real store: an etcd v3 client that needs neither `protoc` nor generated code.
//!
//! It does what a coordinator needs and the common client crates leave to their users: every call ends by its deadline,
//! dead members are avoided, a refused connection moves on to the next member at once (nothing was sent), and each
//! failure says whether the request may have been applied. It never repeats a request that may have been: that is for
//! the layer that knows how to ask ([`crate::retry`]).
//!
//! Weighed against the `etcd-client` crate: that one runs `protoc` in its build script, retries nothing, keeps offering a
//! dead member (a fifth of the calls failed after one of three was killed), and has one timeout for all calls.

mod classify;
mod codec;
mod convert;
mod endpoints;
mod messages;

use core::fmt;
use core::future::Future;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

use self::codec::EncodedCodec;
use self::endpoints::Endpoints;
use self::messages as pb;
use crate::config::{ConfigError, Credentials, EtcdConfig};
use crate::kv::{
    EtcdLeaseId, Fate, GrantedLease, Kv, KvError, KvErrorKind, LeaseTimeToLive, Moment, RangeRequest, RangeResponse,
    Txn, TxnResponse,
};
use crate::random::SplitMix64;

/// The largest answer accepted. Pages are cut well below it; a larger one is a misbehaving server.
const RESPONSE_BYTES_MAX: usize = 32 << 20;
/// Window of one HTTP/2 stream: a page of records without a stall per 64 KiB.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// How long a member that failed is left alone: the first time, and at most.
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(5);

/// A client of one etcd cluster. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct EtcdClient {
    shared: Arc<Shared>,
}

struct Shared {
    members: Vec<Member>,
    credentials: Option<Credentials>,
    origin: Instant,
    state: Mutex<State>,
    /// Held while a token is fetched, so that a burst of calls fetches one.
    authenticating: tokio::sync::Mutex<()>,
}

struct Member {
    url: String,
    endpoint: Endpoint,
}

struct State {
    endpoints: Endpoints,
    connections: Vec<Connection>,
    token: Option<Token>,
    random: SplitMix64,
}

/// A member's connection. The generation tells a failure of this connection from one of its predecessor.
#[derive(Default)]
struct Connection {
    generation: u64,
    channel: Option<Channel>,
}

#[derive(Clone)]
struct Token {
    generation: u64,
    value: MetadataValue<Ascii>,
}

/// What a member says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The server's version, such as `3.4.23`.
    pub version: String,
    /// Bytes of its database file.
    pub db_bytes: u64,
    /// The member it takes for the leader; zero if none.
    pub leader: u64,
}

/// A member of the cluster as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMember {
    /// Its id.
    pub id: u64,
    /// Its name; empty while it has not joined.
    pub name: String,
    /// Where clients reach it.
    pub client_urls: Vec<String>,
}

impl EtcdClient {
    /// A client for the configured cluster. Connects when first used, so it never fails for a server that is away.
    ///
    /// # Errors
    /// If the configuration is not valid; the error names the field.
    pub fn new(config: &EtcdConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let members = config
            .endpoints
            .iter()
            .map(|url| Ok(Member { url: url.clone(), endpoint: endpoint(config, url)? }))
            .collect::<Result<Vec<_>, ConfigError>>()?;
        let mut random = SplitMix64::new(seed());
        let first = usize::try_from(random.next() % members.len() as u64).unwrap_or(0);
        let state = State {
            endpoints: Endpoints::new(members.len(), first, REST_MIN, REST_MAX),
            connections: members.iter().map(|_| Connection::default()).collect(),
            token: None,
            random,
        };
        Ok(Self {
            shared: Arc::new(Shared {
                members,
                credentials: config.credentials.clone(),
                origin: Instant::now(),
                state: Mutex::new(state),
                authenticating: tokio::sync::Mutex::new(()),
            }),
        })
    }

    /// What the member now in use says about itself.
    ///
    /// # Errors
    /// If no member answers by the deadline.
    pub async fn status(&self, deadline: Moment) -> Result<MemberStatus, KvError> {
        let answer: pb::StatusResponse =
            self.call("/etcdserverpb.Maintenance/Status", &pb::EmptyRequest {}, deadline).await?;
        Ok(MemberStatus {
            version: answer.version,
            db_bytes: u64::try_from(answer.db_bytes).unwrap_or(0),
            leader: answer.leader,
        })
    }

    /// The members of the cluster.
    ///
    /// # Errors
    /// If no member answers by the deadline.
    pub async fn members(&self, deadline: Moment) -> Result<Vec<ClusterMember>, KvError> {
        let answer: pb::MemberListResponse =
            self.call("/etcdserverpb.Cluster/MemberList", &pb::EmptyRequest {}, deadline).await?;
        let members = answer.members.into_iter();
        Ok(members.map(|m| ClusterMember { id: m.id, name: m.name, client_urls: m.client_urls }).collect())
    }

    async fn call<Response: Message + Default + 'static>(
        &self,
        path: &'static str,
        request: &impl Message,
        deadline: Moment,
    ) -> Result<Response, KvError> {
        let request = Bytes::from(request.encode_to_vec());
        self.with_member(deadline, path, |channel, token, left| {
            let request = request.clone();
            async move {
                let (mut grpc, path) = ready(channel, path).await?;
                let answer = grpc.unary(headed(request, token.as_ref(), left), path, EncodedCodec::new()).await?;
                Ok(answer.into_inner())
            }
        })
        .await
    }

    /// Runs `send` against members until one takes the request, and says what became of it.
    ///
    /// Moves on only after a refused connection or a token that the server called invalid: both prove that nothing was
    /// applied.
    async fn with_member<Response, Sent>(
        &self,
        deadline: Moment,
        path: &'static str,
        send: impl Fn(Channel, Option<MetadataValue<Ascii>>, Duration) -> Sent,
    ) -> Result<Response, KvError>
    where
        Sent: Future<Output = Result<Response, Status>>,
    {
        let mut unreachable = 0;
        let mut may_pass = None;
        let mut token_renewed = false;
        loop {
            let token = self.token(deadline).await?;
            let now = self.now();
            let left = now.until(deadline);
            let (index, generation, channel) = self.connection(now);
            let url = &self.shared.members[index].url;
            if left.is_zero() {
                return Err(KvError::new(
                    Fate::Unsent,
                    KvErrorKind::Deadline,
                    format!("{url}: no time left for {path}"),
                ));
            }
            let sent = send(channel, token.as_ref().map(|token| token.value.clone()), left);
            let status = match tokio::time::timeout(left, sent).await {
                Ok(Ok(answer)) => {
                    self.lock().endpoints.answered(index);
                    return Ok(answer);
                }
                Ok(Err(status)) => status,
                Err(_elapsed) => Status::deadline_exceeded(format!("no answer to {path} within {left:?}")),
            };
            let error = classify::classify(url, &status);
            match (error.fate, error.kind) {
                (Fate::Unsent, _) => {
                    self.member_failed(index, generation);
                    unreachable += 1;
                    may_pass = may_pass.or_else(|| error.is_transient().then(|| error.clone()));
                    if unreachable < self.shared.members.len() {
                        continue;
                    }
                    // A member that is away may come back, whatever is wrong with the others.
                    return Err(may_pass.unwrap_or(error));
                }
                (Fate::Ambiguous, _) | (_, KvErrorKind::NoLeader | KvErrorKind::Overloaded) => {
                    self.member_failed(index, generation);
                }
                (_, KvErrorKind::TokenUnknown) if !token_renewed && token.is_some() => {
                    self.lock().endpoints.answered(index);
                    self.forget(token.as_ref());
                    token_renewed = true;
                    continue;
                }
                _ => self.lock().endpoints.answered(index),
            }
            return Err(error);
        }
    }

    /// The member to ask and its connection, made (lazily) if there is none.
    fn connection(&self, now: Moment) -> (usize, u64, Channel) {
        let mut state = self.lock();
        let index = state.endpoints.pick(now);
        let connection = &mut state.connections[index];
        let channel =
            connection.channel.get_or_insert_with(|| self.shared.members[index].endpoint.connect_lazy()).clone();
        (index, connection.generation, channel)
    }

    /// Rests the member and drops its connection: one that let a call time out may hang for the next one too.
    fn member_failed(&self, index: usize, generation: u64) {
        let now = self.now();
        let mut state = self.lock();
        let connection = &mut state.connections[index];
        if connection.generation == generation {
            *connection = Connection { generation: generation + 1, channel: None };
            state.endpoints.failed(index, now);
        }
    }

    /// The token to present, fetched if there is none yet; `None` for a cluster without users.
    async fn token(&self, deadline: Moment) -> Result<Option<Token>, KvError> {
        let Some(credentials) = &self.shared.credentials else { return Ok(None) };
        if let Some(token) = self.lock().token.clone() {
            return Ok(Some(token));
        }
        let _only_one = self.shared.authenticating.lock().await;
        if let Some(token) = self.lock().token.clone() {
            return Ok(Some(token));
        }
        let value = self.authenticate(credentials, deadline).await?;
        let mut state = self.lock();
        let token = Token { generation: state.random.next(), value };
        state.token = Some(token.clone());
        Ok(Some(token))
    }

    async fn authenticate(&self, credentials: &Credentials, deadline: Moment) -> Result<MetadataValue<Ascii>, KvError> {
        let path = "/etcdserverpb.Auth/Authenticate";
        let request =
            pb::AuthenticateRequest { name: credentials.user.clone(), password: credentials.password.expose().into() };
        let request = Bytes::from(request.encode_to_vec());
        let mut told: Option<KvError> = None;
        for _ in 0..self.shared.members.len() {
            let now = self.now();
            let (index, generation, channel) = self.connection(now);
            let url = &self.shared.members[index].url;
            let left = now.until(deadline);
            let asked = async {
                let (mut grpc, path) = ready(channel, path).await?;
                let codec = EncodedCodec::<pb::AuthenticateResponse>::new();
                Ok(grpc.unary(headed(request.clone(), None, left), path, codec).await?.into_inner().token)
            };
            let status = match tokio::time::timeout(left, asked).await {
                Ok(Ok(token)) => {
                    return MetadataValue::try_from(token).map_err(|_| {
                        KvError::not_applied(KvErrorKind::UnexpectedResponse, format!("{url}: the token is not ASCII"))
                    });
                }
                Ok(Err(status)) => status,
                Err(_elapsed) => Status::deadline_exceeded(format!("no answer to {path} within {left:?}")),
            };
            let mut error = classify::classify(url, &status);
            if error.fate != Fate::NotApplied {
                self.member_failed(index, generation);
            }
            // Whatever became of the login, the request behind it has not been sent.
            error.fate = Fate::Unsent;
            if error.kind == KvErrorKind::Unauthenticated {
                return Err(error);
            }
            // A member that is away may come back, whatever is wrong with the others.
            if !told.as_ref().is_some_and(KvError::is_transient) {
                told = Some(error);
            }
        }
        Err(told.expect("a validated configuration names at least one endpoint, so one was asked"))
    }

    fn forget(&self, refused: Option<&Token>) {
        let mut state = self.lock();
        let current = state.token.as_ref().map(|token| token.generation);
        if current == refused.map(|token| token.generation) {
            state.token = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock, so a poisoned one still holds a whole state.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kv for EtcdClient {
    async fn range(&self, request: RangeRequest, deadline: Moment) -> Result<RangeResponse, KvError> {
        let request = convert::range_request(request);
        self.call("/etcdserverpb.KV/Range", &request, deadline).await.map(convert::range_response)
    }

    async fn txn(&self, request: Txn, deadline: Moment) -> Result<TxnResponse, KvError> {
        let request = convert::txn_request(request);
        convert::txn_response(self.call("/etcdserverpb.KV/Txn", &request, deadline).await?)
    }

    async fn lease_grant(&self, id: EtcdLeaseId, ttl: Duration, deadline: Moment) -> Result<GrantedLease, KvError> {
        // etcd counts whole seconds: round up, or a lease of 900 ms would be one of zero.
        let ttl = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        let request = pb::LeaseGrantRequest { ttl, id: id.0 };
        let granted: pb::LeaseGrantResponse = self.call("/etcdserverpb.Lease/LeaseGrant", &request, deadline).await?;
        Ok(GrantedLease { id: EtcdLeaseId(granted.id), ttl: seconds(granted.ttl).unwrap_or_default() })
    }

    async fn lease_revoke(&self, id: EtcdLeaseId, deadline: Moment) -> Result<(), KvError> {
        let request = pb::LeaseRequest { id: id.0 };
        let _: pb::LeaseRevokeResponse = self.call("/etcdserverpb.Lease/LeaseRevoke", &request, deadline).await?;
        Ok(())
    }

    /// One beat opens its own stream: a worker beats every few seconds, and a stream held open in between would need
    /// its own watch for the case that it has silently died.
    async fn lease_keep_alive(&self, id: EtcdLeaseId, deadline: Moment) -> Result<Option<Duration>, KvError> {
        let request = Bytes::from(pb::LeaseRequest { id: id.0 }.encode_to_vec());
        let path = "/etcdserverpb.Lease/LeaseKeepAlive";
        let answer: Option<pb::LeaseKeepAliveResponse> = self
            .with_member(deadline, path, |channel, token, left| {
                let request = request.clone();
                async move {
                    let (mut grpc, path) = ready(channel, path).await?;
                    let beat = headed(tokio_stream::once(request), token.as_ref(), left);
                    grpc.streaming(beat, path, EncodedCodec::new()).await?.into_inner().message().await
                }
            })
            .await?;
        answer.map(|beat| seconds(beat.ttl)).ok_or_else(|| {
            KvError::ambiguous(KvErrorKind::UnexpectedResponse, "the keep-alive stream ended without an answer")
        })
    }

    async fn lease_time_to_live(&self, id: EtcdLeaseId, deadline: Moment) -> Result<Option<LeaseTimeToLive>, KvError> {
        let request = pb::LeaseRequest { id: id.0 };
        let answer: pb::LeaseTimeToLiveResponse =
            self.call("/etcdserverpb.Lease/LeaseTimeToLive", &request, deadline).await?;
        // A lease that is gone has a negative time left; one in its last second has zero.
        Ok(u64::try_from(answer.ttl).ok().map(|left| LeaseTimeToLive {
            remaining: Duration::from_secs(left),
            granted: seconds(answer.granted_ttl).unwrap_or_default(),
        }))
    }

    fn now(&self) -> Moment {
        Moment(self.shared.origin.elapsed())
    }

    async fn pause(&self, delay: Duration) {
        tokio::time::sleep(delay).await;
    }

    async fn until(&self, moment: Moment) {
        tokio::time::sleep(self.now().until(moment)).await;
    }

    fn random(&self) -> u64 {
        self.lock().random.next()
    }
}

impl fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.shared.members.iter().map(|member| &member.url)).finish()
    }
}

async fn ready(channel: Channel, path: &'static str) -> Result<(Grpc<Channel>, PathAndQuery), Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    Ok((grpc, PathAndQuery::from_static(path)))
}

/// The request with its token, its deadline for the server, and the wish to be refused by a member without a leader:
/// such a member would otherwise sit on the request until it times out, and the answer would be ambiguous.
fn headed<T>(message: T, token: Option<&MetadataValue<Ascii>>, left: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(left);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}

fn endpoint(config: &EtcdConfig, url: &str) -> Result<Endpoint, ConfigError> {
    let wrong = |field: &'static str, problem: String| ConfigError { field, problem };
    let mut endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(|error| wrong("endpoints", format!("{url} is not a URL: {error}")))?
        .connect_timeout(config.connect_timeout)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(STREAM_WINDOW_BYTES * 4)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(config.keep_alive_interval)
        .keep_alive_timeout(config.keep_alive_timeout)
        // etcd closes connections that ping while idle: only a connection with a call under way is probed.
        .keep_alive_while_idle(false);
    if let Some(tls) = &config.tls {
        let mut client = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca_pem));
        if let Some(identity) = &tls.identity {
            client = client.identity(Identity::from_pem(&identity.certificate_pem, identity.key_pem.expose()));
        }
        if let Some(name) = &tls.server_name {
            client = client.domain_name(name);
        }
        endpoint = endpoint.tls_config(client).map_err(|error| {
            wrong("tls", format!("the certificates or the key cannot be used: {}", root_cause(&error)))
        })?;
    }
    Ok(endpoint)
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// etcd's seconds; `None` for zero and below, which is how it says that a lease is gone.
fn seconds(count: i64) -> Option<Duration> {
    u64::try_from(count).ok().filter(|&count| count > 0).map(Duration::from_secs)
}

/// Where this client's random numbers begin: from the operating system, by way of the standard hasher's keys.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
