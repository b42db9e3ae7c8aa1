//! `tessera-sim` as a user meets it: its output, its end and its exit codes.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::path::Path;
use std::process::{Command, Output};

use tessera_sim::sweep::broken::Defect;

fn sim(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tessera-sim")).arg("coordination").args(arguments.split(' ')).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn minutes_decide_when_it_ends_and_steps_do_not() {
    let timed = sim("--seed 4 --minutes 0 --steps 1000000000 --world-steps 200");
    assert_eq!(timed.status.code(), Some(0), "{timed:?}");
    assert!(out(&timed).contains("\n1 worlds, "), "{timed:?}");
    let counted = sim("--seed 4 --steps 8000 --world-steps 200");
    assert!(!out(&counted).contains("\n1 worlds, "), "{counted:?}");
}

#[test]
fn a_seed_is_printed_and_a_fresh_one_drawn_where_none_is_given() {
    let first_line = |arguments| out(&sim(arguments)).lines().next().unwrap().to_string();
    assert_eq!(first_line("--one --seed 77 --world-steps 10"), "coordination: seed 77, level stormy");
    assert_ne!(first_line("--one --world-steps 10"), first_line("--one --world-steps 10"));
}

#[test]
fn the_progress_line_tells_how_much_and_how_fast() {
    let shown = sim("--one --seed 1 --world-steps 200 --progress");
    let line = String::from_utf8(shown.stderr).unwrap();
    assert!(line.starts_with("\r1 worlds, ") && line.contains(" steps/s, ") && line.contains(" calls/s"), "{line:?}");
    assert!(sim("--one --seed 1 --world-steps 200").stderr.is_empty(), "not without a terminal");
}

#[test]
fn a_violation_ends_with_one_and_tells_the_command_that_shows_it_again() {
    let broken = sim("--seed 1 --rehearse --steps 50000000");
    let told = out(&broken);
    assert_eq!(broken.status.code(), Some(1), "{told}");
    assert!(told.contains("EffectsFenced is broken: "), "{told}");
    let again = told.lines().find_map(|line| line.split_once(" -- coordination ")).unwrap().1;
    let repeated = sim(again);
    assert_eq!(repeated.status.code(), Some(1), "{again}");
    assert!(out(&repeated).contains("EffectsFenced is broken: "), "{again}");
    let kept = sim(&again.replace(" --rehearse", ""));
    assert_eq!(kept.status.code(), Some(0), "with the rule in force the same world is fine");
}

#[test]
fn a_senseless_command_line_is_refused_with_exit_code_two() {
    for arguments in ["--level foggy", "--without nonsense", "--backend paper", "--minutes -1", "--seed x"] {
        let refused = sim(arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments}: {refused:?}");
        assert!(String::from_utf8(refused.stderr).unwrap().contains("error: "), "{arguments}");
    }
}

#[test]
fn a_network_too_small_for_its_scenario_is_refused_with_two() {
    for (nodes, told) in [("0", "at least 40"), ("1", "at least 40"), ("39", "at least 40"), ("many", "not a number")] {
        let arguments = ["dht", "--scenario", "churn", "--quiet", "--nodes", nodes];
        let refused = Command::new(env!("CARGO_BIN_EXE_tessera-sim")).args(arguments).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{nodes}: {refused:?}");
        assert!(String::from_utf8(refused.stderr).unwrap().contains(told), "{nodes}");
    }
}

fn dht(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tessera-sim")).arg("dht").args(arguments.split(' ')).output().unwrap()
}

#[test]
fn an_aim_that_is_missed_ends_with_one_and_tells_the_command_that_shows_it_again() {
    let missed = dht("--nodes 40 --scenario steady --seed 3 --loss 0.9 --quiet");
    let told = out(&missed);
    assert_eq!(missed.status.code(), Some(1), "{told}");
    assert!(told.contains("| **missed** |"), "{told}");
    let again = told.lines().find_map(|line| line.split_once(" -- dht ")).unwrap().1;
    assert_eq!(again, "--nodes 40 --scenario steady --seed 3 --loss 0.9");
    let repeated = dht(again);
    assert_eq!(repeated.status.code(), Some(1));
    let figures =
        |told: &str| told.lines().filter(|line| !line.contains("| datagrams |")).collect::<Vec<_>>().join("\n");
    assert_eq!(figures(&out(&repeated)), figures(&told), "a run is a function of its arguments");
    assert!(String::from_utf8(repeated.stderr).unwrap().contains("] settled"), "and tells how far it is");
}

fn sweep(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tessera-sim")).arg("sweep").args(arguments.split(' ')).output().unwrap()
}

#[test]
fn every_defect_of_the_sweep_ends_with_one_and_tells_the_command_that_shows_it_again() {
    for defect in Defect::ALL {
        let chosen = format!(" --defect {}", defect.name());
        let broken = sweep(&format!("--seed 1 --seconds 60{chosen}"));
        let told = out(&broken);
        assert_eq!(broken.status.code(), Some(1), "{defect:?}: {told}");
        let is_told = |told: &str| told.contains(&format!("\n{} is broken: ", defect.caught_by()));
        assert!(is_told(&told), "{defect:?}: {told}");
        let again = told.lines().find_map(|line| line.split_once(" -- sweep ")).unwrap().1;
        let repeated = sweep(again);
        assert_eq!(repeated.status.code(), Some(1), "{again}");
        assert!(is_told(&out(&repeated)), "{again}");
        let mended = sweep(&again.replace(&chosen, ""));
        assert_eq!(mended.status.code(), Some(0), "with the rule in force the same world is fine: {again}");
    }
}

#[test]
fn commands_that_the_document_names_show_their_defects() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/MUTANTS.md");
    let document = std::fs::read_to_string(path).unwrap();
    let commands: Vec<&str> = document.lines().filter_map(|line| line.strip_prefix("tessera-sim sweep ")).collect();
    assert_eq!(commands.len(), 4, "{commands:?}");
    for (command, defect) in commands.into_iter().zip(Defect::ALL) {
        assert!(command.contains(&format!("--defect {}", defect.name())), "{command}");
        let broken = sweep(command);
        assert_eq!(broken.status.code(), Some(1), "{command}");
        assert!(out(&broken).contains(&format!("{} is broken: ", defect.caught_by())), "{command}");
    }
}

#[test]
fn a_sweep_below_the_demanded_rate_or_with_senseless_options_is_no_success() {
    let calm = "--one --seed 1 --small --world-steps 0";
    assert_eq!(sweep(calm).status.code(), Some(0));
    let slow = sweep(&format!("{calm} --rate-min 1e15"));
    assert_eq!(slow.status.code(), Some(1));
    assert!(out(&slow).contains("too slow: "), "{slow:?}");
    assert_eq!(sweep(&format!("{calm} --at 17:split")).status.code(), Some(0));
    for arguments in ["--without nonsense", "--defect nonsense", "--seed x", "--at 17", "--at x:split", "--at 1:x"] {
        assert_eq!(sweep(arguments).status.code(), Some(2), "{arguments}");
    }
}

#[test]
fn aims_that_are_met_end_with_zero() {
    let met = dht("--nodes 40 --scenario steady --seed 3 --quiet");
    assert_eq!(met.status.code(), Some(0), "{met:?}");
    assert!(met.stderr.is_empty());
    assert_eq!(dht("--loss 2").status.code(), Some(2));
}
