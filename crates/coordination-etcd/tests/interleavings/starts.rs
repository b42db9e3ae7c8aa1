//! Where schedules start: a store with some history, and two coordinators that took part in it or know nothing of it.

use std::pin::pin;
use std::sync::LazyLock;
use std::time::Duration;

use tessera_contracts::OpId;
use tessera_coordination::backend::{AsyncRunManagement, BlockOn, NeverWaits, Ready};
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::{CoordinatorRuntimeConfig, InMemoryCoordinator};
use tessera_coordination_etcd::config::TXN_OPS_MIN;
use tessera_coordination_etcd::sim_kv::admission::Limits;
use tessera_coordination_etcd::sim_kv::{SimKv, Snapshot, block_on};
use tessera_coordination_etcd::{AsyncEtcdCoordinator, EtcdConfig};

use crate::calls::{
    ABSTAIN, ACQUIRE_CHILD, ACQUIRE_FIRST, ACQUIRE_FREE, ACQUIRE_LATE, CANCEL_RUN, CANDIDATES, CHECKPOINT, CLAIM,
    CLAIM_LATE, CLAIM_OF_REPORTER, COLLECT, COLLECT_AND_CREATE, COLLECT_AND_RECREATE, COLLECT_OLD, COMPLETE,
    COMPLETE_RUN, CREATE, CREATE_WITH_FEW, CREATE_WITH_MANY, Call, EXPIRE_SESSION, EXPLAIN, FAIL_RUN, FEW,
    FEW_CHILDREN, FIRST_CALLER, GET_RUN, GET_SHARD, JOIN, LATE, LIST_ACTIVE_RUNS, LIST_RUNS, LIST_SHARDS, LIST_STALE,
    MANY, MANY_CHILDREN, NEIGHBOUR, NOW, OPERATIONS, ORDER_YIELD, Operation, PARK, PROGRESS, REGISTER_FEW,
    REGISTER_MANY, RELEASE, RENEW_MANY, REPORT, REPORT_SECOND, RETIRE, RETIRE_AND_RECREATE, RETIRE_NAMED, SPLIT_FEW,
    SPLIT_MANY, SPLIT_MANY_AGAIN, SPLIT_RESIDUAL, SPLIT_SECOND, START_OVER_FEW, START_OVER_MANY, TAKE_PART, TENANT,
    UNPARK, incarnation,
};
use crate::keys::NAMESPACE;
use crate::player::{Answer, Leases, Side};
use crate::roots::{bounds, inputs};
use crate::store::{Gate, Run, Scheduled, Stop};

/// A coordinator on the scheduled store.
pub type Etcd = AsyncEtcdCoordinator<Scheduled>;

/// Which of the two coordinators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Station {
    One,
    Two,
}

/// One step of a start.
#[derive(Clone, Copy, Debug)]
enum Made {
    /// A call that is answered.
    By(Station, Call),
    /// A call of a coordinator that dies behind its so-many-th write; whether it has happened by then.
    Crashed { call: Call, behind_write: usize, happened: bool },
}

/// A start, and the operations that are interleaved there.
pub struct Start {
    pub name: &'static str,
    made: &'static [Made],
    /// Which coordinators are of interest there: where nobody has touched a shard, they have nothing to remember.
    pub coordinators: &'static [Coordinators],
    pub operations: &'static [Operation],
}

/// What the coordinators know when a schedule begins, and which of them makes the first operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordinators {
    /// Both were started anew, and know nothing.
    Cold,
    /// Both know what they did and saw in the making of the start; the first, which opened the sessions, makes the first
    /// operation.
    Warm,
    /// The same, and the second makes the first operation.
    WarmSwapped,
}

impl Coordinators {
    /// The same, and the other one makes the first operation.
    pub const fn the_other_way_round(self) -> Self {
        match self {
            Self::Cold => Self::Cold,
            Self::Warm => Self::WarmSwapped,
            Self::WarmSwapped => Self::Warm,
        }
    }
}

const COLD: &[Coordinators] = &[Coordinators::Cold];
const ALL: &[Coordinators] = &[Coordinators::Cold, Coordinators::Warm, Coordinators::WarmSwapped];

const fn one(call: Call) -> Made {
    Made::By(Station::One, call)
}

const fn two(call: Call) -> Made {
    Made::By(Station::Two, call)
}

const CREATE_RUN: Made = one(Call::Create);
const REGISTER: Made = one(Call::Register { roots: FEW, op: 1 });
const HOLD_FIRST: Made = one(Call::Acquire { worker: 1, shard: 1, at: NOW });
const HOLD_SECOND: Made = one(Call::Acquire { worker: 1, shard: 2, at: NOW });
/// The other coordinator has seen the first shard held, and remembers it without a proof that the session stands.
const SEEN_BY_TWO: Made = two(Call::Checkpoint { shard: 1, key: 1, op: 40 });
const CANCEL: Made = one(Call::Settle { settlement: Settlement::Cancel, op: 33 });

const HOLD_THIRD: Made = one(Call::Acquire { worker: 1, shard: 3, at: NOW });
/// The coordinator of a large split died when its children were there and in no index yet.
const SPLIT_UNANNOUNCED: &[Made] = &[
    CREATE_RUN,
    REGISTER,
    HOLD_FIRST,
    HOLD_SECOND,
    HOLD_THIRD,
    Made::Crashed {
        call: Call::SplitReplace { shard: 1, children: MANY_CHILDREN, op: 18 },
        behind_write: 4,
        happened: true,
    },
];

/// What is done to a run that has no shards.
const BEFORE_REGISTRATION: &[Operation] = &[
    CREATE,
    REGISTER_FEW,
    REGISTER_MANY,
    CREATE_WITH_FEW,
    CREATE_WITH_MANY,
    CANCEL_RUN,
    FAIL_RUN,
    COMPLETE_RUN,
    COLLECT,
    COLLECT_OLD,
    RETIRE,
    COLLECT_AND_RECREATE,
    COLLECT_AND_CREATE,
    LIST_STALE,
    CLAIM,
    ACQUIRE_FIRST,
    GET_RUN,
    GET_SHARD,
    LIST_RUNS,
    LIST_ACTIVE_RUNS,
    LIST_SHARDS,
    PROGRESS,
];

/// What is done to a run that is over.
const AFTER_SETTLING: &[Operation] = &[
    CREATE,
    REGISTER_MANY,
    CREATE_WITH_FEW,
    CREATE_WITH_MANY,
    CANCEL_RUN,
    COMPLETE_RUN,
    RETIRE,
    RETIRE_NAMED,
    COLLECT,
    RETIRE_AND_RECREATE,
    ACQUIRE_LATE,
    CLAIM,
    UNPARK,
    GET_RUN,
    GET_SHARD,
    LIST_RUNS,
    LIST_ACTIVE_RUNS,
    LIST_SHARDS,
    PROGRESS,
    EXPLAIN,
    CANDIDATES,
];

/// What is done to a run some of whose shards were split.
const AROUND_SPLITS: &[Operation] = &[
    ACQUIRE_CHILD,
    CLAIM,
    CLAIM_LATE,
    CANDIDATES,
    COMPLETE_RUN,
    CANCEL_RUN,
    RETIRE,
    PROGRESS,
    LIST_SHARDS,
    EXPLAIN,
    SPLIT_SECOND,
    EXPIRE_SESSION,
    ACQUIRE_LATE,
];

/// All starts.
pub const STARTS: &[Start] = &[
    Start {
        name: "nothing",
        coordinators: COLD,
        made: &[],
        operations: &[
            CREATE,
            REGISTER_FEW,
            CREATE_WITH_FEW,
            CREATE_WITH_MANY,
            CANCEL_RUN,
            COLLECT,
            RETIRE,
            CLAIM,
            GET_RUN,
            LIST_RUNS,
            PROGRESS,
        ],
    },
    Start { name: "created", coordinators: COLD, made: &[CREATE_RUN], operations: BEFORE_REGISTRATION },
    Start {
        name: "registration-broken-off",
        coordinators: COLD,
        made: &[
            CREATE_RUN,
            Made::Crashed { call: Call::Register { roots: MANY, op: 2 }, behind_write: 3, happened: false },
        ],
        operations: BEFORE_REGISTRATION,
    },
    Start {
        name: "collection-broken-off",
        coordinators: COLD,
        made: &[
            CREATE_RUN,
            Made::Crashed { call: Call::Collect { created_before: LATE }, behind_write: 1, happened: true },
        ],
        operations: BEFORE_REGISTRATION,
    },
    Start {
        name: "untouched",
        coordinators: ALL,
        made: &[CREATE_RUN, REGISTER],
        operations: &[
            CREATE,
            REGISTER_FEW,
            REGISTER_MANY,
            CREATE_WITH_FEW,
            ACQUIRE_FREE,
            ACQUIRE_FIRST,
            CLAIM,
            CLAIM_LATE,
            COMPLETE_RUN,
            FAIL_RUN,
            CANCEL_RUN,
            COLLECT,
            RETIRE,
            PROGRESS,
            LIST_SHARDS,
            CANDIDATES,
            EXPLAIN,
        ],
    },
    Start {
        name: "held",
        coordinators: ALL,
        made: &[CREATE_RUN, REGISTER, HOLD_FIRST, HOLD_SECOND, SEEN_BY_TWO],
        operations: OPERATIONS,
    },
    Start {
        name: "parked",
        coordinators: ALL,
        made: &[CREATE_RUN, REGISTER, HOLD_FIRST, HOLD_SECOND, one(Call::Park { shard: 1, op: 13 })],
        operations: &[
            UNPARK,
            CLAIM,
            CLAIM_LATE,
            ACQUIRE_FIRST,
            RENEW_MANY,
            CHECKPOINT,
            PARK,
            ORDER_YIELD,
            COMPLETE_RUN,
            FAIL_RUN,
            CANCEL_RUN,
            PROGRESS,
            LIST_SHARDS,
            EXPLAIN,
            CANDIDATES,
            GET_SHARD,
        ],
    },
    Start {
        name: "reported",
        coordinators: COLD,
        made: &[
            CREATE_RUN,
            REGISTER,
            HOLD_FIRST,
            HOLD_SECOND,
            two(Call::Acquire { worker: 2, shard: 3, at: NOW }),
            one(Call::Report { shard: 1, op: 16 }),
        ],
        operations: &[
            REPORT,
            CLAIM,
            CLAIM_LATE,
            CLAIM_OF_REPORTER,
            ACQUIRE_FIRST,
            EXPIRE_SESSION,
            ORDER_YIELD,
            COMPLETE_RUN,
            CANCEL_RUN,
            RETIRE,
            RETIRE_AND_RECREATE,
            PROGRESS,
            CANDIDATES,
            EXPLAIN,
            LIST_SHARDS,
        ],
    },
    // Sessions end in `reported`: here a claim that has looked for free shards before the last session ended would park nothing,
    // which no order explains and no contract forbids.
    Start {
        name: "reported-and-nobody-else-is-there",
        coordinators: COLD,
        made: &[
            CREATE_RUN,
            REGISTER,
            HOLD_FIRST,
            HOLD_SECOND,
            HOLD_THIRD,
            two(Call::Join { worker: 2 }),
            one(Call::Report { shard: 1, op: 16 }),
            two(Call::ExpireSession { worker: 2 }),
        ],
        operations: &[
            JOIN,
            ABSTAIN,
            TAKE_PART,
            CLAIM,
            CLAIM_OF_REPORTER,
            REPORT_SECOND,
            COMPLETE_RUN,
            CANCEL_RUN,
            RETIRE_AND_RECREATE,
            START_OVER_FEW,
            CANDIDATES,
            EXPLAIN,
            LIST_SHARDS,
            PROGRESS,
        ],
    },
    Start {
        name: "one-left",
        coordinators: ALL,
        made: &[
            CREATE_RUN,
            REGISTER,
            HOLD_FIRST,
            HOLD_SECOND,
            HOLD_THIRD,
            one(Call::Complete { shard: 2, op: 41 }),
            one(Call::Complete { shard: 3, op: 42 }),
            SEEN_BY_TWO,
        ],
        operations: &[
            COMPLETE,
            PARK,
            RELEASE,
            SPLIT_FEW,
            SPLIT_MANY,
            SPLIT_RESIDUAL,
            COMPLETE_RUN,
            FAIL_RUN,
            CANCEL_RUN,
            CLAIM,
            ACQUIRE_LATE,
            RETIRE,
            RETIRE_AND_RECREATE,
            PROGRESS,
            LIST_SHARDS,
            EXPLAIN,
            EXPIRE_SESSION,
        ],
    },
    Start {
        name: "all-swept",
        coordinators: COLD,
        made: &[
            CREATE_RUN,
            REGISTER,
            HOLD_FIRST,
            HOLD_SECOND,
            HOLD_THIRD,
            one(Call::Complete { shard: 1, op: 12 }),
            one(Call::Complete { shard: 2, op: 41 }),
            two(Call::Complete { shard: 3, op: 42 }),
        ],
        operations: &[
            COMPLETE_RUN,
            FAIL_RUN,
            CANCEL_RUN,
            COMPLETE,
            CLAIM,
            RETIRE,
            RETIRE_NAMED,
            RETIRE_AND_RECREATE,
            COLLECT,
            PROGRESS,
            LIST_SHARDS,
            LIST_ACTIVE_RUNS,
            GET_RUN,
        ],
    },
    Start {
        name: "cancelled",
        coordinators: ALL,
        made: &[CREATE_RUN, REGISTER, HOLD_FIRST, HOLD_SECOND, SEEN_BY_TWO, CANCEL],
        operations: &[
            CREATE,
            CREATE_WITH_FEW,
            CREATE_WITH_MANY,
            CANCEL_RUN,
            RETIRE,
            RETIRE_NAMED,
            COLLECT,
            RETIRE_AND_RECREATE,
            ACQUIRE_LATE,
            CLAIM,
            RENEW_MANY,
            CHECKPOINT,
            COMPLETE,
            RELEASE,
            SPLIT_MANY,
            UNPARK,
            ORDER_YIELD,
            EXPIRE_SESSION,
            GET_RUN,
            LIST_RUNS,
            LIST_SHARDS,
            PROGRESS,
            EXPLAIN,
            CANDIDATES,
        ],
    },
    Start {
        name: "retirement-broken-off",
        coordinators: COLD,
        made: &[
            CREATE_RUN,
            REGISTER,
            HOLD_FIRST,
            CANCEL,
            Made::Crashed { call: Call::Retire, behind_write: 2, happened: true },
        ],
        operations: AFTER_SETTLING,
    },
    Start {
        name: "split-broken-off",
        coordinators: ALL,
        made: &[
            CREATE_RUN,
            REGISTER,
            HOLD_FIRST,
            HOLD_SECOND,
            HOLD_THIRD,
            Made::Crashed {
                call: Call::SplitReplace { shard: 1, children: MANY_CHILDREN, op: 18 },
                behind_write: 3,
                happened: false,
            },
            SEEN_BY_TWO,
        ],
        operations: &[
            CLAIM,
            CLAIM_LATE,
            COMPLETE_RUN,
            CANCEL_RUN,
            RETIRE_AND_RECREATE,
            PROGRESS,
            LIST_SHARDS,
            SPLIT_MANY,
            SPLIT_MANY_AGAIN,
            SPLIT_FEW,
            SPLIT_RESIDUAL,
            CHECKPOINT,
            COMPLETE,
            PARK,
            RELEASE,
            EXPIRE_SESSION,
            ACQUIRE_LATE,
            ACQUIRE_CHILD,
        ],
    },
    Start { name: "split-unannounced", coordinators: ALL, made: SPLIT_UNANNOUNCED, operations: AROUND_SPLITS },
    Start {
        name: "split-unannounced-before-another",
        coordinators: COLD,
        made: SPLIT_UNANNOUNCED,
        operations: &[CLAIM, CANDIDATES, COMPLETE_RUN, START_OVER_MANY],
    },
    Start {
        name: "family-of-which-all-are-held",
        coordinators: COLD,
        made: &[
            CREATE_RUN,
            REGISTER,
            HOLD_FIRST,
            HOLD_SECOND,
            HOLD_THIRD,
            one(Call::SplitReplace { shard: 1, children: FEW_CHILDREN, op: 17 }),
            one(Call::AcquireChild { worker: 1, parent: 1, split: 17, index: 0 }),
            one(Call::AcquireChild { worker: 1, parent: 1, split: 17, index: 1 }),
            one(Call::AcquireChild { worker: 1, parent: 1, split: 17, index: 2 }),
        ],
        operations: &[CLAIM, CANDIDATES, COMPLETE_RUN, START_OVER_FEW],
    },
    Start {
        name: "split-in-one",
        coordinators: ALL,
        made: &[
            CREATE_RUN,
            REGISTER,
            HOLD_FIRST,
            HOLD_SECOND,
            HOLD_THIRD,
            one(Call::SplitReplace { shard: 1, children: FEW_CHILDREN, op: 17 }),
        ],
        operations: AROUND_SPLITS,
    },
];

/// The start of that name.
pub fn start(name: &str) -> Option<&'static Start> {
    STARTS.iter().find(|start| start.name == name)
}

/// A store and coordinators on it.
pub struct World {
    pub kv: SimKv,
    pub one: Desk,
    pub two: Desk,
}

/// A coordinator, and where its requests pause.
pub struct Desk {
    pub side: Side<Etcd>,
    pub gate: Gate,
}

impl Desk {
    /// A coordinator that knows nothing yet.
    pub fn new(kv: &SimKv, leases: Leases) -> Self {
        let gate = Gate::default();
        let coordinator = AsyncEtcdCoordinator::over(Scheduled::new(kv, &gate), config()).expect("valid");
        Self { side: Side::etcd(coordinator, kv, leases), gate }
    }

    /// Plays a call to its end.
    pub fn play(&mut self, call: Call) -> Answer {
        self.gate.set(None);
        let mut played = pin!(self.side.play(call));
        match self.gate.run(played.as_mut()) {
            Run::Ended(answer) => answer,
            Run::Stopped => unreachable!("the gate is open"),
        }
    }
}

/// Small limits, so that a few shards take several transactions; advice is never old; and every clock is believed.
fn config() -> EtcdConfig {
    EtcdConfig {
        namespace: NAMESPACE.to_owned(),
        txn_ops_max: TXN_OPS_MIN,
        batch_ops_max: 4,
        skew_tolerance: Duration::ZERO,
        hint_age_max: Duration::ZERO,
        ..EtcdConfig::default()
    }
}

/// What a store that was made once is made again from.
pub struct MadeStore {
    pub snapshot: Snapshot,
    pub leases: Leases,
}

impl Start {
    /// The store and both coordinators, as the start's history leaves them.
    pub fn world(&self) -> World {
        static NEIGHBOUR_ALONE: LazyLock<Snapshot> = LazyLock::new(|| {
            let kv = SimKv::new(1);
            // The server takes no more than the coordinators are configured for.
            kv.set_limits(Limits { txn_ops_max: TXN_OPS_MIN, ..Limits::default() });
            block_on(create_neighbour(&mut Desk::new(&kv, Leases::new()).side.backend));
            kv.snapshot()
        });
        let kv = SimKv::from_snapshot(&NEIGHBOUR_ALONE, 1);
        let mut world = World { one: Desk::new(&kv, Leases::new()), two: Desk::new(&kv, Leases::new()), kv };
        for made in self.made {
            match *made {
                Made::By(Station::One, call) => drop(world.one.play(call)),
                Made::By(Station::Two, call) => drop(world.two.play(call)),
                Made::Crashed { call, behind_write, .. } => {
                    crash(&world.kv, &world.one.side.leases, call, behind_write)
                }
            }
            let leases = [&world.one.side.leases, &world.two.side.leases].into_iter().flatten();
            let leases: Leases = leases.map(|(name, lease)| (*name, *lease)).collect();
            world.one.side.leases.clone_from(&leases);
            world.two.side.leases = leases;
        }
        world
    }

    /// The same store with coordinators that were started anew.
    pub fn cold(made: &MadeStore) -> World {
        let kv = SimKv::from_snapshot(&made.snapshot, 7);
        let desk = || Desk::new(&kv, made.leases.clone());
        World { one: desk(), two: desk(), kv: kv.clone() }
    }

    /// The calls that make it, if none of them dies.
    pub fn calls(&self) -> impl Iterator<Item = Call> {
        self.made.iter().map(|made| match *made {
            Made::By(_, call) | Made::Crashed { call, .. } => call,
        })
    }

    /// Whether the in-memory coordinator can be brought there. Who is live when a shard is reported, it cannot know.
    pub fn has_memory_form(&self) -> bool {
        !self.calls().any(|call| matches!(call, Call::Join { .. } | Call::ExpireSession { .. }))
    }

    /// The same history in memory.
    pub fn memory(&self) -> Side<Ready<InMemoryCoordinator>> {
        let memory = InMemoryCoordinator::new(CoordinatorRuntimeConfig::for_shards(200)).expect("valid");
        let mut side = Side::memory(Ready(memory));
        NeverWaits.block_on(create_neighbour(&mut side.backend));
        for made in self.made {
            match *made {
                Made::By(_, call) | Made::Crashed { call, happened: true, .. } => {
                    drop(NeverWaits.block_on(side.play(call)));
                }
                Made::Crashed { happened: false, .. } => {}
            }
        }
        side
    }
}

async fn create_neighbour(backend: &mut impl AsyncRunManagement) {
    let (bounds, config) = (bounds(2), RunConfig::default());
    let (incarnation, op) = (incarnation(FIRST_CALLER), OpId::new(1));
    let inputs = inputs(&bounds);
    let created = backend.create_run_with_shards(NOW, TENANT, NEIGHBOUR, incarnation, config, &inputs, op).await;
    created.expect("created");
}

/// A coordinator of its own begins the call and is never heard of again.
fn crash(kv: &SimKv, leases: &Leases, call: Call, behind_write: usize) {
    let mut desk = Desk::new(kv, leases.clone());
    desk.gate.set(Some(Stop::BehindWrite(behind_write)));
    let mut begun = pin!(desk.side.play(call));
    match desk.gate.run(begun.as_mut()) {
        Run::Stopped => {}
        Run::Ended(answer) => panic!("{call:?} was to die behind write {behind_write}, and answered {answer:?}"),
    }
}
