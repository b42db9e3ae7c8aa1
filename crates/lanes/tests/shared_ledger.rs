//! All that `runtime_ledger` shows, of lanes that share threads.

#[path = "runtime_ledger.rs"]
mod ledger;
