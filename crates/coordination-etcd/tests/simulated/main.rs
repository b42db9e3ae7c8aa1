//! The backend over the simulated store. One program: most of what each file would take by itself is linking.

mod backend;
mod claims;
mod conformance;
mod families;
mod fixtures;
mod helpers;
#[path = "../shared/history.rs"]
mod history;
mod in_doubt;
mod incarnations;
mod late_renewal;
mod layouts;
mod linearizability;
mod lockstep;
mod lost_races;
mod planted;
mod progress;
#[path = "../shared/roots.rs"]
mod roots;
#[path = "../shared/script.rs"]
mod script;
mod splits_together;
mod staged_splits;
mod standings;
#[path = "../shared/suite.rs"]
mod suite;
mod taken_names;
mod unreachable;
