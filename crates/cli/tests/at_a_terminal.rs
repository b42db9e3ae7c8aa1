//! Views at a terminal: the live view of a node, the bar of a large value, and that of a scan.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod node_support;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use node_support::{PATIENCE, Place, ends_within, run, run_within, succeeded, until};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// A terminal of our own: we are the person in front of it.
struct Terminal {
    person: File,
    device: File,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn new(rows: u16, columns: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let person = openpt(flags).unwrap();
        grantpt(&person).unwrap();
        unlockpt(&person).unwrap();
        let device = File::from(ioctl_tiocgptpeer(&person, flags).unwrap());
        tcsetwinsize(&person, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let (person, shown) = (File::from(person), Arc::<Mutex<String>>::default());
        let (mut eyes, seen) = (person.try_clone().unwrap(), shown.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = eyes.read(&mut bytes) {
                seen.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { person, device, shown }
    }

    /// Runs a program here.
    fn run(&self, mut command: Command) -> Child {
        let device = || self.device.try_clone().unwrap();
        command.stdin(device()).stdout(device()).stderr(device()).spawn().unwrap()
    }

    fn press(&mut self, keys: &str) {
        self.person.write_all(keys.as_bytes()).unwrap();
    }

    fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    /// The screen now: the last whole frame, without the codes that draw it.
    fn screen(&self) -> Option<Vec<String>> {
        let shown = self.shown();
        let frame = shown.rsplit_once("\x1b[J")?.0.rsplit_once("\x1b[H")?.1.to_owned();
        Some(frame.replace("\x1b[K", "").split("\r\n").map(str::to_owned).collect())
    }

    /// The numbers in the row of a lane.
    fn row(&self, lane: usize) -> Option<Vec<u64>> {
        let is_it = |line: &String| line.split_whitespace().next() == Some(&lane.to_string());
        let line = self.screen()?.into_iter().find(is_it)?;
        line.split_whitespace().map(|number| number.parse().ok()).collect()
    }

    /// Whether keys are read one by one and not shown.
    fn reads_keys(&self) -> bool {
        !tcgetattr(&self.device).unwrap().local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }
}

#[test]
fn top_follows_a_node_on_a_terminal_and_leaves_the_terminal_as_it_was() {
    let place = Place::new();
    let node = place.node(&["--lanes", "2"]);
    let socket = node.socket();
    let mut terminal = Terminal::new(30, 120);
    let mut top = terminal.run(place.tessera(&["node", "top", "--every", "0.2", "--socket", &socket]));
    until("both lanes are on the screen", || terminal.row(0).is_some() && terminal.row(1).is_some());
    assert!(terminal.shown().starts_with("\x1b[?1049h\x1b[?25l"), "the second screen, without a cursor");
    assert!(terminal.reads_keys());
    let screen = terminal.screen().unwrap();
    assert!(screen[0].starts_with(&format!("node {}", &node.id()[..16])), "{screen:?}");
    assert!(screen[0].contains("NOT UP"), "it is alone, and says so: {screen:?}");
    // It follows: another node joins, a value is stored.
    let other = place.node(&["--lanes", "1", "--bootstrap", &node.address()]);
    place.until_knows(&other, 1);
    until("the contact is seen", || terminal.screen().is_some_and(|lines| lines[1].contains(" 1 contact ")));
    let held = |terminal: &Terminal| (0..2).filter_map(|lane| terminal.row(lane)).map(|row| row[10]).sum::<u64>();
    assert_eq!(held(&terminal), 0);
    let mut stored = 0;
    let mut moved = false;
    until("datagrams, records and stores are seen to move", || {
        place.ask(&other, &["put"], format!("value {stored}").as_bytes());
        stored += 1;
        let rows: Vec<_> = (0..2).filter_map(|lane| terminal.row(lane)).collect();
        moved |= rows.iter().any(|row| row[1] > 0 && row[2] > 0 && row[3] > 0 && row[5] > 0);
        moved && held(&terminal) > 0
    });
    // A key that means nothing changes nothing; `q` ends it.
    terminal.press("x");
    terminal.press("q");
    assert!(top.wait().unwrap().success());
    until("the first screen is back", || terminal.shown().ends_with("\x1b[?25h\x1b[?1049l"));
    assert!(!terminal.reads_keys());
    // So does a signal, and the end of the node.
    for ends_with_the_node in [false, true] {
        let terminal = Terminal::new(30, 120);
        let mut top = terminal.run(place.tessera(&["node", "top", "--every", "0.1", "--socket", &socket]));
        until("the view is there", || terminal.row(1).is_some());
        match ends_with_the_node {
            false => kill_process(Pid::from_child(&top), Signal::INT).unwrap(),
            true => node.signal(Signal::TERM),
        }
        assert_eq!(top.wait().unwrap().code(), Some(if ends_with_the_node { 2 } else { 0 }));
        // The message about the end comes after the screen, and a terminal may be read late.
        until("the first screen is back, and why it ended is said there", || {
            let shown = terminal.shown();
            let said =
                shown.split_once("\x1b[?25h\x1b[?1049l").map(|(_, said)| said.contains("error: the node went away"));
            said == Some(ends_with_the_node)
        });
        assert!(!terminal.reads_keys());
    }
}

#[test]
fn a_view_of_a_node_that_hangs_can_be_left_at_once() {
    let place = Place::new();
    let node = place.node(&["--lanes", "1"]);
    let socket = node.socket();
    for by_key in [true, false] {
        let mut terminal = Terminal::new(30, 120);
        let mut top = terminal.run(place.tessera(&["node", "top", "--every", "0.1", "--socket", &socket]));
        until("the view is there", || terminal.row(0).is_some());
        node.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(300)); // The view waits for an answer by now.
        match by_key {
            true => terminal.press("q"),
            false => kill_process(Pid::from_child(&top), Signal::INT).unwrap(),
        }
        // Before the node is given up, which is an error.
        assert_eq!(ends_within(&mut top, PATIENCE), Some(0), "by key: {by_key}");
        until("the first screen is back", || terminal.shown().ends_with("\x1b[?25h\x1b[?1049l"));
        assert!(!terminal.reads_keys());
        node.signal(Signal::CONT);
    }
}

#[test]
fn a_view_that_is_suspended_leaves_the_terminal_to_the_shell_and_comes_back() {
    let place = Place::new();
    let node = place.node(&["--lanes", "1"]);
    let mut terminal = Terminal::new(30, 120);
    // It comes back at once, and not only when it looks again.
    let mut top = terminal.run(place.tessera(&["node", "top", "--every", "3600", "--socket", &node.socket()]));
    until("the view is there", || terminal.row(0).is_some());
    let seen = terminal.screen();
    kill_process(Pid::from_child(&top), Signal::TSTP).unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{}/status", top.id())).unwrap();
    until("it is stopped", || state().lines().any(|line| line.starts_with("State:\tT")));
    until("the first screen is back", || terminal.shown().ends_with("\x1b[?25h\x1b[?1049l"));
    assert!(!terminal.reads_keys());
    kill_process(Pid::from_child(&top), Signal::CONT).unwrap();
    until("the view is there again", || {
        let shown = terminal.shown();
        shown.matches("\x1b[?1049h").count() == 2 && shown.ends_with("\x1b[J") && terminal.screen() == seen
    });
    assert!(terminal.reads_keys());
    terminal.press("q");
    assert_eq!(ends_within(&mut top, PATIENCE), Some(0));
}

#[test]
fn a_view_that_is_read_by_a_program_ends_by_a_signal_between_two_looks() {
    let place = Place::new();
    let node = place.node(&["--lanes", "1"]);
    for args in [&["--every", "3600"][..], &["--every", "3600", "--once"]] {
        let socket = node.socket();
        let mut all = vec!["node", "top", "--socket", &socket];
        all.extend(args);
        let mut top = place.tessera(&all).stdout(Stdio::piped()).spawn().unwrap();
        let catches =
            |signals: &str| u64::from_str_radix(signals.trim(), 16).unwrap() >> (Signal::INT.as_raw() - 1) & 1 == 1;
        until("it catches signals", || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", top.id())).unwrap();
            status.lines().find_map(|line| line.strip_prefix("SigCgt:")).is_some_and(catches)
        });
        kill_process(Pid::from_child(&top), Signal::INT).unwrap();
        assert_eq!(ends_within(&mut top, PATIENCE), Some(0), "{args:?}");
    }
    for refused in ["nan", "inf", "-1", "0"] {
        let top = place.tessera(&["node", "top", "--every", refused, "--socket", &node.socket()]);
        let (code, error) = run_within(top, PATIENCE);
        assert_eq!(code, Some(2), "{refused}: {error}");
        assert!(error.contains("expected a number of seconds"), "{refused}: {error}");
    }
}

#[test]
fn a_small_terminal_is_not_overrun() {
    let place = Place::new();
    let node = place.node(&["--lanes", "8"]);
    let mut terminal = Terminal::new(7, 40);
    let socket = node.socket();
    let mut top = terminal.run(place.tessera(&["node", "top", "--every", "0.1", "--socket", &socket]));
    until("two views were drawn", || terminal.shown().matches("\x1b[J").count() >= 2);
    let screen = terminal.screen().unwrap();
    assert_eq!(screen.len(), 7, "{screen:?}");
    assert!(screen.iter().all(|line| line.chars().count() <= 40), "{screen:?}");
    terminal.press("q");
    assert!(top.wait().unwrap().success());
}

#[test]
fn alarms_and_all_columns_are_seen_in_a_common_window_and_lanes_that_do_not_fit_are_counted() {
    let place = Place::new();
    let node = place.node(&["--lanes", "20", "--test-hooks"]);
    let socket = node.socket();
    let steer = &|args: &[&str]| {
        let command = [&["node"], args, &["--socket", &socket]].concat();
        succeeded(run(place.tessera(&command), &[])).unwrap();
    };
    // While some lanes hang, successors of others introduce themselves to them: these messages are lost with the lanes that hang.
    // All at once: a lane that hangs is given up after two seconds, and a busy machine takes long to start a program.
    std::thread::scope(|scope| {
        (1..=10).for_each(|lane: u8| drop(scope.spawn(move || steer(&["inject-stall", &lane.to_string(), "4000"]))));
    });
    std::thread::scope(|scope| {
        (11..=14).for_each(|lane: u8| drop(scope.spawn(move || steer(&["inject-panic", &lane.to_string()]))));
    });
    let count = |what: &str| place.json(&node, &["status"])[what].as_array().unwrap().len();
    until("the alarm stands, and all lanes are back", || count("alarms") > 0 && count("lanes") == 20);
    for (rows, columns) in [(24, 80), (15, 60)] {
        let mut terminal = Terminal::new(rows, columns);
        let mut top = terminal.run(place.tessera(&["node", "top", "--every", "0.1", "--socket", &socket]));
        until("a view was drawn", || terminal.screen().is_some());
        let screen = terminal.screen().unwrap();
        assert!(screen.len() <= usize::from(rows), "{screen:#?}");
        assert!(screen.iter().all(|line| line.chars().count() <= usize::from(columns)), "{screen:#?}");
        assert!(screen[2].starts_with("ALARM  "), "under the head: {screen:#?}");
        let names = screen.iter().find(|line| line.starts_with("lane ")).unwrap();
        assert_eq!(names.ends_with("recs provs starts"), columns == 80, "{screen:#?}");
        assert!(names.ends_with(if columns == 80 { " starts" } else { " peers" }), "whole columns: {screen:#?}");
        let lanes = screen.iter().filter(|line| line.split_whitespace().all(|word| word.parse::<u64>().is_ok()));
        let lanes = lanes.filter(|line| !line.is_empty()).count();
        let more = format!("… and {} more lanes", 20 - lanes);
        assert!(lanes > 3 && screen.contains(&more), "{more}: {screen:#?}");
        terminal.press("q");
        assert!(top.wait().unwrap().success());
    }
}

#[test]
fn a_large_value_travels_under_a_bar_that_is_gone_afterwards() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let node = place.node(&["--lanes", "1", "--bootstrap", &first.address()]);
    place.until_knows(&node, 1);
    let (large, back) = (place.path("large"), place.path("back"));
    let value: Vec<u8> = (0..1_500_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&large, &value).unwrap();
    let mut id = String::new();
    for (node, args) in
        [(&node, vec!["put", large.to_str().unwrap()]), (&first, vec!["get", "--output", back.to_str().unwrap()])]
    {
        // In a wide window and in a narrow one.
        let columns = if args[0] == "get" { 40 } else { 100 };
        let terminal = Terminal::new(24, columns);
        let socket = node.socket();
        let mut all = vec!["dht", "--socket", &socket];
        all.extend(&args);
        if args[0] == "get" {
            all.push(&id);
        }
        assert!(terminal.run(place.tessera(&all)).wait().unwrap().success(), "{}", terminal.shown());
        until("all of it is shown", || terminal.shown().ends_with('\n'));
        let shown = terminal.shown();
        let bars: Vec<&str> = shown.split("\r\x1b[K").filter(|line| line.contains(" %  ")).collect();
        assert!(!bars.is_empty(), "{shown:?}");
        assert!(bars.iter().all(|bar| bar.starts_with('[') == (columns == 100)), "{shown:?}");
        assert!(
            bars.iter().all(|bar| bar.chars().count() < usize::from(columns)),
            "a line that wraps is left: {shown:?}"
        );
        let last = shown.rsplit("\r\x1b[K").next().unwrap().trim().to_owned();
        assert!(!last.contains(" %  "), "and is gone: {shown:?}");
        if args[0] == "put" {
            id = last.lines().last().unwrap().trim().to_owned();
        }
    }
    assert!(std::fs::read(&back).unwrap() == value, "byte for byte");
}

#[test]
fn a_scan_draws_how_far_it_came_and_takes_it_away_before_it_reports() {
    let place = Place::new();
    let tree = tempfile::tempdir().unwrap();
    for file in 0..300 {
        std::fs::write(tree.path().join(format!("f{file:03}")), "nothing to see in this line\n".repeat(2_000)).unwrap();
    }
    // In a wide window and in a narrow one.
    for columns in [120, 40] {
        let terminal = Terminal::new(30, columns);
        let mut scan = terminal.run(place.tessera(&["scan", "--no-resume", tree.path().to_str().unwrap()]));
        assert!(scan.wait().unwrap().success());
        until("the report is there", || terminal.shown().contains("clean: everything was read"));
        let shown = terminal.shown();
        let (bar, report) = shown.split_once("receipt").unwrap();
        assert!(bar.contains(" files  ") && bar.contains("/s"), "{bar:?}");
        let mut drawn = bar.split("\r\x1b[K");
        assert!(drawn.all(|bar| bar.chars().count() < usize::from(columns)), "a line that wraps is left: {bar:?}");
        assert!(bar.trim_end_matches(|char: char| char != 'K').ends_with("\r\x1b[K"), "{bar:?}");
        assert!(!report.contains("\x1b[K"), "{report:?}");
    }
}
