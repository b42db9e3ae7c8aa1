//! The real client behind a gate that decides which transactions reach the server.

use core::future::Future;
use core::time::Duration;

use crate::client::EtcdClient;
use crate::kv::{
    EtcdLeaseId, GrantedLease, Kv, KvError, LeaseTimeToLive, Moment, RangeRequest, RangeResponse, Txn, TxnResponse,
};

/// Looks at every transaction before it is sent.
pub trait Gate: Send + Sync {
    /// Lets the transaction pass, or answers in the server's place, or never answers.
    fn pass(&self, request: &Txn) -> impl Future<Output = Result<(), KvError>> + Send;
}

/// A store that is the real one for what its gate lets pass.
#[derive(Clone, Debug)]
pub struct Gated<G> {
    /// The real one.
    pub client: EtcdClient,
    /// What transactions have to pass.
    pub gate: G,
}

impl<G: Gate> Kv for Gated<G> {
    async fn range(&self, request: RangeRequest, deadline: Moment) -> Result<RangeResponse, KvError> {
        self.client.range(request, deadline).await
    }

    async fn txn(&self, request: Txn, deadline: Moment) -> Result<TxnResponse, KvError> {
        self.gate.pass(&request).await?;
        self.client.txn(request, deadline).await
    }

    async fn lease_grant(&self, id: EtcdLeaseId, ttl: Duration, deadline: Moment) -> Result<GrantedLease, KvError> {
        self.client.lease_grant(id, ttl, deadline).await
    }

    async fn lease_revoke(&self, id: EtcdLeaseId, deadline: Moment) -> Result<(), KvError> {
        self.client.lease_revoke(id, deadline).await
    }

    async fn lease_keep_alive(&self, id: EtcdLeaseId, deadline: Moment) -> Result<Option<Duration>, KvError> {
        self.client.lease_keep_alive(id, deadline).await
    }

    async fn lease_time_to_live(&self, id: EtcdLeaseId, deadline: Moment) -> Result<Option<LeaseTimeToLive>, KvError> {
        self.client.lease_time_to_live(id, deadline).await
    }

    fn now(&self) -> Moment {
        self.client.now()
    }

    fn pause(&self, delay: Duration) -> impl Future<Output = ()> + Send {
        self.client.pause(delay)
    }

    fn until(&self, moment: Moment) -> impl Future<Output = ()> + Send {
        self.client.until(moment)
    }

    fn random(&self) -> u64 {
        self.client.random()
    }
}
