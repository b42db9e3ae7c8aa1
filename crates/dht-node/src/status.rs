//! The state of a node: each lane's status, pulled by message, and the verdict on the whole.

use std::net::SocketAddr;

use serde_json::{Map, Value, json};
use tessera_contracts::point::NodeId;
use tessera_dht::lookup::{Histogram, LookupTotals};
use tessera_dht::node::{Counters, Health};

use crate::peer_addr::PeerAddr;

/// How one lane is.
#[derive(Debug, Clone)]
pub struct LaneStatus {
    /// Which lane.
    pub lane: usize,
    /// Its health.
    pub health: Health,
    /// Its counters since it started.
    pub counters: Counters,
    /// How its lookups ended, how long they took, how far they led.
    pub lookups: LookupTotals,
    /// Its tables with their bounds: name, now, most.
    pub bounds: Vec<(&'static str, usize, usize)>,
    /// About how many nodes the network has, as this lane sees it.
    pub network_size: f64,
    /// Our address as others see it.
    pub observed: Option<SocketAddr>,
    /// Commands under way.
    pub commands_waiting: usize,
}

impl LaneStatus {
    /// How much of something the lane holds; zero for a name there is not.
    #[must_use]
    pub fn held(&self, name: &str) -> usize {
        self.bounds.iter().find(|(held, ..)| *held == name).map_or(0, |(_, now, _)| *now)
    }
}

/// How a node is.
#[derive(Debug, Clone)]
pub struct Status {
    /// The node's id.
    pub id: NodeId,
    /// How others reach it: its key and the address it listens on.
    pub listen: PeerAddr,
    /// The network it belongs to.
    pub network: String,
    /// Lanes it should have.
    pub lanes_wanted: usize,
    /// Each lane's status; a lane that is down is missing.
    pub lanes: Vec<LaneStatus>,
    /// Whether a log could not be written: values stored now may be gone after a restart.
    pub log_failed: bool,
    /// Whether the kernel hands datagrams straight to their lanes.
    pub kernel_steering: bool,
    /// Alarms that stand.
    pub alarms: Vec<String>,
}

impl Status {
    /// Connected in both directions: live contacts, answers and requests lately; and its log takes what it is given. A node alone is
    /// not up, however well it runs.
    #[must_use]
    pub fn is_up(&self) -> bool {
        let any = |of: fn(&Health) -> bool| self.lanes.iter().any(|lane| of(&lane.health));
        !self.log_failed
            && self.lanes.len() == self.lanes_wanted
            && any(|health| health.live_peers > 0)
            && any(|health| health.joined)
            && any(|health| health.answered_lately)
            && any(|health| health.asked_lately || health.is_up)
    }

    /// Why it is not up, in words; `None` if it is.
    #[must_use]
    pub fn trouble(&self) -> Option<&'static str> {
        let any = |of: fn(&Health) -> bool| self.lanes.iter().any(|lane| of(&lane.health));
        match () {
            () if self.is_up() => None,
            () if self.log_failed => Some("its log cannot be written: is the disk of the data folder full?"),
            () if self.lanes.len() < self.lanes_wanted => Some("a lane is down"),
            () if !any(|health| health.live_peers > 0) => Some("no live contacts"),
            () if !any(|health| health.joined) => Some("joining"),
            () if !any(|health| health.answered_lately) => Some("no peer answered lately"),
            () => Some("no peer asked lately: is the port reachable from outside?"),
        }
    }

    /// Live contacts: the most that one lane knows, since lanes know nearly the same ones.
    #[must_use]
    pub fn contacts(&self) -> usize {
        self.lanes.iter().map(|lane| lane.health.live_peers).max().unwrap_or(0)
    }

    /// How much of something all lanes hold together.
    #[must_use]
    pub fn held(&self, name: &str) -> usize {
        self.lanes.iter().map(|lane| lane.held(name)).sum()
    }

    /// The same for machines.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let lanes: Vec<Value> = self
            .lanes
            .iter()
            .map(|lane| {
                let counters: Map<String, Value> =
                    named(&lane.counters).into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
                let held: Map<String, Value> = lane
                    .bounds
                    .iter()
                    .map(|(name, now, most)| (name.replace(' ', "_"), json!({ "now": now, "most": most })))
                    .collect();
                json!({
                    "lane": lane.lane,
                    "up": lane.health.is_up,
                    "joined": lane.health.joined,
                    "contacts": lane.health.live_peers,
                    "network_size": lane.network_size.round(),
                    "observed": lane.observed.map(|addr| addr.to_string()),
                    "commands_waiting": lane.commands_waiting,
                    "counters": counters,
                    "lookups": lookups(&lane.lookups),
                    "held": held,
                })
            })
            .collect();
        json!({
            "id": self.id.to_string(),
            "listen": self.listen.to_string(),
            "network": self.network,
            "up": self.is_up(),
            "trouble": self.trouble(),
            "contacts": self.contacts(),
            "lanes_wanted": self.lanes_wanted,
            "log_failed": self.log_failed,
            "kernel_steering": self.kernel_steering,
            "alarms": self.alarms,
            "lanes": lanes,
        })
    }
}

fn lookups(totals: &LookupTotals) -> Value {
    let ended: Map<String, Value> =
        totals.ended().map(|(reason, count)| (reason.name().to_owned(), json!(count))).collect();
    let histogram = |values: &Histogram| {
        let at_most: Map<String, Value> =
            values.at_most().map(|(bound, count)| (bound.to_string(), json!(count))).collect();
        json!({ "at_most": at_most, "count": values.count(), "sum": values.sum() })
    };
    json!({
        "ended": ended,
        "milliseconds": histogram(&totals.milliseconds),
        "hops": histogram(&totals.hops),
        "parallel": histogram(&totals.parallel),
    })
}

/// The counters of a lane by name, in the order they are documented.
#[must_use]
pub fn named(counters: &Counters) -> Vec<(&'static str, u64)> {
    vec![
        ("datagrams_in", counters.datagrams_in),
        ("bytes_in", counters.bytes_in),
        ("datagrams_out", counters.datagrams_out),
        ("bytes_out", counters.bytes_out),
        ("forwarded", counters.forwarded),
        ("refused_header", counters.refused_header),
        ("refused_period", counters.refused_period),
        ("refused_replay", counters.refused_replay),
        ("refused_stranger", counters.refused_stranger),
        ("refused_forged", counters.refused_forged),
        ("challenges_sent", counters.challenges_sent),
        ("challenges_taken", counters.challenges_taken),
        ("malformed", counters.malformed),
        ("requests_served", counters.requests_served),
        ("requests_limited", counters.requests_limited),
        ("requests_quarantined", counters.requests_quarantined),
        ("replies_unexpected", counters.replies_unexpected),
        ("requests_sent", counters.requests_sent),
        ("request_timeouts", counters.request_timeouts),
        ("lookups_started", counters.lookups_started),
        ("lookups_refused", counters.lookups_refused),
        ("lookups_around", counters.lookups_around),
        ("lookups_for_sweeps", counters.lookups_for_sweeps),
        ("announces_sent", counters.announces_sent),
        ("announces_refused", counters.announces_refused),
        ("announces_unanswered", counters.announces_unanswered),
        ("announces_not_kept", counters.announces_not_kept),
        ("records_stored", counters.records_stored),
        ("records_republished", counters.records_republished),
        ("providers_stored", counters.providers_stored),
        ("records_invalid", counters.records_invalid),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_log_failed_is_not_up_and_says_so_before_all_else() {
        let node = crate::Node::builder().lanes(1).start().unwrap();
        let alone = node.status().wait().unwrap();
        assert_ne!(alone.trouble(), None);
        let failed = Status { log_failed: true, ..alone };
        assert!(!failed.is_up() && failed.trouble().is_some_and(|trouble| trouble.contains("log")), "{failed:?}");
    }
}
