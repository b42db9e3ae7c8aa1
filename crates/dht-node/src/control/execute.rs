//! What can be asked of a node over its socket.

use std::collections::BTreeSet;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use futures_core::Stream as _;
use serde_json::{Value, json};
use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_dht::node::command::Privacy;
use tessera_dht::record::TTL_SECS_DEFAULT;

use crate::call::block_on;
use crate::error::NodeError;
use crate::explain::Explain;
use crate::mutable::{Mutable, MutableKey, PutMutable};
use crate::node::Node;
use crate::peer_addr::PeerAddr;
use crate::values::{Get, Progress, Put};

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// For machines: `not_found`, `inconclusive`, `no_quorum`, `outdated`, `bad_request`, `failed`.
    pub kind: String,
    /// For people.
    pub why: String,
    /// How it went, if there was a lookup.
    pub explain: Option<Value>,
}

impl Refused {
    fn bad(why: impl Into<String>) -> Self {
        Self { kind: "bad_request".to_owned(), why: why.into(), explain: None }
    }

    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Self { kind: "failed".to_owned(), why: why.into(), explain: None }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({ "error": self.why, "kind": self.kind, "explain": self.explain })
    }

    pub(crate) fn of_json(json: &Value) -> Self {
        let text = |name: &str, or: &str| json[name].as_str().unwrap_or(or).to_owned();
        let explain = (!json["explain"].is_null()).then(|| json["explain"].clone());
        Self { kind: text("kind", "failed"), why: text("error", "the node did not say why"), explain }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Refused {}

impl From<NodeError> for Refused {
    fn from(error: NodeError) -> Self {
        let (kind, explain) = match error.cause() {
            NodeError::NotFound { explain, .. } => ("not_found", Some(drawn(explain))),
            NodeError::Inconclusive { explain, .. } => ("inconclusive", Some(drawn(explain))),
            NodeError::Deleted { .. } | NodeError::NotHere { .. } => ("not_found", None),
            NodeError::Outdated { .. } => ("outdated", None),
            NodeError::NotStored { written, explain } if written.acknowledged > 0 => {
                ("no_quorum", Some(drawn(explain)))
            }
            NodeError::NotStored { explain, .. } => ("failed", Some(drawn(explain))),
            _ => ("failed", None),
        };
        Self { kind: kind.to_owned(), why: error.to_string(), explain }
    }
}

/// Does what `request` asks and returns the answer, with a value if it has one.
pub fn execute(
    node: &Node,
    request: &Value,
    body: Vec<u8>,
    progress: Option<Progress>,
) -> Result<(Value, Vec<u8>), Refused> {
    block_on(answer(node, request, body, progress))
}

/// The same for whoever may lose interest: what is dropped before its end is given up.
pub(super) async fn answer(
    node: &Node,
    request: &Value,
    body: Vec<u8>,
    progress: Option<Progress>,
) -> Result<(Value, Vec<u8>), Refused> {
    let answer = match request["op"].as_str().unwrap_or_default() {
        "put" => {
            let put = Put { ttl: ttl(request)?, keep_alive: request["keep_alive"].as_bool().unwrap_or(true), progress };
            let stored = node.put_with(body, put).await?;
            json!({
                "id": stored.id.to_string(),
                "records": stored.records,
                "replicas": stored.replicas,
                "holders": stored.holders,
                "explain": explain(request, &stored.explain),
            })
        }
        "get" => {
            let get = Get { privacy: privacy(request)?, progress };
            let id: ContentId = parsed(request, "id")?;
            let value = node.get_with(id, get).await?;
            let answer = json!({
                "id": id.to_string(),
                "bytes": value.bytes.len(),
                "records": value.records,
                "explain": explain(request, &value.explain),
            });
            return Ok((answer, value.bytes));
        }
        "next-version" => {
            let sequence = node.next_version(mutable_key(node, request)?).await?;
            json!({ "sequence": sequence, "network": node.network() })
        }
        "put-signed" => {
            let keep_alive = request["keep_alive"].as_bool().unwrap_or(true);
            mutable(request, &node.put_signed(body, keep_alive).await?)
        }
        "put-mutable" => mutable(request, &node.put_mutable(body, put_mutable(request)?).await?),
        "delete" if request["id"].is_string() => {
            let id: ContentId = parsed(request, "id")?;
            node.forget(id).await?;
            json!({ "id": id.to_string() })
        }
        "delete" => mutable(request, &node.delete(put_mutable(request)?).await?),
        "get-mutable" => {
            let found = node.get_mutable(mutable_key(node, request)?).await?;
            let mut answer = mutable(request, &found);
            // Whoever reads does not count who keeps it: two zeros would say that nobody does.
            for unknown in ["replicas", "holders"] {
                answer.as_object_mut().and_then(|answer| answer.remove(unknown));
            }
            return Ok((answer, found.value));
        }
        "announce" | "unannounce" => {
            let ids = request["ids"].as_array().ok_or_else(|| Refused::bad("`ids` is missing"))?;
            // One that is named twice is announced once.
            let ids: BTreeSet<ContentId> = ids
                .iter()
                .map(|id| id.as_str().unwrap_or_default().parse().map_err(|error| Refused::bad(format!("{error}"))))
                .collect::<Result<_, _>>()?;
            let count = ids.len();
            if request["op"] == "announce" {
                node.announce(ids).await?;
                json!({ "announced": count })
            } else {
                node.unannounce(ids).await?;
                json!({ "no_longer_announced": count })
            }
        }
        "providers" => {
            let limit = whole(request, "limit")?.unwrap_or(20) as usize;
            if limit == 0 {
                return Err(Refused::bad("no providers at all are a search for nothing: `limit` is at least 1"));
            }
            let mut search = node.find_providers(parsed(request, "id")?, limit);
            let mut providers = Vec::new();
            while let Some(provider) = poll_fn(|cx| Pin::new(&mut search).poll_next(cx)).await {
                let left = provider.expires.duration_since(std::time::SystemTime::now()).unwrap_or_default();
                let (id, peer) = (provider.id().to_string(), provider.peer.to_string());
                providers.push(json!({ "id": id, "peer": peer, "seconds_left": left.as_secs() }));
            }
            if let Some(error) = search.error() {
                return Err(error.clone().into());
            }
            let how = search.explain().map_or(Value::Null, |how| explain(request, how));
            json!({ "providers": providers, "explain": how })
        }
        "find-node" => {
            let (nodes, how) = node.find_node(parsed(request, "id")?).await?;
            let nodes: Vec<Value> =
                nodes.iter().map(|peer| json!({ "id": peer.id().to_string(), "peer": peer.to_string() })).collect();
            json!({ "nodes": nodes, "explain": explain(request, &how) })
        }
        "ping" => {
            let peer: PeerAddr = parsed(request, "peer")?;
            if peer.key() == node.address().key() {
                // It would be asked over the network and not answer: a node does not talk to itself.
                return Ok((json!({ "id": peer.id().to_string(), "rtt_ms": 0, "self": true }), Vec::new()));
            }
            let rtt = node.ping(peer).await?;
            json!({ "id": peer.id().to_string(), "rtt_ms": rtt.map(|rtt| rtt.as_millis() as u64) })
        }
        "peers" => {
            let peers: Vec<Value> = node
                .peers()
                .await?
                .iter()
                .map(|live| {
                    let (peer, rtt_ms) = (live.peer, live.rtt.map(|rtt| rtt.as_millis() as u64));
                    json!({ "id": peer.id().to_string(), "peer": peer.to_string(), "rtt_ms": rtt_ms })
                })
                .collect();
            json!({ "peers": peers })
        }
        "status" => node.status().await?.to_json(),
        "top" => top(node).await?,
        "set-lanes" => {
            let lanes = request["lanes"].as_u64().ok_or_else(|| Refused::bad("`lanes` is missing"))?;
            changed(node.set_lanes(usize::try_from(lanes).unwrap_or(usize::MAX)))?;
            json!({ "lanes": lanes })
        }
        "relieve" => {
            let lane = |name: &str| request[name].as_u64().and_then(|lane| u8::try_from(lane).ok());
            let (Some(hot), Some(helper)) = (lane("lane"), lane("helper")) else {
                return Err(Refused::bad("`lane` and `helper` are numbers of lanes"));
            };
            if hot == helper {
                return Err(Refused::bad(format!("lane {hot} cannot help itself: name another lane as its helper")));
            }
            changed(node.relieve(hot, helper))?;
            json!({ "lane": hot, "helper": helper })
        }
        "merge-back" => {
            changed(node.merge_back())?;
            json!({})
        }
        "inject-panic" | "inject-stall" => {
            let lane = request["lane"].as_u64().and_then(|lane| u8::try_from(lane).ok()).unwrap_or(0);
            let injected = match request["milliseconds"].as_u64() {
                Some(time) => node.inject_stall(lane, Duration::from_millis(time)),
                None => node.inject_panic(lane),
            };
            if !injected {
                return Err(Refused::bad(format!(
                    "lane {lane} was not reached: is there such a lane, and was the node started with test hooks?"
                )));
            }
            json!({ "lane": lane })
        }
        op => return Err(Refused::bad(format!("there is no operation `{op}`"))),
    };
    Ok((answer, Vec::new()))
}

fn changed(result: Result<(), impl fmt::Display>) -> Result<(), Refused> {
    result.map_err(|error| Refused::failed(error.to_string()))
}

fn parsed<T: FromStr<Err: fmt::Display>>(request: &Value, name: &str) -> Result<T, Refused> {
    let text = request[name].as_str().ok_or_else(|| Refused::bad(format!("`{name}` is missing")))?;
    text.parse().map_err(|error: T::Err| Refused::bad(error.to_string()))
}

fn explain(request: &Value, how: &Explain) -> Value {
    match request["explain"].as_bool() {
        Some(true) => drawn(how),
        _ => Value::Null,
    }
}

/// For machines, and as a tree for people.
fn drawn(how: &Explain) -> Value {
    let mut json = how.to_json();
    json["tree"] = Value::String(how.to_string());
    json
}

/// Whose value, and which: the node's own unless somebody else is named.
fn mutable_key(node: &Node, request: &Value) -> Result<MutableKey, Refused> {
    let owner = match request["owner"].as_str() {
        Some(_) => *parsed::<NodeId>(request, "owner")?.as_bytes(),
        None => node.address().key(),
    };
    Ok(MutableKey::named(owner, request["name"].as_str().unwrap_or_default()))
}

/// A number that may be left out.
pub(super) fn whole(request: &Value, name: &str) -> Result<Option<u64>, Refused> {
    match &request[name] {
        Value::Null => Ok(None),
        value => {
            value.as_u64().map(Some).ok_or_else(|| Refused::bad(format!("`{name}` is a number from 0 on, not {value}")))
        }
    }
}

pub(super) fn ttl(request: &Value) -> Result<Duration, Refused> {
    match whole(request, "ttl_secs")? {
        None => Ok(Duration::from_secs(u64::from(TTL_SECS_DEFAULT))),
        Some(secs) => Ok(Duration::from_secs(secs)),
    }
}

fn privacy(request: &Value) -> Result<Privacy, Refused> {
    match request["privacy"].as_str() {
        None | Some("none") => Ok(Privacy::None),
        Some("blind") => Ok(Privacy::Blind),
        Some("relay") => Ok(Privacy::Relay),
        Some(other) => Err(Refused::bad(format!("`{other}` is no privacy: none, blind or relay"))),
    }
}

fn put_mutable(request: &Value) -> Result<PutMutable, Refused> {
    if !request["seed"].is_null() {
        return Err(Refused::bad("a key is not sent to a node: sign with it, and let the node store what is signed"));
    }
    Ok(PutMutable {
        sequence: whole(request, "sequence")?,
        ttl: ttl(request)?,
        keep_alive: request["keep_alive"].as_bool().unwrap_or(true),
        ..PutMutable::named(request["name"].as_str().unwrap_or_default())
    })
}

fn mutable(request: &Value, found: &Mutable) -> Value {
    json!({
        "id": found.key.id().to_string(),
        "owner": NodeId::from_bytes(found.key.owner).to_string(),
        "sequence": found.sequence,
        "bytes": found.value.len(),
        "replicas": found.replicas,
        "holders": found.holders,
        "explain": explain(request, &found.explain),
    })
}

/// The status, and per lane what the runtime counts: for a live view.
async fn top(node: &Node) -> Result<Value, Refused> {
    let mut status = node.status().await?.to_json();
    let lanes: Vec<Value> = node
        .runtime_snapshot()
        .lanes
        .iter()
        .map(|lane| {
            let depth: u64 = lane.classes.iter().map(|class| class.depth).sum();
            let dropped: u64 = lane.classes.iter().map(|class| class.dropped_total()).sum();
            json!({
                "datagrams_in": lane.total("datagrams_in"),
                "datagrams_out": lane.total("datagrams_out"),
                "datagrams_out_dropped": lane.total("datagrams_out_dropped"),
                "misrouted": lane.total("misrouted"),
                "depth": depth,
                "dropped": dropped,
                "log_records": lane.total("log_records"),
                "log_durable": lane.total("log_durable"),
                "incarnations": lane.total("incarnations"),
            })
        })
        .collect();
    status["runtime"] = Value::Array(lanes);
    Ok(status)
}
