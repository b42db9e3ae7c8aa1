//! What `tessera dht` prints, refuses and returns, over a socket and as a short-lived client.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod node_support;

use std::fs;

use node_support::{PATIENCE, Place, Process, run, run_within, succeeded, until};
use rustix::process::Signal;

#[test]
fn every_command_works_over_the_socket_and_as_a_client() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let node = place.node(&["--lanes", "2", "--bootstrap", &first.address()]);
    place.until_knows(&node, 1);
    place.until_knows(&first, 1);
    let client = |args: &[&str], input: &[u8]| {
        let address = first.address();
        let mut all = vec!["dht", "--bootstrap", &address];
        all.extend(args);
        succeeded(run(place.tessera(&all), input)).map(|out| String::from_utf8(out).unwrap().trim_end().to_owned())
    };
    // Values from standard input and from a file, larger than a datagram.
    let id = client(&["put"], b"by a client").unwrap();
    assert_eq!(place.ask(&node, &["get", &id], &[]), "by a client");
    let (large, back) = (place.path("large"), place.path("back"));
    fs::write(&large, (0..200_000_u32).map(|n| (n / 7) as u8).collect::<Vec<_>>()).unwrap();
    let id = place.ask(&node, &["put", large.to_str().unwrap()], &[]);
    client(&["get", &id, "--output", back.to_str().unwrap()], &[]).unwrap();
    assert!(fs::read(&large).unwrap() == fs::read(&back).unwrap(), "byte for byte");
    // Versions, by the node's key and by a key file.
    place.ask(&node, &["put-mutable", "--name", "motd"], b"one");
    let owner = node.address().split_once('@').unwrap().0.to_owned();
    assert_eq!(client(&["get-mutable", &owner, "--name", "motd"], &[]).unwrap(), "one");
    let read = place.json(&node, &["get-mutable", &owner, "--name", "motd"]);
    assert!(read["sequence"] == 1 && read.get("replicas").is_none(), "who keeps it was not counted: {read}");
    let key = place.path("key").display().to_string();
    let written = client(&["put-mutable", "--name", "mine", "--key", &key], b"by file").unwrap();
    let owner = written.split_whitespace().nth(1).unwrap().to_owned();
    assert_eq!(place.ask(&node, &["get-mutable", &owner, "--name", "mine"], &[]), "by file");
    client(&["delete", "--name", "mine", "--key", &key], &[]).unwrap();
    assert!(place.dht(&node, &["get-mutable", &owner, "--name", "mine"], &[]).unwrap_err().contains("deleted"));
    place.ask(&node, &["delete", &id], &[]);
    // Providers.
    let (film, song) = ("cd".repeat(32), "ce".repeat(32));
    let announced = place.ask(&node, &["announce", &film, &song, &film], &[]);
    assert_eq!(announced, "announcing 2 ids while the node runs", "one that is named twice is one");
    until("the provider is found", || {
        client(&["providers", &film], &[]).is_ok_and(|found| found.contains(&node.listen()))
    });
    let stopped = place.json(&node, &["announce", &film, "--stop"]);
    assert_eq!(stopped, serde_json::json!({ "no_longer_announced": 1 }));
    // `-` is standard output, as it is standard input for `put`.
    let id = client(&["put", "-"], b"through pipes").unwrap();
    let piped = place.dht(&node, &["get", &id, "--output", "-"], &[]).unwrap();
    assert_eq!(piped, b"through pipes");
    // Looking around.
    assert!(client(&["find-node", &node.id()], &[]).unwrap().starts_with(&node.id()));
    assert!(client(&["ping", &node.address()], &[]).unwrap().starts_with("it is there"));
    assert!(place.ask(&first, &["peers"], &[]).contains(&node.id()));
    assert!(place.ask(&node, &["status"], &[]).contains("contacts   1"));
    let status = client(&["status"], &[]).unwrap();
    assert!(status.contains("a short-lived client") && !status.contains("not up"), "{status}");
    let both = format!("{},{}", first.address(), node.address());
    let peers = succeeded(run(place.tessera(&["dht", "--bootstrap", &both, "peers"]), b"")).unwrap();
    assert!(String::from_utf8(peers).unwrap().contains("127.0.0.1:"));
    // Commands that a client cannot do are refused with a reason.
    for (args, why) in [
        (vec!["announce", &film], "running node"),
        (vec!["put-mutable", "--name", "x"], "--key"),
        (vec!["get-mutable"], "owner"),
    ] {
        let error = client(&args, b"x").unwrap_err();
        assert!(error.contains(why), "{args:?}: {error}");
    }
}

#[test]
fn explain_draws_the_lookup_and_json_has_it_whole() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let id = place.ask(&first, &["put"], b"explained");
    let address = first.address();
    let output = run(place.tessera(&["dht", "--bootstrap", &address, "--explain", "get", &id]), &[]);
    let tree = String::from_utf8(output.stderr).unwrap();
    assert!(tree.starts_with("found: 1 request, 1 answer"), "{tree}");
    let short: String = first.id().chars().take(12).collect();
    assert!(
        tree.contains(&format!("└─ {short} {}  asked at ", first.listen())) && tree.contains("<- result"),
        "{tree}"
    );
    let output = run(place.tessera(&["dht", "--bootstrap", &address, "--explain", "--json", "get", &id]), &[]);
    assert_eq!(output.stderr, b"", "it comes once");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["explain"]["asked"][0]["id"], first.id().as_str());
    assert!(json["explain"]["asked"][0]["took_ms"].is_u64());
}

#[test]
fn a_failure_is_explained_as_a_success_is() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let (address, nothing) = (first.address(), "ef".repeat(32));
    let explained = |args: &[&str]| {
        let mut all = vec!["dht", "--bootstrap", &address, "--explain"];
        all.extend(args);
        all.extend(["get", &nothing]);
        let output = run(place.tessera(&all), &[]);
        assert_eq!(output.status.code(), Some(1));
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (answer, tree) = explained(&[]);
    assert_eq!(answer, "");
    let lines: Vec<&str> = tree.lines().collect();
    let short: String = first.id().chars().take(12).collect();
    assert!(lines[0].ends_with(" ms") && lines[0].contains("1 request, 1 answer"), "{tree}");
    assert!(lines[1].starts_with(&format!("└─ {short} ")) && lines[1].contains(" answered in "), "{tree}");
    assert!(lines[2].starts_with("error: ") && lines.len() == 3, "{tree}");
    let (answer, words) = explained(&["--json"]);
    let json: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(json["explain"]["asked"][0]["id"], first.id().as_str());
    assert!(words.starts_with("error: ") && words.lines().count() == 1, "it comes once: {words}");
}

#[test]
fn exit_codes_tell_not_found_from_failed() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let socket = first.socket();
    let nothing = "ef".repeat(32);
    let code = |args: &[&str]| run(place.tessera(args), b"").status.code();
    assert_eq!(code(&["dht", "--socket", &socket, "get", &nothing]), Some(1));
    assert_eq!(code(&["dht", "--socket", &socket, "put", "/no/such/file"]), Some(2));
    assert_eq!(code(&["dht", "--socket", &socket, "get", "no-id"]), Some(2));
    // Nothing was found here either, and the answer says so as well.
    let silent = format!("{}@127.0.0.1:9", "cd".repeat(32));
    for json in [false, true] {
        for args in [["providers", &nothing], ["ping", &silent], ["find-node", &nothing]] {
            let mut all = vec!["dht", "--socket", &socket];
            all.extend(args);
            all.extend(json.then_some("--json"));
            let output = run(place.tessera(&all), b"");
            assert_eq!(output.status.code(), Some(1), "{args:?}");
            assert!(!output.stdout.is_empty(), "{args:?}");
        }
    }
    assert_eq!(code(&["dht", "--socket", &socket, "providers", &nothing, "--limit", "0"]), Some(2));
    let own = place.ask(&first, &["ping", &first.address()], &[]);
    assert!(own.contains("this node itself"), "{own}");
    drop(first);
    let output = run(place.tessera(&["dht", "status"]), b"");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("no node runs here") && error.contains("tessera node"), "{error}");
    assert!(error.contains("--bootstrap") && error.contains(place.path("run").to_str().unwrap()), "{error}");
    // Commands that steer a node are none that a short-lived client could have.
    for steers in [&["node", "top", "--once"][..], &["node", "set-lanes", "2"], &["node", "merge-back"]] {
        let (code, error) = run_within(place.tessera(steers), PATIENCE);
        assert!(code == Some(2) && error.contains("no node runs here"), "{steers:?}: {error}");
        assert!(!error.contains("--bootstrap"), "{steers:?} has no such flag: {error}");
    }
}

#[test]
fn with_json_a_usage_error_is_json_too() {
    let place = Place::new();
    for args in [&["get", "no-id", "--json"][..], &["--json", "put", "--ttl", "soon"], &["get", "--json"]] {
        let output = run(place.tessera(&[&["dht"], args].concat()), b"");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let error = answer["error"].as_str().unwrap();
        assert!(answer["kind"] == "bad_request" && !error.is_empty() && !error.starts_with("error"), "{answer}");
        assert!(String::from_utf8(output.stderr).unwrap().contains(error), "the same words: {answer}");
    }
    // Only answers become JSON: help is for people, and without the flag there is nothing to parse.
    let help = run(place.tessera(&["dht", "get", "--json", "--help"]), b"");
    assert!(help.status.success() && String::from_utf8(help.stdout).unwrap().contains("Usage"));
    assert!(run(place.tessera(&["dht", "get", "no-id"]), b"").stdout.is_empty());
    let named = run(place.tessera(&["dht", "get", "--", "--json"]), b"");
    assert!(named.status.code() == Some(2) && named.stdout.is_empty(), "an id is no flag");
}

#[test]
fn delete_says_that_it_deleted_only_what_was_there_and_makes_no_key() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let delete = |args: &[&str]| {
        let socket = first.socket();
        let mut all = vec!["dht", "--socket", &socket, "delete"];
        all.extend(args);
        let output = run(place.tessera(&all), b"");
        let said = String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap();
        (output.status.code(), said)
    };
    let (code, said) = delete(&["--name", "never-was"]);
    assert!(code == Some(1) && said.contains("nothing was deleted") && said.contains("never-was"), "{code:?} {said}");
    let (code, said) = delete(&["--name", "never-was", "--json"]);
    assert!(code == Some(1) && said.contains("\"kind\":\"not_found\""), "{code:?} {said}");
    let typo = place.path("typo.key");
    let (code, said) = delete(&["--name", "x", "--key", typo.to_str().unwrap()]);
    assert!(code == Some(2) && said.contains("typo.key") && said.contains("nothing was deleted"), "{code:?} {said}");
    assert!(!typo.exists(), "no key was made");
    // A key that has written other values.
    let key = place.path("key").display().to_string();
    place.ask(&first, &["put-mutable", "--name", "mine", "--key", &key], b"one");
    assert_eq!(delete(&["--name", "mine"]).0, Some(1), "the node's own key has none of this name");
    assert_eq!(delete(&["--name", "other", "--key", &key]).0, Some(1));
    assert_eq!(delete(&["--name", "mine", "--key", &key]), (Some(0), "deleted (version 2)\n".to_owned()));
    let (code, said) = delete(&["--name", "mine", "--key", &key]);
    assert!(code == Some(1) && said.contains("was deleted by its owner (version 2)"), "{code:?} {said}");
    // The value without a name is deleted only on explicit request.
    place.ask(&first, &["put-mutable"], b"nameless");
    let (code, said) = delete(&[]);
    assert!(code == Some(2) && said.contains("--name"), "{code:?} {said}");
    assert_eq!(place.ask(&first, &["get-mutable"], &[]), "nameless");
    assert_eq!(delete(&["--name", ""]).0, Some(0));
    // An immutable value needs nothing but its id.
    let id = place.ask(&first, &["put"], b"immutable");
    for beside in [["--name", "foo"], ["--key", "/nonexistent/k"], ["--sequence", "7"], ["--ttl", "9"]] {
        let (code, said) = delete(&[&id, beside[0], beside[1]]);
        assert!(code == Some(2) && said.contains("cannot be used with"), "{beside:?} {code:?} {said}");
    }
    assert_eq!(delete(&[&id]).0, Some(0));
}

#[test]
fn a_mutable_value_that_is_too_long_is_refused_with_a_way_that_works() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    place.ask(&first, &["put-mutable", "--name", "long"], &[b'x'; 896]);
    let long = [b'x'; 897];
    let refused = place.dht(&first, &["put-mutable", "--name", "long"], &long).unwrap_err();
    assert!(refused.contains("at most 896 bytes, and this one has 897"), "{refused}");
    assert!(refused.contains("`tessera dht put`") && !refused.contains("chunks"), "{refused}");
    // As it says.
    let id = place.ask(&first, &["put"], &long);
    place.ask(&first, &["put-mutable", "--name", "long"], id.as_bytes());
    let id = place.ask(&first, &["get-mutable", "--name", "long"], &[]);
    assert_eq!(place.dht(&first, &["get", &id], &[]).unwrap(), long);
}

#[test]
fn a_lone_node_says_that_it_alone_keeps_a_value_and_one_whose_peers_are_gone_that_no_node_took_it() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let put = |value: &[u8]| {
        let output = run(place.tessera(&["dht", "--socket", &first.socket(), "put"]), value);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, alone) = put(b"before another node came");
    assert!(code == Some(0) && alone.starts_with("kept by this node alone: no other node answers it now"), "{alone}");
    let second = place.node(&["--lanes", "1", "--bootstrap", &first.address()]);
    place.until_knows(&first, 1);
    assert!(put(b"with another").1.starts_with("stored with the 1 node"));
    second.end(Signal::KILL);
    until("the other is missed", || place.json(&first, &["status"])["contacts"] == 0);
    let (code, left) = put(b"after it was killed");
    assert!(code == Some(2) && left.contains("no node took the record: no other node answered"), "{code:?} {left}");
    let id = left.split_once("keeps it as ").and_then(|(_, rest)| rest.split_whitespace().next()).expect("it is named");
    assert_eq!(place.dht(&first, &["get", id], &[]).unwrap(), b"after it was killed");
    place.ask(&first, &["delete", id], &[]);
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let place = Place::new();
    let config = place.path("node.toml");
    fs::write(&config, "network = \"of-the-file\"\nlanes = 3\nlog = \"json\"\n").unwrap();
    // A file that lies about is not read.
    let folder = place.path("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("tessera.toml"), "[node]\nlanes = 7\nnonsense = 1\n").unwrap();
    let others: Vec<Process> = (0..2).map(|_| place.node(&["--lanes", "1", "--network", "of-the-variable"])).collect();
    let with_variables = |args: &[&str]| {
        let mut node = place.tessera(args);
        node.current_dir(&folder).env("TESSERA_NODE_CONFIG", &config);
        node.env("TESSERA_NODE_LANES", "2").env("TESSERA_NODE_NETWORK", "of-the-variable");
        node.env("TESSERA_NODE_METRICS", "127.0.0.1:0").env("TESSERA_NODE_DATA", place.path("data"));
        node.env("TESSERA_NODE_BOOTSTRAP", format!("{},{}", others[0].address(), others[1].address()));
        node
    };
    let node = place.start(with_variables(&["node", "--lanes", "1"]));
    place.until_knows(&node, 2);
    let status = place.json(&node, &["status"]);
    assert_eq!((status["network"].as_str(), status["lanes_wanted"].as_u64()), (Some("of-the-variable"), Some(1)));
    assert!(node.metrics().starts_with("http://127.0.0.1:") && place.path("data").join("key").exists());
    assert!(fs::read_to_string(&node.log).unwrap().starts_with('{'), "the file says json");
    // They are of no account to commands that steer a node.
    let socket = node.socket();
    let top = run(with_variables(&["node", "top", "--once", "--every", "0.1", "--socket", &socket]), b"");
    assert!(top.status.success(), "{}", String::from_utf8_lossy(&top.stderr));
    let (code, said) = run_within(
        {
            let mut node = with_variables(&["node"]);
            node.env("TESSERA_NODE_LISTEN", "somewhere");
            node
        },
        PATIENCE,
    );
    assert!(code == Some(2) && said.contains("somewhere") && said.contains("--listen"), "{code:?} {said}");
    assert!(said.contains("it stands in the environment, as TESSERA_NODE_LISTEN"), "{said}");
}

#[test]
fn bad_environment_settings_for_starting_a_node_do_not_affect_commands_to_a_running_one() {
    let place = Place::new();
    let node = place.node(&["--lanes", "1"]);
    let socket = node.socket();
    for name in ["LISTEN", "BOOTSTRAP", "LANES", "DATA", "NETWORK", "METRICS", "PUBLIC_ADDR", "CONFIG", "LOG"] {
        for wrong in ["", "wrong"] {
            let steer = |args: &[&str]| {
                let mut steered = place.tessera(&[args, &["--socket", &socket]].concat());
                steered.env(format!("TESSERA_NODE_{name}"), wrong);
                succeeded(run(steered, b"")).unwrap();
            };
            steer(&["node", "set-lanes", "1"]);
            steer(&["dht", "status"]);
        }
    }
}

#[test]
fn settings_come_from_a_file_and_unknown_ones_are_refused() {
    let place = Place::new();
    let config = place.path("node.toml");
    fs::write(&config, "network = \"mine\"\nlanes = 3\nmetrics = \"127.0.0.1:0\"\nlog = \"json\"\n").unwrap();
    let node = place.node(&["--config", config.to_str().unwrap(), "--lanes", "1"]);
    let status = place.json(&node, &["status"]);
    assert_eq!((status["network"].as_str(), status["lanes_wanted"].as_u64()), (Some("mine"), Some(1)));
    assert!(node.greeting.last().unwrap().ends_with("--network mine"), "{:?}", node.greeting);
    let log = fs::read_to_string(&node.log).unwrap();
    let line: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(line["level"], "info");
    fs::write(&config, "lanes = 3\nlisten-on = \"127.0.0.1:0\"\n").unwrap();
    let refused = run(place.tessera(&["node", "--config", config.to_str().unwrap()]), b"");
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("line 2: there is no setting `listen-on`"), "{error}");
    assert_eq!(refused.status.code(), Some(2));
}

/// No log has a value, or a name of a node or value, its own or of others.
fn assert_names_no_node(log: &str, nodes: &[[String; 3]], of_values: &[&str]) {
    assert!(log.contains("stopping"), "it is a log: {log}");
    assert!(!log.contains("127.0.0.1"), "an address in {log}");
    // The usual short form of an id.
    let names = nodes.iter().flatten().map(|name| &name[..12]).chain(of_values.iter().copied());
    for name in names {
        assert!(!log.contains(name), "{name} in {log}");
    }
}

/// Its id, its key, and where it listens.
fn names_of(node: &Process) -> [String; 3] {
    [node.id(), node.address().split_once('@').unwrap().0.to_owned(), node.listen()]
}

#[test]
fn logs_have_neither_values_nor_keys_nor_ids_nor_addresses() {
    let place = Place::new();
    let first = place.node(&["--lanes", "2"]);
    let second = place.node(&["--lanes", "1", "--bootstrap", &first.address()]);
    place.until_knows(&first, 1);
    let id = place.ask(&second, &["put"], b"confidential");
    place.ask(&first, &["get", &id], &[]);
    let nodes = [names_of(&first), names_of(&second)];
    for process in [first, second] {
        let (_, log) = process.end(Signal::TERM);
        assert_names_no_node(&log, &nodes, &["confidential", &id[..12]]);
    }
}

#[test]
fn a_log_of_json_is_json_also_when_a_lane_panics() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let args = ["--lanes", "2", "--log", "json", "--test-hooks", "--bootstrap", &first.address()];
    let node = place.node(&args);
    place.until_knows(&node, 1);
    let id = place.ask(&node, &["put"], b"confidential");
    for lane in ["0", "1"] {
        let panic = place.tessera(&["node", "inject-panic", lane, "--socket", &node.socket()]);
        succeeded(run(panic, &[])).unwrap();
    }
    let log = || fs::read_to_string(&node.log).unwrap();
    until("both lanes were restarted", || log().matches("; restarts in ").count() == 2);
    let nodes = [names_of(&first), names_of(&node)];
    let (_, log) = node.end(Signal::TERM);
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?} in {log}")))
        .collect();
    for thread in ["lane-0", "lane-1"] {
        let is_it = |line: &&serde_json::Value| {
            line["event"].as_str().unwrap().starts_with(&format!("thread {thread} panicked at crates/"))
        };
        assert_eq!(lines.iter().filter(is_it).count(), 1, "one line for a panic: {log}");
    }
    assert_names_no_node(&log, &nodes, &["confidential", &id[..12]]);
}

#[test]
fn a_full_disk_stops_writes_for_others_and_nothing_else() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let data = place.path("data");
    // A limit on the size of files stands in for a full disk: writing fails in the middle of the log.
    let mut shell = std::process::Command::new("sh");
    let tessera = env!("CARGO_BIN_EXE_tessera");
    let (data, address) = (data.display(), first.address());
    shell
        .arg("-c")
        .arg(format!("trap '' XFSZ; ulimit -f 32; exec {tessera} node --lanes 1 --data {data} --bootstrap {address}"));
    let node = place.start(shell);
    place.until_knows(&first, 1);
    let mut refused = None;
    for n in 0..200 {
        let put = place.dht(&first, &["put", "--once"], format!("{n} {}", "x".repeat(800)).as_bytes());
        if let Err(error) = put {
            refused = Some(error);
            break;
        }
    }
    let refused = refused.expect("a node that cannot keep a record does not say that it does");
    assert!(refused.contains("no node took the record"), "{refused}");
    assert_eq!(place.json(&node, &["status"])["log_failed"], true);
    assert!(place.ask(&first, &["ping", &node.address()], &[]).starts_with("it is there"), "it serves what it can");
    assert!(place.ask(&node, &["status"], &[]).contains("cannot be written"));
    let log = fs::read_to_string(&node.log).unwrap();
    assert!(log.contains("log cannot be written"), "{log}");
    let (code, log) = node.end(Signal::TERM);
    assert!(log.contains("not all of its state is saved"), "{log}");
    assert_eq!(code, Some(2), "{log}");
}

#[test]
fn the_page_on_running_a_dht_holds_to_the_letter() {
    let page = include_str!("../../../docs/DHT.md");
    let section = page.split("## Run a DHT").nth(1).unwrap().split("\n## ").next().unwrap();
    let commands: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let [first, second, put, get, top] = commands[..] else { panic!("five commands: {commands:?}") };
    let place = Place::new();
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_tessera")).parent().unwrap();
    let shell = |line: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(line).env("TESSERA_RUNTIME_DIR", place.path("run"));
        shell.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
        shell
    };
    let first = place.start(shell(&format!("exec {first}")));
    // The page shows another machine's key and port: in their place stand those that were printed here.
    let shown = second.split_whitespace().find(|word| word.contains('@')).unwrap();
    let joining = second.replace(shown, &first.address());
    let second = place.start(shell(&format!("exec {}", joining.trim_end_matches('&'))));
    place.until_knows(&second, 1);
    // The output is as shown, except for the path of the socket.
    let shown = section.split(&format!("$ {put}\n")).nth(1).unwrap().split("\n$ ").next().unwrap();
    let stored = run(shell(put), b"");
    let id = String::from_utf8(stored.stdout).unwrap();
    let told =
        String::from_utf8(stored.stderr).unwrap().replace(&second.socket(), "/run/user/1000/tessera/node-SOCKET.sock");
    let folder =
        shown.find("/run/user/").map(|at| shown[at..].split(". ").next().unwrap()).expect("the page has a socket");
    assert_eq!(told + id.trim_end(), shown.replace(folder, "/run/user/1000/tessera/node-SOCKET.sock"));
    let asked = get.split_whitespace().find(|word| word.contains('@')).unwrap();
    let get = get.replace(asked, &first.address());
    let short = get.split_whitespace().find(|word| word.contains('…')).unwrap();
    let (begin, end) = short.split_once('…').unwrap();
    assert!(id.starts_with(begin) && id.trim_end().ends_with(end), "{short} is short for {id}");
    let got = run(shell(&get.replace(short, id.trim_end())), b"");
    assert_eq!(got.stdout, b"hello\n");
    let tree = String::from_utf8(got.stderr).unwrap();
    let is_asked = |line: &str| line.contains("─ ") && line.contains("  asked at ") && line.contains(" answered in ");
    assert!(tree.starts_with("found: ") && tree.lines().any(is_asked), "--explain says how it was found: {tree}");
    let page: Vec<&str> = section.lines().filter(|line| is_asked(line)).collect();
    assert_eq!(page.len(), 1, "and so does the page: {page:?}");
    let view = run(shell(&format!("{top} --once --every 0.1")), b"");
    assert!(String::from_utf8(view.stdout).unwrap().contains(" 1 contact "));
}

#[test]
fn a_malformed_argument_is_refused_with_the_form_that_is_expected() {
    let place = Place::new();
    let config = place.path("node.toml").display().to_string();
    fs::write(&config, "listen = \"localhost:4242\"").unwrap();
    let missing = place.path("missing.toml").display().to_string();
    let traces = place.path("traces.toml").display().to_string();
    fs::write(&traces, format!("trace-every = 1\ntrace-dir = {config:?}\n")).unwrap();
    for (args, words) in [
        (["--listen", "localhost:4242"], "expected IP:PORT, such as 127.0.0.1:4242"),
        (["--metrics", "4242"], "expected IP:PORT, such as 127.0.0.1:4242"),
        (["--config", &config], "line 1: `listen`: expected IP:PORT"),
        (["--config", &missing], "cannot read the settings "),
        (["--config", &traces], &format!("cannot make the folder for traces {config}")),
        (["--public-addr", "0.0.0.0:4242"], "nothing can be sent to 0.0.0.0:4242"),
        (["--public-addr", "203.0.113.7:0"], "nothing can be sent to 203.0.113.7:0"),
    ] {
        let (code, error) = run_within(place.tessera(&[&["node"], &args[..]].concat()), PATIENCE);
        assert!(code == Some(2) && error.contains(words), "{args:?}: {error}");
    }
    for (args, words) in [
        (["providers", "--limit", "0"], "0 is not in 1.."),
        (["get", "--privacy", "some"], "possible values: none, blind, relay"),
    ] {
        let id = "cd".repeat(32);
        let (code, error) = run_within(place.tessera(&[&["dht"], &args[..], &[&id]].concat()), PATIENCE);
        assert!(code == Some(2) && error.contains(words), "{args:?}: {error}");
    }
    let node = place.node(&["--lanes", "1"]);
    for secs in ["0", "172801"] {
        let error = place.dht(&node, &["put", "--ttl", secs], b"value").unwrap_err();
        assert!(error.contains(&format!("a lifetime of {secs} s is not within 1 s and 172800 s")), "{error}");
    }
}
