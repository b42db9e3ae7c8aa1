//! How an answer came about: the peers asked, the peers that named them, their answers, and when.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};
use tessera_contracts::point::NodeId;
use tessera_dht::lookup::{Finish, LookupStats, Standing};
use tessera_dht::node::command::{Asked, Outcome};

use crate::error::count;

/// How an answer came about. `Display` draws it as a tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Explain {
    /// Why the lookup ended; `None` if none was needed.
    pub finish: Option<Finish>,
    /// Its numbers.
    pub stats: LookupStats,
    /// The peers asked, nearest to the target first.
    pub asked: Vec<Asked>,
}

impl Explain {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        Self { finish: outcome.finish, stats: outcome.stats, asked: outcome.asked.clone() }
    }

    /// The same for machines.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let asked: Vec<Value> = self
            .asked
            .iter()
            .map(|asked| {
                json!({
                    "id": asked.id.to_string(),
                    "addr": asked.addr.to_string(),
                    "standing": standing(asked.standing),
                    "hops": asked.hops,
                    "useful": asked.useful,
                    "via": asked.via.map(|via| via.to_string()),
                    "asked_after_ms": asked.asked_after_ms,
                    "took_ms": asked.took_ms,
                })
            })
            .collect();
        json!({
            "finish": self.finish.map(finish),
            "requests": self.stats.requests,
            "answers": self.stats.answers,
            "timeouts": self.stats.timeouts,
            "refusals": self.stats.refusals,
            "lies": self.stats.lies,
            "hops": self.stats.hops,
            "alpha_peak": self.stats.alpha_peak,
            "elapsed_ms": self.stats.elapsed_ms,
            "asked": asked,
        })
    }
}

fn finish(finish: Finish) -> &'static str {
    match finish {
        Finish::Found => "found",
        Finish::Exhausted => "all nodes that should know were asked",
        Finish::OutOfTime => "out of time",
        Finish::OutOfRequests => "out of requests",
        Finish::Alone => "no peer to ask",
        Finish::Cancelled => "cancelled",
    }
}

fn standing(standing: Standing) -> String {
    match standing {
        Standing::Fresh => "not asked".to_owned(),
        Standing::Asked => "no answer yet".to_owned(),
        Standing::Answered => "answered".to_owned(),
        Standing::Silent | Standing::Dead => "silent".to_owned(),
        Standing::Refused(code) => format!("refused ({code:?})"),
        Standing::Lied => "answered something invalid".to_owned(),
    }
}

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(end) = self.finish else { return f.write_str("answered by this node itself\n") };
        let LookupStats { requests, answers, timeouts, hops, elapsed_ms, .. } = self.stats;
        let counts = [(requests, "request"), (answers, "answer"), (timeouts, "timeout"), (hops.into(), "hop")];
        let counts = counts.map(|(number, thing)| count(number.into(), thing)).join(", ");
        writeln!(f, "{}: {counts}, {elapsed_ms} ms", finish(end))?;
        // The peer that named a node may have left the view since; the node is then drawn at the top, like a contact of our own.
        let mut children: BTreeMap<Option<NodeId>, Vec<&Asked>> = BTreeMap::new();
        for asked in &self.asked {
            let via = asked.via.filter(|via| self.asked.iter().any(|other| other.id == *via));
            children.entry(via).or_default().push(asked);
        }
        draw(f, &children, None, "")
    }
}

fn draw(
    f: &mut fmt::Formatter<'_>,
    children: &BTreeMap<Option<NodeId>, Vec<&Asked>>,
    of: Option<NodeId>,
    indent: &str,
) -> fmt::Result {
    let Some(list) = children.get(&of) else { return Ok(()) };
    let mut list = list.clone();
    list.sort_by_key(|asked| asked.asked_after_ms);
    for (at, asked) in list.iter().enumerate() {
        let last = at + 1 == list.len();
        let short: String = asked.id.to_string().chars().take(12).collect();
        let took = asked.took_ms.map_or_else(String::new, |ms| format!(" in {ms} ms"));
        let useful = if asked.useful { "  <- result" } else { "" };
        writeln!(
            f,
            "{indent}{} {short} {}  asked at {} ms, {}{took}{useful}",
            if last { "└─" } else { "├─" },
            asked.addr,
            asked.asked_after_ms,
            standing(asked.standing),
        )?;
        // A cycle cannot be: a peer is asked before the peers it names.
        draw(f, children, Some(asked.id), &format!("{indent}{}  ", if last { " " } else { "│" }))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tessera_dht::addr::Addr;

    use super::*;

    fn asked(n: u8, via: Option<u8>) -> Asked {
        Asked {
            id: NodeId::from_bytes([n; 32]),
            addr: Addr::v4([127, 0, 0, 1], u16::from(n)),
            standing: Standing::Answered,
            hops: 1,
            useful: n == 3,
            via: via.map(|n| NodeId::from_bytes([n; 32])),
            asked_after_ms: u64::from(n),
            took_ms: Some(4),
        }
    }

    #[test]
    fn the_tree_shows_which_peer_named_which_and_the_outcome() {
        let explain = Explain {
            finish: Some(Finish::Found),
            asked: vec![asked(3, Some(2)), asked(2, Some(1)), asked(1, None), asked(9, Some(77))],
            ..Explain::default()
        };
        let drawn = explain.to_string();
        let lines: Vec<&str> = drawn.lines().collect();
        assert!(lines[0].starts_with("found: "), "{drawn}");
        assert!(lines[1].starts_with("├─ 010101010101 127.0.0.1:1  asked at 1 ms, answered in 4 ms"), "{drawn}");
        assert!(lines[2].starts_with("│  └─ 020202"), "{drawn}");
        assert!(lines[3].starts_with("│     └─ 030303") && lines[3].ends_with("<- result"), "{drawn}");
        assert!(lines[4].starts_with("└─ 090909"), "whose source left the view stands at the top: {drawn}");
        assert_eq!(explain.to_json()["asked"].as_array().unwrap().len(), 4);
    }
}
