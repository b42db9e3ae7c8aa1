//! Values under their hash: one record if it fits, else many under a tree of manifests.
//!
//! A short value that happens to read as a manifest is cut like a long one, so that it is read back unchanged.
//! Parts are stored and fetched many at a time; how many adapts, because peers say so when it is too much for them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tessera_contracts::point::{ContentId, Point as _};
use tessera_dht::chunk::{Assembly, Chunked, PartRefused, cut};
use tessera_dht::lookup::Standing;
use tessera_dht::node::command::{Answer, Command, Privacy, Written};
use tessera_dht::record::{RecordView, TTL_SECS_DEFAULT, TTL_SECS_MAX, immutable_record};
use tessera_dht::wire::VALUE_BYTES_MAX;
use tessera_dht::wire::message::ErrorCode;

use crate::error::NodeError;
use crate::explain::Explain;
use crate::forget::{self, Rest};
use crate::inner::Inner;
use crate::node::unexpected;
use crate::parts_in_use::InUse;
use crate::timer;
use crate::turns::Turn;
use crate::unfinished::{Unfinished, forget_rest};

/// Parts stored or fetched at once, at most.
const WINDOW_MAX: usize = 32;
const WINDOW_START: usize = 8;

/// How often a part that no holder took is tried again, with growing pauses.
const TRIES_MAX: u32 = 6;

/// How far a large value has come: parts done, and parts known of.
pub type Progress = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// How a value is stored.
#[derive(Clone)]
pub struct Put {
    /// How long it holds unless it is stored again. Default: a day.
    pub ttl: Duration,
    /// Store it again at half its lifetime, for as long as this node runs. Default: yes.
    pub keep_alive: bool,
    /// Called as parts are stored.
    pub progress: Option<Progress>,
}

impl Default for Put {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(u64::from(TTL_SECS_DEFAULT)), keep_alive: true, progress: None }
    }
}

impl fmt::Debug for Put {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Put").field("ttl", &self.ttl).field("keep_alive", &self.keep_alive).finish_non_exhaustive()
    }
}

/// How a value is read.
#[derive(Clone, Default)]
pub struct Get {
    /// How much the lookup hides.
    pub privacy: Privacy,
    /// Called as parts are fetched.
    pub progress: Option<Progress>,
}

impl fmt::Debug for Get {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Get").field("privacy", &self.privacy).finish_non_exhaustive()
    }
}

/// A value that was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// By which it is read.
    pub id: ContentId,
    /// Records it was cut into; one for a short value.
    pub records: usize,
    /// Of the record that fared worst: how many nodes hold it. Zero for a node that is alone: it keeps the value itself, and
    /// stores it when others come.
    pub replicas: u16,
    /// Of the same record: how many should.
    pub holders: u16,
    /// How its last record was stored.
    pub explain: Explain,
}

/// A value that was read.
#[derive(Clone, PartialEq, Eq)]
pub struct Value {
    /// The value.
    pub bytes: Vec<u8>,
    /// Records it was put together from.
    pub records: usize,
    /// How its first record was found.
    pub explain: Explain,
}

impl fmt::Debug for Value {
    /// Values are other people's: they are not printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value")
            .field("bytes", &self.bytes.len())
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}

/// A lifetime that nodes accept.
pub(crate) fn ttl_secs(ttl: Duration) -> Result<u32, NodeError> {
    let secs = ttl.as_secs();
    u32::try_from(secs).ok().filter(|secs| (1..=TTL_SECS_MAX).contains(secs)).ok_or(NodeError::Lifetime { secs })
}

pub(crate) async fn put(inner: &Arc<Inner>, value: &[u8], put: &Put) -> Result<Stored, NodeError> {
    let ttl_secs = ttl_secs(put.ttl)?;
    let plain = value.len() <= VALUE_BYTES_MAX && !reads_as_manifest(value);
    if plain {
        let record = immutable_record(value, ttl_secs).map_err(NodeError::TooLong)?;
        let id = ContentId::of_immutable(value);
        let stored = put_records(inner, id, &[record], put).await;
        return stored.map_err(|why| why.of_record(id, put.keep_alive && !inner.client));
    }
    let Chunked { root: id, records } = cut(value, ttl_secs).map_err(NodeError::TooLong)?;
    if !put.keep_alive {
        return put_records(inner, id, &records, put).await;
    }
    let turn = inner.writers.take(id).await;
    let ids = forget::ids_of(&records);
    let in_use = inner.parts_in_use.store(ids.clone()).await;
    let stored_before = forget::may_be_kept(inner, id).await;
    let unfinished = inner.unfinished.as_ref().map(|folder| Unfinished::begin(folder, &id, &ids)).transpose();
    let unfinished = unfinished.map_err(|_| NodeError::NotLogged)?;
    let rest = Rest { root: id, ids, stored_before };
    let mut begun = Begun { inner: inner.clone(), rest, in_use: Some(in_use), unfinished, turn: Some(turn) };
    let stored = put_records(inner, id, &records, put).await;
    begun.in_use = None;
    let undone = match &stored {
        Ok(_) => Ok(()),
        Err(_) => forget::undo(&Arc::downgrade(inner), &begun.rest).await,
    };
    if undone.is_ok() {
        if let Some(unfinished) = begun.unfinished.take() {
            unfinished.finish();
        }
        begun.turn = None;
    }
    match (stored, undone) {
        // Its parts are forgotten later, if they can be. Of a node without a data folder that has stopped nothing is left.
        (Err(why), Err(undone)) if undone != NodeError::Stopped || inner.unfinished.is_some() => {
            Err(NodeError::Remains { id, why: Box::new(why) })
        }
        (stored, _) => stored,
    }
}

/// A large value some parts of which may be stored. Parts of nothing would be kept alive for as long as the node runs, and no
/// caller could name them: a call that is dropped has them forgotten.
struct Begun {
    inner: Arc<Inner>,
    rest: Rest,
    /// Keeps others from forgetting its parts while they are stored.
    in_use: Option<InUse>,
    /// Has the next start of the node forget them, if this one does not come to it.
    unfinished: Option<Unfinished>,
    /// Held until nothing is left of it, so that a call that stores the same value again loses no parts to it. `None` at the end.
    turn: Option<Turn>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.in_use = None;
        let Some(turn) = self.turn.take() else { return };
        let (inner, rest) = (Arc::downgrade(&self.inner), self.rest.clone());
        let unfinished = self.unfinished.take();
        // Dropping a call must not block. If the system has no thread to spare, the parts stay.
        let _ = std::thread::Builder::new().name("node-undo".to_owned()).spawn(move || {
            forget_rest(&inner, &rest, unfinished);
            drop(turn);
        });
    }
}

async fn put_records(inner: &Arc<Inner>, id: ContentId, records: &[Vec<u8>], put: &Put) -> Result<Stored, NodeError> {
    let total = records.len();
    let told = |done: usize| {
        if let Some(progress) = &put.progress {
            progress(done, total);
        }
    };
    told(0);
    // The root comes last: a reader that finds it misses no part.
    let (root, parts) = records.split_last().ok_or(NodeError::BadRecord)?;
    let (mut window, mut pace) = (Window::new(), Pace::default());
    let (mut waiting, mut done, mut worst) = (parts.iter(), 0, None::<Written>);
    let mut parts: Parts<Result<PutPart, NodeError>> = Parts::default();
    loop {
        while parts.len() < window.size
            && let Some(record) = waiting.next()
        {
            pace.wait().await;
            parts.push(put_record(inner.clone(), record.clone(), put.keep_alive));
        }
        let Some(part) = parts.next().await else { break };
        let part = part?;
        window.adapt(part.tries == 1);
        pace.adapt(part.limited);
        worst = Some(worse(worst, part.written));
        done += 1;
        told(done);
    }
    let root = put_record(inner.clone(), root.clone(), put.keep_alive).await?;
    told(total);
    let worst = worse(worst, root.written);
    Ok(Stored { id, records: total, replicas: worst.acknowledged, holders: worst.holders, explain: root.explain })
}

fn worse(held: Option<Written>, other: Written) -> Written {
    match held {
        Some(held) if held.acknowledged <= other.acknowledged => held,
        _ => other,
    }
}

struct PutPart {
    written: Written,
    explain: Explain,
    tries: u32,
    /// A peer said that it was too much at once.
    limited: bool,
}

async fn put_record(inner: Arc<Inner>, record: Vec<u8>, keep_alive: bool) -> Result<PutPart, NodeError> {
    let id = RecordView::read(&record).map_err(|_| NodeError::BadRecord)?.id();
    let mut limited = false;
    for tries in 1.. {
        let outcome = inner.ask(id.as_bytes(), None, || Command::Put { record: record.clone(), keep_alive }).await?;
        let explain = Explain::of(&outcome);
        let no_peer_to_ask = outcome.asked.is_empty();
        let written = match outcome.answer {
            Answer::Written(written) => {
                // Whether or not others took it, this node keeps it alive.
                if keep_alive {
                    inner.note_kept_alive(id, &record);
                }
                written
            }
            Answer::BadRecord => return Err(NodeError::BadRecord),
            _ => return Err(unexpected(&outcome)),
        };
        // Alone, a node that stays keeps it and stores it when others come; a client has put it nowhere. If others answered
        // and all refused, they are asked again.
        let alone = written.holders == 0 && no_peer_to_ask && !inner.client;
        if written.has_quorum() || alone {
            return Ok(PutPart { written, explain, tries, limited });
        }
        let too_much = written.refused.iter().any(|(code, _)| is_too_much(*code));
        limited |= too_much;
        if tries >= TRIES_MAX || !(too_much || written.silent > 0 || written.holders == 0) {
            return Err(NodeError::NotStored { written, explain: Box::new(explain) });
        }
        timer::after(Duration::from_millis(100 << tries)).await;
    }
    Err(NodeError::Busy)
}

pub(crate) async fn get(inner: &Arc<Inner>, id: ContentId, get: &Get) -> Result<Value, NodeError> {
    let (root, explain) = get_record(inner.clone(), id, get.privacy).await?;
    let mut assembly = Assembly::new(id);
    if assembly.offer(&id, &root).is_err() {
        return Ok(Value { bytes: root, records: 1, explain });
    }
    let incomplete = |part, why: String| NodeError::Incomplete { id, part, why };
    let (mut window, mut pace) = (Window::new(), Pace::default());
    let mut parts: Parts<(ContentId, bool, Result<Vec<u8>, NodeError>)> = Parts::default();
    let (mut asked, mut done) = (std::collections::BTreeSet::new(), 1);
    loop {
        if let Some(progress) = &get.progress {
            progress(done, done + assembly.wanted().len());
        }
        // Few are under way, so the search is short however much is still wanted.
        while parts.len() < window.size
            && let Some(part) = assembly.wanted().find(|part| !asked.contains(*part)).copied()
        {
            asked.insert(part);
            pace.wait().await;
            let (inner, privacy) = (inner.clone(), get.privacy);
            parts.push(async move {
                let mut result = get_record(inner.clone(), part, privacy).await;
                let mut limited = false;
                // Its holder may have been busy with the parts before it.
                for tries in 1..TRIES_MAX {
                    let Err(NodeError::NotFound { explain, .. } | NodeError::Inconclusive { explain, .. }) = &result
                    else {
                        break;
                    };
                    limited |= explain
                        .asked
                        .iter()
                        .any(|one| matches!(one.standing, Standing::Refused(code) if is_too_much(code)));
                    timer::after(Duration::from_millis(50 << tries)).await;
                    result = get_record(inner.clone(), part, privacy).await;
                }
                (part, limited, result.map(|(bytes, _)| bytes))
            });
        }
        let Some((part, limited, bytes)) = parts.next().await else { break };
        // A piece that repeats may be wanted again by a manifest that comes later.
        asked.remove(&part);
        let bytes = bytes.map_err(|error| incomplete(part, error.to_string()))?;
        assembly.offer(&part, &bytes).map_err(|error: PartRefused| incomplete(part, error.to_string()))?;
        window.adapt(!limited);
        pace.adapt(limited);
        done += 1;
    }
    let bytes = assembly.finish().map(<[u8]>::to_vec);
    let bytes = bytes.ok_or_else(|| incomplete(id, "a part was never fetched".to_owned()))?;
    if let Some(progress) = &get.progress {
        progress(done, done);
    }
    Ok(Value { bytes, records: done, explain })
}

async fn get_record(inner: Arc<Inner>, id: ContentId, privacy: Privacy) -> Result<(Vec<u8>, Explain), NodeError> {
    let outcome = inner.ask(id.as_bytes(), None, || Command::Get { id, mutable: false, privacy }).await?;
    let explain = Explain::of(&outcome);
    match &outcome.answer {
        Answer::Record(record) => {
            let view = RecordView::read(record).map_err(|_| NodeError::BadRecord)?;
            Ok((view.value.to_vec(), explain))
        }
        Answer::NoRecord => Err(NodeError::NotFound { id, explain: Box::new(explain) }),
        Answer::Inconclusive => Err(NodeError::Inconclusive { id, explain: Box::new(explain) }),
        _ => Err(unexpected(&outcome)),
    }
}

fn reads_as_manifest(value: &[u8]) -> bool {
    let id = ContentId::of_immutable(value);
    Assembly::new(id).offer(&id, value).is_ok()
}

/// How many parts are under way: one more while all goes well, half as many when it does not.
struct Window {
    size: usize,
    well: usize,
}

impl Window {
    fn new() -> Self {
        Self { size: WINDOW_START, well: 0 }
    }

    fn adapt(&mut self, well: bool) {
        if well {
            self.well += 1;
            if self.well >= self.size {
                (self.size, self.well) = ((self.size + 1).min(WINDOW_MAX), 0);
            }
        } else {
            (self.size, self.well) = ((self.size / 2).max(1), 0);
        }
    }
}

/// Whether it would have been taken, or answered, later.
fn is_too_much(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::RateLimited | ErrorCode::Busy)
}

/// How fast parts follow each other: as fast as they go until a peer says that it is too much, then at twice the distance, and
/// ever so slowly faster again. A node that goes on asking above a peer's limit is soon in quarantine there.
#[derive(Debug)]
struct Pace {
    between: Duration,
    next: Instant,
}

/// The first distance that parts are given.
const BETWEEN_MIN: Duration = Duration::from_millis(8);
const BETWEEN_MAX: Duration = Duration::from_secs(1);
/// Parts that go well make the distance shorter by one in so many: a large value is refused a few hundred times.
const FASTER_BY: u32 = 512;

impl Default for Pace {
    fn default() -> Self {
        Self { between: Duration::ZERO, next: Instant::now() }
    }
}

impl Pace {
    async fn wait(&mut self) {
        let now = Instant::now();
        if self.next > now {
            timer::after(self.next - now).await;
        }
        self.next = self.next.max(now) + self.between;
    }

    /// A part is done. Those under way together are refused together, which is one refusal.
    fn adapt(&mut self, limited: bool) {
        let now = Instant::now();
        if !limited {
            self.between = self.between.saturating_sub((self.between / FASTER_BY).max(Duration::from_nanos(100)));
        } else if self.next <= now + self.between {
            self.between = (self.between * 2).clamp(BETWEEN_MIN, BETWEEN_MAX);
            self.next = now + PAUSE_WHEN_LIMITED.max(self.between * 2);
        }
    }
}

/// A node that was asked too much has so long to forget.
const PAUSE_WHEN_LIMITED: Duration = Duration::from_millis(200);

/// Futures under way together.
pub(crate) struct Parts<T>(Vec<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Parts<T> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn push(&mut self, part: impl Future<Output = T> + Send + 'static) {
        self.0.push(Box::pin(part));
    }

    /// The next one that is done; `None` if none is under way.
    pub(crate) async fn next(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| {
            if self.0.is_empty() {
                return Poll::Ready(None);
            }
            for at in 0..self.0.len() {
                if let Poll::Ready(value) = self.0[at].as_mut().poll(cx) {
                    drop(self.0.swap_remove(at));
                    return Poll::Ready(Some(value));
                }
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_value_does_not_keep_a_dropped_node_running() {
        use std::task::{Context, Waker};
        let node = crate::Node::builder().lanes(2).share_threads(false).test_hooks(true).start().unwrap();
        let mut call = node.put((0..500_000_u32).map(|n| (n ^ n >> 7 ^ n >> 13) as u8).collect::<Vec<u8>>());
        while node.status().wait().unwrap().held("kept alive bytes") == 0 {
            assert!(Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        // Its parts cannot be forgotten before the lane is given up.
        assert!(node.inject_stall(0, Duration::from_secs(3600)));
        drop(call);
        std::thread::sleep(Duration::from_millis(50));
        let inner = Arc::downgrade(&node.0);
        let dropped = std::thread::spawn(move || drop(node));
        let begun = Instant::now();
        while inner.strong_count() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(600), "a reference to the node is left");
            std::thread::yield_now();
        }
        dropped.join().unwrap();
    }

    #[test]
    fn a_window_grows_by_one_and_halves() {
        let mut window = Window::new();
        for _ in 0..WINDOW_START {
            window.adapt(true);
        }
        assert_eq!(window.size, WINDOW_START + 1);
        window.adapt(false);
        assert_eq!(window.size, WINDOW_START.div_ceil(2));
        (0..10).for_each(|_| window.adapt(false));
        assert_eq!(window.size, 1);
        (0..10_000).for_each(|_| window.adapt(true));
        assert_eq!(window.size, WINDOW_MAX);
    }
}
