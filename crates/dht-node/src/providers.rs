//! Providers as they are found: a stream for tasks, an iterator for threads.

use std::collections::VecDeque;
use std::future::Future as _;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_core::Stream;
use tessera_contracts::point::NodeId;
use tessera_dht::wire::message::SignedProvider;

use crate::call::{Call, block_on};
use crate::error::NodeError;
use crate::explain::Explain;
use crate::oneshot::{lock, wake};
use crate::peer_addr::PeerAddr;

/// A node that says it offers something, with its signature verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provider {
    /// Who and where.
    pub peer: PeerAddr,
    /// Until when it said so.
    pub expires: SystemTime,
}

impl Provider {
    pub(crate) fn of(signed: &SignedProvider) -> Self {
        let expires_secs = signed.issued_secs.saturating_add(u64::from(signed.ttl_secs));
        Self { peer: PeerAddr(signed.provider), expires: UNIX_EPOCH + Duration::from_secs(expires_secs) }
    }

    /// The provider's node id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.peer.id()
    }

    /// Where the provider is.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.peer.addr()
    }
}

/// Providers found and not yet taken. Bounded, since a lookup collects a bounded number.
#[derive(Debug, Default)]
pub(crate) struct Found(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    providers: VecDeque<Provider>,
    /// Providers given out already: a lookup that starts anew finds the same again.
    told: Vec<NodeId>,
    waker: Option<Waker>,
}

impl Found {
    pub(crate) fn push(&self, signed: &SignedProvider) {
        let provider = Provider::of(signed);
        let mut queue = lock(&self.0);
        if queue.told.contains(&provider.id()) {
            return;
        }
        queue.told.push(provider.id());
        queue.providers.push_back(provider);
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            wake(waker);
        }
    }

    fn pop(&self, waker: &Waker) -> Option<Provider> {
        let mut queue = lock(&self.0);
        let provider = queue.providers.pop_front();
        if provider.is_none() {
            queue.waker = Some(waker.clone());
        }
        provider
    }
}

/// The providers of a content id, in the order in which they are found. Dropping it ends the search.
#[derive(Debug)]
#[must_use = "a stream does nothing until it is polled"]
pub struct Providers {
    found: Arc<Found>,
    search: Option<Call<Result<Explain, NodeError>>>,
    explain: Option<Explain>,
    error: Option<NodeError>,
}

impl Providers {
    pub(crate) fn new(found: Arc<Found>, search: Call<Result<Explain, NodeError>>) -> Self {
        Self { found, search: Some(search), explain: None, error: None }
    }

    /// How the search went, once it has ended.
    #[must_use]
    pub fn explain(&self) -> Option<&Explain> {
        self.explain.as_ref()
    }

    /// Why the search ended early, if it did. Providers found before are good.
    #[must_use]
    pub fn error(&self) -> Option<&NodeError> {
        self.error.as_ref()
    }

    /// Blocks this thread for the next provider; `None` at the end.
    pub fn wait_next(&mut self) -> Option<Provider> {
        block_on(std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)))
    }

    /// Blocks this thread until all are found.
    pub fn wait_all(mut self) -> Result<Vec<Provider>, NodeError> {
        let providers = std::iter::from_fn(|| self.wait_next()).collect();
        self.error.map_or(Ok(providers), Err)
    }
}

impl Stream for Providers {
    type Item = Provider;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Provider>> {
        // The search first, for it is what fills the queue; its end is noted before the queue is found empty.
        if let Some(search) = &mut self.search
            && let Poll::Ready(result) = Pin::new(search).poll(cx)
        {
            self.search = None;
            match result {
                Ok(explain) => self.explain = Some(explain),
                Err(error) => self.error = Some(error),
            }
        }
        match self.found.pop(cx.waker()) {
            Some(provider) => Poll::Ready(Some(provider)),
            None if self.search.is_none() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}
