//! `tessera node` and `tessera dht` as people run them: real processes on loopback, killed and restarted.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod node_support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use node_support::{PATIENCE, Place, Process, exists, run, run_within, succeeded, until};
use rustix::process::Signal;
use test_support::skipped;

#[test]
fn a_node_without_flags_prints_the_exact_command_that_joins_it() {
    let place = Place::new();
    let first = place.node(&[]);
    let command = first.greeting.last().unwrap().trim();
    assert!(command.starts_with("tessera node --bootstrap "), "{command}");
    // As a shell would run it, with the program found by its name.
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_tessera")).parent().unwrap();
    let mut shell = std::process::Command::new("sh");
    shell.arg("-c").arg(format!("exec {command}"));
    shell.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    let second = place.start(shell);
    place.until_knows(&second, 1);
    let id = place.ask(&first, &["put"], b"hello");
    assert_eq!(place.ask(&second, &["get", &id], &[]), "hello");
}

#[test]
fn signals_end_a_node_cleanly_and_its_peers_are_told() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let place = Place::new();
        let first = place.node(&["--lanes", "1"]);
        let second = place.node(&["--lanes", "2", "--bootstrap", &first.address()]);
        place.until_knows(&first, 1);
        let socket = second.socket();
        assert!(exists(&socket));
        let (code, log) = second.end(signal);
        assert_eq!(code, Some(0));
        assert!(log.contains("stopping") && log.trim_end().ends_with("stopped"), "{log}");
        assert!(!exists(&socket), "the socket is gone");
        until("the other dropped it", || place.json(&first, &["status"])["contacts"] == 0);
        let timeouts = &place.json(&first, &["status"])["lanes"][0]["counters"]["request_timeouts"];
        assert_eq!(timeouts, 0, "and did not find out by waiting");
    }
}

#[test]
fn a_node_started_to_outlive_its_terminal_outlives_it() {
    let place = Place::new();
    let mut shell = std::process::Command::new("sh");
    shell.arg("-c").arg(format!("trap '' HUP; exec {} node --lanes 1", env!("CARGO_BIN_EXE_tessera")));
    let mut node = place.start(shell);
    node.signal(Signal::HUP);
    // Signals are seen within a tenth of a second; a node that stops is gone soon after.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(node.is_running());
    assert_eq!(node.end(Signal::TERM).0, Some(0));
}

#[test]
fn a_socket_is_for_its_owner_and_a_folder_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;

    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let place = Place::new();
    let node = place.node(&["--lanes", "1"]);
    assert_eq!(mode(node.socket().as_ref()), 0o600);
    let folder = place.path("run");
    assert_eq!(mode(&folder), 0o700, "the folder was made for it");
    drop(node);
    for writable in [0o702, 0o720, 0o777] {
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(writable)).unwrap();
        refuses_its_folder_of_sockets(&place, "can be written by others");
    }
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    drop(place.node(&["--lanes", "1"]));
}

#[test]
fn a_folder_of_sockets_that_cannot_be_used_is_told_with_a_way_out() {
    let place = Place::new();
    std::fs::write(place.path("file"), "").unwrap();
    for (folder, advice) in [
        (place.path(&"long".repeat(30)), "set TESSERA_RUNTIME_DIR to a folder with a shorter path"),
        (place.path("file/run"), "set TESSERA_RUNTIME_DIR to a folder that this user may write"),
    ] {
        let mut node = place.tessera(&["node", "--lanes", "1"]);
        node.env("TESSERA_RUNTIME_DIR", folder);
        let (code, error) = run_within(node, PATIENCE);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains(advice), "{error}");
    }
}

#[test]
fn a_folder_of_sockets_that_belongs_to_another_user_is_refused() {
    let place = Place::new();
    drop(place.node(&["--lanes", "1"]));
    match std::os::unix::fs::chown(place.path("run"), Some(54321), None) {
        Ok(()) => refuses_its_folder_of_sockets(&place, "belongs to another user (uid 54321)"),
        Err(error) => skipped(&format!("it needs root, to give a folder to another user: {error}")),
    }
}

fn refuses_its_folder_of_sockets(place: &Place, why: &str) {
    let (code, error) = run_within(place.tessera(&["node", "--lanes", "1"]), PATIENCE);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains(why) && error.contains("TESSERA_RUNTIME_DIR"), "{error}");
}

#[test]
fn the_sockets_of_killed_nodes_are_removed_by_the_next_node_and_no_others_are() {
    let place = Place::new();
    let (killed, young, living) =
        (place.node(&["--lanes", "1"]), place.node(&["--lanes", "1"]), place.node(&["--lanes", "1"]));
    let [dead, fresh, served] = [&killed, &young, &living].map(Process::socket);
    // A socket with a listener that takes no connection for now.
    let hung = place.path("run/node-hung.sock").display().to_string();
    let _listener = std::os::unix::net::UnixListener::bind(&hung).unwrap();
    let (other, file) = (place.path("run/other.sock").display().to_string(), place.path("run/node-file.sock"));
    drop(std::os::unix::net::UnixListener::bind(&other).unwrap());
    std::fs::write(&file, "no socket").unwrap();
    let file = file.display().to_string();
    for node in [killed, young] {
        node.end(Signal::KILL);
    }
    let old = [&dead, &served, &hung, &other, &file];
    let aged = std::process::Command::new("touch").args(["-d", "2 minutes ago"]).args(old).status().unwrap();
    assert!(aged.success());
    drop(place.node(&["--lanes", "1"]));
    assert!(!exists(&dead), "no process listens on it");
    assert!(exists(&fresh), "its node may be about to listen");
    assert!(exists(&served) && exists(&hung) && exists(&other), "these are not its to remove");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "no socket");
    assert!(!place.ask(&living, &["status"], &[]).is_empty());
}

#[test]
fn a_node_without_an_address_says_so_in_place_of_a_command_that_cannot_work() {
    let place = Place::new();
    // A network namespace of its own, in which nothing leads anywhere.
    let alone = |args: &[&str]| {
        let mut alone = std::process::Command::new("unshare");
        alone.args(["--user", "--map-root-user", "--net", env!("CARGO_BIN_EXE_tessera"), "node", "--lanes", "1"]);
        alone.args(args);
        alone
    };
    let can = std::process::Command::new("unshare").args(["--user", "--map-root-user", "--net", "true"]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        return skipped("it needs a network namespace that it may make for itself");
    }
    let lost = place.start(alone(&["--listen", "0.0.0.0:4242"]));
    let said = lost.greeting.join("\n");
    assert!(said.contains("no address of this machine was found") && said.contains("--public-addr"), "{said}");
    assert!(lost.address().ends_with("@ADDRESS:4242") && !said.contains("@0.0.0.0"), "{said}");
    let told = place.start(alone(&["--listen", "0.0.0.0:4242", "--public-addr", "203.0.113.7:4242"]));
    assert!(told.address().ends_with("@203.0.113.7:4242"), "{:?}", told.greeting);
}

#[test]
fn a_data_folder_that_is_read_only_is_refused_in_words() {
    let place = Place::new();
    let folder = place.path("disk");
    std::fs::create_dir(&folder).unwrap();
    // A disk of its own, once writable and then not: permissions would not keep an administrator out.
    let script = format!(
        "mount -t tmpfs none {disk} && mkdir {disk}/data && mount -o remount,ro {disk} || exit 77
         exec {tessera} node --lanes 1 --data {disk}/data",
        disk = folder.display(),
        tessera = env!("CARGO_BIN_EXE_tessera"),
    );
    let mut alone = std::process::Command::new("unshare");
    alone.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    let (code, said) = run_within(alone, PATIENCE);
    if matches!(code, Some(1 | 77 | 127)) {
        return skipped(&format!("it needs a disk that it may mount for itself: {said}"));
    }
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("Read-only file system") && said.contains("this user may write"), "{said}");
    assert!(said.contains(folder.to_str().unwrap()), "{said}");
}

#[test]
fn a_node_killed_at_any_time_restarts_with_its_state_and_another_number_of_lanes() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let data = place.path("data").display().to_string();
    let victim = place.node(&["--lanes", "2", "--data", &data, "--bootstrap", &first.address()]);
    place.until_knows(&first, 1);
    let identity = victim.id();
    let ids: Vec<String> = (0..12).map(|n| place.ask(&first, &["put"], format!("survives {n}").as_bytes())).collect();
    let film = "ab".repeat(32);
    place.ask(&victim, &["announce", &film], &[]);
    let (code, _) = victim.end(Signal::KILL);
    assert_eq!(code, None, "it had no chance to save anything");
    // The other is gone too: every value found now was in the victim's folder.
    drop(first);
    let again = place.node(&["--lanes", "3", "--data", &data]);
    assert_eq!(again.id(), identity);
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(place.ask(&again, &["get", id], &[]), format!("survives {n}"));
    }
    let status = place.json(&again, &["status"]);
    let published: u64 =
        status["lanes"].as_array().unwrap().iter().map(|lane| lane["held"]["published"]["now"].as_u64().unwrap()).sum();
    assert_eq!(published, 1, "what it announced it announces again");
}

#[test]
fn thirty_two_processes_put_get_and_announce_through_kills() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let address = first.address();
    let start =
        |n: usize| place.node(&["--lanes", if n.is_multiple_of(8) { "2" } else { "1" }, "--bootstrap", &address]);
    let mut nodes: Vec<Process> = std::thread::scope(|scope| {
        let starting: Vec<_> = (1..32).map(|n| scope.spawn(move || start(n))).collect();
        starting.into_iter().map(|node| node.join().unwrap()).collect()
    });
    nodes.insert(0, first);
    assert_eq!(nodes.iter().map(Process::id).collect::<BTreeSet<_>>().len(), 32);
    for node in &nodes {
        place.until_knows(node, 20);
    }
    let stored = place.json_of(&nodes[3], &["put"], b"from one of many");
    assert!(stored["replicas"].as_u64().unwrap() >= 15, "{stored}");
    let id = stored["id"].as_str().unwrap();
    let film = "ab".repeat(32);
    place.ask(&nodes[7], &["announce", &film], &[]);
    place.ask(&nodes[20], &["announce", &film], &[]);
    // Any of them may die, also the seed.
    for at in [30, 12, 0] {
        assert_eq!(nodes.remove(at).end(Signal::KILL).0, None);
    }
    for node in &nodes {
        assert_eq!(place.ask(node, &["get", id], &[]), "from one of many");
    }
    for node in nodes.iter().step_by(7) {
        until("both providers are found", || {
            let found = place.dht(node, &["--json", "providers", &film], &[]).unwrap_or_default();
            let found: serde_json::Value = serde_json::from_slice(&found).unwrap_or_default();
            found["providers"].as_array().is_some_and(|providers| providers.len() == 2)
        });
    }
}

#[test]
fn lanes_change_from_one_to_four_to_three_while_values_are_put_and_got() {
    /// So many requests come from each, however long they take.
    const REQUESTS_MIN: usize = 6;

    /// Puts until told to end: the ids stored, and the failures.
    fn put(place: &Place, node: &Process, name: &str, end: &AtomicBool) -> (Vec<(String, String)>, Vec<String>) {
        let (mut stored, mut failed) = (Vec::new(), Vec::new());
        while !end.load(Ordering::Relaxed) || stored.len() + failed.len() < REQUESTS_MIN {
            let value = format!("{name} {}", stored.len() + failed.len());
            match place.dht(node, &["put"], value.as_bytes()) {
                Ok(id) => stored.push((String::from_utf8(id).unwrap().trim_end().to_owned(), value)),
                Err(error) => failed.push(error),
            }
        }
        (stored, failed)
    }

    /// Gets until told to end: how often, and the failures.
    fn get(place: &Place, node: &Process, known: &[(String, String)], end: &AtomicBool) -> (usize, Vec<String>) {
        let (mut count, mut failed) = (0, Vec::new());
        while !end.load(Ordering::Relaxed) || count < REQUESTS_MIN {
            let (id, value) = &known[count % known.len()];
            match place.dht(node, &["get", id], &[]) {
                Ok(got) => assert_eq!(got, value.as_bytes()),
                Err(error) => failed.push(error),
            }
            count += 1;
        }
        (count, failed)
    }

    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let data = place.path("data").display().to_string();
    let node = place.node(&["--lanes", "1", "--data", &data, "--bootstrap", &first.address()]);
    let third = place.node(&["--lanes", "2", "--bootstrap", &first.address()]);
    for node in [&first, &node, &third] {
        place.until_knows(node, 2);
    }
    let before: Vec<(String, String)> = (0..20)
        .map(|n| format!("before {n}"))
        .map(|value| (place.ask(&first, &["put"], value.as_bytes()), value))
        .collect();
    let end = AtomicBool::new(false);
    let (puts, gets) = std::thread::scope(|scope| {
        let puts = [(&node, "here"), (&first, "there")].map(|(at, name)| scope.spawn(|| put(&place, at, name, &end)));
        let gets = [&node, &third].map(|at| scope.spawn(|| get(&place, at, &before, &end)));
        for lanes in ["4", "3", "1", "4", "3"] {
            std::thread::sleep(std::time::Duration::from_millis(400));
            let steer = place.tessera(&["node", "set-lanes", lanes, "--socket", &node.socket()]);
            succeeded(run(steer, &[])).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(400));
        end.store(true, Ordering::Relaxed);
        (puts.map(|put| put.join().unwrap()), gets.map(|get| get.join().unwrap()))
    });
    assert_eq!(place.json(&node, &["status"])["lanes_wanted"], 3);
    for (count, failed) in &gets {
        assert!(failed.is_empty(), "of {count} lookups failed: {failed:?}");
    }
    for (stored, failed) in &puts {
        assert!(failed.is_empty(), "of {} puts failed: {failed:?}", stored.len());
    }
    // Every value called stored is there, and the node that changed has its part without the others.
    drop((first, third));
    for (id, value) in before.iter().chain(puts.iter().flat_map(|(stored, _)| stored)) {
        assert_eq!(place.ask(&node, &["get", id], &[]), *value);
    }
}

#[test]
fn lanes_are_changed_and_outlive_a_panic_in_a_running_process() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let data = place.path("data").display().to_string();
    let args = ["--lanes", "1", "--data", &data, "--test-hooks", "--bootstrap", &first.address()];
    let mut node = place.node(&args);
    place.until_knows(&first, 1);
    let ids: Vec<String> = (0..10).map(|n| place.ask(&first, &["put"], format!("value {n}").as_bytes())).collect();
    let steer = |args: &[&str]| {
        let socket = node.socket();
        let mut all = vec!["node"];
        all.extend(args);
        all.extend(["--socket", &socket]);
        succeeded(run(place.tessera(&all), &[]))
    };
    for lanes in ["4", "3"] {
        steer(&["set-lanes", lanes]).unwrap();
        steer(&["inject-panic", "1"]).unwrap();
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(place.ask(&node, &["get", id], &[]), format!("value {n}"));
        }
    }
    assert!(steer(&["relieve", "0", "0"]).unwrap_err().contains("lane 0 cannot help itself"));
    steer(&["relieve", "0", "2"]).unwrap();
    steer(&["merge-back"]).unwrap();
    assert!(steer(&["set-lanes", "0"]).unwrap_err().contains("lanes"));
    let top = String::from_utf8(steer(&["top", "--once", "--every", "0.1"]).unwrap()).unwrap();
    assert_eq!(top.lines().filter(|line| line.starts_with("   ")).count(), 3, "a row for each lane: {top}");
    assert!(node.is_running());
    assert!(
        place.tessera(&["node", "inject-panic", "0", "--socket", &first.socket()]).output().unwrap().status.code()
            == Some(2)
    );
}

#[test]
fn peers_that_hang_delay_a_lookup_but_do_not_fail_it() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let others: Vec<_> = (0..4).map(|_| place.node(&["--lanes", "1", "--bootstrap", &first.address()])).collect();
    for other in &others {
        place.until_knows(other, 4);
    }
    let id = place.ask(&others[0], &["put"], b"still there");
    others[1].signal(Signal::STOP);
    others[2].signal(Signal::STOP);
    let other = place.ask(&others[0], &["put"], b"stored despite them");
    for id in [&id, &other] {
        assert!(place.dht(&others[3], &["get", id], &[]).is_ok());
    }
}
