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

/// Removes every file of `lane`: its records are safe elsewhere. Damaged files set aside have records that are nowhere else:
/// they stay for the operator who was told of them.
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

const EXTENSIONS: [&str; 3] = ["log", "snap", "tmp"];

fn parse_name(name: &str) -> Option<(LaneIndex, u64, &str)> {
    let (lane, rest) = name.strip_prefix("lane-")?.split_once('.')?;
    let (generation, extension) = rest.split_once('.').filter(|(_, extension)| EXTENSIONS.contains(extension))?;
    Some((LaneIndex(lane.parse().ok()?), generation.parse().ok()?, extension))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::faulty::FaultyDirectory;
    use crate::wal::storage::StorageFile as _;

    #[test]
    fn a_log_set_aside_outlives_its_lane_and_is_no_lanes_log() {
        let disk = FaultyDirectory::default();
        let (lane, other) = (LaneIndex(3), LaneIndex(4));
        let names = [log_name(lane, 7), snapshot_name(lane, 7), temporary_name(lane, 8), log_name(other, 1)];
        for name in &names {
            disk.create(name).unwrap().append(b"x").unwrap();
        }
        set_aside(&disk, &names[0]).unwrap();
        assert_eq!(lanes_with_files(&disk).unwrap(), [lane, other]);
        remove_lane(&disk, lane).unwrap();
        let mut left = disk.list().unwrap();
        left.sort_unstable();
        assert_eq!(left, [format!("{}.damaged", names[0]), names[3].clone()]);
        assert_eq!(lanes_with_files(&disk).unwrap(), [other]);
    }
}
