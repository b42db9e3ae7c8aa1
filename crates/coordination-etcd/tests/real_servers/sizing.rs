//! What shards take in the store, measured: `docs/OPERATING_ETCD.md` quotes these bounds.

use std::time::Duration;

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{
    CursorUpdate, LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_coordination::backend::{AsyncCoordinationBackend, AsyncRunManagement};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::AsyncEtcdCoordinator;
use tessera_coordination_etcd::client::EtcdClient;
use tessera_coordination_etcd::kv::{Keys, Kv, RangeRequest};
use tessera_coordination_etcd::test_support::EtcdCluster;

const TENANT: TenantId = TenantId::from_bytes([4; 32]);
const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const SHARDS: u64 = 4_000;
const WORKED_ON: u64 = 256;
const NOW: LogicalTime = LogicalTime::new(1_700_000_000_000);

/// Keys under the namespace and the bytes of them and their values.
async fn live(client: &EtcdClient, namespace: &str) -> (u64, u64) {
    let (mut keys, mut bytes) = (0, 0);
    let mut start = format!("{namespace}/").into_bytes();
    let end = format!("{namespace}0").into_bytes();
    loop {
        let page = RangeRequest::of(Keys::Range { start: start.into(), end: end.clone().into() }).limit(1_000);
        let page = client.range(page, client.now().after(Duration::from_secs(600))).await.expect("answered");
        keys += page.kvs.len() as u64;
        bytes += page.kvs.iter().map(|kv| (kv.key.len() + kv.value.len()) as u64).sum::<u64>();
        let Some(last) = page.kvs.last().filter(|_| page.more) else { return (keys, bytes) };
        start = [&last.key[..], b"\0"].concat();
    }
}

#[test]
fn a_shard_takes_what_the_operators_manual_says() {
    let cluster = EtcdCluster::start(1);
    let config = cluster.config();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("built");
    runtime.block_on(async {
        let client = EtcdClient::new(&config).expect("valid");
        let mut coordinator = AsyncEtcdCoordinator::connect(config.clone()).expect("valid");
        let keys: Vec<String> = (0..=SHARDS).map(|n| format!("organisation/repository-{n:06}")).collect();
        let inputs: Vec<InitialShardInput<'_>> = (0..SHARDS as usize)
            .map(|n| InitialShardInput::new(ShardId::new(n as u64 + 1), keys[n].as_bytes(), keys[n + 1].as_bytes()))
            .collect();
        let run = RunConfig { lease_duration: Some(600_000), ..RunConfig::default() };
        let registered =
            coordinator.create_run_with_shards(NOW, TENANT, RUN, INCARNATION, run, &inputs, OpId::new(1)).await;
        registered.expect("registered");
        let (untouched_keys, untouched) = live(&client, &config.namespace).await;

        let work = (1..=WORKED_ON).map(|shard| {
            let (mut coordinator, start) = (coordinator.clone(), keys[shard as usize - 1].clone());
            tokio::spawn(async move {
                let mut scratch = AcquireScratch::new();
                let key = ShardKey::new(RUN, ShardId::new(shard));
                let worker = WorkerId::new(0x1234_5678_9abc_def0);
                let view = coordinator.acquire_and_restore_into(NOW, TENANT, key, worker, &mut scratch).await;
                let lease: Lease = view.expect("granted").lease;
                for n in 0..16u64 {
                    let at = format!("{start}/path/of/a/file-{n:04}");
                    let cursor = CursorUpdate::at_key(at.as_bytes()).expect("valid");
                    let op = OpId::new(u64::MAX - shard * 100 - n);
                    coordinator.checkpoint(NOW, TENANT, &lease, cursor, op).await.expect("recorded");
                }
            })
        });
        for task in work.collect::<Vec<_>>() {
            task.await.expect("worked");
        }
        let (worked_keys, worked) = live(&client, &config.namespace).await;
        let each = untouched / SHARDS;
        let more = (worked - untouched) / WORKED_ON;
        println!(
            "an untouched shard: {each} B in {:.1} keys; held and checkpointed: {more} B in {:.1} keys more",
            untouched_keys as f64 / SHARDS as f64,
            (worked_keys - untouched_keys) as f64 / WORKED_ON as f64,
        );
        assert!(each <= 400, "an untouched shard takes {each} B");
        assert!(more <= 1_000, "work on it adds {more} B");
    });
}
