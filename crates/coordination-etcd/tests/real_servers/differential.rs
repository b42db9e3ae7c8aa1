//! The simulated store answers as a real etcd does: the same random scripts on both, answers compared one by one.
//!
//! Revisions differ by where each store began, so they are compared relative to that. Everything else must be equal:
//! values, versions, counts, which branch ran, which lease a key has, and how a refused request is refused.

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use tessera_coordination_etcd::client::EtcdClient;
use tessera_coordination_etcd::kv::{
    Compare, CompareOp, CompareTarget, EtcdLeaseId, KeyValue, Keys, Kv, KvError, Moment, Op, OpResponse, RangeRequest,
    RangeResponse, Revision, Txn, TxnResponse,
};
use tessera_coordination_etcd::sim_kv::SimKv;
use tessera_coordination_etcd::test_support::EtcdCluster;

/// A script's transaction, before it is told where keys, revisions and leases begin.
#[derive(Clone, Debug)]
enum Step {
    Range(Read),
    Txn(Transaction),
    Grant(u8),
    Revoke(u8),
    KeepAlive(u8),
    TimeToLive(u8),
}

#[derive(Clone, Debug)]
struct Read {
    keys: Span,
    limit: u32,
    keys_only: bool,
    count_only: bool,
    /// As of which revision; zero is the latest.
    revision: i64,
}

#[derive(Clone, Debug)]
enum Span {
    One(u8),
    Range(u8, u8),
    All,
}

#[derive(Clone, Debug)]
struct Transaction {
    compares: Vec<(Span, u8, Target)>,
    success: Vec<Operation>,
    failure: Vec<Operation>,
}

#[derive(Clone, Debug)]
enum Target {
    Version(i64),
    Create(i64),
    Mod(i64),
    Value(u8),
    Lease(Option<u8>),
}

#[derive(Clone, Debug)]
enum Operation {
    Range(Read),
    Put(u8, u8, Option<u8>),
    Delete(Span),
    Txn(Transaction),
}

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![
        6 => (0..6u8).prop_map(Span::One),
        2 => (0..6u8, 0..7u8).prop_map(|(a, b)| Span::Range(a, b)),
        1 => Just(Span::All),
    ]
}

fn read() -> impl Strategy<Value = Read> {
    let revision = prop_oneof![3 => Just(0), 1 => 1..14i64];
    (span(), 0..4u32, any::<bool>(), prop::bool::weighted(0.2), revision).prop_map(
        |(keys, limit, keys_only, count_only, revision)| Read { keys, limit, keys_only, count_only, revision },
    )
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        (0..4i64).prop_map(Target::Version),
        (0..12i64).prop_map(Target::Create),
        (0..12i64).prop_map(Target::Mod),
        (0..3u8).prop_map(Target::Value),
        prop::option::of(0..3u8).prop_map(Target::Lease),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let leaf = prop_oneof![
        2 => read().prop_map(Operation::Range),
        4 => (0..6u8, 0..3u8, prop::option::weighted(0.3, 0..3u8)).prop_map(|(k, v, l)| Operation::Put(k, v, l)),
        1 => span().prop_map(Operation::Delete),
    ];
    leaf.prop_recursive(2, 12, 3, |inner| transaction_of(inner).prop_map(Operation::Txn))
}

fn transaction_of(op: impl Strategy<Value = Operation> + Clone) -> impl Strategy<Value = Transaction> {
    (
        prop::collection::vec((span(), 0..4u8, target()), 0..3),
        prop::collection::vec(op.clone(), 0..4),
        prop::collection::vec(op, 0..3),
    )
        .prop_map(|(compares, success, failure)| Transaction { compares, success, failure })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => read().prop_map(Step::Range),
        10 => transaction_of(operation().boxed()).prop_map(Step::Txn),
        2 => (0..3u8).prop_map(Step::Grant),
        1 => (0..3u8).prop_map(Step::Revoke),
        1 => (0..3u8).prop_map(Step::KeepAlive),
        1 => (0..3u8).prop_map(Step::TimeToLive),
    ]
}

/// Where a script's keys, revisions and leases begin on one store.
struct Place<'a> {
    prefix: &'a str,
    revision: i64,
    lease: i64,
}

impl Place<'_> {
    fn key(&self, key: u8) -> Bytes {
        Bytes::from(format!("{}{key}", self.prefix))
    }

    fn lease(&self, lease: u8) -> EtcdLeaseId {
        EtcdLeaseId(self.lease + i64::from(lease))
    }

    fn keys(&self, span: &Span) -> Keys {
        match span {
            Span::One(key) => Keys::One(self.key(*key)),
            Span::Range(start, end) => Keys::Range { start: self.key(*start), end: self.key(*end) },
            Span::All => Keys::with_prefix(self.prefix.to_owned()),
        }
    }

    fn read(&self, read: &Read) -> RangeRequest {
        let mut request = RangeRequest::of(self.keys(&read.keys)).limit(read.limit);
        request.keys_only = read.keys_only;
        request.count_only = read.count_only;
        request.at(self.at(read.revision))
    }

    fn txn(&self, txn: &Transaction) -> Txn {
        let compares = txn.compares.iter().map(|(span, op, target)| Compare {
            keys: self.keys(span),
            op: [CompareOp::Equal, CompareOp::NotEqual, CompareOp::Greater, CompareOp::Less][usize::from(*op)],
            target: match target {
                Target::Version(version) => CompareTarget::Version(*version),
                Target::Create(at) => CompareTarget::CreateRevision(self.at(*at)),
                Target::Mod(at) => CompareTarget::ModRevision(self.at(*at)),
                Target::Value(value) => CompareTarget::Value(value_of(*value)),
                Target::Lease(lease) => CompareTarget::Lease(lease.map_or(EtcdLeaseId::NONE, |l| self.lease(l))),
            },
        });
        let ops = |ops: &[Operation]| ops.iter().map(|op| self.op(op)).collect();
        Txn { compares: compares.collect(), success: ops(&txn.success), failure: ops(&txn.failure) }
    }

    /// Zero stays zero: it means "no such key" on every store.
    fn at(&self, relative: i64) -> Revision {
        Revision(if relative == 0 { 0 } else { self.revision + relative })
    }

    fn op(&self, op: &Operation) -> Op {
        match op {
            Operation::Range(read) => Op::Range(self.read(read)),
            Operation::Put(key, value, lease) => Op::Put {
                key: self.key(*key),
                value: value_of(*value),
                lease: lease.map_or(EtcdLeaseId::NONE, |lease| self.lease(lease)),
            },
            Operation::Delete(span) => Op::Delete(self.keys(span)),
            Operation::Txn(txn) => Op::Txn(self.txn(txn)),
        }
    }

    fn normal_txn(&self, mut answer: TxnResponse) -> TxnResponse {
        answer.revision = self.normal(answer.revision);
        answer.responses = answer
            .responses
            .into_iter()
            .map(|response| match response {
                OpResponse::Range(range) => OpResponse::Range(self.normal_range(range)),
                OpResponse::Txn(nested) => OpResponse::Txn(self.normal_txn(nested)),
                same @ (OpResponse::Put | OpResponse::Delete { .. }) => same,
            })
            .collect();
        answer
    }

    fn normal_range(&self, mut answer: RangeResponse) -> RangeResponse {
        answer.revision = self.normal(answer.revision);
        answer.kvs = answer
            .kvs
            .into_iter()
            .map(|kv| KeyValue {
                create_revision: self.normal(kv.create_revision),
                mod_revision: self.normal(kv.mod_revision),
                lease: EtcdLeaseId(if kv.lease == EtcdLeaseId::NONE { 0 } else { kv.lease.0 - self.lease + 1 }),
                ..kv
            })
            .collect();
        answer
    }

    fn normal(&self, revision: Revision) -> Revision {
        Revision(if revision.0 == 0 { 0 } else { revision.0 - self.revision })
    }
}

fn value_of(value: u8) -> Bytes {
    // The empty value is one of them: etcd must not confuse it with a missing key.
    Bytes::from("x".repeat(usize::from(value)))
}

/// What a step answered, with nothing left in it that may differ between two right stores.
#[derive(Debug, PartialEq)]
enum Answer {
    Range(RangeResponse),
    Txn(TxnResponse),
    Granted(Duration),
    Revoked,
    KeptAlive(Option<Duration>),
    TimeToLive(Option<Duration>),
    Refused(String),
}

async fn run(kv: &impl Kv, place: &Place<'_>, step: &Step) -> Answer {
    let deadline = kv.now().after(Duration::from_secs(600));
    let ttl = Duration::from_secs(600);
    let refused = |error: KvError| Answer::Refused(format!("{:?} {:?}", error.fate, error.kind));
    let answer = match step {
        Step::Range(read) => {
            kv.range(place.read(read), deadline).await.map(|answer| Answer::Range(place.normal_range(answer)))
        }
        Step::Txn(txn) => kv.txn(place.txn(txn), deadline).await.map(|answer| Answer::Txn(place.normal_txn(answer))),
        Step::Grant(lease) => {
            kv.lease_grant(place.lease(*lease), ttl, deadline).await.map(|granted| Answer::Granted(granted.ttl))
        }
        Step::Revoke(lease) => kv.lease_revoke(place.lease(*lease), deadline).await.map(|()| Answer::Revoked),
        Step::KeepAlive(lease) => kv.lease_keep_alive(place.lease(*lease), deadline).await.map(Answer::KeptAlive),
        Step::TimeToLive(lease) => kv
            .lease_time_to_live(place.lease(*lease), deadline)
            .await
            .map(|left| Answer::TimeToLive(left.map(|left| left.granted))),
    };
    answer.unwrap_or_else(refused)
}

async fn current_revision(kv: &impl Kv) -> i64 {
    let deadline = kv.now().after(Duration::from_secs(600));
    kv.range(RangeRequest::one("nothing"), deadline).await.expect("the store is up").revision.0
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built")
}

#[test]
fn random_scripts_get_the_same_answers_from_the_model_and_from_etcd() {
    let cluster = EtcdCluster::start(1);
    let runtime = runtime();
    let real = EtcdClient::new(&cluster.config()).expect("valid");
    let case = Cell::new(0i64);
    let config = ProptestConfig { cases: 160, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(script in prop::collection::vec(step(), 1..24))| {
        case.set(case.get() + 1);
        let prefix = format!("case{}/", case.get());
        let model = SimKv::new(0);
        runtime.block_on(async {
            let lease = case.get() * 16;
            let on_model = Place { prefix: &prefix, revision: current_revision(&model).await, lease };
            let on_etcd = Place { prefix: &prefix, revision: current_revision(&real).await, lease };
            for (index, step) in script.iter().enumerate() {
                let expected = run(&real, &on_etcd, step).await;
                let modelled = run(&model, &on_model, step).await;
                prop_assert_eq!(modelled, expected, "model (left) and etcd (right) differ at step {}: {:?}", index, step);
            }
            for lease in 0..3 {
                run(&real, &on_etcd, &Step::Revoke(lease)).await;
            }
            Ok(())
        })?;
    });
}

#[test]
fn both_refuse_at_exactly_the_same_sizes() {
    let cluster = EtcdCluster::shared();
    let config = cluster.config();
    let runtime = runtime();
    let real = EtcdClient::new(&config).expect("valid");
    let key = |n: usize| format!("{}/{n}", config.namespace);
    let puts = |from: usize, count: usize| -> Vec<Op> { (from..from + count).map(|n| Op::put(key(n), "v")).collect() };
    let compares = |count: usize| vec![Compare::absent(key(0)); count];
    let nest = |outer: usize, inner: usize| {
        let mut ops: Vec<Op> = (1..outer).map(|_| Op::get(key(0))).collect();
        ops.push(Op::Txn(Txn::of(puts(0, inner))));
        Txn::of(ops)
    };
    let value = |bytes: usize| Txn::of(vec![Op::put(key(0), vec![b'x'; bytes])]);
    let requests = [
        (
            "128 compares and 128 puts on each side",
            Txn { compares: compares(128), success: puts(0, 128), failure: puts(200, 128) },
        ),
        ("129 compares", Txn { compares: compares(129), ..Txn::default() }),
        ("129 puts", Txn::of(puts(0, 129))),
        ("129 puts in the branch not taken", Txn { failure: puts(0, 129), ..Txn::default() }),
        ("100 + 28 nested", nest(100, 28)),
        ("100 + 29 nested", nest(100, 29)),
        ("127 + 1 nested", nest(127, 1)),
        ("128 + 1 nested", nest(128, 1)),
        ("1.4 MB", value(1_400_000)),
        ("1.6 MB", value(1_600_000)),
        ("3 MB, more than the transport takes", value(3_000_000)),
        ("no key", Txn::of(vec![Op::get("")])),
        ("no key to compare", Txn { compares: vec![Compare::absent("")], ..Txn::default() }),
        (
            "sibling deletes what a sibling put",
            Txn::of(vec![Op::Txn(Txn::of(vec![Op::put(key(1), "v")])), Op::Txn(Txn::of(vec![Op::delete(key(1))]))]),
        ),
        (
            "sibling puts what a sibling deleted",
            Txn::of(vec![Op::Txn(Txn::of(vec![Op::delete(key(1))])), Op::Txn(Txn::of(vec![Op::put(key(1), "v")]))]),
        ),
    ];
    let model = SimKv::new(0);
    runtime.block_on(async {
        for (what, request) in requests {
            let deadline = Moment(Duration::from_secs(1_000_000));
            let verdict = |answer: Result<TxnResponse, KvError>| match answer {
                Ok(answer) => format!("succeeded: {}", answer.succeeded),
                Err(error) => format!("{:?} {:?}", error.fate, error.kind),
            };
            let expected = verdict(real.txn(request.clone(), deadline).await);
            let modelled = verdict(model.txn(request, deadline).await);
            assert_eq!(modelled, expected, "{what}: model (left), etcd (right)");
        }
    });
}

#[test]
fn a_lease_that_nobody_keeps_alive_takes_its_keys_along_on_both() {
    let cluster = EtcdCluster::shared();
    let config = cluster.config();
    let runtime = runtime();
    let real = EtcdClient::new(&config).expect("valid");
    let model = SimKv::new(0);
    async fn gone(kv: &impl Kv, key: &str) -> bool {
        let deadline = || kv.now().after(Duration::from_secs(600));
        let lease = EtcdLeaseId(77_001);
        let granted = kv.lease_grant(lease, Duration::from_millis(100), deadline()).await.expect("granted");
        assert_eq!(granted.ttl, Duration::from_secs(2), "etcd's shortest lease");
        let put = Txn::of(vec![Op::put_attached(key.to_owned(), "v", lease)]);
        kv.txn(put, deadline()).await.expect("written");
        // etcd looks for expired leases twice a second; wait for the event, however long it takes.
        for _ in 0..3_000 {
            kv.pause(Duration::from_millis(200)).await;
            let found = kv.range(RangeRequest::one(key.to_owned()), deadline()).await.expect("read").count;
            if found == 0 {
                return kv.lease_keep_alive(lease, deadline()).await.expect("asked").is_none();
            }
        }
        false
    }
    let key = format!("{}/leased", config.namespace);
    assert!(runtime.block_on(gone(&real, &key)));
    assert!(runtime.block_on(gone(&model, &key)));
}
