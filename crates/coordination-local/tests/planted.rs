//! A record in the file that breaks an invariant, or is no record at all, is refused as damage: neither served nor
//! written over.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod support;

use std::path::{Path, PathBuf};
use std::{fs, iter};

use redb::{ReadableDatabase, ReadableTable, TableDefinition};
use support::{Workload, records, tables};
use tessera_contracts::ids::{FenceEpoch, RunIncarnation, ShardId};
use tessera_coordination::CoordinatorRuntimeConfig;
use tessera_coordination::record::park::ParkInfo;
use tessera_coordination::record::status::{ParkReason, ShardStatus};
use tessera_coordination::stored::{ColdPart, HotPart};
use tessera_coordination_local::{LocalCoordinator, OpenError};

type Table = TableDefinition<'static, &'static [u8], &'static [u8]>;
const COLD: Table = TableDefinition::new("cold");
const HOT: Table = TableDefinition::new("hot");

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn config() -> CoordinatorRuntimeConfig {
    CoordinatorRuntimeConfig { slab_capacity: 1 << 20, ..CoordinatorRuntimeConfig::default() }
}

fn rows(path: &Path, table: Table) -> Rows {
    // It must outlive its transaction.
    let database = tables(path);
    let transaction = database.begin_read().unwrap();
    let table = transaction.open_table(table).unwrap();
    table
        .iter()
        .unwrap()
        .map(|row| row.unwrap())
        .map(|(key, value)| (key.value().into(), value.value().into()))
        .collect()
}

fn plant(path: &Path, table: Table, key: &[u8], value: &[u8]) {
    let database = tables(path);
    let transaction = database.begin_write().unwrap();
    transaction.open_table(table).unwrap().insert(key, value).unwrap();
    transaction.commit().unwrap();
}

/// A file with a run that is under way.
fn used(folder: &Path) -> PathBuf {
    let path = folder.join("runs.redb");
    let mut local = LocalCoordinator::open(&path, config()).unwrap();
    let mut workload = Workload::new(5);
    for _ in 0..40 {
        workload.step(&mut local).unwrap();
    }
    assert!(records(&mut local).iter().any(|record| record.state.head.lease.is_some()));
    path
}

#[test]
fn a_broken_record_in_the_file_is_refused_by_its_rule_and_stays_as_it_was_found() {
    let folder = std::env::temp_dir().join(format!("tessera-local-planted-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let path = used(&folder);
    // A shard that is held, has done something, and was never split.
    let plain = rows(&path, HOT).into_iter().zip(rows(&path, COLD)).find(|((_, hot), (_, cold))| {
        let (hot, cold) = (HotPart::decode(hot).unwrap(), ColdPart::decode(cold).unwrap());
        hot.head.lease.is_some() && !hot.op_log.is_empty() && cold.spawned.is_empty()
    });
    let ((key, hot), (same, cold)) = plain.unwrap();
    assert_eq!(key, same, "every shard has both parts");
    let changed_hot = |change: &dyn Fn(&mut HotPart)| {
        let mut part = HotPart::decode(&hot).unwrap();
        change(&mut part);
        part.encode()
    };
    let changed_cold = |change: &dyn Fn(&mut ColdPart)| {
        let mut part = ColdPart::decode(&cold).unwrap();
        change(&mut part);
        part.encode()
    };
    let park = Some(ParkInfo { reason: ParkReason::Other, retry_after: None });
    let split = |part: &mut HotPart| part.head = part.head.settled(ShardStatus::Split);
    let twice = |part: &mut HotPart| {
        let entry = *part.op_log.iter().next().unwrap();
        part.op_log = iter::repeat_n(entry, 2).collect();
    };
    let cases: [(&str, Table, Vec<u8>); 10] = [
        ("invariant 1", HOT, changed_hot(&|part| part.head.park = park)),
        ("invariant 3", HOT, changed_hot(&|part| part.head.status = ShardStatus::Done)),
        ("invariant 4", HOT, changed_hot(&|part| part.head.fence = FenceEpoch::new(0))),
        ("invariant 6", HOT, changed_hot(&split)),
        ("invariant 7", COLD, changed_cold(&|part| part.parent = Some(ShardId::new(9)))),
        ("invariant 9", HOT, changed_hot(&twice)),
        // Leftovers of a retired run under the same name.
        ("is of incarnation", HOT, changed_hot(&|part| part.incarnation = RunIncarnation::new(99))),
        ("is of incarnation", COLD, changed_cold(&|part| part.incarnation = RunIncarnation::new(99))),
        ("field end", HOT, [&hot[..], &[0]].concat()),
        ("field version", COLD, [&[99], &cold[1..]].concat()),
    ];
    for (rule, table, bytes) in cases {
        let whole = if table.to_string() == HOT.to_string() { &hot } else { &cold };
        plant(&path, table, &key, &bytes);
        let (hots, colds) = (rows(&path, HOT), rows(&path, COLD));
        // The second try meets what the first left.
        for _ in 0..2 {
            let refused = LocalCoordinator::open(&path, config()).unwrap_err();
            assert!(matches!(refused, OpenError::Damaged { .. }), "{rule}: {refused:?}");
            assert!(refused.to_string().contains(rule), "{rule}: {refused}");
        }
        assert_eq!((rows(&path, HOT), rows(&path, COLD)), (hots, colds), "{rule}: the file was written to");
        plant(&path, table, &key, whole);
        drop(LocalCoordinator::open(&path, config()).unwrap());
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn tables_that_do_not_say_how_much_of_the_log_they_contain_or_lie_about_it_are_refused() {
    let folder = std::env::temp_dir().join(format!("tessera-local-contained-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let path = used(&folder);
    let logs: TableDefinition<'_, &str, u64> = TableDefinition::new("log");
    let plant = |contained: Option<u64>| {
        let database = tables(&path);
        let transaction = database.begin_write().unwrap();
        let mut table = transaction.open_table(logs).unwrap();
        let before = match contained {
            Some(contained) => table.insert("contained", contained).unwrap().map(|before| before.value()),
            None => table.remove("contained").unwrap().map(|before| before.value()),
        };
        drop(table);
        transaction.commit().unwrap();
        before
    };
    let contained = plant(Some(u64::MAX)).unwrap();
    assert!(contained > 0, "the log was used");
    for (planted, words) in [(Some(u64::MAX), "no log gets that far"), (None, "do not say what they contain")] {
        plant(planted);
        let refused = LocalCoordinator::open(&path, config()).unwrap_err();
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused:?}");
        assert!(refused.to_string().contains(words), "{refused}");
    }
    plant(Some(contained));
    drop(LocalCoordinator::open(&path, config()).unwrap());
    fs::remove_dir_all(&folder).unwrap();
}
