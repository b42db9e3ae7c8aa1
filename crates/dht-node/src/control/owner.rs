//! How an owner writes a version by a node that need not know the owner's key.
//!
//! The key stays in the caller's process: the node is asked which number comes next, the version is signed here, and the node is
//! given only the signed record. If another writer takes the number in between, all of it is done again.

use serde_json::{Value, json};
use tessera_contracts::point::NodeId;
use tessera_dht::identity::{Crypto as _, Identity};

use super::execute::{Refused, ttl, whole};
use crate::mutable::{Version, signed};

/// How often a new number is chosen after another writer took it.
const TRIES_MAX: u32 = 5;

/// Writes `value` as `request` says (`name`, `sequence`, `ttl_secs`, `keep_alive`, `explain`), or deletes it if there is none,
/// signed with `seed`. `call` asks the node.
pub fn write(
    seed: &[u8; 32],
    request: &Value,
    value: Option<&[u8]>,
    mut call: impl FnMut(&Value, &[u8]) -> Result<(Value, Vec<u8>), Refused>,
) -> Result<(Value, Vec<u8>), Refused> {
    let identity = Identity::from_seed(seed);
    let (name, ttl) = (request["name"].as_str().unwrap_or_default(), ttl(request)?);
    let chosen = whole(request, "sequence")?;
    let owner = NodeId::from_bytes(identity.public_key().0).to_string();
    for _ in 0..TRIES_MAX {
        let (next, _) = match chosen {
            // All that is asked for is in which network it is signed.
            Some(_) => call(&json!({ "op": "status" }), &[])?,
            None => call(&json!({ "op": "next-version", "owner": owner, "name": name }), &[])?,
        };
        let sequence = chosen.or_else(|| next["sequence"].as_u64());
        let (Some(sequence), Some(network)) = (sequence, next["network"].as_str()) else {
            return Err(Refused::failed("the node did not say which version comes next: is it of another release?"));
        };
        let version = Version { name, sequence, ttl, value };
        let record = signed(&identity, network, &version)?;
        let put = json!({ "op": "put-signed", "keep_alive": request["keep_alive"], "explain": request["explain"] });
        match call(&put, &record) {
            Err(refused) if refused.kind == "outdated" && chosen.is_none() => {}
            answered => return answered,
        }
    }
    Err(Refused { kind: "outdated".to_owned(), ..Refused::failed("others write this value all the time") })
}

#[cfg(test)]
mod tests {
    use tessera_dht::record::RecordView;

    use super::*;

    #[test]
    fn a_race_that_is_lost_again_and_again_ends_and_says_why() {
        let mut writes = 0;
        let refused = write(&[7; 32], &json!({ "op": "put-mutable" }), Some(b"value"), |request, _| {
            if request["op"] == "next-version" {
                return Ok((json!({ "sequence": 3, "network": "tessera" }), Vec::new()));
            }
            writes += 1;
            Err(Refused { kind: "outdated".to_owned(), ..Refused::failed("another writer was faster") })
        });
        let refused = refused.unwrap_err();
        assert_eq!((refused.kind.as_str(), refused.why.as_str()), ("outdated", "others write this value all the time"));
        assert_eq!(writes, TRIES_MAX);
    }

    #[test]
    fn the_key_is_not_among_what_the_node_is_told_and_a_lost_race_is_run_again() {
        let (seed, mut told, mut writes) = ([7; 32], Vec::new(), 0);
        let request = json!({ "op": "put-mutable", "name": "motd", "keep_alive": true });
        let written = write(&seed, &request, Some(b"value"), |request, body| {
            told.extend_from_slice(request.to_string().as_bytes());
            told.extend_from_slice(body);
            match request["op"].as_str() {
                Some("next-version") => Ok((json!({ "sequence": 3 + writes, "network": "tessera" }), Vec::new())),
                _ if writes == 0 => {
                    writes = 1;
                    Err(Refused { kind: "outdated".to_owned(), ..Refused::failed("another writer was faster") })
                }
                _ => Ok((json!({ "sequence": RecordView::read(body).unwrap().sequence() }), Vec::new())),
            }
        });
        assert_eq!(written.unwrap().0["sequence"], 4);
        let hex = NodeId::from_bytes(seed).to_string();
        let holds = |secret: &[u8]| told.windows(secret.len()).any(|part| part == secret);
        assert!(!holds(&seed) && !holds(hex.as_bytes()));
        assert!(holds(b"value"), "as a value is");
    }
}
