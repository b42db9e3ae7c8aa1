//! The client on real servers: failover, deadlines, users and certificates.

use std::time::Duration;

use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::client::EtcdClient;
use tessera_coordination_etcd::config::{Credentials, Secret, Tls};
use tessera_coordination_etcd::kv::{Compare, Fate, Kv, KvErrorKind, Moment, Op, RangeRequest, Txn};
use tessera_coordination_etcd::retry::{RetryPolicy, Retrying};
use tessera_coordination_etcd::test_support::{Certificates, ClusterOptions, EtcdCluster};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built")
}

fn soon(kv: &impl Kv) -> Moment {
    kv.now().after(Duration::from_secs(600))
}

#[test]
fn a_dead_member_costs_no_call() {
    let mut cluster = EtcdCluster::start(3);
    let config = cluster.config();
    runtime().block_on(async {
        let client = EtcdClient::new(&config).expect("valid");
        let store = Retrying::new(client.clone(), RetryPolicy::from(&config));
        assert_eq!(client.members(soon(&client)).await.expect("answered").len(), 3);
        let mut ambiguous = 0;
        for n in 0..60 {
            if n == 10 {
                cluster.kill(0);
            }
            if n == 40 {
                cluster.restart(0);
                cluster.kill(1);
            }
            // Reads are always safe to repeat, so none may fail.
            store.range(RangeRequest::one("k"), soon(&store)).await.expect("two of three members are up");
            let put = Txn::of(vec![Op::put(format!("{}/{n}", config.namespace), "v")]);
            match store.txn(put, soon(&store)).await {
                Ok(_) => {}
                // The member that was killed may have been the leader, or the one that was asked.
                Err(error) => {
                    assert_eq!(error.fate, Fate::Ambiguous, "{error}");
                    ambiguous += 1;
                }
            }
        }
        assert!(ambiguous <= 6, "{ambiguous} of 60 writes in doubt after two members died");
    });
}

#[test]
fn a_call_to_a_frozen_member_ends_by_its_deadline_and_the_next_goes_elsewhere() {
    let cluster = EtcdCluster::start(1);
    let mut config = cluster.config();
    let gone = "http://127.0.0.1:1".to_owned();
    config.endpoints.push(gone);
    runtime().block_on(async {
        let client = EtcdClient::new(&config).expect("valid");
        let put = || Txn::of(vec![Op::put("frozen", "v")]);
        client.txn(put(), soon(&client)).await.expect("the refused connection is passed over");
        cluster.pause(0);
        // The member stays frozen until the call has ended, so nothing but the deadline can end it.
        let deadline = client.now().after(Duration::from_secs(5));
        let error = client.txn(put(), deadline).await.expect_err("frozen");
        assert_eq!((error.fate, error.kind), (Fate::Ambiguous, KvErrorKind::Deadline), "{error}");
        let error = client.txn(put(), client.now()).await.expect_err("no time");
        assert_eq!(error.fate, Fate::Unsent);
        cluster.resume(0);
        let store = Retrying::new(client, RetryPolicy::from(&config));
        store.range(RangeRequest::one("frozen"), soon(&store)).await.expect("thawed");
    });
}

#[test]
fn a_server_that_is_not_there_is_unsent_whatever_the_request() {
    let config = EtcdConfig { endpoints: vec!["http://127.0.0.1:1".to_owned()], ..EtcdConfig::default() };
    runtime().block_on(async {
        let client = EtcdClient::new(&config).expect("valid");
        let error = client.txn(Txn::of(vec![Op::put("k", "v")]), soon(&client)).await.expect_err("nobody there");
        assert_eq!((error.fate, error.kind), (Fate::Unsent, KvErrorKind::Connect), "{error}");
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    });
}

#[test]
fn a_user_logs_in_is_held_to_its_prefix_and_logs_in_again_when_its_token_is_gone() {
    let flags = vec!["--auth-token-ttl=1".to_owned()];
    let cluster = EtcdCluster::start_with(1, &ClusterOptions { flags, ..ClusterOptions::default() });
    let config = cluster.config();
    cluster.enable_users();
    runtime().block_on(async {
        let with = |password: &str| EtcdConfig {
            credentials: Some(Credentials { user: "fleet".to_owned(), password: Secret::new(password) }),
            ..config.clone()
        };
        let client = EtcdClient::new(&with("f")).expect("valid");
        let put = |key: &'static str| Txn::of(vec![Op::put(key, "v")]);
        client.txn(put("fleet/a"), soon(&client)).await.expect("allowed");
        let error = client.txn(put("other/a"), soon(&client)).await.expect_err("not its prefix");
        assert_eq!(error.kind, KvErrorKind::PermissionDenied, "{error}");
        // Tokens live a second without use here. The client notices and logs in again, unseen by its caller.
        tokio::time::sleep(Duration::from_millis(3_500)).await;
        client.txn(put("fleet/b"), soon(&client)).await.expect("logged in again");
        let stranger = EtcdClient::new(&with("wrong")).expect("valid");
        let error = stranger.txn(put("fleet/c"), soon(&stranger)).await.expect_err("wrong password");
        assert_eq!((error.fate, error.kind), (Fate::Unsent, KvErrorKind::Unauthenticated), "{error}");
        assert!(!format!("{error:?}").contains("wrong"), "no password in an error");
    });
}

#[test]
fn tls_needs_the_right_authority_and_the_right_certificate() {
    let certificates = Certificates::new();
    let options = ClusterOptions { flags: certificates.server_flags(), tls: true, ..ClusterOptions::default() };
    let cluster = EtcdCluster::start_with(1, &options);
    let tls = certificates.client();
    let answered = |tls: Tls| {
        let config = EtcdConfig { tls: Some(tls), ..cluster.config() };
        runtime().block_on(async {
            let client = EtcdClient::new(&config).expect("valid");
            let store = Retrying::new(client, RetryPolicy { attempts_max: 3, ..RetryPolicy::from(&config) });
            store.txn(Txn { compares: vec![Compare::absent("k")], ..Txn::default() }, soon(&store)).await
        })
    };
    answered(tls.clone()).expect("both sides know each other");
    let error = answered(Tls { ca_pem: certificates.stranger(), ..tls.clone() }).expect_err("signed by another");
    assert_eq!((error.fate, error.kind), (Fate::Unsent, KvErrorKind::Tls), "{error}");
    // The server closes the connection without a word about why.
    let error = answered(Tls { identity: None, ..tls }).expect_err("the server wants a certificate");
    // With TLS 1.3 the client has finished its handshake by then, so the connection may also break during the call.
    let broke_later = error.kind == KvErrorKind::Transport;
    assert!(broke_later || error.message.contains("client certificate"), "{error}");
}
