//! Group commit: many shards' operations in one request, each with its own compares and its own answer.
//!
//! While a request is under way, operations that arrive wait; the next request takes them all as nested transactions. So
//! a lone operation is sent at once and alone, and a busy fleet pays for one round of the quorum per batch. A failed
//! compare fails its own operation only. A further request goes out beside one under way only once enough wait to fill
//! it, and the first sender lets others speak: answers wake many authors at once, and the first of them should
//! not leave without the rest.
//!
//! What all operations of a batch compare (that their run is what it was) is compared once, for all. If that fails nothing
//! was applied, and they are sent again with all their compares each, so that each still gets its own answer. What an
//! operation wants to read if its compares fail is left out as well, and read for it then: a lone operation hears it in
//! the same answer, one that lost in a batch in the next.
//!
//! etcd's rules shape a batch: a key may be written once per transaction, and compares do not see a sibling's writes. So each
//! subject (shard) is in it at most once, and operations that meet on another key all the same, as splits do on counters, go
//! in different batches (`touched`). And it has no more operations or bytes than one request may carry.
//!
//! Operations that write much have a batcher with other limits ([`BatchLimits::of_large`]). A server copies what it has
//! not yet put away for every transaction, large or small, so few of them together save it much; but all together would leave
//! it idle while their authors prepare the next ones.
//!
//! There is no task behind this. The first to arrive sends for the others and then appoints an heir among those who wait,
//! so it runs under any executor. If a sender's future is dropped, the operations it had sent are ambiguous to their
//! authors, those that still wait get a new sender, and nobody hangs; nor does anybody behind a sender that is neither polled
//! nor dropped, longer than until its own deadline. A batch has the time of its member with the least; if that was too little
//! even to send it, the others are sent again.

mod touched;

use core::future::poll_fn;
use core::task::Poll;
use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

use self::touched::Touched;
use crate::config::EtcdConfig;
use crate::kv::{Compare, Fate, Kv, KvError, KvErrorKind, Moment, Op, OpResponse, Txn, TxnResponse, by_deadline};

/// What one batch may hold, and how many may be under way.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Operations of subjects in one batch.
    pub ops_max: usize,
    /// The server's `--max-txn-ops`.
    pub txn_ops_max: usize,
    /// Bytes in one request.
    pub bytes_max: usize,
    /// Batches under way at once.
    pub in_flight_max: usize,
    /// How many operations must wait before another batch goes out beside one under way.
    pub company_min: usize,
}

/// Large operations that share a request.
const LARGE_OPS_MAX: usize = 8;
/// Requests of large operations under way: one that the server works on, and one that is on its way.
const LARGE_IN_FLIGHT_MAX: usize = 2;
/// Of the operations that fit a batch, the share that must wait before it is sent beside another.
const COMPANY: usize = 4;

impl From<&EtcdConfig> for BatchLimits {
    fn from(config: &EtcdConfig) -> Self {
        Self {
            ops_max: config.batch_ops_max,
            txn_ops_max: config.txn_ops_max,
            bytes_max: config.request_bytes_max,
            in_flight_max: config.batches_in_flight_max,
            company_min: config.batch_ops_max.div_ceil(COMPANY),
        }
    }
}

impl BatchLimits {
    /// For operations that write much: few share a request, and a second request waits for no company.
    #[must_use]
    pub fn of_large(config: &EtcdConfig) -> Self {
        let all = Self::from(config);
        if all.ops_max == 1 {
            return all;
        }
        Self {
            ops_max: all.ops_max.min(LARGE_OPS_MAX),
            in_flight_max: all.in_flight_max.min(LARGE_IN_FLIGHT_MAX),
            company_min: 1,
            ..all
        }
    }
}

/// Packs transactions of different subjects into shared requests.
#[derive(Debug)]
pub struct Batcher<K> {
    kv: K,
    limits: BatchLimits,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    next_ticket: u64,
    waiting: VecDeque<Waiting>,
    in_flight: usize,
    /// Appointed to send the next batch, and not yet begun. It stands at the head of the queue, so it will send itself.
    heir: Option<u64>,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    subject: Bytes,
    txn: Txn,
    deadline: Moment,
    tell: Option<oneshot::Sender<Told>>,
}

/// What a waiting author hears.
#[derive(Debug)]
enum Told {
    /// Send the next batch yourself.
    Lead,
    /// Another sent yours.
    Sent(Sent),
}

/// What became of an operation in a batch.
#[derive(Debug)]
enum Sent {
    Answer(Result<TxnResponse, KvError>),
    /// Nothing: the time of another was up, and it is to be sent again.
    Again(Txn),
}

impl<K: Kv> Batcher<K> {
    /// A batcher over a store.
    pub fn new(kv: K, limits: BatchLimits) -> Self {
        Self { kv, limits, queue: Mutex::default() }
    }

    /// Runs `txn`, which is about `subject` alone, in some batch.
    ///
    /// # Errors
    /// As the store's; an error of the batch is that of each of its operations.
    pub async fn submit(&self, subject: Bytes, mut txn: Txn, deadline: Moment) -> Result<TxnResponse, KvError> {
        if self.limits.ops_max == 1 && self.take_slot() {
            // Nothing is shared and nobody waits: no more than sending it.
            let _slot = Slot { batcher: self };
            return self.kv.txn(txn, deadline).await;
        }
        // A member that had too little time is not there again, so this ends.
        loop {
            match self.submit_once(subject.clone(), txn, deadline).await {
                Sent::Answer(answer) => return answer,
                Sent::Again(own) => txn = own,
            }
        }
    }

    async fn submit_once(&self, subject: Bytes, txn: Txn, deadline: Moment) -> Sent {
        let (tell, told) = oneshot::channel();
        let (ticket, leads) = {
            let mut queue = self.lock();
            let ticket = queue.next_ticket;
            queue.next_ticket += 1;
            // Others wait, so one of them is to send; or enough have come together, and one of them is told to.
            let leads = queue.waiting.is_empty() && self.may_send(&queue, 1);
            let tell = (!leads).then_some(tell);
            if leads {
                queue.in_flight += 1;
                queue.heir = Some(ticket);
            }
            queue.waiting.push_back(Waiting { ticket, subject, txn, deadline, tell });
            self.appoint(&mut queue);
            (ticket, leads)
        };
        let place = Place { batcher: self, ticket };
        let sent = if leads {
            self.lead(ticket).await
        } else {
            match by_deadline(&self.kv, deadline, told).await {
                Some(Ok(Told::Lead)) => self.lead(ticket).await,
                Some(Ok(Told::Sent(sent))) => sent,
                Some(Err(_sender_gone)) => Sent::Answer(Err(KvError::ambiguous(
                    KvErrorKind::Transport,
                    "the call that carried this operation was cancelled before its answer came",
                ))),
                None => Sent::Answer(Err(self.too_late(ticket))),
            }
        };
        drop(place);
        sent
    }

    /// What is known of an operation whose time is up while its author waits for others.
    fn too_late(&self, ticket: u64) -> KvError {
        let waits = self.lock().waiting.iter().any(|waiting| waiting.ticket == ticket);
        let fate = if waits { Fate::Unsent } else { Fate::Ambiguous };
        KvError::new(fate, KvErrorKind::Deadline, "the calls that it was to share a request with did not go on")
    }

    /// Takes room for a batch under way, if nobody waits for it.
    fn take_slot(&self) -> bool {
        let mut queue = self.lock();
        let free = queue.waiting.is_empty() && self.may_send(&queue, 1);
        queue.in_flight += usize::from(free);
        free
    }

    /// Sends the batch at the head of the queue, hands out its answers, and returns that of `ticket`.
    async fn lead(&self, ticket: u64) -> Sent {
        if self.limits.ops_max > 1 {
            let_others_speak().await;
        }
        let slot = Slot { batcher: self };
        let mut batch = self.take_batch();
        let deadline = batch.iter().map(|one| one.deadline).min().unwrap_or_default();
        let mut answers = self.send(&mut batch, deadline).await;
        drop(slot);
        let mut own = None;
        for one in batch.into_iter().rev() {
            let sent = match answers.pop().unwrap_or_else(|| Err(missing_answer())) {
                Err(error) if had_no_time(&error) && one.deadline > deadline => Sent::Again(one.txn),
                answer => Sent::Answer(answer),
            };
            match one.tell {
                _ if one.ticket == ticket => own = Some(sent),
                // An author that no longer waits has no use for its answer.
                Some(tell) => drop(tell.send(Told::Sent(sent))),
                None => {}
            }
        }
        own.unwrap_or_else(|| Sent::Answer(Err(missing_answer())))
    }

    /// Takes what fits into one request from the head of the queue, each subject once, and appoints who sends the rest.
    fn take_batch(&self) -> Vec<Waiting> {
        let mut queue = self.lock();
        queue.heir = None;
        let mut batch: Vec<Waiting> = Vec::new();
        let mut subjects: HashSet<Bytes> = HashSet::new();
        let mut touched = Touched::default();
        let (mut largest, mut bytes) = (0, 0);
        let mut index = 0;
        while index < queue.waiting.len() && batch.len() < self.limits.ops_max {
            let candidate = &queue.waiting[index];
            let widest = largest.max(candidate.txn.ops_counted());
            let total = bytes + candidate.txn.bytes_estimated();
            let fits = batch.is_empty()
                || (batch.len() + 1 + widest <= self.limits.txn_ops_max && total <= self.limits.bytes_max);
            // Later operations of the same subject keep their order behind one that is left; others may overtake.
            let is_first = subjects.insert(candidate.subject.clone());
            let is_alone = queue.waiting.len() == 1 && batch.is_empty();
            if !fits || !is_first || (!is_alone && !touched.take_in(&candidate.txn)) {
                index += 1;
                continue;
            }
            (largest, bytes) = (widest, total);
            if let Some(taken) = queue.waiting.remove(index) {
                batch.push(taken);
            }
        }
        self.appoint(&mut queue);
        batch
    }

    async fn send(&self, batch: &mut [Waiting], deadline: Moment) -> Vec<Result<TxnResponse, KvError>> {
        if let [one] = batch {
            let lone = core::mem::take(&mut one.txn);
            return vec![self.kv.txn(lone, deadline).await];
        }
        let shared = shared_compares(batch);
        if !shared.is_empty() {
            let success = batch.iter().map(|one| lean(&one.txn, &shared)).collect();
            match self.kv.txn(Txn { compares: shared, success, failure: vec![] }, deadline).await {
                Ok(answer) if answer.succeeded => return self.with_reads(batch, spread(answer, batch.len())).await,
                // Nothing was applied: each is to hear what became of its own.
                Ok(_) => {}
                Err(error) if error.fate == Fate::NotApplied && !error.is_transient() => {}
                Err(error) => return batch.iter().map(|_| Err(error.clone())).collect(),
            }
        }
        let nested = Txn::of(batch.iter().map(|one| lean(&one.txn, &[])).collect());
        match self.kv.txn(nested, deadline).await {
            Ok(answer) => self.with_reads(batch, spread(answer, batch.len())).await,
            // One operation that the store cannot take at all (a lease that is gone, a request too large) must not fail
            // its neighbours: nothing was applied, so each is sent by itself.
            Err(error) if error.fate == Fate::NotApplied && !error.is_transient() => {
                let mut answers = Vec::with_capacity(batch.len());
                for one in batch {
                    answers.push(self.kv.txn(one.txn.clone(), one.deadline).await);
                }
                answers
            }
            Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Reads, for those whose compares failed, what their failure branches ask for: those were left out of the batch.
    async fn with_reads(
        &self,
        batch: &[Waiting],
        mut answers: Vec<Result<TxnResponse, KvError>>,
    ) -> Vec<Result<TxnResponse, KvError>> {
        let left_out = |index: &usize| {
            let failure = &batch[*index].txn.failure;
            answers[*index].as_ref().is_ok_and(|answer| !answer.succeeded) && !failure.is_empty() && reads_only(failure)
        };
        let lost: Vec<usize> = (0..batch.len()).filter(left_out).collect();
        let widest = lost.iter().map(|index| batch[*index].txn.failure.len()).max().unwrap_or(1);
        for some in lost.chunks((self.limits.txn_ops_max / widest).max(1)) {
            let reads = some.iter().flat_map(|index| batch[*index].txn.failure.iter().cloned()).collect();
            let deadline = some.iter().map(|index| batch[*index].deadline).min().unwrap_or_default();
            let read = self.kv.txn(Txn::of(reads), deadline).await;
            let mut responses = read.as_ref().map(|read| read.responses.clone()).unwrap_or_default().into_iter();
            for index in some {
                let own = responses.by_ref().take(batch[*index].txn.failure.len()).collect();
                answers[*index] = match &read {
                    Ok(read) => Ok(TxnResponse { succeeded: false, revision: read.revision, responses: own }),
                    // Whatever became of the read, the operation itself did not happen.
                    Err(error) => Err(KvError { fate: Fate::NotApplied, ..error.clone() }),
                };
            }
        }
        answers
    }

    /// Appoints the longest waiter to send the next batch, if there is room for one.
    fn appoint(&self, queue: &mut Queue) {
        while queue.heir.is_none() && self.may_send(queue, queue.waiting.len()) {
            let Some(first) = queue.waiting.front_mut() else { return };
            let ticket = first.ticket;
            match first.tell.take().map(|tell| tell.send(Told::Lead)) {
                Some(Ok(())) => {
                    queue.heir = Some(ticket);
                    queue.in_flight += 1;
                }
                // Its author has gone away; nothing was sent for it.
                Some(Err(_)) | None => drop(queue.waiting.pop_front()),
            }
        }
    }

    /// Whether a batch may go out while so many wait.
    fn may_send(&self, queue: &Queue, waiting: usize) -> bool {
        queue.in_flight == 0 || (queue.in_flight < self.limits.in_flight_max && waiting >= self.limits.company_min)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A batch under way. Dropping it, for whatever reason, makes room for the next.
struct Slot<'b, K: Kv> {
    batcher: &'b Batcher<K>,
}

impl<K: Kv> Drop for Slot<'_, K> {
    fn drop(&mut self) {
        let mut queue = self.batcher.lock();
        queue.in_flight -= 1;
        self.batcher.appoint(&mut queue);
    }
}

/// An author's place in the queue. One that goes away while it waits, or while it was to send next, leaves no gap.
struct Place<'b, K: Kv> {
    batcher: &'b Batcher<K>,
    ticket: u64,
}

impl<K: Kv> Drop for Place<'_, K> {
    fn drop(&mut self) {
        let mut queue = self.batcher.lock();
        queue.waiting.retain(|waiting| waiting.ticket != self.ticket);
        if queue.heir == Some(self.ticket) {
            queue.heir = None;
            queue.in_flight -= 1;
            self.batcher.appoint(&mut queue);
        }
    }
}

/// An operation as a batch carries it: without what is compared for all, and without reads that only a loser wants. Losers
/// are few, and read for themselves; the bytes of their reads would be on the way of every winner.
fn lean(txn: &Txn, shared: &[Compare]) -> Op {
    let compares = txn.compares.iter().filter(|compare| !shared.contains(compare)).cloned().collect();
    let failure = if reads_only(&txn.failure) { Vec::new() } else { txn.failure.clone() };
    Op::Txn(Txn { compares, success: txn.success.clone(), failure })
}

fn reads_only(ops: &[Op]) -> bool {
    ops.iter().all(|op| matches!(op, Op::Range(_)))
}

/// What every operation of a batch compares; no more than there are operations, since the store counts the longer list.
fn shared_compares(batch: &[Waiting]) -> Vec<Compare> {
    let Some((first, others)) = batch.split_first() else { return Vec::new() };
    let everywhere = |compare: &&Compare| others.iter().all(|other| other.txn.compares.contains(compare));
    first.txn.compares.iter().filter(everywhere).take(batch.len()).cloned().collect()
}

/// Lets each other task that is ready run once.
async fn let_others_speak() {
    let mut asked = false;
    poll_fn(|context| {
        if core::mem::replace(&mut asked, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// One answer per operation, each with the revision of the whole.
fn spread(answer: TxnResponse, expected: usize) -> Vec<Result<TxnResponse, KvError>> {
    let revision = answer.revision;
    let mut answers: Vec<Result<TxnResponse, KvError>> = answer
        .responses
        .into_iter()
        .map(|response| match response {
            OpResponse::Txn(own) => Ok(TxnResponse { revision, ..own }),
            OpResponse::Range(_) | OpResponse::Put | OpResponse::Delete { .. } => Err(missing_answer()),
        })
        .collect();
    answers.resize_with(expected, || Err(missing_answer()));
    answers
}

/// Whether a request was not sent for want of time: the only failure that more time is sure to mend. A store that is busy or away has
/// been asked as often as anybody may, and is not asked again for each who shared the request.
fn had_no_time(error: &KvError) -> bool {
    error.kind == KvErrorKind::Deadline && error.fate == Fate::Unsent
}

fn missing_answer() -> KvError {
    KvError::ambiguous(KvErrorKind::UnexpectedResponse, "a batch was answered without an answer for this operation")
}

#[cfg(test)]
mod tests;
