//! Any text is an id or an error; an id writes itself so that it reads back the same.

#![no_main]

use std::fmt::Display;
use std::str::FromStr;

use libfuzzer_sys::fuzz_target;
use tessera_contracts::{
    ContentId, FenceEpoch, LogicalTime, NodeId, OpId, RunId, RunIncarnation, ShardId, TenantId, WorkerId,
};

fuzz_target!(|text: &str| {
    reads_back::<TenantId>(text);
    reads_back::<RunId>(text);
    reads_back::<RunIncarnation>(text);
    reads_back::<ShardId>(text);
    reads_back::<WorkerId>(text);
    reads_back::<OpId>(text);
    reads_back::<FenceEpoch>(text);
    reads_back::<LogicalTime>(text);
    reads_back::<NodeId>(text);
    reads_back::<ContentId>(text);
});

fn reads_back<T: FromStr<Err: Display> + Display + PartialEq>(text: &str) {
    match text.parse::<T>() {
        Ok(id) => assert!(id.to_string().parse::<T>().is_ok_and(|again| again == id), "{text} does not read back"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
