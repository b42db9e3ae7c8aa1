//! A store that pauses before and after every request, so that a test decides where another caller comes in between.
//!
//! A [`Scheduled`] store passes every request on to the simulated one. Its [`Gate`] counts *pause points*: one before each
//! request and one behind each, retries and heartbeats included. A test runs a call until a point of its choice, lets others
//! run, and then lets the call go on; nothing else moves meanwhile, so a schedule is replayed by its numbers.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tessera_coordination_etcd::kv::{
    EtcdLeaseId, GrantedLease, Kv, KvError, LeaseTimeToLive, Moment, RangeRequest, RangeResponse, Txn, TxnResponse,
};
use tessera_coordination_etcd::sim_kv::SimKv;

/// The simulated store as one coordinator reaches it.
#[derive(Clone)]
pub struct Scheduled {
    kv: SimKv,
    gate: Gate,
}

/// Where the requests of one coordinator pause.
#[derive(Clone, Default)]
pub struct Gate {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    points: usize,
    /// The points behind requests that wrote.
    writes: Vec<usize>,
    stop: Option<Stop>,
    stopped: bool,
    /// What the request at the last point is, for reports.
    request: &'static str,
}

/// Where a call is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// At the pause point with this number; the first is 1.
    At(usize),
    /// Behind the request that is the so-many-th to write.
    BehindWrite(usize),
}

/// How far a call has come.
pub enum Run<T> {
    Ended(T),
    Stopped,
}

/// Polls of one call before it counts as stuck. A call of a few dozen requests takes a few hundred.
const POLLS_MAX: usize = 50_000;

impl Gate {
    /// Counts from zero again, and stops at `stop`.
    pub fn set(&self, stop: Option<Stop>) {
        *self.lock() = State { stop, ..State::default() };
    }

    /// Opens: whatever stopped here goes on, and nothing stops any more.
    pub fn open(&self) {
        let mut state = self.lock();
        (state.stop, state.stopped) = (None, false);
    }

    /// How many points were passed.
    pub fn points(&self) -> usize {
        self.lock().points
    }

    /// The points behind requests that wrote.
    pub fn writes(&self) -> Vec<usize> {
        self.lock().writes.clone()
    }

    /// The point where the call stands, in words.
    pub fn place(&self) -> String {
        let state = self.lock();
        let side = if state.points % 2 == 1 { "before" } else { "behind" };
        format!("{side} request {} ({})", state.points.div_ceil(2), state.request)
    }

    fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Runs `call` until it ends or its coordinator stops here.
    ///
    /// # Panics
    /// If the call waits for something that never comes.
    pub fn run<T>(&self, mut call: Pin<&mut (dyn Future<Output = T> + '_)>) -> Run<T> {
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..POLLS_MAX {
            if let Poll::Ready(ended) = call.as_mut().poll(&mut context) {
                return Run::Ended(ended);
            }
            if self.is_stopped() {
                return Run::Stopped;
            }
        }
        panic!("a call is stuck {}", self.place());
    }

    async fn point(&self, request: &'static str, written: bool) {
        let stops = {
            let mut state = self.lock();
            state.points += 1;
            if written {
                let point = state.points;
                state.writes.push(point);
            }
            state.request = request;
            match state.stop {
                Some(Stop::At(point)) => state.points == point,
                Some(Stop::BehindWrite(write)) => written && state.writes.len() == write,
                None => false,
            }
        };
        if !stops {
            return;
        }
        self.lock().stopped = true;
        poll_fn(|_| if self.is_stopped() { Poll::Pending } else { Poll::Ready(()) }).await;
    }

    /// Makes a request between two points.
    async fn around<T>(&self, name: &'static str, writes: bool, request: impl Future<Output = T>) -> T {
        self.point(name, false).await;
        let answer = request.await;
        self.point(name, writes).await;
        answer
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scheduled {
    pub fn new(kv: &SimKv, gate: &Gate) -> Self {
        Self { kv: kv.clone(), gate: gate.clone() }
    }
}

impl Kv for Scheduled {
    async fn range(&self, request: RangeRequest, deadline: Moment) -> Result<RangeResponse, KvError> {
        self.gate.around("read", false, self.kv.range(request, deadline)).await
    }

    async fn txn(&self, request: Txn, deadline: Moment) -> Result<TxnResponse, KvError> {
        let writes = !request.is_read_only();
        let name = if writes { "transaction" } else { "read" };
        self.gate.around(name, writes, self.kv.txn(request, deadline)).await
    }

    async fn lease_grant(&self, id: EtcdLeaseId, ttl: Duration, deadline: Moment) -> Result<GrantedLease, KvError> {
        self.gate.around("lease grant", false, self.kv.lease_grant(id, ttl, deadline)).await
    }

    async fn lease_revoke(&self, id: EtcdLeaseId, deadline: Moment) -> Result<(), KvError> {
        self.gate.around("lease revocation", true, self.kv.lease_revoke(id, deadline)).await
    }

    async fn lease_keep_alive(&self, id: EtcdLeaseId, deadline: Moment) -> Result<Option<Duration>, KvError> {
        self.gate.around("heartbeat", false, self.kv.lease_keep_alive(id, deadline)).await
    }

    async fn lease_time_to_live(&self, id: EtcdLeaseId, deadline: Moment) -> Result<Option<LeaseTimeToLive>, KvError> {
        self.gate.around("time to live", false, self.kv.lease_time_to_live(id, deadline)).await
    }

    fn now(&self) -> Moment {
        self.kv.now()
    }

    fn pause(&self, delay: Duration) -> impl Future<Output = ()> + Send {
        self.kv.pause(delay)
    }

    fn until(&self, moment: Moment) -> impl Future<Output = ()> + Send {
        self.kv.until(moment)
    }

    fn random(&self) -> u64 {
        self.kv.random()
    }
}
