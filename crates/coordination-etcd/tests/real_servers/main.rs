//! The backend on real etcd servers, one and three. One program: most of what each file would take by itself is linking.

mod chaos;
mod cluster;
mod conformance;
mod differential;
#[path = "../shared/history.rs"]
mod history;
mod lockstep;
#[path = "../shared/roots.rs"]
mod roots;
#[path = "../shared/script.rs"]
mod script;
mod sizing;
mod splits;
#[path = "../shared/suite.rs"]
mod suite;
