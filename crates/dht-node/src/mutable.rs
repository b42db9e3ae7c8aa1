//! Values that only their owner can change, by key and name; each version has a higher number than the last.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_dht::identity::{Crypto as _, Identity, PublicKey};
use tessera_dht::node::command::{Answer, Command, Privacy};
use tessera_dht::record::{MutableDraft, MutableView, RecordView, TTL_SECS_DEFAULT, mutable_id, mutable_record};
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::wire::message::ErrorCode;
use zeroize::Zeroizing;

use crate::clock::unix_ms;
use crate::error::NodeError;
use crate::explain::Explain;
use crate::forget::forget_record;
use crate::inner::Inner;
use crate::node::unexpected;
use crate::values::ttl_secs;

/// The name of a mutable value: its owner's key, and a number that the owner chose.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MutableKey {
    /// The owner's public key.
    pub owner: [u8; 32],
    /// Which of the owner's values.
    pub salt: [u8; 32],
}

impl MutableKey {
    /// The owner's value of this name.
    #[must_use]
    pub fn named(owner: [u8; 32], name: &str) -> Self {
        Self { owner, salt: salt_of(name) }
    }

    /// The content id it is stored under.
    #[must_use]
    pub fn id(&self) -> ContentId {
        mutable_id(&PublicKey(self.owner), &self.salt)
    }
}

impl fmt::Debug for MutableKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MutableKey({} of {})", self.id(), NodeId::from_bytes(self.owner))
    }
}

/// A name as a salt: the empty name is all zeroes, others are hashed.
fn salt_of(name: &str) -> [u8; 32] {
    if name.is_empty() { [0; 32] } else { *ContentId::of_immutable(name.as_bytes()).as_bytes() }
}

/// How a mutable value is written.
#[derive(Clone)]
pub struct PutMutable {
    /// Which of the owner's values.
    pub salt: [u8; 32],
    /// The owner's secret; `None` for the node's own key.
    pub seed: Option<Zeroizing<[u8; 32]>>,
    /// The version's number; `None` for one more than the newest that is found.
    pub sequence: Option<u64>,
    /// How long it holds unless it is written again. Default: a day.
    pub ttl: Duration,
    /// Store it again at half its lifetime while this node runs. It cannot outlive `ttl`: only the owner can sign anew.
    pub keep_alive: bool,
}

impl PutMutable {
    /// This node's value of this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            salt: salt_of(name),
            seed: None,
            sequence: None,
            ttl: Duration::from_secs(u64::from(TTL_SECS_DEFAULT)),
            keep_alive: true,
        }
    }
}

impl fmt::Debug for PutMutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutMutable").field("sequence", &self.sequence).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

/// A version of a mutable value, read or written.
#[derive(Clone, PartialEq, Eq)]
pub struct Mutable {
    /// Whose, and which.
    pub key: MutableKey,
    /// The value; empty if it was deleted.
    pub value: Vec<u8>,
    /// The version's number.
    pub sequence: u64,
    /// Nodes that took it, when it was written.
    pub replicas: u16,
    /// Nodes that should have taken it.
    pub holders: u16,
    /// How it went.
    pub explain: Explain,
}

impl fmt::Debug for Mutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutable").field("key", &self.key).field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

/// A version, before its owner has signed it.
#[derive(Clone, Copy)]
pub struct Version<'a> {
    /// Which of the owner's values.
    pub name: &'a str,
    /// The version's number.
    pub sequence: u64,
    /// How long it holds unless it is written again.
    pub ttl: Duration,
    /// The value; `None` to delete it.
    pub value: Option<&'a [u8]>,
}

impl fmt::Debug for Version<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Version").field("sequence", &self.sequence).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

/// A version signed by its owner for the network of this name: [`Node::put_signed`](crate::Node::put_signed) stores it, on a node that
/// need not know the owner's key.
pub fn signed(owner: &Identity, network: &str, version: &Version<'_>) -> Result<Vec<u8>, NodeError> {
    sign(owner, &NetworkKey::of_name(network), salt_of(version.name), version)
}

fn sign(owner: &Identity, network: &NetworkKey, salt: [u8; 32], version: &Version<'_>) -> Result<Vec<u8>, NodeError> {
    let &Version { sequence, ttl, value, .. } = version;
    let draft = MutableDraft { salt, sequence, issued_secs: unix_ms() / 1000, ttl_secs: ttl_secs(ttl)?, value };
    mutable_record(&draft, owner, network).map_err(NodeError::TooLong)
}

pub(crate) async fn put(inner: &Arc<Inner>, value: Option<Vec<u8>>, put: &PutMutable) -> Result<Mutable, NodeError> {
    let identity = Identity::from_seed(put.seed.as_ref().unwrap_or(&inner.seed));
    let key = MutableKey { owner: identity.public_key().0, salt: put.salt };
    // Two calls that read the same newest version would both write the next one, and contradict each other in the owner's name.
    let _turn = inner.writers.take(key.id()).await;
    let sequence = match put.sequence {
        Some(sequence) => sequence,
        None => next_version(inner, key).await?,
    };
    let version = Version { name: "", sequence, ttl: put.ttl, value: value.as_deref() };
    let record = sign(&identity, &inner.network_key, put.salt, &version)?;
    write(inner, record, put.keep_alive).await
}

/// Stores a record that its owner has signed.
pub(crate) async fn put_signed(inner: &Arc<Inner>, record: Vec<u8>, keep_alive: bool) -> Result<Mutable, NodeError> {
    let id = RecordView::read(&record).map_err(|_| NodeError::BadRecord)?.id();
    let _turn = inner.writers.take(id).await;
    write(inner, record, keep_alive).await
}

/// One more than the newest number that is found.
pub(crate) async fn next_version(inner: &Arc<Inner>, key: MutableKey) -> Result<u64, NodeError> {
    match get(inner, key).await {
        Err(NodeError::NotFound { .. }) => Ok(1),
        found => newest(found)?.checked_add(1).ok_or(NodeError::LastVersion),
    }
}

/// The newest number that is known of.
fn newest(found: Result<Mutable, NodeError>) -> Result<u64, NodeError> {
    match found {
        Ok(Mutable { sequence: newest, .. })
        | Err(NodeError::Deleted { sequence: newest, .. } | NodeError::OnlyStale { seen: newest, .. }) => Ok(newest),
        Err(error) => Err(error),
    }
}

async fn write(inner: &Arc<Inner>, record: Vec<u8>, keep_alive: bool) -> Result<Mutable, NodeError> {
    let view = RecordView::read(&record).map_err(|_| NodeError::BadRecord)?;
    let (id, version) = (view.id(), view.mutable.ok_or(NodeError::BadRecord)?);
    let (key, sequence) = (MutableKey { owner: version.owner.0, salt: *version.salt }, version.sequence);
    let outcome = inner.ask(id.as_bytes(), None, || Command::Put { record: record.clone(), keep_alive }).await?;
    let explain = Explain::of(&outcome);
    let written = match outcome.answer {
        Answer::Written(written) => written,
        Answer::BadRecord => return Err(NodeError::BadRecord),
        _ => return Err(unexpected(&outcome)),
    };
    let stale = |(code, _): &&(ErrorCode, u16)| matches!(code, ErrorCode::StaleSequence | ErrorCode::Equivocation);
    let say_so: u32 = written.refused.iter().filter(stale).map(|(_, count)| u32::from(*count)).sum();
    if say_so > 0 {
        let found = get(inner, key).await;
        // Where some holders took it, the node believes a refusal only with proof, or from most holders.
        let is_out = say_so * 2 > u32::from(written.holders) || stands_against(&found, &version, view.value);
        if written.acknowledged > 0 && is_out && keep_alive {
            // Kept alive, it would be offered again. If it cannot be forgotten, it runs out.
            let _ = forget_record(Arc::downgrade(inner), id).await;
        }
        if written.acknowledged == 0 || is_out {
            return Err(NodeError::Outdated { current: newest(found).unwrap_or(sequence), asked: sequence });
        }
    }
    // Whether or not others took it, this node keeps it alive.
    if keep_alive {
        inner.note_kept_alive(id, &record);
    }
    if !written.has_quorum() && (written.holders > 0 || inner.client) {
        let why = NodeError::NotStored { written, explain: Box::new(explain) };
        return Err(why.of_record(id, keep_alive && !inner.client));
    }
    let (replicas, holders) = (written.acknowledged, written.holders);
    Ok(Mutable { key, value: view.value.to_vec(), sequence, replicas, holders, explain })
}

/// Whether the record found is newer than this version, or differs under the same number.
fn stands_against(found: &Result<Mutable, NodeError>, version: &MutableView<'_>, value: &[u8]) -> bool {
    match found {
        Ok(out) if out.sequence == version.sequence => version.tombstone || out.value != value,
        Err(NodeError::Deleted { sequence, .. }) if *sequence == version.sequence => !version.tombstone,
        Ok(Mutable { sequence, .. }) | Err(NodeError::Deleted { sequence, .. }) => *sequence > version.sequence,
        Err(_) => false,
    }
}

pub(crate) async fn get(inner: &Arc<Inner>, key: MutableKey) -> Result<Mutable, NodeError> {
    let id = key.id();
    let outcome = inner.ask(id.as_bytes(), None, || Command::Get { id, mutable: true, privacy: Privacy::None }).await?;
    let explain = Explain::of(&outcome);
    match &outcome.answer {
        Answer::Record(record) => {
            let view = RecordView::read(record).map_err(|_| NodeError::BadRecord)?;
            let mutable = view.mutable.ok_or(NodeError::BadRecord)?;
            if mutable.tombstone {
                return Err(NodeError::Deleted { id, sequence: mutable.sequence });
            }
            let value = view.value.to_vec();
            Ok(Mutable { key, value, sequence: mutable.sequence, replicas: 0, holders: 0, explain })
        }
        Answer::NoRecord => Err(NodeError::NotFound { id, explain: Box::new(explain) }),
        Answer::Inconclusive => Err(NodeError::Inconclusive { id, explain: Box::new(explain) }),
        Answer::OnlyStale { seen, found } => Err(NodeError::OnlyStale { seen: *seen, found: *found }),
        _ => Err(unexpected(&outcome)),
    }
}
