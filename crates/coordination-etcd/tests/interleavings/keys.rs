//! What lies in the store, by heading: for tests that look past every coordinator.

use tessera_contracts::RunId;
use tessera_coordination_etcd::keyspace::tenant_and_run_of;
use tessera_coordination_etcd::kv::{KeyValue, Keys, RangeRequest};
use tessera_coordination_etcd::sim_kv::SimKv;

/// The namespace of every coordinator here.
pub const NAMESPACE: &str = "t";

/// What a key is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heading {
    Run,
    Roots,
    Cold,
    Hot,
    Owner,
    Standing,
    Present,
    Abstains,
    Free,
    Held,
    Parked,
    Reported,
    Family,
    Hatching,
    ActiveRun,
    NewRun,
    Retired,
    CountAll,
    CountOf,
}

const HEADINGS: [(&str, Heading); 19] = [
    ("run", Heading::Run),
    ("roots", Heading::Roots),
    ("cold", Heading::Cold),
    ("hot", Heading::Hot),
    ("owner", Heading::Owner),
    ("standing", Heading::Standing),
    ("present", Heading::Present),
    ("abstains", Heading::Abstains),
    ("free", Heading::Free),
    ("held", Heading::Held),
    ("parked", Heading::Parked),
    ("reported", Heading::Reported),
    ("family", Heading::Family),
    ("hatching", Heading::Hatching),
    ("active-run", Heading::ActiveRun),
    ("new-run", Heading::NewRun),
    ("retired", Heading::Retired),
    ("count/all", Heading::CountAll),
    ("count/of", Heading::CountOf),
];

/// The heading of a key; `None` if it lies elsewhere.
pub fn heading_of(key: &[u8]) -> Option<Heading> {
    let text = std::str::from_utf8(key).ok()?;
    let path = text.strip_prefix(NAMESPACE)?.strip_prefix('/')?.split_once('/')?.1;
    let begins = |heading: &str| path.strip_prefix(heading).is_some_and(|rest| rest.starts_with('/'));
    HEADINGS.iter().find(|(heading, _)| begins(heading)).map(|(_, heading)| *heading)
}

/// All that the store holds.
pub fn scan(kv: &SimKv) -> Vec<KeyValue> {
    let all = RangeRequest::of(Keys::with_prefix(format!("{NAMESPACE}/")));
    kv.inspect(|store| store.range(&all).expect("readable").kvs)
}

/// The run that a key of a run or of one of its shards is about.
pub fn run_of(heading: Heading, key: &[u8]) -> Option<RunId> {
    let parent = |key: &[u8]| key.iter().rposition(|byte| *byte == b'/').map(|end| key[..end].to_vec());
    let of_run = match heading {
        Heading::Run | Heading::Roots | Heading::ActiveRun | Heading::NewRun => key.to_vec(),
        Heading::Cold
        | Heading::Hot
        | Heading::Owner
        | Heading::Free
        | Heading::Held
        | Heading::Parked
        | Heading::Reported
        | Heading::Family
        | Heading::Hatching => parent(key)?,
        // Its worker and its session are behind its run.
        Heading::Standing => parent(&parent(key)?)?,
        Heading::Present | Heading::Abstains | Heading::Retired | Heading::CountAll | Heading::CountOf => return None,
    };
    tenant_and_run_of(&of_run).map(|(_, run)| run)
}
