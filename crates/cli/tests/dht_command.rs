//! What `tessera dht` prints, refuses and returns, over a socket and as a short-lived client.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod node_support;

use std::fs;

use node_support::{Place, run, succeeded, until};
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
    let key = place.path("key").display().to_string();
    let written = client(&["put-mutable", "--name", "mine", "--key", &key], b"by file").unwrap();
    let owner = written.split_whitespace().nth(1).unwrap().to_owned();
    assert_eq!(place.ask(&node, &["get-mutable", &owner, "--name", "mine"], &[]), "by file");
    client(&["delete", "--name", "mine", "--key", &key], &[]).unwrap();
    assert!(place.dht(&node, &["get-mutable", &owner, "--name", "mine"], &[]).unwrap_err().contains("deleted"));
    place.ask(&node, &["delete", &id], &[]);
    // Providers.
    let film = "cd".repeat(32);
    place.ask(&node, &["announce", &film], &[]);
    until("the provider is found", || {
        client(&["providers", &film], &[]).is_ok_and(|found| found.contains(&node.listen()))
    });
    place.ask(&node, &["announce", &film, "--stop"], &[]);
    // Looking around.
    assert!(client(&["find-node", &node.id()], &[]).unwrap().starts_with(&node.id()));
    assert!(client(&["ping", &node.address()], &[]).unwrap().starts_with("it is there"));
    assert!(place.ask(&first, &["peers"], &[]).contains(&node.id()));
    assert!(place.ask(&node, &["status"], &[]).contains("contacts   1"));
    // What a client cannot do is refused in words.
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
    assert!(tree.starts_with("found: 1 requests, 1 answers"), "{tree}");
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
    assert!(lines[0].ends_with(" ms") && lines[0].contains("1 requests, 1 answers"), "{tree}");
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

#[test]
fn logs_have_neither_values_nor_keys_nor_addresses_of_others() {
    let place = Place::new();
    let first = place.node(&["--lanes", "2"]);
    let second = place.node(&["--lanes", "1", "--bootstrap", &first.address()]);
    place.until_knows(&first, 1);
    let id = place.ask(&second, &["put"], b"confidential");
    place.ask(&first, &["get", &id], &[]);
    let (addresses, keys) = ([first.listen(), second.listen()], [first.address(), second.address()]);
    for process in [first, second] {
        let (_, log) = process.end(Signal::TERM);
        assert!(log.contains("up, live contacts: 1") || log.contains("not up"), "{log}");
        for secret in addresses.iter().chain(keys.iter()).map(String::as_str).chain(["confidential", &id]) {
            assert!(!log.contains(secret), "{secret} in {log}");
        }
    }
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
    assert!(refused.contains("nobody took the record"), "{refused}");
    assert_eq!(place.json(&node, &["status"])["log_failed"], true);
    assert!(place.ask(&first, &["ping", &node.address()], &[]).starts_with("it is there"), "it serves what it can");
    assert!(place.ask(&node, &["status"], &[]).contains("cannot be written"));
    let log = fs::read_to_string(&node.log).unwrap();
    assert!(log.contains("log cannot be written"), "{log}");
}

#[test]
fn the_readme_section_on_running_a_dht_holds_to_the_letter() {
    let readme = include_str!("../../../README.md");
    let section = readme.split("## Run a DHT").nth(1).unwrap().split("\n## ").next().unwrap();
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
    // The page shows another machine's key, port and id: in their place stand those that were printed here.
    let shown = second.split_whitespace().find(|word| word.contains('@')).unwrap();
    let joining = second.replace(shown, &first.address());
    let second = place.start(shell(&format!("exec {}", joining.trim_end_matches('&'))));
    place.until_knows(&second, 1);
    let id = String::from_utf8(succeeded(run(shell(put), b"")).unwrap()).unwrap();
    let asked = get.split_whitespace().find(|word| word.contains('@')).unwrap();
    let get = get.replace(asked, &first.address());
    let shown = get.split_whitespace().find(|word| word.contains('…')).unwrap();
    let got = run(shell(&get.replace(shown, id.trim_end())), b"");
    assert_eq!(got.stdout, b"hello\n");
    let tree = String::from_utf8(got.stderr).unwrap();
    let is_asked = |line: &str| line.contains("─ ") && line.contains("  asked at ") && line.contains(" answered in ");
    assert!(tree.starts_with("found: ") && tree.lines().any(is_asked), "--explain says how it was found: {tree}");
    let page: Vec<&str> = section.lines().filter(|line| is_asked(line)).collect();
    assert_eq!(page.len(), 1, "and so does the page: {page:?}");
    let view = run(shell(&format!("{top} --once --every 0.1")), b"");
    assert!(String::from_utf8(view.stdout).unwrap().contains("contacts"));
}
