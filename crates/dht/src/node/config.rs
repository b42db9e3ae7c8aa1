//! How a node is configured. Every number here is a bound or a pace; defaults suit a node on the open internet.

use alloc::string::String;

use crate::abuse::AbuseLimits;
use crate::addr::Addr;
use crate::lookup::LookupConfig;
use crate::record::TTL_SECS_DEFAULT;
use crate::routing::TableLimits;
use crate::seal::SealLimits;
use crate::store::providers::ProviderLimits;
use crate::store::records::RecordLimits;
use crate::wire::header::Suite;

/// Limits on requests that make a node act for others. They hold unless a simulation switches one off to measure its worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defences {
    /// A good-bye counts only from an address that is proven and at which the contact is known.
    pub leaving_from_proven: bool,
    /// A node whose own address is public asks no private address that others name.
    pub refuse_private: bool,
    /// A full store takes from the origin (giver's address prefix) that has most in it. Else all givers are one origin.
    pub shares_by_origin: bool,
}

impl Default for Defences {
    fn default() -> Self {
        Self { leaving_from_proven: true, refuse_private: true, shares_by_origin: true }
    }
}

/// The configuration of one lane of a node. All lanes of a node are configured alike.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Nodes of different networks do not understand each other.
    pub network: String,
    /// The cipher for sent datagrams.
    pub suite: Suite,
    /// Do not serve others: for nodes that cannot be reached from outside, or that will soon be gone.
    pub client: bool,
    /// The address announced to others as ours; without it, the one at which most of the peers that were asked last say they see us.
    pub public_addr: Option<Addr>,
    /// Hide which lane asks, at the price of a forward between lanes.
    pub any_slot: bool,
    /// Bounds of the sealing state.
    pub seal: SealLimits,
    /// Bounds of the routing table.
    pub table: TableLimits,
    /// How lookups behave.
    pub lookup: LookupConfig,
    /// Bounds of the record store.
    pub records: RecordLimits,
    /// Bounds of the provider store.
    pub providers: ProviderLimits,
    /// Limits on others.
    pub abuse: AbuseLimits,
    /// Limits on requests that make this node act for others.
    pub defences: Defences,
    /// Operations under way at once.
    pub operations_max: usize,
    /// Requests in flight at once.
    pub requests_max: usize,
    /// Requests in flight to one peer.
    pub requests_per_peer_max: usize,
    /// Writes in flight of one operation.
    pub writes_in_flight_max: usize,
    /// A put fails unless so many per cent of the nodes that should hold the record say that they do.
    pub put_quorum_percent: u8,
    /// Announcement datagrams per second, all sweeps together.
    pub announces_per_sec: u32,
    /// A bucket without a lookup for this long is refreshed.
    pub refresh_ms: u64,
    /// A peer unheard of for this long is pinged.
    pub ping_idle_ms: u64,
    /// Between two rounds of upkeep.
    pub tick_ms: u64,
    /// The lifetime of announcements.
    pub provide_ttl_secs: u32,
    /// How long a record found by a lookup is kept.
    pub cache_ttl_secs: u32,
    /// Give the record found to the nearest node that did not have it.
    pub cache_hints: bool,
    /// Nodes an announcement passes before it is spread; zero spreads it from here. So it is if no node takes it: at most eight are asked,
    /// and for a few seconds those that have yet to say whether they would.
    pub stem_hops: u8,
    /// Relay requests of others, at most so many at once; zero for never.
    pub relays_max: usize,
    /// One asker has one in so many of them. Above it, it is told that this node is busy.
    pub relay_asker_share: usize,
    /// All askers of one public address prefix together have one in so many.
    pub relay_prefix_share: usize,
    /// Writes of others that wait for the log to make them safe.
    pub promises_max: usize,
    /// Ids remembered as provided.
    pub published_max: usize,
    /// Bytes of records that are stored again and again.
    pub kept_alive_bytes_max: usize,
    /// Mutable records whose highest seen sequence is remembered.
    pub sequences_max: usize,
    /// Take the memory of every table and queue at the start, up to its bound, instead of as it fills. Announcements and kept records of
    /// the node's own program still take memory as they come, and a record or an announcement does while it is given to others.
    pub reserve_memory: bool,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            network: String::from("tessera"),
            suite: Suite::Aes256Gcm,
            client: false,
            public_addr: None,
            any_slot: false,
            seal: SealLimits::default(),
            table: TableLimits::default(),
            lookup: LookupConfig::default(),
            records: RecordLimits::default(),
            providers: ProviderLimits::default(),
            abuse: AbuseLimits::default(),
            defences: Defences::default(),
            operations_max: 64,
            requests_max: 1024,
            requests_per_peer_max: 4,
            writes_in_flight_max: 24,
            put_quorum_percent: 51,
            announces_per_sec: 1000,
            refresh_ms: 45 * 60 * 1000,
            ping_idle_ms: 60 * 1000,
            tick_ms: 1000,
            provide_ttl_secs: TTL_SECS_DEFAULT,
            cache_ttl_secs: 600,
            cache_hints: true,
            stem_hops: 0,
            relays_max: 64,
            relay_asker_share: 8,
            relay_prefix_share: 4,
            promises_max: 1024,
            published_max: 1_000_000,
            kept_alive_bytes_max: 32 << 20,
            sequences_max: 4096,
            reserve_memory: false,
        }
    }
}
