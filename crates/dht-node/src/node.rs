//! The node as a program sees it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_contracts::prefix_map::LaneIndex;
use tessera_dht::node::Health;
use tessera_dht::node::command::{Answer, Command, Outcome};
use tessera_lanes::runtime::{ChangeRefused, Event};
use tessera_lanes::telemetry::snapshot::Snapshot;
use tessera_lanes::telemetry::trace::TraceEvent;

use crate::builder::NodeBuilder;
use crate::call::Call;
use crate::error::NodeError;
use crate::explain::Explain;
use crate::handler::NodeCommand;
use crate::inner::Inner;
use crate::mutable::{Mutable, MutableKey, PutMutable};
use crate::oneshot::lock;
use crate::peer_addr::{LivePeer, PeerAddr};
use crate::providers::{Found, Providers};
use crate::status::Status;
use crate::values::{Put, Stored, Value};

/// A running node of a DHT. Cheap to clone; the node stops with its last clone, or at [`shutdown`](Self::shutdown).
///
/// Every call returns a [`Call`]: `.await` it on any executor, or `.wait()` for it on a thread.
///
/// ```
/// use tessera_dht_node::Node;
///
/// let first = Node::builder().lanes(1).start()?;
/// let second = Node::builder().lanes(1).bootstrap([first.address()]).start()?;
/// second.joined(std::time::Duration::from_secs(10)).wait()?;
///
/// let stored = first.put(b"hello".to_vec()).wait()?;
/// assert_eq!(second.get(stored.id).wait()?.bytes, b"hello");
/// # second.shutdown();
/// # first.shutdown();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Node(pub(crate) Arc<Inner>);

impl Node {
    /// Settings for a new node.
    #[must_use]
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    pub(crate) fn of(inner: Arc<Inner>) -> Self {
        Self(inner)
    }

    /// The node's id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.0.id
    }

    /// How others reach this node: what they give to [`NodeBuilder::bootstrap`]. A node that listens on all addresses of a
    /// machine gives the unspecified one; others need to know which of them to use.
    #[must_use]
    pub fn address(&self) -> PeerAddr {
        self.0.listen
    }

    /// Where the node listens.
    #[must_use]
    pub fn listen_addr(&self) -> SocketAddr {
        self.0.address()
    }

    /// Where metrics are served, if they are.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.0.metrics.read().ok()?.as_ref().map(crate::metrics::Server::addr)
    }

    /// The network's name.
    #[must_use]
    pub fn network(&self) -> &str {
        &self.0.network
    }

    /// Stores a value under its hash with the nodes nearest to it, and keeps it there for as long as this node runs. A value
    /// larger than a record is cut into many.
    pub fn put(&self, value: impl Into<Vec<u8>>) -> Call<Result<Stored, NodeError>> {
        self.put_with(value, Put::default())
    }

    /// As [`put`](Self::put), with settings.
    pub fn put_with(&self, value: impl Into<Vec<u8>>, put: Put) -> Call<Result<Stored, NodeError>> {
        let (inner, value) = (self.0.clone(), value.into());
        Call::new(async move { crate::values::put(&inner, &value, &put).await })
    }

    /// Gets a value by its hash.
    pub fn get(&self, id: ContentId) -> Call<Result<Value, NodeError>> {
        self.get_with(id, crate::values::Get::default())
    }

    /// As [`get`](Self::get), with settings.
    pub fn get_with(&self, id: ContentId, get: crate::values::Get) -> Call<Result<Value, NodeError>> {
        let inner = self.0.clone();
        Call::new(async move { crate::values::get(&inner, id, &get).await })
    }

    /// Stops storing a value again and again, and drops the copy kept here; of a large one all parts that no other value kept here
    /// has as well. Copies at other nodes run out by themselves.
    pub fn forget(&self, id: ContentId) -> Call<Result<(), NodeError>> {
        let inner = self.0.clone();
        Call::new(async move { crate::forget::forget(&inner, id).await })
    }

    /// Writes a new version of a value that only its owner can change, signed by this node's key or by the one given.
    ///
    /// ```
    /// # use tessera_dht_node::{Node, PutMutable};
    /// # let node = Node::builder().lanes(1).start()?;
    /// let first = node.put_mutable(b"one", PutMutable::named("motd")).wait()?;
    /// let second = node.put_mutable(b"two", PutMutable::named("motd")).wait()?;
    /// assert_eq!(first.key, second.key);
    /// assert!(second.sequence > first.sequence);
    /// assert_eq!(node.get_mutable(second.key).wait()?.value, b"two");
    /// # node.shutdown();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_mutable(&self, value: impl Into<Vec<u8>>, put: PutMutable) -> Call<Result<Mutable, NodeError>> {
        let (inner, value) = (self.0.clone(), value.into());
        Call::new(async move { crate::mutable::put(&inner, Some(value), &put).await })
    }

    /// Stores a version that its owner has [signed](crate::mutable::signed) elsewhere: this node need not know the key.
    pub fn put_signed(&self, record: impl Into<Vec<u8>>, keep_alive: bool) -> Call<Result<Mutable, NodeError>> {
        let (inner, record) = (self.0.clone(), record.into());
        Call::new(async move { crate::mutable::put_signed(&inner, record, keep_alive).await })
    }

    /// The number of the version that comes next: one more than the newest that is found.
    pub fn next_version(&self, key: MutableKey) -> Call<Result<u64, NodeError>> {
        let inner = self.0.clone();
        Call::new(async move { crate::mutable::next_version(&inner, key).await })
    }

    /// Deletes a value that only its owner can change: from now on readers are told that it was deleted.
    pub fn delete(&self, put: PutMutable) -> Call<Result<Mutable, NodeError>> {
        let inner = self.0.clone();
        Call::new(async move { crate::mutable::put(&inner, None, &put).await })
    }

    /// Reads the newest version of a value that only its owner can change.
    pub fn get_mutable(&self, key: MutableKey) -> Call<Result<Mutable, NodeError>> {
        let inner = self.0.clone();
        Call::new(async move { crate::mutable::get(&inner, key).await })
    }

    /// Announces that this node provides these ids, and repeats it for as long as the node runs.
    pub fn announce(&self, ids: impl IntoIterator<Item = ContentId>) -> Call<Result<(), NodeError>> {
        self.publish(ids.into_iter().collect(), true)
    }

    /// Stops announcing. Announcements made so far run out by themselves.
    pub fn unannounce(&self, ids: impl IntoIterator<Item = ContentId>) -> Call<Result<(), NodeError>> {
        self.publish(ids.into_iter().collect(), false)
    }

    fn publish(&self, ids: Vec<ContentId>, announced: bool) -> Call<Result<(), NodeError>> {
        let inner = self.0.clone();
        let command = if announced { |ids| Command::Provide { ids } } else { |ids| Command::Unprovide { ids } };
        Call::new(async move {
            for id in ids {
                inner.ask(id.as_bytes(), None, || command(vec![id])).await?;
                inner.note_announced(id, announced);
            }
            Ok(())
        })
    }

    /// Finds up to `limit` nodes that offer what `id` names, one by one as they are found.
    ///
    /// ```
    /// # use tessera_dht_node::{ContentId, Node, Point};
    /// # let node = Node::builder().lanes(1).start()?;
    /// let id = ContentId::of_immutable(b"a film");
    /// let mut providers = node.find_providers(id, 10); // also a `futures_core::Stream`
    /// while let Some(provider) = providers.wait_next() {
    ///     println!("{}", provider.peer);
    /// }
    /// # node.shutdown();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn find_providers(&self, id: ContentId, limit: usize) -> Providers {
        let (inner, found) = (self.0.clone(), Arc::new(Found::default()));
        let queue = found.clone();
        Providers::new(
            found,
            Call::new(async move {
                let outcome =
                    inner.ask(id.as_bytes(), Some(queue.clone()), || Command::FindProviders { id, limit }).await?;
                let explain = Explain::of(&outcome);
                match &outcome.answer {
                    Answer::Providers(providers) => providers.iter().for_each(|provider| queue.push(provider)),
                    Answer::Inconclusive => return Err(NodeError::Inconclusive { id, explain: Box::new(explain) }),
                    _ => {}
                }
                Ok(explain)
            }),
        )
    }

    /// Finds the nodes nearest to a point, nearest first.
    pub fn find_node(&self, target: NodeId) -> Call<Result<(Vec<PeerAddr>, Explain), NodeError>> {
        let inner = self.0.clone();
        Call::new(async move {
            let target = *target.as_bytes();
            let outcome = inner.ask(&target, None, || Command::FindNode { target }).await?;
            let explain = Explain::of(&outcome);
            let Answer::Nodes(nodes) = outcome.answer else { return Err(unexpected(&outcome)) };
            Ok((nodes.into_iter().map(PeerAddr).collect(), explain))
        })
    }

    /// Asks one node whether it is there; `None` if it did not answer.
    pub fn ping(&self, peer: PeerAddr) -> Call<Result<Option<Duration>, NodeError>> {
        let inner = self.0.clone();
        Call::new(async move {
            let outcome = inner.ask(peer.id().as_bytes(), None, || Command::Ping { contact: peer.0 }).await?;
            match outcome.answer {
                Answer::Pong { rtt_ms, .. } => Ok(Some(Duration::from_millis(rtt_ms))),
                Answer::Silence => Ok(None),
                Answer::UnusableKey => Err(NodeError::UnusableKey),
                _ => Err(unexpected(&outcome)),
            }
        })
    }

    /// The live contacts of this node.
    pub fn peers(&self) -> Call<Result<Vec<LivePeer>, NodeError>> {
        let inner = self.0.clone();
        Call::new(async move {
            let mut peers: Vec<_> = inner.ask_lanes(NodeCommand::Peers).await?.into_iter().flatten().collect();
            peers.sort_by_key(|(contact, rtt_ms)| (*contact.id().as_bytes(), rtt_ms.is_none()));
            peers.dedup_by_key(|(contact, _)| contact.key);
            Ok(peers
                .into_iter()
                .map(|(contact, rtt)| LivePeer { peer: PeerAddr(contact), rtt: rtt.map(Duration::from_millis) })
                .collect())
        })
    }

    /// How the node is.
    pub fn status(&self) -> Call<Result<Status, NodeError>> {
        let inner = self.0.clone();
        Call::new(async move { crate::metrics::status(&inner).await })
    }

    /// Waits until the node has found its place in the network, at most this long. A client has no place to find: it has joined as
    /// soon as one peer answered it, since every lookup can start there.
    pub fn joined(&self, patience: Duration) -> Call<Result<(), NodeError>> {
        let inner = self.0.clone();
        Call::new(async move {
            // So late that there is no such time is never.
            let deadline = std::time::Instant::now().checked_add(patience);
            loop {
                let status = crate::metrics::status(&inner).await?;
                let is_there = |health: &Health| health.joined || inner.client && health.live_peers > 0;
                if status.lanes.iter().any(|lane| is_there(&lane.health)) {
                    return Ok(());
                }
                if deadline.is_some_and(|deadline| std::time::Instant::now() >= deadline) {
                    return Err(NodeError::NotJoined);
                }
                crate::timer::after(Duration::from_millis(10)).await;
            }
        })
    }

    /// Changes the number of lanes while the node runs. Records move to their new owners, and nothing is lost.
    /// Blocks until it is done.
    pub fn set_lanes(&self, lanes: usize) -> Result<(), ChangeRefused> {
        self.0.runtime().map_err(|_| ChangeRefused::Stopped)?.resize(lanes)?;
        self.0.births.retire_from(lanes);
        Ok(())
    }

    /// Lends half of a lane's slots to another lane, to relieve it. Blocks until it is done.
    pub fn relieve(&self, lane: u8, helper: u8) -> Result<(), ChangeRefused> {
        self.0.runtime().map_err(|_| ChangeRefused::Stopped)?.relieve(LaneIndex(lane), LaneIndex(helper))
    }

    /// Takes lent slots back.
    pub fn merge_back(&self) -> Result<(), ChangeRefused> {
        self.0.runtime().map_err(|_| ChangeRefused::Stopped)?.merge_back()
    }

    /// Events since the last call: lanes that failed, logs that were damaged. For an operator's log.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        let mut events = std::mem::take(&mut *lock(&self.0.events_waiting));
        events.extend(self.0.runtime().map(|runtime| runtime.take_events()).unwrap_or_default());
        events
    }

    /// Sampled traces since this was last called.
    #[must_use]
    pub fn take_traces(&self) -> Vec<TraceEvent> {
        self.0.runtime().map(|runtime| runtime.take_traces()).unwrap_or_default()
    }

    /// The counters of the lanes' runtime: queues, drops, datagrams.
    #[must_use]
    pub fn runtime_snapshot(&self) -> Snapshot {
        self.0.runtime().map(|runtime| runtime.snapshot()).unwrap_or_default()
    }

    /// Whether a log could not be written: values stored now may be gone after a restart.
    #[must_use]
    pub fn log_failed(&self) -> bool {
        self.0.flags.log_failed.load(Ordering::Relaxed)
    }

    /// Makes a lane panic, to see the node outlive it. False unless the node was built with test hooks.
    pub fn inject_panic(&self, lane: u8) -> bool {
        self.inject(lane, NodeCommand::Panic)
    }

    /// Makes a lane hang for so long, to see it replaced. False unless the node was built with test hooks.
    pub fn inject_stall(&self, lane: u8, time: Duration) -> bool {
        self.inject(lane, NodeCommand::Stall(time))
    }

    fn inject(&self, lane: u8, fault: NodeCommand) -> bool {
        self.0.test_hooks && self.0.runtime().is_ok_and(|runtime| runtime.command(LaneIndex(lane), fault).is_ok())
    }

    /// As [`shutdown`](Self::shutdown), for an executor whose threads are not to be blocked while lanes stop.
    pub fn shutdown_async(self) -> Call<()> {
        Call::elsewhere(|| self.shutdown())
    }

    /// Tells the peers, saves the contacts, and stops. Calls under way end with [`NodeError::Stopped`]. When it returns the node has
    /// stopped, also if another caller began it.
    pub fn shutdown(self) {
        self.0.stop(true);
    }
}

/// A lane answered something that does not belong to the question: a bug of ours, told as the caller's to retry.
pub(crate) fn unexpected(outcome: &Outcome) -> NodeError {
    debug_assert!(false, "no answer to this question: {outcome:?}");
    NodeError::Busy
}
