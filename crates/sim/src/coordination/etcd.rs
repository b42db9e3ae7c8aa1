//! The coordinator on etcd, the code that ships, over the simulated store.

use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use tessera_contracts::ids::{ShardId, WorkerId};
use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::coordinator::AsyncEtcdCoordinator;
use tessera_coordination_etcd::keyspace::{Keyspace, session_of, shard_of};
use tessera_coordination_etcd::kv::{Keys, Kv as _, Moment, Revision};
use tessera_coordination_etcd::sim_kv::faults::FaultRates;
use tessera_coordination_etcd::sim_kv::{SimKv, block_on};
use tessera_coordination_etcd::sync;

use super::call::TENANT;
use super::checkers;
use super::config::{Config, Level};
use super::sink::Sink;
use super::stage::{Stage, Violation, Weather};
use super::world::{Report, World};

/// One world around the coordinator on etcd.
pub fn simulate(config: &Config, level: Level) -> Result<Report, Violation> {
    World::around(stage(config, level), config.clone()).run()
}

/// The stage of such a world.
pub fn stage(config: &Config, level: Level) -> Stage<sync::SimEtcdCoordinator> {
    let kv = SimKv::new(config.seed);
    let etcd = EtcdConfig {
        claim_cooldown: Duration::from_millis(config.cooldown),
        skew_tolerance: Duration::from_millis(config.skew_allowance),
        // Checkers hold hints to the letter, so none may be old.
        hint_age_max: Duration::ZERO,
        shards_per_tenant_max: config.shards_max as u64,
        shards_total_max: config.shards_max as u64,
        ..EtcdConfig::default()
    };
    let presences = Keyspace::new(&etcd.namespace).presences(TENANT);
    let backend = sync::simulate(kv.clone(), etcd).expect("a simulated configuration is legal");
    let weather = Store {
        kv,
        coordinator: backend.backend.clone(),
        rates: rates(level),
        last_heartbeat: Moment::default(),
        misses: 0,
        presences,
        vouched: Rc::default(),
        present: Rc::default(),
        looked_at: Revision::default(),
    };
    Stage::new(checkers::all(), config.clone(), backend, Sink::of(config)).with_weather(Box::new(weather))
}

fn rates(level: Level) -> FaultRates {
    match level {
        Level::Sunny => FaultRates::NONE,
        Level::Breezy => FaultRates { compare_miss_ppm: 20_000, delay_ppm: 10_000, ..FaultRates::NONE },
        Level::Stormy | Level::Radioactive => FaultRates::STORMY,
    }
}

/// How often sessions are kept alive, by the store's clock: far below their time to live.
const HEARTBEAT_PACE: Duration = Duration::from_millis(500);

struct Store {
    kv: SimKv,
    coordinator: AsyncEtcdCoordinator<SimKv>,
    rates: FaultRates,
    last_heartbeat: Moment,
    /// How often a compare-and-set had missed when last asked.
    misses: u64,
    /// Where the live sessions of workers are.
    presences: Keys,
    /// The shards that had an owner and the workers that had a session when last looked, and how far the store was then: both
    /// come and go with a revision.
    vouched: Rc<BTreeSet<ShardId>>,
    present: Rc<BTreeSet<WorkerId>>,
    looked_at: Revision,
}

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Store").field("rates", &self.rates).finish_non_exhaustive()
    }
}

impl<B> Weather<B> for Store {
    fn set_faults(&mut self, may_happen: bool) {
        if may_happen {
            // Calls that are delayed make the store's time pass, too.
            self.beat();
        }
        self.kv.set_fault_rates(if may_happen { self.rates } else { FaultRates::NONE });
    }

    fn vouched(&mut self) -> Option<Rc<BTreeSet<ShardId>>> {
        self.look();
        Some(Rc::clone(&self.vouched))
    }

    fn present(&mut self) -> Option<Rc<BTreeSet<WorkerId>>> {
        self.look();
        Some(Rc::clone(&self.present))
    }

    fn missed(&mut self) -> bool {
        let before = std::mem::replace(&mut self.misses, self.kv.compare_misses());
        self.misses > before
    }

    fn version(&self) -> u64 {
        self.kv.inspect(|store| store.revision()).0.unsigned_abs()
    }

    fn time(&self) -> Duration {
        Moment::default().until(self.kv.now())
    }

    fn pass(&mut self, ticks: u64) {
        self.kv.advance(Duration::from_millis(ticks));
        self.beat();
    }
}

impl Store {
    /// Looks which shards have an owner and which workers a session, if anything was stored since.
    fn look(&mut self) {
        let revision = self.kv.inspect(|store| store.revision());
        if self.looked_at == revision {
            return;
        }
        self.looked_at = revision;
        let presences = &self.presences;
        let (vouched, present): (BTreeSet<ShardId>, BTreeSet<WorkerId>) = self.kv.inspect(|store| {
            let sessions = store.keys().filter(|path| presences.contains(path)).filter_map(|path| session_of(path));
            let present = sessions.map(|(worker, _)| worker).collect();
            (store.keys().filter_map(|path| owned_shard(path)).collect(), present)
        });
        (self.vouched, self.present) = (vouched.into(), present.into());
    }

    fn beat(&mut self) {
        let now = self.kv.now();
        if self.last_heartbeat.until(now) >= HEARTBEAT_PACE {
            self.last_heartbeat = now;
            block_on(self.coordinator.heartbeat());
        }
    }
}

/// The shard that an owner's path is about.
fn owned_shard(path: &[u8]) -> Option<ShardId> {
    let heading = b"/owner/";
    path.windows(heading.len()).any(|part| part == heading).then(|| shard_of(path)).flatten()
}
