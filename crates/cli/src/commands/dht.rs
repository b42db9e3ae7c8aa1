//! `tessera dht`: store, find, announce and look around, by a node that runs here or as a short-lived client.

use std::io::{IsTerminal as _, Read as _};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use serde_json::{Value, json};
use tessera_dht::identity::{Crypto as _, Identity};
use tessera_dht::wire::VALUE_BYTES_MAX as MUTABLE_BYTES_MAX;
use tessera_dht_node::control::client::{CallError, Client};
use tessera_dht_node::control::execute::{Refused, execute};
use tessera_dht_node::control::{owner, runtime_dir};
use tessera_dht_node::data_dir::key_file;
use tessera_dht_node::{ContentId, Node, NodeId, PeerAddr};

use super::dht_output::{Bar, human};
use super::node::listen_for;
use crate::tell::print;

/// How long a short-lived client waits for its first contact.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);

/// The largest value, as the library cuts them.
const VALUE_BYTES_MAX: u64 = 64 << 20;

/// The advice for commands that work without a node on this machine.
const AS_CLIENT: &str = ", or be a short-lived client of others with --bootstrap KEY@HOST:PORT";

/// Use a DHT: by the node that runs here, or with --bootstrap as a short-lived client
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES
  tessera dht put notes.txt                      store a file; prints its id
  tessera dht get ID > notes.txt                 read it, on any node of the network
  echo v2 | tessera dht put-mutable --name motd  a value that only you can change
  tessera dht announce ID                        say that this node offers it
  tessera dht providers ID                       who offers it?
  tessera dht get ID --explain                   the nodes asked, their answers, and when
  tessera dht get ID --bootstrap KEY@HOST:PORT   without a node of your own

Exit codes: 0 done (`put` on a node that never met another too: it then says that this node alone keeps the value), 1 not found (no value, nothing to delete, no provider, no node, or no answer to a ping), 2 refused or failed, 3 inconclusive (nothing was found, but too few of the nodes that should know answered: there may be such a value; `kind` is `inconclusive` with --json), 4 stored by fewer nodes than the quorum (`kind` is `no_quorum`; `put-quorum-percent` in the node's configuration).
No file says anything about these commands: which node they use is said by flags, or found by its socket.
A running node has its socket in $TESSERA_RUNTIME_DIR [default: $XDG_RUNTIME_DIR/tessera, or tessera-UID in the folder for temporary files].")]
pub(crate) struct Args {
    /// The socket of a running node [default: that of the node started last]
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "bootstrap")]
    socket: Option<PathBuf>,

    /// Be a short-lived client of these nodes; may be given several times or with commas between them
    #[arg(long, global = true, value_name = "KEY@HOST:PORT", value_delimiter = ',')]
    bootstrap: Vec<PeerAddr>,

    /// The network of the bootstrap nodes [default: tessera]
    #[arg(long, global = true, value_name = "NAME", requires = "bootstrap")]
    network: Option<String>,

    /// Print the answer as JSON; values go to --output, or are left out
    #[arg(long, global = true)]
    json: bool,

    /// Show the peers asked and the answer of each, as a tree, on standard error; with --json, as part of the answer
    #[arg(long, global = true)]
    explain: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Store a value; prints the id by which it is read
    Put {
        /// The value; `-` for standard input
        #[arg(default_value = "-")]
        file: PathBuf,
        #[command(flatten)]
        lifetime: Lifetime,
        /// Do not store it again at half its lifetime
        #[arg(long)]
        once: bool,
    },
    /// Read a value
    Get {
        /// Its id
        id: ContentId,
        /// Where to write it; `-` for standard output [default: -]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// What the lookup hides: nothing, the id from nodes on the way (blind), or the asker from the first of them (relay)
        #[arg(long, default_value = "none", value_parser = ["none", "blind", "relay"])]
        privacy: String,
    },
    /// Write a new version of a value that only its owner can change
    PutMutable {
        /// The value; `-` for standard input
        #[arg(default_value = "-")]
        file: PathBuf,
        /// Which of the owner's values
        #[arg(long, default_value = "")]
        name: String,
        #[command(flatten)]
        version: Version,
    },
    /// Read the newest version of a value that only its owner can change
    GetMutable {
        /// The owner's public key [default: the running node's]
        owner: Option<NodeId>,
        /// Which of the owner's values
        #[arg(long, default_value = "")]
        name: String,
        /// Where to write it; `-` for standard output [default: -]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Delete a mutable value, or stop storing an immutable one again
    #[command(group = clap::ArgGroup::new("value").args(["id", "name"]).required(true))]
    Delete {
        /// The id of an immutable value that this node stores
        #[arg(conflicts_with_all = ["key", "sequence", "ttl"])]
        id: Option<ContentId>,
        /// Which of the owner's values
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        version: Version,
    },
    /// Announce that this node offers these ids
    Announce {
        /// The ids it offers
        #[arg(required = true)]
        ids: Vec<ContentId>,
        /// Stop telling it
        #[arg(long)]
        stop: bool,
    },
    /// Find nodes that offer an id
    Providers {
        /// The id they offer
        id: ContentId,
        /// How many are enough
        #[arg(long, default_value = "20", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
        limit: usize,
    },
    /// Find the nodes nearest to a point
    FindNode {
        /// The point, as 64 hex digits: the id of a node, or any other
        id: NodeId,
    },
    /// Ask a node whether it is there
    Ping {
        /// As it prints itself
        #[arg(value_name = "KEY@HOST:PORT")]
        peer: PeerAddr,
    },
    /// List the node's live contacts
    Peers,
    /// Tell how the node is
    Status,
}

/// A version of a mutable value, with a value or, to delete it, without one.
#[derive(Debug, clap::Args)]
struct Version {
    /// The owner's key file; `put-mutable` makes it if it does not exist [default: the running node's key]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// The version's number [default: one more than the newest]
    #[arg(long, value_name = "N")]
    sequence: Option<u64>,
    #[command(flatten)]
    lifetime: Lifetime,
}

#[derive(Debug, clap::Args)]
struct Lifetime {
    /// Seconds it holds unless it is written again
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match act(args) {
        Ok(Found::Yes) => ExitCode::SUCCESS,
        Ok(Found::No) => ExitCode::from(1),
        Err(refused) => {
            tell!("error: {refused}");
            if args.json {
                let explain = refused.explain.as_ref().filter(|_| args.explain);
                let answer = json!({ "error": refused.why, "kind": refused.kind, "explain": explain });
                if let Err(error) = print(format!("{answer}\n")) {
                    tell!("error: {error}");
                    return ExitCode::from(2);
                }
            }
            ExitCode::from(match refused.kind.as_str() {
                "not_found" => 1,
                "inconclusive" => 3,
                "no_quorum" => 4,
                _ => 2,
            })
        }
    }
}

/// Whether an answer has the value asked for.
enum Found {
    Yes,
    No,
}

impl Found {
    fn of(op: &str, answer: &Value) -> Self {
        let is_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
        let nothing = match op {
            "providers" => is_empty(&answer["providers"]),
            "find-node" => is_empty(&answer["nodes"]),
            "ping" => answer["rtt_ms"].is_null(),
            _ => false,
        };
        if nothing { Self::No } else { Self::Yes }
    }
}

fn failed(why: impl Into<String>) -> Refused {
    Refused { kind: "failed".to_owned(), why: why.into(), explain: None }
}

fn act(args: &Args) -> Result<Found, Refused> {
    let (mut request, body, output) = request(args)?;
    let key = owner_key(&args.command)?;
    request["explain"] = json!(args.explain);
    let mut connection = if args.bootstrap.is_empty() {
        Connection::local(args.socket.as_deref(), AS_CLIENT).map_err(failed)?
    } else {
        request["keep_alive"] = json!(false);
        Connection::client(&args.bootstrap, args.network.as_deref())?
    };
    let bar = Bar::new(std::io::stderr().is_terminal() && !args.json);
    let exists = match &args.command {
        Command::Delete { id: None, .. } => must_exist(&mut connection, &request, key.as_deref()),
        _ => Ok(()),
    };
    let answer = exists.and_then(|()| match &key {
        // A key stays in this process: the node is given the signed record.
        Some(seed) => {
            let value = (request["op"] == "put-mutable").then_some(&body[..]);
            owner::write(seed, &request, value, |request, body| connection.call(request, body, Some(&bar)))
        }
        None => connection.call(&request, &body, Some(&bar)),
    });
    bar.clear();
    connection.close();
    let explain = match &answer {
        Ok((answer, _)) => &answer["explain"],
        Err(refused) => refused.explain.as_ref().unwrap_or(&Value::Null),
    };
    if let Some(tree) = explain["tree"].as_str().filter(|_| args.explain && !args.json) {
        tell!("{}", tree.trim_end());
    }
    let (mut answer, value) = answer?;
    let op = request["op"].as_str().unwrap_or_default();
    if op == "status" {
        // A client is no contact of other nodes: that it is not up says nothing about the network.
        answer["client"] = json!(!args.bootstrap.is_empty());
    }
    if let Some(path) = &output {
        std::fs::write(path, &value).map_err(|error| failed(format!("cannot write {}: {error}", path.display())))?;
    }
    let written = if args.json {
        print(format!("{answer}\n"))
    } else if matches!(op, "get" | "get-mutable") && output.is_none() {
        print(value)
    } else {
        print(human(op, &answer))
    };
    written.map(|()| Found::of(op, &answer)).map_err(failed)
}

/// The request, the value that goes with it, and where an answered value goes.
fn request(args: &Args) -> Result<(Value, Vec<u8>, Option<PathBuf>), Refused> {
    let client = !args.bootstrap.is_empty();
    let mut output = None;
    let (request, body) = match &args.command {
        Command::Put { file, lifetime, once } => {
            (json!({ "op": "put", "ttl_secs": lifetime.ttl, "keep_alive": !once }), read_value(file)?)
        }
        Command::Get { id, output: to, privacy } => {
            output = to.clone().filter(|to| to != Path::new("-"));
            (json!({ "op": "get", "id": id.to_string(), "privacy": privacy }), Vec::new())
        }
        Command::PutMutable { file, name, version } => {
            let value = read_value(file)?;
            if value.len() > MUTABLE_BYTES_MAX {
                return Err(failed(format!(
                    "a value that can be changed has at most {MUTABLE_BYTES_MAX} bytes, and this one has {}: store it with \
                     `tessera dht put`, and the id which that prints with `tessera dht put-mutable`",
                    value.len()
                )));
            }
            (version_request("put-mutable", name, version, client)?, value)
        }
        Command::GetMutable { owner, name, output: to } => {
            if client && owner.is_none() {
                return Err(failed("a short-lived client has no values of its own: give the owner's key"));
            }
            output = to.clone().filter(|to| to != Path::new("-"));
            (json!({ "op": "get-mutable", "owner": owner.map(|key| key.to_string()), "name": name }), Vec::new())
        }
        Command::Delete { id: Some(id), .. } => (json!({ "op": "delete", "id": id.to_string() }), Vec::new()),
        Command::Delete { id: None, name, version } => {
            if let Some(path) = &version.key {
                // A key that is made now has written nothing.
                std::fs::metadata(path).map_err(|error| {
                    failed(format!("cannot read the key {}: {error}; nothing was deleted", path.display()))
                })?;
            }
            let name = name.as_deref().unwrap_or_default();
            (version_request("delete", name, version, client)?, Vec::new())
        }
        Command::Announce { ids, stop } => {
            if client {
                return Err(failed("an announcement is kept up by a running node: start one with `tessera node`"));
            }
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            (json!({ "op": if *stop { "unannounce" } else { "announce" }, "ids": ids }), Vec::new())
        }
        Command::Providers { id, limit } => {
            (json!({ "op": "providers", "id": id.to_string(), "limit": limit }), Vec::new())
        }
        Command::FindNode { id } => (json!({ "op": "find-node", "id": id.to_string() }), Vec::new()),
        Command::Ping { peer } => (json!({ "op": "ping", "peer": peer.to_string() }), Vec::new()),
        Command::Peers => (json!({ "op": "peers" }), Vec::new()),
        Command::Status => (json!({ "op": "status" }), Vec::new()),
    };
    Ok((request, body, output))
}

fn version_request(op: &str, name: &str, version: &Version, client: bool) -> Result<Value, Refused> {
    if client && version.key.is_none() {
        return Err(failed("a short-lived client has no lasting key: give one with --key FILE"));
    }
    let Version { sequence, lifetime: Lifetime { ttl }, .. } = version;
    Ok(json!({ "op": op, "name": name, "sequence": sequence, "ttl_secs": ttl }))
}

/// The key that a version is to be signed with, if it is not the node's.
fn owner_key(command: &Command) -> Result<Option<impl Deref<Target = [u8; 32]>>, Refused> {
    let key = match command {
        Command::PutMutable { version, .. } | Command::Delete { id: None, version, .. } => &version.key,
        _ => return Ok(None),
    };
    key.as_deref().map(key_file).transpose().map_err(|error| failed(error.to_string()))
}

/// Refuses to delete a mutable value that no node has: deleting writes a version without a value, which always succeeds.
fn must_exist(connection: &mut Connection, delete: &Value, key: Option<&[u8; 32]>) -> Result<(), Refused> {
    let owner = key.map(|seed| NodeId::from_bytes(Identity::from_seed(seed).public_key().0).to_string());
    let (name, explain) = (&delete["name"], &delete["explain"]);
    let get = json!({ "op": "get-mutable", "name": name, "owner": owner, "explain": explain });
    match connection.call(&get, &[], None) {
        Err(refused) if refused.kind == "not_found" => {
            let why = format!("there is no value named {name} of this owner, so nothing was deleted: {}", refused.why);
            Err(Refused { why, ..refused })
        }
        // Another error of reading need not prevent deleting, or comes again then.
        _ => Ok(()),
    }
}

fn read_value(file: &Path) -> Result<Vec<u8>, Refused> {
    let mut value = Vec::new();
    let (read, name) = if file == Path::new("-") {
        (std::io::stdin().lock().take(VALUE_BYTES_MAX + 1).read_to_end(&mut value), "standard input".to_owned())
    } else {
        let read = std::fs::File::open(file).and_then(|file| file.take(VALUE_BYTES_MAX + 1).read_to_end(&mut value));
        (read, file.display().to_string())
    };
    read.map_err(|error| failed(format!("cannot read {name}: {error}")))?;
    if value.len() as u64 > VALUE_BYTES_MAX {
        return Err(failed(format!("{name} is longer than the {VALUE_BYTES_MAX} bytes a value may have")));
    }
    Ok(value)
}

/// A way to a node: over its socket, or in this process.
pub(crate) enum Connection {
    Socket(Client),
    InProcess(Node),
}

impl Connection {
    /// To a node that runs here. If there is none, the error advises `or_else` besides starting one.
    pub(crate) fn local(socket: Option<&Path>, or_else: &str) -> Result<Self, String> {
        if let Some(path) = socket {
            return Client::connect(path).map(Self::Socket).map_err(|error| match error {
                CallError::Io(error) => format!("no node answers at {}: {error}", path.display()),
                unusable => unusable.to_string(),
            });
        }
        let mut sockets: Vec<_> = std::fs::read_dir(runtime_dir())
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "sock"))
            .map(|entry| (entry.metadata().and_then(|meta| meta.modified()).ok(), entry.path()))
            .collect();
        sockets.sort();
        let (mut alive, mut unusable) = (Vec::new(), None);
        for (_, path) in &sockets {
            match Client::connect(path) {
                Ok(client) => alive.push(client),
                Err(error @ (CallError::Silent(_) | CallError::Distrusted(_))) => unusable = Some(error.to_string()),
                // Left behind by a node that was killed.
                Err(_) => {}
            }
        }
        let Some(last) = alive.pop() else {
            let none = || {
                let folder = runtime_dir();
                format!(
                    "no node runs here: none listens in {}. Start one with `tessera node`{or_else}",
                    folder.display()
                )
            };
            return Err(unusable.unwrap_or_else(none));
        };
        if !alive.is_empty() {
            let path = last.path().display();
            tell!("{} nodes run here; using the one started last, {path}. Choose with --socket", alive.len() + 1);
        }
        Ok(Self::Socket(last))
    }

    /// A short-lived node of our own that serves no peer.
    fn client(bootstrap: &[PeerAddr], network: Option<&str>) -> Result<Self, Refused> {
        let local = bootstrap.iter().all(|peer| match peer.addr().ip() {
            std::net::IpAddr::V4(ip) => ip.is_loopback() || ip.is_private(),
            std::net::IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local(),
        });
        let mut builder = Node::builder()
            .client(true)
            .lanes(1)
            .listen(listen_for(bootstrap))
            .address_diversity(!local)
            .bootstrap(bootstrap.iter().copied());
        if let Some(network) = network {
            builder = builder.network(network);
        }
        let node = builder.start().map_err(|error| failed(error.to_string()))?;
        node.joined(JOIN_PATIENCE).wait()?;
        Ok(Self::InProcess(node))
    }

    /// Asks.
    pub(crate) fn call(
        &mut self,
        request: &Value,
        body: &[u8],
        bar: Option<&Bar>,
    ) -> Result<(Value, Vec<u8>), Refused> {
        match self {
            Self::Socket(client) => {
                let told = |done, total| bar.iter().for_each(|bar| bar.show(done, total));
                client.call(request, body, told).map_err(|error| match error {
                    CallError::Refused(refused) => refused,
                    CallError::Silent(_) | CallError::Distrusted(_) | CallError::Io(_) => failed(error.to_string()),
                })
            }
            Self::InProcess(node) => {
                let told = bar.cloned().map(|bar| {
                    let told: tessera_dht_node::values::Progress =
                        std::sync::Arc::new(move |done, total| bar.show(done, total));
                    told
                });
                execute(node, request, body.to_vec(), told)
            }
        }
    }

    fn close(self) {
        if let Self::InProcess(node) = self {
            node.shutdown();
        }
    }
}

/// A text as a shell takes it for one word.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell_are_quoted_when_they_need_it() {
        assert_eq!(quoted("my-net"), "my-net");
        assert_eq!(quoted("my net"), "'my net'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
