//! The etcd backend over the simulated store answers as the in-memory coordinator does, also while requests and answers are lost.

use proptest::prelude::*;
use tessera_coordination_etcd::sim_kv::faults::FaultRates;
use tessera_coordination_etcd::sim_kv::{self, SimKv};
use tessera_coordination_etcd::{EtcdConfig, sync};

use crate::script::{Command, Side, cases, check, command, config, memory, same_records};

/// Under faults a caller gets a transient error now and then, and does what it is told to: tries again with the same
/// operation id. Whatever was lost on the way, the operation must then have happened once, with the answer it would have had.
fn check_under_faults(script: &[Command], seed: u64) -> Result<(), TestCaseError> {
    let kv = SimKv::new(seed);
    let lasting = EtcdConfig { session_ttl: std::time::Duration::from_secs(3_600), ..config() };
    let mut memory = Side::new(memory(), 100_000);
    let mut etcd = Side::new(sync::simulate(kv.clone(), lasting).expect("valid"), 100_000);
    for (index, command) in script.iter().enumerate() {
        kv.set_fault_rates(FaultRates { lease_lost_ppm: 0, ..FaultRates::STORMY });
        let expected = memory.run(command);
        let mut answered = etcd.run(command);
        let mut again = false;
        while answered.contains("Transient") {
            // Neither has an operation id: whether the lost attempt happened cannot be told from outside.
            if matches!(command, Command::Acquire { .. } | Command::Retire | Command::Create { .. }) {
                return Ok(());
            }
            again = true;
            answered = etcd.run(command);
        }
        let same = if again { once(&answered) == once(&expected) } else { answered == expected };
        prop_assert!(same, "step {index} {command:?}, seed {seed}\netcd   {answered}\nmemory {expected}");
        kv.set_fault_rates(FaultRates::NONE);
        sim_kv::block_on(etcd.backend.backend.heartbeat());
    }
    // Whatever is still on its way arrives now, and must not change anything any more.
    kv.advance(std::time::Duration::from_secs(30));
    sim_kv::block_on(etcd.backend.backend.heartbeat());
    same_records(&mut memory, &mut etcd)
}

/// An answer without what a repeated call may tell differently: that it was a repeat, and what observers heard before.
fn once(answer: &str) -> String {
    let answer = answer.replace("Replayed", "Executed");
    answer.split(" [").next().unwrap_or_default().to_owned()
}

#[test]
fn random_operations_get_the_same_answers_from_simulated_etcd_and_from_memory() {
    proptest!(cases(800), |(script in prop::collection::vec(command(), 1..120))| {
        let kv = SimKv::new(1);
        let over = || sync::simulate(kv.clone(), config()).expect("valid");
        check(&script, over(), over())?;
    });
}

#[test]
fn lost_requests_lost_answers_and_late_arrivals_change_no_answer_and_no_record() {
    proptest!(cases(500), |(script in prop::collection::vec(command(), 1..80), seed: u64)| {
        check_under_faults(&script, seed)?;
    });
}
