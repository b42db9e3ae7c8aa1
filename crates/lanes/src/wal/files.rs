//! The files of logs: their names, and whose they are.

use std::collections::BTreeMap;
use std::io;

use tessera_contracts::prefix_map::LaneIndex;

use crate::wal::storage::Storage;

/// The lanes that have files in `storage`: more than there are lanes now, if there once were more.
pub fn lanes_with_files(storage: &impl Storage) -> io::Result<Vec<LaneIndex>> {
    let mut lanes: Vec<LaneIndex> =
        storage.list()?.iter().filter_map(|name| parse_name(name)).map(|(lane, ..)| lane).collect();
    lanes.sort_unstable();
    lanes.dedup();
    Ok(lanes)
}

/// Removes every file of `lane`: its records are safe elsewhere.
pub fn remove_lane(storage: &impl Storage, lane: LaneIndex) -> io::Result<()> {
    for name in storage.list()? {
        if parse_name(&name).is_some_and(|(of, ..)| of == lane) {
            storage.remove(&name)?;
        }
    }
    storage.sync_directory()
}

/// Keeps a file that cannot be used, where nothing looks for it.
pub(super) fn set_aside(storage: &impl Storage, name: &str) -> io::Result<()> {
    storage.rename(name, &format!("{name}.damaged"))
}

/// The files of one lane, by generation.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) logs: BTreeMap<u64, String>,
    pub(super) snapshots: BTreeMap<u64, String>,
    pub(super) temporary: Vec<String>,
}

pub(super) fn find_files(storage: &impl Storage, lane: LaneIndex) -> io::Result<Found> {
    let mut found = Found::default();
    for name in storage.list()? {
        match parse_name(&name) {
            Some((of, generation, "log")) if of == lane => drop(found.logs.insert(generation, name)),
            Some((of, generation, "snap")) if of == lane => drop(found.snapshots.insert(generation, name)),
            Some((of, _, "tmp")) if of == lane => found.temporary.push(name),
            _ => {}
        }
    }
    Ok(found)
}

pub(super) fn log_name(lane: LaneIndex, generation: u64) -> String {
    format!("lane-{:03}.{generation:010}.log", lane.0)
}

pub(super) fn snapshot_name(lane: LaneIndex, generation: u64) -> String {
    format!("lane-{:03}.{generation:010}.snap", lane.0)
}

pub(super) fn temporary_name(lane: LaneIndex, generation: u64) -> String {
    format!("lane-{:03}.{generation:010}.tmp", lane.0)
}

fn parse_name(name: &str) -> Option<(LaneIndex, u64, &str)> {
    let (lane, rest) = name.strip_prefix("lane-")?.split_once('.')?;
    let (generation, extension) = rest.split_once('.')?;
    Some((LaneIndex(lane.parse().ok()?), generation.parse().ok()?, extension))
}
